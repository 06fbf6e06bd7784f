"""Blocks: scanning untrusted bytes, and encoding blocks that the scan accepts."""

from __future__ import annotations

import struct

import crc32c as wheel
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.codec import blocks
from seawall.kernels.runtime import jit
from twins.codec import blocks as twin

EXAMPLES = 40 if jit.PYTHON_MODE else 100
RULES = [blocks.RECORDS_STORED, blocks.RECORDS_VERSION_1, blocks.RECORDS_VERSION_2]
NULL = b"\xff\0\0\0\0"
UNTOUCHED = -77


def plain(record_type: int, value: bytes = b"") -> bytes:
    return struct.pack("<BI", record_type, len(value)) + value


def extended(record_type: int, value: bytes = b"") -> bytes:
    return struct.pack("<BHI", 0xFF, record_type, len(value)) + value


values = st.binary(max_size=20)
some_record = st.one_of(
    st.builds(plain, st.sampled_from([0, 1, 2, 0x10, 0x7D, 0x80, 0xFE]), values),
    st.builds(plain, st.sampled_from([0x7E, 0x7F]), values),
    st.just(NULL),
    st.builds(extended, st.sampled_from([1, 2, 0x100, 0xFF00, 0xFFFF]), values),
)
good_block = st.lists(some_record, max_size=8).map(b"".join)


@st.composite
def bad_block(draw: st.DrawFn) -> bytes:
    """A good block with a few bytes changed, cut short, or made longer."""
    block = bytearray(draw(good_block))
    for _ in range(draw(st.integers(0, 3))):
        if block:
            block[draw(st.integers(0, len(block) - 1))] = draw(st.sampled_from([0, 1, 0x7E, 0x7F, 0x80, 0xFE, 0xFF]))
    return bytes(block[: draw(st.integers(0, len(block)))]) + draw(st.binary(max_size=9))


any_block = st.one_of(good_block, bad_block(), st.binary(max_size=60))


def array(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def scan(data: bytes, rules: int = 0, records_max: int = 1000, space: int = 64, before: int = 3) -> int:
    """Scan with kernel and twin, between bytes of another block; returns their equal result."""
    block = array(b"\xff" * before + data + b"\xff" * 9)
    results = []
    for function in (blocks.scan_block, twin.scan_block):
        offsets = np.full(space, UNTOUCHED, np.int64)
        code = function(block, before, before + len(data), rules, records_max, offsets)
        results.append((code, offsets.tolist()))
    assert results[0] == results[1]
    return int(results[0][0])


@settings(max_examples=EXAMPLES)
@given(any_block, st.sampled_from(RULES), st.integers(0, 9), st.integers(0, 10), st.integers(0, 9))
def test_scan_equals_its_twin(data: bytes, rules: int, records_max: int, space: int, before: int) -> None:
    scan(data, rules, records_max, space, before)


@settings(max_examples=EXAMPLES)
@given(st.lists(some_record, max_size=8), st.integers(0, 5))
def test_offsets_are_where_the_records_are(records: list[bytes], start: int) -> None:
    block = array(bytes(start) + b"".join(records))
    offsets = np.full(len(records) + 1, UNTOUCHED, np.int64)
    assert blocks.scan_block(block, start, block.size, 0, len(records), offsets) == len(records)
    assert offsets.tolist() == [start + sum(map(len, records[:index])) for index in range(len(records) + 1)]
    assert blocks.scan_block(block, start, block.size, 0, len(records), np.zeros(0, np.int64)) == len(records)


@settings(max_examples=EXAMPLES)
@given(any_block, st.sampled_from(RULES), st.booleans(), st.integers(0, 9))
def test_check_equals_its_twin(data: bytes, rules: int, honest: bool, records_max: int) -> None:
    block = array(b"xy" + data)
    crc = wheel.crc32c(data) ^ (0 if honest else 1)
    results = []
    for function in (blocks.check_block, twin.check_block):
        offsets = np.full(10, UNTOUCHED, np.int64)
        results.append((function(block, 2, block.size, crc, rules, records_max, offsets), offsets.tolist()))
    assert results[0] == results[1]
    assert honest or results[0] == (blocks.SCAN_CHECKSUM, [UNTOUCHED] * 10)


NAMED = {
    "nothing": (b"", 0, 0),
    "null": (NULL, 0, 1),
    "null as version 1": (NULL, 1, 1),
    "extended": (extended(1, b"a"), 0, 1),
    "extended empty": (extended(0xFF00), 2, 1),
    "extended as version 1": (extended(1, b"a"), 1, blocks.SCAN_TYPE_REFUSED),
    "extended type 0": (b"\xff\0\0\1\0\0\0", 0, blocks.SCAN_TYPE_REFUSED),
    "shown extended stored": (plain(0x7E, b"ab"), 0, 1),
    "shown extended as version 1": (plain(0x7E, b"ab"), 1, 1),
    "shown extended as version 2": (plain(0x7E, b"ab"), 2, blocks.SCAN_TYPE_REFUSED),
    "deleted as version 2": (plain(0x00), 2, blocks.SCAN_TYPE_REFUSED),
    "deleted stored": (plain(0x00), 0, 1),
    "shown opaque as version 2": (plain(0x7F), 2, blocks.SCAN_TYPE_REFUSED),
    "one byte": (b"\1", 0, blocks.SCAN_TRUNCATED),
    "half a length": (b"\1\0\0\0", 0, blocks.SCAN_TRUNCATED),
    "a byte too few": (plain(1, b"abc")[:-1], 0, blocks.SCAN_TRUNCATED),
    "half an extended header": (extended(1)[:6], 0, blocks.SCAN_TRUNCATED),
    "extended, a byte too few": (extended(1, b"abc")[:-1], 0, blocks.SCAN_TRUNCATED),
    "length 4 GiB - 1": (b"\1\xff\xff\xff\xff", 0, blocks.SCAN_TRUNCATED),
    "extended length 4 GiB - 1": (b"\xff\1\0\xff\xff\xff\xff", 0, blocks.SCAN_TRUNCATED),
    "length 2 GiB": (b"\1\0\0\0\x80" + bytes(40), 0, blocks.SCAN_TRUNCATED),
}


@pytest.mark.parametrize("name", NAMED)
def test_named_cases(name: str) -> None:
    data, rules, expected = NAMED[name]
    assert scan(data, rules) == expected


def test_one_record_too_many() -> None:
    data = plain(1, b"a") * 4
    assert scan(data, records_max=4) == 4
    assert scan(data, records_max=3) == blocks.SCAN_TOO_MANY
    assert scan(data, space=5) == 4
    assert scan(data, space=4) == blocks.SCAN_TOO_MANY
    assert scan(data, space=0, records_max=3) == blocks.SCAN_TOO_MANY
    assert scan(data[:-1], records_max=3) == blocks.SCAN_TOO_MANY
    assert scan(plain(1) * 3 + b"\1", records_max=3) == blocks.SCAN_TRUNCATED


def test_a_block_cut_anywhere_is_detected() -> None:
    records = [plain(1, b"one"), NULL, extended(7, b"three"), plain(0x80), plain(2, b"x" * 30)]
    data = b"".join(records)
    ends = {sum(map(len, records[:count])): count for count in range(len(records) + 1)}
    for cut in range(len(data) + 1):
        assert scan(data[:cut]) == ends.get(cut, blocks.SCAN_TRUNCATED)


@pytest.mark.parametrize("rules", RULES)
def test_every_type_byte(rules: int) -> None:
    for record_type in range(256):
        scan(plain(record_type, b"ab"), rules)
        scan(plain(record_type), rules)


@settings(max_examples=EXAMPLES)
@given(st.lists(values, max_size=9), st.sampled_from([0, 1, 0xFE, 0x10001, 0x100FF, 0x1FFFF]), st.integers(0, 6))
def test_encoding_equals_its_twin_and_scans(contents: list[bytes], record_type: int, start: int) -> None:
    count = len(contents)
    offsets = 2 + np.cumsum([0, *map(len, contents)], dtype=np.int64)
    joined = array(b"##" + b"".join(contents))
    size = blocks.encoded_size(offsets, count, record_type)
    assert size == twin.encoded_size(offsets, count, record_type)
    built = []
    for function in (blocks.encode_block, twin.encode_block):
        block = np.full(start + size + 3, 0xEE, np.uint8)
        assert function(joined, offsets, count, record_type, block, start) == start + size
        built.append(block.tobytes())
    assert built[0] == built[1]
    assert built[0][:start] + built[0][start + size :] == b"\xee" * (start + 3)
    made = (
        extended(record_type - 0x10000, each) if record_type > 0xFF else plain(record_type, each) for each in contents
    )
    assert built[0][start : start + size] == b"".join(made)
    assert scan(built[0][start : start + size], records_max=count, space=count + 1) == count


def test_a_null_is_an_empty_record_of_type_ff() -> None:
    block = np.zeros(5, np.uint8)
    assert blocks.encode_block(np.zeros(0, np.uint8), np.zeros(2, np.int64), 1, 0xFF, block, 0) == 5
    assert block.tobytes() == NULL


def test_read_only_memory_can_be_scanned() -> None:
    block = array(plain(1, b"abc"))
    assert not block.flags.writeable
    assert blocks.scan_block(block, 0, block.size, 0, 1, np.zeros(2, np.int64)) == 1
