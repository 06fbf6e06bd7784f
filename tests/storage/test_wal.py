"""The writer of the write-ahead log: addresses, rotation, full disks, failures, dropping and closing."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from seawall.errors import (
    CorruptionError,
    DescriptorsError,
    DiskFullError,
    FatalError,
    InvalidInputError,
    InvariantError,
    LimitError,
    RetryableError,
    SyncError,
    WrongStateError,
)
from seawall.io.disk.files import OsFiles
from seawall.io.interfaces import Files
from seawall.limits import WAL_FILE_SIZE_MAX, WAL_FILE_SIZE_MIN
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.storage.wal import writer as wal_writer
from seawall.storage.wal.epoch_write import EpochReceipt
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, parse_epoch_header
from seawall.storage.wal.files import PREALLOCATED_NAME, WalEnd
from seawall.storage.wal.reader import Damage, WalBatch, read_wal, repair_tail
from seawall.storage.wal.writer import WalWriter
from seawall.testing.machine.disk import SimDisk
from seawall.wire.format.batches import batch_header, encode_batch, stamp
from seawall.wire.format.codes import BatchFlags

OWNER = bytes(range(16))
DIRECTORY = "/wal"
SIZE = WAL_FILE_SIZE_MIN
CAPACITY = SIZE - DATA_START


def batch(position: int, size: int = 200) -> bytes:
    """A stored batch of that many bytes."""
    block = bytes((position * 7 + index) & 0xFF for index in range(size - 96))
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


def salts() -> Callable[[], int]:
    """A new salt for every call, with the top bit set."""
    numbers = itertools.count(2**63)
    return lambda: next(numbers)


def end_of(files: Files, directory: str = DIRECTORY, from_at: int = 0) -> WalEnd:
    *_, end = read_wal(files, directory, OWNER, from_at)
    assert isinstance(end, WalEnd)
    return end


def open_writer(files: Files, directory: str = DIRECTORY, file_size: int = SIZE) -> WalWriter:
    start = repair_tail(files, directory, OWNER, end_of(files, directory))
    return WalWriter(files, directory, OWNER, start=start, file_size=file_size, salt=salts())


def append(writer: WalWriter, *sizes: int, time: int = 9) -> EpochReceipt:
    """One epoch with batches of these sizes."""
    first = writer.next_position
    batches = [batch(first + index, size) for index, size in enumerate(sizes)]
    return writer.append_epoch(batches, first, len(sizes), time)


def batches_of(files: Files, directory: str = DIRECTORY, from_at: int = 0) -> dict[int, bytes]:
    """Everything readable by position; no damage."""
    items = list(read_wal(files, directory, OWNER, from_at))
    assert not [item for item in items if isinstance(item, Damage)]
    return {item.position: bytes(item.data) for item in items if isinstance(item, WalBatch)}


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(seed=3)
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    return disk


def names(disk: SimDisk) -> list[str]:
    return disk.list(DIRECTORY)


# --- addresses ---------------------------------------------------------------------------------------------------


def test_epochs_are_adjacent_at_their_addresses(disk: SimDisk) -> None:
    writer = open_writer(disk)
    assert (writer.at, writer.first_at, writer.synced_through, writer.next_position) == (0, 0, 0, 0)
    assert names(disk) == []
    first = append(writer, 200, 300)
    second = append(writer, 150)
    assert first == EpochReceipt(1, 0, 64 + 500)
    assert second == EpochReceipt(2, 564, 564 + 64 + 150)
    assert second.batches_at == 564 + 64
    assert (writer.at, writer.next_position, writer.synced_through) == (778, 3, 0)
    assert names(disk) == ["wal-00000000000000000000.wal"]


def test_the_file_is_preface_epochs_and_zeros(disk: SimDisk) -> None:
    writer = open_writer(disk)
    receipt = append(writer, 200, time=77)
    writer.sync()
    content = disk.durable_bytes(f"{DIRECTORY}/wal-00000000000000000000.wal")
    assert len(content) == SIZE
    preface = Preface.parse(content, kind=FileKind.WAL, directory_id=OWNER)
    assert preface == Preface(FileKind.WAL, OWNER, first=0, salt=2**63, created_ns=77, size=SIZE)
    header = parse_epoch_header(content[DATA_START:], salt=preface.salt, at=0)
    assert header is not None
    assert (header.epoch, header.length, header.synced_through, header.first_position) == (1, 200, 0, 0)
    assert (header.batch_count, header.flags, header.timestamp_ns) == (1, 0, 77)
    assert content[DATA_START + 64 : DATA_START + receipt.end_at] == batch(0)
    assert not any(content[DATA_START + receipt.end_at :])


def test_an_epoch_is_one_write_however_many_buffers(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 200)
    before = disk.calls
    writer.append_epoch([memoryview(batch(1) + batch(2)), b"", bytearray(batch(3)), batch(4)], 1, 4, 9)
    assert disk.calls == before + 1
    assert batches_of(disk) == {position: batch(position) for position in range(5)}


def test_wide_items_are_counted_in_bytes(disk: SimDisk) -> None:
    writer = open_writer(disk)
    receipt = writer.append_epoch([memoryview(batch(0)).cast("Q")], 0, 1, 9)
    assert receipt.end_at == 264
    assert batches_of(disk) == {0: batch(0)}


def test_short_writes_are_continued(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 200)
    for nth in (1, 2, 3):
        disk.fail("write", nth=nth, error="short")
    append(writer, 500, 900, 100)
    assert len(batches_of(disk)) == 4


def test_an_epoch_may_have_more_buffers_than_one_system_call(disk: SimDisk) -> None:
    writer = open_writer(disk, file_size=1 << 20)
    append(writer, *([100] * 1500))
    assert len(batches_of(disk)) == 1500


def test_synced_through_is_what_a_finished_sync_covers(disk: SimDisk) -> None:
    """INV-WAL-SYNCED."""
    writer = open_writer(disk)
    append(writer, 200)
    append(writer, 200)
    assert writer.sync() == writer.synced_through == 528
    append(writer, 200)
    append(writer, 200)
    content = disk.open(f"{DIRECTORY}/wal-00000000000000000000.wal").read(SIZE, 0)
    headers = [parse_epoch_header(content[DATA_START + at :], salt=2**63, at=at) for at in (0, 264, 528, 792)]
    assert [header and header.synced_through for header in headers] == [0, 0, 528, 528]
    assert writer.synced_through == 528


def test_a_sync_with_nothing_new_touches_nothing(disk: SimDisk) -> None:
    writer = open_writer(disk)
    before = disk.calls
    assert writer.sync() == 0
    append(writer, 200)
    writer.sync()
    assert disk.calls > before
    before = disk.calls
    assert writer.sync() == 264
    assert disk.calls == before


def test_located_bytes_are_the_appended_ones(disk: SimDisk) -> None:
    writer = open_writer(disk)
    placed = {}
    for _ in range(12):
        position = writer.next_position
        receipt = append(writer, 9_000, 300)
        placed[receipt.batches_at] = batch(position, 9_000)
        placed[receipt.batches_at + 9_000] = batch(position + 1, 300)
    writer.sync()
    assert len(names(disk)) > 1
    for reader in (writer, open_writer(disk)):
        for at, expected in placed.items():
            file, file_at = reader.locate(at)
            assert file.read(len(expected), file_at) == expected
        target = disk.open("/copy", create=True)
        at, expected = list(placed.items())[5]
        file, file_at = reader.locate(at)
        assert disk.copy_range(file, file_at, target, 0, len(expected)) == len(expected)
        assert target.read(len(expected), 0) == expected
        assert reader.locate(at)[0] is file


def test_an_address_outside_the_log_is_refused(disk: SimDisk) -> None:
    writer = open_writer(disk)
    with pytest.raises(InvalidInputError, match="WAL address 0 is not kept"):
        writer.locate(0)
    append(writer, 200)
    writer.locate(263)
    with pytest.raises(InvalidInputError, match="kept are 0 up to 264"):
        writer.locate(264)


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("buffers", "first", "count"),
    [([batch(0)], 0, 0), ([], 0, 0), ([batch(0)], 0, 3), ([batch(0)[:95]], 0, 1)],
)
def test_an_invalid_epoch_is_refused(disk: SimDisk, buffers: list[bytes], first: int, count: int) -> None:
    writer = open_writer(disk)
    with pytest.raises(InvariantError, match="INV-WAL-ORDER"):
        writer.append_epoch(buffers, first, count, 9)
    assert append(writer, 200).epoch == 1


def test_positions_never_decrease_but_may_skip(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 200, 200)
    with pytest.raises(InvariantError, match="due is 2"):
        writer.append_epoch([batch(1)], 1, 1, 9)
    writer.append_epoch([batch(10)], 10, 1, 9)
    assert list(batches_of(disk)) == [0, 1, 10]


def test_an_epoch_larger_than_a_file_is_refused(disk: SimDisk) -> None:
    writer = open_writer(disk)
    largest = CAPACITY - 3 * EPOCH_HEADER_SIZE
    for number in (1, 2):
        with pytest.raises(LimitError, match="holds 61440"):
            append(writer, largest + 1)
        assert append(writer, largest).epoch == number
    writer.close()
    assert len(batches_of(disk)) == 2
    assert end_of(disk).clean


@pytest.mark.parametrize("size", [0, WAL_FILE_SIZE_MIN - 1, WAL_FILE_SIZE_MAX + 1])
def test_file_sizes_are_bounded(disk: SimDisk, size: int) -> None:
    with pytest.raises(LimitError, match="choose 65536 to 1073741824"):
        open_writer(disk, file_size=size)


def test_an_unrepaired_end_is_refused(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 200)
    with pytest.raises(InvariantError, match="INV-WAL-ZERO-TAIL"):
        WalWriter(disk, DIRECTORY, OWNER, start=end_of(disk), file_size=SIZE, salt=salts())


def test_an_end_before_the_last_file_is_refused(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 40_000)
    append(writer, 40_000)
    early = WalEnd(0, 0, 0, False, 0, 0)
    with pytest.raises(InvariantError, match="INV-WAL-ORDER"):
        WalWriter(disk, DIRECTORY, OWNER, start=early, file_size=SIZE, salt=salts())
    with pytest.raises(InvariantError, match="INV-WAL-NO-SILENT-END"):
        repair_tail(disk, DIRECTORY, OWNER, early)


def test_a_closed_writer_refuses_every_call(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 200)
    writer.close()
    before = disk.calls
    writer.close()
    for call in (lambda: append(writer, 200), writer.sync, writer.prepare, lambda: writer.locate(0)):
        with pytest.raises(WrongStateError, match="closed"):
            call()
    assert disk.calls == before


# --- files -------------------------------------------------------------------------------------------------------


def test_a_new_file_begins_where_the_last_epoch_ended(disk: SimDisk) -> None:
    writer = open_writer(disk)
    ends = [append(writer, 25_000).end_at for _ in range(6)]
    assert names(disk) == [f"wal-{first_at:020d}.wal" for first_at in (0, ends[1], ends[3])]
    assert len(batches_of(disk)) == 6
    durable = [disk.durable_bytes(f"{DIRECTORY}/{name}") for name in names(disk)]
    prefaces = [Preface.parse(content, kind=FileKind.WAL, directory_id=OWNER) for content in durable]
    assert [preface.first for preface in prefaces] == [0, ends[1], ends[3]]
    assert len({preface.salt for preface in prefaces}) == 3
    assert writer.synced_through == ends[3]


def test_the_next_file_is_prepared_when_the_current_one_is_half_full(disk: SimDisk) -> None:
    writer = open_writer(disk)
    assert writer.prepare()
    assert not writer.prepare()
    assert names(disk) == [PREALLOCATED_NAME]
    append(writer, 20_000)
    assert not writer.prepare()
    append(writer, 20_000)
    assert writer.prepare()
    assert not writer.prepare()
    assert PREALLOCATED_NAME in names(disk)
    before = disk.history()
    append(writer, 30_000)
    assert not [line for line in disk.history()[len(before) :] if line.startswith("allocate")]
    assert len(names(disk)) == 2
    assert PREALLOCATED_NAME not in names(disk)
    assert len(batches_of(disk)) == 3


def test_the_files_of_a_log_grow_up_to_their_full_size(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_writer, "WAL_FIRST_FILE_SIZE", SIZE)
    writer = open_writer(disk, file_size=20 * SIZE)
    while len(names(disk)) < 5:
        append(writer, 40_000)
    sizes = [len(disk.durable_bytes(f"{DIRECTORY}/{name}")) for name in names(disk)]
    assert sizes == [SIZE, 4 * SIZE, 20 * SIZE, 20 * SIZE, 20 * SIZE]
    writer.close()
    assert end_of(disk).clean
    # What a log has grown to, it has after a restart too.
    writer = open_writer(disk, file_size=20 * SIZE)
    while len(names(disk)) < 6:
        append(writer, 40_000)
    assert len(disk.durable_bytes(f"{DIRECTORY}/{names(disk)[-1]}")) == 20 * SIZE


def test_an_epoch_that_is_larger_than_a_small_file_gets_a_larger_one(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_writer, "WAL_FIRST_FILE_SIZE", SIZE)
    writer = open_writer(disk, file_size=20 * SIZE)
    assert writer.prepare()
    assert append(writer, 2 * SIZE).epoch == 1
    assert names(disk) == ["wal-00000000000000000000.wal"]
    assert len(disk.durable_bytes(f"{DIRECTORY}/{names(disk)[0]}")) == 4 * SIZE
    assert append(writer, 19 * SIZE).epoch == 2
    with pytest.raises(LimitError, match="commit fewer batches"):
        append(writer, 20 * SIZE)
    writer.sync()
    assert len(batches_of(disk)) == 2


def test_an_unused_prepared_file_is_removed(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 40_000)
    assert writer.prepare()
    writer.close()
    assert names(disk) == ["wal-00000000000000000000.wal"]
    disk.open(f"{DIRECTORY}/{PREALLOCATED_NAME}", create=True)
    assert len(batches_of(disk)) == 1
    writer = open_writer(disk)
    assert names(disk) == ["wal-00000000000000000000.wal"]
    # A leftover file that appears under a running writer does not matter either.
    disk.open(f"{DIRECTORY}/{PREALLOCATED_NAME}", create=True).write([b"debris"], 0)
    append(writer, 40_000)
    assert len(batches_of(disk)) == 2


def test_an_empty_file_too_small_for_an_epoch_is_replaced(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 40_000)
    append(writer, 30_000)
    [_, second] = names(disk)
    # As a crash leaves it between the name of a file and its first epoch.
    disk.open(f"{DIRECTORY}/{second}").write([bytes(CAPACITY)], DATA_START)
    larger = WalWriter(
        disk,
        DIRECTORY,
        OWNER,
        start=repair_tail(disk, DIRECTORY, OWNER, end_of(disk)),
        file_size=4 * SIZE,
        salt=salts(),
    )
    assert larger.at == int(second[4:24])
    receipt = append(larger, 100_000)
    append(larger, 100)
    larger.sync()
    assert names(disk) == ["wal-00000000000000000000.wal", second]
    assert larger.locate(receipt.batches_at)[0].size() == 4 * SIZE
    assert list(batches_of(disk)) == [0, 1, 2]


def test_unknown_names_are_ignored(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 200)
    writer.close()
    for name in ("wal-1.wal", "wal-00000000000000000500.wal.bak", "notes.txt", "wal-0000000000000000050x.wal"):
        disk.open(f"{DIRECTORY}/{name}", create=True)
    assert len(batches_of(disk)) == 1
    assert append(open_writer(disk), 200).epoch == 3


def test_a_file_with_the_name_of_another_is_refused(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 200)
    writer.close()
    disk.rename(f"{DIRECTORY}/wal-00000000000000000000.wal", f"{DIRECTORY}/wal-00000000000000000001.wal")
    with pytest.raises(CorruptionError, match="says that it begins at address 0"):
        end_of(disk)


def test_space_can_be_reserved_ahead(disk: SimDisk) -> None:
    writer = open_writer(disk)
    writer.reserve(200, 44)
    assert (writer.at, len(names(disk))) == (0, 1)
    before = disk.calls
    writer.reserve(CAPACITY - 3 * EPOCH_HEADER_SIZE, 44)
    assert disk.calls == before
    with pytest.raises(LimitError):
        writer.reserve(CAPACITY - 3 * EPOCH_HEADER_SIZE + 1, 44)
    append(writer, 40_000)
    writer.reserve(40_000, 44)
    assert len(names(disk)) == 2
    before = disk.calls
    append(writer, 40_000)
    assert disk.calls == before + 1
    assert list(batches_of(disk)) == [0, 1]


# --- a full disk -------------------------------------------------------------------------------------------------


def full_disk(files: int) -> SimDisk:
    disk = SimDisk(seed=3, capacity=files * SIZE)
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    return disk


def test_a_full_disk_is_reported_before_anything_is_written() -> None:
    disk = full_disk(1)
    writer = open_writer(disk)
    append(writer, 40_000)
    with pytest.raises(DiskFullError, match="no space for another WAL file of 65536 bytes") as caught:
        writer.prepare()
    assert isinstance(caught.value, RetryableError)
    at = writer.at
    with pytest.raises(DiskFullError):
        append(writer, 40_000)
    with pytest.raises(DiskFullError):
        writer.reserve(40_000, 9)
    assert (writer.at, writer.next_position) == (at, 1)
    assert names(disk) == ["wal-00000000000000000000.wal"]
    append(writer, 15_000)
    writer.close()
    assert end_of(disk).clean
    assert list(batches_of(disk)) == [0, 1]


def test_freed_space_is_used() -> None:
    disk = full_disk(2)
    other = disk.open("/other", create=True)
    other.allocate(SIZE)
    writer = open_writer(disk)
    append(writer, 40_000)
    with pytest.raises(DiskFullError):
        append(writer, 40_000)
    other.truncate(0)
    assert writer.prepare()
    append(writer, 40_000)
    assert list(batches_of(disk)) == [0, 1]


def test_the_clean_shutdown_marker_always_fits() -> None:
    disk = full_disk(1)
    writer = open_writer(disk)
    append(writer, CAPACITY - 3 * EPOCH_HEADER_SIZE - 200)
    with pytest.raises(DiskFullError):
        append(writer, 200 - EPOCH_HEADER_SIZE + 1)
    append(writer, 200 - EPOCH_HEADER_SIZE)
    writer.close()
    assert end_of(disk).clean
    assert end_of(disk).at == CAPACITY - EPOCH_HEADER_SIZE


def test_a_directory_without_space_for_names_counts_as_full(disk: SimDisk) -> None:
    writer = open_writer(disk)
    disk.fail("open", error=errno.ENOSPC, path="*.preparing")
    with pytest.raises(DiskFullError):
        append(writer, 200)
    disk.fail("allocate", error=errno.EDQUOT)
    with pytest.raises(DiskFullError):
        append(writer, 200)
    assert append(writer, 200).epoch == 1


def test_other_errors_of_a_new_file_are_raised_unchanged(disk: SimDisk) -> None:
    writer = open_writer(disk)
    disk.fail("open", error=errno.EMFILE)
    with pytest.raises(DescriptorsError, match="no file descriptor is left"):
        append(writer, 200)
    disk.fail("allocate", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        append(writer, 200)
    assert names(disk) == []
    assert append(writer, 200).epoch == 1


# --- failures ----------------------------------------------------------------------------------------------------


def require_poisoned(disk: SimDisk, writer: WalWriter) -> None:
    """INV-STORE-FAILED: every later change fails, and closing changes nothing."""
    disk.clear_faults()
    before = disk.calls
    for call in (lambda: append(writer, 200), writer.sync, writer.prepare, lambda: writer.drop_before(0)):
        with pytest.raises(FatalError, match="an earlier write or sync of the WAL failed"):
            call()
    writer.close()
    assert disk.calls == before


def test_a_failed_sync_is_fatal(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 200)
    writer.sync()
    append(writer, 200)
    disk.fail("sync")
    with pytest.raises(SyncError):
        writer.sync()
    assert writer.synced_through == 264
    assert writer.locate(0)[0].read(4, DATA_START) == b"EPOC"
    require_poisoned(disk, writer)
    disk.crash(keep="none")
    assert list(batches_of(disk)) == [0]


@pytest.mark.parametrize(("call", "nth"), [("sync", 1), ("sync", 2), ("sync", 3), ("sync_directory", 1)])
def test_a_failed_sync_while_starting_a_file_is_fatal(disk: SimDisk, call: str, nth: int) -> None:
    """In order: the reserved space of the new file, the content of the old one, the preface, the name."""
    writer = open_writer(disk)
    append(writer, 40_000)
    disk.fail(call, nth=nth)
    with pytest.raises(SyncError):
        append(writer, 40_000)
    require_poisoned(disk, writer)


@pytest.mark.parametrize(("call", "message"), [("write", "beginning a WAL file"), ("rename", "beginning a WAL file")])
def test_a_failure_to_start_a_file_is_fatal(disk: SimDisk, call: str, message: str) -> None:
    writer = open_writer(disk)
    append(writer, 40_000)
    disk.fail(call)
    with pytest.raises(FatalError, match=message):
        append(writer, 40_000)
    require_poisoned(disk, writer)
    disk.kill()
    assert list(batches_of(disk)) == [0]
    assert append(open_writer(disk), 40_000).epoch == 2
    assert list(batches_of(disk)) == [0, 1]


def test_a_failed_write_is_fatal(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 200)
    writer.sync()
    disk.fail("write", error="short")
    disk.fail("write", nth=2)
    with pytest.raises(FatalError, match="writing epoch 2 at address 264 failed"):
        append(writer, 30_000)
    require_poisoned(disk, writer)
    disk.kill()
    assert list(batches_of(disk)) == [0]
    writer = open_writer(disk)
    append(writer, 100)
    writer.close()
    assert end_of(disk).clean


def test_a_failed_sync_of_the_directory_after_dropping_is_fatal(disk: SimDisk) -> None:
    writer = open_writer(disk)
    for _ in range(3):
        append(writer, 40_000)
    writer.sync()
    disk.fail("sync_directory")
    with pytest.raises(SyncError):
        writer.drop_before(writer.at)
    require_poisoned(disk, writer)


# --- dropping ----------------------------------------------------------------------------------------------------


def test_files_wholly_below_an_address_are_dropped(disk: SimDisk) -> None:
    writer = open_writer(disk)
    receipts = [append(writer, 25_000) for _ in range(8)]
    writer.sync()
    first = [0, receipts[2].at, receipts[4].at, receipts[6].at]
    assert names(disk) == [f"wal-{at:020d}.wal" for at in first]
    assert writer.drop_before(first[1] - 1) == 0
    writer.locate(5)
    assert writer.drop_before(first[1]) == 1
    assert writer.first_at == first[1]
    with pytest.raises(InvalidInputError, match="not kept"):
        writer.locate(5)
    assert writer.drop_before(first[3] + 1) == 2
    assert writer.drop_before(writer.at) == 0
    assert names(disk) == [f"wal-{first[3]:020d}.wal"]
    assert list(batches_of(disk, from_at=first[3])) == [6, 7]
    disk.crash(keep="none")
    assert names(disk) == [f"wal-{first[3]:020d}.wal"]
    assert append(open_writer_from(disk, first[3]), 200).epoch == 9


def open_writer_from(disk: SimDisk, from_at: int) -> WalWriter:
    start = repair_tail(disk, DIRECTORY, OWNER, end_of(disk, from_at=from_at))
    return WalWriter(disk, DIRECTORY, OWNER, start=start, file_size=SIZE, salt=salts())


def test_unsynced_files_are_not_dropped(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 200)
    with pytest.raises(InvalidInputError, match="not durable yet; durable is up to 0"):
        writer.drop_before(264)
    writer.sync()
    assert writer.drop_before(264) == 0


def test_the_file_of_the_last_epoch_is_kept(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 40_000)
    append(writer, 40_000)
    append(writer, 40_000)
    [_, second, third] = names(disk)
    # As a crash leaves it between the name of a file and its first epoch.
    disk.open(f"{DIRECTORY}/{third}").write([bytes(CAPACITY)], DATA_START)
    at = int(third[4:24])
    writer = open_writer_from(disk, at)
    assert writer.at == at
    assert writer.drop_before(at) == 1
    assert names(disk) == [second, third]
    writer = open_writer_from(disk, at)
    assert writer.next_position == 2
    assert append(writer, 200).epoch == 3
    writer.sync()
    assert writer.drop_before(at) == 1
    assert names(disk) == [third]


def test_a_file_that_cannot_be_removed_stays_part_of_the_log(disk: SimDisk) -> None:
    writer = open_writer(disk)
    for _ in range(3):
        append(writer, 40_000)
    writer.sync()
    disk.fail("unlink", error=errno.EACCES)
    with pytest.raises(OSError, match="Permission denied"):
        writer.drop_before(writer.at)
    assert writer.first_at == 0
    assert writer.locate(0)[0].read(4, DATA_START) == b"EPOC"
    assert writer.drop_before(writer.at) == 2


# --- closing -----------------------------------------------------------------------------------------------------


def test_a_clean_close_is_an_empty_epoch(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 200, time=50)
    writer.close()
    disk.crash(keep="none")
    end = end_of(disk)
    assert end == WalEnd(264 + 64, 2, 1, True, 264, 50)
    again = open_writer(disk)
    assert again.synced_through == again.at == 328
    again.close()
    assert end_of(disk) == end
    again = open_writer(disk)
    assert append(again, 200).epoch == 3
    assert not end_of(disk).clean
    again.close()
    assert end_of(disk).clean
    assert list(batches_of(disk)) == [0, 1]


def test_a_log_without_epochs_leaves_no_file(disk: SimDisk) -> None:
    open_writer(disk).close()
    assert names(disk) == []
    assert end_of(disk) == WalEnd(0, 0, 0, True, 0, 0)


def test_a_recovered_log_gets_its_clean_shutdown_marker_at_close(disk: SimDisk) -> None:
    append(open_writer(disk), 200, time=12)
    disk.kill()
    assert not end_of(disk).clean
    open_writer(disk).close()
    assert end_of(disk) == WalEnd(328, 2, 1, True, 264, 12)


def test_a_failing_close_still_closes_the_files(disk: SimDisk) -> None:
    writer = open_writer(disk)
    append(writer, 40_000)
    writer.prepare()
    file, _ = writer.locate(0)
    disk.fail("sync")
    with pytest.raises(SyncError):
        writer.close()
    assert file.fileno() == -1
    writer.close()


def test_the_log_works_on_real_files(tmp_path: Path) -> None:
    files, directory = OsFiles(), str(tmp_path)
    expected = {}
    for _ in range(3):
        writer = open_writer(files, directory)
        for _ in range(5):
            first = writer.next_position
            expected |= {first: batch(first, 9_000), first + 1: batch(first + 1, 150)}
            append(writer, 9_000, 150)
            writer.prepare()
            writer.sync()
        writer.close()
        assert end_of(files, directory).clean
    assert len(list(tmp_path.iterdir())) == 3
    assert batches_of(files, directory) == expected
    writer = open_writer(files, directory)
    assert writer.drop_before(writer.at) == 2
    writer.close()
