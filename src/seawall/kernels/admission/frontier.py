"""Admits batches: assigns positions, seqs, offsets and timestamps in place, many batches per call.

A topic is one row of `topics`, 64 bytes:

    0  4 topic_id       16 8 next_offset          40 8 record_total: records admitted
    4  4 flags          24 8 ceiling              48 8 byte_total: bytes of their batches
    8  8 next_seq       32 8 last_timestamp_ns    56 8 wanted: ceiling that the last stopped batch needs, 0 = none

`keys`, `values` and `used` are a hash table from topic id to row. `numbers` holds the counters that all topics share:
the next position and the last timestamp of the hybrid clock. A batch is a 96-byte header (`wire.format.batches` has its
byte table), with checksums that were verified on arrival, and a block, which admission never reads.

For each batch: find its topic; refuse the batch, or stamp position, base seq, base offset, timestamp, term and header
checksum and advance the counters. Control batches (command not 0) only take a position and a timestamp.

INV-FRONTIER-DENSE: positions have no hole, and the seqs of a topic have none: a refused batch uses no number.
INV-FRONTIER-CEILING: no seq at or above the durable ceiling of its topic is given, so no seq is given again after a
crash. A run stops at a batch that would exceed the ceiling, so no later batch overtakes it.

The hybrid clock rises with every batch, and timestamps never decrease within a topic. Admission writes only the first
96 bytes of a batch.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.kernels.codec.batch_header import (
    COMMAND_AT,
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    LENGTH_AT,
    RAW_LENGTH_AT,
    RECORD_COUNT_AT,
    TOPIC_AT,
    stamp_header,
)
from seawall.kernels.runtime.jit import (
    bytes_in,
    bytes_out,
    int64,
    int64_out,
    kernel,
    record_array,
    tuple_of,
    uint64_out,
    void,
)
from seawall.kernels.runtime.memory import Bytes, as_int64, load_u16, load_u32
from seawall.kernels.runtime.tables import ABSENT, Keys, Values, table_find

Rows: TypeAlias = npt.NDArray[np.void]
#: The state of a frontier: keys, values and used of the table of topics, their rows, the shared numbers.
FrontierArrays: TypeAlias = tuple[Keys, Values, Bytes, Rows, Values]

TOPIC_ROW = np.dtype(
    [
        ("topic_id", np.uint32),
        ("flags", np.uint32),
        ("next_seq", np.uint64),
        ("next_offset", np.uint64),
        ("ceiling", np.uint64),
        ("last_timestamp_ns", np.uint64),
        ("record_total", np.uint64),
        ("byte_total", np.uint64),
        ("wanted", np.uint64),
    ]
)
assert TOPIC_ROW.itemsize == 64

#: Flags of a topic. A row without EXISTS is free. STRONG: its batches keep each client's own order, which matters only
#: when several brokers are ordered together (`goi_frontier`).
TOPIC_EXISTS = 1
TOPIC_DELETED = 2
TOPIC_FULL = 4
TOPIC_STRONG = 8

#: The outcome of one batch; `at` and `size` locate its bytes in the buffer. A refused batch has no numbers.
ADMISSION_ROW = np.dtype(
    [
        ("at", np.int64),
        ("position", np.uint64),
        ("base_seq", np.uint64),
        ("base_offset", np.uint64),
        ("timestamp_ns", np.uint64),
        ("size", np.uint32),
        ("topic_id", np.uint32),
        ("record_count", np.uint32),
        ("reason", np.uint16),
        ("status", np.uint8),
        ("reserved", np.uint8),
    ]
)
assert ADMISSION_ROW.itemsize == 56

#: Values of `status` (as in an ACK) and `reason` (error codes of the wire).
STATUS_OK = 0
STATUS_REJECTED = 2
REASON_TOPIC_NOT_FOUND = 0x10
REASON_TOPIC_DELETED = 0x13
REASON_READ_ONLY = 0x63

#: Indexes into `numbers`.
NEXT_POSITION = 0
LAST_TIMESTAMP = 1
NUMBERS_SIZE = 2

#: Why a run stopped. RUN_DONE: at its end. RUN_FULL: no free row. RUN_CUT: the last batch is incomplete.
RUN_DONE = 0
RUN_FULL = 1
RUN_CUT = 2
RUN_NEEDS_CEILING = 3
#: Only through a client window (`client_frontier`): the window does not have the client of the next batch.
RUN_UNKNOWN_CLIENT = 4

#: Indexes into `progress`: rows filled, and the offset of the first byte not consumed.
PROGRESS_ROWS = 0
PROGRESS_CONSUMED = 1
PROGRESS_SIZE = 2

_MILLISECOND_NS = 1_000_000
_UNKNOWN = np.uint64(0xFFFFFFFFFFFFFFFF)

#: The type of `FrontierArrays`.
frontier_arrays = tuple_of(uint64_out, int64_out, bytes_out, record_array(TOPIC_ROW), int64_out)
_rows = record_array(ADMISSION_ROW)


@kernel(int64(int64, int64))
def next_timestamp(last_ns: int, wall_ns: int) -> int:
    """The next timestamp of the hybrid clock, given its last one and the wall clock."""
    return max(last_ns + 1, wall_ns - wall_ns % _MILLISECOND_NS)


@kernel(int64(bytes_in, int64, int64))
def batch_end(buffer: Bytes, at: int, end: int) -> int:
    """The end of the batch at `at`, or -1 if it is not complete before `end`."""
    if end - at < HEADER_SIZE:
        return -1
    size = FRAME_HEADER_SIZE + load_u32(buffer, at + LENGTH_AT)
    if size < HEADER_SIZE or size > end - at:
        return -1
    return at + size


@kernel(int64(bytes_in, int64, int64, int64), inline=True)
def next_batch_end(buffer: Bytes, at: int, end: int, rows_left: int) -> int:
    """The end of the next batch of a run; or why the run stops before it: −RUN_CUT, or −RUN_FULL without a row."""
    after = batch_end(buffer, at, end)
    if after < 0:
        return -RUN_CUT
    return after if rows_left > 0 else -RUN_FULL


@kernel(void(_rows, int64, int64, int64))
def settle_row(rows: Rows, index: int, status: int, reason: int) -> None:
    """Fill a row with a status and without numbers."""
    row = rows[index]
    row["position"] = _UNKNOWN
    row["base_seq"] = 0
    row["base_offset"] = 0
    row["timestamp_ns"] = 0
    row["status"] = status
    row["reason"] = reason


@kernel(void(bytes_out, int64, _rows, int64))
def describe_row(buffer: Bytes, at: int, rows: Rows, index: int) -> None:
    """Fill the fields of a row that identify its batch."""
    row = rows[index]
    row["at"] = at
    row["size"] = FRAME_HEADER_SIZE + load_u32(buffer, at + LENGTH_AT)
    row["topic_id"] = load_u32(buffer, at + TOPIC_AT)
    row["record_count"] = load_u32(buffer, at + RECORD_COUNT_AT)
    row["reserved"] = 0


@kernel(int64(bytes_out, int64, int64, int64, frontier_arrays, _rows, int64), counted=False)
def admit_batch(
    buffer: Bytes, at: int, term: int, wall_ns: int, frontier: FrontierArrays, rows: Rows, index: int
) -> int:
    """Admit or refuse the batch at `at` and record the outcome in `rows[index]`; reads the header, not the block.

    Returns RUN_DONE, or RUN_NEEDS_CEILING: the batch is undecided then, and only `wanted` of its topic changed.
    """
    keys, values, used, topics, numbers = frontier
    describe_row(buffer, at, rows, index)
    base_seq = 0
    base_offset = 0
    timestamp = next_timestamp(numbers[LAST_TIMESTAMP], wall_ns)
    clock = timestamp
    if load_u16(buffer, at + COMMAND_AT) == 0:
        entry = table_find(keys, used, np.uint64(load_u32(buffer, at + TOPIC_AT)))
        if entry == ABSENT:
            settle_row(rows, index, STATUS_REJECTED, REASON_TOPIC_NOT_FOUND)
            return RUN_DONE
        topic = topics[values[entry]]
        flags = as_int64(topic["flags"])
        if flags & TOPIC_DELETED:
            settle_row(rows, index, STATUS_REJECTED, REASON_TOPIC_DELETED)
            return RUN_DONE
        if flags & TOPIC_FULL:
            settle_row(rows, index, STATUS_REJECTED, REASON_READ_ONLY)
            return RUN_DONE
        count = load_u32(buffer, at + RECORD_COUNT_AT)
        base_seq = as_int64(topic["next_seq"])
        if base_seq + count > as_int64(topic["ceiling"]):
            topic["wanted"] = base_seq + count
            return RUN_NEEDS_CEILING
        base_offset = as_int64(topic["next_offset"])
        timestamp = max(timestamp, as_int64(topic["last_timestamp_ns"]))
        topic["next_seq"] = base_seq + count
        topic["next_offset"] = base_offset + load_u32(buffer, at + RAW_LENGTH_AT)
        topic["last_timestamp_ns"] = timestamp
        topic["record_total"] = as_int64(topic["record_total"]) + count
        topic["byte_total"] = as_int64(topic["byte_total"]) + FRAME_HEADER_SIZE + load_u32(buffer, at + LENGTH_AT)
    position = numbers[NEXT_POSITION]
    numbers[NEXT_POSITION] = position + 1
    numbers[LAST_TIMESTAMP] = clock
    stamp_header(buffer, at, position, base_seq, base_offset, timestamp, term)
    row = rows[index]
    row["position"] = position
    row["base_seq"] = base_seq
    row["base_offset"] = base_offset
    row["timestamp_ns"] = timestamp
    row["status"] = STATUS_OK
    row["reason"] = 0
    return RUN_DONE


@kernel(int64(bytes_out, int64, int64, int64, int64, frontier_arrays, _rows, int64_out))
def admit_run(
    buffer: Bytes,
    start: int,
    end: int,
    term: int,
    wall_ns: int,
    frontier: FrontierArrays,
    rows: Rows,
    progress: Values,
) -> int:
    """Admit the adjacent batches in `buffer[start:end]`, one row each; returns why it stopped."""
    at = start
    count = 0
    code = RUN_DONE
    while at < end:
        after = next_batch_end(buffer, at, end, rows.size - count)
        if after < 0:
            code = -after
            break
        code = admit_batch(buffer, at, term, wall_ns, frontier, rows, count)
        if code != RUN_DONE:
            break
        count += 1
        at = after
    progress[PROGRESS_ROWS] = count
    progress[PROGRESS_CONSUMED] = at
    return code
