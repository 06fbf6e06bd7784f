"""Who is woken first when new records can be read: the deliveries of one event loop, by the priorities of their topics.

    following    a reader at the end of a topic: its push is called when the topic has changed
    watching     a reader of many topics: it looks for changes itself, and its push is called if it has found any
    turn         a reader that is behind waits for its turn before each response

Theory of operation. A notification finds the topics that have changed (`topics/changes.py`), so that it costs as much
as there are changes, however many readers follow other topics. Topics with a reader are put into a ready set
(`core/ready_set.py`), each once however many records it got, and are served in its order: all pushes of a topic in a
row. Readers that are behind are in the same set. The loop gives one of them its turn, or pushes for a millisecond, and
runs other work in between. Whoever finds the loop free does not wait.

Under pressure (`core/delivery_pressure.py`) records of a topic are merged before its next delivery, unless it is in the
top band, and the lowest band pauses.

INV-DELIVERY-LATER: pressure and priorities delay a delivery, and change nothing else: a reader gets what it would have
got, in the same order, and fetches are answered at once.

A crash loses nothing here. This module must not know connections, nor what is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeAlias, TypeVar

from seawall.core.delivery_pressure import SAMPLE_NS, Governor
from seawall.core.ready_set import TOP_BAND, ReadySet, band_of
from seawall.core.types import Position, TopicId
from seawall.engine.store.store import Store
from seawall.engine.store.store_queries import ChangeMark
from seawall.io.process.clocks import OsClock
from seawall.topics.state import TopicState

R = TypeVar("R")

#: How long the loop pushes before it runs other work.
_QUANTUM_NS: Final = 1_000_000
_NS_PER_S: Final = 1e9


class DeliveredLog(Protocol):
    """What deliveries need of a log."""

    @property
    def reads_waiting(self) -> int:
        """Large reads that wait for a thread."""
        ...

    def topic(self, topic_id: TopicId) -> TopicState | None:
        """The topic with this id, or None."""
        ...

    def try_ask(self, query: Callable[[Store], R]) -> R | None:
        """Run a short query now; None if the lock of the store is held."""
        ...

    def ask(self, query: Callable[[Store], R]) -> Awaitable[R]:
        """Run a short query."""
        ...


class Watcher(Hashable, Protocol):
    """A reader of many topics that is at the end of all of them."""

    def refresh(self) -> int | None:
        """Look for changes; the priority of the best topic with any, or None if there is nothing to send."""
        ...

    def push(self) -> None:
        """Send what has changed."""
        ...


class _Turn:
    """A reader that is behind and waits for its turn."""

    __slots__ = ("given",)

    def __init__(self, given: asyncio.Future[None]) -> None:
        self.given = given


_Key: TypeAlias = "TopicId | Watcher | _Turn"


class Delivery:
    """The deliveries of one event loop. Only its thread may use it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: DeliveredLog, on_deferred: Callable[[bool], None]) -> None:
        """`on_deferred` is called when other work is to be deferred, and when that is over."""
        self._loop = loop
        self._log = log
        self._clock = OsClock()
        self._on_deferred = on_deferred
        self.governor = Governor(self._clock.monotonic_ns())
        self._followers: dict[TopicId, dict[object, Callable[[], None]]] = {}
        #: How many of them get records before they are stored, which are no changes of their topics yet.
        self._early: dict[TopicId, int] = {}
        self._watchers: dict[Watcher, None] = {}
        self._mark = ChangeMark(0, Position(0))
        self._ready: ReadySet[_Key] = ReadySet()
        #: What waits for more records under pressure, and its priority.
        self._merging: dict[_Key, int] = {}
        #: When the last pause of the lowest band has ended: waiting until then is not waiting for others.
        self._paused_until_ns = 0
        self._timer: asyncio.Handle | None = None
        #: When it ends, on the clock of the loop: uvloop makes timers of less than half a millisecond without a time.
        self._timer_due = 0.0
        self._is_serving_soon = False
        self._is_asking = False
        #: Deliveries so far, and those that waited for others for longer than a quantum.
        self.served_count = 0
        self.late_count = 0

    @property
    def has_readers(self) -> bool:
        """True if anybody waits for new records here."""
        return bool(self._followers or self._watchers)

    @property
    def waiting_count(self) -> int:
        """How many topics, watches and turns wait."""
        return len(self._ready) + len(self._merging)

    def close(self) -> None:
        """Deliver nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    # --- readers -------------------------------------------------------------------------------------------------

    @contextmanager
    def following(self, topic_id: TopicId, push: Callable[[], None], *, is_early: bool) -> Iterator[None]:
        """Call `push` each time that a topic has changed, while the block runs.

        With `is_early` also when records are ordered that are not stored yet. Nothing is missed if the event of the log
        was taken before the last read, and is not set.
        """
        key = object()
        self._followers.setdefault(topic_id, {})[key] = push
        if is_early:
            self._early[topic_id] = self._early.get(topic_id, 0) + 1
        try:
            yield
        finally:
            followers = self._followers[topic_id]
            del followers[key]
            if not followers:
                del self._followers[topic_id]
                self._forget(topic_id)
            if is_early:
                self._early[topic_id] -= 1
                if not self._early[topic_id]:
                    del self._early[topic_id]

    @contextmanager
    def watching(self, watcher: Watcher) -> Iterator[None]:
        """Let a watcher look for changes each time that there may be some, while the block runs."""
        self._watchers[watcher] = None
        try:
            yield
        finally:
            del self._watchers[watcher]
            self._forget(watcher)

    async def turn(self, topic_id: TopicId) -> None:
        """Wait for the turn of a reader that is behind, before it reads and sends one response of a topic."""
        if not (self._is_serving_soon or self._ready or self.governor.defers):
            # The next one waits until the loop has run other work.
            self._serve_soon()
            return
        now_ns = self._clock.monotonic_ns()
        waiting = _Turn(self._loop.create_future())
        self._ready.add(waiting, self._priority(topic_id, now_ns), now_ns)
        self._serve_soon()
        try:
            await waiting.given
        finally:
            self._ready.discard(waiting)

    def _forget(self, key: _Key) -> None:
        self._ready.discard(key)
        self._merging.pop(key, None)

    def _priority(self, topic_id: TopicId, now_ns: int) -> int:
        topic = self._log.topic(topic_id)
        return 0 if topic is None else topic.priority_at(now_ns)

    # --- what has changed ----------------------------------------------------------------------------------------

    def notify(self) -> None:
        """New records can be read, or may be: find out for whom, and deliver them."""
        now_ns = self._clock.monotonic_ns()
        for watcher in tuple(self._watchers):
            priority = watcher.refresh()
            if priority is not None:
                self._add(watcher, priority, now_ns)
        if len(self._followers) == 1:
            # It looks for itself.
            self._add_topics(self._followers, now_ns)
        elif self._followers:
            self._add_topics(self._early, now_ns)
            changed = self._log.try_ask(self._changed)
            if changed is not None:
                self._add_topics(changed, now_ns)
            elif not self._is_asking:
                self._is_asking = True
                self._loop.create_task(self._notify_later())
        self._serve()

    async def _notify_later(self) -> None:
        """Find the topics that have changed when the lock of the store is free."""
        try:
            changed = await self._log.ask(self._changed)
        finally:
            self._is_asking = False
        self._add_topics(changed, self._clock.monotonic_ns())
        self._serve()

    def _changed(self, store: Store) -> list[TopicId]:
        """The followed topics that may have changed since the last call."""
        mark = store.queries.change_mark()
        changed = store.queries.topics_changed(self._mark)
        self._mark = mark
        if changed is None:
            return list(self._followers)
        found = {*changed.applied.tolist(), *changed.pending.tolist()}
        return [topic_id for topic_id in found if topic_id in self._followers]

    def _add_topics(self, topic_ids: Iterable[TopicId], now_ns: int) -> None:
        for topic_id in topic_ids:
            self._add(topic_id, self._priority(topic_id, now_ns), now_ns)

    def _add(self, key: _Key, priority: int, now_ns: int) -> None:
        """Let a key wait to be served; under pressure, for more records first."""
        if self.governor.merge_ns and band_of(priority) < TOP_BAND and key not in self._ready:
            self._merging[key] = priority
        else:
            self._merging.pop(key, None)
            self._ready.add(key, priority, now_ns)

    # --- serving -------------------------------------------------------------------------------------------------

    def _serve_soon(self) -> None:
        """Serve when the loop has run other work."""
        if not self._is_serving_soon:
            self._is_serving_soon = True
            self._loop.call_soon(self._serve_now)

    def _serve_now(self) -> None:
        self._is_serving_soon = False
        self._serve()

    def _serve(self) -> None:
        """Serve what is ready: pushes for some time, or one turn."""
        began_ns = now_ns = self._clock.monotonic_ns()
        self._sample(now_ns)
        while (key := self._ready.first(now_ns)) is not None:
            self._waited(self._ready.take(key), now_ns)
            if isinstance(key, _Turn):
                if not key.given.done():
                    key.given.set_result(None)
                self._serve_soon()
                return
            self._push(key, now_ns)
            now_ns = self._clock.monotonic_ns()
            if now_ns - began_ns >= _QUANTUM_NS:
                self._serve_soon()
                return
        self._serve_later()

    def _push(self, key: TopicId | Watcher, now_ns: int) -> None:
        if not isinstance(key, int):
            key.push()
            return
        topic = self._log.topic(key)
        if topic is not None:
            topic.used_ns = now_ns
        for push in tuple(self._followers.get(key, {}).values()):
            push()

    def _waited(self, since_ns: int, now_ns: int) -> None:
        wait_ns = now_ns - max(since_ns, self._paused_until_ns)
        self.governor.waited(wait_ns)
        self.served_count += 1
        self.late_count += wait_ns > _QUANTUM_NS

    # --- pressure ------------------------------------------------------------------------------------------------

    def _serve_later(self) -> None:
        """Come back for what is merged, or pauses."""
        if not (self.waiting_count or self.governor.defers):
            return
        wait_ns = self.governor.merge_ns if self._merging else SAMPLE_NS
        due = self._loop.time() + wait_ns / _NS_PER_S
        if self._timer is not None:
            if self._timer_due <= due:
                return
            # It was started for what pauses.
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._waited_enough)
        self._timer_due = due

    def _waited_enough(self) -> None:
        self._timer = None
        now_ns = self._clock.monotonic_ns()
        merged, self._merging = self._merging, {}
        for key, priority in merged.items():
            self._ready.add(key, priority, now_ns)
        self._serve()

    def _sample(self, now_ns: int) -> None:
        """Update the pressure, and what follows from it."""
        governor, did_defer = self.governor, self.governor.defers
        paused = self._ready.count_of(0) if did_defer else 0
        governor.sample(now_ns, len(self._ready) - paused, self._log.reads_waiting)
        if governor.defers is did_defer:
            return
        self._ready.pauses_lowest = governor.defers
        if did_defer:
            self._paused_until_ns = now_ns
            # Watches have left topics of the lowest band for later.
            self._loop.call_soon(self.notify)
        self._on_deferred(governor.defers)
