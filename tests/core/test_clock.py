"""The hybrid clock against a naive model that keeps milliseconds and counter apart."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from seawall import limits
from seawall.core.clock import ClockHealth, HybridClock
from seawall.errors import ClockSkewError, RetryableError

MS = 1_000_000
START_MS = 1_700_000_000_000
START = START_MS * MS


class NaiveClock:
    """Milliseconds and counter as two numbers, by the textbook rules, case by case."""

    def __init__(self) -> None:
        self.ms, self.counter = 0, 0

    def now(self, wall_ms: int) -> tuple[int, int]:
        if wall_ms > self.ms:
            self.ms, self.counter = wall_ms, 0
        else:
            self.bump(self.ms, self.counter)
        return self.ms, self.counter

    def receive(self, ms: int, counter: int, wall_ms: int) -> tuple[int, int] | None:
        passed = (ms, counter) <= (self.ms, self.counter)
        if not passed and ms - wall_ms > limits.HLC_AHEAD_MS_MAX:
            return None
        if wall_ms > max(self.ms, ms):
            self.ms, self.counter = wall_ms, 0
        elif self.ms > ms:
            self.bump(self.ms, self.counter)
        elif ms > self.ms:
            self.bump(ms, counter)
        else:
            self.bump(ms, max(counter, self.counter))
        return self.ms, self.counter

    def bump(self, ms: int, counter: int) -> None:
        full = counter + 1 == limits.HLC_COUNTER_LIMIT
        self.ms, self.counter = (ms + 1, 0) if full else (ms, counter + 1)


class ClockMachine(RuleBasedStateMachine):
    """Wall clocks that creep, jump and step back; remotes that are near, far and full."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.model = HybridClock(), NaiveClock()
        self.wall_ns = START
        self.given: list[int] = [0]

    @rule(step=st.one_of(st.integers(0, 3 * MS), st.integers(-120_000 * MS, 120_000 * MS)))
    def wall_moves(self, step: int) -> None:
        self.wall_ns += step

    @rule()
    def local_event(self) -> None:
        ms, counter = self.model.now(self.wall_ns // MS)
        self.give(self.clock.now(self.wall_ns), ms, counter)

    @rule(
        ahead_ms=st.one_of(
            st.integers(-3, 3),
            st.integers(-100_000, 100_000),
            st.sampled_from([limits.HLC_AHEAD_MS_MAX + n for n in (0, 1)]),
        ),
        counter=st.one_of(st.integers(0, MS - 1), st.sampled_from([0, MS - 2, MS - 1])),
        from_last=st.booleans(),
    )
    def remote_event(self, ahead_ms: int, counter: int, from_last: bool) -> None:
        base_ms = self.model.ms if from_last else self.wall_ns // MS
        remote_ms = max(0, base_ms + ahead_ms)
        expected = self.model.receive(remote_ms, counter, self.wall_ns // MS)
        remote_ns = remote_ms * MS + counter
        if expected is None:
            with pytest.raises(ClockSkewError):
                self.clock.receive(remote_ns, self.wall_ns)
            return
        stamp = self.clock.receive(remote_ns, self.wall_ns)
        assert stamp > remote_ns
        self.give(stamp, *expected)

    def give(self, stamp: int, ms: int, counter: int) -> None:
        assert divmod(stamp, limits.HLC_COUNTER_LIMIT) == (ms, counter)
        assert stamp > self.given[-1]
        self.given.append(stamp)

    @invariant()
    def last_is_the_highest_given(self) -> None:
        assert self.clock.last_ns == self.given[-1]

    @invariant()
    def drift_is_how_far_it_runs_ahead(self) -> None:
        assert self.clock.drift_ms(self.wall_ns) == max(0, self.model.ms - self.wall_ns // MS)


TestClockMachine = ClockMachine.TestCase
TestClockMachine.settings = settings(stateful_step_count=25)


def test_a_later_millisecond_starts_at_counter_zero() -> None:
    clock = HybridClock()
    assert clock.now(START + 999_999) == START
    assert clock.now(START + 999_999) == START + 1
    assert clock.now(START + MS) == START + MS


def test_a_full_counter_borrows_the_next_millisecond_and_the_wall_clock_catches_up() -> None:
    clock = HybridClock(last_ns=START + MS - 1)
    assert clock.now(START) == START + MS
    assert clock.now(START) == START + MS + 1
    assert clock.now(START + 2 * MS) == START + 2 * MS


def test_a_wall_clock_stepping_back_advances_the_counter() -> None:
    clock = HybridClock()
    first = clock.now(START)
    assert [clock.now(START - 3_600_000 * MS) for _ in range(3)] == [first + 1, first + 2, first + 3]
    assert clock.health(START - 3_600_000 * MS) is ClockHealth.CRITICAL


def test_a_restarted_clock_stays_above_the_timestamps_of_the_log() -> None:
    assert HybridClock(last_ns=START + 5).now(START - MS) == START + 6


def test_a_remote_clock_too_far_ahead_is_refused_and_changes_nothing() -> None:
    clock = HybridClock()
    before = clock.now(START)
    limit_ns = START + limits.HLC_AHEAD_MS_MAX * MS
    with pytest.raises(ClockSkewError, match=f"{limits.HLC_AHEAD_MS_MAX + 1} ms ahead"):
        clock.receive(limit_ns + MS, START)
    assert clock.last_ns == before
    assert clock.receive(limit_ns, START) == limit_ns + 1


def test_a_past_timestamp_is_never_refused() -> None:
    clock = HybridClock(last_ns=START)
    long_ago = START - 10 * limits.HLC_AHEAD_MS_MAX * MS
    assert clock.receive(START - 1, long_ago) == START + 1


def test_skew_is_retryable() -> None:
    assert issubclass(ClockSkewError, RetryableError)


@pytest.mark.parametrize(
    ("drift_ms", "health"),
    [
        (-5_000, ClockHealth.HEALTHY),
        (0, ClockHealth.HEALTHY),
        (99, ClockHealth.HEALTHY),
        (100, ClockHealth.DEGRADED),
        (999, ClockHealth.DEGRADED),
        (1_000, ClockHealth.CRITICAL),
    ],
)
def test_health_follows_the_drift(drift_ms: int, health: ClockHealth) -> None:
    assert HybridClock(last_ns=START).health(START - drift_ms * MS) is health


@given(st.lists(st.integers(0, 2**62), min_size=2))
def test_timestamps_increase_for_any_wall_clock(walls: list[int]) -> None:
    clock = HybridClock()
    stamps = [clock.now(wall) for wall in walls]
    assert stamps == sorted(set(stamps))
