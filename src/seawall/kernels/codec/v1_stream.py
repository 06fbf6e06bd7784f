"""Convert stored batches to the byte stream of version 1: live units from an offset on, as many as fit.

A *unit* is a record, or the whole block of an opaque batch. It has the same bytes in the stream as in its block, except
for an extended record: version 1 sees it as a record of type 7E of the same size:

    stored    [FF][type u16][length u32][value]
    shown     [7E][length + 2 u32][type u16][value]

Units that are not live are skipped, and so are bytes before the requested offset; a unit that contains the offset is
shown from that byte on. The first unit is always shown in full, even beyond the requested size, as far as `out` allows;
every other unit only if it ends within the requested size. A compressed batch ends the run: the caller decompresses it
and shows its plain block.

No byte outside a block is read and none outside `out` is written, whatever the bytes say. `segments.verify_entries` has
checked that each batch matches its entry and is inside `buffer`.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types

from seawall.kernels.codec.batch_header import CODEC_AT, FLAGS_AT, HEADER_SIZE
from seawall.kernels.codec.blocks import TYPE_EXTENDED, TYPE_SHOWN_EXTENDED
from seawall.kernels.log.segments import INDEX_ENTRY, Entries
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, int64_in, int64_out, kernel
from seawall.kernels.runtime.memory import Bytes, as_int64, copy_bytes, load_u16, load_u32

Integers = npt.NDArray[np.int64]

#: Results: all entries are processed; the next unit does not fit; the next batch is compressed; a block contradicts the
#: record count of its batch.
SHOW_DONE = 0
SHOW_FULL = 1
SHOW_COMPRESSED = 2
SHOW_MALFORMED = 3

#: Indexes in `state`. In: the first requested offset, and the requested number of bytes. In and out: bytes shown, units
#: begun in them, the offset after the last one, the offset that no unit may end beyond (-1 before the first unit), the
#: live range last compared with a seq, and the next entry.
SHOW_FROM = 0
SHOW_SIZE_MAX = 1
SHOW_SIZE = 2
SHOW_UNITS = 3
SHOW_NEXT = 4
SHOW_LIMIT = 5
SHOW_RUN = 6
SHOW_ENTRY = 7
SHOW_STATE = 8

FLAG_OPAQUE = 0x02

_RECORD_HEADER = 5
_EXTENDED_HEADER = 7

_entries_in = types.Array(numba.from_dtype(INDEX_ENTRY), 1, "C", readonly=True)


@kernel(int64(bytes_in, int64, int64))
def _shown_header_byte(block: Bytes, at: int, index: int) -> int:
    """One byte of the header that version 1 sees for the extended record at `at`."""
    if index == 0:
        return TYPE_SHOWN_EXTENDED
    if index < _RECORD_HEADER:
        return ((load_u32(block, at + 3) + 2) >> (8 * (index - 1))) & 0xFF
    return as_int64(block[at + 1 + index - _RECORD_HEADER])


@kernel(int64(bytes_in, int64, int64, int64, int64, int64_out, bytes_out))
def _show_unit(block: Bytes, at: int, size: int, offset: int, extended: int, state: Integers, out: Bytes) -> int:
    """Show the requested part of a live unit. Returns SHOW_DONE, or SHOW_FULL if it or the next unit does not fit."""
    begin = max(offset, as_int64(state[SHOW_FROM]))
    end = offset + size
    if end <= begin:
        return SHOW_DONE
    shown = as_int64(state[SHOW_SIZE])
    if state[SHOW_LIMIT] < 0:
        state[SHOW_LIMIT] = begin + state[SHOW_SIZE_MAX]
    if end > state[SHOW_LIMIT] or end - begin > out.size - shown:
        if shown > 0:
            return SHOW_FULL
        end = min(end, begin + out.size)
    copy_bytes(out, shown, block, at + begin - offset, end - begin)
    if extended != 0:
        for index in range(begin - offset, min(_EXTENDED_HEADER, end - offset)):
            out[shown + index - (begin - offset)] = _shown_header_byte(block, at, index)
    if begin == offset:
        state[SHOW_UNITS] += 1
    state[SHOW_SIZE] = shown + end - begin
    state[SHOW_NEXT] = end
    return SHOW_DONE if end == offset + size else SHOW_FULL


@kernel(int64(int64, int64_in, int64_in, int64_out))
def _is_live(seq: int, live_firsts: Integers, live_lasts: Integers, state: Integers) -> int:
    live_range = as_int64(state[SHOW_RUN])
    while live_range < live_lasts.size and live_lasts[live_range] < seq:
        live_range += 1
    state[SHOW_RUN] = live_range
    return as_int64(live_range < live_lasts.size and live_firsts[live_range] <= seq)


@kernel(int64(bytes_in, int64, int64, int64, int64, int64, int64, int64_in, int64_in, int64_out, bytes_out))
def show_block(
    block: Bytes,
    start: int,
    end: int,
    base_seq: int,
    base_offset: int,
    record_count: int,
    is_opaque: int,
    live_firsts: Integers,
    live_lasts: Integers,
    state: Integers,
    out: Bytes,
) -> int:
    """Show the live, requested units of the plain block `block[start:end]`. Returns a SHOW code."""
    if is_opaque != 0:
        if _is_live(base_seq, live_firsts, live_lasts, state) == 0:
            return SHOW_DONE
        return _show_unit(block, start, end - start, base_offset, 0, state, out)
    at = start
    seq = base_seq
    while at < end:
        if end - at < _RECORD_HEADER or seq >= base_seq + record_count:
            return SHOW_MALFORMED
        length = load_u32(block, at + 1)
        header = _RECORD_HEADER
        extended = 0
        if as_int64(block[at]) == TYPE_EXTENDED and length != 0:
            extended = load_u16(block, at + 1)
            if extended == 0 or end - at < _EXTENDED_HEADER:
                return SHOW_MALFORMED
            length = load_u32(block, at + 3)
            header = _EXTENDED_HEADER
        if length > end - at - header:
            return SHOW_MALFORMED
        if _is_live(seq, live_firsts, live_lasts, state) != 0:
            code = _show_unit(block, at, header + length, base_offset + at - start, extended, state, out)
            if code != SHOW_DONE:
                return code
        at += header + length
        seq += 1
    return SHOW_DONE if seq == base_seq + record_count else SHOW_MALFORMED


@kernel(int64(bytes_in, int64, _entries_in, int64_in, int64_in, int64_out, bytes_out))
def show_batches(
    buffer: Bytes,
    shift: int,
    entries: Entries,
    live_firsts: Integers,
    live_lasts: Integers,
    state: Integers,
    out: Bytes,
) -> int:
    """Show the live, requested units of verified batches, from entry `state[SHOW_ENTRY]` on. Returns a SHOW code.

    `shift` is the file position of the buffer's first byte. The live ranges ascend.
    """
    for index in range(state[SHOW_ENTRY], entries.size):
        entry = entries[index]
        at = as_int64(entry["at"]) - shift
        if as_int64(buffer[at + CODEC_AT]) != 0:
            return SHOW_COMPRESSED
        code = show_block(
            buffer,
            at + HEADER_SIZE,
            at + as_int64(entry["length"]),
            as_int64(entry["base_seq"]),
            as_int64(entry["base_offset"]),
            as_int64(entry["count"]),
            as_int64(buffer[at + FLAGS_AT]) & FLAG_OPAQUE,
            live_firsts,
            live_lasts,
            state,
            out,
        )
        if code != SHOW_DONE:
            return code
        state[SHOW_ENTRY] = index + 1
    return SHOW_DONE
