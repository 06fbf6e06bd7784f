"""Watches of a connection: pushes batches of many topics as they arrive, within credit.

Each watch is a task. It reads its ready topics in turn (`engine/read/watching.py`), one frame each, and waits for
credit and for space in the outbox; it holds no memory of records meanwhile, so that a slow peer costs only itself. When
every topic is at its end it follows: the wake-up finds the topics that have changed, and sends what is new itself if
that is little and needs no waiting. A wake-up costs as much as there are changes, however many topics are watched.

With strong consistency, a response of records that may not be synced is sent after a sync of the log. Watches that wait
for the same records share a sync.

Memory for the topics of a watch is counted for the connection; a watch that gets none ends with an error.

A crash ends the watch; the reader continues from its positions. This module must not know sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final, TypeAlias

from seawall import limits
from seawall.core.types import Seq, TopicId
from seawall.engine.read.watching import WatchedTopic, WatchedTopics
from seawall.engine.serving.served_log import ServedLog
from seawall.engine.store.store import Store
from seawall.errors import LimitError, NotFoundError, ProtocolError, SeawallError
from seawall.io.process.clocks import OsClock
from seawall.server.connection.access import Admission
from seawall.server.connection.connection import Connection
from seawall.server.lwp2.push_credit import PushCredit
from seawall.server.read.fetch_responses import FetchResponse, next_response, response_now
from seawall.wire.format.codes import Command, ErrorCode
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.reading import Gap
from seawall.wire.lwp2.subscriptions import Credit, Unsubscribed
from seawall.wire.lwp2.watches import Watch, Watched

#: Starts a task for a watch.
Begin: TypeAlias = Callable[[Coroutine[None, None, None], int], None]

#: Topics that join, and later events, in one frame: about a millisecond of work.
_TOPICS_JOINED_AT_ONCE: Final = 256
_EVENTS_AT_ONCE: Final = 256
#: Topics that a wake-up reads itself; the task reads more of them, and lets other connections run in between.
_TOPICS_NOW_MAX: Final = 16
_TOPICS_AT_ONCE: Final = 64

_NOT_BEGUN: Final = TopicId(0)


class LiveWatch:
    """One watch of the connection."""

    def __init__(self, request: Watch) -> None:
        self.topics = WatchedTopics(request.spec)
        self.credit = PushCredit(request.credit_bytes, request.credit_records)
        self.flags = request.flags
        self.size_max = min(request.max_frame or limits.FETCH_SIZE_MAX, limits.FETCH_SIZE_MAX)
        #: Bytes that are counted for it.
        self.memory_size = limits.REQUEST_SIZE
        self.is_over = False
        #: Set when something changes that the task may wait for: credit, outbox space, its end.
        self.changed = asyncio.Event()


class Watches:
    """All watches of one connection, by their ids."""

    def __init__(self, log: ServedLog, connection: Connection, begin: Begin, admission: Admission) -> None:
        self._log = log
        self._connection = connection
        self._admission = admission
        self._begin_task = begin
        self._live: dict[int, LiveWatch] = {}
        #: Bounds the concurrent reads: a task that waited checks again whether it may send.
        self._read_slots = asyncio.Semaphore(limits.FETCHES_AT_ONCE)

    def __len__(self) -> int:
        """The number of watches."""
        return len(self._live)

    def __contains__(self, request_id: int) -> bool:
        """True if the id is that of a watch."""
        return request_id in self._live

    def watch(self, request: Watch, request_id: int) -> None:
        """Start a watch."""
        if request_id in self._live:
            raise ProtocolError(f"{request_id} is a watch already", code=ErrorCode.WRONG_STATE, closes=False)
        if len(self._live) >= limits.WATCHES_MAX:
            text = f"{limits.WATCHES_MAX} watches are the limit of one connection: watch more topics with each"
            raise ProtocolError(text, code=ErrorCode.LIMIT, closes=False)
        if not self._connection.memory.standing.try_reserve(limits.REQUEST_SIZE):
            raise _no_memory()
        watch = self._live[request_id] = LiveWatch(request)
        self._begin_task(self._push(watch, request_id), request_id)

    def credit(self, request: Credit, request_id: int) -> None:
        """Raise the credit of a watch."""
        watch = self._live[request_id]
        watch.credit.grant(request)
        watch.changed.set()

    def unsubscribe(self, request_id: int) -> None:
        """End a watch; no more of its data follows."""
        watch = self._live.pop(request_id)
        self._end(watch)
        self._log.wake_readers()
        self._connection.write(encode_control(Unsubscribed(Seq(0), watch.credit.bytes_sent), request_id=request_id))

    def has_space(self) -> None:
        """Continue to push: everything written is sent."""
        for each in self._live.values():
            each.changed.set()

    def end(self) -> None:
        """End all watches: the connection closes."""
        for each in self._live.values():
            self._end(each)
        self._live.clear()
        self._log.wake_readers()

    def _end(self, watch: LiveWatch) -> None:
        watch.is_over = True
        watch.changed.set()

    # --- the task of a watch -------------------------------------------------------------------------------------

    async def _push(self, watch: LiveWatch, request_id: int) -> None:
        try:
            await self._begin(watch, request_id)
            turns = 0
            while granted := await self._may_send(watch):
                changes = self._log.changes
                size = 0
                try:
                    await self._refresh(watch)
                    is_at_end = watch.topics.is_at_end
                    if watch.topics.has_events:
                        self._send_events(watch, request_id)
                    elif not is_at_end:
                        await self._wait_for_turn(watch)
                        size = await self._send_next(watch, request_id, granted)
                finally:
                    self._admission.has_sent(granted, size)
                if is_at_end:
                    await self._follow(watch, request_id, changes)
                turns += 1
                if turns % _TOPICS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            if self._live.get(request_id) is watch:
                del self._live[request_id]
            self._connection.memory.standing.hold(-watch.memory_size)

    async def _begin(self, watch: LiveWatch, request_id: int) -> None:
        """Find and report the topics."""
        topics = watch.topics
        later_from = await self._log.ask(topics.begin)
        is_last = False
        while not (watch.is_over or is_last):
            is_last = not await self._log.ask(partial(topics.join_next, _TOPICS_JOINED_AT_ONCE))
            self._count_memory(watch)
            watched = Watched(tuple(topics.take_events()), later_from if is_last else _NOT_BEGUN)
            if is_last or watched.events:
                self._connection.write(encode_control(watched, request_id=request_id))
            # Other connections run in between.
            await asyncio.sleep(0)
            await self._wait_for_space(watch)

    async def _wait_for_space(self, watch: LiveWatch) -> None:
        while not (watch.is_over or self._has_space):
            watch.changed.clear()
            await watch.changed.wait()

    async def _refresh(self, watch: LiveWatch) -> None:
        """Find out which topics have changed."""
        await self._log.ask(watch.topics.refresh)
        watch.topics.pause_lowest(self._log.delivery.governor.defers)
        self._count_memory(watch)

    def _count_memory(self, watch: LiveWatch) -> None:
        """Count the memory of all topics of a watch; `LimitError` if there is none left."""
        more = limits.REQUEST_SIZE + len(watch.topics) * limits.WATCH_TOPIC_SIZE - watch.memory_size
        if more > 0 and not self._connection.memory.standing.try_reserve(more):
            raise _no_memory()
        if more < 0:
            self._connection.memory.standing.hold(more)
        watch.memory_size += more

    def _send_events(self, watch: LiveWatch, request_id: int) -> None:
        events = tuple(watch.topics.take_events(_EVENTS_AT_ONCE))
        self._connection.write(encode_control(Watched(events), request_id=request_id))

    async def _wait_for_turn(self, watch: LiveWatch) -> None:
        topic = watch.topics.first_ready
        if topic is not None:
            await self._log.delivery.turn(topic.topic_id)

    async def _send_next(self, watch: LiveWatch, request_id: int, size_max: int) -> int:
        """Read the next response of the first ready topic and send it; returns its bytes."""
        topic = watch.topics.first_ready
        if topic is None:
            # The lowest band has begun to pause.
            return 0
        async with self._read_slots:
            if not self._can_send(watch):
                # Others of this connection have used the space meanwhile.
                return 0
            with self._connection.memory.working.lease() as lease:
                try:
                    found = await next_response(
                        *(self._log, lease, topic.topic_id, topic.next_seq),
                        size_max=min(size_max, watch.size_max),
                        records_max=0,
                        flags=watch.flags,
                    )
                except NotFoundError:
                    # Deleted since the last refresh: the next one reports it.
                    return 0
                try:
                    await self._make_durable(watch, topic)
                except BaseException:
                    _release(found)
                    raise
                if watch.is_over:
                    _release(found)
                    return 0
                size = 0 if isinstance(found, Gap) else found.size
                self._send(watch, topic, found, request_id)
                return size

    async def _make_durable(self, watch: LiveWatch, topic: WatchedTopic) -> None:
        """With strong consistency, sync what was read before now."""
        if watch.topics.is_strong and topic.is_synced_later and not await self._log.ask(_is_synced):
            await self._log.change(_sync)

    async def _may_send(self, watch: LiveWatch) -> int:
        """Wait until there is something to send to; returns the bytes that may be sent, 0 once the watch is over."""
        while not watch.is_over:
            if self._can_send(watch):
                return await self._admission.fair_size(watch.size_max, lambda: watch.is_over)
            watch.changed.clear()
            await watch.changed.wait()
        return 0

    # --- following -----------------------------------------------------------------------------------------------

    async def _follow(self, watch: LiveWatch, request_id: int, changes: asyncio.Event) -> None:
        """Wait for changes since `changes` was taken. What can be sent without waiting is sent meanwhile."""
        if self._admission.is_slowed:
            await changes.wait()
        elif not changes.is_set():
            watch.changed.clear()
            with self._log.delivery.watching(_Following(self, watch, request_id)):
                await watch.changed.wait()

    def priority(self, watch: LiveWatch) -> int | None:
        """Look for changes: the priority of the topic to send next, or None if there is nothing to send.

        The task of the watch continues for whatever is no small number of records.
        """
        topics = watch.topics
        topics.pause_lowest(self._log.delivery.governor.defers)
        # The task reports the error.
        with contextlib.suppress(SeawallError, OSError):
            is_known = self._log.try_ask(partial(_refreshed, topics)) is not None
            if is_known and not topics.has_events and topics.ready_count <= _TOPICS_NOW_MAX:
                topic = topics.first_ready
                return None if topic is None else topic.state.priority_at(OsClock().monotonic_ns())
        watch.changed.set()
        return None

    def push(self, watch: LiveWatch, request_id: int) -> None:
        """Send what is new if that needs no waiting, otherwise let the task continue."""
        with self._connection.probe.watching("push"):
            is_done = False
            # The task reports the error.
            with contextlib.suppress(SeawallError, OSError):
                is_done = self._send_changes(watch, request_id)
            if not is_done:
                watch.changed.set()

    def _send_changes(self, watch: LiveWatch, request_id: int) -> bool:
        """Send the new records of a few topics; False if that is not all there is to do."""
        topics = watch.topics
        for _ in range(topics.ready_count):
            topic = topics.first_ready
            if topic is None:
                break
            if watch.is_over or not self._can_send(watch) or (topics.is_strong and topic.is_synced_later):
                return False
            place = (self._log, topic.topic_id, topic.next_seq)
            found = response_now(*place, size_max=watch.size_max, flags=watch.flags)
            if found is None:
                return False
            self._send(watch, topic, found, request_id)
        return topics.is_at_end

    # --- sending -------------------------------------------------------------------------------------------------

    @property
    def _has_space(self) -> bool:
        return self._connection.unsent_size < limits.PUSH_UNSENT_SIZE

    def _can_send(self, watch: LiveWatch) -> bool:
        """True if there is credit and space for another frame, or the watch is over."""
        return watch.is_over or (watch.credit.is_left and self._has_space)

    def _send(self, watch: LiveWatch, topic: WatchedTopic, found: FetchResponse | Gap, request_id: int) -> None:
        """Send a response, or a gap."""
        if isinstance(found, Gap):
            self._connection.write(encode_control(found, request_id=request_id))
            watch.topics.advance(topic, Seq(found.last + 1), is_last=False)
            return
        for skip in found.skips:
            if skip.position >= topic.after_position:
                self._connection.write(encode_control(skip, request_id=request_id))
        has_moved = found.next_seq > topic.next_seq
        watch.topics.advance(topic, found.next_seq, is_last=found.is_last)
        if found.chunk_count or has_moved:
            watch.credit.spend(found.payload_length, found.record_count)
            found.send(self._connection, Command.DATA, request_id)


class _Following:
    """A watch that has read everything, for the deliveries of its loop."""

    __slots__ = ("_request_id", "_watch", "_watches")

    def __init__(self, watches: Watches, watch: LiveWatch, request_id: int) -> None:
        self._watches = watches
        self._watch = watch
        self._request_id = request_id

    def refresh(self) -> int | None:
        """Look for changes; the priority of the best topic with any, or None if there is nothing to send."""
        return self._watches.priority(self._watch)

    def push(self) -> None:
        """Send what has changed."""
        self._watches.push(self._watch, self._request_id)


def _is_synced(store: Store) -> bool:
    return store.queries.is_synced


def _sync(store: Store) -> None:
    store.controls.sync()


def _refreshed(topics: WatchedTopics, store: Store) -> bool:
    topics.refresh(store)
    return True


def _release(found: FetchResponse | Gap) -> None:
    if isinstance(found, FetchResponse):
        found.release()


def _no_memory() -> LimitError:
    return LimitError("the server has no memory for this watch: watch fewer topics, or raise server.peer_memory")
