"""Header lists as columns: kernel against twin, and round trips."""

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seawall.kernels.codec import headers
from twins.codec import headers as twin

LISTS = st.lists(st.none() | st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=5)), max_size=4), max_size=7)


def column(values: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return np.frombuffer(b"".join(values) + b"#", np.uint8), offsets


def encoded(function, lists):
    flat = [header for each in lists for header in each or []]
    names, name_offsets = column([name for name, _ in flat])
    values, value_offsets = column([value for _, value in flat])
    list_offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(each or []) for each in lists], out=list_offsets[1:])
    lengths = np.array([-1 if each is None else 0 for each in lists], np.int64)
    starts = np.zeros(len(lists), np.int64)
    out = np.zeros(2 * len(lists) + 6 * len(flat) + names.size + values.size, np.uint8)
    used = function(list_offsets, len(lists), names, name_offsets, values, value_offsets, out, starts, lengths)
    return used, out, starts, lengths


def located(module, block, starts, lengths):
    count = starts.size
    total = module.count_headers(block, starts, lengths, count)
    offsets = np.zeros(count + 1, np.int32)
    spans = np.zeros((4, total), np.int64)
    assert module.locate_headers(block, starts, lengths, count, offsets, *spans) == total
    return offsets.tolist(), spans.tolist()


@given(LISTS)
def test_round_trips_equal_their_twin(lists: list) -> None:
    used, block, starts, lengths = encoded(headers.encode_headers, lists)
    twin_used, twin_block, twin_starts, twin_lengths = encoded(twin.encode_headers, lists)
    assert used == twin_used
    assert block.tobytes() == twin_block.tobytes()
    assert (starts.tolist(), lengths.tolist()) == (twin_starts.tolist(), twin_lengths.tolist())
    offsets, spans = located(headers, block, starts, lengths)
    assert (offsets, spans) == located(twin, block, starts, lengths)
    data = block.tobytes()
    found = [(data[n : n + nl], data[v : v + vl]) for n, nl, v, vl in zip(*spans, strict=True)]
    assert found == [header for each in lists for header in each or []]


def test_the_encoding_of_one_list() -> None:
    used, block, starts, lengths = encoded(headers.encode_headers, [None, [(b"a", b"xy")], []])
    expected = struct.pack("<HH1sI2s", 1, 1, b"a", 2, b"xy") + struct.pack("<H", 0)
    assert block[:used].tobytes() == expected
    assert lengths.tolist() == [-1, 11, 2]
    assert starts.tolist() == [0, 0, 11]
