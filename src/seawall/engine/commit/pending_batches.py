"""Records that wait in the commit queue, and the groups in which they are committed.

A `PendingBatch` is what the queue holds and decides as a whole: the records of one call, or of several calls that were
merged into one batch. A `Group` is the set of pending batches that one commit stores together (group commit).

A pending batch has no lock of its own: change one only while holding the mutex of its queue. Optional attributes have
class-level defaults, because every attribute that `__init__` sets makes a publish slower.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Final, NamedTuple

from seawall.api.publishable import more_than_one_batch
from seawall.core.types import ClientId, ClientSeq
from seawall.engine.commit.appends import LARGE_BLOCK_SIZE, Append, Commit, logged_size
from seawall.errors import OutcomeUnknownError
from seawall.io.interfaces import ReadableBuffer
from seawall.limits import BATCH_RECORDS_MAX
from seawall.sequencer.frontier import Numbered
from seawall.topics.keys import digest_of
from seawall.topics.state import TopicState
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.codes import BatchFlags

LOG: Final = logging.getLogger(__name__)


class Identity(NamedTuple):
    """What makes a batch recognisable as a repetition: a session and its client seq, or the digest of a key."""

    client_id: ClientId
    client_seq: ClientSeq
    session_epoch: int = 0
    flags: int = 0

    @property
    def has_session(self) -> bool:
        """True if each batch has a client seq of its own."""
        return not self.client_id >> 63


class PendingBatch:
    """Records of one topic that are decided together. `pieces` become one batch, or with `counts` one batch each."""

    identity: Identity | None = None
    #: Records of each piece, if each piece becomes a batch of its own.
    counts: list[int] | None = None
    #: When its deliveries are done: 1 as soon as they are ordered, 2 once they are durable.
    ack = 2
    #: Commits it if no thread waits for it.
    driver: Callable[[], None] | None = None
    #: The event loop that it was gathered on, and that loop's thread: saves an awaiting task the lookup.
    loop: asyncio.AbstractEventLoop | None = None
    loop_thread = 0
    is_done = False
    error: Exception | None = None
    #: The numbers of its first and of its last batch.
    first: Numbered | None = None
    last: Numbered | None = None
    #: Locks of waiting threads, and callbacks, to release and call once it is decided.
    waiters: list[Lock] | None = None
    callbacks: list[Callable[[], object]] | None = None
    #: Called when its commit is over; with ack level 1 that is later than the decision.
    ends: list[Callable[[Exception | None], None]] | None = None

    def __init__(self, topic: TopicState, pieces: list[ReadableBuffer], size: int, record_count: int) -> None:
        self.topic = topic
        self.pieces = pieces
        self.size = size
        self.record_count = record_count
        self.futures: list[asyncio.Future[None]] = []

    @classmethod
    def of(cls, topic: TopicState, blocks: list[EncodedBlock]) -> PendingBatch:
        """The encoded blocks of one call."""
        pieces: list[ReadableBuffer] = [block.block for block in blocks]
        counts = [block.record_count for block in blocks]
        pending_batch = cls(topic, pieces, sum(map(len, pieces)), sum(counts))
        if len(pieces) > 1:
            pending_batch.counts = counts
        return pending_batch

    def set_idempotency_key(self, key: str | bytes) -> None:
        """Set its idempotency key; `LimitError` if its records need more than one batch."""
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
        """True if it is one small batch without session or key: such batches may be merged."""
        return self.identity is None and self.counts is None and self.size < LARGE_BLOCK_SIZE

    def accepts(self, size: int, record_count: int, ack: int) -> bool:
        """True if records of this size and ack level can be merged into it and leave it plain."""
        return (
            self.size + size < LARGE_BLOCK_SIZE
            and self.record_count + record_count <= BATCH_RECORDS_MAX
            and self.ack == ack
        )

    def merge(self, other: PendingBatch) -> None:
        """Append the records of another pending batch to this one."""
        self.pieces += other.pieces
        self.size += other.size
        self.record_count += other.record_count
        if self.driver is None:
            self.driver = other.driver
        if other.ends is not None:
            self.ends = other.ends if self.ends is None else [*self.ends, *other.ends]

    def appends(self) -> list[Append]:
        """The appends that store it."""
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
        """Set its outcome, once. Call `notify_waiters` next."""
        self.first, self.last = first, last
        self.error = error
        # Last: waiters read the outcome without a lock once they see this (INV-DELIVERY-ONCE).
        self.is_done = True

    def notify_waiters(self) -> None:
        """Wake the threads and tasks that wait for the outcome, and call the callbacks."""
        self.wake_one()
        if self.futures:
            # Most futures belong to the loop that this is called on.
            running = asyncio._get_running_loop()
            for future in self.futures:
                if future.get_loop() is not running:
                    # No task awaits a future of a closed loop.
                    with suppress(RuntimeError):
                        future.get_loop().call_soon_threadsafe(_resolve, future)
                elif not future.done():
                    future.set_result(None)
        if self.callbacks is not None:
            for callback in self.callbacks:
                try:
                    callback()
                except Exception:
                    # The deliveries behind this one in the commit must still be notified.
                    LOG.exception("a callback of a delivery to %r raised", self.topic.name)

    def notify_commit_end(self, error: Exception | None) -> None:
        """Call `ends`: its commit is over, however early the batch was decided."""
        if self.ends is not None:
            for notify in self.ends:
                notify(error)

    def add_waiter(self) -> Lock:
        """A held lock for the calling thread to block on; `wake_one` releases it."""
        waiter = Lock()
        waiter.acquire()
        if self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)
        return waiter

    def remove_waiter(self, waiter: Lock) -> None:
        """Forget the lock of a thread that stopped waiting."""
        if self.waiters is not None and waiter in self.waiters:
            self.waiters.remove(waiter)

    def wake_one(self) -> None:
        """Wake one waiting thread: the batch is decided, or is the first in a queue without a leader.

        A thread that finds it decided wakes the next one. Woken all at once they would only compete for the GIL.
        """
        if self.waiters:
            with suppress(IndexError):
                self.waiters.pop().release()


class Group:
    """Pending batches that one commit stores, and their appends, in the same order."""

    __slots__ = ("appends", "commit", "parts", "record_count")

    def __init__(self, pending_batches: Sequence[PendingBatch]) -> None:
        self.commit: Commit | None = None
        #: Each pending batch with its appends.
        self.parts = [(pending_batch, pending_batch.appends()) for pending_batch in pending_batches]
        if len(pending_batches) == 1:
            self.appends = self.parts[0][1]
            self.record_count = pending_batches[0].record_count
        else:
            self.appends = [each for _, part in self.parts for each in part]
            self.record_count = sum(pending_batch.record_count for pending_batch in pending_batches)


def error_of(appends: Sequence[Append]) -> Exception | None:
    """The first error among the appends, or None."""
    for append in appends:
        if append.error is not None:
            return append.error
        if append.numbered is None:
            return OutcomeUnknownError("the commit ended before the records were decided; read to find out")
    return None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
