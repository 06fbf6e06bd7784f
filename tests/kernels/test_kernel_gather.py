"""Plain records of stored batches into columns: kernel equals twin, on valid and hostile blocks."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.codec import gather
from seawall.kernels.log.segments import INDEX_ENTRY
from seawall.kernels.runtime import jit
from twins.codec import gather as twin

EXAMPLES = 40 if jit.PYTHON_MODE else 100
SHIFT = 4_096
NULL = b"\xff\0\0\0\0"
EVERYTHING = [(1, 1_000_000)]

Row = tuple[int, int, bytes]


def plain(record_type: int, value: bytes) -> bytes:
    return struct.pack("<BI", record_type, len(value)) + value


def extended(record_type: int, value: bytes) -> bytes:
    return struct.pack("<BHI", 0xFF, record_type, len(value)) + value


def run_of(*batches: tuple[int, bytes], base_seq: int = 1, codec: int = 0, flags: int = 0) -> tuple[bytes, Any]:
    """Adjacent batches with these counts and blocks, and their entries; headers have only the fields that are read."""
    stored, rows = b"", []
    for count, block in batches:
        header = bytes(94) + bytes((codec, flags))
        rows.append((base_seq, SHIFT + len(stored), 0, 0, 0, count, 96 + len(block)))
        stored += header + block
        base_seq += count
    return stored, np.array(rows, INDEX_ENTRY)


def gather_with(
    module: Any, stored: bytes, entries: Any, live: list[tuple[int, int]], space: int, size: int
) -> tuple[int, list[Row]]:
    firsts, lasts = np.array(live, np.int64).reshape(-1, 2).T.copy()
    offsets, data = np.zeros(space + 1, np.int32), np.zeros(size, np.uint8)
    seqs, types = np.zeros(space, np.uint64), np.zeros(space, np.uint32)
    state = np.zeros(gather.GATHER_STATE, np.int64)
    buffer = np.frombuffer(stored + b"beyond", np.uint8)
    code = module.gather_values(buffer, SHIFT, entries, firsts, lasts, state, offsets, data, seqs, types)
    if code != gather.GATHER_DONE:
        assert not state.any()
        return int(code), []
    count = int(state[gather.GATHER_ROWS])
    assert offsets[count] == state[gather.GATHER_SIZE]
    values = [data[offsets[row] : offsets[row + 1]].tobytes() for row in range(count)]
    return int(code), list(zip(seqs[:count].tolist(), types[:count].tolist(), values, strict=True))


def gathered(
    stored: bytes, entries: Any, live: list[tuple[int, int]] = EVERYTHING, space: int = 50, size: int = 10_000
) -> tuple[int, list[Row]]:
    result = gather_with(gather, stored, entries, live, space, size)
    assert result == gather_with(twin, stored, entries, live, space, size)
    return result


record = st.one_of(
    st.builds(plain, st.integers(0, 0xFE), st.binary(max_size=9)),
    st.builds(plain, st.integers(1, 9), st.binary(min_size=500, max_size=700)),
    st.builds(extended, st.integers(0, 3), st.binary(max_size=9)),
    st.just(NULL),
)
plain_record = st.one_of(
    st.builds(plain, st.integers(0, 0xFE), st.binary(max_size=9)),
    st.builds(extended, st.just(2), st.binary(max_size=9)),
)
ranges = st.lists(st.integers(1, 12), max_size=6, unique=True).map(
    lambda edges: list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
)


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.tuples(st.integers(-1, 1), st.lists(record, max_size=4)), max_size=3),
    ranges,
    st.integers(0, 8),
    st.integers(0, 2_000),
    st.booleans(),
)
def test_gathering_equals_its_twin_on_any_blocks(
    batches: list[tuple[int, list[bytes]]], live: list[tuple[int, int]], space: int, size: int, cut: bool
) -> None:
    made = [(max(1, len(records) + off), b"".join(records)[: -1 if cut else None]) for off, records in batches]
    stored, entries = run_of(*made)
    gathered(stored, entries, live, space, size)


@given(st.lists(st.lists(plain_record, min_size=1, max_size=4), max_size=4), ranges)
def test_exactly_the_live_records_are_gathered(batches: list[list[bytes]], live: list[tuple[int, int]]) -> None:
    stored, entries = run_of(*((len(records), b"".join(records)) for records in batches))
    code, rows = gathered(stored, entries, live)
    assert code == gather.GATHER_DONE
    flat = [each for records in batches for each in records]
    shown = [
        seq
        for seq, each in enumerate(flat, 1)
        if any(first <= seq <= last for first, last in live) and each != plain(0, b"")
    ]
    assert [row[0] for row in rows] == shown
    for seq, record_type, value in rows:
        each = flat[seq - 1]
        assert each in (plain(record_type & 0xFF, value), extended(record_type - 0x10000 & 0xFFFF, value))


@pytest.mark.parametrize("length", [511, 512, 575, 576, 1_024, 5_000])
def test_values_of_any_length_at_any_offset_are_copied_whole(length: int) -> None:
    values = [bytes([number]) * (length + number) for number in range(3)]
    stored, entries = run_of((3, b"".join(plain(1, value) for value in values)))
    code, rows = gathered(stored, entries, size=3 * length + 3)
    assert (code, [row[2] for row in rows]) == (gather.GATHER_DONE, values)


@pytest.mark.parametrize(
    ("block", "count"),
    [(plain(1, b"a") + NULL, 2), (plain(1, b"a") + extended(1, b"\0\0"), 2)],
    ids=["null", "envelope"],
)
def test_records_that_are_not_plain_are_left_to_the_general_decoder(block: bytes, count: int) -> None:
    assert gathered(*run_of((count, block)))[0] == gather.GATHER_NOT_PLAIN


@pytest.mark.parametrize("field", ["codec", "flags"])
def test_compressed_and_opaque_batches_are_left_to_the_general_decoder(field: str) -> None:
    stored, entries = run_of((1, plain(1, b"a")), **{field: 2})
    assert gathered(stored, entries)[0] == gather.GATHER_NOT_PLAIN


@pytest.mark.parametrize(
    ("block", "count"),
    [
        (plain(1, b"a"), 2),
        (plain(1, b"a") * 2, 1),
        (b"\1\0\0\0", 1),
        (b"\1\2\0\0\0a", 1),
        (b"\xff\0\0\1\0\0\0", 1),
        (b"\xff\2\0\0\0", 1),
        (b"", 1),
    ],
)
def test_a_block_with_another_record_count_is_reported(block: bytes, count: int) -> None:
    assert gathered(*run_of((count, block)))[0] == gather.GATHER_MALFORMED


def test_nothing_is_written_beyond_the_columns() -> None:
    stored, entries = run_of((2, plain(1, b"abc") * 2))
    assert gathered(stored, entries, space=1)[0] == gather.GATHER_MALFORMED
    assert gathered(stored, entries, size=5)[0] == gather.GATHER_MALFORMED
    assert gathered(stored, entries, space=2, size=6)[0] == gather.GATHER_DONE
