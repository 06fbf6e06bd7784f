"""Encode a Python list of `bytes` as records, directly from the objects: into one block, or into a socket.

    measure_values    the total size of the values, or −1 if one has another type
    join_values       writes each value as a record of plain bytes, back to back; returns the CRC-32C of all
    send_values       sends the same bytes to a socket, a part at a time, followed by their CRC-32C. It passes over each
                      value once, and buffers no more than one part, which fits in the cache

No Python code runs per value. The kernels follow the pointers of the list and its objects, as the interpreter itself
does. `HAS_KNOWN_LAYOUT` says whether the interpreter's objects have this layout (words of 8 bytes):

    list     3 pointer to the items      bytes    1 type    2 length    4 … the bytes

The caller owns the list, and holds it until the call returns: it must not change in the meantime, since kernels do not
hold the GIL. The objects in the list are immutable, and live as long as it does.

This module must not know what the block is used for.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from seawall.kernels.codec.checksum import crc32c
from seawall.kernels.codec.frames import SUM_FRAME_SIZE, write_sum
from seawall.kernels.runtime.jit import bytes_out, int64, int64_out, kernel, primitive
from seawall.kernels.runtime.memory import LINE_SIZE, Bytes, address_of, as_int64, byte_pointer, store_u32
from seawall.kernels.runtime.system import send_some
from seawall.kernels.runtime.tables import Values

#: True if lists and bytes of this interpreter have the layout above: with a GIL, and no additional words.
HAS_KNOWN_LAYOUT: Final = sys.implementation.name == "cpython" and (
    (object.__basicsize__, list.__basicsize__, bytes.__basicsize__) == (16, 40, 33)
)

_ITEMS_AT = 24
_TYPE_AT = 8
_LENGTH_AT = 16
_CONTENT_AT = 32
_POINTER = 8

#: Header of a record of plain bytes: type u8, length u32.
_HEADER = 5
_RAW = 1
#: Prefetch distances, in values: for the first line of an object, and for all its lines up to _PREFETCH_SIZE_MAX bytes.
#: The objects are anywhere in memory, and the hardware prefetcher does not help: it restarts with every value.
_PREFETCH_FIRST_LINE = 8
_PREFETCH_ALL_LINES = 2
_PREFETCH_SIZE_MAX = 4_096
#: Bytes per step of the checksum, computed soon after they were written, while they are cached.
_SUM_STEP = 8_192

_BYTE = ir.IntType(8)

#: Words of a cursor: the next value, the bytes of its record already written, and the CRC-32C of all bytes written.
NEXT = 0
DONE = 1
CRC = 2
#: Only for `send_values`: the id of the frame, the bytes that the caller put at the beginning of the first part, how
#: much of the part is filled and sent, and whether the last part is filled.
FRAME_ID = 3
HEAD = 4
FILLED = 5
SENT = 6
IS_LAST = 7
CURSOR_SIZE = 8


def _read_word(address: int) -> int:
    return ctypes.c_int64.from_address(int(address)).value


def _copy_in(target: Bytes, at: int, address: int, length: int) -> None:
    target[at : at + length] = memoryview(ctypes.string_at(int(address), int(length)))


def _no_prefetch(address: int) -> None:
    """Does nothing: a prefetch only affects speed."""


@primitive(_read_word)
def _word_at(typing_context: Any, address: Any) -> Any:
    """Load the word at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=8)

    return types.int64(types.int64), generate


@primitive(_copy_in)
def _copy_from(typing_context: Any, target: Any, at: Any, address: Any, length: Any) -> Any:
    """`memcpy` from an address into an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, at, address, length = arguments
        to = byte_pointer(context, builder, signature.args[0], target, at, length)
        cgutils.raw_memcpy(builder, to, builder.inttoptr(address, _BYTE.as_pointer()), length, 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64, types.int64), generate


@primitive(_no_prefetch)
def _prefetch(typing_context: Any, address: Any) -> Any:
    """Prefetch the cache line at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, number = builder.inttoptr(arguments[0], _BYTE.as_pointer()), ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, *(ir.Constant(number, each) for each in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@kernel(int64(int64, int64, int64), available=HAS_KNOWN_LAYOUT)
def measure_values(values: int, count: int, wanted_type: int) -> int:
    """Total size of the values of the list at an address; −1 if one is not exactly of this type."""
    items = _word_at(values + _ITEMS_AT)
    total = 0
    for index in range(count):
        if index + _PREFETCH_FIRST_LINE < count:
            _prefetch(_word_at(items + (index + _PREFETCH_FIRST_LINE) * _POINTER))
        item = _word_at(items + index * _POINTER)
        if _word_at(item + _TYPE_AT) != wanted_type:
            return -1
        total += _word_at(item + _LENGTH_AT)
    return total


@kernel(int64(int64, int64, int64_out, bytes_out, int64, int64), available=HAS_KNOWN_LAYOUT)
def join_part(values: int, count: int, cursor: Values, target: Bytes, at: int, end: int) -> int:
    """Write the next records into `target[at:end]`, as far as they fit. Returns the end of the written bytes."""
    items = _word_at(values + _ITEMS_AT)
    index, done = cursor[NEXT], cursor[DONE]
    while index < count and at < end:
        item = _word_at(items + index * _POINTER)
        length = _word_at(item + _LENGTH_AT)
        if index + _PREFETCH_ALL_LINES < count:
            upcoming = _word_at(items + (index + _PREFETCH_ALL_LINES) * _POINTER)
            for line in range(0, min(length, _PREFETCH_SIZE_MAX) + _CONTENT_AT, LINE_SIZE):
                _prefetch(upcoming + line)
        if done == 0 and end - at >= _HEADER:
            target[at] = _RAW
            store_u32(target, at + 1, length)
            at += _HEADER
            done = _HEADER
        while done < _HEADER and at < end:
            target[at] = (_RAW | length << 8) >> (8 * done) & 0xFF
            at += 1
            done += 1
        step = min(_HEADER + length - done, end - at)
        if done >= _HEADER and step > 0:
            _copy_from(target, at, item + _CONTENT_AT + done - _HEADER, step)
            at += step
            done += step
        if done == _HEADER + length:
            index += 1
            done = 0
    cursor[NEXT] = index
    cursor[DONE] = done
    return at


@kernel(int64(int64, int64, int64_out, bytes_out, int64, int64), available=HAS_KNOWN_LAYOUT)
def join_summed(values: int, count: int, cursor: Values, target: Bytes, at: int, end: int) -> int:
    """`join_part`, and update the checksum while the bytes are cached."""
    while at < end and cursor[NEXT] < count:
        start = at
        at = join_part(values, count, cursor, target, at, min(at + _SUM_STEP, end))
        cursor[CRC] = crc32c(target, start, at, cursor[CRC])
    return at


@kernel(int64(int64, int64, bytes_out), available=HAS_KNOWN_LAYOUT)
def join_values(values: int, count: int, target: Bytes) -> int:
    """Write a record for each value into `target`, which has exactly their size. Returns its CRC-32C."""
    cursor = np.zeros(CURSOR_SIZE, np.int64)
    join_summed(values, count, cursor, target, 0, target.size)
    return as_int64(cursor[CRC])


@kernel(int64(int64, int64, int64, int64_out, bytes_out), available=HAS_KNOWN_LAYOUT)
def send_values(fd: int, values: int, count: int, cursor: Values, part: Bytes) -> int:
    """Send the bytes that `join_values` would write, and a SUM frame, as far as the socket accepts them now.

    Unsent bytes of `part` go first. `part` is at least as large as a SUM frame and the bytes that the caller put there.
    Everything is sent when the last part is sent in full. Returns the bytes sent, or minus errno.
    """
    total = 0
    while True:
        if cursor[SENT] == cursor[FILLED]:
            if cursor[IS_LAST] == 1:
                return total
            end = join_summed(values, count, cursor, part, cursor[HEAD], part.size)
            if cursor[NEXT] == count and end + SUM_FRAME_SIZE <= part.size:
                write_sum(part, end, cursor[FRAME_ID], cursor[CRC])
                end += SUM_FRAME_SIZE
                cursor[IS_LAST] = 1
            cursor[FILLED] = end
            cursor[SENT] = cursor[HEAD] = 0
        size = cursor[FILLED] - cursor[SENT]
        sent = send_some(fd, address_of(part, cursor[SENT]), size)
        if sent < 0 and total == 0:
            return sent
        cursor[SENT] += max(0, sent)
        total += max(0, sent)
        if sent < size:
            return total
