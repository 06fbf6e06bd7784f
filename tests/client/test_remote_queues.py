"""Job queues over the network, for threads and for asyncio: waits, work loops, lost answers, restarts, and sharing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from losing_proxy import LosingProxy
from real_server import RealServer, ServerProcess

import seawall
from seawall.api.queues.jobs import Backoff, PushedJob
from seawall.client.remote_log import RemoteLog
from seawall.core.jobs import QueueCounts
from seawall.errors import (
    CallerError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnsupportedError,
    WrongStateError,
)
from seawall.io.process.own_process import worker_name
from seawall.limits import JOBS_MAX
from seawall.server.connection.access import Access, Right
from seawall.server.lwp2.queue_requests import QueueRequests
from seawall.server.lwp2.topic_commands import TopicCommands
from seawall.topics.state import TopicState
from seawall.wire.format.codes import Command
from seawall.wire.lwp2.jobs import JobRequest

TIMEOUT_S = 30.0


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a server or another thread does by itself."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


async def until_async(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not await condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.002)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    with RealServer(tmp_path / "data") as real:
        with seawall.connect(real.url) as log:
            log.create_topic("mails", type="queue")
            log.create_topic("events")
        yield real


@pytest.fixture
def log(server: RealServer) -> Iterator[RemoteLog]:
    with seawall.connect(server.url) as opened:
        yield opened


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the queue requests of the servers in this process."""
    counted: Counter[str] = Counter()
    execute = QueueRequests.execute

    async def counting(own: QueueRequests, request: JobRequest, request_id: int) -> None:
        counted[type(request).__name__] += 1
        await execute(own, request, request_id)

    monkeypatch.setattr(QueueRequests, "execute", counting)
    return counted


def waiting_claims(server: RealServer) -> int:
    """How many claims wait for jobs on a server."""

    async def count(_log: object) -> int:
        sessions = [each._session for each in list(server._node.event_loops[0].listener.connections)]
        return sum(len(session._queues._waiting) for session in sessions if session is not None)

    return server.run(count)


def counts_of(server: RealServer, name: str = "mails") -> QueueCounts:
    return server.run(lambda log: log.queues.counts(name))


# --- the API ---------------------------------------------------------------------------------------------------------


def test_jobs_from_push_to_ack(log: RemoteLog) -> None:
    queue = log.queue("mails", node="me")
    assert list(queue.push([{"to": "ada"}, {"to": "grace"}, b"three"]).seqs) == [1, 2, 3]
    assert (queue.topic, queue.node) == ("mails", "me")
    jobs = queue.claim(2, lease_s=60)
    assert [job.json()["to"] for job in jobs] == ["ada", "grace"]
    assert [job.deliveries for job in jobs] == [1, 1]
    assert queue.extend(jobs, 120).changed == 2
    assert jobs[0].nack(delay_s=3600)
    assert jobs[1].ack()
    assert not jobs[1].ack(), "it is done"
    assert queue.ack(jobs).skipped == (1, 2)
    counts = queue.counts()
    assert (counts.ready, counts.leased, counts.delayed) == (1, 0, 1)
    assert [job.value for job in queue.peek(5)] == [b"three"]
    assert queue.purge() == 2
    assert queue.claim(5) == []


def test_jobs_from_push_to_ack_on_an_event_loop(server: RealServer) -> None:
    async def work() -> None:
        async with seawall.connect_async(server.url) as log:
            queue = log.queue("mails", node="me")
            assert list((await queue.push([{"to": "ada"}, {"to": "grace"}, b"three"])).seqs) == [1, 2, 3]
            jobs = await queue.claim(2, lease_s=60)
            assert [job.json()["to"] for job in jobs] == ["ada", "grace"]
            assert (await queue.extend(jobs, 120)).changed == 2
            assert await jobs[0].nack(delay_s=3600)
            assert await jobs[1].ack()
            assert not await jobs[1].ack(), "it is done"
            assert (await queue.ack(jobs)).skipped == (1, 2)
            counts = await queue.counts()
            assert (counts.ready, counts.leased, counts.delayed) == (1, 0, 1)
            assert [job.value for job in await queue.peek(5)] == [b"three"]
            assert await queue.purge() == 2
            assert await queue.claim(5) == []
            assert await queue.push_unique("x", "key") == PushedJob(4, True)
            assert await queue.push_unique("y", "key") == PushedJob(4, False)
            assert await queue.redrive() == 0

    asyncio.run(work())


def test_options_and_dead_letters(log: RemoteLog) -> None:
    log.create_topic("work", type="queue", max_deliveries=1, dead_letter="dead")
    queue = log.queue("work")
    queue.push("low")
    queue.push("high", priority=9)
    queue.push("later", delay_s=3600)
    (first,) = queue.claim()
    assert first.value == b"high"
    assert first.nack()
    (second,) = queue.claim(9)
    assert second.value == b"low", "the other one was delivered once"
    assert queue.counts().dead_lettered == 1
    assert [record.value for record in log.records("dead")] == [b"high"]
    assert queue.push_unique("only", "key") == PushedJob(4, True)
    assert queue.push_unique("again", b"key") == PushedJob(4, False)


def test_the_first_dead_letter_needs_no_second_thread(server: RealServer, log: RemoteLog) -> None:
    """All threads of the server may wait for the one that creates the topic of dead letters."""
    log.create_topic("work", type="queue", max_deliveries=1, dead_letter="dead")
    queue = log.queue("work")
    queue.push("one")
    queue.claim()[0].nack()

    async def keep_one_thread(_log: object) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    server.run(keep_one_thread)
    assert queue.claim() == []
    assert [record.value for record in log.records("dead")] == [b"one"]
    log.publish("dead", "another")
    assert log.describe("dead").record_count == 2


def test_dead_letters_are_moved_back(log: RemoteLog) -> None:
    log.create_topic("dead", type="queue")
    log.create_topic("work", type="queue", max_deliveries=1, dead_letter="dead")
    queue = log.queue("work")
    queue.push(["one", "two"])
    queue.nack(queue.claim(2))
    assert queue.claim(9) == []
    assert log.queue("dead").redrive(1) == 1
    assert [job.value for job in queue.claim(9)] == [b"one"]
    assert log.queue("dead").redrive() == 1


def test_refusals(log: RemoteLog) -> None:
    for call in (
        lambda queue: queue.claim(),
        lambda queue: queue.claim(wait_s=9),
        lambda queue: queue.counts(),
        lambda queue: queue.peek(),
        lambda queue: queue.purge(),
        lambda queue: queue.push("x"),
        lambda queue: queue.push(["x", "y"], priority=3),
        lambda queue: queue.push_unique("x", "key"),
        lambda queue: next(queue.work()),
    ):
        with pytest.raises(WrongStateError, match="'events' is not a queue"):
            call(log.queue("events"))
        with pytest.raises(NotFoundError, match="nothing"):
            call(log.queue("nothing"))
    queue = log.queue("mails")
    for count in (0, -1):
        with pytest.raises(InvalidInputError, match="at least 1"):
            queue.claim(count)
        with pytest.raises(InvalidInputError, match="at least 1"):
            queue.peek(count)
    for node in ("", "x" * 129, "ä" * 65):
        with pytest.raises(InvalidInputError, match="worker name"):
            log.queue("mails", node=node)


def test_refusals_on_an_event_loop(server: RealServer) -> None:
    async def work() -> None:
        async with seawall.connect_async(server.url) as log:
            with pytest.raises(WrongStateError, match="'events' is not a queue"):
                await log.queue("events").claim(wait_s=9)
            with pytest.raises(NotFoundError, match="nothing"):
                await log.queue("nothing").counts()
            with pytest.raises(NotFoundError, match="nothing"):
                await log.queue("nothing").push("x")
            with pytest.raises(InvalidInputError, match="at least 1"):
                await log.queue("mails").claim(0)
            with pytest.raises(InvalidInputError, match="worker name"):
                log.queue("mails", node="")
            # Before and after the log has a session, and knows the topic.
            for value in (b"x", "x", [b"x", b"y"]):
                with pytest.raises(WrongStateError, match="'events' is not a queue"):
                    await log.queue("events").push(value)
                await log.publish("events", value)
            assert (await log.describe("events")).record_count == 4

    asyncio.run(work())


def test_refused_pushes_append_nothing(log: RemoteLog) -> None:
    for _ in range(2):
        with pytest.raises(WrongStateError):
            log.queue("events").push("x")
        log.publish("events", "event")
        log.topics()  # knows the topic by a list, which has no types
    assert log.describe("events").next_seq == 3


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that clients look up at the servers in this process."""
    found: list[str] = []
    named = TopicCommands._named

    def noting(own: TopicCommands, name: str) -> TopicState:
        found.append(name)
        return named(own, name)

    monkeypatch.setattr(TopicCommands, "_named", noting)
    return found


def test_a_push_looks_its_topic_up_once(log: RemoteLog, lookups: list[str]) -> None:
    for number in range(3):
        log.queue("mails").push(f"{number}")
    assert lookups == ["mails"]
    log.topics()
    for number in range(3):
        log.queue("mails").push(f"{number}")
    assert lookups == ["mails"] * 2


def test_a_push_on_an_event_loop_looks_its_topic_up_once(server: RealServer, lookups: list[str]) -> None:
    async def work() -> None:
        async with seawall.connect_async(server.url) as log:
            queue = log.queue("mails")
            await queue.push(b"first")
            await asyncio.gather(*(queue.push(b"x") for _ in range(20)), queue.push(["y", "z"]))
            assert lookups == ["mails"]
            assert (await queue.counts()).ready == 23

    asyncio.run(work())


def test_a_push_finds_a_topic_that_was_created_again(server: RealServer, log: RemoteLog) -> None:
    mails, events = log.queue("mails"), log.queue("events")
    mails.push("old")
    with pytest.raises(WrongStateError):
        events.push("x")
    with seawall.connect(server.url) as other:
        for name, kind in (("mails", "log"), ("events", "queue")):
            other.delete_topic(name)
            other.create_topic(name, type=kind)
        with pytest.raises(WrongStateError, match="'mails' is not a queue"):
            mails.push("x")
        events.push("job")
        assert [job.value for job in events.claim(9)] == [b"job"]
        assert other.describe("mails").next_seq == 1


def test_a_push_on_an_event_loop_finds_a_topic_that_was_created_again(server: RealServer) -> None:
    async def work() -> None:
        async with seawall.connect_async(server.url) as log, seawall.connect_async(server.url) as other:
            mails, events = log.queue("mails"), log.queue("events")
            for value in (b"old", "old"):
                await mails.push(value)
                with pytest.raises(WrongStateError):
                    await events.push(value)
            for name, kind in (("mails", "log"), ("events", "queue")):
                await other.delete_topic(name)
                await other.create_topic(name, type=kind)
            for value in (b"job", "job"):
                with pytest.raises(WrongStateError, match="'mails' is not a queue"):
                    await mails.push(value)
                await events.push(value)
            assert [job.value for job in await events.claim(9)] == [b"job"] * 2
            assert (await other.describe("mails")).next_seq == 1

    asyncio.run(work())


def test_large_numbers_are_clamped(log: RemoteLog) -> None:
    queue = log.queue("mails")
    queue.push([b"x"] * (JOBS_MAX + 1))
    jobs = queue.claim(1_000_000, lease_s=1e9)
    assert len(jobs) == JOBS_MAX
    assert queue.extend(jobs[:1], 1e9).changed == 1
    assert queue.nack(jobs[:1], 1e9).changed == 1
    assert queue.counts().delayed == 1
    assert len(queue.peek(1 << 40)) == 1
    assert queue.redrive(1 << 40) == 0


def test_a_job_given_twice_counts_once(log: RemoteLog) -> None:
    queue = log.queue("mails")
    queue.push("job")
    (job,) = queue.claim()
    assert queue.extend([job, job], 60).changed == 1
    outcome = queue.ack([job, job])
    assert (outcome.changed, outcome.skipped) == (1, ())
    outcome = queue.ack([job, job])
    assert (outcome.changed, outcome.skipped) == (0, (1,))


def test_a_write_only_token_pushes(tmp_path: Path) -> None:
    access = Access({"all": Right.ALL, "writer": Right.WRITE_ONLY})
    with (
        RealServer(tmp_path / "data", access) as server,
        seawall.connect(server.url, token="all") as log,
        seawall.connect(server.url, token="writer") as writer,
    ):
        log.create_topic("mails", type="queue")
        queue = writer.queue("mails")
        queue.push("one")
        assert queue.push_unique("two", "key").is_new
        with pytest.raises(CallerError, match="may only write"):
            queue.claim()
        assert len(log.queue("mails").claim(9)) == 2


def test_each_worker_has_a_name_of_its_own(log: RemoteLog) -> None:
    names = {log.queue("mails").node for _ in range(5)} | {worker_name() for _ in range(5)}
    assert len(names) == 10
    assert all(1 <= len(name.encode()) <= 128 for name in names)


# --- waits -----------------------------------------------------------------------------------------------------------


def test_a_claim_waits_for_the_next_job(server: RealServer, log: RemoteLog) -> None:
    queue = log.queue("mails")
    with ThreadPoolExecutor(1) as threads:
        claim = threads.submit(queue.claim, wait_s=TIMEOUT_S)
        until(lambda: waiting_claims(server) == 1)
        assert log.queue("mails", node=queue.node).claim() == [], "it delays no claim that does not wait"
        queue.push("job")
        assert [job.value for job in claim.result(TIMEOUT_S)] == [b"job"]


def test_a_claim_may_wait_longer_than_one_request(server: RealServer, requests: Counter[str]) -> None:
    with seawall.connect(server.url, timeout_s=0.2) as log:
        assert log.queue("mails").claim(wait_s=0.35) == []
        assert requests["JobClaim"] >= 4, "a request waits for half of the timeout"


def test_waiting_claims_of_threads_take_turns(server: RealServer, log: RemoteLog, requests: Counter[str]) -> None:
    queue = log.queue("mails")
    with ThreadPoolExecutor(8) as threads:
        claims = [threads.submit(queue.claim, wait_s=TIMEOUT_S) for _ in range(8)]
        until(lambda: waiting_claims(server) == 1)
        queue.push([b"x"] * 8)
        found = [claim.result(TIMEOUT_S) for claim in claims]
    assert sorted(job.seq for jobs in found for job in jobs) == list(range(1, 9))
    assert requests["JobClaim"] <= 4, "not one for each thread"


def test_a_short_wait_ends_while_another_thread_waits(server: RealServer, log: RemoteLog) -> None:
    queue = log.queue("mails")
    with ThreadPoolExecutor(1) as threads:
        claim = threads.submit(queue.claim, wait_s=TIMEOUT_S)
        until(lambda: waiting_claims(server) == 1)
        assert queue.claim(wait_s=0.01) == []
        assert not claim.done()
        queue.push("job")
        assert len(claim.result(TIMEOUT_S)) == 1


def test_a_cancelled_claim_keeps_no_job(server: RealServer) -> None:
    async def work() -> None:
        async with seawall.connect_async(server.url) as log:
            queue = log.queue("mails")
            claim = asyncio.create_task(queue.claim(wait_s=TIMEOUT_S))
            await until_async(lambda: asyncio.to_thread(lambda: waiting_claims(server) == 1))
            claim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claim
            await queue.push("job")

            async def is_ready() -> bool:
                counts = await queue.counts()
                return (counts.ready, counts.leased) == (1, 0)

            await until_async(is_ready)
            (job,) = await queue.claim()
            assert job.value == b"job"

    asyncio.run(work())


def test_a_claim_finds_a_topic_that_was_created_again(server: RealServer, log: RemoteLog) -> None:
    queue = log.queue("mails")
    with seawall.connect(server.url) as other:
        assert queue.claim() == []
        other.delete_topic("mails")
        other.create_topic("mails", type="queue")
        other.queue("mails").push("job")
        assert [job.value for job in queue.claim()] == [b"job"]


# --- work loops ------------------------------------------------------------------------------------------------------


def test_a_work_loop_acks_and_returns(server: RealServer, log: RemoteLog) -> None:
    queue = log.queue("mails")
    queue.push(["one", "two", "three", "four"])
    done = []
    for job in queue.work(batch=3, backoff=Backoff(3600)):
        if job.value == b"two":
            break
        done.append(job.value)
    counts = queue.counts()
    assert (done, counts.ready, counts.leased, counts.delayed) == ([b"one"], 2, 0, 1)
    assert [job.value for job in queue.work(wait=False)] == [b"three", b"four"]
    until(lambda: server.connection_counts == [2])


def test_a_work_loop_acks_and_returns_on_an_event_loop(server: RealServer) -> None:
    async def work() -> None:
        async with seawall.connect_async(server.url) as log:
            queue = log.queue("mails")
            await queue.push(["one", "two", "three", "four"])
            jobs = queue.work(batch=3, backoff=Backoff(3600))
            done = []
            async for job in jobs:
                if job.value == b"two":
                    break
                done.append(job.value)
            await jobs.aclose()
            counts = await queue.counts()
            assert (done, counts.ready, counts.leased, counts.delayed) == ([b"one"], 2, 0, 1)
            assert [job.value async for job in queue.work(wait=False)] == [b"three", b"four"]

    asyncio.run(work())


def test_a_work_loop_extends_its_leases(server: RealServer, log: RemoteLog, requests: Counter[str]) -> None:
    queue = log.queue("mails")
    queue.push("job")
    jobs = queue.work(lease_s=0.3)
    job = next(jobs)
    until(lambda: requests["JobExtend"] >= 3)
    assert log.queue("mails").claim() == [], "it is still leased"
    assert job.ack()
    jobs.close()


WORKER = """
import sys, time, seawall
log = seawall.connect(sys.argv[1])
queue = log.queue("mails", node="dying")
(kept,) = queue.claim(1)
jobs = queue.work(batch=3) if sys.argv[2] == "threads" else None
if jobs is not None:
    next(jobs)
    print("working", flush=True)
    time.sleep(600)

import asyncio
async def work():
    async with seawall.connect_async(sys.argv[1]) as log:
        jobs = log.queue("mails", node="dying").work(batch=3)
        await anext(jobs)
        print("working", flush=True)
        await asyncio.sleep(600)
asyncio.run(work())
"""


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_the_jobs_of_a_killed_worker_are_returned_at_once(server: RealServer, log: RemoteLog, kind: str) -> None:
    log.configure_topic("mails", lease_ms=86_400_000)
    queue = log.queue("mails")
    queue.push(["claimed", "one", "two", "three", "four"])
    command = [sys.executable, "-c", WORKER, server.url, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "working\n"
        assert queue.counts().leased == 4
        worker.kill()
    until(lambda: queue.counts().leased == 1)
    jobs = queue.claim(9)
    assert [(job.value, job.deliveries) for job in jobs] == [(b"one", 2), (b"two", 2), (b"three", 2), (b"four", 1)]


def test_work_loops_of_threads_share_their_connection_and_requests(
    server: RealServer, log: RemoteLog, requests: Counter[str]
) -> None:
    """A pool of 16 threads sends far fewer requests than two for each job."""
    workers, jobs = 16, 2_000
    queue = log.queue("mails")
    queue.push([b"x"] * jobs)
    done: list[int] = []

    def work() -> None:
        done.extend(job.seq for job in queue.work(wait=False))

    with ThreadPoolExecutor(workers) as threads:
        for finished in [threads.submit(work) for _ in range(workers)]:
            finished.result(TIMEOUT_S)
    assert sorted(done) == list(range(1, jobs + 1))
    assert requests["JobAck"] + requests["JobClaim"] <= jobs, f"{requests} for {jobs} jobs"
    assert counts_of(server)[:3] == (0, 0, 0)


def test_work_loops_of_tasks_share_requests(server: RealServer, requests: Counter[str]) -> None:
    workers, jobs = 16, 2_000

    async def work() -> None:
        async with seawall.connect_async(server.url) as log:
            queue = log.queue("mails")
            await queue.push([b"x"] * jobs)
            done: list[int] = []

            async def loop() -> None:
                done.extend([job.seq async for job in queue.work(wait=False)])

            await asyncio.gather(*(loop() for _ in range(workers)))
            assert sorted(done) == list(range(1, jobs + 1))

    asyncio.run(work())
    assert requests["JobAck"] + requests["JobClaim"] <= jobs / 4, f"{requests} for {jobs} jobs"
    assert counts_of(server)[:3] == (0, 0, 0)


def test_closing_the_log_ends_a_waiting_work_loop(server: RealServer) -> None:
    log = seawall.connect(server.url)
    queue = log.queue("mails")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(next, queue.work())
        until(lambda: waiting_claims(server) == 1)
        log.close()
        with pytest.raises(WrongStateError):
            waiting.result(TIMEOUT_S)
    with pytest.raises(WrongStateError):
        next(queue.work())


# --- lost connections ------------------------------------------------------------------------------------------------


@pytest.fixture
def losing(server: RealServer) -> Iterator[Callable[[Command], LosingProxy]]:
    opened: list[LosingProxy] = []

    def lose(command: Command) -> LosingProxy:
        proxy = LosingProxy(server.port, command)
        opened.append(proxy.__enter__())
        proxy.left = 1
        return proxy

    yield lose
    for proxy in opened:
        proxy.__exit__()


def test_a_claim_whose_answer_is_lost_leases_other_jobs(
    server: RealServer, losing: Callable[[Command], LosingProxy]
) -> None:
    with seawall.connect(losing(Command.JOBS).url) as log:
        queue = log.queue("mails")
        queue.push(["one", "two"])
        (job,) = queue.claim()
        assert job.value == b"two"
        assert counts_of(server).leased == 2, "the other lease ends by itself"


def test_a_work_loop_whose_answer_is_lost_gets_the_same_job(losing: Callable[[Command], LosingProxy]) -> None:
    with seawall.connect(losing(Command.JOBS).url) as log:
        queue = log.queue("mails")
        queue.push("one")
        for job in queue.work():
            assert (job.value, job.deliveries) == (b"one", 2)
            break


def test_an_ack_whose_answer_is_lost_reports_its_jobs_as_skipped(
    server: RealServer, losing: Callable[[Command], LosingProxy]
) -> None:
    with seawall.connect(losing(Command.JOB_OUTCOME).url) as log:
        queue = log.queue("mails")
        queue.push("one")
        outcome = queue.ack(queue.claim())
        assert (outcome.changed, outcome.skipped) == (0, (1,))
        assert counts_of(server)[:3] == (0, 0, 0), "the first one was executed"


def test_a_unique_job_whose_answer_is_lost_is_pushed_once(losing: Callable[[Command], LosingProxy]) -> None:
    with seawall.connect(losing(Command.JOB_PUSHED).url) as log:
        assert log.queue("mails").push_unique("one", "key") == PushedJob(1, False)
        assert log.queue("mails").counts().ready == 1


def test_a_purge_whose_answer_is_lost_has_an_unknown_outcome(losing: Callable[[Command], LosingProxy]) -> None:
    with seawall.connect(losing(Command.RECORDS_DELETED).url) as log:
        queue = log.queue("mails")
        queue.push("one")
        with pytest.raises(OutcomeUnknownError):
            queue.purge()
        assert queue.counts().ready == 0


def test_a_cut_connection_returns_the_jobs_of_work_loops_only(server: RealServer, log: RemoteLog) -> None:
    queue = log.queue("mails")
    queue.push(["one", "two"])
    (kept,) = queue.claim()
    jobs = queue.work()
    lost = next(jobs)
    server.cut_all()
    until(lambda: counts_of(server).leased == 1)
    assert kept.ack()
    assert not lost.ack(), "another worker may have it"
    jobs.close()
    assert [job.value for job in queue.claim()] == [b"two"]


def test_a_worker_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    done: list[bytes] = []
    try:
        with seawall.connect(server.url) as log:
            log.create_topic("mails", type="queue")
            queue = log.queue("mails")

            def work() -> None:
                for job in queue.work():
                    done.append(job.value)
                    if job.value == b"last":
                        return

            worker = threading.Thread(target=work)
            worker.start()
            for value in (b"first", b"second"):
                queue.push(value)
                # The loop has the next job when the ack of the one before is durable.
                until(lambda value=value: value in done)
            server.kill()
            server.start()
            queue.push("last")
            worker.join(TIMEOUT_S)
            assert not worker.is_alive()
            assert done.count(b"first") == 1
            assert done[-1] == b"last"
    finally:
        server.stop()


def test_a_server_without_queues_is_reported(server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from seawall.wire.lwp2 import frames

    known = {code: parse for code, parse in frames._REQUESTS.items() if not 0x90 <= code <= 0x9C}
    monkeypatch.setattr(frames, "_REQUESTS", known)
    with seawall.connect(server.url) as log, pytest.raises(UnsupportedError):
        log.queue("mails").claim()
