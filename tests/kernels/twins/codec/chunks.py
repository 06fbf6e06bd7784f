"""Batches received by a reader, parsed one at a time by `struct` from copies of the bytes."""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np

from seawall.kernels.codec.batch_header import BLOCK_SIZE_MAX, RAW_SIZE_MAX
from seawall.kernels.codec.blocks import RECORDS_STORED
from seawall.kernels.codec.chunks import (
    CHUNKS_BAD,
    CHUNKS_DONE,
    CHUNKS_FULL,
    CHUNKS_MORE,
    STATE_CONSUMED,
    STATE_RECORDS,
    STATE_ROWS,
    Rows,
    State,
)
from seawall.kernels.runtime.memory import Bytes
from twins.codec.blocks import scan_block
from twins.codec.checksum import crc32c

_HEADER = struct.Struct("<4sBBHIQQIIIIIQQQQIIIBBBB")
_SIZE = 96
_NAMES = (
    *("magic", "version", "kind", "command", "crc", "client_seq", "timestamp_ns", "record_count", "length"),
    *("block_crc", "topic_id", "reserved", "client_id", "position", "base_seq", "base_offset", "raw", "term"),
    *("epoch", "order", "level", "codec", "flags"),
)


def _crc(message: bytes) -> int:
    return crc32c(np.frombuffer(message, np.uint8), 0, len(message), 0)


def _header(stored: bytes, size_max: int) -> dict[str, int] | None:
    """The fields of the valid header at the beginning of `stored`, of a batch of at most `size_max` bytes; or None."""
    if len(stored) < _SIZE:
        return None
    fields = dict(zip(_NAMES, _HEADER.unpack_from(stored), strict=True))
    is_ours = (fields["magic"], fields["version"], fields["kind"]) == (b"LANC", 2, 4)
    if not is_ours or _crc(stored[:8] + stored[12:_SIZE]) != fields["crc"]:
        return None
    is_known = fields["reserved"] == 0 and fields["level"] in (0, 1, 2, 255) and fields["codec"] in (0, 1, 2)
    if not is_known or fields["flags"] not in (0, 2, 4, 6) or (fields["flags"] & 4 and fields["client_id"] < 2**63):
        return None
    return fields if 52 <= fields["length"] <= size_max - 44 and _is_consistent(fields) else None


def _is_consistent(fields: dict[str, int]) -> bool:
    size, raw, count = fields["length"] - 52, fields["raw"], fields["record_count"]
    if raw > RAW_SIZE_MAX or size > BLOCK_SIZE_MAX or (raw != size if fields["codec"] == 0 else raw == 0):
        return False
    if fields["command"]:
        return True
    return count == 1 if fields["flags"] & 2 else 5 * count <= raw


def _deleted(block: bytes, count: int) -> int | None:
    """Number of deleted records in a block; None if the block does not hold `count` records."""
    offsets = np.zeros(count + 1 if 5 * count <= len(block) else 1, np.int64)
    if scan_block(np.frombuffer(block, np.uint8), 0, len(block), RECORDS_STORED, count, offsets) != count:
        return None
    return sum(block[start:end] == bytes(5) for start, end in pairwise(offsets.tolist()))


def check_chunks(buffer: Bytes, arrived: int, end: int, rows: Rows, state: State) -> int:
    """Report the valid batches of `buffer[:arrived]` from the position in `state` on. Returns a CHUNKS code.

    It parses a batch from its beginning each time more of it has arrived.
    """
    while (at := int(state[STATE_CONSUMED])) < end:
        if state[STATE_ROWS] == len(rows):
            return CHUNKS_FULL
        if arrived < end and arrived - at < _SIZE:
            return CHUNKS_MORE
        fields = _header(buffer[at:arrived].tobytes(), end - at)
        if fields is None:
            return CHUNKS_BAD
        size = 44 + fields["length"]
        if arrived < at + size:
            return CHUNKS_MORE
        block = buffer[at + _SIZE : at + size].tobytes()
        is_plain = fields["codec"] == 0 and not fields["flags"] & 2
        deleted = _deleted(block, fields["record_count"]) if is_plain else 0
        if deleted is None or _crc(block) != fields["block_crc"]:
            return CHUNKS_BAD
        computed = {"at": at + _SIZE, "end": at + size, "deleted": deleted, "is_plain": is_plain}
        for name in rows.dtype.names or ():
            rows[name][state[STATE_ROWS]] = computed[name] if name in computed else fields[name]
        state[STATE_ROWS] += 1
        state[STATE_RECORDS] += fields["record_count"]
        state[STATE_CONSUMED] = at + size
    return CHUNKS_DONE
