"""Copy some records of a block to another block, optionally without their node or tag: what a router makes.

The records and their fields were located before (`blocks.scan_block`, `columns.locate_envelopes`); their spans are
trusted here. A record is copied if its seq is live, and if its tag and its node match. Records that lose no field are
copied byte for byte.

The new block is never larger than the old one, so space for the old one is enough.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba.core import types

from seawall.kernels.codec.blocks import TYPE_EXTENDED
from seawall.kernels.codec.columns import (
    COLUMN_NODE,
    COLUMN_TAG,
    ENVELOPE_TYPE,
    FLAG_NODE,
    FLAG_TAG,
    Spans,
)
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, int64_in, int64_out, kernel
from seawall.kernels.runtime.memory import Bytes, as_int64, copy_bytes, load_u16, store_u16, store_u32

Integers = npt.NDArray[np.int64]

#: How a field must match a text; a record without the field matches nothing but ANY.
MATCH_ANY = 0
MATCH_EQUAL = 1
MATCH_PREFIX = 2

#: Indexes in `state`: bytes written, and the number of records that lost a field.
ROUTED_SIZE = 0
ROUTED_CHANGED = 1
ROUTED_STATE = 2

_EXTENDED_HEADER = 7
_spans_in = types.Array(types.int64, 2, "C", readonly=True)


@kernel(int64(bytes_in, int64, int64, bytes_in, int64))
def _matches(block: Bytes, start: int, length: int, text: Bytes, how: int) -> int:
    """1 if a field matches a text; a length of -1 means that there is no field."""
    if how == MATCH_ANY:
        return 1
    if length < text.size or (how == MATCH_EQUAL and length != text.size):
        return 0
    for index in range(text.size):
        if block[start + index] != text[index]:
            return 0
    return 1


@kernel(int64(bytes_in, int64, int64, int64, _spans_in, _spans_in, int64, bytes_out, int64))
def _copy_without(
    block: Bytes, at: int, end: int, index: int, starts: Spans, lengths: Spans, cut: int, out: Bytes, size: int
) -> int:
    """Copy an envelope without the fields whose flags are in `cut`; returns the end of the copy."""
    value = at + _EXTENDED_HEADER
    record = size
    size += _EXTENDED_HEADER + 2
    taken = value + 2
    for column in range(COLUMN_NODE, COLUMN_TAG + 1):
        if cut & (1 << column):
            field = starts[column, index] - 4
            copy_bytes(out, size, block, taken, field - taken)
            size += field - taken
            taken = starts[column, index] + lengths[column, index]
    copy_bytes(out, size, block, taken, end - taken)
    size += end - taken
    out[record] = TYPE_EXTENDED
    store_u16(out, record + 1, ENVELOPE_TYPE)
    store_u32(out, record + 3, size - record - _EXTENDED_HEADER)
    store_u16(out, record + _EXTENDED_HEADER, load_u16(block, value) & ~cut)
    return size


@kernel(
    int64(
        *(bytes_in, int64_in, int64, _spans_in, _spans_in, int64, int64_in, int64_in),
        *(bytes_in, int64, bytes_in, int64, int64, bytes_out, int64_out),
    )
)
def route_records(
    block: Bytes,
    offsets: Integers,
    count: int,
    starts: Spans,
    lengths: Spans,
    base_seq: int,
    live_firsts: Integers,
    live_lasts: Integers,
    tag: Bytes,
    tag_match: int,
    node: Bytes,
    node_match: int,
    cut: int,
    out: Bytes,
    state: Integers,
) -> int:
    """Copy the live records that match, without the fields `cut` (FLAG_NODE, FLAG_TAG). Returns how many there are.

    Record i has the seq `base_seq` + i. The live ranges ascend. `out` is as large as `block`.
    """
    copied = 0
    size = 0
    changed = 0
    live_range = 0
    for index in range(count):
        seq = base_seq + index
        while live_range < live_lasts.size and live_lasts[live_range] < seq:
            live_range += 1
        if live_range == live_lasts.size:
            break
        if live_firsts[live_range] > seq:
            continue
        if not _matches(block, starts[COLUMN_TAG, index], lengths[COLUMN_TAG, index], tag, tag_match):
            continue
        if not _matches(block, starts[COLUMN_NODE, index], lengths[COLUMN_NODE, index], node, node_match):
            continue
        at = offsets[index]
        end = as_int64(offsets[index + 1])
        lost = 0
        if lengths[COLUMN_NODE, index] >= 0:
            lost |= FLAG_NODE
        if lengths[COLUMN_TAG, index] >= 0:
            lost |= FLAG_TAG
        lost &= cut
        if lost:
            size = _copy_without(block, at, end, index, starts, lengths, lost, out, size)
            changed += 1
        else:
            copy_bytes(out, size, block, at, end - at)
            size += end - at
        copied += 1
    state[ROUTED_SIZE] = size
    state[ROUTED_CHANGED] = changed
    return copied
