"""The byte stream of version 1, unit by unit from copies of the bytes; each unit is converted whole, then cut."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from seawall.kernels.codec.v1_stream import (
    SHOW_COMPRESSED,
    SHOW_DONE,
    SHOW_ENTRY,
    SHOW_FROM,
    SHOW_FULL,
    SHOW_LIMIT,
    SHOW_MALFORMED,
    SHOW_NEXT,
    SHOW_RUN,
    SHOW_SIZE,
    SHOW_SIZE_MAX,
    SHOW_UNITS,
    Integers,
)
from seawall.kernels.log.segments import Entries
from seawall.kernels.runtime.memory import Bytes


class _MalformedError(Exception):
    """A block that is not a run of records."""


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
    """Show the live, requested units of a plain block."""
    stored = block[start:end].tobytes()
    ranges = list(zip(live_firsts.tolist(), live_lasts.tolist(), strict=True))
    units = iter([stored]) if is_opaque else _shown_records(stored, record_count)
    offset = base_offset
    try:
        for seq, unit in enumerate(units, base_seq):
            while state[SHOW_RUN] < len(ranges) and ranges[state[SHOW_RUN]][1] < seq:
                state[SHOW_RUN] += 1
            is_live = state[SHOW_RUN] < len(ranges) and ranges[state[SHOW_RUN]][0] <= seq
            if is_live and not _shown(unit, offset, state, out):
                return SHOW_FULL
            offset += len(unit)
    except _MalformedError:
        return SHOW_MALFORMED
    return SHOW_DONE


def show_batches(
    buffer: Bytes,
    shift: int,
    entries: Entries,
    live_firsts: Integers,
    live_lasts: Integers,
    state: Integers,
    out: Bytes,
) -> int:
    """Show the live, requested units of verified batches."""
    for base_seq, at, _, base_offset, _, count, length in entries.tolist()[state[SHOW_ENTRY] :]:
        codec, flags = buffer[at - shift + 94 : at - shift + 96].tolist()
        if codec:
            return SHOW_COMPRESSED
        block = buffer[at - shift + 96 : at - shift + length]
        numbers = (base_seq, base_offset, count, flags & 2)
        code = show_block(block, 0, len(block), *numbers, live_firsts, live_lasts, state, out)
        if code != SHOW_DONE:
            return code
        state[SHOW_ENTRY] += 1
    return SHOW_DONE


def _shown(unit: bytes, offset: int, state: Integers, out: Bytes) -> bool:
    """Show one unit. Returns False if it does not fit, or nothing fits after it."""
    before = max(0, int(state[SHOW_FROM]) - offset)
    wanted = unit[before:]
    if not wanted:
        return True
    if state[SHOW_LIMIT] < 0:
        state[SHOW_LIMIT] = offset + before + state[SHOW_SIZE_MAX]
    size = int(state[SHOW_SIZE])
    if offset + len(unit) > state[SHOW_LIMIT] or size + len(wanted) > len(out):
        if size:
            return False
        wanted = wanted[: len(out)]
    out[size : size + len(wanted)] = np.frombuffer(wanted, np.uint8)
    state[SHOW_SIZE] += len(wanted)
    state[SHOW_UNITS] += not before
    state[SHOW_NEXT] = offset + before + len(wanted)
    return before + len(wanted) == len(unit)


def _shown_records(block: bytes, count: int) -> Iterator[bytes]:
    """Each record of a block as version 1 sees it."""
    found = 0
    while block:
        if len(block) < 5 or found >= count:
            raise _MalformedError
        record_type, length = struct.unpack_from("<BI", block)
        header = 5
        shown = block[:5]
        if record_type == 0xFF and length:
            if len(block) < 7 or not length & 0xFFFF:
                raise _MalformedError
            _, extended, length = struct.unpack_from("<BHI", block)
            header = 7
            shown = struct.pack("<BIH", 0x7E, (length + 2) & 0xFFFF_FFFF, extended)
        if length > len(block) - header:
            raise _MalformedError
        yield shown + block[header : header + length]
        found += 1
        block = block[header + length :]
    if found != count:
        raise _MalformedError
