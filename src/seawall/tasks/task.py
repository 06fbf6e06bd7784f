"""Tasks: functions that can be called, or sent as jobs to be executed by a worker.

    @tasks.task(retries=5, time_limit_s=60)
    def send_mail(to: str, urgent: bool = False) -> None: ...

    send_mail("ada")                        # calls the function, here and now
    send_mail.send("ada", urgent=True)      # pushes a job, durable when this returns

This module must not know how jobs are pushed: its owner passes that in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from seawall.errors import InvalidInputError
from seawall.limits import TASK_NAME_SIZE_MAX, TASK_TIME_S_MAX
from seawall.tasks.job_format import TaskCall
from seawall.tasks.results import SentJob
from seawall.tasks.retries import RetryPolicy
from seawall.tasks.schedules import Schedule
from seawall.wire.jobs.options import JobOptions

P = ParamSpec("P")
R = TypeVar("R")

#: Makes a unique key of the arguments of a call; None for none.
UniqueKey = Callable[..., str | bytes | None]


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How a task is executed and pushed."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    time_limit_s: float | None = None
    priority: int = 0
    unique: UniqueKey | None = None

    def __post_init__(self) -> None:
        JobOptions(priority=self.priority).headers()  # raises for a priority that does not exist
        if self.time_limit_s is not None and not 0 < self.time_limit_s <= TASK_TIME_S_MAX:
            raise InvalidInputError(
                f"a time limit of {self.time_limit_s} s: give a positive number up to {TASK_TIME_S_MAX:g}, or "
                "None for none"
            )


class Send(Protocol):
    """Pushes the job of a call."""

    def __call__(self, call: TaskCall, *, delay_s: float, priority: int, unique: str | bytes | None) -> SentJob:
        """Push it; durable when this returns."""
        ...


class Task(Generic[P, R]):
    """A function that workers can execute. Create one with `TaskQueue.task`."""

    def __init__(self, function: Callable[P, R], name: str, options: TaskOptions, send: Send) -> None:
        if not 1 <= len(name) <= TASK_NAME_SIZE_MAX:
            raise InvalidInputError(f"a task name of {len(name)} characters: 1 to {TASK_NAME_SIZE_MAX} are allowed")
        self.function = function
        self.name = name
        self.options = options
        #: When it is due, if it is periodic.
        self.schedule: Schedule | None = None
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self._signature = inspect.signature(function)
        self._send = send
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> SentJob:
        """Push a job that calls the function with these arguments; durable as its topic says when this returns."""
        return self.send_with_options(args, kwargs)

    def send_with_options(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        delay_s: float = 0.0,
        priority: int | None = None,
        unique: str | bytes | None = None,
    ) -> SentJob:
        """Push a job with other options than those of the task.

        The job can be claimed after `delay_s`. With a `unique` key no job is pushed if one with this key waits or runs.
        """
        call = self.call_of(args, kwargs or {})
        if unique is None and self.options.unique is not None:
            unique = self.options.unique(*args, **kwargs or {})
        priority = self.options.priority if priority is None else priority
        return self._send(call, delay_s=delay_s, priority=priority, unique=unique)

    def call_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskCall:
        """The call with these arguments; `InvalidInputError` if the function does not take them."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidInputError(f"task {self.name!r} does not take these arguments: {error}") from error
        return TaskCall(self.name, args, kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"
