"""The records of a batch as one stretch of bytes, the *block*: scan an untrusted one, build a new one.

A record is one of

    [type u8][length u32][value]                      every type but 0xFF
    [0xFF][0 u32]                                     null: no value
    [0xFF][type u16 ≥ 1][length u32][value]           extended

packed back to back, without padding. A block is valid if its records end exactly at its end. Version 1 knows no
extended records: there 0xFF must be null. Three types are the server's, and version 2 clients may not send them: 0x00
is what a deleted record leaves behind, 0x7E and 0x7F stand for something else when version 1 reads a stored block.

Types have one number space: 0x00–0xFF as they are, extended type n as EXTENDED_BASE + n.

INV-SCAN-BOUNDS: a kernel reads no byte outside its input and writes none outside its output, whatever the bytes say.
Everything behind a scan (locating columns, gathering) trusts the offsets that the scan wrote and checks nothing again.
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

#: Whose records a scan accepts.
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
#: Where a record begins is known from the one before it. Mostly they are of one size: so the one that begins so many
#: records further on is asked for meanwhile, since large blocks are no longer near.
_RECORDS_AHEAD = 16


@kernel(int64(bytes_in, int64, int64, int64, int64, int64_out))
def scan_block(block: Bytes, start: int, end: int, rules: int, records_max: int, offsets: Offsets) -> int:
    """Validate every record boundary of `block[start:end]` and count the records.

    Where `offsets` has room for the count and one more, it receives the start of each record and the end of the last;
    an empty `offsets` asks for the count alone. Returns the count or a negative SCAN code.
    """
    wanted = offsets.size > 0
    space = min(records_max, offsets.size - 1) if wanted else records_max
    count = 0
    at = start
    while at < end:
        if end - at < _HEADER:
            return SCAN_TRUNCATED
        if count >= space:
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
        prefetch(block, at + _RECORDS_AHEAD * (header + length))
        if wanted:
            offsets[count] = at
        count += 1
        at += header + length
    if wanted:
        offsets[count] = end
    return count


@kernel(int64(bytes_in, int64, int64, int64, int64, int64, int64_out))
def check_block(
    block: Bytes, start: int, end: int, expected_crc: int, rules: int, records_max: int, offsets: Offsets
) -> int:
    """Verify the block's CRC-32C, then scan it: what ingest and every read from disk do, in one call."""
    if crc32c(block, start, end, 0) != expected_crc:
        return SCAN_CHECKSUM
    return scan_block(block, start, end, rules, records_max, offsets)


@kernel(int64(int64_in, int64, int64))
def encoded_size(value_offsets: Offsets, count: int, record_type: int) -> int:
    """Bytes that `encode_block` will write for the same arguments."""
    header = _HEADER if record_type <= TYPE_EXTENDED else _EXTENDED_HEADER
    return count * header + as_int64(value_offsets[count] - value_offsets[0])


@kernel(int64(bytes_in, int64_in, int64, int64, bytes_out, int64))
def encode_block(values: Bytes, value_offsets: Offsets, count: int, record_type: int, block: Bytes, start: int) -> int:
    """Write `count` records of one type at `start`; value i is `values[value_offsets[i]:value_offsets[i + 1]]`.

    The caller has checked the room with `encoded_size`, and that no value is longer than its bound. Returns the end
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
