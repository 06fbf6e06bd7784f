"""Decides when routers make their steps: before a reader needs their copies, and in the background.

    catch_up    on the thread of a reader: everything that was stored when it is called is copied when it returns
    background  a thread, woken after each commit while there are routers; it also repeats refused steps after a pause

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

from seawall.core.types import TopicId
from seawall.engine.commit.commit_queue import CommitQueue
from seawall.engine.commit.log_writer import Unlocked
from seawall.engine.commit.worker_thread import WorkerThread
from seawall.engine.store.store import Store
from seawall.errors import SeawallError
from seawall.io.process.clocks import OsClock

#: How long the background thread pauses after steps, compared with the time that they took.
_PAUSES_PER_STEP: Final = 2


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
            began_ns = OsClock().monotonic_ns()
            if self.catch_up(None):
                # Leave the disk to the publishers for a while: the next steps copy more at once.
                self._stopping.wait(_PAUSES_PER_STEP * (OsClock().monotonic_ns() - began_ns) / 1e9)
                continue
            with self._queue.state:
                pause_s = self._routing.retry_s
            if pause_s is None:
                return
            self._woken.wait(pause_s)
