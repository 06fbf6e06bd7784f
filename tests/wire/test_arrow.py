"""Blocks from and to Arrow: every column, nulls, slices, bounds, and agreement with the record codec."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall import limits
from seawall.errors import CorruptionError, InvalidInputError, LimitError
from seawall.wire.format.arrow import decode_table, encode_table, encode_values
from seawall.wire.format.envelope import Envelope
from seawall.wire.format.records import EXTENDED_BASE, Record, decode_block, encode_block

BYTES = st.binary(max_size=12)
OPTIONAL = st.none() | BYTES
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=4), BYTES), max_size=3)
ROWS = st.lists(
    st.tuples(BYTES, OPTIONAL, st.none() | st.integers(0, 2**62), OPTIONAL, OPTIONAL, OPTIONAL, HEADERS), max_size=9
)
SCHEMA = pa.schema(
    {
        "value": pa.binary(),
        "key": pa.binary(),
        "timestamp": pa.int64(),
        "node": pa.binary(),
        "tag": pa.binary(),
        "meta": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)


def table_of(rows: list[tuple]) -> pa.Table:
    names = SCHEMA.names
    dictionaries = []
    for row in rows:
        entry = dict(zip(names, row, strict=True))
        if entry["headers"] is not None:
            entry["headers"] = [{"key": name, "value": value} for name, value in entry["headers"]]
        dictionaries.append(entry)
    return pa.Table.from_pylist(dictionaries, schema=SCHEMA)


def envelope_of(row: tuple) -> Envelope:
    value, key, timestamp, node, tag, meta, headers = row
    pairs = None if headers is None else tuple((name.encode(), content) for name, content in headers)
    return Envelope(value, timestamp, key, node, tag, meta, pairs)


@settings(max_examples=40)
@given(ROWS, st.integers(0, 3), st.integers(0, 3))
def test_a_table_becomes_the_envelopes_the_codec_writes(rows: list[tuple], skip: int, drop: int) -> None:
    """Slices too: Arrow then shares buffers and starts at an offset in them."""
    rows_used = rows[skip : max(skip, len(rows) - drop)]
    table = table_of(rows).slice(skip, len(rows_used))
    made = list(encode_table(table))
    assert sum(each.record_count for each in made) == len(rows_used)
    expected = b"".join(encode_block([envelope_of(row).to_record()]) for row in rows_used)
    assert b"".join(bytes(each.block) for each in made) == expected


@settings(max_examples=40)
@given(ROWS, st.integers(1, 2**63))
def test_an_encoded_table_round_trips(rows: list[tuple], base_seq: int) -> None:
    for each in encode_table(table_of(rows)):
        read = decode_table(each.block, base_seq=base_seq)
        read.validate(full=True)
        assert read.column("seq").to_pylist() == list(range(base_seq, base_seq + each.record_count))
        assert set(read.column("type").to_pylist()) == {EXTENDED_BASE | 1}
        for name in ("value", "key", "node", "tag", "meta"):
            assert read.column(name).to_pylist() == table_of(rows).column(name).to_pylist()
        assert read.column("timestamp").cast(pa.int64()).to_pylist() == [row[2] for row in rows]
        assert read.column("headers").to_pylist() == table_of(rows).column("headers").to_pylist()


@settings(max_examples=40)
@given(st.lists(BYTES, max_size=20))
def test_values_alone_become_raw_records(values: list[bytes]) -> None:
    expected = encode_block([Record(1, value) for value in values]) if values else b""
    assert b"".join(bytes(each.block) for each in encode_values(values)) == expected
    for column in (pa.array(values, pa.binary()), pa.array(values, pa.large_binary())):
        made = encode_table(pa.table({"value": column}))
        assert b"".join(bytes(each.block) for each in made) == expected


def test_strings_and_record_batches_are_accepted() -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["a", "ü"], "key": pa.array(["k", None], pa.large_string())})
    (made,) = encode_table(batch)
    assert decode_block(bytes(made.block)) == [
        Envelope(b"a", key=b"k").to_record(),
        Envelope("ü".encode()).to_record(),
    ]


def test_other_types_of_records_are_encoded_and_read() -> None:
    (made,) = encode_values([b"{}", b"[]"], record_type=EXTENDED_BASE | 7)
    assert decode_block(bytes(made.block))[1] == Record(EXTENDED_BASE | 7, b"[]")
    block = encode_block(
        [Record(2, b"{}"), Record(0xFF, b""), Record(0, b""), Record(0, b"kept"), Record(0x1_0002, b"x")]
    )
    read = decode_table(block, base_seq=10, wanted=("value", "key"))
    assert read.to_pydict() == {
        "seq": [10, 11, 13, 14],
        "type": [2, 0xFF, 0, 0x1_0002],
        "value": [b"{}", None, b"kept", b"x"],
        "key": [None] * 4,
    }


def test_timestamps_of_any_unit() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    for unit in ("s", "ms", "us", "ns"):
        column = pa.array([moment, None], pa.timestamp("us", tz="UTC")).cast(pa.timestamp(unit, tz="UTC"), safe=False)
        (made,) = encode_table(pa.table({"value": [b"a", b"b"], "timestamp": column}))
        read = decode_table(made.block, base_seq=1, wanted=("timestamp",)).column("timestamp")
        assert read.cast(pa.timestamp(unit, tz="UTC"), safe=False).to_pylist() == column.to_pylist()


def test_a_header_name_that_is_not_utf8_is_readable() -> None:
    block = encode_block([Envelope(b"", headers=((b"\xff", b"v"),)).to_record()])
    assert decode_table(block, base_seq=1, wanted=("headers",)).column("headers").to_pylist() == [
        [{"key": "\ufffd", "value": b"v"}]
    ]


def test_blocks_are_split_at_their_bounds() -> None:
    many = list(encode_values([b""] * (limits.BATCH_RECORDS_MAX + 1)))
    assert [each.record_count for each in many] == [limits.BATCH_RECORDS_MAX, 1]
    third = bytes(limits.BLOCK_SIZE_MAX // 3)
    large = list(encode_values([third] * 4))
    assert [each.record_count for each in large] == [2, 2]
    assert all(len(each.block) <= limits.BLOCK_SIZE_MAX for each in large)
    fits = bytes(limits.BLOCK_SIZE_MAX - limits.RECORD_HEADER_SIZE)
    assert [len(each.block) for each in encode_values([fits])] == [limits.BLOCK_SIZE_MAX]
    with pytest.raises(LimitError, match="record of row 1 takes"):
        list(encode_values([b"a", fits + b"x"]))


@pytest.mark.parametrize(
    "field",
    [
        {"key": b"key"},
        {"timestamp": 7},
        {"tag": b"", "meta": b"m", "node": b"n"},
        {"headers": [("name", b"value")]},
        {"key": None, "headers": None},
    ],
)
def test_the_largest_row_fills_a_block(field: dict) -> None:
    """The largest envelope of a table is exactly as large as that of a message."""
    schema = pa.schema([SCHEMA.field("value"), *(SCHEMA.field(name) for name in field)])
    small = next(encode_table(pa.Table.from_pylist([{"value": b"", **field}], schema)))
    largest = bytes(limits.BLOCK_SIZE_MAX - small.size)
    made = next(encode_table(pa.Table.from_pylist([{"value": largest, **field}], schema)))
    assert made.size == limits.BLOCK_SIZE_MAX
    with pytest.raises(LimitError, match="row 0 takes"):
        list(encode_table(pa.Table.from_pylist([{"value": largest + b"x", **field}], schema)))


REFUSED = {
    "no value": {"key": [b"k"]},
    "unknown column": {"value": [b"v"], "colour": [b"red"]},
    "null value": {"value": pa.array([None], pa.binary())},
    "number as value": {"value": [1]},
    "number as key": {"value": [b"v"], "key": [1]},
    "text as timestamp": {"value": [b"v"], "timestamp": ["now"]},
    "time before 1970": {"value": [b"v"], "timestamp": [-1]},
    "headers no list": {"value": [b"v"], "headers": ["h"]},
    "header key null": {
        "value": [b"v"],
        "headers": pa.array([[{"key": None, "value": b""}]], SCHEMA.field("headers").type),
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_tables_are_refused(case: str) -> None:
    with pytest.raises(InvalidInputError):
        list(encode_table(pa.table(REFUSED[case])))


def test_too_many_headers_and_too_long_names_are_refused() -> None:
    kind = SCHEMA.field("headers").type
    many = [{"key": "k", "value": b""}] * (limits.ENVELOPE_HEADERS_MAX + 1)
    for rows in ([many], [[{"key": "k" * 70_000, "value": b""}]]):
        with pytest.raises(LimitError):
            list(encode_table(pa.table({"value": [b"v"], "headers": pa.array(rows, kind)})))


def test_a_malformed_block_is_refused() -> None:
    with pytest.raises(CorruptionError, match="not a run of records"):
        decode_table(b"\x01\xff\xff\xff\xff", base_seq=1)


def test_empty_blocks_and_tables_are_accepted() -> None:
    assert decode_table(b"", base_seq=5).num_rows == 0
    assert list(encode_table(SCHEMA.empty_table())) == []
    assert list(encode_values([])) == []
    assert np.array_equal(decode_table(b"", base_seq=5).column("seq").to_numpy(), [])


def test_a_wrong_record_count_is_refused() -> None:
    block = encode_block([Record(1, b"a"), Record(1, b"b")])
    assert decode_table(block, base_seq=1, record_count=2).num_rows == 2
    for wrong in (1, 3):
        with pytest.raises(CorruptionError, match="another record count"):
            decode_table(block, base_seq=1, record_count=wrong)
