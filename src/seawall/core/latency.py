"""A latency histogram of fixed size: 720 buckets of durations.

    histogram.add(elapsed_ns)            increments one counter: cheap enough for every batch
    histogram.summary()                  count, p50, p99, p999 and maximum, at any time

Buckets are 1 ns wide up to 32 ns; above that there are 16 per power of two, up to 2^48 ns (three days). The last bucket
also counts longer durations. A percentile is reported as the upper end of its bucket: at most one sixteenth too long,
and never too short.

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
    """The measurements so far, in nanoseconds; all 0 if there are none."""

    count: int
    p50_ns: int
    p99_ns: int
    p999_ns: int
    max_ns: int


class LatencyHistogram:
    """Counts by duration. Callers must serialize `add`; any thread may call `summary`."""

    __slots__ = ("_counts", "_max_ns")

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * _SIZE))
        self._max_ns = 0

    def add(self, elapsed_ns: int) -> None:
        """Count one more duration."""
        elapsed_ns = max(0, elapsed_ns)
        self._max_ns = max(self._max_ns, elapsed_ns)
        shift = max(0, elapsed_ns.bit_length() - 5)
        self._counts[min(shift * _STEPS + (elapsed_ns >> shift), _SIZE - 1)] += 1

    def summary(self) -> LatencySummary:
        """Summarize the measurements so far."""
        counts = self._counts.tolist()
        total = sum(counts)
        p50_ns, p99_ns, p999_ns = (self._percentile_ns(counts, total, per_mille) for per_mille in (500, 990, 999))
        return LatencySummary(total, p50_ns, p99_ns, p999_ns, self._max_ns)

    def _percentile_ns(self, counts: list[int], total: int, per_mille: int) -> int:
        """The upper bound of the bucket that contains the percentile."""
        left = -(-total * per_mille // 1_000)
        for index, count in enumerate(counts):
            left -= count
            if left <= 0 and count:
                shift = max(0, index // _STEPS - 1)
                return min(((index - shift * _STEPS + 1) << shift) - 1, self._max_ns)
        return 0
