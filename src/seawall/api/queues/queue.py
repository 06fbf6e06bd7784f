"""Job queues for threads: push jobs, claim them for a time, and ack, nack or extend what was claimed.

    log.create_topic("mails", type="queue")
    queue = log.queue("mails")
    queue.push({"to": "ada"}, delay_s=60)
    for job in queue.claim(10):                     # leased to this worker for the topic's `lease_ms`
        send(job.json())
        job.ack()                                   # gone, as durably as the topic stores records

    for job in queue.work():                        # waits for jobs, and extends the lease of the current one
        send(job.json())                            # acked when the loop continues

The queue of each kind of log has the same methods; its backend does what depends on where the log is. `aio_queue` has
the same API for event loops, `jobs` what both share. A crash of a worker costs nothing but time: its leases end.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Protocol

from seawall.api.publishable import Message, OneRecord, Publishable
from seawall.api.queues.jobs import (
    Backoff,
    ClaimedJob,
    HeldJobs,
    JobKeys,
    Jobs,
    PushedJob,
    Selection,
    check_node,
    decide,
    extended,
    keys_of,
    lease_of,
    milliseconds,
    not_before,
    redrive_count,
    selected,
    unique_message,
    with_options,
)
from seawall.api.received_record import ReceivedRecord
from seawall.core.jobs import JobOutcome, QueueCounts
from seawall.errors import SeawallError
from seawall.wire.jobs.options import JobOptions
from seawall.wire.jobs.rows import ClaimedJobs


class PushDelivery(Protocol):
    """The records of one push; `seqs` waits until they are stored."""

    @property
    def seqs(self) -> Sequence[int]:
        """The seq of each job."""
        ...


class QueueBackend(Protocol):
    """What depends on where the log is. A `lease_ms` of 0 means that of the topic."""

    def now_ms(self) -> int:
        """The time of this process in milliseconds since the Unix epoch."""
        ...

    def push(self, topic: str, records: Publishable) -> PushDelivery:
        """Append jobs; durable when this returns, as the topic says."""
        ...

    def push_unique(self, topic: str, record: Message, key: bytes) -> PushedJob:
        """Append a job unless one with this key is ready, leased or delayed."""
        ...

    def claim(self, topic: str, node: str, count_max: int, lease_ms: int, wait_ms: int) -> ClaimedJobs:
        """Lease jobs to a worker; waits for the first one."""
        ...

    def ack(self, topic: str, node: str, jobs: JobKeys) -> JobOutcome:
        """Delete jobs that are leased to the worker."""
        ...

    def nack(self, topic: str, node: str, jobs: JobKeys, delay_ms: int) -> JobOutcome:
        """Return jobs, to be delivered again after a delay."""
        ...

    def extend(self, topic: str, node: str, jobs: JobKeys, lease_ms: int) -> JobOutcome:
        """Let the leases end `lease_ms` from now."""
        ...

    def peek(self, topic: str, count_max: int) -> ClaimedJobs:
        """The jobs that would be claimed next, without a lease."""
        ...

    def counts(self, topic: str) -> QueueCounts:
        """The jobs by their state."""
        ...

    def purge(self, topic: str) -> int:
        """Delete all jobs that are not leased; returns how many."""
        ...

    def redrive(self, topic: str, count_max: int) -> int:
        """Move dead letters of this topic back to the queues that they came from; returns how many."""
        ...


class Job(ClaimedJob):
    """A job that is leased to this worker. Read `value`, `key`, `json()` or `record`, then `ack` it."""

    __slots__ = ("_queue",)
    _queue: Queue

    def ack(self) -> bool:
        """Finish the job: it is deleted. False if the lease has ended, and another worker may have the job."""
        return self._queue.ack(self).changed == 1

    def nack(self, delay_s: float = 0.0) -> bool:
        """Return the job, to be delivered again after a delay. False if the lease has ended."""
        return self._queue.nack(self, delay_s).changed == 1

    def extend(self, lease_s: float) -> bool:
        """Keep the job for `lease_s` from now. False if the lease has ended."""
        return self._queue.extend(self, lease_s).changed == 1


class Queue:
    """A queue and this worker's name in it. Create one with `log.queue`. Threads may share it."""

    def __init__(self, backend: QueueBackend, topic: str, node: str) -> None:
        check_node(node)
        self._backend = backend
        self.topic = topic
        #: The name under which this worker leases jobs.
        self.node = node

    # --- producers -----------------------------------------------------------------------------------------------

    def push(self, records: Publishable, *, delay_s: float = 0.0, priority: int = 0) -> PushDelivery:
        """Append one job or many; stored at the durability class of the topic when this returns.

        Jobs can be claimed after `delay_s`, by the clock of this process. Jobs with a higher `priority`, 0 to 9, are
        claimed first.
        """
        options = JobOptions(not_before(self._backend.now_ms(), delay_s), priority)
        return self._backend.push(self.topic, with_options(records, options))

    def push_unique(self, record: OneRecord, key: str | bytes, *, delay_s: float = 0.0, priority: int = 0) -> PushedJob:
        """Append a job unless one with the same key waits in the queue or is being worked on."""
        message, name = unique_message(record, key, not_before(self._backend.now_ms(), delay_s), priority)
        return self._backend.push_unique(self.topic, message, name)

    # --- workers -------------------------------------------------------------------------------------------------

    def claim(self, count: int = 1, *, lease_s: float | None = None, wait_s: float = 0.0) -> Jobs[Job]:
        """Lease up to `count` jobs to this worker; an empty sequence if there are none after `wait_s`.

        A lease lasts `lease_s`, by default as long as the topic says. Fewer jobs than requested are normal.
        """
        lease_ms = lease_of(lease_s)
        return self._jobs(self._backend.claim(self.topic, self.node, count, lease_ms, milliseconds(wait_s, "a wait")))

    def ack(self, jobs: Selection) -> JobOutcome:
        """Finish claimed jobs: they are deleted, as durably as the topic stores records.

        Jobs whose lease has ended are skipped; another worker may have them.
        """
        return decide(found := selected(jobs), self._backend.ack(self.topic, self.node, keys_of(found)))

    def nack(self, jobs: Selection, delay_s: float = 0.0) -> JobOutcome:
        """Return claimed jobs, to be delivered again after a delay."""
        found, delay_ms = selected(jobs), milliseconds(delay_s, "a delay")
        return decide(found, self._backend.nack(self.topic, self.node, keys_of(found), delay_ms))

    def extend(self, jobs: Selection, lease_s: float) -> JobOutcome:
        """Keep claimed jobs for `lease_s` from now."""
        found, lease_ms = selected(jobs), lease_of(lease_s)
        return extended(found, self._backend.extend(self.topic, self.node, keys_of(found), lease_ms))

    def work(
        self, *, batch: int = 1, lease_s: float | None = None, backoff: Backoff | None = None, wait: bool = True
    ) -> Generator[Job, None, None]:
        """Iterate over jobs: each is acked when the loop continues, unless the loop has acked or nacked it itself.

        Claims up to `batch` jobs at once, and extends their leases in the background until they are decided. If the
        loop ends by an exception or by `break`, the current job is returned with a delay by `backoff`, the other
        claimed ones at once. With `wait=False` the iteration ends when no job is ready.
        """
        held = HeldJobs(backoff)
        wait_ms = milliseconds(held.WAIT_S, "a wait") if wait else 0
        lease_ms = lease_of(lease_s)
        keeper = _LeaseKeeper(self, held)
        try:
            while True:
                claimed = self._backend.claim(self.topic, self.node, batch, lease_ms, wait_ms)
                jobs = self._jobs(claimed)
                if not jobs and not wait:
                    return
                held.hold(jobs, claimed.lease_ms)
                keeper.start()
                for job in jobs:
                    held.begin(job)
                    yield job
                    if not job.is_decided:
                        self.ack(job)
                    held.end()
        finally:
            keeper.stop()
            for rest, delay_s in held.returns():
                self.nack(rest, delay_s)

    # --- the queue -----------------------------------------------------------------------------------------------

    def counts(self) -> QueueCounts:
        """The jobs by their state, exact at this moment."""
        return self._backend.counts(self.topic)

    def peek(self, count: int = 1) -> Jobs[Job]:
        """The jobs that would be claimed next, without a lease."""
        return self._jobs(self._backend.peek(self.topic, count))

    def purge(self) -> int:
        """Delete all jobs that no worker holds; returns how many."""
        return self._backend.purge(self.topic)

    def redrive(self, count: int | None = None) -> int:
        """Move dead letters from this topic back to the queues that they came from; returns how many.

        Moves the oldest `count`, all of them by default. Each move is one step: a crash neither loses nor repeats one.
        """
        return self._backend.redrive(self.topic, redrive_count(count))

    def _jobs(self, claimed: ClaimedJobs) -> Jobs[Job]:
        return Jobs(claimed, self._job)

    def _job(self, record: ReceivedRecord, lease_id: int, deadline_ms: int, deliveries: int) -> Job:
        job = Job(self.topic, self.node, record, lease_id, deadline_ms, deliveries)
        job._queue = self
        return job


class _LeaseKeeper:
    """Extends the leases of a work loop on a thread."""

    def __init__(self, queue: Queue, held: HeldJobs) -> None:
        self._queue = queue
        self._held = held
        self._stopped = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread, once there are jobs."""
        if self._thread is None and self._held.undecided:
            self._thread = Thread(target=self._run, name="seawall-leases", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Extend no lease any more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._held.pause_s):
            # A lease that cannot be extended ends: its job is delivered again.
            with suppress(SeawallError, OSError):
                if jobs := self._held.undecided:
                    self._queue.extend(jobs, self._held.lease_ms / 1_000)
