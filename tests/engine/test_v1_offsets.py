"""The byte stream of protocol version 1 over stored records: fetches, holes, bounds and cursors."""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seawall
from seawall.core.types import Offset, Seq
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.commit.appends import NO_CLIENT_SEQ, NO_SESSION, Append
from seawall.engine.commit.pending_batches import Identity, PendingBatch
from seawall.engine.read.read_results import ReceivedBatch
from seawall.engine.read.v1_offsets import OffsetBounds, StreamPiece, StreamRead
from seawall.engine.store.settings import StoreSettings
from seawall.engine.store.store import Store
from seawall.limits import KIB, MIB, V1_FETCH_DATA_SIZE_MAX
from seawall.wire.format.codes import BatchFlags, Codec
from seawall.wire.format.compression import compress
from seawall.wire.format.records import Record, RecordType, encode_record, records_for_v1

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB)
OPAQUE = Identity(NO_SESSION, NO_CLIENT_SEQ, 0, int(BatchFlags.OPAQUE))


def plain(value: bytes, record_type: int = 1) -> bytes:
    return struct.pack("<BI", record_type, len(value)) + value


@contextmanager
def opened(path: Path, brokers: int = 0, **config: int) -> Iterator[EmbeddedLog]:
    with open_log(path / "data", SMALL, brokers=brokers) as log:
        if "events" not in log.topics():
            log.create_topic("events", **config)
        yield log


def store_of(log: EmbeddedLog) -> Store:
    with log.commits.exclusive() as store:
        return store


def put(log: EmbeddedLog, *records: bytes) -> None:
    pending_batch = PendingBatch(log.topic_named("events"), [b"".join(records)], sum(map(len, records)), len(records))
    log.commits.publish(pending_batch)


def put_opaque(log: EmbeddedLog, payload: bytes) -> None:
    pending_batch = PendingBatch(log.topic_named("events"), [payload], len(payload), 1)
    pending_batch.identity = OPAQUE
    log.commits.publish(pending_batch)


def fetch(log: EmbeddedLog, start: int, size_max: int = 1 * MIB) -> StreamPiece:
    read = StreamRead(Offset(start), size_max)
    while store_of(log).queries.plan_stream("events", read) and not read.execute():
        pass
    return read.result()


def fetched(log: EmbeddedLog, start: int, size_max: int = 1 * MIB) -> tuple[int, int, bytes]:
    piece = fetch(log, start, size_max)
    return piece.next_offset, piece.unit_count, bytes(piece.data)


def bounds(log: EmbeddedLog) -> OffsetBounds:
    return store_of(log).queries.offset_bounds("events")


@pytest.mark.parametrize("brokers", [0, 1])
def test_records_and_opaque_payloads_come_back_byte_for_byte(tmp_path: Path, brokers: int) -> None:
    with opened(tmp_path, brokers) as log:
        assert bounds(log) == (0, 0)
        assert fetched(log, 0) == (0, 0, b"")
        put(log, plain(b"one"), plain(b"two", 0x7F))
        put_opaque(log, b"no record at all")
        put(log, plain(b"three"))
        stream = plain(b"one") + plain(b"two", 0x7F) + b"no record at all" + plain(b"three")
        assert fetched(log, 0) == (len(stream), 4, stream)
        assert bounds(log) == (0, len(stream))
        assert [len(item) for item in log.read("events")] == [2, 1, 1]
    with opened(tmp_path, brokers) as log:
        for start in range(len(stream) + 1):
            following, _, data = fetched(log, start)
            assert (following, data) == (len(stream), stream[start:])


def test_a_fetch_ends_at_the_last_whole_unit(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        put(log, plain(b"a" * 5), plain(b"b" * 5))
        put(log, plain(b"c" * 5))
        assert fetched(log, 0, 10) == (10, 1, plain(b"a" * 5))
        assert fetched(log, 0, 19) == (10, 1, plain(b"a" * 5))
        assert fetched(log, 0, 20) == (20, 2, plain(b"a" * 5) + plain(b"b" * 5))
        assert fetched(log, 0, 1) == (10, 1, plain(b"a" * 5))
        assert fetched(log, 3, 1) == (10, 0, plain(b"a" * 5)[3:])
        assert fetched(log, 3, 27) == (30, 2, (plain(b"a" * 5) + plain(b"b" * 5) + plain(b"c" * 5))[3:])
        assert fetched(log, 30, 10) == (30, 0, b"")


def test_a_unit_larger_than_a_frame_comes_in_two_parts(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        payload = bytes(range(256)) * (16 * MIB // 256)
        put(log, plain(b"x"))
        put_opaque(log, payload)
        put(log, plain(b"y"))
        assert fetched(log, 0, 0xFFFF_FFFF) == (6, 1, plain(b"x"))
        following, units, data = fetched(log, 6, 100)
        assert (following, units, data == payload[:V1_FETCH_DATA_SIZE_MAX]) == (6 + V1_FETCH_DATA_SIZE_MAX, 1, True)
        rest = fetched(log, following, 0xFFFF_FFFF)
        assert rest == (6 + len(payload) + 6, 1, payload[V1_FETCH_DATA_SIZE_MAX:] + plain(b"y"))


def test_deleted_records_are_holes(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        for number in range(10):
            put(log, plain(b"a%d" % number), plain(b"b%d" % number))
        log.delete("events", before_seq=4)
        # The floor is the first byte of the first batch with live records; its deleted record is skipped.
        assert bounds(log) == (14, 140)
        assert fetched(log, 0, 14) == (35, 2, plain(b"b1") + plain(b"a2"))
        assert fetched(log, 15, 1) == (28, 1, plain(b"b1"))
        log.delete("events", before_seq=21)
        assert bounds(log) == (140, 140)
        assert fetched(log, 0) == (140, 0, b"")
        put(log, plain(b"new"))
        assert fetched(log, 0) == (148, 1, plain(b"new"))
    with opened(tmp_path) as log:
        assert bounds(log) == (140, 148)


def test_an_empty_topic_remembers_its_end(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        put(log, plain(b"past"))
        log.delete("events", before_seq=2)
        log.checkpoint()
    with opened(tmp_path) as log:
        assert bounds(log) == (9, 9)
        put(log, plain(b"x"))
        assert fetched(log, 9) == (15, 1, plain(b"x"))


def test_segments_that_a_cap_drops_raise_the_floor(tmp_path: Path) -> None:
    with opened(tmp_path, segment_max_records=4, cap_records=8) as log:
        for number in range(40):
            put(log, plain(b"%04d" % number))
            if number % 10 == 9:
                log.checkpoint()
        floor, end = bounds(log)
        assert end == 360
        assert floor == 360 - 9 * log.describe("events").record_count
        following, units, data = fetched(log, 0)
        assert (following, units, data[:9]) == (360, (360 - floor) // 9, plain(b"%04d" % (floor // 9)))
        # A consumer after the floor continues wherever it is.
        for start in range(floor, end + 1):
            assert fetched(log, start)[2] == data[start - floor :]


def test_sealed_segments_are_searched_by_offset(tmp_path: Path) -> None:
    with opened(tmp_path, segment_max_records=3) as log:
        for number in range(50):
            put(log, plain(b"%03d" % number))
        log.checkpoint()
        for number in range(50, 60):
            put(log, plain(b"%03d" % number))
        for number in range(60):
            assert fetched(log, 8 * number, 8) == (8 * number + 8, 1, plain(b"%03d" % number))
            assert store_of(log).queries.seq_at_offset("events", Offset(8 * number)) == number + 1
            assert store_of(log).queries.seq_at_offset("events", Offset(8 * number + 1)) == number + 2
            assert store_of(log).queries.offset_at_seq("events", Seq(number + 1)) == 8 * number
        assert fetched(log, 0)[1] == 60


def test_extended_and_compressed_batches_keep_their_size(tmp_path: Path) -> None:
    block = encode_record(Record(RecordType.ENVELOPE, b"\0\0envelope")) + plain(b"z" * 200)
    squeezed = compress(Codec.ZSTD, block)
    with opened(tmp_path) as log:
        topic_id = log.topic_named("events").topic_id
        with log.commits.exclusive() as store:
            store.append([Append(topic_id, squeezed, 2, codec=Codec.ZSTD, raw_length=len(block))])
            store.append([Append(topic_id, block, 2)])
        shown = bytes(records_for_v1(block))
        assert shown[:1] == b"\x7e"
        assert fetched(log, 0) == (2 * len(block), 4, shown * 2)
        assert fetched(log, 5, 1) == (len(block) - 205, 0, shown[5:-205])
        assert fetched(log, 1, len(block)) == (len(block), 1, shown[1:])
        assert store_of(log).queries.seq_at_offset("events", Offset(1)) == 2


def test_damaged_batches_are_skipped(tmp_path: Path) -> None:
    with opened(tmp_path, segment_max_records=2) as log:
        for number in range(6):
            put(log, plain(b"%03d" % number))
        log.checkpoint()
    topics = (path for path in (tmp_path / "data" / "topics").rglob("*") if path.is_file())
    segment = next(path for path in topics if b"001" in path.read_bytes())
    content = bytearray(segment.read_bytes())
    at = content.index(b"001")
    content[at] ^= 1
    segment.write_bytes(bytes(content))
    with opened(tmp_path) as log:
        following, units, data = fetched(log, 0)
        assert (following, units) == (48, 5)
        assert data == b"".join(plain(b"%03d" % number) for number in (0, 2, 3, 4, 5))
        assert fetched(log, 9, 8) == (24, 1, plain(b"002"))
        assert store_of(log).queries.seq_at_offset("events", Offset(8)) == 3


def test_offsets_and_seqs_at_the_edges(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        store = store_of(log)
        assert store.queries.seq_at_offset("events", Offset(0)) == 1
        assert store.queries.offset_at_seq("events", Seq(1)) == 0
        put(log, plain(b"a"), plain(b"b"))
        put_opaque(log, b"????")
        assert [store.queries.seq_at_offset("events", Offset(at)) for at in (0, 1, 6, 7, 12, 13, 16, 99)] == [
            *(1, 2, 2, 3, 3, 4, 4, 4)
        ]
        assert [store.queries.offset_at_seq("events", Seq(seq)) for seq in (1, 2, 3, 4, 9)] == [0, 6, 12, 16, 16]
        log.delete("events", before_seq=2)
        assert store.queries.offset_at_seq("events", Seq(1)) == 6


payload = st.one_of(
    st.tuples(st.just(True), st.lists(st.binary(max_size=9).map(plain), min_size=1, max_size=4)),
    st.tuples(st.just(False), st.binary(min_size=1, max_size=4).map(lambda data: [data])),
)


@settings(max_examples=10, deadline=None)
@given(payloads=st.lists(payload, min_size=1, max_size=12), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_following_next_offsets_returns_every_byte_once(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[tuple[bool, list[bytes]]], sizes: list[int]
) -> None:
    """INV-STREAM-ONWARD."""
    with opened(tmp_path_factory.mktemp("stream"), segment_max_records=3) as log:
        stream = b""
        edges = {0}
        for is_records, units in payloads:
            if is_records:
                put(log, *units)
            else:
                put_opaque(log, units[0])
            for unit in units:
                stream += unit
                edges.add(len(stream))
        offset, read, fetches = 0, b"", 0
        while offset < len(stream):
            following, _, data = fetched(log, offset, sizes[fetches % len(sizes)])
            assert following in edges
            assert following - offset == len(data) > 0
            offset, read, fetches = following, read + data, fetches + 1
        assert read == stream


def test_records_of_version_1_are_read_by_the_api(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        put(log, plain(b"a"), plain(b"b"))
        put_opaque(log, b"opaque!")
    with seawall.open(tmp_path / "data") as log:
        batches = [item for item in log.read("events") if isinstance(item, ReceivedBatch)]
        records = [record for batch in batches for record in batch]
        assert [(record.record_type, record.value) for record in records] == [(1, b"a"), (1, b"b"), (0x7F, b"opaque!")]


def test_unpublished_batches_are_not_read(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        put(log, plain(b"one"))
        store = store_of(log)
        topic = store.catalog.named("events")
        before = copy.copy(topic)
        put(log, plain(b"two"), plain(b"three"))
        assert bounds(log).end > before.end_offset
        segments = store.queries.topic_log(topic.topic_id)
        read = StreamRead(Offset(0), 1 * MIB)
        while read.plan(before, segments) and not read.execute():
            pass
        assert read.result() == StreamPiece(Offset(8), 1, memoryview(plain(b"one")))
