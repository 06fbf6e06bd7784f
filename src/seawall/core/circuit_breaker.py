"""A circuit breaker: stop asking a dependency that fails, find out gently when it works again.

    CLOSED ──(failure_threshold failures in a row within failure_window)──► OPEN
    OPEN ──(reset_timeout has passed, next request)──► HALF_OPEN
    HALF_OPEN ──(success_threshold successes)──► CLOSED
    HALF_OPEN ──(any failure)──► OPEN

Whoever wants to use the dependency asks `admit` and reports back with `succeeded` or `failed`. An admission belongs to
a round; each change of state starts a new one. A result from an earlier round says nothing about now (a request sent
before the trip may fail long after it) and is ignored.

Rules
- Closed: a success forgets all failures; a failure older than `failure_window_ns` does not count.
- Half open: at most `success_threshold` probes are let through, since that many decide the matter. A probe that never
  reports would block the circuit for ever, so a reset timeout after the last of them probing starts anew.
- While open, nothing is admitted before the reset timeout.
- `trip` and `reset` are for operators. A tripped circuit probes again after the reset timeout like any open one.

Time comes from the caller, in nanoseconds of a monotonic clock; a time before the latest one seen counts as that one.
A breaker has one owner and needs no lock; a crash forgets it, and a new one starts closed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from enum import Enum
from typing import NewType

from seawall.errors import InvalidInputError

_SECOND_NS = 1_000_000_000

#: What an admission belongs to: everything between two changes of state.
Round = NewType("Round", int)


class CircuitState(Enum):
    """Where a circuit breaker stands."""

    CLOSED = "closed"  #: requests pass
    OPEN = "open"  #: requests are refused
    HALF_OPEN = "half_open"  #: a few requests pass, to find out


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
                raise InvalidInputError(f"{field.name} of a circuit breaker is at least 1, not {value}")


#: For most dependencies.
DEFAULT_POLICY = BreakerPolicy(5, 3, 30 * _SECOND_NS, 60 * _SECOND_NS)
#: For one that has a good substitute: give up early, come back early.
AGGRESSIVE_POLICY = BreakerPolicy(3, 2, 10 * _SECOND_NS, 30 * _SECOND_NS)
#: For one that often fails for a moment, or that cannot be replaced.
TOLERANT_POLICY = BreakerPolicy(10, 5, 60 * _SECOND_NS, 120 * _SECOND_NS)


class CircuitBreaker:
    """One circuit in front of one dependency."""

    __slots__ = ("_failures_ns", "_latest_ns", "_policy", "_probes", "_round", "_since_ns", "_state", "_successes")

    def __init__(self, policy: BreakerPolicy, now_ns: int) -> None:
        self._policy = policy
        self._state = CircuitState.CLOSED
        self._round = Round(1)
        self._latest_ns = now_ns
        # When the circuit opened; in a half-open one, when the latest probe was let through.
        self._since_ns = now_ns
        # Times of the latest failures in a row; the oldest falls out by itself.
        self._failures_ns: deque[int] = deque(maxlen=policy.failure_threshold)
        self._probes = 0
        self._successes = 0

    @property
    def state(self) -> CircuitState:
        """The state after the last call. An open circuit becomes half open when the next request asks."""
        return self._state

    def admit(self, now_ns: int) -> Round | None:
        """Let a request pass, and say in which round to report its result; None refuses it."""
        self._see(now_ns)
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
        """Report that a request admitted in that round worked."""
        self._see(now_ns)
        if admitted != self._round:
            return
        self._failures_ns.clear()
        if self._state is CircuitState.HALF_OPEN:
            self._successes += 1
            if self._successes >= self._policy.success_threshold:
                self._enter(CircuitState.CLOSED)

    def failed(self, admitted: Round, now_ns: int) -> None:
        """Report that a request admitted in that round failed."""
        self._see(now_ns)
        if admitted != self._round:
            return
        self._failures_ns.append(self._latest_ns)
        in_a_row = len(self._failures_ns) == self._policy.failure_threshold
        in_window = self._latest_ns - self._failures_ns[0] <= self._policy.failure_window_ns
        if self._state is CircuitState.HALF_OPEN or (in_a_row and in_window):
            self._enter(CircuitState.OPEN)

    def trip(self, now_ns: int) -> None:
        """Open the circuit by hand."""
        self._see(now_ns)
        self._enter(CircuitState.OPEN)

    def reset(self, now_ns: int) -> None:
        """Close the circuit by hand and forget every failure."""
        self._see(now_ns)
        self._enter(CircuitState.CLOSED)

    def _see(self, now_ns: int) -> None:
        self._latest_ns = max(self._latest_ns, now_ns)

    def _enter(self, state: CircuitState) -> None:
        self._state = state
        self._since_ns = self._latest_ns
        self._round = Round(self._round + 1)
        self._failures_ns.clear()
        self._probes = 0
        self._successes = 0
