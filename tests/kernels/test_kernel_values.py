"""Values of a list are measured, joined, summed and sent: kernels equal their twins, for any values."""

from __future__ import annotations

import errno
import itertools
import socket

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.codec import values
from seawall.kernels.codec.frames import SUM_FRAME_SIZE, write_sum
from seawall.kernels.runtime import jit
from seawall.wire.format.frames import checksum
from seawall.wire.format.records import encode_raw
from twins.codec import values as twin

EXAMPLES = 20 if jit.PYTHON_MODE else 100

pytestmark = pytest.mark.skipif(not values.HAS_KNOWN_LAYOUT, reason="this interpreter has its objects another way")


class Subclass(bytes):
    """Bytes by another name, which may have a length of its own."""


def _joined(kernel: object, items: list[bytes], size: int) -> tuple[bytes, int]:
    assert callable(kernel)
    target = np.full(size, 0xEE, np.uint8)
    crc: int = kernel(id(items), len(items), target)
    return target.tobytes(), crc


@settings(max_examples=EXAMPLES)
@given(st.lists(st.binary(max_size=300), max_size=40))
def test_lists_of_bytes_become_records(items: list[bytes]) -> None:
    expected = b"".join(map(encode_raw, items))
    size = values.measure_values(id(items), len(items), id(bytes))
    assert size == twin.measure_values(id(items), len(items), id(bytes)) == sum(map(len, items))
    joined = _joined(values.join_values, items, size + 5 * len(items))
    assert joined == _joined(twin.join_values, items, len(expected))
    assert joined[0] == expected


@pytest.mark.parametrize("length", [0, 1, 1_024, 16_379, 16_380, 40_000])
def test_long_values_are_summed_while_they_are_joined(length: int) -> None:
    items = [bytes([number]) * length for number in range(5)]
    expected = b"".join(map(encode_raw, items))
    assert _joined(values.join_values, items, len(expected)) == _joined(twin.join_values, items, len(expected))


@settings(max_examples=EXAMPLES)
@given(st.lists(st.binary(max_size=300), max_size=40), st.lists(st.integers(1, 400), min_size=1), st.integers(0, 9))
def test_parts_of_any_size_make_the_same_block(items: list[bytes], sizes: list[int], before: int) -> None:
    expected = b"".join(map(encode_raw, items))
    cursor, twins = np.zeros(values.CURSOR_SIZE, np.int64), np.zeros(values.CURSOR_SIZE, np.int64)
    found = b""
    for size in itertools.cycle(sizes):
        part, other = np.full(before + size + 1, 0xEE, np.uint8), np.full(before + size + 1, 0xEE, np.uint8)
        end = values.join_part(id(items), len(items), cursor, part, before, before + size)
        assert end == twin.join_part(id(items), len(items), twins, other, before, before + size)
        assert part.tobytes() == other.tobytes()
        assert cursor.tolist() == twins.tolist()
        found += part[before:end].tobytes()
        if cursor[values.NEXT] == len(items):
            break
    assert found == expected


@settings(max_examples=EXAMPLES)
@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(0, 20_000), st.integers(1, 20_000))
def test_parts_are_summed_as_they_are_made(items: list[bytes], length: int, part_size: int) -> None:
    items = [*items, bytes(length)]
    cursor, twins = np.zeros(values.CURSOR_SIZE, np.int64), np.zeros(values.CURSOR_SIZE, np.int64)
    part, other = np.zeros(part_size, np.uint8), np.zeros(part_size, np.uint8)
    while cursor[values.NEXT] < len(items):
        end = values.join_summed(id(items), len(items), cursor, part, 0, part_size)
        assert end == twin.join_summed(id(items), len(items), twins, other, 0, part_size)
        assert (part.tobytes(), cursor.tolist()) == (other.tobytes(), twins.tolist())
    assert cursor[values.CRC] == checksum(b"".join(map(encode_raw, items)))


@pytest.mark.parametrize("part_size", [52, 1_000, 100_000])
def test_values_are_sent_as_far_as_the_socket_accepts_them(part_size: int) -> None:
    items = [bytes([number % 251]) * (number % 4_000) for number in range(600)]
    block = b"".join(map(encode_raw, items))
    trailing = np.zeros(SUM_FRAME_SIZE, np.uint8)
    write_sum(trailing, 0, 77, checksum(block))
    expected = b"HEAD" + block + trailing.tobytes()
    cursor, part = np.zeros(values.CURSOR_SIZE, np.int64), np.zeros(part_size, np.uint8)
    part[:4] = memoryview(b"HEAD")
    cursor[[values.HEAD, values.FRAME_ID]] = 4, 77
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
    received, sent, was_full = bytearray(), 0, False
    with ours, theirs:
        while len(received) < len(expected):
            count = values.send_values(ours.fileno(), id(items), len(items), cursor, part)
            was_full |= count == -errno.EAGAIN or sent + count < len(expected)
            sent += max(count, 0)
            received += theirs.recv(50_000)
            assert len(received) <= sent
        assert values.send_values(ours.fileno(), id(items), len(items), cursor, part) == 0
    assert (bytes(received), sent, was_full) == (expected, len(expected), True)


def test_a_closed_peer_is_reported() -> None:
    items = [b"value"]
    cursor, part = np.zeros(values.CURSOR_SIZE, np.int64), np.zeros(100, np.uint8)
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        assert values.send_values(ours.fileno(), id(items), 1, cursor, part) == -errno.EPIPE


@pytest.mark.parametrize("other", ["text", bytearray(b"x"), None, Subclass(b"x"), 7])
@pytest.mark.parametrize("index", [0, 3, 9])
def test_an_object_that_is_not_bytes_is_reported(other: object, index: int) -> None:
    items: list[object] = [b"value"] * 10
    items[index] = other
    assert values.measure_values(id(items), len(items), id(bytes)) == -1
    assert twin.measure_values(id(items), len(items), id(bytes)) == -1


def test_a_list_that_has_grown_is_joined() -> None:
    items = [b"first"]
    for number in range(0, 1_000, 10):
        items += [str(each).encode() for each in range(number, number + 10)]
    expected = b"".join(map(encode_raw, items))
    assert _joined(values.join_values, items, len(expected))[0] == expected
