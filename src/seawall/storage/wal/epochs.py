"""The epoch: one group commit in the write-ahead log, a header of 64 bytes followed by its batches.

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
| 54 | 2    | unpositioned   | how many of the batches are unpositioned control batches                             |
| 56 | 8    | timestamp_ns   | of the commit                                                                        |

A header is valid at address `at` of a file if magic, checksum and salt match, synced_through is not above `at`, batches
of that length and number can exist, not more unpositioned batches than batches, and a mark (flags 1, 2) has no batches.
An epoch is valid if moreover its number follows the one before, its first position is not below the next one due, and
every batch in it is valid, their positions dense except for asides, each of which has the position of the batch after
it.

Damage and a torn tail look alike; synced_through tells them apart: see `wal/reader.py`. This module must not know
files.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, NewType

from seawall.core.types import LaneEpoch, Position, TimestampNs
from seawall.limits import BATCH_HEADER_SIZE
from seawall.wire.format.fields import Buffer, pack
from seawall.wire.format.frames import checksum

#: Byte address in the log, the endless stream of epochs, from 0 (u64).
WalAddress = NewType("WalAddress", int)

EPOCH_MAGIC: Final = b"EPOC"
EPOCH_HEADER_SIZE: Final = 64

#: The log was closed cleanly: only this epoch follows its synced_through.
FLAG_CLEAN: Final = 1
#: The log continues in another file, which begins at the address of this mark and has a durable name.
FLAG_CONTINUED: Final = 2

#: Bytes that every log file reserves for marks: a clean close, and after it the continuation.
MARKS_SIZE: Final = 2 * EPOCH_HEADER_SIZE

_BODY: Final = Struct("<QQQQQIHHQ")
_START: Final = Struct("<4sI")

#: Positions and epoch numbers stay below this, so that kernels can use signed integers.
_NUMBER_LIMIT: Final = 1 << 63

assert _START.size + _BODY.size == EPOCH_HEADER_SIZE


@dataclass(frozen=True, slots=True)
class EpochHeader:
    """The fields of an epoch header, as in the table of this module, without magic and checksum."""

    salt: int
    epoch: LaneEpoch
    length: int
    synced_through: WalAddress
    first_position: Position
    batch_count: int
    flags: int
    timestamp_ns: TimestampNs
    unpositioned_count: int = 0

    @property
    def is_clean(self) -> bool:
        """True if it marks a clean close."""
        return self.flags == FLAG_CLEAN

    @property
    def is_continued(self) -> bool:
        """True if it marks the end of a file that another file continues."""
        return self.flags == FLAG_CONTINUED

    @property
    def size(self) -> int:
        """Bytes of header and batches."""
        return EPOCH_HEADER_SIZE + self.length

    @property
    def next_position(self) -> Position:
        """The position after its last batch."""
        return Position(self.first_position + self.batch_count - self.unpositioned_count)

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
            self.unpositioned_count,
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
    unpositioned_count: int = 0,
) -> bytes:
    """The 64 bytes of a header; the writer uses this to avoid an `EpochHeader` object for every commit."""
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
        unpositioned_count,
        timestamp_ns,
    )
    return _START.pack(EPOCH_MAGIC, checksum(body)) + body


def parse_epoch_header(data: Buffer, *, salt: int, at: WalAddress) -> EpochHeader | None:
    """Parse the header of an epoch at address `at`; None if `data` does not begin with a valid one.

    That is not an error: the bytes after the last epoch of a log are never a valid header.
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
    """True if its numbers are possible for an epoch; this bounds what a reader allocates for it."""
    if not 1 <= header.epoch < _NUMBER_LIMIT or header.next_position >= _NUMBER_LIMIT:
        return False
    if header.flags in (FLAG_CLEAN, FLAG_CONTINUED):
        return not (header.length or header.batch_count or header.unpositioned_count)
    if header.flags or header.unpositioned_count > header.batch_count:
        return False
    return 1 <= header.batch_count <= header.length // BATCH_HEADER_SIZE
