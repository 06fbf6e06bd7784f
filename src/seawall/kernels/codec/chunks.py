"""Verify stored batches, and their records, while a reader receives them back to back.

A batch is 96 bytes of header and a block (`wire/format/batches.py` has the byte table and the rules). `check_chunks`
checks both checksums and every rule for stored batches, and scans the records of a plain block; of compressed and
opaque blocks it checks everything that needs no decompression. It stops before the first invalid batch. It does not say
what is wrong: the caller finds that out, and produces the error message.

It is called once with all bytes, or repeatedly while more arrive, and then continues in the middle of a batch where it
stopped. Bytes that have just arrived are cached, so checking them immediately costs a fraction of a later pass.

A row has the location of the block of a batch and its metadata for a reader; `deleted` counts the deleted records (type
00, no value) of a scanned block.

Only the first `arrived` bytes are read, whatever they say. A batch is reported when it has arrived in full and is
verified; each of its bytes is checked once.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.kernels.codec.batch_header import (
    BASE_SEQ_AT,
    BLOCK_CRC_AT,
    CODEC_AT,
    FLAGS_AT,
    HEADER_SIZE,
    POSITION_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_AT,
    TOPIC_AT,
    stored_size,
)
from seawall.kernels.codec.blocks import TYPE_DELETED, TYPE_EXTENDED
from seawall.kernels.codec.checksum import crc32c
from seawall.kernels.runtime.jit import bytes_in, int64, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import Bytes, as_int64, load_u16, load_u32, load_u64

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

#: Why a check stopped: at the end; the row table is full, consume the rows and call again; the next batch is invalid;
#: the rest has not arrived.
CHUNKS_DONE = 0
CHUNKS_FULL = 1
CHUNKS_BAD = 2
CHUNKS_MORE = 3

#: Indexes in `state`. Number of rows in the table (the caller consumes them and resets it to 0), number of records of
#: all reported batches, and the index of the first byte of the next batch.
STATE_ROWS = 0
STATE_RECORDS = 1
STATE_CONSUMED = 2
#: About the batch in progress: its end, or 0 if its header is not checked yet; the end of the summed part of its block,
#: and the checksum of that part; the start of its next record, the number of records left, or MALFORMED, and the number
#: of deleted records.
STATE_END = 3
STATE_SUMMED = 4
STATE_SUM = 5
STATE_WALKED = 6
STATE_LEFT = 7
STATE_DELETED = 8
STATE_SIZE = 9

_OPAQUE = 2
_RECORD_HEADER = 5
_EXTENDED_HEADER = 7

#: Instead of a number of records left: the block contradicts its header.
MALFORMED = -1


@kernel(int64(bytes_in, int64))
def _is_plain(buffer: Bytes, at: int) -> int:
    """1 if the block of a batch is plain records, neither compressed nor opaque; else 0."""
    return as_int64(as_int64(buffer[at + CODEC_AT]) == 0 and as_int64(buffer[at + FLAGS_AT]) & _OPAQUE == 0)


@kernel(int64(bytes_in, int64, int64_out))
def _begin_batch(buffer: Bytes, end: int, state: State) -> int:
    """Begin the batch whose header has arrived. Returns 1, or 0 if it is invalid or does not end within `end`."""
    at = state[STATE_CONSUMED]
    size = stored_size(buffer, at, end)
    if size == 0:
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
    """Walk the records of the batch whose headers have arrived.

    The rules are those of `blocks.scan_block` for stored records.
    """
    at = state[STATE_WALKED]
    left = state[STATE_LEFT]
    end = state[STATE_END]
    deleted = state[STATE_DELETED]
    while left > 0:
        if end - at < _RECORD_HEADER:
            left = MALFORMED
            break
        if arrived - at < _RECORD_HEADER:
            break
        record_type = as_int64(buffer[at])
        length = load_u32(buffer, at + 1)
        header = _RECORD_HEADER
        if record_type == TYPE_EXTENDED and length != 0:
            if load_u16(buffer, at + 1) == 0 or end - at < _EXTENDED_HEADER:
                left = MALFORMED
                break
            if arrived - at < _EXTENDED_HEADER:
                break
            length = load_u32(buffer, at + 3)
            header = _EXTENDED_HEADER
        elif record_type == TYPE_DELETED and length == 0:
            deleted += 1
        if length > end - at - header:
            left = MALFORMED
            break
        at += header + length
        left -= 1
    state[STATE_WALKED] = at
    state[STATE_LEFT] = left
    state[STATE_DELETED] = deleted


@kernel(void(bytes_in, record_array(CHUNK_ROW), int64_out))
def _report(buffer: Bytes, rows: Rows, state: State) -> None:
    """Write the row of a valid batch, and advance to the next one."""
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
    """Report the valid batches of `buffer[:arrived]` from the position in `state` on, up to the first invalid one.

    The last batch must end exactly at `end`. Returns a CHUNKS code.
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
        available = min(arrived, state[STATE_END])
        if available > state[STATE_SUMMED]:
            state[STATE_SUM] = crc32c(buffer, state[STATE_SUMMED], available, state[STATE_SUM])
            state[STATE_SUMMED] = available
        _walk(buffer, available, state)
        if available < state[STATE_END]:
            return CHUNKS_MORE
        is_whole = state[STATE_LEFT] == 0 and state[STATE_WALKED] == available
        if not is_whole or state[STATE_SUM] != load_u32(buffer, at + BLOCK_CRC_AT):
            return CHUNKS_BAD
        _report(buffer, rows, state)
    return CHUNKS_DONE
