"""A worker of job queues as a process: it claims jobs in every way there is, and notes what it does in a journal.

Each thread, or each task of an event loop, works until the parent closes its end of a pipe. A delivery is noted before
anyone works on the job, an ack before the call and after it returned. So whenever the process is killed, the journal
says what may have happened.

`Hands` decides what to do with jobs; it is written once, as coroutines. Those of a thread never wait: their calls
block.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn, Protocol

from queue_journal import ONCE, POISON, RESULTS, Journal, mark_in, now_ms, open_journal, task_of

import seawall
from seawall.api.queues.aio_queue import AsyncJob
from seawall.api.queues.jobs import Backoff, ClaimedJob
from seawall.api.queues.queue import Job
from seawall.client.aio_remote_log import AsyncRemoteLog
from seawall.client.remote_log import RemoteLog
from seawall.errors import ConflictError, NotFoundError, OutcomeUnknownError

#: How long a call tries to reach the server: longer than any restart takes.
TIMEOUT_S = 90.0

#: Failed jobs come back soon.
BACKOFF = Backoff(first_s=0.1, max_s=1.0)

#: What a worker does with a job before it is finished, and how often. Poison is never finished.
DEEDS = {"work": 970, "extend": 5, "overstay": 5, "return": 15, "leave": 5}
POISON_DEEDS = {"return": 9, "leave": 1}

#: Jobs of one claim, and of one work loop.
CLAIM_MAX, LOOP_MAX = 8, 30


class Calls(Protocol):
    """The calls of one thread or task to the log; each queue by its name."""

    async def claim(self, queue: str, count: int, wait_s: float) -> Sequence[Any]: ...
    def work(self, queue: str, batch: int, *, wait: bool) -> AbstractAsyncContextManager[AsyncIterator[Any]]: ...
    async def ack(self, jobs: Sequence[Any]) -> Sequence[int]: ...
    async def nack(self, job: Any, delay_s: float) -> object: ...
    async def extend(self, job: Any, lease_s: float) -> bool: ...
    async def commit(self, results: Sequence[tuple[str, bytes]], jobs: Sequence[Any]) -> None: ...
    async def pause(self, seconds: float) -> None: ...


class BlockingCalls:
    """The calls of a thread."""

    def __init__(self, log: RemoteLog, node: str) -> None:
        self._log = log
        self._node = node

    async def claim(self, queue: str, count: int, wait_s: float) -> Sequence[Job]:
        return self._log.queue(queue, node=self._node).claim(count, wait_s=wait_s)

    def work(self, queue: str, batch: int, *, wait: bool) -> AbstractAsyncContextManager[AsyncIterator[Job]]:
        return aclosing(self._work(queue, batch, wait))

    async def _work(self, queue: str, batch: int, wait: bool) -> Any:
        jobs = self._log.queue(queue, node=self._node).work(batch=batch, backoff=BACKOFF, wait=wait)
        try:
            for job in jobs:
                yield job
        finally:
            jobs.close()

    async def ack(self, jobs: Sequence[Job]) -> Sequence[int]:
        return self._log.queue(jobs[0].topic, node=self._node).ack(jobs).skipped

    async def nack(self, job: Job, delay_s: float) -> object:
        return job.nack(delay_s)

    async def extend(self, job: Job, lease_s: float) -> bool:
        return job.extend(lease_s)

    async def commit(self, results: Sequence[tuple[str, bytes]], jobs: Sequence[Job]) -> None:
        with self._log.transaction() as transaction:
            for topic, value in results:
                transaction.publish(topic, value)
            transaction.ack(jobs)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class AsyncCalls:
    """The calls of a task."""

    def __init__(self, log: AsyncRemoteLog, node: str, chance: random.Random) -> None:
        self._log = log
        self._node = node
        self._chance = chance

    async def claim(self, queue: str, count: int, wait_s: float) -> Sequence[AsyncJob]:
        claim = self._log.queue(queue, node=self._node).claim(count, wait_s=wait_s)
        if self._chance.random() < 0.8:
            return await claim
        # The claim is cancelled, and its jobs are returned.
        with suppress(TimeoutError):
            return await asyncio.wait_for(claim, self._chance.uniform(0.0, 0.1))
        return []

    def work(self, queue: str, batch: int, *, wait: bool) -> AbstractAsyncContextManager[AsyncIterator[AsyncJob]]:
        return aclosing(self._log.queue(queue, node=self._node).work(batch=batch, backoff=BACKOFF, wait=wait))

    async def ack(self, jobs: Sequence[AsyncJob]) -> Sequence[int]:
        return (await self._log.queue(jobs[0].topic, node=self._node).ack(jobs)).skipped

    async def nack(self, job: AsyncJob, delay_s: float) -> object:
        return await job.nack(delay_s)

    async def extend(self, job: AsyncJob, lease_s: float) -> bool:
        return await job.extend(lease_s)

    async def commit(self, results: Sequence[tuple[str, bytes]], jobs: Sequence[AsyncJob]) -> None:
        async with self._log.transaction() as transaction:
            for topic, value in results:
                await transaction.publish(topic, value)
            transaction.ack(jobs)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Hands:
    """What one thread or task does with jobs, until the worker stops."""

    def __init__(
        self,
        calls: Calls,
        journal: Journal,
        chance: random.Random,
        queues: Sequence[str],
        lease_s: float,
        is_stopping: Callable[[], bool],
        *,
        may_wait: bool,
    ) -> None:
        """Without `may_wait` it waits in no work loop: the jobs of all queues are done in the end."""
        self._calls = calls
        self._journal = journal
        self._chance = chance
        self._queues = queues
        self._lease_s = lease_s
        self._is_stopping = is_stopping
        self._may_wait = may_wait

    async def run(self) -> None:
        while not self._is_stopping():
            queue = self._chance.choice(self._queues)
            if self._chance.random() < 0.4:
                await self._work_loop(queue)
            else:
                await self._claims(queue)

    # --- claims ----------------------------------------------------------------------------------------------------

    async def _claims(self, queue: str) -> None:
        """Claim some jobs, work on each, and finish them together or one by one."""
        count = self._chance.choice((1, 1, 3, CLAIM_MAX))
        requested_ns = time.monotonic_ns()
        jobs = await self._calls.claim(queue, count, self._chance.choice((0.0, 0.05, 0.5)))
        self._note_deliveries(jobs, requested_ns, is_bound=False)
        worked = [job for job in jobs if await self._deed(job) == "work"]
        are_together = self._chance.random() < 0.5
        for is_once in (False, True):
            some = [job for job in worked if (task_of(mark_in(job.value)) == ONCE) == is_once]
            for group in [some] if some and are_together else [[job] for job in some]:
                await (self._commit(group) if is_once else self._ack(group))

    # --- work loops ------------------------------------------------------------------------------------------------

    async def _work_loop(self, queue: str) -> None:
        """Work on some jobs in a loop, which acks, and leave it; the jobs that are left go back."""
        batch = self._chance.choice((1, 1, 4))
        left = self._chance.randrange(1, LOOP_MAX)
        # A job may have been claimed with the one before it: by one of so many steps of the loop.
        asked_ns = deque([time.monotonic_ns()], batch)
        async with self._calls.work(queue, batch, wait=self._may_wait and self._chance.random() < 0.5) as jobs:
            async for job in jobs:
                self._note_deliveries([job], asked_ns[0], is_bound=True)
                left -= 1
                is_last = not left or self._is_stopping()
                if not await self._loop_step(job, is_last) or is_last:
                    return
                asked_ns.append(time.monotonic_ns())

    async def _loop_step(self, job: Any, is_last: bool) -> bool:
        """Work on a job of a work loop; False if the loop must end, and return the job if it is not decided."""
        deadline_ms = job.deadline_ms
        deed = await self._deed(job, is_kept=True)
        if deed == "leave":
            self._note_return(job)
            return False
        if deed == "return":
            return True
        if job.deadline_ms != deadline_ms:
            self._note_extension(job)
        if task_of(mark_in(job.value)) == ONCE:
            await self._commit([job])
        elif is_last or self._chance.random() < 0.85:
            await self._ack([job])
        else:
            # The loop acks it: what became of that is not known.
            self._journal.note(("finish", job.topic, job.seq, job.lease_id, 0, time.monotonic_ns()))
            return True
        if not job.is_decided:
            self._note_return(job)
        return job.is_decided

    # --- one job ---------------------------------------------------------------------------------------------------

    async def _deed(self, job: Any, *, is_kept: bool = False) -> str:
        """Do something with a job: "work" if it is to be finished, "return" if it is returned, "leave" if neither.

        With `is_kept` a work loop extends its lease all the time.
        """
        deeds = POISON_DEEDS if task_of(mark_in(job.value)) == POISON else DEEDS
        (deed,) = self._chance.choices(list(deeds), list(deeds.values()))
        if deed == "return":
            self._note_return(job)
            await self._calls.nack(job, self._chance.choice((0.0, 0.1, 1.0)))
            return deed
        if deed == "leave":
            return deed
        if deed == "extend" and not is_kept and await self._calls.extend(job, 2 * self._lease_s):
            self._note_extension(job)
        if deed in ("extend", "overstay"):
            await self._calls.pause(1.2 * self._lease_s)
        elif self._chance.random() < 0.2:
            await self._calls.pause(self._chance.uniform(0.0, 0.02))
        return "work"

    async def _ack(self, jobs: Sequence[Any]) -> None:
        self._note_call(jobs, 0)
        skipped = await self._calls.ack(jobs)
        self._note_outcomes(jobs, {job.seq: "refused" if job.seq in skipped else "done" for job in jobs})

    async def _commit(self, jobs: Sequence[Any]) -> None:
        """Publish the results of jobs and ack them, in one step."""
        results = [
            (RESULTS, json.dumps([job.topic, job.seq, job.lease_id, mark_in(job.value)]).encode()) for job in jobs
        ]
        self._note_call(jobs, len(jobs))
        outcome = "done"
        try:
            await self._calls.commit(results, jobs)
        except ConflictError:
            outcome = "refused"
        except NotFoundError:
            # The server has lost the staged results at its end.
            outcome = "void"
        except OutcomeUnknownError:
            outcome = "unknown"
        self._note_outcomes(jobs, {job.seq: outcome for job in jobs})

    # --- the journal -----------------------------------------------------------------------------------------------

    def _note_deliveries(self, jobs: Sequence[ClaimedJob], requested_ns: int, *, is_bound: bool) -> None:
        received = time.monotonic_ns(), now_ms()
        self._journal.note(
            *(
                (
                    *("delivery", job.topic, job.seq, job.lease_id, job.deliveries, job.deadline_ms),
                    *(requested_ns, *received, is_bound, mark_in(job.value)),
                )
                for job in jobs
            )
        )

    def _note_call(self, jobs: Sequence[ClaimedJob], count: int) -> None:
        called_ns = time.monotonic_ns()
        self._journal.note(*(("finish", job.topic, job.seq, job.lease_id, count, called_ns) for job in jobs))

    def _note_outcomes(self, jobs: Sequence[ClaimedJob], outcomes: dict[int, str]) -> None:
        returned = time.monotonic_ns(), now_ms()
        self._journal.note(
            *(("finished", job.topic, job.seq, job.lease_id, outcomes[job.seq], *returned) for job in jobs)
        )

    def _note_return(self, job: ClaimedJob) -> None:
        self._journal.note(("return", job.topic, job.seq, job.lease_id, time.monotonic_ns()))

    def _note_extension(self, job: ClaimedJob) -> None:
        self._journal.note(("extend", job.topic, job.seq, job.lease_id, job.deadline_ms))


# --- the process -----------------------------------------------------------------------------------------------------


def hands_of(
    plan: dict[str, Any], number: int, calls: Calls, journal: Journal, is_stopping: Callable[[], bool]
) -> Hands:
    """One of the threads or tasks of a worker."""
    chance = random.Random(f"{plan['seed']} {plan['name']} {number}")
    return Hands(calls, journal, chance, plan["queues"], plan["lease_s"], is_stopping, may_wait=number > 0)


def run_now(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it has waited for an event loop")


def work_until_the_end(plan: dict[str, Any], parent: Connection) -> None:
    """The main function of the process."""
    journal = open_journal(plan)
    if plan["is_async"]:
        asyncio.run(work_in_tasks(plan, journal, parent))
    else:
        work_in_threads(plan, journal, parent)


def work_in_threads(plan: dict[str, Any], journal: Journal, parent: Connection) -> None:
    """Work in threads that share a log."""
    is_ending = threading.Event()

    def failed(arguments: threading.ExceptHookArgs) -> None:
        # A work loop that waits for jobs ends with its log.
        if not is_ending.is_set():
            fail(arguments.exc_value)

    threading.excepthook = failed
    with seawall.connect(plan["url"], timeout_s=TIMEOUT_S) as log:
        threads = []
        for number in range(plan["hands"]):
            hands = hands_of(plan, number, BlockingCalls(log, plan["node"]), journal, is_ending.is_set)
            threads.append(threading.Thread(target=run_now, args=(hands.run(),)))
            threads[-1].start()
        parent.poll(None)
        is_ending.set()
    for thread in threads:
        thread.join()


async def work_in_tasks(plan: dict[str, Any], journal: Journal, parent: Connection) -> None:
    """Work in tasks of one event loop."""
    is_ending = asyncio.Event()
    asyncio.get_running_loop().add_reader(parent.fileno(), is_ending.set)
    async with seawall.connect_async(plan["url"], timeout_s=TIMEOUT_S) as log:
        tasks = []
        for number in range(plan["hands"]):
            calls = AsyncCalls(log, plan["node"], random.Random(f"{plan['seed']} {plan['name']} {number} cancels"))
            hands = hands_of(plan, number, calls, journal, is_ending.is_set)
            tasks.append(asyncio.ensure_future(hands.run()))
        ending = asyncio.ensure_future(is_ending.wait())
        await asyncio.wait([ending, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done() and not is_ending.is_set():
                fail(task.exception())
            task.cancel()
        await asyncio.wait(tasks)


def fail(error: BaseException | None) -> NoReturn:
    """End the process at once, as an error in one of its threads or tasks should."""
    traceback.print_exception(error)
    os._exit(1)
