"""Batches rebuilt for readers: without deleted records, or uncompressed, with valid checksums."""

import pytest

from seawall.core.types import ClientId, ClientSeq, Offset, Position, Seq, SessionEpoch, Term, TimestampNs, TopicId
from seawall.errors import CorruptionError
from seawall.wire.format.batches import batch_header, iter_batches, stamp
from seawall.wire.format.codes import BatchFlags, Codec
from seawall.wire.format.compression import compress
from seawall.wire.format.rebuilding import batch_with_live_records, plain_batch
from seawall.wire.format.records import encode_raw, iter_records

VALUES = [b"one", b"two", b"three", b"four", b"five"]


def stored(codec=Codec.NONE, values=VALUES, **changed):
    block = b"".join(map(encode_raw, values))
    packed = bytes(compress(codec, block))
    named = {
        "topic_id": TopicId(3),
        "client_id": ClientId(7),
        "client_seq": ClientSeq(9),
        "session_epoch": SessionEpoch(2),
        "record_count": len(values),
        "timestamp_ns": TimestampNs(0),
        "codec": codec,
        "raw_length": len(block),
    }
    batch = bytearray(batch_header(packed, **(named | changed)).header_bytes() + packed)
    numbers = {"position": Position(5), "base_seq": Seq(11), "base_offset": Offset(100), "term": Term(4)}
    stamp(batch, timestamp_ns=TimestampNs(77), **numbers)
    return bytes(batch)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("live", [((11, 15),), ((12, 12),), ((11, 11), (15, 15)), ((13, 14),)])
def test_deleted_records_are_empty_and_counted(codec, live):
    ((header, block),) = iter_batches(batch_with_live_records(stored(codec), live))
    assert (header.position, header.base_seq, header.base_offset, header.term) == (5, 11, 100, 4)
    assert (header.record_count, header.codec, header.raw_length) == (5, Codec.NONE, len(block))
    is_live = [any(first <= seq <= last for first, last in live) for seq in range(11, 16)]
    found = [(record.record_type, record.value) for record in iter_records(block)]
    assert found == [(1, value) if alive else (0, b"") for value, alive in zip(VALUES, is_live, strict=True)]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_plain_batch_has_the_same_records(codec):
    ((header, block),) = iter_batches(plain_batch(stored(codec)))
    assert header.codec is Codec.NONE
    assert [record.value for record in iter_records(block)] == VALUES


def test_an_opaque_batch_is_unchanged():
    batch = stored(flags=int(BatchFlags.OPAQUE), record_count=1)
    ((_, block),) = iter_batches(batch_with_live_records(batch, ((11, 11),)))
    ((_, before),) = iter_batches(batch)
    assert bytes(block) == bytes(before)


def test_a_batch_with_a_wrong_record_count_is_corruption():
    with pytest.raises(CorruptionError, match="4 records"):
        batch_with_live_records(stored(record_count=4), ((11, 12),))
