"""A simulated clock that moves only when a test advances it.

    clock = SimClock()
    clock.at(clock.monotonic_ns() + 5_000_000, lambda: print("five milliseconds later"))
    clock.advance(10_000_000)

Time stands still between calls of `advance`, which runs every timer that becomes due, in order of time and, at equal
times, in order of insertion; during a timer the clock shows that timer's time. A whole cluster can therefore run in one
thread, fast and deterministically.

The monotonic clock is the timeline. The wall clock is derived from it: it may be wrong, run fast or slow, and step
back, as real ones do. `sibling` makes another wall clock on the same timeline: one per simulated host.

Invariants
- Timers run in order of (time, insertion).
- `monotonic_ns` never decreases, whatever is done to the wall clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from seawall.errors import InvalidInputError

__all__ = ["SimClock"]

#: 2024-01-01 00:00:00 UTC: a date that is easy to recognise in a history.
DEFAULT_WALL_NS: Final = 1_704_067_200_000_000_000

_MILLION: Final = 1_000_000


class _Timeline:
    """Monotonic time and its timers; shared by sibling clocks."""

    __slots__ = ("inserted", "now_ns", "running", "timers")

    def __init__(self) -> None:
        self.now_ns = 0
        self.timers: list[tuple[int, int, Callable[[], None]]] = []
        self.inserted = 0
        self.running = False

    def run_until(self, end_ns: int) -> None:
        if self.running:
            raise InvalidInputError("a timer must not advance the clock that runs it; set another timer instead")
        self.running = True
        try:
            while self.timers and self.timers[0][0] <= end_ns:
                due_ns, _, callback = heapq.heappop(self.timers)
                self.now_ns = due_ns
                callback()
            self.now_ns = end_ns
        finally:
            self.running = False


class SimClock:
    """Wall and monotonic time, controlled by a test."""

    __slots__ = ("_origin_ns", "_skew_ppm", "_timeline", "_wall_ns")

    def __init__(self, wall_ns: int = DEFAULT_WALL_NS) -> None:
        self._timeline = _Timeline()
        self._wall_ns = wall_ns
        self._origin_ns = 0
        self._skew_ppm = 0

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, with the steps and the skew that the test has set."""
        elapsed_ns = self._timeline.now_ns - self._origin_ns
        return self._wall_ns + elapsed_ns + elapsed_ns * self._skew_ppm // _MILLION

    def monotonic_ns(self) -> int:
        """Nanoseconds since the start of the simulation."""
        return self._timeline.now_ns

    def at(self, time_ns: int, callback: Callable[[], None]) -> None:
        """Run `callback` when the monotonic clock reaches `time_ns`, which must not be in the past."""
        timeline = self._timeline
        if time_ns < timeline.now_ns:
            raise InvalidInputError(f"a timer at {time_ns} ns is in the past; the clock shows {timeline.now_ns} ns")
        heapq.heappush(timeline.timers, (time_ns, timeline.inserted, callback))
        timeline.inserted += 1

    def advance(self, duration_ns: int) -> None:
        """Let time pass and run the timers that become due, including timers set by timers."""
        if duration_ns < 0:
            raise InvalidInputError(f"time cannot pass by {duration_ns} ns; use step_wall to set a wall clock back")
        self._timeline.run_until(self._timeline.now_ns + duration_ns)

    def advance_to_next(self) -> bool:
        """Jump to the next timer and run all timers of that time; False if there is none."""
        if not self._timeline.timers:
            return False
        self._timeline.run_until(self._timeline.timers[0][0])
        return True

    def step_wall(self, by_ns: int) -> None:
        """Set the wall clock forward or, with a negative number, back."""
        self._rebase()
        self._wall_ns += by_ns

    def skew_wall(self, parts_per_million: int) -> None:
        """Make the wall clock run fast, or with a negative number slow, from now on."""
        if parts_per_million <= -_MILLION:
            raise InvalidInputError(f"a skew of {parts_per_million} ppm would stop or reverse the wall clock")
        self._rebase()
        self._skew_ppm = parts_per_million

    def sibling(self, wall_ns: int | None = None) -> SimClock:
        """Another wall clock on the same timeline, for another host; it starts at the time of this one by default."""
        other = SimClock(self.wall_ns() if wall_ns is None else wall_ns)
        other._timeline = self._timeline
        other._origin_ns = self._timeline.now_ns
        return other

    def _rebase(self) -> None:
        """Add the time passed so far to the base, so that a new rate applies from now on."""
        self._wall_ns = self.wall_ns()
        self._origin_ns = self._timeline.now_ns
