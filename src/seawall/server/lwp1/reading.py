"""Reads and offset commits of version 1: Fetch by byte offset, Subscribe, Unsubscribe, CommitOffset.

A fetch is answered at once; nothing is ever pushed. The meaning of a start offset:

| start_offset        | answer                                                                                  |
|---------------------|-----------------------------------------------------------------------------------------|
| below the end       | bytes from there, or from the first retained one                                        |
| the end             | nothing yet                                                                             |
| above the end       | CATCHING_UP, or as `PastEnd` says                                                       |
| 7FFF… up to FFFF…FE | the end at the first such request on the connection, until data was returned from there |
| FFFF…FF             | no bytes: the offset of the end                                                         |

A commit stores the offset as given, to return it again, and the seq of the first record from there, which is the cursor
that the other interfaces see. If another interface has moved that cursor, its offset is that of its record.

Published clients search the texts of errors for words, so no text here says more than its code.

This module must not know frames, connections or the order of answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from seawall.config import PastEnd
from seawall.core.types import Offset, TopicId
from seawall.engine.read.v1_offsets import OffsetBounds, StreamPiece, StreamRead, consumer_owner
from seawall.engine.serving.served_log import ServedLog
from seawall.engine.store.store import Store
from seawall.limits import KIB, V1_FETCH_DATA_SIZE_MAX
from seawall.server.connection.access import Admission
from seawall.server.connection.budget import Lease
from seawall.server.lwp2.topic_commands import DEFAULT_TOPIC_ID, TopicCommands, unknown_topic
from seawall.topics.state import TopicState
from seawall.wire.format.codes import U64_MAX, V1_OFFSET_END, ErrorCode
from seawall.wire.lwp1.replies import CatchingUp, CommitReply, ErrorReply, FetchReply, SubscribeReply
from seawall.wire.lwp1.requests import CommitOffset, Fetch, Subscribe, Unsubscribe

R = TypeVar("R")

#: Reads up to this size run on the event loop; larger ones, which may wait for a disk, on a thread.
_INLINE_SIZE: Final = 256 * KIB


class Lwp1Reading:
    """The reading side of one connection."""

    def __init__(
        self,
        log: ServedLog,
        commands: TopicCommands,
        past_end: PastEnd,
        count: Callable[[str], None],
        admission: Admission,
    ) -> None:
        self._log = log
        self._commands = commands
        self._past_end = past_end
        self._count = count
        self._admission = admission
        #: The end of a topic at the first request to read from the end, until data was returned from there.
        self._ends: dict[TopicId, Offset] = {}

    async def topic(self, topic_id: TopicId) -> TopicState:
        """The topic with an id, or error 10; topic 0 always exists."""
        topic = self._commands.find(topic_id)
        if topic is None and topic_id == DEFAULT_TOPIC_ID:
            return await self._commands.default_topic()
        if topic is None:
            raise unknown_topic(topic_id)
        return topic

    async def fetch(self, request: Fetch, lease: Lease) -> FetchReply | CatchingUp | ErrorReply:
        """Bytes of a topic from an offset; `lease` counts their memory."""
        topic = await self.topic(request.topic_id)
        start, is_end_asked = request.start_offset, request.start_offset >= V1_OFFSET_END
        bounds = await self._bounds(topic)
        if start == U64_MAX:
            return _nothing(bounds.end)
        if is_end_asked:
            remembered = self._ends.setdefault(request.topic_id, bounds.end)
            if remembered == bounds.end:
                return _nothing(bounds.end)
            start = remembered
        if not request.max_bytes:
            return _nothing(start)
        if start > bounds.end:
            return self._past_the_end(start, bounds.end)
        if start < bounds.floor:
            self._count("fetch_below_floor")
        wanted = min(request.max_bytes, V1_FETCH_DATA_SIZE_MAX, bounds.end - max(start, bounds.floor))
        # The data, and the frame that it is copied to.
        await lease.acquire(2 * wanted)
        size_max = self._admission.fair_size_now(lease.fair_size(request.max_bytes))
        if not size_max:
            # Published clients match answers to requests by order: they would take a late answer for the next one.
            self._count("read_rate")
            return _nothing(start)
        piece = await self._read(topic, start, size_max)
        self._admission.has_sent(size_max, len(piece.data))
        if is_end_asked and piece.data:
            del self._ends[request.topic_id]
        return FetchReply(piece.next_offset, piece.unit_count, piece.data)

    async def subscribe(self, request: Subscribe) -> SubscribeReply:
        """The start of a consumer: the requested offset, the end, or, for 0, its last commit."""
        topic = await self.topic(request.topic_id)
        offset = request.start_offset
        if offset >= V1_OFFSET_END:
            offset = (await self._bounds(topic)).end
        elif not offset:
            offset = await self._ask(topic, lambda store: _committed(store, topic, request.consumer))
        return SubscribeReply(request.consumer, offset)

    def unsubscribe(self, request: Unsubscribe) -> int:
        """Acknowledge a consumer, whether its topic still exists or not.

        A published client cannot close a consumer whose unsubscribe fails. Registrations are not stored, and its commit
        stays.
        """
        return request.consumer

    async def commit(self, request: CommitOffset) -> CommitReply:
        """Store the offset of a consumer durably; any offset is valid, and the last one counts."""
        topic = await self.topic(request.topic_id)

        def store_offset(store: Store) -> None:
            _require(store, topic)
            offset = request.offset
            if offset >= V1_OFFSET_END:
                offset = store.queries.offset_bounds(topic.name).end
            seq = store.queries.seq_at_offset(topic.name, offset)
            store.commit_cursor(consumer_owner(request.consumer), topic.name, seq, offset)

        await self._log.change(store_offset)
        return CommitReply(request.consumer, request.offset)

    async def _bounds(self, topic: TopicState) -> OffsetBounds:
        await self._log.catch_up(topic.topic_id)
        return await self._ask(topic, lambda store: store.queries.offset_bounds(topic.name))

    async def _ask(self, topic: TopicState, query: Callable[[Store], R]) -> R:
        """Query the store about a topic while it exists: its name may belong to a new topic by now."""

        def ask(store: Store) -> R:
            _require(store, topic)
            return query(store)

        return await self._log.ask(ask)

    async def _read(self, topic: TopicState, start: Offset, size_max: int) -> StreamPiece:
        read = StreamRead(start, size_max)
        try:
            while await self._ask(topic, lambda store: store.queries.plan_stream(topic.name, read)):
                if read.read_size <= _INLINE_SIZE:
                    is_full = read.execute()
                else:
                    is_full = await self._log.run_read(read.execute)
                if is_full:
                    break
        finally:
            read.release()
        return read.result()

    def _past_the_end(self, start: Offset, end: Offset) -> FetchReply | CatchingUp | ErrorReply:
        self._count("fetch_past_end")
        match self._past_end:
            case PastEnd.EMPTY:
                return _nothing(start)
            case PastEnd.CATCHING_UP:
                return CatchingUp(end)
        text = f"offset {start} is behind the end of the topic, {end}"
        return ErrorReply(ErrorCode.OFFSET_OUT_OF_RANGE, text, {"requested": start, "end": end})


def _require(store: Store, topic: TopicState) -> None:
    if store.catalog.find(topic.topic_id) is not topic:
        raise unknown_topic(topic.topic_id)


def _nothing(next_offset: Offset) -> FetchReply:
    return FetchReply(next_offset, 0, b"")


def _committed(store: Store, topic: TopicState, consumer: int) -> Offset:
    cursor = store.catalog.cursor(consumer_owner(consumer), topic.topic_id)
    if cursor is None:
        return Offset(0)
    return store.queries.offset_at_seq(topic.name, cursor.next_seq) if cursor.offset is None else cursor.offset
