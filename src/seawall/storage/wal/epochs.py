"""The epoch: one group commit in the write-ahead log, a header of 64 bytes and its batches back to back.

| at | size | field          | notes                                                                                |
|----|------|----------------|--------------------------------------------------------------------------------------|
| 0  | 4    | magic          | `EPOC`                                                                               |
| 4  | 4    | crc            | CRC-32C of bytes 8–63                                                                |
| 8  | 8    | salt           | the one in the preface of the file                                                   |
| 16 | 8    | epoch          | from 1, one more each, over all files                                                |
| 24 | 8    | length         | bytes of the batches                                                                 |
| 32 | 8    | synced_through | address below which all bytes were durable when this was written; at most its own    |
| 40 | 8    | first_position | of its first batch                                                                   |
| 48 | 4    | batch_count    |                                                                                      |
| 52 | 2    | flags          | 1 = clean close, 2 = continued in the next file                                      |
| 54 | 2    | aside_count    | how many of the batches are asides, which take no position                           |
| 56 | 8    | timestamp_ns   | of the commit                                                                        |

A header is valid at address `at` of a file if magic, checksum and salt match, synced_through is not above `at`, batches
of that length and number can exist, not more asides than batches, and a mark (flags 1, 2) has none. An epoch is valid
if moreover its number follows the one before, its first position is not below the next one due, and every batch in it
is good, their positions dense but for asides, each of which has that of the batch behind it.

Whatever is not what the writer made is told apart from a tail that the disk never got by synced_through: see
`wal_reader`. This module must not know files.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, NewType

from seawall.core.types import LaneEpoch, Position, TimestampNs
from seawall.limits import BATCH_HEADER_SIZE
from seawall.wire.format.fields import Buffer, pack
from seawall.wire.format.frames import checksum

#: Byte address in the endless stream of epochs, from 0 (u64).
WalAddress = NewType("WalAddress", int)

EPOCH_MAGIC: Final = b"EPOC"
EPOCH_HEADER_SIZE: Final = 64

#: The log was closed in order: nothing but this epoch follows its synced_through.
FLAG_CLEAN: Final = 1
#: The log goes on in another file, which begins at the address of this mark and has a durable name.
FLAG_CONTINUED: Final = 2

#: Bytes that every file of a log keeps for marks: of a clean close, and behind it of the continuation.
MARKS_SIZE: Final = 2 * EPOCH_HEADER_SIZE

_BODY: Final = Struct("<QQQQQIHHQ")
_START: Final = Struct("<4sI")

#: Positions and numbers of epochs stay below this, so that kernels can count with them.
_NUMBER_LIMIT: Final = 1 << 63

assert _START.size + _BODY.size == EPOCH_HEADER_SIZE


@dataclass(frozen=True, slots=True)
class EpochHeader:
    """The fields of the table, without magic and checksum."""

    salt: int
    epoch: LaneEpoch
    length: int
    synced_through: WalAddress
    first_position: Position
    batch_count: int
    flags: int
    timestamp_ns: TimestampNs
    aside_count: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether it marks a clean close."""
        return self.flags == FLAG_CLEAN

    @property
    def is_continued(self) -> bool:
        """Whether it marks the end of a file behind which another one was begun."""
        return self.flags == FLAG_CONTINUED

    @property
    def size(self) -> int:
        """Bytes of header and batches."""
        return EPOCH_HEADER_SIZE + self.length

    @property
    def next_position(self) -> Position:
        """The position behind its last batch."""
        return Position(self.first_position + self.batch_count - self.aside_count)

    def encode(self) -> bytes:
        """The 64 bytes of the header."""
        return encode_epoch_header(
            self.salt,
            self.epoch,
            self.length,
            self.synced_through,
            self.first_position,
            self.batch_count,
            self.flags,
            self.timestamp_ns,
            self.aside_count,
        )


def encode_epoch_header(
    salt: int,
    epoch: LaneEpoch,
    length: int,
    synced_through: WalAddress,
    first_position: Position,
    batch_count: int,
    flags: int,
    timestamp_ns: TimestampNs,
    aside_count: int = 0,
) -> bytes:
    """The 64 bytes of a header, for the writer, who makes one for every commit and keeps none."""
    body = pack(
        _BODY,
        "epoch header",
        salt,
        epoch,
        length,
        synced_through,
        first_position,
        batch_count,
        flags,
        aside_count,
        timestamp_ns,
    )
    return _START.pack(EPOCH_MAGIC, checksum(body)) + body


def parse_epoch_header(data: Buffer, *, salt: int, at: WalAddress) -> EpochHeader | None:
    """The valid header that `data` begins with, for an epoch at address `at`; None if there is no such header.

    None and no error: behind the last epoch of every log stands something that is no header.
    """
    if len(data) < EPOCH_HEADER_SIZE or data[:4] != EPOCH_MAGIC:
        return None
    _, crc = _START.unpack_from(data)
    if checksum(data[_START.size : EPOCH_HEADER_SIZE]) != crc:
        return None
    found, epoch, length, synced_through, first_position, count, flags, asides, time = _BODY.unpack_from(
        data, _START.size
    )
    header = EpochHeader(found, epoch, length, synced_through, first_position, count, flags, time, asides)
    return header if header.salt == salt and header.synced_through <= at and _is_possible(header) else None


def _is_possible(header: EpochHeader) -> bool:
    """Whether its numbers can be true of any epoch; bounds what a reader allocates for it."""
    if not 1 <= header.epoch < _NUMBER_LIMIT or header.next_position >= _NUMBER_LIMIT:
        return False
    if header.flags in (FLAG_CLEAN, FLAG_CONTINUED):
        return not (header.length or header.batch_count or header.aside_count)
    if header.flags or header.aside_count > header.batch_count:
        return False
    return 1 <= header.batch_count <= header.length // BATCH_HEADER_SIZE
