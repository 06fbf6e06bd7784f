"""The published test vectors and our own, encoded and parsed byte for byte."""

import pytest

from seawall.wire.format import batches
from seawall.wire.format.batches import BatchSource
from seawall.wire.format.codes import AckLevel, AckStatus, Kind, V1Command, V1Flags, V1Kind
from seawall.wire.format.frames import (
    checksum,
    encode_header_v1,
    header_crc_v1,
    header_crc_v2,
    parse_frame_header,
)
from seawall.wire.format.records import Record, RecordType, decode_block, encode_block
from seawall.wire.lwp1 import frames as lwp1
from seawall.wire.lwp1.replies import FetchReply, parse_fetch_reply
from seawall.wire.lwp1.requests import CreateTopic, Fetch, parse_request
from seawall.wire.lwp2 import frames as lwp2
from seawall.wire.lwp2.session import Ack, AckEntry, parse_ack

TIMESTAMP = 1_700_000_000_000_000_000

V1 = {
    "keepalive": "4C414E4301200000 061E9C53 0000000000000000 0000000000000000 00000000 00000000 00000000 00000000",
    "create": """4C414E4301400000 26D54B1B 0100000000000000 0000000000000000 00000000 06000000 4A578753 00000000
        6576656E7473""",
    "ingest": """4C414E4301040000 3AF0D86C 0100000000000000 00002A36FE9C9717 01000000 0A000000 9C17EDB6 01000000
        010500000068656C6C6F""",
    "ack": "4C414E4301080000 5E09C265 0100000000000000 0000000000000000 00000000 00000000 00000000 00000000",
    "fetch": """4C414E4301400000 26D54B1B 1000000000000000 0000000000000000 00000000 10000000 85EBC85B 00000000
        01000000 0000000000000000 00000100""",
    "fetch reply": """4C414E4301400000 26D54B1B 1100000000000000 0000000000000000 00000000 1A000000 F2836235 00000000
        0A00000000000000 0A000000 01000000 010500000068656C6C6F""",
}

V2 = {
    "ping": "4C414E4302200000 C80AA7DB 0900000000000000 0000000000000000 00000000 00000000 00000000 00000000",
    "sent": """4C414E4302040000 22997B0D 0100000000000000 00002A36FE9C9717 01000000 3E000000 CC5279DD 01000000
        00000000 0700000000000000 0000000000000000 0000000000000000 0000000000000000 0A000000 00000000 03000000
        05 02 00 00 010500000068656C6C6F""",
    "stored": """4C414E4302040000 D99DAC01 0100000000000000 00002A36FE9C9717 01000000 3E000000 CC5279DD 01000000
        00000000 0700000000000000 0000000000000000 0100000000000000 0000000000000000 0A000000 01000000 03000000
        05 02 00 00 010500000068656C6C6F""",
    "ack": """4C414E4302080000 10E2D596 0100000000000000 0000000000000000 01000000 40000000 138694D2 00000000
        0300000000000000 00010000 00000002 0100000000000000 0100000000000000 0000000000000000 00002A36FE9C9717
        01000000 01000000 01000000 00 02 0000""",
}

V1_BYTES = {name: bytes.fromhex(text) for name, text in V1.items()}
V2_BYTES = {name: bytes.fromhex(text) for name, text in V2.items()}
BLOCK = bytes.fromhex("010500000068656C6C6F")


@pytest.mark.parametrize("frame", V1_BYTES.values(), ids=V1_BYTES)
def test_v1_vector_has_its_checksums_and_length(frame: bytes) -> None:
    header = parse_frame_header(frame)
    assert header.version == 1
    assert header_crc_v1(frame) == int.from_bytes(frame[8:12], "little")
    assert header.frame_size == len(frame)
    assert (
        encode_header_v1(
            header.kind,
            batch_id=header.id,
            timestamp_ns=header.timestamp_ns,
            record_count=header.record_count,
            payload_length=header.payload_length,
            payload_crc=header.payload_crc,
            topic_id=header.topic_id,
        )
        == frame[:44]
    )


@pytest.mark.parametrize(
    ("flags", "crc"),
    [
        (0x04, "3AF0D86C"),
        (0x05, "0D9A1A6D"),
        (0x08, "5E09C265"),
        (0x10, "96FBF777"),
        (0x20, "061E9C53"),
        (0x40, "26D54B1B"),
    ],
)
def test_v1_header_checksum_is_a_constant_of_its_flags(flags: int, crc: str) -> None:
    assert encode_header_v1(flags, batch_id=5, topic_id=9)[8:12] == bytes.fromhex(crc)


def test_v1_keepalive() -> None:
    assert lwp1.encode_keepalive() == V1_BYTES["keepalive"]
    assert lwp1.frame_kind(0x20, 0) is V1Kind.KEEPALIVE


def test_v1_create_topic() -> None:
    frame = V1_BYTES["create"]
    assert lwp1.encode_request(CreateTopic("events")) == frame
    assert parse_request(parse_frame_header(frame).id, frame[44:]) == CreateTopic("events")


def test_v1_ingest() -> None:
    frame = V1_BYTES["ingest"]
    assert lwp1.encode_ingest(BLOCK, batch_id=1, topic_id=1, timestamp_ns=TIMESTAMP, record_count=1) == frame
    header = parse_frame_header(frame)
    assert lwp1.frame_kind(header.kind, header.payload_length) is V1Kind.INGEST
    assert lwp1.parse_ingest(header, frame[44:]) == lwp1.Ingest(1, 1, TIMESTAMP, BLOCK)
    assert decode_block(frame[44:], 1) == [Record(RecordType.RAW, b"hello")]


def test_v1_ack() -> None:
    assert lwp1.encode_ack(1) == V1_BYTES["ack"]


def test_v1_fetch() -> None:
    frame = V1_BYTES["fetch"]
    assert lwp1.encode_request(Fetch(1, 0, 65_536)) == frame
    assert parse_request(V1Command.FETCH, memoryview(frame)[44:]) == Fetch(1, 0, 65_536)


def test_v1_fetch_reply() -> None:
    frame = V1_BYTES["fetch reply"]
    reply = FetchReply(10, 1, BLOCK)
    assert b"".join(lwp1.encode_fetch_reply(reply)) == frame
    assert lwp1.encode_frame(V1Flags.CONTROL, frame[44:], batch_id=V1Command.FETCH_REPLY) == frame
    assert parse_fetch_reply(frame[44:]) == reply


def test_v2_checksum_is_castagnoli() -> None:
    assert checksum(b"123456789") == 0xE3069283
    assert checksum(b"6789", checksum(b"12345")) == 0xE3069283


@pytest.mark.parametrize("frame", V2_BYTES.values(), ids=V2_BYTES)
def test_v2_vector_has_its_header_checksum_and_length(frame: bytes) -> None:
    header = parse_frame_header(frame)
    assert header.version == 2
    assert header.frame_size == len(frame)
    size = 96 if header.kind == Kind.BATCH else 44
    assert header_crc_v2(frame[:size]) == int.from_bytes(frame[8:12], "little")


def test_v2_ping() -> None:
    assert lwp2.encode_ping(9) == V2_BYTES["ping"]
    pong = parse_frame_header(lwp2.encode_pong(9))
    assert (pong.kind, pong.command, pong.id) == (Kind.KEEPALIVE, 1, 9)


def test_v2_batch_as_sent() -> None:
    block = encode_block([Record(RecordType.RAW, b"hello")])
    header = batches.batch_header(
        block,
        topic_id=1,
        client_id=7,
        client_seq=1,
        session_epoch=3,
        record_count=1,
        timestamp_ns=TIMESTAMP,
        order=5,
        ack_level=AckLevel.DURABLE,
    )
    frame = V2_BYTES["sent"]
    assert batches.encode_batch(header, block) == frame
    assert batches.parse_batch_header(frame, source=BatchSource.CLIENT) == header
    assert frame[96:] == BLOCK


def test_v2_batch_as_stored() -> None:
    buffer = bytearray(V2_BYTES["sent"])
    batches.stamp(buffer, position=0, base_seq=1, base_offset=0, timestamp_ns=TIMESTAMP, term=1)
    assert buffer == V2_BYTES["stored"]
    [(header, block)] = batches.iter_batches(buffer)
    assert (header.position, header.base_seq, header.base_offset, header.term) == (0, 1, 0, 1)
    assert header.header_bytes() == V2_BYTES["stored"][:96]
    assert batches.block_of(header, block) == BLOCK


def test_v2_ack() -> None:
    frame = V2_BYTES["ack"]
    entry = AckEntry(1, 1, 0, TIMESTAMP, 1, 1, 1, AckStatus.OK, AckLevel.DURABLE)
    ack = Ack(3, 256, 32 * 1024 * 1024, (entry,))
    assert lwp2.encode_ack(ack, through=1) == frame
    assert parse_ack(frame[44:], parse_frame_header(frame).record_count) == ack
    assert checksum(frame[44:]) == parse_frame_header(frame).payload_crc


def test_v1_offsets_follow_raw_lengths() -> None:
    # Blocks of 30, 10 and 70 plain bytes are at 0, 30 and 40; the stream ends at 110.
    offset, offsets = 0, []
    run = bytearray()
    for number, size in enumerate((30, 10, 70)):
        block = encode_block([Record(RecordType.RAW, bytes(size - 5))])
        header = batches.batch_header(
            block, topic_id=1, client_id=7, client_seq=number + 1, session_epoch=1, record_count=1, timestamp_ns=0
        )
        batch = bytearray(batches.encode_batch(header, block))
        batches.stamp(batch, position=number, base_seq=number + 1, base_offset=offset, timestamp_ns=0, term=1)
        offset += header.raw_length
        run += batch
    for header, _ in batches.iter_batches(run):
        offsets.append((header.base_offset, header.base_offset + header.raw_length))
    assert offsets == [(0, 30), (30, 40), (40, 110)]
