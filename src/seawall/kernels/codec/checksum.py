"""Checksums inside kernels: CRC-32C for everything stored and for version 2, CRC-32 (IEEE) for version 1 frames.

Ways to the same CRC-32C:
    folding    64 bytes an instruction by carry-less multiplication (`folding`), for stretches of 256 bytes and more
    hardware   the SSE4.2 instruction, three streams interleaved. One stream is bound by the latency of the instruction
               (three cycles a word); three independent ones fill the pipe. Each stream starts from zero, and
               the parts are joined by "append n zero bytes" tables, since a CRC is linear.
    portable   eight tables, eight bytes a step. Chosen where the instruction is missing; used for CRC-32 always.
    twin       one bit at a time; see `twins/checksum.py`.

`crc32c` is the hardware or the portable one, chosen when this module is imported. Values are as on the wire: the
inversion before and after is inside, and a checksum continues another by passing it as `crc`.

In Python, outside kernels, the `crc32c` wheel and `zlib.crc32` compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types

from seawall.kernels.codec.folding import POLYNOMIAL_CASTAGNOLI, STEP_SIZE, fold_steps, has_wide_multiplication
from seawall.kernels.runtime.jit import bytes_in, int64, kernel, primitive
from seawall.kernels.runtime.memory import LINE_SIZE, Bytes, as_int64, load_u64, prefetch

POLYNOMIAL_IEEE = 0xEDB88320

#: Bytes each of the three streams covers before they are joined, powers of two. Long streams keep the hardware
#: prefetchers in step on blocks that come from memory (8 KiB: 18 GB/s, 2 KiB: 12); shorter ones serve smaller blocks
#: (16 KiB: 14 GB/s with the medium ones, 11 without).
LONG_STREAM = 8_192
MEDIUM_STREAM = 1_024
SHORT_STREAM = 128

#: Bytes, at least, between what is read and what is asked for ahead of it. The hardware prefetchers do not follow three
#: streams that begin anew every few KiB: blocks of 1 to 16 KiB from memory went at 5 GB/s, and go at 11.
READ_AHEAD = 8_192

Table = npt.NDArray[np.uint64]


def has_crc_instruction() -> bool:
    """Whether this processor has the CRC-32C instruction that the hardware path uses."""
    return bool(llvmlite.binding.get_host_cpu_features().get("sse4.2", False))


def byte_tables(polynomial: int) -> Table:
    """Tables for eight bytes a step: row k advances a byte by k further zero bytes."""
    tables = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
        tables[0, byte] = value
    for row in range(1, 8):
        before = tables[row - 1]
        tables[row] = (before >> np.uint64(8)) ^ tables[0][before & np.uint64(0xFF)]
    return tables


def zeros_tables(length: int) -> Table:
    """Tables that advance a CRC-32C register over `length` zero bytes, a power of two: a row for each register byte."""
    single = byte_tables(POLYNOMIAL_CASTAGNOLI)[0]
    bits = np.uint64(1) << np.arange(32, dtype=np.uint64)
    # The map is linear, so what it does to each bit says all; applied to itself it covers twice the length.
    images = (bits >> np.uint64(8)) ^ single[bits & np.uint64(0xFF)]
    for _ in range(length.bit_length() - 1):
        images = _apply(images, images)
    registers = np.arange(256, dtype=np.uint64)
    return np.stack([_apply(images, registers << np.uint64(8 * row)) for row in range(4)])


def _apply(images: Table, registers: Table) -> Table:
    """What a linear map, given by its image of each bit, makes of registers."""
    result = np.zeros_like(registers)
    for bit in range(32):
        chosen = (registers >> np.uint64(bit)) & np.uint64(1)
        result ^= images[bit] * chosen
    return result


_CASTAGNOLI = byte_tables(POLYNOMIAL_CASTAGNOLI)
_IEEE = byte_tables(POLYNOMIAL_IEEE)
_LONG_ZEROS = zeros_tables(LONG_STREAM)
_MEDIUM_ZEROS = zeros_tables(MEDIUM_STREAM)
_SHORT_ZEROS = zeros_tables(SHORT_STREAM)

_HAS_INSTRUCTION = has_crc_instruction()
_HAS_FOLDING = has_wide_multiplication()
_ONES = np.uint64(0xFFFFFFFF)
_BYTE = np.uint64(0xFF)
_EIGHT = np.uint64(8)


def _step_word(register: np.uint64, word: int) -> np.uint64:
    return _fold(_CASTAGNOLI, int(register) ^ int(word))


def _step_byte(register: np.uint64, byte: np.uint64) -> np.uint64:
    value = np.uint64(register)
    return np.uint64(_CASTAGNOLI[0, int((value ^ np.uint64(byte)) & _BYTE)] ^ (value >> _EIGHT))


def _fold(tables: Table, mixed: int) -> np.uint64:
    result = 0
    for row in range(8):
        result ^= int(tables[7 - row, mixed >> (8 * row) & 0xFF])
    return np.uint64(result)


@primitive(_step_word)
def _crc_word(typing_context: Any, register: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        long = ir.IntType(64)
        function_type = ir.FunctionType(long, [long, long])
        step = cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.sse42.crc32.64.64")
        return builder.call(step, arguments)

    return types.uint64(types.uint64, types.uint64), generate


@primitive(_step_byte)
def _crc_byte(typing_context: Any, register: Any, byte: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, octet = ir.IntType(32), ir.IntType(8)
        function_type = ir.FunctionType(word, [word, octet])
        step = cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.sse42.crc32.32.8")
        narrow = builder.call(step, [builder.trunc(arguments[0], word), builder.trunc(arguments[1], octet)])
        return builder.zext(narrow, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


_uint64 = types.uint64
_table = types.Array(types.uint64, 2, "C", readonly=True)


@kernel(_uint64(_table, _uint64))
def _append_zeros(tables: Table, register: np.uint64) -> np.uint64:
    low = tables[0, register & _BYTE] ^ tables[1, (register >> _EIGHT) & _BYTE]
    high = tables[2, (register >> np.uint64(16)) & _BYTE] ^ tables[3, (register >> np.uint64(24)) & _BYTE]
    return np.uint64(low ^ high)


@kernel(_uint64(bytes_in, int64, int64, _uint64, _table), available=_HAS_INSTRUCTION)
def _three_streams(buffer: Bytes, at: int, length: int, register: np.uint64, zeros: Table) -> np.uint64:
    second = np.uint64(0)
    third = np.uint64(0)
    first = register
    for line in range(0, length, LINE_SIZE):
        # As many lines are asked for as are used meanwhile.
        ahead = at + max(READ_AHEAD, 3 * length) + 3 * line
        prefetch(buffer, ahead)
        prefetch(buffer, ahead + LINE_SIZE)
        prefetch(buffer, ahead + 2 * LINE_SIZE)
        for word in range(line, line + LINE_SIZE, 8):
            first = _crc_word(first, load_u64(buffer, at + word))
            second = _crc_word(second, load_u64(buffer, at + length + word))
            third = _crc_word(third, load_u64(buffer, at + 2 * length + word))
    joined = _append_zeros(zeros, first) ^ second
    return np.uint64(_append_zeros(zeros, joined) ^ third)


@kernel(int64(bytes_in, int64, int64, int64), available=_HAS_INSTRUCTION)
def crc32c_hardware(buffer: Bytes, start: int, end: int, crc: int) -> int:
    """CRC-32C of `buffer[start:end]`, continuing `crc`, by the SSE4.2 instruction."""
    register = np.uint64(crc) ^ _ONES
    at = start
    while end - at >= 3 * LONG_STREAM:
        register = _three_streams(buffer, at, LONG_STREAM, register, _LONG_ZEROS)
        at += 3 * LONG_STREAM
    while end - at >= 3 * MEDIUM_STREAM:
        register = _three_streams(buffer, at, MEDIUM_STREAM, register, _MEDIUM_ZEROS)
        at += 3 * MEDIUM_STREAM
    while end - at >= 3 * SHORT_STREAM:
        register = _three_streams(buffer, at, SHORT_STREAM, register, _SHORT_ZEROS)
        at += 3 * SHORT_STREAM
    while end - at >= 8:
        register = _crc_word(register, load_u64(buffer, at))
        at += 8
    while at < end:
        register = _crc_byte(register, np.uint64(buffer[at]))
        at += 1
    return as_int64(register ^ _ONES)


@kernel(int64(bytes_in, int64, int64, int64), available=_HAS_FOLDING)
def crc32c_folding(buffer: Bytes, start: int, end: int, crc: int) -> int:
    """CRC-32C of `buffer[start:end]`, continuing `crc`, by carry-less multiplication and the SSE4.2 instruction."""
    register = np.uint64(crc) ^ _ONES
    at = start
    steps = (end - at) // STEP_SIZE
    if steps > 0:
        register = fold_steps(buffer, at, steps, register)
        at += steps * STEP_SIZE
    while end - at >= 8:
        register = _crc_word(register, load_u64(buffer, at))
        at += 8
    while at < end:
        register = _crc_byte(register, np.uint64(buffer[at]))
        at += 1
    return as_int64(register ^ _ONES)


@kernel(int64(_table, bytes_in, int64, int64, int64))
def _crc_by_tables(tables: Table, buffer: Bytes, start: int, end: int, crc: int) -> int:
    register = np.uint64(crc) ^ _ONES
    at = start
    while end - at >= 8:
        mixed = register ^ load_u64(buffer, at)
        low = tables[7, mixed & _BYTE] ^ tables[6, (mixed >> _EIGHT) & _BYTE]
        low ^= tables[5, (mixed >> np.uint64(16)) & _BYTE] ^ tables[4, (mixed >> np.uint64(24)) & _BYTE]
        high = tables[3, (mixed >> np.uint64(32)) & _BYTE] ^ tables[2, (mixed >> np.uint64(40)) & _BYTE]
        high ^= tables[1, (mixed >> np.uint64(48)) & _BYTE] ^ tables[0, mixed >> np.uint64(56)]
        register = low ^ high
        at += 8
    while at < end:
        register = tables[0, (register ^ np.uint64(buffer[at])) & _BYTE] ^ (register >> _EIGHT)
        at += 1
    return as_int64(register ^ _ONES)


@kernel(int64(bytes_in, int64, int64, int64))
def crc32c_portable(buffer: Bytes, start: int, end: int, crc: int) -> int:
    """CRC-32C of `buffer[start:end]`, continuing `crc`, by tables."""
    return _crc_by_tables(_CASTAGNOLI, buffer, start, end, crc)


@kernel(int64(bytes_in, int64, int64, int64))
def crc32(buffer: Bytes, start: int, end: int, crc: int) -> int:
    """CRC-32 (IEEE) of `buffer[start:end]`, continuing `crc`."""
    return _crc_by_tables(_IEEE, buffer, start, end, crc)


def _fastest() -> Callable[[Bytes, int, int, int], int]:
    if _HAS_FOLDING:
        return crc32c_folding
    return crc32c_hardware if _HAS_INSTRUCTION else crc32c_portable


#: The fastest of them on this machine.
crc32c = _fastest()
