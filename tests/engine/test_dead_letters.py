"""Jobs that are delivered too often: complete dead letters, targets that cannot take them, and the way back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from queue_logs import (
    LONG_S,
    Call,
    QueueLog,
    counts,
    records,
    values,
    waiting,
)

from seawall.api.publishable import Message
from seawall.errors import (
    ConfigError,
    NotFoundError,
    SeawallError,
)
from seawall.limits import JOBS_MAX

# --- dead letters -----------------------------------------------------------------------------------------------------


def dead_log(**config: Any) -> QueueLog:
    return QueueLog(**{"max_deliveries": 2, "dead_letter": "dead", "lease_ms": 1_000} | config)


def fail_all(log: QueueLog, deliveries: int = 2) -> None:
    """Deliver every job so often, without an ack; the next claim finds it dead."""
    for _ in range(deliveries):
        queue = log.queue()
        while jobs := queue.claim(JOBS_MAX):
            assert {job.deliveries for job in jobs} <= {1, 2}
        log.pass_ms(1_001)


def test_no_other_change_waits_for_a_dead_letter() -> None:
    """The claim of a queue with durable leases also finds a dead letter: others may wait for its commit."""
    log = dead_log(max_deliveries=1, leases_durable=True)
    log.log.create_topic("others", type="queue")
    others = log.queue(topic="others")
    others.push("other")
    (other,) = others.claim()
    queue = log.queue()
    queue.push("dead")
    queue.claim()[0].nack()
    queue.push("fresh")
    create = log.log.queues.dead_letters.create_topic
    acked: list[bool] = []

    def create_after_an_ack(name: str) -> object:
        acked.append(Call(other.ack).result())
        return create(name)

    log.log.queues.dead_letters.create_topic = create_after_an_ack
    assert values(queue.claim(9)) == [b"fresh"]
    assert acked == [True]
    assert [record.value for record in records(log, "dead")] == [b"dead"]


def test_a_dead_letter_is_complete() -> None:
    log = dead_log()
    queue = log.queue()
    queue.push(
        Message("v", key="k", headers=[("a", "1"), ("a", "2")], timestamp_ns=5, tag="t", node="n", meta='{"m":[1]}')
    )
    fail_all(log)
    assert "dead" not in log.log.topics()
    assert queue.claim() == []
    (letter,) = records(log, "dead")
    assert letter.value == b"v"
    assert letter[4:9] == (b"k", ((b"a", b"1"), (b"a", b"2")), 5, b"t", b"n")
    assert json.loads(letter.meta or b"") == {
        "m": [1],
        "$dead_letter_from": "jobs",
        "$dead_letter_src_seq": 1,
        "$dead_letter_deliveries": 2,
        "$dead_letter_reason": "max_deliveries",
    }
    assert queue.counts() == (0, 0, 0, 1, None)
    assert log.live_bytes() == 0
    log.reopen()
    assert log.queue().counts() == (0, 0, 0, 1, None)
    assert len(records(log, "dead")) == 1
    assert log.queue().redrive() == 0
    assert log.queue(topic="dead").redrive() == 1
    (job,) = log.queue().claim()
    assert job.record[2:3] + job.record[4:] == (
        b"v",
        b"k",
        ((b"a", b"1"), (b"a", b"2")),
        5,
        b"t",
        b"n",
        b'{"m":[1]}',
    )
    assert job.deliveries == 1
    assert records(log, "dead") == []


@pytest.mark.parametrize(
    "meta",
    [
        None,
        b"",
        b"text",
        b"\xff\xfe\x00",
        b"[1]",
        b"null",
        b'"x"',
        b"[" * 100_000,
        b'{"a":"\\ud800"}',
        b'{"a":"\xc3\xa9"}',
        b'{"a":NaN,"n":12345678901234567890123}',
        b"{}",
    ],
)
def test_every_meta_survives_the_way_there_and_back(meta: bytes | None) -> None:
    log = dead_log()
    log.queue().push(Message("v", meta=meta))
    fail_all(log)
    assert log.queue().claim() == []
    (letter,) = records(log, "dead")
    assert json.loads(letter.meta or b"")["$dead_letter_from"] == "jobs"
    assert log.queue(topic="dead").redrive() == 1
    (job,) = log.queue().claim()
    if meta is not None and meta.startswith(b"{"):
        assert str(json.loads(job.record.meta or b"{}")) == str(json.loads(meta))
    else:
        assert job.record.meta == meta


def test_without_a_limit_or_a_target_jobs_return_for_ever() -> None:
    for config in ({"max_deliveries": 0}, {"dead_letter": None}):
        log = dead_log(**config)
        log.queue().push(b"x")
        for number in range(1, 8):
            (job,) = log.queue().claim()
            assert job.deliveries == number
            job.nack()
        assert log.queue().counts().dead_lettered == 0


def test_a_late_ack_saves_a_job_from_the_dead_letters() -> None:
    log = dead_log(max_deliveries=1)
    queue = log.queue()
    queue.push(b"x")
    (job,) = queue.claim()
    log.pass_ms(60_000)
    assert job.ack()
    assert queue.claim() == []
    assert queue.counts().dead_lettered == 0


def test_a_claim_gets_the_jobs_behind_dead_ones() -> None:
    log = dead_log(max_deliveries=1)
    queue = log.queue()
    queue.push([b"%d" % number for number in range(2_500)])
    for _ in range(3):
        queue.claim(1_000)
    log.pass_ms(1_001)
    queue.push(b"alive")
    assert values(queue.claim(1)) == [b"alive"]
    assert queue.counts()[:4] == (0, 1, 0, 2_500)
    assert [record.value for record in records(log, "dead")] == [b"%d" % number for number in range(2_500)]
    assert log.queue(topic="dead").redrive(7) == 7
    assert log.queue(topic="dead").redrive() == 2_493
    assert counts(log) == (2_500, 1, 0)
    assert values(queue.claim(7)) == [b"%d" % number for number in range(7)]


def test_dead_jobs_that_alternate_and_are_large() -> None:
    log = dead_log(max_deliveries=1)
    queue = log.queue()
    for number in range(8):
        queue.push([b"%d" % number + bytes(2 << 20), b"odd"])
    odd = []
    while jobs := queue.claim(100):
        odd += [job for job in jobs if job.value == b"odd"]
    queue.ack(odd)
    log.pass_ms(1_001)
    assert queue.claim() == []
    assert queue.counts() == (0, 0, 0, 8, None)
    letters = records(log, "dead")
    assert [record.value for record in letters] == [b"%d" % number + bytes(2 << 20) for number in range(8)]


def test_a_full_target_leaves_jobs_which_are_tried_later() -> None:
    log = dead_log(max_deliveries=1)
    log.log.create_topic("dead", cap_records=5, discard="reject")
    queue = log.queue()
    queue.push([b"%d" % number for number in range(12)])
    queue.claim(12)
    log.pass_ms(1_001)
    # As many as there is space for.
    assert queue.claim(20) == []
    assert len(records(log, "dead")) == 5
    assert queue.counts()[:4] == (0, 0, 7, 5)
    log.log.delete("dead", before_seq=4)
    assert queue.claim(20) == []
    assert queue.counts()[:4] == (0, 0, 7, 5)
    log.pass_ms(5_000)
    assert queue.counts()[:4] == (7, 0, 0, 5)
    assert queue.claim(20) == []
    assert queue.counts()[:4] == (0, 0, 4, 8)
    log.log.configure_topic("dead", cap_records=0)
    log.pass_ms(5_000)
    assert queue.claim(20) == []
    assert queue.counts()[:4] == (0, 0, 0, 12)
    assert sorted(record.value for record in records(log, "dead"))[:2] == [b"10", b"11"]


def test_a_full_target_delays_no_other_job() -> None:
    log = dead_log(max_deliveries=1)
    log.log.create_topic("dead", cap_records=1, discard="reject")
    log.queue(topic="jobs").push([b"1", b"2"])
    log.queue().claim(2)
    log.pass_ms(1_001)
    call = Call(lambda: log.queue("other").claim(wait_s=LONG_S))
    waiting(log, 1)
    log.queue().push(b"new")
    assert values(call.result()) == [b"new"]


def test_a_target_that_is_in_memory_alone_cannot_take_jobs() -> None:
    log = dead_log(max_deliveries=1)
    log.log.create_topic("dead", durability="ephemeral")
    log.queue().push(b"x")
    log.queue().claim()
    log.pass_ms(1_001)
    assert log.queue().claim() == []
    assert counts(log) == (0, 0, 1)


def test_a_job_too_large_for_its_new_meta_stays_alone() -> None:
    log = dead_log(max_deliveries=1)
    queue = log.queue()
    queue.push(bytes((16 << 20) - 40))
    queue.push(b"small")
    while queue.claim(2):
        continue
    log.pass_ms(1_001)
    assert queue.claim() == []
    assert [record.value for record in records(log, "dead")] == [b"small"]
    assert counts(log) == (0, 0, 1)


def test_a_deleted_target_is_created_again() -> None:
    log = dead_log(max_deliveries=1)
    queue = log.queue()
    for value in (b"1", b"2"):
        queue.push(value)
        queue.claim()
        log.pass_ms(1_001)
        assert queue.claim() == []
        assert [record.value for record in records(log, "dead")] == [value]
        log.log.delete_topic("dead")
    assert queue.counts().dead_lettered == 2


def test_a_damaged_job_does_not_keep_others_from_the_dead_letters() -> None:
    log = dead_log(max_deliveries=1, segment_max_records=8)
    queue = log.queue()
    for number in range(24):
        queue.push(b"%d" % number + bytes(2_000))
    queue.claim(24)
    store = log.log._store
    store.maintenance.checkpoint()
    segment = store.queries.topic_log(store.catalog.named("jobs").topic_id).sealed[1]
    log.disk.fail("read", forever=True, path=segment.path)
    log.pass_ms(1_001)
    assert queue.claim() == []
    lost = segment.name.last_seq - segment.name.first_seq + 1
    assert queue.counts()[:4] == (0, 0, 0, 24 - lost)
    assert len(records(log, "dead")) == 24 - lost


def test_dead_lettered_is_reset_by_recreation() -> None:
    log = dead_log(max_deliveries=1)
    log.queue().push(b"x")
    log.queue().claim()
    log.pass_ms(1_001)
    log.queue().claim()
    assert log.queue().counts().dead_lettered == 1
    log.log.delete_topic("jobs")
    log.log.create_topic("jobs", type="queue")
    assert log.queue().counts().dead_lettered == 0


def test_a_queue_as_target_and_redrive_counts_no_delivery() -> None:
    log = dead_log(max_deliveries=1)
    log.log.create_topic("dead", type="queue")
    dead = log.queue(topic="dead")
    dead.push(b"no dead letter")
    log.queue().push([b"1", b"2", b"3"])
    log.queue().claim(3)
    log.pass_ms(1_001)
    log.queue().claim()
    assert dead.counts().ready == 4
    (held,) = dead.claim(1)
    assert held.value == b"no dead letter"
    (letter,) = dead.claim(1)
    assert letter.value == b"1"
    assert dead.redrive() == 2
    assert values(log.queue().claim(9)) == [b"2", b"3"]
    dead.nack([held, letter])
    assert dead.redrive(5) == 1
    assert [(job.value, job.deliveries) for job in dead.claim(9)] == [(b"no dead letter", 2)]


def test_claims_that_wait_get_the_jobs_that_a_redrive_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    log = dead_log(max_deliveries=1)
    log.log.create_topic("dead", type="queue")
    dead = log.queue(topic="dead")
    dead.push(b"no dead letter")
    calls: list[Call] = []
    letters = log.log.queues.dead_letters
    redrive = letters._redrive

    def redrive_while_a_claim_waits(topic: Any, rounds: Any, count_max: int) -> int:
        moved = redrive(topic, rounds, count_max)
        calls.append(Call(lambda: dead.claim(wait_s=LONG_S)))
        waiting(log, 1, "dead")
        return moved

    monkeypatch.setattr(letters, "_redrive", redrive_while_a_claim_waits)
    assert dead.redrive() == 0
    assert values(calls[0].result()) == [b"no dead letter"]


def test_redrive_to_queues_that_cannot_take_the_jobs() -> None:
    log = dead_log(max_deliveries=1)
    log.log.create_topic("other", type="queue", max_deliveries=1, dead_letter="dead", lease_ms=1_000)
    for topic in ("jobs", "other"):
        log.queue(topic=topic).push([topic, topic])
        log.queue(topic=topic).claim(2)
    log.pass_ms(1_001)
    for topic in ("jobs", "other"):
        assert log.queue(topic=topic).claim() == []
    log.log.delete_topic("jobs")
    dead = log.queue(topic="dead")
    assert dead.redrive() == 2
    assert values(log.queue(topic="other").claim(9)) == [b"other", b"other"]
    assert len(records(log, "dead")) == 2
    with pytest.raises(NotFoundError, match="jobs"):
        dead.redrive()
    log.log.create_topic("jobs", type="queue", cap_records=1, discard="reject")
    assert dead.redrive() == 1
    with pytest.raises(SeawallError):
        dead.redrive()
    assert len(records(log, "dead")) == 1


def test_concurrent_redrives_move_each_letter_once() -> None:
    log = dead_log(max_deliveries=1)
    log.queue().push([b"%d" % number for number in range(500)])
    log.queue().claim(500)
    log.pass_ms(1_001)
    log.queue().claim()
    calls = [Call(lambda: log.queue(topic="dead").redrive()) for _ in range(4)]
    assert sum(call.result() for call in calls) == 500
    assert counts(log) == (500, 0, 0)


def test_a_dead_letter_that_cannot_be_the_topic_itself() -> None:
    with pytest.raises(ConfigError, match="itself"):
        QueueLog(dead_letter="jobs", max_deliveries=1)
