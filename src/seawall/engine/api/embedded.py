"""The embedded log: `seawall.open("data/")` opens a data directory in any Python process, without a server.

    with seawall.open("data/") as log:
        log.create_topic("events")
        log.publish("events", ["first", {"n": 2}]).seqs            # durable when it returns
        for batch in log.read("events"): ...                        # ReceivedBatch, or Gap where records are lost
        log.read_arrow("events")                                    # a pyarrow Table
        with log.transaction() as transaction: ...                  # several topics at once (`api/transactions.py`)

Threads may share one log. The thread that publishes becomes the commit leader and commits the records that other
threads have queued in the meantime as well: one write and one sync for all of them (group commit). A single publisher
never waits for other threads. The log starts a background thread only when there is work for it.

A forked child must not use the log: the files belong to the parent. Every call checks that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from seawall.api.publisher_options import PublisherOptions
from seawall.api.publishing import PublishingLog
from seawall.api.queues.queue import Queue
from seawall.api.read_options import PositionStart, ReadMode, Start
from seawall.api.record_readers import RecordLog
from seawall.api.topic_info import TopicInfo
from seawall.api.watches import Watch, WatchingLog
from seawall.core.identifiers import check_names
from seawall.core.types import ClientId, ClientSeq, Position, Seq, TimestampNs
from seawall.core.watches import WatchSpec
from seawall.engine.api.log_routers import EmbeddedRouters
from seawall.engine.api.log_sessions import EmbeddedSessions
from seawall.engine.api.log_transactions import unlocked
from seawall.engine.api.publisher import Publisher, Session
from seawall.engine.api.subscriber import PositionSubscriber, Subscriber
from seawall.engine.api.topic_creations import Creation, TopicCreations
from seawall.engine.api.watch_sources import EmbeddedWatchSource, WatchReader
from seawall.engine.commit.commit_queue import CommitQueue
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.pending_batches import PendingBatch
from seawall.engine.commit.worker_thread import WorkerThread
from seawall.engine.maintenance.flush_thread import FlushThread
from seawall.engine.ordering.orderer import SessionSpec
from seawall.engine.queues.log_queues import LogQueues
from seawall.engine.read.arrow_reading import read_table
from seawall.engine.read.read_results import Item, PositionItem, Publishable, encode, seq_after, to_items
from seawall.engine.read.reading import ReadPlan
from seawall.engine.routing.forwarder import Forwarder
from seawall.engine.store.store import Store
from seawall.errors import InvalidInputError, SeawallError, UnsupportedError, WrongStateError
from seawall.io.process.clocks import OsClock
from seawall.io.process.own_process import disown_on_fork, worker_name
from seawall.io.process.shared_lock import MemoryLock
from seawall.limits import MIB
from seawall.storage.control.deletes import MatchKind, TagMatch
from seawall.storage.findings import VerifyReport
from seawall.topics.state import TopicState
from seawall.wire.format.fields import JsonObject, JsonValue
from seawall.wire.format.records import encode_raw

if TYPE_CHECKING:
    import pyarrow as pa


#: Default size limit of one read in bytes: large enough to amortise the call, small enough to keep in memory.
READ_SIZE: Final = 8 * MIB


class EmbeddedLog(EmbeddedSessions, EmbeddedRouters, RecordLog, PublishingLog[Publisher], WatchingLog[Watch]):
    """An open log in this process. Create one with `seawall.open`. Threads may share it."""

    def __init__(self, store: Store, state: MemoryLock | None = None) -> None:
        """`state` is the lock of the store's memory; None creates one that only threads can take."""
        super().__init__()
        self._store = store
        #: The error of every call (closed, or a forked child); None while the log is usable.
        self._refusal: tuple[type[SeawallError], str] | None = None
        #: Looks up a topic by name without taking the lock of the store.
        self.topic_named = store.topic_named
        self.commits = CommitQueue(store, state)
        self._creations = TopicCreations(self.changing)
        self.commits.listeners.append(self._notify_readers)
        self._committer = WorkerThread(self.commits.commit_queued)
        #: The commands of queues.
        self.queues = LogQueues(self, store.jobs)
        self.flush_thread = FlushThread(self.commits, store)
        store.checkpoint_schedule.flush_in_background(self.flush_thread.wake)
        self.forwarder = Forwarder(self.commits, store, self.changing, partial(unlocked, self.commits))
        self.commits.listeners.append(self.forwarder.notify)
        disown_on_fork(self)
        store.sessions.live_clients.append(self._open_sessions)
        #: Notified when new records can be read.
        self._readable = threading.Condition()
        self._readers_waiting = 0
        self.forwarder.notify()

    # --- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Create a topic. Settings are those of `TopicConfig`, such as `durability="disk"` or `ttl_ms=60_000`.

        The topic is durable when this returns.
        """
        (created,) = self.create_each([(name, settings)])
        if isinstance(created, SeawallError):
            raise created
        return created

    def create_topics(self, names: Sequence[str], /, **settings: JsonValue) -> list[TopicInfo | SeawallError]:
        """Create several topics with the same settings.

        Returns, for each name, the topic or the error that prevented its creation. The topics are durable when this
        returns.
        """
        check_names(names)
        return self.create_each([(name, settings) for name in names])

    def create_each(self, wanted: Sequence[tuple[str, JsonObject]]) -> list[TopicInfo | SeawallError]:
        """Create topics, each with its own settings. Concurrent calls share their commits.

        Returns, for each pair, the topic or the error that prevented its creation.
        """
        creations = [Creation.of(name, settings) for name, settings in wanted]
        self._creations.execute(creations)
        return [
            self._info_of(each.result) if isinstance(each.result, TopicState) else each.result for each in creations
        ]

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        with self.inspecting() as store:
            return store.catalog.names()

    def describe(self, name: str) -> TopicInfo:
        """Describe a topic as it is now: its settings, sizes and seqs."""
        self.catch_up(name)
        with self.inspecting() as store:
            topic = store.catalog.named(name)
            topic.used_ns = OsClock().monotonic_ns()
            return self._info_of(topic)

    def _described(self, name: str) -> TopicInfo:
        with self.inspecting() as store:
            return self._info_of(store.catalog.named(name))

    def _info_of(self, topic: TopicState) -> TopicInfo:
        return info_of(topic, OsClock().monotonic_ns())

    def configure_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Change settings of a topic; settings that are not given stay as they are. Durable when this returns."""
        with self.changing() as store:
            return self._info_of(store.configure_topic(name, settings))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records. Durable when this returns."""
        with self.changing() as store:
            store.delete_topic(name)

    def queue(self, topic: str, /, *, node: str | None = None) -> Queue:
        """The job queue of a topic that was created with `type="queue"`.

        `node` is the name of this worker; by default each call makes a new one.
        """
        return Queue(self.queues, topic, worker_name() if node is None else node)

    # --- writing -------------------------------------------------------------------------------------------------

    def publish(self, topic: str, records: Publishable, *, idempotency_key: str | bytes | None = None) -> Delivery:
        """Append one record or many, in order, as one commit.

        The records are as durable as the topic's `durability` promises when this returns.

        With an `idempotency_key` the records are stored once, however often the call is repeated within the topic's
        `idempotency_window_ms`: the delivery of a repetition reports the seqs of the records stored first.
        """
        commits = self.commits
        if commits.joinable and type(records) is bytes and idempotency_key is None:
            delivery = commits.join(topic, records)
            if delivery is not None:
                return delivery.result()
        return commits.publish(self.pending_batch_of(topic, records, idempotency_key))

    def _open_publisher(self, topic: str, options: PublisherOptions) -> Publisher:
        client_id = options.client_id
        if client_id is None:
            return Publisher(self, topic, options)
        with self.changing() as store:
            epoch, next_seq = store.session_keeper.open(SessionSpec(ClientId(client_id), ClientSeq(1)))
            publisher = Publisher(self, topic, options, Session(ClientId(client_id), epoch, next_seq))
            # Still under the lock: session expiry must not run before the publisher is registered.
            self._keep_live(publisher)
        return publisher

    def publish_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> Delivery:
        """Append the rows of an Arrow table, one record per row.

        The table has a column value, and any of key, timestamp, node, tag, meta and headers.
        """
        return self.publish(topic, table)

    def pending_batch_of(
        self, topic: str, records: Publishable, idempotency_key: str | bytes | None = None
    ) -> PendingBatch:
        """Encode records for a topic, without queueing them."""
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
            pending_batch.set_idempotency_key(idempotency_key)
        return pending_batch

    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Queue records and return; the log's committer thread commits them."""
        pending_batch.driver = self._committer.wake
        return self.commits.offer(pending_batch)

    def delete(
        self, topic: str, *, before_seq: int | None = None, tag: str | None = None, tag_prefix: str | None = None
    ) -> int:
        """Delete records below `before_seq`, or records whose tag equals `tag` or starts with `tag_prefix`, or both.

        Returns the number of deleted records. The delete is durable when this returns. Readers skip deleted records
        without a gap.
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
        """Look up the tags of some records in preparation for a delete by tag; False when none are left.

        A delete calls this repeatedly, so that other changes can run between two calls.
        """
        with self.changing() as store:
            return store.cleaner.look_up_tags(topic)

    def commit(self, owner: str, topic: str, next_seq: int) -> None:
        """Store how far `owner` has read a topic: `next_seq` is the seq it reads next. Durable when this returns."""
        with self.changing() as store:
            store.commit_cursor(owner, topic, Seq(next_seq))

    def sync(self) -> None:
        """Sync everything published so far to disk, whatever the durability of its topic."""
        with self.changing() as store:
            store.controls.sync()

    def checkpoint(self) -> None:
        """Flush all batches to segments and truncate the write-ahead log. This also runs automatically."""
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
        """Read batches from `from_seq` on, in order, with a `Gap` wherever records are lost and a SKIP wherever batches
        were given up.

        The result ends at a batch boundary, once it holds `max_bytes` bytes or `limit` records. An empty list means
        that there is nothing more to read yet. With mode "ordered" it includes records that are ordered but not
        durable yet, which a crash may still lose.
        """
        plan = self._plan(topic, from_seq, max_bytes, limit, mode)
        return to_items(topic, plan.execute(), limit)

    def read_on(self, topic: str, from_seq: int) -> tuple[list[Item], Seq]:
        """`read`, and the seq to continue at: after the returned items and after deleted records that follow them."""
        plan = self._plan(topic, from_seq, READ_SIZE, None)
        return to_items(topic, plan.execute(), None), plan.end_seq

    def read_positions(
        self, from_position: int = 0, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[PositionItem]:
        """Read batches, SKIPs and gaps of all topics from a position on, in the total order.

        The result ends at a batch boundary, once it holds `max_bytes` bytes or `limit` records. An empty list means
        that there is nothing more to read yet. Continue at `next_position` of the last item.
        """
        self.catch_up(None)
        return self._read_positions(from_position, limit=limit, max_bytes=max_bytes)

    def _read_positions(
        self, from_position: int, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[PositionItem]:
        if from_position < 0:
            raise InvalidInputError(f"positions begin at 0, not at {from_position}")
        position = Position(from_position)
        while True:
            with self.inspecting() as store:
                plan = store.queries.plan_positions(position, size_max=max_bytes, records_max=limit)
            items = plan.execute()
            if items or plan.is_last:
                return items
            # Every record in this range was deleted: continue after it.
            position = plan.end_position

    def follow(self, topic: str, from_seq: int = 1) -> Iterator[Item]:
        """Iterate over everything from `from_seq` to the current end of the topic, reading as it goes."""
        seq = from_seq
        while items := self.read(topic, seq):
            yield from items
            seq = seq_after(items[-1])

    def read_arrow(
        self, topic: str, from_seq: int = 1, *, columns: Sequence[str] = ("value", "key", "timestamp", "tag")
    ) -> pa.Table:
        """Read all records from `from_seq` to the current end of the topic as one Arrow table.

        The table has no rows for gaps; `read` reports them.
        """

        def plan_next(seq: Seq, size_max: int) -> ReadPlan:
            return self._plan(topic, seq, size_max, None)

        return read_table(plan_next, topic, Seq(from_seq), columns)

    def seq_at(self, topic: str, when: datetime) -> int:
        """Returns the seq of the first record that is not older than `when`, or the next seq if all are older."""
        timestamp_ns = TimestampNs(int(when.timestamp() * 1e6) * 1_000)
        self.catch_up(topic)
        with self.commits.state:
            self._check_usable()
            return self._store.queries.seq_at(topic, timestamp_ns)

    def index_size(self, topic: str) -> int:
        """Returns the memory that the indexes of a topic take, in bytes."""
        with self.inspecting() as store:
            return store.queries.index_size(topic)

    def subscriber(self, topic: str, start: Start = "earliest", *, owner: str | None = None) -> Subscriber:
        """Create a reader of one topic that keeps its own position.

        `start` is "earliest", "latest", "committed", a seq, or a time. With an `owner` the subscriber can commit how
        far it has read and start from there again with "committed", which starts at the beginning if the owner has not
        committed yet.
        """
        return Subscriber(self, topic, self.start_seq(topic, start, owner), owner)

    def position_subscriber(self, start: PositionStart = "earliest") -> PositionSubscriber:
        """Create a reader of all topics in the total order that keeps its own position.

        `start` is "earliest", "latest" or a position.
        """
        return PositionSubscriber(self, self.start_position(start))

    def _open_watch(self, spec: WatchSpec) -> Watch:
        return Watch(EmbeddedWatchSource(WatchReader(self, spec), self.wait_until), spec, self.describe)

    def start_position(self, start: PositionStart) -> Position:
        """Resolve a start to a position."""
        if start == "latest":
            self.catch_up(None)
            with self.inspecting() as store:
                return store.catalog.next_position
        if start == "earliest":
            return Position(0)
        if str(start).isdecimal():
            return Position(int(start))
        raise InvalidInputError(f"start {start!r}: give earliest, latest or a position")

    def wait_for(self, topic: str, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the record `seq` can be read. Returns False after `timeout_s`; None waits without limit."""
        # While it waits, the routers run in the background.
        self.catch_up(topic)
        return self.wait_until(lambda: self._described(topic).next_seq > seq, timeout_s)

    def wait_for_position(self, position: int, timeout_s: float | None = None) -> bool:
        """Wait until a record at `position` or after it can be read.

        Returns False after `timeout_s`; None waits without limit.
        """
        self.catch_up(None)
        return self.wait_until(lambda: bool(self._read_positions(position, limit=1, max_bytes=1)), timeout_s)

    def wait_until(self, is_readable: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until a condition holds, which is checked whenever new records can be read; False after the timeout."""
        deadline = None if timeout_s is None else OsClock().monotonic_ns() + int(timeout_s * 1e9)
        with self._readable:
            self._readers_waiting += 1
            try:
                while True:
                    self.commits.expect_change()
                    if is_readable():
                        break
                    left_s = None if deadline is None else (deadline - OsClock().monotonic_ns()) / 1e9
                    if left_s is not None and left_s <= 0:
                        return False
                    self._readable.wait(left_s)
            finally:
                self._readers_waiting -= 1
        return True

    def start_seq(self, topic: str, start: Start, owner: str | None) -> Seq:
        """Resolve a start to a seq."""
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
        """Returns the seq that `owner` reads next, as it last committed it; None if it has not committed."""
        with self.inspecting() as store:
            cursor = store.catalog.cursor(owner, store.catalog.named(topic).topic_id)
            return None if cursor is None else cursor.next_seq

    def verify(self) -> VerifyReport:
        """Read everything in the directory and report all damage, as `seawall verify` does.

        All other calls wait until it is finished.
        """
        with self.changing() as store:
            return store.verify()

    # --- closing and locking -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the log cleanly. Closing twice is fine."""
        if self._refusal is not None:
            return
        self.forwarder.stop()
        self._committer.stop()
        self.flush_thread.stop()
        with self.commits.exclusive() as store:
            if self._refusal is None:
                self._refusal = WrongStateError, "this log is closed"
                store.close()
        # Readers that wait for records wake up and raise.
        self._notify_readers()

    def disown(self) -> None:
        """Called in a forked child: files, locks and threads belong to the parent."""
        self._refusal = UnsupportedError, "this log was opened by another process: a forked child must not use it"
        # This process has no thread that would commit a queued batch.
        self.commits.joinable.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def changing(self) -> Iterator[Store]:
        """Lock the store exclusively, for a change other than an append."""
        self._check_usable()
        with self.commits.exclusive() as store:
            self._check_usable()
            yield store

    @contextmanager
    def inspecting(self) -> Iterator[Store]:
        """Lock the store's memory, for a read-only query. Hot paths inline this instead of calling it."""
        self._check_usable()
        with self.commits.state:
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
        if self._store.routing.is_used:
            self.catch_up(topic)
        with self.commits.state:
            self._check_usable()
            plan = self._store.queries.plan_ordered if mode == "ordered" else self._store.queries.plan_read
            return plan(topic, Seq(from_seq), size_max=size_max, records_max=records_max)

    def _notify_readers(self) -> None:
        if self._readers_waiting:
            with self._readable:
                self._readable.notify_all()

    def _check_usable(self) -> None:
        if self._refusal is not None:
            kind, text = self._refusal
            raise kind(text)


def info_of(topic: TopicState, now_ns: int) -> TopicInfo:
    """Describe a topic as it is now."""
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
        topic.priority_at(now_ns),
    )
