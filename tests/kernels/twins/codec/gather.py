"""Plain records of stored batches, parsed one at a time from copies of the bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from seawall.kernels.codec.gather import (
    GATHER_DONE,
    GATHER_MALFORMED,
    GATHER_NOT_PLAIN,
    GATHER_ROWS,
    GATHER_RUN,
    GATHER_SIZE,
    Integers,
)
from seawall.kernels.log.segments import Entries
from seawall.kernels.runtime.memory import Bytes

_ENVELOPE = 1


class _NotPlainError(Exception):
    """A record that needs the general path."""


class _MalformedError(Exception):
    """A block that is not a run of records."""


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
    """Append the live records of verified batches to the columns."""
    rows, size, live_range = (int(state[index]) for index in (GATHER_ROWS, GATHER_SIZE, GATHER_RUN))
    ranges = list(zip(live_firsts.tolist(), live_lasts.tolist(), strict=True))
    for base_seq, at, _, _, _, count, length in entries.tolist():
        stored = buffer[at - shift : at - shift + length].tobytes()
        if stored[94] or stored[95]:
            return GATHER_NOT_PLAIN
        try:
            for seq, record_type, value in _records(stored[96:], base_seq, count):
                while live_range < len(ranges) and ranges[live_range][1] < seq:
                    live_range += 1
                is_live = live_range < len(ranges) and ranges[live_range][0] <= seq
                if not is_live or (not value and record_type == 0):
                    continue
                if size + len(value) > len(data) or rows >= len(seqs):
                    return GATHER_MALFORMED
                data[size : size + len(value)] = np.frombuffer(value, np.uint8)
                size += len(value)
                seqs[rows], record_types[rows], arrow_offsets[rows + 1] = seq, record_type, size
                rows += 1
        except _NotPlainError:
            return GATHER_NOT_PLAIN
        except _MalformedError:
            return GATHER_MALFORMED
    state[GATHER_ROWS], state[GATHER_SIZE], state[GATHER_RUN] = rows, size, live_range
    return GATHER_DONE


def _records(block: bytes, base_seq: int, count: int) -> Iterator[tuple[int, int, bytes]]:
    """Each record of a block with its seq, type and value, up to the first that is not plain."""
    found = 0
    while block:
        if len(block) < 5 or found >= count:
            raise _MalformedError
        record_type, length = struct.unpack_from("<BI", block)
        header = 5
        if record_type == 0xFF:
            extended = struct.unpack_from("<H", block, 1)[0]
            if length == 0 or extended == _ENVELOPE:
                raise _NotPlainError
            if extended == 0 or len(block) < 7:
                raise _MalformedError
            record_type, length, header = 0x10000 + extended, struct.unpack_from("<I", block, 3)[0], 7
        if length > len(block) - header:
            raise _MalformedError
        yield base_seq + found, record_type, block[header : header + length]
        found += 1
        block = block[header + length :]
    if found != count:
        raise _MalformedError
