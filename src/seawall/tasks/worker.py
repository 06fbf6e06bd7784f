"""A worker: claims the jobs of a queue and executes them on threads, until it is stopped.

    claimer     claims as many jobs as threads are free, and waits for the first one
    threads     execute one job each; coroutines run on one event loop, and their thread waits
    leases      extends the leases of all jobs that this worker has
    schedule    pushes periodic tasks

A job is claimed only for a thread whose task has returned, so no job waits here for a task while another worker is
idle. It may wait for the ack of the job before it: the request for the next job and that ack are in flight together.
Jobs at once are as many as threads, also for coroutines.

`stop` ends it in order: no more claims, running tasks may finish until the grace period ends, then they are
interrupted and their jobs returned. A thread that does not react, because it is in a call into C, is left alone: its
job is returned, and an ack that it still sends is refused. A crash costs the time until the leases end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue
from threading import Condition, Event, Lock, Thread
from types import TracebackType
from typing import Final, Self

from seawall.api.queues.queue import Job, Queue
from seawall.errors import InvalidInputError, SeawallError
from seawall.io.interfaces import Clock
from seawall.limits import (
    JOBS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    TASK_CLAIM_WAIT_S,
    TASK_INTERRUPT_S,
    TASK_RETRY_S,
    TASK_TIME_S_MAX,
)
from seawall.tasks.executor import Executor
from seawall.tasks.schedules import Scheduler

LOG: Final = logging.getLogger("seawall.tasks")

#: How long a job waits that was claimed while the worker stopped: none.
_AT_ONCE: Final = 0.0


class Worker:
    """Executes the jobs of a queue. Create one with `TaskQueue.worker`; leaving its `with` block stops it."""

    def __init__(
        self,
        queue: Queue,
        executor: Executor,
        scheduler: Scheduler | None,
        clock: Clock,
        *,
        threads: int,
        lease_s: float,
        grace_s: float,
    ) -> None:
        if not 1 <= threads <= JOBS_MAX:
            raise InvalidInputError(f"{threads} threads of a worker: give 1 to {JOBS_MAX}")
        if not LEASE_MS_MIN <= lease_s * 1_000 <= LEASE_MS_MAX:
            raise InvalidInputError(f"a lease of {lease_s} s: give {LEASE_MS_MIN / 1_000} to {LEASE_MS_MAX // 1_000} s")
        _check_grace(grace_s)
        self._queue = queue
        self._executor = executor
        self._scheduler = scheduler
        self._clock = clock
        self._thread_count = threads
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._inbox: SimpleQueue[Job | None] = SimpleQueue()
        self._stopping = Event()
        self._stopped = Event()
        self._stop_lock = Lock()
        #: The jobs that this worker has, by lease: a job whose lease has ended may come a second time. `_changed` is
        #: notified when one ends.
        self._held: dict[int, Job] = {}
        #: The leases of those of them whose task has not returned.
        self._unreturned: set[int] = set()
        self._changed = Condition()
        self._threads: list[Thread] = []
        self._claimer = Thread(target=self._claim, name="seawall-claimer", daemon=True)

    @property
    def name(self) -> str:
        """The name under which it leases jobs."""
        return self._queue.node

    def start(self) -> None:
        """Start the threads."""
        for number in range(self._thread_count):
            self._start(Thread(target=self._work, name=f"seawall-task-{number}", daemon=True))
        self._start(Thread(target=self._keep_leases, name="seawall-leases", daemon=True))
        if self._scheduler is not None:
            run = self._scheduler.run
            self._start(Thread(target=run, args=(self._stopping,), name="seawall-schedule", daemon=True))
        self._claimer.start()

    def stop(self, grace_s: float | None = None) -> int:
        """Stop claiming, and let running tasks finish within `grace_s`; returns how many did not.

        Their jobs are returned to the queue. Stopping twice is fine.
        """
        grace_s = self._grace_s if grace_s is None else grace_s
        _check_grace(grace_s)
        with self._stop_lock:
            if self._stopped.is_set():
                return 0
            deadline_ns = self._clock.monotonic_ns() + int(grace_s * 1e9)
            self._stopping.set()
            with self._changed:
                self._changed.notify_all()
            self._wait_until_idle(deadline_ns)
            interrupted = len(self._jobs())
            if interrupted:
                self._executor.interrupt()
                self._wait_until_idle(self._clock.monotonic_ns() + int(TASK_INTERRUPT_S * 1e9))
            rest = self._jobs()
            if rest:
                LOG.warning("%d tasks do not react: their jobs are returned, and they are left alone", len(rest))
                self._return(rest)
            self._stopped.set()
            for _ in range(self._thread_count):
                self._inbox.put(None)
            self._executor.stop()
            for thread in [self._claimer, *self._threads]:
                thread.join(TASK_INTERRUPT_S if not rest else 0.0)
            return interrupted

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- threads ---------------------------------------------------------------------------------------------------

    def _start(self, thread: Thread) -> None:
        self._threads.append(thread)
        thread.start()

    def _claim(self) -> None:
        """Claim jobs for free threads until the worker stops."""
        while (free := self._wait_for_free()) > 0:
            try:
                jobs = self._queue.claim(free, lease_s=self._lease_s, wait_s=TASK_CLAIM_WAIT_S)
            except (SeawallError, OSError) as error:
                if not self._stopping.is_set():
                    LOG.warning("cannot claim jobs of queue %s, tries again: %s", self._queue.topic, error)
                self._stopping.wait(TASK_RETRY_S)
                continue
            if self._stopping.is_set():
                if jobs:
                    self._return(jobs)
                return
            with self._changed:
                self._held.update((job.lease_id, job) for job in jobs)
                self._unreturned.update(job.lease_id for job in jobs)
            for job in jobs:
                self._inbox.put(job)

    def _wait_for_free(self) -> int:
        """Wait for free threads; 0 if the worker stops."""
        with self._changed:
            while not self._stopping.is_set():
                if len(self._unreturned) < self._thread_count:
                    return self._thread_count - len(self._unreturned)
                self._changed.wait()
        return 0

    def _work(self) -> None:
        """Execute jobs until the worker stops."""
        while (job := self._inbox.get()) is not None:
            try:
                self._executor.execute(job, partial(self._returned, job))
            finally:
                with self._changed:
                    self._held.pop(job.lease_id, None)
                    self._unreturned.discard(job.lease_id)
                    self._changed.notify_all()

    def _returned(self, job: Job) -> None:
        """Claim another job: the thread of this one needs it once the queue knows the outcome."""
        with self._changed:
            self._unreturned.discard(job.lease_id)
            self._changed.notify_all()

    def _keep_leases(self) -> None:
        """Extend the leases of all jobs that this worker has, until it has stopped."""
        while not self._stopped.wait(self._lease_s / 3):
            jobs = self._jobs()
            if not jobs:
                continue
            try:
                skipped = self._queue.extend(jobs, self._lease_s).skipped
            except (SeawallError, OSError) as error:
                LOG.warning("cannot extend the leases of %d jobs, tries again: %s", len(jobs), error)
                continue
            for seq in set(skipped) & {job.seq for job in self._jobs() if not job.is_decided}:
                LOG.warning("job %d: its lease has ended, and another worker may have it", seq)

    # --- jobs ------------------------------------------------------------------------------------------------------

    def _jobs(self) -> list[Job]:
        with self._changed:
            return list(self._held.values())

    def _wait_until_idle(self, deadline_ns: int) -> None:
        """Wait until the claimer has ended and no task runs, or for the deadline."""
        self._claimer.join(max(0.0, (deadline_ns - self._clock.monotonic_ns()) / 1e9))
        with self._changed:
            while self._held:
                left_s = (deadline_ns - self._clock.monotonic_ns()) / 1e9
                if left_s <= 0:
                    return
                self._changed.wait(left_s)

    def _return(self, jobs: Sequence[Job]) -> None:
        try:
            self._queue.nack(jobs, _AT_ONCE)
        except (SeawallError, OSError) as error:
            LOG.warning("%d jobs cannot be returned, their leases end by themselves: %s", len(jobs), error)


def _check_grace(grace_s: float) -> None:
    if not 0 <= grace_s <= TASK_TIME_S_MAX:
        raise InvalidInputError(f"a grace period of {grace_s} s: give 0 to {TASK_TIME_S_MAX:g} s")
