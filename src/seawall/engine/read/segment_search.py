"""Which of the sealed segments of a topic holds a position or an offset.

Their names tell seqs and times alone. The ends of an index are kept when the index is not in memory, so a search reads
the index of a segment once and not every time. A segment that is gone, or of which nothing is left, counts as the one
before it.

This module must not know how a segment is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from seawall.core.types import Offset, Position
from seawall.storage.segments.segment import SealedSegment

__all__ = ["near_offset", "near_position"]


def near_position(sealed: Sequence[SealedSegment], position: Position) -> int:
    """The first segment that holds a batch at or behind a position; their number if none does."""

    def last_position(number: int) -> Position:
        while (last := sealed[number].ends.last_position) < 0 and number:
            number -= 1
        return last

    return bisect_left(range(len(sealed)), position, key=last_position)


def near_offset(sealed: Sequence[SealedSegment], offset: Offset) -> int:
    """The last segment with a batch that begins at an offset or before it; the first one if none has."""

    def first_offset(number: int) -> Offset:
        while (first := sealed[number].ends.first_offset) < 0 and number:
            number -= 1
        return first

    near = bisect_right(range(len(sealed)), offset, key=first_offset) - 1
    while near > 0 and sealed[near].ends.first_offset < 0:
        near -= 1
    return max(0, near)
