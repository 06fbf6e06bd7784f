"""Payloads of version 1 frames: which ones become one block together, and which ones batches of their own.

A payload that is exactly a run of records, `[type u8][length u32][value]` each and a type FF of length 0 only, keeps
its bytes and its boundaries wherever its records are stored; so payloads of one topic, one behind the other, are one
block. Everything else ends the run: another topic, other flags, an empty payload, and one that is no run of records,
which has to stay a unit of its own: an opaque one.

INV-PAYLOAD-BOUNDS: no byte outside a frame is read and none outside `block` is written, whatever the bytes say.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seawall.kernels.blocks import TYPE_EXTENDED
from seawall.kernels.frames import FRAME_ROW, KIND_BATCH, Rows
from seawall.kernels.jit import bytes_in, bytes_out, int64, int64_out, kernel, record_array
from seawall.kernels.memory import Bytes, as_int64, copy_bytes, load_u32

Integers = npt.NDArray[np.int64]

#: Places in `state`, out: bytes of the block, and records in it.
PAYLOADS_SIZE = 0
PAYLOADS_RECORDS = 1
PAYLOADS_STATE = 2

_FRAME_HEADER = 44
_RECORD_HEADER = 5


@kernel(int64(bytes_in, int64, int64))
def count_v1_records(buffer: Bytes, start: int, end: int) -> int:
    """Records of the payload `buffer[start:end]` if it is exactly a run of them, else 0: then it is one opaque unit."""
    count = 0
    at = start
    while end - at >= _RECORD_HEADER:
        length = load_u32(buffer, at + 1)
        if length > end - at - _RECORD_HEADER or (length != 0 and as_int64(buffer[at]) == TYPE_EXTENDED):
            return 0
        at += _RECORD_HEADER + length
        count += 1
    return count if at == end else 0


@kernel(int64(bytes_in, record_array(FRAME_ROW), int64, int64, bytes_out, int64_out))
def gather_payloads(buffer: Bytes, rows: Rows, first: int, records_max: int, block: Bytes, state: Integers) -> int:
    """Put the payloads of a run of frames from `first` on into `block`; how many frames that were, maybe none.

    The run ends before the frame whose payload the block has no room for, or whose records would be more than
    `records_max` with those before it.
    """
    size = 0
    records = 0
    taken = 0
    topic_id = as_int64(rows[first]["topic_id"])
    for index in range(first, rows.size):
        row = rows[index]
        length = as_int64(row["payload_length"])
        if as_int64(row["topic_id"]) != topic_id or (as_int64(row["kind"]) | KIND_BATCH) != KIND_BATCH:
            break
        start = as_int64(row["at"]) + _FRAME_HEADER
        if length > block.size - size:
            break
        count = count_v1_records(buffer, start, start + length)
        if count == 0 or count > records_max - records:
            break
        copy_bytes(block, size, buffer, start, length)
        size += length
        records += count
        taken += 1
    state[PAYLOADS_SIZE] = size
    state[PAYLOADS_RECORDS] = records
    return taken


@kernel(int64(bytes_in, record_array(FRAME_ROW), int64, int64))
def count_opaque_payloads(buffer: Bytes, rows: Rows, first: int, size_max: int) -> int:
    """How many frames from `first` on bring opaque payloads to one topic, of at most so many bytes together."""
    size = 0
    taken = 0
    topic_id = as_int64(rows[first]["topic_id"])
    for index in range(first, rows.size):
        row = rows[index]
        length = as_int64(row["payload_length"])
        if as_int64(row["topic_id"]) != topic_id or (as_int64(row["kind"]) | KIND_BATCH) != KIND_BATCH:
            break
        size += length
        start = as_int64(row["at"]) + _FRAME_HEADER
        if length == 0 or size > size_max or count_v1_records(buffer, start, start + length) != 0:
            break
        taken += 1
    return taken
