"""The queue requests of one connection: claims, which may wait for jobs, and all others (`queue_commands`).

A waiting claim holds nothing but its request. When the connection ends, it leases nothing; when the connection closes
in order, it is answered without jobs.

A claim may bind its leases to the connection. They are released when the connection is lost: other workers get the jobs
of a worker that has disappeared at once. The connection remembers a bounded number of leases, the latest ones; older
ones end by themselves. It also remembers the leases of jobs that are done: to release such a lease does nothing.

A crash ends the connection, and its waiting claims lease nothing. This module must not know sessions.
"""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.api.queues.jobs import JobKeys
from seawall.core.types import TopicId
from seawall.engine.serving.served_log import ServedLog
from seawall.server.connection.access import Admission
from seawall.server.connection.budget import Account
from seawall.server.connection.connection import Connection
from seawall.server.lwp2.queue_commands import QueueCommands
from seawall.topics.state import TopicState
from seawall.wire.format.codes import ClaimFlags
from seawall.wire.jobs.rows import JOB_ROW, ClaimedJobs, JobRows
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.jobs import JobClaim, JobRequest, Jobs, encode_jobs

#: A lease that is bound to a connection.
_LEASE: Final = np.dtype([("topic_id", "<u4"), ("zero", "<u4"), ("seq", "<u8"), ("lease_id", "<u8")])
assert _LEASE.itemsize == 24


class QueueRequests:
    """The queue requests of one connection."""

    def __init__(self, log: ServedLog, commands: QueueCommands, connection: Connection, admission: Admission) -> None:
        self._log = log
        self._commands = commands
        self._connection = connection
        self._admission = admission
        self._leases = BoundLeases(connection.memory.standing)
        self._is_stopping = False
        #: The tasks of claims that wait for jobs.
        self._waiting: set[asyncio.Task[None]] = set()
        #: Set when everything written is sent.
        self._sent = asyncio.Event()

    async def execute(self, request: JobRequest, request_id: int) -> None:
        """Execute a request and answer it."""
        if isinstance(request, JobClaim):
            await self._claim(request, request_id)
            return
        reply = await self._commands.execute(request)
        if isinstance(reply, Jobs):
            self._send(reply.claimed, request_id)
        else:
            self._connection.write(encode_control(reply, request_id=request_id))

    async def _claim(self, request: JobClaim, request_id: int) -> None:
        """Lease jobs and send them; waits for the first one."""
        topic = self._commands.topic(request.topic_id)
        while self._connection.is_full:
            self._sent.clear()
            await self._sent.wait()
        # Wait while the reader is in debt: the jobs are charged when their size is known.
        granted = await self._admission.fair_size(1, lambda: self._is_stopping)
        claimed = await self._claimed(topic, request)
        if request.flags & ClaimFlags.BOUND or self._connection.is_closing:
            self._leases.add(topic.topic_id, claimed.rows)
        self._admission.has_sent(granted, len(claimed.block))
        self._send(claimed, request_id)

    async def _claimed(self, topic: TopicState, request: JobClaim) -> ClaimedJobs:
        """The jobs of a claim; none if it waits and the connection closes."""
        wait_ms = 0 if self._is_stopping else request.wait_ms
        task = asyncio.current_task()
        assert task is not None, "requests run as tasks"
        if wait_ms:
            self._waiting.add(task)
        try:
            return await self._log.queues.claim(topic.name, request.node, request.count, request.lease_ms, wait_ms)
        except asyncio.CancelledError:
            if not self._is_stopping or task.uncancel():
                # The connection is lost.
                raise
        finally:
            self._waiting.discard(task)
        ready = (await self._log.queues.counts(topic.name)).ready
        return ClaimedJobs(np.zeros(0, JOB_ROW), memoryview(b""), ready, request.lease_ms or topic.config.lease_ms)

    def _send(self, claimed: ClaimedJobs, request_id: int) -> None:
        self._connection.write(*encode_jobs(claimed, request_id=request_id))

    def has_space(self) -> None:
        """Continue to answer: everything written is sent."""
        self._sent.set()

    def stop_waiting(self) -> None:
        """Answer waiting claims now: the connection closes."""
        self._is_stopping = True
        for task in self._waiting:
            task.cancel()

    def lost(self) -> None:
        """Release what is bound to the connection: it has ended."""
        self._commands.release(self._leases.take())


class BoundLeases:
    """The latest leases that are bound to one connection."""

    __slots__ = ("_account", "_rows")

    def __init__(self, account: Account) -> None:
        """`account` counts the memory."""
        self._account = account
        self._rows: npt.NDArray[np.void] = np.zeros(0, _LEASE)

    def add(self, topic_id: TopicId, claimed: JobRows) -> None:
        """Remember new leases, and forget the oldest ones above the limit."""
        added = np.zeros(claimed.size, _LEASE)
        added["topic_id"], added["seq"], added["lease_id"] = topic_id, claimed["seq"], claimed["lease_id"]
        self._keep(np.concatenate((self._rows, added))[-limits.BOUND_LEASES_MAX :])

    def take(self) -> dict[TopicId, JobKeys]:
        """Forget all leases; returns them by topic, of each job the latest."""
        rows = self._rows[::-1]
        self._keep(self._rows[:0])
        found = {}
        for topic_id in np.unique(rows["topic_id"]).tolist():
            of_topic = rows[rows["topic_id"] == topic_id]
            seqs, latest = np.unique(of_topic["seq"], return_index=True)
            found[topic_id] = JobKeys(seqs.tolist(), of_topic["lease_id"][latest].tolist())
        return found

    def _keep(self, rows: npt.NDArray[np.void]) -> None:
        self._account.hold(rows.nbytes - self._rows.nbytes)
        self._rows = rows
