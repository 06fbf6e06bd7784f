"""Which records have which tag, so that a delete by tag costs what it deletes and not what the topic holds.

Memory: 8 bytes a tagged record and about 150 bytes a distinct tag, for the records a topic still has. Records without
a tag cost nothing. The index is never stored: it is rebuilt from the records, oldest first.

Seqs come in rising order, so each tag's seqs are sorted as they arrive. Tags are bytes and compared as bytes. Records
that go otherwise than by their tag (by floor, by seq) stay in the index until a sweep; whoever asks filters them out.

INV-TAGS-RISING: the seqs of a tag rise.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from seawall.core.checks import check
from seawall.core.types import Seq
from seawall.storage.control_documents import MatchKind, TagMatch

#: Below this many removed seqs a sweep is not worth its walk over all tags.
_SWEEP_MIN: Final = 1_024


class TagIndex:
    """The seqs of every tag of one topic."""

    __slots__ = ("_count", "_seqs", "_sorted_tags", "_swept_below")

    def __init__(self) -> None:
        self._seqs: dict[bytes, array[int]] = {}
        #: Every tag in order, for prefixes; None while tags came or went since.
        self._sorted_tags: list[bytes] | None = None
        self._count = 0
        self._swept_below = 0

    def __len__(self) -> int:
        """Tagged records in the index, those not yet swept included."""
        return self._count

    @property
    def tag_count(self) -> int:
        """Distinct tags."""
        return len(self._seqs)

    def add(self, tag: bytes, seqs: Sequence[Seq]) -> None:
        """Records that follow all others of this tag."""
        if not seqs:
            return
        present = self._seqs.get(tag)
        if present is None:
            present = self._seqs[tag] = array("Q")
            self._sorted_tags = None
        check(not present or present[-1] < seqs[0], "INV-TAGS-RISING", f"seq {seqs[0]} of {tag!r}")
        present.extend(seqs)
        self._count += len(seqs)

    def add_batch(self, base_seq: Seq, tags: Iterable[bytes | None]) -> None:
        """The records of one batch: a tag for each, or None."""
        by_tag: dict[bytes, list[Seq]] = {}
        for seq, tag in enumerate(tags, base_seq):
            if tag is not None:
                by_tag.setdefault(tag, []).append(Seq(seq))
        for tag, seqs in by_tag.items():
            self.add(tag, seqs)

    def take(self, match: TagMatch, below: Seq) -> list[Seq]:
        """Remove the seqs below `below` whose tag matches from the index; return them ascending."""
        taken: list[Seq] = []
        for tag in self._matching(match):
            seqs = self._seqs[tag]
            cut = bisect_left(seqs, below)
            taken.extend(map(Seq, seqs[:cut]))
            self._cut(tag, cut)
        # Several tags give several sorted runs, which the sort merges without comparing inside them.
        taken.sort()
        return taken

    def drop_below(self, seq: Seq) -> None:
        """Let go of seqs below `seq`, now or once enough of them have gathered to be worth a walk over all tags."""
        removable = seq - self._swept_below
        if removable < _SWEEP_MIN or removable < self._count // 2:
            return
        for tag in list(self._seqs):
            self._cut(tag, bisect_left(self._seqs[tag], seq))
        self._swept_below = seq

    def _cut(self, tag: bytes, count: int) -> None:
        """Remove the first `count` seqs of a tag, and the tag with its last one."""
        seqs = self._seqs[tag]
        self._count -= count
        if count < len(seqs):
            del seqs[:count]
        else:
            del self._seqs[tag]
            self._sorted_tags = None

    def _matching(self, match: TagMatch) -> list[bytes]:
        text = match.text.encode()
        if match.kind is MatchKind.EQ:
            return [text] if text in self._seqs else []
        if self._sorted_tags is None:
            self._sorted_tags = sorted(self._seqs)
        tags = self._sorted_tags
        start = end = bisect_left(tags, text)
        while end < len(tags) and tags[end].startswith(text):
            end += 1
        return tags[start:end]
