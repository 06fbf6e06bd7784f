"""Interrupts running tasks: when their time limit ends, and when their worker stops.

A function runs on a thread, which nothing can kill. An interrupt raises an exception in it, which the interpreter
delivers before the thread's next step in Python code (`PyThreadState_SetAsyncExc`). So it does not interrupt

- a call into C while that lasts: `time.sleep`, a read from a socket without a timeout, a query of a database driver, a
  long numpy or regex call. The exception comes when the call returns;
- code that catches `BaseException` and goes on.

A coroutine is cancelled, as `asyncio.Task.cancel` does it; code that blocks the event loop delays that.

The exceptions are no `Exception`, so `except Exception` in a task does not swallow them. Each execution is interrupted
at most once, and never after its end: `Execution` decides both under its lock, and ends only after an exception that is
on its way has been delivered. (Taking it back is no way: CPython 3.11 and 3.12 then check for it for ever.)
"""

from __future__ import annotations

import ctypes
from asyncio import (
    AbstractEventLoop,
    CancelledError,
    Runner,
    current_task,
    new_event_loop,
    run_coroutine_threadsafe,
)
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelledError
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from threading import Condition, Lock, Thread, get_ident
from types import TracebackType
from typing import Final, Self

from seawall.io.interfaces import Clock
from seawall.limits import TASK_INTERRUPT_S

_DROP_AT_MIN: Final = 256
_STEPS: Final = 10


class TaskInterrupt(BaseException):
    """A running task is told to end."""


class TimeLimitError(TaskInterrupt):
    """The task has run longer than its `time_limit_s`: the attempt has failed."""


class WorkerStoppedError(TaskInterrupt):
    """The worker stops and the task has not finished in time: another worker gets the job."""


class Execution:
    """One run of a task, which other threads may interrupt."""

    __slots__ = ("_interrupt", "_lock", "is_over", "reason")

    def __init__(self) -> None:
        self._lock = Lock()
        self._interrupt: Callable[[type[TaskInterrupt]], None] | None = None
        #: True once it has ended.
        self.is_over = False
        #: Why it was interrupted; None if it was not.
        self.reason: type[TaskInterrupt] | None = None

    def interrupt(self, reason: type[TaskInterrupt]) -> None:
        """Interrupt it, unless it has ended or was interrupted before."""
        with self._lock:
            if self.is_over or self.reason is not None:
                return
            self.reason = reason
            if self._interrupt is not None:
                self._interrupt(reason)

    def run(self, call: Callable[[], object]) -> object:
        """Call a function on this thread."""
        thread = get_ident()
        try:
            try:
                self._begin(partial(_raise_in, thread))
                return call()
            finally:
                # The exception of an interrupt may be delivered in here, too.
                self._end()
                if self.reason is not None:
                    _let_it_arrive()
        except TaskInterrupt:
            self._end()
            raise

    def run_coroutine(self, coroutine: Coroutine[object, object, object], loop: AbstractEventLoop) -> object:
        """Run a coroutine on an event loop of another thread, and wait for it."""

        async def interruptible() -> object:
            task = current_task()
            assert task is not None, "this runs as a task"

            def cancel(_reason: type[TaskInterrupt]) -> None:
                loop.call_soon_threadsafe(task.cancel)

            self._begin(cancel)
            try:
                return await coroutine
            finally:
                self._end()

        try:
            return run_coroutine_threadsafe(interruptible(), loop).result()
        except (CancelledError, FutureCancelledError) as error:
            if self.reason is not None:
                raise self.reason from error
            raise

    def _begin(self, interrupt: Callable[[type[TaskInterrupt]], None]) -> None:
        with self._lock:
            self._interrupt = interrupt
            if self.reason is not None:
                interrupt(self.reason)

    def _end(self) -> None:
        with self._lock:
            self.is_over = True


class TimeLimits:
    """Interrupts executions whose time is over, on a thread of its own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = Condition()
        self._deadlines: list[tuple[int, int, Execution]] = []
        #: Number of deadlines at which those of ended executions are dropped.
        self._drop_at = _DROP_AT_MIN
        self._numbers = count()
        self._is_stopped = False
        self._thread: Thread | None = None

    def watch(self, execution: Execution, limit_s: float) -> None:
        """Interrupt an execution that still runs after `limit_s`."""
        deadline_ns = self._clock.monotonic_ns() + int(limit_s * 1e9)
        with self._changed:
            if len(self._deadlines) >= self._drop_at:
                self._deadlines = [each for each in self._deadlines if not each[2].is_over]
                heapify(self._deadlines)
                self._drop_at = max(_DROP_AT_MIN, 2 * len(self._deadlines))
            heappush(self._deadlines, (deadline_ns, next(self._numbers), execution))
            if self._thread is None:
                self._thread = Thread(target=self._run, name="seawall-time-limits", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """Interrupt nothing any more."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._is_stopped:
                now_ns = self._clock.monotonic_ns()
                while self._deadlines and self._deadlines[0][0] <= now_ns:
                    heappop(self._deadlines)[2].interrupt(TimeLimitError)
                pause_s = (self._deadlines[0][0] - now_ns) / 1e9 if self._deadlines else None
                self._changed.wait(pause_s)


class LoopThread:
    """An event loop on a thread of its own, for the tasks that are coroutines. Started when it is first needed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: AbstractEventLoop | None = None
        self._thread: Thread | None = None

    @property
    def loop(self) -> AbstractEventLoop:
        """The loop, which runs."""
        with self._lock:
            if self._loop is None:
                runner = Runner(loop_factory=new_event_loop)
                self._loop = runner.get_loop()
                self._thread = Thread(target=_run_loop, args=(runner,), name="seawall-tasks-loop", daemon=True)
                self._thread.start()
            return self._loop

    def stop(self) -> None:
        """Cancel what runs on the loop, and close it; gives up if something blocks it."""
        with self._lock:
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join(TASK_INTERRUPT_S)


def _run_loop(runner: Runner) -> None:
    with runner:
        runner.get_loop().run_forever()


class Attempt:
    """Keeps what a block of user code raises: `with Attempt() as attempt`, then `attempt.error`.

    What a task raises is data: it is logged, stored with the job or decides about a retry.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = error
        return True


_set_async_exception: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)
_set_async_exception.restype = ctypes.c_int


def _raise_in(thread: int, error: type[TaskInterrupt]) -> None:
    """Let a thread raise an exception before its next step."""
    _set_async_exception(thread, error)


def _let_it_arrive() -> None:
    """Take some steps, so that an exception that was raised in this thread is delivered here and not later.

    The interpreter delivers it at the first of them. There is none if the task has swallowed it.
    """
    for _ in range(_STEPS):
        pass
