"""Commit cycles of a local orderer: the same log as commits by steps, failures, sessions and reservations."""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from simulated_log import GatedDisk, open_simulated

from seawall.core.types import ClientId, ClientSeq, Seq
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.commit import commit_cycle
from seawall.engine.commit.appends import Append, Commit
from seawall.engine.commit.commit_cycle import CommitCycle
from seawall.engine.ordering.local_orderer import LocalOrderer
from seawall.engine.ordering.orderer import SessionSpec
from seawall.engine.read.read_results import ReceivedBatch
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.errors import ConflictError, FatalError, FencedError, InvariantError, SyncError
from seawall.kernels.log.cycle_records import RECEIVED_ROW, UNDECIDED
from seawall.kernels.runtime import jit
from seawall.limits import BATCH_HEADER_SIZE, KIB
from seawall.storage.wal.epoch_write import EpochWrite
from seawall.storage.wal.epochs import WalAddress
from seawall.storage.wal.reader import WalBatch, read_wal
from seawall.testing import SimClock, SimDisk
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import Durability, TopicConfig
from seawall.wire.format.codes import AckStatus, BatchFlags
from seawall.wire.format.records import Record, encode_block
from twins.log import commit_cycle as twin

SMALL = StoreSettings(wal_file_size=1 << 20, checkpoint_size=1 << 62)
TINY = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB, ceiling_step=64)
CLIENT = ClientId(7)


def values(log: EmbeddedLog, topic: str = "events") -> list[bytes]:
    batches = [item for item in log.follow(topic) if isinstance(item, ReceivedBatch)]
    return [record.value for batch in batches for record in batch]


def logged(path: Path) -> list[bytes]:
    """The batches of the log without timestamps and their checksums, which differ from run to run."""
    found = []
    for file in sorted((path / "wal").glob("*.wal")):
        data = bytearray(file.read_bytes())
        at = data.find(b"LANC\x02\x04\x00\x00")
        while at >= 0:
            size = 44 + int.from_bytes(data[at + 32 : at + 36], "little")
            data[at + 8 : at + 12], data[at + 20 : at + 28] = bytes(4), bytes(8)
            found.append(bytes(data[at : at + size]))
            at = data.find(b"LANC\x02\x04\x00\x00", at + size)
    return found


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_cycles_and_steps_leave_the_same_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str) -> None:
    calls: list[str] = []
    real = LocalOrderer.commit_one

    def counted(*given: Any) -> Any:
        found = real(*given)
        if found is not None:
            calls.append("committed")
        return found

    monkeypatch.setattr(LocalOrderer, "commit_one", counted)
    cycles = publish_all(tmp_path / "cycles", durability)
    assert len(calls) > 250
    calls.clear()
    monkeypatch.setattr(CommitCycle, "begin_appends", lambda *_: None)
    assert publish_all(tmp_path / "steps", durability) == cycles
    assert not calls


def publish_all(path: Path, durability: str) -> tuple[list[tuple[int, ...]], list[bytes], list[bytes]]:
    """Make the same appends; returns their numbers, the records and the log."""
    with open_log(path, SMALL) as log:
        log.create_topic("events", durability=durability, segment_max_records=50)
        deliveries = [log.publish("events", b"%d" % number * (number * 7 % 400)) for number in range(300)]
        deliveries.append(log.publish("events", [b"x", b"y"]))
        stored = values(log)
    with open_log(path, SMALL) as log:
        assert values(log) == stored
    return [(each.first_seq, each.position, each.record_count) for each in deliveries], stored, logged(path)


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
def log(disk: GatedDisk) -> EmbeddedLog:
    """A log whose topic has a reservation, so that the next publish is a cycle."""
    log = open_simulated(disk, SMALL)
    log.create_topic("events")
    log.publish("events", b"first")
    return log


def test_a_failed_sync_ends_writing(log: EmbeddedLog, disk: GatedDisk) -> None:
    disk.fail("sync", path="*.wal")
    with pytest.raises(SyncError, match="sync failed"):
        log.publish("events", b"never")
    # INV-SYNC-FATAL, and INV-STORE-FAILED.
    with pytest.raises(FatalError, match="an earlier change failed"):
        log.publish("events", b"after")
    assert values(log) == [b"first"]
    log.close()
    disk.crash(keep="none")
    with open_simulated(disk, SMALL) as again:
        assert values(again) == [b"first"]
        again.publish("events", b"continues")
        assert values(again)[-1] == b"continues"


def test_a_failed_unsynced_write_ends_writing(log: EmbeddedLog, disk: GatedDisk) -> None:
    log.create_topic("loose", durability="disk")
    log.publish("loose", b"reserves space")
    disk.fail("write", path="*.wal")
    with pytest.raises(FatalError, match="stop, start again and recover"):
        log.publish("loose", b"never")
    with pytest.raises(FatalError, match="an earlier change failed"):
        log.publish("loose", b"after")


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_short_write_is_completed(log: EmbeddedLog, disk: GatedDisk, durability: str) -> None:
    log.create_topic("cut", durability=durability)
    log.publish("cut", b"reserves space")
    disk.fail("write", path="*.wal", error="short")
    log.publish("cut", b"cut short")
    log.publish("cut", b"after it")
    log.close()
    with open_simulated(disk, SMALL) as again:
        assert values(again, "cut") == [b"reserves space", b"cut short", b"after it"]


def test_an_undecided_row_violates_an_invariant(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    real = commit_cycle.kernels.stage_arrived

    def refuse(cycles: Any, memory: Any) -> int:
        size = int(real(cycles, memory))
        received_at = int(cycles["received_at"][0])
        rows = (ctypes.c_int64 * (RECEIVED_ROW.itemsize // 8)).from_address(received_at)
        rows[(RECEIVED_ROW.names or ()).index("status")] = UNDECIDED
        return size

    monkeypatch.setattr(commit_cycle.kernels, "stage_arrived", refuse)
    with pytest.raises(InvariantError, match="was not decided"):
        log.publish("events", b"x")


def test_readers_continue_during_a_write(log: EmbeddedLog, disk: GatedDisk) -> None:
    """A reader applies what is stored, and sees nothing of the commit in flight."""
    log.publish("events", b"second")
    log.publish("events", b"third")
    disk.close_gate()
    publisher = threading.Thread(target=log.publish, args=("events", b"fourth"))
    publisher.start()
    disk.wait_for_write()
    assert values(log) == [b"first", b"second", b"third"]
    disk.open_gate()
    publisher.join()
    assert values(log) == [b"first", b"second", b"third", b"fourth"]
    log.close()


def test_a_commit_does_not_overwrite_rows_a_reader_applies(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit begins to write while a reader applies the batches before it."""
    real_write, real_apply = EpochWrite.execute, TopicCatalog.apply_run
    applying, written = threading.Event(), threading.Event()

    def apply_run(self: TopicCatalog, rows: Any) -> Any:
        applying.set()
        assert written.wait(30)
        return real_apply(self, rows)

    reader = threading.Thread(target=log.describe, args=("events",))

    def write(epoch: EpochWrite, *, durable: bool) -> None:
        reader.start()
        assert applying.wait(30)
        real_write(epoch, durable=durable)
        written.set()

    for number in range(3):
        log.publish("events", b"%d" % number)
    with monkeypatch.context() as patch:
        patch.setattr(TopicCatalog, "apply_run", apply_run)
        patch.setattr(EpochWrite, "execute", write)
        log.publish("events", b"meanwhile")
        reader.join()
    assert log.describe("events").next_seq == 6
    assert values(log)[1:] == [b"0", b"1", b"2", b"meanwhile"]
    log.close()


def test_more_commits_than_pending_rows(log: EmbeddedLog) -> None:
    for number in range(2_500):
        log.publish("events", b"%d" % number)
    assert log.describe("events").next_seq == 2_502
    assert values(log)[1:] == [b"%d" % number for number in range(2_500)]
    log.close()


# --- groups, sessions, and the same as steps and twin -----------------------------------------------------------------


class Local:
    """A store on a simulated disk, with topics `a` and `b` and a session."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = SimDisk(seed=seed)
        machine = Machine(self.disk, SimClock(wall_ns=10**18), lambda count: bytes(range(count)), pid=7)
        self.store = open_store(machine, "/data", TINY)
        self.topics = [
            self.store.create_topic(name, TopicConfig(durability=Durability.DISK, segment_max_records=40)).topic_id
            for name in ("a", "b")
        ]
        self.epoch, _ = self.store.session_keeper.open(SessionSpec(CLIENT, ClientSeq(1)))

    def append(self, topic: int, *values: bytes, seq: int = 0, epoch: int | None = None) -> Append:
        block = encode_block([Record(1, value) for value in values])
        if not seq:
            return Append(self.topics[topic], block, len(values))
        epoch = self.epoch if epoch is None else epoch
        return Append(self.topics[topic], block, len(values), CLIENT, ClientSeq(seq), epoch)

    def commit(self, *appends: Append) -> Commit:
        commit = self.store.begin(appends)
        commit.execute()
        if self.store.finish(commit):
            self.store.tidy_up(commit.limited)
        return commit

    def warm(self) -> None:
        """The first batch of a topic begins its segment, by steps."""
        self.commit(self.append(0, b"first"), self.append(1, b"first"))


@pytest.fixture
def local() -> Iterator[Local]:
    made = Local()
    made.warm()
    yield made
    made.store.close()


def test_batches_of_several_topics_and_publishers_are_one_cycle(local: Local) -> None:
    appends = [
        local.append(0, b"1"),
        local.append(1, b"2", b"3"),
        local.append(0, b"4", seq=1),
        local.append(0, b"5", seq=2),
    ]
    commit = local.commit(*appends)
    assert (commit.is_cycle, commit.row_count) == (True, 4)
    assert [(each.result().base_seq, each.result().status) for each in appends] == [
        (2, AckStatus.OK),
        (2, AckStatus.OK),
        (3, AckStatus.OK),
        (4, AckStatus.OK),
    ]
    assert local.store.sessions.window.state(CLIENT).next_expected == 3


def test_duplicates_and_refusals_are_answered_and_not_stored(local: Local) -> None:
    local.commit(local.append(0, b"1", seq=1))
    repeated, other, fresh = local.append(0, b"1", seq=1), local.append(0, b"x", seq=1), local.append(0, b"2", seq=2)
    twice = local.append(0, b"2", seq=2)
    commit = local.commit(repeated, other, fresh, twice)
    assert (commit.is_cycle, commit.row_count) == (True, 1)
    assert (repeated.result().status, repeated.result().base_seq) == (AckStatus.DUPLICATE, 2)
    with pytest.raises(ConflictError, match="other records"):
        other.result()
    assert (fresh.result().base_seq, twice.result().base_seq) == (3, 3)
    assert twice.result().status is AckStatus.DUPLICATE
    # A commit with nothing to write; the next cycle continues.
    nothing = local.commit(local.append(0, b"1", seq=1), local.append(0, b"z", seq=9_999))
    assert nothing.epoch is None
    stray = Append(local.topics[0], fresh.block, 1, ClientId(99), ClientSeq(1), 1)
    behind = local.append(1, b"behind")
    assert local.commit(stray, behind).is_cycle
    with pytest.raises(FencedError):
        stray.result()
    assert behind.result().base_seq == 2


def test_a_duplicate_evicts_nothing(local: Local) -> None:
    local.topics.append(local.store.create_topic("capped", TopicConfig(cap_records=3)).topic_id)
    for seq in (1, 2, 3):
        local.commit(local.append(2, b"%d" % seq, seq=seq))
    repeated, other = local.append(2, b"3", seq=3), local.append(2, b"x", seq=2)
    local.commit(repeated, other)
    assert (repeated.result().status, repeated.result().base_seq) == (AckStatus.DUPLICATE, 3)
    with pytest.raises(ConflictError, match="other records"):
        other.result()
    assert local.store.catalog.named("capped").live_records == 3
    local.commit(repeated, local.append(2, b"4", seq=4))
    assert local.store.catalog.named("capped").floor == 2


def test_large_keyed_and_in_memory_batches_are_committed_by_steps(local: Local) -> None:
    for odd in (local.append(0, bytes(70_000)), replace(local.append(0, b"k"), flags=int(BatchFlags.KEYED))):
        beside = local.append(1, b"beside")
        assert not local.commit(odd, beside).is_cycle
        assert odd.result().base_seq == beside.result().base_seq
    assert local.commit(local.append(0, b"small again")).is_cycle


def test_reservations_are_granted_once_and_accounted_for(local: Local) -> None:
    reservation = local.store.parts.reservations.by_topic[local.topics[0]]
    records, size = reservation.records_left, reservation.bytes_left
    for _ in range(3):
        assert local.commit(local.append(0, b"x", b"y")).is_cycle
    assert (reservation.records_left, reservation.bytes_left) == (records, size)
    # A commit by steps uses the same reservation: what the cycles used is deducted first.
    keyed = replace(local.append(0, b"k"), flags=int(BatchFlags.KEYED))
    assert not local.commit(keyed).is_cycle
    taken = 3 * len(local.append(0, b"x", b"y").block) + len(keyed.block) + 4 * BATCH_HEADER_SIZE
    assert (reservation.records_left, reservation.bytes_left) == (records - 7, size - taken)


def test_a_dropped_reservation_is_not_used(local: Local) -> None:
    assert local.commit(local.append(0, b"x")).is_cycle
    local.store.configure_topic("a", {"segment_max_records": 3})
    first, second = local.append(0, b"y"), local.append(0, b"z", b"z")
    assert not local.commit(first).is_cycle
    local.commit(second)
    assert [len(log.unsealed) for log in local.store.parts.logs] == [2, 1]


def test_more_topics_than_one_cycle_holds(local: Local) -> None:
    local.topics += [local.store.create_topic(f"t{number}", TopicConfig()).topic_id for number in range(80)]
    for _ in range(3):
        for number in range(80):
            local.commit(local.append(number, b"x"))
    everywhere = [local.append(number, b"all") for number in range(80)]
    local.commit(*everywhere)
    assert [each.result().base_seq for each in everywhere] == [5, 5, *[4] * 78]


def test_a_cycle_begins_while_one_is_written(local: Local) -> None:
    store = local.store
    one, two, three = (local.append(0, b"%d" % number) for number in range(3))
    first = store.begin([one])
    second = store.begin_next([two])
    assert second is not None
    assert (first.first_row, second.first_row) == (0, 1)
    # A batch of a session waits: the first commit decides whether it is a duplicate.
    assert store.begin_next([local.append(0, b"s", seq=1)]) is None
    first.execute()
    # A reader sees neither of them.
    assert store.catalog.named("a").head_seq == 1
    store.finish(first)
    assert store.catalog.named("a").head_seq == 2
    second.execute()
    store.finish(second)
    assert local.commit(three).is_cycle
    assert [each.result().base_seq for each in (one, two, three)] == [2, 3, 4]
    assert store.catalog.named("a").head_seq == 4
    assert len(store.queries.read("a", Seq(1), size_max=1 << 20)) == 4


def run(path: str, seed: int, commits: int) -> tuple[list[bytes], list[tuple[int, ...]], str]:
    """Make random appends; returns the content of log, index and catalog."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        if path == "steps":
            patch.setattr(CommitCycle, "begin_appends", lambda *_: None)
        elif path == "twin":
            patch.setattr(commit_cycle, "kernels", SimpleNamespace(**{**vars(commit_cycle.kernels), **vars(twin)}))
        local = Local()
        store = local.store
        outcomes: list[tuple[int, ...]] = []
        for _ in range(commits):
            group = [
                local.append(
                    chance.choice((0, 1)),
                    *[chance.randbytes(chance.choice((0, 9, 300, 40_000)))] * chance.randint(1, 3),
                    seq=chance.choice((0, 0, chance.randint(1, 40))),
                    epoch=local.epoch + chance.choice((0, 0, 0, 1)),
                )
                for _ in range(chance.choice((1, 1, 3)))
            ]
            local.commit(*group)
            outcomes += [(str(each.error), *(each.numbered or ())) for each in group]
            if chance.random() < 0.1:
                assert store.catalog.named("a").head_seq >= 0
        for topic in store.catalog:
            topic.check_invariants()
        unsealed_segments = [unsealed for log in store.parts.logs for unsealed in log.unsealed]
        entries = [tuple(entry) for unsealed in unsealed_segments for entry in unsealed.segment.index.entries.tolist()]
        unflushed = str(
            [(each.unflushed.entries.tolist(), each.unflushed.addresses.tolist()) for each in unsealed_segments]
        )
        items = read_wal(local.disk, "/data/wal", store.parts.directory.directory_id, WalAddress(0))
        found = [bytes(item.data) for item in items if isinstance(item, WalBatch)]
        window = store.sessions.window.state(CLIENT)
        store.close()
    return found, [*outcomes, *entries], f"{unflushed} {window}"


@pytest.mark.parametrize(("other", "seed", "commits"), [("steps", 0, 40), ("steps", 1, 40), ("twin", 2, 16)])
def test_cycles_leave_the_same_as_steps_and_twin(other: str, seed: int, commits: int) -> None:
    """INV-CYCLE-SAME."""
    commits = min(commits, 8) if jit.PYTHON_MODE else commits
    ours, theirs = run("cycle", seed, commits), run(other, seed, commits)
    assert ours[0] == theirs[0]
    assert ours[1:] == theirs[1:]
