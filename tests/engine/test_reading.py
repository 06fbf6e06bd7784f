"""Reads that are planned and then executed: results, changes in between, deletes, losses and seeks."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Seq, TimestampNs, TopicId
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.commit.appends import Append
from seawall.engine.read import planning
from seawall.engine.read.read_results import ReceivedBatch, received
from seawall.engine.read.reading import ReadItem, ReadPlan
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch, TopicLog
from seawall.limits import KIB
from seawall.storage.control.deletes import DeleteRecords
from seawall.storage.control.documents import FloorRaise
from seawall.storage.segments.delete_sidecar import DeletedSeqs
from seawall.storage.segments.drops import drop_segments
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import TopicConfig
from seawall.topics.gaps import Gap, Losses
from seawall.topics.state import TopicState
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import BatchFlags, Codec, GapReason
from seawall.wire.format.compression import compress
from seawall.wire.format.records import Record, RecordType, encode_block

SMALL = StoreSettings(
    wal_file_size=limits.WAL_FILE_SIZE_MIN, ceiling_step=1_000, ballast_size=4 * KIB, checkpoint_size=1 << 62
)
SEGMENT_RECORDS = 20
BATCH_RECORDS = 5


def new_store(disk: SimDisk | None = None) -> tuple[SimDisk, Store]:
    disk = disk or SimDisk(seed=1)
    machine = Machine(disk, SimClock(wall_ns=1_700_000_000_000_000_000), random.Random(1).randbytes, pid=7)
    return disk, open_store(machine, "/data", SMALL)


def batch(block: bytes, count: int, *, codec: Codec = Codec.NONE, raw_length: int | None = None, flags: int = 0):
    header = batch_header(
        block,
        topic_id=TopicId(1),
        client_id=ClientId(1 << 63),
        client_seq=ClientSeq(1),
        session_epoch=0,
        record_count=count,
        timestamp_ns=TimestampNs(0),
        codec=codec,
        raw_length=raw_length,
        flags=flags,
    )
    return bytearray(encode_batch(header, block))


def plain(*values: bytes) -> bytearray:
    return batch(encode_block([Record(1, value) for value in values]), len(values))


def value(seq: int) -> bytes:
    return b"%06d" % seq + b"x" * (seq % 7)


def filled(batches: int, disk: SimDisk | None = None, *, checkpoints: bool = True) -> tuple[SimDisk, Store]:
    """A topic with batches in sealed segments, in the active segment, and in the log alone."""
    disk, store = new_store(disk)
    store.create_topic("events", TopicConfig(segment_max_records=SEGMENT_RECORDS))
    seq = 1
    for number in range(batches):
        store.append([Append.of_batch(plain(*(value(each) for each in range(seq, seq + BATCH_RECORDS))))])
        seq += BATCH_RECORDS
        if checkpoints and number % 8 == 5:
            store.maintenance.checkpoint()
    return disk, store


def topic_of(store: Store) -> TopicState:
    return store.catalog.named("events")


def log_of(store: Store) -> TopicLog:
    return store.parts.logs[topic_of(store).topic_id]


def seqs_of(items: list[ReadItem]) -> list[int]:
    """The seqs of all live records; checks that each record has the value of its seq."""
    found = []
    for item in items:
        if isinstance(item, StoredBatch):
            shown = received("events", item)
            records = list(shown)
            assert len(records) == len(shown)
            for record in records:
                assert record.value == value(record.seq)
                found.append(record.seq)
    return found


def read_all(store: Store, from_seq: int = 1, size_max: int = 1 << 20) -> list[ReadItem]:
    items: list[ReadItem] = []
    seq = Seq(from_seq)
    while found := store.queries.read("events", seq, size_max=size_max):
        items += found
        last = found[-1]
        after = last.next_seq if isinstance(last, StoredBatch) else Seq(last.last_seq + 1)
        assert after > seq
        seq = after
    return items


def gaps_of(items: list[ReadItem]) -> list[Gap]:
    return [item for item in items if isinstance(item, Gap)]


def pinned(store: Store) -> int:
    """How many files of the topic are pinned: an open one that is not can be evicted."""
    log = log_of(store)
    shared = [unsealed.segment.shared for unsealed in log.unsealed] + [each.open_file() for each in log.sealed]
    return sum(each.is_open and not each.try_evict() for each in shared)


# --- results ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_max", [1, 150, 700, 1 << 20])
@pytest.mark.parametrize("checkpoints", [True, False])
def test_every_record_is_read_from_segments_and_log(size_max: int, checkpoints: bool) -> None:
    _, store = filled(20, checkpoints=checkpoints)
    if checkpoints:
        assert log_of(store).sealed
        assert any(unsealed.unflushed for unsealed in log_of(store).unsealed)
    for from_seq in (1, 3, 42, 100):
        items = read_all(store, from_seq, size_max)
        assert seqs_of(items) == list(range(from_seq, 101))
        assert gaps_of(items) == []
    assert pinned(store) == 0
    store.close()


def test_adjacent_batches_are_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches in the log have epoch headers between them, and are still one read."""
    _, store = filled(4, checkpoints=False)
    reads = []
    real = planning.Run

    def run(*arguments: object) -> planning.Run:
        reads.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(planning, "Run", run)
    assert seqs_of(store.queries.read("events", Seq(1), size_max=1 << 20)) == list(range(1, 21))
    assert len(reads) == 1
    store.close()


def test_a_read_crosses_wal_files() -> None:
    _, store = new_store()
    store.create_topic("events", TopicConfig(segment_max_records=1_000))
    for _ in range(10):
        store.append([Append.of_batch(plain(bytes(20_000)))])
    items = store.queries.read("events", Seq(1), size_max=1 << 20)
    assert [item.base_seq for item in items if isinstance(item, StoredBatch)] == list(range(1, 11))
    store.close()


@pytest.mark.parametrize(("from_seq", "wanted", "given"), [(1, 1, 5), (1, 5, 5), (1, 6, 10), (3, 3, 3), (3, 4, 8)])
def test_a_plan_stops_at_the_requested_records(from_seq: int, wanted: int, given: int) -> None:
    _, store = filled(12)
    plan = store.queries.plan_read("events", Seq(from_seq), size_max=1 << 20, records_max=wanted)
    assert len(seqs_of(plan.execute())) == given
    assert plan.end_seq == from_seq + given
    store.close()


def test_a_plan_for_no_records_is_empty() -> None:
    _, store = filled(3)
    plan = store.queries.plan_read("events", Seq(1), size_max=1 << 20, records_max=0)
    assert plan.execute() == []
    store.close()


def test_reads_at_the_end_are_empty() -> None:
    _, store = filled(2)
    assert store.queries.read("events", Seq(11), size_max=100) == []
    assert store.queries.read("events", Seq(500), size_max=100) == []
    store.create_topic("empty", TopicConfig())
    assert store.queries.read("empty", Seq(1), size_max=100) == []
    store.close()


def test_seqs_are_found_by_time() -> None:
    _, store = new_store()
    clock = store.parts.machine.clock
    assert isinstance(clock, SimClock)
    store.create_topic("events", TopicConfig(segment_max_records=SEGMENT_RECORDS))
    times = []
    for number in range(20):
        clock.advance(3_700_000)
        (header,) = store.append([Append.of_batch(plain(b"x", b"y"))])
        times.append(header.timestamp_ns)
        if number % 4 == 0:
            store.maintenance.checkpoint()
    for number, time in enumerate(times):
        assert store.queries.seq_at("events", TimestampNs(time)) == 1 + 2 * number
        assert store.queries.seq_at("events", TimestampNs(time - 1)) == 1 + 2 * number
        assert store.queries.seq_at("events", TimestampNs(time + 1)) == 3 + 2 * number
    store.create_topic("empty", TopicConfig())
    assert store.queries.seq_at("empty", TimestampNs(5)) == 1
    store.close()


def test_files_of_many_segments_do_not_stay_open() -> None:
    disk, store = filled(60)
    store.maintenance.checkpoint()
    store.close()
    _, store = new_store(disk)
    store.parts.logs.open_files.capacity = 2
    for _ in range(2):
        assert seqs_of(read_all(store)) == list(range(1, 301))
        assert len(store.parts.logs.open_files) <= 2
    sealed = sum(len(segment.load_index()) for segment in log_of(store).sealed)
    unsealed = log_of(store).unsealed[0].segment.index.memory_size
    assert store.queries.index_size("events") == sealed * 48 + unsealed
    store.create_topic("empty", TopicConfig())
    assert store.queries.index_size("empty") == 0
    store.close()


# --- between plan and execution -----------------------------------------------------------------------------------


def test_a_plan_reads_segments_that_were_sealed_meanwhile() -> None:
    _, store = filled(5)
    store.maintenance.checkpoint()
    plan = store.queries.plan_read("events", Seq(1), size_max=1 << 20)
    for _ in range(10):
        store.append([Append.of_batch(plain(*[b"later"] * BATCH_RECORDS))])
    store.maintenance.checkpoint()
    assert len(log_of(store).sealed) >= 2
    assert seqs_of(plan.execute()) == list(range(1, 26))
    assert pinned(store) == 0
    store.close()


@pytest.mark.parametrize("how", ["drop the segments", "delete the topic", "close the store"])
def test_a_plan_reads_segments_that_were_dropped_meanwhile(how: str) -> None:
    _, store = filled(20)
    log = log_of(store)
    handles = [unsealed.segment.shared.file for unsealed in log.unsealed]
    plan = store.queries.plan_read("events", Seq(1), size_max=1 << 20)
    handles += [segment.open_file().file for segment in log.sealed]
    if how == "drop the segments":
        drop_segments(log.directory, log.sealed)
    elif how == "delete the topic":
        store.delete_topic("events")
    else:
        store.close()
    assert seqs_of(plan.execute()) == list(range(1, 101))
    if how == "drop the segments":
        store.close()
    elif how == "delete the topic":
        store.create_topic("events", TopicConfig())
        assert store.queries.read("events", Seq(1), size_max=100) == []
        store.close()
    assert all(handle.fileno() == -1 for handle in handles)


def test_a_released_plan_unpins_its_files() -> None:
    _, store = filled(20)
    plan = store.queries.plan_read("events", Seq(1), size_max=1 << 20)
    assert pinned(store) > 0
    plan.release()
    plan.release()
    assert pinned(store) == 0
    store.close()


def test_a_failing_disk_leaves_no_pin() -> None:
    disk, store = filled(20)
    plan = store.queries.plan_read("events", Seq(1), size_max=1 << 20)
    disk.fail("read", error=errno.ENOMEM)
    with pytest.raises(OSError, match="memory"):
        plan.execute()
    assert pinned(store) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_of(store), "_locate", lambda _address: (_ for _ in ()).throw(OSError("no such file")))
        with pytest.raises(OSError, match="no such file"):
            store.queries.plan_read("events", Seq(1), size_max=1 << 20)
    assert pinned(store) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Losses, "reach_into", lambda *_arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.queries.plan_read("events", Seq(1), size_max=1 << 20)
    assert pinned(store) == 0
    assert seqs_of(read_all(store)) == list(range(1, 101))
    store.close()


def test_readers_and_a_writer_at_once(tmp_path: Path) -> None:
    """Segments are sealed and checkpoints made while readers read everything that is there."""
    settings = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB, checkpoint_size=256 * KIB)
    total, errors = 3_000, []
    with open_log(tmp_path / "data", settings) as log:
        log.create_topic("events", durability="disk", segment_max_records=200)
        done = threading.Event()

        def read() -> None:
            try:
                while True:
                    finished = done.is_set()
                    seen = [record.seq for item in log.follow("events") for record in item]
                    rows = log.read_arrow("events", columns=("value",)).column("value").to_pylist()
                    assert seen == list(range(1, len(seen) + 1))
                    assert rows[: len(seen)] == [b"%d" % (seq - 1) * 20 for seq in seen]
                    if finished:
                        assert len(seen) == total
                        return
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for first in range(0, total, 20):
            log.publish("events", [b"%d" % number * 20 for number in range(first, first + 20)])
        done.set()
        for thread in threads:
            thread.join()
    assert errors == []


# --- deletes, losses, floors --------------------------------------------------------------------------------------


def hide(store: Store, *ranges: tuple[int, int]) -> None:
    """Delete ranges of records, without a log entry."""
    topic = topic_of(store)
    for first, last in ranges:
        topic.apply(DeleteRecords(topic.topic_id, DeletedSeqs(np.array([(first, last + 1)], np.int64)), 0))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(0, 30)), max_size=5),
    st.sampled_from([1, 150, 700, 1 << 20]),
    st.integers(1, 100),
)
def test_deleted_records_are_skipped_without_a_gap(
    deleted: list[tuple[int, int]], size_max: int, from_seq: int
) -> None:
    _, store = filled(20)
    hide(store, *((first, min(100, first + more)) for first, more in deleted))
    hidden = {seq for first, more in deleted for seq in range(first, first + more + 1)}
    items = read_all(store, from_seq, size_max)
    assert seqs_of(items) == [seq for seq in range(from_seq, 101) if seq not in hidden]
    assert gaps_of(items) == []
    assert pinned(store) == 0
    store.close()


def test_fully_deleted_batches_are_not_read() -> None:
    _, store = filled(20)
    store.maintenance.checkpoint()
    hide(store, (3, 58), (71, 90))
    plan = store.queries.plan_read("events", Seq(1), size_max=1 << 20)
    assert sum(len(run.entries) for run in plan.runs) == 20 - 10 - 4
    assert seqs_of(plan.execute()) == [1, 2, *range(59, 71), *range(91, 101)]
    # Even the smallest read skips all deleted records before the first live one.
    plan = store.queries.plan_read("events", Seq(3), size_max=1, records_max=1)
    assert seqs_of(plan.execute()) == [59, 60]
    hide(store, (91, 100))
    assert seqs_of(read_all(store, 71)) == []
    hide(store, (1, 100))
    assert store.queries.read("events", Seq(1), size_max=100) == []
    store.close()


def test_deleted_records_do_not_count_towards_the_limit() -> None:
    _, store = filled(20)
    hide(store, *((seq, seq) for seq in range(1, 100, 2)))
    plan = store.queries.plan_read("events", Seq(1), size_max=1 << 20, records_max=4)
    found = seqs_of(plan.execute())
    assert found[:4] == [2, 4, 6, 8]
    assert len(found) < 20
    store.close()


def test_evicted_records_are_a_gap_even_inside_a_batch() -> None:
    _, store = filled(20)
    topic = topic_of(store)
    topic.apply(FloorRaise(topic.topic_id, GapReason.CAP, Seq(33), topic.evict_floor, 0))
    gap, first, *rest = read_all(store, 12, 100)
    assert gap == Gap(Seq(12), Seq(32), GapReason.CAP)
    assert isinstance(first, StoredBatch)
    assert (first.base_seq, first.live, first.next_seq) == (31, ((33, 35),), 36)
    assert seqs_of([first, *rest]) == list(range(33, 101))
    assert gaps_of(rest) == []
    store.close()


def test_a_loss_inside_a_batch_is_reported_in_order() -> None:
    _, store = filled(4)
    topic = topic_of(store)
    topic.losses.add(Gap(Seq(7), Seq(8), GapReason.CORRUPTION))
    hide(store, (10, 10))
    items = read_all(store)
    assert [item.live if isinstance(item, StoredBatch) else item for item in items] == [
        ((1, 5),),
        ((6, 6),),
        Gap(Seq(7), Seq(8), GapReason.CORRUPTION),
        ((9, 9),),
        ((11, 15),),
        ((16, 20),),
    ]
    assert [item.next_seq for item in items if isinstance(item, StoredBatch)] == [6, 7, 11, 16, 21]
    store.close()


def damage(disk: SimDisk, store: Store, *batches: int) -> None:
    """Overwrite batches, by number, in the sealed segments."""
    for segment in log_of(store).sealed:
        for entry in segment.load_index().entries:
            if (int(entry["base_seq"]) - 1) // BATCH_RECORDS in batches:
                file = disk.open(segment.path)
                file.write([b"?"], int(entry["at"]) + 100)
                file.close()


@pytest.mark.parametrize("size_max", [1, 300, 1 << 20])
@pytest.mark.parametrize("bad", [(0,), (1,), (4, 5, 6), (2, 5), (10, 11)])
def test_damage_loses_only_the_batches_it_hits(size_max: int, bad: tuple[int, ...]) -> None:
    """INV-READ-NO-HOLE, even if one read finds only damage."""
    disk, store = filled(20)
    store.maintenance.checkpoint()
    damage(disk, store, *bad)
    items = read_all(store, 1, size_max)
    lost = {seq for number in bad for seq in range(5 * number + 1, 5 * number + 6)}
    assert seqs_of(items) == [seq for seq in range(1, 101) if seq not in lost]
    reported = [seq for gap in gaps_of(items) for seq in range(gap.first_seq, gap.last_seq + 1)]
    assert reported == sorted(lost)
    assert {gap.reason for gap in gaps_of(items)} == {GapReason.CORRUPTION}
    store.close()


def test_deleted_records_of_a_damaged_batch_are_no_gap() -> None:
    disk, store = filled(20)
    store.maintenance.checkpoint()
    damage(disk, store, 2)
    hide(store, (12, 13))
    assert gaps_of(read_all(store)) == [
        Gap(Seq(11), Seq(11), GapReason.CORRUPTION),
        Gap(Seq(14), Seq(15), GapReason.CORRUPTION),
    ]
    hide(store, (11, 15))
    assert gaps_of(read_all(store)) == []
    store.close()


# --- batches as received ------------------------------------------------------------------------------------------


def received_ones(store: Store) -> list[ReceivedBatch]:
    return [received("events", item) for item in read_all(store) if isinstance(item, StoredBatch)]


def test_compressed_and_opaque_batches() -> None:
    _, store = new_store()
    store.create_topic("events", TopicConfig())
    block = encode_block([Record(1, b"a" * 50), Record(1, b"b" * 50)])
    small = bytes(compress(Codec.ZSTD, block))
    store.append([Append.of_batch(batch(small, 2, codec=Codec.ZSTD, raw_length=len(block)))])
    store.append([Append.of_batch(batch(b"no records", 1, flags=int(BatchFlags.OPAQUE)))])
    packed, opaque = received_ones(store)
    assert [record.value for record in packed] == [b"a" * 50, b"b" * 50]
    (record,) = opaque
    assert (record.seq, record.record_type, record.value) == (3, RecordType.OPAQUE, b"no records")
    assert opaque.to_arrow(("value",)).column("value").to_pylist() == [b"no records"]
    store.close()


def test_a_received_batch_shows_only_live_records() -> None:
    _, store = filled(3)
    hide(store, (2, 3), (8, 10))
    first, second, third = received_ones(store)
    assert repr(first).startswith("<ReceivedBatch of 'events': 3 records, seqs 1 to 5, position ")
    assert "0x" not in repr(first)
    assert [(len(each), [record.seq for record in each]) for each in (first, second, third)] == [
        (3, [1, 4, 5]),
        (2, [6, 7]),
        (5, [11, 12, 13, 14, 15]),
    ]
    assert first.to_arrow(("value",)).column("seq").to_pylist() == [1, 4, 5]
    assert second.to_arrow().column("seq").to_pylist() == [6, 7]
    assert (first.first_seq, first.last_seq, first.next_seq, second.next_seq) == (1, 5, 6, 11)
    store.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "data") as opened:
        opened.create_topic("events")
        yield opened


def test_a_later_read_does_not_change_returned_batches(log: EmbeddedLog) -> None:
    for number in range(40):
        log.publish("events", [bytes([number]) * 100_000] * 2)
    log.checkpoint()
    (kept,) = (item for item in log.read("events", 7, limit=1))
    for _ in range(4):
        assert sum(len(item) for item in log.follow("events")) == 80
    assert [record.value for record in kept] == [bytes([3]) * 100_000] * 2


def test_a_limit_counts_live_records(log: EmbeddedLog) -> None:
    for _ in range(4):
        log.publish("events", [b"a", b"b", b"c"])
    assert log.index_size("events") >= 4 * 48
    for seq in (2, 3, 5):
        with log.inspecting() as store:
            hide(store, (seq, seq))
    found = log.read("events", limit=2)
    assert [record.seq for item in found for record in item] == [1, 4, 6]
    assert log.read("events", limit=0) == []


def test_a_limit_reads_no_more_than_it_needs(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(10):
        log.publish("events", [bytes(1_000)] * 10)
    sizes: list[int] = []
    real = ReadPlan.execute

    def execute(plan: ReadPlan) -> list[ReadItem]:
        sizes.extend(len(run.entries) for run in plan.runs)
        return real(plan)

    monkeypatch.setattr(ReadPlan, "execute", execute)
    assert len(log.read("events", 15, limit=1)) == 1
    assert sizes == [1]


# --- seeks --------------------------------------------------------------------------------------------------------


def answers(store: Store) -> list[tuple[int, list[ReadItem]]]:
    """The results of reads from every seq with different bounds, and where each continues."""
    found = []
    for from_seq in range(1, topic_of(store).next_seq + 2):
        for size_max in (1, 190, 400, 1 << 20):
            for wanted in (None, 1, 2, BATCH_RECORDS + 1):
                plan = store.queries.plan_read("events", Seq(from_seq), size_max=size_max, records_max=wanted)
                found.append((plan.end_seq, plan.execute()))
    return found


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("what", ["whole", "damaged", "deleted", "lost", "evicted"])
def test_a_seek_returns_the_same_as_a_general_read(
    what: str, checkpoints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, store = filled(14, checkpoints=checkpoints)
    if what == "damaged" and checkpoints:
        damage(disk, store, 1, 4, 5)
    elif what == "deleted":
        hide(store, (1, 2), (14, 22), (44, 44))
    elif what == "lost":
        topic_of(store).losses.add(Gap(Seq(33), Seq(34), GapReason.CORRUPTION))
        topic_of(store).losses.add(Gap(Seq(61), Seq(65), GapReason.CRASH))
    elif what == "evicted":
        topic_of(store).floor = topic_of(store).cap_floor = Seq(18)
    taken: list[StoredBatch] = []
    real = ReadPlan._only_batch

    def only_batch(plan: ReadPlan) -> StoredBatch | None:
        batch = real(plan)
        taken.extend([] if batch is None else [batch])
        return batch

    with monkeypatch.context() as patch:
        patch.setattr(ReadPlan, "_only_batch", only_batch)
        seeks = answers(store)
    assert taken
    with monkeypatch.context() as patch:
        patch.setattr(ReadPlan, "_only_batch", lambda _plan: None)
        patch.setattr(planning.Planned, "_take_one", lambda *_arguments: False)
        general = answers(store)
    assert seeks == general
    assert pinned(store) == 0
