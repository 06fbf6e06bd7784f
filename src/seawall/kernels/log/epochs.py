"""Reads epochs of a write-ahead log: verifies and lists their batches, and finds the next header after damage.

An epoch is a header of 64 bytes and its batches, back to back:

    0  magic u32 "EPOC"     8  salt u64, the file's     24 length u64            40 first_position u64     52 flags u16
    4  crc u32, of 8–63     16 epoch u64                32 synced_through u64    48 batch_count u32        54 asides u16
                                                                                                           56 time u64

A stored batch is 96 bytes of header and a block; the kernels check these fields:

    0  magic u32 "LANC"     6  command u16              32 payload_length u32 (52 + block)     56 position u64
    4  version u8, 2        8  header_crc u32           36 block_crc u32                       80 raw_length u32
    5  kind u8, 4           28 record_count u32         44 reserved u32, 0                     93 ack, codec, flags

A batch is valid exactly if the wire codec accepts it as a stored batch: correct checksums, known values, consistent
lengths. A batch of a verified epoch can therefore be parsed, or used through its row of `WAL_ROW`.

`scan_epochs` accepts only complete epochs that directly follow each other. The reader decides, one epoch at a time,
whether anything else is a torn tail or damage.

The kernels read no byte outside `start` … `end`, whatever the bytes contain.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.kernels.codec.batch_header import (
    BASE_OFFSET_AT,
    BASE_SEQ_AT,
    BLOCK_CRC_AT,
    CLIENT_ID_AT,
    CLIENT_SEQ_AT,
    CODEC_AT,
    COMMAND_AT,
    FLAGS_AT,
    HEADER_SIZE,
    POSITION_AT,
    RAW_LENGTH_AT,
    RECORD_COUNT_AT,
    SESSION_EPOCH_AT,
    TERM_AT,
    TIMESTAMP_AT,
    TOPIC_AT,
    stored_size,
)
from seawall.kernels.codec.checksum import crc32c
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, int64_out, kernel, record_array, uint64, void
from seawall.kernels.runtime.memory import Bytes, as_int64, load_i64, load_u16, load_u32, load_u64, store_u32, store_u64

#: A batch of the log: the address of its first byte, its size with the header, and the fields of the header.
WAL_ROW = np.dtype(
    [
        ("at", "<u8"),
        ("position", "<u8"),
        ("base_seq", "<u8"),
        ("base_offset", "<u8"),
        ("timestamp_ns", "<u8"),
        ("client_id", "<u8"),
        ("client_seq", "<u8"),
        ("size", "<u4"),
        ("count", "<u4"),
        ("raw_length", "<u4"),
        ("topic_id", "<u4"),
        ("term", "<u4"),
        ("session_epoch", "<u4"),
        ("block_crc", "<u4"),
        ("command", "<u2"),
        ("codec", "u1"),
        ("flags", "u1"),
    ]
)
assert WAL_ROW.itemsize == 88

#: The end of a log: its address, number of the last epoch, next position, time of the last epoch, and the address up to
#: which the log is durable. Of the active file: the end address of its allocated space, the difference between address
#: and file offset, and its salt. Finally address and number of the next epoch, after those in flight.
LOG_NUMBERS = np.dtype(
    [
        *((name, np.int64) for name in ("at", "epoch", "position", "timestamp_ns", "synced_through")),
        *((name, np.int64) for name in ("limit_at", "file_offset", "salt", "next_at", "next_epoch")),
    ]
)

WalRows: TypeAlias = npt.NDArray[np.void]
Walk = npt.NDArray[np.int64]

#: Indexes into the state of a scan. In: the difference between address and buffer index. In and out: number of the last
#: epoch, next position, highest synced_through, rows in use. Out: time of the last accepted epoch, whether it was a
#: clean close, and the size in bytes of the epoch at which the scan stopped, as far as known.
WALK_SHIFT = 0
WALK_EPOCH = 1
WALK_POSITION = 2
WALK_SYNCED = 3
WALK_TIMESTAMP = 4
WALK_CLEAN = 5
WALK_ROWS = 6
WALK_NEEDED = 7
WALK_SIZE = 8

EPOCH_MAGIC = 0x434F5045
EPOCH_HEADER = 64
BATCH_HEADER = HEADER_SIZE

#: The command of an unpositioned control batch: it carries the position of the next batch.
COMMAND_UNPOSITIONED = 17

#: Result of `batch_size` for bytes that are not a valid batch.
BATCH_BAD = -1

_CLEAN = 1
#: Bytes that `is_zero` checks at a time.
_ZEROS_STEP = 4_096
#: Highest position and length that a scan accepts, so that sums cannot overflow; the reader handles larger ones.
_NUMBER_MAX = 1 << 62

_rows = record_array(WAL_ROW)


@kernel(int64(bytes_in, int64, int64))
def batch_size(buffer: Bytes, at: int, end: int) -> int:
    """The size of the valid batch that begins at `at` and ends by `end`; else BATCH_BAD."""
    size = stored_size(buffer, at, end)
    if size == 0 or crc32c(buffer, at + BATCH_HEADER, at + size, 0) != load_u32(buffer, at + BLOCK_CRC_AT):
        return BATCH_BAD
    return size


@kernel(void(bytes_in, int64, int64, int64, _rows, int64))
def list_batch(buffer: Bytes, at: int, address: int, size: int, rows: WalRows, index: int) -> None:
    """Fill the row of a batch from its header at `at`."""
    row = rows[index]
    row["at"] = address
    row["position"] = load_u64(buffer, at + POSITION_AT)
    row["base_seq"] = load_u64(buffer, at + BASE_SEQ_AT)
    row["base_offset"] = load_u64(buffer, at + BASE_OFFSET_AT)
    row["timestamp_ns"] = load_u64(buffer, at + TIMESTAMP_AT)
    row["client_id"] = load_u64(buffer, at + CLIENT_ID_AT)
    row["client_seq"] = load_u64(buffer, at + CLIENT_SEQ_AT)
    row["size"] = size
    row["count"] = load_u32(buffer, at + RECORD_COUNT_AT)
    row["raw_length"] = load_u32(buffer, at + RAW_LENGTH_AT)
    row["topic_id"] = load_u32(buffer, at + TOPIC_AT)
    row["term"] = load_u32(buffer, at + TERM_AT)
    row["session_epoch"] = load_u32(buffer, at + SESSION_EPOCH_AT)
    row["block_crc"] = load_u32(buffer, at + BLOCK_CRC_AT)
    row["command"] = load_u16(buffer, at + COMMAND_AT)
    row["codec"] = buffer[at + CODEC_AT]
    row["flags"] = buffer[at + FLAGS_AT]


@kernel(int64(bytes_out, int64, int64, int64, int64, int64, int64, int64))
def seal_epoch(
    memory: Bytes, length: int, count: int, salt: int, epoch: int, synced_through: int, position: int, time_ns: int
) -> int:
    """Write the header of an epoch, whose batches follow it in `memory`; returns the size of the epoch."""
    store_u32(memory, 0, EPOCH_MAGIC)
    store_u64(memory, 8, salt)
    store_u64(memory, 16, epoch)
    store_u64(memory, 24, length)
    store_u64(memory, 32, synced_through)
    store_u64(memory, 40, position)
    store_u32(memory, 48, count)
    store_u32(memory, 52, 0)
    store_u64(memory, 56, time_ns)
    store_u32(memory, 4, crc32c(memory, 8, EPOCH_HEADER, 0))
    return EPOCH_HEADER + length


@kernel(int64(_rows, int64))
def _row_end(rows: WalRows, index: int) -> int:
    """The end address of a listed batch."""
    row = rows[index]
    return as_int64(row["at"]) + as_int64(row["size"])


@kernel(int64(bytes_in, int64, int64, int64, int64, int64, _rows, int64))
def verify_epoch(
    buffer: Bytes,
    start: int,
    end: int,
    shift: int,
    first_position: int,
    batch_count: int,
    rows: WalRows,
    first_row: int,
) -> int:
    """List the valid batches from `start` on, at most `batch_count`, with dense positions from `first_position`.

    Unpositioned control batches take no position. Returns how many; `rows` has space for all from `first_row` on. The
    epoch is valid if all batches are valid and the last one ends at `end`.
    """
    at = start
    position = first_position
    for index in range(batch_count):
        size = batch_size(buffer, at, end)
        if size == BATCH_BAD or load_u64(buffer, at + POSITION_AT) != np.uint64(position):
            return index
        position += as_int64(load_u16(buffer, at + COMMAND_AT) != COMMAND_UNPOSITIONED)
        list_batch(buffer, at, at + shift, size, rows, first_row + index)
        at += size
    return batch_count


@kernel(int64(bytes_in, int64, uint64))
def _is_header(buffer: Bytes, at: int, salt: np.uint64) -> int:
    """1 if the 64 bytes at `at` are an epoch header with this salt and a correct checksum."""
    return as_int64(
        load_u32(buffer, at) == EPOCH_MAGIC
        and load_u64(buffer, at + 8) == salt
        and crc32c(buffer, at + 8, at + EPOCH_HEADER, 0) == load_u32(buffer, at + 4)
    )


@kernel(int64(bytes_in, int64, int64_out))
def _continues(buffer: Bytes, at: int, walk: Walk) -> int:
    """1 if the header at `at` is plausible and directly continues the scanned epochs."""
    length = load_i64(buffer, at + 24)
    synced_through = load_i64(buffer, at + 32)
    first_position = load_i64(buffer, at + 40)
    batch_count = load_u32(buffer, at + 48)
    if load_i64(buffer, at + 16) != walk[WALK_EPOCH] + 1 or load_i64(buffer, at + 56) < 0:
        return 0
    if synced_through < 0 or synced_through > at + walk[WALK_SHIFT]:
        return 0
    if first_position < walk[WALK_POSITION] or first_position > _NUMBER_MAX or length > _NUMBER_MAX:
        return 0
    flags, asides = load_u16(buffer, at + 52), load_u16(buffer, at + 54)
    if flags == _CLEAN:
        return as_int64(length == 0 and batch_count == 0 and asides == 0)
    if flags != 0 or asides > batch_count:
        return 0
    return as_int64(batch_count >= 1 and length >= 0 and batch_count <= length // BATCH_HEADER)


@kernel(int64(bytes_in, int64, int64, uint64, int64_out, _rows))
def scan_epochs(buffer: Bytes, start: int, end: int, salt: np.uint64, walk: Walk, rows: WalRows) -> int:
    """List the batches of the complete epochs from `start` on that directly follow each other; returns their end.

    Appends to the rows in use. Stops at anything else, for any reason, and when `rows` has no space for all batches of
    an epoch. WALK_NEEDED exceeds the rest of the buffer exactly if the scan might continue with more bytes.
    """
    at = start
    count = walk[WALK_ROWS]
    walk[WALK_NEEDED] = EPOCH_HEADER
    while end - at >= EPOCH_HEADER:
        walk[WALK_NEEDED] = EPOCH_HEADER
        if _is_header(buffer, at, salt) == 0 or _continues(buffer, at, walk) == 0:
            break
        length = load_i64(buffer, at + 24)
        batch_count = load_u32(buffer, at + 48)
        if batch_count > rows.size - count:
            break
        first = at + EPOCH_HEADER
        if length > end - first:
            walk[WALK_NEEDED] = EPOCH_HEADER + length
            break
        first_position = load_i64(buffer, at + 40)
        shift = walk[WALK_SHIFT]
        if verify_epoch(buffer, first, first + length, shift, first_position, batch_count, rows, count) != batch_count:
            break
        if batch_count > 0 and _row_end(rows, count + batch_count - 1) != first + length + shift:
            break
        count += batch_count
        walk[WALK_EPOCH] += 1
        walk[WALK_POSITION] = first_position + batch_count - load_u16(buffer, at + 54)
        walk[WALK_SYNCED] = max(walk[WALK_SYNCED], load_i64(buffer, at + 32))
        walk[WALK_TIMESTAMP] = load_i64(buffer, at + 56)
        walk[WALK_CLEAN] = load_u16(buffer, at + 52)
        at = first + length
    walk[WALK_ROWS] = count
    return at


@kernel(int64(bytes_in, int64, int64, uint64))
def find_epoch(buffer: Bytes, start: int, end: int, salt: np.uint64) -> int:
    """The index of the first complete epoch header from `start` on with this salt and a correct checksum; else -1.

    Skips zeros, most of a preallocated file, eight at a time: no header begins in one of them.
    """
    at = start
    last = end - EPOCH_HEADER
    while at <= last:
        if load_u64(buffer, at) == np.uint64(0):
            at += 8
            continue
        if _is_header(buffer, at, salt):
            return at
        at += 1
    return -1


@kernel(int64(bytes_in, int64, int64))
def is_zero(buffer: Bytes, start: int, end: int) -> int:
    """1 if all bytes from `start` to `end` are zero."""
    at = start
    while end - at >= _ZEROS_STEP:
        found = np.uint64(0)
        for word in range(at, at + _ZEROS_STEP, 8):
            found |= load_u64(buffer, word)
        if found != np.uint64(0):
            return 0
        at += _ZEROS_STEP
    while at < end:
        if buffer[at] != 0:
            return 0
        at += 1
    return 1
