"""Job options of whole blocks: kernel against twin, and against the codec of one record at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.errors import CorruptionError
from seawall.kernels.codec import blocks, columns, job_options
from seawall.kernels.runtime import jit
from seawall.wire.format.envelope import Envelope, parse_envelope
from seawall.wire.format.records import Record, RecordType, decode_block, encode_record
from seawall.wire.jobs import options as codec
from seawall.wire.jobs.option_scan import JobFields, scan_job_options
from seawall.wire.jobs.options import JobOptions
from twins.codec import job_options as twin

EXAMPLES = 40 if jit.PYTHON_MODE else 200

names = st.sampled_from([*job_options.OPTION_NAMES, b"", b"other", b"seawall-uniquE", b"seawall-not-before-"])
digits = st.integers(0, 19).flatmap(lambda size: st.text("0123456789", min_size=size, max_size=size)).map(str.encode)
values = st.one_of(
    digits, st.sampled_from([b"5", b"10", b"-1", b"+1", b" 1", b"1_0", b"\xb2", "²".encode(), b"x" * 255, b"x" * 256])
)
header_lists = st.none() | st.lists(st.tuples(names, values), max_size=6).map(tuple)
envelopes = st.builds(
    Envelope,
    data=st.binary(max_size=4),
    timestamp_ns=st.none() | st.integers(0, 2**63 - 1),
    key=st.none() | st.binary(max_size=3),
    meta=st.none() | st.binary(max_size=3),
    headers=header_lists,
).map(Envelope.to_record)
flipped = st.tuples(envelopes, st.integers(0, 500), st.integers(0, 255)).map(
    lambda each: Record(each[0].record_type, changed(each[0].value, each[1], each[2]))
)
cut = st.tuples(envelopes, st.integers(0, 500)).map(lambda each: Record(each[0].record_type, each[0].value[: each[1]]))
plain = st.builds(Record, st.sampled_from([1, 2, 0x7E, RecordType.ARROW_STREAM]), st.binary(max_size=4))
fixed = st.sampled_from([Record(RecordType.NULL, b""), Record(RecordType.DELETED, b"")])
records = st.lists(st.one_of(envelopes, envelopes, flipped, cut, plain, fixed), max_size=6)


def changed(value: bytes, at: int, byte: int) -> bytes:
    at %= len(value)
    return value[:at] + bytes([byte]) + value[at + 1 :]


def expected(record: Record) -> JobOptions:
    if record.record_type != RecordType.ENVELOPE:
        return JobOptions()
    try:
        return codec.job_options(parse_envelope(record.value).headers or ())
    except CorruptionError:
        return JobOptions()


def options_of(block: bytes, fields: JobFields) -> list[JobOptions]:
    rows = zip(
        *(array.tolist() for array in (fields.not_before_ms, fields.priorities)),
        *(array.tolist() for array in (fields.unique_starts, fields.unique_lengths)),
        strict=True,
    )
    return [
        JobOptions(not_before, priority, None if length < 0 else block[start : start + length])
        for not_before, priority, start, length in rows
    ]


@settings(max_examples=EXAMPLES)
@given(records)
def test_the_kernel_agrees_with_the_codec(given: list[Record]) -> None:
    block = b"".join(map(encode_record, given))
    fields = scan_job_options(block, len(given))
    assert options_of(block, fields) == [expected(record) for record in given]
    starts = fields.offsets.tolist()
    parts = [block[start:end] for start, end in pairwise(starts)]
    assert parts == [encode_record(record) for record in given]


@settings(max_examples=EXAMPLES)
@given(records)
def test_the_kernel_equals_its_twin(given: list[Record]) -> None:
    source = np.frombuffer(b"".join(map(encode_record, given)) + b"#", np.uint8)[:-1]
    offsets = np.zeros(len(given) + 1, np.int64)
    assert blocks.scan_block(source, 0, source.size, blocks.RECORDS_STORED, len(given), offsets) == len(given)
    names_of = np.frombuffer(b"".join(job_options.OPTION_NAMES), np.uint8)
    ends = np.cumsum([len(name) for name in job_options.OPTION_NAMES], dtype=np.int64)
    results = []
    for module in (job_options, twin):
        options = np.full((4, len(given)), 77, np.int64)
        starts, lengths = np.zeros((2, columns.COLUMN_COUNT, 1), np.int64)
        scratch = (starts, lengths, np.zeros(1, np.int64))
        found = module.read_job_options(source, offsets, len(given), names_of, ends, *scratch, options)
        results.append((int(found), options.tolist()))
    assert results[0] == results[1]


def test_constants_equal_those_of_the_codec() -> None:
    assert (codec.NOT_BEFORE, codec.PRIORITY, codec.UNIQUE) == job_options.OPTION_NAMES
    assert (codec.NOT_BEFORE_DIGITS_MAX, codec.UNIQUE_SIZE_MAX) == (job_options.DIGITS_MAX, job_options.UNIQUE_SIZE_MAX)


@pytest.mark.parametrize(
    ("headers", "options"),
    [
        ((), JobOptions()),
        (JobOptions(10**18 - 1, 9, b"k" * 255).headers(), JobOptions(10**18 - 1, 9, b"k" * 255)),
        ([(b"seawall-priority", b"3"), (b"seawall-priority", b"4")], JobOptions(priority=3)),
        ([(b"seawall-priority", b"33"), (b"seawall-priority", b"4")], JobOptions()),
        ([(b"seawall-not-before", b"1" * 19)], JobOptions()),
        ([(b"seawall-not-before", b"000000000000000007")], JobOptions(7)),
        ([(b"seawall-unique", b""), (b"seawall-unique", b"a")], JobOptions()),
    ],
)
@pytest.mark.parametrize("others", [0, 2])
def test_the_first_header_of_a_name_counts(headers: list, options: JobOptions, others: int) -> None:
    job = encode_record(Envelope(b"data", headers=tuple(headers)).to_record())
    block = encode_record(Record(1, b"plain")) * others + job
    assert options_of(block, scan_job_options(block, others + 1)) == [JobOptions()] * others + [options]


@pytest.mark.parametrize("value", [b"", b"plain"])
def test_one_plain_record(value: bytes) -> None:
    block = encode_record(Record(1, value))
    fields = scan_job_options(block, 1)
    assert options_of(block, fields) == [JobOptions()]
    assert fields.offsets.tolist() == [0, len(block)]
    assert len(decode_block(block)) == 1


def test_another_count_of_records_is_refused() -> None:
    block = encode_record(Record(1, b"a")) * 3
    for count in (2, 4):
        with pytest.raises(CorruptionError, match=f"not {count} of them"):
            scan_job_options(block, count)
