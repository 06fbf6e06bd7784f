"""Decides when routers make their steps: before a reader needs their copies, and in the background.

    catch_up    on the thread of a reader: everything that was stored when it is called is copied when it returns
    background  a thread, woken after each commit while there are routers; it looks at the routers of topics that have
                changed, serves them by the priorities of their destinations (`core/ready_set.py`), and repeats refused
                steps after a pause. While a server defers work, it serves them a band lower, and pauses for longer

So a publisher never waits for routers, and a reader of copies sees what was acknowledged before it asked. Each step is
a change of its own: commits that are queued meanwhile go between two steps.

A crash loses nothing here: steps that were not made are due again after the opening. This module must not know what a
step does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from seawall.core.ready_set import ReadySet, deferred
from seawall.core.types import Position, TopicId
from seawall.engine.commit.commit_queue import CommitQueue
from seawall.engine.commit.log_writer import Unlocked
from seawall.engine.commit.worker_thread import WorkerThread
from seawall.engine.store.store import Store
from seawall.engine.store.store_queries import ChangeMark
from seawall.errors import SeawallError
from seawall.io.process.clocks import OsClock

#: How long the background thread pauses after steps, compared with the time that they took.
_PAUSES_PER_STEP: Final = 2
#: How much longer while copies are deferred: the next lower band has half the weight.
_DEFERRED_PAUSES: Final = 2


class Forwarder:
    """Runs the routers of one store. Any thread may use it."""

    def __init__(
        self,
        queue: CommitQueue,
        store: Store,
        changing: Callable[[], AbstractContextManager[Store]],
        unlocked: Unlocked,
    ) -> None:
        """`changing` locks the store for a change, `unlocked` lets readers in during a part of it."""
        self._queue = queue
        self._guard = store.guard
        self._routing = store.routing
        self._changing = changing
        self._unlocked = unlocked
        self._worker = WorkerThread(self._work)
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._clock = OsClock()
        self._queries = store.queries
        #: The routers that the background thread has to look at.
        self._ready: ReadySet[str] = ReadySet()
        self._mark = ChangeMark(0, Position(0))
        self._seen_changes = -1
        #: How many servers defer copies now.
        self._deferrals = 0

    def defer(self, is_deferred: bool) -> None:
        """Defer the steps of the background thread, or not any more; called in pairs."""
        self._deferrals += 1 if is_deferred else -1

    def notify(self) -> None:
        """Have the background thread look for due steps; called after each commit."""
        if self._routing.is_used and not self._woken.is_set():
            self._woken.set()
            self._worker.wake()

    def is_due(self, topic_id: TopicId | None) -> bool:
        """True if `catch_up` has something to do. The caller holds the lock of the store's memory."""
        return any(self._routing.due(name) is not None for name in self._routing.upstream(topic_id))

    def catch_up(self, topic_id: TopicId | None) -> bool:
        """Make the steps whose copies may reach a topic, or all topics for None; true if there were any.

        Copies what is stored now, and not what is published meanwhile.
        """
        names: list[str] | None = None
        index, found = 0, False
        while True:
            with self._queue.state:
                names = self._routing.upstream(topic_id) if names is None else names
                while index < len(names) and self._routing.due(names[index]) is None:
                    index += 1
            if index == len(names) or self._stopping.is_set():
                return found
            self._run(names[index])
            index, found = index + 1, True

    def stop(self) -> None:
        """Stop the background thread after its current step; steps that are due stay due."""
        self._stopping.set()
        self._woken.set()
        self._worker.stop()

    def _run(self, name: str) -> None:
        """Make the steps of one router that are due now."""
        end_seq = None
        while not self._stopping.is_set():
            with self._queue.state:
                due = self._routing.due(name)
            if due is None or (end_seq is not None and due.start >= end_seq):
                return
            end_seq = end_seq or due.stop
            try:
                with self._changing() as store:
                    store.routing.step(name, self._unlocked)
            except (SeawallError, OSError):
                # Reads go on after a failed write; the next change raises it (INV-STORE-FAILED).
                if not self._guard.is_failed:
                    raise

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            # Before looking: a later commit notifies again, even one of a kernel.
            self._queue.expect_change()
            with self._queue.state:
                name = self._next()
                pause_s = self._routing.retry_s
            if name is not None:
                began_ns = self._clock.monotonic_ns()
                self._run(name)
                # Leave the disk to the publishers for a while: the next steps copy more at once.
                pauses = _PAUSES_PER_STEP * (_DEFERRED_PAUSES if self._deferrals else 1)
                self._stopping.wait(pauses * (self._clock.monotonic_ns() - began_ns) / 1e9)
            elif pause_s is None:
                return
            else:
                self._woken.wait(pause_s)

    def _next(self) -> str | None:
        """The router to run next, if a step is due. The caller holds the lock of the store's memory."""
        now_ns = self._clock.monotonic_ns()
        for name in self._awaiting():
            priority = self._routing.priority(name)
            self._ready.add(name, deferred(priority) if self._deferrals else priority, now_ns)
        while (first := self._ready.first(now_ns)) is not None:
            self._ready.take(first)
            if self._routing.due(first) is not None:
                return first
        return None

    def _awaiting(self) -> list[str]:
        """The routers that may have a step since the last call."""
        mark, changed = self._queries.change_mark(), self._queries.topics_changed(self._mark)
        self._mark = mark
        if changed is None or self._seen_changes != self._routing.change_count:
            self._seen_changes = self._routing.change_count
            return self._routing.names()
        return self._routing.awaiting([*changed.applied.tolist(), *changed.pending.tolist()])
