"""What becomes of jobs: tasks on a real log with a real worker; middleware reports each outcome to the test."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from queue import Queue as Mailbox
from threading import Event, Semaphore
from typing import Any

import pytest

from seawall.api.publishable import Message
from seawall.api.queues.queue import Job
from seawall.client.remote_log import RemoteLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.errors import ConflictError, InvalidInputError, WrongStateError
from seawall.tasks import Backoff, Middleware, MsgpackCodec, Outcome, RunningJob, TaskQueue, current_job

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
from real_server import RealServer

Log = EmbeddedLog | RemoteLog

WAIT_S = 60.0
FAST = Backoff(0.001, 1.0, 0.001)


class Outcomes(Middleware):
    """Hands each outcome to the test."""

    def __init__(self) -> None:
        self.mailbox: Mailbox[tuple[str, int, int, Outcome]] = Mailbox()
        self.errors: list[tuple[str, bool]] = []

    def after_failure(self, job: RunningJob, error: BaseException, *, is_final: bool) -> None:
        self.errors.append((f"{type(error).__name__}: {error}", is_final))

    def after_job(self, job: RunningJob, outcome: Outcome, duration_s: float) -> None:
        assert duration_s > 0
        self.mailbox.put((job.name, job.seq, job.deliveries, outcome))

    def next(self) -> tuple[str, int, int, Outcome]:
        return self.mailbox.get(timeout=WAIT_S)


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes()


@pytest.fixture
def tasks(log: Log, outcomes: Outcomes) -> TaskQueue:
    return TaskQueue(log, "mails", middleware=[outcomes])


def letters(log: Log) -> list[tuple[bytes, dict[str, Any]]]:
    return [(record.value, json.loads(record.meta or b"")) for record in log.records("mails.dead")]


def test_a_task_is_called_directly_or_executed_by_a_worker(tasks: TaskQueue, outcomes: Outcomes) -> None:
    seen = []

    @tasks.task
    def add(a: int, b: int = 1) -> int:
        """Add numbers."""
        seen.append((a, b))
        return a + b

    assert add(2, b=3) == 5
    assert (add.__name__, add.__doc__, add.name) == ("add", "Add numbers.", "add")
    sent = add.send(4, b=5)
    assert sent.seq == 1
    assert tasks.queue.peek()[0].value == b'{"task":"add","args":[4],"kwargs":{"b":5}}'
    with tasks.worker(threads=2):
        assert outcomes.next() == ("add", 1, 1, Outcome.DONE)
    assert seen == [(2, 3), (4, 5)]
    counts = tasks.queue.counts()
    assert (counts.ready, counts.leased, counts.delayed) == (0, 0, 0)


def test_a_coroutine_runs_on_the_loop_of_the_worker(tasks: TaskQueue, outcomes: Outcomes) -> None:
    met: asyncio.Queue[int] = asyncio.Queue()

    @tasks.task
    async def meet(number: int) -> None:
        """Ends only if two of them run at once, on one loop."""
        await met.put(number)
        while met.qsize() < 2:
            await asyncio.sleep(0)
        assert current_job().call == ("meet", [number], {}, None)

    meet.send(1)
    meet.send(2)
    with tasks.worker(threads=2):
        assert {outcomes.next()[3] for _ in range(2)} == {Outcome.DONE}


def test_a_failing_task_is_tried_again_and_becomes_a_dead_letter(
    log: Log, tasks: TaskQueue, outcomes: Outcomes
) -> None:
    @tasks.task(retries=2, backoff=FAST)
    def fail(name: str) -> None:
        raise ValueError(f"no {name}")

    fail.send("luck")
    with tasks.worker(threads=1):
        assert [outcomes.next()[2:] for _ in range(3)] == [(1, Outcome.RETRY), (2, Outcome.RETRY), (3, Outcome.DEAD)]
    assert outcomes.errors == [("ValueError: no luck", False)] * 2 + [("ValueError: no luck", True)]
    [(value, meta)] = letters(log)
    assert value == b'{"task":"fail","args":["luck"],"kwargs":{}}'
    assert meta == {
        "$dead_letter_from": "mails",
        "$dead_letter_src_seq": 1,
        "$dead_letter_deliveries": 3,
        "$dead_letter_reason": "ValueError: no luck",
    }
    assert tasks.queue.counts().ready == 0


def test_a_dead_letter_moves_back_and_is_the_same_job(log: Log, tasks: TaskQueue, outcomes: Outcomes) -> None:
    is_broken = True

    @tasks.task(retries=0, priority=7)
    def repair() -> None:
        if is_broken:
            raise RuntimeError("broken")

    repair.send()
    with tasks.worker(threads=1):
        assert outcomes.next()[3] is Outcome.DEAD
        is_broken = False
        assert log.queue("mails.dead").redrive() == 1
        assert outcomes.next() == ("repair", 2, 1, Outcome.DONE)


def test_jobs_that_no_task_can_execute_are_dead_letters_with_a_reason(
    log: Log, tasks: TaskQueue, outcomes: Outcomes
) -> None:
    @tasks.task
    def known() -> None: ...

    log.create_topic("mails", type="queue", dead_letter="graves")
    log.publish("mails", b"no json")
    log.publish("mails", {"task": "unknown", "args": [], "kwargs": {}})
    log.publish("mails", Message(b"x", headers={"content-type": "text/plain"}, key="k", tag="t", node="n", meta="m"))
    log.publish("mails", {"task": "known", "args": [1], "kwargs": {}})
    known.send()
    with tasks.worker(threads=1):
        found = {outcomes.next()[:4] for _ in range(4)}
    assert found >= {("?", 1, 1, Outcome.DEAD), ("unknown", 2, 1, Outcome.DEAD), ("?", 3, 1, Outcome.DEAD)}
    first, second, third = log.records("graves")
    assert "CorruptionError: the job is not JSON" in json.loads(first.meta or b"")["$dead_letter_reason"]
    assert "there is no task 'unknown'; this worker has known" in json.loads(second.meta or b"")["$dead_letter_reason"]
    assert (third.value, third.key, third.tag, third.node) == (b"x", b"k", b"t", b"n")
    assert third.headers == ((b"content-type", b"text/plain"),)
    assert json.loads(third.meta or b"")["$meta"] == "m"


def test_a_job_that_was_delivered_too_often_is_not_tried(log: Log, tasks: TaskQueue, outcomes: Outcomes) -> None:
    """Its workers were killed, and it may be why."""

    @tasks.task(retries=1)
    def crash() -> None:
        raise AssertionError("it must not run")

    crash.send()
    for _ in range(2):
        log.queue("mails").claim(1)[0].nack()
    with tasks.worker(threads=1):
        assert outcomes.next()[2:] == (3, Outcome.DEAD)
    assert "delivered 3 times with 1 retries" in letters(log)[0][1]["$dead_letter_reason"]


def test_a_time_limit_fails_the_attempt(log: Log, tasks: TaskQueue, outcomes: Outcomes) -> None:
    @tasks.task(retries=0, time_limit_s=0.05)
    def spin() -> None:
        while True:
            pass

    @tasks.task(retries=1, backoff=FAST, time_limit_s=0.05)
    async def wait() -> None:
        if current_job().deliveries == 1:
            await asyncio.sleep(3_600)

    spin.send()
    wait.send()
    with tasks.worker(threads=2):
        found = {outcomes.next() for _ in range(3)}
    assert found == {
        ("spin", 1, 1, Outcome.DEAD),
        ("wait", 2, 1, Outcome.RETRY),
        ("wait", 2, 2, Outcome.DONE),
    }
    assert "TimeLimitError: it ran longer than its limit of 0.05 s" in letters(log)[0][1]["$dead_letter_reason"]


def test_published_records_and_the_ack_are_one_step(log: Log, tasks: TaskQueue, outcomes: Outcomes) -> None:
    log.create_topic("counts")

    @tasks.task(retries=2, backoff=FAST)
    def count(text: str) -> None:
        job = current_job()
        job.publish("counts", {"job": job.seq, "words": len(text.split())})
        job.publish("counts", b"more")
        if job.deliveries < 3:
            raise RuntimeError("after publishing")

    count.send("one two")
    with tasks.worker(threads=1):
        assert [outcomes.next()[3] for _ in range(3)] == [Outcome.RETRY, Outcome.RETRY, Outcome.DONE]
    assert [record.value for record in log.records("counts")] == [b'{"job":1,"words":2}', b"more"]


def test_a_task_that_publishes_what_cannot_be_published_fails(log: Log, tasks: TaskQueue, outcomes: Outcomes) -> None:
    @tasks.task(retries=0)
    def publish() -> None:
        current_job().publish("nowhere", b"x")

    publish.send()
    with tasks.worker(threads=1):
        assert outcomes.next()[3] is Outcome.DEAD
    assert "NotFoundError" in letters(log)[0][1]["$dead_letter_reason"]


def test_nothing_of_a_delivery_counts_whose_lease_has_ended(log: Log, outcomes: Outcomes) -> None:
    """A lease ends while its task runs: another worker takes the job, and what this one publishes is refused."""
    tasks = TaskQueue(log, "mails", middleware=[outcomes])
    log.create_topic("counts")
    stolen = []

    @tasks.task
    def slow(is_publishing: bool) -> None:
        if current_job().deliveries > 1:
            return
        job = current_job().job
        log.queue("mails", node=job.node).nack(job)
        stolen.append(log.queue("mails").claim(1)[0])
        if is_publishing:
            current_job().publish("counts", b"x")

    slow.send(True)
    slow.send(False)
    with tasks.worker(threads=1):
        assert [outcomes.next()[2:] for _ in range(2)] == [(1, Outcome.LOST), (1, Outcome.LOST)]
        for job in stolen:
            job.nack()
        assert [outcomes.next()[2:] for _ in range(2)] == [(3, Outcome.DONE), (3, Outcome.DONE)]
    assert log.describe("counts").record_count == 0


def test_a_job_that_comes_again_while_it_runs_is_held_under_both_leases(
    log: Log, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = TaskQueue(log, "mails", middleware=[outcomes])
    begun, may_end = Semaphore(0), {1: Event(), 2: Event()}

    @tasks.task
    def wait() -> None:
        begun.release()
        assert may_end[current_job().deliveries].wait(WAIT_S)

    worker = tasks.worker(threads=2)
    queue, claim, claimed = worker._queue, worker._queue.claim, list[Job]()

    def claim_again(count: int, **named: float) -> list[Job]:
        if len(claimed) == 1:
            # As if its lease had ended.
            queue.nack(claimed)
        found = claim(count, **named)
        claimed.extend(found)
        return found

    monkeypatch.setattr(queue, "claim", claim_again)
    with worker:
        wait.send()
        for _ in range(2):
            assert begun.acquire(timeout=WAIT_S)
        may_end[1].set()
        assert outcomes.next() == ("wait", 1, 1, Outcome.LOST)
        with worker._changed:
            assert worker._changed.wait_for(lambda: len(worker._held) < 2, WAIT_S)
        assert [job.deliveries for job in worker._jobs()] == [2]
        may_end[2].set()
        assert outcomes.next() == ("wait", 1, 2, Outcome.DONE)


def test_the_leases_of_a_long_task_are_extended(log: Log, outcomes: Outcomes) -> None:
    tasks = TaskQueue(log, "mails", middleware=[outcomes], lease_s=1.0)
    other = log.queue("mails", node="other")

    @tasks.task
    def outlive() -> None:
        """Runs until its lease was extended often: until then another worker gets nothing."""
        first = deadline = current_job().job.deadline_ms
        while deadline < first + 1_500:
            assert other.claim(1) == []
            deadline = current_job().job.deadline_ms

    outlive.send()
    with tasks.worker(threads=1):
        assert outcomes.next() == ("outlive", 1, 1, Outcome.DONE)


def test_a_worker_claims_only_for_free_threads(log: Log, tasks: TaskQueue, outcomes: Outcomes) -> None:
    begun, go_on = Semaphore(0), Event()

    @tasks.task
    def wait() -> None:
        begun.release()
        assert go_on.wait(WAIT_S)

    for _ in range(5):
        wait.send()
    with tasks.worker(threads=2):
        for _ in range(2):
            assert begun.acquire(timeout=WAIT_S)
        counts = log.queue("mails").counts()
        assert (counts.leased, counts.ready) == (2, 3)
        go_on.set()
        assert {outcomes.next()[3] for _ in range(5)} == {Outcome.DONE}


def test_a_worker_outlives_a_restart_of_its_server(tmp_path: Path, outcomes: Outcomes) -> None:
    with RealServer(tmp_path / "served") as server:
        tasks = TaskQueue(server.url, "mails", middleware=[outcomes], results=True)

        @tasks.task
        def add(a: int, b: int) -> int:
            return a + b

        with tasks.worker(threads=2):
            assert add.send(1, 2).result(WAIT_S) == 3
            server.stop()
            server.start()
            assert add.send(3, 4).result(WAIT_S) == 7
        tasks.close()


def test_a_stop_waits_for_tasks_and_returns_those_that_take_too_long(
    log: Log, tasks: TaskQueue, outcomes: Outcomes
) -> None:
    begun, go_on = Event(), Event()

    @tasks.task
    def short() -> None:
        begun.set()
        assert go_on.wait(WAIT_S)

    @tasks.task
    def endless() -> None:
        begun.set()
        while True:
            pass

    @tasks.task
    async def sleeping() -> None:
        begun.set()
        await asyncio.sleep(3_600)

    short.send()
    worker = tasks.worker(threads=1)
    worker.start()
    assert begun.wait(WAIT_S)
    go_on.set()
    assert worker.stop(grace_s=WAIT_S) == 0
    assert worker.stop() == 0
    assert outcomes.next()[3] is Outcome.DONE
    for task in (endless, sleeping):
        begun.clear()
        sent = task.send()
        with tasks.worker(threads=1, grace_s=0.05):
            assert begun.wait(WAIT_S)
        assert outcomes.next() == (task.name, sent.seq, 1, Outcome.RETURNED)
        (job,) = log.queue("mails").claim(1)
        assert (job.seq, job.deliveries) == (sent.seq, 2)
        job.ack()


def test_a_task_in_a_call_into_c_is_left_alone_and_its_ack_is_refused(
    log: Log, tasks: TaskQueue, outcomes: Outcomes
) -> None:
    begun, go_on = Event(), Event()

    @tasks.task
    def blocked() -> None:
        begun.set()
        # No interrupt is delivered before this returns.
        go_on.wait(WAIT_S)

    blocked.send()
    with tasks.worker(threads=1, grace_s=0.0):
        assert begun.wait(WAIT_S)
    (job,) = log.queue("mails").claim(1)
    assert job.deliveries == 2
    go_on.set()
    assert outcomes.next()[3] is Outcome.LOST
    assert job.ack()


def test_middleware_runs_around_each_job_and_cannot_break_it(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    ended = Event()

    class Named(Middleware):
        def __init__(self, name: str) -> None:
            self.name = name

        def before_execute(self, job: RunningJob) -> None:
            calls.append(f"before {self.name}")

        def after_success(self, job: RunningJob, result: object) -> None:
            calls.append(f"success {self.name} {result}")
            raise RuntimeError("a bug in middleware")

        def after_job(self, job: RunningJob, outcome: Outcome, duration_s: float) -> None:
            if self.name == "outer":
                ended.set()

    tasks = TaskQueue(log, "mails", middleware=[Named("outer"), Named("inner")])

    @tasks.task
    def answer() -> int:
        calls.append("run")
        return 42

    answer.send()
    with tasks.worker(threads=1):
        assert ended.wait(WAIT_S)
    assert calls == ["before outer", "before inner", "run", "success inner 42", "success outer 42"]
    assert [record.message for record in caplog.records].count("middleware Named has failed") == 2
    assert tasks.queue.counts().ready == 0


def test_the_next_job_is_claimed_while_one_is_acked(log: Log, outcomes: Outcomes) -> None:
    class Acking(Middleware):
        """Holds back the first ack until its worker has the next job."""

        def after_success(self, job: RunningJob, result: object) -> None:
            while job.seq == 1 and tasks.queue.counts().leased < 2:
                pause.wait(0.001)

    pause = Event()
    tasks = TaskQueue(log, "mails", middleware=[outcomes, Acking()])

    @tasks.task
    def one() -> int:
        assert tasks.queue.counts().leased <= 2
        return 1

    for _ in range(3):
        one.send()
    with tasks.worker(threads=1):
        assert [outcomes.next()[1:] for _ in range(3)] == [(seq, 1, Outcome.DONE) for seq in (1, 2, 3)]
    assert tasks.queue.counts()[:3] == (0, 0, 0)


def test_middleware_can_refuse_a_job(log: Log, outcomes: Outcomes) -> None:
    class Refusal(Middleware):
        def before_execute(self, job: RunningJob) -> None:
            raise PermissionError("not on Sundays")

    tasks = TaskQueue(log, "mails", middleware=[outcomes, Refusal()])

    @tasks.task(retries=0)
    def answer() -> None:
        raise AssertionError("it must not run")

    answer.send()
    with tasks.worker(threads=1):
        assert outcomes.next()[3] is Outcome.DEAD
    assert outcomes.errors == [("PermissionError: not on Sundays", True)]


def test_each_delivery_is_one_log_line(tasks: TaskQueue, outcomes: Outcomes, caplog: pytest.LogCaptureFixture) -> None:
    @tasks.task(retries=1, backoff=FAST)
    def flaky() -> None:
        if current_job().deliveries == 1:
            raise KeyError("x")

    with caplog.at_level(logging.INFO, "seawall.tasks"):
        flaky.send()
        worker = tasks.worker(threads=1)
        with worker:
            assert [outcomes.next()[3] for _ in range(2)] == [Outcome.RETRY, Outcome.DONE]
    lines = [record for record in caplog.records if hasattr(record, "outcome")]
    assert [(r.task, r.seq, r.delivery, r.outcome) for r in lines] == [
        ("flaky", 1, 1, "retry"),
        ("flaky", 1, 2, "done"),
    ]
    assert lines[0].message.startswith("flaky, job 1, delivery 1: retry in ")
    (failure,) = [record for record in caplog.records if record.exc_info]
    assert failure.message == "flaky, job 1, delivery 1: KeyError: 'x'"


def test_delay_priority_and_unique_key(log: Log, tasks: TaskQueue, outcomes: Outcomes) -> None:
    @tasks.task(unique=lambda user: f"user-{user}", priority=3)
    def rebuild(user: int) -> None: ...

    @tasks.task
    def plain(user: int) -> None: ...

    plain.send(0)
    first, again, other = rebuild.send(1), rebuild.send(1), rebuild.send(2)
    assert (first.is_new, again.is_new, other.is_new) == (True, False, True)
    assert again.seq == first.seq != other.seq
    later = plain.send_with_options([5], delay_s=3_600, priority=9, unique=b"own")
    assert not plain.send_with_options([6], unique="own").is_new
    assert tasks.queue.counts().delayed == 1
    assert [job.seq for job in tasks.queue.claim(9)] == sorted([1, first.seq, other.seq])
    assert later.seq not in (1, first.seq, other.seq)
    log.queue("mails").purge()
    assert rebuild.send_with_options(kwargs={"user": 3}, priority=0).is_new
    with tasks.worker(threads=1):
        assert outcomes.next()[0] == "rebuild"


def test_arguments_may_be_bytes(log: Log, outcomes: Outcomes) -> None:
    tasks = TaskQueue(log, "mails", middleware=[outcomes], codec=MsgpackCodec())
    found: Mailbox[tuple[bytes, object]] = Mailbox()

    @tasks.task
    def keep(data: bytes, more: object = None) -> None:
        found.put((data, more))

    keep.send(b"\xff\x00", more={1: b"one"})
    log.queue("mails").push(b'{"task":"keep","args":["json"],"kwargs":{}}')
    with tasks.worker(threads=1):
        assert found.get(timeout=WAIT_S) == (b"\xff\x00", {1: b"one"})
        assert found.get(timeout=WAIT_S) == ("json", None)
        assert {outcomes.next()[3], outcomes.next()[3]} == {Outcome.DONE}


def test_mistakes_are_errors_when_they_are_made(log: Log, tasks: TaskQueue) -> None:
    @tasks.task
    def one(a: int) -> None: ...

    wrong: Callable[..., object] = one.send
    with pytest.raises(InvalidInputError, match=r"'one' does not take these arguments: .*unexpected.*'b'"):
        wrong(1, b=2)
    with pytest.raises(InvalidInputError, match="argument 1 is of type object"):
        wrong(object())
    with pytest.raises(ConflictError, match="two tasks 'one'"):
        tasks.task(name="one")(len)
    with pytest.raises(InvalidInputError, match="name of 129"):
        tasks.task(name="n" * 129)(len)
    with pytest.raises(InvalidInputError, match="priority 10"):
        tasks.task(priority=10)
    for limit_s in (0, float("nan"), float("inf")):
        with pytest.raises(InvalidInputError, match=f"time limit of {limit_s}"):
            tasks.task(time_limit_s=limit_s)
    for seconds in (-1, 0.5, float("nan"), float("inf")):
        with pytest.raises(InvalidInputError, match="an interval of"):
            tasks.every(seconds)(lambda: None)
    for grace_s in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidInputError, match="grace period of"):
            tasks.worker(grace_s=grace_s)
    for lease_s in (0.05, float("nan"), 1e6):
        with pytest.raises(InvalidInputError, match="lease of"):
            TaskQueue(log, "mails", lease_s=lease_s).worker()
    with pytest.raises(InvalidInputError, match="does not take these arguments"):
        tasks.every(60)(one)
    with pytest.raises(InvalidInputError, match="belongs to another queue"):
        TaskQueue(log, "others").every(60)(one)
    with pytest.raises(InvalidInputError, match="0 threads"):
        tasks.worker(threads=0)
    with pytest.raises(InvalidInputError, match="https"):
        TaskQueue("https://example.org", "mails")
    with pytest.raises(WrongStateError, match="no job runs here"):
        current_job()
    log.create_topic("plain")
    with pytest.raises(InvalidInputError, match="'plain' is a log, not a queue"):
        TaskQueue(log, "plain").worker()
    assert log.describe("mails").record_count == 0


def test_the_log_is_opened_when_it_is_first_used(tmp_path: Any) -> None:
    tasks = TaskQueue(tmp_path / "nowhere", "mails")

    @tasks.task
    def one() -> None: ...

    assert not (tmp_path / "nowhere").exists()
    tasks.use(tmp_path / "here")
    one.send()
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(WrongStateError, match="open already"):
        tasks.use(tmp_path / "there")
    assert tasks.queue.counts().ready == 1
    assert tasks.log.describe("mails").config.dead_letter == "mails.dead"
    tasks.close()
    one.send()
    assert tasks.queue.counts().ready == 2
    tasks.close()
    tasks.close()


def test_a_periodic_task_is_pushed_and_executed(tasks: TaskQueue, outcomes: Outcomes) -> None:
    found: Mailbox[int | None] = Mailbox()

    @tasks.every(1)
    @tasks.task(priority=2)
    def tick() -> None:
        found.put(current_job().tick_ms)

    @tasks.cron("0 0 1 1 *")
    def yearly() -> None: ...

    with tasks.worker(threads=1):
        first, second = found.get(timeout=WAIT_S), found.get(timeout=WAIT_S)
    assert first is not None
    assert second is not None
    assert first % 1_000 == 0
    assert second > first
    assert set(tasks.tasks) == {"tick", "yearly"}


def test_a_worker_whose_log_fails_says_so_and_stops_when_told(log: Log, tasks: TaskQueue) -> None:
    warned = Event()

    class Warned(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "cannot claim jobs of queue mails" in record.getMessage():
                warned.set()

    handler = Warned()
    logging.getLogger("seawall.tasks").addHandler(handler)
    try:
        with tasks.worker(threads=1):
            log.close()
            assert warned.wait(WAIT_S)
    finally:
        logging.getLogger("seawall.tasks").removeHandler(handler)
