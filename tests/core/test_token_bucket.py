"""The token bucket against a naive model in exact fractions."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from seawall.core.token_bucket import TokenBucket
from seawall.errors import InvalidInputError

SECOND = 1_000_000_000

rates = st.one_of(st.integers(1, 10), st.integers(1, 10**10), st.sampled_from([3, 7, 333_333_333]))
bursts = st.one_of(st.integers(1, 10), st.integers(1, 10**10))


class BucketMachine(RuleBasedStateMachine):
    """Takes of all kinds, a rate that changes, time that jumps both ways."""

    @initialize(rate=rates, burst=bursts, now=st.integers(-SECOND, 10**18))
    def start(self, rate: int, burst: int, now: int) -> None:
        self.bucket = TokenBucket(rate, burst, now)
        self.rate, self.burst, self.now, self.latest = rate, burst, now, now
        self.level = Fraction(burst)

    @rule(step=st.one_of(st.integers(0, 10), st.integers(-SECOND, 10 * SECOND)))
    def time_moves(self, step: int) -> None:
        self.now += step

    @rule(share=st.integers(0, 100))
    def take(self, share: int) -> None:
        count = self.burst * share // 100
        self.refill()
        expected = self.level >= count
        assert self.bucket.take(count, self.now) is expected
        if expected:
            self.level -= count

    @rule(share=st.integers(0, 300))
    def take_up_to(self, share: int) -> None:
        count = self.burst * share // 100
        self.refill()
        expected = min(count, int(self.level))
        assert self.bucket.take_up_to(count, self.now) == expected
        self.level -= expected

    @rule(share=st.integers(0, 100))
    def wait_then_take(self, share: int) -> None:
        """One nanosecond before the announced time it is too early; at that time it is not."""
        count = self.burst * share // 100
        wait = self.bucket.wait_ns(count, self.now)
        assert wait >= 0
        if wait:
            self.now += wait - 1
            self.refill()
            assert not self.bucket.take(count, self.now)
            self.now += 1
        self.refill()
        assert self.bucket.take(count, self.now)
        self.level -= count

    @rule(rate=rates, burst=bursts)
    def change(self, rate: int, burst: int) -> None:
        self.refill()
        self.bucket.change(rate, burst, self.now)
        self.rate, self.burst = rate, burst
        self.level = min(self.level, Fraction(burst))
        assert (self.bucket.rate, self.bucket.burst) == (rate, burst)

    def refill(self) -> None:
        passed = max(0, self.now - self.latest)
        self.level = min(self.level + Fraction(passed * self.rate, SECOND), Fraction(self.burst))
        self.latest = max(self.latest, self.now)


TestBucketMachine = BucketMachine.TestCase
TestBucketMachine.settings = settings(stateful_step_count=25)


@given(st.lists(st.integers(0, SECOND), max_size=50), st.integers(1, 10**6))
def test_many_small_steps_refill_exactly_as_one_large_step(steps: list[int], rate: int) -> None:
    small, large = TokenBucket(rate, 10**9, 0), TokenBucket(rate, 10**9, 0)
    assert small.take(10**9, 0)
    assert large.take(10**9, 0)
    now = 0
    for step in steps:
        now += step
        small.take(0, now)
    assert small.take_up_to(10**9, now) == large.take_up_to(10**9, now) == rate * now // SECOND


def test_a_clock_stepping_back_changes_nothing() -> None:
    bucket = TokenBucket(10, 10, 5 * SECOND)
    assert bucket.take(10, 5 * SECOND)
    assert not bucket.take(1, 0)
    assert not bucket.take(1, 5 * SECOND)
    assert bucket.wait_ns(1, 4 * SECOND) == SECOND + SECOND // 10
    assert bucket.take(1, 5 * SECOND + SECOND // 10)


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_bucket_needs_a_positive_rate_and_burst(rate: int, burst: int) -> None:
    with pytest.raises(InvalidInputError, match="must be at least 1, not"):
        TokenBucket(rate, burst, 0)
    bucket = TokenBucket(7, 7, 0)
    with pytest.raises(InvalidInputError, match="must be at least 1, not"):
        bucket.change(rate, burst, 0)
    assert (bucket.rate, bucket.burst) == (7, 7)


@pytest.mark.parametrize("count", [-1, 11])
def test_taking_more_than_the_burst_is_an_error(count: int) -> None:
    bucket = TokenBucket(1, 10, 0)
    with pytest.raises(InvalidInputError, match=f"cannot take {count} tokens"):
        bucket.take(count, 0)
    with pytest.raises(InvalidInputError, match=f"cannot take {count} tokens"):
        bucket.wait_ns(count, 0)


def test_take_up_to_splits_large_requests_and_refuses_negative_ones() -> None:
    bucket = TokenBucket(1, 10, 0)
    assert bucket.take_up_to(11, 0) == 10
    assert bucket.take_up_to(11, 0) == 0
    with pytest.raises(InvalidInputError, match="cannot take -1 tokens"):
        bucket.take_up_to(-1, 0)
