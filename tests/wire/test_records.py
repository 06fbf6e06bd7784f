"""Records, blocks, the version 1 view of them, and the values of types 10, 11 and 12."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall import limits
from seawall.errors import CorruptionError, InvalidInputError, LimitError, ProtocolError
from seawall.wire.format.record_values import (
    KeyValue,
    Timestamped,
    parse_key_value,
    parse_timestamped,
    parse_timestamped_key_value,
)
from seawall.wire.format.records import (
    EXTENDED_BASE,
    Record,
    RecordType,
    check_client_block,
    decode_block,
    encode_block,
    encode_raw,
    encode_record,
    is_v1_record_run,
    iter_records,
    records_for_v1,
    v1_record_count,
)

U64 = st.integers(0, 2**64 - 1)
RECORDS = st.one_of(
    st.builds(Record, st.integers(0, 0xFE), st.binary(max_size=40)),
    st.builds(Record, st.integers(EXTENDED_BASE + 1, EXTENDED_BASE + 0xFFFF), st.binary(max_size=40)),
    st.just(Record(RecordType.NULL, b"")),
)
BLOCKS = st.lists(RECORDS, min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("record", "data"),
    [
        (Record(RecordType.RAW, b"hello"), "01 05000000 68656C6C6F"),
        (Record(RecordType.DELETED, b""), "00 00000000"),
        (Record(RecordType.NULL, b""), "FF 00000000"),
        (Record(RecordType.ENVELOPE, b"\0\0x"), "FF 0100 03000000 000078"),
        (Record(EXTENDED_BASE | 0xFFFF, b""), "FF FFFF 00000000"),
        (Record(0xFE, b"u"), "FE 01000000 75"),
    ],
)
def test_record_bytes(record: Record, data: str) -> None:
    assert encode_record(record) == bytes.fromhex(data)
    assert list(iter_records(bytes.fromhex(data))) == [record]
    assert record.size == len(bytes.fromhex(data))


@given(BLOCKS)
def test_block_round_trip(records: list[Record]) -> None:
    block = encode_block(records)
    assert decode_block(block, len(records)) == records
    assert decode_block(memoryview(block)) == records
    assert sum(record.size for record in records) == len(block)


@given(BLOCKS)
def test_a_truncated_block_is_corrupt_unless_cut_between_records(records: list[Record]) -> None:
    block = encode_block(records)
    boundaries = {0}
    at = 0
    for record in records:
        at += record.size
        boundaries.add(at)
    for size in range(len(block)):
        if size in boundaries:
            assert len(decode_block(block[:size])) < len(records)
        else:
            with pytest.raises(CorruptionError):
                decode_block(block[:size])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("01 06000000 68656C6C6F", "claims 6 bytes"),
        ("01 FFFFFFFF 68656C6C6F", "claims 4294967295 bytes"),
        ("01 0500", "header at byte 0 is cut"),
        ("FF 0000 0100", "null record at byte 0 has length"),
        ("FF 0100 0000", "extended record header at byte 0 is cut"),
        ("01 00000000 FF 0100 000000", "extended record header at byte 5 is cut"),
        ("FF 0100 01000000", "claims 1 bytes"),
    ],
)
def test_malformed_blocks_are_refused(data: str, message: str) -> None:
    with pytest.raises(CorruptionError, match=message):
        decode_block(bytes.fromhex(data))
    with pytest.raises(ProtocolError, match=message) as caught:
        check_client_block(bytes.fromhex(data), 1)
    assert (caught.value.code, caught.value.closes) == (0x04, False)


def test_count_must_match() -> None:
    block = encode_block([Record(1, b"a"), Record(1, b"b")])
    with pytest.raises(CorruptionError, match="2 records"):
        decode_block(block, 3)
    with pytest.raises(ProtocolError, match="2 records where the header says 1"):
        check_client_block(block, 1)
    check_client_block(block, 2)


@pytest.mark.parametrize("record_type", [0x00, 0x7E, 0x7F])
def test_server_types_are_refused_from_v2_clients_and_read_from_storage(record_type: int) -> None:
    block = encode_block([Record(1, b"a"), Record(record_type, b"b")])
    with pytest.raises(ProtocolError, match=f"record 1 has type {record_type:02X}") as caught:
        check_client_block(block, 2)
    assert (caught.value.code, caught.value.closes) == (0x04, False)
    assert decode_block(block)[1].record_type == record_type


@pytest.mark.parametrize("record_type", [-1, 0x100, EXTENDED_BASE, EXTENDED_BASE + 0x1_0000])
def test_a_type_outside_its_range_is_refused(record_type: int) -> None:
    with pytest.raises(InvalidInputError, match="record type"):
        encode_record(Record(record_type, b""))


def test_null_has_no_value() -> None:
    with pytest.raises(InvalidInputError, match="null record"):
        encode_record(Record(RecordType.NULL, b"x"))


def test_bounds_of_a_block() -> None:
    with pytest.raises(InvalidInputError, match="at least one"):
        encode_block([])
    with pytest.raises(LimitError, match="65537 records"):
        encode_block([Record(1, b"")] * (limits.BATCH_RECORDS_MAX + 1))
    largest = Record(1, bytes(limits.RECORD_VALUE_SIZE_MAX))
    with pytest.raises(LimitError, match="a block of"):
        encode_block([largest, Record(1, b"")])


@pytest.mark.parametrize(
    ("record_type", "size_max"),
    [(RecordType.JSON, limits.RECORD_VALUE_SIZE_MAX), (RecordType.ENVELOPE, limits.EXTENDED_VALUE_SIZE_MAX)],
)
def test_the_largest_value_of_each_form_fills_a_block(record_type: int, size_max: int) -> None:
    largest = bytes(size_max)
    block = encode_block([Record(record_type, largest)])
    assert len(block) == limits.BLOCK_SIZE_MAX
    assert decode_block(block) == [Record(record_type, largest)]
    with pytest.raises(LimitError, match=f"record value of {size_max + 1} bytes, at most {size_max}"):
        encode_record(Record(record_type, largest + b"x"))


def test_the_largest_raw_value_fills_a_block() -> None:
    assert len(encode_raw(bytes(limits.RECORD_VALUE_SIZE_MAX))) == limits.BLOCK_SIZE_MAX
    with pytest.raises(LimitError, match="record value"):
        encode_raw(bytes(limits.RECORD_VALUE_SIZE_MAX + 1))


def test_v1_sees_an_extended_record_under_7e_at_the_same_size() -> None:
    block = encode_block([Record(1, b"a"), Record(RecordType.ENVELOPE, b"data"), Record(0xFF, b"")])
    shown = records_for_v1(block)
    assert bytes(shown) == bytes.fromhex("0101000000617E06000000010064617461FF00000000")
    assert decode_block(shown)[1] == Record(0x7E, b"\x01\0data")


@given(BLOCKS)
def test_v1_view_keeps_size_and_order(records: list[Record]) -> None:
    block = encode_block(records)
    shown = records_for_v1(block)
    if not any(record.is_extended for record in records):
        assert shown is block
    assert v1_record_count(shown) == len(records)
    for before, after in zip(records, iter_records(shown), strict=True):
        assert after.size == before.size
        if before.is_extended:
            assert after == Record(0x7E, struct.pack("<H", before.record_type & 0xFFFF) + before.value)
        else:
            assert after == before


@pytest.mark.parametrize(
    ("data", "count"),
    [
        ("", 0),
        ("68656C6C6F", 0),
        ("01 05000000 68656C6C6F", 1),
        ("01 05000000 68656C6C6F 00", 0),
        ("01 05000000 68656C6C", 0),
        ("FF 00000000", 1),
        ("FF 01000000 00", 0),
        ("7E 00000000 7F 00000000 00 00000000", 3),
    ],
)
def test_v1_payload_is_a_run_of_records_or_opaque(data: str, count: int) -> None:
    payload = bytes.fromhex(data)
    assert v1_record_count(memoryview(payload)) == count
    assert is_v1_record_run(payload) is (count > 0)


@given(st.binary(max_size=64))
def test_every_v1_run_is_a_block_with_the_same_records(payload: bytes) -> None:
    count = v1_record_count(payload)
    if count:
        assert len(decode_block(payload, count)) == count


@given(st.binary(max_size=60), st.binary(max_size=60), st.none() | U64)
def test_key_value_round_trip(key: bytes, value: bytes, timestamp_ns: int | None) -> None:
    pair = KeyValue(key, value, timestamp_ns)
    record = pair.to_record()
    if timestamp_ns is None:
        assert record.record_type == 0x10
        assert parse_key_value(record.value) == pair
    else:
        assert record.record_type == 0x12
        assert parse_timestamped_key_value(memoryview(record.value)) == pair


@given(U64, st.binary(max_size=60))
def test_timestamped_round_trip(timestamp_ns: int, data: bytes) -> None:
    record = Timestamped(timestamp_ns, data).to_record()
    assert record.record_type == 0x11
    assert parse_timestamped(record.value) == Timestamped(timestamp_ns, data)


def test_key_value_bytes() -> None:
    assert KeyValue(b"k", b"v").to_record().value == bytes.fromhex("0100 6B 76")
    assert KeyValue(b"k", b"v", 1).to_record().value == bytes.fromhex("0100000000000000 0100 6B 76")
    assert Timestamped(2, b"d").to_record().value == bytes.fromhex("0200000000000000 64")


def test_malformed_values_are_refused() -> None:
    for size in range(10):
        with pytest.raises(CorruptionError):
            parse_timestamped_key_value(bytes(size))
    for size in range(8):
        with pytest.raises(CorruptionError):
            parse_timestamped(bytes(size))
    for data in (b"", b"\1", b"\1\0", b"\2\0k"):
        with pytest.raises(CorruptionError):
            parse_key_value(data)


def test_bounds_of_values() -> None:
    with pytest.raises(LimitError, match="key of 65536"):
        KeyValue(bytes(65_536), b"").to_record()
    with pytest.raises(LimitError, match="record value"):
        KeyValue(b"", bytes(limits.RECORD_VALUE_SIZE_MAX)).to_record()
    with pytest.raises(InvalidInputError, match="does not fit"):
        Timestamped(-1, b"").to_record()
