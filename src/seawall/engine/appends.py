"""Appends on their way: what somebody wants stored, and the commit that stores it together with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Position, TopicId
from seawall.errors import WrongStateError
from seawall.io.files import write_all
from seawall.io.interfaces import File, ReadableBuffer
from seawall.sequencer.frontier import Draft, Numbered
from seawall.storage.control_batches import Control
from seawall.storage.epoch_write import EpochWrite
from seawall.topics.state import TopicState
from seawall.wire.batches import BatchSource, parse_batch_header
from seawall.wire.codes import AS_TOPIC, Codec

#: A client without a session: top bit set, numbers that nobody compares.
NO_SESSION: Final = ClientId(1 << 63)
NO_CLIENT_SEQ: Final = ClientSeq(0)
_NO_SESSION_SIGNED: Final = NO_SESSION - (1 << 64)


#: Blocks from this size on go to their places at once; with its header such a batch is a large one.
LARGE_BLOCK_SIZE: Final = limits.LARGE_BATCH_SIZE - limits.BATCH_HEADER_SIZE

#: Order and ack level of the topic, a plain block, as a header has them.
_AS_TOPIC: Final = AS_TOPIC | AS_TOPIC << 8

#: Bytes of the block of a reference to a large batch, and some to spare.
_REFERENCE_ROOM: Final = 256


def logged_size(block_length: int) -> int:
    """Bytes that a batch with such a block takes in the log."""
    return limits.BATCH_HEADER_SIZE + (block_length if block_length < LARGE_BLOCK_SIZE else _REFERENCE_ROOM)


@dataclass(slots=True)
class Append:
    """One batch to be stored in a topic; afterwards its numbers, or the error that kept it out.

    A batch of a publisher's session has its client id, seq and epoch. One with an idempotency key has the key's digest
    in their place (`topics.keys`), and `flags` say so.
    """

    topic_id: TopicId
    block: ReadableBuffer
    record_count: int
    client_id: ClientId = NO_SESSION
    client_seq: ClientSeq = NO_CLIENT_SEQ
    session_epoch: int = 0
    flags: int = 0
    codec: Codec = Codec.NONE
    #: Bytes of the plain block, where it is compressed.
    raw_length: int = 0
    numbered: Numbered | None = None
    error: Exception | None = None

    @classmethod
    def of_batch(cls, batch: ReadableBuffer) -> Append:
        """A batch as a writer has encoded it; its checksums were verified when it arrived."""
        header = parse_batch_header(batch, source=BatchSource.STORED)
        return cls(
            header.topic_id,
            memoryview(batch)[limits.BATCH_HEADER_SIZE :],
            header.record_count,
            header.client_id,
            header.client_seq,
            header.session_epoch,
            header.flags,
            header.codec,
            header.raw_length,
        )

    @property
    def has_session(self) -> bool:
        """Whether the client window has to see it."""
        return not self.client_id >> 63

    def result(self) -> Numbered:
        """Its numbers; raises what kept it out."""
        if self.error is not None:
            raise self.error
        if self.numbered is None:
            raise WrongStateError("the append is not decided yet: commit it first")
        return self.numbered

    @property
    def is_plain(self) -> bool:
        """Whether it is a small batch that neither a session nor a key tells from others."""
        return self.client_id == NO_SESSION and not self.flags and len(self.block) < LARGE_BLOCK_SIZE

    def draft_row(self) -> tuple[int, ...]:
        """What the frontier is told of it, and the length of the block, as one row."""
        length = len(self.block)
        raw_length = self.raw_length or length
        choices = _AS_TOPIC | self.codec << 16
        return self.record_count, self.topic_id, _NO_SESSION_SIGNED, 0, 0, raw_length, choices, length

    def draft(self) -> Draft:
        """What the frontier is told of it."""
        return Draft(
            self.record_count,
            self.topic_id,
            _signed(self.client_id),
            _signed(self.client_seq),
            self.session_epoch & 0xFFFF_FFFF,
            self.raw_length or len(self.block),
            _AS_TOPIC | self.codec << 16 | self.flags << 24,
        )


@dataclass(slots=True)
class PlaceWrite:
    """Large batches that go to their places at once: `buffers` to position `at` of a segment's file."""

    file: File
    at: int
    size: int
    buffers: list[ReadableBuffer]


#: What takes effect once a commit is written, in the order of positions.
Effect: TypeAlias = Append | tuple[Control, Position]


@dataclass(slots=True)
class Commit:
    """Appends that are numbered and staged, and what has to be written before they take effect.

    First the places, durably, then the epoch, durably if `durable`: INV-REFERENCE-AFTER-DATA.
    """

    durable: bool = False
    effects: list[Effect] = field(default_factory=list)
    places: list[PlaceWrite] = field(default_factory=list)
    epoch: EpochWrite | None = None
    #: Topics with caps or ages that were appended to.
    limited: list[TopicState] = field(default_factory=list)
    #: Appends with keys, so that a key counts within its own commit.
    keyed: dict[tuple[TopicId, bytes], Append] = field(default_factory=dict)
    #: Appends that went the short way, and are in no effect above.
    plain_count: int = 0

    def carry_out(self) -> None:
        """Write all of it, on this thread."""
        for place in self.places:
            write_all(place.file, place.buffers, place.at, durable=True)
        if self.epoch is not None:
            self.epoch.carry_out(durable=self.durable)

    def add_place(self, file: File, at: int, buffers: Sequence[ReadableBuffer]) -> None:
        """Write a batch at its place; places that follow one another are one write."""
        size = sum(map(len, buffers))
        last = self.places[-1] if self.places else None
        if last is not None and last.file is file and last.at + last.size == at:
            last.buffers.extend(buffers)
            last.size += size
        else:
            self.places.append(PlaceWrite(file, at, size, [*buffers]))


def _signed(number: int) -> int:
    """The signed number with the same 64 bits."""
    return number - (1 << 64) if number >> 63 else number
