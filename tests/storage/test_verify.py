"""Verification: an undamaged directory has no findings, and planted damage is named with its position and seqs."""

import errno
import os
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from seawall import limits
from seawall.core.types import Seq, TopicId
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.api.verify import known_topics
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.errors import CorruptionError, LockedError, NotFoundError
from seawall.io.disk.files import OsFiles
from seawall.io.interfaces import File
from seawall.storage.findings import Finding, Totals
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.storage.read_only import open_for_reading
from seawall.storage.segments.delete_sidecar import DeletedSeqs, write_deletes
from seawall.storage.snapshots import Snapshot
from seawall.storage.verify import ExpectedBatches, KnownTopic, Verification
from seawall.testing import SimClock, SimCrash, SimDisk

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, checkpoint_size=1 << 40)
LARGE = b"large" * 20_000

TOPIC = "topics/00000001"
ACTIVE = f"{TOPIC}/{9:020d}.active"


def fill(log: EmbeddedLog) -> None:
    """Seqs 1–4 and 5–8 sealed, 9 and 10 flushed, 11–13 only in the log; two snapshots."""
    log.create_topic("events", segment_max_records=4)
    for seqs in (range(1, 5), range(5, 9)):
        log.publish("events", [b"record %d" % seq for seq in seqs])
    log.checkpoint()
    log.publish("events", [b"record 9"])
    log.checkpoint()
    log.publish("events", [LARGE])
    log.publish("events", [b"record 11", b"record 12", b"record 13"])


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cleanly closed directory; never changed."""
    path = tmp_path_factory.mktemp("closed") / "data"
    with open_log(path, SETTINGS) as log:
        fill(log)
    return path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory left by a killed process; never changed."""
    home = tmp_path_factory.mktemp("killed")
    with open_log(home / "live", SETTINGS) as log:
        fill(log)
        shutil.copytree(home / "live", home / "data")
    return home / "data"


@pytest.fixture
def data(closed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(closed, tmp_path / "data")


def verify(path: Path, files: OsFiles | None = None) -> tuple[list[Finding], Totals]:
    files = files or OsFiles()
    with open_for_reading(files, str(path)) as directory:
        verification = Verification(files, directory, lambda snapshot: known_topics(files, directory, snapshot))
        return list(verification.run()), verification.totals


def findings(path: Path) -> list[tuple[str, int | None, int | None]]:
    return [(os.path.relpath(each.path, path), each.first_seq, each.last_seq) for each in verify(path)[0]]


def sealed(path: Path, first_seq: int) -> Path:
    [found] = (path / TOPIC).glob(f"{first_seq:020d}-*.sealed")
    return found


def snapshots(path: Path) -> list[Path]:
    return sorted((path / "meta").iterdir())


def wal(path: Path) -> list[Path]:
    return sorted((path / "wal").glob("*.wal"))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    return {str(each): (each.read_bytes(), each.stat().st_mtime_ns) for each in path.rglob("*") if each.is_file()}


# --- sound directories ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["closed", "killed"])
def test_an_undamaged_directory_has_no_findings_and_is_not_changed(state: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(state)
    before = tree(path)
    found, totals = verify(path)
    assert found == []
    assert tree(path) == before
    assert (totals.batch_count, totals.record_count, totals.damage_count) == (5, 13, 0)
    # Two segments with their indexes, one active segment, two snapshots, and the log.
    assert totals.file_count == 7 + len(wal(path))
    assert totals.byte_count == sum(
        len(content)
        for name, (content, _) in before.items()
        if not name.endswith(("LOCK", "FORMAT", "BALLAST", ".preparing"))
    )
    assert totals.logged_batches >= 8
    assert totals.notes == []


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A directory whose log was trimmed."""
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("events")
        for _ in range(4):
            log.publish("events", [b"x" * 40_000])
            log.checkpoint()
    assert wal(tmp_path / "data")[0].name != f"wal-{0:020d}.wal"
    return tmp_path / "data"


def test_a_log_trimmed_by_checkpoints_has_no_findings(cut: Path) -> None:
    assert findings(cut) == []


def test_a_trimmed_log_without_snapshots_is_damage(cut: Path) -> None:
    for path in snapshots(cut):
        flip(path, DATA_START + 50)
    newer, older, log, *_ = verify(cut)[0]
    assert "no other snapshot is whole" in newer.remedy
    assert newer.remedy == older.remedy
    assert log.what.startswith("addresses 0 to ")


def test_an_empty_directory_has_no_findings(tmp_path: Path) -> None:
    open_log(tmp_path / "data", SETTINGS).close()
    assert findings(tmp_path / "data") == []


def test_a_crash_gap_is_no_damage(killed: Path, tmp_path: Path) -> None:
    path = shutil.copytree(killed, tmp_path / "data")
    with open_log(path, SETTINGS) as log:
        log.publish("events", [b"after the gap"])
        log.checkpoint()
    assert findings(path) == []


def test_a_torn_tail_is_no_damage(killed: Path, tmp_path: Path) -> None:
    path = shutil.copytree(killed, tmp_path / "data")
    last = wal(path)[-1]
    content = last.read_bytes()
    end = len(content.rstrip(b"\0"))
    flip(last, end - 1)
    assert findings(path) == []


def test_a_directory_without_lock_can_be_verified(data: Path) -> None:
    (data / "LOCK").unlink()
    assert findings(data) == []
    assert not (data / "LOCK").exists()


def test_unknown_files_and_files_of_deleted_topics_are_notes(data: Path) -> None:
    with open_log(data, SETTINGS) as log:
        log.delete_topic("events")
    # Files in the directory of a deleted topic are noted; an empty directory is not.
    (data / "topics" / "00000007").mkdir()
    (data / TOPIC).mkdir(exist_ok=True)
    (data / ACTIVE).write_bytes(b"left behind")
    for name in ("notes.txt", "meta/notes.txt", "wal/notes.txt", "topics/notes"):
        (data / name).write_text("mine")
    (data / "meta" / f"snapshot-{7:020d}.meta.replacing").write_text("debris")
    found, totals = verify(data)
    assert found == []
    assert [note.split(": ")[0].removeprefix(f"{data}/") for note in totals.notes] == [
        *("notes.txt", "meta/notes.txt", "wal/notes.txt", TOPIC, "topics/notes")
    ]


def test_unknown_names_and_unused_segments_of_a_topic_are_notes(data: Path) -> None:
    (data / TOPIC / "notes.txt").write_text("mine")
    shutil.copy(data / ACTIVE, data / TOPIC / f"{99:020d}.active")
    segment = Preface(FileKind.SEGMENT, (data / "FORMAT").read_bytes()[16:32], first=99, topic_id=1)
    (data / TOPIC / f"{99:020d}.active").write_bytes(segment.encode())
    found, totals = verify(data)
    assert found == []
    assert [note.split(": ")[1] for note in totals.notes] == [
        *("not a file of Seawall; it was not read", "created and never used; the next open removes it")
    ]


# --- directories that cannot be verified ---------------------------------------------------------------------------


def test_an_open_directory_is_refused(tmp_path: Path) -> None:
    with (
        open_log(tmp_path / "data", SETTINGS),
        pytest.raises(LockedError, match=r"in use by process \d+; stop that one"),
    ):
        open_for_reading(OsFiles(), str(tmp_path / "data"))


def test_a_path_without_a_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no data directory"):
        open_for_reading(OsFiles(), f"{tmp_path}/")


def test_a_directory_without_format_file_is_refused(data: Path) -> None:
    flip(data / "FORMAT", 20)
    with pytest.raises(CorruptionError, match=r"FORMAT: checksum .*restore the file"):
        verify(data)


@pytest.mark.parametrize("name", ["meta", "wal", "topics"])
def test_a_missing_part_is_named(data: Path, name: str) -> None:
    shutil.rmtree(data / name)
    with pytest.raises(CorruptionError, match=f"{name} is missing"):
        verify(data)
    # The lock was released.
    with pytest.raises(CorruptionError):
        verify(data)


# --- damage in segments --------------------------------------------------------------------------------------------


def test_a_damaged_batch_of_a_sealed_segment_is_named(data: Path) -> None:
    path = sealed(data, 5)
    flip(path, path.stat().st_size - 3)
    [found] = verify(data)[0]
    assert (found.path, found.from_at, found.to_at) == (str(path), DATA_START, path.stat().st_size)
    assert (found.first_seq, found.last_seq) == (5, 8)
    assert "restore" in found.remedy


def test_a_damaged_preface_of_a_sealed_segment_loses_no_record(data: Path) -> None:
    path = sealed(data, 1)
    flip(path, 41)
    [found] = verify(data)[0]
    assert (found.from_at, found.to_at, found.what) == (0, DATA_START, "damaged; no record is lost by it")


def test_a_truncated_sealed_segment_is_named(data: Path) -> None:
    path = sealed(data, 1)
    path.write_bytes(path.read_bytes()[:-1])
    assert findings(data) == [(os.path.relpath(path, data), 1, 4)]


def test_a_segment_under_a_foreign_name_is_named(data: Path) -> None:
    shutil.copy(sealed(data, 1), sealed(data, 5))
    assert [(name, first) for name, first, _ in findings(data)] == [(os.path.relpath(sealed(data, 5), data), 5)]


@pytest.mark.parametrize("damage", [lambda path: flip(path, DATA_START + 11), Path.unlink])
def test_a_damaged_index_is_named_and_loses_no_record(data: Path, damage: Callable[[Path], None]) -> None:
    path = data / TOPIC / f"{5:020d}.index"
    damage(path)
    [found], totals = verify(data)
    assert (found.path, found.first_seq, found.last_seq) == (str(path), 5, 8)
    assert found.remedy.startswith("nothing is lost")
    assert totals.record_count == 13


def test_an_index_that_contradicts_the_data_is_named(data: Path) -> None:
    shutil.copy(data / TOPIC / f"{1:020d}.index", data / TOPIC / f"{5:020d}.index")
    assert findings(data) == [(f"{TOPIC}/{5:020d}.index", 5, 8)]


def test_a_damaged_flushed_batch_of_an_active_segment_is_named(data: Path) -> None:
    flip(data / ACTIVE, DATA_START + 100)
    assert findings(data) == [(ACTIVE, 9, 9)]
    flip(data / ACTIVE, DATA_START + 1000)
    assert findings(data) == [(ACTIVE, 9, 10)]


def test_space_of_unflushed_batches_may_contain_any_bytes(data: Path) -> None:
    end = (data / ACTIVE).stat().st_size
    with (data / ACTIVE).open("r+b") as file:
        file.seek(DATA_START + 200 + len(LARGE) + 96)
        file.write(b"\xff" * 20)
    assert (data / ACTIVE).stat().st_size == end
    assert findings(data) == []


def test_a_damaged_preface_of_an_active_segment_is_named(data: Path) -> None:
    flip(data / ACTIVE, 41)
    assert [(each.path, each.from_at, each.to_at) for each in verify(data)[0]] == [(str(data / ACTIVE), 0, DATA_START)]


def test_a_missing_active_segment_is_named(data: Path) -> None:
    (data / ACTIVE).unlink()
    assert findings(data) == [(ACTIVE, 9, 13)]


def test_a_missing_segment_that_the_log_still_contains_is_no_damage(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("events")
        log.publish("events", [b"a"])
    (tmp_path / "data" / TOPIC / f"{1:020d}.active").unlink()
    assert findings(tmp_path / "data") == []


def test_a_missing_sealed_segment_is_named(data: Path) -> None:
    sealed(data, 5).unlink()
    assert findings(data) == [(TOPIC, 5, 8)]
    sealed(data, 1).unlink()
    assert findings(data) == [(TOPIC, 1, 8)]


def test_sealed_segments_that_claim_the_same_seqs_are_named(data: Path) -> None:
    path = sealed(data, 1)
    parts = path.name.split("-")
    twin = path.with_name("-".join([parts[0], f"{3:020d}", *parts[2:]]))
    shutil.copy(path, twin)
    assert (os.path.relpath(path, data), 1, 3) in findings(data)


def test_damaged_deletes_are_named(data: Path) -> None:
    path = data / TOPIC / f"{5:020d}.deletes"
    segment = Preface(FileKind.SEGMENT, (data / "FORMAT").read_bytes()[16:32], first=5, topic_id=1)
    write_deletes(OsFiles(), str(path), DeletedSeqs.between(Seq(6), Seq(7)), segment)
    assert findings(data) == []
    flip(path, DATA_START + 9)
    assert findings(data) == [(f"{TOPIC}/{5:020d}.deletes", 5, None)]


# --- damage in snapshots and in the log ----------------------------------------------------------------------------


def test_a_damaged_snapshot_is_named(data: Path) -> None:
    older, newer = snapshots(data)
    flip(newer, DATA_START + 50)
    [found] = verify(data)[0]
    assert (found.path, found.from_at, found.to_at) == (str(newer), 0, newer.stat().st_size)
    assert "the snapshot before it" in found.remedy
    flip(older, DATA_START + 50)
    both = verify(data)[0]
    assert [each.path for each in both] == [str(newer), str(older)]
    assert all("the next opening reads all of it" in each.remedy for each in both)
    with open_log(data, SETTINGS) as log:
        assert log.describe("events").next_seq == 14


def test_a_snapshot_under_a_wrong_name_is_named(data: Path) -> None:
    newer = snapshots(data)[-1]
    wrong = newer.with_name(f"snapshot-{1:020d}.meta")
    newer.rename(wrong)
    assert [each.path for each in verify(data)[0]] == [str(wrong)]


def test_a_snapshot_that_is_too_large_is_not_read(data: Path) -> None:
    for path in snapshots(data):
        os.truncate(path, limits.SNAPSHOT_SIZE_MAX + 1)
    assert [each.path for each in verify(data)[0]] == [str(path) for path in reversed(snapshots(data))]


def test_damage_in_the_log_is_named(data: Path) -> None:
    first = wal(data)[0]
    at = first.read_bytes().index(b"record 11")
    flip(first, at)
    [found] = verify(data)[0]
    assert found.path == str(first)
    assert found.from_at <= at < found.to_at
    assert "restore" in found.remedy
    assert found.first_seq is None


def test_damage_that_only_a_snapshot_distinguishes_from_a_torn_tail_is_named(tmp_path: Path) -> None:
    with open_log(tmp_path / "live", SETTINGS) as log:
        log.create_topic("events")
        log.publish("events", [b"first"])
        log.checkpoint()
        log.publish("events", [b"second"])
        log.checkpoint()
        shutil.copytree(tmp_path / "live", tmp_path / "data")
    [path] = wal(tmp_path / "data")
    at = path.read_bytes().index(b"second")
    flip(path, at)
    [found] = verify(tmp_path / "data")[0]
    assert found.path == str(path)
    assert found.from_at <= at < found.to_at


def test_the_last_file_of_the_log_without_preface_is_named(data: Path) -> None:
    last = wal(data)[-1]
    flip(last, 10)
    found = verify(data)[0]
    assert [(each.path, each.from_at, each.to_at) for each in found] == [(str(last), 0, DATA_START)]
    assert "cannot be opened" in found[0].remedy


def test_without_the_log_active_segments_are_verified_alone(data: Path) -> None:
    flip(wal(data)[-1], 10)
    flip(data / ACTIVE, DATA_START + 100)
    assert findings(data)[1:] == [(ACTIVE, 9, 9)]
    assert verify(data)[1].batch_count == 3


def test_without_the_log_zeros_between_batches_are_no_damage(data: Path) -> None:
    flip(wal(data)[-1], 10)
    with (data / ACTIVE).open("r+b") as file:
        file.seek(DATA_START)
        file.write(bytes(96 + 5 + len(b"record 9")))
    assert len(findings(data)) == 1


def test_a_log_without_files_is_named(data: Path) -> None:
    for path in wal(data):
        path.unlink()
    assert [name for name, _, _ in findings(data)] == ["wal"]


def test_a_missing_beginning_of_the_log_is_named(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("events")
        log.publish("events", [b"x" * 40_000])
        log.publish("events", [b"x" * 40_000])
    first, _ = wal(tmp_path / "data")
    first.unlink()
    found = verify(tmp_path / "data")[0]
    assert found[0].path == str(tmp_path / "data" / "wal")
    assert found[0].what.startswith("addresses 0 to ")


def test_state_that_cannot_be_rebuilt_is_named(data: Path) -> None:
    def expect(_snapshot: Snapshot | None) -> Mapping[TopicId, KnownTopic]:
        raise CorruptionError("the catalog does not fit")

    files = OsFiles()
    with open_for_reading(files, str(data)) as directory:
        [found] = Verification(files, directory, expect).run()
    assert (found.path, found.what) == (str(data), "the catalog does not fit")


# --- sectors that cannot be read -----------------------------------------------------------------------------------


class FailingFiles(OsFiles):
    """A disk on which one file cannot be read."""

    __slots__ = ("_ending", "_number")

    def __init__(self, ending: str, number: int) -> None:
        super().__init__()
        self._ending = ending
        self._number = number

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> File:
        file = super().open(path, create=create, exclusive=exclusive, read_only=read_only)
        return FailingFile(file, self._number) if path.endswith(self._ending) else file


class FailingFile:
    def __init__(self, file: File, number: int) -> None:
        self._file = file
        self._number = number
        self.path = file.path
        self.size = file.size
        self.close = file.close

    def _fail(self, *_: object) -> bytes:
        raise OSError(self._number, os.strerror(self._number), self.path)

    read = read_into = _fail


@pytest.mark.parametrize("ending", [".sealed", ".index", ".active", ".meta"])
def test_unreadable_sectors_are_damage_of_their_file_only(closed: Path, ending: str) -> None:
    found, totals = verify(closed, FailingFiles(ending, errno.EIO))
    assert {Path(each.path).suffix for each in found} == {ending}
    assert all("Input/output error" in each.what for each in found)
    assert ending == ".sealed" or totals.record_count >= 8
    assert totals.damage_count == len(found)


def test_other_read_errors_are_raised(closed: Path) -> None:
    with pytest.raises(PermissionError):
        verify(closed, FailingFiles(".sealed", errno.EACCES))


def test_an_empty_topic_directory_is_no_damage(closed: Path) -> None:
    files = OsFiles()

    def expect(snapshot: Snapshot | None) -> Mapping[TopicId, KnownTopic]:
        known = dict(known_topics(files, directory, snapshot))
        topic = known[TopicId(1)]
        nothing = ExpectedBatches(topic.segments[Seq(9)].entries[:0], frozenset())
        return {TopicId(1): KnownTopic({**topic.segments, Seq(99): nothing}, topic.live)}

    with open_for_reading(files, str(closed)) as directory:
        assert list(Verification(files, directory, expect).run()) == []


def test_every_flipped_bit_of_a_small_segment_is_detected(data: Path) -> None:
    path = sealed(data, 1)
    content = path.read_bytes()
    chance = np.random.default_rng(1)
    for at in chance.choice(np.arange(DATA_START, len(content)), 40, replace=False):
        flip(path, int(at))
        assert findings(data) == [(os.path.relpath(path, data), 1, 4)]
        path.write_bytes(content)


# --- crashes are no damage -----------------------------------------------------------------------------------------


def work(disk: SimDisk) -> None:
    """Two runs of a store, with rolls, large batches, checkpoints, a changed and a deleted topic."""
    settings = StoreSettings(
        wal_file_size=limits.WAL_FILE_SIZE_MIN, ceiling_step=8, ballast_size=4096, checkpoint_size=1 << 40
    )
    for life in range(2):
        machine = Machine(disk, SimClock(wall_ns=1_700_000_000_000_000_000 + life), random.Random(life).randbytes, 7)
        log = EmbeddedLog(open_store(machine, "/data", settings))
        log.create_topic(f"topic-{life}", segment_max_records=3)
        for name in log.topics():
            log.publish(name, [b"a", b"b"])
            log.publish(name, [b"c" * limits.LARGE_BATCH_SIZE])
            log.checkpoint()
            log.publish(name, [b"d", b"e", b"f"])
        log.create_topic("short", durability="memory")
        log.publish("short", [b"gone"])
        log.checkpoint()
        log.delete_topic("short")
        log.close()


def verify_simulated(disk: SimDisk) -> list[Finding]:
    with open_for_reading(disk, "/data") as directory:
        return list(Verification(disk, directory, lambda snapshot: known_topics(disk, directory, snapshot)).run())


def test_a_crash_is_never_reported_as_damage() -> None:
    disk = SimDisk(seed=0)
    work(disk)
    calls = disk.calls
    assert verify_simulated(disk) == []
    verified = 0
    for seed, crash_at in enumerate(range(1, calls, 4)):
        disk = SimDisk(seed=seed)
        disk.crash_after(crash_at)
        with pytest.raises(SimCrash):
            work(disk)
        disk.crash()
        if disk.exists("/data/FORMAT"):
            assert verify_simulated(disk) == [], f"seed {seed}, crash at call {crash_at}"
            verified += 1
    assert verified > 50
