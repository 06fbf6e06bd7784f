"""Calls of tasks that share requests, with the rules of `shared_calls`.

    call ──▶ queued ──▶ runner task: execute([call, call, …]) ──▶ results, one for each call

A task of its own executes the groups as long as calls are queued. So a request in flight is not cancelled with one of
its callers: its result for a cancelled caller goes to `drop`.

A log belongs to one loop. This module must not know what a call does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, Generic, TypeVar

C = TypeVar("C")
R = TypeVar("R")


class _Call(Generic[C, R]):
    """The call of one task."""

    __slots__ = ("argument", "is_abandoned", "result")

    def __init__(self, argument: C) -> None:
        self.argument = argument
        self.result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.is_abandoned = False


class AsyncSharedCalls(Generic[C, R]):
    """Executes the calls of many tasks in groups."""

    def __init__(
        self,
        execute: Callable[[Sequence[C]], Coroutine[Any, Any, Sequence[R]]],
        joined: Callable[[Sequence[C]], int],
        drop: Callable[[R], Coroutine[Any, Any, None]],
        tasks: set[asyncio.Task[Any]],
    ) -> None:
        """`execute` executes a group. `joined` says how many of the queued calls form the next group, at least 1. The
        owner of `tasks` waits for them at the end."""
        self._execute = execute
        self._joined = joined
        self._drop = drop
        self._tasks = tasks
        self._queued: list[_Call[C, R]] = []
        self._is_running = False

    async def call(self, argument: C, timeout_s: float | None = None) -> R | None:
        """The result of a call; None if it was still queued after the timeout. Raises the error of its group."""
        own = _Call[C, R](argument)
        self._queued.append(own)
        if not self._is_running:
            self._is_running = True
            self._begin(self._run())
        try:
            await asyncio.wait((own.result,), timeout=timeout_s)
            if own in self._queued:
                self._queued.remove(own)
                return None
            await asyncio.wait((own.result,))
        except asyncio.CancelledError:
            self._abandon(own)
            raise
        return own.result.result()

    async def _run(self) -> None:
        """Execute groups until nothing is queued."""
        while self._queued:
            count = self._joined([each.argument for each in self._queued])
            group, self._queued = self._queued[:count], self._queued[count:]
            # A task, so that its outcome is passed on whatever it is.
            work = asyncio.create_task(self._execute([each.argument for each in group]))
            await asyncio.wait((work,))
            for number, each in enumerate(group):
                if work.cancelled():
                    each.result.cancel()
                elif (error := work.exception()) is None:
                    self._decide(each, work.result()[number])
                elif not each.is_abandoned:
                    each.result.set_exception(error)
        self._is_running = False

    def _decide(self, call: _Call[C, R], result: R) -> None:
        if call.is_abandoned:
            self._begin(self._drop(result))
        else:
            call.result.set_result(result)

    def _abandon(self, own: _Call[C, R]) -> None:
        """End the call of a cancelled task."""
        own.is_abandoned = True
        if own in self._queued:
            self._queued.remove(own)
        elif own.result.done() and not own.result.cancelled() and own.result.exception() is None:
            self._begin(self._drop(own.result.result()))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class AsyncCallGroups:
    """The shared calls of many kinds, by key."""

    def __init__(self) -> None:
        #: The shared calls that tasks use now, and how many use each.
        self._used: dict[Hashable, tuple[AsyncSharedCalls[Any, Any], int]] = {}
        #: Tasks that must end before the loop does.
        self.tasks: set[asyncio.Task[Any]] = set()

    async def call(
        self, key: Hashable, make: Callable[[], AsyncSharedCalls[C, R]], argument: C, timeout_s: float | None = None
    ) -> R | None:
        """The result of a call among those with the same key; `make` creates what they share."""
        shared, users = self._used.get(key) or (make(), 0)
        self._used[key] = shared, users + 1
        try:
            result: R | None = await shared.call(argument, timeout_s)
            return result
        finally:
            shared, users = self._used.pop(key)
            if users > 1:
                self._used[key] = shared, users - 1

    async def settle(self) -> None:
        """Wait for the requests in flight: the log has closed its connection."""
        while self.tasks:
            await asyncio.wait(self.tasks)
