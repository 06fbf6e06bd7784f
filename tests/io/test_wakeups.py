"""Bells: who lies is woken, who is awake is not disturbed, and nothing that was rung is lost."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from seawall.io.process.wakeups import WakeUpEvent, keep_stepping


@pytest.fixture
def wakeup() -> Iterator[WakeUpEvent]:
    made = WakeUpEvent()
    yield made
    made.close()


def test_who_is_awake_is_not_signalled(wakeup: WakeUpEvent) -> None:
    wakeup.wake()
    assert not wakeup.sleep(0)


def test_who_lies_is_woken_by_the_first_ring(wakeup: WakeUpEvent) -> None:
    wakeup.arm()
    wakeup.wake()
    wakeup.wake()
    assert wakeup.sleep(0)
    wakeup.disarm()
    assert not wakeup.sleep(0)
    wakeup.wake()
    assert not wakeup.sleep(0)


def test_getting_up_without_a_ring_leaves_nothing_behind(wakeup: WakeUpEvent) -> None:
    wakeup.arm()
    wakeup.disarm()
    wakeup.wake()
    assert not wakeup.sleep(0)


def test_bytes_and_room_end_a_sleep_where_they_are_watched(wakeup: WakeUpEvent) -> None:
    near, far = socket.socketpair()
    with near, far:
        wakeup.watch(near.fileno())
        assert not wakeup.sleep(0)
        far.send(b"x")
        assert wakeup.sleep(0)
        wakeup.watch(near.fileno(), bytes_come=False)
        assert not wakeup.sleep(0)
        wakeup.watch(near.fileno(), bytes_come=False, has_space=True)
        assert wakeup.sleep(0)
        wakeup.unwatch(near.fileno())
        assert not wakeup.sleep(0)


def test_a_role_steps_until_it_is_told_to_stop(wakeup: WakeUpEvent) -> None:
    work = [3, 2, 1]

    def step() -> int:
        if not work:
            wakeup.stop()
            return 0
        return work.pop()

    keep_stepping(step, wakeup)
    assert work == []
    assert wakeup.is_stopping


def test_work_that_comes_while_it_lies_down_is_done_before_it_sleeps(wakeup: WakeUpEvent) -> None:
    """Nobody rings, so a sleep would last; the step behind `arm` finds the work."""
    steps = iter([0, 1, 0, 1])
    seen: list[int] = []

    def step() -> int:
        done = next(steps)
        seen.append(done)
        if len(seen) == 4:
            wakeup.stop()
        return done

    keep_stepping(step, wakeup, spin_ns_max=0)
    assert seen == [0, 1, 0, 1]


def test_it_looks_on_for_a_moment_before_it_lies_down(wakeup: WakeUpEvent, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter([0, 0, 0, 5])
    seen: list[int] = []

    def step() -> int:
        seen.append(next(steps))
        if seen[-1]:
            wakeup.stop()
        return seen[-1]

    def arm(_wakeup: WakeUpEvent) -> None:
        raise AssertionError("it lies down although it may still look on")

    monkeypatch.setattr(WakeUpEvent, "arm", arm)
    keep_stepping(step, wakeup, spin_ns_max=60_000_000_000)
    assert seen == [0, 0, 0, 5]


def test_a_sleeping_role_wakes_for_a_ring(wakeup: WakeUpEvent, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = 0

    def sleep(_wakeup: WakeUpEvent, _timeout_ms: int = 0) -> bool:
        nonlocal slept
        slept += 1
        if slept == 3:
            wakeup.stop()
        return slept == 2

    monkeypatch.setattr(WakeUpEvent, "sleep", sleep)
    keep_stepping(lambda: 0, wakeup, spin_ns_max=0)
    assert slept == 3
