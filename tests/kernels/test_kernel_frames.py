"""Splitting a stream into frames: the published vectors, every stop code, any chunking, any garbage."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import crc32c as wheel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.codec import frames
from seawall.kernels.runtime import jit
from twins.codec import frames as twin

EXAMPLES = 25 if jit.PYTHON_MODE else 100
PAYLOAD_MAX = 500

Split = tuple[int, list[Any], list[int]]


def frame(
    payload: bytes = b"",
    *,
    version: int = 2,
    kind: int = frames.KIND_CONTROL,
    command: int = 1,
    identity: int = 0,
    length: int | None = None,
    payload_crc: int | None = None,
    wrong_header_crc: bool = False,
) -> bytes:
    """A frame as an honest peer builds it, with single fields overridden."""
    batch = version == 2 and kind == frames.KIND_BATCH
    checksum = zlib.crc32 if version == 1 else wheel.crc32c
    if payload_crc is None:
        payload_crc = checksum(payload[52:] if batch else payload)
    size = len(payload) if length is None else length
    front = b"LANC" + struct.pack("<BBH", version, kind, command)
    back = struct.pack("<QQIIII", identity, 17, 3, size, payload_crc, 9)
    covered = front if version == 1 else front + back + (payload[:52] if batch else b"")
    return front + struct.pack("<I", checksum(covered) ^ wrong_header_crc) + back + payload


def with_trailing_sum(block: bytes, *, identity: int = 7, trailing: bytes | None = None, **changed: int) -> bytes:
    """A batch whose checksum follows it, or whatever else does."""
    prologue = bytes(51) + bytes([frames.FLAG_TRAILING_CHECKSUM | 0x02])
    batch = frame(prologue + block, kind=frames.KIND_BATCH, **{"identity": identity, "payload_crc": 0} | changed)
    return batch + (sum_frame(wheel.crc32c(block), identity) if trailing is None else trailing)


def sum_frame(crc: int, identity: int = 7, **changed: int) -> bytes:
    return frame(struct.pack("<I", crc), command=frames.COMMAND_SUM, identity=identity, **changed)


def split_with(split: Callable[..., int], data: bytes, start: int = 0, **named: Any) -> Split:
    return split_in(split, bytearray(b"L" * start + data + b"LANC"), start=start, **named)


def split_in(
    split: Callable[..., int],
    content: bytearray,
    version: int = 0,
    space: int = 64,
    start: int = 0,
    maximum: int = PAYLOAD_MAX,
    summed: tuple[int, int] = (0, 0),
) -> Split:
    """The result of splitting all but the last four bytes."""
    buffer = np.frombuffer(content, np.uint8)
    rows = np.zeros(space, frames.FRAME_ROW)
    state = np.array([version, -1, -1, -1, *summed], np.int64)
    code = split(buffer, start, buffer.size - 4, maximum, rows, state)
    return int(code), rows[: state[frames.STATE_FRAMES]].tolist(), state.tolist()


def split_both(data: bytes, **given_arguments: int) -> Split:
    content = b"L" * given_arguments.get("start", 0) + data + b"LANC"
    ours, theirs = bytearray(content), bytearray(content)
    result = split_in(frames.split_frames, ours, **given_arguments)
    assert result == split_in(twin.split_frames, theirs, **given_arguments)
    assert ours == theirs
    return result


payloads = st.binary(max_size=60)
#: Commands of frames that get a row.
others = st.integers(0, 0xFFFF).filter(lambda command: command != frames.COMMAND_SUM)
version_1 = st.builds(
    frame,
    payloads,
    version=st.just(1),
    kind=st.integers(0, 255),
    command=st.integers(0, 3),
    identity=st.just(2**64 - 1),
)
version_2 = st.one_of(
    st.builds(frame, payloads, kind=st.sampled_from([8, 0x20, 0x40]), command=others),
    st.builds(frame, payloads.map(bytes(range(52)).__add__), kind=st.just(4), identity=st.integers(0, 99)),
    st.builds(frame, payloads, command=st.sampled_from([0x51, 0x54]), payload_crc=st.sampled_from([None, 0])),
    st.builds(with_trailing_sum, payloads, identity=st.integers(0, 99)),
)
streams = st.one_of(st.lists(version_1, max_size=6), st.lists(version_2, max_size=6)).map(b"".join)


@st.composite
def hostile_stream(draw: st.DrawFn) -> bytes:
    stream = bytearray(draw(st.lists(st.one_of(version_1, version_2), min_size=1, max_size=4).map(b"".join)))
    for _ in range(draw(st.integers(0, 2))):
        stream[draw(st.integers(0, len(stream) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(stream[: draw(st.integers(0, len(stream)))]) + draw(st.binary(max_size=5))


noise = st.binary(max_size=120)
any_stream = st.one_of(streams, hostile_stream(), noise, noise.map(b"LANC\2".__add__))


@settings(max_examples=EXAMPLES)
@given(any_stream, st.integers(0, 2), st.integers(0, 7), st.integers(0, 5), st.sampled_from([0, 20, 40, 500]))
def test_split_equals_its_twin(data: bytes, version: int, space: int, start: int, maximum: int) -> None:
    code, rows, state = split_both(data, version=version, space=space, start=start, maximum=maximum)
    assert 0 <= code <= frames.SPLIT_NO_SUM
    assert start <= state[frames.STATE_CONSUMED] <= start + len(data)
    # A row is followed by the next one, or by its trailing checksum.
    ends, begins = (
        [start, *(row[0] + row[1] for row in rows)],
        [*(row[0] for row in rows), state[frames.STATE_CONSUMED]],
    )
    assert all(begin - end in (0, frames.SUM_FRAME_SIZE) for end, begin in zip(ends, begins, strict=True))


def feed(data: bytes, cuts: list[int], space: int, ahead: Callable[..., None] | None = None) -> Split:
    """Feed a stream piece by piece, as a connection does, and sum incomplete batches; rows as if from one buffer."""
    rows: list[Any] = []
    version, consumed, code = 0, 0, frames.SPLIT_MORE
    needed = 0
    summed = 0, 0
    for cut in [*cuts, len(data)]:
        while True:
            code, more, state = split_with(
                frames.split_frames, data[consumed:cut], version=version, space=space, summed=summed
            )
            summed = (state[frames.STATE_SUMMED], state[frames.STATE_CRC])
            rows += [(row[0] + consumed, *row[1:]) for row in more]
            version, needed = state[frames.STATE_VERSION], state[frames.STATE_NEEDED]
            consumed += state[frames.STATE_CONSUMED]
            if code != frames.SPLIT_FULL:
                break
        if code != frames.SPLIT_MORE:
            break
        if ahead is not None and needed > 96 and cut < len(data):
            before = np.array([0, 0, 0, 0, *summed], np.int64)
            ahead(np.frombuffer(b"\2" + data[consumed:cut], np.uint8), 1, 1 + cut - consumed, before)
            summed = (int(before[frames.STATE_SUMMED]), int(before[frames.STATE_CRC]))
    return code, rows, [version, len(rows), consumed, needed, *summed]


@settings(max_examples=EXAMPLES)
@given(st.one_of(streams, hostile_stream()), st.lists(st.integers(0, 400), max_size=12).map(sorted), st.integers(1, 3))
def test_any_chunking_gives_the_same_frames(data: bytes, cuts: list[int], space: int) -> None:
    whole = split_with(frames.split_frames, data)
    cuts = [cut for cut in cuts if cut < len(data)]
    assert feed(data, cuts, space) == whole
    for module in (frames, twin):
        code, rows, state = feed(data, cuts, space, module.sum_arrived)
        assert (code, rows, state[:4]) == (whole[0], whole[1], whole[2][:4])


@pytest.mark.parametrize("kind", [frames.KIND_BATCH, frames.KIND_CONTROL])
def test_a_partial_checksum_is_continued(kind: int) -> None:
    data = frame(bytes(52) + b"block" * 50, kind=kind)
    pieces = [list(range(97, len(data), 10)), [98], [len(data) - 1]]
    assert all(
        feed(data, cuts, 1, frames.sum_arrived)[:2] == split_with(frames.split_frames, data)[:2] for cuts in pieces
    )
    state = np.zeros(frames.STATE_SIZE, np.int64)
    frames.sum_arrived(np.frombuffer(data, np.uint8), 0, 200, state)
    if kind != frames.KIND_BATCH:
        assert not state.any()
        return
    assert state[frames.STATE_SUMMED] == 200
    damaged = bytearray(data)
    damaged[150] ^= 1
    summed = (200, int(state[frames.STATE_CRC]))
    assert split_with(frames.split_frames, bytes(damaged), summed=summed)[0] == frames.SPLIT_MORE
    damaged[250] ^= 1
    assert split_with(frames.split_frames, bytes(damaged), summed=summed)[0] == frames.SPLIT_PAYLOAD_CRC


@pytest.mark.parametrize("broken", [b"", frame(b"x", payload_crc=1), frame(kind=4, length=51), b"HTTP/1.1"])
def test_one_byte_at_a_time_gives_the_same_frames(broken: bytes) -> None:
    data = frame(b"abc") + frame(bytes(52) + b"block", kind=4) + frame(kind=0x20) + broken
    assert feed(data, list(range(len(data))), 1) == split_both(data)


VECTORS = {
    "version 1": """
        4C414E4301200000 061E9C53 0000000000000000 0000000000000000 00000000 00000000 00000000 00000000
        4C414E4301400000 26D54B1B 0100000000000000 0000000000000000 00000000 06000000 4A578753 00000000 6576656E7473
        4C414E4301040000 3AF0D86C 0100000000000000 00002A36FE9C9717 01000000 0A000000 9C17EDB6 01000000
        010500000068656C6C6F""",
    "version 2": """
        4C414E4302200000 C80AA7DB 0900000000000000 0000000000000000 00000000 00000000 00000000 00000000
        4C414E4302040000 22997B0D 0100000000000000 00002A36FE9C9717 01000000 3E000000 CC5279DD 01000000
        00000000 0700000000000000 0000000000000000 0000000000000000 0000000000000000 0A000000 00000000 03000000
        05 02 00 00 010500000068656C6C6F
        4C414E4302080000 10E2D596 0100000000000000 0000000000000000 01000000 40000000 138694D2 00000000
        0300000000000000 00010000 00000002 0100000000000000 0100000000000000 0000000000000000 00002A36FE9C9717
        01000000 01000000 01000000 00 02 0000""",
}


@pytest.mark.parametrize("name", VECTORS)
def test_published_vectors(name: str) -> None:
    data = bytes.fromhex(VECTORS[name])
    code, rows, state = split_both(data)
    assert (code, len(rows)) == (frames.SPLIT_MORE, 3)
    assert state == [int(name[-1]), 3, len(data), 0, 0, 0]


def test_a_row_has_the_fields_of_its_header() -> None:
    data = frame(b"payload", version=1, kind=0x44, command=0x0203, identity=2**64 - 1)
    _, [row], _ = split_both(data, start=5)
    named = dict(zip(frames.FRAME_ROW.names or (), row, strict=True))
    header_crc, payload_crc = struct.unpack_from("<I", data, 8)[0], zlib.crc32(b"payload")
    expected = {"at": 5, "size": 51, "id": 2**64 - 1, "timestamp_ns": 17, "record_count": 3, "payload_length": 7}
    expected |= {"payload_crc": payload_crc, "topic_id": 9, "version": 1, "kind": 0x44, "command": 0x0203}
    assert named == expected | {"header_crc": header_crc}


LIMIT = PAYLOAD_MAX
STOPS = {
    "nothing": (b"", frames.SPLIT_MORE, 0),
    "one byte": (b"L", frames.SPLIT_MORE, 44),
    "half a header": (frame()[:43], frames.SPLIT_MORE, 44),
    "half a payload": (frame(b"abc")[:-1], frames.SPLIT_MORE, 47),
    "half a prologue": (frame(bytes(60), kind=4)[:95], frames.SPLIT_MORE, 96),
    "half a block": (frame(bytes(60), kind=4)[:96], frames.SPLIT_MORE, 104),
    "magic": (b"GET / HTTP/1.1", frames.SPLIT_MAGIC, 44),
    "magic on the second byte": (b"Lx", frames.SPLIT_MAGIC, 44),
    "version": (b"LANC\3", frames.SPLIT_VERSION, 44),
    "version 0": (b"LANC\0", frames.SPLIT_VERSION, 44),
    "header checksum": (frame(wrong_header_crc=True), frames.SPLIT_HEADER_CRC, 44),
    "header checksum of version 1": (frame(version=1, wrong_header_crc=True), frames.SPLIT_HEADER_CRC, 44),
    "header checksum of a batch": (frame(bytes(60), kind=4, wrong_header_crc=True), frames.SPLIT_HEADER_CRC, 44),
    "no kind": (frame(kind=0), frames.SPLIT_KIND, 44),
    "two kinds": (frame(kind=0x48), frames.SPLIT_KIND, 44),
    "kind before length": (frame(kind=1, length=2**32 - 1), frames.SPLIT_KIND, 44),
    "checksum before kind": (frame(kind=0, wrong_header_crc=True), frames.SPLIT_HEADER_CRC, 44),
    "too large": (frame(length=LIMIT + 1), frames.SPLIT_TOO_LARGE, 44),
    "4 GiB": (frame(length=2**32 - 1), frames.SPLIT_TOO_LARGE, 44),
    "4 GiB of version 1": (frame(version=1, length=2**32 - 1), frames.SPLIT_TOO_LARGE, 44),
    "large enough": (frame(length=LIMIT), frames.SPLIT_MORE, 44 + LIMIT),
    "large batch": (frame(bytes(52), kind=4, length=LIMIT + 52), frames.SPLIT_MORE, 96 + LIMIT),
    "too large a batch": (frame(bytes(52), kind=4, length=LIMIT + 53), frames.SPLIT_TOO_LARGE, 44),
    "large FETCH_DATA": (frame(command=0x51, length=LIMIT + 144), frames.SPLIT_MORE, 188 + LIMIT),
    "too large a DATA": (frame(command=0x54, length=LIMIT + 145), frames.SPLIT_TOO_LARGE, 44),
    "large JOBS": (frame(command=0x91, length=LIMIT + 144), frames.SPLIT_MORE, 188 + LIMIT),
    "too large JOBS": (frame(command=0x91, length=LIMIT + 145), frames.SPLIT_TOO_LARGE, 44),
    "short batch": (frame(kind=4, length=51), frames.SPLIT_SHORT_BATCH, 44),
    "payload checksum": (frame(b"abc", payload_crc=1), frames.SPLIT_PAYLOAD_CRC, 47),
    "payload checksum of version 1": (frame(b"abc", version=1, payload_crc=0), frames.SPLIT_PAYLOAD_CRC, 47),
    "payload checksum of a batch": (frame(bytes(53), kind=4, payload_crc=1), frames.SPLIT_PAYLOAD_CRC, 97),
    "payload checksum of DATA": (frame(b"abc", command=0x54, payload_crc=1), frames.SPLIT_PAYLOAD_CRC, 47),
    "an incomplete batch with a trailing checksum": (with_trailing_sum(b"block")[:97], frames.SPLIT_MORE, 149),
    "half a trailing checksum": (with_trailing_sum(b"block")[:-1], frames.SPLIT_MORE, 149),
    "another trailing checksum": (with_trailing_sum(b"b", trailing=sum_frame(1)), frames.SPLIT_PAYLOAD_CRC, 145),
    "the checksum of another batch": (with_trailing_sum(b"block", trailing=sum_frame(1, 8)), frames.SPLIT_NO_SUM, 149),
    "another frame after a batch": (with_trailing_sum(b"block", trailing=frame(b"four")), frames.SPLIT_NO_SUM, 149),
    "noise after a batch": (with_trailing_sum(b"block", trailing=b"\xff" * 48), frames.SPLIT_NO_SUM, 149),
    "a leading and a trailing checksum": (
        with_trailing_sum(b"b", payload_crc=wheel.crc32c(b"b")),
        frames.SPLIT_NO_SUM,
        145,
    ),
    "a checksum of nothing": (sum_frame(1, payload_crc=2), frames.SPLIT_PAYLOAD_CRC, 48),
    "a broken trailing checksum": (
        with_trailing_sum(b"b", trailing=sum_frame(wheel.crc32c(b"b"), payload_crc=3)),
        frames.SPLIT_NO_SUM,
        145,
    ),
    "a broken frame with the trailing checksum": (
        with_trailing_sum(b"b", trailing=sum_frame(wheel.crc32c(b"b"), wrong_header_crc=True)),
        frames.SPLIT_NO_SUM,
        145,
    ),
    "a long trailing checksum": (
        with_trailing_sum(b"b", trailing=frame(bytes(5), command=frames.COMMAND_SUM, identity=7)),
        frames.SPLIT_NO_SUM,
        145,
    ),
}


@pytest.mark.parametrize("name", STOPS)
def test_every_reason_to_stop(name: str) -> None:
    data, code, needed = STOPS[name]
    good = frame(b"before it", version=1 if data[4:5] == b"\1" else 2)
    assert split_both(data)[::2] == (code, [split_both(data)[2][0], 0, 0, needed, 0, 0])
    after_another = split_both(good + data)
    assert after_another[0] == code
    assert after_another[2][1:] == [1, len(good), needed, 0, 0]


def test_every_stop_code_has_a_case() -> None:
    seen = {code for _, code, _ in STOPS.values()} | {frames.SPLIT_FULL}
    assert seen == set(range(frames.SPLIT_NO_SUM + 1))


@pytest.mark.parametrize("split", [frames.split_frames, twin.split_frames])
def test_a_trailing_checksum_is_moved_into_its_batch(split: Callable[..., int]) -> None:
    before, after = frame(b"before"), frame(b"after!")
    content = bytearray(before + with_trailing_sum(b"block") + after + b"LANC")
    plain = frame(bytes(51) + b"\x02block", kind=frames.KIND_BATCH, identity=7)
    code, rows, state = split_in(split, content)
    expected = split_with(split, before + plain + after)
    assert (code, [row[2:] for row in rows]) == (expected[0], [row[2:] for row in expected[1]])
    assert [row[:2] for row in rows] == [(0, 50), (50, 101), (50 + 149, 50)]
    assert content[50:151] == plain
    # Rows that were not consumed may be split again: the trailing checksum never gets a row.
    assert split_in(split, content)[:2] == (code, rows)
    assert split_in(split, content[50:], space=1)[::2] == (frames.SPLIT_FULL, [2, 1, 149, 50, 0, 0])
    assert state == [2, 3, len(content) - 4, 0, 0, 0]


def test_a_trailing_checksum_of_an_empty_block() -> None:
    block = bytes(200)
    assert split_both(with_trailing_sum(b""))[2] == [2, 1, 144, 0, 0, 0]
    cuts = [97, 150, 96 + 200, 96 + 201, 96 + 247]
    assert feed(with_trailing_sum(block), cuts, 1, frames.sum_arrived)[:2] == split_both(with_trailing_sum(block))[:2]
    states = [np.zeros(frames.STATE_SIZE, np.int64) for _ in range(2)]
    for module, state in zip((frames, twin), states, strict=True):
        module.sum_arrived(np.frombuffer(with_trailing_sum(block), np.uint8), 0, 96 + 247, state)
        assert state.tolist() == [0, 0, 0, 0, 296, wheel.crc32c(block)]


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(0, 9))
def test_a_trailing_checksum_is_written_as_by_its_twin(identity: int, crc: int, at: int) -> None:
    ours, theirs = np.full(60, 0xEE, np.uint8), np.full(60, 0xEE, np.uint8)
    frames.write_sum(ours, at, identity, crc)
    twin.write_sum(theirs, at, identity, crc)
    assert ours.tobytes() == theirs.tobytes()
    assert split_both(ours[at : at + frames.SUM_FRAME_SIZE].tobytes())[::2] == (0, [2, 0, 48, 0, 0, 0])


def test_a_zero_checksum_is_accepted_only_where_batches_have_their_own() -> None:
    for command in (0x51, 0x54):
        assert split_both(frame(b"abc", command=command, payload_crc=0))[2][1] == 1
    assert split_both(frame(b"abc", command=0x50, payload_crc=0))[0] == frames.SPLIT_PAYLOAD_CRC
    assert split_both(frame(b"abc", kind=8, command=0x51, payload_crc=0))[0] == frames.SPLIT_PAYLOAD_CRC


def test_a_connection_keeps_its_version() -> None:
    assert split_both(frame(version=1), version=2)[0] == frames.SPLIT_VERSION
    code, rows, state = split_both(frame(version=1) + frame(version=2))
    assert (code, len(rows), state[frames.STATE_VERSION]) == (frames.SPLIT_VERSION, 1, 1)


def test_splitting_continues_after_a_full_table() -> None:
    data = frame(b"a") + frame(b"bc") + frame(b"def", payload_crc=1)
    code, rows, state = split_both(data, space=1)
    assert (code, len(rows), state[2:4]) == (frames.SPLIT_FULL, 1, [45, 46])
    assert split_both(data, space=0)[::2] == (frames.SPLIT_FULL, [2, 0, 0, 45, 0, 0])
    assert split_both(data[45:], space=1)[0] == frames.SPLIT_FULL
    assert split_both(data[91:], space=1)[0] == frames.SPLIT_PAYLOAD_CRC
    assert split_both(frame(b"a"), space=1)[0] == frames.SPLIT_MORE


def test_every_bit_of_a_batch_header_is_covered() -> None:
    good = frame(bytes(range(52)) + b"block", kind=4)
    for bit in range(96 * 8):
        data = bytearray(good)
        data[bit >> 3] ^= 1 << (bit & 7)
        code, rows, _ = split_both(bytes(data))
        assert not rows
        assert code != frames.SPLIT_MORE
