"""Records made from columns are the same as records parsed one by one."""

from itertools import repeat

from hypothesis import given
from hypothesis import strategies as st

from seawall.api.received import ReceivedBatch
from seawall.api.received_record import ReceivedRecord, parsed_records, received_records
from seawall.core.types import Position, Seq, TimestampNs
from seawall.wire.format.envelope import Envelope
from seawall.wire.format.record_fields import RecordFields
from seawall.wire.format.records import Record, RecordType, encode_block

NOW = TimestampNs(1_700_000_000_000_000_000)
DELETED = Record(RecordType.DELETED, b"")

short = st.binary(max_size=8)
optional = st.none() | short
envelopes = st.builds(
    Envelope,
    data=short,
    timestamp_ns=st.none() | st.integers(0, 2**63 - 1).map(TimestampNs),
    key=optional,
    node=optional,
    tag=optional,
    meta=optional,
    headers=st.none() | st.lists(st.tuples(short, short), max_size=3).map(tuple),
)
records = (
    st.builds(Record, st.sampled_from([RecordType.RAW, RecordType.JSON, 0x80, 0x1_0009]), short)
    | envelopes.map(Envelope.to_record)
    | st.builds(Record, st.just(RecordType.ENVELOPE), short)
    | st.sampled_from([DELETED, Record(RecordType.NULL, b"")])
)


def batch_of(content: list[Record], *live: tuple[int, int]) -> ReceivedBatch:
    ranges = tuple((Seq(first), Seq(last)) for first, last in live or [(1, len(content))])
    block = memoryview(encode_block(content))
    return ReceivedBatch("t", Seq(1), len(content), Position(0), NOW, block, ranges, Seq(len(content) + 1))


@given(st.lists(records, min_size=1, max_size=40))
def test_columns_and_parsing_give_the_same_records(content: list[Record]) -> None:
    block = memoryview(encode_block(content))
    parsed = list(parsed_records(block, 7, NOW))
    fields = RecordFields(block, len(content))
    assert list(received_records(fields, fields.seqs(7), repeat(NOW))) == parsed
    assert [record.seq for record in parsed] == [seq for seq, each in enumerate(content, 7) if each != DELETED]


def test_records_have_python_values() -> None:
    envelope = Envelope(b"v", TimestampNs(5), b"k", b"n", b"t", b"m", ((b"a", b"1"), (b"a", b"2")))
    for count in (1, 300):
        first, *_, last = [*batch_of([envelope.to_record()] * count), None]
        expected = ReceivedRecord(
            Seq(1), RecordType.ENVELOPE, b"v", NOW, b"k", ((b"a", b"1"), (b"a", b"2")), 5, b"t", b"n", b"m"
        )
        assert (first, last) == (expected, None)
        assert [type(field) for field in first or ()] == [int, int, bytes, int, bytes, tuple, int, bytes, bytes, bytes]


def test_only_live_records_are_iterated() -> None:
    for count in (10, 1_000):
        content = [Record(RecordType.RAW, b"%d" % number) for number in range(1, count + 1)]
        content[4] = DELETED
        found = list(batch_of(content, (2, 6), (8, count - 1)))
        expected = [2, 3, 4, 6, *range(8, count)]
        assert [record.seq for record in found] == expected
        assert [record.value for record in found] == [b"%d" % seq for seq in expected]
