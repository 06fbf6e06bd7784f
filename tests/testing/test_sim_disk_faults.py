"""Faults on demand, space, bit rot, the ring service and the history."""

import errno

import pytest

from seawall.errors import InvalidInputError, SyncError
from seawall.io.disk.files import OsFiles, replace_file, write_all
from seawall.testing import Fault, SimCrash, SimDisk
from seawall.testing.checkers.history import EventLog
from seawall.testing.limits import SIM_HISTORY_EVENTS_MAX


def refused(code: int):
    return pytest.raises(OSError, match=rf"\[Errno {code}\]")


def test_the_nth_call_fails_once_or_forever():
    disk = SimDisk(0, faults=[Fault("write", nth=2, error=errno.EIO)])
    file = disk.open("/f", create=True)
    assert file.write([b"a"], 0) == 1
    with refused(errno.EIO):
        file.write([b"b"], 0)
    assert file.read(1, 0) == b"a"
    assert file.write([b"c"], 0) == 1

    disk.fail("write", nth=2, error=errno.ENOSPC, forever=True)
    assert file.write([b"d"], 0) == 1
    for _ in range(3):
        with refused(errno.ENOSPC):
            file.write([b"e"], 0)
    disk.clear_faults()
    assert file.write([b"f"], 0) == 1


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("open", ("/f",)),
        ("exists", ("/f",)),
        ("list", ("/",)),
        ("make_directory", ("/x",)),
        ("rename", ("/f", "/g")),
        ("unlink", ("/f",)),
    ],
)
def test_every_call_on_names_can_fail(name, arguments):
    disk = SimDisk(0)
    disk.open("/f", create=True)
    disk.fail(name, error=errno.EIO)
    with refused(errno.EIO):
        getattr(disk, name)(*arguments)
    assert disk.list("/") == ["f"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("read", (1, 0)), ("write", ([b"x"], 0)), ("allocate", (10,)), ("truncate", (10,)), ("lock", ())],
)
def test_every_call_on_bytes_can_fail(name, arguments):
    disk = SimDisk(0)
    file = disk.open("/f", create=True)
    write_all(file, [b"abc"], 0)
    disk.fail(name, error=errno.EIO)
    with refused(errno.EIO):
        getattr(file, "try_lock" if name == "lock" else name)(*arguments)
    disk.fail("copy_range", error=errno.ENOSPC)
    with refused(errno.ENOSPC):
        disk.copy_range(file, 0, file, 10, 1)
    assert file.read(100, 0) == b"abc"


def test_a_fault_can_be_limited_to_some_paths():
    disk = SimDisk(0)
    disk.make_directory("/data")
    disk.fail("open", path="/data/wal*", forever=True)
    disk.open("/data/segment", create=True)
    with refused(errno.EIO):
        disk.open("data/wal-1", create=True)


def test_impossible_faults_are_refused():
    disk = SimDisk(0)
    with pytest.raises(InvalidInputError, match="not a disk call"):
        disk.fail("format")
    with pytest.raises(InvalidInputError, match="nth"):
        disk.fail("write", nth=0)
    with pytest.raises(InvalidInputError, match="never short"):
        disk.fail("read", error="short")


def test_short_writes_are_finished_by_write_all():
    for seed in range(20):
        disk = SimDisk(seed)
        disk.fail("write", error="short", forever=True)
        file = disk.open("/f", create=True)
        data = bytes(range(256)) * 3
        assert 0 < file.write([data], 0) < len(data)
        assert write_all(file, [data[:100], b"", data[100:]], 0) == len(data)
        assert file.read(1_000, 0) == data


def test_a_short_copy_copies_a_prefix():
    disk = SimDisk(0)
    source, target = disk.open("/a", create=True), disk.open("/b", create=True)
    write_all(source, [b"0123456789"], 0)
    disk.fail("copy_range", error="short")
    copied = disk.copy_range(source, 0, target, 0, 10)
    assert 0 < copied < 10
    assert target.read(10, 0) == b"0123456789"[:copied]


def test_files_of_two_disks_do_not_mix(tmp_path):
    disk = SimDisk(0)
    simulated = disk.open("/a", create=True)
    real = OsFiles().open(str(tmp_path / "a"), create=True)
    with pytest.raises(InvalidInputError):
        disk.copy_range(real, 0, simulated, 0, 1)
    with pytest.raises(InvalidInputError):
        OsFiles().copy_range(real, 0, simulated, 0, 1)
    with refused(errno.EBADF):
        OsFiles().copy_range(simulated, 0, real, 0, 1)
    real.close()


def test_a_full_disk_fails_allocations_and_writes():
    disk = SimDisk(0, capacity=4 * 4_096)
    file = disk.open("/f", create=True)
    assert disk.free_bytes("/") == 4 * 4_096
    with refused(errno.ENOSPC):
        file.allocate(5 * 4_096)
    assert file.size() == 0
    file.allocate(2 * 4_096)
    assert disk.free_bytes("/") == 2 * 4_096
    assert file.write([bytes(8_192)], 0) == 8_192
    assert disk.free_bytes("/") == 2 * 4_096

    other = disk.open("/g", create=True)
    assert other.write([b"x" * 20_000], 100) == 8_192 - 100
    with refused(errno.ENOSPC):
        other.write([b"x"], 8_192)
    assert other.write([b"y"], 0) == 1
    with refused(errno.ENOSPC):
        write_all(other, [b"x" * 20_000], 0)


def test_holes_use_no_space_and_deleted_files_free_theirs_with_the_last_handle():
    disk = SimDisk(0, capacity=4 * 4_096)
    file = disk.open("/f", create=True)
    file.truncate(1_000_000)
    assert disk.free_bytes("/") == 4 * 4_096
    file.write([b"x"], 500_000)
    assert disk.free_bytes("/") == 3 * 4_096
    file.truncate(400_000)
    assert disk.free_bytes("/") == 4 * 4_096
    file.write([b"x"], 0)
    file.sync()
    disk.unlink("/f")
    assert disk.free_bytes("/") == 3 * 4_096
    file.close()
    assert disk.free_bytes("/") == 4 * 4_096


def test_a_failed_directory_sync_loses_its_names():
    disk = SimDisk(0)
    disk.open("/a", create=True)
    disk.fail("sync_directory")
    with pytest.raises(SyncError, match="directory sync failed"):
        disk.sync_directory("/")
    disk.sync_directory("/")
    assert disk.list("/") == ["a"]
    disk.crash("all")
    assert disk.list("/") == []


def test_a_failed_replacement_cleans_up_and_keeps_the_old_bytes():
    for call, error in (("write", OSError), ("sync", SyncError), ("rename", OSError), ("truncate", OSError)):
        disk = SimDisk(0)
        replace_file(disk, "/manifest", b"old")
        disk.fail(call)
        with pytest.raises(error):
            replace_file(disk, "/manifest", b"new")
        assert disk.list("/") == ["manifest"]
        disk.crash("none")
        assert disk.durable_bytes("/manifest") == b"old"


def test_a_failed_cleanup_does_not_hide_the_first_failure():
    disk = SimDisk(0)
    disk.fail("rename", error=errno.EIO)
    disk.fail("unlink", error=errno.EROFS)
    with refused(errno.EIO):
        replace_file(disk, "/manifest", b"new")
    assert disk.list("/") == ["manifest.replacing"]
    replace_file(disk, "/manifest", b"n")
    assert disk.durable_bytes("/manifest") == b"n"


def test_bit_rot_on_disk_is_visible_unless_newer_bytes_are_cached():
    disk = SimDisk(5)
    file = disk.open("/f", create=True)
    write_all(file, [bytes(1_024)], 0)
    file.sync()
    disk.sync_directory("/")
    disk.flip_bit("/f", 3, 7)
    assert file.read(4, 0) == b"\0\0\0\x80"
    file.write([b"new"], 600)
    disk.flip_bit("/f", 601, 0)
    assert file.read(3, 600) == b"new"
    file.truncate(100)
    disk.flip_bit("/f", 900, 0)
    for byte, bit in ((1_024, 0), (-1, 0), (0, 8)):
        with pytest.raises(InvalidInputError, match="1024 durable bytes"):
            disk.flip_bit("/f", byte, bit)
    before = disk.durable_bytes("/f")
    flipped = disk.flip_random_bits("/f", 5)
    after = disk.durable_bytes("/f")
    assert len(set(flipped)) == 5
    assert sum((one ^ other).bit_count() for one, other in zip(before, after, strict=True)) == 5
    assert all(before[byte] ^ after[byte] for byte, _ in flipped)


# --- the ring --------------------------------------------------------------------------------------------------


def test_the_ring_service_returns_the_results_of_the_kernel():
    disk = SimDisk(0)
    file = disk.open("/f", create=True)
    disk.sync_directory("/")
    number = file.fileno()
    assert disk.execute("write", number, [memoryview(b"abc"), memoryview(b"def")], 2) == 6
    assert disk.durable_bytes("/f") == b""
    assert disk.execute("sync", number, [], 0) == 0
    assert disk.durable_bytes("/f") == b"\0\0abcdef"
    assert disk.execute("write_sync", number, [memoryview(b"!")], 8) == 1
    assert disk.durable_bytes("/f") == b"\0\0abcdef!"
    buffer = bytearray(4)
    assert disk.execute("read", number, [memoryview(buffer)], 6) == 3
    assert buffer == b"ef!\0"
    assert disk.execute("read", number, [memoryview(buffer)], -1) == -errno.EINVAL
    assert disk.execute("read", 3, [memoryview(buffer)], 0) == -errno.EBADF
    with pytest.raises(InvalidInputError):
        disk.execute("erase", number, [], 0)
    file.close()
    assert disk.execute("sync", number, [], 0) == -errno.EBADF


def test_the_ring_service_reports_faults_and_a_failed_sync_stays_failed():
    disk = SimDisk(0)
    file = disk.open("/f", create=True)
    number = file.fileno()
    disk.fail("write", error=errno.ENOSPC)
    assert disk.execute("write_sync", number, [memoryview(b"a")], 0) == -errno.ENOSPC
    disk.fail("sync", error=errno.EDQUOT)
    assert disk.execute("write_sync", number, [memoryview(b"a")], 0) == -errno.EDQUOT
    assert disk.execute("sync", number, [], 0) == -errno.EIO
    assert disk.execute("write", number, [memoryview(b"a")], 0) == -errno.EIO
    with pytest.raises(SyncError):
        file.sync()
    disk.crash("none")
    assert disk.execute("sync", number, [], 0) == -errno.EBADF


def test_a_crash_is_raised_by_the_ring_service():
    disk = SimDisk(0)
    file = disk.open("/f", create=True)
    disk.crash_after(2, inside=False)
    with pytest.raises(SimCrash):
        disk.execute("write_sync", file.fileno(), [memoryview(b"a")], 0)
    with pytest.raises(SimCrash):
        disk.execute("read", file.fileno(), [], 0)


# --- the history -----------------------------------------------------------------------------------------------


def test_the_history_lists_calls_and_faults():
    disk = SimDisk(9)
    file = disk.open("/f", create=True)
    file.write([b"abc"], 4)
    disk.fail("sync")
    with pytest.raises(SyncError):
        file.sync()
    disk.rename("/f", "/g")
    with pytest.raises(FileNotFoundError):
        disk.unlink("/f")
    disk.crash_after(1, inside=True)
    with pytest.raises(SimCrash):
        disk.make_directory("/d")
    disk.crash("none")
    assert disk.history() == (
        "1 disk seed=9 unit=512 capacity=1099511627776",
        "2 open /f",
        "3 write /f at=4 length=3 written=3",
        "4 sync /f failed: Input/output error",
        "5 rename /f to /g",
        "6 unlink /f refused: No such file or directory",
        "7 make_directory /d power lost inside",
        "8 crash keep=none",
    )


def test_the_history_is_bounded():
    log = EventLog()
    for number in range(SIM_HISTORY_EVENTS_MAX + 10):
        log.note(f"event {number}")
    lines = log.lines()
    assert len(lines) == SIM_HISTORY_EVENTS_MAX
    assert lines[0] == "11 event 10"
