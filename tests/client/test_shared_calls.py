"""Calls that share requests: grouping, errors, timeouts, and callers that are interrupted or cancelled."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from seawall.client.queues.aio_shared_calls import AsyncCallGroups, AsyncSharedCalls
from seawall.client.queues.shared_calls import CallGroups, SharedCalls
from seawall.errors import RetryableError

TIMEOUT_S = 30.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


class Server:
    """Executes groups when a test allows it, and records them."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.dropped: list[str] = []
        self.allowed = threading.Semaphore(0)
        self.error: BaseException | None = None
        self.shared: SharedCalls[int, str] = SharedCalls(self.execute, min_of_three, self.dropped.append)

    def execute(self, arguments: Sequence[int]) -> list[str]:
        self.groups.append(list(arguments))
        assert self.allowed.acquire(timeout=TIMEOUT_S)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return [f"result {each}" for each in arguments]

    def until_queued(self, count: int) -> None:
        until(lambda: len(self.shared._queued) == count)


def min_of_three(queued: Sequence[int]) -> int:
    return min(3, len(queued))


@pytest.fixture
def server() -> Server:
    return Server()


def test_calls_that_come_meanwhile_share_the_next_request(server: Server) -> None:
    with ThreadPoolExecutor(6) as threads:
        first = threads.submit(server.shared.call, 0)
        until(lambda: len(server.groups) == 1)
        others = []
        for number in range(1, 6):
            others.append(threads.submit(server.shared.call, number))
            server.until_queued(number)
        server.allowed.release(3)
        results = [each.result(TIMEOUT_S) for each in (first, *others)]
    assert results == [f"result {number}" for number in range(6)]
    assert server.groups == [[0], [1, 2, 3], [4, 5]]
    assert server.dropped == []


def test_the_error_of_a_group_is_raised_to_each_of_its_callers(server: Server) -> None:
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(server.shared.call, 0)
        until(lambda: len(server.groups) == 1)
        others = [threads.submit(server.shared.call, number) for number in (1, 2)]
        server.until_queued(2)
        server.allowed.release()
        assert first.result(TIMEOUT_S) == "result 0"
        server.error = RetryableError("no answer")
        server.allowed.release()
        for other in others:
            with pytest.raises(RetryableError, match="no answer"):
                other.result(TIMEOUT_S)
    server.allowed.release()
    assert server.shared.call(3) == "result 3", "the next call is executed"


def test_a_call_that_is_still_queued_after_its_timeout_is_not_executed(server: Server) -> None:
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(server.shared.call, 0)
        until(lambda: len(server.groups) == 1)
        assert server.shared.call(1, 0.001) is None
        server.allowed.release()
        assert first.result(TIMEOUT_S) == "result 0"
    assert server.groups == [[0]]


def test_after_an_interrupted_leader_the_others_try_again(server: Server) -> None:
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(server.shared.call, 0)
        until(lambda: len(server.groups) == 1)
        leader = threads.submit(server.shared.call, 1)
        server.until_queued(1)
        other = threads.submit(server.shared.call, 2)
        server.until_queued(2)
        server.allowed.release()
        assert first.result(TIMEOUT_S) == "result 0"
        server.error = KeyboardInterrupt()
        server.allowed.release(2)
        with pytest.raises(KeyboardInterrupt):
            leader.result(TIMEOUT_S)
        assert other.result(TIMEOUT_S) == "result 2"
    assert server.groups == [[0], [1, 2], [2]]


def test_the_call_of_an_interrupted_thread_is_withdrawn(server: Server) -> None:
    """The main thread is interrupted while its call is queued; it is the next to lead."""
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(server.shared.call, 0)
        until(lambda: len(server.groups) == 1)

        def interrupt() -> object:
            server.until_queued(1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            server.until_queued(0)
            server.allowed.release()
            return first.result(TIMEOUT_S)

        interrupting = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            server.shared.call(1)
        assert interrupting.result(TIMEOUT_S) == "result 0"
    assert (server.groups, server.dropped) == ([[0]], [])


def test_the_result_of_an_interrupted_thread_is_dropped(server: Server) -> None:
    """The main thread is interrupted while another one executes its call."""
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(server.shared.call, 0)
        until(lambda: len(server.groups) == 1)
        leader = threads.submit(server.shared.call, 1)
        server.until_queued(1)

        def interrupt() -> None:
            server.until_queued(2)
            server.allowed.release()
            until(lambda: len(server.groups) == 2)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        interrupting = threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            server.shared.call(2)
        interrupting.result(TIMEOUT_S)
        server.allowed.release()
        assert (first.result(TIMEOUT_S), leader.result(TIMEOUT_S)) == ("result 0", "result 1")
    assert (server.groups, server.dropped) == ([[0], [1, 2]], ["result 2"])


def test_groups_are_made_for_each_key_and_forgotten(server: Server) -> None:
    groups = CallGroups()
    made: list[str] = []

    def make(key: str) -> SharedCalls[int, str]:
        made.append(key)
        return SharedCalls(lambda arguments: [key] * len(arguments), len, made.append)

    for key in ("a", "b", "a"):
        assert groups.call(key, lambda key=key: make(key), 1) == key
    assert made == ["a", "b", "a"]
    assert groups._used == {}


# --- tasks ---------------------------------------------------------------------------------------------------------


class AsyncServer:
    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.dropped: list[str] = []
        self.allowed = asyncio.Semaphore(0)
        self.error: Exception | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.shared: AsyncSharedCalls[int, str] = AsyncSharedCalls(self.execute, min_of_three, self.drop, self.tasks)

    async def execute(self, arguments: Sequence[int]) -> list[str]:
        self.groups.append(list(arguments))
        await self.allowed.acquire()
        if self.error is not None:
            raise self.error
        return [f"result {each}" for each in arguments]

    async def drop(self, result: str) -> None:
        self.dropped.append(result)

    async def begin(self, *numbers: int) -> list[asyncio.Task[str | None]]:
        """Start calls, and let them run as far as they can."""
        calls = [asyncio.create_task(self.shared.call(number)) for number in numbers]
        await settled()
        return calls

    async def end(self) -> None:
        while self.tasks:
            await asyncio.wait(self.tasks)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_calls_of_tasks_share_the_next_request() -> None:
    async def work() -> None:
        server = AsyncServer()
        first = await server.begin(0)
        others = await server.begin(*range(1, 6))
        for _ in range(3):
            server.allowed.release()
        assert await asyncio.gather(*first, *others) == [f"result {number}" for number in range(6)]
        assert server.groups == [[0], [1, 2, 3], [4, 5]]
        await server.end()

    asyncio.run(work())


def test_an_error_is_raised_to_each_task_of_a_group() -> None:
    async def work() -> None:
        server = AsyncServer()
        calls = await server.begin(0) + await server.begin(1, 2, 3)
        calls[1].cancel()
        server.error = RetryableError("no answer")
        server.allowed.release()
        server.allowed.release()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in results] == [
            RetryableError,
            asyncio.CancelledError,
            RetryableError,
            RetryableError,
        ]
        await server.end()

    asyncio.run(work())


def test_a_call_of_a_task_is_not_executed_after_its_timeout() -> None:
    async def work() -> None:
        server = AsyncServer()
        (first,) = await server.begin(0)
        assert await server.shared.call(1, 0.001) is None
        server.allowed.release()
        assert (await first, server.groups) == ("result 0", [[0]])
        await server.end()

    asyncio.run(work())


def test_a_cancelled_task_withdraws_a_queued_call_and_drops_a_result() -> None:
    async def work() -> None:
        server = AsyncServer()
        first = await server.begin(0)
        queued, other, late = await server.begin(1, 2, 3)
        queued.cancel()
        await settled()
        server.allowed.release()
        await settled()
        assert server.groups == [[0], [2, 3]]
        other.cancel()
        await settled()
        server.allowed.release()
        assert await asyncio.gather(*first, late) == ["result 0", "result 3"]
        await server.end()
        assert server.dropped == ["result 2"]

    asyncio.run(work())


def test_a_task_that_is_cancelled_with_its_result_drops_it() -> None:
    async def work() -> None:
        server = AsyncServer()
        (call,) = await server.begin(0)
        server.allowed.release()
        own = server.shared
        while own._is_running:
            await asyncio.sleep(0)
        if not call.done():
            call.cancel()
        outcome = (await asyncio.gather(call, return_exceptions=True))[0]
        await server.end()
        assert isinstance(outcome, asyncio.CancelledError)
        assert server.dropped == ["result 0"]

    asyncio.run(work())


def test_groups_of_tasks_are_forgotten() -> None:
    async def work() -> None:
        groups = AsyncCallGroups()

        async def execute(arguments: Sequence[int]) -> list[int]:
            await asyncio.sleep(0)
            return [2 * each for each in arguments]

        async def drop(_result: int) -> None:
            raise AssertionError("nobody is cancelled")

        def make() -> AsyncSharedCalls[int, int]:
            return AsyncSharedCalls(execute, len, drop, groups.tasks)

        assert await asyncio.gather(*(groups.call("key", make, number) for number in range(5))) == [0, 2, 4, 6, 8]
        await groups.settle()
        assert (groups._used, groups.tasks) == ({}, set())

    asyncio.run(work())
