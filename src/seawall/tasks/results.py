"""Results of jobs: the middleware that publishes them, and the handle of a sent job that waits for its result.

A result is a record of the results topic, a JSON object:

| member      | JSON     | meaning                                                                        |
|-------------|----------|--------------------------------------------------------------------------------|
| `seq`       | integer  | the seq of the job in its queue                                                |
| `task`      | string   | the name of the task                                                           |
| `result`    | any      | what the task returned; absent after a failure                                 |
| `error`     | string   | the final error, its type first; absent after a success                        |
| `traceback` | string   | its traceback in the worker; absent after a success                            |

It is published in one transaction with the ack of the job: a job has one result, however often it was delivered. A
final failure publishes its error in one transaction with the dead letter. What JSON does not carry is an error, too,
because the task has done its work and must not run again. A job that the queue itself moves to the dead letters (its
`max_deliveries`) has no result.

A process reads the results topic from where it was when it sent its first job. One of its waiting threads reads, and
gives to the others what it finds. Results that arrive before someone asks for them are kept, the newest
`TASK_RESULTS_KEPT_MAX` of them.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from threading import Condition
from traceback import format_exception
from typing import Final

from seawall.api.received import ReceivedBatch
from seawall.errors import TaskFailedError, WrongStateError
from seawall.io.interfaces import Clock
from seawall.limits import (
    TASK_ERROR_SIZE_MAX,
    TASK_RESULTS_KEPT_MAX,
    TASK_RESULTS_TTL_S,
    TASK_TRACEBACK_SIZE_MAX,
)
from seawall.tasks.job_format import encoded_json
from seawall.tasks.middleware import Middleware, error_text
from seawall.tasks.running_job import RunningJob
from seawall.tasks.task_log import TaskLog, ensure_topic

#: One wait of the thread that reads for all.
_POLL_S: Final = 1.0


class Results(Middleware):
    """Publishes results to a topic, by default `<queue>.results`, which keeps them for a day."""

    def __init__(self, topic: str, *, ttl_s: float = TASK_RESULTS_TTL_S) -> None:
        self.topic = topic
        self.ttl_s = ttl_s

    def prepare(self, log: TaskLog) -> int:
        """Create the topic if it does not exist; returns the seq of the next result."""
        return ensure_topic(log, self.topic, ttl_ms=round(self.ttl_s * 1_000)).next_seq

    def after_success(self, job: RunningJob, result: object) -> None:
        """Publish what the task returned."""
        document = {"seq": job.seq, "task": job.name}
        try:
            encoded = encoded_json({**document, "result": result})
        except (ValueError, RecursionError) as error:
            encoded = encoded_json({**document, **_failure(ValueError(f"the result is not JSON: {error}"))})
        job.publish_result(self.topic, encoded)

    def after_failure(self, job: RunningJob, error: BaseException, *, is_final: bool) -> None:
        """Publish a final error."""
        if is_final:
            job.publish(self.topic, encoded_json({"seq": job.seq, "task": job.name, **_failure(error)}))


def _failure(error: BaseException) -> dict[str, str]:
    trace = "".join(format_exception(error))[-TASK_TRACEBACK_SIZE_MAX:]
    return {"error": _storable(error_text(error)[:TASK_ERROR_SIZE_MAX]), "traceback": _storable(trace)}


def _storable(text: str) -> str:
    """A text without the lone surrogates that UTF-8 does not have."""
    return text.encode(errors="replace").decode()


class ResultReader:
    """Reads the results topic for all handles of a process. Threads may share it."""

    def __init__(self, log: TaskLog, topic: str, start_seq: int, clock: Clock) -> None:
        self._subscriber = log.subscriber(topic, start_seq)
        self._clock = clock
        self._changed = Condition()
        self._is_reading = False
        self._kept: OrderedDict[int, dict[str, object]] = OrderedDict()

    def wait(self, seq: int, timeout_s: float | None) -> dict[str, object] | None:
        """The result of a job; None if it has none after the timeout."""
        deadline_ns = None if timeout_s is None else self._clock.monotonic_ns() + int(timeout_s * 1e9)
        with self._changed:
            while True:
                if (found := self._kept.get(seq)) is not None:
                    return found
                left_s = _POLL_S if deadline_ns is None else (deadline_ns - self._clock.monotonic_ns()) / 1e9
                if left_s < 0:
                    return None
                if self._is_reading:
                    self._changed.wait(left_s)
                else:
                    self._read(min(left_s, _POLL_S))

    def _read(self, timeout_s: float) -> None:
        """Read what comes next, without the lock meanwhile."""
        self._is_reading = True
        self._changed.release()
        try:
            items = self._subscriber.poll(timeout_s)
        finally:
            self._changed.acquire()
            self._is_reading = False
            self._changed.notify_all()
        for item in items:
            if isinstance(item, ReceivedBatch):
                for record in item.records():
                    self._keep(record.value)

    def _keep(self, value: bytes) -> None:
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            return  # not written by `Results`
        if isinstance(document, dict) and isinstance(seq := document.get("seq"), int):
            self._kept[seq] = document
            while len(self._kept) > TASK_RESULTS_KEPT_MAX:
                self._kept.popitem(last=False)


class SentJob:
    """A job that was sent: its seq, and its result once there is one."""

    __slots__ = ("_document", "_reader", "is_new", "seq", "task")

    def __init__(self, task: str, seq: int, reader: ResultReader | None, *, is_new: bool = True) -> None:
        #: The name of the task.
        self.task = task
        #: The seq of the job in its queue.
        self.seq = seq
        #: False if a job with the same unique key was there already; `seq` is that job's then.
        self.is_new = is_new
        self._reader = reader
        self._document: dict[str, object] | None = None

    def result(self, timeout_s: float | None = None) -> object:
        """Wait for what the task returns. Raises `TaskFailedError` after its final failure.

        Raises `TimeoutError` if there is no result after `timeout_s`; the job is not affected.
        """
        if self._reader is None:
            raise WrongStateError(f"job {self.seq} has no result: create the TaskQueue with results=True")
        if self._document is None:
            self._document = self._reader.wait(self.seq, timeout_s)
        if self._document is None:
            raise TimeoutError(f"job {self.seq} ({self.task}) has no result after {timeout_s} s: wait longer")
        if (error := self._document.get("error")) is not None:
            trace = str(self._document.get("traceback", ""))
            raise TaskFailedError(f"job {self.seq} ({self.task}) has failed: {error}", seq=self.seq, traceback=trace)
        return self._document.get("result")

    def __repr__(self) -> str:
        return f"<SentJob {self.seq} of {self.task}>"
