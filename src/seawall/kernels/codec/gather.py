"""Convert stored batches of plain records directly to columns: one pass, one copy of each value.

Most topics hold records without an envelope. Verified batches of such records go through this kernel into one set of
Arrow buffers: offsets and data of the values, the seq and the type of each record. It joins no batches and builds no
span table, so the bytes are still cached when they are copied.

A run ends at anything that is not plain (compressed or opaque batches, envelopes, nulls), and the caller falls back to
the general path (`columns.py`). Seqs outside the live ranges are skipped, and so are deleted records (type 00, no
value).

No byte outside a batch is read and none outside the buffers is written, whatever a block says.
`segments.verify_entries` has checked that each batch matches its entry and is inside `buffer`.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types

from seawall.kernels.codec.batch_header import CODEC_AT, HEADER_SIZE
from seawall.kernels.codec.blocks import EXTENDED_BASE, TYPE_DELETED, TYPE_EXTENDED
from seawall.kernels.codec.columns import ENVELOPE_TYPE
from seawall.kernels.log.segments import INDEX_ENTRY, Entries
from seawall.kernels.runtime.jit import (
    bytes_in,
    bytes_out,
    int32_out,
    int64,
    int64_in,
    int64_out,
    kernel,
    uint32_out,
    uint64_out,
)
from seawall.kernels.runtime.memory import (
    Bytes,
    as_int64,
    copy_out,
    load_u16,
    load_u32,
)

Integers = npt.NDArray[np.int64]

#: Results: all records are in the columns; a batch or record is not plain; a block contradicts the record count of its
#: batch.
GATHER_DONE = 0
GATHER_NOT_PLAIN = 1
GATHER_MALFORMED = 2

#: Indexes in `state`, in and out: rows written, bytes of data written, the live range last compared with a seq.
GATHER_ROWS = 0
GATHER_SIZE = 1
GATHER_RUN = 2
GATHER_STATE = 3

_RECORD_HEADER = 5
_EXTENDED_HEADER = 7

_entries_in = types.Array(numba.from_dtype(INDEX_ENTRY), 1, "C", readonly=True)


@kernel(
    int64(bytes_in, int64, _entries_in, int64_in, int64_in, int64_out, int32_out, bytes_out, uint64_out, uint32_out)
)
def gather_values(
    buffer: Bytes,
    shift: int,
    entries: Entries,
    live_firsts: Integers,
    live_lasts: Integers,
    state: Integers,
    arrow_offsets: npt.NDArray[np.int32],
    data: Bytes,
    seqs: npt.NDArray[np.uint64],
    record_types: npt.NDArray[np.uint32],
) -> int:
    """Append the live records of verified batches to the columns. Returns a GATHER code.

    `shift` is the file position of the buffer's first byte. The live ranges ascend. The columns have space for every
    record that the entries count, `arrow_offsets` for one more: it starts with 0, then has the end of each row written
    so far. After any code but GATHER_DONE the columns are incomplete.
    """
    rows = state[GATHER_ROWS]
    size = state[GATHER_SIZE]
    live_range = state[GATHER_RUN]
    for index in range(entries.size):
        entry = entries[index]
        start = as_int64(entry["at"]) - shift
        end = start + as_int64(entry["length"])
        if load_u16(buffer, start + CODEC_AT) != 0:
            return GATHER_NOT_PLAIN
        seq = as_int64(entry["base_seq"])
        end_seq = seq + as_int64(entry["count"])
        at = start + HEADER_SIZE
        while at < end:
            if end - at < _RECORD_HEADER or seq >= end_seq:
                return GATHER_MALFORMED
            record_type = as_int64(buffer[at])
            length = load_u32(buffer, at + 1)
            at += _RECORD_HEADER
            if record_type == TYPE_EXTENDED:
                extended = load_u16(buffer, at - 4)
                if length == 0 or extended == ENVELOPE_TYPE:
                    return GATHER_NOT_PLAIN
                if extended == 0 or end - at < _EXTENDED_HEADER - _RECORD_HEADER:
                    return GATHER_MALFORMED
                record_type = EXTENDED_BASE + extended
                length = load_u32(buffer, at - 2)
                at += _EXTENDED_HEADER - _RECORD_HEADER
            if length > end - at:
                return GATHER_MALFORMED
            while live_range < live_lasts.size and live_lasts[live_range] < seq:
                live_range += 1
            is_live = live_range < live_lasts.size and live_firsts[live_range] <= seq
            if is_live and (length > 0 or record_type != TYPE_DELETED):
                if length > data.size - size or rows >= seqs.size:
                    return GATHER_MALFORMED
                copy_out(data, size, buffer, at, length)
                size += length
                seqs[rows] = seq
                record_types[rows] = record_type
                rows += 1
                arrow_offsets[rows] = size
            at += length
            seq += 1
        if seq != end_seq:
            return GATHER_MALFORMED
    state[GATHER_ROWS] = rows
    state[GATHER_SIZE] = size
    state[GATHER_RUN] = live_range
    return GATHER_DONE
