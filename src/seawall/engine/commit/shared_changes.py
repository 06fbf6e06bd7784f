"""Group commit for changes that are not appends: threads that make the same kind of change share one commit.

A thread that comes while no other one commits becomes the leader: it makes its own change together with all that wait,
by one call. The others wait until theirs is made, or until they lead the next group.

    queue(change) ──▶ queued ──▶ leader: make([change, change, …])    one durable write for all of them

Changes are made in the order in which they were queued, each once. A change has its outcome when `execute` returns; an
error of the group is raised to each thread of the group. This module must not know what a change does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

from seawall.errors import OutcomeUnknownError, SeawallError

C = TypeVar("C")


class QueuedChange(Generic[C]):
    """A change and its thread. The lock is released when the change is made, or when the thread is to lead."""

    __slots__ = ("change", "error", "is_done", "leads", "woken")

    def __init__(self, change: C) -> None:
        self.change = change
        self.is_done = self.leads = False
        self.error: BaseException | None = None
        self.woken = Lock()
        self.woken.acquire()


class SharedChanges(Generic[C]):
    """Makes changes of many threads in groups."""

    def __init__(self, make: Callable[[Sequence[C]], None], group_max: int) -> None:
        """`make` makes a group of up to `group_max` changes; one thread at a time calls it."""
        self._make = make
        self._group_max = group_max
        self._mutex = Lock()
        self._queued: list[QueuedChange[C]] = []
        self._has_leader = False

    def queue(self, change: C) -> QueuedChange[C]:
        """Queue a change, behind those that were queued before it; `execute` must follow at once, since others wait."""
        own = QueuedChange(change)
        with self._mutex:
            self._queued.append(own)
            own.leads = not self._has_leader
            self._has_leader = True
        return own

    def execute(self, own: QueuedChange[C]) -> None:
        """Make a queued change, alone or in a group; raises the error of its group."""
        try:
            if not own.leads:
                own.woken.acquire()
        except BaseException:
            self._withdraw(own)
            raise
        if not own.is_done:
            self._lead(own)
        if own.error is not None:
            raise own.error

    def _lead(self, own: QueuedChange[C]) -> None:
        """Make the next group, which begins with this thread's change, and wake the thread that leads after it."""
        with self._mutex:
            group, self._queued = self._queued[: self._group_max], self._queued[self._group_max :]
        error: BaseException | None = OutcomeUnknownError("the change was interrupted; read to find out what is stored")
        try:
            self._make([each.change for each in group])
            error = None
        except (SeawallError, OSError) as raised:
            error = raised
        finally:
            for each in group:
                each.error, each.is_done = error, True
                if each is not own:
                    each.woken.release()
            self._pass_on()

    def _pass_on(self) -> None:
        """Let the first thread that waits lead."""
        with self._mutex:
            self._has_leader = bool(self._queued)
            if not self._has_leader:
                return
            following = self._queued[0]
            following.leads = True
        following.woken.release()

    def _withdraw(self, own: QueuedChange[C]) -> None:
        """Remove the change of an interrupted thread, unless a group has taken it."""
        with self._mutex:
            if own in self._queued:
                self._queued.remove(own)
            leads = own.leads and not own.is_done
        if leads:
            self._pass_on()
