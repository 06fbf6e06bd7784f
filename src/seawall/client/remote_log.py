"""A log that lies behind a server, with the words of the embedded one: `seawall.connect("seawall://host:1992")`.

    with seawall.connect("seawall://host:1992") as log:
        log.create_topic("events")
        log.publish("events", ["first", {"n": 2}]).seqs            # durable when it returns
        for batch in log.read("events"): ...                        # ReceivedBatch, or Gap where something is lost
        log.read_arrow("events")                                    # a pyarrow Table

Threads may share one log. Questions have connections of their own; `publish` has a session, in which it is stored once
however often a lost connection makes it be sent; under an `idempotency_key` it is a question. What the protocol has no
words for is an `UnsupportedError`.

INV-FORK-PARENT: a forked child sends nothing over its parent's connections, and nothing under its numbers or keys.
There the log opens connections and a session of its own. Publishers, subscribers and transactions of the parent refuse
in the child (`WrongStateError`), and closing them there does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

from seawall.api.publishable import Publishable
from seawall.api.publisher_options import BATCH_SIZE, IN_FLIGHT_SIZE, Compression, PublisherOptions, WhenFull
from seawall.api.received import Item, PositionItem, to_arrow
from seawall.api.topic_info import TopicInfo
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
from seawall.client.connection.connection import Connection
from seawall.client.connection.requests import Requests
from seawall.client.connection.targets import Target
from seawall.client.publish.delivery import Delivery
from seawall.client.publish.keyed_records import KeyedRecords
from seawall.client.publish.publisher import LONE, RemotePublisher, encode_one, outgoing_of
from seawall.client.publish.sender_pool import SenderPool
from seawall.client.publish.waiting_sender import WaitingSender
from seawall.client.read.position_reading import PositionReader, topics_in
from seawall.client.read.prefetch import Prefetch, read_all
from seawall.client.read.reading import NO_LIMIT, Budget, TopicReader
from seawall.client.read.subscriber import RemotePositionSubscriber, RemoteSubscriber
from seawall.client.read.waiting import Patience, PositionWait, RecordWait, Wait, check_position, check_seq
from seawall.client.transactions import RemoteTransactions
from seawall.core.identifiers import check_client_id, check_names
from seawall.core.sessions import SessionInfo
from seawall.core.types import Seq
from seawall.errors import NotFoundError, SeawallError, UnsupportedError
from seawall.io.process.own_process import disown_on_fork
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
from seawall.wire.lwp2.frames import ControlPayload
from seawall.wire.lwp2.reading import Bounds, BoundsReply, Commit, parse_bounds_reply
from seawall.wire.lwp2.sessions import SessionList, SessionRequest, SessionRetire, parse_sessions_reply
from seawall.wire.lwp2.topics import TopicConfigure, TopicDescribe, TopicFind, parse_records_deleted

if TYPE_CHECKING:
    import pyarrow as pa

_Result = TypeVar("_Result")


class RemoteLog(RemoteTransactions):
    """A connected log. Made by `seawall.connect`."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self._requests = Requests(target)
        self._topics: dict[str, TopicReply] = {}
        self._senders = self._new_pool()
        disown_on_fork(self)
        try:
            # Whoever may only write may not ask for anything else.
            self._requests.find_server()
        except BaseException:
            self._requests.close()
            raise

    # --- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Create a topic; settings as in `TopicConfig`, such as `durability="disk"` or `ttl_ms=60_000`."""
        frame = self._requests.ask(create_request(name, settings), is_repeatable=False)
        topic = self._topics[name] = parse_topic_reply(frame.payload)
        return info_of(topic)

    def create_topics(self, names: Sequence[str], /, **settings: JsonValue) -> list[TopicInfo | SeawallError]:
        """Create topics with the same settings: each topic, or the error that prevented it. Durable on return."""
        check_names(names)

        def create(name: str) -> TopicInfo | SeawallError:
            try:
                return self.create_topic(name, **settings)
            except SeawallError as error:
                return error

        with ThreadPoolExecutor(min(CREATES_AT_ONCE, max(1, len(names))), "seawall-creating") as threads:
            return list(threads.map(create, names))

    def status(self) -> ClusterStatusReply:
        """Who serves this log: the node, and its brokers with their addresses and connections."""
        return parse_cluster_status_reply(self._requests.ask(GetClusterStatus()).payload)

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        self._load_topics()
        return sorted(self._topics)

    def topic_named(self, name: str) -> TopicReply:
        """A topic, for who needs no look at what it holds; `NotFoundError` if it is not there."""
        return self._topics.get(name) or self._find(name)

    def describe(self, name: str) -> TopicInfo:
        """A topic as it is now."""

        def ask(topic: TopicReply) -> TopicInfo:
            return info_of(parse_topic_reply(self._requests.ask(TopicDescribe(topic.topic_id)).payload))

        return self._with_topic(name, ask)

    def configure_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Change settings of a topic."""

        def ask(topic: TopicReply) -> TopicInfo:
            return info_of(parse_topic_reply(self._requests.ask(TopicConfigure(topic.topic_id, settings)).payload))

        return self._with_topic(name, ask)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""

        def ask(topic: TopicReply) -> None:
            self._requests.ask(DeleteTopic(topic.topic_id), is_repeatable=False)

        self._with_topic(name, ask)
        self._topics.pop(name, None)

    # --- sessions ------------------------------------------------------------------------------------------------

    def sessions(self) -> list[SessionInfo]:
        """The sessions of all publishers that the server remembers, by rising client id."""
        found: list[SessionInfo] = []
        while page := self._ask_sessions(SessionList(found[-1].client_id if found else 0, SESSIONS_LISTED_MAX)):
            found += page
        return found

    def retire_session(self, client_id: int) -> None:
        """End and forget the session of a client: a publisher that has it is fenced. Durable when this returns.

        What such a client sends again under an old number is refused; a new session of it is welcome.
        """
        self._ask_sessions(SessionRetire(check_client_id(client_id)), is_repeatable=False)

    def _ask_sessions(self, request: SessionRequest, *, is_repeatable: bool = True) -> tuple[SessionInfo, ...]:
        return parse_sessions_reply(self._requests.ask(request, is_repeatable=is_repeatable).payload).sessions

    # --- writing -------------------------------------------------------------------------------------------------

    def publish(self, topic: str, records: Publishable, *, idempotency_key: str | bytes | None = None) -> Delivery:
        """Append one record or many, in order; durable in the topic's class when this returns.

        With an `idempotency_key` records are stored once, however often that is tried within the topic's
        `idempotency_window_ms`, by whatever client: a repetition is told where the first ones are.
        """
        blocks = encode_one(records)
        if idempotency_key is not None:
            return self._with_topic(topic, partial(self._publish_keyed, KeyedRecords(topic, blocks, idempotency_key)))

        def send(found: TopicReply) -> Delivery:
            self._requests.check_open()
            return self._senders.publish(topic, found.topic_id, blocks)

        return self._with_topic(topic, send)

    def publisher(
        self,
        topic: str,
        *,
        ack: int = 2,
        client_id: int | None = None,
        max_in_flight: int = IN_FLIGHT_SIZE,
        when_full: WhenFull = "wait",
        linger_s: float = 0.0,
        batch_size: int = BATCH_SIZE,
        compression: Compression = "none",
        connections: int = 1,
    ) -> RemotePublisher:
        """A publisher that does not wait: each `publish` returns a `Delivery` while the records are on their way.

        With a `client_id` it goes on with the numbers of that client (`RemotePublisher.next_client_seq`), and its
        session ends any older one. Records share a batch of at most `batch_size` bytes while others are on their way,
        or for `linger_s`.
        """
        options = PublisherOptions(
            ack, client_id, max_in_flight, when_full, linger_s, batch_size, compression, connections
        )
        found = self.topic_named(topic)
        return RemotePublisher(self.target, topic, found.topic_id, options)

    def publish_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> Delivery:
        """Append the rows of an Arrow table, whose columns are value, key, timestamp, tag and headers, or some."""
        return self.publish(topic, table)

    def commit(self, owner: str, topic: str, next_seq: int) -> None:
        """Keep how far `owner` has read: `next_seq` is what it reads next. Durable when this returns."""
        consumer = consumer_of(owner)

        def ask(found: TopicReply) -> None:
            self._requests.ask(Commit(found.topic_id, consumer, found.topic_epoch, Seq(next_seq)))

        self._with_topic(topic, ask)

    def delete(
        self, topic: str, *, before_seq: int | None = None, tag: str | None = None, tag_prefix: str | None = None
    ) -> int:
        """Delete records below a seq, or with a tag or a tag that begins so, or both; how many went, durably.

        Readers are not told of deleted records: they are simply not there any more.
        """

        def ask(found: TopicReply) -> int:
            request = delete_request(found.topic_id, before_seq, tag, tag_prefix)
            return parse_records_deleted(self._requests.ask(request, is_repeatable=False).payload).count

        return self._with_topic(topic, ask)

    def verify(self) -> NoReturn:
        """Verifying needs the data directory."""
        raise UnsupportedError(f"verifying: {NOT_REMOTE}")

    # --- reading -------------------------------------------------------------------------------------------------

    def read(
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

        def ask(found: TopicReply) -> list[Item]:
            reader = TopicReader(topic, found.topic_id, ReadBy.SEQ, from_seq, ordered=ordered)
            budget = Budget(max_bytes, limit)
            ahead = Prefetch(self._requests, reader)
            while not budget.is_spent(reader):
                budget.take(ahead.take(budget.fetch(reader), behind=budget.behind))
            ahead.let_go()
            return budget.items

        return self._with_topic(topic, ask)

    def follow(self, topic: str, from_seq: int = 1) -> Iterator[Item]:
        """Everything from `from_seq` to the present end, piece by piece."""
        check_seq(from_seq)
        # The topic may be another one by now.
        self._with_topic(topic, self._bounds)
        subscriber = self.subscriber(topic, from_seq)
        while items := subscriber.poll():
            yield from items

    def read_arrow(
        self, topic: str, from_seq: int = 1, *, columns: Sequence[str] = ("value", "key", "timestamp", "tag")
    ) -> pa.Table:
        """All records from `from_seq` to the present end as one table; gaps are left out of it (`read` names them)."""
        import pyarrow as pa

        check_columns(columns)
        end = self._with_topic(topic, self._bounds).end_seq
        reader = TopicReader(topic, self.topic_named(topic).topic_id, ReadBy.SEQ, from_seq)
        batches = read_all(self._requests, reader, end)
        return pa.Table.from_batches(list(to_arrow(batches, columns)) or [empty_table(columns)])

    def seq_at(self, topic: str, when: datetime) -> int:
        """Seq of the first record that is not older than `when`; the next one to come if all are."""
        return self.start_seq(topic, when, None)

    def subscriber(self, topic: str, start: Start = "earliest", *, owner: str | None = None) -> RemoteSubscriber:
        """A reader that remembers where it is. `start` is earliest, latest, committed, a seq, or a time.

        With an `owner` it can commit how far it has come, and start from there again ("committed": from the beginning
        if there is no commit yet).
        """
        place = place_of(start, owner)
        if place[0] is not ReadBy.SEQ:
            # Where that is now; what comes later is read.
            place = ReadBy.SEQ, self.start_seq(topic, start, owner)
        found = self.topic_named(topic)
        return RemoteSubscriber(self._requests, TopicReader(topic, found.topic_id, *place), found.topic_epoch, owner)

    def start_seq(self, topic: str, start: Start, owner: str | None) -> Seq:
        """The seq that a start means now."""
        by, number = place_of(start, owner)
        if by is ReadBy.SEQ:
            self.topic_named(topic)
            return Seq(number)

        def ask(found: TopicReply) -> Seq:
            if by is ReadBy.LATEST:
                return self._bounds(found).end_seq
            reader = TopicReader(topic, found.topic_id, by, number)
            while (seq := start_of(reader, self._requests.ask(reader.fetch(max_bytes=1, max_records=1)))) is None:
                continue
            return seq

        return self._with_topic(topic, ask)

    def committed(self, owner: str, topic: str) -> int | None:
        """What `owner` reads next, as it committed it; None if it is at the beginning."""
        seq = self.start_seq(topic, "committed", owner)
        return seq if seq > 1 else None

    def read_positions(
        self, from_position: int = 0, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[PositionItem]:
        """Everything that is ordered from a position on, of all topics, in the one order: batches and SKIPs.

        Ends at a batch boundary after `max_bytes`, or once `limit` records are there; an empty list is the end. Reading
        goes on at `next_position` of the last item.
        """
        check_position(from_position)
        reader = PositionReader(ReadBy.POSITION, from_position)
        return self._take_positions(reader, max_bytes, NO_LIMIT if limit is None else limit, 0)

    def position_subscriber(self, start: PositionStart = "earliest") -> RemotePositionSubscriber:
        """A reader of everything in the one order that remembers where it is: from earliest, latest or a position."""
        reader = PositionReader(*place_of_position(start))
        if start == "latest":
            self._take_positions(reader, 1, 1, 0)
        return RemotePositionSubscriber(self._take_positions, reader, self._requests.clock)

    def _take_positions(self, reader: PositionReader, size: int, records: int, wait_ms: int) -> list[PositionItem]:
        found: list[PositionItem] = []
        while True:
            fetch = reader.fetch(max_bytes=size, max_records=records, wait_ms=wait_ms)
            frame = self._requests.fetch(fetch, wait_ms / 1e3)
            if not topics_in(frame) <= {topic.topic_id for topic in self._topics.values()}:
                self._load_topics()
            found += reader.take(frame, {topic.topic_id: name for name, topic in self._topics.items()})
            # A position is told as a whole.
            if (found or reader.is_at_end) and not reader.is_within:
                return found

    def wait_for(self, topic: str, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the record `seq` is there; false if it does not come within `timeout_s`. None is no limit."""

        def ask(found: TopicReply) -> bool:
            # Of deleted records no read tells.
            return self._bounds(found).end_seq > seq or self._wait(RecordWait(topic, found.topic_id, seq), timeout_s)

        return self._with_topic(topic, ask)

    def wait_for_position(self, position: int, timeout_s: float | None = None) -> bool:
        """Wait until there is something to read at a position or behind it; false if nothing comes within `timeout_s`.

        None is no limit.
        """
        return self._wait(PositionWait(position), timeout_s)

    def _wait(self, wait: Wait, timeout_s: float | None) -> bool:
        clock = self._requests.clock
        patience = Patience(timeout_s, clock.monotonic_ns())
        while True:
            wait_ms = patience.wait_ms(clock.monotonic_ns())
            if wait.take(self._requests.fetch(wait.fetch(wait_ms), wait_ms / 1e3)):
                return True
            if wait.is_at_end and not wait_ms:
                return False

    def ask(self, payload: ControlPayload) -> Frame:
        """The answer to a question that changes nothing, for who speaks the protocol; raises what is refused."""
        return self._requests.ask(payload)

    # --- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all connections; closing twice is fine."""
        self._senders.close()
        self._requests.close()

    def disown(self) -> None:
        """This is a forked child: begin a session of its own, under keys of its own, when one is needed."""
        super().disown()
        self._senders = self._new_pool()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _publish_keyed(self, keyed: KeyedRecords, found: TopicReply) -> Delivery:
        request, timeout_s = keyed.request(found.topic_id), self.target.timeout_s

        def ask(connection: Connection) -> Frame:
            with keyed.asking(connection.welcome):
                return connection.request(request, timeout_s=timeout_s)

        with keyed.deciding():
            told = self._requests.use(ask)
        return keyed.delivery(found.topic_id, told)

    def _new_pool(self) -> SenderPool:
        return SenderPool(lambda: WaitingSender(self.target, outgoing_of(LONE)))

    def _load_topics(self) -> None:
        reply = parse_topic_list_reply(self._requests.ask(ListTopics()).payload)
        self._topics = {topic.name: topic for topic in reply.topics}

    def _find(self, name: str) -> TopicReply:
        """What the server has under a name now; `NotFoundError` if that is nothing."""
        self._topics.pop(name, None)
        found = self._topics[name] = parse_topic_reply(self._requests.ask(TopicFind(name)).payload)
        return found

    def _with_topic(self, name: str, work: Callable[[TopicReply], _Result]) -> _Result:
        """Do something with a topic; if it is another one by now, with that."""
        topic = self.topic_named(name)
        try:
            return work(topic)
        except NotFoundError:
            again = self._find(name)
            if again.topic_id == topic.topic_id:
                raise
            return work(again)

    def _bounds(self, topic: TopicReply) -> BoundsReply:
        return parse_bounds_reply(self._requests.ask(Bounds(topic.topic_id)).payload)
