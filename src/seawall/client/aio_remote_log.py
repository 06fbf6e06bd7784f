"""The log behind a server for asyncio, with the API of `seawall.open_async`.

    async with seawall.connect_async("seawall://host:1992") as log:
        await log.create_topic("events")
        await log.publish("events", {"n": 1})              # concurrent calls share batches and syncs
        async for item in log.subscriber("events"): ...    # ReceivedBatch, or Gap where records are lost

A log belongs to the loop it was opened on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

from seawall.api.aio_topics import create_each
from seawall.api.publishable import Publishable
from seawall.api.publisher_options import IN_FLIGHT_SIZE, PublisherOptions
from seawall.api.publishing import AsyncPublishingLog
from seawall.api.queues.aio_queue import AsyncQueue
from seawall.api.queues.jobs import not_a_queue
from seawall.api.read_options import PositionStart, ReadMode, Start
from seawall.api.received import Item, PositionItem, to_arrow
from seawall.api.record_readers import AsyncRecordLog
from seawall.api.topic_info import TopicInfo
from seawall.api.watches import AsyncWatch, WatchingLog
from seawall.client.aio_transactions import AsyncRemoteTransactions
from seawall.client.commands import (
    NOT_REMOTE,
    READ_SIZE,
    check_mode,
    consumer_of,
    create_request,
    delete_request,
    info_of,
    is_queue,
    position_read_start,
    read_start,
    start_of,
)
from seawall.client.connection.aio_connection import AsyncConnection
from seawall.client.connection.aio_requests import AsyncRequests
from seawall.client.connection.targets import Target
from seawall.client.publish.aio_publisher import AsyncRemotePublisher
from seawall.client.publish.aio_sender import AsyncSender
from seawall.client.publish.delivery import Delivery
from seawall.client.publish.keyed_records import KeyedRecords
from seawall.client.publish.publisher import SYNC_OPTIONS, encode_records, outgoing_of
from seawall.client.queues.aio_queues import AsyncRemoteQueue, AsyncRemoteQueues
from seawall.client.read.aio_prefetch import AsyncPrefetch, read_all
from seawall.client.read.aio_subscriber import AsyncRemotePositionSubscriber, AsyncRemoteSubscriber
from seawall.client.read.aio_watch_source import AsyncRemoteWatchSource
from seawall.client.read.position_reading import PositionReader, topics_in
from seawall.client.read.reading import NO_LIMIT, Budget, TopicReader
from seawall.client.read.waiting import PollDeadline, PositionWait, RecordWait, Wait, check_position, check_seq
from seawall.client.routers import AsyncRemoteRouters
from seawall.core.identifiers import check_client_id
from seawall.core.sessions import SessionInfo
from seawall.core.types import Seq, TopicEpoch
from seawall.core.watches import WatchSpec
from seawall.errors import NotFoundError, SeawallError, UnsupportedError, WrongStateError
from seawall.io.process.clocks import OsClock
from seawall.io.process.own_process import worker_name
from seawall.limits import CREATES_AT_ONCE, SESSIONS_LISTED_MAX
from seawall.wire.format.arrow import EncodedBlock, check_columns, empty_table
from seawall.wire.format.codes import ReadBy
from seawall.wire.format.decoder import Frame
from seawall.wire.format.fields import JsonValue
from seawall.wire.lwp1.replies import (
    ClusterStatusReply,
    TopicReply,
    parse_cluster_status_reply,
    parse_topic_list_reply,
    parse_topic_reply,
)
from seawall.wire.lwp1.requests import DeleteTopic, GetClusterStatus, ListTopics
from seawall.wire.lwp2.reading import Bounds, BoundsReply, Commit, parse_bounds_reply
from seawall.wire.lwp2.sessions import SessionList, SessionRequest, SessionRetire, parse_sessions_reply
from seawall.wire.lwp2.topics import TopicConfigure, TopicDescribe, TopicFind, parse_records_deleted

if TYPE_CHECKING:
    import pyarrow as pa

_Result = TypeVar("_Result")


class AsyncRemoteLog(
    AsyncRemoteTransactions,
    AsyncRemoteRouters,
    AsyncRecordLog,
    AsyncPublishingLog[AsyncRemotePublisher],
    WatchingLog[AsyncWatch],
):
    """A log on a server, for asyncio. Created by `seawall.connect_async`; use it in an `async with` block."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self._opened: AsyncRequests | None = None
        self._topics: dict[str, TopicReply] = {}
        self._sender: AsyncSender | None = None
        self._opening = asyncio.Lock()
        self._queues = AsyncRemoteQueues(lambda: self._requests, self._push, self._with_topic)

    async def open(self) -> Self:
        """Connect to the server; `async with` calls it."""
        self._opened = AsyncRequests(self.target)
        try:
            # Only connects: a token that may only write could not send any other request.
            await self._opened.check_server()
        except BaseException:
            self._opened.close()
            raise
        return self

    async def close(self) -> None:
        """Close all connections; idempotent."""
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()
        if self._opened is not None:
            self._opened.close()
        await self._queues.settle()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- topics --------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Create a topic. Settings are those of `TopicConfig`, such as `durability="disk"` or `ttl_ms=60_000`."""
        frame = await self._requests.request(create_request(name, settings), is_repeatable=False)
        topic = self._topics[name] = parse_topic_reply(frame.payload)
        return info_of(topic)

    async def create_topics(self, names: Sequence[str], /, **settings: JsonValue) -> list[TopicInfo | SeawallError]:
        """Create topics with the same settings; durable when this returns.

        Returns for each name the new topic, or the error that prevented its creation.
        """
        return await create_each(partial(self.create_topic, **settings), names, at_once=CREATES_AT_ONCE)

    async def status(self) -> ClusterStatusReply:
        """The node that serves this log, and its brokers with their addresses and connections."""
        return parse_cluster_status_reply((await self._requests.request(GetClusterStatus())).payload)

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        await self._load_topics()
        return sorted(self._topics)

    async def topic_named(self, name: str) -> TopicReply:
        """The cached identity of a topic, looked up if needed; `NotFoundError` if it does not exist."""
        return self._topics.get(name) or await self._look_up(name)

    async def describe(self, name: str) -> TopicInfo:
        """The current state and settings of a topic."""

        async def run(topic: TopicReply) -> TopicInfo:
            return info_of(parse_topic_reply((await self._requests.request(TopicDescribe(topic.topic_id))).payload))

        return await self._with_topic(name, run)

    async def configure_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Change settings of a topic and return its new state."""

        async def run(topic: TopicReply) -> TopicInfo:
            frame = await self._requests.request(TopicConfigure(topic.topic_id, settings))
            return info_of(parse_topic_reply(frame.payload))

        return await self._with_topic(name, run)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""

        async def run(topic: TopicReply) -> None:
            await self._requests.request(DeleteTopic(topic.topic_id), is_repeatable=False)

        await self._with_topic(name, run)
        self._topics.pop(name, None)

    def queue(self, topic: str, /, *, node: str | None = None) -> AsyncQueue:
        """The job queue of a topic that was created with `type="queue"`.

        `node` is the name of this worker; by default each call makes a new one.
        """
        return AsyncRemoteQueue(self._queues, topic, worker_name() if node is None else node)

    # --- sessions ------------------------------------------------------------------------------------------------

    async def sessions(self) -> list[SessionInfo]:
        """All publisher sessions that the server remembers, sorted by client id."""
        found: list[SessionInfo] = []
        while page := await self._request_sessions(
            SessionList(found[-1].client_id if found else 0, SESSIONS_LISTED_MAX)
        ):
            found += page
        return found

    async def retire_session(self, client_id: int) -> None:
        """End and forget the session of a client, and fence a publisher that uses it. Durable when this returns.

        The server then refuses batches that the client repeats under old client seqs; it accepts a new session.
        """
        await self._request_sessions(SessionRetire(check_client_id(client_id)), is_repeatable=False)

    async def _request_sessions(
        self, request: SessionRequest, *, is_repeatable: bool = True
    ) -> tuple[SessionInfo, ...]:
        return parse_sessions_reply(
            (await self._requests.request(request, is_repeatable=is_repeatable)).payload
        ).sessions

    # --- records -------------------------------------------------------------------------------------------------

    async def publish(
        self, topic: str, records: Publishable, *, idempotency_key: str | bytes | None = None
    ) -> Delivery:
        """Append one record or many, in order; stored at the durability class of the topic when this returns.

        With an `idempotency_key`, the records are stored once, even if several clients publish them again under the
        same key within the topic's `idempotency_window_ms`. A repetition returns the seqs of the original.
        """
        if idempotency_key is not None:
            keyed = KeyedRecords(topic, encode_records(records), idempotency_key)
            return await self._with_topic(topic, partial(self._publish_keyed, keyed))
        if (joined := self._join(records, self._topics.get(topic))) is not None:
            with suppress(NotFoundError):
                return await joined
        return await self._with_topic(topic, partial(self._publish_blocks, topic, encode_records(records)))

    async def _open_publisher(self, topic: str, options: PublisherOptions) -> AsyncRemotePublisher:
        found = await self.topic_named(topic)
        return await AsyncRemotePublisher(self.target, topic, found.topic_id, options).open()

    async def publish_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> Delivery:
        """Append the rows of an Arrow table with some of the columns value, key, timestamp, tag and headers."""
        return await self.publish(topic, table)

    async def read(
        self,
        topic: str,
        from_seq: int = 1,
        *,
        limit: int | None = None,
        max_bytes: int = READ_SIZE,
        mode: ReadMode = "durable",
    ) -> list[Item]:
        """Batches from `from_seq` on, in order with gaps and SKIPs; an empty list at the end of the topic.

        `limit`, `max_bytes` and `mode` are those of `RemoteLog.read`.
        """
        check_seq(from_seq)
        ordered = check_mode(mode)

        async def run(found: TopicReply) -> list[Item]:
            reader = TopicReader(topic, found.topic_id, ReadBy.SEQ, from_seq, ordered=ordered)
            budget = Budget(max_bytes, limit)
            prefetch = AsyncPrefetch(self._requests, reader)
            while not budget.is_spent(reader):
                budget.take(await prefetch.take(budget.fetch(reader), prefetch_size=budget.prefetch_size))
            prefetch.cancel()
            return budget.items

        return await self._with_topic(topic, run)

    async def follow(self, topic: str, from_seq: int = 1) -> AsyncIterator[Item]:
        """Iterate over everything from `from_seq` to the present end, in pieces."""
        check_seq(from_seq)
        # Refreshes the cached topic, which may have been deleted and created again.
        await self._with_topic(topic, self._bounds)
        subscriber = self.subscriber(topic, from_seq)
        while items := await subscriber.poll():
            for item in items:
                yield item

    async def read_arrow(
        self, topic: str, from_seq: int = 1, *, columns: Sequence[str] = ("value", "key", "timestamp", "tag")
    ) -> pa.Table:
        """All records from `from_seq` to the present end as one Arrow table, without gaps (`read` reports them)."""
        import pyarrow as pa

        check_columns(columns)
        end = (await self._with_topic(topic, self._bounds)).end_seq
        reader = TopicReader(topic, (await self.topic_named(topic)).topic_id, ReadBy.SEQ, from_seq)
        batches = await read_all(self._requests, reader, end)
        return pa.Table.from_batches(list(to_arrow(batches, columns)) or [empty_table(columns)])

    def subscriber(self, topic: str, start: Start = "earliest", *, owner: str | None = None) -> AsyncRemoteSubscriber:
        """Open a reader that keeps its offset. `start` is "earliest", "latest", "committed", a seq, or a time.

        With an `owner` it can commit its offset, and "committed" starts there, or at the beginning if there is no
        commit yet. The first read resolves the start.
        """
        read_start(start, owner)

        async def begin() -> tuple[TopicReader, TopicEpoch]:
            seq = await self.start_seq(topic, start, owner)
            found = await self.topic_named(topic)
            return TopicReader(topic, found.topic_id, ReadBy.SEQ, seq), found.topic_epoch

        return AsyncRemoteSubscriber(self._requests, topic, begin, owner)

    async def commit(self, owner: str, topic: str, next_seq: int) -> None:
        """Store the offset of `owner`: `next_seq` is the seq it reads next. Durable when this returns."""
        consumer = consumer_of(owner)

        async def run(found: TopicReply) -> None:
            await self._requests.request(Commit(found.topic_id, consumer, found.topic_epoch, Seq(next_seq)))

        await self._with_topic(topic, run)

    async def committed(self, owner: str, topic: str) -> int | None:
        """The committed offset of `owner`: the seq it reads next; None if that is the beginning."""
        seq = await self.start_seq(topic, "committed", owner)
        return seq if seq > 1 else None

    async def read_positions(
        self, from_position: int = 0, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[PositionItem]:
        """Batches and SKIPs of all topics in the total order, from a position on; an empty list at the end.

        Stops at a batch boundary after `max_bytes`, or after `limit` records. Continue at the `next_position` of the
        last item.
        """
        check_position(from_position)
        reader = PositionReader(ReadBy.POSITION, from_position)
        return await self._take_positions(reader, max_bytes, NO_LIMIT if limit is None else limit, 0)

    def _open_watch(self, spec: WatchSpec) -> AsyncWatch:
        return AsyncWatch(AsyncRemoteWatchSource(self._requests), spec, self.describe)

    def position_subscriber(self, start: PositionStart = "earliest") -> AsyncRemotePositionSubscriber:
        """Open a reader of all topics in the total order, which keeps its position.

        `start` is "earliest", "latest" or a position.
        """
        return AsyncRemotePositionSubscriber(self._take_positions, PositionReader(*position_read_start(start)))

    async def _take_positions(
        self, reader: PositionReader, size: int, records: int, wait_ms: int
    ) -> list[PositionItem]:
        found: list[PositionItem] = []
        while True:
            fetch = reader.fetch(max_bytes=size, max_records=records, wait_ms=wait_ms)
            frame = await self._requests.fetch(fetch, wait_ms / 1e3)
            if not topics_in(frame) <= {topic.topic_id for topic in self._topics.values()}:
                await self._load_topics()
            found += reader.take(frame, {topic.topic_id: name for name, topic in self._topics.items()})
            # Never return part of a position.
            if (found or reader.is_at_end) and not reader.is_within:
                return found

    async def wait_for(self, topic: str, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the record `seq` exists; False after `timeout_s`. None waits without a limit."""

        async def run(found: TopicReply) -> bool:
            # A fetch does not show that a deleted record existed.
            if (await self._bounds(found)).end_seq > seq:
                return True
            return await self._wait(RecordWait(topic, found.topic_id, seq), timeout_s)

        return await self._with_topic(topic, run)

    async def wait_for_position(self, position: int, timeout_s: float | None = None) -> bool:
        """Wait until there is an item at or after a position; False after `timeout_s`. None waits without a limit."""
        return await self._wait(PositionWait(position), timeout_s)

    async def _wait(self, wait: Wait, timeout_s: float | None) -> bool:
        deadline = PollDeadline(timeout_s, OsClock().monotonic_ns())
        while True:
            wait_ms = deadline.wait_ms(OsClock().monotonic_ns())
            if wait.take(await self._requests.fetch(wait.fetch(wait_ms), wait_ms / 1e3)):
                return True
            if wait.is_at_end and not wait_ms:
                return False

    async def start_seq(self, topic: str, start: Start, owner: str | None) -> Seq:
        """Resolve a start to a seq."""
        by, number = read_start(start, owner)

        async def run(found: TopicReply) -> Seq:
            if by is ReadBy.SEQ:
                return Seq(number)
            if by is ReadBy.LATEST:
                return (await self._bounds(found)).end_seq
            reader = TopicReader(topic, found.topic_id, by, number)
            while True:
                seq = start_of(reader, await self._requests.request(reader.fetch(max_bytes=1, max_records=1)))
                if seq is not None:
                    return seq

        return await self._with_topic(topic, run)

    async def seq_at(self, topic: str, when: datetime) -> int:
        """The seq of the first record at or after `when`; the next seq of the topic if there is none."""
        return await self.start_seq(topic, when, None)

    async def delete(
        self, topic: str, *, before_seq: int | None = None, tag: str | None = None, tag_prefix: str | None = None
    ) -> int:
        """Delete records durably and return how many were deleted.

        Deletes the records that match all given conditions: below `before_seq`, with this `tag`, with a tag that
        starts with `tag_prefix`. Readers get no gap for deleted records.
        """

        async def run(found: TopicReply) -> int:
            request = delete_request(found.topic_id, before_seq, tag, tag_prefix)
            return parse_records_deleted((await self._requests.request(request, is_repeatable=False)).payload).count

        return await self._with_topic(topic, run)

    async def verify(self) -> NoReturn:
        """Not available over the network: verifying needs the data directory."""
        raise UnsupportedError(f"verifying: {NOT_REMOTE}")

    # --- internal ------------------------------------------------------------------------------------------------

    @property
    def _requests(self) -> AsyncRequests:
        if self._opened is None:
            raise WrongStateError("this log is not open: use `async with seawall.connect_async(url) as log`")
        return self._opened

    def _join(self, records: Publishable, known: TopicReply | None) -> Awaitable[Delivery] | None:
        """Add a value to the batch of tasks that publish concurrently, which is encoded once; None if it cannot be."""
        if type(records) is bytes and self._sender is not None and known is not None:
            return self._sender.join(known.topic_id, records, IN_FLIGHT_SIZE)
        return None

    async def _publish_blocks(self, name: str, blocks: list[EncodedBlock], found: TopicReply) -> Delivery:
        sender = self._sender
        if sender is None or sender.failure is not None:
            sender = await self._waiting_sender()
        return await sender.offer(name, found.topic_id, blocks)

    async def _push(self, name: str, records: Publishable) -> Delivery:
        """Append jobs as `publish` does; `WrongStateError` if the topic is not a queue."""
        known = self._topics.get(name)
        if known is not None and is_queue(known) and (joined := self._join(records, known)) is not None:
            with suppress(NotFoundError):
                return await joined
        blocks = encode_records(records)

        async def send(found: TopicReply) -> Delivery:
            return await self._publish_blocks(name, blocks, await self._checked_queue(found))

        return await self._with_topic(name, send)

    async def _publish_keyed(self, keyed: KeyedRecords, found: TopicReply) -> Delivery:
        request, timeout_s = keyed.request(found.topic_id), self.target.timeout_s

        async def send(connection: AsyncConnection) -> Frame:
            with keyed.asking(connection.welcome):
                return await connection.request(request, timeout_s=timeout_s)

        with keyed.deciding():
            reply = await self._requests.with_connection(send)
        return keyed.delivery(found.topic_id, reply)

    async def _waiting_sender(self) -> AsyncSender:
        """The session of `publish`, replaced if it has failed."""
        self._requests.check_open()
        async with self._opening:
            if self._sender is None or self._sender.failure is not None:
                if self._sender is not None:
                    await self._sender.close()
                sender = AsyncSender(self.target, outgoing_of(SYNC_OPTIONS))
                await sender.open()
                self._sender = sender
            return self._sender

    async def _load_topics(self) -> None:
        reply = parse_topic_list_reply((await self._requests.request(ListTopics())).payload)
        self._topics = {topic.name: topic for topic in reply.topics}

    async def _look_up(self, name: str) -> TopicReply:
        """Look a topic up on the server, past the cache; `NotFoundError` if it does not exist."""
        self._topics.pop(name, None)
        found = self._topics[name] = parse_topic_reply((await self._requests.request(TopicFind(name))).payload)
        return found

    async def _checked_queue(self, known: TopicReply) -> TopicReply:
        """A topic that is a queue. Looks it up if that is not known, or if it is a log that may have been replaced."""
        found = known if is_queue(known) else await self._look_up(known.name)
        if not is_queue(found):
            raise not_a_queue(known.name)
        return found

    async def _with_topic(self, name: str, work: Callable[[TopicReply], Awaitable[_Result]]) -> _Result:
        """Run `work` with a topic, and once more if the topic was deleted and created again."""
        topic = await self.topic_named(name)
        try:
            return await work(topic)
        except NotFoundError:
            again = await self._look_up(name)
            if again.topic_id == topic.topic_id:
                raise
            return await work(again)

    async def _bounds(self, topic: TopicReply) -> BoundsReply:
        return parse_bounds_reply((await self._requests.request(Bounds(topic.topic_id))).payload)
