"""A log behind a server for asyncio, with the words of `seawall.open_async`.

    async with seawall.connect_async("seawall://host:1992") as log:
        await log.create_topic("events")
        await log.publish("events", {"n": 1})              # many of these at once share batches and a sync
        async for item in log.subscriber("events"): ...    # ReceivedBatch, or Gap where something is lost

It belongs to the loop it was opened on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

from seawall.api.aio_topics import create_each
from seawall.api.publishable import Publishable
from seawall.api.publisher_options import BATCH_SIZE, IN_FLIGHT_SIZE, Compression, PublisherOptions
from seawall.api.received import Item, PositionItem, to_arrow
from seawall.api.topic_info import TopicInfo
from seawall.client.aio_transactions import AsyncRemoteTransactions
from seawall.client.commands import (
    NOT_REMOTE,
    READ_SIZE,
    PositionStart,
    ReadMode,
    Start,
    check_mode,
    consumer_of,
    create_request,
    delete_request,
    info_of,
    place_of,
    place_of_position,
    start_of,
)
from seawall.client.connection.aio_connection import AsyncConnection
from seawall.client.connection.aio_requests import AsyncRequests
from seawall.client.connection.targets import Target
from seawall.client.publish.aio_publisher import AsyncRemotePublisher
from seawall.client.publish.aio_sender import AsyncSender
from seawall.client.publish.delivery import Delivery
from seawall.client.publish.keyed_records import KeyedRecords
from seawall.client.publish.publisher import LONE, encode_one, outgoing_of
from seawall.client.read.aio_prefetch import AsyncPrefetch, read_all
from seawall.client.read.aio_subscriber import AsyncRemotePositionSubscriber, AsyncRemoteSubscriber
from seawall.client.read.position_reading import PositionReader, topics_in
from seawall.client.read.reading import NO_LIMIT, Budget, TopicReader
from seawall.client.read.waiting import Patience, PositionWait, RecordWait, Wait, check_position, check_seq
from seawall.core.identifiers import check_client_id
from seawall.core.sessions import SessionInfo
from seawall.core.types import Seq, TopicEpoch
from seawall.errors import InvalidInputError, NotFoundError, SeawallError, UnsupportedError
from seawall.io.process.clocks import OsClock
from seawall.limits import CREATES_AT_ONCE, SESSIONS_LISTED_MAX
from seawall.wire.format.arrow import check_columns, empty_table
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


class AsyncRemoteLog(AsyncRemoteTransactions):
    """A connected log on an event loop. Made by `seawall.connect_async`."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self._opened: AsyncRequests | None = None
        self._topics: dict[str, TopicReply] = {}
        self._sender: AsyncSender | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> Self:
        """Find the server; `async with` does it."""
        self._opened = AsyncRequests(self.target)
        try:
            # Whoever may only write may not ask for anything else.
            await self._opened.find_server()
        except BaseException:
            self._opened.close()
            raise
        return self

    async def close(self) -> None:
        """End all connections; closing twice is fine."""
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()
        if self._opened is not None:
            self._opened.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- topics --------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Create a topic; settings as in `TopicConfig`, such as `durability="disk"` or `ttl_ms=60_000`."""
        frame = await self._requests.ask(create_request(name, settings), is_repeatable=False)
        topic = self._topics[name] = parse_topic_reply(frame.payload)
        return info_of(topic)

    async def create_topics(self, names: Sequence[str], /, **settings: JsonValue) -> list[TopicInfo | SeawallError]:
        """Create topics with the same settings: each topic, or the error that prevented it. Durable on return."""
        return await create_each(partial(self.create_topic, **settings), names, at_once=CREATES_AT_ONCE)

    async def status(self) -> ClusterStatusReply:
        """Who serves this log: the node, and its brokers with their addresses and connections."""
        return parse_cluster_status_reply((await self._requests.ask(GetClusterStatus())).payload)

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        await self._load_topics()
        return sorted(self._topics)

    async def topic_named(self, name: str) -> TopicReply:
        """A topic, for who needs no look at what it holds; `NotFoundError` if it is not there."""
        return self._topics.get(name) or await self._find(name)

    async def describe(self, name: str) -> TopicInfo:
        """A topic as it is now."""

        async def ask(topic: TopicReply) -> TopicInfo:
            return info_of(parse_topic_reply((await self._requests.ask(TopicDescribe(topic.topic_id))).payload))

        return await self._with_topic(name, ask)

    async def configure_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Change settings of a topic."""

        async def ask(topic: TopicReply) -> TopicInfo:
            frame = await self._requests.ask(TopicConfigure(topic.topic_id, settings))
            return info_of(parse_topic_reply(frame.payload))

        return await self._with_topic(name, ask)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""

        async def ask(topic: TopicReply) -> None:
            await self._requests.ask(DeleteTopic(topic.topic_id), is_repeatable=False)

        await self._with_topic(name, ask)
        self._topics.pop(name, None)

    # --- sessions ------------------------------------------------------------------------------------------------

    async def sessions(self) -> list[SessionInfo]:
        """The sessions of all publishers that the server remembers, by rising client id."""
        found: list[SessionInfo] = []
        while page := await self._ask_sessions(SessionList(found[-1].client_id if found else 0, SESSIONS_LISTED_MAX)):
            found += page
        return found

    async def retire_session(self, client_id: int) -> None:
        """End and forget the session of a client: a publisher that has it is fenced. Durable when this returns.

        What such a client sends again under an old number is refused; a new session of it is welcome.
        """
        await self._ask_sessions(SessionRetire(check_client_id(client_id)), is_repeatable=False)

    async def _ask_sessions(self, request: SessionRequest, *, is_repeatable: bool = True) -> tuple[SessionInfo, ...]:
        return parse_sessions_reply((await self._requests.ask(request, is_repeatable=is_repeatable)).payload).sessions

    # --- records -------------------------------------------------------------------------------------------------

    async def publish(
        self, topic: str, records: Publishable, *, idempotency_key: str | bytes | None = None
    ) -> Delivery:
        """Append one record or many, in order; durable in the topic's class when it is awaited.

        With an `idempotency_key` records are stored once, however often that is tried within the topic's
        `idempotency_window_ms`, by whatever client: a repetition is told where the first ones are.
        """
        blocks = encode_one(records)
        if idempotency_key is not None:
            keyed = KeyedRecords(topic, blocks, idempotency_key)
            return await self._with_topic(topic, partial(self._publish_keyed, keyed))

        async def send(found: TopicReply) -> Delivery:
            sender = self._sender
            if sender is None or sender.failure is not None:
                sender = await self._waiting_sender()
            return await sender.offer(topic, found.topic_id, blocks)

        return await self._with_topic(topic, send)

    async def publisher(
        self,
        topic: str,
        *,
        ack: int = 2,
        client_id: int | None = None,
        max_in_flight: int = IN_FLIGHT_SIZE,
        linger_s: float = 0.0,
        batch_size: int = BATCH_SIZE,
        compression: Compression = "none",
        connections: int = 1,
    ) -> AsyncRemotePublisher:
        """A publisher that does not wait: each `publish` returns a `Delivery` while the records are on their way.

        With a `client_id` it goes on with the numbers of that client (`AsyncRemotePublisher.next_client_seq`), and its
        session ends any older one. Records share a batch of at most `batch_size` bytes while others are on their way,
        or for `linger_s`.
        """
        options = PublisherOptions(
            ack, client_id, max_in_flight, "raise", linger_s, batch_size, compression, connections
        )
        found = await self.topic_named(topic)
        return await AsyncRemotePublisher(self.target, topic, found.topic_id, options).open()

    async def publish_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> Delivery:
        """Append the rows of an Arrow table, whose columns are value, key, timestamp, tag and headers, or some."""
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
        """Batches from `from_seq` on, and in order with them the gaps a reader has to know of, and the SKIPs.

        Ends at a batch boundary after `max_bytes`, or once `limit` records are there; an empty list is the end. With
        mode "ordered" also what is ordered and on its way to the disk, which a crash may still take.
        """
        check_seq(from_seq)
        ordered = check_mode(mode)

        async def ask(found: TopicReply) -> list[Item]:
            reader = TopicReader(topic, found.topic_id, ReadBy.SEQ, from_seq, ordered=ordered)
            budget = Budget(max_bytes, limit)
            ahead = AsyncPrefetch(self._requests, reader)
            while not budget.is_spent(reader):
                budget.take(await ahead.take(budget.fetch(reader), behind=budget.behind))
            ahead.let_go()
            return budget.items

        return await self._with_topic(topic, ask)

    async def follow(self, topic: str, from_seq: int = 1) -> AsyncIterator[Item]:
        """Everything from `from_seq` to the present end, piece by piece."""
        check_seq(from_seq)
        # The topic may be another one by now.
        await self._with_topic(topic, self._bounds)
        subscriber = self.subscriber(topic, from_seq)
        while items := await subscriber.poll():
            for item in items:
                yield item

    async def read_arrow(
        self, topic: str, from_seq: int = 1, *, columns: Sequence[str] = ("value", "key", "timestamp", "tag")
    ) -> pa.Table:
        """All records from `from_seq` to the present end as one table; gaps are left out of it (`read` names them)."""
        import pyarrow as pa

        check_columns(columns)
        end = (await self._with_topic(topic, self._bounds)).end_seq
        reader = TopicReader(topic, (await self.topic_named(topic)).topic_id, ReadBy.SEQ, from_seq)
        batches = await read_all(self._requests, reader, end)
        return pa.Table.from_batches(list(to_arrow(batches, columns)) or [empty_table(columns)])

    def subscriber(self, topic: str, start: Start = "earliest", *, owner: str | None = None) -> AsyncRemoteSubscriber:
        """A reader that remembers where it is. `start` is earliest, latest, committed, a seq, or a time.

        With an `owner` it can commit how far it has come, and start from there again ("committed": from the beginning
        if there is no commit yet). Where that is is found out by its first read.
        """
        place_of(start, owner)

        async def begin() -> tuple[TopicReader, TopicEpoch]:
            seq = await self.start_seq(topic, start, owner)
            found = await self.topic_named(topic)
            return TopicReader(topic, found.topic_id, ReadBy.SEQ, seq), found.topic_epoch

        return AsyncRemoteSubscriber(self._requests, topic, begin, owner)

    async def commit(self, owner: str, topic: str, next_seq: int) -> None:
        """Keep how far `owner` has read: `next_seq` is what it reads next. Durable when this returns."""
        consumer = consumer_of(owner)

        async def ask(found: TopicReply) -> None:
            await self._requests.ask(Commit(found.topic_id, consumer, found.topic_epoch, Seq(next_seq)))

        await self._with_topic(topic, ask)

    async def committed(self, owner: str, topic: str) -> int | None:
        """What `owner` reads next, as it committed it; None if it is at the beginning."""
        seq = await self.start_seq(topic, "committed", owner)
        return seq if seq > 1 else None

    async def read_positions(
        self, from_position: int = 0, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[PositionItem]:
        """Everything that is ordered from a position on, of all topics, in the one order: batches and SKIPs.

        Ends at a batch boundary after `max_bytes`, or once `limit` records are there; an empty list is the end. Reading
        goes on at `next_position` of the last item.
        """
        check_position(from_position)
        reader = PositionReader(ReadBy.POSITION, from_position)
        return await self._take_positions(reader, max_bytes, NO_LIMIT if limit is None else limit, 0)

    def position_subscriber(self, start: PositionStart = "earliest") -> AsyncRemotePositionSubscriber:
        """A reader of everything in the one order that remembers where it is: from earliest, latest or a position."""
        return AsyncRemotePositionSubscriber(self._take_positions, PositionReader(*place_of_position(start)))

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
            # A position is told as a whole.
            if (found or reader.is_at_end) and not reader.is_within:
                return found

    async def wait_for(self, topic: str, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the record `seq` is there; false if it does not come within `timeout_s`. None is no limit."""

        async def ask(found: TopicReply) -> bool:
            # Of deleted records no read tells.
            if (await self._bounds(found)).end_seq > seq:
                return True
            return await self._wait(RecordWait(topic, found.topic_id, seq), timeout_s)

        return await self._with_topic(topic, ask)

    async def wait_for_position(self, position: int, timeout_s: float | None = None) -> bool:
        """Wait until there is something to read at a position or behind it; false if nothing comes within `timeout_s`.

        None is no limit.
        """
        return await self._wait(PositionWait(position), timeout_s)

    async def _wait(self, wait: Wait, timeout_s: float | None) -> bool:
        patience = Patience(timeout_s, OsClock().monotonic_ns())
        while True:
            wait_ms = patience.wait_ms(OsClock().monotonic_ns())
            if wait.take(await self._requests.fetch(wait.fetch(wait_ms), wait_ms / 1e3)):
                return True
            if wait.is_at_end and not wait_ms:
                return False

    async def start_seq(self, topic: str, start: Start, owner: str | None) -> Seq:
        """The seq that a start means now."""
        by, number = place_of(start, owner)

        async def ask(found: TopicReply) -> Seq:
            if by is ReadBy.SEQ:
                return Seq(number)
            if by is ReadBy.LATEST:
                return (await self._bounds(found)).end_seq
            reader = TopicReader(topic, found.topic_id, by, number)
            while True:
                seq = start_of(reader, await self._requests.ask(reader.fetch(max_bytes=1, max_records=1)))
                if seq is not None:
                    return seq

        return await self._with_topic(topic, ask)

    async def seq_at(self, topic: str, when: datetime) -> int:
        """Seq of the first record that is not older than `when`; the next one to come if all are."""
        return await self.start_seq(topic, when, None)

    async def delete(
        self, topic: str, *, before_seq: int | None = None, tag: str | None = None, tag_prefix: str | None = None
    ) -> int:
        """Delete records below a seq, or with a tag or a tag that begins so, or both; how many went, durably.

        Readers are not told of deleted records: they are simply not there any more.
        """

        async def ask(found: TopicReply) -> int:
            request = delete_request(found.topic_id, before_seq, tag, tag_prefix)
            return parse_records_deleted((await self._requests.ask(request, is_repeatable=False)).payload).count

        return await self._with_topic(topic, ask)

    async def verify(self) -> NoReturn:
        """Verifying needs the data directory."""
        raise UnsupportedError(f"verifying: {NOT_REMOTE}")

    # --- inside --------------------------------------------------------------------------------------------------

    @property
    def _requests(self) -> AsyncRequests:
        if self._opened is None:
            raise InvalidInputError("this log is not open: use `async with seawall.connect_async(url) as log`")
        return self._opened

    async def _publish_keyed(self, keyed: KeyedRecords, found: TopicReply) -> Delivery:
        request, timeout_s = keyed.request(found.topic_id), self.target.timeout_s

        async def ask(connection: AsyncConnection) -> Frame:
            with keyed.asking(connection.welcome):
                return await connection.request(request, timeout_s=timeout_s)

        with keyed.deciding():
            told = await self._requests.use(ask)
        return keyed.delivery(found.topic_id, told)

    async def _waiting_sender(self) -> AsyncSender:
        """The session of `publish`; another one if the last one failed."""
        self._requests.check_open()
        async with self._opening:
            if self._sender is None or self._sender.failure is not None:
                if self._sender is not None:
                    await self._sender.close()
                sender = AsyncSender(self.target, outgoing_of(LONE))
                await sender.open()
                self._sender = sender
            return self._sender

    async def _load_topics(self) -> None:
        reply = parse_topic_list_reply((await self._requests.ask(ListTopics())).payload)
        self._topics = {topic.name: topic for topic in reply.topics}

    async def _find(self, name: str) -> TopicReply:
        """What the server has under a name now; `NotFoundError` if that is nothing."""
        self._topics.pop(name, None)
        found = self._topics[name] = parse_topic_reply((await self._requests.ask(TopicFind(name))).payload)
        return found

    async def _with_topic(self, name: str, work: Callable[[TopicReply], Awaitable[_Result]]) -> _Result:
        """Do something with a topic; if it is another one by now, with that."""
        topic = await self.topic_named(name)
        try:
            return await work(topic)
        except NotFoundError:
            again = await self._find(name)
            if again.topic_id == topic.topic_id:
                raise
            return await work(again)

    async def _bounds(self, topic: TopicReply) -> BoundsReply:
        return parse_bounds_reply((await self._requests.ask(Bounds(topic.topic_id))).payload)
