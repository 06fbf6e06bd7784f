"""Atomic operations on memory that several threads or processes read and write at the same time.

Primitives, for use inside kernels, work on one-dimensional arrays of 32- or 64-bit integers over any memory, including
mapped files. The index counts elements, so an element is aligned if the array is. The kernels at the end do the same
for Python callers and tests.

    load_acquire      no later read happens before it               pairs with store_release
    store_release     every earlier write is visible before it
    fetch_add         adds and returns the previous value; sequentially consistent
    compare_exchange  stores `desired` if the value is `expected`; returns the previous value
    fence             full fence: orders a store before a later load, which release/acquire does not
    flush_line        writes one cache line back to memory, for devices outside the coherence domain
    spin_hint         tells the core that it waits in a loop

INV-ATOMIC-ALIGNED: an atomic element never straddles a cache line. Arrays start aligned and elements are naturally
sized. Mappings and numpy's own memory are aligned; code that makes an array from a range of bytes must align it. numba
does not check this; the checked mode does, and raises ValueError.

The Python stand-ins run each call as one step under the GIL, which makes it atomic for Python threads.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types

from seawall.kernels.runtime.jit import (
    CHECKED_MODE,
    bytes_in,
    int64,
    kernel,
    primitive,
    uint32_out,
    uint64,
    uint64_out,
    void,
)
from seawall.kernels.runtime.memory import byte_pointer

Integers = npt.NDArray[np.uint64] | npt.NDArray[np.int64] | npt.NDArray[np.uint32]

_IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


def _load(array: Integers, index: int) -> int:
    return int(array[index])


def _store(array: Integers, index: int, value: int) -> None:
    array[index] = array.dtype.type(value)


def _add(array: Integers, index: int, value: int) -> int:
    before = int(array[index])
    bits = array.dtype.itemsize * 8
    array[index] = np.uint64((before + int(value)) & ((1 << bits) - 1)).astype(array.dtype)
    return before


def _exchange(array: Integers, index: int, expected: int, desired: int) -> int:
    before = int(array[index])
    if before == expected:
        array[index] = array.dtype.type(desired)
    return before


def _element_pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> tuple[Any, int]:
    size = array_type.dtype.bitwidth // 8
    length = ir.Constant(ir.IntType(64), size)
    at = builder.mul(index, length)
    raw = byte_pointer(context, builder, array_type, array, at, length)
    if CHECKED_MODE:
        rest = builder.and_(builder.ptrtoint(raw, ir.IntType(64)), ir.Constant(ir.IntType(64), size - 1))
        with cgutils.if_unlikely(builder, cgutils.is_not_null(builder, rest)):
            context.call_conv.return_user_exc(builder, ValueError, ("an atomic element is not aligned",))
    return builder.bitcast(raw, ir.IntType(size * 8).as_pointer()), size


@primitive(_load)
def load_acquire(typing_context: Any, array: Any, index: Any) -> Any:
    """Load an element; no later read happens before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, size = _element_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.load_atomic(pointer, "acquire", size)

    return array.dtype(array, types.int64), generate


@primitive(_store)
def store_release(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Store an element; every earlier write is visible before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, size = _element_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store_atomic(arguments[2], pointer, "release", size)
        return context.get_dummy_value()

    return types.void(array, types.int64, array.dtype), generate


@primitive(_add)
def fetch_add(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Add to an element; returns its previous value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, _ = _element_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.atomic_rmw("add", pointer, arguments[2], "seq_cst")

    return array.dtype(array, types.int64, array.dtype), generate


@primitive(_exchange)
def compare_exchange(typing_context: Any, array: Any, index: Any, expected: Any, desired: Any) -> Any:
    """Store `desired` if the element is `expected`; returns its previous value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, _ = _element_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        pair = builder.cmpxchg(pointer, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 0)

    return array.dtype(array, types.int64, array.dtype, array.dtype), generate


def _nothing() -> None:
    return None


@primitive(_nothing)
def fence(typing_context: Any) -> Any:
    """Full fence: every earlier access completes before any later access."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@primitive(_nothing)
def spin_hint(typing_context: Any) -> Any:
    """Let the sibling hyperthread run while this one waits in a loop."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _IS_X86:
            function_type = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


def _flush(array: Integers | npt.NDArray[np.uint8], at: int) -> None:
    if not 0 <= at < array.nbytes:
        raise IndexError(f"byte {at} of an array of {array.nbytes}")


@primitive(_flush)
def flush_line(typing_context: Any, array: Any, at: Any) -> Any:
    """Write the cache line of byte `at` back to memory; on other processors than x86, a full fence instead."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        pointer = byte_pointer(context, builder, signature.args[0], arguments[0], arguments[1], one)
        if _IS_X86:
            function_type = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()])
            flush = cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.sse2.clflush")
            builder.call(flush, [pointer])
        else:
            builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


uint32 = types.uint32


@kernel(uint64(uint64_out, int64))
def load_acquire_u64(array: npt.NDArray[np.uint64], index: int) -> int:
    """`load_acquire` for Python callers."""
    return load_acquire(array, index)


@kernel(void(uint64_out, int64, uint64))
def store_release_u64(array: npt.NDArray[np.uint64], index: int, value: int) -> None:
    """`store_release` for Python callers."""
    store_release(array, index, value)


@kernel(uint64(uint64_out, int64, uint64))
def fetch_add_u64(array: npt.NDArray[np.uint64], index: int, value: int) -> int:
    """`fetch_add` for Python callers."""
    return fetch_add(array, index, value)


@kernel(uint64(uint64_out, int64, uint64, uint64))
def compare_exchange_u64(array: npt.NDArray[np.uint64], index: int, expected: int, desired: int) -> int:
    """`compare_exchange` for Python callers."""
    return compare_exchange(array, index, expected, desired)


@kernel(uint32(uint32_out, int64))
def load_acquire_u32(array: npt.NDArray[np.uint32], index: int) -> int:
    """`load_acquire` for Python callers."""
    return load_acquire(array, index)


@kernel(void(uint32_out, int64, uint32))
def store_release_u32(array: npt.NDArray[np.uint32], index: int, value: int) -> None:
    """`store_release` for Python callers."""
    store_release(array, index, value)


@kernel(uint32(uint32_out, int64, uint32))
def fetch_add_u32(array: npt.NDArray[np.uint32], index: int, value: int) -> int:
    """`fetch_add` for Python callers."""
    return fetch_add(array, index, value)


@kernel(uint32(uint32_out, int64, uint32, uint32))
def compare_exchange_u32(array: npt.NDArray[np.uint32], index: int, expected: int, desired: int) -> int:
    """`compare_exchange` for Python callers."""
    return compare_exchange(array, index, expected, desired)


@kernel(void(bytes_in, int64, int64))
def flush_lines(array: npt.NDArray[np.uint8], start: int, end: int) -> None:
    """Write every cache line of the bytes `start` … `end` back to memory, then fence."""
    at = start
    while at < end:
        flush_line(array, at)
        at += 64
    if end > start:
        flush_line(array, end - 1)
    fence()


@kernel(int64(uint64_out, int64, int64))
def add_many(array: npt.NDArray[np.uint64], index: int, times: int) -> int:
    """Add one `times` times, each time atomically: the load of a contention test and of a benchmark."""
    one = 1
    for _ in range(times):
        fetch_add(array, index, one)
    return times
