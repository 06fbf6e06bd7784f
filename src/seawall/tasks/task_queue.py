"""A queue of tasks: the functions, where their log is, and how jobs are pushed.

    from seawall.tasks import TaskQueue

    tasks = TaskQueue("seawall://127.0.0.1:1992", topic="mails")

    @tasks.task(retries=5, time_limit_s=60)
    def send_mail(to: str) -> None: ...

    @tasks.cron("0 7 * * mon-fri", timezone="Europe/Berlin")
    def send_digest() -> None: ...

    send_mail.send("ada")                       # in the program
    seawall worker mails:tasks --processes 4    # in a shell; or `with tasks.worker(): …` in a program

A TaskQueue is created when its module is imported, and opens its log when it is first used. Topics that do not exist
are created then: the queue `mails` with the dead-letter topic `mails.dead`, and `mails.results` if results are on.
Create them before to give them other settings. A forked child opens a log of its own.

Jobs are delivered at least once. What a task publishes with `current_job().publish`, and its result, are stored exactly
once, since they are one transaction with the ack of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from seawall.api.publishable import Message
from seawall.api.queues.jobs import Backoff, milliseconds
from seawall.api.queues.queue import Queue
from seawall.core.identifiers import check_topic_name
from seawall.errors import ConflictError, InvalidInputError, WrongStateError
from seawall.io.process.clocks import OsClock
from seawall.io.process.own_process import process_id
from seawall.limits import TASK_GRACE_S, TASK_LEASE_S, TASK_THREADS
from seawall.tasks.cron import parse_cron
from seawall.tasks.dead_letters import default_dead_letter
from seawall.tasks.executor import Executor
from seawall.tasks.job_format import JSON, Codec, TaskCall, job_message
from seawall.tasks.middleware import JobLog, Middleware
from seawall.tasks.results import ResultReader, Results, SentJob
from seawall.tasks.retries import RetryPolicy
from seawall.tasks.schedules import CronSchedule, IntervalSchedule, PeriodicTask, Schedule, Scheduler, schedule_owner
from seawall.tasks.task import Task, TaskOptions, UniqueKey
from seawall.tasks.task_log import Location, TaskLog, ensure_queue
from seawall.tasks.worker import Worker
from seawall.wire.jobs.options import JobOptions

if TYPE_CHECKING:
    from seawall.io.network.tls import Tls

P = ParamSpec("P")
R = TypeVar("R")


class _Decorator(Protocol):
    """Makes a task of a function."""

    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


@dataclass(slots=True)
class _Opened:
    """The log of this process, and what is used of it."""

    log: TaskLog
    queue: Queue
    process: int
    #: Reads results; None before the first job was sent, or without results.
    reader: ResultReader | None = None


class TaskQueue:
    """Tasks, and the queue that their jobs go through. Threads may share it."""

    def __init__(
        self,
        location: str | Path | TaskLog,
        topic: str,
        *,
        results: bool | Results = False,
        middleware: Sequence[Middleware] = (),
        codec: Codec = JSON,
        lease_s: float = TASK_LEASE_S,
        token: str = "",
        tls: Tls | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
    ) -> None:
        """Name a queue; nothing is opened yet.

        `location` is the URL of a server, a data directory, or an open log. With `results` the handles of sent jobs
        have a result. `middleware` runs around each job, inside the log lines. A worker that is killed keeps its jobs
        for `lease_s`. `token` and `tls…` are those of `seawall.connect`.
        """
        #: Where the log is; None if an open log was given.
        self.location: Location | None = None
        self._given: TaskLog | None = None
        if isinstance(location, str | Path):
            self.location = Location(str(location), token, tls, tls_cert, tls_key)
        else:
            self._given = location
        self.topic = check_topic_name(topic)
        self._results = Results(f"{topic}.results") if results is True else results or None
        self._middleware = [JobLog(), *middleware, *([self._results] if self._results else [])]
        self._codec = codec
        self._lease_s = lease_s
        self._tasks: dict[str, Task[..., Any]] = {}
        self._opened: _Opened | None = None
        self._lock = Lock()

    # --- tasks -----------------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        retries: int = 3,
        backoff: Backoff | None = None,
        time_limit_s: float | None = None,
        priority: int = 0,
        unique: UniqueKey | None = None,
    ) -> _Decorator: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retries: int = 3,
        backoff: Backoff | None = None,
        time_limit_s: float | None = None,
        priority: int = 0,
        unique: UniqueKey | None = None,
    ) -> Any:
        """Make a task of a function, which may be a coroutine function. Use it as a decorator.

        After an exception the job is delivered again, up to `retries` times, each time later by `backoff`; then it is a
        dead letter. `time_limit_s` bounds one attempt. Jobs with a higher `priority`, 0 to 9, are claimed first.
        `unique` makes a key of the arguments: no job is pushed while one with that key waits or runs. The task has the
        name of the function unless `name` is given; jobs refer to it by that name.
        """
        options = TaskOptions(RetryPolicy(retries, backoff or Backoff()), time_limit_s, priority, unique)
        if function is not None:
            return self._register(function, name, options)
        return lambda function: self._register(function, name, options)

    def cron(self, expression: str, *, timezone: str = "UTC") -> Callable[[Callable[..., R]], Task[..., R]]:
        """Make a periodic task of a task or a function without arguments. Use it as a decorator, above `task` if both.

        A cron expression has five fields: minute, hour, day of month, month, day of week. Each tick is pushed exactly
        once, however many workers run; of the ticks that were missed while none ran, only the latest is made up for.
        """
        return lambda function: self._periodic(function, CronSchedule(parse_cron(expression, timezone)))

    def every(self, seconds: float) -> Callable[[Callable[..., R]], Task[..., R]]:
        """Make a periodic task, as `cron` does, that is due every so many seconds, counted from the Unix epoch."""
        return lambda function: self._periodic(function, IntervalSchedule(milliseconds(seconds, "an interval")))

    @property
    def tasks(self) -> dict[str, Task[..., Any]]:
        """The tasks by their names."""
        return dict(self._tasks)

    def _register(self, function: Callable[..., Any], name: str | None, options: TaskOptions) -> Task[..., Any]:
        task = Task(function, name or function.__name__, options, self._send)
        if task.name in self._tasks:
            raise ConflictError(f"queue {self.topic!r} has two tasks {task.name!r}: give one of them another name=…")
        self._tasks[task.name] = task
        return task

    def _periodic(self, function: Callable[..., R], schedule: Schedule) -> Task[..., R]:
        task = function if isinstance(function, Task) else self._register(function, None, TaskOptions())
        if self._tasks.get(task.name) is not task:
            raise InvalidInputError(f"task {task.name!r} belongs to another queue: give it its schedule there")
        task.call_of((), {})  # raises if it needs arguments
        schedule_owner(self.topic, task.name)  # raises if the names are too long
        task.schedule = schedule
        return task

    # --- the log ---------------------------------------------------------------------------------------------------

    def use(self, location: str | Path | None = None, *, token: str | None = None) -> None:
        """Use another log than the one that was named; before the first use."""
        if self._opened is not None:
            raise WrongStateError(f"queue {self.topic!r} is open already: call use() before the first job is sent")
        if location is not None:
            self._given, self.location = None, Location(str(location))
        if token is not None and self.location is not None:
            self.location = replace(self.location, token=token)

    @property
    def queue(self) -> Queue:
        """The queue itself: its counts, `peek`, `purge`, `redrive`."""
        return self._open().queue

    @property
    def log(self) -> TaskLog:
        """The log of this process."""
        return self._open().log

    def close(self) -> None:
        """Close the log, unless it was given. It is opened again when it is needed."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None and self._given is None and opened.process == process_id():
            opened.log.close()

    def worker(self, *, threads: int = TASK_THREADS, grace_s: float = TASK_GRACE_S) -> Worker:
        """A worker of this process; `with tasks.worker():` starts and stops it.

        It executes up to `threads` jobs at once. When it stops, running tasks have `grace_s` to finish.
        """
        log = self._open().log
        if self._results is not None:
            self._results.prepare(log)
        clock = OsClock()
        executor = Executor(log, self.topic, self._tasks, self._codec, self._middleware, clock)
        periodic = [self._tick_of(task, task.schedule) for task in self._tasks.values() if task.schedule is not None]
        scheduler = Scheduler(log, self.topic, periodic, clock) if periodic else None
        return Worker(
            log.queue(self.topic), executor, scheduler, clock, threads=threads, lease_s=self._lease_s, grace_s=grace_s
        )

    def _open(self) -> _Opened:
        with self._lock:
            if self._opened is None or self._opened.process != process_id():
                log = self._given
                if log is None:
                    assert self.location is not None, "a log or a location was given"
                    log = self.location.open(f"tasks {self.topic}")
                ensure_queue(log, self.topic, default_dead_letter(self.topic))
                self._opened = _Opened(log, log.queue(self.topic), process_id())
            return self._opened

    # --- jobs ------------------------------------------------------------------------------------------------------

    def _send(self, call: TaskCall, *, delay_s: float, priority: int, unique: str | bytes | None) -> SentJob:
        message = job_message(call, self._codec)
        opened = self._open()
        reader = self._reader(opened)
        if unique is None:
            (seq,) = opened.queue.push(message, delay_s=delay_s, priority=priority).seqs
            return SentJob(call.task, seq, reader)
        pushed = opened.queue.push_unique(message, unique, delay_s=delay_s, priority=priority)
        return SentJob(call.task, pushed.seq, reader, is_new=pushed.is_new)

    def _reader(self, opened: _Opened) -> ResultReader | None:
        """The reader of results, which starts before the first job of this process; None without results."""
        if self._results is None:
            return None
        with self._lock:
            if opened.reader is None:
                start_seq = self._results.prepare(opened.log)
                opened.reader = ResultReader(opened.log, self._results.topic, start_seq, OsClock())
            return opened.reader

    def _tick_of(self, task: Task[..., Any], schedule: Schedule) -> PeriodicTask:
        headers = JobOptions(priority=task.options.priority).headers()

        def message(tick_ms: int) -> Message:
            job = job_message(TaskCall(task.name, tick_ms=tick_ms), self._codec)
            assert isinstance(job.headers, list), "made as a list"
            return replace(job, headers=[*((name.decode(), value) for name, value in headers), *job.headers])

        return PeriodicTask(task.name, schedule, message)
