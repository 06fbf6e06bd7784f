"""The queues of a remote log for asyncio: the backend of `log.queue(…)`, with the rules of `queues`.

All requests of a log share one connection, which lives as long as the log. So the leases of work loops are bound to
that connection, and those of `claim` are not: the server returns the jobs of a program that dies at once, and claimed
jobs survive a lost connection.

A cancelled task does not cancel its claim on the server; if that gets jobs, they are returned.

A crash of the client loses nothing: its leases end. This module must not know how a server leases jobs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import aclosing, suppress
from copy import copy
from functools import partial
from typing import Any, Final, TypeAlias

from seawall.api.publishable import Message, Publishable, encode
from seawall.api.queues.aio_queue import AsyncJob, AsyncQueue
from seawall.api.queues.jobs import Backoff, JobKeys, PushedJob, rising
from seawall.client.connection.aio_requests import AsyncRequests
from seawall.client.publish.delivery import Delivery
from seawall.client.queues.aio_shared_calls import AsyncCallGroups, AsyncSharedCalls
from seawall.client.queues.requests import (
    Claim,
    MakeChange,
    check_count,
    join_jobs,
    joined_claims,
    joined_jobs,
    keys_of_rows,
    split_claimed,
    split_outcome,
    wait_ms,
)
from seawall.core.jobs import JobOutcome, QueueCounts
from seawall.core.types import TopicId
from seawall.errors import SeawallError
from seawall.io.process.clocks import OsClock
from seawall.limits import JOBS_MAX, LEASE_MS_MAX, NACK_DELAY_MS_MAX
from seawall.wire.format.codes import ClaimFlags
from seawall.wire.format.decoder import Frame
from seawall.wire.jobs.rows import ClaimedJobs
from seawall.wire.lwp1.replies import TopicReply
from seawall.wire.lwp2.jobs import (
    JobAck,
    JobClaim,
    JobExtend,
    JobNack,
    JobPeek,
    JobPushUnique,
    JobRequest,
    QueueCountsRequest,
    QueuePurge,
    QueueRedrive,
    parse_job_outcome,
    parse_job_pushed,
    parse_jobs,
    parse_queue_counts_reply,
)
from seawall.wire.lwp2.topics import parse_records_deleted

_NS_PER_MS: Final = 1_000_000

#: Runs a function with a topic, and once more if the topic was deleted and created again.
WithTopic: TypeAlias = Callable[[str, Callable[[TopicReply], Awaitable[Any]]], Awaitable[Any]]
Publish: TypeAlias = Callable[[str, Publishable], Awaitable[Delivery]]


class AsyncRemoteQueue(AsyncQueue):
    """A queue on a server."""

    def __init__(self, queues: AsyncRemoteQueues, topic: str, node: str) -> None:
        super().__init__(queues, topic, node)
        self._queues = queues

    async def work(
        self, *, batch: int = 1, lease_s: float | None = None, backoff: Backoff | None = None, wait: bool = True
    ) -> AsyncGenerator[AsyncJob, None]:
        """Iterate over jobs, as `AsyncQueue.work` does. If this process dies, the server returns the jobs at once."""
        bound = AsyncQueue(self._queues.bound(), self.topic, self.node)
        async with aclosing(bound.work(batch=batch, lease_s=lease_s, backoff=backoff, wait=wait)) as jobs:
            async for job in jobs:
                yield job


class AsyncRemoteQueues:
    """The queues of a log on a server. Tasks may share it."""

    def __init__(self, requests: Callable[[], AsyncRequests], publish: Publish, with_topic: WithTopic) -> None:
        """`requests` returns the connection of the open log."""
        self._requests = requests
        self._publish = publish
        self._with_topic = with_topic
        self._claim_flags = ClaimFlags.NONE
        self._groups = AsyncCallGroups()
        self._clock = OsClock()

    def bound(self) -> AsyncRemoteQueues:
        """The same queues for a work loop, whose leases end with the connection."""
        bound = copy(self)
        bound._claim_flags = ClaimFlags.BOUND
        return bound

    async def settle(self) -> None:
        """Wait for the requests in flight, after the connection was closed."""
        await self._groups.settle()

    def now_ms(self) -> int:
        """The time of this process in milliseconds since the Unix epoch."""
        return self._clock.wall_ns() // _NS_PER_MS

    # --- producers -----------------------------------------------------------------------------------------------

    async def push(self, topic: str, records: Publishable) -> Delivery:
        """Append jobs."""
        return await self._publish(topic, records)

    async def push_unique(self, topic: str, record: Message, key: bytes) -> PushedJob:
        """Append a job unless one with this key is there."""
        del key  # The server takes it from the headers of the record.
        (encoded,) = encode(record)
        frame = await self._request(topic, lambda topic_id: JobPushUnique(topic_id, encoded.block))
        pushed = parse_job_pushed(frame.payload)
        return PushedJob(pushed.seq, pushed.is_new)

    # --- workers -------------------------------------------------------------------------------------------------

    async def claim(self, topic: str, node: str, count_max: int, lease_ms: int, wait_ms: int) -> ClaimedJobs:
        """Lease jobs to a worker; waits for the first one."""
        check_count(count_max)
        now_ns = self._clock.monotonic_ns()
        claim = Claim(count_max, now_ns + wait_ms * _NS_PER_MS)
        while True:
            left_s = (claim.deadline_ns - now_ns) / 1e9
            # A claim that waits must not delay one that does not.
            key = ("claim", topic, node, lease_ms, self._claim_flags, left_s > 0)
            shared = partial(self._shared_claims, topic, node, min(lease_ms, LEASE_MS_MAX))
            claimed = await self._groups.call(key, shared, claim, left_s if left_s > 0 else None)
            now_ns = self._clock.monotonic_ns()
            if claimed is not None and (claimed.rows.size or now_ns >= claim.deadline_ns):
                return claimed

    def _shared_claims(self, topic: str, node: str, lease_ms: int) -> AsyncSharedCalls[Claim, ClaimedJobs]:
        async def execute(claims: Sequence[Claim]) -> list[ClaimedJobs]:
            wait = wait_ms(claims, self._clock.monotonic_ns(), self._requests().target.timeout_s)
            count = min(sum(claim.wanted for claim in claims), JOBS_MAX)

            def make(topic_id: TopicId) -> JobClaim:
                return JobClaim(topic_id, node, count, lease_ms, wait, self._claim_flags)

            frame = await self._request(topic, make, wait_s=wait / 1e3)
            return split_claimed(parse_jobs(frame.payload).claimed, claims)

        async def drop(claimed: ClaimedJobs) -> None:
            # If this fails, the leases end.
            with suppress(SeawallError, OSError):
                if claimed.rows.size:
                    await self.nack(topic, node, keys_of_rows(claimed), 0)

        return AsyncSharedCalls(execute, joined_claims, drop, self._groups.tasks)

    async def ack(self, topic: str, node: str, jobs: JobKeys) -> JobOutcome:
        """Delete jobs that are leased to the worker."""
        return await self._change(("ack",), JobAck, topic, node, jobs)

    async def nack(self, topic: str, node: str, jobs: JobKeys, delay_ms: int) -> JobOutcome:
        """Return jobs, to be delivered again after a delay."""
        delay_ms = min(delay_ms, NACK_DELAY_MS_MAX)
        return await self._change(("nack", delay_ms), partial(JobNack, delay_ms=delay_ms), topic, node, jobs)

    async def extend(self, topic: str, node: str, jobs: JobKeys, lease_ms: int) -> JobOutcome:
        """Let the leases end `lease_ms` from now; 0 is the topic's lease."""
        lease_ms = min(lease_ms, LEASE_MS_MAX)
        return await self._change(("extend", lease_ms), partial(JobExtend, lease_ms=lease_ms), topic, node, jobs)

    async def _change(self, kind: Hashable, make: MakeChange, topic: str, node: str, jobs: JobKeys) -> JobOutcome:
        async def execute(changes: Sequence[JobKeys]) -> list[JobOutcome]:
            seqs, lease_ids = join_jobs(changes)
            frame = await self._request(topic, lambda topic_id: make(topic_id, node, tuple(seqs), tuple(lease_ids)))
            return split_outcome(parse_job_outcome(frame.payload).outcome, changes)

        async def drop(_outcome: JobOutcome) -> None:
            """Do nothing: the jobs are decided, although their task was cancelled."""

        shared = partial(AsyncSharedCalls[JobKeys, JobOutcome], execute, joined_jobs, drop, self._groups.tasks)
        outcome = await self._groups.call((kind, topic, node), shared, rising(jobs))
        assert outcome is not None, "it waits without a limit"
        return outcome

    # --- the queue -----------------------------------------------------------------------------------------------

    async def peek(self, topic: str, count_max: int) -> ClaimedJobs:
        """The jobs that would be claimed next, without a lease."""
        check_count(count_max)
        frame = await self._request(topic, lambda topic_id: JobPeek(topic_id, min(count_max, JOBS_MAX)))
        return parse_jobs(frame.payload).claimed

    async def counts(self, topic: str) -> QueueCounts:
        """The jobs by their state."""
        return parse_queue_counts_reply((await self._request(topic, QueueCountsRequest)).payload).counts

    async def purge(self, topic: str) -> int:
        """Delete all jobs that are not leased; returns how many."""
        return parse_records_deleted((await self._request(topic, QueuePurge, is_repeatable=False)).payload).count

    async def redrive(self, topic: str, count_max: int) -> int:
        """Move dead letters of this topic back to the queues that they came from; returns how many."""
        frame = await self._request(topic, lambda topic_id: QueueRedrive(topic_id, count_max), is_repeatable=False)
        return parse_records_deleted(frame.payload).count

    async def _request(
        self,
        topic: str,
        make: Callable[[TopicId], JobRequest],
        *,
        wait_s: float = 0.0,
        is_repeatable: bool = True,
    ) -> Frame:
        """The response to a request that names a topic by its id."""

        async def run(found: TopicReply) -> Frame:
            payload = make(found.topic_id)
            return await self._requests().request(payload, wait_s=wait_s, is_repeatable=is_repeatable)

        frame: Frame = await self._with_topic(topic, run)
        return frame
