"""Where watches of the embedded log receive their steps, for threads and for asyncio.

A read takes all ready topics in turn, up to a size. With strong consistency, it syncs the log after it has planned and
before it hands anything out: what was planned is on disk then. A log that is synced already is not synced again.

This module must not know how far a reader is after an item: `api/watch_items.py` decides that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from threading import Lock
from typing import Final, Protocol, TypeVar

from seawall import limits
from seawall.api.received import ReceivedSkip, seq_after
from seawall.api.watch_items import Step, TopicMoved, WatchProgress, first_steps, has_item, steps_of, watch_item
from seawall.core.types import Seq, TopicId
from seawall.core.watches import WatchSpec
from seawall.engine.read.read_results import to_items
from seawall.engine.read.reading import ReadPlan
from seawall.engine.read.watching import WatchedTopic, WatchedTopics
from seawall.engine.store.store import Store
from seawall.io.process.clocks import OsClock

R = TypeVar("R")

#: Bytes and topics of one read.
_READ_SIZE: Final = 8 * limits.MIB
_TOPICS_AT_ONCE: Final = 256


class WatchableLog(Protocol):
    """What a watch needs of its log."""

    def inspecting(self) -> AbstractContextManager[Store]:
        """Lock the store's memory, for a read-only query."""
        ...

    def sync(self) -> None:
        """Sync everything published so far to disk."""
        ...


class OnThread(Protocol):
    """Runs a call that may block on the disk on a thread, after everything published before is queued."""

    def __call__(self, call: Callable[[], R], /) -> Awaitable[R]:
        """Returns the result of the call."""
        ...


class WatchReader:
    """Reads the topics of one watch in this process. Several threads may use it."""

    def __init__(self, log: WatchableLog, spec: WatchSpec) -> None:
        self._log = log
        self._spec = spec
        self._has_begun = False
        #: Held while the topics are used.
        self._lock = Lock()
        self.topics = WatchedTopics(spec)

    def is_ready(self) -> bool:
        """True if there is something to read."""
        with self._lock, self._log.inspecting() as store:
            self.topics.refresh(store)
            return not self.topics.is_at_end

    def read(self) -> list[Step]:
        """Read what there is now, up to a size; an empty list if every topic is at its end."""
        with self._lock:
            return self._read()

    def _read(self) -> list[Step]:
        taken: list[WatchedTopic] = []
        try:
            return self._read_ready(taken)
        except BaseException:
            # Nothing of it was delivered.
            for topic in taken:
                self.topics.put_back(topic)
            raise

    def _read_ready(self, taken: list[WatchedTopic]) -> list[Step]:
        """Read ready topics, which are added to `taken`."""
        with self._log.inspecting() as store:
            later_from = self._refresh(store)
            topics = self.topics
            plans = self._plan(store, taken)
            is_synced = store.queries.is_synced
        try:
            read = [(topic, plan.end_seq, plan.next_seq, list(_steps_of(topic, plan))) for topic, plan in plans]
        finally:
            for _, plan in plans:
                plan.release()
        if topics.is_strong and not is_synced and any(topic.is_synced_later for topic, _ in plans):
            self._log.sync()
        # Nothing fails from here on, so nothing is lost.
        events = topics.take_events()
        steps = list(steps_of(events)) if later_from is None else first_steps(events, later_from)
        for topic, end_seq, next_seq, found in read:
            topics.advance(topic, end_seq, is_last=end_seq >= next_seq)
            steps += [*found, *steps_of(topics.take_events())]
        self._has_begun = True
        return steps

    def _refresh(self, store: Store) -> TopicId | None:
        """Find out what has changed; at the first read find all topics, and return what `begin` does."""
        if self._has_begun:
            self.topics.refresh(store)
            return None
        self.topics = WatchedTopics(self._spec)
        later_from = self.topics.begin(store)
        while self.topics.join_next(_TOPICS_AT_ONCE, store):
            continue
        return later_from

    def _plan(self, store: Store, taken: list[WatchedTopic]) -> list[tuple[WatchedTopic, ReadPlan]]:
        """Plan the next read of each ready topic, until there is enough."""
        plans: list[tuple[WatchedTopic, ReadPlan]] = []
        size_left = _READ_SIZE
        try:
            while len(taken) < _TOPICS_AT_ONCE and (topic := self.topics.take_ready()) is not None:
                taken.append(topic)
                plan = store.queries.plan_read(topic.name, topic.next_seq, size_max=size_left)
                plans.append((topic, plan))
                size_left -= sum(run.size for run in plan.runs)
                if size_left <= 0:
                    break
        except BaseException:
            for _, plan in plans:
                plan.release()
            raise
        return plans


class EmbeddedWatchSource:
    """The source of a watch for threads."""

    def __init__(self, reader: WatchReader, wait_until: Callable[[Callable[[], bool], float | None], bool]) -> None:
        """`wait_until` waits until a condition holds, tested when new records can be read; False after a timeout."""
        self._reader = reader
        self._wait_until = wait_until

    def receive(self, _progress: WatchProgress, timeout_s: float | None) -> list[Step]:
        """The next steps; waits up to `timeout_s` until they include an item, None without limit."""
        clock, reader = OsClock(), self._reader
        deadline_ns = None if timeout_s is None else clock.monotonic_ns() + int(timeout_s * 1e9)
        steps = reader.read()
        while not has_item(steps):
            left_s = None if deadline_ns is None else (deadline_ns - clock.monotonic_ns()) / 1e9
            if (left_s is not None and left_s <= 0) or not self._wait_until(reader.is_ready, left_s):
                break
            steps += reader.read()
        return steps

    def close(self) -> None:
        """Do nothing: a watch holds nothing of the log."""


class AsyncEmbeddedWatchSource:
    """The source of a watch for asyncio: reads run on a thread, waits on the loop."""

    def __init__(
        self,
        reader: WatchReader,
        on_thread: OnThread,
        wait_until: Callable[[Callable[[], Awaitable[bool]], float | None], Awaitable[bool]],
    ) -> None:
        self._reader = reader
        self._on_thread = on_thread
        self._wait_until = wait_until
        #: The read in flight, and steps without an item: a cancelled `receive` leaves them to the next one.
        self._reading: asyncio.Future[list[Step]] | None = None
        self._read_before: list[Step] = []

    async def receive(self, _progress: WatchProgress, timeout_s: float | None) -> list[Step]:
        """The next steps; waits up to `timeout_s` until they include an item, None without limit."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while True:
            await self._read()
            left_s = None if deadline is None else deadline - loop.time()
            is_late = left_s is not None and left_s <= 0
            if has_item(self._read_before) or is_late or not await self._wait_until(self._is_ready, left_s):
                steps, self._read_before = self._read_before, []
                return steps

    async def close(self) -> None:
        """Wait for the read in flight; a watch holds nothing else of the log."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def _is_ready(self) -> bool:
        return await self._on_thread(self._reader.is_ready)

    async def _read(self) -> None:
        reading = self._reading
        if reading is None:
            reading = self._reading = asyncio.ensure_future(self._on_thread(self._reader.read))
        try:
            # If this is cancelled, the read stays in flight, or done: the next call takes its steps.
            self._read_before += await asyncio.shield(reading)
        except Exception:
            self._reading = None
            raise
        self._reading = None


def _steps_of(topic: WatchedTopic, plan: ReadPlan) -> Iterator[Step]:
    """Execute a plan: its items, and how far it goes beyond them."""
    reached = plan.from_seq
    for item in to_items(topic.name, plan.execute(), None):
        if isinstance(item, ReceivedSkip):
            if item.position >= topic.after_position:
                yield item
            continue
        reached = seq_after(item)
        yield watch_item(topic.name, item)
    if reached < plan.end_seq:
        yield TopicMoved(topic.name, Seq(plan.end_seq))
