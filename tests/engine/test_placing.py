"""Batches go from the log to their places: in stretches, on the side, and a checkpoint has less to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seawall import limits
from seawall.core.types import Seq, TopicId
from seawall.engine import placing
from seawall.engine.appends import Append
from seawall.engine.embedded import EmbeddedLog
from seawall.engine.open_log import open_log
from seawall.engine.opening import open_store
from seawall.engine.placing import PlaceJob, Stretch
from seawall.engine.records import ReceivedBatch
from seawall.engine.settings import Machine, StoreSettings
from seawall.engine.store import Store
from seawall.engine.upkeep import Upkeep
from seawall.errors import CorruptionError, FatalError, SyncError
from seawall.storage.epochs import WalAddress
from seawall.storage.segments import ActiveSegment
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import TopicConfig
from seawall.wire.records import Record, encode_block

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
    return [bytes(item.data) for item in store.read(name, Seq(1), size_max=1 << 26)]


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(seed=1)


@pytest.fixture
def store(disk: SimDisk) -> Store:
    """Batches of two topics by turns, in several files of the log, one large one among them, two segments."""
    store = opened(disk)
    for name in ("a", "b"):
        store.create_topic(name, TopicConfig(segment_max_records=70))
    for number in range(100):
        store.append([append(1, b"%d" % number * 2_000), append(2, b"other")])
        if number == 40:
            store.append([append(1, bytes(70_000))])
    return store


def waiting(store: Store) -> int:
    return sum(len(filling.waiting) for log in store._logs.values() for filling in log.filling)


def place_all(store: Store) -> list[PlaceJob]:
    jobs = store.plan_places()
    for job in jobs:
        job.carry_out()
        job.settle()
    return jobs


def test_what_waits_is_brought_to_its_places(store: Store, disk: SimDisk) -> None:
    before = [stored(store, name) for name in ("a", "b")]
    assert waiting(store) == 200
    jobs = place_all(store)
    # Each topic has rolled once, and the large batch was at its place all the time.
    assert len(jobs) == 4
    assert sum(job.entries.size for job in jobs) == 200
    assert waiting(store) == 0
    assert [stored(store, name) for name in ("a", "b")] == before
    # Nothing is left to do, and nothing to sync.
    assert store.plan_places() == []
    store.append([append(1, b"later")])
    assert [job.entries.size for job in store.plan_places()] == [1]
    store.checkpoint()
    store.close()
    again = opened(disk)
    assert stored(again, "a")[:-1] == before[0]
    assert stored(again, "b") == before[1]
    again.close()


def test_a_stretch_stays_in_one_file_of_the_log(store: Store) -> None:
    for job in store.plan_places():
        assert sum(stretch.lengths.size for stretch in job.stretches) == job.entries.size
        for stretch in job.stretches:
            assert stretch.source_at + stretch.span <= stretch.source.size()
    assert len({stretch.source.path for job in store.plan_places() for stretch in job.stretches}) > 1


def test_stretches_have_a_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored(store, "a")
    monkeypatch.setattr(placing, "_STRETCH_SIZE", 10_000)
    jobs = place_all(store)
    assert max(stretch.span for job in jobs for stretch in job.stretches) <= 10_000
    assert stored(store, "a") == before


def test_what_lies_together_is_copied_in_the_kernel(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "_WHOLE_SIZE", 500)
    copied: list[int] = []
    real = ActiveSegment.copy_from

    def copy_from(self: ActiveSegment, *given: Any) -> None:
        copied.append(1)
        real(self, *given)

    monkeypatch.setattr(ActiveSegment, "copy_from", copy_from)
    store = opened(disk)
    store.create_topic("a", TopicConfig())
    store.append([append(1, bytes(300)), append(1, bytes(300))])
    before = stored(store, "a")
    place_all(store)
    assert copied == [1]
    assert stored(store, "a") == before
    store.close()


def test_a_log_that_ends_too_early_is_damage(store: Store) -> None:
    job = store.plan_places()[0]
    stretch = job.stretches[-1]
    cut = Stretch(stretch.source, stretch.source.size() - 10, stretch.starts, stretch.lengths, stretch.at)
    with pytest.raises(CorruptionError, match="ends before"):
        PlaceJob(job.filling, job.entries, [cut]).carry_out()


# --- when ----------------------------------------------------------------------------------------------------------


class Tended:
    """What an upkeep has asked for."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.at = 1_000
        self.upkeep = Upkeep(WalAddress(self.at), 800)
        self.upkeep.place_soon = lambda: self.done.append(("place", self.at))

    def grow(self, to: int) -> None:
        while self.at < to:
            self.at += 10
            if self.at >= self.upkeep.look_at:
                self.upkeep.look_after(self.at, self.checkpoint)

    def checkpoint(self) -> None:
        self.done.append(("checkpoint", self.at))
        self.upkeep.checkpointed(WalAddress(self.at))


def test_places_are_filled_before_there_is_a_checkpoint() -> None:
    tended = Tended()
    tended.grow(1_830)
    assert tended.done == [("place", 1_800)]
    # It takes its time, and is asked again.
    tended.grow(1_870)
    assert tended.done == [("place", 1_800), ("place", 1_850)]
    tended.upkeep.placed()
    tended.grow(2_600)
    assert tended.done[2:] == [("checkpoint", 1_880)]
    tended.grow(2_680)
    assert tended.done[3:] == [("place", 2_680)]


def test_a_checkpoint_leaves_those_alone_who_place() -> None:
    tended = Tended()
    entered, left = threading.Event(), threading.Event()

    def place() -> None:
        with tended.upkeep.placing:
            entered.set()
            assert left.wait(30)

    thread = threading.Thread(target=place)
    thread.start()
    assert entered.wait(30)
    tended.upkeep.placed()
    tended.grow(1_800)
    assert tended.done == []
    left.set()
    thread.join()
    tended.grow(1_900)
    assert [what for what, _ in tended.done] == ["checkpoint"]


def test_nobody_has_to_place() -> None:
    tended = Tended()
    tended.upkeep.place_soon = None
    tended.grow(2_600)
    assert tended.done == [("checkpoint", 1_800), ("checkpoint", 2_600)]


# --- on the side ---------------------------------------------------------------------------------------------------


def values(log: EmbeddedLog) -> list[bytes]:
    return [record.value for item in log.follow("events") if isinstance(item, ReceivedBatch) for record in item]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    log = open_log(tmp_path / "data", StoreSettings(wal_file_size=1 << 20, checkpoint_size=400_000))
    log.create_topic("events")
    yield log
    log.close()


def until(done: Callable[[], bool]) -> bool:
    waited = threading.Event()
    return any(done() or waited.wait(0.01) for _ in range(3_000)) and done()


def test_a_thread_places_while_records_come(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settled: list[int] = []
    real = PlaceJob.settle

    def settle(self: PlaceJob) -> None:
        settled.append(self.entries.size)
        real(self)

    monkeypatch.setattr(PlaceJob, "settle", settle)
    for number in range(1_500):
        log.publish("events", b"%d" % number * 100)
    assert until(lambda: bool(settled))
    wanted = [b"%d" % number * 100 for number in range(1_500)]
    assert values(log) == wanted
    log.close()
    with open_log(tmp_path / "data") as again:
        assert values(again) == wanted


def test_a_place_that_cannot_be_filled_ends_writing(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.publish("events", b"first")

    def carry_out(self: PlaceJob) -> None:
        raise SyncError("the disk is gone")

    monkeypatch.setattr(PlaceJob, "carry_out", carry_out)
    log.queue.place_ahead()
    with pytest.raises(FatalError, match="the disk is gone"):
        log.publish("events", b"second")
    assert values(log) == [b"first"]


def test_a_topic_is_not_taken_away_from_under_who_places(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.publish("events", b"first")
    entered, left = threading.Event(), threading.Event()
    real = PlaceJob.carry_out

    def carry_out(self: PlaceJob) -> None:
        entered.set()
        assert left.wait(30)
        real(self)

    monkeypatch.setattr(PlaceJob, "carry_out", carry_out)
    placer = threading.Thread(target=log.queue.place_ahead)
    placer.start()
    assert entered.wait(30)
    # Appends and reads go on; what changes segments waits.
    log.publish("events", b"second")
    assert values(log) == [b"first", b"second"]
    deleter = threading.Thread(target=log.delete_topic, args=("events",))
    deleter.start()
    assert until(lambda: log.queue._is_led)
    assert log.topics() == ["events"]
    left.set()
    placer.join()
    deleter.join()
    assert log.topics() == []
    log.create_topic("events")
