"""Which records have which tag, so that a delete by tag costs what it deletes and not what the topic holds.

Nobody pays for it who never deletes by tag: it is made by the first such delete, from the records, and each further one
adds what has come since. It is never stored.

Memory: 8 bytes a tagged record and about 150 bytes a distinct tag, for the records a topic still has. Records without
a tag cost nothing. Loops over many tags let other threads run now and then: an event loop may wait for the interpreter.

Seqs come in rising order, so each tag's seqs are sorted as they arrive. Tags are bytes and compared as bytes. Records
that go otherwise than by their tag (by floor, by seq) stay in the index until a sweep; whoever asks filters them out.

The seqs of a tag rise.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall.core.checks import check
from seawall.core.types import Seq
from seawall.io.process.own_process import let_others_run
from seawall.limits import TAG_SLICE_COUNT
from seawall.storage.control.deletes import MatchKind, TagMatch

Seqs = npt.NDArray[np.int64]

#: Below this many removed seqs a sweep is not worth its walk over all tags.
_SWEEP_MIN: Final = 1_024


class TagIndex:
    """The seqs of every tag of one topic, of the records below `next_seq`."""

    __slots__ = ("_count", "_seqs", "_sorted_tags", "_swept_below", "next_seq")

    def __init__(self) -> None:
        self._seqs: dict[bytes, array[int]] = {}
        #: Every tag in order, for prefixes; None while tags came or went since.
        self._sorted_tags: list[bytes] | None = None
        self._count = 0
        self._swept_below = 0
        #: The first record that has not been looked at.
        self.next_seq = Seq(1)

    def __len__(self) -> int:
        """Tagged records in the index, those not yet swept included."""
        return self._count

    @property
    def tag_count(self) -> int:
        """Distinct tags."""
        return len(self._seqs)

    def add(self, tags: Sequence[bytes], seqs: Seqs, numbers: npt.NDArray[np.int32]) -> None:
        """Tagged records that follow all others: the rising seq of each, and the number of its tag in `tags`."""
        order = numbers.argsort(kind="stable")
        by_tag = seqs[order]
        cuts = np.searchsorted(numbers[order], np.arange(len(tags) + 1, dtype=np.int32)).tolist()
        for number, tag in enumerate(tags):
            self._extend(tag, by_tag[cuts[number] : cuts[number + 1]])
            if not number % TAG_SLICE_COUNT:
                let_others_run()

    def find(self, match: TagMatch, below: Seq) -> Seqs:
        """The seqs below `below` whose tag matches, ascending."""
        found = [np.empty(0, np.int64)]
        for number, tag in enumerate(self._matching(match)):
            if not number % TAG_SLICE_COUNT:
                let_others_run()
            seqs = self._seqs[tag]
            found.append(np.frombuffer(seqs[: bisect_left(seqs, below)], np.int64))
        joined = np.concatenate(found)
        # Several tags give several sorted runs, which a stable sort merges.
        joined.sort(kind="stable")
        return joined

    def forget(self, match: TagMatch, below: Seq) -> None:
        """Let go of what `find` gives for the same arguments."""
        for number, tag in enumerate(self._matching(match)):
            if not number % TAG_SLICE_COUNT:
                let_others_run()
            self._cut(tag, bisect_left(self._seqs[tag], below))

    def drop_below(self, seq: Seq) -> None:
        """Let go of seqs below `seq`, now or once enough of them have gathered to be worth a walk over all tags."""
        removable = seq - self._swept_below
        if removable < _SWEEP_MIN or removable < self._count // 2:
            return
        for tag in list(self._seqs):
            self._cut(tag, bisect_left(self._seqs[tag], seq))
        self._swept_below = seq

    def _extend(self, tag: bytes, seqs: Seqs) -> None:
        if not len(seqs):
            return
        present = self._seqs.get(tag)
        if present is None:
            present = self._seqs[tag] = array("q")
            self._sorted_tags = None
        check(not present or present[-1] < int(seqs[0]), "INV-SEQ-ONCE", f"seq {seqs[0]} of {tag!r}")
        present.frombytes(seqs.tobytes())
        self._count += len(seqs)

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
