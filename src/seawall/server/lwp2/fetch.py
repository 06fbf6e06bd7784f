"""Requests of a reader with one answer: FETCH, COMMIT, BOUNDS and FILES.

A FETCH may wait for new records, without holding anything but its request: it is planned again after each change. The
answer is FETCH_DATA, or GAP if the start is in one. GAP also reports skipped client seqs; these have no seq, so the
reader continues by position after them.

This module must not know sessions.
"""

from __future__ import annotations

import asyncio
from typing import Final

from seawall import limits
from seawall.core.types import Offset, Position, Seq, TimestampNs, TopicId
from seawall.engine.read.position_reading import PartialPosition
from seawall.engine.read.v1_offsets import consumer_owner
from seawall.engine.serving.served_log import ServedLog
from seawall.engine.store.store import Store
from seawall.errors import ProtocolError
from seawall.server.connection.access import Admission
from seawall.server.connection.budget import Lease
from seawall.server.connection.connection import Connection
from seawall.server.read.fetch_responses import FetchResponse, next_response, refuse_start, topic_of
from seawall.server.read.position_responses import next_position_response, start_position
from seawall.server.read.stored_files import stored_files
from seawall.wire.format.codes import ALL_TOPICS, Command, ErrorCode, ReadBy
from seawall.wire.lwp2.files import FilesRequest
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.reading import Bounds, BoundsReply, Commit, Committed, Fetch, Gap

_FIRST_SEQ: Final = Seq(1)


async def start_seq(log: ServedLog, topic_id: TopicId, by: ReadBy, start: int, consumer: int) -> Seq:
    """The seq that a start currently refers to."""
    if by is ReadBy.SEQ and start >= 1:
        # The read itself finds out whether the topic exists.
        return Seq(start)

    def find(store: Store) -> Seq:
        topic = topic_of(store, topic_id)
        segments = store.queries.topic_log(topic_id)
        match by:
            case ReadBy.SEQ:
                raise refuse_start("seqs begin at 1")
            case ReadBy.POSITION:
                found = None if segments is None else segments.first_seq_from(Position(start))
                # The index may be ahead of the published end.
                return topic.next_seq if found is None else min(found, topic.next_seq)
            case ReadBy.TIME:
                return store.queries.seq_at(topic.name, TimestampNs(start))
            case ReadBy.OFFSET:
                return store.queries.seq_at_offset(topic.name, Offset(start))
            case ReadBy.EARLIEST:
                return _FIRST_SEQ
            case ReadBy.LATEST:
                return topic.next_seq
            case ReadBy.COMMITTED:
                cursor = store.catalog.cursor(consumer_owner(consumer), topic_id)
                return _FIRST_SEQ if cursor is None else cursor.next_seq

    return await log.ask(find)


class Fetching:
    """The read requests of one connection."""

    def __init__(self, log: ServedLog, connection: Connection, admission: Admission) -> None:
        self._log = log
        self._connection = connection
        self._admission = admission
        self._is_stopping = False
        #: Bounds the concurrent reads; and whether everything written is sent.
        self._read_slots = asyncio.Semaphore(limits.FETCHES_AT_ONCE)
        self._sent = asyncio.Event()

    def stop_waiting(self) -> None:
        """Answer waiting requests now: the connection closes."""
        self._is_stopping = True
        self._log.wake_readers()

    async def fetch(self, request: Fetch, request_id: int) -> None:
        """Answer a FETCH, when there are enough records or its time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.wait_ms / 1000
        start: int
        await self._log.catch_up(None if request.topic_id == ALL_TOPICS else request.topic_id)
        if request.topic_id == ALL_TOPICS:
            start = await start_position(self._log, request.by, request.start)
        else:
            start = await start_seq(self._log, request.topic_id, request.by, request.start, request.start)
        while True:
            async with self._read_slots:
                size_max = await self._sendable_size(request.max_bytes)
                with self._connection.memory.working.lease() as lease:
                    changes = self._log.changes
                    found = await self._next(lease, request, start, size_max)
                    self._admission.has_sent(size_max, 0 if isinstance(found, Gap) else found.size)
                    left = deadline - loop.time()
                    if self._answer(request, request_id, found, is_late=left <= 0):
                        return
            await self._log.wait_for_change(left, changes)

    def _answer(self, request: Fetch, request_id: int, found: FetchResponse | Gap, *, is_late: bool) -> bool:
        """Send the result if it is enough or must not wait for more; True if it was sent."""
        gap = found if isinstance(found, Gap) else _skip_before(found, request)
        if gap is not None:
            if isinstance(found, FetchResponse):
                found.release()
            self._connection.write(encode_control(gap, request_id=request_id))
            return True
        assert isinstance(found, FetchResponse), "a result without a gap is a response"
        if found.size >= max(1, request.min_bytes) or not found.is_last or is_late or self._is_stopping:
            found.send(self._connection, Command.FETCH_DATA, request_id)
            return True
        found.release()
        return False

    def has_space(self) -> None:
        """Continue to answer: everything written is sent."""
        self._sent.set()

    async def _sendable_size(self, size: int) -> int:
        """Wait until another response may be sent; returns its largest size. Bounds the unsent responses."""
        while self._connection.is_full:
            self._sent.clear()
            await self._sent.wait()
        return await self._admission.fair_size(size, lambda: self._is_stopping)

    async def _next(self, lease: Lease, request: Fetch, start: int, size_max: int) -> FetchResponse | Gap:
        bounds = (size_max, request.max_records)
        if request.topic_id == ALL_TOPICS:
            partial_position = None if request.within is None else PartialPosition(*request.within)
            return await next_position_response(
                *(self._log, lease, Position(start), partial_position),
                size_max=bounds[0],
                records_max=bounds[1],
                flags=request.flags,
            )
        return await next_response(
            *(self._log, lease, request.topic_id, Seq(start)),
            size_max=bounds[0],
            records_max=bounds[1],
            flags=request.flags,
        )

    async def commit(self, request: Commit, request_id: int) -> None:
        """Store a consumer cursor durably."""

        def store_cursor(store: Store) -> None:
            topic = topic_of(store, request.topic_id)
            if topic.epoch != request.topic_epoch:
                text = (
                    f"topic {topic.name!r} is of epoch {topic.epoch}, not {request.topic_epoch}: it was created again"
                )
                raise ProtocolError(text, code=ErrorCode.TOPIC_DELETED, closes=False)
            if not request.consumer or request.seq < 1:
                raise ProtocolError(
                    f"consumer {request.consumer}, seq {request.seq}: both count from 1",
                    code=ErrorCode.CONSUMER,
                    closes=False,
                )
            store.commit_cursor(consumer_owner(request.consumer), topic.name, request.seq)

        await self._log.change(store_cursor)
        kept = Committed(request.topic_id, request.consumer, request.topic_epoch, request.seq)
        self._connection.write(encode_control(kept, request_id=request_id))

    async def bounds(self, request: Bounds, request_id: int) -> None:
        """Return the bounds of a topic."""

        def find_bounds(store: Store) -> BoundsReply:
            topic = topic_of(store, request.topic_id)
            segments = store.queries.topic_log(topic.topic_id)
            end = store.catalog.next_position
            first = end
            if segments is not None and topic.live_records:
                _, entries = segments.from_position(Position(0), topic.next_seq, 0)
                first = Position(int(entries["position"][0])) if len(entries) else end
            offsets = store.queries.offset_bounds(topic.name)
            return BoundsReply(
                topic.floor,
                topic.next_seq,
                store.queries.ordered_end(topic.topic_id),
                first,
                end,
                offsets.floor,
                offsets.end,
                topic.epoch,
            )

        await self._log.catch_up(request.topic_id)
        self._connection.write(encode_control(await self._log.ask(find_bounds), request_id=request_id))

    async def files(self, request: FilesRequest, request_id: int) -> None:
        """Return the files that hold some seqs."""
        is_allowed = not self._admission.is_slowed
        await self._log.catch_up(request.topic_id)
        reply = await self._log.ask(lambda store: stored_files(store, request, is_allowed=is_allowed))
        self._connection.write(encode_control(reply, request_id=request_id))


def _skip_before(response: FetchResponse, request: Fetch) -> Gap | None:
    """The first skip of client seqs before a response that is not already behind the reader."""
    if request.topic_id == ALL_TOPICS:
        return None
    start = request.start if request.by is ReadBy.POSITION else 0
    return next((skip for skip in response.skips if skip.position >= start), None)
