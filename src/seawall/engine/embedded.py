"""The embedded log: `seawall.open("data/")` in any Python process. No server, no thread of its own.

    with seawall.open("data/") as log:
        log.create_topic("events")
        log.publish("events", ["first", {"n": 2}]).seqs            # durable when it returns
        for batch in log.read("events"): ...                        # ReceivedBatch, or Gap where something is lost
        log.read_arrow("events")                                    # a pyarrow Table

Threads may share one log. Whoever publishes commits, and takes along what other threads have handed in meanwhile: one
write and one sync for all of them. A lone publisher waits for nobody.

A process that forks must not use the log in the child: the files belong to the parent. Every call checks that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from seawall.core.types import ClientId, ClientSeq, Position, Seq, TimestampNs, TopicId
from seawall.engine.arrow_reading import read_table
from seawall.engine.opening import open_store
from seawall.engine.reading import ReadPlan
from seawall.engine.records import Publishable, ReceivedBatch, encode, received
from seawall.engine.settings import Machine, StoreSettings
from seawall.engine.store import Store
from seawall.engine.topic_log import StoredBatch
from seawall.errors import InvalidInputError, OutcomeUnknownError, SeawallError, UnsupportedError
from seawall.io.clocks import OsClock
from seawall.io.files import OsFiles
from seawall.io.process import process_id, random_bytes
from seawall.limits import MIB
from seawall.topics.config import TopicConfig
from seawall.topics.gaps import Gap
from seawall.topics.state import TopicState
from seawall.wire.arrow import EncodedBlock
from seawall.wire.batches import BatchHeader, batch_header
from seawall.wire.fields import JsonValue

if TYPE_CHECKING:
    import pyarrow as pa

#: Where a reader begins: a word, a seq, or a time.
Start: TypeAlias = Literal["earliest", "latest", "committed"] | int | datetime

#: What a reader gets, in order.
Item: TypeAlias = ReceivedBatch | Gap

#: Bytes of one read that names no bound: enough to amortise the call, little enough to hold.
READ_SIZE: Final = 8 * MIB

#: A client without a session: top bit set, numbers that nobody compares.
_NO_SESSION: Final = ClientId(1 << 63)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as it is now. `next_seq` is the seq of the next record, `floor` the first that can be read."""

    name: str
    topic_id: TopicId
    floor: Seq
    next_seq: Seq
    record_count: int
    byte_count: int
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class Published:
    """Where records went: `record_count` of them from `first_seq` on, in batches up to `position`."""

    topic: str
    first_seq: Seq
    record_count: int
    position: Position
    timestamp_ns: TimestampNs

    @property
    def seqs(self) -> range:
        """The seq of each record, in the order they were given."""
        return range(self.first_seq, self.first_seq + self.record_count)


@dataclass(slots=True)
class _Waiting:
    """One call of `publish` that waits for whoever commits."""

    topic: str
    batches: list[bytearray]
    headers: list[BatchHeader] = field(default_factory=list)
    error: BaseException | None = None
    done: bool = False


class EmbeddedLog:
    """An open log. Made by `seawall.open`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pid = process_id()
        self._closed = False
        #: Held while the store is used.
        self._use = threading.Lock()
        #: Held while the queue is changed; never while waiting for `_use`.
        self._queue_lock = threading.Lock()
        self._queue: list[_Waiting] = []
        #: Notified when there is something new to read.
        self._news = threading.Condition()

    # --- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Create a topic; settings as in `TopicConfig`, such as `durability="disk"` or `ttl_ms=60_000`."""
        config = TopicConfig.from_json(settings)
        with self._using() as store:
            return _info(store.create_topic(name, config))

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        with self._using() as store:
            return store.catalog.names()

    def describe(self, name: str) -> TopicInfo:
        """A topic as it is now."""
        with self._using() as store:
            return _info(store.catalog.named(name))

    def configure_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Change settings of a topic."""
        with self._using() as store:
            return _info(store.configure_topic(name, settings))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""
        with self._using() as store:
            store.delete_topic(name)

    # --- writing -------------------------------------------------------------------------------------------------

    def publish(self, topic: str, records: Publishable) -> Published:
        """Append one record or many, in order, as one commit; durable in the topic's class when this returns."""
        self._check_usable()
        blocks = encode(records)
        if not blocks:
            raise InvalidInputError("nothing to publish: give at least one record")
        with self._using() as store:
            topic_id = store.catalog.named(topic).topic_id
        waiting = _Waiting(topic, [_batch(topic_id, block) for block in blocks])
        with self._queue_lock:
            self._queue.append(waiting)
        self._commit_for_all(waiting)
        if waiting.error is not None:
            raise waiting.error
        first, last = waiting.headers[0], waiting.headers[-1]
        count = sum(header.record_count for header in waiting.headers)
        return Published(topic, first.base_seq, count, last.position, last.timestamp_ns)

    def commit(self, owner: str, topic: str, next_seq: int) -> None:
        """Keep how far `owner` has read: `next_seq` is what it reads next. Durable when this returns."""
        with self._using() as store:
            store.commit_cursor(owner, topic, Seq(next_seq))

    def sync(self) -> None:
        """Make everything published so far durable, whatever its class."""
        with self._using() as store:
            store.sync()

    def checkpoint(self) -> None:
        """Bring all batches to their places and shorten the log; happens by itself too."""
        with self._using() as store:
            store.checkpoint()

    # --- reading -------------------------------------------------------------------------------------------------

    def read(
        self, topic: str, from_seq: int = 1, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[Item]:
        """Batches from `from_seq` on, and in order with them the gaps a reader has to know of.

        Ends at a batch boundary after `max_bytes`, or once `limit` records are there; an empty list is the end.
        """
        if from_seq < 1:
            raise InvalidInputError(f"seqs begin at 1, not at {from_seq}")
        with self._using() as store:
            plan = store.plan_read(topic, Seq(from_seq), size_max=max_bytes, records_max=limit)
        items: list[Item] = []
        count = 0
        for item in plan.carry_out():
            if limit is not None and count >= limit:
                break
            each = received(topic, item) if isinstance(item, StoredBatch) else item
            items.append(each)
            count += len(each) if isinstance(each, ReceivedBatch) else 0
        return items

    def follow(self, topic: str, from_seq: int = 1) -> Iterator[Item]:
        """Everything from `from_seq` to the present end, piece by piece."""
        seq = from_seq
        while items := self.read(topic, seq):
            for item in items:
                yield item
                seq = item.next_seq if isinstance(item, ReceivedBatch) else item.last_seq + 1

    def read_arrow(
        self, topic: str, from_seq: int = 1, *, columns: Sequence[str] = ("value", "key", "timestamp", "tag")
    ) -> pa.Table:
        """All records from `from_seq` to the present end as one table; gaps are left out of it (`read` names them)."""
        if from_seq < 1:
            raise InvalidInputError(f"seqs begin at 1, not at {from_seq}")

        def plan_next(seq: Seq, size_max: int) -> ReadPlan:
            with self._using() as store:
                return store.plan_read(topic, seq, size_max=size_max)

        return read_table(plan_next, topic, Seq(from_seq), columns)

    def seq_at(self, topic: str, when: datetime) -> int:
        """Seq of the first record that is not older than `when`; the next one to come if all are."""
        with self._using() as store:
            return store.seq_at(topic, TimestampNs(int(when.timestamp() * 1e6) * 1_000))

    def index_size(self, topic: str) -> int:
        """Bytes of memory that the indexes of a topic take."""
        with self._using() as store:
            return store.index_size(topic)

    def subscriber(self, topic: str, start: Start = "earliest", *, owner: str | None = None) -> Subscriber:
        """A reader that remembers where it is. `start` is earliest, latest, committed, a seq, or a time.

        With an `owner` it can commit how far it has come, and start from there again ("committed": from the beginning
        if there is no commit yet).
        """
        return Subscriber(self, topic, self._start_seq(topic, start, owner), owner)

    def wait_for(self, topic: str, seq: int, timeout_s: float) -> bool:
        """Wait until the record `seq` is there; false if it does not come in time."""
        deadline = OsClock().monotonic_ns() + int(timeout_s * 1e9)
        with self._news:
            while self.describe(topic).next_seq <= seq:
                left_ns = deadline - OsClock().monotonic_ns()
                if left_ns <= 0:
                    return False
                self._news.wait(left_ns / 1e9)
        return True

    def _start_seq(self, topic: str, start: Start, owner: str | None) -> Seq:
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
        with self._using() as store:
            cursor = store.catalog.cursor(owner, store.catalog.named(topic).topic_id)
            return None if cursor is None else cursor.next_seq

    # --- life ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End in order; closing twice is fine."""
        if self._closed or self._pid != process_id():
            return
        with self._use:
            self._closed = True
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _commit_for_all(self, own: _Waiting) -> None:
        """Commit what all threads have handed in, unless another has done it for us meanwhile."""
        with self._using() as store:
            if own.done:
                return
            with self._queue_lock:
                queue, self._queue = self._queue, []
            by_topic: dict[str, list[_Waiting]] = {}
            for waiting in queue:
                by_topic.setdefault(waiting.topic, []).append(waiting)
            for topic, group in by_topic.items():
                _commit_group(store, topic, group)
        with self._news:
            self._news.notify_all()

    def _using(self) -> _Using:
        self._check_usable()
        return _Using(self)

    def _check_usable(self) -> None:
        if self._pid != process_id():
            raise UnsupportedError("this log was opened by another process: a forked child must not use it")
        if self._closed:
            raise InvalidInputError("this log is closed")


class Subscriber:
    """A reader of one topic that goes on where it stopped. For one thread at a time."""

    def __init__(self, log: EmbeddedLog, topic: str, next_seq: Seq, owner: str | None) -> None:
        self._log = log
        self._owner = owner
        self.topic = topic
        #: What is read next.
        self.next_seq = next_seq

    def poll(self, timeout_s: float = 0.0) -> list[Item]:
        """What is there to read, waiting up to `timeout_s` for something; gaps come in order with the batches."""
        items = self._log.read(self.topic, self.next_seq)
        if not items and timeout_s > 0 and self._log.wait_for(self.topic, self.next_seq, timeout_s):
            items = self._log.read(self.topic, self.next_seq)
        for item in items:
            self.next_seq = item.next_seq if isinstance(item, ReceivedBatch) else Seq(item.last_seq + 1)
        return items

    def commit(self) -> None:
        """Keep that everything before `next_seq` was read, durably, for the owner."""
        if self._owner is None:
            raise InvalidInputError("a subscriber without an owner has nothing to commit under")
        self._log.commit(self._owner, self.topic, self.next_seq)


class _Using:
    """The store, for one thread at a time."""

    def __init__(self, log: EmbeddedLog) -> None:
        self._log = log

    def __enter__(self) -> Store:
        self._log._use.acquire()
        if self._log._closed:
            self._log._use.release()
            raise InvalidInputError("this log is closed")
        return self._log._store

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._log._use.release()


def open_log(path: str | Path, settings: StoreSettings | None = None) -> EmbeddedLog:
    """Open a data directory as a log; it is made if it is not there."""
    machine = Machine(OsFiles(), OsClock(), random_bytes, process_id())
    return EmbeddedLog(open_store(machine, str(path), settings or StoreSettings()))


def _commit_group(store: Store, topic: str, group: list[_Waiting]) -> None:
    """One commit for several calls of `publish`; an error is theirs together."""
    try:
        headers = store.append(topic, [batch for waiting in group for batch in waiting.batches])
    except BaseException as error:
        # Every one of them must learn of it, also where it is this thread alone that is to end.
        told = error if isinstance(error, (SeawallError, OSError)) else None
        for waiting in group:
            waiting.error = told or OutcomeUnknownError(f"the commit to {topic!r} was interrupted; read to find out")
            waiting.done = True
        if told is None:
            raise
        return
    at = 0
    for waiting in group:
        waiting.headers = headers[at : at + len(waiting.batches)]
        at += len(waiting.batches)
        waiting.done = True


def _batch(topic_id: TopicId, block: EncodedBlock) -> bytearray:
    header = batch_header(
        block.block,
        topic_id=topic_id,
        client_id=_NO_SESSION,
        client_seq=ClientSeq(0),
        session_epoch=0,
        record_count=block.record_count,
        timestamp_ns=TimestampNs(0),
    )
    batch = bytearray(header.header_bytes())
    batch += block.block
    return batch


def _info(topic: TopicState) -> TopicInfo:
    return TopicInfo(
        topic.name,
        topic.topic_id,
        topic.floor,
        topic.next_seq,
        topic.live_records,
        topic.live_bytes,
        topic.config,
    )
