"""What a simulated crash may leave on a disk."""

import errno
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.errors import InvalidInputError, SyncError
from seawall.io.disk.files import OsFiles, replace_file, write_all
from seawall.testing import DeadHandleError, SimCrash, SimDisk
from seawall.testing.limits import SIM_SECTOR_VERSIONS_MAX

SECTOR = 512


def disk_with_file(seed: int = 0, data: bytes = b"", **options) -> tuple[SimDisk, object]:
    """A disk whose file /d/f is durable with `data`, and a handle to it."""
    disk = SimDisk(seed, **options)
    disk.make_directory("/d")
    disk.sync_directory("/")
    file = disk.open("/d/f", create=True)
    write_all(file, [data], 0)
    file.sync()
    disk.sync_directory("/d")
    return disk, file


def contents(disk: SimDisk, path: str = "/d/f") -> bytes:
    file = disk.open(path, read_only=True)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


# --- bytes -----------------------------------------------------------------------------------------------------


def test_unsynced_bytes_vanish_or_stay_as_requested():
    for keep, expected in (("none", b"old"), ("all", b"newer")):
        disk, file = disk_with_file(data=b"old")
        file.write([b"newer"], 0)
        assert disk.durable_bytes("/d/f") == b"old"
        assert contents(disk) == b"newer"
        disk.crash(keep)
        assert contents(disk) == expected


def test_synced_bytes_stay():
    for keep in ("none", "all", "random"):
        disk, file = disk_with_file(data=b"old")
        file.write([b"newer"], 0)
        file.sync()
        disk.crash(keep)
        assert contents(disk) == b"newer"


def test_every_sector_is_old_or_new_and_all_mixtures_occur():
    seen = set()
    for seed in range(200):
        disk, file = disk_with_file(seed, b"o" * SECTOR * 3)
        file.write([b"n" * SECTOR * 3], 0)
        disk.crash("random")
        data = contents(disk)
        sectors = [data[at : at + SECTOR] for at in range(0, len(data), SECTOR)]
        assert all(sector in (b"o" * SECTOR, b"n" * SECTOR) for sector in sectors)
        seen.add("".join(chr(sector[0]) for sector in sectors))
    assert seen == {"".join(mixture) for mixture in itertools.product("on", repeat=3)}


def test_an_earlier_version_of_a_sector_may_be_the_one_that_survives():
    seen = set()
    for seed in range(100):
        disk, file = disk_with_file(seed, b"0")
        for version in (b"1", b"2", b"3"):
            file.write([version], 0)
        disk.crash("random")
        seen.add(contents(disk))
    assert seen == {b"0", b"1", b"2", b"3"}


def test_versions_of_a_sector_are_bounded():
    last = SIM_SECTOR_VERSIONS_MAX + 5
    for seed in range(60):
        disk, file = disk_with_file(seed, bytes([0]))
        for version in range(1, last + 1):
            file.write([bytes([version])], 0)
        disk.crash("random")
        survivor = contents(disk)[0]
        assert survivor == 0 or last - SIM_SECTOR_VERSIONS_MAX <= survivor <= last


def test_a_length_may_survive_without_its_bytes_and_bytes_without_their_length():
    lengths, zeros = set(), False
    for seed in range(100):
        disk, file = disk_with_file(seed, b"o" * SECTOR)
        file.write([b"n" * SECTOR * 4], SECTOR)
        disk.crash("random")
        data = contents(disk)
        lengths.add(len(data))
        zeros = zeros or bytes(SECTOR) in data
        assert data[:SECTOR] == b"o" * SECTOR
        assert set(data[SECTOR:]) <= {0, ord("n")}
    assert {SECTOR, 5 * SECTOR} < lengths
    assert zeros


def test_a_crash_may_undo_a_truncation_and_truncated_bytes_never_mix_with_later_ones():
    seen = set()
    for seed in range(100):
        disk, file = disk_with_file(seed, b"o" * SECTOR * 2)
        file.truncate(0)
        file.truncate(SECTOR * 2)
        assert file.read(SECTOR * 2, 0) == bytes(SECTOR * 2)
        disk.crash("random")
        data = contents(disk)
        seen.add(tuple(data[at] for at in range(0, len(data), SECTOR)))
    assert {(0, 0), (ord("o"), ord("o"))} <= seen

    disk, file = disk_with_file(3, b"o" * SECTOR * 2)
    file.truncate(10)
    file.truncate(SECTOR * 2)
    file.sync()
    disk.crash("none")
    assert contents(disk) == b"o" * 10 + bytes(SECTOR * 2 - 10)


def test_a_page_sized_unit_is_never_torn_inside():
    for seed in range(50):
        disk, file = disk_with_file(seed, b"o" * 8_192, unit_size=4_096)
        file.write([b"n" * 8_192], 0)
        disk.crash("random")
        data = contents(disk)
        assert len(set(data[:4_096])) == 1
        assert len(set(data[4_096:])) == 1


# --- names -----------------------------------------------------------------------------------------------------


def test_an_unsynced_name_is_lost_with_its_synced_bytes():
    disk, _ = disk_with_file()
    file = disk.open("/d/new", create=True)
    file.write([b"data"], 0)
    file.sync()
    with pytest.raises(FileNotFoundError):
        disk.durable_bytes("/d/new")
    disk.crash("none")
    assert disk.list("/d") == ["f"]


def test_a_synced_file_in_an_unsynced_directory_is_lost():
    disk = SimDisk(0)
    disk.make_directory("/a/b")
    disk.open("/a/b/f", create=True).sync()
    disk.sync_directory("/a/b")
    disk.sync_directory("/a")
    with pytest.raises(FileNotFoundError):
        disk.durable_bytes("/a/b/f")
    disk.crash("none")
    assert disk.list("/") == []


def test_a_renamed_file_has_one_of_its_names():
    seen = set()
    for seed in range(40):
        disk, _ = disk_with_file(seed, b"data")
        disk.make_directory("/e")
        disk.sync_directory("/")
        disk.rename("/d/f", "/e/g")
        disk.crash("random")
        names = tuple(disk.list("/d") + disk.list("/e"))
        assert names in {("f",), ("g",)}
        seen.add(names)
    assert len(seen) == 2


def test_a_synced_rename_syncs_earlier_renames_of_the_file():
    disk, _ = disk_with_file()
    file = disk.open("/d/temporary", create=True)
    file.write([b"new"], 0)
    file.sync()
    disk.make_directory("/e")
    disk.sync_directory("/")
    disk.rename("/d/temporary", "/e/final")
    disk.sync_directory("/e")
    disk.crash("none")
    assert disk.list("/d") == ["f"]
    assert contents(disk, "/e/final") == b"new"


def test_an_unlinked_name_may_reappear_and_never_names_another_file():
    seen = set()
    for seed in range(60):
        disk, _ = disk_with_file(seed, b"first")
        disk.unlink("/d/f")
        file = disk.open("/d/f", create=True)
        file.write([b"second"], 0)
        file.sync()
        disk.crash("random")
        seen.add(contents(disk) if disk.exists("/d/f") else None)
    assert seen == {b"first", b"second", None}


def test_names_of_different_files_survive_in_any_combination():
    seen = set()
    for seed in range(60):
        disk = SimDisk(seed)
        disk.open("/a", create=True)
        disk.open("/b", create=True)
        disk.crash("random")
        seen.add(tuple(disk.list("/")))
    assert seen == {(), ("a",), ("b",), ("a", "b")}
    disk.crash("all")


def test_crash_keep_all_keeps_every_name():
    disk = SimDisk(0)
    disk.make_directory("/a/b")
    disk.open("/a/b/f", create=True).write([b"x"], 0)
    disk.crash("all")
    assert contents(disk, "/a/b/f") == b"x"
    assert disk.durable_bytes("/a/b/f") == b"x"


# --- handles, processes ----------------------------------------------------------------------------------------


def test_old_handles_fail_after_a_crash():
    disk, file = disk_with_file(data=b"x")
    assert file.try_lock()
    disk.crash("all")
    for call in (file.size, file.sync, lambda: file.read(1, 0), lambda: file.write([b"a"], 0), file.try_lock):
        with pytest.raises(DeadHandleError, match="open the file again"):
            call()
    file.close()
    assert disk.open("/d/f").try_lock()


def test_killed_processes_leave_the_page_cache_unsynced():
    disk, file = disk_with_file(data=b"old")
    file.write([b"new"], 0)
    assert file.try_lock()
    disk.kill()
    with pytest.raises(DeadHandleError):
        file.size()
    again = disk.open("/d/f")
    assert again.read(3, 0) == b"new"
    assert again.try_lock()
    disk.crash("none")
    assert contents(disk) == b"old"


def test_a_crash_refuses_an_unknown_outcome():
    with pytest.raises(InvalidInputError):
        SimDisk(0).crash("some")
    with pytest.raises(InvalidInputError):
        SimDisk(0, unit_size=100)


# --- crash points ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [False, True])
def test_the_power_is_lost_before_or_inside_the_chosen_call(inside):
    disk, file = disk_with_file(data=b"o" * SECTOR)
    disk.crash_after(2, inside=inside)
    file.write([b"n" * SECTOR], 0)
    calls = disk.calls
    with pytest.raises(SimCrash, match="inside sync" if inside else "before sync"):
        file.sync()
    assert disk.calls == calls + 1
    for call in (
        file.size,
        lambda: disk.exists("/d"),
        lambda: disk.free_bytes("/"),
        lambda: disk.sync_directory("/"),
    ):
        with pytest.raises(SimCrash, match="machine is down"):
            call()
    file.close()
    disk.crash("none")
    assert disk.list("/d") == ["f"]
    assert inside or contents(disk) == b"o" * SECTOR


def test_a_write_interrupted_by_a_crash_ends_between_sectors():
    seen = set()
    for seed in range(60):
        disk, file = disk_with_file(seed, b"o" * SECTOR * 2)
        disk.crash_after(1, inside=True)
        with pytest.raises(SimCrash):
            file.write([b"n" * SECTOR], SECTOR // 2)
        disk.kill()
        seen.add(contents(disk).count(b"n"))
    assert seen == {0, SECTOR // 2, SECTOR}


def test_a_sync_interrupted_by_a_crash_has_written_some_sectors():
    seen = set()
    for seed in range(60):
        disk, file = disk_with_file(seed, b"o" * SECTOR)
        file.write([b"n" * SECTOR * 2], 0)
        disk.crash_after(1, inside=True)
        with pytest.raises(SimCrash):
            file.sync()
        disk.crash("none")
        seen.add(contents(disk))
    old, new = b"o" * SECTOR, b"n" * SECTOR
    assert seen == {old, new, old + new, new + new, old + bytes(SECTOR), new + bytes(SECTOR)}


def test_a_directory_sync_interrupted_by_a_crash_has_kept_some_names():
    seen = set()
    for seed in range(60):
        disk = SimDisk(seed)
        disk.open("/a", create=True)
        disk.open("/b", create=True)
        disk.crash_after(1, inside=True)
        with pytest.raises(SimCrash):
            disk.sync_directory("/")
        disk.crash("none")
        seen.add(tuple(disk.list("/")))
    assert seen == {(), ("a",), ("b",), ("a", "b")}


def test_a_crash_point_inside_a_refused_call_is_still_a_crash():
    disk = SimDisk(0)
    disk.crash_after(1, inside=True)
    with pytest.raises(SimCrash):
        disk.open("/missing")
    disk.crash("none")
    with pytest.raises(FileNotFoundError):
        disk.open("/missing")


def test_a_crash_point_must_be_in_the_future():
    with pytest.raises(InvalidInputError):
        SimDisk(0).crash_after(0)


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_replacing_a_file_is_atomic_at_every_crash_point(keep):
    """INV-REPLACE-ATOMIC."""
    crashes = 0
    for seed in range(4):
        for point in itertools.count(1):
            disk = SimDisk(seed * 1_000 + point)
            replace_file(disk, "/manifest", b"old" * 1_000)
            disk.crash_after(point)
            try:
                replace_file(disk, "/manifest", b"new" * 2_000)
            except SimCrash:
                disk.crash(keep)
                assert contents(disk, "/manifest") in (b"old" * 1_000, b"new" * 2_000), disk.history()
                replace_file(disk, "/manifest", b"after")
                disk.crash("none")
                assert contents(disk, "/manifest") == b"after"
                crashes += 1
            else:
                disk.crash("none")
                assert contents(disk, "/manifest") == b"new" * 2_000
                break
    assert crashes == 4 * 6


def test_a_sweep_finds_a_replacement_without_a_sync():
    """A simulator that never finds the classic mistake would be worth nothing."""

    def careless(disk: SimDisk) -> None:
        file = disk.open("/temporary", create=True)
        file.write([b"new"], 0)
        file.close()
        disk.rename("/temporary", "/manifest")
        disk.sync_directory("/")

    losses = 0
    for seed in range(20):
        disk = SimDisk(seed)
        replace_file(disk, "/manifest", b"old")
        careless(disk)
        disk.crash("random")
        losses += contents(disk, "/manifest") not in (b"old", b"new")
    assert losses > 0


# --- properties ------------------------------------------------------------------------------------------------

operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3_000), st.binary(min_size=1, max_size=1_500)),
        st.tuples(st.just("truncate"), st.integers(0, 4_000), st.just(b"")),
        st.tuples(st.just("allocate"), st.integers(0, 4_000), st.just(b"")),
        st.tuples(st.just("sync"), st.just(0), st.just(b"")),
    ),
    max_size=12,
)


def apply(file, operation: tuple[str, int, bytes]) -> None:
    name, number, data = operation
    if name == "write":
        write_all(file, [data], number)
    elif name == "sync":
        file.sync()
    else:
        getattr(file, name)(number)


@settings(max_examples=60)
@given(operations)
def test_without_faults_a_simulated_file_equals_a_real_one(tmp_path_factory, steps):
    _, simulated = disk_with_file()
    real = OsFiles().open(str(tmp_path_factory.mktemp("real") / "f"), create=True)
    for step in steps:
        apply(simulated, step)
        apply(real, step)
        assert simulated.size() == real.size()
        assert simulated.read(10_000, 0) == real.read(10_000, 0)
    real.close()


@given(operations, st.integers(0, 1_000))
def test_a_crash_that_keeps_nothing_leaves_exactly_what_was_synced(steps, seed):
    disk, file = disk_with_file(seed)
    synced = b""
    for step in steps:
        apply(file, step)
        if step[0] == "sync":
            synced = file.read(10_000, 0)
        assert disk.durable_bytes("/d/f") == synced
    latest = file.read(10_000, 0)
    disk.crash("none")
    assert contents(disk) == synced
    disk, file = disk_with_file(seed)
    for step in steps:
        apply(file, step)
    disk.crash("all")
    assert contents(disk) == latest == disk.durable_bytes("/d/f")


@given(operations, st.integers(0, 1_000))
def test_after_a_random_crash_every_sector_is_one_it_has_been_since_the_sync(steps, seed):
    disk, file = disk_with_file(seed)
    images = [b""]
    for step in steps:
        apply(file, step)
        image = file.read(10_000, 0)
        images = [image] if step[0] == "sync" else [*images, image]
    disk.crash("random")
    data = contents(disk)
    assert min(map(len, images)) <= len(data) <= max(map(len, images))
    for at in range(0, len(data), SECTOR):
        sector = data[at : at + SECTOR]
        known = {image[at : at + SECTOR].ljust(SECTOR, b"\0")[: len(sector)] for image in images}
        assert sector in known


@given(operations, st.integers(0, 1_000))
def test_the_same_seed_and_calls_give_the_same_disk(steps, seed):
    def run() -> tuple[bytes, tuple[str, ...]]:
        disk, file = disk_with_file(seed)
        for step in steps:
            apply(file, step)
        disk.crash("random")
        return contents(disk), disk.history()

    assert run() == run()


def test_a_failed_sync_loses_its_bytes_and_a_later_sync_hides_it():
    disk, file = disk_with_file(data=b"o" * SECTOR)
    file.write([b"n" * SECTOR * 2], 0)
    disk.fail("sync", error=errno.EIO)
    with pytest.raises(SyncError):
        file.sync()
    for call in (
        file.sync,
        lambda: file.write([b"a"], 0),
        lambda: file.truncate(0),
        lambda: file.allocate(10),
        lambda: disk.copy_range(disk.open("/d/f"), 0, file, 5_000, 1),
    ):
        with pytest.raises(SyncError, match="an earlier sync failed"):
            call()
    again = disk.open("/d/f")
    assert again.read(SECTOR * 2, 0) == b"n" * SECTOR * 2
    again.write([b"x"], SECTOR * 2)
    again.sync()
    disk.crash("all")
    assert contents(disk) == b"o" * SECTOR + bytes(SECTOR) + b"x"
