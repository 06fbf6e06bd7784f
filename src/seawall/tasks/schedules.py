"""Periodic tasks: which ticks are due, and pushing each of them once.

A tick is a time in milliseconds since the Unix epoch: a minute that a cron expression selects, or a multiple of an
interval. All workers of a queue compute the same ticks. The worker that notices a tick pushes its job in a transaction

    owner    schedule:<queue>:<task>
    epoch    the tick

which the log commits once under that key: a second worker, or the same one after a restart, gets the first result, and
a worker whose clock is late is fenced, because epochs of an owner rise. So each tick is pushed once, however many
workers there are, and after a crash at any point.

The first worker that ever knows a task commits an empty transaction for the tick before now: from then on the log
knows the last tick, until `TRANSACTION_OWNERS_MAX` other owners have committed transactions. After that, only a worker
that has run all the time pushes the next tick. Ticks that were missed while no worker ran are not made up for, except
for the latest one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import Final, Protocol

from seawall.api.publishable import Message
from seawall.errors import FencedError, InvalidInputError, LimitError, SeawallError
from seawall.io.interfaces import Clock
from seawall.limits import TASK_RETRY_S, TASK_TICK_WAIT_S, TRANSACTION_OWNER_SIZE_MAX
from seawall.tasks.cron import CronExpression
from seawall.tasks.task_log import TaskLog

LOG: Final = logging.getLogger("seawall.tasks")


class Schedule(Protocol):
    """When a periodic task is due. Times are milliseconds since the Unix epoch."""

    def next_after(self, now_ms: int) -> int:
        """The first tick after a time."""
        ...

    def last_until(self, now_ms: int) -> int:
        """The last tick that is not after a time; 0 if there was none."""
        ...


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """Ticks of a cron expression."""

    expression: CronExpression

    def next_after(self, now_ms: int) -> int:
        """The first tick after a time."""
        return _milliseconds(self.expression.next_after(_moment(now_ms)))

    def last_until(self, now_ms: int) -> int:
        """The last tick that is not after a time; 0 if there was none."""
        found = self.expression.last_until(_moment(now_ms))
        return 0 if found is None else _milliseconds(found)


@dataclass(frozen=True, slots=True)
class IntervalSchedule:
    """Ticks at the multiples of an interval, counted from the Unix epoch."""

    interval_ms: int

    def __post_init__(self) -> None:
        if self.interval_ms < 1_000:
            raise InvalidInputError(f"an interval of {self.interval_ms / 1_000} s: give at least 1 second")

    def next_after(self, now_ms: int) -> int:
        """The first tick after a time."""
        return self.last_until(now_ms) + self.interval_ms

    def last_until(self, now_ms: int) -> int:
        """The last tick that is not after a time."""
        return now_ms - now_ms % self.interval_ms


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """A task with a schedule; `message` makes the job of a tick."""

    name: str
    schedule: Schedule
    message: Callable[[int], Message]


def schedule_owner(queue: str, task: str) -> str:
    """The owner of the ticks of a task; raises if the names are too long for one."""
    owner = f"schedule:{queue}:{task}"
    if len(owner.encode()) > TRANSACTION_OWNER_SIZE_MAX:
        raise LimitError(
            f"periodic task {task!r} of queue {queue!r}: their names have {len(owner.encode())} bytes together with "
            f"their prefix, at most {TRANSACTION_OWNER_SIZE_MAX} are allowed; give the task a shorter name"
        )
    return owner


class Scheduler:
    """Pushes the due ticks of periodic tasks."""

    def __init__(self, log: TaskLog, queue: str, periodic: Sequence[PeriodicTask], clock: Clock) -> None:
        self._log = log
        self._queue = queue
        self._periodic = periodic
        self._clock = clock
        #: The last tick of each task that is known to be done.
        self._done: dict[str, int] = {}

    def run(self, stopped: Event) -> None:
        """Push ticks until the event is set."""
        while not stopped.is_set():
            try:
                self.push_due()
                pause_s = self.pause_s()
            except (SeawallError, OSError) as error:
                LOG.warning("cannot push periodic tasks of queue %s, tries again: %s", self._queue, error)
                pause_s = TASK_RETRY_S
            stopped.wait(pause_s)

    def push_due(self) -> list[tuple[str, int]]:
        """Push the latest tick of each task, unless that is done; returns the names and ticks that this call pushed."""
        now_ms = self._now_ms()
        pushed = []
        for each in self._periodic:
            tick_ms = each.schedule.last_until(now_ms)
            if tick_ms > self._done.get(each.name, -1) and self._push(each, tick_ms):
                pushed.append((each.name, tick_ms))
        return pushed

    def pause_s(self) -> float:
        """How long to wait for the next tick."""
        now_ms = self._now_ms()
        nexts = [each.schedule.next_after(now_ms) for each in self._periodic]
        return min([TASK_TICK_WAIT_S, *((tick_ms - now_ms) / 1_000 for tick_ms in nexts)])

    def _push(self, periodic: PeriodicTask, tick_ms: int) -> bool:
        """Push a tick unless it is done, or the first one that is known; true if this call did it."""
        owner = schedule_owner(self._queue, periodic.name)
        last = self._log.transaction_state(owner)
        # The log forgets an owner after many others. This worker may know better.
        is_known = last is not None or periodic.name in self._done
        is_pushed = False
        if last is None or last.epoch < tick_ms:
            # Fenced: another worker has pushed a later tick meanwhile.
            with suppress(FencedError):
                transaction = self._log.transaction(owner, tick_ms)
                with transaction:
                    if is_known:
                        transaction.publish(self._queue, periodic.message(tick_ms))
                is_pushed = is_known and not transaction.result.is_repeated
        self._done[periodic.name] = tick_ms
        return is_pushed

    def _now_ms(self) -> int:
        return self._clock.wall_ns() // 1_000_000


def _moment(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1_000, UTC)


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000
