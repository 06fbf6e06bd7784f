"""The data directory: created completely or not at all, opened by one process, with ballast for a full disk."""

import errno
import itertools
import os

import pytest

from seawall.core.identifiers import unique_id_bytes, unique_id_from
from seawall.errors import (
    ChecksumError,
    CorruptionError,
    DiskFullError,
    InvalidInputError,
    LockedError,
    NotFoundError,
    UnsupportedError,
)
from seawall.io.disk.files import OsFiles, write_all
from seawall.io.interfaces import Files
from seawall.limits import BALLAST_SIZE, MIB, PAGE_SIZE
from seawall.storage.directory import DataDirectory, open_directory, read_format
from seawall.storage.preface import FORMAT, FileKind, Preface
from seawall.testing import SimCrash, SimDisk

PATH = "/srv/seawall/data"
SUBDIRECTORIES = ["meta", "topics", "wal"]
WHOLE = ["BALLAST", "FORMAT", "LOCK", *SUBDIRECTORIES]


def random_bytes(count: int) -> bytes:
    return b"\x5a" * count


def opened(files: Files, path: str = PATH, *, pid: int = 4711, seed: bytes = b"\x5a", **options) -> DataDirectory:
    return open_directory(files, path, pid=pid, now_ns=5, random_bytes=lambda count: seed * count, **options)


def contents(files: Files, path: str) -> bytes:
    file = files.open(path, read_only=True)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def put(files: Files, path: str, data: bytes = b"x") -> None:
    file = files.open(path, create=True)
    file.truncate(0)
    write_all(file, [data], 0)
    file.sync()
    file.close()


# --- making and opening ------------------------------------------------------------------------------------------


def test_a_new_directory_is_complete_and_durable() -> None:
    disk = SimDisk(1)
    directory = opened(disk)
    assert directory.directory_id == unique_id_bytes(unique_id_from(random_bytes(16)))
    assert (directory.wal, directory.meta, directory.topics) == tuple(
        f"{PATH}/{name}" for name in ("wal", "meta", "topics")
    )
    disk.crash("none")
    assert disk.list(PATH) == WHOLE
    assert len(contents(disk, f"{PATH}/BALLAST")) == BALLAST_SIZE
    preface = Preface.parse(contents(disk, f"{PATH}/FORMAT"), kind=FileKind.DIRECTORY)
    assert (preface.directory_id, preface.created_ns) == (directory.directory_id, 5)


def test_opening_again_finds_the_same_directory() -> None:
    disk = SimDisk(1)
    with opened(disk) as first:
        pass
    with opened(disk, f"{PATH}/", seed=b"\x77", create=False) as second:
        assert second.directory_id == first.directory_id
        assert second.path == PATH
        assert second.has_ballast


@pytest.mark.parametrize("path", ["data", "./data", "a/b/c", "."])
def test_relative_paths_work_on_the_real_machine(path: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with opened(OsFiles(), path, ballast_size=PAGE_SIZE) as directory:
        assert sorted(os.listdir(path)) == WHOLE
        assert directory.topic(0x1F).endswith("topics/0000001f")
        with pytest.raises(LockedError, match="process 4711"):
            opened(OsFiles(), path)
    with opened(OsFiles(), path, create=False, ballast_size=PAGE_SIZE) as again:
        assert again.directory_id == directory.directory_id


def test_the_root_of_a_disk_can_be_a_data_directory() -> None:
    disk = SimDisk(1)
    assert opened(disk, "/").path == "/"
    assert disk.list("/") == WHOLE


def test_a_directory_is_created_only_on_request() -> None:
    disk = SimDisk(1)
    with pytest.raises(NotFoundError, match="no data directory"):
        opened(disk, create=False)
    assert not disk.exists("/srv")
    disk.make_directory(PATH)
    with pytest.raises(NotFoundError):
        opened(disk, create=False)
    assert disk.list(PATH) == []


# --- the lock ----------------------------------------------------------------------------------------------------


def test_a_second_opener_gets_the_owner_in_the_error() -> None:
    disk = SimDisk(1)
    with opened(disk, pid=17):
        with pytest.raises(LockedError, match=f"{PATH} is in use by process 17"):
            opened(disk, pid=18)
        assert contents(disk, f"{PATH}/LOCK").strip() == b"17"
    with opened(disk, pid=123456):
        put(disk, f"{PATH}/LOCK", b"?!")
        with pytest.raises(LockedError, match="in use by another process"):
            opened(disk)


def test_a_lock_ends_with_its_process() -> None:
    disk = SimDisk(1)
    opened(disk, pid=123456)
    disk.kill()
    with opened(disk, pid=9), pytest.raises(LockedError, match="process 9:"):
        opened(disk)


def test_closing_twice_is_fine() -> None:
    disk = SimDisk(1)
    directory = opened(disk)
    directory.close()
    directory.close()
    opened(disk)


def test_a_failed_open_releases_the_lock() -> None:
    disk = SimDisk(1)
    opened(disk).close()
    disk.fail("read", path=f"{PATH}/FORMAT")
    with pytest.raises(OSError, match="error"):
        opened(disk)
    disk.fail("write", path=f"{PATH}/LOCK")
    with pytest.raises(OSError, match="error"):
        opened(disk)
    opened(disk)


def test_a_directory_created_concurrently_is_opened_unchanged() -> None:
    """Between the first check and the lock, another process creates the directory and exits."""

    class Racing(SimDisk):
        raced = False

        def open(self, path: str, **options):
            if path.endswith("LOCK") and not self.raced:
                self.raced = True
                opened(self, seed=b"\x11").close()
            return super().open(path, **options)

    assert opened(Racing(1)).directory_id == b"\x11" * 16


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["notes.txt"], "notes.txt"),
        (["LOCK", "a", "b", "c", "d"], "a, b, c …"),
        (["wal/wal-00000000000000000000.wal"], "wal/wal-0000"),
        (["meta/x"], "meta/x"),
        (["topics/00000001/x"], "topics/00000001"),
    ],
)
def test_a_foreign_directory_is_refused_and_unchanged(names: list[str], message: str) -> None:
    disk = SimDisk(1)
    for name in names:
        disk.make_directory(f"{PATH}/{name}".rpartition("/")[0])
        put(disk, f"{PATH}/{name}")
    before = disk.list(PATH)
    with pytest.raises(InvalidInputError, match=message):
        opened(disk)
    assert disk.list(PATH) == before


def test_a_file_is_refused_as_directory() -> None:
    disk = SimDisk(1)
    disk.make_directory("/srv")
    put(disk, "/srv/file")
    for path in ("/srv/file", "/srv/file/data"):
        with pytest.raises(InvalidInputError, match="not a directory"):
            opened(disk, path)


def test_a_newer_format_is_refused_with_both_numbers() -> None:
    disk = SimDisk(1)
    opened(disk).close()
    put(disk, f"{PATH}/FORMAT", Preface(FileKind.DIRECTORY, bytes(range(16)), format=FORMAT + 7).encode())
    with pytest.raises(UnsupportedError, match=f"FORMAT: written in format {FORMAT + 7}.* format {FORMAT}"):
        opened(disk)


def test_damage_of_the_format_file_is_reported() -> None:
    disk = SimDisk(1)
    opened(disk).close()
    intact = contents(disk, f"{PATH}/FORMAT")
    for data in (intact + b"\0", intact[:4000], b"", intact[:100] + b"x" + intact[101:]):
        put(disk, f"{PATH}/FORMAT", data)
        with pytest.raises(CorruptionError, match="FORMAT"):
            opened(disk)
    put(disk, f"{PATH}/FORMAT", intact[:20] + b"?" + intact[21:])
    with pytest.raises(ChecksumError, match="FORMAT"):
        opened(disk)


def test_a_missing_part_is_reported(tmp_path) -> None:
    path = str(tmp_path / "data")
    opened(OsFiles(), path, ballast_size=PAGE_SIZE).close()
    os.rmdir(f"{path}/wal")
    with pytest.raises(CorruptionError, match="wal is missing"):
        opened(OsFiles(), path, ballast_size=PAGE_SIZE)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_read_only_file_system_is_reported(code: int) -> None:
    disk = SimDisk(1)
    disk.fail("make_directory", error=code)
    with pytest.raises(InvalidInputError, match=r"/srv/seawall/data cannot be written .*read-only"):
        opened(disk)
    opened(disk).close()
    disk.fail("open", error=code, path=f"{PATH}/LOCK")
    with pytest.raises(InvalidInputError, match="LOCK"):
        opened(disk)


def test_other_system_errors_are_raised_unchanged() -> None:
    disk = SimDisk(1)
    disk.fail("make_directory", error=errno.EIO)
    with pytest.raises(OSError, match="error"):
        opened(disk)


def test_unreadable_parent_directories_do_not_matter() -> None:
    class Guarded(SimDisk):
        def sync_directory(self, path: str) -> None:
            if path == "/":
                raise PermissionError(errno.EACCES, "permission denied", path)
            super().sync_directory(path)

    disk = Guarded(1)
    disk.make_directory("/srv")
    opened(disk)


# --- ballast -----------------------------------------------------------------------------------------------------


def fill(disk: SimDisk) -> None:
    """Use up the free space of the disk."""
    free = disk.free_bytes("/")
    file = disk.open("/filler", create=True)
    file.allocate(file.size() + free)
    file.close()


def test_releasing_the_ballast_frees_space_on_a_full_disk() -> None:
    disk = SimDisk(1, capacity=16 * MIB)
    directory = opened(disk)
    fill(disk)
    with pytest.raises(OSError, match="space"):
        disk.open("/delete", create=True).allocate(PAGE_SIZE)
    directory.release_ballast()
    assert not directory.has_ballast
    assert disk.free_bytes("/") == BALLAST_SIZE
    assert not directory.restore_ballast(), "twice the ballast must be free"
    disk.unlink("/filler")
    assert directory.restore_ballast()
    assert directory.restore_ballast()
    assert len(contents(disk, f"{PATH}/BALLAST")) == BALLAST_SIZE


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_restoring_the_ballast_fails_softly_only_on_a_full_disk(code: int) -> None:
    disk = SimDisk(1, capacity=16 * MIB)
    directory = opened(disk)
    directory.release_ballast()
    disk.fail("allocate", error=code)
    assert not directory.restore_ballast()
    disk.fail("allocate", error=errno.EIO)
    with pytest.raises(OSError, match="error"):
        directory.restore_ballast()
    assert directory.restore_ballast()


def test_a_directory_opens_on_a_full_disk_without_its_ballast() -> None:
    disk = SimDisk(1, capacity=16 * MIB)
    with opened(disk) as directory:
        directory.release_ballast()
        fill(disk)
    with opened(disk, pid=10**9) as directory:
        assert not directory.has_ballast
        disk.unlink("/filler")
        assert directory.restore_ballast()


def test_a_directory_is_not_created_on_a_full_disk() -> None:
    disk = SimDisk(1, capacity=MIB)
    with pytest.raises(DiskFullError, match="disk is full"):
        opened(disk)
    assert "FORMAT" not in disk.list(PATH)


def test_the_size_of_the_ballast_may_grow() -> None:
    disk = SimDisk(1)
    opened(disk, ballast_size=PAGE_SIZE).close()
    with opened(disk) as directory:
        assert not directory.has_ballast
        assert len(contents(disk, f"{PATH}/BALLAST")) == PAGE_SIZE
        assert directory.restore_ballast()
        assert len(contents(disk, f"{PATH}/BALLAST")) == BALLAST_SIZE


def test_opening_creates_no_ballast() -> None:
    """The owner checks first whether anything else is missing."""
    disk = SimDisk(1)
    opened(disk).close()
    disk.unlink(f"{PATH}/BALLAST")
    with opened(disk) as directory:
        assert not directory.has_ballast
        assert not disk.exists(f"{PATH}/BALLAST")
        assert directory.restore_ballast()
        assert len(contents(disk, f"{PATH}/BALLAST")) == BALLAST_SIZE


# --- the log has begun -------------------------------------------------------------------------------------------


def test_the_log_started_flag_is_durable() -> None:
    disk = SimDisk(1)
    with opened(disk) as directory:
        assert not directory.log_has_begun
        directory.note_log_begun()
        assert directory.log_has_begun
        before = disk.calls
        directory.note_log_begun()
        assert disk.calls == before
    disk.crash("none")
    with opened(disk) as again:
        assert again.log_has_begun
        assert again.directory_id == directory.directory_id


def test_a_full_disk_defers_the_log_started_flag() -> None:
    disk = SimDisk(1)
    with opened(disk) as directory:
        disk.fail("write", error=errno.ENOSPC, path="*FORMAT*")
        directory.note_log_begun()
        assert not directory.log_has_begun
        directory.note_log_begun()
        assert directory.log_has_begun
        again = read_format(disk, PATH)
        assert again.first == 1


def test_other_disk_errors_are_raised() -> None:
    disk = SimDisk(1)
    with opened(disk) as directory:
        disk.fail("write", error=errno.EIO, path="*FORMAT*")
        with pytest.raises(OSError, match="error"):
            directory.note_log_begun()
        assert not directory.log_has_begun


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_a_crash_while_replacing_format_leaves_a_complete_one(keep: str) -> None:
    for calls in itertools.count(1):
        disk = SimDisk(calls)
        directory = opened(disk, ballast_size=PAGE_SIZE)
        disk.crash_after(calls)
        try:
            directory.note_log_begun()
            break
        except SimCrash:
            disk.crash(keep)
        with opened(disk, ballast_size=PAGE_SIZE) as again:
            assert again.directory_id == directory.directory_id
            again.note_log_begun()
            assert again.log_has_begun
    assert calls > 3


# --- crashes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["none", "all", "random", "kill"])
def test_the_directory_opens_after_a_crash_anywhere_in_its_creation(keep: str) -> None:
    for calls in itertools.count(1):
        disk = SimDisk(calls)
        disk.crash_after(calls)
        finished = False
        try:
            with opened(disk, ballast_size=PAGE_SIZE, seed=b"\1"):
                finished = True
        except SimCrash:
            pass
        if finished:
            break
        if keep == "kill":
            disk.kill()
        else:
            disk.crash(keep)
        was_complete = disk.exists(f"{PATH}/FORMAT")
        with opened(disk, ballast_size=PAGE_SIZE, seed=b"\2") as directory:
            assert directory.directory_id == (b"\1" if was_complete else b"\2") * 16
            assert directory.has_ballast
        # What the second opener read must stay true, whatever the first one left unsynced.
        disk.crash("none")
        with opened(disk, ballast_size=PAGE_SIZE, create=False) as again:
            assert again.directory_id == directory.directory_id
        assert [name for name in disk.list(PATH) if not name.endswith(".replacing")] == WHOLE
    assert calls > 10


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_a_crash_around_the_ballast_changes_nothing_else(keep: str) -> None:
    for calls in itertools.count(1):
        disk = SimDisk(calls, capacity=16 * MIB)
        directory = opened(disk)
        disk.crash_after(calls)
        finished = False
        try:
            directory.release_ballast()
            directory.restore_ballast()
            finished = True
        except SimCrash:
            disk.crash(keep)
        if finished:
            break
        with opened(disk) as again:
            assert again.directory_id == directory.directory_id
            assert again.restore_ballast()
            assert len(contents(disk, f"{PATH}/BALLAST")) == BALLAST_SIZE
    assert calls > 5
