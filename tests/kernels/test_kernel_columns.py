"""Records to columns and back, with valid and hostile envelopes."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall import limits
from seawall.kernels.codec import blocks, columns
from seawall.kernels.runtime import jit
from twins.codec import columns as twin

EXAMPLES = 40 if jit.PYTHON_MODE else 100
NULL = b"\xff\0\0\0\0"

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]
Fields = dict[int, bytes]


def plain(record_type: int, value: bytes) -> bytes:
    return struct.pack("<BI", record_type, len(value)) + value


def extended(record_type: int, value: bytes) -> bytes:
    return struct.pack("<BHI", 0xFF, record_type, len(value)) + value


def header_list(headers: list[tuple[bytes, bytes]]) -> bytes:
    pairs = (struct.pack("<H", len(name)) + name + struct.pack("<I", len(value)) + value for name, value in headers)
    return struct.pack("<H", len(headers)) + b"".join(pairs)


def envelope(fields: Fields, timestamp: int | None, data: bytes) -> bytes:
    """The value of an envelope record: the fields given, in the order of their flags."""
    flags = 0 if timestamp is None else columns.FLAG_TIMESTAMP
    value = b"" if timestamp is None else struct.pack("<Q", timestamp)
    for column in sorted(fields):
        flags |= 1 << column
        value += fields[column] if column == columns.COLUMN_HEADERS else struct.pack("<I", len(fields[column]))
        value += b"" if column == columns.COLUMN_HEADERS else fields[column]
    return struct.pack("<H", flags) + value + data


short = st.binary(max_size=12)
headers = st.lists(st.tuples(short, short), max_size=3).map(header_list)
fields = st.fixed_dictionaries(
    {},
    optional={
        columns.COLUMN_KEY: short,
        columns.COLUMN_NODE: short,
        columns.COLUMN_TAG: short,
        columns.COLUMN_META: short,
        columns.COLUMN_HEADERS: headers,
    },
)
timestamps = st.one_of(st.none(), st.integers(0, 2**63 - 1))
good_envelope = st.builds(envelope, fields, timestamps, short)


@st.composite
def bad_envelope(draw: st.DrawFn) -> bytes:
    value = bytearray(draw(good_envelope))
    for _ in range(draw(st.integers(0, 2))):
        value[draw(st.integers(0, len(value) - 1))] = draw(st.sampled_from([0, 1, 2, 4, 0x3F, 0x40, 0x80, 0xFF]))
    return bytes(value[: draw(st.integers(0, len(value)))])


any_record = st.one_of(
    st.builds(plain, st.sampled_from([0, 1, 0x7F, 0xFE]), short),
    st.just(NULL),
    st.builds(extended, st.sampled_from([2, 0x100, 0xFFFF]), short),
    st.builds(extended, st.just(1), good_envelope),
)
hostile_record = st.one_of(any_record, st.builds(extended, st.just(1), st.one_of(bad_envelope(), short)))


def scanned(records: list[bytes], before: int = 2) -> tuple[Bytes, Words]:
    """A block with other bytes around it, and where its records are."""
    data = b"".join(records)
    block = np.frombuffer(b"\xff" * before + data + b"\xff" * 20, np.uint8)
    offsets = np.zeros(len(records) + 1, np.int64)
    assert blocks.scan_block(block, before, before + len(data), 0, len(records), offsets) == len(records)
    return block, offsets


def located(locate: Callable[..., int], block: Bytes, offsets: Words) -> tuple[int, Words, Words, Words]:
    count = offsets.size - 1
    starts = np.full((columns.COLUMN_COUNT, count), -77, np.int64)
    lengths, moments = starts.copy(), np.full(count, -77, np.int64)
    return locate(block, offsets, count, starts, lengths, moments), starts, lengths, moments


@settings(max_examples=EXAMPLES)
@given(st.lists(any_record, max_size=9))
def test_located_values_equal_their_twin(records: list[bytes]) -> None:
    block, offsets = scanned(records)
    results = []
    for locate in (columns.locate_values, twin.locate_values):
        spans = np.full((3, len(records)), -77, np.int64)
        total = locate(block, offsets, len(records), *spans)
        results.append((total, spans.tolist()))
    assert results[0] == results[1]


def test_values_by_example() -> None:
    records = [plain(1, b"ab"), NULL, extended(0x1234, b"xyz"), plain(0xFE, b"")]
    block, offsets = scanned(records, before=0)
    starts, lengths, kinds = np.zeros((3, 4), np.int64)
    assert columns.locate_values(block, offsets, 4, starts, lengths, kinds) == 5
    assert starts.tolist() == [5, 12, 19, 27]
    assert lengths.tolist() == [2, -1, 3, 0]
    assert kinds.tolist() == [1, 0xFF, 0x11234, 0xFE]


@settings(max_examples=EXAMPLES)
@given(st.lists(hostile_record, max_size=7), st.integers(0, 4))
def test_located_envelopes_equal_their_twin(records: list[bytes], before: int) -> None:
    block, offsets = scanned(records, before)
    code, starts, lengths, moments = located(columns.locate_envelopes, block, offsets)
    expected = located(twin.locate_envelopes, block, offsets)
    assert code == expected[0]
    for given_array, expected_array in zip((starts, lengths, moments), expected[1:], strict=True):
        assert given_array.tolist() == expected_array.tolist()
    # INV-SCAN-BOUNDS
    for index in range(len(records)):
        for start, length in zip(starts[:, index], lengths[:, index], strict=True):
            assert length == -1 or offsets[index] <= start <= start + length <= offsets[index + 1]


@settings(max_examples=EXAMPLES)
@given(fields, timestamps, short)
def test_each_field_is_found(given_fields: Fields, timestamp: int | None, data: bytes) -> None:
    block, offsets = scanned([extended(1, envelope(given_fields, timestamp, data))])
    code, starts, lengths, moments = located(columns.locate_envelopes, block, offsets)
    assert code == 0
    assert moments[0] == (-1 if timestamp is None else timestamp)
    found = {
        column: block[starts[column, 0] : starts[column, 0] + lengths[column, 0]].tobytes()
        for column in range(columns.COLUMN_COUNT)
        if lengths[column, 0] >= 0
    }
    assert found == {**given_fields, columns.COLUMN_DATA: data}


FULL_ENVELOPE = envelope(
    {1: b"key", 2: b"n", 3: b"", 4: b"meta", 5: header_list([(b"a", b"1"), (b"", b"")])}, 1_700_000_000, b""
)


def test_an_envelope_cut_anywhere_reads_as_data() -> None:
    for cut in range(len(FULL_ENVELOPE)):
        block, offsets = scanned([plain(1, b"x"), extended(1, FULL_ENVELOPE[:cut])])
        for locate in (columns.locate_envelopes, twin.locate_envelopes):
            assert located(locate, block, offsets)[0] == 1


MALFORMED = {
    "no flags": b"\1",
    "unknown flag": struct.pack("<H", 0x40) + bytes(30),
    "highest flag": struct.pack("<H", 0x8000) + bytes(30),
    "key of 4 GiB": struct.pack("<HI", 2, 0xFFFFFFFF) + bytes(30),
    "meta one byte too long": struct.pack("<HI", 0x10, 4) + b"abc",
    "65,535 headers": struct.pack("<HH", 0x20, 0xFFFF) + bytes(30),
    "header name too long": struct.pack("<HHH", 0x20, 1, 0xFFFF) + bytes(30),
    "1,025 headers": struct.pack("<HH", 0x20, 1_025) + bytes(6 * 1_025),
    "timestamp from 2^63 on": struct.pack("<HQ", 1, 2**63 + 5) + b"data",
    "key, then a header value of 4 GiB": struct.pack("<HI3sHHI", 0x22, 3, b"key", 1, 0, 0xFFFFFFFF) + bytes(30),
    "header value of 4 GiB": struct.pack("<HHHI", 0x20, 1, 0, 0xFFFFFFFF) + bytes(30),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_envelopes(name: str) -> None:
    """One bad envelope is data, whole and alone; its neighbours are read as ever."""
    block, offsets = scanned([extended(1, MALFORMED[name]), extended(1, FULL_ENVELOPE)])
    for locate in (columns.locate_envelopes, twin.locate_envelopes):
        malformed, starts, lengths, moments = located(locate, block, offsets)
        assert malformed == 1
        assert lengths[:, 0].tolist() == [len(MALFORMED[name]), -1, -1, -1, -1, -1]
        assert moments.tolist() == [-1, 1_700_000_000]
        at = starts[columns.COLUMN_DATA, 0]
        assert block[at : at + lengths[columns.COLUMN_DATA, 0]].tobytes() == MALFORMED[name]
        assert lengths[columns.COLUMN_KEY, 1] == 3


def test_codec_and_kernel_have_the_same_header_limits() -> None:
    assert columns.HEADERS_MAX == limits.ENVELOPE_HEADERS_MAX


Gathered = tuple[int, npt.NDArray[np.int32], Bytes, Bytes]


def gathered(gather: Callable[..., int], block: Bytes, starts: Words, lengths: Words) -> Gathered:
    count = starts.size
    arrow_offsets = np.full(count + 1, -1, np.int32)
    data = np.full(columns.spans_size(lengths, count) + 2, 0xEE, np.uint8)
    validity = np.full((count + 7) // 8 + 1, 0xEE, np.uint8)
    nulls = gather(block, starts, lengths, count, arrow_offsets, data, validity)
    return nulls, arrow_offsets, data, validity


@settings(max_examples=EXAMPLES)
@given(st.lists(st.one_of(st.none(), short), max_size=20))
def test_gathering_makes_an_arrow_array(values: list[bytes | None]) -> None:
    block = np.frombuffer(b"".join(value or b"" for value in reversed(values)) + b"#", np.uint8)
    lengths = np.array([-1 if value is None else len(value) for value in values], np.int64)
    starts = np.array([sum(len(v or b"") for v in values[index + 1 :]) for index in range(len(values))], np.int64)
    assert columns.spans_size(lengths, len(values)) == twin.spans_size(lengths, len(values))
    nulls, arrow_offsets, data, validity = gathered(columns.gather_spans, block, starts, lengths)
    expected = gathered(twin.gather_spans, block, starts, lengths)
    assert nulls == expected[0]
    for given_array, expected_array in zip((arrow_offsets, data, validity), expected[1:], strict=True):
        assert given_array.tolist() == expected_array.tolist()
    buffers = [pa.py_buffer(validity), pa.py_buffer(arrow_offsets), pa.py_buffer(data)]
    column = pa.Array.from_buffers(pa.binary(), len(values), buffers, null_count=nulls)
    column.validate(full=True)
    assert column.to_pylist() == values


@settings(max_examples=EXAMPLES)
@given(st.lists(good_envelope, max_size=6), st.integers(0, 4))
def test_encoding_located_columns_gives_the_same_bytes(envelopes: list[bytes], start: int) -> None:
    records = [extended(1, value) for value in envelopes]
    block, offsets = scanned(records)
    code, starts, lengths, moments = located(columns.locate_envelopes, block, offsets)
    assert code == 0
    size = columns.envelopes_size(lengths, moments, len(records))
    assert size == twin.envelopes_size(lengths, moments, len(records)) == sum(map(len, records))
    for encode in (columns.encode_envelopes, twin.encode_envelopes):
        built = np.full(start + size + 2, 0xEE, np.uint8)
        assert encode(block, starts, lengths, moments, len(records), built, start) == start + size
        assert built.tobytes() == b"\xee" * start + b"".join(records) + b"\xee\xee"


def test_a_row_without_data_becomes_an_envelope_with_none() -> None:
    lengths = np.full((columns.COLUMN_COUNT, 1), -1, np.int64)
    moments = np.array([-1], np.int64)
    size = columns.envelopes_size(lengths, moments, 1)
    for encode in (columns.encode_envelopes, twin.encode_envelopes):
        block = np.zeros(size, np.uint8)
        assert encode(np.zeros(0, np.uint8), np.zeros_like(lengths), lengths, moments, 1, block, 0) == size
        assert block.tobytes() == extended(1, b"\0\0")
