"""A set of seqs stored as ranges: sorted, disjoint, never adjacent, 16 bytes each.

Deletes come in runs (a prefix, a queue drained in order), so ranges take far less memory than single seqs. Deleting
every second record of a million is the worst case, at 8 MB. Both ends of a range belong to it.

Between two ranges there is at least one seq that is in neither; adjacent ranges are merged.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from seawall.core.checks import check
from seawall.core.types import Seq
from seawall.storage.segments.delete_sidecar import DeletedSeqs


class SeqRanges:
    """A growing set of seqs; `drop_below` removes its low end."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts = array("Q")
        self._lasts = array("Q")
        for first, last in ranges:
            self.add(Seq(first), Seq(last))

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[Seq, Seq]]:
        """The ranges, ascending."""
        return ((Seq(first), Seq(last)) for first, last in zip(self._firsts, self._lasts, strict=True))

    def add(self, first: Seq, last: Seq) -> None:
        """Add every seq of a range."""
        check(1 <= first <= last, "INV-LIVE-EXACT", f"{first} to {last} is not a range")
        # Merge the ranges that overlap the new one or are adjacent to it.
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first = Seq(min(first, self._firsts[low]))
            last = Seq(max(last, self._lasts[high - 1]))
        self._firsts[low:high] = array("Q", (first,))
        self._lasts[low:high] = array("Q", (last,))

    def update(self, added: DeletedSeqs) -> None:
        """Add every seq of a set by one merge, however many ranges it has."""
        if not added.ranges.size:
            return
        # Merge only the ranges that overlap the new ones, are adjacent to them or between them; move the rest as bytes.
        low = bisect_left(self._lasts, added.first_seq - 1)
        high = bisect_right(self._firsts, added.last_seq + 1)
        merged = added.union(self._between(low, high)).ranges.astype(np.uint64)
        self._firsts[low:high] = array("Q", merged[:, 0].tobytes())
        self._lasts[low:high] = array("Q", (merged[:, 1] - np.uint64(1)).tobytes())

    def inside(self, first: Seq, last: Seq) -> DeletedSeqs:
        """The ranges that overlap a range, each as a whole."""
        return self._between(bisect_left(self._lasts, first), bisect_right(self._firsts, last))

    def drop_below(self, seq: Seq) -> None:
        """Remove every seq below `seq`."""
        gone = bisect_left(self._lasts, seq)
        del self._firsts[:gone]
        del self._lasts[:gone]
        if self._firsts and self._firsts[0] < seq:
            self._firsts[0] = seq

    def first_outside(self, seq: Seq) -> Seq:
        """The first seq from `seq` on that is not in the set."""
        index = bisect_right(self._firsts, seq) - 1
        if index >= 0 and seq <= self._lasts[index]:
            return Seq(self._lasts[index] + 1)
        return seq

    def outside(self, first: Seq, last: Seq) -> Iterator[tuple[Seq, Seq]]:
        """The parts of a range that are not in the set, ascending; the set must not change meanwhile."""
        for index in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[index] > last:
                break
            if first < self._firsts[index]:
                yield first, Seq(self._firsts[index] - 1)
            first = Seq(self._lasts[index] + 1)
        if first <= last:
            yield first, last

    def _between(self, low: int, high: int) -> DeletedSeqs:
        """The ranges from number `low` to below `high`."""
        rows: npt.NDArray[np.int64] = np.empty((max(0, high - low), 2), np.int64)
        rows[:, 0] = self._firsts[low:high]
        rows[:, 1] = self._lasts[low:high]
        rows[:, 1] += 1
        return DeletedSeqs(rows, are_merged=True)
