"""Deliveries of a client: what a publisher holds while its records are on their way, and what it is told in the end.

They have the words of the embedded log's: `result()`, `await`, `add_callback`, `first_seq`, `seqs`, `position`,
`timestamp_ns`, `is_duplicate`. What is sent and decided together is a *batch*: the records of one call, or of many. A
delivery is where its records begin in there; one call whose records fill several batches has all of them.

A batch is decided once, and what its deliveries say then never changes. Batches have no lock: whoever changes one holds
that of its sender, or is on its event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, Final, Protocol

from seawall.api.publishable import HeldValues, Records, made
from seawall.core.types import ClientId, ClientSeq, Position, Seq, SessionEpoch, TimestampNs, TopicId
from seawall.errors import WrongStateError
from seawall.limits import BATCH_RECORDS_MAX, KIB
from seawall.wire.format.batches import batch_header
from seawall.wire.format.codes import POSITION_UNKNOWN, BatchFlags, Codec
from seawall.wire.format.compression import compress
from seawall.wire.format.fields import Buffer
from seawall.wire.lwp2.keyed import PublishedKeyed

LOG: Final = logging.getLogger(__name__)

_NO_SEQ: Final = Seq(0)
#: Blocks of this size and more are joined as they are sent, where that can be.
_JOINED_LATE_SIZE: Final = 512 * KIB
#: Blocks below this are not compressed: there is nothing to gain.
_COMPRESSED_SIZE_MIN: Final = 128


class Waiting(Protocol):
    """Who can wait for a delivery, and tells when one is decided."""

    def wait_for(self, delivery: Delivery, timeout_s: float | None) -> bool:
        """Wait until it is decided; false if that takes too long."""
        ...

    def add_callback(self, batch: Batch, callback: Callable[[], object]) -> bool:
        """Have it called once the batch is decided; false, and nothing, if it is."""
        ...


class Batch:
    """Records of one topic that are sent and decided together."""

    #: Its number in the session once it was sent, and the connection it was sent on, for as long as that lives.
    client_seq = ClientSeq(0)
    connection: object | None = None
    #: What goes over the wire, if it is kept: made when it is sent first, the same ever after.
    block: Buffer | None = None
    codec = Codec.NONE
    #: The CRC-32C of all it has, as long as that is one block which came with it, and of `block` once that is made.
    block_crc: int | None = None
    is_done = False
    error: Exception | None = None
    base_seq = _NO_SEQ
    position = Position(POSITION_UNKNOWN)
    timestamp_ns = TimestampNs(0)
    is_duplicate = False
    #: How often it was put into a socket.
    sends = 0

    def __init__(self, topic: str, topic_id: TopicId, begun_ns: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.begun_ns = begun_ns
        #: What it has: blocks, and plain values behind them that no block has yet.
        self.pieces: list[Buffer] = []
        self.values: list[bytes] = []
        self.size = 0
        self.record_count = 0
        self.callbacks: list[Callable[[], object]] = []

    def take(self, records: Records) -> int:
        """Make records part of it; how many it had before."""
        before = self.record_count
        if isinstance(records, HeldValues):
            self.values = self.values + records.values if self.values else records.values
        else:
            self._pack()
            self.block_crc = None if self.pieces else records.crc
            self.pieces.append(records.block)
        self.size += records.size
        self.record_count = before + records.record_count
        return before

    @property
    def is_held(self) -> bool:
        """Whether all it has are values: their block is made whenever it is needed, and is the same each time."""
        return bool(self.values) and not self.pieces

    def held_for(self, codec: Codec) -> HeldValues | None:
        """What is held, if it is sent as it is and large enough to be joined on its way; else None."""
        is_large = codec is Codec.NONE and self.size >= _JOINED_LATE_SIZE
        return HeldValues(self.values, self.size) if is_large and self.is_held else None

    def held_block(self) -> Buffer:
        """The block of what is held."""
        block = made(HeldValues(self.values, self.size))
        self.block_crc = block.crc
        return block.block

    def may_hold(self, records: Records, size_max: int) -> bool:
        """Whether more values may become part of what is held, up to a size."""
        fits = self.size + records.size <= size_max and self.record_count + records.record_count <= BATCH_RECORDS_MAX
        return fits and self.is_held and isinstance(records, HeldValues)

    def block_for(self, codec: Codec) -> Buffer:
        """What is sent of it, packed where that is smaller; values are joined each time, and nothing is kept twice."""
        if self.block is not None:
            return self.block
        if codec is Codec.NONE and self.is_held:
            return self.held_block()
        self._pack()
        plain = self.block = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces = []
        if codec is not Codec.NONE and len(plain) >= _COMPRESSED_SIZE_MIN:
            packed = compress(codec, plain)
            if len(packed) < len(plain):
                self.block, self.codec, self.block_crc = packed, codec, None
        return self.block

    def header_of(
        self,
        block: Buffer | int,
        client_id: ClientId,
        session_epoch: SessionEpoch,
        ack_level: int,
        timestamp_ns: TimestampNs,
    ) -> bytes:
        """Its header for the wire, with the checksum of its block; or with the block's size, if that comes behind."""
        is_behind = isinstance(block, int)
        header = batch_header(
            block,
            topic_id=self.topic_id,
            client_id=client_id,
            client_seq=self.client_seq,
            session_epoch=session_epoch,
            record_count=self.record_count,
            timestamp_ns=timestamp_ns,
            ack_level=ack_level,
            codec=self.codec,
            raw_length=self.size,
            flags=BatchFlags.SUM_BEHIND if is_behind else 0,
            block_crc=0 if is_behind else self.block_crc,
        )
        self.block_crc = None if is_behind else header.block_crc
        return header.header_bytes()

    def _pack(self) -> None:
        if self.is_held:
            self.pieces = [self.held_block()]
        elif self.values:
            size = self.size - sum(map(len, self.pieces))
            self.pieces.append(made(HeldValues(self.values, size)).block)
            self.block_crc = None
        self.values = []

    def announce(self) -> None:
        """Tell whoever wants to know that it is decided; a callback that raises keeps nobody else from it."""
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                LOG.exception("a callback of a delivery to %r raised", self.topic)


class Delivery:
    """The fate of the records of one call. Made by `publish`."""

    __slots__ = ("_batches", "_offset", "_waiting", "record_count")

    def __init__(self, waiting: Waiting, batches: tuple[Batch, ...], offset: int, record_count: int) -> None:
        self._waiting = waiting
        self._batches = batches
        self._offset = offset
        self.record_count = record_count

    def __repr__(self) -> str:
        state = "under way"
        if self.done:
            state = f"failed: {self.error}" if self.error else f"from seq {self.first_seq}"
        return f"<Delivery of {self.record_count} to {self.topic!r}, {state}>"

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._batches[0].topic

    @property
    def done(self) -> bool:
        """Whether it is decided."""
        batches = self._batches
        # Most have one: a generator would take longer than everything else here.
        return batches[0].is_done if len(batches) == 1 else all(batch.is_done for batch in batches)

    @property
    def error(self) -> Exception | None:
        """What went wrong, if it is decided and something did."""
        for batch in self._batches:
            if batch.error is not None:
                return batch.error
        return None

    @property
    def first_seq(self) -> Seq:
        """The seq of its first record; 0 where nobody knows it."""
        first = self._decided()[0]
        return Seq(first.base_seq + self._offset) if first.base_seq else _NO_SEQ

    @property
    def position(self) -> Position:
        """The place of its last batch in the order of everything; 0 where nobody knows it."""
        position = self._decided()[-1].position
        return Position(0) if position == POSITION_UNKNOWN else position

    @property
    def timestamp_ns(self) -> TimestampNs:
        """When its last batch was stored."""
        return self._decided()[-1].timestamp_ns

    @property
    def is_duplicate(self) -> bool:
        """Whether it repeats something that was stored before."""
        return self._decided()[0].is_duplicate

    @property
    def seqs(self) -> Sequence[int]:
        """The seq of each record, in the order they were given; none where nobody knows them.

        Several batches may have records of others between them.
        """
        batches = self._decided()
        if len(batches) == 1:
            first = self.first_seq
            return range(first, first + self.record_count) if first else range(0)
        if not all(batch.base_seq for batch in batches):
            return range(0)
        spans = [range(batch.base_seq, batch.base_seq + batch.record_count) for batch in batches]
        if all(before.stop == after.start for before, after in pairwise(spans)):
            return range(spans[0].start, spans[-1].stop)
        return [seq for span in spans for seq in span]

    def result(self, timeout_s: float | None = None) -> Delivery:
        """Wait until it is decided and return it; raises what went wrong, `TimeoutError` if it takes too long."""
        if not self.done and not self._waiting.wait_for(self, timeout_s):
            raise TimeoutError(f"{self!r} after {timeout_s} s")
        return self._outcome()

    def add_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Have it called with the delivery once it is decided; at once if it is. It must be quick and not raise."""
        undecided = [batch for batch in self._batches if not batch.is_done]
        if not undecided or not self._waiting.add_callback(undecided[-1], partial(self._look_again, callback)):
            callback(self)

    def _look_again(self, callback: Callable[[Delivery], object]) -> None:
        if self.done:
            callback(self)
        else:
            self.add_callback(callback)

    def __await__(self) -> Generator[Any, None, Delivery]:
        if not self.done:
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self.add_callback(lambda _: _resolve(loop, future))
            yield from future
        return self._outcome()

    def _outcome(self) -> Delivery:
        error = self.error
        if error is not None:
            raise error
        return self

    def _decided(self) -> tuple[Batch, ...]:
        if not self.done:
            raise WrongStateError("the delivery is under way: wait for its result first")
        return self._batches


def undelivered(batches: Sequence[Batch]) -> int:
    """How many records of batches are not stored, as far as is known now."""
    return sum(batch.record_count for batch in batches if not batch.is_done or batch.error is not None)


def decided_delivery(waiting: Waiting, delivery: Delivery) -> Delivery:
    """The same records for a publisher who does not care (ack level 0): decided, whatever becomes of them."""
    batch = Batch(delivery.topic, TopicId(0), 0)
    batch.is_done = True
    return Delivery(waiting, (batch,), 0, delivery.record_count)


def keyed_delivery(topic: str, topic_id: TopicId, record_count: int, reply: PublishedKeyed) -> Delivery:
    """The delivery of keyed records, from the reply that decided them."""
    batch = Batch(topic, topic_id, 0)
    batch.record_count = record_count
    batch.base_seq, batch.position, batch.timestamp_ns = reply.first_seq, reply.position, reply.timestamp_ns
    batch.is_duplicate = reply.is_repeated
    batch.is_done = True
    return Delivery(_Nobody(), (batch,), 0, record_count)


class _Nobody:
    """Waits for nothing, because everything is decided."""

    def wait_for(self, _delivery: Delivery, _timeout_s: float | None) -> bool:
        return True

    def add_callback(self, _batch: Batch, _callback: Callable[[], object]) -> bool:
        return False


def _resolve(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    if asyncio._get_running_loop() is loop:
        _settle(future)
    else:
        # Nobody is left on a loop that was closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, future)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
