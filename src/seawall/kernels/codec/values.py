"""Values that Python has as a list of `bytes`, taken from where they lie: into one block, or into a socket.

    measure_values    what they take in all, or that one of them is something else
    join_values       each as a record of plain bytes, back to back, and the CRC-32C of all
    send_values       the same bytes into a socket, a part at a time, and their CRC-32C behind them: each value is gone
                      through once, and no more of them than a cache holds lies anywhere

No Python runs for a value. The kernels go along the list and into its objects by their addresses, as the interpreter
itself does: `HAS_KNOWN_LAYOUT` says whether it is one whose objects look like this (words of 8 bytes).

    list     3 pointer to the items      bytes    1 type    2 length    4 … the bytes

Whoever calls has the list to himself, and holds it until the call returns: it must not change meanwhile, since kernels
do not hold the GIL. The objects in it cannot change, and live as long as it does.

This module must not know what becomes of a block.
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

#: Whether lists and bytes of this interpreter look as they do here: a GIL, no word between or before these.
HAS_KNOWN_LAYOUT: Final = sys.implementation.name == "cpython" and (
    (object.__basicsize__, list.__basicsize__, bytes.__basicsize__) == (16, 40, 33)
)

_ITEMS_AT = 24
_TYPE_AT = 8
_LENGTH_AT = 16
_CONTENT_AT = 32
_POINTER = 8

#: A record of plain bytes: its type, u8, and length, u32, before the value.
_HEADER = 5
_RAW = 1
#: So many values ahead the object is asked for, which lies anywhere; and so many ahead all that follows its beginning,
#: of a value of up to so many bytes: a processor follows what lies in a row, but every value is a new one.
_AHEAD = 8
_ASKED = 2
_ASKED_SIZE = 4_096
#: So many bytes are summed at once, soon after they were written.
_SUMMED = 8_192

_BYTE = ir.IntType(8)

#: The words of a cursor: the next value, bytes of its record that were joined, and the CRC-32C of all that were.
NEXT = 0
DONE = 1
CRC = 2
#: For who sends: the id of the frame, bytes that somebody put at the beginning of the first part, what of a part is
#: filled and sent, and whether the last part is filled.
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


def _expect(address: int) -> None:
    """Nothing but speed depends on it."""


@primitive(_read_word)
def _word_at(typing_context: Any, address: Any) -> Any:
    """The word at an address."""

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


@primitive(_expect)
def _ask_for(typing_context: Any, address: Any) -> Any:
    """Ask for the line at an address: nothing is read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, number = builder.inttoptr(arguments[0], _BYTE.as_pointer()), ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
        builder.call(ask, [pointer, *(ir.Constant(number, each) for each in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@kernel(int64(int64, int64, int64), available=HAS_KNOWN_LAYOUT)
def measure_values(values: int, count: int, wanted_type: int) -> int:
    """Bytes of all values of a list together, given by its address; −1 if one is not of exactly this type."""
    items = _word_at(values + _ITEMS_AT)
    total = 0
    for index in range(count):
        if index + _AHEAD < count:
            _ask_for(_word_at(items + (index + _AHEAD) * _POINTER))
        item = _word_at(items + index * _POINTER)
        if _word_at(item + _TYPE_AT) != wanted_type:
            return -1
        total += _word_at(item + _LENGTH_AT)
    return total


@kernel(int64(int64, int64, int64_out, bytes_out, int64, int64), available=HAS_KNOWN_LAYOUT)
def join_part(values: int, count: int, cursor: Values, target: Bytes, at: int, end: int) -> int:
    """Write the records that follow into `target[at:end]`, as far as they go; where they end."""
    items = _word_at(values + _ITEMS_AT)
    index, done = cursor[NEXT], cursor[DONE]
    while index < count and at < end:
        item = _word_at(items + index * _POINTER)
        length = _word_at(item + _LENGTH_AT)
        if index + _ASKED < count:
            ahead = _word_at(items + (index + _ASKED) * _POINTER)
            for line in range(0, min(length, _ASKED_SIZE) + _CONTENT_AT, LINE_SIZE):
                _ask_for(ahead + line)
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
    """The same, and sum it while it is near."""
    while at < end and cursor[NEXT] < count:
        start = at
        at = join_part(values, count, cursor, target, at, min(at + _SUMMED, end))
        cursor[CRC] = crc32c(target, start, at, cursor[CRC])
    return at


@kernel(int64(int64, int64, bytes_out), available=HAS_KNOWN_LAYOUT)
def join_values(values: int, count: int, target: Bytes) -> int:
    """Write a record for each value into `target`, which has room for just these; the CRC-32C of it."""
    cursor = np.zeros(CURSOR_SIZE, np.int64)
    join_summed(values, count, cursor, target, 0, target.size)
    return as_int64(cursor[CRC])


@kernel(int64(int64, int64, int64, int64_out, bytes_out), available=HAS_KNOWN_LAYOUT)
def send_values(fd: int, values: int, count: int, cursor: Values, part: Bytes) -> int:
    """Send what `join_values` would write, and a SUM frame, as far as a socket takes it now: bytes, or minus errno.

    What is in `part` and was not sent goes first; it has room for a SUM frame and what was put there at least. All is
    sent when what is sent is all of the last part.
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
