"""Stored batches as a reader receives them, back to back: verify all of them, and their records, by one call.

A batch is 96 bytes of header and a block (`wire/batches.py` has the byte table and the rules). `check_chunks` holds
each against both checksums and every rule that a stored batch keeps, and scans the records of a plain block; of
compressed and opaque blocks it checks what needs no decompression. It stops before the first that is not as it should
be: why is for the caller to find, who has words for it.

A row says where the block of a batch is and what a reader has to know of it; `deleted` counts the records that a delete
has emptied (type 00, no value), in a block that was scanned.

INV-CHUNK-BOUNDS: no byte outside `start` … `end` is read, whatever the bytes say.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.kernels.blocks import TYPE_DELETED, TYPE_EXTENDED
from seawall.kernels.checksum import crc32c
from seawall.kernels.frames import KIND_BATCH, MAGIC
from seawall.kernels.jit import bytes_in, int64, int64_out, kernel, record_array
from seawall.kernels.memory import Bytes, as_int64, load_i64, load_u16, load_u32, load_u64

CHUNK_ROW = np.dtype(
    [
        ("base_seq", np.uint64),
        ("position", np.uint64),
        ("timestamp_ns", np.uint64),
        ("at", np.int64),
        ("end", np.int64),
        ("record_count", np.uint32),
        ("topic_id", np.uint32),
        ("deleted", np.uint32),
        ("is_plain", np.uint32),
    ]
)
assert CHUNK_ROW.itemsize == 56

Rows: TypeAlias = npt.NDArray[np.void]
State: TypeAlias = npt.NDArray[np.int64]

#: Why a check stopped: at the end; the row table is full, call again; the next is no sound batch.
CHUNKS_DONE = 0
CHUNKS_FULL = 1
CHUNKS_BAD = 2

#: Places in `state`, all out: rows written, records of them in all, and the index of the first byte not consumed.
STATE_ROWS = 0
STATE_RECORDS = 1
STATE_CONSUMED = 2
STATE_SIZE = 3

#: The same as `limits.BLOCK_SIZE_MAX` and `limits.PAYLOAD_SIZE_MAX`.
RAW_SIZE_MAX = 16 * 1024 * 1024
BLOCK_SIZE_MAX = 64 * 1024 * 1024

_FRAME_HEADER = 44
_PROLOGUE = 52
_HEADER = 96
_CODECS = 3
_LEVEL_MAX = 2
_AS_TOPIC = 0xFF
_OPAQUE = 2
_KEYED = 4
_RECORD_HEADER = 5
_EXTENDED_HEADER = 7

#: In place of a number of deleted records: the block is not as its header says.
NOT_SOUND = -1


@kernel(int64(bytes_in, int64, int64))
def _whole_size(buffer: Bytes, at: int, end: int) -> int:
    """Size of the batch at `at` if its header is sound and it is whole, else 0."""
    if end - at < _HEADER or load_u32(buffer, at) != MAGIC:
        return 0
    length = load_u32(buffer, at + 32)
    if as_int64(buffer[at + 4]) != 2 or as_int64(buffer[at + 5]) != KIND_BATCH or length < _PROLOGUE:
        return 0
    if crc32c(buffer, at + 12, at + _HEADER, crc32c(buffer, at, at + 8, 0)) != load_u32(buffer, at + 8):
        return 0
    level = as_int64(buffer[at + 93])
    flags = as_int64(buffer[at + 95])
    if load_u32(buffer, at + 44) != 0 or (level > _LEVEL_MAX and level != _AS_TOPIC) or flags & ~(_OPAQUE | _KEYED):
        return 0
    # The client id of a key has its top bit set, as no session has.
    if flags & _KEYED and load_i64(buffer, at + 48) >= 0:
        return 0
    return _FRAME_HEADER + length if length <= end - at - _FRAME_HEADER else 0


@kernel(int64(bytes_in, int64, int64))
def _fits(buffer: Bytes, at: int, size: int) -> int:
    """Whether count, lengths and codec of a batch go together; control batches have no count to keep."""
    raw_length = load_u32(buffer, at + 80)
    codec = as_int64(buffer[at + 94])
    if raw_length > RAW_SIZE_MAX or size - _HEADER > BLOCK_SIZE_MAX or codec >= _CODECS:
        return 0
    if codec == 0 and raw_length != size - _HEADER:
        return 0
    if codec != 0 and raw_length == 0:
        return 0
    if as_int64(buffer[at + 6]) != 0 or as_int64(buffer[at + 7]) != 0:
        return 1
    count = load_u32(buffer, at + 28)
    if as_int64(buffer[at + 95]) & _OPAQUE:
        return as_int64(count == 1)
    return as_int64(count * _RECORD_HEADER <= raw_length)


@kernel(int64(bytes_in, int64, int64, int64))
def _count_deleted(buffer: Bytes, start: int, end: int, count: int) -> int:
    """Records of a block that a delete has emptied; NOT_SOUND unless it holds exactly `count` whole records.

    The rules are those of `blocks.scan_block` for what is stored; both at once is one walk through the block.
    """
    deleted = 0
    at = start
    for _ in range(count):
        if end - at < _RECORD_HEADER:
            return NOT_SOUND
        record_type = as_int64(buffer[at])
        length = load_u32(buffer, at + 1)
        header = _RECORD_HEADER
        if record_type == TYPE_EXTENDED and length != 0:
            if load_u16(buffer, at + 1) == 0 or end - at < _EXTENDED_HEADER:
                return NOT_SOUND
            length = load_u32(buffer, at + 3)
            header = _EXTENDED_HEADER
        elif record_type == TYPE_DELETED and length == 0:
            deleted += 1
        if length > end - at - header:
            return NOT_SOUND
        at += header + length
    return deleted if at == end else NOT_SOUND


@kernel(int64(bytes_in, int64, int64, record_array(CHUNK_ROW), int64_out))
def check_chunks(buffer: Bytes, start: int, end: int, rows: Rows, state: State) -> int:
    """Report every sound batch of `buffer[start:end]` in `rows`, up to the first that is not; why it stopped."""
    count = 0
    records = 0
    is_plain = 0
    at = start
    code = CHUNKS_DONE
    while at < end:
        if count == rows.size:
            code = CHUNKS_FULL
            break
        size = _whole_size(buffer, at, end)
        if size == 0 or _fits(buffer, at, size) == 0:
            code = CHUNKS_BAD
            break
        block = at + _HEADER
        deleted = NOT_SOUND
        if crc32c(buffer, block, at + size, 0) == load_u32(buffer, at + 36):
            is_plain = as_int64(as_int64(buffer[at + 94]) == 0 and as_int64(buffer[at + 95]) & _OPAQUE == 0)
            deleted = _count_deleted(buffer, block, at + size, load_u32(buffer, at + 28)) if is_plain else 0
        if deleted == NOT_SOUND:
            code = CHUNKS_BAD
            break
        row = rows[count]
        row["base_seq"] = load_u64(buffer, at + 64)
        row["position"] = load_u64(buffer, at + 56)
        row["timestamp_ns"] = load_u64(buffer, at + 20)
        row["at"] = block
        row["end"] = at + size
        row["record_count"] = load_u32(buffer, at + 28)
        row["topic_id"] = load_u32(buffer, at + 40)
        row["deleted"] = deleted
        row["is_plain"] = is_plain
        records += load_u32(buffer, at + 28)
        count += 1
        at += size
    state[STATE_ROWS] = count
    state[STATE_RECORDS] = records
    state[STATE_CONSUMED] = at
    return code
