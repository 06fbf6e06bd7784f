"""When places are filled, and by whom: on the side in a quiet moment or when it is urgent, and checkpoints behind."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seawall import limits
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.maintenance import flush_thread
from seawall.engine.maintenance.checkpoint_schedule import CheckpointSchedule
from seawall.engine.maintenance.flushing import FlushJob
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.read.read_results import ReceivedBatch
from seawall.engine.store.settings import StoreSettings
from seawall.errors import DiskFullError, FatalError, SyncError
from seawall.io.interfaces import Files
from seawall.storage.preface import Preface
from seawall.storage.segments import segment as segments
from seawall.storage.segments.batch_index import BatchIndex
from seawall.storage.wal.epochs import WalAddress
from seawall.topics.gaps import Gap


class Tended:
    """What an upkeep has asked for."""

    def __init__(self, *, alone: bool = False) -> None:
        self.done: list[tuple[str, int]] = []
        self.at = 1_000
        self.checkpoint_schedule = CheckpointSchedule(WalAddress(self.at), 800)
        if not alone:
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


def test_places_are_filled_in_a_quiet_moment_or_when_the_log_has_its_size() -> None:
    tended = Tended()
    tended.grow(1_790)
    assert tended.taken() == [("soon", 1_050)]
    tended.grow(1_830)
    assert tended.taken() == [("now", 1_800)]
    # It takes its time, and is asked again.
    tended.grow(1_870)
    assert tended.taken() == [("now", 1_850)]
    tended.checkpoint_schedule.flushed()
    tended.grow(1_920)
    assert tended.taken() == [("checkpoint", 1_880)]
    tended.grow(1_930)
    assert tended.taken() == [("soon", 1_930)]
    # There was a quiet moment: the checkpoint comes before the log has its size.
    tended.checkpoint_schedule.flushed()
    tended.grow(1_940)
    assert tended.taken() == [("checkpoint", 1_940)]


def test_a_checkpoint_leaves_those_alone_who_place() -> None:
    tended = Tended()
    entered, left = threading.Event(), threading.Event()

    def place() -> None:
        with tended.checkpoint_schedule.flush_lock:
            entered.set()
            assert left.wait(30)

    thread = threading.Thread(target=place)
    thread.start()
    assert entered.wait(30)
    tended.checkpoint_schedule.flushed()
    tended.grow(1_800)
    assert tended.done == []
    left.set()
    thread.join()
    tended.grow(1_900)
    assert [what for what, _ in tended.done] == ["checkpoint", "soon"]


def test_nobody_has_to_place() -> None:
    tended = Tended(alone=True)
    tended.grow(2_600)
    assert tended.done == [("checkpoint", 1_800), ("checkpoint", 2_600)]


def test_many_open_segments_are_urgent() -> None:
    tended = Tended()
    for _ in range(limits.ACTIVE_SEGMENTS_MAX - 1):
        tended.checkpoint_schedule.rolled(0)
    tended.grow(1_040)
    assert tended.taken() == []
    tended.checkpoint_schedule.rolled(0)
    tended.grow(1_041)
    assert tended.taken() == [("now", 1_050)]
    tended.checkpoint_schedule.flushed()
    tended.grow(1_060)
    assert tended.taken() == [("checkpoint", 1_060)]
    tended.grow(1_100)
    assert tended.taken() == []


def test_segments_that_large_batches_have_filled_are_urgent() -> None:
    tended = Tended()
    tended.checkpoint_schedule.rolled(150)
    tended.grow(1_010)
    assert tended.taken() == []
    tended.checkpoint_schedule.rolled(50)
    tended.grow(1_020)
    assert tended.taken() == [("now", 1_020)]
    tended.checkpoint_schedule.flushed()
    tended.grow(1_030)
    assert tended.taken() == [("checkpoint", 1_030)]
    tended.checkpoint_schedule.rolled(150)
    tended.grow(1_040)
    assert tended.taken() == []


@pytest.mark.parametrize(("grown", "asked"), [(1_030, []), (1_200, [("now", 1_210)])])
def test_a_full_disk_makes_a_log_urgent_that_takes_some_of_it(grown: int, asked: list[tuple[str, int]]) -> None:
    tended = Tended()
    tended.grow(grown)
    tended.taken()
    tended.checkpoint_schedule.disk_full_found(WalAddress(tended.at))
    tended.grow(tended.at + 9)
    assert tended.taken() == asked


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


def until(done: Callable[[], bool]) -> bool:
    waited = threading.Event()
    return any(done() or waited.wait(0.01) for _ in range(3_000)) and done()


def publish(log: EmbeddedLog, count: int) -> list[bytes]:
    wanted = [b"%d" % number * 100 for number in range(count)]
    for value in wanted:
        log.publish("events", value)
    return wanted


def test_a_thread_places_while_records_come(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(flush_thread, "_LEFT_SIZE", 0)
    settled: list[int] = []
    real = FlushJob.settle

    def settle(self: FlushJob) -> None:
        settled.append(self.entries.size)
        real(self)

    monkeypatch.setattr(FlushJob, "settle", settle)
    wanted = publish(log, 3_000)
    assert until(lambda: bool(settled))
    assert values(log) == wanted
    log.close()
    with open_log(tmp_path / "data") as again:
        assert values(again) == wanted


def test_after_a_quiet_moment_there_is_a_checkpoint(log: EmbeddedLog, tmp_path: Path) -> None:
    wanted = publish(log, 800)
    snapshots = tmp_path / "data" / "meta"
    assert until(lambda: any(snapshots.glob("*")))
    assert until(lambda: log._store.checkpoint_schedule.next_check_at > 0)
    # All but the segment that is written on is sealed, and nothing waits.
    (topic,) = log._store.parts.logs
    assert (len(topic.sealed), [len(unsealed.unflushed) for unsealed in topic.unsealed]) == (2, [0])
    assert values(log) == wanted


def test_closing_leaves_a_short_log(log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush_thread, "_QUIET_S", 60.0)
    wanted = publish(log, 800)
    log.close()
    with open_log(tmp_path / "data") as again:
        topic = again._store.parts.logs.of(again._store.topic_named("events"))
        assert [len(unsealed.unflushed) for unsealed in topic.unsealed] == [0]
        assert values(again) == wanted


def test_a_full_disk_does_not_keep_a_log_from_closing(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(log, 200)

    def checkpoint(self: Maintenance) -> None:
        raise DiskFullError("no space")

    monkeypatch.setattr(Maintenance, "checkpoint", checkpoint)
    log.close()


def test_a_checkpoint_that_fails_at_the_end_leaves_it_to_recovery(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(flush_thread, "_QUIET_S", 60.0)
    wanted = publish(log, 200)
    wal = log._store.parts.wal

    def execute(self: FlushJob) -> None:
        raise SyncError("the disk is gone")

    with monkeypatch.context() as failing:
        failing.setattr(FlushJob, "execute", execute)
        failing.setattr(Maintenance, "plan_flushes", lambda _: [])
        with pytest.raises(SyncError, match="the disk is gone"):
            log.close()
    assert wal._is_closed
    with open_log(tmp_path / "data") as again:
        # Not a clean end: what might have been numbered is a gap.
        assert [type(item) for item in again.follow("events")][-1] is Gap
        assert values(again) == wanted


def test_a_place_that_cannot_be_filled_ends_writing(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.publish("events", b"first")

    def execute(self: FlushJob) -> None:
        raise SyncError("the disk is gone")

    monkeypatch.setattr(FlushJob, "execute", execute)
    log.flush_thread.flush()
    with pytest.raises(FatalError, match="the disk is gone"):
        log.publish("events", b"second")
    assert values(log) == [b"first"]


def test_nothing_is_flushed_after_a_failure(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the log holds is unknown then: it must not get into segments."""
    log.publish("events", b"first")
    log._store.guard.refuse(SyncError("the disk is gone"))
    flushed: list[FlushJob] = []
    monkeypatch.setattr(FlushJob, "execute", flushed.append)
    log.flush_thread.flush()
    assert flushed == []
    assert values(log) == [b"first"]


def test_no_space_to_seal_on_the_side_is_no_failure(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
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
    # The first in turn was tried again, and nothing behind it was sealed before it.
    assert refused == [refused[0]] * 2
    log.flush_thread.flush()
    with log.inspecting() as store:
        assert store.maintenance.plan_seals() == []
    assert values(log) == [b"%d" % number for number in range(7)] + [b"goes on"] * 2
    assert log.verify().is_sound


def test_a_topic_is_not_taken_away_from_under_who_places(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.publish("events", b"first")
    entered, left = threading.Event(), threading.Event()
    real = FlushJob.execute

    def execute(self: FlushJob) -> None:
        entered.set()
        assert left.wait(30)
        real(self)

    monkeypatch.setattr(FlushJob, "execute", execute)
    placing = threading.Thread(target=log.flush_thread.flush)
    placing.start()
    assert entered.wait(30)
    # Appends and reads go on; what changes segments waits.
    log.publish("events", b"second")
    assert values(log) == [b"first", b"second"]
    deleter = threading.Thread(target=log.delete_topic, args=("events",))
    deleter.start()
    assert until(lambda: log.queue._has_leader)
    assert log.topics() == ["events"]
    left.set()
    placing.join()
    deleter.join()
    assert log.topics() == []
    log.create_topic("events")
