"""The write-ahead log under power cuts: at every call that changes the disk, with any subset of the unsynced data kept.

A scenario appends epochs of random sizes, syncs, rotates, prepares, drops, closes and opens again. After each possible
crash the log must contain every synced epoch and, after them, a contiguous run of the others, byte for byte. It must
read the same twice, repair to the same bytes twice, and accept appends. A writer with a planted bug must fail it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import pytest

from seawall.limits import PAGE_SIZE, SECTOR_SIZE
from seawall.storage.wal import reader as wal_reader
from seawall.storage.wal import writer as wal
from seawall.storage.wal.files import WalEnd
from seawall.storage.wal.reader import WalBatch, read_wal, repair_tail
from seawall.storage.wal.writer import WalWriter
from seawall.testing.machine.disk import SimDisk
from seawall.testing.machine.faults import SimCrash
from seawall.wire.format.batches import batch_header, encode_batch, stamp
from seawall.wire.format.codes import BatchFlags

OWNER = bytes(range(16))
DIRECTORY = "/data/wal"
#: Far below the real minimum, so that a short scenario fills several files.
SIZE = 4 * PAGE_SIZE
STEPS = 24
#: Seeds whose scenarios cover everything: see `test_the_scenarios_cover_rotation_dropping_and_prepared_files`.
SEEDS = (16, 21, 32, 33)
KEEPS: tuple[Literal["none", "all", "random"], ...] = ("none", "all", "random")


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "WAL_FILE_SIZE_MIN", SIZE)


def batch(position: int, size: int, chance: random.Random) -> bytes:
    block = chance.randbytes(size - 96)
    header = batch_header(
        block,
        topic_id=1,
        client_id=7,
        client_seq=1,
        session_epoch=1,
        record_count=1,
        timestamp_ns=5,
        flags=BatchFlags.OPAQUE,
    )
    stored = bytearray(encode_batch(header, block))
    stamp(stored, position=position, base_seq=1, base_offset=0, timestamp_ns=5, term=1)
    return bytes(stored)


class Scenario:
    """A run on one disk, and what the log may contain after any crash."""

    def __init__(
        self,
        seed: int,
        unit_size: int,
        writer_class: type[WalWriter] = WalWriter,
        disk_class: type[SimDisk] = SimDisk,
    ) -> None:
        self.disk = disk_class(seed=seed, unit_size=unit_size)
        self.disk.make_directory(DIRECTORY)
        self.disk.sync_directory("/")
        self.disk.sync_directory("/data")
        self.chance = random.Random(seed)
        self.writer_class = writer_class
        #: Every appended batch in order, with the number of its epoch and its end address.
        self.written: list[tuple[int, int, bytes]] = []
        self.synced = 0
        self.floor = 0
        #: Sizes of the batches of the first epoch that did not survive.
        self.lost: list[int] = []

    def open(self) -> WalWriter:
        """Recover and start a writer."""
        *_, end = read_wal(self.disk, DIRECTORY, OWNER, self.floor)
        assert isinstance(end, WalEnd)
        start = repair_tail(self.disk, DIRECTORY, OWNER, end)
        writer = self.writer_class(
            self.disk, DIRECTORY, OWNER, start=start, file_size=SIZE, salt=lambda: self.chance.getrandbits(64)
        )
        # Whatever recovery found is durable now.
        self.synced = len(self.written)
        return writer

    def append(self, writer: WalWriter, sizes: Sequence[int] = ()) -> None:
        first = writer.next_position
        # Small epochs, some that end with a unit of the disk, and some that soon fill a file.
        count = self.chance.choice((1, 1, 2, 4))
        sizes = sizes or [self.chance.choice((96, 130, 448, 900, 2_900)) for _ in range(count)]
        batches = [batch(first + index, size, self.chance) for index, size in enumerate(sizes)]
        expected_at = writer.at + 64
        for stored in batches:
            self.written.append((int(writer.numbers["epoch"][0]) + 1, expected_at, stored))
            expected_at += len(stored)
        writer.append_epoch(batches, first, len(batches), 1_000)

    def run(self) -> None:
        """The whole scenario; ends early by `SimCrash`."""
        writer = self.open()
        for _ in range(STEPS):
            step = self.chance.choice(("append",) * 6 + ("sync", "sync", "prepare", "drop", "reopen"))
            if step == "append":
                self.append(writer)
            elif step == "sync":
                writer.sync()
                self.synced = len(self.written)
            elif step == "prepare":
                writer.prepare()
            elif step == "drop":
                known = [at for _, at, _ in self.written[: self.synced] if at >= self.floor]
                if known:
                    # First record the floor, as a snapshot of the owner would.
                    self.floor = self.chance.choice(known)
                    writer.drop_before(self.floor)
            else:
                writer.close()
                self.synced = len(self.written)
                writer = self.open()
        writer.close()
        self.synced = len(self.written)

    def check(self) -> list[bytes]:
        """Check the content of the disk; returns the surviving batches from the floor on."""
        items = list(read_wal(self.disk, DIRECTORY, OWNER, self.floor))
        end = items.pop()
        assert isinstance(end, WalEnd)
        found = [item for item in items if isinstance(item, WalBatch)]
        assert len(found) == len(items), "damage where nothing was damaged"
        due = [entry for entry in self.written if entry[1] >= self.floor]
        assert [bytes(item.data) for item in found] == [stored for _, _, stored in due[: len(found)]]
        promised = [entry for entry in self.written[: self.synced] if entry[1] >= self.floor]
        assert len(found) >= len(promised), "a synced batch is lost"
        survived = len(self.written) - len(due) + len(found)
        if survived:
            last = self.written[survived - 1][0]
            # A durable clean-shutdown marker counts as an epoch of its own.
            assert end.epoch in (last, last + 1)
            assert survived == len(self.written) or self.written[survived][0] != last, "half an epoch"
        assert end.position == survived
        # The rest is lost for good: it was never acknowledged.
        gone = self.written[survived:]
        self.lost = [len(stored) for epoch, _, stored in gone if epoch == gone[0][0]]
        del self.written[survived:]
        return [bytes(item.data) for item in found]

    def bytes_on_disk(self) -> dict[str, bytes]:
        return {name: self.disk.durable_bytes(f"{DIRECTORY}/{name}") for name in self.disk.list(DIRECTORY)}

    def recover(self) -> None:
        """Read twice, repair twice, and append: old and new batches are readable."""
        items = list(read_wal(self.disk, DIRECTORY, OWNER, self.floor))
        assert items == list(read_wal(self.disk, DIRECTORY, OWNER, self.floor))
        end = items[-1]
        assert isinstance(end, WalEnd)
        start = repair_tail(self.disk, DIRECTORY, OWNER, end)
        repaired = self.bytes_on_disk()
        assert repair_tail(self.disk, DIRECTORY, OWNER, end) == start
        assert self.bytes_on_disk() == repaired
        # A writer without an answer retries: an epoch of the same size at the same address.
        sizes = self.lost
        before = self.check()
        writer = self.open()
        self.append(writer, sizes)
        writer.sync()
        self.synced = len(self.written)
        assert self.check()[: len(before)] == before
        self.append(writer)
        writer.close()
        self.synced = len(self.written)
        self.disk.crash(keep="none")
        assert self.check()[: len(before)] == before
        *_, end = read_wal(self.disk, DIRECTORY, OWNER, self.floor)
        assert isinstance(end, WalEnd)
        assert end.clean


def sweep(seed: int, unit_size: int, keeps: Iterable[Any] = KEEPS, **classes: Any) -> int:
    """Crash the scenario of a seed at every changing call; the number of crash points."""
    for calls in itertools.count(1):
        for keep in keeps:
            scenario = Scenario(seed, unit_size, **classes)
            scenario.disk.crash_after(calls)
            try:
                scenario.run()
            except SimCrash:
                scenario.disk.crash(keep)
                scenario.check()
                scenario.recover()
                continue
            scenario.disk.kill()
            scenario.check()
            return calls - 1
    raise AssertionError("a scenario ends")


@pytest.mark.parametrize(("seed", "unit_size"), list(zip(SEEDS, [SECTOR_SIZE, PAGE_SIZE] * 2, strict=True)))
def test_no_crash_loses_or_invents_anything(seed: int, unit_size: int) -> None:
    """INV-WAL-NO-SILENT-END. The later seeds add other scenarios, for which one outcome of each crash is enough."""
    assert sweep(seed, unit_size, KEEPS if seed in SEEDS[:2] else ("random",)) > 40


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_a_crash_during_recovery_loses_nothing(seed: int) -> None:
    """Recovery interrupted at each of its own changing calls, twice in a row with different outcomes."""
    chance = random.Random(seed)
    for calls in range(9, 66, 12):
        for inner in itertools.count(1):
            scenario = Scenario(seed, SECTOR_SIZE)
            scenario.disk.crash_after(calls)
            with pytest.raises(SimCrash):
                scenario.run()
            scenario.disk.crash(chance.choice(KEEPS))
            scenario.check()
            scenario.disk.crash_after(inner)
            try:
                scenario.open()
            except SimCrash:
                scenario.disk.crash(chance.choice(KEEPS))
                scenario.check()
                scenario.recover()
                continue
            scenario.disk.kill()
            scenario.recover()
            break


@pytest.mark.parametrize("seed", [29, 37])
def test_no_crash_loses_anything_while_files_grow(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The first files are smaller than some epochs, which then begin a larger one, also if a small one was prepared."""
    monkeypatch.setattr(wal, "WAL_FIRST_FILE_SIZE", 2 * PAGE_SIZE)
    monkeypatch.setattr(wal, "WAL_FILE_GROWTH", 2)
    scenario = Scenario(seed, SECTOR_SIZE)
    scenario.run()
    allocations = [line.split("length=")[1] for line in scenario.disk.history() if " allocate " in line]
    assert set(allocations) == {str(2 * PAGE_SIZE), str(SIZE)}
    assert sweep(seed, SECTOR_SIZE) > 40


def test_a_killed_process_loses_nothing() -> None:
    for calls in range(1, 60, 3):
        scenario = Scenario(SEEDS[0], SECTOR_SIZE)
        scenario.disk.crash_after(calls, inside=False)
        with pytest.raises(SimCrash):
            scenario.run()
        scenario.disk.kill()
        scenario.check()
        scenario.recover()


def test_the_scenarios_cover_rotation_dropping_and_prepared_files() -> None:
    """Each seed of the sweep starts several files and drops some; together they also leave unused prepared files."""
    unused = 0
    for seed in SEEDS:
        scenario = Scenario(seed, SECTOR_SIZE)
        scenario.run()
        history = scenario.disk.history()
        assert sum(" rename " in line for line in history) >= 3
        assert sum(f" unlink {DIRECTORY}/wal-0" in line for line in history) >= 1
        unused += sum(f" unlink {DIRECTORY}/wal-next" in line for line in history)
        assert scenario.written[-1][0] > 10
    assert unused


# --- planted bugs --------------------------------------------------------------------------------------------


class ClaimsTooMuch(WalWriter):
    """Claims in each header that everything before it is durable."""

    def _begin_epoch(self, *arguments: Any) -> Any:
        honest, self.numbers["synced_through"] = self.synced_through, self.at
        receipt = super()._begin_epoch(*arguments)
        self.numbers["synced_through"] = honest
        return receipt


class ClaimsItself(WalWriter):
    """Claims in each header that the epoch itself is durable."""

    def _begin_epoch(self, current: Any, batches: Any, length: int, *arguments: Any) -> Any:
        honest, self.numbers["synced_through"] = self.synced_through, self.at + 64 + length
        receipt = super()._begin_epoch(current, batches, length, *arguments)
        self.numbers["synced_through"] = honest
        return receipt


class NeverSyncs(WalWriter):
    """Returns from `sync` without syncing."""

    def sync(self) -> Any:
        self.numbers["synced_through"] = self.at
        return self.at


class RotatesUnsynced(WalWriter):
    """Starts a file while the previous one is only in the cache."""

    def _rotate(self, *arguments: Any) -> Any:
        honest, self.numbers["synced_through"] = self.synced_through, self.at
        current = super()._rotate(*arguments)
        self.numbers["synced_through"] = honest
        return current


def sweep_all(**classes: Any) -> None:
    for seed in SEEDS:
        sweep(seed, SECTOR_SIZE, **classes)


@pytest.mark.parametrize("writer_class", [ClaimsTooMuch, ClaimsItself, NeverSyncs, RotatesUnsynced])
def test_a_writer_with_a_planted_bug_is_caught(writer_class: type[WalWriter]) -> None:
    """INV-WAL-SYNCED."""
    with pytest.raises(AssertionError):
        sweep_all(writer_class=writer_class)


class ForgetfulDisk(SimDisk):
    """Never syncs the directory of the log."""

    def sync_directory(self, directory: str) -> None:
        if directory != DIRECTORY:
            super().sync_directory(directory)


def test_a_name_that_is_never_synced_is_caught() -> None:
    with pytest.raises(AssertionError):
        sweep_all(disk_class=ForgetfulDisk)


def test_a_tail_that_is_not_zeroed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-WAL-ZERO-TAIL."""
    monkeypatch.setattr(wal_reader, "is_zero", lambda *_: 1)
    with pytest.raises(AssertionError):
        sweep(SEEDS[1], SECTOR_SIZE)
