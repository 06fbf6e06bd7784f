"""Job queues on an event loop: the rules of threads, claims that are cancelled, and many tasks that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seawall
from seawall.api.publishable import Message
from seawall.api.queues.aio_queue import AsyncJob, AsyncQueue
from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.queues.aio_queues import AsyncLogQueues
from seawall.engine.queues.claims import ClaimLine
from seawall.engine.store.settings import StoreSettings
from seawall.errors import ConflictError, InvalidInputError, NotFoundError, WrongStateError
from seawall.limits import KIB

pytestmark = pytest.mark.usefixtures("each_event_loop")

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB)
LONG_S = 20.0


def on_loop(path: Path, work: Callable[[AsyncLog], Awaitable[None]], **config: Any) -> None:
    """Run a coroutine with an open log that has a queue."""

    async def main() -> None:
        async with AsyncLog(path / "data", SMALL) as log:
            await log.create_topic("jobs", type="queue", **config)
            await work(log)
            # Whoever watched for jobs has ended with the last claim.
            await until(lambda: not log.queues._watchers)

    asyncio.run(main())


def values(jobs: Iterable[AsyncJob]) -> list[bytes]:
    return [job.value for job in jobs]


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until they have made something true."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


async def waiting(log: AsyncLog, count: int, topic: str = "jobs") -> None:
    """Wait until so many claims wait, and a task watches for them."""
    queues = log.queues

    def are_there() -> bool:
        line = queues._queues._lines.get(topic)
        return line is not None and len(line) == count and len(queues._watchers) > 0 and log._readable is not None

    await until(are_there)


async def state(queue: AsyncQueue) -> tuple[int, int, int]:
    counts = await queue.counts()
    return counts.ready, counts.leased, counts.delayed


def test_jobs_are_pushed_claimed_and_decided(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        queue = log.queue("jobs", node="w")
        delivery = await queue.push([b"1", Message("2", key="k"), {"n": 3}])
        assert list(delivery.seqs) == [1, 2, 3]
        await queue.push(b"first", priority=5)
        await queue.push(b"later", delay_s=60)
        assert await state(queue) == (4, 0, 1)
        assert values(await queue.peek(2)) == [b"1", b"first"]
        jobs = await queue.claim(3)
        assert values(jobs) == [b"1", b"2", b"first"]
        assert await jobs[0].ack()
        assert not await jobs[0].ack()
        assert await jobs[1].nack(30)
        assert await jobs[2].extend(50)
        assert await state(queue) == (1, 1, 2)
        assert (await queue.ack([jobs[2]])).changed == 1
        assert await queue.purge() == 3
        assert await state(queue) == (0, 0, 0)
        assert (await queue.push_unique(b"u", "k")).is_new
        assert not (await queue.push_unique(b"u", "k")).is_new

    on_loop(tmp_path, work)


def test_bad_arguments_and_topics_are_refused(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        await log.create_topic("events")
        for topic, error in (("events", WrongStateError), ("missing", NotFoundError)):
            queue = log.queue(topic)
            for call in (queue.claim(wait_s=LONG_S), queue.peek(), queue.counts(), queue.purge(), queue.push(b"x")):
                with pytest.raises(error):
                    await call
        queue = log.queue("jobs")
        for call in (queue.claim(0), queue.claim(lease_s=-1), queue.ack([]), queue.push(b"x", priority=12)):
            with pytest.raises(InvalidInputError):
                await call

    on_loop(tmp_path, work)


def test_many_waiting_tasks_get_each_job_once(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        claims = [asyncio.create_task(log.queue("jobs").claim(1, wait_s=LONG_S)) for _ in range(200)]
        await waiting(log, 200)
        await log.queue("jobs").push([b"%d" % number for number in range(150)])
        for number in range(150, 200):
            await log.queue("jobs").push(b"%d" % number)
        found = [value for jobs in await asyncio.gather(*claims) for value in values(jobs)]
        assert sorted(found, key=int) == [b"%d" % number for number in range(200)]
        assert await state(log.queue("jobs")) == (0, 200, 0)

    on_loop(tmp_path, work)


def test_tasks_that_push_claim_and_ack_lose_nothing(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        done: list[bytes] = []

        async def worker(name: str) -> None:
            queue = log.queue("jobs", node=name)
            while len(done) < 400:
                jobs = await queue.claim(7, wait_s=0.05)
                if jobs:
                    assert (await queue.ack(jobs)).changed == len(jobs)
                    done.extend(values(jobs))

        async def pusher(first: int) -> None:
            for number in range(first, first + 100):
                await log.queue("jobs").push(b"%d" % number)

        await asyncio.gather(*(worker(f"w{n}") for n in range(12)), *(pusher(n) for n in range(0, 400, 100)))
        assert sorted(done, key=int) == [b"%d" % number for number in range(400)]
        assert (await log.describe("jobs")).record_count == 0

    on_loop(tmp_path, work)


@pytest.mark.parametrize("what", ["push", "nack", "expiry", "delay"])
def test_a_waiting_claim_is_woken(tmp_path: Path, what: str) -> None:
    async def work(log: AsyncLog) -> None:
        queue = log.queue("jobs", node="w")
        if what != "push":
            await queue.push(b"x", delay_s=0.1 if what == "delay" else 0)
        held = [] if what == "delay" else await queue.claim(lease_s=0.1 if what == "expiry" else 60)
        claim = asyncio.create_task(log.queue("jobs").claim(wait_s=LONG_S))
        # Leases and delays end when they do, on a slow machine before the claim waits.
        if what == "push":
            await waiting(log, 1)
            await queue.push(b"x")
        elif what == "nack":
            await waiting(log, 1)
            await queue.nack(held)
        assert values(await claim) == [b"x"]

    on_loop(tmp_path, work)


def test_a_cancelled_claim_leases_nothing(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        queue = log.queue("jobs")
        claims = [asyncio.create_task(log.queue("jobs").claim(1, wait_s=LONG_S)) for _ in range(10)]
        await waiting(log, 10)
        for claim in claims[:9]:
            claim.cancel()
        await queue.push([b"%d" % number for number in range(5)])
        results = await asyncio.gather(*claims, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results[:9])
        assert len(values(await claims[9])) == 1
        assert await state(queue) == (4, 1, 0)
        # Whoever was cancelled had no delivery either.
        assert {job.deliveries for job in await queue.claim(9)} == {1}

    on_loop(tmp_path, work)


def test_the_last_claim_may_leave_before_the_task_that_watches_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(log: AsyncLog) -> None:
        queues = log.queues._queues
        is_late, may_go, pause_s = threading.Event(), threading.Event(), queues.pause_s

        def late_pause_s(topic: str, line: ClaimLine) -> float:
            is_late.set()
            assert may_go.wait(30)
            return pause_s(topic, line)

        monkeypatch.setattr(queues, "pause_s", late_pause_s)
        claim = asyncio.create_task(log.queue("jobs").claim(wait_s=LONG_S))
        await until(is_late.is_set)
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        may_go.set()
        # `on_loop` checks that it has ended.

    on_loop(tmp_path, work)


def test_the_task_that_watches_ends_if_another_one_serves_the_last_claim(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        queues, queue = log.queues._queues, log.queue("jobs", node="w")
        await queue.push(b"x")
        held = await queue.claim(lease_s=60)
        claim = asyncio.create_task(log.queue("jobs").claim(wait_s=LONG_S))
        await until(lambda: bool(log.queues._idle))
        with log._opened().inspecting():
            # Without a notification. At the end of a cohort each of its claims serves all.
            queues._store.queue_locked("jobs").view.release(*np.array([[held[0].seq], [held[0].lease_id]]))
        queues.serve("jobs", queues._lines["jobs"])
        assert values(await claim) == [b"x"]

    on_loop(tmp_path, work)


def test_a_loop_does_not_watch_for_the_claims_of_another_one(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        own = log.queues
        other = AsyncLogQueues(log, own._queues, log._on_thread)
        theirs = asyncio.create_task(other.claim("jobs", "w", 1, 0, 20_000))
        await until(lambda: bool(other._idle))
        claim = asyncio.create_task(log.queue("jobs").claim(wait_s=LONG_S))
        await until(lambda: bool(own._idle))
        claim.cancel()
        await until(lambda: not own._watchers)
        await log.queue("jobs").push(b"x")
        assert len((await theirs).rows) == 1
        await until(lambda: not other._watchers)

    on_loop(tmp_path, work)


@pytest.mark.parametrize("steps", range(12))
def test_a_claim_may_be_cancelled_at_any_moment(tmp_path: Path, steps: int) -> None:
    """Also while it begins, and after it was served and before its task runs."""

    async def work(log: AsyncLog) -> None:
        queue = log.queue("jobs")
        await queue.push([b"1", b"2", b"3"])
        claim = asyncio.create_task(queue.claim(2, wait_s=LONG_S))
        for _ in range(steps * 40):
            await asyncio.sleep(0)
        claim.cancel()
        try:
            jobs = await claim
        except asyncio.CancelledError:
            jobs = []
        await until(lambda: len(log.queues._queues._lines.get("jobs", ())) == 0)
        async with asyncio.timeout(30):
            # A claim that was cancelled while it began gives its jobs back a moment later.
            while await state(queue) != (3 - len(jobs), len(jobs), 0):
                await asyncio.sleep(0)
        assert {job.deliveries for job in await queue.claim(9)} == {1}

    on_loop(tmp_path, work)


def test_a_claim_times_out(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        assert await log.queue("jobs").claim(wait_s=0.02) == []
        assert await log.queue("jobs").claim() == []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await log.queue("jobs").claim(wait_s=LONG_S)
        await log.queue("jobs").push(b"x")
        assert await state(log.queue("jobs")) == (1, 0, 0)

    on_loop(tmp_path, work)


def test_a_cohort_shares_jobs_evenly(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        await log.queue("jobs").push([b"%d" % number for number in range(30)])
        claims = [log.queue("jobs").claim(30) for _ in range(5)]
        assert [len(jobs) for jobs in await asyncio.gather(*claims)] == [6] * 5

    on_loop(tmp_path, work, claim_jitter_ms=500)


def test_deleting_or_recreating_the_topic_while_tasks_wait(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        queue = log.queue("jobs")
        claims = [asyncio.create_task(queue.claim(wait_s=LONG_S)) for _ in range(5)]
        await waiting(log, 5)
        await log.delete_topic("jobs")
        results = await asyncio.gather(*claims, return_exceptions=True)
        assert all(isinstance(result, NotFoundError) for result in results)
        await log.create_topic("jobs", type="queue")
        claim = asyncio.create_task(queue.claim(wait_s=LONG_S))
        await waiting(log, 1)
        await queue.push(b"new")
        assert values(await claim) == [b"new"]

    on_loop(tmp_path, work)


def test_closing_the_log_ends_waiting_claims(tmp_path: Path) -> None:
    async def main() -> None:
        log = await AsyncLog(tmp_path / "data", SMALL).open()
        await log.create_topic("jobs", type="queue")
        claims = [asyncio.create_task(log.queue("jobs").claim(wait_s=LONG_S)) for _ in range(3)]
        await waiting(log, 3)
        await log.close()
        for result in await asyncio.gather(*claims, return_exceptions=True):
            assert isinstance(result, WrongStateError)

    asyncio.run(main())


def test_dead_letters_and_redrive(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        queue = log.queue("jobs")
        await queue.push([Message("1", meta='{"m":1}'), b"2"])
        await queue.nack(await queue.claim(2))
        assert await queue.claim(2) == []
        assert (await queue.counts())[:4] == (0, 0, 0, 2)
        assert await log.queue("dead").redrive() == 2
        jobs = await queue.claim(2)
        assert [(job.value, job.record.meta) for job in jobs] == [(b"1", b'{"m":1}'), (b"2", None)]

    on_loop(tmp_path, work, max_deliveries=1, dead_letter="dead")


def test_results_and_acks_are_one_step(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        await log.create_topic("results")
        queue = log.queue("jobs", node="w")
        await queue.push([b"1", b"2"])
        first, second = await queue.claim(2)
        async with log.transaction() as transaction:
            await transaction.publish("results", b"r")
            transaction.ack(first)
        assert first.is_decided
        await second.nack()
        await log.queue("jobs", node="thief").claim()
        transaction = log.transaction()
        await transaction.publish("results", b"r2")
        transaction.ack(second)
        with pytest.raises(ConflictError):
            await transaction.commit()
        assert (await log.describe("results")).record_count == 1
        assert await state(queue) == (0, 1, 0)

    on_loop(tmp_path, work)


def test_a_work_loop_acks_and_ends(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        queue = log.queue("jobs")
        await queue.push([b"%d" % number for number in range(10)])
        seen = [job.value async for job in queue.work(batch=4, wait=False)]
        assert seen == [b"%d" % number for number in range(10)]
        assert await state(queue) == (0, 0, 0)

    on_loop(tmp_path, work)


def test_a_work_loop_that_is_closed_or_cancelled_returns_its_jobs(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        queue = log.queue("jobs")
        await queue.push([b"1", b"2", b"3"])
        loop = queue.work(batch=3, lease_s=0.1)
        job = await anext(loop)
        first = job.deadline_ms
        await until(lambda: job.deadline_ms > first + 150)
        await loop.aclose()
        assert await state(queue) == (2, 0, 1)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in tasks if "_keep_leases" in repr(task)]

        started = asyncio.Event()

        async def run() -> None:
            async for _ in queue.work(batch=2):
                started.set()

        task = asyncio.create_task(run())
        await started.wait()
        await waiting(log, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await state(queue) == (0, 0, 1)

    on_loop(tmp_path, work)


def test_threads_and_tasks_agree_about_a_queue(tmp_path: Path) -> None:
    async def work(log: AsyncLog) -> None:
        await log.queue("jobs").push([b"1", b"2"])
        assert values(await log.queue("jobs").claim()) == [b"1"]

    on_loop(tmp_path, work)
    with seawall.open(tmp_path / "data") as log:
        assert [job.value for job in log.queue("jobs").claim(5)] == [b"1", b"2"]
