"""Records of a block, parsed one by one with `struct` from a copy of the bytes."""

from __future__ import annotations

from collections.abc import Iterator

from seawall.kernels.codec.blocks import (
    RECORDS_VERSION_1,
    RECORDS_VERSION_2,
    SCAN_CHECKSUM,
    SCAN_TOO_MANY,
    SCAN_TRUNCATED,
    SCAN_TYPE_REFUSED,
    Offsets,
)
from seawall.kernels.runtime.memory import Bytes
from twins.codec.checksum import crc32c


class _RefusedError(Exception):
    """The bytes are not a valid record; the argument is the SCAN code."""


def _record_size(rest: bytes, rules: int) -> int:
    """Total size of the record at the beginning of `rest`."""
    if len(rest) < 5:
        raise _RefusedError(SCAN_TRUNCATED)
    record_type = rest[0]
    if rules == RECORDS_VERSION_2 and record_type in (0x00, 0x7E, 0x7F):
        raise _RefusedError(SCAN_TYPE_REFUSED)
    if record_type != 0xFF or rest[1:5] == bytes(4):
        size = 5 + int.from_bytes(rest[1:5], "little")
    elif rest[1:3] == bytes(2) or rules == RECORDS_VERSION_1:
        raise _RefusedError(SCAN_TYPE_REFUSED)
    elif len(rest) < 7:
        raise _RefusedError(SCAN_TRUNCATED)
    else:
        size = 7 + int.from_bytes(rest[3:7], "little")
    if size > len(rest):
        raise _RefusedError(SCAN_TRUNCATED)
    return size


def _records(block: bytes, rules: int, records_max: int) -> Iterator[int]:
    """The start of each record, relative to the start of the block."""
    at = 0
    count = 0
    while at < len(block):
        # A truncated record is reported before a record too many.
        if len(block) - at >= 5 and count == records_max:
            raise _RefusedError(SCAN_TOO_MANY)
        size = _record_size(block[at:], rules)
        yield at
        at += size
        count += 1


def scan_block(block: Bytes, start: int, end: int, rules: int, records_max: int, offsets: Offsets) -> int:
    """The number of records in `block[start:end]`, or a SCAN code; writes the offsets of the valid records."""
    counting_only = offsets.size == 0
    count_max = records_max if counting_only else min(records_max, offsets.size - 1)
    count = 0
    try:
        for at in _records(block[start:end].tobytes(), rules, count_max):
            if not counting_only:
                offsets[count] = start + at
            count += 1
    except _RefusedError as refused:
        code: int = refused.args[0]
        return code
    if not counting_only:
        offsets[count] = end
    return count


def check_block(
    block: Bytes, start: int, end: int, expected_crc: int, rules: int, records_max: int, offsets: Offsets
) -> int:
    """`scan_block` if the checksum matches, else SCAN_CHECKSUM."""
    if crc32c(block, start, end, 0) != expected_crc:
        return SCAN_CHECKSUM
    return scan_block(block, start, end, rules, records_max, offsets)


def _encoded(value: bytes, record_type: int) -> bytes:
    length = len(value).to_bytes(4, "little")
    if record_type <= 0xFF:
        return bytes([record_type]) + length + value
    return b"\xff" + (record_type - 0x10000).to_bytes(2, "little") + length + value


def encoded_size(value_offsets: Offsets, count: int, record_type: int) -> int:
    """The sum of the sizes of headers and values."""
    header = len(_encoded(b"", record_type))
    return sum(header + int(value_offsets[index + 1]) - int(value_offsets[index]) for index in range(count))


def encode_block(values: Bytes, value_offsets: Offsets, count: int, record_type: int, block: Bytes, start: int) -> int:
    """Write records of one type back to back from `start` on. Returns the end of the last."""
    at = start
    for index in range(count):
        record = _encoded(values[value_offsets[index] : value_offsets[index + 1]].tobytes(), record_type)
        for offset, byte in enumerate(record):
            block[at + offset] = byte
        at += len(record)
    return at
