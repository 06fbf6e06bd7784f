"""Header lists parsed and built with `struct`."""

from __future__ import annotations

import struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Integers: TypeAlias = npt.NDArray[np.int64]


def _headers(block: Bytes, start: int, length: int) -> list[tuple[int, int, int, int]]:
    """(start of name, its length, start of value, its length) of each header of one list."""
    data = block[start : start + length].tobytes()
    found = []
    at = 2
    for _ in range(struct.unpack_from("<H", data)[0]):
        (name_length,) = struct.unpack_from("<H", data, at)
        (value_length,) = struct.unpack_from("<I", data, at + 2 + name_length)
        value_at = at + 2 + name_length + 4
        found.append((start + at + 2, name_length, start + value_at, value_length))
        at = value_at + value_length
    return found


def count_headers(block: Bytes, starts: Integers, lengths: Integers, count: int) -> int:
    """Number of headers in all present lists."""
    rows = [(int(starts[row]), int(lengths[row])) for row in range(count) if lengths[row] >= 0]
    return sum(len(_headers(block, start, length)) for start, length in rows)


def locate_headers(
    block: Bytes,
    starts: Integers,
    lengths: Integers,
    count: int,
    list_offsets: npt.NDArray[np.int32],
    name_starts: Integers,
    name_lengths: Integers,
    value_starts: Integers,
    value_lengths: Integers,
) -> int:
    """Write the spans of all headers in order, and the first header of each row. Returns their number."""
    found: list[tuple[int, int, int, int]] = []
    for row in range(count):
        list_offsets[row] = len(found)
        if lengths[row] >= 0:
            found += _headers(block, int(starts[row]), int(lengths[row]))
    list_offsets[count] = len(found)
    for header, spans in enumerate(found):
        name_starts[header], name_lengths[header], value_starts[header], value_lengths[header] = spans
    return len(found)


def encode_headers(
    list_offsets: Integers,
    count: int,
    names: Bytes,
    name_offsets: Integers,
    values: Bytes,
    value_offsets: Integers,
    out: Bytes,
    starts: Integers,
    lengths: Integers,
) -> int:
    """Write the lists of all rows back to back, with the start and length of each. Returns the total size."""
    joined = bytearray()
    for row in range(count):
        starts[row] = len(joined)
        if lengths[row] < 0:
            continue
        first, last = int(list_offsets[row]), int(list_offsets[row + 1])
        joined += struct.pack("<H", last - first)
        for header in range(first, last):
            name = names[name_offsets[header] : name_offsets[header + 1]].tobytes()
            value = values[value_offsets[header] : value_offsets[header + 1]].tobytes()
            joined += struct.pack("<H", len(name)) + name + struct.pack("<I", len(value)) + value
        lengths[row] = len(joined) - starts[row]
    out[: len(joined)] = np.frombuffer(bytes(joined), np.uint8)
    return len(joined)
