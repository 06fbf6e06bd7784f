"""Reading the write-ahead log: torn tails end it, damage is reported and skipped, foreign data is never returned."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from seawall.errors import ChecksumError, CorruptionError, UnsupportedError
from seawall.io.disk.files import OsFiles
from seawall.io.disk.mapped import MappedPart, map_part
from seawall.limits import WAL_FILE_SIZE_MIN, WAL_READ_SIZE
from seawall.storage.control.batches import control_batch
from seawall.storage.control.codec import Checkpoint
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.storage.wal import reader as wal_reader
from seawall.storage.wal import window as wal_window
from seawall.storage.wal import writer as wal
from seawall.storage.wal.epoch_write import EpochReceipt
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, EpochHeader, parse_epoch_header
from seawall.storage.wal.files import WalEnd, open_wal_file, wal_path
from seawall.storage.wal.reader import Damage, WalBatch, WalItem, WalRun, read_runs, read_wal, repair_tail
from seawall.storage.wal.writer import WalWriter
from seawall.testing.machine.disk import SimDisk
from seawall.wire.format.batches import batch_header, encode_batch, stamp
from seawall.wire.format.codes import BatchFlags

OWNER = bytes(range(16))
DIRECTORY = "/wal"
SIZE = WAL_FILE_SIZE_MIN
CAPACITY = SIZE - DATA_START


def batch(position: int, size: int = 200, block: bytes | None = None) -> bytes:
    """A stored batch of that many bytes."""
    if block is None:
        block = random.Random(position).randbytes(size - 96)
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


def control(position: int) -> bytes:
    """A control batch; the reader does not parse it."""
    return control_batch(Checkpoint(0, 0, 0), position=position, timestamp_ns=5, term=1)


def salts() -> Callable[[], int]:
    numbers = itertools.count(2**63 + 5)
    return lambda: next(numbers)


@dataclass
class Log:
    """A log on a simulated disk, and the batches appended to it."""

    disk: SimDisk
    writer: WalWriter
    receipts: list[EpochReceipt]
    expected: dict[int, bytes]

    def append(self, *sizes: int, sync: bool = True) -> EpochReceipt:
        first = self.writer.next_position
        batches = [batch(first + index, size) for index, size in enumerate(sizes)]
        receipt = self.writer.append_epoch(batches, first, len(sizes), 1_000 + first)
        self.receipts.append(receipt)
        self.expected |= dict(enumerate(batches, first))
        if sync:
            self.writer.sync()
        return receipt

    def path(self, at: int) -> tuple[str, int]:
        """The file that contains an address, and the offset in it."""
        _, file_at = self.writer.locate(at)
        first_at = at - (file_at - DATA_START)
        return wal_path(DIRECTORY, first_at), file_at

    def flip(self, at: int) -> None:
        """Flip one bit at an address."""
        path, file_at = self.path(at)
        self.disk.flip_bit(path, file_at, at % 8)

    def overwrite(self, at: int, data: bytes) -> None:
        path, file_at = self.path(at)
        self.disk.open(path).write([data], file_at)


def new_log(file_size: int = SIZE) -> Log:
    disk = SimDisk(seed=5)
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    start = WalEnd(0, 0, 0, True, 0, 0)
    writer = WalWriter(disk, DIRECTORY, OWNER, start=start, file_size=file_size, salt=salts())
    return Log(disk, writer, [], {})


@dataclass(frozen=True)
class Reading:
    batches: dict[int, bytes]
    damages: list[tuple[int, int]]
    end: WalEnd


def read(disk: SimDisk, from_at: int = 0, *, twice: bool = True) -> Reading:
    """One reading, in order: positions and addresses rise, and nothing overlaps."""
    items = list(read_wal(disk, DIRECTORY, OWNER, from_at))
    assert not twice or items == list(read_wal(disk, DIRECTORY, OWNER, from_at)) == read_real(disk, from_at)
    end = items.pop()
    assert isinstance(end, WalEnd)
    assert end.synced_through <= end.at
    at, batches, damages = from_at, {}, []
    for item in items:
        if isinstance(item, WalBatch):
            assert item.at >= at
            assert not batches or item.position > max(batches)
            assert item.header.position == item.position
            batches[item.position] = bytes(item.data)
            at = item.at + len(item.data)
        else:
            assert isinstance(item, Damage)
            assert item.reason
            assert at <= item.from_at < item.to_at
            damages.append((item.from_at, item.to_at))
            at = item.to_at
    assert at <= end.at
    return Reading(batches, damages, end)


def read_real(disk: SimDisk, from_at: int) -> list[WalItem]:
    """The same log on a real disk, where its files are mapped."""
    with TemporaryDirectory() as directory:
        for name in disk.list(DIRECTORY):
            file = disk.open(f"{DIRECTORY}/{name}", read_only=True)
            (Path(directory) / name).write_bytes(file.read(file.size(), 0))
        return [
            replace(item, reason=item.reason.replace(directory, DIRECTORY)) if isinstance(item, Damage) else item
            for item in read_wal(OsFiles(), directory, OWNER, from_at, mapped=True)
        ]


def reopen(disk: SimDisk, file_size: int = SIZE) -> Log:
    before = read(disk)
    start = repair_tail(disk, DIRECTORY, OWNER, before.end)
    assert start == replace(before.end, synced_through=before.end.at)
    writer = WalWriter(disk, DIRECTORY, OWNER, start=start, file_size=file_size, salt=itertools.count(77).__next__)
    return Log(disk, writer, [], dict(before.batches))


# --- undamaged ---------------------------------------------------------------------------------------------------


def test_every_batch_is_read_with_its_address() -> None:
    log = new_log()
    for _ in range(9):
        log.append(200, 9_000, 96)
    reading = read(log.disk)
    assert reading == Reading(log.expected, [], reading.end)
    last = log.receipts[-1]
    assert reading.end == WalEnd(last.end_at, 9, 27, False, last.at, 1_024)
    items = [item for item in read_wal(log.disk, DIRECTORY, OWNER, 0) if isinstance(item, WalBatch)]
    for item in items:
        file, file_at = log.writer.locate(item.at)
        assert file.read(len(item.data), file_at) == item.data
    assert items[4].header.client_id == 7


def test_reading_starts_at_any_address() -> None:
    log = new_log()
    for _ in range(9):
        log.append(200, 9_000)
    intact = [item for item in read_wal(log.disk, DIRECTORY, OWNER, 0) if isinstance(item, WalBatch)]
    end = read(log.disk).end
    addresses = [item.at for item in intact] + [receipt.at for receipt in log.receipts] + [end.at]
    for from_at in addresses + [at + 1 for at in addresses[:-1]]:
        reading = read(log.disk, from_at)
        assert list(reading.batches) == [item.position for item in intact if item.at >= from_at]
        assert reading.damages == []
        assert replace(reading.end, synced_through=0) == replace(end, synced_through=0)
        assert reading.end.synced_through >= from_at or reading.end.synced_through == end.synced_through


def test_an_epoch_may_be_larger_than_the_window() -> None:
    log = new_log(file_size=8 * WAL_READ_SIZE)
    log.append(300)
    log.append(WAL_READ_SIZE + 5)
    log.append(WAL_READ_SIZE // 2)
    log.append(WAL_READ_SIZE - 64)
    log.append(3 * WAL_READ_SIZE, 200)
    log.append(300)
    assert read(log.disk) == Reading(log.expected, [], read(log.disk).end)
    log.flip(log.receipts[3].at)
    assert read(log.disk).damages == [(log.receipts[3].at, log.receipts[3].end_at)]
    log.flip(log.receipts[1].at + 9)
    log.flip(log.receipts[4].batches_at)
    reading = read(log.disk)
    assert list(reading.batches) == [0, 2, 6]
    assert [from_at for from_at, _ in reading.damages] == [
        log.receipts[1].at,
        log.receipts[3].at,
        log.receipts[4].batches_at,
    ]


def test_an_epoch_may_have_many_batches() -> None:
    log = new_log(file_size=1 << 20)
    log.append(*([100] * 3_000))
    log.append(100)
    assert read(log.disk).batches == log.expected


def test_appends_are_delivered_in_runs_and_controls_alone() -> None:
    log = new_log()
    for kinds in ("aa", "aca", "c", "cc", "a", "aaa"):
        first = log.writer.next_position
        batches = [batch(position) if kind == "a" else control(position) for position, kind in enumerate(kinds, first)]
        log.writer.append_epoch(batches, first, len(kinds), 9)
        log.expected |= dict(enumerate(batches, first))
    parts = [
        part.rows["position"].tolist() if isinstance(part, WalRun) else part.position
        for part in read_runs(log.disk, DIRECTORY, OWNER, 0)
        if isinstance(part, WalRun | WalBatch)
    ]
    assert parts == [[0, 1, 2], 3, [4], 5, 6, 7, [8, 9, 10, 11]]
    assert read(log.disk).batches == log.expected


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_runs_are_bounded_by_the_row_limit(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(wal_reader, "_ROWS", rows)
    log = new_log()
    for _ in range(20):
        log.append(*[200] * random.Random(len(log.receipts)).randrange(1, 5))
    assert read(log.disk).batches == log.expected
    log.flip(log.receipts[9].batches_at)
    lost = positions_of(log, log.receipts[9])
    assert read(log.disk).batches.keys() == log.expected.keys() - lost


def test_a_batch_is_verified_and_delivered_from_the_same_read() -> None:
    """A disk that returns other bytes for the second read of a batch cannot get them past the checksum."""
    log = new_log()
    receipt = log.append(200)
    [run, _] = read_runs(log.disk, DIRECTORY, OWNER, 0)
    assert isinstance(run, WalRun)
    log.overwrite(receipt.end_at - 1, b"?")
    run = replace(run, log=open_wal_file(log.disk, DIRECTORY, 0, OWNER, read_only=True))
    with pytest.raises(ChecksumError, match="address 64 reads differently"):
        run.batch(0)


def test_a_file_that_shrinks_while_it_is_read_is_damage() -> None:
    log = new_log()
    log.append(9_000)
    file = open_wal_file(log.disk, DIRECTORY, 0, OWNER, read_only=True)
    log.disk.open(wal_path(DIRECTORY, 0)).truncate(DATA_START + 100)
    with pytest.raises(CorruptionError, match="the file ends after 100 of them"):
        wal_window.WalWindow(file).read(0, 200)


def test_pages_that_cannot_be_mapped_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log()
    for _ in range(40):
        log.append(200, 3_000)
    log.flip(log.receipts[20].end_at - 100)
    expected = list(read_wal(log.disk, DIRECTORY, OWNER, 0))
    fetch = MappedPart.fetch
    monkeypatch.setattr(wal_window, "WAL_MAPPED_SIZE", 5_000)
    for fetched in (0, 1, 9, 10_000):
        left = iter(range(fetched))
        monkeypatch.setattr(
            MappedPart,
            "fetch",
            lambda part, start, end, left=left: next(left, None) is not None and fetch(part, start, end),
        )
        assert read_real(log.disk, 0) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is mapped elsewhere")
def test_a_mapped_file_that_shrinks_while_it_is_read_is_damage(tmp_path: Path) -> None:
    log = new_log()
    log.append(9_000)
    content = log.disk.open(wal_path(DIRECTORY, 0)).read(SIZE, 0)
    Path(wal_path(str(tmp_path), 0)).write_bytes(content)
    file = open_wal_file(OsFiles(), str(tmp_path), 0, OWNER, read_only=False)
    mapped = map_part(file.file, 0, file.size)
    assert mapped is not None
    window = wal_window.WalWindow(file, mapped=mapped)
    assert bytes(window.read(50, 100)) == content[DATA_START + 50 : DATA_START + 150]
    # Backwards too: the window contains only fetched bytes.
    assert bytes(window.read(0, 100)) == content[DATA_START : DATA_START + 100]
    file.file.truncate(DATA_START + 100)
    with pytest.raises(CorruptionError, match="the file ends after 90 of them"):
        wal_window.WalWindow(file, mapped=mapped).read(10, 9_000)
    file.file.close()


def test_one_read_serves_many_epochs() -> None:
    log = new_log()
    for _ in range(100):
        log.append(100, sync=False)
    reads = 0
    original = type(log.writer.locate(0)[0]).read

    def counted(file: object, length: int, at: int) -> bytes:
        nonlocal reads
        reads += 1
        return original(file, length, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(log.writer.locate(0)[0]), "read", counted)
        parts = [len(part.rows) for part in read_runs(log.disk, DIRECTORY, OWNER, 0) if isinstance(part, WalRun)]
    assert (parts, reads) == ([100], 2)


def test_an_empty_log_has_no_batches() -> None:
    log = new_log()
    assert read(log.disk) == Reading({}, [], WalEnd(0, 0, 0, True, 0, 0))
    with pytest.raises(CorruptionError, match="no WAL file is left, though the log continues at address 5; restore"):
        read(log.disk, 5)


# --- torn tails --------------------------------------------------------------------------------------------------


def test_an_unsynced_hole_ends_the_log() -> None:
    log = new_log()
    log.append(200)
    second = log.append(200, 300, sync=False)
    log.append(150, sync=False)
    log.append(150, sync=False)
    for at in (second.at, second.at + 30, second.batches_at, second.end_at - 1):
        path, file_at = log.path(at)
        file = log.disk.open(path)
        [byte] = file.read(1, file_at)
        file.write([bytes([byte ^ 1])], file_at)
        reading = read(log.disk)
        assert list(reading.batches) == [0]
        assert reading.damages == []
        assert reading.end == WalEnd(second.at, 1, 1, False, second.at, 1_000)
        file.write([bytes([byte])], file_at)
    assert len(read(log.disk).batches) == 5


def check_old_tail_never_returns() -> None:
    """The hole is filled by an epoch of the same size: the old epochs after it must not reappear."""
    log = new_log()
    log.append(200)
    second = log.append(200, sync=False)
    log.append(150, sync=False)
    log.overwrite(second.at, bytes(264))
    log = reopen(log.disk)
    assert log.append(200) == second
    assert read(log.disk).batches == log.expected


def test_an_old_tail_never_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    check_old_tail_never_returns()
    monkeypatch.setattr(wal_reader, "is_zero", lambda *_: 1)
    with pytest.raises(AssertionError):
        check_old_tail_never_returns()


def test_a_tail_is_discarded_to_the_end_of_the_file() -> None:
    log = new_log(file_size=4 * WAL_READ_SIZE)
    second = log.append(200)
    path, _ = log.path(second.at)
    for junk_at in (second.end_at, second.end_at + 5_000, 3 * WAL_READ_SIZE, 4 * WAL_READ_SIZE - DATA_START - 1):
        log.disk.open(path).write([b"\x55"], DATA_START + junk_at)
    start = repair_tail(log.disk, DIRECTORY, OWNER, read(log.disk).end)
    content = log.disk.durable_bytes(path)
    assert not any(content[DATA_START + second.end_at :])
    assert len(content) == 4 * WAL_READ_SIZE
    before = log.disk.history()
    assert repair_tail(log.disk, DIRECTORY, OWNER, start) == start
    assert not [line for line in log.disk.history()[len(before) :] if line.startswith("write")]


def test_a_repair_syncs_what_was_only_in_the_cache() -> None:
    log = new_log()
    log.append(200, sync=False)
    log.disk.kill()
    log = reopen(log.disk)
    assert log.writer.synced_through == 264
    log.disk.crash(keep="none")
    assert read(log.disk).batches == log.expected == {0: batch(0)}


def check_foreign_salt() -> None:
    """Bytes of another file of the log, as a disk with stale blocks might return them."""
    log = new_log()
    log.append(40_000)
    log.append(40_000)
    stale = EpochHeader(2**63 + 5, 3, 200, 0, 2, 1, 0, 9).encode() + batch(2)
    log.disk.open(log.path(log.receipts[1].at)[0]).write([stale], DATA_START + 40_064)
    assert read(log.disk).batches == log.expected


def check_epoch_number() -> None:
    """The last epoch is repeated, once unchanged and once with a number that skips one."""
    for number in (1, 3):
        log = new_log()
        log.append(200)
        stale = EpochHeader(2**63 + 5, number, 200, 0, 1, 1, 0, 9).encode() + batch(1)
        log.disk.open(log.path(0)[0]).write([stale], DATA_START + 264)
        assert read(log.disk).batches == log.expected


def check_position() -> None:
    """An epoch with the right number and with positions that were used before."""
    log = new_log()
    log.append(200, 200)
    stale = EpochHeader(2**63 + 5, 2, 200, 0, 1, 1, 0, 9).encode() + batch(1)
    log.disk.open(log.path(0)[0]).write([stale], DATA_START + 464)
    assert read(log.disk).batches == log.expected


@pytest.mark.parametrize("check", [check_foreign_salt, check_epoch_number, check_position])
def test_an_epoch_that_does_not_continue_the_log_is_not_read(check: Callable[[], None]) -> None:
    check()


def test_a_reader_without_salt_check_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(data: memoryview, *, salt: int, at: int) -> EpochHeader | None:
        found = int.from_bytes(data[8:16], "little")
        header = parse_epoch_header(data, salt=found, at=at)
        return header and replace(header, salt=salt)

    monkeypatch.setattr(wal_window, "parse_epoch_header", careless)
    with pytest.raises(AssertionError):
        check_foreign_salt()


@pytest.mark.parametrize("check", [check_epoch_number, check_position])
def test_a_reader_without_order_check_is_caught(monkeypatch: pytest.MonkeyPatch, check: Callable[[], None]) -> None:
    monkeypatch.setattr(wal_reader._Walk, "_follows", lambda *_: True)
    with pytest.raises(AssertionError):
        check()


def test_an_implausible_header_is_not_trusted() -> None:
    """Salt and checksum are valid, but it claims more than was durable when it was written, or exceeds the file."""
    log = new_log()
    log.append(200)
    true = EpochHeader(2**63 + 5, 7, 200, 1_000, 9, 1, 0, 9)
    cases = [(replace(true, synced_through=1_001), True), (replace(true, length=SIZE), True), (true, False)]
    for header, ends in cases:
        log.disk.open(log.path(0)[0]).write([header.encode() + batch(9)], DATA_START + 1_000)
        reading = read(log.disk)
        assert (reading.end.at == 264) is ends
        assert reading.damages == ([] if ends else [(264, 1_000)])
        assert list(reading.batches) == ([0] if ends else [0, 9])


# --- damage ------------------------------------------------------------------------------------------------------


def test_damage_in_a_batch_loses_the_rest_of_its_epoch() -> None:
    log = new_log()
    log.append(200)
    second = log.append(200, 300, 400)
    log.append(200)
    log.flip(second.batches_at + 200 + 299)
    reading = read(log.disk)
    assert reading.damages == [(second.batches_at + 200, second.end_at)]
    assert reading.batches == {position: log.expected[position] for position in (0, 1, 4)}
    assert reading.end.epoch == 3


def test_damage_in_a_header_loses_its_epoch() -> None:
    log = new_log()
    log.append(200)
    second = log.append(200, 300, 400)
    log.append(200)
    log.flip(second.at + 24)
    reading = read(log.disk)
    assert reading.damages == [(second.at, second.end_at)]
    assert list(reading.batches) == [0, 4]


def test_damage_in_the_first_epoch_and_in_several() -> None:
    log = new_log()
    receipts = [log.append(200, 300) for _ in range(8)]
    for index in (0, 3, 4, 6):
        log.flip(receipts[index].at)
    reading = read(log.disk)
    assert list(reading.batches) == [2, 3, 4, 5, 10, 11, 14, 15]
    lost = [(receipts[0].at, receipts[1].at), (receipts[3].at, receipts[5].at), (receipts[6].at, receipts[7].at)]
    assert reading.damages == lost


def test_a_lost_epoch_followed_by_a_damaged_one() -> None:
    log = new_log()
    receipts = [log.append(200, 300) for _ in range(4)]
    log.flip(receipts[1].at)
    log.flip(receipts[2].batches_at + 200)
    reading = read(log.disk)
    assert list(reading.batches) == [0, 1, 4, 6, 7]
    assert reading.damages == [(564, receipts[2].at), (receipts[2].batches_at + 200, receipts[3].at)]


def test_unsynced_epochs_after_damage_are_a_torn_tail() -> None:
    log = new_log()
    first = log.append(200)
    log.append(200)
    third = log.append(200, sync=False)
    log.append(200, sync=False)
    log.flip(first.batches_at)
    log.overwrite(third.batches_at, b"x")
    reading = read(log.disk)
    assert reading.damages == [(first.batches_at, first.end_at)]
    assert list(reading.batches) == [1]
    assert reading.end.at == third.at


def test_a_torn_last_epoch_still_proves_earlier_damage() -> None:
    """Its header states what was durable, so an earlier loss is damage although its own batches are torn."""
    log = new_log()
    first = log.append(200)
    second = log.append(200, sync=False)
    log.overwrite(first.at, b"x")
    log.overwrite(second.batches_at, b"x")
    reading = read(log.disk)
    assert reading.damages == [(first.at, second.at)]
    assert reading.batches == {}
    assert (reading.end.at, reading.end.epoch, reading.end.synced_through) == (second.at, 0, second.at)


def test_appending_continues_after_damage() -> None:
    log = new_log()
    receipts = [log.append(200) for _ in range(3)]
    log.flip(receipts[1].at)
    before = read(log.disk)
    log = reopen(log.disk)
    assert log.writer.at == receipts[2].end_at
    assert log.append(300).epoch == 4
    log.writer.close()
    reading = read(log.disk)
    assert reading.batches == log.expected
    assert reading.damages == before.damages
    assert reading.end.clean


def test_epoch_bytes_inside_a_batch_are_not_read_as_epochs() -> None:
    """A batch contains a copy of the log itself."""
    log = new_log()
    log.append(200)
    log.append(300)
    copy = log.disk.open(log.path(0)[0]).read(700, DATA_START)
    third = log.writer.append_epoch([batch(2, block=copy)], 2, 1, 9)
    log.writer.sync()
    last = log.append(200)
    assert list(read(log.disk).batches) == [0, 1, 2, 3]
    for at in (third.batches_at, third.at):
        log.flip(at)
        reading = read(log.disk)
        assert list(reading.batches) == [0, 1, 3]
        assert reading.damages == [(at, last.at)]


def test_a_missing_file_is_damage() -> None:
    log = new_log()
    for _ in range(5):
        log.append(40_000)
    starts = [receipt.at for receipt in log.receipts]
    log.disk.unlink(wal_path(DIRECTORY, starts[2]))
    reading = read(log.disk)
    assert list(reading.batches) == [0, 1, 3, 4]
    assert reading.damages == [(starts[2], starts[3])]
    log.disk.unlink(wal_path(DIRECTORY, starts[0]))
    reading = read(log.disk)
    assert list(reading.batches) == [1, 3, 4]
    assert reading.damages == [(starts[0], starts[1]), (starts[2], starts[3])]
    assert read(log.disk, starts[1]).damages == [(starts[2], starts[3])]
    assert read(log.disk, starts[2] + 7).damages == [(starts[2] + 7, starts[3])]
    assert read(log.disk, starts[3]).damages == []
    assert read(log.disk, starts[3]).end.epoch == 5


@pytest.mark.parametrize("kept", [0, 1, 63, 64, 100, 20_063])
def test_a_truncated_file_is_damage(kept: int) -> None:
    log = new_log()
    receipts = [log.append(20_000) for _ in range(4)]
    path, file_at = log.path(receipts[1].at)
    assert path != log.path(receipts[3].at)[0]
    log.disk.open(path).truncate(file_at + kept)
    reading = read(log.disk)
    assert list(reading.batches) == [0, 3]
    assert reading.damages == [(receipts[1].at, receipts[3].at)]


@pytest.mark.parametrize("byte", [0, 40, 60, 4_000])
def test_a_damaged_preface_is_reported(byte: int) -> None:
    log = new_log()
    for _ in range(3):
        log.append(40_000)
    starts = [receipt.at for receipt in log.receipts]
    log.disk.flip_bit(wal_path(DIRECTORY, starts[1]), byte, 3)
    reading = read(log.disk)
    assert list(reading.batches) == [0, 2]
    assert reading.damages == [(starts[1], starts[2])]
    log.disk.flip_bit(wal_path(DIRECTORY, starts[2]), byte, 3)
    with pytest.raises(CorruptionError, match=r"wal-0+80128\.wal"):
        read(log.disk)


def test_files_of_another_directory_or_format_are_refused() -> None:
    log = new_log()
    for _ in range(2):
        log.append(40_000)
    with pytest.raises(CorruptionError, match="belongs to directory 0001"):
        list(read_wal(log.disk, DIRECTORY, bytes(16), 0))
    newer = Preface(FileKind.WAL, OWNER, format=3).encode()
    log.disk.open(wal_path(DIRECTORY, 0)).write([newer], 0)
    with pytest.raises(UnsupportedError, match="format 3"):
        read(log.disk)


def test_damage_below_the_start_is_not_reported() -> None:
    log = new_log()
    receipts = [log.append(200, 300) for _ in range(4)]
    log.flip(receipts[1].at)
    end = read(log.disk).end
    assert read(log.disk, receipts[2].at) == Reading(
        {position: log.expected[position] for position in range(4, 8)}, [], end
    )
    middle = receipts[1].at + 10
    assert read(log.disk, middle).damages == [(middle, receipts[2].at)]


def test_a_log_that_ends_before_its_reader_starts_was_damaged() -> None:
    """The caller knows of bytes after the tail: the log continues at the address that the caller knows, not before."""
    log = new_log()
    log.append(200)
    second = log.append(200)
    log.flip(second.at)
    assert read(log.disk).end.at == second.at
    reading = read(log.disk, second.end_at)
    assert reading == Reading({}, [], WalEnd(second.end_at, 1, 1, False, second.end_at, 1_000))
    reading = read(log.disk, second.batches_at)
    assert reading.end.at == second.batches_at
    beyond = read(log.disk, CAPACITY)
    assert beyond.end == WalEnd(CAPACITY, 1, 1, False, CAPACITY, 1_000)
    start = replace(repair_tail(log.disk, DIRECTORY, OWNER, beyond.end), position=30)
    writer = WalWriter(log.disk, DIRECTORY, OWNER, start=start, file_size=SIZE, salt=salts())
    writer.append_epoch([batch(30)], 30, 1, 9)
    writer.sync()
    assert list(read(log.disk, CAPACITY).batches) == [30]
    assert read(log.disk).damages == [(second.at, CAPACITY)]


def test_a_recovered_log_that_ends_with_its_file_can_be_closed() -> None:
    log = new_log()
    log.append(200)
    start = repair_tail(log.disk, DIRECTORY, OWNER, read(log.disk, CAPACITY).end)
    WalWriter(log.disk, DIRECTORY, OWNER, start=start, file_size=SIZE, salt=salts()).close()
    end = read(log.disk, CAPACITY).end
    assert (end.at, end.epoch, end.clean) == (CAPACITY + 64, 2, True)


def test_a_last_file_that_ends_before_its_reader_starts_is_not_the_last() -> None:
    log = new_log()
    log.append(200)
    with pytest.raises(CorruptionError, match=r"the WAL file after .*wal-0{20}\.wal is missing.*restore it"):
        read(log.disk, CAPACITY + 1)


def test_a_missing_newest_file_is_detected_from_the_one_before_it() -> None:
    """INV-WAL-CONTINUED."""
    log = new_log()
    for _ in range(4):
        log.append(40_000)
    starts = [receipt.at for receipt in log.receipts]
    intact = read(log.disk)
    assert (intact.batches, intact.damages) == (log.expected, [])
    for newest in reversed(starts[1:]):
        log.disk.unlink(wal_path(DIRECTORY, newest))
        with pytest.raises(CorruptionError, match=rf"wal-{newest:020d}\.wal is missing.*continues in it; restore it"):
            read(log.disk)


def test_a_missing_newest_file_is_detected_after_a_clean_close() -> None:
    """The clean-shutdown marker and the continuation marker both fit."""
    log = new_log()
    log.append(CAPACITY - 3 * EPOCH_HEADER_SIZE)
    log.writer.close()
    start = repair_tail(log.disk, DIRECTORY, OWNER, read(log.disk).end)
    assert start.clean
    writer = WalWriter(log.disk, DIRECTORY, OWNER, start=start, file_size=SIZE, salt=salts())
    writer.append_epoch([batch(1)], 1, 1, 9)
    writer.sync()
    assert list(read(log.disk).batches) == [0, 1]
    log.disk.unlink(wal_path(DIRECTORY, start.at))
    with pytest.raises(CorruptionError, match="is missing"):
        read(log.disk)


@pytest.mark.parametrize("kept", [DATA_START, DATA_START + 300, SIZE // 2, SIZE - 1])
def test_a_truncated_newest_file_is_refused(kept: int) -> None:
    log = new_log()
    log.append(200)
    log.append(200)
    log.disk.open(wal_path(DIRECTORY, 0)).truncate(kept)
    with pytest.raises(CorruptionError, match=f"has {kept} bytes of the {SIZE} that were reserved.*restore it"):
        read(log.disk)


def test_lost_files_are_distinguished_from_dropped_ones() -> None:
    log = new_log()
    for _ in range(5):
        log.append(40_000)
    starts = [receipt.at for receipt in log.receipts]

    def lost_files() -> list[bool]:
        return [part.is_file_lost for part in read_wal(log.disk, DIRECTORY, OWNER, 0) if isinstance(part, Damage)]

    log.flip(starts[0] + 100)
    assert lost_files() == [False]
    log.disk.flip_bit(wal_path(DIRECTORY, starts[1]), 3, 3)
    assert lost_files() == [False, True]
    log.disk.open(wal_path(DIRECTORY, starts[2])).truncate(20_000)
    assert lost_files() == [False, True, True]
    log.disk.unlink(wal_path(DIRECTORY, starts[3]))
    assert lost_files()[:2] == [False, True]
    assert all(lost_files()[1:])


def test_a_missing_file_with_the_last_commit_is_detected() -> None:
    """The newest file contains no commit yet, and the snapshot was made at its start."""
    log = new_log()
    first = log.append(40_000)
    log.writer.reserve(40_000, 9)
    assert read(log.disk, first.end_at).end.epoch == 1
    log.disk.unlink(wal_path(DIRECTORY, 0))
    with pytest.raises(CorruptionError, match="with the last commit before address"):
        read(log.disk, first.end_at)


# --- every byte --------------------------------------------------------------------------------------------------


def test_every_flipped_byte_of_a_closed_log_is_detected_or_irrelevant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any flipped bit is reported, refused, or in unused space; no reading returns other data."""
    monkeypatch.setattr(wal, "WAL_FILE_SIZE_MIN", 0)
    log = new_log(file_size=DATA_START + 1_000)
    for sizes in ((96, 120), (300,), (200, 100), (96,), (250, 130), (96,), (150,)):
        log.append(*sizes)
    log.writer.close()
    disk = log.disk
    intact = read(disk)
    assert (intact.batches, intact.damages, intact.end.clean) == (log.expected, [], True)
    starts = [int(name[4:24]) for name in disk.list(DIRECTORY)]
    assert len(starts) == 3
    chance = random.Random(4)
    outcomes = set()
    for first_at, following in itertools.zip_longest(starts, starts[1:]):
        path = wal_path(DIRECTORY, first_at)
        for byte in range(DATA_START + 1_000):
            if 64 <= byte < DATA_START and byte % 61:
                continue
            bit = chance.randrange(8)
            disk.flip_bit(path, byte, bit)
            at = first_at + byte - DATA_START
            outcomes.add(check_flip(log, intact, byte, at, following))
            disk.flip_bit(path, byte, bit)
    assert outcomes == {"refused", "file lost", "range lost", "not clean", "never written"}
    assert read(disk) == intact


def check_flip(log: Log, intact: Reading, byte: int, at: int, following: int | None) -> str:
    """Classify the outcome of one flip, after checking that it is allowed."""
    if byte < DATA_START and following is None:
        with pytest.raises(CorruptionError):
            read(log.disk)
        return "refused"
    reading = read(log.disk, twice=False)
    assert reading.batches.items() <= log.expected.items()
    clean_at = intact.end.at - EPOCH_HEADER_SIZE
    if byte < DATA_START:
        assert len(reading.damages) == 1
        assert reading.damages[0][1] == following
        return "file lost"
    if at < (clean_at if following is None else following):
        [(from_at, to_at)] = reading.damages
        epoch = next(receipt for receipt in log.receipts if receipt.at <= at < receipt.end_at)
        assert epoch.at <= from_at <= at < to_at == epoch.end_at
        lost = log.expected.keys() - reading.batches.keys()
        assert lost
        assert lost <= positions_of(log, epoch)
        assert reading.end.clean
        return "range lost"
    assert (reading.batches, reading.damages) == (intact.batches, [])
    if following is None:
        assert not reading.end.clean
        assert reading.end.at in (clean_at, intact.end.at)
        return "not clean"
    assert reading.end == intact.end
    return "never written"


def positions_of(log: Log, epoch: EpochReceipt) -> set[int]:
    """The positions of the batches in an epoch."""
    addresses = itertools.accumulate((len(data) for data in log.expected.values()), initial=0)
    before = sum(each.end_at - each.batches_at for each in log.receipts if each.at < epoch.at)
    length = epoch.end_at - epoch.batches_at
    return {position for position, at in zip(log.expected, addresses, strict=False) if before <= at < before + length}
