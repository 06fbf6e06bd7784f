"""Job queues for asyncio, with the API and the rules of `queue`; `jobs` decides for both.

    queue = log.queue("mails")
    async for job in queue.work():
        await send(job.json())

Each method does what the method of `Queue` with its name does. This module must not know where a log is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
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
from seawall.api.queues.queue import PushDelivery
from seawall.api.received_record import ReceivedRecord
from seawall.core.jobs import JobOutcome, QueueCounts
from seawall.errors import SeawallError
from seawall.wire.jobs.options import JobOptions
from seawall.wire.jobs.rows import ClaimedJobs


class _Backend(Protocol):
    """What depends on where the log is: the methods of `QueueBackend`, as coroutines."""

    def now_ms(self) -> int: ...
    async def push(self, topic: str, records: Publishable) -> PushDelivery: ...
    async def push_unique(self, topic: str, record: Message, key: bytes) -> PushedJob: ...
    async def claim(self, topic: str, node: str, count_max: int, lease_ms: int, wait_ms: int) -> ClaimedJobs: ...
    async def ack(self, topic: str, node: str, jobs: JobKeys) -> JobOutcome: ...
    async def nack(self, topic: str, node: str, jobs: JobKeys, delay_ms: int) -> JobOutcome: ...
    async def extend(self, topic: str, node: str, jobs: JobKeys, lease_ms: int) -> JobOutcome: ...
    async def peek(self, topic: str, count_max: int) -> ClaimedJobs: ...
    async def counts(self, topic: str) -> QueueCounts: ...
    async def purge(self, topic: str) -> int: ...
    async def redrive(self, topic: str, count_max: int) -> int: ...


class AsyncJob(ClaimedJob):
    """A job that is leased to this worker. Read `value`, `key`, `json()` or `record`, then `ack` it."""

    __slots__ = ("_queue",)
    _queue: AsyncQueue

    async def ack(self) -> bool:
        """Finish the job: it is deleted. False if the lease has ended, and another worker may have the job."""
        return (await self._queue.ack(self)).changed == 1

    async def nack(self, delay_s: float = 0.0) -> bool:
        """Return the job, to be delivered again after a delay. False if the lease has ended."""
        return (await self._queue.nack(self, delay_s)).changed == 1

    async def extend(self, lease_s: float) -> bool:
        """Keep the job for `lease_s` from now. False if the lease has ended."""
        return (await self._queue.extend(self, lease_s)).changed == 1


class AsyncQueue:
    """A queue and this worker's name in it. Create one with `log.queue`. Tasks may share it."""

    def __init__(self, backend: _Backend, topic: str, node: str) -> None:
        check_node(node)
        self._backend = backend
        self.topic = topic
        #: The name under which this worker leases jobs.
        self.node = node

    async def push(self, records: Publishable, *, delay_s: float = 0.0, priority: int = 0) -> PushDelivery:
        """Append one job or many, as `Queue.push` does."""
        options = JobOptions(not_before(self._backend.now_ms(), delay_s), priority)
        return await self._backend.push(self.topic, with_options(records, options))

    async def push_unique(
        self, record: OneRecord, key: str | bytes, *, delay_s: float = 0.0, priority: int = 0
    ) -> PushedJob:
        """Append a job unless one with the same key waits in the queue or is being worked on."""
        message, name = unique_message(record, key, not_before(self._backend.now_ms(), delay_s), priority)
        return await self._backend.push_unique(self.topic, message, name)

    async def claim(self, count: int = 1, *, lease_s: float | None = None, wait_s: float = 0.0) -> Jobs[AsyncJob]:
        """Lease up to `count` jobs to this worker, as `Queue.claim` does."""
        lease_ms = lease_of(lease_s)
        wait_ms = milliseconds(wait_s, "a wait")
        return self._jobs(await self._backend.claim(self.topic, self.node, count, lease_ms, wait_ms))

    async def ack(self, jobs: Selection) -> JobOutcome:
        """Finish claimed jobs, as `Queue.ack` does."""
        found = selected(jobs)
        return decide(found, await self._backend.ack(self.topic, self.node, keys_of(found)))

    async def nack(self, jobs: Selection, delay_s: float = 0.0) -> JobOutcome:
        """Return claimed jobs, to be delivered again after a delay."""
        found, delay_ms = selected(jobs), milliseconds(delay_s, "a delay")
        return decide(found, await self._backend.nack(self.topic, self.node, keys_of(found), delay_ms))

    async def extend(self, jobs: Selection, lease_s: float) -> JobOutcome:
        """Keep claimed jobs for `lease_s` from now."""
        found, lease_ms = selected(jobs), lease_of(lease_s)
        return extended(found, await self._backend.extend(self.topic, self.node, keys_of(found), lease_ms))

    async def work(
        self, *, batch: int = 1, lease_s: float | None = None, backoff: Backoff | None = None, wait: bool = True
    ) -> AsyncGenerator[AsyncJob, None]:
        """Iterate over jobs with `async for`, as `Queue.work` does. Close it (`aclose`) to return jobs at once."""
        held = HeldJobs(backoff)
        wait_ms = milliseconds(held.WAIT_S, "a wait") if wait else 0
        lease_ms = lease_of(lease_s)
        keeper: asyncio.Task[None] | None = None
        try:
            while True:
                claimed = await self._backend.claim(self.topic, self.node, batch, lease_ms, wait_ms)
                jobs = self._jobs(claimed)
                if not jobs and not wait:
                    return
                held.hold(jobs, claimed.lease_ms)
                if keeper is None and jobs:
                    keeper = asyncio.create_task(self._keep_leases(held))
                for job in jobs:
                    held.begin(job)
                    yield job
                    if not job.is_decided:
                        await self.ack(job)
                    held.end()
        finally:
            if keeper is not None:
                keeper.cancel()
                await asyncio.wait([keeper])
            for rest, delay_s in held.returns():
                await self.nack(rest, delay_s)

    async def counts(self) -> QueueCounts:
        """The jobs by their state, exact at this moment."""
        return await self._backend.counts(self.topic)

    async def peek(self, count: int = 1) -> Jobs[AsyncJob]:
        """The jobs that would be claimed next, without a lease."""
        return self._jobs(await self._backend.peek(self.topic, count))

    async def purge(self) -> int:
        """Delete all jobs that no worker holds; returns how many."""
        return await self._backend.purge(self.topic)

    async def redrive(self, count: int | None = None) -> int:
        """Move dead letters from this topic back to the queues that they came from, as `Queue.redrive` does."""
        return await self._backend.redrive(self.topic, redrive_count(count))

    async def _keep_leases(self, held: HeldJobs) -> None:
        """Extend the leases of a work loop until the task is cancelled."""
        while True:
            await asyncio.sleep(held.pause_s)
            # A lease that cannot be extended ends: its job is delivered again.
            with suppress(SeawallError, OSError):
                if jobs := held.undecided:
                    await self.extend(jobs, held.lease_ms / 1_000)

    def _jobs(self, claimed: ClaimedJobs) -> Jobs[AsyncJob]:
        return Jobs(claimed, self._job)

    def _job(self, record: ReceivedRecord, lease_id: int, deadline_ms: int, deliveries: int) -> AsyncJob:
        job = AsyncJob(self.topic, self.node, record, lease_id, deadline_ms, deliveries)
        job._queue = self
        return job
