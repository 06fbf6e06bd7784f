"""The batch: header fields, stamping, and each thing a client may not send."""

import dataclasses
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall import limits
from seawall.errors import ChecksumError, CorruptionError, InvalidInputError, LimitError, ProtocolError, SeawallError
from seawall.wire.format.batches import (
    BatchHeader,
    BatchSource,
    batch_header,
    block_of,
    client_block_of,
    encode_batch,
    iter_batches,
    parse_batch_header,
    stamp,
    verify_block,
)
from seawall.wire.format.codes import AS_TOPIC, BatchFlags, Codec
from seawall.wire.format.compression import compress
from seawall.wire.format.frames import header_crc_v2
from seawall.wire.format.records import Record, check_client_block, encode_block

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
BLOCK = encode_block([Record(1, b"hello"), Record(2, b"{}")])


def make(block: bytes = BLOCK, **changes: object) -> BatchHeader:
    header = batch_header(block, topic_id=1, client_id=7, client_seq=1, session_epoch=3, record_count=2, timestamp_ns=9)
    return dataclasses.replace(header, **changes)


def patched(at: int, value: bytes, *, fix_checksum: bool = True) -> bytearray:
    """A valid batch with some bytes replaced and a recomputed header checksum."""
    batch = bytearray(encode_batch(make(), BLOCK))
    batch[at : at + len(value)] = value
    if fix_checksum:
        batch[8:12] = struct.pack("<I", header_crc_v2(batch[:96]))
    return batch


HEADERS = st.builds(
    lambda block, changes: dataclasses.replace(make(block, record_count=1), **changes),
    st.binary(max_size=50).map(lambda value: encode_block([Record(1, value)])),
    st.fixed_dictionaries(
        {
            "client_seq": U64,
            "timestamp_ns": U64,
            "topic_id": U32,
            "client_id": U64,
            "position": U64,
            "base_seq": U64,
            "base_offset": U64,
            "term": U32,
            "session_epoch": U32,
            "order": st.integers(0, 255),
            "ack_level": st.sampled_from([0, 1, 2, AS_TOPIC]),
            "command": st.integers(0, 65_535),
        }
    ),
)


@given(HEADERS)
def test_stored_header_round_trip(header: BatchHeader) -> None:
    data = header.header_bytes()
    assert len(data) == 96
    assert parse_batch_header(data, source=BatchSource.STORED) == header
    assert header.is_control is (header.command != 0)
    assert header.size == 96 + header.block_length


@given(st.binary(max_size=80), st.sampled_from(list(Codec)), U64, U64, U64, U64, U32)
def test_stamping_keeps_the_block(
    value: bytes, codec: Codec, position: int, base_seq: int, base_offset: int, timestamp_ns: int, term: int
) -> None:
    plain = encode_block([Record(1, value)])
    block = bytes(compress(codec, plain))
    header = batch_header(
        block,
        topic_id=1,
        client_id=7,
        client_seq=1,
        session_epoch=2**40 + 3,
        record_count=1,
        timestamp_ns=5,
        codec=codec,
        raw_length=len(plain),
    )
    assert header.session_epoch == 3
    batch = bytearray(encode_batch(header, block))
    parse_batch_header(batch, source=BatchSource.CLIENT)
    check_client_block(client_block_of(header, batch[96:]), 1)
    stamp(
        memoryview(batch),
        position=position,
        base_seq=base_seq,
        base_offset=base_offset,
        timestamp_ns=timestamp_ns,
        term=term,
    )
    [(stored, stored_block)] = iter_batches(batch)
    assert stored_block == block
    assert stored == dataclasses.replace(
        header, position=position, base_seq=base_seq, base_offset=base_offset, timestamp_ns=timestamp_ns, term=term
    )
    assert block_of(stored, stored_block) == plain


#: Name of the row, the replaced bytes, and the error a client gets: its code and whether the connection ends.
CLIENT_REFUSALS = {
    "kind with another bit": (5, b"\x05", 0x04, True),
    "control batch": (6, b"\x01\0", 0x04, True),
    "payload shorter than the prologue": (32, struct.pack("<I", 51), 0x04, True),
    "version": (4, b"\x03", 0x06, True),
    "magic": (0, b"HTTP", 0x02, True),
    "reserved": (44, b"\x01", 0x04, False),
    "position set": (56, b"\x01", 0x04, False),
    "base_seq set": (64, b"\x01", 0x04, False),
    "base_offset set": (72, b"\x01", 0x04, False),
    "term set": (84, b"\x01", 0x04, False),
    "client_seq 0": (12, bytes(8), 0x04, False),
    "no records": (28, bytes(4), 0x04, False),
    "more records than fit": (28, struct.pack("<I", 5), 0x04, False),
    "raw length differs": (80, struct.pack("<I", len(BLOCK) - 1), 0x04, False),
    "raw length over 16 MiB": (80, struct.pack("<I", limits.BLOCK_SIZE_MAX + 1), 0x04, False),
    "raw length 0 under lz4": (80, bytes(14) + b"\x01\0", 0x04, False),
    "block over the largest payload": (32, struct.pack("<I", limits.PAYLOAD_SIZE_MAX + 53), 0x04, False),
    "unknown codec": (94, b"\x03", 0x04, False),
    **{f"unknown flag {1 << bit:02X}": (95, bytes([1 << bit]), 0x04, False) for bit in range(8) if bit != 1},
    "opaque with two units": (95, b"\x02", 0x04, False),
    "unknown ack level": (93, b"\x03", 0x27, False),
}
STORED_IS_FINE = {"control batch", "position set", "base_seq set", "base_offset set", "term set", "client_seq 0"}


@pytest.mark.parametrize("name", CLIENT_REFUSALS)
def test_invalid_batches_from_a_client_are_refused(name: str) -> None:
    at, value, code, closes = CLIENT_REFUSALS[name]
    batch = patched(at, value)
    with pytest.raises(ProtocolError) as caught:
        parse_batch_header(batch, source=BatchSource.CLIENT)
    assert (caught.value.code, caught.value.closes) == (code, closes)
    assert caught.value.answered is (name != "magic")
    if name in STORED_IS_FINE:
        parse_batch_header(batch, source=BatchSource.STORED)
    elif name != "no records":
        with pytest.raises(CorruptionError):
            parse_batch_header(batch, source=BatchSource.STORED)


def test_header_checksum_mismatch_ends_the_connection_without_an_answer() -> None:
    batch = patched(40, b"\x02", fix_checksum=False)
    with pytest.raises(ProtocolError) as caught:
        parse_batch_header(batch, source=BatchSource.CLIENT)
    assert (caught.value.code, caught.value.closes, caught.value.answered) == (0x05, True, False)
    with pytest.raises(ChecksumError):
        parse_batch_header(batch, source=BatchSource.STORED)


def test_v2_batch_has_at_most_65536_records_from_a_client() -> None:
    for count, accepted in ((65_536, True), (65_537, False)):
        data = make(bytes(5 * count), record_count=count).header_bytes()
        assert parse_batch_header(data, source=BatchSource.STORED).record_count == count
        if accepted:
            parse_batch_header(data, source=BatchSource.CLIENT)
        else:
            with pytest.raises(ProtocolError, match="65537 records"):
                parse_batch_header(data, source=BatchSource.CLIENT)


def test_a_keyed_batch_is_stored_and_never_sent() -> None:
    keyed = dataclasses.replace(make(b"\1\1\0\0\0x", record_count=1, flags=int(BatchFlags.KEYED)), client_id=2**63 + 5)
    assert keyed.is_keyed
    assert not make(b"\1\1\0\0\0x", record_count=1).is_keyed
    assert parse_batch_header(keyed.header_bytes(), source=BatchSource.STORED) == keyed
    with pytest.raises(ProtocolError, match="flags 0x04"):
        parse_batch_header(keyed.header_bytes(), source=BatchSource.CLIENT)
    with pytest.raises(CorruptionError, match="keyed, by client 0000000000000007 of a session"):
        parse_batch_header(dataclasses.replace(keyed, client_id=7).header_bytes(), source=BatchSource.STORED)


def test_opaque_block_is_one_unit_of_any_bytes() -> None:
    header = batch_header(
        b"x",
        topic_id=1,
        client_id=7,
        client_seq=1,
        session_epoch=1,
        record_count=1,
        timestamp_ns=0,
        flags=BatchFlags.OPAQUE,
    )
    assert header.is_opaque
    assert parse_batch_header(header.header_bytes(), source=BatchSource.CLIENT) == header
    empty = make(b"", record_count=1, flags=int(BatchFlags.OPAQUE)).header_bytes()
    with pytest.raises(ProtocolError, match="1 records in 0 bytes"):
        parse_batch_header(empty, source=BatchSource.CLIENT)


def test_control_batch_may_be_empty_at_rest() -> None:
    data = encode_batch(make(b"", record_count=0, command=9), b"")
    [(header, block)] = iter_batches(data)
    assert header.is_control
    assert block == b""


@pytest.mark.parametrize("row", ["bad LZ4", "bad zstd"])
def test_a_block_that_does_not_decompress_is_rejected(row: str) -> None:
    codec = Codec.LZ4 if row == "bad LZ4" else Codec.ZSTD
    header = make(b"\xff\xff\xff", codec=codec, raw_length=100)
    with pytest.raises(ProtocolError) as caught:
        client_block_of(header, b"\xff\xff\xff")
    assert (caught.value.code, caught.value.closes) == (0x04, False)
    with pytest.raises(CorruptionError):
        block_of(header, b"\xff\xff\xff")


def test_every_damaged_byte_of_a_stored_batch_is_detected() -> None:
    batch = encode_batch(make(), BLOCK)
    for at in range(len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptionError):
            list(iter_batches(damaged))
        if at < 96:
            with pytest.raises(ProtocolError):
                parse_batch_header(damaged, source=BatchSource.CLIENT)


def test_a_truncated_run_is_corrupt_except_between_batches() -> None:
    batch = encode_batch(make(), BLOCK)
    run = batch + batch
    for size in range(1, len(run)):
        if size == len(batch):
            assert len(list(iter_batches(run[:size]))) == 1
        else:
            with pytest.raises(CorruptionError):
                list(iter_batches(run[:size]))
    assert len(list(iter_batches(run))) == 2
    assert list(iter_batches(b"")) == []


@pytest.mark.parametrize("source", list(BatchSource))
def test_a_short_header_is_a_typed_error(source: BatchSource) -> None:
    data = make().header_bytes()
    for size in range(96):
        with pytest.raises(SeawallError):
            parse_batch_header(data[:size], source=source)


def test_verify_block() -> None:
    header = make()
    verify_block(header, BLOCK)
    with pytest.raises(ChecksumError, match="position 0"):
        verify_block(header, BLOCK[:-1] + b"x")
    with pytest.raises(CorruptionError, match="header says"):
        verify_block(header, BLOCK[:-1])


def test_invalid_arguments_of_a_writer_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="raw length"):
        batch_header(
            b"x",
            topic_id=1,
            client_id=7,
            client_seq=1,
            session_epoch=1,
            record_count=1,
            timestamp_ns=0,
            codec=Codec.LZ4,
        )
    with pytest.raises(LimitError, match="split it"):
        make(bytes(limits.BLOCK_SIZE_MAX + 1))
    with pytest.raises(InvalidInputError, match="does not fit"):
        make(topic_id=2**32).header_bytes()
    with pytest.raises(InvalidInputError, match="header that says"):
        encode_batch(make(), b"")


def test_an_invalid_stamp_leaves_the_batch_unchanged() -> None:
    batch = bytearray(encode_batch(make(), BLOCK))
    before = bytes(batch)
    with pytest.raises(InvalidInputError, match="term"):
        stamp(batch, position=1, base_seq=1, base_offset=1, timestamp_ns=1, term=2**32)
    assert batch == before
    with pytest.raises(InvalidInputError, match="95 bytes"):
        stamp(batch[:95], position=1, base_seq=1, base_offset=1, timestamp_ns=1, term=1)
