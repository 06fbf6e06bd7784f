"""Publishers on an event loop while no commit runs; and closing a log while readers wait for records."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

import seawall
from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.commit.commit_queue import CommitQueue
from seawall.errors import FullError, NotFoundError, WrongStateError


def on_loop(path: Path, work: Callable[[AsyncLog], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        async with seawall.open_async(path / "data", storage_wal_file_size=4 * 1024 * 1024) as log:
            await log.create_topic("events")
            async with asyncio.timeout(120):
                await work(log)

    asyncio.run(main())


def test_a_full_publisher_raises_or_waits(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        async with await log.publisher("events", max_in_flight=1) as publisher:
            with log._opened().changing():
                # No commit runs during another change.
                first = publisher.publish(b"one")
                with pytest.raises(FullError, match="use `put`"):
                    publisher.publish(b"two")
                waiting = asyncio.create_task(publisher.put(iter([b"two", b"three"])))
                with pytest.raises(TimeoutError, match=r"still in flight to 'events' after 0\.01 s"):
                    await publisher.flush(0.01)
                assert not waiting.done()
                assert publisher.in_flight > 0
            assert list((await (await waiting)).seqs) == [2, 3]
            assert (await first).first_seq == 1
        assert publisher.in_flight == 0
        assert publisher.latency.count == 2

    on_loop(tmp_path, work)


def test_an_error_is_raised_by_the_next_flush(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        await log.create_topic("full", cap_records=1, discard="reject")
        publisher = await log.publisher("full")
        stored, refused = publisher.publish(b"one"), publisher.publish(b"two")
        with pytest.raises(FullError):
            await publisher.flush()
        assert (stored.error, type(refused.error)) == (None, FullError)
        await publisher.flush()
        await publisher.close()

    on_loop(tmp_path, work)


@pytest.fixture
def about_to_wait(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released by each reader that is about to wait for records, on a thread or on a loop."""
    waiting, real = threading.Semaphore(0), CommitQueue.expect_change

    def expect_change(queue: CommitQueue) -> None:
        real(queue)
        waiting.release()

    monkeypatch.setattr(CommitQueue, "expect_change", expect_change)
    return waiting


async def acquired(semaphore: threading.Semaphore, count: int) -> None:
    for _ in range(count):
        assert await asyncio.to_thread(semaphore.acquire, timeout=60)


def test_closing_a_log_refuses_waiting_tasks(tmp_path: Path, about_to_wait: threading.Semaphore) -> None:
    async def main() -> None:
        log = await seawall.open_async(tmp_path / "data").open()
        await log.create_topic("events")

        async def iterate() -> None:
            async for _ in log.subscriber("events"):
                raise AssertionError("there is nothing to read")

        waits = [log.wait_for("events", 1), log.wait_for_position(0), iterate()]
        tasks = [asyncio.create_task(each) for each in waits]
        await acquired(about_to_wait, len(tasks))
        await log.close()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, WrongStateError), outcome

    asyncio.run(asyncio.wait_for(main(), 120))


def test_closing_a_log_refuses_waiting_threads(tmp_path: Path, about_to_wait: threading.Semaphore) -> None:
    async def main() -> None:
        log = seawall.open(tmp_path / "data")
        log.create_topic("events")
        subscriber = iter(log.subscriber("events"))
        tasks = [asyncio.create_task(asyncio.to_thread(next, subscriber))]
        tasks.append(asyncio.create_task(asyncio.to_thread(log.wait_for_position, 0)))
        await acquired(about_to_wait, len(tasks))
        await asyncio.to_thread(log.close)
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, WrongStateError), outcome

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_missing_directory_is_not_created_without_create(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(NotFoundError, match="no data directory"):
            await seawall.open_async(tmp_path / "data", create=False).open()
        assert not (tmp_path / "data").exists()
        async with seawall.open_async(tmp_path / "data") as log:
            await log.create_topic("events")
        async with seawall.open_async(tmp_path / "data", create=False) as log:
            assert await log.topics() == ["events"]

    asyncio.run(main())
