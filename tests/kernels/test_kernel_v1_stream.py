"""Stored batches as the byte stream of version 1: kernel equals twin, on valid and hostile blocks."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.codec import v1_stream as kernel
from seawall.kernels.log.segments import INDEX_ENTRY
from seawall.kernels.runtime import jit
from seawall.wire.format.records import records_for_v1
from twins.codec import v1_stream as twin

EXAMPLES = 40 if jit.PYTHON_MODE else 100
SHIFT = 4_096
NULL = b"\xff\0\0\0\0"
EVERYTHING = [(1, 1_000_000)]


def plain(record_type: int, value: bytes) -> bytes:
    return struct.pack("<BI", record_type, len(value)) + value


def extended(record_type: int, value: bytes) -> bytes:
    return struct.pack("<BHI", 0xFF, record_type, len(value)) + value


def run_of(*batches: tuple[int, bytes, bool], hole: int = 0, codec: int = 0) -> tuple[bytes, Any]:
    """Batches with these counts, blocks and opaque flags, and their entries; before each but one is a `hole`."""
    stored, rows, base_seq, offset = b"", [], 1, 0
    for count, block, is_opaque in batches:
        header = bytes(94) + bytes((codec, 2 if is_opaque else 0))
        rows.append((base_seq, SHIFT + len(stored), 0, offset, 0, count, 96 + len(block)))
        stored += header + block
        base_seq += count
        offset += len(block) + hole
    return stored, np.array(rows, INDEX_ENTRY)


def show_with(
    module: Any, stored: bytes, entries: Any, start: int, space: int, live: list[tuple[int, int]], size: int
) -> tuple[int, bytes, list[int]]:
    firsts, lasts = np.array(live, np.int64).reshape(-1, 2).T.copy()
    state = np.zeros(kernel.SHOW_STATE, np.int64)
    state[[kernel.SHOW_FROM, kernel.SHOW_SIZE_MAX, kernel.SHOW_LIMIT]] = start, space, -1
    out = np.zeros(size, np.uint8)
    code = module.show_batches(np.frombuffer(stored + b"more", np.uint8), SHIFT, entries, firsts, lasts, state, out)
    return int(code), out[: state[kernel.SHOW_SIZE]].tobytes(), state.tolist()


def shown(
    stored: bytes,
    entries: Any,
    *,
    start: int = 0,
    space: int = 1_000,
    live: list[tuple[int, int]] = EVERYTHING,
    size: int = 10_000,
) -> tuple[int, bytes, int, int]:
    """Code, bytes, units and the next offset, equal for kernel and twin."""
    found = show_with(kernel, stored, entries, start, space, live, size)
    assert found == show_with(twin, stored, entries, start, space, live, size)
    code, data, state = found
    return code, data, state[kernel.SHOW_UNITS], state[kernel.SHOW_NEXT]


record = st.one_of(
    st.builds(plain, st.integers(0, 0xFE), st.binary(max_size=9)),
    st.builds(extended, st.integers(0, 3), st.binary(max_size=9)),
    st.just(NULL),
)
sound_record = st.one_of(
    st.builds(plain, st.integers(0, 0xFE), st.binary(max_size=9)),
    st.builds(extended, st.integers(1, 3), st.binary(max_size=9)),
    st.just(NULL),
)
ranges = st.lists(st.integers(1, 12), max_size=6, unique=True).map(
    lambda edges: list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
)


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.tuples(st.integers(-1, 1), st.lists(record, max_size=4), st.booleans()), max_size=4),
    ranges,
    st.integers(0, 60),
    st.integers(1, 60),
    st.integers(1, 60),
    st.booleans(),
)
def test_the_stream_equals_that_of_the_twin_for_any_blocks(
    batches: list[tuple[int, list[bytes], bool]],
    live: list[tuple[int, int]],
    start: int,
    space: int,
    size: int,
    cut: bool,
) -> None:
    made = [
        (max(1, len(records) + off), b"".join(records)[: -1 if cut else None], is_opaque)
        for off, records, is_opaque in batches
    ]
    shown(*run_of(*made), start=start, space=space, live=live, size=size)


@settings(max_examples=EXAMPLES)
@given(st.lists(st.lists(sound_record, min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 80))
def test_the_stream_from_an_offset_is_the_view_of_version_1(batches: list[list[bytes]], start: int) -> None:
    blocks = [b"".join(records) for records in batches]
    stored, entries = run_of(*((len(records), block, False) for records, block in zip(batches, blocks, strict=True)))
    stream = b"".join(bytes(records_for_v1(block)) for block in blocks)
    code, data, _, following = shown(stored, entries, start=start)
    assert (code, data) == (kernel.SHOW_DONE, stream[start:])
    assert following == (len(stream) if data else 0)


def test_units_end_within_the_requested_size_and_the_first_is_whole() -> None:
    stored, entries = run_of((2, plain(1, b"abc") * 2, False), (1, b"opaque bytes", True))
    assert shown(stored, entries, space=15) == (kernel.SHOW_FULL, plain(1, b"abc"), 1, 8)
    assert shown(stored, entries, space=16) == (kernel.SHOW_FULL, plain(1, b"abc") * 2, 2, 16)
    assert shown(stored, entries, space=1) == (kernel.SHOW_FULL, plain(1, b"abc"), 1, 8)
    assert shown(stored, entries, start=16, space=1) == (kernel.SHOW_DONE, b"opaque bytes", 1, 28)


def test_a_unit_can_be_read_from_any_byte_inside_it() -> None:
    whole = plain(1, b"abc") + extended(0x1234, b"xyz")
    stored, entries = run_of((2, whole, False))
    view = bytes(records_for_v1(whole))
    for start in range(len(whole)):
        code, data, units, following = shown(stored, entries, start=start)
        assert (code, data, following) == (kernel.SHOW_DONE, view[start:], len(whole))
        assert units == (2 if start == 0 else 1 if start <= 8 else 0)


def test_only_a_first_unit_that_is_larger_than_the_memory_is_cut() -> None:
    stored, entries = run_of((1, b"x" * 30, True), (1, b"y" * 30, True))
    assert shown(stored, entries, size=20) == (kernel.SHOW_FULL, b"x" * 20, 1, 20)
    assert shown(stored, entries, start=20, size=20) == (kernel.SHOW_FULL, b"x" * 10, 0, 30)
    block = extended(7, b"z" * 30)
    code, data, _, following = shown(*run_of((1, block, False)), size=6)
    assert (code, data, following) == (kernel.SHOW_FULL, bytes(records_for_v1(block))[:6], 6)


def test_deleted_records_and_holes_are_skipped() -> None:
    stored, entries = run_of((3, plain(1, b"a") + plain(1, b"b") + plain(1, b"c"), False), (1, b"dead", True), hole=50)
    code, data, units, following = shown(stored, entries, live=[(1, 1), (3, 3)])
    assert (code, data, units, following) == (kernel.SHOW_DONE, plain(1, b"a") + plain(1, b"c"), 2, 18)
    # An offset inside the hole: the size counts from the first stored byte.
    assert shown(stored, entries, start=20, space=4) == (kernel.SHOW_DONE, b"dead", 1, 72)
    assert shown(stored, entries, live=[(9, 9)]) == (kernel.SHOW_DONE, b"", 0, 0)


def test_a_run_stops_before_a_compressed_batch() -> None:
    stored, entries = run_of((1, plain(1, b"a"), False), codec=1)
    assert shown(stored, entries)[0] == kernel.SHOW_COMPRESSED


@pytest.mark.parametrize(
    ("block", "count"),
    [
        (plain(1, b"a"), 2),
        (plain(1, b"a") * 2, 1),
        (b"\1\0\0\0", 1),
        (b"\1\2\0\0\0a", 1),
        (b"\xff\0\0\1\0\0\0", 1),
        (b"\xff\2\0\0\0", 1),
        (b"\xff\2\0\2\0\0\0a", 1),
    ],
)
def test_a_block_with_another_record_count_is_reported(block: bytes, count: int) -> None:
    assert shown(*run_of((count, block, False)))[0] == kernel.SHOW_MALFORMED
