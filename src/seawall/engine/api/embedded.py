"""The embedded log: `seawall.open("data/")` in any Python process. No server, no thread before there is work for one.

    with seawall.open("data/") as log:
        log.create_topic("events")
        log.publish("events", ["first", {"n": 2}]).seqs            # durable when it returns
        for batch in log.read("events"): ...                        # ReceivedBatch, or Gap where something is lost
        log.read_arrow("events")                                    # a pyarrow Table
        with log.transaction() as transaction: ...                  # several topics at once (`api/transactions.py`)

Threads may share one log. Whoever publishes commits, and takes along what other threads have handed in meanwhile: one
write and one sync for all of them. A lone publisher waits for nobody.

A process that forks must not use the log in the child: the files belong to the parent. Every call checks that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from seawall.api.publisher_options import BATCH_SIZE, IN_FLIGHT_SIZE, Compression, PublisherOptions, WhenFull
from seawall.api.topic_info import TopicInfo
from seawall.core.identifiers import check_names
from seawall.core.types import ClientId, ClientSeq, Position, Seq, TimestampNs
from seawall.engine.api.log_sessions import EmbeddedSessions
from seawall.engine.api.publisher import Publisher, Session
from seawall.engine.api.read_results import Item, PositionItem, Publishable, encode, seq_after, told
from seawall.engine.api.subscriber import PositionStart, PositionSubscriber, Subscriber
from seawall.engine.api.topic_creations import Creation, TopicCreations
from seawall.engine.commit.commit_queue import CommitQueue
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.pending_batches import PendingBatch
from seawall.engine.commit.worker_thread import WorkerThread
from seawall.engine.maintenance.flush_thread import FlushThread
from seawall.engine.ordering.orderer import WantedSession
from seawall.engine.read.arrow_reading import read_table
from seawall.engine.read.reading import ReadPlan
from seawall.engine.store.store import Store
from seawall.errors import InvalidInputError, SeawallError, UnsupportedError
from seawall.io.process.clocks import OsClock
from seawall.io.process.own_process import disown_on_fork
from seawall.io.process.shared_lock import MemoryLock
from seawall.limits import MIB
from seawall.storage.control.deletes import MatchKind, TagMatch
from seawall.storage.findings import VerifyReport
from seawall.topics.state import TopicState
from seawall.wire.format.fields import JsonObject, JsonValue
from seawall.wire.format.records import encode_raw

if TYPE_CHECKING:
    import pyarrow as pa

#: Where a reader begins: a word, a seq, or a time.
Start: TypeAlias = Literal["earliest", "latest", "committed"] | int | datetime

#: What a reader gets: what is as durable as its class promises, or all that is ordered.
ReadMode: TypeAlias = Literal["durable", "ordered"]

#: Bytes of one read that names no bound: enough to amortise the call, little enough to hold.
READ_SIZE: Final = 8 * MIB


class EmbeddedLog(EmbeddedSessions):
    """An open log. Made by `seawall.open`."""

    def __init__(self, store: Store, state: MemoryLock | None = None) -> None:
        """`state` is the lock of the store's memory, where others than threads take it."""
        super().__init__()
        self._store = store
        #: Why nothing may be asked of it any more, if something may not.
        self._refusal: str | None = None
        #: A topic, for who needs no look at what it holds.
        self.topic_named = store.topic_named
        self.queue = CommitQueue(store, state)
        self._creations = TopicCreations(self.changing)
        self.queue.listeners.append(self._notify_readers)
        self._pump = WorkerThread(self.queue.lead_all)
        self.flush_thread = FlushThread(self.queue, store)
        store.checkpoint_schedule.on_the_side(self.flush_thread.wake)
        disown_on_fork(self)
        store.sessions.live_clients.append(self._open_sessions)
        #: Notified when there is something new to read.
        self._news = threading.Condition()
        self._readers_waiting = 0

    # --- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Create a topic; settings as in `TopicConfig`, such as `durability="disk"` or `ttl_ms=60_000`."""
        (created,) = self.create_each([(name, settings)])
        if isinstance(created, SeawallError):
            raise created
        return created

    def create_topics(self, names: Sequence[str], /, **settings: JsonValue) -> list[TopicInfo | SeawallError]:
        """Create topics with the same settings: each topic, or the error that prevented it. Durable on return."""
        check_names(names)
        return self.create_each([(name, settings) for name in names])

    def create_each(self, wanted: Sequence[tuple[str, JsonObject]]) -> list[TopicInfo | SeawallError]:
        """Create topics, each with its own settings. Concurrent calls share their commits."""
        creations = [Creation.of(name, settings) for name, settings in wanted]
        self._creations.execute(creations)
        return [info_of(each.result) if isinstance(each.result, TopicState) else each.result for each in creations]

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        with self.looking() as store:
            return store.catalog.names()

    def describe(self, name: str) -> TopicInfo:
        """A topic as it is now."""
        with self.looking() as store:
            return info_of(store.catalog.named(name))

    def configure_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Change settings of a topic."""
        with self.changing() as store:
            return info_of(store.configure_topic(name, settings))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""
        with self.changing() as store:
            store.delete_topic(name)

    # --- writing -------------------------------------------------------------------------------------------------

    def publish(self, topic: str, records: Publishable, *, idempotency_key: str | bytes | None = None) -> Delivery:
        """Append one record or many, in order, as one commit; durable in the topic's class when this returns.

        With an `idempotency_key` records are stored once, however often that is tried within the topic's
        `idempotency_window_ms`: a repetition is told where the first ones are.
        """
        queue = self.queue
        if queue.joinable and type(records) is bytes and idempotency_key is None:
            delivery = queue.join(topic, records)
            if delivery is not None:
                return delivery.result()
        return queue.publish(self.pending_batch_of(topic, records, idempotency_key))

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
    ) -> Publisher:
        """A publisher that does not wait: each `publish` returns a `Delivery` while the records are on their way.

        With a `client_id` its batches are numbered in a session of that client, so that a batch that is sent again
        after a crash is stored once (`Publisher.next_client_seq`); the session ends any older one of the client.
        `linger_s`, `batch_size`, `compression` and `connections` are about sending to a server; here they are checked
        and have no effect.
        """
        options = PublisherOptions(
            ack, client_id, max_in_flight, when_full, linger_s, batch_size, compression, connections
        )
        if client_id is None:
            return Publisher(self, topic, options)
        with self.changing() as store:
            epoch, next_seq = store.session_keeper.open(WantedSession(ClientId(client_id), ClientSeq(1)))
            publisher = Publisher(self, topic, options, Session(ClientId(client_id), epoch, next_seq))
            # Before anybody else may look for sessions that nobody has.
            self._keep_live(publisher)
        return publisher

    def publish_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> Delivery:
        """Append the rows of an Arrow table, whose columns are value, key, timestamp, tag and headers, or some."""
        return self.publish(topic, table)

    def pending_batch_of(
        self, topic: str, records: Publishable, idempotency_key: str | bytes | None = None
    ) -> PendingBatch:
        """Records for a topic, encoded, not queued yet."""
        if self._refusal is not None:
            self._check_usable()
        state = self.topic_named(topic)
        if type(records) is bytes:
            block = encode_raw(records)
            pending_batch = PendingBatch(state, [block], len(block), 1)
        else:
            pending_batch = PendingBatch.of(state, encode(records))
            if not pending_batch.pieces:
                raise InvalidInputError("nothing to publish: give at least one record")
        if idempotency_key is not None:
            pending_batch.give_key(idempotency_key)
        return pending_batch

    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Queue records and return; a thread of the log's own commits them."""
        pending_batch.driver = self._pump.wake
        return self.queue.offer(pending_batch)

    def delete(
        self, topic: str, *, before_seq: int | None = None, tag: str | None = None, tag_prefix: str | None = None
    ) -> int:
        """Delete records below a seq, or with a tag or a tag that begins so, or both; how many went, durably.

        Readers are not told of deleted records: they are simply not there any more.
        """
        if tag is not None and tag_prefix is not None:
            raise InvalidInputError("a delete by tag needs the whole tag or how it begins, not both")
        match = None if tag is None else TagMatch(MatchKind.EQ, tag)
        if tag_prefix is not None:
            match = TagMatch(MatchKind.PREFIX, tag_prefix)
        while match is not None and self.look_up_tags(topic):
            continue
        with self.changing() as store:
            return store.delete_records(topic, before_seq=before_seq, match=match)

    def look_up_tags(self, topic: str) -> bool:
        """Look up the tags of some records ahead of a delete by tag, while nobody else changes anything; false when
        none are left. Others have their turn in between."""
        with self.changing() as store:
            return store.cleaner.look_up_tags(topic)

    def commit(self, owner: str, topic: str, next_seq: int) -> None:
        """Keep how far `owner` has read: `next_seq` is what it reads next. Durable when this returns."""
        with self.changing() as store:
            store.commit_cursor(owner, topic, Seq(next_seq))

    def sync(self) -> None:
        """Make everything published so far durable, whatever its class."""
        with self.changing() as store:
            store.controls.sync()

    def checkpoint(self) -> None:
        """Bring all batches to their places and shorten the log; happens by itself too."""
        with self.changing() as store:
            store.maintenance.checkpoint()

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
        plan = self._plan(topic, from_seq, max_bytes, limit, mode)
        return told(topic, plan.execute(), limit)

    def read_on(self, topic: str, from_seq: int) -> tuple[list[Item], Seq]:
        """`read`, and where reading goes on: behind what is returned, and behind deleted records that follow it."""
        plan = self._plan(topic, from_seq, READ_SIZE, None)
        return told(topic, plan.execute(), None), plan.end_seq

    def read_positions(
        self, from_position: int = 0, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[PositionItem]:
        """Everything that is ordered from a position on, of all topics, in the one order: batches, SKIPs and gaps.

        Ends at a batch boundary after `max_bytes`, or once `limit` records are there; an empty list is the end. Reading
        goes on at `next_position` of the last item.
        """
        if from_position < 0:
            raise InvalidInputError(f"positions begin at 0, not at {from_position}")
        position = Position(from_position)
        while True:
            with self.looking() as store:
                plan = store.queries.plan_positions(position, size_max=max_bytes, records_max=limit)
            items = plan.execute()
            if items or plan.is_last:
                return items
            # All that lay there was deleted.
            position = plan.end_position

    def follow(self, topic: str, from_seq: int = 1) -> Iterator[Item]:
        """Everything from `from_seq` to the present end, piece by piece."""
        seq = from_seq
        while items := self.read(topic, seq):
            yield from items
            seq = seq_after(items[-1])

    def read_arrow(
        self, topic: str, from_seq: int = 1, *, columns: Sequence[str] = ("value", "key", "timestamp", "tag")
    ) -> pa.Table:
        """All records from `from_seq` to the present end as one table; gaps are left out of it (`read` names them)."""

        def plan_next(seq: Seq, size_max: int) -> ReadPlan:
            return self._plan(topic, seq, size_max, None)

        return read_table(plan_next, topic, Seq(from_seq), columns)

    def seq_at(self, topic: str, when: datetime) -> int:
        """Seq of the first record that is not older than `when`; the next one to come if all are."""
        timestamp_ns = TimestampNs(int(when.timestamp() * 1e6) * 1_000)
        if self._refusal is not None:
            self._check_usable()
        with self.queue.state:
            self._check_usable()
            return self._store.queries.seq_at(topic, timestamp_ns)

    def index_size(self, topic: str) -> int:
        """Bytes of memory that the indexes of a topic take."""
        with self.looking() as store:
            return store.queries.index_size(topic)

    def subscriber(self, topic: str, start: Start = "earliest", *, owner: str | None = None) -> Subscriber:
        """A reader that remembers where it is. `start` is earliest, latest, committed, a seq, or a time.

        With an `owner` it can commit how far it has come, and start from there again ("committed": from the beginning
        if there is no commit yet).
        """
        return Subscriber(self, topic, self.start_seq(topic, start, owner), owner)

    def position_subscriber(self, start: PositionStart = "earliest") -> PositionSubscriber:
        """A reader of everything in the one order that remembers where it is: from earliest, latest or a position."""
        return PositionSubscriber(self, self.start_position(start))

    def start_position(self, start: PositionStart) -> Position:
        """The position that a start means now."""
        if start == "latest":
            with self.looking() as store:
                return store.catalog.next_position
        if start == "earliest":
            return Position(0)
        if str(start).isdecimal():
            return Position(int(start))
        raise InvalidInputError(f"start {start!r}: give earliest, latest or a position")

    def wait_for(self, topic: str, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the record `seq` is there; false if it does not come within `timeout_s`. None is no limit."""
        return self._wait_until(lambda: self.describe(topic).next_seq > seq, timeout_s)

    def wait_for_position(self, position: int, timeout_s: float | None = None) -> bool:
        """Wait until there is something to read at a position or behind it; false if nothing comes within `timeout_s`.

        None is no limit.
        """
        return self._wait_until(lambda: bool(self.read_positions(position, limit=1, max_bytes=1)), timeout_s)

    def _wait_until(self, is_there: Callable[[], bool], timeout_s: float | None) -> bool:
        deadline = None if timeout_s is None else OsClock().monotonic_ns() + int(timeout_s * 1e9)
        with self._news:
            self._readers_waiting += 1
            try:
                while True:
                    self.queue.expect_change()
                    if is_there():
                        break
                    left_s = None if deadline is None else (deadline - OsClock().monotonic_ns()) / 1e9
                    if left_s is not None and left_s <= 0:
                        return False
                    self._news.wait(left_s)
            finally:
                self._readers_waiting -= 1
        return True

    def start_seq(self, topic: str, start: Start, owner: str | None) -> Seq:
        """The seq that a start means now."""
        info = self.describe(topic)
        if isinstance(start, datetime):
            return Seq(self.seq_at(topic, start))
        if isinstance(start, int):
            if start < 1:
                raise InvalidInputError(f"seqs begin at 1, not at {start}")
            return Seq(start)
        if start == "latest":
            return info.next_seq
        if start == "committed":
            if owner is None:
                raise InvalidInputError("to start where an owner committed, name the owner")
            return Seq(self.committed(owner, topic) or 1)
        if start != "earliest":
            raise InvalidInputError(f"start {start!r}: give earliest, latest, committed, a seq or a time")
        return Seq(1)

    def committed(self, owner: str, topic: str) -> int | None:
        """What `owner` reads next, as it committed it; None if it never did."""
        with self.looking() as store:
            cursor = store.catalog.cursor(owner, store.catalog.named(topic).topic_id)
            return None if cursor is None else cursor.next_seq

    def verify(self) -> VerifyReport:
        """Read everything in the directory and name every damage, as `seawall verify` does; others wait meanwhile."""
        with self.changing() as store:
            return store.verify()

    # --- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End in order; closing twice is fine."""
        if self._refusal is not None:
            return
        self._pump.stop()
        self.flush_thread.stop()
        with self.queue.exclusive() as store:
            if self._refusal is None:
                self._refusal = "this log is closed"
                store.close()
        # Whoever waits for records is refused.
        self._notify_readers()

    def disown(self) -> None:
        """This is a forked child: files, locks and threads belong to the parent."""
        self._refusal = "this log was opened by another process: a forked child must not use it"
        # Nobody here would commit what waits.
        self.queue.joinable.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def changing(self) -> Iterator[Store]:
        """The store for a change that is no append, when its turn has come."""
        self._check_usable()
        with self.queue.exclusive() as store:
            self._check_usable()
            yield store

    @contextmanager
    def looking(self) -> Iterator[Store]:
        """The store for a question. What has to be quick does the same by itself."""
        self._check_usable()
        with self.queue.state:
            self._check_usable()
            yield self._store

    def _plan(
        self, topic: str, from_seq: int, size_max: int, records_max: int | None, mode: ReadMode = "durable"
    ) -> ReadPlan:
        if from_seq < 1:
            raise InvalidInputError(f"seqs begin at 1, not at {from_seq}")
        if mode not in ("durable", "ordered"):
            raise InvalidInputError(f"mode {mode!r}: give durable or ordered")
        if self._refusal is not None:
            self._check_usable()
        with self.queue.state:
            self._check_usable()
            plan = self._store.queries.plan_ordered if mode == "ordered" else self._store.queries.plan_read
            return plan(topic, Seq(from_seq), size_max=size_max, records_max=records_max)

    def _notify_readers(self) -> None:
        if self._readers_waiting:
            with self._news:
                self._news.notify_all()

    def _check_usable(self) -> None:
        if self._refusal is not None:
            raise UnsupportedError(self._refusal) if "child" in self._refusal else InvalidInputError(self._refusal)


def info_of(topic: TopicState) -> TopicInfo:
    """A topic as it is now, for those who describe it."""
    return TopicInfo(
        topic.name,
        topic.topic_id,
        topic.floor,
        topic.next_seq,
        topic.live_records,
        topic.live_bytes,
        topic.epoch,
        topic.created_ms // 1_000,
        topic.config,
    )
