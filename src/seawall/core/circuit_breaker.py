"""A circuit breaker: stops requests to a failing dependency and probes when it works again.

    CLOSED ──(failure_threshold failures in a row within failure_window)──► OPEN
    OPEN ──(reset_timeout has passed, next request)──► HALF_OPEN
    HALF_OPEN ──(success_threshold successes)──► CLOSED
    HALF_OPEN ──(any failure)──► OPEN

Call `admit` before a request to the dependency, and report its result with `succeeded` or `failed`. An admission
belongs to a round; each change of state starts a new one. Results from earlier rounds are ignored: a request sent
before the trip may fail long after it.

Rules
- Closed: a success clears all failures; a failure older than `failure_window_ns` does not count.
- Half open: at most `success_threshold` probes pass, since that many successes close the circuit. A probe that never
  reports would block the circuit for ever, so probing restarts one reset timeout after the last probe.
- Open: nothing is admitted before the reset timeout.
- `trip` and `reset` are for operators. A tripped circuit probes again after the reset timeout like any open one.

The caller passes in the time, in nanoseconds of a monotonic clock; a time before the latest one counts as the latest.
A breaker has one owner and needs no lock. Its state is lost in a crash; a new breaker starts closed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from enum import Enum
from typing import NewType

from seawall.errors import InvalidInputError

_SECOND_NS = 1_000_000_000

#: Number of the period between two changes of state; an admission belongs to one.
Round = NewType("Round", int)


class CircuitState(Enum):
    """The state of a circuit breaker."""

    CLOSED = "closed"  #: requests pass
    OPEN = "open"  #: requests are refused
    HALF_OPEN = "half_open"  #: a few requests pass as probes


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When a circuit opens and when it closes again."""

    failure_threshold: int
    success_threshold: int
    reset_timeout_ns: int
    failure_window_ns: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value: int = getattr(self, field.name)
            if value < 1:
                raise InvalidInputError(f"{field.name} of a circuit breaker must be at least 1, not {value}")


#: For most dependencies.
DEFAULT_POLICY = BreakerPolicy(5, 3, 30 * _SECOND_NS, 60 * _SECOND_NS)
#: For a dependency with a good substitute: opens early, probes early.
AGGRESSIVE_POLICY = BreakerPolicy(3, 2, 10 * _SECOND_NS, 30 * _SECOND_NS)
#: For a dependency that often fails briefly, or that has no substitute.
TOLERANT_POLICY = BreakerPolicy(10, 5, 60 * _SECOND_NS, 120 * _SECOND_NS)


class CircuitBreaker:
    """The circuit breaker of one dependency."""

    __slots__ = ("_failures_ns", "_latest_ns", "_policy", "_probes", "_round", "_since_ns", "_state", "_successes")

    def __init__(self, policy: BreakerPolicy, now_ns: int) -> None:
        self._policy = policy
        self._state = CircuitState.CLOSED
        self._round = Round(1)
        self._latest_ns = now_ns
        # When the circuit opened; while half open, when the latest probe was admitted.
        self._since_ns = now_ns
        # Times of the latest consecutive failures; the deque drops the oldest.
        self._failures_ns: deque[int] = deque(maxlen=policy.failure_threshold)
        self._probes = 0
        self._successes = 0

    @property
    def state(self) -> CircuitState:
        """The state after the last call. An open circuit becomes half open only in `admit`."""
        return self._state

    def admit(self, now_ns: int) -> Round | None:
        """Admit a request: returns the round to report its result in, or None if it is refused."""
        self._advance(now_ns)
        if self._state is CircuitState.CLOSED:
            return self._round
        if self._state is CircuitState.OPEN or self._probes == self._policy.success_threshold:
            if self._latest_ns - self._since_ns < self._policy.reset_timeout_ns:
                return None
            self._enter(CircuitState.HALF_OPEN)
        self._probes += 1
        self._since_ns = self._latest_ns
        return self._round

    def succeeded(self, admitted: Round, now_ns: int) -> None:
        """Report that a request admitted in that round succeeded."""
        self._advance(now_ns)
        if admitted != self._round:
            return
        self._failures_ns.clear()
        if self._state is CircuitState.HALF_OPEN:
            self._successes += 1
            if self._successes >= self._policy.success_threshold:
                self._enter(CircuitState.CLOSED)

    def failed(self, admitted: Round, now_ns: int) -> None:
        """Report that a request admitted in that round failed."""
        self._advance(now_ns)
        if admitted != self._round:
            return
        self._failures_ns.append(self._latest_ns)
        in_a_row = len(self._failures_ns) == self._policy.failure_threshold
        in_window = self._latest_ns - self._failures_ns[0] <= self._policy.failure_window_ns
        if self._state is CircuitState.HALF_OPEN or (in_a_row and in_window):
            self._enter(CircuitState.OPEN)

    def trip(self, now_ns: int) -> None:
        """Open the circuit manually."""
        self._advance(now_ns)
        self._enter(CircuitState.OPEN)

    def reset(self, now_ns: int) -> None:
        """Close the circuit manually and clear all failures."""
        self._advance(now_ns)
        self._enter(CircuitState.CLOSED)

    def _advance(self, now_ns: int) -> None:
        self._latest_ns = max(self._latest_ns, now_ns)

    def _enter(self, state: CircuitState) -> None:
        self._state = state
        self._since_ns = self._latest_ns
        self._round = Round(self._round + 1)
        self._failures_ns.clear()
        self._probes = 0
        self._successes = 0
