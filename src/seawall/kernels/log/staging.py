"""Writes the header of a local writer's batch and admits the batch, in one call.

`write_header` writes the 96 bytes of a header (`wire.format.batches` has its byte table) with the block's checksum; the
fields that the frontier stamps stay 0. `number_batch` and `number_client_batch` do that and then admit the batch, as
`frontier` and `client_frontier` do for a received batch. The header may be in another array than the block, so large
blocks are never copied.

The kernels read a block and never write it.
"""

from __future__ import annotations

from typing import TypeAlias

from seawall.kernels.admission.client_frontier import admit_client_batch
from seawall.kernels.admission.client_window import WINDOW_RESULT, WindowArrays, window_arrays
from seawall.kernels.admission.frontier import ADMISSION_ROW, FrontierArrays, Rows, admit_batch, frontier_arrays
from seawall.kernels.codec.batch_header import (
    BASE_OFFSET_AT,
    BASE_SEQ_AT,
    BLOCK_CRC_AT,
    CLIENT_ID_AT,
    CLIENT_SEQ_AT,
    CRC_AT,
    LENGTH_AT,
    ORDER_AT,
    POSITION_AT,
    RAW_LENGTH_AT,
    RECORD_COUNT_AT,
    RESERVED_AT,
    SESSION_EPOCH_AT,
    TERM_AT,
    TIMESTAMP_AT,
    TOPIC_AT,
)
from seawall.kernels.codec.checksum import crc32c
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, kernel, record_array, tuple_of, void
from seawall.kernels.runtime.memory import Bytes, store_u32, store_u64

_PROLOGUE = 52
_BATCH_HEADER = 96
#: `LANC`, version 2, kind 4, command 0, as one 8-byte number.
_START = int.from_bytes(b"LANC\x02\x04\x00\x00", "little")

#: Of a header: record count, topic id, client id, client seq, session epoch, raw length and choices.
DraftFields: TypeAlias = tuple[int, int, int, int, int, int, int]

_draft = tuple_of(int64, int64, int64, int64, int64, int64, int64)
_rows = record_array(ADMISSION_ROW)
_results = record_array(WINDOW_RESULT)


@kernel(void(bytes_out, int64, bytes_in, int64, int64, int64, int64, int64, int64, int64, int64, int64))
def write_header(
    header: Bytes,
    at: int,
    block: Bytes,
    start: int,
    end: int,
    record_count: int,
    topic_id: int,
    client_id: int,
    client_seq: int,
    session_epoch: int,
    raw_length: int,
    choices: int,
) -> None:
    """Write the header of `block[start:end]` to `header[at:at + 96]`, without its checksum and the stamped fields.

    Client id and seq are bit patterns; `choices` has order, ack level, codec and flags, one byte each from the lowest.
    """
    store_u64(header, at, _START)
    store_u32(header, at + CRC_AT, 0)
    store_u64(header, at + CLIENT_SEQ_AT, client_seq)
    store_u64(header, at + TIMESTAMP_AT, 0)
    store_u32(header, at + RECORD_COUNT_AT, record_count)
    store_u32(header, at + LENGTH_AT, _PROLOGUE + end - start)
    store_u32(header, at + BLOCK_CRC_AT, crc32c(block, start, end, 0))
    store_u32(header, at + TOPIC_AT, topic_id)
    store_u32(header, at + RESERVED_AT, 0)
    store_u64(header, at + CLIENT_ID_AT, client_id)
    store_u64(header, at + POSITION_AT, 0)
    store_u64(header, at + BASE_SEQ_AT, 0)
    store_u64(header, at + BASE_OFFSET_AT, 0)
    store_u32(header, at + RAW_LENGTH_AT, raw_length)
    store_u32(header, at + TERM_AT, 0)
    store_u32(header, at + SESSION_EPOCH_AT, session_epoch)
    store_u32(header, at + ORDER_AT, choices)


@kernel(int64(bytes_out, int64, bytes_in, int64, int64, _draft, int64, int64, frontier_arrays, _rows))
def number_batch(
    header: Bytes,
    at: int,
    block: Bytes,
    start: int,
    end: int,
    draft: DraftFields,
    term: int,
    wall_ns: int,
    frontier: FrontierArrays,
    rows: Rows,
) -> int:
    """Write the header of a block and admit the batch; returns the code of `admit_batch`, the outcome in `rows[0]`."""
    write_header(header, at, block, start, end, *draft)
    return admit_batch(header, at, term, wall_ns, frontier, rows, 0)


@kernel(
    int64(
        *(bytes_out, int64, bytes_in, int64, int64, _draft, int64, int64),
        *(frontier_arrays, window_arrays, _results, _rows),
    )
)
def number_client_batch(
    header: Bytes,
    at: int,
    block: Bytes,
    start: int,
    end: int,
    draft: DraftFields,
    term: int,
    wall_ns: int,
    frontier: FrontierArrays,
    window: WindowArrays,
    answers: Rows,
    rows: Rows,
) -> int:
    """`number_batch` through the client window."""
    write_header(header, at, block, start, end, *draft)
    return admit_client_batch(header, at, term, wall_ns, frontier, window, answers, rows, 0)
