"""Moves jobs that a worker gives up to the dead-letter topic of their queue.

The dead letter is published in one transaction with the ack of the job, and looks as the queue's own (`wire/jobs/
dead_letters`): `redrive` moves it back. Its topic is that of the queue's setting `dead_letter`, or `<queue>.dead` if
the queue has none; it is created when it is first needed. The queue's counter `dead_lettered` counts only the jobs that
the queue itself has moved.
"""

from __future__ import annotations

from seawall.api.publishable import Message
from seawall.api.queues.queue import Job
from seawall.limits import TASK_ERROR_SIZE_MAX
from seawall.tasks.running_job import RunningJob
from seawall.tasks.task_log import TaskLog, ensure_topic
from seawall.wire.jobs.dead_letters import marked_meta


def default_dead_letter(queue: str) -> str:
    """The dead-letter topic of a queue that names none."""
    return f"{queue}.dead"


class DeadLetterBox:
    """The dead-letter topic of one queue."""

    def __init__(self, log: TaskLog, queue: str) -> None:
        self._log = log
        self._queue = queue

    def bury(self, running: RunningJob, reason: str) -> bool:
        """Make a job a dead letter, together with the records of its transaction. False if the lease has ended."""
        topic = self._log.describe(self._queue).config.dead_letter or default_dead_letter(self._queue)
        ensure_topic(self._log, topic)
        running.publish(topic, _letter(running.job, reason[:TASK_ERROR_SIZE_MAX]))
        return running.finish()


def _letter(job: Job, reason: str) -> Message:
    record = job.record
    return Message(
        record.value,
        key=record.key,
        headers=[(name.decode(errors="replace"), value) for name, value in record.headers],
        timestamp_ns=record.client_timestamp_ns,
        tag=None if record.tag is None else record.tag.decode(errors="replace"),
        node=None if record.node is None else record.node.decode(errors="replace"),
        meta=marked_meta(record.meta, job.topic, job.seq, job.deliveries, reason),
    )
