"""Reads from unreadable, missing or truncated files: lost records are a gap, and all others are delivered."""

from __future__ import annotations

import errno
import random

import pytest

from seawall.core.types import ClientId, ClientSeq, Seq, TimestampNs, TopicId
from seawall.engine.commit.appends import Append
from seawall.engine.read.reading import ReadItem
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch, TopicLog
from seawall.limits import KIB
from seawall.storage.segments.index_cache import INDEXES
from seawall.storage.segments.names import index_name
from seawall.storage.segments.segment import SealedSegment
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import TopicConfig
from seawall.topics.gaps import Gap
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import GapReason
from seawall.wire.format.records import Record, encode_block

#: Batches of two records each; four batches are a segment, and the last ones are unflushed.
BATCHES = 18
SEGMENT_RECORDS = 8
LAST_SEQ = 2 * BATCHES


def opened(disk: SimDisk) -> Store:
    machine = Machine(disk, SimClock(wall_ns=1_700_000_000_000_000_000), random.Random(1).randbytes, pid=7)
    return open_store(machine, "/data", StoreSettings(wal_file_size=256 * KIB, ballast_size=0))


def append(store: Store, first_seq: int) -> None:
    block = encode_block([Record(1, b"%d" % seq + bytes(3_000)) for seq in (first_seq, first_seq + 1)])
    header = batch_header(
        block,
        topic_id=TopicId(1),
        client_id=ClientId(1 << 63),
        client_seq=ClientSeq(1),
        session_epoch=0,
        record_count=2,
        timestamp_ns=TimestampNs(0),
    )
    store.append([Append.of_batch(bytearray(encode_batch(header, block)))])


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(seed=1)


@pytest.fixture
def store(disk: SimDisk) -> Store:
    store = opened(disk)
    store.create_topic("events", TopicConfig(segment_max_records=SEGMENT_RECORDS))
    for number in range(BATCHES):
        append(store, 1 + 2 * number)
        if number == BATCHES - 3:
            store.maintenance.checkpoint()
    return store


def log_of(store: Store) -> TopicLog:
    log = store.queries.topic_log(store.catalog.named("events").topic_id)
    assert log is not None
    assert len(log.sealed) == 3
    return log


def sealed(store: Store) -> SealedSegment:
    """The second sealed segment."""
    return log_of(store).sealed[1]


def read(store: Store, from_seq: int = 1, records_max: int | None = None) -> list[ReadItem]:
    return store.queries.plan_read("events", Seq(from_seq), size_max=1 << 20, records_max=records_max).execute()


def seqs_and_gaps(items: list[ReadItem]) -> tuple[list[int], list[Gap]]:
    """The seqs of all delivered records, and the gaps."""
    seqs = [
        seq
        for item in items
        if isinstance(item, StoredBatch)
        for first, last in item.live
        for seq in range(first, last + 1)
    ]
    return seqs, [item for item in items if isinstance(item, Gap)]


def check_lost(store: Store, first_seq: int, last_seq: int) -> None:
    """A reader gets a gap for the lost seqs, and all other records."""
    lost = range(first_seq, last_seq + 1)
    seqs, gaps = seqs_and_gaps(read(store))
    assert seqs == [seq for seq in range(1, LAST_SEQ + 1) if seq not in lost]
    assert gaps == [Gap(Seq(first_seq), Seq(last_seq), GapReason.CORRUPTION)]
    # A seek, and a reader that starts inside the gap.
    assert seqs_and_gaps(read(store, first_seq, 1))[1][0].first_seq == first_seq
    assert seqs_and_gaps(read(store, last_seq, 1))[1] == [Gap(Seq(last_seq), Seq(last_seq), GapReason.CORRUPTION)]


def test_an_unreadable_segment_is_a_gap(disk: SimDisk, store: Store) -> None:
    assert seqs_and_gaps(read(store)) == (list(range(1, LAST_SEQ + 1)), [])
    disk.fail("read", forever=True, path=sealed(store).path)
    check_lost(store, 9, 16)


def test_batches_around_a_bad_page_are_delivered(disk: SimDisk, store: Store) -> None:
    read(store)
    path = sealed(store).path
    # The read of the whole range fails, then that of the first page; all others succeed.
    disk.fail("read", path=path)
    disk.fail("read", path=path)
    assert seqs_and_gaps(read(store, 9)) == (
        list(range(11, LAST_SEQ + 1)),
        [Gap(Seq(9), Seq(10), GapReason.CORRUPTION)],
    )
    # The disk has recovered.
    assert seqs_and_gaps(read(store, 9)) == (list(range(9, LAST_SEQ + 1)), [])


def test_an_unreadable_log_is_a_gap(disk: SimDisk, store: Store) -> None:
    disk.fail("read", forever=True, path="*.wal")
    check_lost(store, LAST_SEQ - 3, LAST_SEQ)


def test_an_unreadable_index_is_rebuilt(disk: SimDisk, store: Store) -> None:
    disk.fail("read", forever=True, path="*.index")
    INDEXES.clear()
    assert seqs_and_gaps(read(store)) == (list(range(1, LAST_SEQ + 1)), [])


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_missing_segment_is_a_gap(disk: SimDisk, store: Store, in_memory: bool) -> None:
    read(store)
    segment = sealed(store)
    assert segment.open_file().try_evict()
    disk.unlink(segment.path)
    if not in_memory:
        disk.unlink(f"{log_of(store).directory.directory}/{index_name(segment.name.first_seq)}")
        INDEXES.clear()
    check_lost(store, 9, 16)
    positions = log_of(store)
    assert positions.seq_at(log_of(store).sealed[2].load_index().first_timestamp_ns) is not None


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_truncated_segment_is_a_gap(disk: SimDisk, store: Store, in_memory: bool) -> None:
    segment = sealed(store)
    file = disk.open(segment.path)
    file.truncate(int(segment.load_index().entries["at"][2]))
    file.close()
    if not in_memory:
        INDEXES.clear()
    check_lost(store, 13, 16)


def test_a_segment_replaced_by_another_is_a_gap(disk: SimDisk, store: Store) -> None:
    read(store)
    segment, other = sealed(store), log_of(store).sealed[0]
    segment.close()
    disk.rename(other.path, segment.path)
    seqs, gaps = seqs_and_gaps(read(store, 9))
    assert (seqs[0], gaps) == (17, [Gap(Seq(9), Seq(16), GapReason.CORRUPTION)])


def test_positions_and_offsets_are_found_around_a_missing_segment(disk: SimDisk, store: Store) -> None:
    log = log_of(store)
    entries = log.entries_between(Seq(1), Seq(LAST_SEQ))
    segment = sealed(store)
    segment.close()
    disk.unlink(segment.path)
    disk.unlink(f"{log.directory.directory}/{index_name(segment.name.first_seq)}")
    for entry in entries[[0, 3, 8, 11, 17]]:
        assert log.first_seq_from(int(entry["position"])) == entry["base_seq"]
        assert log.at_offset(int(entry["base_offset"])) == (entry["base_seq"], entry["base_seq"] + 2)
    assert log.first_seq_from(int(entries[5]["position"])) == 17


def test_an_error_unrelated_to_the_data_is_raised(disk: SimDisk, store: Store) -> None:
    read(store)
    disk.fail("read", error=errno.ENOMEM, path=sealed(store).path)
    with pytest.raises(OSError, match="memory"):
        read(store, 9, 1)
    disk.fail("read", error=errno.ENOMEM, path="*.wal")
    with pytest.raises(OSError, match="memory"):
        read(store)
    assert seqs_and_gaps(read(store)) == (list(range(1, LAST_SEQ + 1)), [])
