"""Acks jobs together with their results: jobs that end while a transaction commits share the next one.

    finish ──▶ queued ──▶ one thread: publish the results, ack the jobs, commit ──▶ each thread: its outcome

A commit takes a request and a sync. Threads that each committed for themselves would wait for each other, since a log
commits one transaction of a client at a time.

Each job and its result are one step, as they would be in a transaction of their own. A shared transaction that is
refused, because the lease of one of its jobs has ended or a topic refuses a result, changes nothing: then each of its
jobs is committed alone. Any other error, such as an unknown outcome, is that of all its jobs. A crash of the worker
loses no result: its jobs are delivered again, unless the transaction was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from seawall.api.queues.queue import Job
from seawall.api.transactions import Transaction
from seawall.errors import CallerError, FullError, OutcomeUnknownError, SeawallError

#: Bytes of the results that share a transaction: enough for thousands of usual ones.
_SHARED_SIZE_MAX: Final = 1 << 20


class EndedJob:
    """A job whose task has returned, and its result."""

    __slots__ = ("error", "is_decided", "job", "record", "topic")

    def __init__(self, job: Job, topic: str, record: bytes) -> None:
        self.job = job
        self.topic = topic
        self.record = record
        self.is_decided = False
        self.error: SeawallError | OSError | None = None

    def decide(self, error: SeawallError | OSError | None) -> None:
        """Set the outcome: done, or the error of the commit."""
        self.error = error
        self.is_decided = True


class ResultCommits:
    """Commits the results of one worker. Threads share it."""

    def __init__(self, begin: Callable[[], Transaction]) -> None:
        """`begin` begins a transaction."""
        self._begin = begin
        self._mutex = Lock()
        self._queued: list[EndedJob] = []
        #: Held by the thread that commits.
        self._committing = Lock()

    def finish(self, job: Job, topic: str, record: bytes) -> None:
        """Ack a job and publish its result in one step; raises `ConflictError` if its lease has ended."""
        own = EndedJob(job, topic, record)
        with self._mutex:
            self._queued.append(own)
        while not own.is_decided:
            with self._committing:
                if not own.is_decided:
                    self._commit_next()
        if own.error is not None:
            raise own.error

    def _commit_next(self) -> None:
        """Commit the jobs that have waited longest, together or else one by one."""
        group = self._next_group()
        try:
            if len(group) == 1 or not self._is_committed(group):
                for each in group:
                    self._commit_alone(each)
        except BaseException:
            unknown = OutcomeUnknownError("the thread that commits was interrupted: the job may be acked or not")
            for each in group:
                if not each.is_decided:
                    each.decide(unknown)
            raise

    def _next_group(self) -> list[EndedJob]:
        with self._mutex:
            size = count = 0
            for each in self._queued:
                size += len(each.record)
                if count and size > _SHARED_SIZE_MAX:
                    break
                count += 1
            group, self._queued = self._queued[:count], self._queued[count:]
        return group

    def _is_committed(self, group: Sequence[EndedJob]) -> bool:
        """Commit several jobs together; False if that is refused for what is in it."""
        outcome: SeawallError | OSError | None = None
        try:
            self._commit(group)
        except (CallerError, FullError):
            return False
        except (SeawallError, OSError) as error:
            outcome = error
        for each in group:
            each.decide(outcome)
        return True

    def _commit_alone(self, ended: EndedJob) -> None:
        try:
            self._commit([ended])
        except (SeawallError, OSError) as error:
            ended.decide(error)
        else:
            ended.decide(None)

    def _commit(self, group: Sequence[EndedJob]) -> None:
        records: dict[str, list[bytes]] = {}
        for each in group:
            records.setdefault(each.topic, []).append(each.record)
        with self._begin() as transaction:
            for topic, results in records.items():
                transaction.publish(topic, results)
            transaction.ack([each.job for each in group])
