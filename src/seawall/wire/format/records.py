"""Encode and decode records and blocks.

A block is a run of records, packed, without padding; its batch carries count and checksum. The writer encodes it once,
and every reader gets the same bytes. Record forms:

| form     | bytes                                      | size       | when                                            |
|----------|--------------------------------------------|------------|-------------------------------------------------|
| standard | `[type u8][length u32][value]`             | 5 + length | type 00–FE                                      |
| null     | `[FF][0 u32]`                              | 5          | type FF, bytes 1–2 zero                         |
| extended | `[FF][type u16 ≥ 1][length u32][value]`    | 7 + length | type FF, bytes 1–2 not zero                     |

A block is valid when its records end exactly at its end, every null has length 0, and the count is the stated one.
An opaque version 1 payload is not a block: it is one unit of bytes, which readers see as one record of type 7F.

Version 1 has no extended form, so its readers see such a record as `[7E][length + 2 u32][type u16][value]`: the same
size, so the byte offsets of version 1 agree with the stored bytes. 7E and 7F are therefore reserved for the server, as
is 00, which readers skip: a version 2 client may not send them. A version 1 client may: its types are never
interpreted, rewritten or refused.

Types have one number space: 00–FF as sent, extended type n as `EXTENDED_BASE | n`. A deleted record is replaced by type
00 with an empty value; readers skip it, but it still counts for seqs.

This is the plain reference implementation, one record at a time, for small blocks and for tests. Do not use it for many
records: bulk work belongs to the kernels, which must agree with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, unique
from functools import lru_cache
from struct import Struct
from typing import Final

from seawall.errors import CorruptionError, InvalidInputError, LimitError
from seawall.limits import (
    BATCH_RECORDS_MAX,
    BLOCK_SIZE_MAX,
    EXTENDED_HEADER_SIZE,
    EXTENDED_VALUE_SIZE_MAX,
    RECORD_HEADER_SIZE,
    RECORD_VALUE_SIZE_MAX,
)
from seawall.wire.format.fields import Buffer, malformed

#: Added to an extended type so that extended 0001 and raw 01 are different numbers.
EXTENDED_BASE: Final = 0x1_0000

_STANDARD: Final = Struct("<BI")
_EXTENDED: Final = Struct("<BHI")
_V1_VIEW: Final = Struct("<BIH")

assert _STANDARD.size == RECORD_HEADER_SIZE
assert _EXTENDED.size == _V1_VIEW.size == EXTENDED_HEADER_SIZE


@unique
class RecordType(IntEnum):
    """Types with a published meaning; 80–FE are for users. No type is ever refused for its meaning."""

    DELETED = 0x00
    RAW = 0x01
    JSON = 0x02
    MESSAGE_PACK = 0x03
    PROTOBUF = 0x04
    AVRO = 0x05
    KEY_VALUE = 0x10
    TIMESTAMPED = 0x11
    TIMESTAMPED_KEY_VALUE = 0x12
    EXTENDED_FOR_V1 = 0x7E
    OPAQUE = 0x7F
    NULL = 0xFF
    ENVELOPE = EXTENDED_BASE | 0x0001
    ARROW_STREAM = EXTENDED_BASE | 0x0002


#: Types that only the server creates: deleted records, and the forms in which one protocol version sees records that
#: the other one stored.
SERVER_TYPES: Final = frozenset({int(RecordType.DELETED), int(RecordType.EXTENDED_FOR_V1), int(RecordType.OPAQUE)})


@dataclass(frozen=True, slots=True)
class Record:
    """One record: a type of the number space above, and its value."""

    record_type: int
    value: bytes

    @property
    def is_extended(self) -> bool:
        """True if the record has the extended form."""
        return self.record_type > EXTENDED_BASE

    @property
    def size(self) -> int:
        """Bytes of the record in a block, and in the version 1 stream."""
        return (EXTENDED_HEADER_SIZE if self.is_extended else RECORD_HEADER_SIZE) + len(self.value)


def encode_record(record: Record) -> bytes:
    """Encode one record."""
    record_type, value = record.record_type, record.value
    check_value_size(len(value), EXTENDED_VALUE_SIZE_MAX if record.is_extended else RECORD_VALUE_SIZE_MAX)
    if EXTENDED_BASE < record_type <= EXTENDED_BASE | 0xFFFF:
        return _EXTENDED.pack(RecordType.NULL, record_type & 0xFFFF, len(value)) + value
    if not 0 <= record_type <= RecordType.NULL:
        raise InvalidInputError(
            f"record type {record_type:#x}: neither 00 to FF nor EXTENDED_BASE + 1 to EXTENDED_BASE + FFFF"
        )
    if record_type == RecordType.NULL and value:
        raise InvalidInputError(f"a null record has no value, this one has {len(value)} bytes")
    return _STANDARD.pack(record_type, len(value)) + value


@lru_cache(maxsize=4_096)
def raw_head(length: int) -> bytes:
    """The header of a raw record with a value of `length` bytes; cached, because many values have the same size."""
    return _STANDARD.pack(1, length)


def encode_raw(value: bytes) -> bytes:
    """Encode a raw record, the most common type by far."""
    check_value_size(len(value))
    return _STANDARD.pack(1, len(value)) + value


def check_value_size(size: int, size_max: int = RECORD_VALUE_SIZE_MAX) -> None:
    """Refuse a value that is too large for a block: every encoded record must fit a batch."""
    if size > size_max:
        raise LimitError(f"record value of {size} bytes, at most {size_max}; split it")


def encode_block(records: Iterable[Record]) -> bytes:
    """Encode the block of a batch: at least one record, within the bounds of a version 2 batch."""
    pieces = [encode_record(record) for record in records]
    if not pieces:
        raise InvalidInputError("a block needs at least one record")
    if len(pieces) > BATCH_RECORDS_MAX:
        raise LimitError(f"a batch of {len(pieces)} records, at most {BATCH_RECORDS_MAX}; split it")
    block = b"".join(pieces)
    if len(block) > BLOCK_SIZE_MAX:
        raise LimitError(f"a block of {len(block)} bytes, at most {BLOCK_SIZE_MAX}; split it")
    return block


def iter_records(block: Buffer) -> Iterator[Record]:
    """Yield the records of a block, in order; `CorruptionError` at a record that exceeds the block."""
    view = memoryview(block)
    for record_type, start, end in _boundaries(view):
        yield Record(record_type, bytes(view[start:end]))


def decode_block(block: Buffer, record_count: int | None = None) -> list[Record]:
    """Decode all records of a block; `CorruptionError` if their number is not `record_count`."""
    records = list(iter_records(block))
    if record_count is not None and len(records) != record_count:
        raise CorruptionError(f"a block of {len(records)} records where its batch says {record_count}")
    return records


def check_client_block(block: Buffer, record_count: int) -> None:
    """Refuse a block that a version 2 client may not send, before any of it is stored.

    `block` is uncompressed. The checks of its batch bound its size and count, so the scan is bounded too.
    """
    found = 0
    try:
        for record_type, _, _ in _boundaries(memoryview(block)):
            if record_type in SERVER_TYPES:
                raise malformed(f"batch: record {found} has type {record_type:02X}, which is reserved for the server")
            found += 1
    except CorruptionError as error:
        raise malformed(f"batch: {error}") from error
    if found != record_count:
        raise malformed(f"batch: {found} records where the header says {record_count}")


def records_for_v1(block: Buffer) -> Buffer:
    """A stored block as version 1 sees it: the same size, each extended record as type 7E.

    A block without extended records is returned itself, not a copy.
    """
    view = memoryview(block)
    shown: bytearray | None = None
    for record_type, start, end in _boundaries(view):
        if record_type > EXTENDED_BASE:
            if shown is None:
                shown = bytearray(view)
            _V1_VIEW.pack_into(
                shown,
                start - EXTENDED_HEADER_SIZE,
                RecordType.EXTENDED_FOR_V1,
                end - start + 2,
                record_type & 0xFFFF,
            )
    return block if shown is None else shown


def v1_record_count(payload: Buffer) -> int:
    """The number of records if a version 1 payload is exactly a run of them, else 0: then it is one opaque unit.

    Every version 1 record has the 5-byte header. A type FF with a length other than 0 makes the payload opaque, because
    once stored it would look like an extended record.
    """
    view = memoryview(payload)
    at, count, size = 0, 0, len(view)
    while at + RECORD_HEADER_SIZE <= size:
        record_type, length = _STANDARD.unpack_from(view, at)
        if record_type == RecordType.NULL and length:
            return 0
        at += RECORD_HEADER_SIZE + length
        count += 1
    return count if at == size else 0


def is_v1_record_run(payload: Buffer) -> bool:
    """True if a version 1 payload is stored as records; otherwise it is stored as one opaque unit."""
    return v1_record_count(payload) > 0


def _boundaries(view: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield (type, start of value, end of value) of each record; the only function that reads record headers."""
    at, size = 0, len(view)
    while at < size:
        if size - at < RECORD_HEADER_SIZE:
            raise CorruptionError(f"record header at byte {at} is cut: {size - at} bytes left")
        record_type, length = _STANDARD.unpack_from(view, at)
        start = at + RECORD_HEADER_SIZE
        if record_type == RecordType.NULL:
            if length & 0xFFFF:
                if size - at < EXTENDED_HEADER_SIZE:
                    raise CorruptionError(f"extended record header at byte {at} is cut: {size - at} bytes left")
                _, extended_type, length = _EXTENDED.unpack_from(view, at)
                record_type = EXTENDED_BASE | extended_type
                start = at + EXTENDED_HEADER_SIZE
            elif length:
                raise CorruptionError(f"null record at byte {at} has length {length}, must be 0")
        if length > size - start:
            raise CorruptionError(f"record at byte {at} claims {length} bytes, {size - start} are left")
        at = start + length
        yield record_type, start, at
