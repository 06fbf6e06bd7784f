"""Job queues of an embedded log: claims, leases, acks, counts, records and unique jobs."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from queue_logs import (
    LONG_S,
    NS_PER_MS,
    Call,
    QueueLog,
    append,
    counts,
    keys,
    records,
    rows,
    seqs,
    values,
)

import seawall
from seawall.api.publishable import Message
from seawall.api.queues.jobs import JobKeys, PushedJob
from seawall.core.jobs import JobOutcome
from seawall.engine.queues.job_store import JobStore
from seawall.engine.queues.recent_blocks import BlockBudget, RecentBlocks
from seawall.errors import (
    InvalidInputError,
    NotFoundError,
    SeawallError,
    WrongStateError,
)
from seawall.limits import CLAIM_SIZE_MAX, JOBS_MAX, LEASE_MS_MAX, LEASE_MS_MIN, NACK_DELAY_MS_MAX
from seawall.storage.segments.segment import SealedSegment
from seawall.wire.format.records import Record


@pytest.fixture
def log() -> QueueLog:
    return QueueLog(lease_ms=1_000)


# --- claims -----------------------------------------------------------------------------------------------------------


def test_a_claim_leases_jobs_in_order_with_their_records(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([Message("a", key="k", tag="t", meta='{"m":1}', node="n", headers={"h": "v"}), {"b": 2}])
    queue.push(b"c")
    first, second = queue.claim(2)
    assert first.record[2:] == (
        b"a",
        first.record.timestamp_ns,
        b"k",
        ((b"h", b"v"),),
        None,
        b"t",
        b"n",
        b'{"m":1}',
    )
    assert (first.seq, first.deliveries, first.deadline_ms) == (1, 1, log.log.queues.now_ms() + 1_000)
    assert second.json() == {"b": 2}
    assert second.lease_id != first.lease_id > 0
    assert counts(log) == (1, 2, 0)
    assert values(queue.claim(5)) == [b"c"]
    assert queue.claim() == []
    assert counts(log) == (0, 3, 0)


@pytest.mark.parametrize("count", [3, 40])
def test_claimed_jobs_are_a_sequence_whose_jobs_are_made_once(log: QueueLog, count: int) -> None:
    queue = log.queue()
    # Columns of many records have the same content as few records parsed one by one.
    records = [Message(b"%d" % number, key=b"k", tag=b"t") for number in range(count)]
    first, last = queue.push(records).seqs[0], count - 1
    peeked, jobs = queue.peek(count), queue.claim(count)
    assert [job.record for job in jobs] == [job.record for job in peeked]
    assert [(job.seq, job.value, job.key, job.deliveries) for job in jobs] == [
        (first + number, b"%d" % number, b"k", 1) for number in range(count)
    ]
    assert jobs == [*jobs] != peeked
    assert jobs != jobs[1:]
    assert jobs[-1] is jobs[last] is jobs[1:][-1]
    assert str(jobs[0]) in str(jobs)
    assert queue.ack(jobs).changed == len(jobs) == count
    assert all(job.is_decided for job in jobs)
    queue.push(records)
    later = queue.claim(count)
    assert queue.nack(later).changed == count
    assert [job.is_decided for job in later] == [True] * count


def test_a_claim_reports_what_is_left(log: QueueLog) -> None:
    log.queue().push([b"%d" % number for number in range(5)])
    claimed = log.log.queues.claim("jobs", "w", 2, 700, 0)
    assert (claimed.ready, claimed.lease_ms) == (3, 700)
    assert log.log.queues.claim("jobs", "w", 9, 0, 0).ready == 0
    nothing = log.log.queues.claim("jobs", "w", 9, 0, 0)
    assert (len(nothing.rows), bytes(nothing.block), nothing.ready, nothing.lease_ms) == (0, b"", 0, 1_000)


def test_returned_jobs_come_before_fresh_ones_and_priorities_before_both(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"1", b"2", b"3", b"4"])
    queue.push(b"5", priority=4)
    queue.push(b"6", priority=9)
    assert values(queue.claim(4)) == [b"1", b"2", b"5", b"6"]
    held = {job.value: job for job in queue.claim(2)}
    assert sorted(held) == [b"3", b"4"]
    queue.nack(held[b"4"])
    queue.push(b"7")
    assert values(queue.claim(1)) == [b"4"]
    assert values(queue.claim(1)) == [b"7"]


def test_a_claim_is_ordered_by_seq_whatever_the_priorities(log: QueueLog) -> None:
    queue = log.queue()
    for priority in (0, 9, 3, 3, 0, 9):
        queue.push(b"%d" % priority, priority=priority)
    assert [seqs(queue.claim(2)) for _ in range(3)] == [[2, 6], [3, 4], [1, 5]]


def test_counts_of_claims_are_clamped(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"x"] * (JOBS_MAX + 5))
    assert len(queue.peek(JOBS_MAX + 1)) == JOBS_MAX
    assert len(queue.claim(JOBS_MAX + 1)) == JOBS_MAX
    assert len(queue.claim(JOBS_MAX + 1)) == 5


@pytest.mark.parametrize("lease_s", [0.0, 0.0001, 0.05, 1e9])
def test_leases_are_clamped(log: QueueLog, lease_s: float) -> None:
    queue = log.queue()
    queue.push(b"x")
    (job,) = queue.claim(lease_s=lease_s)
    expected = LEASE_MS_MAX if lease_s > 1 else LEASE_MS_MIN
    assert job.deadline_ms - log.log.queues.now_ms() == expected
    assert job.extend(lease_s)
    assert job.deadline_ms - log.log.queues.now_ms() == expected


def test_delays_of_nacks_are_clamped(log: QueueLog) -> None:
    log.queue().push(b"x")
    (job,) = log.queue().claim()
    log.queue().nack(job, 1e9)
    log.pass_ms(NACK_DELAY_MS_MAX - 1)
    assert counts(log) == (0, 0, 1)
    log.pass_ms(1)
    assert counts(log) == (1, 0, 0)


@pytest.mark.parametrize("node", ["", "x" * 129, "é" * 65])
def test_invalid_names_of_workers_are_refused(log: QueueLog, node: str) -> None:
    queue = log.queue("w")
    queue.push(b"x")
    job = queue.claim()[0]
    with pytest.raises(InvalidInputError, match="worker name"):
        log.queue(node)
    # Whatever a client sends.
    queue.node = node
    for call in (queue.claim, job.ack, job.nack, lambda: job.extend(1)):
        with pytest.raises(InvalidInputError, match="worker name"):
            call()
    queue.node = "é" * 64
    assert queue.claim() == []


def test_bad_arguments_are_refused(log: QueueLog) -> None:
    queue, backend = log.queue(), log.log.queues
    queue.push(b"x")
    (job,) = queue.claim()
    for call in (
        lambda: queue.claim(0),
        lambda: queue.peek(0),
        lambda: queue.claim(lease_s=-1),
        lambda: queue.claim(wait_s=float("nan")),
        lambda: queue.claim(wait_s=float("inf")),
        lambda: queue.nack(job, -1),
        lambda: queue.extend(job, -1),
        lambda: queue.ack([]),
        lambda: queue.ack([job] * (JOBS_MAX + 1)),
        lambda: queue.push(b"x", priority=10),
        lambda: queue.push(b"x", priority=-1),
        lambda: queue.push(b"x", delay_s=-1),
        lambda: queue.push_unique(b"x", b""),
        lambda: queue.push_unique(b"x", b"k" * 256),
        lambda: queue.redrive(-1),
        lambda: queue.redrive(0),
        lambda: backend.ack("jobs", "w", JobKeys([], [])),
        lambda: backend.ack("jobs", "w", JobKeys([1, 2], [0])),
        lambda: backend.nack("jobs", "w", JobKeys(range(1, JOBS_MAX + 2), [0] * (JOBS_MAX + 1)), 0),
        lambda: backend.extend("jobs", "w", JobKeys([1 << 63], [0]), 0),
        lambda: backend.ack("jobs", "w", JobKeys([1], [1 << 64])),
    ):
        with pytest.raises(InvalidInputError):
            call()
    assert counts(log) == (0, 1, 0)
    assert job.ack()


@pytest.mark.parametrize(("topic", "error"), [("events", WrongStateError), ("missing", NotFoundError)])
def test_a_topic_that_is_no_queue_or_missing(log: QueueLog, topic: str, error: type[SeawallError]) -> None:
    log.log.create_topic("events")
    queue = log.queue(topic=topic)
    for call in (
        lambda: queue.push(b"x"),
        lambda: queue.push_unique(b"x", "k"),
        queue.claim,
        lambda: queue.claim(wait_s=LONG_S),
        queue.peek,
        queue.counts,
        queue.purge,
        lambda: log.log.queues.ack(topic, "w", JobKeys([1], [1])),
        lambda: log.log.queues.nack(topic, "w", JobKeys([1], [1]), 0),
        lambda: log.log.queues.extend(topic, "w", JobKeys([1], [1]), 0),
        lambda: log.log.queues.release(topic, JobKeys([1], [1])),
        lambda: next(queue.work()),
    ):
        with pytest.raises(error, match=topic):
            call()
    assert log.log.topics() == ["events", "jobs"]


def test_redrive_of_a_log_without_dead_letters(log: QueueLog) -> None:
    log.log.create_topic("events")
    log.log.publish("events", [b"x", Message("y", meta='{"a":1}'), Message("z", meta='{"$dead_letter_from":5}')])
    assert log.queue(topic="events").redrive() == 0
    assert len(records(log, "events")) == 3
    with pytest.raises(NotFoundError):
        log.queue(topic="missing").redrive()


def test_rows_name_deadline_and_lease(log: QueueLog) -> None:
    log.queue().push([b"1", b"2"])
    first = rows(log.log.queues.claim("jobs", "w", 2, 0, 0))
    deadline = log.log.queues.now_ms() + 1_000
    assert [(seq, deliveries, at) for seq, _, deliveries, at in first] == [(1, 1, deadline), (2, 1, deadline)]
    assert np.diff([lease_id for _, lease_id, _, _ in first]).tolist() == [1]


# --- leases -----------------------------------------------------------------------------------------------------------


def test_a_lease_ends_after_its_deadline(log: QueueLog) -> None:
    queue, other = log.queue(), log.queue("other")
    queue.push(b"x")
    queue.claim()
    log.pass_ms(1_000)
    assert counts(log) == (0, 1, 0)
    assert other.claim() == []
    log.pass_ms(1)
    assert counts(log) == (1, 0, 0)
    (job,) = other.claim()
    assert job.deliveries == 2


def test_the_old_holder_may_act_until_another_claim(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"1", b"2", b"3", b"4"])
    jobs = queue.claim(4)
    log.pass_ms(5_000)
    assert counts(log) == (4, 0, 0)
    assert jobs[0].ack()
    assert jobs[1].nack(1)
    assert jobs[2].extend(1)
    assert jobs[2].deadline_ms == log.log.queues.now_ms() + 1_000
    assert counts(log) == (1, 1, 1)
    (taken,) = log.queue("other").claim()
    assert taken.seq == 4
    assert not jobs[3].ack()
    assert not jobs[3].nack()
    assert not jobs[3].extend(1)
    assert taken.ack()
    assert counts(log) == (0, 1, 1)


def test_an_extension_leaves_deliveries_alone(log: QueueLog) -> None:
    queue = log.queue()
    queue.push(b"x")
    (job,) = queue.claim()
    for _ in range(5):
        log.pass_ms(900)
        assert job.extend(1)
    log.pass_ms(1_000)
    assert counts(log) == (0, 1, 0)
    log.pass_ms(1)
    assert queue.claim()[0].deliveries == 2


def test_an_extension_may_shorten_a_lease(log: QueueLog) -> None:
    queue = log.queue()
    queue.push(b"x")
    (job,) = queue.claim(lease_s=60)
    assert job.extend(0.1)
    log.pass_ms(101)
    assert counts(log) == (1, 0, 0)


def test_acks_need_the_worker_and_the_lease(log: QueueLog) -> None:
    queue, backend = log.queue(), log.log.queues
    queue.push([b"1", b"2", b"3"])
    jobs = queue.claim(3)
    assert backend.ack("jobs", "other", keys(jobs)) == JobOutcome(0, (1, 2, 3), 0, 3)
    wrong = JobKeys([1, 2, 3], [jobs[0].lease_id, jobs[0].lease_id, 0])
    # 0 stands for any lease of the worker.
    assert backend.ack("jobs", "w", wrong) == JobOutcome(2, (2,), 0, 1)
    assert backend.nack("jobs", "w", wrong, 0) == JobOutcome(0, (1, 2, 3), 0, 1)
    assert backend.extend("jobs", "w", wrong, 500).skipped == (1, 2, 3)
    assert backend.ack("jobs", "w", keys(jobs)) == JobOutcome(1, (1, 3), 0, 0)
    assert backend.ack("jobs", "w", keys(jobs)) == JobOutcome(0, (1, 2, 3), 0, 0)


def test_seqs_of_a_call_may_repeat_and_be_in_any_order(log: QueueLog) -> None:
    queue, backend = log.queue(), log.log.queues
    queue.push([b"1", b"2", b"3"])
    jobs = queue.claim(3)
    mixed = [jobs[2], jobs[0], jobs[2]]
    assert backend.ack("jobs", "w", keys(mixed)).changed == 2
    assert [job.seq for job in queue.peek(5)] == []
    assert counts(log) == (0, 1, 0)


def test_a_lease_of_an_earlier_delivery_is_worth_nothing(log: QueueLog) -> None:
    queue = log.queue()
    queue.push(b"x")
    (old,) = queue.claim()
    assert old.nack()
    (new,) = queue.claim()
    assert not old.ack()
    assert new.ack()


def test_a_nack_with_a_delay(log: QueueLog) -> None:
    queue = log.queue()
    queue.push(b"x")
    (job,) = queue.claim()
    outcome = queue.nack(job, 2)
    assert outcome == JobOutcome(1, (), 0, 0)
    assert counts(log) == (0, 0, 1)
    assert queue.claim() == queue.peek() == []
    log.pass_ms(1_999)
    assert queue.claim() == []
    log.pass_ms(1)
    assert [job.deliveries for job in queue.claim()] == [2]


def test_a_job_is_delayed_by_its_record(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"later"], delay_s=3)
    queue.push(b"now")
    assert counts(log) == (1, 0, 1)
    assert values(queue.claim(9)) == [b"now"]
    log.reopen()
    assert counts(log) == (1, 0, 1)
    log.pass_ms(3_000)
    assert values(log.queue().claim(9)) == [b"later", b"now"]


def test_a_clock_that_goes_back_delays_no_ready_job(log: QueueLog) -> None:
    queue = log.queue()
    queue.push(b"1")
    queue.claim()
    log.pass_ms(1_001)
    assert counts(log) == (1, 0, 0)
    log.clock.step_wall(-3_600_000 * NS_PER_MS)
    assert counts(log) == (1, 0, 0)
    (job,) = queue.claim()
    assert job.deadline_ms == log.log.queues.now_ms() + 1_000
    log.clock.step_wall(7_200_000 * NS_PER_MS)
    assert counts(log) == (1, 0, 0)
    assert job.ack()


def test_release_returns_jobs_at_once(log: QueueLog) -> None:
    queue, backend = log.queue(), log.log.queues
    queue.push([b"1", b"2", b"3"])
    jobs = queue.claim(3)
    assert jobs[2].ack()
    assert backend.release("jobs", JobKeys([1, 2, 3], [jobs[0].lease_id, 7, jobs[2].lease_id])) == 1
    assert counts(log) == (1, 1, 0)
    assert [(job.seq, job.deliveries) for job in queue.claim(3)] == [(1, 2)]
    assert backend.release("jobs", keys(jobs)) == 1


def test_a_restart_ends_leases_and_forgets_deliveries(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"1", b"2", b"3"])
    jobs = queue.claim(3)
    jobs[1].ack()
    log.reopen()
    assert counts(log) == (2, 0, 0)
    again = log.queue().claim(9)
    assert [(job.seq, job.deliveries) for job in again] == [(1, 1), (3, 1)]
    # Leases of the earlier life are worth nothing.
    assert log.log.queues.ack("jobs", "w", keys(jobs)).changed == 0


# --- peek, purge and counts -------------------------------------------------------------------------------------------


def test_peek_leases_nothing(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"1", b"2", b"3"])
    queue.nack(queue.claim(1))
    peeked = queue.peek(2)
    assert [(job.value, job.lease_id, job.deliveries) for job in peeked] == [(b"1", 0, 1), (b"2", 0, 0)]
    assert counts(log) == (3, 0, 0)
    assert [(job.value, job.deliveries) for job in queue.claim(2)] == [(b"1", 2), (b"2", 1)]


def test_purge_leaves_leased_jobs(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"%d" % number for number in range(10)])
    queue.push(b"later", delay_s=60)
    queue.push(b"first", priority=3)
    held = queue.claim(3)
    assert seqs(held) == [1, 2, 12]
    assert queue.purge() == 9
    assert counts(log) == (0, 3, 0)
    assert queue.purge() == 0
    assert queue.ack(held).changed == 3
    assert (counts(log), log.live_bytes()) == ((0, 0, 0), 0)
    log.reopen()
    assert counts(log) == (0, 0, 0)


def test_a_purge_of_many_ranges(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"%d" % number for number in range(12_000)])
    held = [job for _ in range(6) for job in queue.claim(1_000)]
    for first in range(0, 6_000, 1_000):
        queue.ack(held[first : first + 1_000 : 2])
    assert counts(log) == (6_000, 3_000, 0)
    assert queue.purge() == 6_000
    log.pass_ms(2_000)
    assert queue.purge() == 3_000
    assert (counts(log), log.live_bytes()) == ((0, 0, 0), 0)


def test_counts_are_exact_after_deletes_and_evictions() -> None:
    log = QueueLog(ttl_ms=10_000, lease_ms=1_000)
    queue = log.queue()
    for number in range(10):
        queue.push(b"%d" % number)
    held = queue.claim(6)
    queue.nack(held[:1], 60)
    assert counts(log) == (4, 5, 1)
    log.log.delete("jobs", before_seq=3)
    assert counts(log) == (4, 4, 0)
    assert queue.ack(held[:3]).skipped == (1, 2)
    assert counts(log) == (4, 3, 0)
    log.log.configure_topic("jobs", cap_records=5)
    queue.push(b"new")
    assert counts(log) == (5, 0, 0)
    assert seqs(queue.claim(9)) == [7, 8, 9, 10, 11]
    log.pass_ms(5_000)
    queue.push(b"newer")
    log.pass_ms(6_000)
    queue.push(b"newest")
    assert counts(log) == (2, 0, 0)
    assert values(queue.claim(9)) == [b"newer", b"newest"]


def test_counts_know_the_oldest_job(log: QueueLog) -> None:
    queue = log.queue()
    assert queue.counts().oldest_ms is None
    began = log.log.queues.now_ms()
    for _ in range(3):
        queue.push(b"x")
        log.pass_ms(10)
    assert queue.counts().oldest_ms == began
    jobs = queue.claim(2)
    assert queue.counts().oldest_ms == began
    jobs[0].ack()
    assert queue.counts().oldest_ms == began + 10
    jobs[1].ack()
    queue.claim()[0].ack()
    assert queue.counts() == (0, 0, 0, 0, None)


def test_a_job_that_is_evicted_during_its_ack_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log = QueueLog()
    queue = log.queue()
    queue.push([b"x" * 100] * 4)
    jobs = queue.claim(2)
    execute = log.log.queues._changes.execute

    def evicted_meanwhile(finished: Any) -> None:
        log.log.delete("jobs", before_seq=2)
        execute(finished)

    monkeypatch.setattr(log.log.queues._changes, "execute", evicted_meanwhile)
    size = log.live_bytes()
    assert queue.ack(jobs).changed == 2
    assert counts(log) == (2, 0, 0)
    assert log.live_bytes() == size // 2


def test_a_failed_delete_leaves_the_jobs_leased() -> None:
    log = QueueLog(lease_ms=1_000)
    queue = log.queue()
    queue.push([b"1", b"2"])
    jobs = queue.claim(2)
    log.disk.fail("write", nth=1, forever=True)
    with pytest.raises((SeawallError, OSError)):
        queue.ack(jobs)
    assert log.log.queues._store.queue_locked("jobs").view.counts(log.log.queues.now_ms()) == (0, 2, 0)
    log.disk.clear_faults()
    log.crash()
    assert counts(log) == (2, 0, 0)


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_durability_class(durability: str) -> None:
    log = QueueLog(durability=durability)
    queue = log.queue()
    queue.push([b"%d" % number for number in range(100)])
    jobs = queue.claim(60)
    assert queue.ack(jobs[:50]).changed == 50
    assert counts(log) == (40, 10, 0)
    log.log._store.maintenance.checkpoint()
    assert counts(log) == (40, 10, 0)
    assert values(queue.claim(99)) == [b"%d" % number for number in range(60, 100)]
    log.reopen()
    if durability == "ephemeral":
        assert counts(log) == (0, 0, 0)
    else:
        assert values(log.queue().claim(99)) == [b"%d" % number for number in range(50, 100)]
        assert counts(log) == (0, 50, 0)


def test_an_ack_of_class_fsync_survives_a_power_loss() -> None:
    log = QueueLog()
    queue = log.queue()
    queue.push([b"%d" % number for number in range(20)])
    queue.ack(queue.claim(7))
    log.crash()
    assert seqs(log.queue().claim(20)) == list(range(8, 21))
    log.queue().purge()
    log.crash()
    assert len(log.queue().claim(20)) == 13


def test_a_purge_of_class_fsync_survives_a_power_loss() -> None:
    log = QueueLog()
    log.queue().push([b"x"] * 20)
    log.queue().claim(3)
    assert log.queue().purge() == 17
    log.crash()
    assert seqs(log.queue().claim(20)) == [1, 2, 3]


def test_compressed_and_large_jobs(tmp_path: Path) -> None:
    with seawall.open(tmp_path / "data") as log:
        log.create_topic("jobs", type="queue")
        queue = log.queue("jobs", node="w")
        with log.publisher("jobs", compression="zstd") as publisher:
            publisher.publish([b"%d" % number + bytes(5_000) for number in range(300)])
        queue.push(b"big" + bytes(6 << 20))
        queue.push([b"small", b"big2" + bytes(5 << 20)])
        jobs = queue.claim(300)
        assert [job.value[:3].rstrip(b"\0") for job in jobs] == [b"%d" % number for number in range(300)]
        assert queue.ack(jobs).changed == 300
        found: list[tuple[int, int]] = []
        while large := queue.claim(10):
            found += [(job.seq, len(job.value)) for job in large]
            assert sum(len(job.value) for job in large) <= CLAIM_SIZE_MAX or len(large) == 1
            queue.ack(large)
        assert found == [(301, 3 + (6 << 20)), (302, 5), (303, 4 + (5 << 20))]
        assert log.describe("jobs").byte_count == 0


def test_a_claim_of_large_jobs_returns_fewer_and_delivers_the_others_once() -> None:
    log = QueueLog()
    queue = log.queue()
    for number in range(6):
        queue.push(b"%d" % number + bytes(3 << 20))
    for _ in range(2):
        # From files, and then from memory.
        assert seqs(queue.claim(6)) == [1, 2]
        assert counts(log) == (4, 2, 0)
        queue.nack(queue.claim(6), 0)
        log.pass_ms(60_000)
    assert [job.deliveries for job in log.queue().claim(2)] == [3, 3]


def test_a_job_evicted_or_deleted_before_its_ack_is_gone(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"%d" % number for number in range(30)])
    jobs = queue.claim(30)
    log.log.delete("jobs", before_seq=jobs[10].seq)
    outcome = queue.ack(jobs)
    assert (outcome.changed, len(outcome.skipped)) == (20, 10)
    assert queue.counts().ready == queue.counts().leased == 0


def test_jobs_that_readers_skip_are_jobs(log: QueueLog) -> None:
    """A record type that marks deleted records must not make a queue unusable."""
    for record_type in (0, 2, 5, 0x7F, 0xFE):
        append(log, Record(record_type, b""))
    append(log, Record(0x7E, b"not an envelope"))
    jobs = log.queue().claim(9)
    assert [job.record.record_type for job in jobs] == [0, 2, 5, 0x7F, 0xFE, 0x7E]
    assert log.queue().ack(jobs).changed == 6


def test_jobs_that_alternate_are_read_once(log: QueueLog, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = log.queue()
    queue.push([b"%d" % number for number in range(200)])
    held = queue.claim(200)
    queue.ack(held[::2])
    log.reopen()
    queue = log.queue()
    assert queue.counts().ready == 100
    # Nothing is at hand.
    view = log.log.queues._store.queue_locked("jobs")
    view.blocks = RecentBlocks(BlockBudget())
    plans = Counter[str]()
    read = JobStore.read

    def count_reads(taken: Any) -> Any:
        plans["all"] += len(taken.plans)
        return read(taken)

    monkeypatch.setattr(JobStore, "read", staticmethod(count_reads))
    assert values(queue.claim(100)) == [b"%d" % number for number in range(1, 200, 2)]
    assert plans["all"] == 1


def test_damaged_batches_are_skipped_and_counted_out() -> None:
    log = QueueLog(segment_max_records=8)
    queue = log.queue()
    for number in range(24):
        queue.push(b"%d" % number + bytes(2_000))
    held = queue.claim(2)
    log.log._store.maintenance.checkpoint()
    store = log.log._store
    segment = store.queries.topic_log(store.catalog.named("jobs").topic_id).sealed[1]
    assert isinstance(segment, SealedSegment)
    log.log.queues._store.queue_locked("jobs").blocks = RecentBlocks(BlockBudget())
    log.disk.fail("read", forever=True, path=segment.path)
    found = queue.claim(50)
    lost = set(range(segment.name.first_seq, segment.name.last_seq + 1))
    assert seqs(found) == [seq for seq in range(3, 25) if seq not in lost]
    assert queue.counts()[:3] == (0, 2 + len(found), 0)
    assert queue.ack([*held, *found]).changed == 2 + len(found)


def test_damaged_batches_are_skipped_by_a_scan() -> None:
    log = QueueLog(segment_max_records=8)
    for number in range(24):
        log.queue().push(b"%d" % number + bytes(2_000))
    log.log._store.maintenance.checkpoint()
    log.reopen()
    store = log.log._store
    segment = store.queries.topic_log(store.catalog.named("jobs").topic_id).sealed[-1]
    log.disk.fail("read", forever=True, path=segment.path)
    lost = set(range(segment.name.first_seq, segment.name.last_seq + 1))
    assert seqs(log.queue().claim(50)) == [seq for seq in range(1, 25) if seq not in lost]
    assert log.queue().claim(wait_s=0.01) == []


def test_jobs_are_read_again_after_they_left_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    log = QueueLog()
    monkeypatch.setattr(log.log.queues._store._budget, "SIZE_MAX", 5_000, raising=False)
    queue = log.queue()
    for number in range(40):
        queue.push(b"%d" % number + bytes(500))
    for _ in range(2):
        jobs = queue.claim(40)
        assert values(jobs) == [b"%d" % number + bytes(500) for number in range(40)]
        queue.nack(jobs)
        log.log._store.maintenance.checkpoint()
    assert log.log.queues._store._budget._size <= 5_000 + 600


# --- unique jobs ------------------------------------------------------------------------------------------------------


def test_a_unique_job_exists_once(log: QueueLog) -> None:
    queue = log.queue()
    first = queue.push_unique(b"1", "key")
    assert first == PushedJob(1, is_new=True)
    assert queue.push_unique(b"2", b"key") == PushedJob(1, is_new=False)
    assert queue.push_unique(b"3", "other", priority=2, delay_s=1).is_new
    (job,) = queue.claim(9)
    assert not queue.push_unique(b"4", "key").is_new
    queue.nack(job, 5)
    assert not queue.push_unique(b"5", "key").is_new
    log.pass_ms(5_000)
    assert values(queue.claim(9)) == [b"1", b"3"]
    assert job.ack() is False
    queue.ack(queue.peek(1)) if queue.peek(1) else None
    log.pass_ms(2_000)
    queue.ack(queue.claim(9))
    assert queue.push_unique(b"6", "key") == PushedJob(3, is_new=True)
    log.reopen()
    assert log.queue().push_unique(b"7", "key") == PushedJob(3, is_new=False)
    log.log.delete("jobs", before_seq=100)
    assert log.queue().push_unique(b"8", "key") == PushedJob(4, is_new=True)


def test_one_of_many_concurrent_unique_pushes_wins(log: QueueLog) -> None:
    barrier = threading.Barrier(8)

    def push() -> PushedJob:
        barrier.wait()
        return log.queue().push_unique(b"x", "key")

    results = [call.result() for call in [Call(push) for _ in range(8)]]
    assert sum(result.is_new for result in results) == 1
    assert len({result.seq for result in results}) == 1
    assert counts(log) == (1, 0, 0)


def test_unique_pushes_of_different_keys_do_not_wait_for_each_other(
    log: QueueLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, publish = log.log.queues, log.log.publish
    is_publishing, may_publish = threading.Event(), threading.Event()

    def late_publish(topic: str, records: Message) -> Any:
        if records.value == b"late":
            is_publishing.set()
            assert may_publish.wait(30)
        return publish(topic, records)

    monkeypatch.setattr(log.log, "publish", late_publish)
    locks = queues._unique_locks
    late, other = (
        b"late",
        next(
            key
            for key in map(str.encode, map(str, range(1_000)))
            if hash(("jobs", key)) % len(locks) != hash(("jobs", b"late")) % len(locks)
        ),
    )
    call = Call(lambda: log.queue().push_unique(b"late", late))
    assert is_publishing.wait(30)
    assert log.queue().push_unique(b"first", other) == PushedJob(1, is_new=True)
    may_publish.set()
    assert call.result() == PushedJob(2, is_new=True)
