"""The queues of a remote log for threads: the backend of `log.queue(…)`.

    queue = RemoteQueue(queues, "mails", node)
    queue.claim(10)             leases that end by themselves
    queue.work()                leases that also end with the connection of the work loop

Threads that claim, ack, nack or extend jobs of one queue under the same name share requests (`shared_calls`).

**After a lost connection** a request is sent again, except for `purge` and `redrive`, which then raise
`OutcomeUnknownError`. A repeated claim leases other jobs; those of the lost response are delivered again when their
leases end. A repeated ack, nack or extension may find that the first one was executed: the outcome is that of the last
answer, so jobs that the first ack deleted are reported as skipped. A repeated `push_unique` may report its own job as
one that was there.

**Work loops** claim over a connection of their own, one for each queue and name. Their leases are bound to it: if the
process dies, the server returns the jobs at once. Requests of the log use a pool, which closes idle connections; so the
leases of `claim` are never bound. The connection asks for a keepalive time longer than any lease, since nobody answers
pings while the loop works on a job.

A crash of the client loses nothing: its leases end. This module must not know how a server leases jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from threading import Lock
from typing import Any, Final, TypeAlias

from seawall.api.publishable import Message, Publishable, encode
from seawall.api.queues.jobs import Backoff, JobKeys, PushedJob, rising
from seawall.api.queues.queue import Job, Queue
from seawall.client.connection.requests import Requests
from seawall.client.publish.delivery import Delivery
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
from seawall.client.queues.shared_calls import CallGroups, SharedCalls
from seawall.core.jobs import JobOutcome, QueueCounts
from seawall.core.types import TopicId
from seawall.errors import SeawallError
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
WithTopic: TypeAlias = Callable[[str, Callable[[TopicReply], Any]], Any]


class RemoteQueue(Queue):
    """A queue on a server."""

    def __init__(self, queues: RemoteQueues, topic: str, node: str) -> None:
        super().__init__(queues, topic, node)
        self._queues = queues

    def work(
        self, *, batch: int = 1, lease_s: float | None = None, backoff: Backoff | None = None, wait: bool = True
    ) -> Generator[Job, None, None]:
        """Iterate over jobs, as `Queue.work` does. If this process dies, the server returns the jobs at once."""
        with self._queues.working(self.topic, self.node, lease_s) as bound:
            yield from Queue(bound, self.topic, self.node).work(
                batch=batch, lease_s=lease_s, backoff=backoff, wait=wait
            )


class RemoteQueues:
    """The queues of a log on a server. Threads may share it."""

    def __init__(
        self, requests: Requests, publish: Callable[[str, Publishable], Delivery], with_topic: WithTopic
    ) -> None:
        self._requests = requests
        self._publish = publish
        self._with_topic = with_topic
        #: The connections for claims, and what claims ask for.
        self._claim_requests = requests
        self._claim_flags = ClaimFlags.NONE
        self._groups = CallGroups()
        self._workers = _Workers(requests)

    def disown(self) -> None:
        """Run in a forked child: threads of the parent hold the locks."""
        self._groups = CallGroups()
        self._workers = _Workers(self._requests)

    def close(self) -> None:
        """End the work loops: their next claim raises."""
        self._workers.close()

    @contextmanager
    def working(self, topic: str, node: str, lease_s: float | None) -> Iterator[RemoteQueues]:
        """The same queues for a work loop, whose leases end with a connection that such loops share."""
        with self._workers.connection((topic, node, lease_s)) as requests:
            bound = copy(self)
            bound._claim_requests, bound._claim_flags = requests, ClaimFlags.BOUND
            yield bound

    def now_ms(self) -> int:
        """The time of this process in milliseconds since the Unix epoch."""
        return self._requests.clock.wall_ns() // _NS_PER_MS

    # --- producers -----------------------------------------------------------------------------------------------

    def push(self, topic: str, records: Publishable) -> Delivery:
        """Append jobs."""
        return self._publish(topic, records)

    def push_unique(self, topic: str, record: Message, key: bytes) -> PushedJob:
        """Append a job unless one with this key is there."""
        del key  # The server takes it from the headers of the record.
        (encoded,) = encode(record)
        frame = self._request(topic, lambda topic_id: JobPushUnique(topic_id, encoded.block))
        pushed = parse_job_pushed(frame.payload)
        return PushedJob(pushed.seq, pushed.is_new)

    # --- workers -------------------------------------------------------------------------------------------------

    def claim(self, topic: str, node: str, count_max: int, lease_ms: int, wait_ms: int) -> ClaimedJobs:
        """Lease jobs to a worker; waits for the first one."""
        check_count(count_max)
        clock = self._requests.clock
        now_ns = clock.monotonic_ns()
        claim = Claim(count_max, now_ns + wait_ms * _NS_PER_MS)
        while True:
            left_s = (claim.deadline_ns - now_ns) / 1e9
            # A claim that waits must not delay one that does not.
            key = ("claim", topic, node, lease_ms, self._claim_flags, left_s > 0)
            shared = partial(self._shared_claims, topic, node, min(lease_ms, LEASE_MS_MAX))
            claimed = self._groups.call(key, shared, claim, left_s if left_s > 0 else None)
            now_ns = clock.monotonic_ns()
            if claimed is not None and (claimed.rows.size or now_ns >= claim.deadline_ns):
                return claimed

    def _shared_claims(self, topic: str, node: str, lease_ms: int) -> SharedCalls[Claim, ClaimedJobs]:
        def execute(claims: Sequence[Claim]) -> list[ClaimedJobs]:
            requests = self._claim_requests
            wait = wait_ms(claims, requests.clock.monotonic_ns(), requests.target.timeout_s)
            count = min(sum(claim.wanted for claim in claims), JOBS_MAX)

            def make(topic_id: TopicId) -> JobClaim:
                return JobClaim(topic_id, node, count, lease_ms, wait, self._claim_flags)

            frame = self._request(topic, make, wait_s=wait / 1e3, requests=requests)
            return split_claimed(parse_jobs(frame.payload).claimed, claims)

        def drop(claimed: ClaimedJobs) -> None:
            # If this fails, the leases end.
            with suppress(SeawallError, OSError):
                if claimed.rows.size:
                    self.nack(topic, node, keys_of_rows(claimed), 0)

        return SharedCalls(execute, joined_claims, drop)

    def ack(self, topic: str, node: str, jobs: JobKeys) -> JobOutcome:
        """Delete jobs that are leased to the worker."""
        return self._change(("ack",), JobAck, topic, node, jobs)

    def nack(self, topic: str, node: str, jobs: JobKeys, delay_ms: int) -> JobOutcome:
        """Return jobs, to be delivered again after a delay."""
        delay_ms = min(delay_ms, NACK_DELAY_MS_MAX)
        return self._change(("nack", delay_ms), partial(JobNack, delay_ms=delay_ms), topic, node, jobs)

    def extend(self, topic: str, node: str, jobs: JobKeys, lease_ms: int) -> JobOutcome:
        """Let the leases end `lease_ms` from now; 0 is the topic's lease."""
        lease_ms = min(lease_ms, LEASE_MS_MAX)
        return self._change(("extend", lease_ms), partial(JobExtend, lease_ms=lease_ms), topic, node, jobs)

    def _change(self, kind: Hashable, make: MakeChange, topic: str, node: str, jobs: JobKeys) -> JobOutcome:
        def execute(changes: Sequence[JobKeys]) -> list[JobOutcome]:
            seqs, lease_ids = join_jobs(changes)
            frame = self._request(topic, lambda topic_id: make(topic_id, node, tuple(seqs), tuple(lease_ids)))
            return split_outcome(parse_job_outcome(frame.payload).outcome, changes)

        shared = partial(SharedCalls[JobKeys, JobOutcome], execute, joined_jobs, _nothing)
        outcome = self._groups.call((kind, topic, node), shared, rising(jobs))
        assert outcome is not None, "it waits without a limit"
        return outcome

    # --- the queue -----------------------------------------------------------------------------------------------

    def peek(self, topic: str, count_max: int) -> ClaimedJobs:
        """The jobs that would be claimed next, without a lease."""
        check_count(count_max)
        return parse_jobs(
            self._request(topic, lambda topic_id: JobPeek(topic_id, min(count_max, JOBS_MAX))).payload
        ).claimed

    def counts(self, topic: str) -> QueueCounts:
        """The jobs by their state."""
        return parse_queue_counts_reply(self._request(topic, QueueCountsRequest).payload).counts

    def purge(self, topic: str) -> int:
        """Delete all jobs that are not leased; returns how many."""
        return parse_records_deleted(self._request(topic, QueuePurge, is_repeatable=False).payload).count

    def redrive(self, topic: str, count_max: int) -> int:
        """Move dead letters of this topic back to the queues that they came from; returns how many."""
        frame = self._request(topic, lambda topic_id: QueueRedrive(topic_id, count_max), is_repeatable=False)
        return parse_records_deleted(frame.payload).count

    def _request(
        self,
        topic: str,
        make: Callable[[TopicId], JobRequest],
        *,
        wait_s: float = 0.0,
        is_repeatable: bool = True,
        requests: Requests | None = None,
    ) -> Frame:
        """The response to a request that names a topic by its id."""

        def run(found: TopicReply) -> Frame:
            payload = make(found.topic_id)
            return (requests or self._requests).request(payload, wait_s=wait_s, is_repeatable=is_repeatable)

        frame: Frame = self._with_topic(topic, run)
        return frame


class _Workers:
    """The connections of work loops, by queue, name and lease: loops with the same share one."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._mutex = Lock()
        #: The connection of each key, and how many loops use it.
        self._used: dict[Hashable, tuple[Requests, int]] = {}

    @contextmanager
    def connection(self, key: Hashable) -> Iterator[Requests]:
        """A connection that lives as long as a loop uses it. Its claims share requests, so two are in flight at most,
        and the pool keeps both."""
        with self._mutex:
            requests, users = self._used.get(key) or (self._open(), 0)
            self._used[key] = requests, users + 1
        try:
            yield requests
        finally:
            with self._mutex:
                requests, users = self._used.pop(key)
                if users > 1:
                    self._used[key] = requests, users - 1
            if users == 1:
                requests.close()

    def close(self) -> None:
        """Close all connections; the loops forget them."""
        with self._mutex:
            for requests, _ in self._used.values():
                requests.close()

    def _open(self) -> Requests:
        self._requests.check_open()
        return Requests(self._requests.target, self._requests.clock, keepalive_ms=LEASE_MS_MAX)


def _nothing(_outcome: JobOutcome) -> None:
    """Do nothing: the jobs are decided, although their thread was interrupted."""
