"""Primitives on byte arrays: unaligned little-endian loads and stores, `memcpy`, prefetch, addresses.

Each is one or two machine instructions inside a kernel. numba's own slice assignment copies at a fraction of the speed
of `memcpy`, and numba has no unaligned load. In checked mode the primitives check the first and last byte that they
touch, because numba's bounds check does not see inside a primitive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types

from seawall.kernels.runtime.jit import CHECKED_MODE, bytes_in, bytes_out, int64, kernel, primitive, void

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

#: Conversion to int64, which kernels compute in.
as_int64 = cast("Callable[[Any], int]", np.int64)

#: Bytes that `stream_line` copies: a cache line.
LINE_SIZE = 64

#: From this length on, `copy_out` bypasses the caches: at 1 KiB that is 1.6 times as fast as a plain copy.
_STREAMED_LENGTH = 512
#: Distance at which such a copy prefetches its source, which may no longer be cached.
_PREFETCH_DISTANCE = 2_048

#: Mask for an index. The compiler then knows that the index is not negative, and omits the check for negative indexes,
#: which count from the end of the array.
INDEX_BITS = (1 << 48) - 1

_BYTE = ir.IntType(8)


def _require(array: Array, at: int, length: int) -> None:
    if length > 0 and not (at >= 0 and at + length <= array.nbytes):
        raise IndexError(f"bytes {at}..{at + length} of an array of {array.nbytes}")


def _load(size: int, *, signed: bool = False) -> Callable[[Bytes, int], int]:
    def load(array: Bytes, at: int) -> int:
        _require(array, at, size)
        return int.from_bytes(array[at : at + size].tobytes(), "little", signed=signed)

    return load


def _store(size: int) -> Callable[[Bytes, int, int], None]:
    def store(array: Bytes, at: int, value: int) -> None:
        _require(array, at, size)
        masked = int(value) & ((1 << (8 * size)) - 1)
        array[at : at + size] = np.frombuffer(masked.to_bytes(size, "little"), np.uint8)

    return store


def _copy(target: Bytes, target_at: int, source: Bytes, source_at: int, length: int) -> None:
    _require(target, target_at, length)
    _require(source, source_at, length)
    target[target_at : target_at + length] = source[source_at : source_at + length]


def _stream(target: Bytes, target_at: int, source: Bytes, source_at: int) -> None:
    _copy(target, target_at, source, source_at, LINE_SIZE)


def _address(array: Array, at: int) -> int:
    _require(array, at, 0)
    return int(array.ctypes.data) + at


def byte_pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any, length: Any) -> Any:
    """Pointer to byte `at` of an array; the checked mode requires the bytes up to `at + length` to be inside it."""
    made = context.make_array(array_type)(context, builder, array)
    if CHECKED_MODE:
        size = builder.mul(made.nitems, made.itemsize)
        with builder.if_then(builder.icmp_signed(">", length, ir.Constant(length.type, 0))):
            cgutils.do_boundscheck(context, builder, at, size)
            last = builder.sub(builder.add(at, length), ir.Constant(at.type, 1))
            cgutils.do_boundscheck(context, builder, last, size)
    return builder.gep(builder.bitcast(made.data, _BYTE.as_pointer()), [at])


def _build_load(bits: int, *, signed: bool) -> Callable[..., Any]:
    def build(typing_context: Any, array: Any, at: Any) -> Any:
        result = types.int64 if signed or bits < 64 else types.uint64

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            length = ir.Constant(ir.IntType(64), bits // 8)
            pointer = byte_pointer(context, builder, signature.args[0], arguments[0], arguments[1], length)
            value = builder.load(builder.bitcast(pointer, ir.IntType(bits).as_pointer()), align=1)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return result(array, types.int64), generate

    return build


def _build_store(bits: int) -> Callable[..., Any]:
    def build(typing_context: Any, array: Any, at: Any, value: Any) -> Any:
        given = types.uint64 if value == types.uint64 else types.int64

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            length = ir.Constant(ir.IntType(64), bits // 8)
            pointer = byte_pointer(context, builder, signature.args[0], arguments[0], arguments[1], length)
            narrow = arguments[2] if bits == 64 else builder.trunc(arguments[2], ir.IntType(bits))
            builder.store(narrow, builder.bitcast(pointer, ir.IntType(bits).as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(array, types.int64, given), generate

    return build


#: Little-endian loads from any byte; 16 and 32 bits become int64, so arithmetic stays in int64.
load_u16 = primitive(_load(2))(_build_load(16, signed=False))
load_u32 = primitive(_load(4))(_build_load(32, signed=False))
#: An unconverted u64, to compare or store; never add it to a loop index.
load_u64 = primitive(_load(8))(_build_load(64, signed=False))
#: A u64 known to be below 2^63, ready for arithmetic.
load_i64 = primitive(_load(8, signed=True))(_build_load(64, signed=True))

#: Little-endian stores to any byte; higher bits of the value are dropped.
store_u16 = primitive(_store(2))(_build_store(16))
store_u32 = primitive(_store(4))(_build_store(32))
store_u64 = primitive(_store(8))(_build_store(64))


@primitive(_copy)
def copy_bytes(typing_context: Any, target: Any, target_at: Any, source: Any, source_at: Any, length: Any) -> Any:
    """`memcpy` between two arrays that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, target_at, source, source_at, length = arguments
        to = byte_pointer(context, builder, signature.args[0], target, target_at, length)
        origin = byte_pointer(context, builder, signature.args[2], source, source_at, length)
        cgutils.raw_memcpy(builder, to, origin, length, 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


@primitive(_stream)
def stream_line(typing_context: Any, target: Any, target_at: Any, source: Any, source_at: Any) -> Any:
    """Copy 64 bytes to an address that is a multiple of 64, bypassing the caches (a non-temporal store).

    A plain copy first reads the line that it overwrites. This one does not, so it is faster for data that is not read
    again soon. Other threads see the copy after any later lock or atomic operation of the writer.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, target_at, source, source_at = arguments
        word = ir.IntType(64)
        line = ir.Constant(word, LINE_SIZE)
        to = byte_pointer(context, builder, signature.args[0], target, target_at, line)
        origin = byte_pointer(context, builder, signature.args[2], source, source_at, line)
        half = ir.VectorType(word, LINE_SIZE // 16)
        nontemporal = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        for at in (0, LINE_SIZE // 2):
            offset = ir.Constant(word, at)
            loaded = builder.load(builder.bitcast(builder.gep(origin, [offset]), half.as_pointer()), align=1)
            stored = builder.store(loaded, builder.bitcast(builder.gep(to, [offset]), half.as_pointer()), align=32)
            stored.set_metadata("nontemporal", nontemporal)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64), generate


def _no_prefetch(array: Array, at: int) -> None:
    """Does nothing: a prefetch only affects speed."""


@primitive(_no_prefetch)
def prefetch(typing_context: Any, array: Any, at: Any) -> Any:
    """Prefetch the cache line of byte `at`. It may be outside the array: a prefetch never faults."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = ir.Constant(ir.IntType(64), 0)
        pointer = byte_pointer(context, builder, signature.args[0], arguments[0], arguments[1], zero)
        number = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
        # For reading, with the highest locality, into the data cache.
        builder.call(function, [pointer, *(ir.Constant(number, each) for each in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@primitive(_address)
def address_of(typing_context: Any, array: Any, at: Any) -> Any:
    """Memory address of byte `at`, for system calls from kernels."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = ir.Constant(ir.IntType(64), 0)
        pointer = byte_pointer(context, builder, signature.args[0], arguments[0], arguments[1], zero)
        return builder.ptrtoint(pointer, ir.IntType(64))

    return types.int64(array, types.int64), generate


def _pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(int(address))


@primitive(_pointer)
def pointer_at(typing_context: Any, address: Any) -> Any:
    """A memory address as the pointer that `numba.carray` takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _BYTE.as_pointer())

    return types.voidptr(types.int64), generate


@kernel(void(bytes_out, int64, bytes_in, int64, int64))
def copy_block(target: Bytes, target_at: int, source: Bytes, source_at: int, length: int) -> None:
    """Copy `length` bytes without holding the GIL."""
    copy_bytes(target, target_at, source, source_at, length)


@kernel(void(bytes_out, int64, bytes_in, int64, int64))
def copy_out(target: Bytes, target_at: int, source: Bytes, source_at: int, length: int) -> None:
    """Copy bytes that are not read soon: from _STREAMED_LENGTH on, whole lines bypass the caches."""
    done = 0
    if length >= _STREAMED_LENGTH:
        done = -address_of(target, target_at) & (LINE_SIZE - 1)
        copy_bytes(target, target_at, source, source_at, done)
        while length - done >= LINE_SIZE:
            prefetch(source, source_at + done + _PREFETCH_DISTANCE)
            stream_line(target, target_at + done, source, source_at + done)
            done += LINE_SIZE
    copy_bytes(target, target_at + done, source, source_at + done, length - done)


def set_addresses(records: Array, names: tuple[str, ...], arrays: tuple[Array, ...]) -> None:
    """Store the addresses and lengths of arrays in a record of kernel arguments. The caller keeps the arrays alive."""
    for name, array in zip(names, arrays, strict=True):
        records[f"{name}_at"], records[f"{name}_count"] = array.ctypes.data, len(array)
