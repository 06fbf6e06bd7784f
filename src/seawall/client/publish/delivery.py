"""The future of published records (`Delivery`), and the batches that are sent and decided together (`Batch`).

A delivery has the API of the embedded log's: `result()`, `await`, `add_callback`, `first_seq`, `seqs`, `position`,
`timestamp_ns`, `is_duplicate`. A batch has the records of one call, or of several. A delivery knows its batch and the
index of its first record in it; a call whose records fill several batches has a delivery with all of them.

A batch is decided once and does not change afterwards. Batches have no lock: code that changes one holds the lock of
its sender, or runs on its event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, Final, Protocol

from seawall.api.publishable import Records, UnencodedBlock, made
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
#: From this size on, a block of plain values is built while it is sent, if the connection supports it.
_STREAMED_SIZE_MIN: Final = 512 * KIB
#: Smaller blocks are not compressed: there is nothing to gain.
_COMPRESSED_SIZE_MIN: Final = 128


class Waiting(Protocol):
    """The sender of a delivery: waits for it, and runs its callbacks."""

    def wait_for(self, delivery: Delivery, timeout_s: float | None) -> bool:
        """Wait until a delivery is decided; False after `timeout_s`."""
        ...

    def add_callback(self, batch: Batch, callback: Callable[[], object]) -> bool:
        """Call `callback` once the batch is decided; False, without a call, if it already is."""
        ...


class Batch:
    """Records of one topic that are sent and decided together."""

    #: Its number in the session once it was sent, and the connection it was sent on, while that is open.
    client_seq = ClientSeq(0)
    connection: object | None = None
    #: The bytes for the wire, if they are kept: built for the first send, and the same for every repetition.
    block: Buffer | None = None
    codec = Codec.NONE
    #: The CRC-32C of its records while they are one block that came with a checksum, and of `block` once that is built.
    block_crc: int | None = None
    is_done = False
    error: Exception | None = None
    base_seq = _NO_SEQ
    position = Position(POSITION_UNKNOWN)
    timestamp_ns = TimestampNs(0)
    is_duplicate = False
    #: How often it was sent.
    sends = 0

    def __init__(self, topic: str, topic_id: TopicId, created_ns: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.created_ns = created_ns
        #: Its records: encoded blocks, followed by plain values that are not encoded yet.
        self.pieces: list[Buffer] = []
        self.values: list[bytes] = []
        self.size = 0
        self.record_count = 0
        self.callbacks: list[Callable[[], object]] = []

    def add(self, records: Records) -> int:
        """Append records; returns the number of records before them."""
        before = self.record_count
        if isinstance(records, UnencodedBlock):
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
        """True if all records are plain values: their block is built when needed, and is the same each time."""
        return bool(self.values) and not self.pieces

    def held_for(self, codec: Codec) -> UnencodedBlock | None:
        """The plain values, if they are to be streamed uncompressed and are large enough for it; otherwise None."""
        is_large = codec is Codec.NONE and self.size >= _STREAMED_SIZE_MIN
        return UnencodedBlock(self.values, self.size) if is_large and self.is_held else None

    def held_block(self) -> Buffer:
        """Build the block of the plain values."""
        block = made(UnencodedBlock(self.values, self.size))
        self.block_crc = block.crc
        return block.block

    def may_hold(self, records: Records, size_max: int) -> bool:
        """True if more plain values can be appended within `size_max`."""
        fits = self.size + records.size <= size_max and self.record_count + records.record_count <= BATCH_RECORDS_MAX
        return fits and self.is_held and isinstance(records, UnencodedBlock)

    def block_for(self, codec: Codec) -> Buffer:
        """The bytes for the wire, compressed if that is smaller.

        The block of plain values is built each time, so that the records are not kept twice.
        """
        if self.block is not None:
            return self.block
        if codec is Codec.NONE and self.is_held:
            return self.held_block()
        self._pack()
        plain = self.block = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces = []
        if codec is not Codec.NONE and len(plain) >= _COMPRESSED_SIZE_MIN:
            compressed = compress(codec, plain)
            if len(compressed) < len(plain):
                self.block, self.codec, self.block_crc = compressed, codec, None
        return self.block

    def header_of(
        self,
        block: Buffer | int,
        client_id: ClientId,
        session_epoch: SessionEpoch,
        ack_level: int,
        timestamp_ns: TimestampNs,
    ) -> bytes:
        """The header for the wire. `block` is the block, or only its size if the checksum trails the block."""
        is_crc_trailing = isinstance(block, int)
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
            flags=BatchFlags.TRAILING_CHECKSUM if is_crc_trailing else 0,
            block_crc=0 if is_crc_trailing else self.block_crc,
        )
        self.block_crc = None if is_crc_trailing else header.block_crc
        return header.header_bytes()

    def _pack(self) -> None:
        if self.is_held:
            self.pieces = [self.held_block()]
        elif self.values:
            size = self.size - sum(map(len, self.pieces))
            self.pieces.append(made(UnencodedBlock(self.values, size)).block)
            self.block_crc = None
        self.values = []

    def run_callbacks(self) -> None:
        """Run the callbacks; one that raises is logged and does not prevent the others."""
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                LOG.exception("a callback of a delivery to %r raised", self.topic)


class Delivery:
    """The pending result of one `publish` call: wait with `result()`, `await` it, or add a callback.

    It is *done* once all its records are stored, or have failed. The attributes that describe stored records raise
    `WrongStateError` before that.
    """

    __slots__ = ("_batches", "_offset", "_waiting", "record_count")

    def __init__(self, waiting: Waiting, batches: tuple[Batch, ...], offset: int, record_count: int) -> None:
        self._waiting = waiting
        self._batches = batches
        self._offset = offset
        self.record_count = record_count

    def __repr__(self) -> str:
        state = "in flight"
        if self.done:
            state = f"failed: {self.error}" if self.error else f"from seq {self.first_seq}"
        return f"<Delivery of {self.record_count} to {self.topic!r}, {state}>"

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._batches[0].topic

    @property
    def done(self) -> bool:
        """True once the records are stored, or have failed."""
        batches = self._batches
        # Most deliveries have one batch: a generator would cost more than everything else here.
        return batches[0].is_done if len(batches) == 1 else all(batch.is_done for batch in batches)

    @property
    def error(self) -> Exception | None:
        """The first error among the batches, or None."""
        for batch in self._batches:
            if batch.error is not None:
                return batch.error
        return None

    @property
    def first_seq(self) -> Seq:
        """The seq of the first record; 0 if it is unknown."""
        first = self._decided()[0]
        return Seq(first.base_seq + self._offset) if first.base_seq else _NO_SEQ

    @property
    def position(self) -> Position:
        """The position of the last batch in the total order; 0 if it is unknown."""
        position = self._decided()[-1].position
        return Position(0) if position == POSITION_UNKNOWN else position

    @property
    def timestamp_ns(self) -> TimestampNs:
        """When the last batch was stored."""
        return self._decided()[-1].timestamp_ns

    @property
    def is_duplicate(self) -> bool:
        """True if the records were stored before, by an earlier publish."""
        return self._decided()[0].is_duplicate

    @property
    def seqs(self) -> Sequence[int]:
        """The seq of each record, in the order of the call; empty if they are unknown.

        Records of other publishers may lie between several batches.
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
        """Wait until it is done and return it; raises its error, or `TimeoutError` after `timeout_s`."""
        if not self.done and not self._waiting.wait_for(self, timeout_s):
            raise TimeoutError(f"{self!r} after {timeout_s} s")
        return self._outcome()

    def add_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback` with the delivery once it is done, or now if it is. It must be quick and must not raise."""
        undecided = [batch for batch in self._batches if not batch.is_done]
        if not undecided or not self._waiting.add_callback(undecided[-1], partial(self._recheck, callback)):
            callback(self)

    def _recheck(self, callback: Callable[[Delivery], object]) -> None:
        if self.done:
            callback(self)
        else:
            self.add_callback(callback)

    def __await__(self) -> Generator[Any, None, Delivery]:
        for batch in self._batches:
            if not batch.is_done:
                loop = asyncio.get_running_loop()
                future = loop.create_future()
                if self._waiting.add_callback(batch, partial(_resolve, loop, future)):
                    yield from future
        return self._outcome()

    def _outcome(self) -> Delivery:
        error = self.error
        if error is not None:
            raise error
        return self

    def _decided(self) -> tuple[Batch, ...]:
        if not self.done:
            raise WrongStateError("the delivery is in flight: wait for its result first")
        return self._batches


def undelivered(batches: Sequence[Batch]) -> int:
    """The number of records that are not known to be stored."""
    return sum(batch.record_count for batch in batches if not batch.is_done or batch.error is not None)


def decided_delivery(waiting: Waiting, delivery: Delivery) -> Delivery:
    """A delivery for ack level 0: it is done at once, whatever happens to the records."""
    batch = Batch(delivery.topic, TopicId(0), 0)
    batch.is_done = True
    return Delivery(waiting, (batch,), 0, delivery.record_count)


def keyed_delivery(topic: str, topic_id: TopicId, record_count: int, reply: PublishedKeyed) -> Delivery:
    """The delivery of records published under an idempotency key, from the server's reply."""
    batch = Batch(topic, topic_id, 0)
    batch.record_count = record_count
    batch.base_seq, batch.position, batch.timestamp_ns = reply.first_seq, reply.position, reply.timestamp_ns
    batch.is_duplicate = reply.is_repeated
    batch.is_done = True
    return Delivery(_AlreadyDone(), (batch,), 0, record_count)


class _AlreadyDone:
    """The `Waiting` of deliveries that are done from the start."""

    def wait_for(self, _delivery: Delivery, _timeout_s: float | None) -> bool:
        return True

    def add_callback(self, _batch: Batch, _callback: Callable[[], object]) -> bool:
        return False


def _resolve(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    if asyncio._get_running_loop() is loop:
        _set_done(future)
    else:
        # A closed loop has no task left that waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_set_done, future)


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
