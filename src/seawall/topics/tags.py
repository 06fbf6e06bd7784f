"""A tag index: finds the records of a tag, so that a delete by tag costs what it deletes and not what the topic holds.

Topics without deletes by tag pay nothing: the first such delete builds the index from the records, and each later one
adds the records stored since. The index is never stored.

Memory: 8 bytes for each tagged record and about 150 bytes for each distinct tag, for the records a topic still has.
Records without a tag cost nothing. Loops over many tags let other threads run regularly: an event loop may wait for the
interpreter.

Seqs arrive in rising order, so each tag's seqs are sorted. Tags are bytes and compared as bytes. Records that are
removed otherwise (by floor, by seq) stay in the index until a sweep; callers filter them out.

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
from seawall.io.process.own_process import yield_gil
from seawall.limits import TAG_SLICE_COUNT
from seawall.storage.control.deletes import MatchKind, TagMatch

Seqs = npt.NDArray[np.int64]

#: The least number of removed seqs that makes a sweep over all tags worthwhile.
_SWEEP_MIN: Final = 1_024


class TagIndex:
    """The seqs of every tag of one topic, for the records below `next_seq`."""

    __slots__ = ("_count", "_seqs", "_sorted_tags", "_swept_below", "next_seq")

    def __init__(self) -> None:
        self._seqs: dict[bytes, array[int]] = {}
        #: All tags in order, for prefixes; None if tags were added or removed since.
        self._sorted_tags: list[bytes] | None = None
        self._count = 0
        self._swept_below = 0
        #: The first record that is not indexed yet.
        self.next_seq = Seq(1)

    def __len__(self) -> int:
        """Tagged records in the index, including those not swept yet."""
        return self._count

    @property
    def tag_count(self) -> int:
        """The number of distinct tags."""
        return len(self._seqs)

    def add(self, tags: Sequence[bytes], seqs: Seqs, numbers: npt.NDArray[np.int32]) -> None:
        """Add tagged records that follow all others: the rising seq of each, and the index of its tag in `tags`."""
        order = numbers.argsort(kind="stable")
        by_tag = seqs[order]
        cuts = np.searchsorted(numbers[order], np.arange(len(tags) + 1, dtype=np.int32)).tolist()
        for number, tag in enumerate(tags):
            self._extend(tag, by_tag[cuts[number] : cuts[number + 1]])
            if not number % TAG_SLICE_COUNT:
                yield_gil()

    def find(self, match: TagMatch, below: Seq) -> Seqs:
        """The seqs below `below` whose tag matches, ascending."""
        found = [np.empty(0, np.int64)]
        for number, tag in enumerate(self._matching(match)):
            if not number % TAG_SLICE_COUNT:
                yield_gil()
            seqs = self._seqs[tag]
            found.append(np.frombuffer(seqs[: bisect_left(seqs, below)], np.int64))
        joined = np.concatenate(found)
        # A stable sort merges the sorted runs of several tags.
        joined.sort(kind="stable")
        return joined

    def forget(self, match: TagMatch, below: Seq) -> None:
        """Remove what `find` returns for the same arguments."""
        for number, tag in enumerate(self._matching(match)):
            if not number % TAG_SLICE_COUNT:
                yield_gil()
            self._cut(tag, bisect_left(self._seqs[tag], below))

    def drop_below(self, seq: Seq) -> None:
        """Remove seqs below `seq`, now or once there are enough of them for a sweep over all tags."""
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
