"""The circuit breaker against a naive model that keeps every failure and every probe."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from seawall.core.circuit_breaker import (
    AGGRESSIVE_POLICY,
    DEFAULT_POLICY,
    TOLERANT_POLICY,
    BreakerPolicy,
    CircuitBreaker,
    CircuitState,
    Round,
)
from seawall.errors import InvalidInputError

SECOND = 1_000_000_000
POLICY = BreakerPolicy(failure_threshold=3, success_threshold=2, reset_timeout_ns=10, failure_window_ns=20)


class BreakerMachine(RuleBasedStateMachine):
    """Requests that overlap, report late, twice or never; operators; time that steps back."""

    admissions = Bundle("admissions")

    @initialize(
        policy=st.builds(BreakerPolicy, st.integers(1, 4), st.integers(1, 3), st.integers(1, 30), st.integers(1, 30))
    )
    def start(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.breaker = CircuitBreaker(policy, 0)
        self.now = 0
        self.latest = 0
        self.life = 0
        self.enter(CircuitState.CLOSED)

    def enter(self, state: CircuitState) -> None:
        self.state = state
        self.entered = self.latest
        self.life += 1
        self.failures: list[int] = []
        self.probe_times: list[int] = []
        self.successes = 0

    @rule(step=st.integers(-15, 25))
    def time_moves(self, step: int) -> None:
        self.now += step

    @rule(target=admissions)
    def request(self) -> object:
        self.latest = max(self.latest, self.now)
        admitted = self.breaker.admit(self.now)
        if self.state is CircuitState.OPEN and self.latest - self.entered >= self.policy.reset_timeout_ns:
            self.enter(CircuitState.HALF_OPEN)
        exhausted = len(self.probe_times) >= self.policy.success_threshold
        if self.state is CircuitState.HALF_OPEN and exhausted:
            if self.latest - self.probe_times[-1] >= self.policy.reset_timeout_ns:
                self.enter(CircuitState.HALF_OPEN)
            else:
                assert admitted is None
                return multiple()
        if self.state is CircuitState.OPEN:
            assert admitted is None
            return multiple()
        if self.state is CircuitState.HALF_OPEN:
            self.probe_times.append(self.latest)
        assert admitted is not None
        return (admitted, self.life)

    @rule(admission=admissions)
    def success(self, admission: tuple[Round, int]) -> None:
        self.latest = max(self.latest, self.now)
        admitted, life = admission
        self.breaker.succeeded(admitted, self.now)
        if life != self.life:
            return
        self.failures = []
        if self.state is CircuitState.HALF_OPEN:
            self.successes += 1
            if self.successes == self.policy.success_threshold:
                self.enter(CircuitState.CLOSED)

    @rule(admission=admissions)
    def failure(self, admission: tuple[Round, int]) -> None:
        self.latest = max(self.latest, self.now)
        admitted, life = admission
        self.breaker.failed(admitted, self.now)
        if life != self.life:
            return
        self.failures.append(self.latest)
        recent = [time for time in self.failures if self.latest - time <= self.policy.failure_window_ns]
        if self.state is CircuitState.HALF_OPEN or len(recent) >= self.policy.failure_threshold:
            self.enter(CircuitState.OPEN)

    @rule()
    def trip(self) -> None:
        self.latest = max(self.latest, self.now)
        self.breaker.trip(self.now)
        self.enter(CircuitState.OPEN)

    @rule()
    def reset(self) -> None:
        self.latest = max(self.latest, self.now)
        self.breaker.reset(self.now)
        self.enter(CircuitState.CLOSED)

    @invariant()
    def same_state(self) -> None:
        if hasattr(self, "breaker"):
            assert self.breaker.state is self.state


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(stateful_step_count=25)


def fail_at(breaker: CircuitBreaker, *times: int) -> None:
    for time in times:
        admitted = breaker.admit(time)
        assert admitted is not None
        breaker.failed(admitted, time)


def test_the_presets() -> None:
    assert BreakerPolicy(5, 3, 30 * SECOND, 60 * SECOND) == DEFAULT_POLICY
    assert BreakerPolicy(3, 2, 10 * SECOND, 30 * SECOND) == AGGRESSIVE_POLICY
    assert BreakerPolicy(10, 5, 60 * SECOND, 120 * SECOND) == TOLERANT_POLICY


@pytest.mark.parametrize("index", range(4))
def test_a_policy_refuses_zeros(index: int) -> None:
    values = [1, 1, 1, 1]
    values[index] = 0
    with pytest.raises(InvalidInputError, match="must be at least 1, not 0"):
        BreakerPolicy(*values)


def test_consecutive_failures_open_it_for_the_timeout() -> None:
    breaker = CircuitBreaker(POLICY, 0)
    fail_at(breaker, 0, 1, 2)
    assert breaker.state is CircuitState.OPEN
    assert breaker.admit(11) is None
    assert breaker.admit(12) is not None
    assert breaker.state is CircuitState.HALF_OPEN


def test_a_success_clears_earlier_failures() -> None:
    breaker = CircuitBreaker(POLICY, 0)
    fail_at(breaker, 0, 1)
    admitted = breaker.admit(2)
    assert admitted is not None
    breaker.succeeded(admitted, 2)
    fail_at(breaker, 3, 4)
    assert breaker.state is CircuitState.CLOSED


def test_only_failures_inside_the_window_count() -> None:
    breaker = CircuitBreaker(POLICY, 0)
    fail_at(breaker, 0, 10, 21)
    assert breaker.state is CircuitState.CLOSED
    fail_at(breaker, 30)
    assert breaker.state is CircuitState.OPEN


def test_probes_are_limited_and_enough_successes_close_it() -> None:
    breaker = CircuitBreaker(POLICY, 0)
    breaker.trip(0)
    first, second = breaker.admit(10), breaker.admit(10)
    assert first is not None
    assert second is not None
    assert breaker.admit(10) is None
    breaker.succeeded(first, 11)
    assert breaker.state is CircuitState.HALF_OPEN
    breaker.succeeded(second, 11)
    assert breaker.state is CircuitState.CLOSED


def test_a_failed_probe_reopens_it_for_a_full_timeout() -> None:
    breaker = CircuitBreaker(POLICY, 0)
    breaker.trip(0)
    fail_at(breaker, 15)
    assert breaker.state is CircuitState.OPEN
    assert breaker.admit(24) is None
    assert breaker.admit(25) is not None


def test_lost_probes_do_not_block_it_forever() -> None:
    breaker = CircuitBreaker(POLICY, 0)
    breaker.trip(0)
    lost = breaker.admit(10)
    assert breaker.admit(14) == lost
    assert breaker.admit(23) is None
    found = breaker.admit(24)
    assert found is not None
    assert lost is not None
    breaker.failed(lost, 25)
    assert breaker.state is CircuitState.HALF_OPEN


def test_rare_probes_still_close_it() -> None:
    breaker = CircuitBreaker(POLICY, 0)
    breaker.trip(0)
    for time in (100, 200):
        admitted = breaker.admit(time)
        assert admitted is not None
        breaker.succeeded(admitted, time)
    assert breaker.state is CircuitState.CLOSED


def test_a_result_from_before_the_trip_changes_nothing() -> None:
    breaker = CircuitBreaker(POLICY, 0)
    early = breaker.admit(0)
    assert early is not None
    breaker.trip(1)
    breaker.admit(11)
    breaker.succeeded(early, 12)
    breaker.failed(early, 12)
    assert breaker.state is CircuitState.HALF_OPEN


def test_an_operator_closes_it_at_once() -> None:
    breaker = CircuitBreaker(POLICY, 0)
    fail_at(breaker, 0, 1, 2)
    breaker.reset(3)
    assert breaker.state is CircuitState.CLOSED
    fail_at(breaker, 4, 5)
    assert breaker.state is CircuitState.CLOSED


def test_a_clock_stepping_back_does_not_shorten_the_timeout() -> None:
    breaker = CircuitBreaker(POLICY, 0)
    breaker.trip(20)
    breaker.trip(5)
    assert breaker.admit(29) is None
    assert breaker.admit(30) is not None
