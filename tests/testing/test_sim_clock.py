import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import InvalidInputError
from seawall.testing import SimClock


def test_time_passes_only_by_advance():
    clock = SimClock(wall_ns=1_000)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (1_000, 0)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (1_000, 0)
    clock.advance(5)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (1_005, 5)
    with pytest.raises(InvalidInputError):
        clock.advance(-1)


def test_timers_run_in_order_of_time_then_of_insertion_and_see_their_time():
    clock = SimClock()
    seen = []
    for name, time_ns in (("c", 30), ("a", 10), ("b1", 20), ("b2", 20), ("late", 100)):
        clock.at(time_ns, lambda name=name: seen.append((name, clock.monotonic_ns())))
    clock.advance(50)
    assert seen == [("a", 10), ("b1", 20), ("b2", 20), ("c", 30)]
    assert clock.monotonic_ns() == 50
    with pytest.raises(InvalidInputError, match="in the past"):
        clock.at(49, lambda: None)


def test_a_timer_may_set_timers_but_not_move_the_clock():
    clock = SimClock()
    seen = []

    def first() -> None:
        clock.at(clock.monotonic_ns(), lambda: seen.append("now"))
        clock.at(clock.monotonic_ns() + 5, lambda: seen.append("soon"))
        with pytest.raises(InvalidInputError):
            clock.advance(1)

    clock.at(10, first)
    clock.advance(14)
    assert seen == ["now"]
    assert clock.advance_to_next()
    assert seen == ["now", "soon"]
    assert clock.monotonic_ns() == 15
    assert not clock.advance_to_next()


def test_a_timer_that_raises_leaves_a_usable_clock():
    clock = SimClock()

    def broken() -> None:
        raise KeyError("broken")

    clock.at(1, broken)
    with pytest.raises(KeyError):
        clock.advance(10)
    clock.advance(10)
    assert clock.monotonic_ns() == 11


def test_wall_clocks_step_and_drift_without_effect_on_monotonic_time():
    clock = SimClock(wall_ns=1_000_000)
    clock.step_wall(-500_000)
    assert clock.wall_ns() == 500_000
    clock.skew_wall(1_000)
    clock.advance(1_000_000)
    assert clock.wall_ns() == 500_000 + 1_001_000
    clock.skew_wall(-500_000)
    clock.advance(1_000_000)
    assert clock.wall_ns() == 500_000 + 1_001_000 + 500_000
    assert clock.monotonic_ns() == 2_000_000
    with pytest.raises(InvalidInputError):
        clock.skew_wall(-1_000_000)


def test_siblings_share_monotonic_time_but_not_the_wall_clock():
    clock = SimClock(wall_ns=100)
    clock.advance(10)
    same, other = clock.sibling(), clock.sibling(wall_ns=5_000)
    assert (same.wall_ns(), other.wall_ns()) == (110, 5_000)
    seen = []
    other.at(20, lambda: seen.append("timer"))
    other.step_wall(-1_000)
    clock.advance(10)
    assert seen == ["timer"]
    assert (clock.wall_ns(), same.wall_ns(), other.wall_ns()) == (120, 120, 4_010)
    assert other.monotonic_ns() == 20


@given(st.lists(st.tuples(st.sampled_from(["advance", "step", "skew"]), st.integers(-999_999, 999_999)), max_size=20))
def test_monotonic_time_never_steps_back(steps):
    clock = SimClock()
    last = clock.monotonic_ns()
    for name, number in steps:
        if name == "advance":
            clock.advance(abs(number))
        elif name == "step":
            clock.step_wall(number)
        else:
            clock.skew_wall(number)
        assert clock.monotonic_ns() >= last
        last = clock.monotonic_ns()
