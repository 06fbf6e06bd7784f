"""Values that Python has as a list of `bytes`, taken from where they lie: into one block, summed while it is near.

    measure_values    what they take in all, or that one of them is something else
    join_values       each as a record of plain bytes, back to back, and the CRC-32C of all

No Python runs for a value. The kernels go along the list and into its objects by their addresses, as the interpreter
itself does: `HAS_KNOWN_LAYOUT` says whether it is one whose objects look like this (words of 8 bytes).

    list     3 pointer to the items      bytes    1 type    2 length    4 … the bytes

INV-VALUES-HELD: whoever calls has the list to himself, and holds it until the call returns: it must not change
meanwhile, since kernels do not hold the GIL. The objects in it cannot change, and live as long as it does.

This module must not know what becomes of a block.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types

from seawall.kernels.checksum import crc32c
from seawall.kernels.jit import bytes_out, int64, kernel, primitive
from seawall.kernels.memory import Bytes, byte_pointer, store_u32

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
#: So many values ahead the object is asked for: they lie anywhere.
_AHEAD = 8
#: So many bytes are summed at once, soon after they were written.
_SUMMED = 16_384

_BYTE = ir.IntType(8)


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


@kernel(int64(int64, int64, bytes_out), available=HAS_KNOWN_LAYOUT)
def join_values(values: int, count: int, target: Bytes) -> int:
    """Write a record for each value into `target`, which has room for just these; the CRC-32C of it."""
    items = _word_at(values + _ITEMS_AT)
    at = 0
    summed = 0
    crc = 0
    for index in range(count):
        if index + 1 < count:
            _ask_for(_word_at(items + (index + 1) * _POINTER) + 64)
        item = _word_at(items + index * _POINTER)
        length = _word_at(item + _LENGTH_AT)
        target[at] = _RAW
        store_u32(target, at + 1, length)
        _copy_from(target, at + _HEADER, item + _CONTENT_AT, length)
        at += _HEADER + length
        if at - summed >= _SUMMED:
            crc = crc32c(target, summed, at, crc)
            summed = at
    return crc32c(target, summed, at, crc)
