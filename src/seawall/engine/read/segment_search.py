"""Find the sealed segment of a topic that holds a position or an offset.

Segment names contain only seqs and times. The first and last entry of each index stay in memory when the index itself
does not, so searches read the index of a segment once. A segment that is deleted or empty counts as the one before it.

This module must not know how a segment is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from seawall.core.types import Offset, Position
from seawall.storage.segments.segment import SealedSegment

__all__ = ["near_offset", "near_position"]


def near_position(sealed: Sequence[SealedSegment], position: Position) -> int:
    """Returns the first segment with a batch at `position` or after it; the number of segments if there is none."""

    def last_position(number: int) -> Position:
        while (last := sealed[number].load_ends().last_position) < 0 and number:
            number -= 1
        return last

    return bisect_left(range(len(sealed)), position, key=last_position)


def near_offset(sealed: Sequence[SealedSegment], offset: Offset) -> int:
    """Returns the last segment with a batch that starts at `offset` or before it; the first one if there is none."""

    def first_offset(number: int) -> Offset:
        while (first := sealed[number].load_ends().first_offset) < 0 and number:
            number -= 1
        return first

    near = bisect_right(range(len(sealed)), offset, key=first_offset) - 1
    while near > 0 and sealed[near].load_ends().first_offset < 0:
        near -= 1
    return max(0, near)
