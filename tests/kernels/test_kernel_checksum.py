"""Checksums against their twins and other libraries, at lengths around every internal block size, at any start."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable

import crc32c as wheel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.codec import checksum, folding
from seawall.kernels.runtime import jit
from twins.codec import checksum as twin

EXAMPLES = 15 if jit.PYTHON_MODE else 100
STREAMS = 3 * checksum.SHORT_STREAM, 3 * checksum.MEDIUM_STREAM, 3 * checksum.LONG_STREAM
AROUND = [0, 1, 7, 8, 9, 15, 16, 17]
AROUND += [size + offset for size in STREAMS for offset in (-8, -1, 0, 1, 8)]
AROUND += [steps * folding.STEP_SIZE + offset for steps in (1, 2, 5) for offset in (-1, 0, 1, 9)]
AROUND += [sum(STREAMS), sum(STREAMS) + 8 + 3, 2 * STREAMS[2] + 2 * STREAMS[1] + 2 * STREAMS[0] + 13]

NOISE = np.random.default_rng(7).integers(0, 256, 2 * sum(STREAMS) + 64, np.uint8)

CASTAGNOLI = [checksum.crc32c, checksum.crc32c_portable]
if checksum.has_crc_instruction():
    CASTAGNOLI.append(checksum.crc32c_hardware)
if folding.has_wide_multiplication():
    CASTAGNOLI.append(checksum.crc32c_folding)


@pytest.mark.parametrize("crc32c", CASTAGNOLI)
@pytest.mark.parametrize("length", AROUND)
def test_crc32c_agrees_with_the_wheel(crc32c: Callable[..., int], length: int) -> None:
    starts = (0, 5) if jit.PYTHON_MODE else range(9)
    for start in starts:
        expected = wheel.crc32c(NOISE[start : start + length].tobytes())
        assert crc32c(NOISE, start, start + length, 0) == expected


@pytest.mark.parametrize("length", AROUND)
def test_crc32_agrees_with_zlib(length: int) -> None:
    for start in (0, 1, 3):
        assert checksum.crc32(NOISE, start, start + length, 0) == zlib.crc32(NOISE[start : start + length].tobytes())


def test_known_values() -> None:
    message = np.frombuffer(b"123456789", np.uint8)
    assert checksum.crc32c(message, 0, 9, 0) == 0xE3069283
    assert checksum.crc32(message, 0, 9, 0) == 0xCBF43926
    assert checksum.crc32c(np.zeros(32, np.uint8), 0, 32, 0) == 0x8A9136AA
    assert checksum.crc32c(np.full(32, 255, np.uint8), 0, 32, 0) == 0x62A8AB43
    assert checksum.crc32c(message, 0, 0, 0) == 0


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=600), st.integers(0, 7), st.integers(0, 2**32 - 1))
def test_kernels_equal_their_twins(data: bytes, start: int, crc: int) -> None:
    buffer = np.frombuffer(bytes(start) + data, np.uint8)
    expected = twin.crc32c(buffer, start, buffer.size, crc)
    assert all(crc32c(buffer, start, buffer.size, crc) == expected for crc32c in CASTAGNOLI)
    assert checksum.crc32(buffer, start, buffer.size, crc) == twin.crc32(buffer, start, buffer.size, crc)


@settings(max_examples=EXAMPLES)
@given(st.lists(st.integers(0, NOISE.size), min_size=1, max_size=4).map(sorted))
def test_a_checksum_continues_another(cuts: list[int]) -> None:
    cuts = [0, *(cut // 64 if jit.PYTHON_MODE else cut for cut in cuts)]
    for continued, whole in ((checksum.crc32c, wheel.crc32c), (checksum.crc32, zlib.crc32)):
        crc = 0
        for first, last in itertools.pairwise(cuts):
            crc = continued(NOISE, first, last, crc)
        assert crc == whole(NOISE[: cuts[-1]].tobytes())


def test_every_flipped_bit_changes_the_checksum() -> None:
    message = NOISE[:61].copy()
    expected = checksum.crc32c(message, 0, 61, 0)
    for bit in range(61 * 8):
        message[bit >> 3] ^= np.uint8(1 << (bit & 7))
        assert checksum.crc32c(message, 0, 61, 0) != expected
        message[bit >> 3] ^= np.uint8(1 << (bit & 7))


@pytest.mark.parametrize("length", [1, 4, checksum.SHORT_STREAM])
def test_tables_of_zeros_append_zeros(length: int) -> None:
    tables = checksum.zeros_tables(length)
    for register in (1, 0x80000000, 0xDEADBEEF):
        stepped = register
        for _ in range(length * 8):
            stepped = (stepped >> 1) ^ (checksum.POLYNOMIAL_CASTAGNOLI if stepped & 1 else 0)
        by_table = [int(tables[row, register >> 8 * row & 0xFF]) for row in range(4)]
        assert by_table[0] ^ by_table[1] ^ by_table[2] ^ by_table[3] == stepped


def test_powers_of_x_equal_those_of_the_polynomial() -> None:
    # x^32 is the rest of the polynomial below its highest power; each step before that shifts one bit.
    assert [folding.power_of_x(exponent) >> 32 for exponent in (0, 1, 31)] == [1 << 31, 1 << 30, 1]
    assert folding.power_of_x(32) >> 32 == folding.POLYNOMIAL_CASTAGNOLI
