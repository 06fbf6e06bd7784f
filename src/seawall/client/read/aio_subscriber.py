"""Subscribers for asyncio: they read a topic, or all topics, and keep their offset.

subscriber = log.subscriber("events", "committed", owner="billing")
for item in await subscriber.poll(timeout_s=5): ...
async for item in subscriber: ...                 # follows the topic forever: the server pushes new records
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeAlias

from seawall.api.owners import check_owner
from seawall.api.received import Item, PositionItem, seq_after, with_next_positions
from seawall.client.commands import READ_SIZE, consumer_of
from seawall.client.connection.aio_connection import AsyncConnection
from seawall.client.connection.aio_requests import AsyncRequests
from seawall.client.connection.retry import Backoff, seconds
from seawall.client.read.aio_prefetch import AsyncPrefetch
from seawall.client.read.position_reading import PositionReader
from seawall.client.read.push_subscription import FRAME_SIZE, Pushed
from seawall.client.read.reading import NO_LIMIT, TopicReader
from seawall.client.read.response_size import ResponseSize
from seawall.client.read.waiting import PollDeadline
from seawall.core.types import Position, Seq, TopicEpoch
from seawall.errors import RetryableError
from seawall.io.process.clocks import OsClock
from seawall.io.process.own_process import OwnProcess
from seawall.limits import FETCH_SIZE_MAX
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.reading import Commit

_CLOCK: Final = OsClock()

#: Looks up the topic and the starting seq, at the first read.
Lookup: TypeAlias = Callable[[], Awaitable[tuple[TopicReader, TopicEpoch]]]


class AsyncRemoteSubscriber:
    """Reads one topic and keeps its offset. Created by `AsyncRemoteLog.subscriber`. For one task at a time.

    Read with `await poll()`, or use `async for` to follow the topic forever. Items are batches, and the gaps and SKIPs
    between them.
    """

    def __init__(self, requests: AsyncRequests, topic: str, lookup: Lookup, owner: str | None) -> None:
        self._requests = requests
        self._lookup = lookup
        self._owner = owner
        self._reader: TopicReader | None = None
        self._prefetch: AsyncPrefetch | None = None
        self._next_seq = Seq(0)
        self._topic_epoch = TopicEpoch(0)
        self._process = OwnProcess("subscriber")
        self.topic = topic

    @property
    def next_seq(self) -> Seq:
        """The seq to read next: the one after the last item returned; 0 before the first read."""
        return self._next_seq

    async def poll(self, timeout_s: float = 0.0) -> list[Item]:
        """The next items; waits up to `timeout_s` if there are none. Returns an empty list after the timeout.

        Gaps are reported in order with the batches.
        """
        reader = await self._started()
        if self._prefetch is None:
            self._prefetch = AsyncPrefetch(self._requests, reader)
        deadline = PollDeadline(timeout_s, _CLOCK.monotonic_ns())
        while True:
            wait_ms = deadline.wait_ms(_CLOCK.monotonic_ns())
            fetch = reader.fetch(max_bytes=FETCH_SIZE_MAX, wait_ms=wait_ms)
            items = await self._prefetch.take(fetch, prefetch_size=FETCH_SIZE_MAX, wait_s=wait_ms / 1e3)
            self._next_seq = reader.next_seq
            if items or (reader.is_at_end and not wait_ms):
                return items

    async def commit(self) -> None:
        """Store `next_seq` durably as the committed offset of the owner: everything before it was processed."""
        reader = await self._started()
        consumer = consumer_of(check_owner(self._owner))
        await self._requests.request(Commit(reader.topic_id, consumer, self._topic_epoch, self._next_seq))

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Follow from here on, forever: waits for more at the end."""
        reader = await self._started()
        backoff = Backoff()
        loop = asyncio.get_running_loop()
        unreachable_since = loop.time()
        while True:
            self._process.check()
            connection: AsyncConnection | None = None
            reader.go_back(self._next_seq)
            size, started_at = self._requests.response_size.at_most(FRAME_SIZE), self._next_seq
            try:
                connection = await self._requests.open_connection()
                async for items in _pushed(connection, reader, self._requests.response_size, size):
                    for item in items:
                        backoff.succeeded()
                        self._next_seq = seq_after(item)
                        yield item
                    self._next_seq = reader.next_seq
            except (ConnectionError, RetryableError) as error:
                if connection is not None:
                    if self._next_seq == started_at and connection.has_partial_frame:
                        self._requests.response_size.lost(size)
                    unreachable_since = loop.time()
                elif loop.time() - unreachable_since >= self._requests.target.timeout_s:
                    raise RetryableError(f"no server at {self._requests.target}: {error}") from error
                await asyncio.sleep(seconds(backoff.pause_ns()))
            finally:
                if connection is not None:
                    connection.close()

    async def _started(self) -> TopicReader:
        self._process.check()
        if self._reader is None:
            self._reader, self._topic_epoch = await self._lookup()
            self._next_seq = self._reader.next_seq
        self._reader.go_back(self._next_seq)
        return self._reader


class AsyncRemotePositionSubscriber:
    """Reads all topics in the total order and keeps its position. For one task at a time.

    Created by `AsyncRemoteLog.position_subscriber`. Read with `await poll()`, or use `async for` to follow the log
    forever.
    """

    def __init__(
        self, take: Callable[[PositionReader, int, int, int], Awaitable[list[PositionItem]]], reader: PositionReader
    ) -> None:
        self._take = take
        self._reader = reader
        self._next_position = reader.next_position
        self._process = OwnProcess("subscriber")

    @property
    def next_position(self) -> Position:
        """The position to read next: the one after the last item returned; 0 before the first read."""
        return self._next_position

    async def poll(self, timeout_s: float = 0.0) -> list[PositionItem]:
        """The next items of all topics; waits up to `timeout_s` if there are none."""
        items = await self._read(timeout_s)
        self._next_position = self._reader.next_position
        return items

    async def __aiter__(self) -> AsyncIterator[PositionItem]:
        """Follow from here on, forever: waits for more at the end."""
        while True:
            for item, next_position in with_next_positions(await self._read(None)):
                self._next_position = next_position
                yield item
            self._next_position = self._reader.next_position

    async def _read(self, timeout_s: float | None) -> list[PositionItem]:
        self._process.check()
        self._reader.go_back(self._next_position)
        deadline = PollDeadline(timeout_s, _CLOCK.monotonic_ns())
        while True:
            wait_ms = deadline.wait_ms(_CLOCK.monotonic_ns())
            items = await self._take(self._reader, READ_SIZE, NO_LIMIT, wait_ms)
            if items or not wait_ms:
                return items


async def _pushed(
    connection: AsyncConnection, reader: TopicReader, response_size: ResponseSize, frame_size: int
) -> AsyncIterator[list[Item]]:
    """The items that the server pushes on a connection, one list per frame, until the connection is lost."""
    # Unbounded, but the server sends no more than its credit.
    frames: asyncio.Queue[Frame | Exception] = asyncio.Queue()
    connection.on_frame = lambda _, frame: frames.put_nowait(frame)
    connection.on_lost = lambda _, error: frames.put_nowait(error)
    pushed = Pushed(reader, connection.new_id(), frame_size)
    connection.send(pushed.subscribe())
    while True:
        frame = await frames.get()
        if isinstance(frame, Exception):
            raise frame
        items = pushed.take(frame)
        response_size.arrived(frame.header.payload_length)
        # Before the caller processes the items, so that the server sends more meanwhile.
        credit = pushed.credit()
        if credit is not None:
            connection.send(credit)
        yield items
        if pushed.is_over:
            return
