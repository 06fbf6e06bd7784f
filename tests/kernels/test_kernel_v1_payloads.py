"""Batches of version 1 payloads: kernel, twin and the codecs agree on every byte."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.codec import frames
from seawall.kernels.codec import v1_payloads as kernel
from seawall.kernels.runtime import jit
from seawall.limits import BATCH_RECORDS_MAX
from seawall.wire.format.batches import BatchHeader, iter_batches
from seawall.wire.format.records import v1_record_count
from seawall.wire.lwp1.frames import encode_frame
from twins.codec import v1_payloads as twin

EXAMPLES = 40 if jit.PYTHON_MODE else 100
CLIENT = -(1 << 63) + 5


def plain(value: bytes, record_type: int = 1) -> bytes:
    return struct.pack("<BI", record_type, len(value)) + value


def received(*made: bytes) -> tuple[Any, Any]:
    """Frames as a connection has them: the bytes, and their rows."""
    buffer = np.frombuffer(bytearray(b"".join(made)), np.uint8)
    rows, state = np.zeros(64, frames.FRAME_ROW), np.zeros(frames.STATE_SIZE, np.int64)
    frames.split_frames(buffer, 0, buffer.size, 1 << 24, rows, state)
    assert state[frames.STATE_FRAMES] == len(made)
    return buffer, rows[: len(made)]


def batches(
    buffer: Any, rows: Any, first: int = 0, *, joined: int = 100, size: int = 2_000, space: int = 20
) -> list[tuple[BatchHeader, bytes, int]]:
    """Header and block of each batch that is made, and how many frames it was made of."""
    results = []
    for module in (kernel, twin):
        out, out_rows = np.zeros(size, np.uint8), np.zeros(space, frames.FRAME_ROW)
        counts = np.zeros(space, np.int64)
        made = int(module.make_batches(buffer, rows, first, 9, CLIENT, 3, joined, out, out_rows, counts))
        used = int(out_rows["size"][:made].sum())
        results.append((made, out[:used].tobytes(), out_rows[:made].tobytes(), counts[:made].tolist()))
    assert results[0] == results[1]
    made, data, row_bytes, frame_counts = results[0]
    found = [(header, bytes(block)) for header, block in iter_batches(data)]
    out_rows = np.frombuffer(row_bytes, frames.FRAME_ROW)
    assert [header.size for header, _ in found] == out_rows["size"].tolist()
    assert [header.client_seq for header, _ in found] == out_rows["id"].tolist() == list(range(3, 3 + made))
    assert [header.record_count for header, _ in found] == out_rows["record_count"].tolist()
    return [(header, block, count) for (header, block), count in zip(found, frame_counts, strict=True)]


payload = st.one_of(
    st.binary(max_size=12),
    st.lists(st.builds(plain, st.binary(max_size=4), st.sampled_from([0, 1, 0x7F, 0xFF])), max_size=4).map(b"".join),
)


@settings(max_examples=EXAMPLES)
@given(payload)
def test_records_are_counted_as_the_codec_does(data: bytes) -> None:
    buffer = np.frombuffer(b"#" + data + b"#", np.uint8)
    counts = {module.count_v1_records(buffer, 1, 1 + len(data)) for module in (kernel, twin)}
    assert counts == {v1_record_count(data)}


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.tuples(payload, st.sampled_from([0, 4, 4, 5, 0x20]), st.integers(1, 2)), min_size=1, max_size=6),
    st.integers(0, 40),
    st.integers(0, 500),
    st.integers(0, 4),
)
def test_batches_equal_those_of_the_twin_for_any_frames(
    made: list[tuple[bytes, int, int]], joined: int, size: int, space: int
) -> None:
    each = [encode_frame(flags, data, topic_id=topic_id) for data, flags, topic_id in made]
    found = batches(*received(*each), joined=joined, size=size, space=space)
    taken = sum(count for _, _, count in found)
    assert b"".join(block for _, block, _ in found) == b"".join(data for data, _, _ in made[:taken])


def test_records_are_joined_and_opaque_payloads_stay_alone() -> None:
    one, two = plain(b"a"), plain(b"b") + plain(b"c")
    buffer, rows = received(
        encode_frame(4, one, topic_id=1),
        encode_frame(0, two, topic_id=1),
        encode_frame(4, b"opaque", topic_id=1),
        encode_frame(4, b"!", topic_id=1),
        encode_frame(4, one, topic_id=1),
        encode_frame(4, one, topic_id=2),
        encode_frame(5, one, topic_id=2),
        encode_frame(4, b"", topic_id=2),
    )
    found = batches(buffer, rows)
    assert [(block, header.record_count, header.is_opaque, count) for header, block, count in found] == [
        *((one + two, 3, False, 2), (b"opaque", 1, True, 1), (b"!", 1, True, 1), (one, 1, False, 1)),
    ]
    header = found[0][0]
    assert (header.topic_id, header.client_id, header.session_epoch) == (9, CLIENT + (1 << 64), 0)
    assert (header.order, header.ack_level, header.codec, header.term, header.timestamp_ns) == (0xFF, 2, 0, 0, 0)
    assert [len(batches(buffer, rows, first)) for first in range(5, 8)] == [1, 0, 0]
    assert [count for _, _, count in batches(buffer, rows, joined=len(one + two) - 1)] == [1, 1, 1, 1, 1]


def test_a_run_ends_when_the_output_is_full() -> None:
    one = plain(b"a")
    buffer, rows = received(*(encode_frame(4, one, topic_id=1) for _ in range(4)), encode_frame(4, b"x", topic_id=1))
    assert [count for _, _, count in batches(buffer, rows, size=96 + 4 * len(one))] == [4]
    assert [count for _, _, count in batches(buffer, rows, size=96 + 4 * len(one) - 1)] == [3]
    assert [count for _, _, count in batches(buffer, rows, size=96 + 4 * len(one) + 97)] == [4, 1]
    assert [count for _, _, count in batches(buffer, rows, space=1)] == [4]
    assert batches(buffer, rows, space=0) == batches(buffer, rows, size=100) == []
    assert kernel.JOINED_RECORDS_MAX == BATCH_RECORDS_MAX
