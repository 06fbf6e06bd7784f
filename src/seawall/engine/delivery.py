"""What becomes of one call of `publish`: a promise that is kept once, for whoever waits, awaits or left a callback.

    delivery = publisher.publish(records)
    delivery.result()              # waits, commits on this thread where nobody else does, raises what went wrong
    await delivery                 # the same on an event loop
    delivery.add_callback(print)   # called once, by whoever commits

Resolved it knows where its records went: `first_seq`, `record_count`, `position`, `timestamp_ns`, and whether it was a
repetition of something stored before (`is_duplicate`). Numbers that nobody knows are 0: those of a repetition that are
not remembered any more, and all of a delivery that counted as decided at once (ack level 0).

INV-DELIVERY-ONCE: a delivery is resolved once, and what it says then never changes.
It is slotted and has no lock of its own: making one costs a microsecond, and most are never waited for by a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from seawall.core.types import ClientId, ClientSeq, Position, Seq, TimestampNs, TopicId
from seawall.engine.appends import logged_size
from seawall.errors import WrongStateError
from seawall.sequencer.frontier import Numbered
from seawall.wire.arrow import EncodedBlock
from seawall.wire.codes import AckStatus

if TYPE_CHECKING:
    from seawall.engine.commit_queue import CommitQueue


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


class Delivery:
    """The fate of the records of one call. Made by `publish`."""

    __slots__ = (
        *("_callbacks", "_done", "_error", "_future", "_queue", "_waiter", "ack", "at_end", "blocks", "driver"),
        *("first_seq", "identity", "is_duplicate", "logged_size", "position", "record_count", "timestamp_ns"),
        *("topic", "topic_id"),
    )

    first_seq: Seq
    position: Position
    timestamp_ns: TimestampNs
    is_duplicate: bool

    def __init__(self, queue: CommitQueue, topic: str, topic_id: TopicId, blocks: Sequence[EncodedBlock]) -> None:
        self._queue = queue
        self._done = False
        self._error: Exception | None = None
        self._waiter: Lock | None = None
        self._future: asyncio.Future[None] | None = None
        self._callbacks: list[Callable[[Delivery], object]] | None = None
        #: Who commits it if nobody waits for it.
        self.driver: Callable[[], None] | None = None
        #: Called with the error, if any, when the commit is over, however early the delivery counted as decided.
        self.at_end: Callable[[Exception | None], None] | None = None
        self.identity: Identity | None = None
        self.topic = topic
        self.topic_id = topic_id
        self.blocks = blocks
        self.ack = 2
        #: Bytes it takes in the log.
        self.logged_size = 0
        self.record_count = 0
        for block, record_count in blocks:
            self.record_count += record_count
            self.logged_size += logged_size(len(block))

    def __repr__(self) -> str:
        state = "under way"
        if self._done:
            state = f"failed: {self._error}" if self._error else f"from seq {self.first_seq}"
        return f"<Delivery of {self.record_count} to {self.topic!r}, {state}>"

    @property
    def done(self) -> bool:
        """Whether it is decided."""
        return self._done

    @property
    def error(self) -> Exception | None:
        """What went wrong, if it is decided and something did."""
        return self._error

    @property
    def seqs(self) -> range:
        """The seq of each record, in the order they were given; the delivery must be decided."""
        if not self._done:
            raise WrongStateError("the delivery is under way: wait for its result first")
        return range(self.first_seq, self.first_seq + self.record_count)

    def result(self, timeout_s: float | None = None) -> Delivery:
        """Wait until it is decided and return it; raises what went wrong, `TimeoutError` if it takes too long."""
        if not self._done:
            self._queue.wait(self, timeout_s)
        if self._error is not None:
            raise self._error
        return self

    def add_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Have it called with the delivery once it is decided; at once if it is. It must be quick and not raise."""
        if not self._queue.add_callback(self, callback):
            callback(self)

    def __await__(self) -> Generator[Any, None, Delivery]:
        if not self._done:
            future = asyncio.get_running_loop().create_future()
            if self._future is None:
                # Seen by `settle`, or too late for it: then it is done by now.
                self._future = future
                if not self._done:
                    yield from future
            else:
                self.add_callback(partial(_tell, future))
                yield from future
        if self._error is not None:
            raise self._error
        return self

    # --- for the queue -------------------------------------------------------------------------------------------

    def settle(self, error: Exception | None) -> None:
        """It is decided without numbers (INV-DELIVERY-ONCE); `announce` follows. The queue holds its lock."""
        self.first_seq, self.position, self.timestamp_ns = Seq(0), Position(0), TimestampNs(0)
        self.is_duplicate = False
        self._error = error
        self._done = True

    def settle_at(self, first: Numbered, last: Numbered, offset: int) -> None:
        """It is stored, in batches from the first to the last, behind `offset` records of the first."""
        self.first_seq = Seq(first.base_seq + offset) if first.base_seq else first.base_seq
        self.position = last.position
        self.timestamp_ns = last.timestamp_ns
        self.is_duplicate = first.status is AckStatus.DUPLICATE
        self._done = True

    def tell(self, running: asyncio.AbstractEventLoop | None) -> None:
        """Tell whoever waits that it is decided; `running` is the loop this is called on, if it is."""
        if self._waiter is not None:
            self.wake()
        future = self._future
        if future is not None:
            if future.get_loop() is running:
                if not future.done():
                    future.set_result(None)
            else:
                _tell(future, self)
        if self._callbacks is not None:
            for callback in self._callbacks:
                callback(self)

    def note_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Keep a callback. The queue holds its lock."""
        if self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def block_thread(self) -> Lock:
        """A lock that is held until somebody wakes the thread that waits for it. The queue holds its lock."""
        if self._waiter is None:
            self._waiter = Lock()
            self._waiter.acquire()
        return self._waiter

    def wake(self) -> None:
        """Let whoever waits for it, and whoever drives it, look again: it is decided, or its turn to commit has come.

        Both, because a thread that waited may have given up and left its lock behind.
        """
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.release()
        if self.driver is not None and not self._done:
            self.driver()


def announce(deliveries: Sequence[Delivery]) -> None:
    """Tell whoever waits for some deliveries that they are decided."""
    running = asyncio._get_running_loop()
    for delivery in deliveries:
        delivery.tell(running)


def _tell(future: asyncio.Future[None], _: Delivery) -> None:
    """Wake who awaits a delivery: at once on its own loop, through the loop's door from elsewhere."""
    loop = future.get_loop()
    if asyncio._get_running_loop() is loop:
        _resolve(future)
    else:
        loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
