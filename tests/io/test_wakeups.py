"""Wake-up events: a blocked role is woken, a running one is not signalled, and no wake-up is lost."""

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


def test_a_wake_without_arm_signals_nothing(wakeup: WakeUpEvent) -> None:
    wakeup.wake()
    assert not wakeup.sleep(0)


def test_an_armed_event_is_signalled_by_the_first_wake(wakeup: WakeUpEvent) -> None:
    wakeup.arm()
    wakeup.wake()
    wakeup.wake()
    assert wakeup.sleep(0)
    wakeup.disarm()
    assert not wakeup.sleep(0)
    wakeup.wake()
    assert not wakeup.sleep(0)


def test_disarming_leaves_no_signal_behind(wakeup: WakeUpEvent) -> None:
    wakeup.arm()
    wakeup.disarm()
    wakeup.wake()
    assert not wakeup.sleep(0)


def test_watched_data_and_send_space_end_a_sleep(wakeup: WakeUpEvent) -> None:
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


def test_a_role_steps_until_it_is_stopped(wakeup: WakeUpEvent) -> None:
    work = [3, 2, 1]

    def step() -> int:
        if not work:
            wakeup.stop()
            return 0
        return work.pop()

    keep_stepping(step, wakeup)
    assert work == []
    assert wakeup.is_stopping


def test_work_that_arrives_while_arming_is_done_before_the_sleep(wakeup: WakeUpEvent) -> None:
    """Nothing wakes the role, so a sleep would not end; the step after `arm` finds the work."""
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


def test_a_role_spins_before_it_arms_the_event() -> None:
    class NeverArmed(WakeUpEvent):
        def arm(self) -> None:
            raise AssertionError("it arms the event although it may still spin")

    wakeup = NeverArmed()
    steps = iter([0, 0, 0, 5])
    seen: list[int] = []

    def step() -> int:
        seen.append(next(steps))
        if seen[-1]:
            wakeup.stop()
        return seen[-1]

    keep_stepping(step, wakeup, spin_ns_max=60_000_000_000)
    assert seen == [0, 0, 0, 5]
    wakeup.close()


def test_a_role_sleeps_again_until_it_is_stopped() -> None:
    class ThreeSleeps(WakeUpEvent):
        count = 0

        def sleep(self, _timeout_ms: int = 0) -> bool:
            self.count += 1
            if self.count == 3:
                self.stop()
            return self.count == 2

    wakeup = ThreeSleeps()
    keep_stepping(lambda: 0, wakeup, spin_ns_max=0)
    assert wakeup.count == 3
    wakeup.close()
