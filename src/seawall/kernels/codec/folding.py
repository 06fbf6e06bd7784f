"""CRC-32C of long stretches by carry-less multiplication: 64 bytes an instruction, where the processor has it.

A CRC is a remainder of polynomials over GF(2), so what is far from the end of a message may be multiplied by a power of
x modulo the polynomial and added to what comes later, without changing the remainder. Four accumulators of 64 bytes
each take in 256 bytes a step so; in the end they are folded into one another, then into 16 bytes, whose remainder the
CRC instruction finds. That takes a quarter of the time of three interleaved streams of CRC instructions.

Bits are reflected: bit 0 of byte 0 is the highest power. A product of two reflected words of 64 bits comes out one bit
low, which the powers allow for.

This module must not know what is summed. `checksum` has the way for the rest of a message, and for other processors.
"""

from __future__ import annotations

from typing import Any

import crc32c
import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from seawall.kernels.runtime.jit import primitive
from seawall.kernels.runtime.memory import Bytes, byte_pointer

POLYNOMIAL_CASTAGNOLI = 0x82F63B78

#: Bytes of one step.
STEP_SIZE = 256

_VECTOR_SIZE = 64
_LANE_SIZE = 16
_ACCUMULATORS = STEP_SIZE // _VECTOR_SIZE
#: What turns a checksum into the register behind it.
_INVERTED = 0xFFFFFFFF

_WORD = ir.IntType(64)
_LANE = ir.VectorType(_WORD, 2)
_VECTOR = ir.VectorType(_WORD, 8)


def has_wide_multiplication() -> bool:
    """Whether this processor multiplies 64 bytes at once without carries, and has the CRC instruction."""
    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(name, False) for name in ("sse4.2", "pclmul", "avx512f", "vpclmulqdq"))


def power_of_x(exponent: int) -> int:
    """x to a power, modulo the polynomial, reflected in 64 bits."""
    register = 1 << 31  # x to the 0, reflected in 32 bits
    for _ in range(exponent):
        register = (register >> 1) ^ (POLYNOMIAL_CASTAGNOLI if register & 1 else 0)
    return register << 32


def _shifts(size: int) -> tuple[int, int]:
    """What the first and the second word of 16 bytes are multiplied by to move them over `size` bytes."""
    return power_of_x(8 * size + 63), power_of_x(8 * size - 1)


_STEP = _shifts(STEP_SIZE)
_NEXT_VECTOR = _shifts(_VECTOR_SIZE)
_NEXT_LANE = _shifts(_LANE_SIZE)


def _fold_steps(array: Bytes, at: int, count: int, register: np.uint64) -> np.uint64:
    data = array[at : at + count * STEP_SIZE].tobytes()
    return np.uint64(crc32c.crc32c(data, int(register) ^ _INVERTED) ^ _INVERTED)


def _folded(builder: Any, value: Any, shifts: tuple[int, int]) -> Any:
    """A vector, or a lane, moved over as many bytes as the shifts stand for."""
    lanes = value.type.count // 2
    name = f"llvm.x86.pclmulqdq{'.512' if lanes > 1 else ''}"
    function_type = ir.FunctionType(value.type, [value.type, value.type, ir.IntType(8)])
    multiply = cgutils.get_or_insert_function(builder.module, function_type, name)
    factors = ir.Constant(value.type, list(shifts) * lanes)
    low, high = (builder.call(multiply, [value, factors, ir.Constant(ir.IntType(8), each)]) for each in (0x00, 0x11))
    return builder.xor(low, high)


def _vector_at(builder: Any, pointer: Any, number: int) -> Any:
    place = builder.gep(pointer, [ir.Constant(_WORD, number * _VECTOR_SIZE)])
    return builder.load(builder.bitcast(place, _VECTOR.as_pointer()), align=1)


def _remainder(builder: Any, vectors: list[Any]) -> Any:
    """The register after what the accumulators hold."""
    whole = vectors[0]
    for vector in vectors[1:]:
        whole = builder.xor(_folded(builder, whole, _NEXT_VECTOR), vector)
    index = ir.IntType(32)
    lanes = [
        builder.shuffle_vector(whole, whole, ir.Constant(ir.VectorType(index, 2), [first, first + 1]))
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
    """The CRC register after `count` steps of 256 bytes, at least one, from byte `at` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, at, count, register = arguments
        length = builder.mul(count, ir.Constant(_WORD, STEP_SIZE))
        start = byte_pointer(context, builder, signature.args[0], array, at, length)
        end = builder.gep(start, [length])
        first = [_vector_at(builder, start, number) for number in range(_ACCUMULATORS)]
        before = builder.insert_element(ir.Constant(_VECTOR, [0] * 8), register, ir.Constant(ir.IntType(32), 0))
        first[0] = builder.xor(first[0], before)
        entered = builder.block
        head, body, done = (builder.append_basic_block(name) for name in ("fold", "fold.step", "fold.done"))
        builder.branch(head)
        builder.position_at_end(head)
        pointer = builder.phi(start.type)
        held = [builder.phi(_VECTOR) for _ in first]
        following = builder.gep(pointer, [ir.Constant(_WORD, STEP_SIZE)])
        builder.cbranch(builder.icmp_unsigned("<", following, end), body, done)
        builder.position_at_end(body)
        folded = [
            builder.xor(_folded(builder, value, _STEP), _vector_at(builder, following, number))
            for number, value in enumerate(held)
        ]
        builder.branch(head)
        pointer.add_incoming(start, entered)
        pointer.add_incoming(following, body)
        for value, at_first, later in zip(held, first, folded, strict=True):
            value.add_incoming(at_first, entered)
            value.add_incoming(later, body)
        builder.position_at_end(done)
        return _remainder(builder, held)

    return types.uint64(array, types.int64, types.int64, types.uint64), generate
