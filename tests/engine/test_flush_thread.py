"""When flushes and checkpoints are due, and the thread that runs them while appends and reads continue."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_log import GatedDisk, open_simulated, simulated_machine

from seawall import limits
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.commit.appends import Append
from seawall.engine.maintenance import flush_thread
from seawall.engine.maintenance.checkpoint_schedule import CheckpointSchedule
from seawall.engine.maintenance.flushing import FlushJob
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.read.read_results import ReceivedBatch
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import StoreSettings
from seawall.errors import DiskFullError, FatalError, SyncError, WrongStateError
from seawall.io.interfaces import Files
from seawall.storage.preface import Preface
from seawall.storage.segments import segment as segments
from seawall.storage.segments.batch_index import BatchIndex
from seawall.storage.wal.epochs import WalAddress
from seawall.testing import SimDisk
from seawall.topics.config import TopicConfig
from seawall.topics.gaps import Gap
from seawall.wire.format.records import encode_raw


class GrowingLog:
    """A log that grows, and the flushes and checkpoints that its schedule requests."""

    def __init__(self, *, has_flush_thread: bool = True) -> None:
        self.done: list[tuple[str, int]] = []
        self.at = 1_000
        self.checkpoint_schedule = CheckpointSchedule(WalAddress(self.at), 800)
        if has_flush_thread:
            self.checkpoint_schedule.flush_in_background(
                lambda urgent: self.done.append(("now" if urgent else "soon", self.at))
            )

    def grow(self, to: int) -> None:
        while self.at < to:
            self.at += 10
            if self.at >= self.checkpoint_schedule.next_check_at:
                self.checkpoint_schedule.run_due(self.at, self.checkpoint)

    def checkpoint(self) -> None:
        self.done.append(("checkpoint", self.at))
        self.checkpoint_schedule.checkpointed(WalAddress(self.at))

    def taken(self) -> list[tuple[str, int]]:
        done, self.done = self.done, []
        return done


def test_flushes_are_due_when_quiet_or_when_the_log_is_large() -> None:
    log = GrowingLog()
    log.grow(1_790)
    assert log.taken() == [("soon", 1_050)]
    log.grow(1_830)
    assert log.taken() == [("now", 1_800)]
    # The flush is not finished, so it is requested again.
    log.grow(1_870)
    assert log.taken() == [("now", 1_850)]
    log.checkpoint_schedule.flushed()
    log.grow(1_920)
    assert log.taken() == [("checkpoint", 1_880)]
    log.grow(1_930)
    assert log.taken() == [("soon", 1_930)]
    # There was a quiet period: the checkpoint is due before the log is full.
    log.checkpoint_schedule.flushed()
    log.grow(1_940)
    assert log.taken() == [("checkpoint", 1_940)]


def test_a_checkpoint_does_not_wait_for_a_flush() -> None:
    log = GrowingLog()
    entered, left = threading.Event(), threading.Event()

    def flush() -> None:
        with log.checkpoint_schedule.flush_lock:
            entered.set()
            assert left.wait(30)

    thread = threading.Thread(target=flush)
    thread.start()
    assert entered.wait(30)
    log.checkpoint_schedule.flushed()
    log.grow(1_800)
    assert log.done == []
    left.set()
    thread.join()
    log.grow(1_900)
    assert [what for what, _ in log.done] == ["checkpoint", "soon"]


def test_checkpoints_are_due_without_a_flush_thread() -> None:
    log = GrowingLog(has_flush_thread=False)
    log.grow(2_600)
    assert log.done == [("checkpoint", 1_800), ("checkpoint", 2_600)]


def test_many_active_segments_make_a_flush_urgent() -> None:
    log = GrowingLog()
    for _ in range(limits.ACTIVE_SEGMENTS_MAX - 1):
        log.checkpoint_schedule.rolled(0)
    log.grow(1_040)
    assert log.taken() == []
    log.checkpoint_schedule.rolled(0)
    log.grow(1_041)
    assert log.taken() == [("now", 1_050)]
    log.checkpoint_schedule.flushed()
    log.grow(1_060)
    assert log.taken() == [("checkpoint", 1_060)]
    log.grow(1_100)
    assert log.taken() == []


def test_filled_segments_make_a_flush_urgent() -> None:
    log = GrowingLog()
    log.checkpoint_schedule.rolled(150)
    log.grow(1_010)
    assert log.taken() == []
    log.checkpoint_schedule.rolled(50)
    log.grow(1_020)
    assert log.taken() == [("now", 1_020)]
    log.checkpoint_schedule.flushed()
    log.grow(1_030)
    assert log.taken() == [("checkpoint", 1_030)]
    log.checkpoint_schedule.rolled(150)
    log.grow(1_040)
    assert log.taken() == []


@pytest.mark.parametrize(("grown", "asked"), [(1_030, []), (1_200, [("now", 1_210)])])
def test_a_full_disk_makes_the_flush_of_a_large_log_urgent(grown: int, asked: list[tuple[str, int]]) -> None:
    log = GrowingLog()
    log.grow(grown)
    log.taken()
    log.checkpoint_schedule.disk_full_found(WalAddress(log.at))
    log.grow(log.at + 9)
    assert log.taken() == asked


# --- on a thread ---------------------------------------------------------------------------------------------------


def values(log: EmbeddedLog) -> list[bytes]:
    return [record.value for item in log.follow("events") if isinstance(item, ReceivedBatch) for record in item]


SETTINGS = StoreSettings(wal_file_size=1 << 20, checkpoint_size=400_000)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = open_log(tmp_path / "data", SETTINGS)
    log.create_topic("events", segment_max_records=300)
    yield log
    log.close()


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
def simulated(disk: GatedDisk) -> Iterator[EmbeddedLog]:
    """A log whose flush thread is never woken."""
    log = open_simulated(disk, replace(SETTINGS, checkpoint_size=1 << 62))
    log.create_topic("events", segment_max_records=300)
    yield log
    log.close()


def until(done: Callable[[], bool]) -> bool:
    waited = threading.Event()
    return any(done() or waited.wait(0.01) for _ in range(3_000)) and done()


def publish(log: EmbeddedLog, count: int) -> list[bytes]:
    wanted = [b"%d" % number * 100 for number in range(count)]
    for value in wanted:
        log.publish("events", value)
    return wanted


def test_the_thread_flushes_during_appends(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(flush_thread, "_LEFT_SIZE", 0)
    settled: list[int] = []
    real = FlushJob.settle

    def settle(self: FlushJob) -> None:
        settled.append(self.entries.size)
        real(self)

    monkeypatch.setattr(FlushJob, "settle", settle)
    wanted = publish(log, 1_500)
    assert until(lambda: bool(settled))
    assert values(log) == wanted
    log.close()
    with open_log(tmp_path / "data") as again:
        assert values(again) == wanted


def test_a_quiet_period_brings_a_checkpoint(log: EmbeddedLog, tmp_path: Path) -> None:
    wanted = publish(log, 800)
    snapshots = tmp_path / "data" / "meta"
    assert until(lambda: any(snapshots.glob("*")))
    with log.inspecting() as store:
        schedule, (topic,) = store.checkpoint_schedule, store.parts.logs
    assert until(lambda: schedule.next_check_at > 0)
    # All but the active segment are sealed, and nothing is unflushed.
    assert (len(topic.sealed), [len(unsealed.unflushed) for unsealed in topic.unsealed]) == (2, [0])
    assert values(log) == wanted


def test_closing_flushes_the_log(log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush_thread, "_QUIET_S", 60.0)
    wanted = publish(log, 800)
    log.close()
    with open_log(tmp_path / "data") as again:
        with again.inspecting() as store:
            topic = store.parts.logs.of(store.topic_named("events"))
        assert [len(unsealed.unflushed) for unsealed in topic.unsealed] == [0]
        assert values(again) == wanted


def test_a_log_closes_on_a_full_disk(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(log, 200)

    def checkpoint(self: Maintenance) -> None:
        raise DiskFullError("no space")

    monkeypatch.setattr(Maintenance, "checkpoint", checkpoint)
    log.close()


def test_a_failed_checkpoint_on_close_leaves_the_rest_to_recovery(disk: GatedDisk) -> None:
    store = open_store(simulated_machine(disk), "/data", SETTINGS)
    topic_id = store.create_topic("events", TopicConfig()).topic_id
    wanted = [b"%d" % number * 100 for number in range(200)]
    for value in wanted:
        store.append([Append(topic_id, encode_raw(value), 1)])
    # The flush thread has not seen these appends, so that closing makes the first checkpoint.
    log = EmbeddedLog(store)
    disk.fail("sync", path="*.active")
    with pytest.raises(SyncError, match="sync failed"):
        log.close()
    with pytest.raises(WrongStateError, match="closed"):
        store.parts.wal.sync()
    with open_simulated(disk, SETTINGS) as again:
        # Not an orderly shutdown: seqs that might have been assigned are a gap.
        assert [type(item) for item in again.follow("events")][-1] is Gap
        assert values(again) == wanted


def test_a_failed_flush_ends_writing(simulated: EmbeddedLog, disk: SimDisk) -> None:
    simulated.publish("events", b"first")
    disk.fail("sync", path="*.active")
    simulated.flush_thread.flush()
    with pytest.raises(FatalError, match="sync failed"):
        simulated.publish("events", b"second")
    assert values(simulated) == [b"first"]


def test_nothing_is_flushed_after_a_failure(simulated: EmbeddedLog, disk: SimDisk) -> None:
    """The content of the log is unknown then: it must not get into segments."""
    simulated.publish("events", b"first")
    disk.fail("sync", path="*.wal")
    with pytest.raises(SyncError):
        simulated.publish("events", b"unknown")
    calls = disk.calls
    simulated.flush_thread.flush()
    assert disk.calls == calls
    assert values(simulated) == [b"first"]


def test_no_space_to_seal_is_no_failure(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.configure_topic("events", segment_max_records=2)
    for number in range(7):
        log.publish("events", b"%d" % number)
    real = segments.write_sidecar
    refused: list[str] = []

    def write_sidecar(files: Files, path: str, index: BatchIndex, preface: Preface) -> None:
        if len(refused) < 2:
            refused.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        real(files, path, index, preface)

    monkeypatch.setattr(segments, "write_sidecar", write_sidecar)
    for _ in range(2):
        log.flush_thread.flush()
        log.publish("events", b"goes on")
    # The first segment was tried again, and no later one was sealed before it.
    assert refused == [refused[0]] * 2
    log.flush_thread.flush()
    with log.inspecting() as store:
        assert store.maintenance.plan_seals() == []
    assert values(log) == [b"%d" % number for number in range(7)] + [b"goes on"] * 2
    assert log.verify().is_sound


def test_a_topic_is_not_deleted_during_its_flush(simulated: EmbeddedLog, disk: GatedDisk) -> None:
    log = simulated
    log.publish("events", b"first")
    disk.close_gate("*.active")
    flushing = threading.Thread(target=log.flush_thread.flush)
    flushing.start()
    disk.wait_for_write()
    # Appends and reads continue; changes to segments wait.
    log.publish("events", b"second")
    assert values(log) == [b"first", b"second"]
    deleter = threading.Thread(target=log.delete_topic, args=("events",))
    deleter.start()
    assert until(lambda: log.commits._has_leader)
    assert log.topics() == ["events"]
    disk.open_gate()
    flushing.join()
    deleter.join()
    assert log.topics() == []
    log.create_topic("events")
