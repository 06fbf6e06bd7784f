"""What happened in a simulation, in order, as text a person can read.

Every simulator writes one line per event. A failing test prints `history()`; two runs of the same seed give the same
lines, which is how determinism itself is tested. The oldest events are forgotten first.
"""

from __future__ import annotations

from collections import deque

from seawall.limits import SIM_HISTORY_EVENTS_MAX

__all__ = ["EventLog"]


class EventLog:
    """A bounded list of numbered events."""

    __slots__ = ("_count", "_events")

    def __init__(self) -> None:
        self._events: deque[str] = deque(maxlen=SIM_HISTORY_EVENTS_MAX)
        self._count = 0

    def note(self, event: str) -> None:
        """Add one event."""
        self._count += 1
        self._events.append(f"{self._count} {event}")

    def lines(self) -> tuple[str, ...]:
        """The events still remembered, oldest first."""
        return tuple(self._events)
