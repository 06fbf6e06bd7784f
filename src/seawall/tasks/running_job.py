"""The job that runs now: what a task and its middleware can learn of it, and records to publish with its end.

    @tasks.task
    def count_words(text: str) -> None:
        job = current_job()
        job.publish("counts", {"job": job.seq, "words": len(text.split())})

The records are staged at once, and published in one transaction with the ack of the job: if the job is delivered again,
because its worker was killed at any point before, the records of the first attempt are never seen. If the task fails,
they are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from enum import StrEnum
from typing import Final

from seawall.api.publishable import Publishable
from seawall.api.queues.queue import Job
from seawall.api.transactions import Transaction
from seawall.errors import SeawallError, WrongStateError
from seawall.tasks.job_format import TaskCall
from seawall.tasks.result_commits import ResultCommits


class Outcome(StrEnum):
    """What became of one delivery of a job."""

    #: The task has returned, and the job is acked.
    DONE = "done"
    #: The task has failed, and the job is delivered again later.
    RETRY = "retry"
    #: The job is a dead letter now.
    DEAD = "dead"
    #: The worker stops: the job is delivered again at once.
    RETURNED = "returned"
    #: The lease had ended, or it is not known whether the ack took effect: nothing of this delivery counts, or all.
    LOST = "lost"


class RunningJob:
    """One delivery of a job."""

    def __init__(self, job: Job, begin: Callable[[], Transaction], commits: ResultCommits) -> None:
        #: The claimed job.
        self.job = job
        #: The call that the job carries; None until it was decoded.
        self.call: TaskCall | None = None
        self._begin = begin
        self._commits = commits
        #: The result and its topic.
        self._result: tuple[str, bytes] | None = None
        self._transaction: Transaction | None = None
        #: Why records could not be added: then the job must not be acked.
        self._refusal: Exception | None = None

    @property
    def seq(self) -> int:
        """The seq of the job: the same in each delivery."""
        return self.job.seq

    @property
    def deliveries(self) -> int:
        """How often the job was delivered, this time included."""
        return self.job.deliveries

    @property
    def name(self) -> str:
        """The name of the task; "?" if the job could not be decoded."""
        return "?" if self.call is None else self.call.task

    @property
    def tick_ms(self) -> int | None:
        """The time of the tick, in milliseconds since the Unix epoch, if a schedule has pushed the job."""
        return None if self.call is None else self.call.tick_ms

    def publish(self, topic: str, records: Publishable) -> None:
        """Add one record or many to the transaction that acks the job."""
        try:
            if self._transaction is None:
                self._transaction = self._begin()
            self._transaction.publish(topic, records)
        except (SeawallError, OSError) as error:
            self._refusal = error
            raise

    def publish_result(self, topic: str, record: bytes) -> None:
        """Publish the result of the job with its ack; jobs without other records may share a transaction."""
        self._result = topic, record

    def discard(self) -> None:
        """Drop the records that were added so far."""
        transaction, self._transaction = self._transaction, None
        self._refusal = self._result = None
        if transaction is not None:
            transaction.abort()

    def finish(self) -> bool:
        """Ack the job and publish its records, in one step if there are any. False if the lease has ended.

        Raises `ConflictError` if the lease has ended and there are records, and the error of a `publish` that failed.
        """
        if self._refusal is not None:
            raise self._refusal
        transaction, self._transaction = self._transaction, None
        result, self._result = self._result, None
        if transaction is None:
            if result is None:
                return self.job.ack()
            self._commits.finish(self.job, *result)
            return True
        with transaction:
            if result is not None:
                transaction.publish(*result)
            transaction.ack(self.job)
        return True


CURRENT: Final[ContextVar[RunningJob]] = ContextVar("seawall.tasks.current")


def current_job() -> RunningJob:
    """The job whose task runs here; `WrongStateError` outside of a worker."""
    found = CURRENT.get(None)
    if found is None:
        raise WrongStateError("no job runs here: the function was called, not executed by a worker")
    return found
