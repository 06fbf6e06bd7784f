"""Jobs and transactions, work loops, and queues of a fabric with brokers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from queue_logs import (
    LONG_S,
    Call,
    QueueLog,
    counts,
    records,
    until,
    values,
    waiting,
)

import seawall
from seawall.api.queues.jobs import job_acks
from seawall.core.transactions import JobAck
from seawall.errors import (
    ConflictError,
    NotFoundError,
    SeawallError,
    WrongStateError,
)


@pytest.fixture
def log() -> QueueLog:
    return QueueLog(lease_ms=1_000)


# --- transactions -----------------------------------------------------------------------------------------------------


def test_results_and_acks_are_one_step(log: QueueLog) -> None:
    log.log.create_topic("results")
    queue = log.queue()
    queue.push([b"1", b"2", b"3"])
    jobs = queue.claim(2)
    with log.log.transaction() as transaction:
        transaction.publish("results", [b"r1", b"r2"])
        transaction.ack(jobs[1])
        transaction.ack(jobs[0])
        transaction.ack(jobs[1])
        assert counts(log) == (1, 2, 0)
    assert all(job.is_decided for job in jobs)
    assert counts(log) == (1, 0, 0)
    assert [record.value for record in records(log, "results")] == [b"r1", b"r2"]
    log.crash()
    assert counts(log) == (1, 0, 0)
    assert len(records(log, "results")) == 2


def test_a_lost_lease_refuses_the_whole_transaction(log: QueueLog) -> None:
    log.log.create_topic("results")
    queue = log.queue()
    queue.push([b"1", b"2"])
    jobs = queue.claim(2)
    log.pass_ms(1_001)
    (stolen,) = log.queue("thief").claim(1)
    transaction = log.log.transaction()
    transaction.publish("results", b"r")
    transaction.ack(jobs)
    with pytest.raises(ConflictError, match=r"1 jobs of queue 'jobs' .* \(the first is 1\)"):
        transaction.commit()
    assert records(log, "results") == []
    # The other job is still this worker's.
    assert jobs[1].ack()
    assert stolen.ack()


@pytest.mark.parametrize("aborts", [True, False])
def test_an_aborted_or_failed_transaction_leaves_jobs_leased(log: QueueLog, aborts: bool) -> None:
    log.log.create_topic("results", cap_records=1, discard="reject")
    queue = log.queue()
    queue.push(b"1")
    (job,) = queue.claim()
    transaction = log.log.transaction()
    transaction.publish("results", [b"r1", b"r2"])
    transaction.ack(job)
    if aborts:
        transaction.abort()
    else:
        with pytest.raises(SeawallError):
            transaction.commit()
    assert not job.is_decided
    assert counts(log) == (0, 1, 0)
    assert job.ack()


def test_a_repeated_commit_under_a_key_acks_nothing_twice(log: QueueLog) -> None:
    log.log.create_topic("results")
    queue = log.queue()
    queue.push([b"1", b"2"])
    jobs = queue.claim(2)
    results = []
    for _ in range(2):
        with log.log.transaction("owner", 1) as transaction:
            transaction.publish("results", b"r")
            transaction.ack(jobs[0])
        results.append(transaction.result)
    assert results[0] == results[1]
    assert results[1].is_repeated
    assert counts(log) == (0, 1, 0)
    assert len(records(log, "results")) == 1


def test_a_transaction_of_acks_alone_over_several_queues(log: QueueLog) -> None:
    log.log.create_topic("other", type="queue")
    found = []
    for topic in ("jobs", "other"):
        log.queue(topic=topic).push([b"%d" % number for number in range(1_500)])
        found += [job for _ in range(2) for job in log.queue(topic=topic).claim(1_000)]
    acks = job_acks(found[::-1])
    assert [(ack.topic, len(ack.seqs)) for ack in acks] == [
        ("other", 1_000),
        ("other", 500),
        ("jobs", 1_000),
        ("jobs", 500),
    ]
    with log.log.transaction() as transaction:
        for first in range(0, 3_000, 1_000):
            transaction.ack(found[first : first + 1_000])
    for topic in ("jobs", "other"):
        assert counts(log, topic) == (0, 0, 0)
        assert log.live_bytes(topic) == 0


def test_acks_of_a_transaction_in_any_order(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"1", b"2", b"3"])
    jobs = queue.claim(3)
    ack = JobAck("jobs", "w", (3, 1), (jobs[2].lease_id, jobs[0].lease_id))
    log.log.commit_staged("owner", 1, [], acks=[ack])
    assert counts(log) == (0, 1, 0)
    assert log.live_bytes() > 0
    with pytest.raises(ConflictError):
        log.log.commit_staged("owner", 2, [], acks=[JobAck("jobs", "w", (2, 3), (jobs[1].lease_id, 0))])
    with pytest.raises(NotFoundError):
        log.log.commit_staged("owner", 3, [], acks=[JobAck("jobs", "w", (2,), (0,)), JobAck("none", "w", (1,), (0,))])
    assert jobs[1].ack()


def test_a_hand_over_to_the_next_queue(log: QueueLog) -> None:
    log.log.create_topic("next", type="queue")
    call = Call(lambda: log.queue(topic="next").claim(wait_s=LONG_S))
    waiting(log, 1, "next")
    log.queue().push(b"x")
    (job,) = log.queue().claim()
    with log.log.transaction() as transaction:
        transaction.publish("next", job.value)
        transaction.ack(job)
    assert values(call.result()) == [b"x"]


# --- work loops -------------------------------------------------------------------------------------------------------


def test_a_work_loop_acks_what_it_has_done(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"%d" % number for number in range(10)])
    seen = []
    for job in queue.work(batch=4, wait=False):
        seen.append(job.value)
        if job.value == b"3":
            job.nack(60)
        if job.value == b"5":
            job.ack()
    assert seen == [b"%d" % number for number in range(10)]
    assert counts(log) == (0, 0, 1)


def test_a_work_loop_that_fails_returns_its_jobs(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"1", b"2", b"3"])

    def fail() -> None:
        for job in queue.work(batch=3, wait=False):
            if job.value == b"2":
                raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert counts(log) == (1, 0, 1)
    log.pass_ms(1_000)
    assert [(job.value, job.deliveries) for job in queue.claim(3)] == [(b"2", 2), (b"3", 2)]


def test_a_work_loop_keeps_its_leases(tmp_path: Path) -> None:
    with seawall.open(tmp_path / "data") as log:
        log.create_topic("jobs", type="queue")
        queue = log.queue("jobs")
        queue.push(b"x")
        work = queue.work(lease_s=0.1)
        job = next(work)
        first = job.deadline_ms
        until(lambda: job.deadline_ms > first + 150)
        assert log.queue("jobs").claim() == []
        work.close()
        assert queue.counts()[:3] == (0, 0, 1)


def test_a_work_loop_ends_with_the_log(log: QueueLog) -> None:
    started = threading.Event()

    def work() -> None:
        queue = log.queue()
        for _ in queue.work():
            started.set()

    log.queue().push(b"x")
    call = Call(work)
    assert started.wait(30)
    waiting(log, 1)
    log.log.close()
    with pytest.raises(WrongStateError):
        call.result()


# --- a fabric with brokers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("brokers", [0, 2])
def test_queues_with_and_without_brokers(tmp_path: Path, brokers: int) -> None:
    with seawall.open(tmp_path / "data", brokers=brokers) as log:
        log.create_topic("results")
        log.create_topic("jobs", type="queue", max_deliveries=1, dead_letter="dead")
        queue = log.queue("jobs", node="w")
        call = Call(lambda: log.queue("jobs", node="first").claim(1, wait_s=LONG_S))
        until(lambda: log._readers_waiting > 0)
        queue.push([b"%d" % number for number in range(10)])
        assert values(call.result()) == [b"0"]
        jobs = queue.claim(5, lease_s=0.1)
        assert queue.ack(jobs[:2]).changed == 2
        with log.transaction() as transaction:
            transaction.publish("results", b"r")
            transaction.ack(jobs[2])
        # The leases of the others end, and the jobs die.
        assert values(queue.claim(9, wait_s=0)) == [b"6", b"7", b"8", b"9"]
        until(lambda: queue.counts().leased == 5)
        assert queue.claim() == []
        assert queue.counts()[:4] == (0, 5, 0, 2)
        assert log.queue("dead").redrive() == 2
        assert values(queue.claim(9)) == [b"4", b"5"]
        assert queue.push_unique(b"u", "k").seq != queue.push_unique(b"v", "l").seq
        assert queue.purge() == 2
    with seawall.open(tmp_path / "data", brokers=brokers) as log:
        assert log.queue("jobs").counts()[:4] == (7, 0, 0, 2)
        assert log.describe("results").record_count == 1
