"""Reads the options of jobs from the headers of their records; `wire.jobs.options` defines them.

A record has options only if it is a well-formed envelope with headers. The first header of a name counts, and one with
a bad value is the same as none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba.core import types

from seawall.kernels.codec.blocks import TYPE_EXTENDED, Offsets
from seawall.kernels.codec.columns import COLUMN_HEADERS, ENVELOPE_TYPE, FLAG_HEADERS, Spans, locate_envelopes
from seawall.kernels.runtime.jit import bytes_in, int64, int64_in, int64_out, kernel
from seawall.kernels.runtime.memory import Bytes, as_int64, load_u16, load_u32

Integers = npt.NDArray[np.int64]

#: The names of the options, in the order of their indexes, and the index of each.
OPTION_NAMES = (b"seawall-not-before", b"seawall-priority", b"seawall-unique")
OPTION_NOT_BEFORE = 0
OPTION_PRIORITY = 1
OPTION_UNIQUE = 2
OPTIONS = 3

#: Most digits of a time, so that it fits a signed number, and most bytes of a unique key.
DIGITS_MAX = 18
UNIQUE_SIZE_MAX = 255

_NO_NUMBER = -1
_EXTENDED_HEADER = 7
_ZERO = 0x30
_spans = types.Array(types.int64, 2, "C")


@kernel(int64(bytes_in, int64, int64, bytes_in, int64_in))
def _option_of(block: Bytes, at: int, length: int, names: Bytes, name_ends: Integers) -> int:
    """The index of the option with this name, or -1."""
    start = 0
    for option in range(OPTIONS):
        end = name_ends[option]
        if length == end - start:
            same = 0
            while same < length and block[at + same] == names[start + same]:
                same += 1
            if same == length:
                return option
        start = end
    return -1


@kernel(int64(bytes_in, int64, int64, int64))
def _number(block: Bytes, at: int, length: int, digits_max: int) -> int:
    """A number of 1 to `digits_max` decimal digits, or _NO_NUMBER."""
    if not 1 <= length <= digits_max:
        return _NO_NUMBER
    number = 0
    for each in range(at, at + length):
        digit = as_int64(block[each]) - _ZERO
        if not 0 <= digit <= 9:
            return _NO_NUMBER
        number = number * 10 + digit
    return number


@kernel(int64(bytes_in, int64_in, int64, bytes_in, int64_in, _spans, _spans, int64_out, _spans))
def read_job_options(
    block: Bytes,
    offsets: Offsets,
    count: int,
    names: Bytes,
    name_ends: Integers,
    starts: Spans,
    lengths: Spans,
    timestamps: Integers,
    options: Spans,
) -> int:
    """Write the options of each record; returns how many records have one.

    `options` has four rows: time, priority, start of the unique key, its length (−1: none); the caller has filled them
    with the defaults. `names` has the OPTION_NAMES back to back, `name_ends` the end of each. `starts`, `lengths` and
    `timestamps` are scratch space for one record.
    """
    found = 0
    for index in range(count):
        at = offsets[index]
        if as_int64(block[at]) != TYPE_EXTENDED or offsets[index + 1] - at < _EXTENDED_HEADER + 4:
            continue
        if load_u16(block, at + 1) != ENVELOPE_TYPE or load_u16(block, at + _EXTENDED_HEADER) & FLAG_HEADERS == 0:
            continue
        locate_envelopes(block, offsets[index : index + 2], 1, starts, lengths, timestamps)
        if lengths[COLUMN_HEADERS, 0] < 0:
            continue
        at = starts[COLUMN_HEADERS, 0]
        remaining = load_u16(block, at)
        at += 2
        seen = 0
        is_found = 0
        while remaining > 0:
            name_length = load_u16(block, at)
            option = _option_of(block, at + 2, name_length, names, name_ends)
            at += 2 + name_length
            length = load_u32(block, at)
            at += 4
            if option >= 0 and seen & (1 << option) == 0:
                seen |= 1 << option
                if option == OPTION_UNIQUE:
                    if 1 <= length <= UNIQUE_SIZE_MAX:
                        options[OPTION_UNIQUE, index] = at
                        options[OPTION_UNIQUE + 1, index] = length
                        is_found = 1
                else:
                    number = _number(block, at, length, DIGITS_MAX if option == OPTION_NOT_BEFORE else 1)
                    if number != _NO_NUMBER:
                        options[option, index] = number
                        is_found = 1
            at += length
            remaining -= 1
        found += is_found
    return found
