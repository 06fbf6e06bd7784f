"""Executes one delivered job: finds its task, runs it, and decides with the queue what becomes of the job.

    decode, find the task        a job that no worker can execute is a dead letter at once
    before_execute, run
    returned                     after_success; ack, in one transaction with the published records if there are any
    raised, tries are left       after_failure; nack with the back-off
    raised, no tries are left    after_failure; dead letter, in one transaction with the ack
    interrupted by a stop        nack without delay

What happens when: a worker is killed before the last step, and the job is delivered again when its lease ends; the ack
fails, and the attempt counts as failed; the lease has ended meanwhile, and nothing of this delivery is stored. Nothing
that a job contains or a task raises ends the worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, Final, cast

from seawall.api.queues.queue import Job
from seawall.errors import ConflictError, NotFoundError, OutcomeUnknownError, SeawallError, WrongStateError
from seawall.io.interfaces import Clock
from seawall.tasks.dead_letters import DeadLetterBox
from seawall.tasks.interrupts import (
    Attempt,
    Execution,
    LoopThread,
    TimeLimitError,
    TimeLimits,
    WorkerStoppedError,
)
from seawall.tasks.job_format import Codec, job_call
from seawall.tasks.middleware import Middleware, error_text
from seawall.tasks.result_commits import ResultCommits
from seawall.tasks.retries import RetryPolicy
from seawall.tasks.running_job import CURRENT, Outcome, RunningJob
from seawall.tasks.task import Task
from seawall.tasks.task_log import TaskLog

LOG: Final = logging.getLogger("seawall.tasks")

Tasks = Mapping[str, Task[..., Any]]


def _ignore() -> None:
    """Do nothing when a task has returned."""


class Executor:
    """Executes the jobs of one queue. Threads share it."""

    def __init__(
        self, log: TaskLog, queue: str, tasks: Tasks, codec: Codec, middleware: Sequence[Middleware], clock: Clock
    ) -> None:
        self._log = log
        self._tasks = tasks
        self._codec = codec
        self._middleware = middleware
        self._clock = clock
        self._dead_letters = DeadLetterBox(log, queue)
        self._commits = ResultCommits(log.transaction)
        self._limits = TimeLimits(clock)
        self._loop = LoopThread()
        self._lock = Lock()
        self._executions: set[Execution] = set()
        self._is_stopping = False

    def execute(self, job: Job, on_returned: Callable[[], None] = _ignore) -> Outcome:
        """Execute a job on this thread; returns what became of it.

        Calls `on_returned` when the task has returned or raised, before the queue is told: that takes the time of a
        request, and of a sync.
        """
        began_ns = self._clock.monotonic_ns()
        running = RunningJob(job, self._log.transaction, self._commits)
        token = CURRENT.set(running)
        try:
            outcome = self._execute(running, on_returned)
            duration_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            self._notify(lambda each: each.after_job(running, outcome, duration_s))
        finally:
            CURRENT.reset(token)
        return outcome

    def interrupt(self) -> None:
        """Interrupt everything that runs, and everything that is started from now on."""
        with self._lock:
            self._is_stopping = True
            executions = list(self._executions)
        for each in executions:
            each.interrupt(WorkerStoppedError)

    def stop(self) -> None:
        """Stop the threads of time limits and coroutines."""
        self._limits.stop()
        self._loop.stop()

    # --- the steps -------------------------------------------------------------------------------------------------

    def _execute(self, running: RunningJob, on_returned: Callable[[], None]) -> Outcome:
        try:
            running.call = job_call(running.job.value, running.job.record.headers, self._codec)
            task = self._task(running.call.task)
        except SeawallError as refusal:
            return self._failed(running, refusal, None)
        policy = task.options.retry
        if policy.is_exceeded(running.deliveries):
            error = WrongStateError(
                f"delivered {running.deliveries} times with {policy.retries} retries: workers were killed, or lost "
                "their lease, while they had the job"
            )
            return self._failed(running, error, None)
        with Attempt() as attempt:
            result = self._run(task, running)
        on_returned()
        if attempt.error is None:
            self._notify(lambda each: each.after_success(running, result))
            return self._finish(running, policy)
        if isinstance(attempt.error, WorkerStoppedError):
            self._discard(running)
            return self._give_back(running, 0.0, Outcome.RETURNED)
        if isinstance(attempt.error, TimeLimitError):
            attempt.error.args = (f"it ran longer than its limit of {task.options.time_limit_s} s",)
        return self._failed(running, attempt.error, policy)

    def _task(self, name: str) -> Task[..., Any]:
        task = self._tasks.get(name)
        if task is None:
            known = ", ".join(sorted(self._tasks)) or "none"
            raise NotFoundError(f"there is no task {name!r}; this worker has {known}")
        return task

    def _run(self, task: Task[..., Any], running: RunningJob) -> object:
        """Run the task, interruptibly; returns what it returns."""
        call = running.call
        assert call is not None, "it was decoded"
        execution = Execution()
        with self._lock:
            self._executions.add(execution)
            if self._is_stopping:
                execution.interrupt(WorkerStoppedError)
        if task.options.time_limit_s is not None:
            self._limits.watch(execution, task.options.time_limit_s)
        try:
            if not task.is_coroutine:
                return execution.run(partial(self._call, task, running, call.args, call.kwargs))
            self._before(running)
            coroutine = cast(Coroutine[object, object, object], task.function(*call.args, **call.kwargs))
            return execution.run_coroutine(coroutine, self._loop.loop)
        finally:
            with self._lock:
                self._executions.discard(execution)

    def _call(
        self, task: Task[..., Any], running: RunningJob, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        self._before(running)
        return task.function(*args, **kwargs)

    def _before(self, running: RunningJob) -> None:
        for each in self._middleware:
            each.before_execute(running)

    # --- what becomes of the job -----------------------------------------------------------------------------------

    def _finish(self, running: RunningJob, policy: RetryPolicy) -> Outcome:
        """Ack the job and publish its records."""
        try:
            return Outcome.DONE if running.finish() else Outcome.LOST
        except (ConflictError, OutcomeUnknownError) as error:
            LOG.warning("job %d: its ack is lost: %s", running.seq, error)
            return Outcome.LOST
        except (SeawallError, OSError) as error:
            return self._failed(running, error, policy)

    def _failed(self, running: RunningJob, error: BaseException, policy: RetryPolicy | None) -> Outcome:
        """Try the job again later; without a policy, or after its last try, make it a dead letter."""
        self._discard(running)
        is_final = policy is None or policy.is_last(running.deliveries)
        self._notify(lambda each: each.after_failure(running, error, is_final=is_final))
        if is_final:
            return self._bury(running, error)
        assert policy is not None, "without a policy a failure is final"
        return self._give_back(running, policy.delay_s(running.deliveries), Outcome.RETRY)

    def _bury(self, running: RunningJob, error: BaseException) -> Outcome:
        try:
            return Outcome.DEAD if self._dead_letters.bury(running, error_text(error)) else Outcome.LOST
        except (ConflictError, OutcomeUnknownError) as refusal:
            LOG.warning("job %d: its dead letter is lost: %s", running.seq, refusal)
            return Outcome.LOST
        except (SeawallError, OSError) as refusal:
            LOG.error("job %d cannot become a dead letter, and is delivered again: %s", running.seq, refusal)
            self._discard(running)
            return self._give_back(running, RetryPolicy().delay_s(running.deliveries), Outcome.RETRY)

    def _give_back(self, running: RunningJob, delay_s: float, outcome: Outcome) -> Outcome:
        try:
            return outcome if running.job.nack(delay_s) else Outcome.LOST
        except (SeawallError, OSError) as error:
            LOG.warning("job %d cannot be returned, its lease ends by itself: %s", running.seq, error)
            return Outcome.LOST

    def _discard(self, running: RunningJob) -> None:
        """Drop the records of a failed attempt; those that cannot be deleted now expire by their age."""
        with suppress(SeawallError, OSError):
            running.discard()

    def _notify(self, call: Callable[[Middleware], None]) -> None:
        """Call middleware in reverse order; what it raises is logged."""
        for each in reversed(self._middleware):
            with Attempt() as attempt:
                call(each)
            if attempt.error is not None:
                LOG.error("middleware %s has failed", type(each).__name__, exc_info=attempt.error)
