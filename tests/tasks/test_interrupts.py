"""Interrupts: they reach Python code and coroutines, each execution at most once, and never after its end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event
from types import FrameType

import pytest

from seawall.io.process.clocks import OsClock
from seawall.tasks.interrupts import Attempt, Execution, LoopThread, TimeLimitError, TimeLimits, WorkerStoppedError


@pytest.fixture
def limits() -> Iterator[TimeLimits]:
    made = TimeLimits(OsClock())
    yield made
    made.stop()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    thread = LoopThread()
    yield thread.loop
    thread.stop()


def spin() -> None:
    while True:
        pass


def test_a_loop_in_python_is_interrupted_at_its_limit(limits: TimeLimits) -> None:
    execution = Execution()
    limits.watch(execution, 0.05)
    with pytest.raises(TimeLimitError):
        execution.run(spin)
    assert execution.reason is TimeLimitError
    assert execution.is_over


def test_an_interrupt_is_no_exception_that_a_task_swallows(limits: TimeLimits) -> None:
    def stubborn() -> None:
        while True:
            with suppress(Exception):
                spin()

    execution = Execution()
    limits.watch(execution, 0.05)
    with pytest.raises(TimeLimitError):
        execution.run(stubborn)


def test_a_task_that_ends_in_time_keeps_its_result(limits: TimeLimits) -> None:
    execution = Execution()
    limits.watch(execution, 60)
    assert execution.run(lambda: 17) == 17
    execution.interrupt(WorkerStoppedError)
    assert execution.reason is None


def test_an_interrupt_before_the_start_ends_it_at_once() -> None:
    execution = Execution()
    execution.interrupt(WorkerStoppedError)
    execution.interrupt(TimeLimitError)
    with pytest.raises(WorkerStoppedError):
        execution.run(spin)


def test_a_coroutine_is_cancelled_and_may_clean_up(limits: TimeLimits, loop: asyncio.AbstractEventLoop) -> None:
    cleaned = Event()

    async def wait() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            cleaned.set()

    execution = Execution()
    limits.watch(execution, 0.05)
    with pytest.raises(TimeLimitError):
        execution.run_coroutine(wait(), loop)
    assert cleaned.is_set()
    assert Execution().run_coroutine(asyncio.sleep(0, 5), loop) == 5


def test_a_coroutine_that_cancels_itself_is_not_an_interrupt(loop: asyncio.AbstractEventLoop) -> None:
    async def cancel() -> None:
        raise asyncio.CancelledError

    with Attempt() as attempt:
        Execution().run_coroutine(cancel(), loop)
    assert isinstance(attempt.error, BaseException)
    assert not isinstance(attempt.error, TimeLimitError)


class Interrupter:
    """Interrupts an execution before a given step of the interpreter, counted from its start."""

    def __init__(self, execution: Execution, step: int) -> None:
        self._execution = execution
        self._step = step
        self.steps = 0

    def trace(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., object]:
        frame.f_trace_opcodes = True
        self.steps += 1
        # Another thread would wait for the lock.
        if self.steps >= self._step and not self._execution._lock.locked():
            self._execution.interrupt(TimeLimitError)
        return self.trace


def interrupted_before(step: int) -> tuple[BaseException | None, int]:
    """Run a task, interrupted before a step; returns its error, and the steps until after its end."""
    execution, before = Execution(), sys.gettrace()
    interrupter = Interrupter(execution, step)
    sys.settrace(interrupter.trace)
    try:
        with Attempt() as attempt:
            assert execution.run(lambda: sum([1, 2])) == 3
    finally:
        sys.settrace(before)
    for _ in range(50):  # steps in which a late exception would appear
        pass
    return attempt.error, interrupter.steps


def test_an_interrupt_before_any_step_hits_the_execution_or_nothing() -> None:
    """An interrupt that comes too late must not be raised in what the thread does next."""
    _, steps = interrupted_before(1_000_000)
    assert steps > 100
    errors = [interrupted_before(step)[0] for step in range(1, steps + 1)]
    assert {type(error) for error in errors} == {TimeLimitError, type(None)}
    assert isinstance(errors[0], TimeLimitError)
    assert errors[-1] is None


def test_deadlines_of_ended_executions_are_dropped(limits: TimeLimits) -> None:
    for _ in range(2_000):
        execution = Execution()
        limits.watch(execution, 3_600)
        execution.run(lambda: None)
    assert len(limits._deadlines) <= 256
