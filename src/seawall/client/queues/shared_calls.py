"""Calls of threads that share requests: one request is in flight, and calls that come meanwhile share the next one.

    call ──▶ queued ──▶ leader: execute([call, call, …]) ──▶ results, one for each call

A thread that comes while no request is in flight becomes the leader: it executes its own call, together with all that
are queued. The others wait until their call is executed, or until they lead the next group. A pool of workers so sends
one request where each thread would send its own.

An error of the group is raised to each of its threads. If the leader is interrupted, the other calls of its group are
queued again. The result of a thread that was interrupted goes to `drop`. This module must not know what a call does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar

from seawall.errors import SeawallError

C = TypeVar("C")
R = TypeVar("R")


class _Call(Generic[C, R]):
    """The call of one thread. `woken` is released when it is executed, or when the thread is to lead."""

    __slots__ = ("argument", "error", "is_abandoned", "leads", "result", "woken")

    def __init__(self, argument: C) -> None:
        self.argument = argument
        self.result: R | None = None
        self.error: SeawallError | OSError | None = None
        self.leads = self.is_abandoned = False
        self.woken = Lock()
        self.woken.acquire()


class SharedCalls(Generic[C, R]):
    """Executes the calls of many threads in groups."""

    def __init__(
        self,
        execute: Callable[[Sequence[C]], Sequence[R]],
        joined: Callable[[Sequence[C]], int],
        drop: Callable[[R], None],
    ) -> None:
        """`execute` executes a group; one thread at a time calls it. `joined` says how many of the queued calls form
        the next group, at least 1."""
        self._execute = execute
        self._joined = joined
        self._drop = drop
        self._mutex = Lock()
        self._queued: list[_Call[C, R]] = []
        self._has_leader = False

    def call(self, argument: C, timeout_s: float | None = None) -> R | None:
        """The result of a call; None if it was still queued after the timeout. Raises the error of its group."""
        own = _Call[C, R](argument)
        with self._mutex:
            self._queued.append(own)
            own.leads = not self._has_leader
            self._has_leader = True
        try:
            if not own.leads and not own.woken.acquire(timeout=-1 if timeout_s is None else timeout_s):
                if self._withdraw(own):
                    return None
                own.woken.acquire()
            if own.leads:
                self._lead(own)
        except BaseException:
            self._abandon(own)
            raise
        if own.error is not None:
            raise own.error
        return own.result

    def _lead(self, own: _Call[C, R]) -> None:
        """Execute the next group, which begins with the call of this thread; then let another thread lead."""
        with self._mutex:
            count = self._joined([each.argument for each in self._queued])
            group, self._queued = self._queued[:count], self._queued[count:]
        results: Sequence[R] = ()
        error: SeawallError | OSError | None = None
        try:
            results = self._execute([each.argument for each in group])
        except (SeawallError, OSError) as raised:
            error = raised
        except BaseException:
            # This thread is interrupted, or the call has a bug: the others try again.
            with self._mutex:
                self._queued = [each for each in group if each is not own and not each.is_abandoned] + self._queued
            self._pass_on()
            raise
        for number, each in enumerate(group):
            with self._mutex:
                each.error = error
                each.result = None if error is not None else results[number]
                is_abandoned = each.is_abandoned
            if is_abandoned and each.result is not None:
                self._drop(each.result)
            each.woken.release()
        self._pass_on()

    def _withdraw(self, own: _Call[C, R]) -> bool:
        """Remove a call from the queue; False if a group has taken it, or its thread is to lead."""
        with self._mutex:
            if own.leads or own not in self._queued:
                return False
            self._queued.remove(own)
            return True

    def _abandon(self, own: _Call[C, R]) -> None:
        """End the call of an interrupted thread."""
        with self._mutex:
            own.is_abandoned = True
            is_queued = own in self._queued
            if is_queued:
                self._queued.remove(own)
            result = own.result
        if own.leads and is_queued:
            self._pass_on()
        if result is not None:
            self._drop(result)

    def _pass_on(self) -> None:
        """Let the first thread that waits lead."""
        with self._mutex:
            self._has_leader = bool(self._queued)
            if not self._has_leader:
                return
            following = self._queued[0]
            following.leads = True
        following.woken.release()


class CallGroups:
    """The shared calls of many kinds, by key. Threads may share it."""

    def __init__(self) -> None:
        self._mutex = Lock()
        #: The shared calls that threads use now, and how many use each.
        self._used: dict[Hashable, tuple[SharedCalls[Any, Any], int]] = {}

    def call(
        self, key: Hashable, make: Callable[[], SharedCalls[C, R]], argument: C, timeout_s: float | None = None
    ) -> R | None:
        """The result of a call among those with the same key; `make` creates what they share."""
        with self._mutex:
            shared, users = self._used.get(key) or (make(), 0)
            self._used[key] = shared, users + 1
        try:
            result: R | None = shared.call(argument, timeout_s)
            return result
        finally:
            with self._mutex:
                shared, users = self._used.pop(key)
                if users > 1:
                    self._used[key] = shared, users - 1
