"""Scans the batches of a segment: lists them, finds the next valid one after damage, verifies them against an index.

A batch is 96 bytes of header and a block (`wire/format/batches.py` has the byte table). It is valid if its magic,
version and kind are correct, it is not a control batch, it belongs to the topic, it holds at least one record, its
length is within bounds, and both checksums match. In a segment it must also continue the batches before it: its seqs
are above theirs; its position (which the batches of a transaction share), its offset and its time are not below.

One index entry for each batch, 48 bytes, little-endian:

    0  base_seq u64       16 timestamp_ns u64    32 position u64     44 length u32, of the whole batch
    8  at u64             24 base_offset u64     40 count u32

The kernels read no byte outside `start` … `end` or outside the buffer, whatever the bytes or the entries contain.
Numbers at or above 2^63 count as out of order: no counter reaches them.
"""

from __future__ import annotations

from typing import TypeAlias

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types

from seawall.kernels.codec.batch_header import (
    BASE_OFFSET_AT,
    BASE_SEQ_AT,
    BLOCK_CRC_AT,
    BLOCK_SIZE_MAX,
    COMMAND_AT,
    CRC_AT,
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    KIND_AT,
    LENGTH_AT,
    POSITION_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_AT,
    TOPIC_AT,
    VERSION_AT,
    header_crc,
)
from seawall.kernels.codec.checksum import crc32c
from seawall.kernels.codec.frames import KIND_BATCH, MAGIC
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, int64_in, int64_out, kernel, record_array
from seawall.kernels.runtime.memory import Bytes, as_int64, load_i64, load_u16, load_u32, load_u64

INDEX_ENTRY = np.dtype(
    [
        ("base_seq", "<u8"),
        ("at", "<u8"),
        ("timestamp_ns", "<u8"),
        ("base_offset", "<u8"),
        ("position", "<u8"),
        ("count", "<u4"),
        ("length", "<u4"),
    ]
)
assert INDEX_ENTRY.itemsize == 48

Entries: TypeAlias = npt.NDArray[np.void]
State = npt.NDArray[np.int64]

#: Why a scan stopped. SCAN_MORE: the last batch is incomplete. SCAN_FULL: no space for another entry, call again.
#: SCAN_HEADER: no valid header. SCAN_BLOCK: the header is valid, its block is damaged.
SCAN_MORE = 0
SCAN_FULL = 1
SCAN_HEADER = 2
SCAN_BLOCK = 3

#: Indexes into `state`. In and out: the lowest seq, position, offset and time of the next batch. Out: the others.
STATE_SEQ = 0
STATE_POSITION = 1
STATE_OFFSET = 2
STATE_TIMESTAMP = 3
STATE_COUNT = 4
STATE_CONSUMED = 5
STATE_NEEDED = 6
STATE_SIZE = 7

#: Verdicts on an entry: the batch matches; its header does not match; its block is damaged.
VERDICT_GOOD = 0
VERDICT_HEADER = 1
VERDICT_BLOCK = 2

_PROLOGUE = 52
_MAGIC_BYTE = MAGIC & 0xFF

_entries_in = types.Array(numba.from_dtype(INDEX_ENTRY), 1, "C", readonly=True)


@kernel(int64(bytes_in, int64, int64, int64))
def _batch_size(buffer: Bytes, at: int, end: int, topic_id: int) -> int:
    """The size of the batch with a valid header of this topic at `at`; 0 if there is none."""
    if end - at < HEADER_SIZE or load_u32(buffer, at) != MAGIC:
        return 0
    if (
        as_int64(buffer[at + VERSION_AT]) != 2
        or as_int64(buffer[at + KIND_AT]) != KIND_BATCH
        or load_u16(buffer, at + COMMAND_AT) != 0
    ):
        return 0
    length = load_u32(buffer, at + LENGTH_AT)
    if length < _PROLOGUE or length > _PROLOGUE + BLOCK_SIZE_MAX:
        return 0
    if load_u32(buffer, at + TOPIC_AT) != topic_id or load_u32(buffer, at + RECORD_COUNT_AT) == 0:
        return 0
    if header_crc(buffer, at) != load_u32(buffer, at + CRC_AT):
        return 0
    return FRAME_HEADER_SIZE + length


@kernel(int64(bytes_in, int64, int64_in))
def _continues(buffer: Bytes, at: int, state: State) -> int:
    """1 if the batch at `at` may follow the batches that `state` describes."""
    in_order = (
        load_i64(buffer, at + BASE_SEQ_AT) >= state[STATE_SEQ]
        and load_i64(buffer, at + POSITION_AT) >= state[STATE_POSITION]
        and load_i64(buffer, at + BASE_OFFSET_AT) >= state[STATE_OFFSET]
        and load_i64(buffer, at + TIMESTAMP_AT) >= state[STATE_TIMESTAMP]
    )
    return as_int64(in_order)


@kernel(int64(bytes_in, int64, int64))
def _block_matches(buffer: Bytes, at: int, size: int) -> int:
    return as_int64(crc32c(buffer, at + HEADER_SIZE, at + size, 0) == load_u32(buffer, at + BLOCK_CRC_AT))


@kernel(int64(bytes_in, int64, int64, int64, int64, record_array(INDEX_ENTRY), int64_out))
def scan_batches(buffer: Bytes, start: int, end: int, shift: int, topic_id: int, entries: Entries, state: State) -> int:
    """List the valid adjacent batches from `start` on; returns why it stopped (a SCAN code).

    `shift` is the difference between file offset and buffer index. Afterwards `state` holds the lower bounds for the
    next batch, the number of entries written, the index of the first byte not consumed, and the size of the batch
    there, as far as known.
    """
    count = 0
    at = start
    code = SCAN_MORE
    needed = 0
    while at < end:
        code = SCAN_MORE
        needed = HEADER_SIZE
        if end - at < HEADER_SIZE:
            break
        size = _batch_size(buffer, at, end, topic_id)
        if size == 0 or _continues(buffer, at, state) == 0:
            code = SCAN_HEADER
            break
        needed = size
        if end - at < size:
            break
        if count == entries.size:
            code = SCAN_FULL
            break
        if _block_matches(buffer, at, size) == 0:
            code = SCAN_BLOCK
            break
        records = load_u32(buffer, at + RECORD_COUNT_AT)
        entry = entries[count]
        entry["base_seq"] = load_u64(buffer, at + BASE_SEQ_AT)
        entry["at"] = at + shift
        entry["timestamp_ns"] = load_u64(buffer, at + TIMESTAMP_AT)
        entry["base_offset"] = load_u64(buffer, at + BASE_OFFSET_AT)
        entry["position"] = load_u64(buffer, at + POSITION_AT)
        entry["count"] = records
        entry["length"] = size
        state[STATE_SEQ] = load_i64(buffer, at + BASE_SEQ_AT) + records
        state[STATE_POSITION] = load_i64(buffer, at + POSITION_AT)
        state[STATE_OFFSET] = load_i64(buffer, at + BASE_OFFSET_AT)
        state[STATE_TIMESTAMP] = load_i64(buffer, at + TIMESTAMP_AT)
        count += 1
        at += size
        needed = 0
    state[STATE_COUNT] = count
    state[STATE_CONSUMED] = at
    state[STATE_NEEDED] = needed
    return code


@kernel(int64(bytes_in, int64, int64, int64, int64_in))
def find_header(buffer: Bytes, start: int, end: int, topic_id: int, state: State) -> int:
    """The index of the first valid header from `start` on that continues `state`; -1 if there is none."""
    for at in range(start, end - HEADER_SIZE + 1):
        # Compare the first byte here: a call for each byte would double the time of a search through zeros.
        if as_int64(buffer[at]) != _MAGIC_BYTE or _batch_size(buffer, at, end, topic_id) == 0:
            continue
        if _continues(buffer, at, state) != 0:
            return at
    return -1


@kernel(int64(bytes_in, int64, int64, _entries_in, int64, int64))
def _verify_entry(buffer: Bytes, end: int, shift: int, entries: Entries, index: int, topic_id: int) -> int:
    """The verdict on one entry."""
    entry = entries[index]
    file_at = as_int64(entry["at"])
    size = as_int64(entry["length"])
    # In this order: sums with the numbers of a corrupt entry could overflow.
    if file_at < shift or file_at - shift > end or size > end - (file_at - shift):
        return VERDICT_HEADER
    at = file_at - shift
    if _batch_size(buffer, at, end, topic_id) != size or load_u32(buffer, at + RECORD_COUNT_AT) != as_int64(
        entry["count"]
    ):
        return VERDICT_HEADER
    if (
        load_u64(buffer, at + BASE_SEQ_AT) != entry["base_seq"]
        or load_u64(buffer, at + POSITION_AT) != entry["position"]
    ):
        return VERDICT_HEADER
    if (
        load_u64(buffer, at + BASE_OFFSET_AT) != entry["base_offset"]
        or load_u64(buffer, at + TIMESTAMP_AT) != entry["timestamp_ns"]
    ):
        return VERDICT_HEADER
    return VERDICT_GOOD if _block_matches(buffer, at, size) != 0 else VERDICT_BLOCK


@kernel(int64(bytes_in, int64, int64, _entries_in, int64, bytes_out))
def verify_entries(buffer: Bytes, end: int, shift: int, entries: Entries, topic_id: int, verdicts: Bytes) -> int:
    """Verify every entry against its batch in `buffer[0:end]`; returns how many are not VERDICT_GOOD.

    `shift` is the file offset of the buffer's first byte. Header fields must equal those of the entry, so the check
    finds both a damaged batch and a stale index. `verdicts` has one byte per entry.
    """
    bad = 0
    for index in range(entries.size):
        verdict = _verify_entry(buffer, end, shift, entries, index, topic_id)
        verdicts[index] = verdict
        if verdict != VERDICT_GOOD:
            bad += 1
    return bad
