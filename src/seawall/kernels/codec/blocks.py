"""Scan and build *blocks*, the encoded records of a batch; a scan accepts untrusted bytes.

A record is one of

    [type u8][length u32][value]                      every type but 0xFF
    [0xFF][0 u32]                                     null: no value
    [0xFF][type u16 ≥ 1][length u32][value]           extended

packed back to back, without padding. A block is valid if its records end exactly at its end. Version 1 has no extended
records: there 0xFF must be null. Three types are reserved for the server, and version 2 clients may not send them: 0x00
marks a deleted record, 0x7E and 0x7F replace other records when version 1 reads a stored block.

Types share one number space: 0x00–0xFF are themselves, extended type n is EXTENDED_BASE + n.

INV-SCAN-BOUNDS: a kernel reads no byte outside its input and writes none outside its output, whatever the bytes say.
The steps after a scan (locating columns, gathering) trust the offsets that the scan wrote and do not check them again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seawall.kernels.codec.checksum import crc32c
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, int64_in, int64_out, kernel
from seawall.kernels.runtime.memory import (
    Bytes,
    as_int64,
    copy_bytes,
    load_u16,
    load_u32,
    prefetch,
    store_u16,
    store_u32,
)

Offsets = npt.NDArray[np.int64]

#: Which records a scan accepts: those stored by the server, or those that a client of a version may send.
RECORDS_STORED = 0
RECORDS_VERSION_1 = 1
RECORDS_VERSION_2 = 2

#: Negative results of a scan.
SCAN_TRUNCATED = -1
SCAN_TYPE_REFUSED = -2
SCAN_TOO_MANY = -3
SCAN_CHECKSUM = -4

TYPE_DELETED = 0x00
TYPE_EXTENDED = 0xFF
TYPE_SHOWN_EXTENDED = 0x7E
TYPE_SHOWN_OPAQUE = 0x7F
EXTENDED_BASE = 0x10000

_HEADER = 5
_EXTENDED_HEADER = 7
#: Prefetch distance in records. Large blocks may no longer be cached. A record's start depends on the record before it,
#: but most records have the same size, so the distance times that size predicts the address.
_PREFETCH_RECORDS = 16


@kernel(int64(bytes_in, int64, int64, int64, int64, int64_out))
def scan_block(block: Bytes, start: int, end: int, rules: int, records_max: int, offsets: Offsets) -> int:
    """Validate every record boundary of `block[start:end]`. Returns the number of records, or a negative SCAN code.

    `offsets` receives the start of each record and the end of the last one, and limits the count to its size − 1. With
    an empty `offsets` the scan only counts.
    """
    has_offsets = offsets.size > 0
    count_max = min(records_max, offsets.size - 1) if has_offsets else records_max
    count = 0
    at = start
    while at < end:
        if end - at < _HEADER:
            return SCAN_TRUNCATED
        if count >= count_max:
            return SCAN_TOO_MANY
        record_type = as_int64(block[at])
        length = load_u32(block, at + 1)
        header = _HEADER
        if record_type == TYPE_EXTENDED:
            extended = load_u16(block, at + 1)
            if length != 0:
                if extended == 0 or rules == RECORDS_VERSION_1:
                    return SCAN_TYPE_REFUSED
                if end - at < _EXTENDED_HEADER:
                    return SCAN_TRUNCATED
                length = load_u32(block, at + 3)
                header = _EXTENDED_HEADER
        elif rules == RECORDS_VERSION_2 and (
            record_type == TYPE_DELETED or record_type == TYPE_SHOWN_EXTENDED or record_type == TYPE_SHOWN_OPAQUE
        ):
            return SCAN_TYPE_REFUSED
        if length > end - at - header:
            return SCAN_TRUNCATED
        prefetch(block, at + _PREFETCH_RECORDS * (header + length))
        if has_offsets:
            offsets[count] = at
        count += 1
        at += header + length
    if has_offsets:
        offsets[count] = end
    return count


@kernel(int64(bytes_in, int64, int64, int64, int64, int64, int64_out))
def check_block(
    block: Bytes, start: int, end: int, expected_crc: int, rules: int, records_max: int, offsets: Offsets
) -> int:
    """Verify the CRC-32C of a block, then scan it, in one call: for ingest and for every read from disk."""
    if crc32c(block, start, end, 0) != expected_crc:
        return SCAN_CHECKSUM
    return scan_block(block, start, end, rules, records_max, offsets)


@kernel(int64(int64_in, int64, int64))
def encoded_size(value_offsets: Offsets, count: int, record_type: int) -> int:
    """Number of bytes that `encode_block` writes for the same arguments."""
    header = _HEADER if record_type <= TYPE_EXTENDED else _EXTENDED_HEADER
    return count * header + as_int64(value_offsets[count] - value_offsets[0])


@kernel(int64(bytes_in, int64_in, int64, int64, bytes_out, int64))
def encode_block(values: Bytes, value_offsets: Offsets, count: int, record_type: int, block: Bytes, start: int) -> int:
    """Write `count` records of one type at `start`; value i is `values[value_offsets[i]:value_offsets[i + 1]]`.

    The caller has checked the space with `encoded_size`, and that no value is longer than its bound. Returns the end
    of the last record.
    """
    at = start
    extended = record_type > TYPE_EXTENDED
    for index in range(count):
        origin = value_offsets[index]
        length = value_offsets[index + 1] - origin
        if extended:
            block[at] = TYPE_EXTENDED
            store_u16(block, at + 1, record_type - EXTENDED_BASE)
            store_u32(block, at + 3, length)
            at += _EXTENDED_HEADER
        else:
            block[at] = record_type
            store_u32(block, at + 1, length)
            at += _HEADER
        copy_bytes(block, at, values, origin, length)
        at += length
    return at
