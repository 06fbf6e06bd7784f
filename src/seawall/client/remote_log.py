"""The log behind a server, with the API of the embedded log: `seawall.connect("seawall://host:1992")`.

    with seawall.connect("seawall://host:1992") as log:
        log.create_topic("events")
        log.publish("events", ["first", {"n": 2}]).seqs            # durable when it returns
        for item in log.read("events"): ...                         # ReceivedBatch, or Gap where records are lost
        log.read_arrow("events")                                    # a pyarrow Table

Threads may share one log. Each request uses a connection from a pool. `publish` has a session, so that records are
stored once even if they are sent again after a lost connection; with an `idempotency_key` it is an ordinary request.
Operations that the protocol does not support raise `UnsupportedError`.

INV-FORK-PARENT: a forked child sends nothing over its parent's connections, and nothing under its numbers or keys.
In the child, the log opens its own connections and session. Publishers, subscribers and transactions of the parent
raise `WrongStateError` there, and closing them does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

from seawall.api.publishable import Publishable
from seawall.api.publisher_options import PublisherOptions
from seawall.api.publishing import PublishingLog
from seawall.api.queues.jobs import not_a_queue
from seawall.api.queues.queue import Queue
from seawall.api.read_options import PositionStart, ReadMode, Start
from seawall.api.received import Item, PositionItem, to_arrow
from seawall.api.record_readers import RecordLog
from seawall.api.topic_info import TopicInfo
from seawall.api.watches import Watch, WatchingLog
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
from seawall.client.connection.connection import Connection
from seawall.client.connection.requests import Requests
from seawall.client.connection.targets import Target
from seawall.client.publish.delivery import Delivery
from seawall.client.publish.keyed_records import KeyedRecords
from seawall.client.publish.publisher import SYNC_OPTIONS, RemotePublisher, encode_records, outgoing_of
from seawall.client.publish.sender_pool import SenderPool
from seawall.client.publish.waiting_sender import WaitingSender
from seawall.client.queues.queues import RemoteQueue, RemoteQueues
from seawall.client.read.position_reading import PositionReader, topics_in
from seawall.client.read.prefetch import Prefetch, read_all
from seawall.client.read.reading import NO_LIMIT, Budget, TopicReader
from seawall.client.read.subscriber import RemotePositionSubscriber, RemoteSubscriber
from seawall.client.read.waiting import PollDeadline, PositionWait, RecordWait, Wait, check_position, check_seq
from seawall.client.read.watch_source import RemoteWatchSource
from seawall.client.routers import RemoteRouters
from seawall.client.transactions import RemoteTransactions
from seawall.core.identifiers import check_client_id, check_names
from seawall.core.sessions import SessionInfo
from seawall.core.types import Seq
from seawall.core.watches import WatchSpec
from seawall.errors import NotFoundError, SeawallError, UnsupportedError
from seawall.io.process.own_process import disown_on_fork, worker_name
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
from seawall.wire.lwp2.frames import ControlPayload
from seawall.wire.lwp2.reading import Bounds, BoundsReply, Commit, parse_bounds_reply
from seawall.wire.lwp2.sessions import SessionList, SessionRequest, SessionRetire, parse_sessions_reply
from seawall.wire.lwp2.topics import TopicConfigure, TopicDescribe, TopicFind, parse_records_deleted

if TYPE_CHECKING:
    import pyarrow as pa

_Result = TypeVar("_Result")


class RemoteLog(RemoteTransactions, RemoteRouters, RecordLog, PublishingLog[RemotePublisher], WatchingLog[Watch]):
    """A log on a server. Created by `seawall.connect`; use it in a `with` block or `close` it. Threads may share it."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target
        self._requests = Requests(target)
        self._topics: dict[str, TopicReply] = {}
        self._senders = self._new_pool()
        self._queues = RemoteQueues(self._requests, self._push, self._with_topic)
        disown_on_fork(self)
        try:
            # Only connects: a token that may only write could not send any other request.
            self._requests.check_server()
        except BaseException:
            self._requests.close()
            raise

    # --- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Create a topic. Settings are those of `TopicConfig`, such as `durability="disk"` or `ttl_ms=60_000`."""
        frame = self._requests.request(create_request(name, settings), is_repeatable=False)
        topic = self._topics[name] = parse_topic_reply(frame.payload)
        return info_of(topic)

    def create_topics(self, names: Sequence[str], /, **settings: JsonValue) -> list[TopicInfo | SeawallError]:
        """Create topics with the same settings; durable when this returns.

        Returns for each name the new topic, or the error that prevented its creation.
        """
        check_names(names)

        def create(name: str) -> TopicInfo | SeawallError:
            try:
                return self.create_topic(name, **settings)
            except SeawallError as error:
                return error

        with ThreadPoolExecutor(min(CREATES_AT_ONCE, max(1, len(names))), "seawall-creating") as threads:
            return list(threads.map(create, names))

    def status(self) -> ClusterStatusReply:
        """The node that serves this log, and its brokers with their addresses and connections."""
        return parse_cluster_status_reply(self._requests.request(GetClusterStatus()).payload)

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        self._load_topics()
        return sorted(self._topics)

    def topic_named(self, name: str) -> TopicReply:
        """The cached identity of a topic, looked up if needed; `NotFoundError` if it does not exist."""
        return self._topics.get(name) or self._look_up(name)

    def describe(self, name: str) -> TopicInfo:
        """The current state and settings of a topic."""

        def run(topic: TopicReply) -> TopicInfo:
            return info_of(parse_topic_reply(self._requests.request(TopicDescribe(topic.topic_id)).payload))

        return self._with_topic(name, run)

    def configure_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Change settings of a topic and return its new state."""

        def run(topic: TopicReply) -> TopicInfo:
            return info_of(parse_topic_reply(self._requests.request(TopicConfigure(topic.topic_id, settings)).payload))

        return self._with_topic(name, run)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""

        def run(topic: TopicReply) -> None:
            self._requests.request(DeleteTopic(topic.topic_id), is_repeatable=False)

        self._with_topic(name, run)
        self._topics.pop(name, None)

    def queue(self, topic: str, /, *, node: str | None = None) -> Queue:
        """The job queue of a topic that was created with `type="queue"`.

        `node` is the name of this worker; by default each call makes a new one.
        """
        return RemoteQueue(self._queues, topic, worker_name() if node is None else node)

    # --- sessions ------------------------------------------------------------------------------------------------

    def sessions(self) -> list[SessionInfo]:
        """All publisher sessions that the server remembers, sorted by client id."""
        found: list[SessionInfo] = []
        while page := self._request_sessions(SessionList(found[-1].client_id if found else 0, SESSIONS_LISTED_MAX)):
            found += page
        return found

    def retire_session(self, client_id: int) -> None:
        """End and forget the session of a client, and fence a publisher that uses it. Durable when this returns.

        The server then refuses batches that the client repeats under old client seqs; it accepts a new session.
        """
        self._request_sessions(SessionRetire(check_client_id(client_id)), is_repeatable=False)

    def _request_sessions(self, request: SessionRequest, *, is_repeatable: bool = True) -> tuple[SessionInfo, ...]:
        return parse_sessions_reply(self._requests.request(request, is_repeatable=is_repeatable).payload).sessions

    # --- writing -------------------------------------------------------------------------------------------------

    def publish(self, topic: str, records: Publishable, *, idempotency_key: str | bytes | None = None) -> Delivery:
        """Append one record or many, in order; stored at the durability class of the topic when this returns.

        With an `idempotency_key`, the records are stored once, even if several clients publish them again under the
        same key within the topic's `idempotency_window_ms`. A repetition returns the seqs of the original.
        """
        blocks = encode_records(records)
        if idempotency_key is not None:
            return self._with_topic(topic, partial(self._publish_keyed, KeyedRecords(topic, blocks, idempotency_key)))

        return self._with_topic(topic, partial(self._publish_blocks, topic, blocks))

    def _open_publisher(self, topic: str, options: PublisherOptions) -> RemotePublisher:
        found = self.topic_named(topic)
        return RemotePublisher(self.target, topic, found.topic_id, options)

    def publish_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> Delivery:
        """Append the rows of an Arrow table with some of the columns value, key, timestamp, tag and headers."""
        return self.publish(topic, table)

    def commit(self, owner: str, topic: str, next_seq: int) -> None:
        """Store the offset of `owner`: `next_seq` is the seq it reads next. Durable when this returns."""
        consumer = consumer_of(owner)

        def run(found: TopicReply) -> None:
            self._requests.request(Commit(found.topic_id, consumer, found.topic_epoch, Seq(next_seq)))

        self._with_topic(topic, run)

    def delete(
        self, topic: str, *, before_seq: int | None = None, tag: str | None = None, tag_prefix: str | None = None
    ) -> int:
        """Delete records durably and return how many were deleted.

        Deletes the records that match all given conditions: below `before_seq`, with this `tag`, with a tag that
        starts with `tag_prefix`. Readers get no gap for deleted records.
        """

        def run(found: TopicReply) -> int:
            request = delete_request(found.topic_id, before_seq, tag, tag_prefix)
            return parse_records_deleted(self._requests.request(request, is_repeatable=False).payload).count

        return self._with_topic(topic, run)

    def verify(self) -> NoReturn:
        """Not available over the network: verifying needs the data directory."""
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
        """Batches from `from_seq` on, in order with gaps and SKIPs; an empty list at the end of the topic.

        Stops at a batch boundary after `max_bytes`, or after `limit` records. Mode "ordered" also returns records that
        are ordered but not yet durable, which a crash may still lose.
        """
        check_seq(from_seq)
        ordered = check_mode(mode)

        def run(found: TopicReply) -> list[Item]:
            reader = TopicReader(topic, found.topic_id, ReadBy.SEQ, from_seq, ordered=ordered)
            budget = Budget(max_bytes, limit)
            prefetch = Prefetch(self._requests, reader)
            while not budget.is_spent(reader):
                budget.take(prefetch.take(budget.fetch(reader), prefetch_size=budget.prefetch_size))
            prefetch.cancel()
            return budget.items

        return self._with_topic(topic, run)

    def follow(self, topic: str, from_seq: int = 1) -> Iterator[Item]:
        """Iterate over everything from `from_seq` to the present end, in pieces."""
        check_seq(from_seq)
        # Refreshes the cached topic, which may have been deleted and created again.
        self._with_topic(topic, self._bounds)
        subscriber = self.subscriber(topic, from_seq)
        while items := subscriber.poll():
            yield from items

    def read_arrow(
        self, topic: str, from_seq: int = 1, *, columns: Sequence[str] = ("value", "key", "timestamp", "tag")
    ) -> pa.Table:
        """All records from `from_seq` to the present end as one Arrow table, without gaps (`read` reports them)."""
        import pyarrow as pa

        check_columns(columns)
        end = self._with_topic(topic, self._bounds).end_seq
        reader = TopicReader(topic, self.topic_named(topic).topic_id, ReadBy.SEQ, from_seq)
        batches = read_all(self._requests, reader, end)
        return pa.Table.from_batches(list(to_arrow(batches, columns)) or [empty_table(columns)])

    def seq_at(self, topic: str, when: datetime) -> int:
        """The seq of the first record at or after `when`; the next seq of the topic if there is none."""
        return self.start_seq(topic, when, None)

    def subscriber(self, topic: str, start: Start = "earliest", *, owner: str | None = None) -> RemoteSubscriber:
        """Open a reader that keeps its offset. `start` is "earliest", "latest", "committed", a seq, or a time.

        With an `owner` it can commit its offset, and "committed" starts there, or at the beginning if there is no
        commit yet.
        """
        read_from = read_start(start, owner)
        if read_from[0] is not ReadBy.SEQ:
            # Resolved now, so that records published from now on are read.
            read_from = ReadBy.SEQ, self.start_seq(topic, start, owner)
        found = self.topic_named(topic)
        return RemoteSubscriber(
            self._requests, TopicReader(topic, found.topic_id, *read_from), found.topic_epoch, owner
        )

    def _open_watch(self, spec: WatchSpec) -> Watch:
        self._requests.check_open()
        return Watch(RemoteWatchSource(self._requests), spec, self.describe)

    def start_seq(self, topic: str, start: Start, owner: str | None) -> Seq:
        """Resolve a start to a seq."""
        by, number = read_start(start, owner)
        if by is ReadBy.SEQ:
            self.topic_named(topic)
            return Seq(number)

        def run(found: TopicReply) -> Seq:
            if by is ReadBy.LATEST:
                return self._bounds(found).end_seq
            reader = TopicReader(topic, found.topic_id, by, number)
            while (seq := start_of(reader, self._requests.request(reader.fetch(max_bytes=1, max_records=1)))) is None:
                continue
            return seq

        return self._with_topic(topic, run)

    def committed(self, owner: str, topic: str) -> int | None:
        """The committed offset of `owner`: the seq it reads next; None if that is the beginning."""
        seq = self.start_seq(topic, "committed", owner)
        return seq if seq > 1 else None

    def read_positions(
        self, from_position: int = 0, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[PositionItem]:
        """Batches and SKIPs of all topics in the total order, from a position on; an empty list at the end.

        Stops at a batch boundary after `max_bytes`, or after `limit` records. Continue at the `next_position` of the
        last item.
        """
        check_position(from_position)
        reader = PositionReader(ReadBy.POSITION, from_position)
        return self._take_positions(reader, max_bytes, NO_LIMIT if limit is None else limit, 0)

    def position_subscriber(self, start: PositionStart = "earliest") -> RemotePositionSubscriber:
        """Open a reader of all topics in the total order, which keeps its position.

        `start` is "earliest", "latest" or a position.
        """
        reader = PositionReader(*position_read_start(start))
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
            # Never return part of a position.
            if (found or reader.is_at_end) and not reader.is_within:
                return found

    def wait_for(self, topic: str, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the record `seq` exists; False after `timeout_s`. None waits without a limit."""

        def run(found: TopicReply) -> bool:
            # A fetch does not show that a deleted record existed.
            return self._bounds(found).end_seq > seq or self._wait(RecordWait(topic, found.topic_id, seq), timeout_s)

        return self._with_topic(topic, run)

    def wait_for_position(self, position: int, timeout_s: float | None = None) -> bool:
        """Wait until there is an item at or after a position; False after `timeout_s`. None waits without a limit."""
        return self._wait(PositionWait(position), timeout_s)

    def _wait(self, wait: Wait, timeout_s: float | None) -> bool:
        clock = self._requests.clock
        deadline = PollDeadline(timeout_s, clock.monotonic_ns())
        while True:
            wait_ms = deadline.wait_ms(clock.monotonic_ns())
            if wait.take(self._requests.fetch(wait.fetch(wait_ms), wait_ms / 1e3)):
                return True
            if wait.is_at_end and not wait_ms:
                return False

    def ask(self, payload: ControlPayload) -> Frame:
        """Send a read-only request of the protocol and return the response; raises the server's refusal."""
        return self._requests.request(payload)

    # --- lifecycle -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections; idempotent."""
        self._senders.close()
        self._staging_pool.close()
        self._queues.close()
        self._requests.close()

    def disown(self) -> None:
        """Run in a forked child: use new keys, and open a new session when one is needed."""
        super().disown()
        self._senders = self._new_pool()
        self._queues.disown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _publish_blocks(self, name: str, blocks: list[EncodedBlock], found: TopicReply) -> Delivery:
        self._requests.check_open()
        return self._senders.publish(name, found.topic_id, blocks)

    def _push(self, name: str, records: Publishable) -> Delivery:
        """Append jobs as `publish` does; `WrongStateError` if the topic is not a queue."""
        blocks = encode_records(records)

        def send(found: TopicReply) -> Delivery:
            return self._publish_blocks(name, blocks, self._checked_queue(found))

        return self._with_topic(name, send)

    def _publish_keyed(self, keyed: KeyedRecords, found: TopicReply) -> Delivery:
        request, timeout_s = keyed.request(found.topic_id), self.target.timeout_s

        def send(connection: Connection) -> Frame:
            with keyed.asking(connection.welcome):
                return connection.request(request, timeout_s=timeout_s)

        with keyed.deciding():
            reply = self._requests.with_connection(send)
        return keyed.delivery(found.topic_id, reply)

    def _new_pool(self) -> SenderPool:
        return SenderPool(lambda: WaitingSender(self.target, outgoing_of(SYNC_OPTIONS)))

    def _load_topics(self) -> None:
        reply = parse_topic_list_reply(self._requests.request(ListTopics()).payload)
        self._topics = {topic.name: topic for topic in reply.topics}

    def _look_up(self, name: str) -> TopicReply:
        """Look a topic up on the server, past the cache; `NotFoundError` if it does not exist."""
        self._topics.pop(name, None)
        found = self._topics[name] = parse_topic_reply(self._requests.request(TopicFind(name)).payload)
        return found

    def _checked_queue(self, known: TopicReply) -> TopicReply:
        """A topic that is a queue. Looks it up if that is not known, or if it is a log that may have been replaced."""
        found = known if is_queue(known) else self._look_up(known.name)
        if not is_queue(found):
            raise not_a_queue(known.name)
        return found

    def _with_topic(self, name: str, work: Callable[[TopicReply], _Result]) -> _Result:
        """Run `work` with a topic, and once more if the topic was deleted and created again."""
        topic = self.topic_named(name)
        try:
            return work(topic)
        except NotFoundError:
            again = self._look_up(name)
            if again.topic_id == topic.topic_id:
                raise
            return work(again)

    def _bounds(self, topic: TopicReply) -> BoundsReply:
        return parse_bounds_reply(self._requests.request(Bounds(topic.topic_id)).payload)
