"""Convert header lists of envelopes to nested Arrow columns, and back.

A header list is: count u16, then for each header: length u16, name, length u32, value. In Arrow it is a list of
structs: offsets that assign headers to rows, and one binary column each for names and values.

`count_headers` and `locate_headers` trust the boundaries of the lists, which `columns.locate_envelopes` has validated.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seawall.kernels.runtime.jit import bytes_in, bytes_out, int32_out, int64, int64_in, int64_out, kernel
from seawall.kernels.runtime.memory import Bytes, copy_bytes, load_u16, load_u32, store_u16, store_u32

Integers = npt.NDArray[np.int64]


@kernel(int64(bytes_in, int64_in, int64_in, int64))
def count_headers(block: Bytes, starts: Integers, lengths: Integers, count: int) -> int:
    """Number of headers of all rows; a length of −1 marks a row without a list."""
    total = 0
    for row in range(count):
        if lengths[row] >= 0:
            total += load_u16(block, starts[row])
    return total


@kernel(int64(bytes_in, int64_in, int64_in, int64, int32_out, int64_out, int64_out, int64_out, int64_out))
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
    """Write the start and length of every name and value, and the first header of each row. Returns the header count.

    `list_offsets` has count + 1 elements, each of the others as many as `count_headers` returns.
    """
    header = 0
    for row in range(count):
        list_offsets[row] = header
        if lengths[row] < 0:
            continue
        at = starts[row]
        remaining = load_u16(block, at)
        at += 2
        while remaining > 0:
            length = load_u16(block, at)
            name_starts[header] = at + 2
            name_lengths[header] = length
            at += 2 + length
            length = load_u32(block, at)
            value_starts[header] = at + 4
            value_lengths[header] = length
            at += 4 + length
            header += 1
            remaining -= 1
    list_offsets[count] = header
    return header


@kernel(int64(int64_in, int64, bytes_in, int64_in, bytes_in, int64_in, bytes_out, int64_out, int64_out))
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
    """Write the header lists of all rows back to back. Returns the number of bytes written.

    A row whose length is −1 on entry has no list. The caller has sized `out` for two bytes a row and six a header in
    addition to names and values, and has checked that no row has too many headers and no name is too long.
    """
    at = 0
    for row in range(count):
        starts[row] = at
        if lengths[row] < 0:
            continue
        first = list_offsets[row]
        last = list_offsets[row + 1]
        store_u16(out, at, last - first)
        at += 2
        for header in range(first, last):
            length = name_offsets[header + 1] - name_offsets[header]
            store_u16(out, at, length)
            copy_bytes(out, at + 2, names, name_offsets[header], length)
            at += 2 + length
            length = value_offsets[header + 1] - value_offsets[header]
            store_u32(out, at, length)
            copy_bytes(out, at + 4, values, value_offsets[header], length)
            at += 4 + length
        lengths[row] = at - starts[row]
    return at
