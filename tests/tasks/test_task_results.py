"""Results of jobs: once for each job, also across processes of senders, failures and waiting threads."""

from __future__ import annotations

import os
from queue import Queue as Mailbox
from threading import Event, Thread
from typing import Any

import pytest

from seawall import limits
from seawall.api.transactions import Transaction
from seawall.client.remote_log import RemoteLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.errors import (
    ConflictError,
    LockedError,
    OutcomeUnknownError,
    RetryableError,
    SeawallError,
    TaskFailedError,
    WrongStateError,
)
from seawall.io.process.clocks import OsClock
from seawall.tasks import Backoff, Middleware, Outcome, Results, RunningJob, TaskQueue, current_job
from seawall.tasks.result_commits import EndedJob, ResultCommits
from seawall.tasks.results import ResultReader

Log = EmbeddedLog | RemoteLog

WAIT_S = 60.0
FAST = Backoff(0.001, 1.0, 0.001)


@pytest.fixture
def tasks(log: Log) -> TaskQueue:
    return TaskQueue(log, "sums", results=True)


def test_a_handle_waits_for_what_the_task_returns(log: Log, tasks: TaskQueue) -> None:
    @tasks.task
    def add(a: int, b: int) -> dict[str, Any]:
        return {"sum": a + b}

    @tasks.task
    def nothing() -> None: ...

    sent = [add.send(number, 1) for number in range(20)]
    with tasks.worker(threads=3):
        assert [each.result(WAIT_S) for each in reversed(sent)] == [
            {"sum": number + 1} for number in reversed(range(20))
        ]
        assert nothing.send().result(WAIT_S) is None
    assert sent[0].result() == {"sum": 1}
    assert log.describe("sums.results").record_count == 21
    assert log.describe("sums.results").config.ttl_ms == 86_400_000
    first = next(iter(log.records("sums.results")))
    assert set(first.json()) == {"seq", "task", "result"}


def test_a_final_failure_is_raised_with_its_traceback(log: Log, tasks: TaskQueue) -> None:
    @tasks.task(retries=1, backoff=FAST)
    def fail() -> None:
        raise LookupError("nothing here")

    sent = fail.send()
    with tasks.worker(threads=1), pytest.raises(TaskFailedError) as caught:
        sent.result(WAIT_S)
    assert str(caught.value) == "job 1 (fail) has failed: LookupError: nothing here"
    assert caught.value.seq == 1
    assert "in fail\n" in caught.value.traceback
    assert log.describe("sums.results").record_count == log.describe("sums.dead").record_count == 1


def test_long_errors_and_tracebacks_are_cut(log: Log, tasks: TaskQueue) -> None:
    @tasks.task(retries=0)
    def fail() -> None:
        raise LookupError("x" * 30_000)

    sent = fail.send()
    with tasks.worker(threads=1), pytest.raises(TaskFailedError) as caught:
        sent.result(WAIT_S)
    assert str(caught.value).endswith("x" * (limits.TASK_ERROR_SIZE_MAX - len("LookupError: ")))
    assert len(str(caught.value)) < limits.TASK_ERROR_SIZE_MAX + 100
    assert len(caught.value.traceback) == limits.TASK_TRACEBACK_SIZE_MAX


def test_a_job_that_cannot_be_decoded_has_a_result_too(log: Log, tasks: TaskQueue) -> None:
    with tasks.worker(threads=1):
        log.publish("sums", b"x")
        assert log.wait_for("sums.results", 1, WAIT_S)
    (record,) = log.records("sums.results")
    assert record.json()["error"].startswith("CorruptionError: the job is not JSON")


def test_a_result_that_json_does_not_have_is_an_error_and_the_task_does_not_run_again(
    log: Log, tasks: TaskQueue
) -> None:
    runs = []

    @tasks.task
    def strange() -> object:
        runs.append(current_job().seq)
        return object()

    sent = strange.send()
    with tasks.worker(threads=1), pytest.raises(TaskFailedError, match="the result is not JSON"):
        sent.result(WAIT_S)
    assert runs == [1]


def test_a_failed_attempt_leaves_no_result(log: Log, tasks: TaskQueue) -> None:
    @tasks.task(retries=3, backoff=FAST)
    def flaky() -> int:
        if current_job().deliveries < 3:
            raise RuntimeError("again")
        return current_job().deliveries

    sent = flaky.send()
    with tasks.worker(threads=1):
        assert sent.result(WAIT_S) == 3
    assert log.describe("sums.results").record_count == 1


def test_a_result_that_cannot_be_published_fails_the_attempt(log: Log) -> None:
    """The topic of the results is full: the job is not acked without its result."""
    log.create_topic("full", cap_records=1, discard="reject")
    log.publish("full", b"x")
    outcomes: Mailbox[Outcome] = Mailbox()

    class Outcomes(Middleware):
        def after_job(self, job: RunningJob, outcome: Outcome, duration_s: float) -> None:
            outcomes.put(outcome)

    tasks = TaskQueue(log, "sums", results=Results("full"), middleware=[Outcomes()])

    @tasks.task(retries=0)
    def one() -> int:
        return 1

    one.send()
    with tasks.worker(threads=1):
        # Its dead letter is refused as well, since the error would be a result.
        assert outcomes.get(timeout=WAIT_S) is Outcome.RETRY
    assert log.describe("full").record_count == 1


class Held:
    """Begins transactions of a log; holds back the first one until other jobs have ended."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.begun = 0
        self.is_first = Event()
        self.goes_on = Event()
        self.error: SeawallError | None = None

    def begin(self) -> Transaction:
        self.begun += 1
        if self.begun == 1:
            self.is_first.set()
            assert self.goes_on.wait(WAIT_S)
            if self.error is not None:
                raise self.error
        return self.log.transaction()


def end_together(log: Log, held: Held, lost: int | None = None) -> dict[int, SeawallError | None]:
    """End one job, and three while it is committed; returns the error of each by its seq."""
    log.create_topic("ended", type="queue")
    log.create_topic("ended.results")
    queue = log.queue("ended")
    queue.push([b"job"] * 4)
    jobs = {job.seq: job for job in queue.claim(4)}
    commits = ResultCommits(held.begin)
    found: dict[int, SeawallError | None] = {}

    def finish(seq: int) -> None:
        try:
            commits.finish(jobs[seq], "ended.results", b"%d" % seq)
        except (ConflictError, RetryableError) as error:
            found[seq] = error
        else:
            found[seq] = None

    if lost is not None:
        jobs[lost].nack()
    threads = [Thread(target=finish, args=(seq,)) for seq in jobs]
    threads[0].start()
    assert held.is_first.wait(WAIT_S)
    for thread in threads[1:]:
        thread.start()
    while len(commits._queued) < 3:
        threads[1].join(0.001)
    held.goes_on.set()
    for thread in threads:
        thread.join()
    return found


def test_jobs_that_end_while_another_is_committed_share_a_transaction(log: Log) -> None:
    held = Held(log)
    assert end_together(log, held) == dict.fromkeys(range(1, 5))
    assert held.begun == 2
    assert sorted(record.value for record in log.records("ended.results")) == [b"1", b"2", b"3", b"4"]
    assert log.queue("ended").counts()[:3] == (0, 0, 0)


def test_a_job_whose_lease_has_ended_does_not_keep_the_others_from_their_commit(log: Log) -> None:
    held = Held(log)
    found = end_together(log, held, lost=3)
    assert isinstance(found.pop(3), ConflictError)
    assert found == {1: None, 2: None, 4: None}
    assert held.begun == 5
    assert sorted(record.value for record in log.records("ended.results")) == [b"1", b"2", b"4"]
    assert log.queue("ended").counts()[:3] == (1, 0, 0)


def test_an_error_of_one_commit_is_not_that_of_the_next_ones(log: Log) -> None:
    held = Held(log)
    held.error = RetryableError("not now")
    assert end_together(log, held) == {1: held.error, 2: None, 3: None, 4: None}


def test_an_interrupted_commit_leaves_the_outcome_of_the_others_unknown(log: Log) -> None:
    def interrupt() -> Transaction:
        raise KeyboardInterrupt

    log.create_topic("ended", type="queue")
    log.queue("ended").push([b"job"] * 2)
    first, second = log.queue("ended").claim(2)
    commits = ResultCommits(interrupt)
    waiting = EndedJob(first, "ended.results", b"1")
    commits._queued.append(waiting)
    with pytest.raises(KeyboardInterrupt):
        commits.finish(second, "ended.results", b"2")
    assert isinstance(waiting.error, OutcomeUnknownError)


def test_results_that_are_large_together_are_committed_apart(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seawall.tasks.result_commits._SHARED_SIZE_MAX", 2)
    held = Held(log)
    assert end_together(log, held) == dict.fromkeys(range(1, 5))
    assert held.begun == 3


def test_many_threads_wait_and_one_of_them_reads(tasks: TaskQueue) -> None:
    @tasks.task
    def double(number: int) -> int:
        return 2 * number

    sent = [double.send(number) for number in range(8)]
    found: dict[int, object] = {}

    def wait(number: int) -> None:
        found[number] = sent[number].result(WAIT_S)

    threads = [Thread(target=wait, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    with tasks.worker(threads=2):
        for thread in threads:
            thread.join()
    assert found == {number: 2 * number for number in range(8)}


def test_without_a_result_the_wait_ends(log: Log, tasks: TaskQueue) -> None:
    @tasks.task
    def one() -> int:
        return 1

    with pytest.raises(TimeoutError, match=r"job 1 \(one\) has no result after 0.01 s"):
        one.send().result(0.01)
    silent = TaskQueue(log, "silent")
    with pytest.raises(WrongStateError, match="results=True"):
        silent.task(name="two")(lambda: 1).send().result()


def test_a_reader_keeps_a_bounded_number_of_results(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seawall.tasks.results.TASK_RESULTS_KEPT_MAX", 3)
    log.create_topic("results")
    reader = ResultReader(log, "results", 1, OsClock())
    log.publish("results", [{"seq": seq, "result": seq} for seq in range(1, 6)])
    log.publish("results", [b"other", b"[]", b'{"seq":"x"}'])
    assert reader.wait(5, WAIT_S) == {"seq": 5, "result": 5}
    assert [reader.wait(seq, 0.0) is None for seq in range(1, 6)] == [True, True, False, False, False]


def test_a_forked_child_opens_a_log_of_its_own(tmp_path: Any) -> None:
    """The parent's directory is locked: the child says so instead of using what belongs to the parent."""
    tasks = TaskQueue(tmp_path / "data", "sums")

    @tasks.task
    def one() -> int:
        return 1

    one.send()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            one.send()
        except LockedError:
            os.write(write_end, b"locked")
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    assert os.read(read_end, 100) == b"locked"
    os.close(read_end)
    assert tasks.queue.counts().ready == 1
    tasks.close()
