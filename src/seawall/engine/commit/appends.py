"""Appends on their way: what somebody wants stored, and the commit that stores it together with others.

INV-REFERENCE-AFTER-DATA: the log refers to a batch in a segment only after the batch is durable there. `Commit` writes
the segments first, durably, then the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from seawall import limits
from seawall.core.checks import check
from seawall.core.types import ClientId, ClientSeq, Position, TopicId
from seawall.errors import WrongStateError
from seawall.io.disk.files import write_all
from seawall.io.interfaces import File, ReadableBuffer
from seawall.sequencer.frontier import Draft, Numbered, signed
from seawall.storage.control.batches import Control
from seawall.storage.shared_file import FilePins, SharedFile
from seawall.storage.wal.epoch_write import EpochWrite
from seawall.topics.state import TopicState
from seawall.wire.format.batches import BatchSource, parse_batch_header
from seawall.wire.format.codes import AS_TOPIC, Codec

#: A client without a session: top bit set, numbers that nobody compares.
NO_SESSION: Final = ClientId(1 << 63)
NO_CLIENT_SEQ: Final = ClientSeq(0)

#: Blocks from this size on go to their places at once; with its header such a batch is a large one.
LARGE_BLOCK_SIZE: Final = limits.LARGE_BATCH_SIZE - limits.BATCH_HEADER_SIZE

#: Order and ack level of the topic, a plain block, as a header has them.
AS_TOPIC_CHOICES: Final = AS_TOPIC | AS_TOPIC << 8

#: Bytes of large batches that one call writes.
_PIECE_SIZE: Final = 2 * limits.MIB

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

    def draft(self) -> Draft:
        """What the frontier is told of it."""
        return Draft(
            self.record_count,
            self.topic_id,
            signed(self.client_id),
            signed(self.client_seq),
            self.session_epoch & 0xFFFF_FFFF,
            self.raw_length or len(self.block),
            AS_TOPIC_CHOICES | self.codec << 16 | self.flags << 24,
        )


@dataclass(slots=True)
class SegmentWrite:
    """Large batches that go to their places at once: `buffers` to position `at` of a segment's file."""

    shared: SharedFile
    at: int
    size: int
    buffers: list[ReadableBuffer]
    #: Whether nobody reads what was written a moment ago: then it need not stay in memory.
    is_uncached: bool

    @property
    def file(self) -> File:
        """The open file: its commit has it pinned."""
        return self.shared.file

    def pieces(self) -> list[tuple[int, list[ReadableBuffer]]]:
        """What is written by one call each, and where: the disk has a piece to write while the next is copied.

        One piece is written durably; behind several of them there is a sync.
        """
        found: list[tuple[int, list[ReadableBuffer]]] = []
        at, size, piece = self.at, 0, list[ReadableBuffer]()
        for buffer in self.buffers:
            for first in range(0, len(buffer), _PIECE_SIZE):
                part = buffer if len(buffer) <= _PIECE_SIZE else memoryview(buffer)[first : first + _PIECE_SIZE]
                if size + len(part) > _PIECE_SIZE or len(piece) == limits.IOVEC_COUNT_MAX:
                    found.append((at, piece))
                    at, size, piece = at + size, 0, []
                piece.append(part)
                size += len(part)
        return [*found, (at, piece)]

    def execute(self) -> None:
        """Write it durably, on this thread."""
        pieces = self.pieces()
        is_one = len(pieces) == 1 and not self.is_uncached
        for at, piece in pieces:
            write_all(self.file, piece, at, durable=is_one, uncached=self.is_uncached)
        if not is_one:
            self.file.sync()


#: What takes effect once a commit is written, in the order of positions.
Effect: TypeAlias = Append | tuple[Control, Position]


class Commit:
    """Appends that are numbered and staged, and what has to be written before they take effect.

    First the places, durably, then the epoch, durably if `durable`. The file of a place is pinned before its batch is
    numbered: no descriptor is missing behind that.
    """

    durable = False
    epoch: EpochWrite | None = None
    #: Whether a commit cycle has staged it: nothing is among the effects; and the rows of its batches (`pending_rows`).
    is_cycle = False
    first_row = 0
    row_count = 0

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.places: list[SegmentWrite] = []
        #: Files that places are written to: they keep their descriptors until the commit is written.
        self.pins = FilePins()
        #: Topics with caps or ages that were appended to.
        self.limited: list[TopicState] = []
        #: Appends with keys, so that a key counts within its own commit.
        self.keyed: dict[tuple[TopicId, bytes], Append] = {}

    def execute(self) -> None:
        """Write all of it, on this thread."""
        for place in self.places:
            place.execute()
        if self.epoch is not None:
            self.epoch.execute(durable=self.durable)

    def add_segment_write(
        self, shared: SharedFile, at: int, buffers: Sequence[ReadableBuffer], *, is_uncached: bool
    ) -> None:
        """Write a batch at its place, in a file that is pinned; places that follow one another are one write."""
        size = sum(map(len, buffers))
        last = self.places[-1] if self.places else None
        if last is not None and last.shared is shared and last.at + last.size == at:
            last.buffers.extend(buffers)
            last.size += size
        else:
            check(shared in self.pins, "INV-LOG-ROOM", shared.path)
            self.places.append(SegmentWrite(shared, at, size, [*buffers], is_uncached))
