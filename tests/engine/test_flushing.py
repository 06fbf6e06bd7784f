"""Flushing batches from the log to their segments in runs, and sealing full segments."""

from __future__ import annotations

from typing import Any

import pytest

from seawall import limits
from seawall.core.types import Seq, TopicId
from seawall.engine.commit.appends import Append
from seawall.engine.maintenance import flushing
from seawall.engine.maintenance.flushing import FlushJob
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch
from seawall.storage.segments.segment import SegmentWriter
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import Durability, TopicConfig
from seawall.topics.gaps import Gap
from seawall.wire.format.codes import GapReason
from seawall.wire.format.records import Record, encode_block

NEVER = 1 << 62
SMALL = StoreSettings(
    wal_file_size=limits.WAL_FILE_SIZE_MIN, ceiling_step=1 << 20, ballast_size=4096, checkpoint_size=NEVER
)


def opened(disk: SimDisk) -> Store:
    machine = Machine(disk, SimClock(wall_ns=10**18), lambda count: bytes(range(count)), pid=7)
    return open_store(machine, "/data", SMALL)


def append(topic_id: int, value: bytes) -> Append:
    return Append(TopicId(topic_id), encode_block([Record(1, value)]), 1)


def stored(store: Store, name: str) -> list[bytes]:
    items = store.queries.read(name, Seq(1), size_max=1 << 26)
    return [bytes(item.data) for item in items if isinstance(item, StoredBatch)]


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(seed=1)


@pytest.fixture
def store(disk: SimDisk) -> Store:
    """Alternating batches of two topics in several WAL files, one of them large, and two segments for each topic."""
    store = opened(disk)
    for name in ("a", "b"):
        store.create_topic(name, TopicConfig(segment_max_records=70))
    for number in range(100):
        store.append([append(1, b"%d" % number * 2_000), append(2, b"other")])
        if number == 40:
            store.append([append(1, bytes(70_000))])
    return store


def unflushed(store: Store) -> int:
    return sum(len(unsealed.unflushed) for log in store.parts.logs for unsealed in log.unsealed)


def flush_all(store: Store) -> list[FlushJob]:
    jobs = store.maintenance.plan_flushes()
    for job in jobs:
        job.execute()
        job.settle()
    return jobs


def test_unflushed_batches_are_flushed_to_segments(store: Store, disk: SimDisk) -> None:
    before = [stored(store, name) for name in ("a", "b")]
    assert unflushed(store) == 200
    jobs = flush_all(store)
    # Each topic has rolled once, and the large batch was written straight to its segment.
    assert len(jobs) == 4
    assert sum(job.entries.size for job in jobs) == 200
    assert unflushed(store) == 0
    assert [stored(store, name) for name in ("a", "b")] == before
    # Nothing is left to flush or to sync.
    assert store.maintenance.plan_flushes() == []
    store.append([append(1, b"later")])
    assert [job.entries.size for job in store.maintenance.plan_flushes()] == [1]
    store.maintenance.checkpoint()
    store.close()
    again = opened(disk)
    assert stored(again, "a")[:-1] == before[0]
    assert stored(again, "b") == before[1]
    again.close()


def test_a_run_stays_in_one_log_file(store: Store) -> None:
    for job in store.maintenance.plan_flushes():
        assert sum(run.lengths.size for run in job.runs) == job.entries.size
        for run in job.runs:
            assert run.source_at + run.span <= run.source.size()
    assert len({run.source.path for job in store.maintenance.plan_flushes() for run in job.runs}) > 1


def test_runs_have_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored(store, "a")
    monkeypatch.setattr(flushing, "_RUN_SIZE_MAX", 10_000)
    jobs = flush_all(store)
    assert max(run.span for job in jobs for run in job.runs) <= 10_000
    assert stored(store, "a") == before


def test_adjacent_batches_are_copied_by_the_operating_system(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "_SYSTEM_COPY_SIZE_MIN", 500)
    copied: list[int] = []
    real = SegmentWriter.copy_from

    def copy_from(self: SegmentWriter, *given: Any) -> None:
        copied.append(1)
        real(self, *given)

    monkeypatch.setattr(SegmentWriter, "copy_from", copy_from)
    store = opened(disk)
    store.create_topic("a", TopicConfig())
    store.append([append(1, bytes(300)), append(1, bytes(300))])
    before = stored(store, "a")
    flush_all(store)
    assert copied == [1]
    assert stored(store, "a") == before
    store.close()


@pytest.mark.parametrize("whole_size", [500, 1 << 30], ids=["copied", "read"])
def test_a_truncated_log_loses_only_the_batches_it_held(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch, whole_size: int
) -> None:
    monkeypatch.setattr(flushing, "_SYSTEM_COPY_SIZE_MIN", whole_size)
    store = opened(disk)
    store.create_topic("a", TopicConfig())
    store.append([append(1, bytes(300))])
    flush_all(store)
    [flushed] = stored(store, "a")
    store.append([append(1, bytes(300)), append(1, bytes(300))])
    [name] = disk.list("/data/wal")
    file = disk.open(f"/data/wal/{name}")
    file.truncate(4096)
    file.close()
    flush_all(store)
    store.append([append(1, b"after")])
    flush_all(store)
    first, lost, after = store.queries.read("a", Seq(1), size_max=1 << 20)
    assert isinstance(first, StoredBatch)
    assert bytes(first.data) == flushed
    assert lost == Gap(Seq(2), Seq(3), GapReason.CORRUPTION)
    assert isinstance(after, StoredBatch)
    assert after.base_seq == 4
    store.maintenance.checkpoint()
    store.append([append(1, b"more")])
    store.close()


def test_an_unlinked_segment_is_sealed_with_all_its_batches(store: Store, disk: SimDisk) -> None:
    before = stored(store, "a")
    directory = "/data/topics/00000001"
    for name in disk.list(directory):
        disk.unlink(f"{directory}/{name}")
    store.maintenance.checkpoint()
    assert len(store.parts.logs[TopicId(1)].sealed) == 1
    assert stored(store, "a") == before
    store.close()


def test_files_that_are_removed_already_are_no_error(store: Store, disk: SimDisk) -> None:
    store.maintenance.checkpoint()
    for number in range(80):
        store.append([append(1, b"%d" % number * 2_000)])
    store.maintenance.checkpoint()
    for directory in ("/data/topics/00000001", "/data/wal"):
        for name in disk.list(directory)[:-1]:
            disk.unlink(f"{directory}/{name}")
    store.delete_records("a", before_seq=150)
    store.maintenance.checkpoint()
    assert stored(store, "b")
    store.append([append(1, b"more")])
    store.close()


def test_segments_are_sealed_without_a_checkpoint(store: Store, disk: SimDisk) -> None:
    before = [stored(store, name) for name in ("a", "b")]
    # Nothing can be sealed before everything in it is flushed.
    assert store.maintenance.plan_seals() == []
    flush_all(store)
    seals = store.maintenance.plan_seals()
    assert [seal.target.segment.first_seq for seal in seals] == [1, 1]
    for seal in seals:
        seal.execute()
        # Readers still find it, under its old name or its new one.
        assert [stored(store, name) for name in ("a", "b")] == before
        seal.settle()
        assert [stored(store, name) for name in ("a", "b")] == before
    assert store.maintenance.plan_seals() == []
    assert [(len(log.sealed), len(log.unsealed)) for log in store.parts.logs] == [(1, 1), (1, 1)]
    # After a crash they are sealed, although no snapshot lists them.
    disk.crash()
    again = opened(disk)
    assert [stored(again, name) for name in ("a", "b")] == before
    assert [len(log.sealed) for log in again.parts.logs] == [1, 1]
    again.close()


def test_a_segment_is_sealed_only_after_the_sync_of_its_roll(disk: SimDisk) -> None:
    store = opened(disk)
    store.create_topic("a", TopicConfig(segment_max_records=1, durability=Durability.DISK))
    store.append([append(1, b"one")])
    store.append([append(1, b"two")])
    flush_all(store)
    assert store.maintenance.plan_seals() == []
    store.controls.sync()
    assert [seal.target.segment.first_seq for seal in store.maintenance.plan_seals()] == [1]
    store.close()
