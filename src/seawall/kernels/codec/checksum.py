"""Checksums inside kernels: CRC-32C for all stored data and version 2 frames, CRC-32 (IEEE) for version 1 frames.

Implementations of CRC-32C:
    folding    64 bytes per instruction by carry-less multiplication (`folding`), for ranges of 256 bytes and more
    hardware   the SSE4.2 instruction in three interleaved streams. The latency of the instruction (three cycles a word)
               limits one stream; three independent streams fill the pipeline. Each stream starts from zero, and
               "append n zero bytes" tables combine the parts, since a CRC is linear.
    portable   eight tables, eight bytes a step. Used where the instruction is missing, and always for CRC-32.
    twin       one bit at a time; see `twins/codec/checksum.py`.

`crc32c` is the fastest implementation for this processor, chosen when this module is imported. Values are those of the
wire format: the functions invert before and after, and passing a checksum as `crc` continues it.

Python code outside kernels computes the same with the `crc32c` wheel and `zlib.crc32`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types

from seawall.kernels.codec.folding import POLYNOMIAL_CASTAGNOLI, STEP_SIZE, fold_steps, has_wide_multiplication
from seawall.kernels.runtime.jit import bytes_in, int64, kernel, primitive
from seawall.kernels.runtime.memory import LINE_SIZE, Bytes, as_int64, load_u64, prefetch
from seawall.kernels.runtime.shipped_code import cpu_extensions

POLYNOMIAL_IEEE = 0xEDB88320

#: Bytes of each of the three streams before they are combined, powers of two. Long streams suit the hardware
#: prefetchers for blocks that are not cached (8 KiB: 18 GB/s, 2 KiB: 12); the shorter ones are for smaller blocks
#: (16 KiB: 14 GB/s with the medium ones, 11 without).
LONG_STREAM = 8_192
MEDIUM_STREAM = 1_024
SHORT_STREAM = 128

#: Smallest distance in bytes between a read and the prefetch ahead of it. The hardware prefetchers do not follow three
#: streams that restart every few KiB: uncached blocks of 1 to 16 KiB run at 5 GB/s without prefetch, at 11 with it.
PREFETCH_DISTANCE = 8_192

Table = npt.NDArray[np.uint64]


def has_crc_instruction() -> bool:
    """True if kernels may use the CRC-32C instruction of SSE4.2."""
    return "crc32" in cpu_extensions()


def byte_tables(polynomial: int) -> Table:
    """Tables for eight bytes a step: row k advances a byte over k more zero bytes."""
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
    """Tables that advance a CRC-32C register over `length` zero bytes (a power of two): one row per register byte."""
    byte_table = byte_tables(POLYNOMIAL_CASTAGNOLI)[0]
    bits = np.uint64(1) << np.arange(32, dtype=np.uint64)
    # The map is linear, so the images of the single bits define it; composed with itself it covers twice the length.
    images = (bits >> np.uint64(8)) ^ byte_table[bits & np.uint64(0xFF)]
    for _ in range(length.bit_length() - 1):
        images = _apply(images, images)
    registers = np.arange(256, dtype=np.uint64)
    return np.stack([_apply(images, registers << np.uint64(8 * row)) for row in range(4)])


def _apply(images: Table, registers: Table) -> Table:
    """Apply a linear map, given by the images of the single bits, to registers."""
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
        # Prefetch as many lines as this iteration consumes.
        prefetch_at = at + max(PREFETCH_DISTANCE, 3 * length) + 3 * line
        prefetch(buffer, prefetch_at)
        prefetch(buffer, prefetch_at + LINE_SIZE)
        prefetch(buffer, prefetch_at + 2 * LINE_SIZE)
        for word in range(line, line + LINE_SIZE, 8):
            first = _crc_word(first, load_u64(buffer, at + word))
            second = _crc_word(second, load_u64(buffer, at + length + word))
            third = _crc_word(third, load_u64(buffer, at + 2 * length + word))
    combined = _append_zeros(zeros, first) ^ second
    return np.uint64(_append_zeros(zeros, combined) ^ third)


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


#: The fastest implementation for this processor.
crc32c = _fastest()
