"""How long things take, as a distribution of fixed size: a count for each of 720 lengths of time.

    histogram.add(elapsed_ns)            one addition to one number: cheap enough for every batch
    histogram.summary()                  count, p50, p99, p999 and the longest, at any time

Lengths are whole up to 32 ns, then 16 for each doubling, up to 2^48 ns (three days), where longer ones count too. So a
percentile is told as the upper end of its length, at most one sixteenth too long and never too short.

This module must not know what is measured.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

_STEPS: Final = 16
_BITS_MAX: Final = 48
_SIZE: Final = (_BITS_MAX - 5) * _STEPS + 2 * _STEPS


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """What was measured so far, in nanoseconds; all 0 while nothing was."""

    count: int
    p50_ns: int
    p99_ns: int
    p999_ns: int
    max_ns: int


class LatencyHistogram:
    """Counts by length of time. Whoever adds sees to it that one does at a time; anybody may ask."""

    __slots__ = ("_counts", "_max_ns")

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * _SIZE))
        self._max_ns = 0

    def add(self, elapsed_ns: int) -> None:
        """One more that took so long."""
        elapsed_ns = max(0, elapsed_ns)
        self._max_ns = max(self._max_ns, elapsed_ns)
        shift = max(0, elapsed_ns.bit_length() - 5)
        self._counts[min(shift * _STEPS + (elapsed_ns >> shift), _SIZE - 1)] += 1

    def summary(self) -> LatencySummary:
        """What was measured so far."""
        counts = self._counts.tolist()
        total = sum(counts)
        p50_ns, p99_ns, p999_ns = (self._end_of(counts, total, per_mille) for per_mille in (500, 990, 999))
        return LatencySummary(total, p50_ns, p99_ns, p999_ns, self._max_ns)

    def _end_of(self, counts: list[int], total: int, per_mille: int) -> int:
        """The time within which so many of a thousand were done."""
        left = -(-total * per_mille // 1_000)
        for index, count in enumerate(counts):
            left -= count
            if left <= 0 and count:
                shift = max(0, index // _STEPS - 1)
                return min(((index - shift * _STEPS + 1) << shift) - 1, self._max_ns)
        return 0
