"""Decides when a segment is full, and how much disk space it preallocates."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from seawall import limits
from seawall.core.types import TimestampNs

__all__ = ["SealReason", "SegmentLimits", "reserve_target", "seal_reason"]

_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """The limits of a segment; 0 means no limit."""

    records: int
    size: int
    age_ms: int


class SealReason(Enum):
    """The limit that a segment has reached."""

    RECORDS = "records"
    SIZE = "size"
    AGE = "age"


def seal_reason(
    record_count: int, size: int, first_ns: TimestampNs, now_ns: TimestampNs, bounds: SegmentLimits
) -> SealReason | None:
    """The reason to seal a segment with this many records and bytes of batches, begun at `first_ns`; None if not full.

    A segment without records is never sealed: it has no last seq for its name.
    """
    if not record_count:
        return None
    if bounds.records and record_count >= bounds.records:
        return SealReason.RECORDS
    if bounds.size and size >= bounds.size:
        return SealReason.SIZE
    if bounds.age_ms and now_ns - first_ns >= bounds.age_ms * _NS_PER_MS:
        return SealReason.AGE
    return None


def reserve_target(reserved: int, needed: int) -> int:
    """Bytes to reserve if `reserved` are not enough for `needed`: twice as much, the step within bounds."""
    step = min(max(reserved, limits.SEGMENT_RESERVE_SIZE_MIN), limits.SEGMENT_RESERVE_SIZE_MAX)
    return max(reserved + step, needed)
