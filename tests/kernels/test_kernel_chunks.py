"""Batches that a reader receives: valid ones are listed, up to the first that the batch parser refuses."""

from __future__ import annotations

import struct
from typing import Any

import crc32c as wheel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall import limits
from seawall.errors import CorruptionError
from seawall.kernels.codec import chunks
from seawall.kernels.runtime import jit
from seawall.wire.format.batches import iter_batches
from twins.codec import chunks as twin

EXAMPLES = 25 if jit.PYTHON_MODE else 100
RECORD = b"\x01\x05\0\0\0hello"
DELETED = bytes(5)
NULL = b"\xff" + bytes(4)
EXTENDED = b"\xff\x09\0\x02\0\0\0ab"

HEADER = struct.Struct("<4sBBHIQQIIIIIQQQQIIIBBBB")
DEFAULTS: dict[str, Any] = {
    "magic": b"LANC",
    "version": 2,
    "kind": 4,
    "command": 0,
    "crc": 0,
    "client_seq": 1,
    "timestamp_ns": 5,
    "count": 1,
    "length": None,
    "block_crc": None,
    "topic": 3,
    "reserved": 0,
    "client": 7,
    "position": 11,
    "base_seq": 21,
    "base_offset": 0,
    "raw": None,
    "term": 1,
    "epoch": 1,
    "order": 2,
    "level": 2,
    "codec": 0,
    "flags": 0,
}


def batch(block: bytes = RECORD, **changed: Any) -> bytes:
    """A stored batch with single fields overridden; the checksum of its header is right."""
    derived = {"length": 52 + len(block), "block_crc": wheel.crc32c(block), "raw": len(block)}
    header = bytearray(HEADER.pack(*(DEFAULTS | derived | changed).values()))
    struct.pack_into("<I", header, 8, wheel.crc32c(bytes(header[12:]), wheel.crc32c(bytes(header[:8]))))
    return bytes(header) + block


def check_with(
    module: Any, data: bytes, space: int = 16, start: int = 0, pieces: tuple[int, ...] = ()
) -> tuple[int, list[Any], list[int]]:
    """Code, rows and public state, from one call with all data or from calls after each of some pieces."""
    buffer = np.frombuffer(b"L" * start + data + b"LANC", np.uint8)
    rows = np.zeros(space, chunks.CHUNK_ROW)
    state = np.zeros(chunks.STATE_SIZE, np.int64)
    state[chunks.STATE_CONSUMED] = start
    end = start + len(data)
    for arrived in (*sorted(pieces), end):
        code = module.check_chunks(buffer, min(start + arrived, end), end, rows, state)
        if code != chunks.CHUNKS_MORE:
            break
    return int(code), rows[: state[chunks.STATE_ROWS]].tolist(), state[:3].tolist()


def check(data: bytes, **arguments: Any) -> tuple[int, list[Any], list[int]]:
    result = check_with(chunks, data, **arguments)
    assert result == check_with(twin, data, **arguments)
    return result


def test_valid_batches_are_listed_with_the_fields_a_reader_needs() -> None:
    first = batch(RECORD + DELETED + NULL + EXTENDED, count=4)
    second = batch(b"anything", flags=2, base_seq=25, position=12)
    third = batch(b"compressed", codec=2, raw=900, count=30, base_seq=26, position=13, timestamp_ns=6)
    code, rows, state = check(first + second + third, start=3)
    ends = np.cumsum([len(first), len(second), len(third)]) + 3
    assert code == chunks.CHUNKS_DONE
    assert rows == [
        (21, 11, 5, 3 + 96, ends[0], 4, 3, 1, 1),
        (25, 12, 5, ends[0] + 96, ends[1], 1, 3, 0, 0),
        (26, 13, 6, ends[1] + 96, ends[2], 30, 3, 0, 0),
    ]
    assert state == [3, 35, ends[2]]


def test_checking_continues_after_a_full_table() -> None:
    data = batch() * 5
    code, rows, state = check(data, space=3)
    assert (code, len(rows), state) == (chunks.CHUNKS_FULL, 3, [3, 3, 3 * len(batch())])
    assert check(data[state[2] :], space=3)[::2] == (chunks.CHUNKS_DONE, [2, 2, 2 * len(batch())])
    assert check(b"") == (chunks.CHUNKS_DONE, [], [0, 0, 0])


VALID = [
    batch(DELETED * 3, count=3),
    batch(b"", count=0),
    batch(flags=4, client=1 << 63),
    batch(level=0xFF),
    batch(b"x" * 40, codec=1, raw=limits.BLOCK_SIZE_MAX),
    batch(b"x", codec=1, raw=1, count=9, command=2),
]
INVALID = [
    batch()[:95],
    batch()[:-1],
    *(batch(magic=b"LANX"), batch(version=1), batch(kind=8), batch(length=51), batch(length=0xFFFF_FFFF)),
    *(batch(reserved=1), batch(level=3), batch(codec=3), batch(flags=1), batch(flags=4), batch(flags=8)),
    *(batch(raw=9), batch(codec=1, raw=0), batch(codec=1, raw=limits.BLOCK_SIZE_MAX + 1), batch(count=3)),
    *(batch(flags=2, count=2), batch(codec=1, raw=9, count=2), batch(block_crc=1), batch(RECORD[:-1])),
    *(
        batch(RECORD * 2),
        batch(RECORD + b"\x01\0", count=2),
        batch(RECORD, count=2),
        batch(RECORD + RECORD[:9], count=2),
    ),
    *(batch(b"\xff\0\0\x01\0\0\0a"), batch(b"\xff\x01\0\0\0\0"), batch(b"\xff\x01\0\x09\0\0\0ab")),
    batch()[:8] + b"\0\0\0\0" + batch()[12:],
]


@pytest.mark.parametrize("number", range(len(VALID)))
def test_unusual_but_valid_batches_are_listed(number: int) -> None:
    code, rows, _ = check(VALID[number])
    assert (code, len(rows)) == (chunks.CHUNKS_DONE, 1)
    assert len(list(iter_batches(VALID[number]))) == 1


@pytest.mark.parametrize("number", range(len(INVALID)))
def test_the_list_stops_before_an_invalid_batch(number: int) -> None:
    data = batch() + INVALID[number]
    code, rows, state = check(data)
    assert (code, len(rows), state[chunks.STATE_CONSUMED]) == (chunks.CHUNKS_BAD, 1, len(batch()))


records = st.lists(st.sampled_from([RECORD, DELETED, NULL, EXTENDED]), max_size=5)
batches = st.one_of(
    records.map(lambda made: batch(b"".join(made), count=len(made))),
    st.binary(max_size=20).map(lambda block: batch(block, flags=2)),
    st.binary(max_size=20).map(lambda block: batch(block, codec=1, raw=20)),
)


@settings(max_examples=EXAMPLES)
@given(st.lists(batches, max_size=4), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 7)), max_size=2), st.data())
def test_pieces_of_any_size_give_the_same_result(
    made: list[bytes], flips: list[tuple[float, int]], drawn: st.DataObject
) -> None:
    data = bytearray(b"".join(made))
    for where, bit in flips if data else ():
        data[int(where * (len(data) - 1))] ^= 1 << bit
    stored = bytes(data)
    pieces = tuple(drawn.draw(st.lists(st.integers(0, len(stored)), max_size=6)))
    assert check(stored, space=4, pieces=pieces) == check(stored, space=4)


def test_a_batch_is_listed_when_its_last_byte_has_arrived() -> None:
    data = batch(RECORD * 3, count=3)
    buffer = np.frombuffer(data * 2, np.uint8)
    rows = np.zeros(4, chunks.CHUNK_ROW)
    state = np.zeros(chunks.STATE_SIZE, np.int64)
    for arrived in range(2 * len(data)):
        assert chunks.check_chunks(buffer, arrived, buffer.size, rows, state) == chunks.CHUNKS_MORE
        assert state[chunks.STATE_ROWS] == arrived // len(data)
    assert chunks.check_chunks(buffer, buffer.size, buffer.size, rows, state) == chunks.CHUNKS_DONE
    assert state[:3].tolist() == [2, 6, 2 * len(data)]


def test_invalid_records_are_reported_once_all_of_them_have_arrived() -> None:
    data = batch(b"\xff\0\0\x01\0\0\0a" + RECORD, count=2)
    codes = [check(data + batch(), pieces=(arrived,) * 2)[0] for arrived in range(0, len(data) + 1, 9)]
    assert set(codes) == {chunks.CHUNKS_BAD}
    buffer = np.frombuffer(data + batch(), np.uint8)
    for module in (chunks, twin):
        state = np.zeros(chunks.STATE_SIZE, np.int64)
        rows = np.zeros(4, chunks.CHUNK_ROW)
        assert module.check_chunks(buffer, len(data) - 1, buffer.size, rows, state) == chunks.CHUNKS_MORE
        assert module.check_chunks(buffer, len(data), buffer.size, rows, state) == chunks.CHUNKS_BAD


@settings(max_examples=EXAMPLES)
@given(
    st.lists(batches, max_size=4), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 7)), max_size=2), st.floats(0, 1)
)
def test_damage_is_found_where_the_batch_parser_finds_it(
    made: list[bytes], flips: list[tuple[float, int]], cut: float
) -> None:
    data = bytearray(b"".join(made))
    for where, bit in flips if data else ():
        data[int(where * (len(data) - 1))] ^= 1 << bit
    stored = bytes(data[: round(cut * len(data))])
    code, rows, _ = check(stored, space=4)
    found = []
    try:
        for header, block in iter_batches(stored):
            found.append((header.base_seq, len(block)))
    except CorruptionError:
        assert code == chunks.CHUNKS_BAD
    else:
        assert code == chunks.CHUNKS_DONE
    assert [(row[0], row[4] - row[3]) for row in rows] == found
