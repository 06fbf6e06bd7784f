"""Deliveries: what a publisher holds while its records are on their way, and what it is told in the end.

    delivery = publisher.publish([b"one", b"two"])
    delivery.result()              # waits, and commits if nobody else does; raises what went wrong
    await delivery                 # the same on an event loop
    delivery.add_callback(print)   # called once, by whoever commits

Resolved it knows where its records went: `first_seq`, `record_count`, `position`, `timestamp_ns`, and whether it was a
repetition of something stored before (`is_duplicate`). Numbers that nobody knows are 0: those of a repetition that are
not remembered any more, and all of a delivery that counted as decided at once (ack level 0).

What is stored and decided together is a *bundle*: the records of one call, or of many calls that became one batch. A
delivery is its bundle and where it begins in there, so deciding a thousand of them is deciding one bundle.

INV-DELIVERY-ONCE: a delivery is decided once, before its waiter returns, and its outcome never changes.

Bundles have no lock: whoever changes one holds that of the queue. They and deliveries begin with what their class says,
because making one costs what it sets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seawall.api.publishable import more_than_one_batch
from seawall.core.types import ClientId, ClientSeq, Position, Seq, TimestampNs
from seawall.engine.commit.appends import LARGE_BLOCK_SIZE, Append, logged_size
from seawall.errors import WrongStateError
from seawall.io.interfaces import ReadableBuffer
from seawall.limits import BATCH_RECORDS_MAX
from seawall.sequencer.frontier import Numbered
from seawall.topics.keys import digest_of
from seawall.topics.state import TopicState
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.codes import AckStatus, BatchFlags

if TYPE_CHECKING:
    from seawall.engine.commit.commit_queue import CommitQueue


LOG: Final = logging.getLogger(__name__)


class Identity(NamedTuple):
    """What tells the batches of a delivery from all others: a session, or the digest of a key."""

    client_id: ClientId
    client_seq: ClientSeq
    session_epoch: int = 0
    flags: int = 0

    @property
    def has_session(self) -> bool:
        """Whether each batch has a client seq of its own."""
        return not self.client_id >> 63


class PendingBatch:
    """Records of one topic that are decided together. `pieces` become one batch, or with `counts` one batch each."""

    identity: Identity | None = None
    #: Records of each piece, where the pieces do not become one batch.
    counts: list[int] | None = None
    #: When its deliveries count as done: 1 once they have their place in the order, 2 once they are durable.
    ack = 2
    #: Who commits it if nobody waits for it.
    driver: Callable[[], None] | None = None
    #: The event loop it is gathered on, and that loop's thread, so that who awaits it there need not look for it.
    loop: asyncio.AbstractEventLoop | None = None
    loop_thread = 0
    is_done = False
    error: Exception | None = None
    #: The numbers of its first and of its last batch.
    first: Numbered | None = None
    last: Numbered | None = None
    #: Who is told when it is decided: threads, tasks, callbacks; and who is told when its commit is over, which for
    #: ack level 1 is later.
    waiters: list[Lock] | None = None
    callbacks: list[Callable[[], object]] | None = None
    ends: list[Callable[[Exception | None], None]] | None = None

    def __init__(self, topic: TopicState, pieces: list[ReadableBuffer], size: int, record_count: int) -> None:
        self.topic = topic
        self.pieces = pieces
        self.size = size
        self.record_count = record_count
        self.futures: list[asyncio.Future[None]] = []

    @classmethod
    def of(cls, topic: TopicState, blocks: list[EncodedBlock]) -> PendingBatch:
        """Blocks of one call."""
        pieces: list[ReadableBuffer] = [block.block for block in blocks]
        counts = [block.record_count for block in blocks]
        pending_batch = cls(topic, pieces, sum(map(len, pieces)), sum(counts))
        if len(pieces) > 1:
            pending_batch.counts = counts
        return pending_batch

    def give_key(self, key: str | bytes) -> None:
        """Have it stored once under an idempotency key; `LimitError` if it is more than the one batch that can be."""
        if self.counts is not None:
            raise more_than_one_batch(self.record_count)
        client_id, client_seq = digest_of(key)
        self.identity = Identity(client_id, client_seq, flags=int(BatchFlags.KEYED))

    @property
    def logged_size(self) -> int:
        """Bytes it takes in the log."""
        return logged_size(self.size) if self.counts is None else sum(logged_size(len(piece)) for piece in self.pieces)

    @property
    def is_plain(self) -> bool:
        """Whether it is one small batch, which nothing tells from others."""
        return self.identity is None and self.counts is None and self.size < LARGE_BLOCK_SIZE

    def has_space(self, size: int, record_count: int, ack: int) -> bool:
        """Whether so many records may become part of its batch, and leave it plain."""
        return (
            self.size + size < LARGE_BLOCK_SIZE
            and self.record_count + record_count <= BATCH_RECORDS_MAX
            and self.ack == ack
        )

    def take(self, other: PendingBatch) -> None:
        """Make the records of another bundle part of this one, behind its own."""
        self.pieces += other.pieces
        self.size += other.size
        self.record_count += other.record_count
        if self.driver is None:
            self.driver = other.driver
        if other.ends is not None:
            self.ends = other.ends if self.ends is None else [*self.ends, *other.ends]

    def appends(self) -> list[Append]:
        """The batches that store it."""
        topic_id, identity = self.topic.topic_id, self.identity
        if self.counts is None:
            block = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
            if identity is None:
                return [Append(topic_id, block, self.record_count)]
            return [Append(topic_id, block, self.record_count, *identity)]
        appends = [Append(topic_id, piece, count) for piece, count in zip(self.pieces, self.counts, strict=True)]
        if identity is not None:
            for index, append in enumerate(appends):
                append.client_id, append.client_seq, append.session_epoch, append.flags = identity
                append.client_seq = ClientSeq(identity.client_seq + index)
        return appends

    def settle(self, first: Numbered | None, last: Numbered | None, error: Exception | None) -> None:
        """It is decided (INV-DELIVERY-ONCE); `announce` follows."""
        self.first, self.last = first, last
        self.error = error
        self.is_done = True

    def announce(self) -> None:
        """Tell whoever waits that it is decided."""
        self.wake_one()
        if self.futures:
            # Most futures are of one loop, on which this is called.
            running = asyncio._get_running_loop()
            for future in self.futures:
                if future.get_loop() is not running:
                    # Nobody awaits it on a loop that is closed.
                    with suppress(RuntimeError):
                        future.get_loop().call_soon_threadsafe(_resolve, future)
                elif not future.done():
                    future.set_result(None)
        if self.callbacks is not None:
            for callback in self.callbacks:
                try:
                    callback()
                except Exception:
                    # Whoever comes behind it in the commit has to be told, too.
                    LOG.exception("a callback of a delivery to %r raised", self.topic.name)

    def end(self, error: Exception | None) -> None:
        """Its commit is over: tell those who want to know that however early it was decided."""
        if self.ends is not None:
            for tell in self.ends:
                tell(error)

    def block_thread(self) -> Lock:
        """A lock that is held until somebody wakes the thread that waits for it."""
        waiter = Lock()
        waiter.acquire()
        if self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)
        return waiter

    def leave(self, waiter: Lock) -> None:
        """A thread that has waited does not any more."""
        if self.waiters is not None and waiter in self.waiters:
            self.waiters.remove(waiter)

    def wake_one(self) -> None:
        """Let one of the threads that wait for it look: it is decided, or its turn to commit has come.

        A thread that finds it decided wakes the next. All at once they would only wait for the GIL, each woken twice.
        """
        if self.waiters:
            with suppress(IndexError):
                self.waiters.pop().release()


class Delivery:
    """The fate of the records of one call. Made by `publish`."""

    __slots__ = ("_offset", "_pending_batch", "_queue", "record_count")

    def __init__(self, queue: CommitQueue, pending_batch: PendingBatch, offset: int, record_count: int) -> None:
        self._queue = queue
        self._pending_batch = pending_batch
        self._offset = offset
        self.record_count = record_count

    def __repr__(self) -> str:
        state = "under way"
        if self._pending_batch.is_done:
            state = f"failed: {self.error}" if self.error else f"from seq {self.first_seq}"
        return f"<Delivery of {self.record_count} to {self.topic!r}, {state}>"

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._pending_batch.topic.name

    @property
    def done(self) -> bool:
        """Whether it is decided."""
        return self._pending_batch.is_done

    @property
    def error(self) -> Exception | None:
        """What went wrong, if it is decided and something did."""
        return self._pending_batch.error

    @property
    def first_seq(self) -> Seq:
        """The seq of its first record."""
        first = self._decided().first
        return Seq(first.base_seq + self._offset) if first is not None and first.base_seq else Seq(0)

    @property
    def position(self) -> Position:
        """The place of its last batch in the order of everything."""
        last = self._decided().last
        return Position(0) if last is None else last.position

    @property
    def timestamp_ns(self) -> TimestampNs:
        """When its last batch was stored."""
        last = self._decided().last
        return TimestampNs(0) if last is None else last.timestamp_ns

    @property
    def is_duplicate(self) -> bool:
        """Whether it repeats something that was stored before."""
        first = self._decided().first
        return first is not None and first.status is AckStatus.DUPLICATE

    @property
    def seqs(self) -> Sequence[int]:
        """The seq of each record, in the order they were given; none where nobody knows them."""
        first = self.first_seq
        return range(first, first + self.record_count) if first else range(0)

    def result(self, timeout_s: float | None = None) -> Delivery:
        """Wait until it is decided and return it; raises what went wrong, `TimeoutError` if it takes too long."""
        pending_batch = self._pending_batch
        if not pending_batch.is_done:
            self._queue.process.check()
            if not self._queue.wait(pending_batch, timeout_s):
                raise TimeoutError(f"{self!r} after {timeout_s} s")
        if pending_batch.error is not None:
            raise pending_batch.error
        return self

    def decided(self) -> Delivery:
        """The same records for a publisher who does not care (ack level 0): decided, whatever becomes of them."""
        settled = PendingBatch(self._pending_batch.topic, [], 0, 0)
        settled.settle(None, None, None)
        return Delivery(self._queue, settled, 0, self.record_count)

    def add_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Have it called with the delivery once it is decided; at once if it is. It must be quick and not raise."""
        self._queue.process.check()
        if not self._queue.add_callback(self._pending_batch, partial(callback, self)):
            callback(self)

    def __await__(self) -> Generator[Any, None, Delivery]:
        pending_batch = self._pending_batch
        if not pending_batch.is_done:
            self._queue.process.check()
            loop = pending_batch.loop
            if loop is None or pending_batch.loop_thread != get_ident():
                loop = asyncio.get_running_loop()
            future = loop.create_future()
            pending_batch.futures.append(future)
            # Either whoever decides it sees the future, or we see that it is decided.
            if not pending_batch.is_done:
                yield from future
        if pending_batch.error is not None:
            raise pending_batch.error
        return self

    def _decided(self) -> PendingBatch:
        if not self._pending_batch.is_done:
            raise WrongStateError("the delivery is under way: wait for its result first")
        return self._pending_batch


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
