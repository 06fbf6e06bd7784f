"""Appends, and the commit that stores several of them together.

An `Append` is one batch to be stored; after its commit it has its numbers or its error. A `Commit` lists what has to be
written before its appends take effect, and writes it.

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

#: The client id of a batch without a session: the top bit is set, and its client seq means nothing.
NO_SESSION: Final = ClientId(1 << 63)
NO_CLIENT_SEQ: Final = ClientSeq(0)

#: Blocks of this size or more are written directly to their segment; the log has a reference only.
LARGE_BLOCK_SIZE: Final = limits.LARGE_BATCH_SIZE - limits.BATCH_HEADER_SIZE

#: The choices word of a batch header: order and ack level of the topic, an uncompressed block.
AS_TOPIC_CHOICES: Final = AS_TOPIC | AS_TOPIC << 8

#: Bytes of large batches that one system call writes.
_PIECE_SIZE: Final = 2 * limits.MIB

#: An upper bound for the block of a reference to a large batch.
_REFERENCE_SIZE_MAX: Final = 256


def logged_size(block_length: int) -> int:
    """Bytes that a batch with a block of this length takes in the log."""
    return limits.BATCH_HEADER_SIZE + (block_length if block_length < LARGE_BLOCK_SIZE else _REFERENCE_SIZE_MAX)


@dataclass(slots=True)
class Append:
    """One batch to store in a topic; after its commit also its numbers, or its error.

    A batch of a session has the client id, client seq and epoch of its publisher. A batch with an idempotency key has
    the digest of the key in the same fields (`topics.keys`), and the flag KEYED.
    """

    topic_id: TopicId
    block: ReadableBuffer
    record_count: int
    client_id: ClientId = NO_SESSION
    client_seq: ClientSeq = NO_CLIENT_SEQ
    session_epoch: int = 0
    flags: int = 0
    codec: Codec = Codec.NONE
    #: Bytes of the block before compression; 0 if it is not compressed.
    raw_length: int = 0
    numbered: Numbered | None = None
    error: Exception | None = None

    @classmethod
    def of_batch(cls, batch: ReadableBuffer) -> Append:
        """The append of an encoded batch whose checksums were verified on arrival."""
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
        """True if the client window has to check it."""
        return not self.client_id >> 63

    def result(self) -> Numbered:
        """Its numbers; raises its error."""
        if self.error is not None:
            raise self.error
        if self.numbered is None:
            raise WrongStateError("the append is not decided yet: commit it first")
        return self.numbered

    def draft(self) -> Draft:
        """The header fields that the frontier needs to number it."""
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
    """A write of large batches directly to their segment: `buffers` to offset `at` of its file."""

    shared: SharedFile
    at: int
    size: int
    buffers: list[ReadableBuffer]
    #: True to bypass the page cache: no reader is near the end of the topic.
    is_uncached: bool

    @property
    def file(self) -> File:
        """The open file; the commit has pinned it."""
        return self.shared.file

    def pieces(self) -> list[tuple[int, list[ReadableBuffer]]]:
        """Split it into pieces of one call each, with their offsets: the disk writes one while the next is copied.

        A single piece is written durably; several pieces are followed by one sync.
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


#: What takes effect once a commit is written, in position order.
Effect: TypeAlias = Append | tuple[Control, Position]


class Commit:
    """Appends that are numbered and staged, and what has to be written before they take effect.

    The segment writes come first, always durable, then the epoch, durable if `durable`. The file of a segment write is
    pinned before its batch is numbered, so no descriptor can be missing afterwards.
    """

    durable = False
    epoch: EpochWrite | None = None
    #: True if a commit cycle staged it: then it has no effects, and its batches are rows of `pending_rows`.
    is_cycle = False
    first_row = 0
    row_count = 0

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.segment_writes: list[SegmentWrite] = []
        #: The files of the segment writes: they keep their descriptors until the commit is written.
        self.pins = FilePins()
        #: Appended topics that have caps or ages.
        self.limited: list[TopicState] = []
        #: Appends with idempotency keys, to find a repeated key within the same commit.
        self.keyed: dict[tuple[TopicId, bytes], Append] = {}

    def execute(self) -> None:
        """Write all of it, on this thread."""
        for write in self.segment_writes:
            write.execute()
        if self.epoch is not None:
            self.epoch.execute(durable=self.durable)

    def add_segment_write(
        self, shared: SharedFile, at: int, buffers: Sequence[ReadableBuffer], *, is_uncached: bool
    ) -> None:
        """Add a write of a batch to a pinned segment file; adjacent writes become one."""
        size = sum(map(len, buffers))
        last = self.segment_writes[-1] if self.segment_writes else None
        if last is not None and last.shared is shared and last.at + last.size == at:
            last.buffers.extend(buffers)
            last.size += size
        else:
            check(shared in self.pins, "INV-LOG-SPACE", shared.path)
            self.segment_writes.append(SegmentWrite(shared, at, size, [*buffers], is_uncached))
