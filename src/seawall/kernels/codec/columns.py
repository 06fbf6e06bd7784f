"""Convert the records of a block to columns, and back, without a Python object per record.

Reading takes two steps. *Locate* walks records whose boundaries a scan has validated and writes the start and length of
each requested field (length −1: absent). *Gather* copies such spans into the buffers of an Arrow binary array: offsets
i32, data, validity bitmap. Since both use spans, one gather kernel serves keys, values, tags and all other fields.

Writing goes the other way: `encode_envelopes` builds envelope records from columns.

The envelope (extended type 0x0001) is: flags u16, then the fields named by the flags, in the order of the bits, then
data.

    0x01 timestamp   u64 nanoseconds           0x08 tag       u32 length, bytes
    0x02 key         u32 length, bytes         0x10 meta      u32 length, bytes
    0x04 node        u32 length, bytes         0x20 headers   u16 count × (u16 length, name, u32 length, value)

A field never extends beyond its record. The server stores envelopes without parsing them, so one may be malformed: its
whole value is then read as data, and it is counted. One bad record must not make a topic unreadable.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba.core import types

from seawall.kernels.codec.blocks import EXTENDED_BASE, TYPE_EXTENDED, Offsets
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int32_out, int64, int64_in, int64_out, kernel, void
from seawall.kernels.runtime.memory import (
    Bytes,
    as_int64,
    copy_bytes,
    load_i64,
    load_u16,
    load_u32,
    store_u16,
    store_u32,
    store_u64,
)

Spans = npt.NDArray[np.int64]

ENVELOPE_TYPE = 0x0001
FLAG_TIMESTAMP = 0x01
FLAG_KEY = 0x02
FLAG_NODE = 0x04
FLAG_TAG = 0x08
FLAG_META = 0x10
FLAG_HEADERS = 0x20
FLAGS_KNOWN = 0x3F

#: Rows of a span table: one for each field of bytes. `COLUMN_HEADERS` spans the whole header list, including its count.
COLUMN_DATA = 0
COLUMN_KEY = 1
COLUMN_NODE = 2
COLUMN_TAG = 3
COLUMN_META = 4
COLUMN_HEADERS = 5
COLUMN_COUNT = 6

#: Most headers of a well-formed envelope.
HEADERS_MAX = 1_024

_MALFORMED = -1

_HEADER = 5
_EXTENDED_HEADER = 7
_spans = types.Array(types.int64, 2, "C")
_spans_in = types.Array(types.int64, 2, "C", readonly=True)


@kernel(int64(bytes_in, int64_in, int64, int64_out, int64_out, int64_out))
def locate_values(
    block: Bytes, offsets: Offsets, count: int, starts: Spans, lengths: Spans, record_types: Spans
) -> int:
    """Write the start, length and type of the value of each record; extended types have EXTENDED_BASE added.

    A null has length −1. Returns the sum of the other lengths.
    """
    total = 0
    for index in range(count):
        at = offsets[index]
        record_type: int = as_int64(block[at])
        header = _HEADER
        if record_type == TYPE_EXTENDED and load_u16(block, at + 1) != 0:
            record_type = load_u16(block, at + 1) + EXTENDED_BASE
            header = _EXTENDED_HEADER
        length = offsets[index + 1] - at - header
        starts[index] = at + header
        record_types[index] = record_type
        if record_type == TYPE_EXTENDED:
            lengths[index] = -1
        else:
            lengths[index] = length
            total += length
    return total


@kernel(int64(bytes_in, int64, int64))
def _skip_headers(block: Bytes, at: int, end: int) -> int:
    """The end of the header list that starts at `at`, or _MALFORMED."""
    if end - at < 2 or load_u16(block, at) > HEADERS_MAX:
        return _MALFORMED
    remaining = load_u16(block, at)
    at += 2
    while remaining > 0:
        if end - at < 2 or load_u16(block, at) > end - at - 2:
            return _MALFORMED
        at += 2 + load_u16(block, at)
        if end - at < 4 or load_u32(block, at) > end - at - 4:
            return _MALFORMED
        at += 4 + load_u32(block, at)
        remaining -= 1
    return at


@kernel(int64(bytes_in, int64, int64, int64, _spans, _spans, int64_out))
def _locate_envelope(
    block: Bytes, at: int, end: int, index: int, starts: Spans, lengths: Spans, timestamps: Spans
) -> int:
    if end - at < 2:
        return _MALFORMED
    flags = load_u16(block, at)
    at += 2
    if flags & ~FLAGS_KNOWN:
        return _MALFORMED
    if flags & FLAG_TIMESTAMP:
        if end - at < 8:
            return _MALFORMED
        timestamps[index] = load_i64(block, at)
        if timestamps[index] < 0:
            return _MALFORMED
        at += 8
    for column in range(COLUMN_KEY, COLUMN_HEADERS):
        if flags & (1 << column):
            if end - at < 4 or load_u32(block, at) > end - at - 4:
                return _MALFORMED
            length = load_u32(block, at)
            starts[column, index] = at + 4
            lengths[column, index] = length
            at += 4 + length
    if flags & FLAG_HEADERS:
        after = _skip_headers(block, at, end)
        if after == _MALFORMED:
            return _MALFORMED
        starts[COLUMN_HEADERS, index] = at
        lengths[COLUMN_HEADERS, index] = after - at
        at = after
    starts[COLUMN_DATA, index] = at
    lengths[COLUMN_DATA, index] = end - at
    return 0


@kernel(void(int64, int64, int64, _spans, _spans, int64_out))
def _locate_data(at: int, end: int, index: int, starts: Spans, lengths: Spans, timestamps: Spans) -> None:
    """Make `at` … `end` the data of a record without other fields; a length of −1 makes it null."""
    timestamps[index] = -1
    for column in range(COLUMN_COUNT):
        starts[column, index] = at
        lengths[column, index] = -1
    lengths[COLUMN_DATA, index] = end - at


@kernel(int64(bytes_in, int64_in, int64, _spans, _spans, int64_out))
def locate_envelopes(
    block: Bytes, offsets: Offsets, count: int, starts: Spans, lengths: Spans, timestamps: Spans
) -> int:
    """Write the spans of all fields of all records; a record that is not an envelope has only data, its value.

    `starts` and `lengths` have COLUMN_COUNT rows; an absent field has length −1, an absent timestamp is −1. Returns the
    number of malformed envelopes, which are read as data.
    """
    malformed = 0
    for index in range(count):
        at = offsets[index]
        end = offsets[index + 1]
        if as_int64(block[at]) != TYPE_EXTENDED:
            _locate_data(at + _HEADER, end, index, starts, lengths, timestamps)
            continue
        extended_type = load_u16(block, at + 1)
        if extended_type == 0:
            _locate_data(at, at - 1, index, starts, lengths, timestamps)
            continue
        at += _EXTENDED_HEADER
        _locate_data(at, end, index, starts, lengths, timestamps)
        if extended_type != ENVELOPE_TYPE:
            continue
        if _locate_envelope(block, at, end, index, starts, lengths, timestamps) == _MALFORMED:
            _locate_data(at, end, index, starts, lengths, timestamps)
            malformed += 1
    return malformed


@kernel(int64(int64_in, int64))
def spans_size(lengths: Spans, count: int) -> int:
    """Number of data bytes that `gather_spans` writes for these spans."""
    total = 0
    for index in range(count):
        total += max(lengths[index], 0)
    return total


@kernel(int64(bytes_in, int64_in, int64_in, int64, int32_out, bytes_out, bytes_out))
def gather_spans(
    block: Bytes,
    starts: Spans,
    lengths: Spans,
    count: int,
    arrow_offsets: npt.NDArray[np.int32],
    data: Bytes,
    validity: Bytes,
) -> int:
    """Copy spans into the buffers of one Arrow binary array. Returns the number of nulls.

    `arrow_offsets` has count + 1 elements, `data` the size that `spans_size` returns, `validity` one bit per element.
    """
    at = 0
    nulls = 0
    for index in range((count + 7) // 8):
        validity[index] = 0
    for index in range(count):
        arrow_offsets[index] = at
        length = lengths[index]
        if length < 0:
            nulls += 1
            continue
        validity[index >> 3] |= np.uint8(1 << (index & 7))
        copy_bytes(data, at, block, starts[index], length)
        at += length
    arrow_offsets[count] = at
    return nulls


@kernel(int64(_spans_in, int64_in, int64))
def envelopes_size(lengths: Spans, timestamps: Spans, count: int) -> int:
    """Number of bytes that `encode_envelopes` writes for the same arguments."""
    total = count * (_EXTENDED_HEADER + 2)
    for index in range(count):
        if timestamps[index] >= 0:
            total += 8
        for column in range(COLUMN_COUNT):
            length = lengths[column, index]
            if length >= 0:
                prefixed = column != COLUMN_DATA and column != COLUMN_HEADERS
                total += length + (4 if prefixed else 0)
    return total


@kernel(int64(bytes_in, _spans_in, _spans_in, int64_in, int64, bytes_out, int64))
def encode_envelopes(
    fields: Bytes, starts: Spans, lengths: Spans, timestamps: Spans, count: int, block: Bytes, start: int
) -> int:
    """Write one envelope record for each row of the span table; `fields` holds the bytes of all spans.

    The caller has checked the space with `envelopes_size`, and that each header list is well formed. Returns the end of
    the last record. Given the spans of a located block, it reproduces the envelopes of that block byte for byte.
    """
    at = start
    for index in range(count):
        record = at
        flags = 0
        at += _EXTENDED_HEADER + 2
        if timestamps[index] >= 0:
            flags |= FLAG_TIMESTAMP
            store_u64(block, at, timestamps[index])
            at += 8
        for column in range(COLUMN_KEY, COLUMN_COUNT):
            length = lengths[column, index]
            if length < 0:
                continue
            flags |= 1 << column
            if column != COLUMN_HEADERS:
                store_u32(block, at, length)
                at += 4
            copy_bytes(block, at, fields, starts[column, index], length)
            at += length
        length = max(lengths[COLUMN_DATA, index], 0)
        copy_bytes(block, at, fields, starts[COLUMN_DATA, index], length)
        at += length
        block[record] = TYPE_EXTENDED
        store_u16(block, record + 1, ENVELOPE_TYPE)
        store_u32(block, record + 3, at - record - _EXTENDED_HEADER)
        store_u16(block, record + _EXTENDED_HEADER, flags)
    return at
