"""The frame decoder: any chunking, its rows of the bad-input table, bounded memory, stable views."""

import ctypes
import mmap
import zlib
from collections.abc import Iterator
from pathlib import Path

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Position, Seq, TimestampNs, TopicId
from seawall.errors import InvalidInputError, ProtocolError
from seawall.kernels.codec import frames
from seawall.kernels.runtime import jit
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.chunks import checked_rows
from seawall.wire.format.codes import BatchFlags, Command, DataFlags, ErrorCode, Kind
from seawall.wire.format.decoder import FrameDecoder
from seawall.wire.format.records import Record, RecordType, encode_block
from seawall.wire.lwp2.frames import encode_data_start
from seawall.wire.lwp2.reading import DataPrefix

#: Tells a process how many of its pages are resident.
RESIDENT = Path("/proc/self/statm")

V1_INGEST = bytes.fromhex(
    "4C414E4301040000 3AF0D86C 0100000000000000 00002A36FE9C9717 01000000 0A000000 9C17EDB6 01000000"
    "010500000068656C6C6F"
)
V1_KEEPALIVE = bytes.fromhex(
    "4C414E4301200000 061E9C53 0000000000000000 0000000000000000 00000000 00000000 00000000 00000000"
)
V2_PING = bytes.fromhex(
    "4C414E4302200000 C80AA7DB 0900000000000000 0000000000000000 00000000 00000000 00000000 00000000"
)
V2_BATCH = bytes.fromhex(
    "4C414E4302040000 22997B0D 0100000000000000 00002A36FE9C9717 01000000 3E000000 CC5279DD 01000000"
    "00000000 0700000000000000 0000000000000000 0000000000000000 0000000000000000 0A000000 00000000 03000000 05020000"
    "010500000068656C6C6F"
)


def v2_frame(kind: int, payload: bytes = b"", *, command: int = 0, length: int | None = None) -> bytes:
    """A version 2 frame with valid checksums, for any kind and claimed length."""
    start = b"LANC" + bytes([2, kind]) + command.to_bytes(2, "little")
    claimed = len(payload) if length is None else length
    rest = bytes(20) + claimed.to_bytes(4, "little") + crc32c.crc32c(payload).to_bytes(4, "little") + bytes(4)
    crc = crc32c.crc32c(rest, crc32c.crc32c(start))
    return start + crc.to_bytes(4, "little") + rest + payload


def v1_frame(flags: int, payload: bytes = b"", *, length: int | None = None, payload_crc: int | None = None) -> bytes:
    start = b"LANC" + bytes([1, flags, 0, 0])
    claimed = len(payload) if length is None else length
    crc = zlib.crc32(payload) if payload_crc is None else payload_crc
    rest = bytes(20) + claimed.to_bytes(4, "little") + crc.to_bytes(4, "little") + bytes(4)
    return start + zlib.crc32(start).to_bytes(4, "little") + rest + payload


def decode(data: bytes, sizes: list[int]) -> list[bytes]:
    """Feed `data` in chunks of the given sizes, repeatedly, and return the complete frames."""
    decoder = FrameDecoder()
    seen: list[bytes] = []
    at = call_number = 0
    while at < len(data):
        size = sizes[call_number % len(sizes)]
        decoder.feed(data[at : at + size])
        seen.extend(bytes(frame.whole) for frame in decoder.frames())
        at, call_number = at + size, call_number + 1
    assert decoder.pending_size == 0
    return seen


@given(
    st.lists(st.sampled_from([V2_PING, V2_BATCH, v2_frame(0x40, b"payload" * 40, command=0x40)]), max_size=12),
    st.lists(st.integers(1, 500), min_size=1, max_size=8),
)
def test_any_chunking_gives_the_same_frames(frames: list[bytes], sizes: list[int]) -> None:
    """INV-SPLIT-ONCE."""
    assert decode(b"".join(frames), sizes) == frames


@given(
    st.lists(st.sampled_from([V1_INGEST, V1_KEEPALIVE]), max_size=12),
    st.lists(st.integers(1, 120), min_size=1, max_size=8),
)
def test_any_chunking_gives_the_same_version_1_frames(frames: list[bytes], sizes: list[int]) -> None:
    assert decode(b"".join(frames), sizes) == frames


def test_header_fields_and_views() -> None:
    decoder = FrameDecoder()
    decoder.feed(V2_BATCH + V2_PING)
    batch, ping = decoder.frames()
    assert decoder.version == 2
    assert (batch.header.kind, batch.header.id, batch.header.record_count, batch.header.topic_id) == (0x04, 1, 1, 1)
    assert batch.header.timestamp_ns == 1_700_000_000_000_000_000
    assert bytes(batch.payload) == V2_BATCH[44:]
    assert ping.header.id == 9
    assert ping.payload.nbytes == 0
    assert batch.payload.readonly


def test_version_1_command_is_not_read_from_the_reserved_bytes() -> None:
    start = b"LANC" + bytes([1, 0x40, 7, 0])
    decoder = FrameDecoder()
    decoder.feed(start + zlib.crc32(start).to_bytes(4, "little") + bytes(32))
    assert decoder.frames()[0].header.command == 0


def test_frames_keep_their_bytes_while_more_arrives() -> None:
    """INV-BUFFER-ALONE."""
    decoder = FrameDecoder()
    held = []
    for number in range(50):
        decoder.feed(v2_frame(0x40, bytes([number]) * 3_000, command=0x40))
        held.extend(decoder.frames())
    assert [bytes(frame.payload) for frame in held] == [bytes([number]) * 3_000 for number in range(50)]


def test_more_frames_than_one_kernel_call_reports() -> None:
    count = 2 * limits.DECODER_ROWS + 3
    decoder = FrameDecoder()
    decoder.feed(V2_PING * count)
    assert len(decoder.frames()) == count
    assert decoder.frames() == []


def test_receiving_into_the_decoders_own_buffer() -> None:
    decoder = FrameDecoder()
    for byte in V2_BATCH:
        decoder.buffer()[:1] = bytes([byte])
        decoder.received(1)
    assert bytes(decoder.frames()[0].whole) == V2_BATCH
    with pytest.raises(InvalidInputError, match="bytes received"):
        decoder.received(1 << 30)


REFUSED = {
    "bad magic": (b"GET / HTTP/1.1\r\n", ErrorCode.BAD_MAGIC, False),
    "bad magic, one byte": (b"\x16", ErrorCode.BAD_MAGIC, False),
    "unknown version": (b"LANC\x03", ErrorCode.UNSUPPORTED_VERSION, True),
    "version 0": (b"LANC\x00", ErrorCode.UNSUPPORTED_VERSION, True),
    "header CRC mismatch, version 1": (
        V1_KEEPALIVE[:8] + b"\0\0\0\0" + V1_KEEPALIVE[12:],
        ErrorCode.CRC_MISMATCH,
        False,
    ),
    "header CRC mismatch, version 2": (V2_PING[:12] + b"\x0a" + V2_PING[13:], ErrorCode.CRC_MISMATCH, False),
    "header CRC mismatch, batch prologue": (V2_BATCH[:60] + b"\x01" + V2_BATCH[61:], ErrorCode.CRC_MISMATCH, False),
    "payload CRC mismatch, version 1": (V1_INGEST[:-1] + b"x", ErrorCode.CRC_MISMATCH, False),
    "payload CRC mismatch, version 2": (V2_BATCH[:-1] + b"x", ErrorCode.CRC_MISMATCH, True),
    "payload_length over limit, version 1": (
        v1_frame(0x04, length=limits.V1_PAYLOAD_SIZE_MAX + 1),
        ErrorCode.PAYLOAD_TOO_LARGE,
        True,
    ),
    "payload_length over limit, version 2": (
        v2_frame(0x40, length=limits.PAYLOAD_SIZE_MIN + 1),
        ErrorCode.PAYLOAD_TOO_LARGE,
        True,
    ),
    "no kind": (v2_frame(0x00), ErrorCode.INVALID_PAYLOAD, True),
    "two kinds": (v2_frame(0x60), ErrorCode.INVALID_PAYLOAD, True),
    "flags 02": (v2_frame(0x02), ErrorCode.INVALID_PAYLOAD, True),
    "flags 80": (v2_frame(0x80), ErrorCode.INVALID_PAYLOAD, True),
    "batch shorter than its prologue": (v2_frame(0x04, bytes(51)), ErrorCode.INVALID_PAYLOAD, False),
}


@pytest.mark.parametrize("row", REFUSED)
def test_bad_input_is_refused_as_documented(row: str) -> None:
    data, code, answered = REFUSED[row]
    decoder = FrameDecoder()
    decoder.feed(data)
    with pytest.raises(ProtocolError) as caught:
        decoder.frames()
    assert (caught.value.code, caught.value.closes, caught.value.answered) == (code, True, answered)
    with pytest.raises(ProtocolError):  # a failed decoder stays failed
        decoder.frames()


@pytest.mark.parametrize("row", [row for row in REFUSED if "version" not in row.split(",")[0]])
def test_complete_frames_before_a_bad_one_are_delivered(row: str) -> None:
    data, code, _ = REFUSED[row]
    good = V1_KEEPALIVE if data[4:5] == b"\x01" else V2_PING
    decoder = FrameDecoder()
    decoder.feed(good * 3 + data)
    assert len(decoder.frames()) == 3
    with pytest.raises(ProtocolError) as caught:
        decoder.frames()
    assert caught.value.code == code


def test_a_version_change_on_a_connection_is_refused() -> None:
    decoder = FrameDecoder()
    decoder.feed(V1_KEEPALIVE)
    assert len(decoder.frames()) == 1
    decoder.feed(V2_PING)
    with pytest.raises(ProtocolError) as caught:
        decoder.frames()
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_truncated_frame_is_counted_and_dropped() -> None:
    decoder = FrameDecoder()
    decoder.feed(V2_PING + V2_BATCH[:50])
    assert len(decoder.frames()) == 1
    assert decoder.pending_size == 50


def test_limits_follow_the_negotiated_ones() -> None:
    decoder = FrameDecoder()
    decoder.agree(limits.PAYLOAD_SIZE_MAX)
    decoder.feed(v2_frame(0x40, length=limits.PAYLOAD_SIZE_MAX))
    assert decoder.frames() == []
    for wrong in (limits.PAYLOAD_SIZE_MIN - 1, limits.PAYLOAD_SIZE_MAX + 1):
        with pytest.raises(InvalidInputError, match="payload bound"):
            decoder.agree(wrong)
    # Version 1 negotiates nothing: its fixed bound applies.
    decoder = FrameDecoder(limits.PAYLOAD_SIZE_MAX)
    decoder.feed(V1_KEEPALIVE + v1_frame(0x04, length=limits.V1_PAYLOAD_SIZE_MAX + 1))
    assert len(decoder.frames()) == 1
    with pytest.raises(ProtocolError):
        decoder.frames()


def test_data_frames_may_exceed_the_payload_bound_by_one_batch_header() -> None:
    for command in (0x51, 0x54, 0x91):
        decoder = FrameDecoder()
        decoder.feed(v2_frame(0x40, command=command, length=limits.PAYLOAD_SIZE_MIN + limits.FETCH_DATA_EXTRA_SIZE))
        assert decoder.frames() == []
        decoder = FrameDecoder()
        decoder.feed(v2_frame(0x40, command=command, length=limits.PAYLOAD_SIZE_MIN + limits.FETCH_DATA_EXTRA_SIZE + 1))
        with pytest.raises(ProtocolError):
            decoder.frames()


@pytest.fixture
def _no_huge_pages() -> Iterator[None]:
    """Let one touched byte take one page and not two mebibytes, which depends on where the allocator finds space."""
    set_thp_disable = 41
    prctl = ctypes.CDLL(None).prctl
    prctl(set_thp_disable, 1, 0, 0, 0)
    yield
    prctl(set_thp_disable, 0, 0, 0, 0)


@pytest.mark.usefixtures("_no_huge_pages")
@pytest.mark.skipif(not RESIDENT.exists(), reason="only Linux reports the memory in use")
def test_claimed_length_alone_takes_no_memory() -> None:
    """INV-DECODER-BOUND: headers that claim large payloads get address space, and no memory before the bytes arrive."""
    decoders = [FrameDecoder() for _ in range(64)]
    before = resident_pages()
    for decoder in decoders:
        decoder.feed(v2_frame(0x40, length=limits.PAYLOAD_SIZE_MIN))
        assert decoder.frames() == []
        space = len(decoder.buffer())
        assert limits.PAYLOAD_SIZE_MIN <= space <= limits.PAYLOAD_SIZE_MIN + limits.RECEIVE_SIZE
        decoder.received(9_999)
        assert decoder.frames() == []
        # The frame has its buffer: it is not moved while it arrives.
        assert len(decoder.buffer()) == space - 9_999
    assert (resident_pages() - before) * mmap.PAGESIZE < 64 * limits.MIB


def resident_pages() -> int:
    return int(RESIDENT.read_text(encoding="ascii").split()[1])


@pytest.mark.skipif(jit.PYTHON_MODE, reason="16 MiB of checksum")
def test_a_large_frame_arrives_whole() -> None:
    payload = bytes(range(256)) * 4_096 * 16
    assert len(payload) == limits.PAYLOAD_SIZE_MIN
    assert decode(v2_frame(0x40, payload, command=0x40), [100_000]) == [v2_frame(0x40, payload, command=0x40)]


def test_a_large_frame_is_received_in_place() -> None:
    payload = bytes(range(256)) * 1_024
    frame = v2_frame(0x40, payload, command=0x40)
    decoder = FrameDecoder()
    assert decoder.awaited_size == 0
    assert decoder.beginning() is None
    decoder.feed(frame[:60])
    assert decoder.frames() == []
    assert decoder.awaited_size == len(frame) - 60
    started = decoder.beginning()
    assert started is not None
    assert (started[0].payload_length, started[0].command) == (len(payload), 0x40)
    assert bytes(started[1]) == payload[:16]
    space = decoder.buffer()
    assert len(space) == len(frame) - 60  # the next frame is received elsewhere
    space[:1_000] = frame[60:1_060]
    decoder.received(1_000)
    assert decoder.frames() == []
    decoder.buffer()[:] = frame[1_060:]
    decoder.received(len(frame) - 1_060)
    assert decoder.awaited_size == 0
    assert decoder.beginning() is None
    [found] = decoder.frames()
    assert bytes(found.whole) == frame
    address = np.frombuffer(space, np.uint8).ctypes.data
    assert np.frombuffer(found.whole, np.uint8).ctypes.data == address - 60


def data_frame(count: int) -> tuple[bytes, DataPrefix]:
    """A large frame of data, whose batches carry their own checksums."""
    block = encode_block([Record(RecordType.RAW, bytes(1_000))])
    header = batch_header(
        block,
        topic_id=TopicId(3),
        client_id=ClientId(1),
        client_seq=ClientSeq(1),
        session_epoch=1,
        record_count=1,
        timestamp_ns=TimestampNs(1),
    )
    prefix = DataPrefix(TopicId(3), DataFlags.MORE, count, Seq(1), Seq(2), Position(1), Seq(9), Seq(1))
    batches = encode_batch(header, block) * count
    start = encode_data_start(Command.DATA, prefix, request_id=1, record_count=count, chunks_length=len(batches))
    return start + batches, prefix


@pytest.mark.parametrize("size", [1_000, 50_001, 80_000])
def test_batches_of_a_large_frame_are_verified_as_they_arrive(size: int) -> None:
    frame, prefix = data_frame(200)
    assert len(frame) > 2 * limits.RECEIVE_SIZE
    decoder = FrameDecoder()
    decoder.feed(V2_PING + frame[:60])
    assert len(decoder.frames()) == 1
    assert decoder.arriving is not None
    found = []
    rest = memoryview(frame)[60:]
    while rest:
        space = decoder.buffer()
        count = min(size, len(space), len(rest))
        space[:count] = rest[:count]
        decoder.received(count)
        rest = rest[count:]
        found += decoder.frames()
    [whole] = found
    assert decoder.arriving is None
    assert whole.chunks is not None
    rows, damage = checked_rows(whole, prefix)
    assert (len(rows), damage) == (200, None)
    assert bytes(whole.whole) == frame


def test_bytes_fed_beyond_a_large_frame_are_verified_later() -> None:
    frame, prefix = data_frame(200)
    decoder = FrameDecoder()
    decoder.feed(frame[:60])
    assert decoder.frames() == []
    decoder.feed(frame[60:] + frame + V2_PING)
    first, second, ping = decoder.frames()
    assert bytes(ping.whole) == V2_PING
    for each in (first, second):
        assert [len(checked_rows(each, prefix)[0]), checked_rows(each, prefix)[1]] == [200, None]


def test_other_large_frames_have_nothing_to_verify() -> None:
    decoder = FrameDecoder()
    frame = v2_frame(0x40, bytes(2 * limits.RECEIVE_SIZE), command=0x40)
    decoder.feed(frame[:100])
    assert decoder.frames() == []
    assert decoder.awaited_size
    assert decoder.arriving is None
    decoder.feed(frame[100:])
    assert [each.chunks for each in decoder.frames()] == [None]


def test_small_frames_share_memory_until_it_is_full() -> None:
    """INV-BUFFER-ALONE: delivered bytes are not overwritten, however many frames follow."""
    decoder = FrameDecoder()
    frame = v2_frame(0x40, b"payload" * 100, command=0x40)
    held = []
    for _ in range(3 * limits.RECEIVE_SIZE // len(frame)):
        space = decoder.buffer()
        assert len(space) >= limits.RECEIVE_SIZE // 4
        space[: len(frame)] = frame
        decoder.received(len(frame))
        held += decoder.frames()
    assert [bytes(each.whole) for each in held] == [frame] * len(held)
    assert len({id(each.whole.obj) for each in held}) == 4


def test_memory_for_small_frames_is_kept_while_a_large_one_arrives() -> None:
    decoder = FrameDecoder()
    small = np.frombuffer(decoder.buffer(), np.uint8).ctypes.data
    frame = v2_frame(0x40, bytes(limits.RECEIVE_SIZE), command=0x40)
    decoder.feed(frame[:50])
    assert decoder.frames() == []
    decoder.buffer()[:] = frame[50:]
    decoder.received(len(frame) - 50)
    [large] = decoder.frames()
    assert np.frombuffer(decoder.buffer(), np.uint8).ctypes.data == small
    assert bytes(large.whole) == frame


def test_kernel_constants_equal_the_codes_of_the_wire() -> None:
    kinds = (frames.KIND_BATCH, frames.KIND_ACK, frames.KIND_KEEPALIVE, frames.KIND_CONTROL)
    assert kinds == (Kind.BATCH, Kind.ACK, Kind.KEEPALIVE, Kind.CONTROL)
    commands = (frames.COMMAND_FETCH_DATA, frames.COMMAND_DATA, frames.COMMAND_SUM)
    assert commands == (Command.FETCH_DATA, Command.DATA, Command.SUM)
    assert frames.FLAG_TRAILING_CHECKSUM == BatchFlags.TRAILING_CHECKSUM
