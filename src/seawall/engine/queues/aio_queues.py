"""The queue commands of an embedded log for asyncio: the backend of `log.queue(…)` on an event loop.

Each command runs on a thread, as `log_queues` executes it: acks that run at the same time share a delete.
A claim that waits holds no thread: one task of each queue is woken by commits and when a lease or a delay ends, and
serves all claims that wait.

This module must not know connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from seawall.api.publishable import Message, Publishable
from seawall.api.queues.jobs import JobKeys, PushedJob
from seawall.core.jobs import JobOutcome, QueueCounts
from seawall.engine.commit.delivery import Delivery
from seawall.engine.queues.claims import Claim, ClaimLine
from seawall.engine.queues.host import AsyncHostLog
from seawall.engine.queues.log_queues import LogQueues, new_claim
from seawall.errors import SeawallError
from seawall.limits import CLAIM_WAIT_MS_MAX
from seawall.wire.jobs.rows import ClaimedJobs

P = ParamSpec("P")
R = TypeVar("R")


class AsyncLogQueues:
    """The queues of an embedded log on an event loop. Tasks of the loop may share it."""

    def __init__(self, log: AsyncHostLog, queues: LogQueues, on_thread: Callable[..., Awaitable[Any]]) -> None:
        self._log = log
        self._queues = queues
        self._on_thread = on_thread
        #: How many claims of this loop wait in a line, which other loops may use, too.
        self._waiting: dict[ClaimLine, int] = {}
        #: The task that watches for the claims that wait in a line.
        self._watchers: dict[ClaimLine, asyncio.Task[None]] = {}
        #: Those of them that wait for new jobs now.
        self._idle: set[ClaimLine] = set()

    def now_ms(self) -> int:
        """The time in milliseconds since the Unix epoch."""
        return self._queues.now_ms()

    async def push(self, topic: str, records: Publishable) -> Delivery:
        """Append jobs."""
        self._queues.check_queue(topic)
        delivery = self._log.publish(topic, records)
        await delivery
        return delivery

    async def push_unique(self, topic: str, record: Message, key: bytes) -> PushedJob:
        """Append a job unless one with this key is there."""
        return await self._run(self._queues.push_unique, topic, record, key)

    async def claim(self, topic: str, node: str, count_max: int, lease_ms: int, wait_ms: int) -> ClaimedJobs:
        """Lease jobs to a worker; waits for the first one. A claim that is cancelled leases nothing."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        claim = new_claim(node, count_max, lease_ms, wake, may_watch=False)
        begun = asyncio.ensure_future(self._run(self._queues.begin_claim, topic, claim))
        try:
            line = await asyncio.shield(begun)
            with self._counted(line):
                await self._wait(topic, line, claim, woken, min(wait_ms, CLAIM_WAIT_MS_MAX) / 1e3)
            if not claim.is_done:
                await asyncio.shield(self._run(line.remove, claim))
            # Also if it was served: not always by the task that watches.
            self._stop_watching(line)
        except BaseException:
            await asyncio.shield(self._abandon(topic, begun, claim))
            raise
        return self._queues.claimed(topic, claim)

    async def _wait(self, topic: str, line: ClaimLine, claim: Claim, woken: asyncio.Event, wait_s: float) -> None:
        """Wait until a claim is decided, or for some time; longer while its cohort is gathered."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while not claim.is_done:
            gathering_s = self._queues.cohort_s(line)
            left_s = gathering_s if gathering_s > 0 else deadline - loop.time()
            if left_s <= 0:
                if line.cohort_at_ms:
                    # It has ended just now.
                    await self._run(self._queues.serve, topic, line)
                return
            self._watch(topic, line)
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await woken.wait()
            if gathering_s > 0:
                await self._run(self._queues.serve, topic, line)

    @contextmanager
    def _counted(self, line: ClaimLine) -> Iterator[None]:
        """Count a claim while it waits."""
        self._waiting[line] = self._waiting.get(line, 0) + 1
        try:
            yield
        finally:
            self._waiting[line] -= 1
            if not self._waiting[line]:
                del self._waiting[line]

    def _is_awaited(self, line: ClaimLine) -> bool:
        """True if claims of this loop wait."""
        return line in self._waiting and len(line) > 0

    async def _abandon(self, topic: str, begun: asyncio.Future[ClaimLine], claim: Claim) -> None:
        """Withdraw a claim whose task was cancelled, and return what it got meanwhile."""
        with suppress(SeawallError, OSError):
            line = await begun
            await self._run(line.remove, claim)
            self._stop_watching(line)
            await self._run(self._queues.undo_claim, topic, claim)

    def _watch(self, topic: str, line: ClaimLine) -> None:
        """Make sure that a task serves the claims that wait."""
        task = self._watchers.get(line)
        if task is None or task.done():
            self._watchers[line] = task = asyncio.create_task(self._serve(topic, line))
            task.add_done_callback(partial(self._forget, line))

    def _stop_watching(self, line: ClaimLine) -> None:
        """End the task of a line in which no claim of this loop waits any more."""
        if line in self._idle and not self._is_awaited(line):
            self._idle.remove(line)
            self._watchers.pop(line).cancel()

    def _forget(self, line: ClaimLine, task: asyncio.Task[None]) -> None:
        if self._watchers.get(line) is task:
            del self._watchers[line]

    async def _serve(self, topic: str, line: ClaimLine) -> None:
        """Serve the claims of a queue whenever there may be jobs, as long as there are any."""
        try:
            while self._is_awaited(line):
                changes = self._log.next_readable()
                await self._run(self._queues.serve, topic, line)
                if not self._is_awaited(line):
                    return
                wait_s = await self._run(self._queues.pause_s, topic, line)
                if not self._is_awaited(line):
                    # The last claim has left meanwhile, and did not find this task idle.
                    return
                self._idle.add(line)
                try:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await changes.wait()
                finally:
                    self._idle.discard(line)
        except (SeawallError, OSError) as error:
            # The topic was deleted, or the log is closed.
            await self._run(line.fail, error)

    async def ack(self, topic: str, node: str, jobs: JobKeys) -> JobOutcome:
        """Delete jobs that are leased to the worker."""
        return await self._run(self._queues.ack, topic, node, jobs)

    async def nack(self, topic: str, node: str, jobs: JobKeys, delay_ms: int) -> JobOutcome:
        """Return jobs, to be delivered again after a delay."""
        return await self._run(self._queues.nack, topic, node, jobs, delay_ms)

    async def extend(self, topic: str, node: str, jobs: JobKeys, lease_ms: int) -> JobOutcome:
        """Let the leases end `lease_ms` from now; 0 is the topic's lease."""
        return await self._run(self._queues.extend, topic, node, jobs, lease_ms)

    async def release(self, topic: str, jobs: JobKeys) -> int:
        """Return jobs at once, whoever holds them under these leases."""
        return await self._run(self._queues.release, topic, jobs)

    async def peek(self, topic: str, count_max: int) -> ClaimedJobs:
        """The jobs that would be claimed next, without a lease."""
        return await self._run(self._queues.peek, topic, count_max)

    async def counts(self, topic: str) -> QueueCounts:
        """The jobs by their state."""
        return await self._run(self._queues.counts, topic)

    async def purge(self, topic: str) -> int:
        """Delete all jobs that are not leased; returns how many."""
        return await self._run(self._queues.purge, topic)

    async def redrive(self, topic: str, count_max: int) -> int:
        """Move dead letters of this topic back to the queues that they came from; returns how many."""
        return await self._run(self._queues.redrive, topic, count_max)

    async def _run(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        return cast(R, await self._on_thread(call, *arguments, **named))
