"""Convert payloads of version 1 frames to batches: header, block and both checksums, as if a publisher had sent them.

A payload may be exactly a run of records, each `[type u8][length u32][value]`, where type FF has length 0. Such a
payload keeps its bytes and its boundaries wherever its records are stored, so consecutive payloads of one topic are
joined to one batch, up to a bound. Any other payload must stay a single unit: it becomes an opaque batch.

`wire/format/batches.py` has the byte table of the header. The batches have the order of the topic, request a durable
ack, and have the given client id, of a client without a session.

No byte outside a frame is read and none outside `out` is written, whatever the bytes say.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.kernels.codec.batch_header import (
    BLOCK_CRC_AT,
    CLIENT_ID_AT,
    CLIENT_SEQ_AT,
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    LENGTH_AT,
    ORDER_AT,
    RAW_LENGTH_AT,
    RECORD_COUNT_AT,
    RESERVED_AT,
    TERM_AT,
    TIMESTAMP_AT,
    TOPIC_AT,
    VERSION_AT,
    seal_header,
)
from seawall.kernels.codec.blocks import TYPE_EXTENDED
from seawall.kernels.codec.checksum import crc32c
from seawall.kernels.codec.frames import FRAME_ROW, KIND_BATCH, MAGIC, Rows
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import Bytes, as_int64, copy_bytes, load_u32, store_u32, store_u64

Integers: TypeAlias = npt.NDArray[np.int64]

#: Most records of joined payloads in one batch; the same as `limits.BATCH_RECORDS_MAX`.
JOINED_RECORDS_MAX = 65_536

_PROLOGUE = 52
_RECORD_HEADER = 5
#: Version 2, kind BATCH, as bytes 4 to 7 of a header.
_VERSION_AND_KIND = 0x0402
_ORDER_OF_TOPIC = 0xFF
_LEVEL_DURABLE = 2
_FLAG_OPAQUE = 2


@kernel(int64(bytes_in, int64, int64))
def count_v1_records(buffer: Bytes, start: int, end: int) -> int:
    """Number of records in the payload `buffer[start:end]` if it is exactly a run of them, else 0 (one opaque unit)."""
    count = 0
    at = start
    while end - at >= _RECORD_HEADER:
        length = load_u32(buffer, at + 1)
        if length > end - at - _RECORD_HEADER or (length != 0 and as_int64(buffer[at]) == TYPE_EXTENDED):
            return 0
        at += _RECORD_HEADER + length
        count += 1
    return count if at == end else 0


@kernel(void(bytes_out, int64, int64, int64, int64, int64, int64, int64))
def _write_header(
    out: Bytes, at: int, length: int, records: int, flags: int, topic_id: int, client_id: int, client_seq: int
) -> None:
    """Write the header of a batch whose block of `length` bytes is already in `out`."""
    store_u32(out, at, MAGIC)
    store_u32(out, at + VERSION_AT, _VERSION_AND_KIND)
    store_u64(out, at + CLIENT_SEQ_AT, client_seq)
    store_u64(out, at + TIMESTAMP_AT, 0)
    store_u32(out, at + RECORD_COUNT_AT, records)
    store_u32(out, at + LENGTH_AT, _PROLOGUE + length)
    store_u32(out, at + BLOCK_CRC_AT, crc32c(out, at + HEADER_SIZE, at + HEADER_SIZE + length, 0))
    store_u32(out, at + TOPIC_AT, topic_id)
    store_u32(out, at + RESERVED_AT, 0)
    store_u64(out, at + CLIENT_ID_AT, client_id)
    for word in range(at + 56, at + 80, 8):
        store_u64(out, word, 0)
    store_u32(out, at + RAW_LENGTH_AT, length)
    store_u64(out, at + TERM_AT, 0)
    store_u32(out, at + ORDER_AT, _ORDER_OF_TOPIC | _LEVEL_DURABLE << 8 | flags << 24)
    seal_header(out, at)


@kernel(
    int64(
        bytes_in,
        record_array(FRAME_ROW),
        int64,
        int64,
        int64,
        int64,
        int64,
        bytes_out,
        record_array(FRAME_ROW),
        int64_out,
    )
)
def make_batches(
    buffer: Bytes,
    rows: Rows,
    first: int,
    topic_id: int,
    client_id: int,
    client_seq: int,
    joined_size_max: int,
    out: Bytes,
    out_rows: Rows,
    frame_counts: Integers,
) -> int:
    """Make batches from a run of ingest frames from `first` on, back to back in `out`. Returns the number of batches.

    The run ends before a frame of another topic, with other flags or an empty payload, or whose payload does not fit
    in `out`. Batches are numbered from `client_seq` on; payloads are joined to blocks of at most `joined_size_max`
    bytes. Each batch gets a row, and `frame_counts` the number of its frames.
    """
    wire_topic = as_int64(rows[first]["topic_id"])
    made = 0
    at = 0
    # The batch that more payloads may join: none while it has no records.
    length = 0
    records = 0
    index = first
    while index < rows.size:
        row = rows[index]
        size = as_int64(row["payload_length"])
        if as_int64(row["topic_id"]) != wire_topic or (as_int64(row["kind"]) | KIND_BATCH) != KIND_BATCH or size == 0:
            break
        start = as_int64(row["at"]) + FRAME_HEADER_SIZE
        count = count_v1_records(buffer, start, start + size)
        joins = (
            records > 0
            and count > 0
            and length + size <= joined_size_max
            and records + count <= JOINED_RECORDS_MAX
            and size <= out.size - at - HEADER_SIZE - length
        )
        if not joins:
            if records > 0:
                _write_header(out, at, length, records, 0, topic_id, client_id, client_seq + made - 1)
                at += HEADER_SIZE + length
                length = 0
                records = 0
            if made == out_rows.size or size > out.size - at - HEADER_SIZE:
                break
            out_rows[made]["at"] = at
            out_rows[made]["id"] = client_seq + made
            out_rows[made]["topic_id"] = topic_id
            frame_counts[made] = 0
            made += 1
        copy_bytes(out, at + HEADER_SIZE + length, buffer, start, size)
        length += size
        records += count
        out_rows[made - 1]["size"] = HEADER_SIZE + length
        out_rows[made - 1]["record_count"] = max(1, records)
        frame_counts[made - 1] += 1
        if count == 0:
            _write_header(out, at, length, 1, _FLAG_OPAQUE, topic_id, client_id, client_seq + made - 1)
            at += HEADER_SIZE + length
            length = 0
        index += 1
    if records > 0:
        _write_header(out, at, length, records, 0, topic_id, client_id, client_seq + made - 1)
    return made
