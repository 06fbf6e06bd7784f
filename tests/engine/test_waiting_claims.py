"""Claims that wait for jobs: their order, what wakes them, cohorts, and how they end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from queue_logs import (
    LONG_S,
    NS_PER_MS,
    Call,
    QueueLog,
    counts,
    keys,
    seqs,
    until,
    values,
    waiting,
)

import seawall
from seawall.engine.queues.job_store import JobStore
from seawall.engine.queues.log_queues import new_claim
from seawall.errors import (
    NotFoundError,
    WrongStateError,
)


@pytest.fixture
def log() -> QueueLog:
    return QueueLog(lease_ms=1_000)


# --- waiting claims ---------------------------------------------------------------------------------------------------


def test_a_claim_times_out(log: QueueLog) -> None:
    assert log.queue().claim(wait_s=0.02) == []
    assert len(log.line()) == 0
    assert log.line().watcher is None


def test_waiting_claims_are_served_first_come_first_served(log: QueueLog) -> None:
    calls = []
    for number in range(5):
        calls.append(Call(lambda number=number: log.queue(f"w{number}").claim(1, wait_s=LONG_S)))
        waiting(log, number + 1)
    for number, call in enumerate(calls):
        log.queue().push(b"%d" % number)
        assert values(call.result()) == [b"%d" % number]
        assert all(other.is_running for other in calls[number + 1 :])


def test_each_job_goes_to_one_of_many_threads(log: QueueLog) -> None:
    calls = [Call(lambda: log.queue("same").claim(3, wait_s=LONG_S)) for _ in range(8)]
    waiting(log, 8)
    log.queue().push([b"%d" % number for number in range(24)])
    found = Counter(value for call in calls for value in values(call.result()))
    assert found == Counter({b"%d" % number: 1 for number in range(24)})
    assert counts(log) == (0, 24, 0)


def test_threads_that_push_claim_and_ack_lose_nothing(log: QueueLog) -> None:
    done: list[int] = []
    total = 300

    def work(number: int) -> None:
        queue = log.queue(f"w{number}")
        while len(done) < total:
            jobs = queue.claim(4, wait_s=0.05)
            if jobs:
                done.extend(seqs(jobs))
                assert queue.ack(jobs).changed == len(jobs)

    workers = [Call(lambda number=number: work(number)) for number in range(6)]
    pushers = [Call(lambda: [log.queue().push(b"x").seqs for _ in range(total // 3)]) for _ in range(3)]
    for call in (*pushers, *workers):
        call.result()
    assert sorted(done) == list(range(1, total + 1))
    assert (counts(log), log.live_bytes()) == ((0, 0, 0), 0)


@pytest.mark.parametrize("what", ["push", "nack", "release", "expiry", "delay", "shorter lease", "delayed nack"])
def test_a_waiting_claim_is_woken(log: QueueLog, what: str) -> None:
    queue = log.queue()
    if what != "push":
        queue.push(b"x", delay_s=5 if what == "delay" else 0)
    held = queue.claim(lease_s=5)
    call = Call(lambda: log.queue("other").claim(wait_s=LONG_S))
    waiting(log, 1)
    match what:
        case "push":
            queue.push(b"x")
        case "nack":
            queue.nack(held)
        case "release":
            log.log.queues.release("jobs", keys(held))
        case "expiry":
            log.pass_ms(5_001)
        case "delay":
            log.pass_ms(5_000)
        case "shorter lease":
            queue.extend(held, 0.1)
            log.pass_ms(101)
        case "delayed nack":
            queue.nack(held, 1)
            assert call.is_running
            log.pass_ms(1_000)
    assert values(call.result()) == [b"x"]


def test_a_shorter_lease_wakes_a_claim_by_itself(tmp_path: Path) -> None:
    """With the clock of the machine: nobody notifies when the lease ends."""
    with seawall.open(tmp_path / "data") as log:
        log.create_topic("jobs", type="queue")
        queue = log.queue("jobs")
        queue.push(b"x")
        (job,) = queue.claim()
        call = Call(lambda: log.queue("jobs").claim(wait_s=LONG_S))
        until(lambda: log._readers_waiting > 0)
        job.extend(0.1)
        assert values(call.result()) == [b"x"]


@pytest.mark.parametrize("what", ["lease", "delay"])
def test_nobody_pauses_when_a_lease_or_delay_has_just_ended(log: QueueLog, what: str) -> None:
    queues = log.log.queues
    log.queue().push(b"x", delay_s=0 if what == "lease" else 1)
    assert len(log.queue().claim()) == (what == "lease")
    claim = new_claim("w", 1, 0, lambda: None, may_watch=False)
    line = queues.begin_claim("jobs", claim)
    assert queues.pause_s("jobs", line) == (1.001 if what == "lease" else 1.0)
    # Between serving the claims and the pause.
    log.clock.advance(1_001 * NS_PER_MS)
    assert queues.pause_s("jobs", line) == 0
    queues.serve("jobs", line)
    assert claim.is_done


def test_a_cohort_shares_jobs_evenly() -> None:
    log = QueueLog(claim_jitter_ms=50)
    log.queue().push([b"%d" % number for number in range(9)])
    calls = [Call(lambda: log.queue().claim(9)) for _ in range(3)]
    until(lambda: "jobs" in log.log.queues._lines and len(log.line()) == 3)
    log.pass_ms(50)
    assert sorted(len(call.result()) for call in calls) == [3, 3, 3]
    assert log.line().cohort_at_ms == 0


def test_a_claim_without_a_share_does_not_end_its_cohort() -> None:
    log = QueueLog(claim_jitter_ms=50)
    queues = log.log.queues
    log.queue().push([b"%d" % number for number in range(3)])
    claims = [new_claim("w", count, 0, lambda: None, may_watch=False) for count in (1, 1, 100)]
    for claim in claims:
        queues.begin_claim("jobs", claim)
    log.pass_ms(50)
    queues.serve("jobs", log.line())
    assert [0 if claim.result is None else len(claim.result.rows) for claim in claims] == [1, 0, 2]


def test_a_cohort_shares_in_proportion() -> None:
    log = QueueLog(claim_jitter_ms=50)
    log.queue().push([b"%d" % number for number in range(12)])
    calls = [Call(lambda count=count: log.queue().claim(count)) for count in (30, 20, 10)]
    until(lambda: "jobs" in log.log.queues._lines and len(log.line()) == 3)
    log.pass_ms(50)
    assert [len(call.result()) for call in calls] == [6, 4, 2]


def test_a_cohort_of_one_gets_what_it_wants_and_no_claim_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    log = QueueLog(claim_jitter_ms=5_000)
    log.queue().push([b"1", b"2"])
    served = Counter[str]()
    serve = log.log.queues.serve

    def count_serves(topic: str, line: Any) -> None:
        served[topic] += 1
        serve(topic, line)

    monkeypatch.setattr(log.log.queues, "serve", count_serves)
    call = Call(lambda: log.queue().claim(9))
    until(lambda: "jobs" in log.log.queues._lines and len(log.line()) == 1)
    log.clock.advance(5_000 * NS_PER_MS)
    serve("jobs", log.line())
    assert len(call.result()) == 2
    assert served["jobs"] < 4


def test_a_claim_on_an_emptied_queue_does_not_spin_after_a_restart(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"1", b"2"])
    queue.ack(queue.claim(2))
    log.reopen()
    scans = Counter[str]()
    plan = JobStore.plan_scan_locked

    def count_scans(store: JobStore, queue: Any) -> Any:
        scans["all"] += 1
        return plan(store, queue)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobStore, "plan_scan_locked", count_scans)
        assert log.queue().claim(wait_s=0.1) == []
    assert scans["all"] <= 4
    call = Call(lambda: log.queue().claim(wait_s=LONG_S))
    waiting(log, 1)
    log.queue().push(b"3")
    assert values(call.result()) == [b"3"]


def test_deleting_the_topic_ends_waiting_claims(log: QueueLog) -> None:
    calls = [Call(lambda: log.queue().claim(wait_s=LONG_S)) for _ in range(3)]
    waiting(log, 3)
    log.log.delete_topic("jobs")
    for call in calls:
        with pytest.raises(NotFoundError):
            call.result()


def test_a_recreated_queue_has_no_jobs_of_the_old_one(log: QueueLog) -> None:
    queue = log.queue()
    queue.push([b"old"] * 9)
    held = queue.claim(2)
    log.log.delete_topic("jobs")
    log.log.create_topic("jobs", type="queue")
    assert queue.counts() == (0, 0, 0, 0, None)
    assert queue.ack(held).skipped == (1, 2)
    call = Call(lambda: queue.claim(wait_s=LONG_S))
    waiting(log, 1)
    queue.push(b"new")
    assert [(job.value, job.deliveries) for job in call.result()] == [(b"new", 1)]
    assert log.log.queues.ack("jobs", "w", keys(held)).changed == 0


def test_waiting_claims_get_jobs_of_a_recreated_queue(log: QueueLog, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = log.queue()
    queue.push([b"old"] * 9)
    queue.ack(queue.claim(9))
    call = Call(lambda: queue.claim(wait_s=LONG_S))
    waiting(log, 1)
    # Both before the claim looks again.
    with monkeypatch.context() as patch:
        patch.setattr(log.log.commits, "listeners", [])
        log.log.delete_topic("jobs")
        log.log.create_topic("jobs", type="queue")
    queue.push(b"new")
    assert values(call.result()) == [b"new"]


def test_closing_the_log_ends_waiting_claims(log: QueueLog) -> None:
    calls = [Call(lambda: log.queue().claim(wait_s=LONG_S)) for _ in range(3)]
    waiting(log, 3)
    log.log.close()
    for call in calls:
        with pytest.raises(WrongStateError):
            call.result()
    for command in (log.queue().claim, log.queue().counts, lambda: log.queue().push(b"x")):
        with pytest.raises(WrongStateError):
            command()


def test_lines_of_deleted_queues_are_forgotten(log: QueueLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log.log.queues, "_check_lines_at", 4)
    for number in range(5):
        log.log.create_topic(f"q{number}", type="queue")
        log.queue(topic=f"q{number}").claim()
    assert len(log.log.queues._lines) == 1
    assert log.log.queues._check_lines_at >= 1_024
