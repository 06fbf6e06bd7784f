"""Payloads of version 1 frames gathered into one block: kernel, twin and the codec's own rule agree."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels import frames, jit
from seawall.kernels import v1_payloads as kernel
from seawall.kernels.twins import v1_payloads as twin
from seawall.wire.lwp1 import encode_frame
from seawall.wire.records import v1_record_count

EXAMPLES = 40 if jit.PYTHON_MODE else 300


def plain(value: bytes, record_type: int = 1) -> bytes:
    return struct.pack("<BI", record_type, len(value)) + value


def received(*made: bytes) -> tuple[Any, Any]:
    """Frames as a connection has them: the bytes, and their rows."""
    buffer = np.frombuffer(b"".join(made), np.uint8)
    rows, state = np.zeros(64, frames.FRAME_ROW), np.zeros(frames.STATE_SIZE, np.int64)
    frames.split_frames(buffer, 0, buffer.size, 1 << 24, rows, state)
    assert state[frames.STATE_FRAMES] == len(made)
    return buffer, rows[: len(made)]


def gathered(buffer: Any, rows: Any, first: int = 0, records_max: int = 100, size: int = 100) -> tuple[int, bytes, int]:
    results = []
    for module in (kernel, twin):
        block, state = np.zeros(size, np.uint8), np.zeros(kernel.PAYLOADS_STATE, np.int64)
        taken = module.gather_payloads(buffer, rows, first, records_max, block, state)
        results.append((int(taken), block[: state[0]].tobytes(), int(state[1])))
    assert results[0] == results[1]
    return results[0]


def opaque(buffer: Any, rows: Any, first: int = 0, size_max: int = 100) -> int:
    counts = {int(module.count_opaque_payloads(buffer, rows, first, size_max)) for module in (kernel, twin)}
    assert len(counts) == 1
    return counts.pop()


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
    st.integers(1, 5),
)
def test_it_equals_its_twin_whatever_the_frames_hold(
    made: list[tuple[bytes, int, int]], size: int, records_max: int
) -> None:
    each = [encode_frame(flags, data, topic_id=topic_id) for data, flags, topic_id in made]
    gathered(*received(*each), size=size, records_max=records_max)
    opaque(*received(*each), size_max=size)


def test_a_run_ends_where_something_else_begins() -> None:
    one, two = plain(b"a"), plain(b"b") + plain(b"c")
    buffer, rows = received(
        encode_frame(4, one, topic_id=1),
        encode_frame(0, two, topic_id=1),
        encode_frame(4, one, topic_id=2),
        encode_frame(5, one, topic_id=2),
        encode_frame(4, b"opaque", topic_id=2),
        encode_frame(4, b"", topic_id=2),
    )
    assert gathered(buffer, rows) == (2, one + two, 3)
    assert [gathered(buffer, rows, first)[0] for first in range(1, 6)] == [1, 1, 0, 0, 0]
    assert gathered(buffer, rows, records_max=2) == (1, one, 1)
    assert gathered(buffer, rows, size=len(one + two) - 1) == (1, one, 1)


def test_opaque_payloads_of_one_topic_are_counted() -> None:
    buffer, rows = received(
        encode_frame(4, b"ab", topic_id=1),
        encode_frame(0, b"cde", topic_id=1),
        encode_frame(4, plain(b"record"), topic_id=1),
        encode_frame(4, b"f", topic_id=1),
        encode_frame(4, b"g", topic_id=2),
        encode_frame(5, b"h", topic_id=2),
        encode_frame(4, b"", topic_id=2),
    )
    assert [opaque(buffer, rows, first) for first in range(7)] == [2, 1, 0, 1, 1, 0, 0]
    assert [opaque(buffer, rows, 0, size) for size in (1, 2, 4, 5)] == [0, 1, 1, 2]
