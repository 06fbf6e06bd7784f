"""CRC-32C of long ranges by carry-less multiplication: 64 bytes per instruction, on processors that support it.

A CRC is a remainder of polynomials over GF(2). So the front of a message may be multiplied by a power of x modulo the
polynomial and added to a later part, without changing the remainder. Four accumulators of 64 bytes each consume 256
bytes a step in this way. At the end they are folded into one another, then into 16 bytes, whose remainder the CRC
instruction computes. This takes a quarter of the time of three interleaved streams of CRC instructions.

Bits are reflected: bit 0 of byte 0 is the highest power. The product of two reflected 64-bit words is one bit too low;
the exponents of the powers compensate for it.

This module must not know what the bytes mean. `checksum` handles the rest of a message, and other processors.
"""

from __future__ import annotations

from typing import Any

import crc32c
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from seawall.kernels.runtime.jit import primitive
from seawall.kernels.runtime.memory import Bytes, byte_pointer
from seawall.kernels.runtime.shipped_code import cpu_extensions

POLYNOMIAL_CASTAGNOLI = 0x82F63B78

#: Size of one step in bytes.
STEP_SIZE = 256

_VECTOR_SIZE = 64
_LANE_SIZE = 16
_ACCUMULATORS = STEP_SIZE // _VECTOR_SIZE
#: Converts a checksum to the register value, by exclusive or.
_INVERTED = 0xFFFFFFFF

_WORD = ir.IntType(64)
_LANE = ir.VectorType(_WORD, 2)
_VECTOR = ir.VectorType(_WORD, 8)


def has_wide_multiplication() -> bool:
    """True if kernels may use carry-less multiplication of 64 bytes and the CRC instruction."""
    return {"crc32", "pclmul", "avx512f", "vpclmulqdq"} <= cpu_extensions()


def power_of_x(exponent: int) -> int:
    """x to a power, modulo the polynomial, reflected in 64 bits."""
    register = 1 << 31  # x to the 0, reflected in 32 bits
    for _ in range(exponent):
        register = (register >> 1) ^ (POLYNOMIAL_CASTAGNOLI if register & 1 else 0)
    return register << 32


def _shifts(size: int) -> tuple[int, int]:
    """The factors that move the first and the second word of 16 bytes over `size` bytes."""
    return power_of_x(8 * size + 63), power_of_x(8 * size - 1)


_STEP = _shifts(STEP_SIZE)
_NEXT_VECTOR = _shifts(_VECTOR_SIZE)
_NEXT_LANE = _shifts(_LANE_SIZE)


def _fold_steps(array: Bytes, at: int, count: int, register: np.uint64) -> np.uint64:
    data = array[at : at + count * STEP_SIZE].tobytes()
    return np.uint64(crc32c.crc32c(data, int(register) ^ _INVERTED) ^ _INVERTED)


def _folded(builder: Any, value: Any, shifts: tuple[int, int]) -> Any:
    """A vector or lane, moved over the bytes that the shifts stand for."""
    lanes = value.type.count // 2
    name = f"llvm.x86.pclmulqdq{'.512' if lanes > 1 else ''}"
    function_type = ir.FunctionType(value.type, [value.type, value.type, ir.IntType(8)])
    multiply = cgutils.get_or_insert_function(builder.module, function_type, name)
    factors = ir.Constant(value.type, list(shifts) * lanes)
    low, high = (builder.call(multiply, [value, factors, ir.Constant(ir.IntType(8), each)]) for each in (0x00, 0x11))
    return builder.xor(low, high)


def _vector_at(builder: Any, pointer: Any, number: int) -> Any:
    address = builder.gep(pointer, [ir.Constant(_WORD, number * _VECTOR_SIZE)])
    return builder.load(builder.bitcast(address, _VECTOR.as_pointer()), align=1)


def _remainder(builder: Any, vectors: list[Any]) -> Any:
    """The CRC register after the content of the accumulators."""
    folded = vectors[0]
    for vector in vectors[1:]:
        folded = builder.xor(_folded(builder, folded, _NEXT_VECTOR), vector)
    index = ir.IntType(32)
    lanes = [
        builder.shuffle_vector(folded, folded, ir.Constant(ir.VectorType(index, 2), [first, first + 1]))
        for first in range(0, _VECTOR.count, 2)
    ]
    lane = lanes[0]
    for following in lanes[1:]:
        lane = builder.xor(_folded(builder, lane, _NEXT_LANE), following)
    function_type = ir.FunctionType(_WORD, [_WORD, _WORD])
    step = cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.sse42.crc32.64.64")
    register = ir.Constant(_WORD, 0)
    for word in range(2):
        register = builder.call(step, [register, builder.extract_element(lane, ir.Constant(index, word))])
    return register


@primitive(_fold_steps)
def fold_steps(typing_context: Any, array: Any, at: Any, count: Any, register: Any) -> Any:
    """The CRC register after `count` (at least one) steps of 256 bytes from byte `at` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, count, register = arguments
        length = builder.mul(count, ir.Constant(_WORD, STEP_SIZE))
        start = byte_pointer(context, builder, signature.args[0], array, at, length)
        end = builder.gep(start, [length])
        first = [_vector_at(builder, start, number) for number in range(_ACCUMULATORS)]
        initial = builder.insert_element(ir.Constant(_VECTOR, [0] * 8), register, ir.Constant(ir.IntType(32), 0))
        first[0] = builder.xor(first[0], initial)
        entered = builder.block
        head, body, done = (builder.append_basic_block(name) for name in ("fold", "fold.step", "fold.done"))
        builder.branch(head)
        builder.position_at_end(head)
        pointer = builder.phi(start.type)
        accumulators = [builder.phi(_VECTOR) for _ in first]
        next_pointer = builder.gep(pointer, [ir.Constant(_WORD, STEP_SIZE)])
        builder.cbranch(builder.icmp_unsigned("<", next_pointer, end), body, done)
        builder.position_at_end(body)
        folded = [
            builder.xor(_folded(builder, value, _STEP), _vector_at(builder, next_pointer, number))
            for number, value in enumerate(accumulators)
        ]
        builder.branch(head)
        pointer.add_incoming(start, entered)
        pointer.add_incoming(next_pointer, body)
        for value, start_value, next_value in zip(accumulators, first, folded, strict=True):
            value.add_incoming(start_value, entered)
            value.add_incoming(next_value, body)
        builder.position_at_end(done)
        return _remainder(builder, accumulators)

    return types.uint64(array, types.int64, types.int64, types.uint64), generate
