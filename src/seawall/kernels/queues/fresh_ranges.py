"""Fresh jobs as ranges of seqs: taken from the front, added at the end, removed anywhere.

`ranges` has rows of (first seq, seq after the last). The used rows, from `first_range` to `end_range` of the view, rise
and never overlap; a range that a removal emptied stays as a row whose two numbers are equal. `tallies[NO_ROW]` is the
number of seqs.

A removal inside a range splits it and moves the rows on the shorter side by one. Deletes come in rising order, so the
side behind them is short. The caller guarantees a free row for each split, before the used rows or behind them, and
behind them for each added range.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import carray

from seawall.kernels.queues.lease_records import LEASE_VIEW, NO_ROW
from seawall.kernels.runtime.jit import int64, kernel, record_array, void
from seawall.kernels.runtime.memory import pointer_at

Ranges = npt.NDArray[np.int64]

_view = record_array(LEASE_VIEW).dtype


@kernel(void(_view, int64, int64))
def add_fresh(view: np.void, first: int, end: int) -> None:
    """Add a range behind all others; joins the last one if it touches it."""
    ranges = carray(pointer_at(view["ranges_at"]), (view["ranges_count"], 2), np.int64)
    tallies = carray(pointer_at(view["tallies_at"]), view["tallies_count"], np.int64)
    last = view["end_range"] - 1
    if last >= view["first_range"] and ranges[last, 1] == first:
        ranges[last, 1] = end
    else:
        ranges[last + 1, 0] = first
        ranges[last + 1, 1] = end
        view["end_range"] += 1
    tallies[NO_ROW] += end - first


@kernel(int64(_view, int64))
def _find(view: np.void, seq: int) -> int:
    """The first row that ends above a seq, or the end of the used rows."""
    ranges = carray(pointer_at(view["ranges_at"]), (view["ranges_count"], 2), np.int64)
    low, high = view["first_range"], view["end_range"]
    while low < high:
        middle = (low + high) >> 1
        if ranges[middle, 1] > seq:
            high = middle
        else:
            low = middle + 1
    return int(low)


@kernel(void(_view, int64, int64, int64))
def _split(view: np.void, row: int, first: int, end: int) -> None:
    """Remove `first` … `end` from the middle of a range: it becomes two."""
    ranges = carray(pointer_at(view["ranges_at"]), (view["ranges_count"], 2), np.int64)
    start, stop = view["first_range"], view["end_range"]
    if stop == view["ranges_count"] or (start > 0 and row - start < stop - row):
        for each in range(start, row + 1):
            ranges[each - 1, 0] = ranges[each, 0]
            ranges[each - 1, 1] = ranges[each, 1]
        view["first_range"] = start - 1
        row -= 1
    else:
        for back in range(stop - row):
            each = stop - back
            ranges[each, 0] = ranges[each - 1, 0]
            ranges[each, 1] = ranges[each - 1, 1]
        view["end_range"] = stop + 1
    ranges[row, 1] = first
    ranges[row + 1, 0] = end


@kernel(void(_view, int64, int64))
def remove_fresh(view: np.void, first: int, end: int) -> None:
    """Remove the seqs `first` … `end`, as far as they are there."""
    ranges = carray(pointer_at(view["ranges_at"]), (view["ranges_count"], 2), np.int64)
    tallies = carray(pointer_at(view["tallies_at"]), view["tallies_count"], np.int64)
    if first >= end:
        return
    row = _find(view, first)
    while row < view["end_range"] and ranges[row, 0] < end:
        low = max(first, ranges[row, 0])
        high = min(end, ranges[row, 1])
        tallies[NO_ROW] -= high - low
        if low > ranges[row, 0] and high < ranges[row, 1]:
            _split(view, row, low, high)
            return
        if low > ranges[row, 0]:
            ranges[row, 1] = low
        else:
            ranges[row, 0] = high
        row += 1


@kernel(int64(_view))
def first_fresh(view: np.void) -> int:
    """The lowest seq, or 0; forgets empty ranges before it."""
    ranges = carray(pointer_at(view["ranges_at"]), (view["ranges_count"], 2), np.int64)
    while view["first_range"] < view["end_range"]:
        row = view["first_range"]
        if ranges[row, 0] < ranges[row, 1]:
            return int(ranges[row, 0])
        # The last row stays: the next range may touch it.
        if row + 1 == view["end_range"]:
            break
        view["first_range"] = row + 1
    return 0
