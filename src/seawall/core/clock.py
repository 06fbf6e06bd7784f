"""A hybrid logical clock: timestamps near wall time that never repeat, never go back, and respect causality.

A timestamp consists of a millisecond of wall time and a counter for the events inside it, stored and sent as one
number of nanoseconds:

    timestamp = milliseconds × 1,000,000 + counter        0 ≤ counter < HLC_COUNTER_LIMIT (1,000,000)

The counter fills exactly the nanoseconds below a millisecond. So timestamps are ordered as plain integers, read as
ordinary Unix nanoseconds, and the next event is always plus one: when the counter is full, the sum is counter 0 of the
next millisecond. The clock then runs ahead of the wall clock, which catches up once the burst is over.

Rules
- Every timestamp is greater than all that this clock issued or received before. While the wall clock stands still or
  steps back, the counter advances; a later wall millisecond takes over with counter 0.
- A received timestamp advances the clock past it, unless it is more than HLC_AHEAD_MS_MAX ahead of the wall clock: then
  it is refused and the clock does not change. A timestamp that this clock has already passed is never refused.
- Drift is how far the clock runs ahead of the wall clock. Being behind is not drift: timestamps from others may be old
  for good reasons. A node with a slow wall clock sees drift itself; a node with a fast one causes it at its peers.

The clock does not read the wall time: callers pass it in. It has one owner and needs no lock. It keeps no state over a
crash: after a restart, pass in the highest timestamp found in the log.
"""

from __future__ import annotations

from enum import Enum

from seawall import limits
from seawall.core.types import TimestampNs
from seawall.errors import ClockSkewError

_MILLISECOND_NS = limits.HLC_COUNTER_LIMIT


class ClockHealth(Enum):
    """The severity of a clock's drift."""

    HEALTHY = "healthy"  #: nothing to do
    DEGRADED = "degraded"  #: check time synchronisation
    CRITICAL = "critical"  #: time synchronisation has failed on this node or on a peer


class HybridClock:
    """One hybrid clock; `last_ns` is the highest timestamp so far, and new ones are above it."""

    __slots__ = ("_last_ns",)

    def __init__(self, last_ns: int = 0) -> None:
        self._last_ns = last_ns

    @property
    def last_ns(self) -> TimestampNs:
        """The highest timestamp issued or received so far."""
        return TimestampNs(self._last_ns)

    def now(self, wall_ns: int) -> TimestampNs:
        """Return the timestamp of a local event."""
        return self._step(self._last_ns, wall_ns)

    def receive(self, remote_ns: int, wall_ns: int) -> TimestampNs:
        """Return the timestamp of receiving a remote event; `ClockSkewError` if the remote one is too far ahead."""
        ahead_ms = remote_ns // _MILLISECOND_NS - wall_ns // _MILLISECOND_NS
        if remote_ns > self._last_ns and ahead_ms > limits.HLC_AHEAD_MS_MAX:
            raise ClockSkewError(
                f"remote timestamp {remote_ns} is {ahead_ms} ms ahead of this machine, more than the "
                f"{limits.HLC_AHEAD_MS_MAX} ms allowed: check time synchronisation on both"
            )
        return self._step(max(self._last_ns, remote_ns), wall_ns)

    def drift_ms(self, wall_ns: int) -> int:
        """Milliseconds that this clock runs ahead of the wall clock; 0 if it does not."""
        return max(0, self._last_ns // _MILLISECOND_NS - wall_ns // _MILLISECOND_NS)

    def health(self, wall_ns: int) -> ClockHealth:
        """The drift, classified."""
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
