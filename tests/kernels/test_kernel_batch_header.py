"""The header of a batch: the offsets of its fields, and the fields that a server writes."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Offset, Position, Seq, SessionEpoch, Term, TimestampNs, TopicId
from seawall.errors import SeawallError
from seawall.kernels.codec import batch_header
from seawall.wire.format.batches import BatchSource, encode_batch, parse_batch_header
from seawall.wire.format.batches import batch_header as wire_header
from seawall.wire.format.codes import BatchFlags, Codec
from twins.codec import batch_header as twin

KERNELS = pytest.mark.parametrize("kernels", [batch_header, twin])
U32, U63 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 63) - 1)


def sent() -> bytearray:
    """A batch as its publisher sends it, after three other bytes."""
    block = b"\x01\x03\x00\x00\x00abc"
    header = wire_header(
        block,
        topic_id=TopicId(0x11223344),
        client_id=ClientId(0x55),
        client_seq=ClientSeq(0x66),
        session_epoch=SessionEpoch(0x77),
        record_count=1,
        timestamp_ns=TimestampNs(0x88),
        codec=Codec.NONE,
        flags=BatchFlags.OPAQUE,
    )
    return bytearray(b"..." + encode_batch(header, block))


def test_field_offsets_are_those_of_the_format() -> None:
    data = bytes(sent())[3:]

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little")

    header = parse_batch_header(data, source=BatchSource.STORED)
    assert number(batch_header.CLIENT_SEQ_AT, 8) == header.client_seq == 0x66
    assert number(batch_header.TIMESTAMP_AT, 8) == header.timestamp_ns == 0x88
    assert number(batch_header.RECORD_COUNT_AT, 4) == header.record_count
    assert number(batch_header.LENGTH_AT, 4) + batch_header.FRAME_HEADER_SIZE == len(data)
    assert number(batch_header.BLOCK_CRC_AT, 4) == header.block_crc
    assert number(batch_header.TOPIC_AT, 4) == header.topic_id
    assert number(batch_header.CLIENT_ID_AT, 8) == header.client_id
    assert number(batch_header.RAW_LENGTH_AT, 4) == header.raw_length == len(data) - batch_header.HEADER_SIZE
    assert number(batch_header.SESSION_EPOCH_AT, 4) == header.session_epoch
    assert (data[batch_header.CODEC_AT], data[batch_header.FLAGS_AT]) == (header.codec, header.flags)


@KERNELS
@given(U63, U63, U63, U63, U32)
def test_fields_written_by_a_server_are_read_back(
    kernels: ModuleType, position: int, base_seq: int, base_offset: int, timestamp_ns: int, term: int
) -> None:
    data = np.frombuffer(sent(), np.uint8)
    block = data[3 + 96 :].copy()
    kernels.stamp_header(data, 3, position, base_seq, base_offset, timestamp_ns, term)
    header = parse_batch_header(data[3:].tobytes(), source=BatchSource.STORED)
    assert (header.position, header.base_seq, header.base_offset) == (
        Position(position),
        Seq(base_seq),
        Offset(base_offset),
    )
    assert (header.timestamp_ns, header.term, header.client_seq) == (timestamp_ns, Term(term), 0x66)
    assert (data[3 + 96 :] == block).all()


@KERNELS
@given(st.binary(min_size=99, max_size=99))
def test_the_header_checksum_covers_every_other_byte(kernels: ModuleType, content: bytes) -> None:
    ours, theirs = (np.frombuffer(bytearray(content), np.uint8) for _ in range(2))
    kernels.seal_header(ours, 3)
    twin.seal_header(theirs, 3)
    assert ours.tobytes() == theirs.tobytes()
    assert int.from_bytes(ours[11:15].tobytes(), "little") == kernels.header_crc(ours, 3)
    ours[11:15] = 0
    assert kernels.header_crc(ours, 3) == twin.header_crc(theirs, 3)


def test_bounds_equal_those_of_limits() -> None:
    bounds = (batch_header.RAW_SIZE_MAX, batch_header.BLOCK_SIZE_MAX)
    assert bounds == (limits.BLOCK_SIZE_MAX, limits.PAYLOAD_SIZE_MAX)


def is_accepted(header: bytes) -> bool:
    """Whether the wire codec accepts a header as that of a stored batch."""
    try:
        parse_batch_header(header, source=BatchSource.STORED)
    except SeawallError:
        return False
    return True


@given(st.integers(0, 95), st.integers(0, 255), st.booleans(), st.integers(-100, 1))
def test_a_header_is_valid_exactly_if_the_wire_codec_accepts_it(at: int, value: int, sealed: bool, more: int) -> None:
    data = np.frombuffer(sent(), np.uint8)
    data[3 + at] = value
    if sealed:
        batch_header.seal_header(data, 3)
    size = batch_header.FRAME_HEADER_SIZE + int.from_bytes(data[35:39].tobytes(), "little")
    end = data.size + more
    expected = size if end - 3 >= size and is_accepted(data[3:99].tobytes()) else 0
    assert batch_header.stored_size(data, 3, end) == twin.stored_size(data, 3, end) == expected


def test_a_whole_batch_is_measured() -> None:
    data = np.frombuffer(sent(), np.uint8)
    assert batch_header.stored_size(data, 3, data.size) == data.size - 3
    assert batch_header.stored_size(data, 3, data.size - 1) == 0
