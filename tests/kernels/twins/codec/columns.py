"""Envelopes as objects: parsed from a copy of the record, built by joining parts.

A timestamp is stored as u64 and read as i64; one from 2^63 on makes the envelope malformed.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from seawall.kernels.codec.blocks import Offsets
from seawall.kernels.codec.columns import (
    COLUMN_COUNT,
    COLUMN_DATA,
    COLUMN_HEADERS,
    COLUMN_KEY,
    COLUMN_META,
    COLUMN_NODE,
    COLUMN_TAG,
    HEADERS_MAX,
    Spans,
)
from seawall.kernels.runtime.memory import Bytes

_SIZED = {0x02: COLUMN_KEY, 0x04: COLUMN_NODE, 0x08: COLUMN_TAG, 0x10: COLUMN_META}
_TIMESTAMP = 0x01
_HEADERS = 0x20
_KNOWN = _TIMESTAMP | _HEADERS | sum(_SIZED)


class _Record:
    """One record: its type as reported (extended types plus 0x10000) and the start of its value."""

    def __init__(self, block: Bytes, offsets: Offsets, index: int) -> None:
        self.at, self.end = int(offsets[index]), int(offsets[index + 1])
        self.bytes = block[self.at : self.end].tobytes()
        self.type, self.value_at = self.bytes[0], self.at + 5
        if self.type == 0xFF and self.bytes[1:3] != bytes(2):
            self.type, self.value_at = 0x10000 + int.from_bytes(self.bytes[1:3], "little"), self.at + 7

    @property
    def is_null(self) -> bool:
        return self.type == 0xFF


class _Reader:
    """Reads fields from the front of a value; raises `EOFError` if a field extends beyond it."""

    def __init__(self, record: _Record) -> None:
        self.left = record.bytes[record.value_at - record.at :]
        self.at = record.value_at

    def take(self, size: int) -> bytes:
        if size > len(self.left):
            raise EOFError
        taken, self.left = self.left[:size], self.left[size:]
        self.at += size
        return taken

    def number(self, layout: str) -> int:
        number: int = struct.unpack(f"<{layout}", self.take(struct.calcsize(f"<{layout}")))[0]
        return number


def locate_values(
    block: Bytes, offsets: Offsets, count: int, starts: Spans, lengths: Spans, record_types: Spans
) -> int:
    """Write start, length (−1 for a null) and type of each value. Returns the sum of the lengths."""
    total = 0
    for index in range(count):
        record = _Record(block, offsets, index)
        starts[index] = record.value_at
        record_types[index] = record.type
        lengths[index] = -1 if record.is_null else record.end - record.value_at
        total += max(int(lengths[index]), 0)
    return total


def locate_envelopes(
    block: Bytes, offsets: Offsets, count: int, starts: Spans, lengths: Spans, timestamps: Spans
) -> int:
    """Write the spans of each field of each record. Returns the number of malformed envelopes, read as data."""
    malformed = 0
    for index in range(count):
        record = _Record(block, offsets, index)
        _locate_data(record, index, starts, lengths, timestamps)
        if record.type == 0x10001:
            try:
                _locate_envelope(_Reader(record), index, starts, lengths, timestamps)
            except (EOFError, ValueError):
                _locate_data(record, index, starts, lengths, timestamps)
                malformed += 1
    return malformed


def _locate_data(record: _Record, index: int, starts: Spans, lengths: Spans, timestamps: Spans) -> None:
    at = record.at if record.is_null else record.value_at
    starts[:, index], lengths[:, index], timestamps[index] = at, -1, -1
    if not record.is_null:
        lengths[COLUMN_DATA, index] = record.end - at


def _locate_envelope(value: _Reader, index: int, starts: Spans, lengths: Spans, timestamps: Spans) -> None:
    flags = value.number("H")
    if flags & ~_KNOWN:
        raise ValueError(flags)
    if flags & _TIMESTAMP:
        timestamps[index] = value.number("q")
        if timestamps[index] < 0:
            raise ValueError("a timestamp of 2^63 or more")
    for flag, column in _SIZED.items():
        if flags & flag:
            length = value.number("I")
            at = value.at
            value.take(length)
            starts[column, index], lengths[column, index] = at, length
    if flags & _HEADERS:
        at = value.at
        header_count = value.number("H")
        if header_count > HEADERS_MAX:
            raise ValueError(header_count)
        for _ in range(header_count):
            value.take(value.number("H"))
            value.take(value.number("I"))
        starts[COLUMN_HEADERS, index], lengths[COLUMN_HEADERS, index] = at, value.at - at
    starts[COLUMN_DATA, index], lengths[COLUMN_DATA, index] = value.at, len(value.left)


def spans_size(lengths: Spans, count: int) -> int:
    """The sum of the lengths of present values."""
    return sum(int(length) for length in lengths[:count] if length > 0)


def gather_spans(
    block: Bytes,
    starts: Spans,
    lengths: Spans,
    count: int,
    arrow_offsets: npt.NDArray[np.int32],
    data: Bytes,
    validity: Bytes,
) -> int:
    """Build an Arrow binary array from a list of optional values. Returns the number of nulls."""
    values = [
        block[start : start + length].tobytes() if length >= 0 else None
        for start, length in zip(starts[:count], lengths[:count], strict=True)
    ]
    joined = b"".join(value or b"" for value in values)
    data[: len(joined)] = np.frombuffer(joined, np.uint8)
    arrow_offsets[0] = 0
    for index, value in enumerate(values):
        arrow_offsets[index + 1] = arrow_offsets[index] + len(value or b"")
    present = np.array([value is not None for value in values], np.bool_)
    bits = np.packbits(present, bitorder="little")
    validity[: bits.size] = bits
    return values.count(None)


def _envelope(fields: Bytes, starts: Spans, lengths: Spans, timestamp: int, index: int) -> bytes:
    def field(column: int) -> bytes | None:
        start, length = starts[column, index], lengths[column, index]
        return fields[start : start + length].tobytes() if length >= 0 else None

    flags, parts = 0, []
    if timestamp >= 0:
        flags |= _TIMESTAMP
        parts.append(struct.pack("<Q", timestamp))
    for flag, column in _SIZED.items():
        content = field(column)
        if content is not None:
            flags |= flag
            parts.append(struct.pack("<I", len(content)) + content)
    headers = field(COLUMN_HEADERS)
    if headers is not None:
        flags |= _HEADERS
        parts.append(headers)
    value = struct.pack("<H", flags) + b"".join(parts) + (field(COLUMN_DATA) or b"")
    return struct.pack("<BHI", 0xFF, 0x0001, len(value)) + value


def envelopes_size(lengths: Spans, timestamps: Spans, count: int) -> int:
    """The size of the result of `encode_envelopes`, found by building it from dummy bytes."""
    longest = max(int(lengths[:, :count].max(initial=0)), 0)
    fields = np.zeros(longest, np.uint8)
    starts = np.zeros((COLUMN_COUNT, max(count, 1)), np.int64)
    return sum(len(_envelope(fields, starts, lengths, int(timestamps[index]), index)) for index in range(count))


def encode_envelopes(
    fields: Bytes, starts: Spans, lengths: Spans, timestamps: Spans, count: int, block: Bytes, start: int
) -> int:
    """Write one envelope record for each row, from `start` on. Returns the end of the last."""
    for index in range(count):
        record = _envelope(fields, starts, lengths, int(timestamps[index]), index)
        block[start : start + len(record)] = np.frombuffer(record, np.uint8)
        start += len(record)
    return start
