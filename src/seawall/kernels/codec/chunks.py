"""Stored batches as a reader receives them, back to back: verify them, and their records, as they arrive.

A batch is 96 bytes of header and a block (`wire/format/batches.py` has the byte table and the rules). `check_chunks`
holds each against both checksums and every rule that a stored batch keeps, and scans the records of a plain block; of
compressed and opaque blocks it checks what needs no decompression. It stops before the first that is not as it should
be: why is for the caller to find, who has words for it.

It is called with all that there is, or again and again while more arrives, and goes on in the middle of a batch where
it stopped: what has just come is in a cache, and summing it then costs a fraction of going through all of it later.

A row says where the block of a batch is and what a reader has to know of it; `deleted` counts the records that a delete
has emptied (type 00, no value), in a block that was scanned.

No byte outside the first `arrived` is read, whatever the bytes say. A batch is reported when all of it has arrived and
was checked, each byte of it once.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.kernels.codec.batch_header import (
    BASE_SEQ_AT,
    BLOCK_CRC_AT,
    CLIENT_ID_AT,
    CODEC_AT,
    COMMAND_AT,
    CRC_AT,
    FLAGS_AT,
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    KIND_AT,
    LENGTH_AT,
    LEVEL_AT,
    POSITION_AT,
    RAW_LENGTH_AT,
    RECORD_COUNT_AT,
    RESERVED_AT,
    TIMESTAMP_AT,
    TOPIC_AT,
    VERSION_AT,
    header_crc,
)
from seawall.kernels.codec.blocks import TYPE_DELETED, TYPE_EXTENDED
from seawall.kernels.codec.checksum import crc32c
from seawall.kernels.codec.frames import KIND_BATCH, MAGIC
from seawall.kernels.runtime.jit import bytes_in, int64, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import Bytes, as_int64, load_i64, load_u16, load_u32, load_u64

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

#: Why a check stopped: at the end; the row table is full, take the rows and call again; the next is no sound batch; the
#: rest has not arrived.
CHUNKS_DONE = 0
CHUNKS_FULL = 1
CHUNKS_BAD = 2
CHUNKS_MORE = 3

#: Places in `state`. Rows that are in the table (the caller takes them, and sets it to 0), records of all batches that
#: were reported, and the index of the first byte of the next batch.
STATE_ROWS = 0
STATE_RECORDS = 1
STATE_CONSUMED = 2
#: Of the batch that is arriving, if its header was found sound: where it ends, else 0; how far its block is summed, and
#: that sum; where its next record begins, how many are left, or NOT_SOUND, and how many were deleted.
STATE_END = 3
STATE_SUMMED = 4
STATE_SUM = 5
STATE_WALKED = 6
STATE_LEFT = 7
STATE_DELETED = 8
STATE_SIZE = 9

#: The same as `limits.BLOCK_SIZE_MAX` and `limits.PAYLOAD_SIZE_MAX`.
RAW_SIZE_MAX = 16 * 1024 * 1024
BLOCK_SIZE_MAX = 64 * 1024 * 1024

_PROLOGUE = 52
_CODECS = 3
_LEVEL_MAX = 2
_AS_TOPIC = 0xFF
_OPAQUE = 2
_KEYED = 4
_RECORD_HEADER = 5
_EXTENDED_HEADER = 7

#: In place of a number of records: the block is not as its header says.
NOT_SOUND = -1


@kernel(int64(bytes_in, int64, int64))
def _whole_size(buffer: Bytes, at: int, end: int) -> int:
    """Size of the batch at `at` if its header is sound and it is whole, else 0."""
    if end - at < HEADER_SIZE or load_u32(buffer, at) != MAGIC:
        return 0
    length = load_u32(buffer, at + LENGTH_AT)
    if as_int64(buffer[at + VERSION_AT]) != 2 or as_int64(buffer[at + KIND_AT]) != KIND_BATCH or length < _PROLOGUE:
        return 0
    if header_crc(buffer, at) != load_u32(buffer, at + CRC_AT):
        return 0
    level = as_int64(buffer[at + LEVEL_AT])
    flags = as_int64(buffer[at + FLAGS_AT])
    if (
        load_u32(buffer, at + RESERVED_AT) != 0
        or (level > _LEVEL_MAX and level != _AS_TOPIC)
        or flags & ~(_OPAQUE | _KEYED)
    ):
        return 0
    # The client id of a key has its top bit set, as no session has.
    if flags & _KEYED and load_i64(buffer, at + CLIENT_ID_AT) >= 0:
        return 0
    return FRAME_HEADER_SIZE + length if length <= end - at - FRAME_HEADER_SIZE else 0


@kernel(int64(bytes_in, int64, int64))
def _fits(buffer: Bytes, at: int, size: int) -> int:
    """Whether count, lengths and codec of a batch go together; control batches have no count to keep."""
    raw_length = load_u32(buffer, at + RAW_LENGTH_AT)
    codec = as_int64(buffer[at + CODEC_AT])
    if raw_length > RAW_SIZE_MAX or size - HEADER_SIZE > BLOCK_SIZE_MAX or codec >= _CODECS:
        return 0
    if codec == 0 and raw_length != size - HEADER_SIZE:
        return 0
    if codec != 0 and raw_length == 0:
        return 0
    if as_int64(buffer[at + COMMAND_AT]) != 0 or as_int64(buffer[at + 7]) != 0:
        return 1
    count = load_u32(buffer, at + RECORD_COUNT_AT)
    if as_int64(buffer[at + FLAGS_AT]) & _OPAQUE:
        return as_int64(count == 1)
    return as_int64(count * _RECORD_HEADER <= raw_length)


@kernel(int64(bytes_in, int64))
def _is_plain(buffer: Bytes, at: int) -> int:
    """Whether the block of a batch is records as they are: neither compressed nor opaque."""
    return as_int64(as_int64(buffer[at + CODEC_AT]) == 0 and as_int64(buffer[at + FLAGS_AT]) & _OPAQUE == 0)


@kernel(int64(bytes_in, int64, int64_out))
def _begin_batch(buffer: Bytes, end: int, state: State) -> int:
    """Take up the batch whose header has arrived; whether it is sound, and ends in time."""
    at = state[STATE_CONSUMED]
    size = _whole_size(buffer, at, end)
    if size == 0 or _fits(buffer, at, size) == 0:
        return 0
    is_plain = _is_plain(buffer, at)
    state[STATE_END] = at + size
    state[STATE_SUMMED] = at + HEADER_SIZE
    state[STATE_SUM] = 0
    state[STATE_WALKED] = at + HEADER_SIZE if is_plain else at + size
    state[STATE_LEFT] = load_u32(buffer, at + RECORD_COUNT_AT) if is_plain else 0
    state[STATE_DELETED] = 0
    return 1


@kernel(void(bytes_in, int64, int64_out))
def _walk(buffer: Bytes, arrived: int, state: State) -> None:
    """Go through the records of the batch whose headers have arrived.

    The rules are those of `blocks.scan_block` for what is stored.
    """
    at = state[STATE_WALKED]
    left = state[STATE_LEFT]
    end = state[STATE_END]
    deleted = state[STATE_DELETED]
    while left > 0:
        if end - at < _RECORD_HEADER:
            left = NOT_SOUND
            break
        if arrived - at < _RECORD_HEADER:
            break
        record_type = as_int64(buffer[at])
        length = load_u32(buffer, at + 1)
        header = _RECORD_HEADER
        if record_type == TYPE_EXTENDED and length != 0:
            if load_u16(buffer, at + 1) == 0 or end - at < _EXTENDED_HEADER:
                left = NOT_SOUND
                break
            if arrived - at < _EXTENDED_HEADER:
                break
            length = load_u32(buffer, at + 3)
            header = _EXTENDED_HEADER
        elif record_type == TYPE_DELETED and length == 0:
            deleted += 1
        if length > end - at - header:
            left = NOT_SOUND
            break
        at += header + length
        left -= 1
    state[STATE_WALKED] = at
    state[STATE_LEFT] = left
    state[STATE_DELETED] = deleted


@kernel(void(bytes_in, record_array(CHUNK_ROW), int64_out))
def _report(buffer: Bytes, rows: Rows, state: State) -> None:
    """The row of a batch that is sound; the next one begins behind it."""
    at = state[STATE_CONSUMED]
    row = rows[state[STATE_ROWS]]
    row["base_seq"] = load_u64(buffer, at + BASE_SEQ_AT)
    row["position"] = load_u64(buffer, at + POSITION_AT)
    row["timestamp_ns"] = load_u64(buffer, at + TIMESTAMP_AT)
    row["at"] = at + HEADER_SIZE
    row["end"] = state[STATE_END]
    row["record_count"] = load_u32(buffer, at + RECORD_COUNT_AT)
    row["topic_id"] = load_u32(buffer, at + TOPIC_AT)
    row["deleted"] = state[STATE_DELETED]
    row["is_plain"] = _is_plain(buffer, at)
    state[STATE_ROWS] += 1
    state[STATE_RECORDS] += load_u32(buffer, at + RECORD_COUNT_AT)
    state[STATE_CONSUMED] = state[STATE_END]
    state[STATE_END] = 0


@kernel(int64(bytes_in, int64, int64, record_array(CHUNK_ROW), int64_out))
def check_chunks(buffer: Bytes, arrived: int, end: int, rows: Rows, state: State) -> int:
    """Report every sound batch of `buffer[:arrived]` from where `state` is, up to the first that is not; why it ended.

    `end` is where the last one has to end.
    """
    while state[STATE_CONSUMED] < end:
        if state[STATE_ROWS] == rows.size:
            return CHUNKS_FULL
        at = state[STATE_CONSUMED]
        if state[STATE_END] == 0:
            if arrived < end and arrived - at < HEADER_SIZE:
                return CHUNKS_MORE
            if _begin_batch(buffer, end, state) == 0:
                return CHUNKS_BAD
        here = min(arrived, state[STATE_END])
        if here > state[STATE_SUMMED]:
            state[STATE_SUM] = crc32c(buffer, state[STATE_SUMMED], here, state[STATE_SUM])
            state[STATE_SUMMED] = here
        _walk(buffer, here, state)
        if here < state[STATE_END]:
            return CHUNKS_MORE
        is_whole = state[STATE_LEFT] == 0 and state[STATE_WALKED] == here
        if not is_whole or state[STATE_SUM] != load_u32(buffer, at + BLOCK_CRC_AT):
            return CHUNKS_BAD
        _report(buffer, rows, state)
    return CHUNKS_DONE
