"""The hybrid logical clock: wall time that never repeats, never goes back, and respects cause and effect.

A timestamp has two parts, a millisecond of wall time and a counter for the events inside it, stored and sent as one
number of nanoseconds:

    timestamp = milliseconds × 1,000,000 + counter        0 ≤ counter < HLC_COUNTER_LIMIT (1,000,000)

The counter fills exactly the nanoseconds below a millisecond. So timestamps are ordered as plain integers, read as
ordinary Unix nanoseconds, and "one more event" is always plus one: when the counter is full the sum is counter 0 of
the next millisecond, borrowed ahead of the wall clock, which catches up once the burst is over.

Rules
- Every timestamp is greater than every one this clock gave or received before. A wall clock that stands still or steps
  back makes it count; a wall clock in a later millisecond takes over with counter 0.
- A received timestamp moves the clock past it, unless it is more than HLC_AHEAD_MS_MAX ahead of the wall clock: then
  it is refused and the clock stays as it was. One that this clock has passed already moves nothing and is not refused.
- Drift is how far the clock runs ahead of the wall clock. Being behind is no drift: what arrives from others may be
  old for good reasons. A node whose own wall clock is slow sees drift itself; one that is fast causes it at its peers.

The clock must not know what time it is: the wall time is passed in. It has one owner and needs no lock. It keeps no
state over a crash: whoever starts it again passes in the highest timestamp found in the log.
"""

from __future__ import annotations

from enum import Enum

from seawall import limits
from seawall.core.types import TimestampNs
from seawall.errors import ClockSkewError

_MILLISECOND_NS = limits.HLC_COUNTER_LIMIT


class ClockHealth(Enum):
    """What the drift of a clock asks of its operator."""

    HEALTHY = "healthy"  #: nothing
    DEGRADED = "degraded"  #: look at time synchronisation
    CRITICAL = "critical"  #: time synchronisation has failed on this node or on a peer


class HybridClock:
    """One hybrid clock; `last_ns` is the highest timestamp it must stay above."""

    __slots__ = ("_last_ns",)

    def __init__(self, last_ns: int = 0) -> None:
        self._last_ns = last_ns

    @property
    def last_ns(self) -> TimestampNs:
        """The highest timestamp given or received so far."""
        return TimestampNs(self._last_ns)

    def now(self, wall_ns: int) -> TimestampNs:
        """The timestamp of a local event."""
        return self._step(self._last_ns, wall_ns)

    def receive(self, remote_ns: int, wall_ns: int) -> TimestampNs:
        """The timestamp of learning about a remote event; `ClockSkewError` if that lies too far ahead."""
        ahead_ms = remote_ns // _MILLISECOND_NS - wall_ns // _MILLISECOND_NS
        if remote_ns > self._last_ns and ahead_ms > limits.HLC_AHEAD_MS_MAX:
            raise ClockSkewError(
                f"remote timestamp {remote_ns} is {ahead_ms} ms ahead of this machine, more than the "
                f"{limits.HLC_AHEAD_MS_MAX} ms allowed: check time synchronisation on both"
            )
        return self._step(max(self._last_ns, remote_ns), wall_ns)

    def drift_ms(self, wall_ns: int) -> int:
        """Milliseconds this clock runs ahead of the wall clock, 0 if it does not."""
        return max(0, self._last_ns // _MILLISECOND_NS - wall_ns // _MILLISECOND_NS)

    def health(self, wall_ns: int) -> ClockHealth:
        """The drift as a verdict."""
        drift_ms = self.drift_ms(wall_ns)
        if drift_ms >= limits.HLC_DRIFT_CRITICAL_MS:
            return ClockHealth.CRITICAL
        if drift_ms >= limits.HLC_DRIFT_DEGRADED_MS:
            return ClockHealth.DEGRADED
        return ClockHealth.HEALTHY

    def _step(self, floor_ns: int, wall_ns: int) -> TimestampNs:
        wall_start_ns = wall_ns - wall_ns % _MILLISECOND_NS
        self._last_ns = max(floor_ns + 1, wall_start_ns)
        return TimestampNs(self._last_ns)
