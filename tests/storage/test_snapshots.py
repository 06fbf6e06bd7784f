"""Metadata snapshots: complete or absent, the newest valid one wins, damaged ones are reported and kept."""

import errno
import itertools
import struct
from pathlib import Path

import pytest

from seawall import limits
from seawall.errors import CorruptionError, LimitError, SyncError, UnsupportedError
from seawall.io.disk.files import write_all
from seawall.storage.preface import FORMAT, FileKind, Preface
from seawall.storage.snapshots import SectionKind, Snapshot, SnapshotStore, snapshot_name
from seawall.testing import SimCrash, SimDisk
from seawall.wire.format.frames import checksum

DIRECTORY_ID = bytes(range(16))
META = "/data/meta"
SAMPLE = Path(__file__).parent / "samples" / "snapshot-00000000000000000042.meta"


def snapshot(position: int, *, at: int | None = None, rows: bytes = b"") -> Snapshot:
    sections = {
        SectionKind.CATALOG: b'{"next_topic_id":3,"term":1}',
        SectionKind.TOPICS: b'{"topics":[]}',
        SectionKind.CLIENT_ROWS: rows or position.to_bytes(8, "little") * 8,
    }
    return Snapshot(position, position * 100 if at is None else at, 1_700_000_000_000_000_000, sections)


def new_disk(seed: int = 0, **options) -> SimDisk:
    disk = SimDisk(seed, **options)
    disk.make_directory(META)
    disk.sync_directory("/")
    disk.sync_directory("/data")
    return disk


def store_on(disk: SimDisk) -> SnapshotStore:
    return SnapshotStore(disk, META, DIRECTORY_ID)


def names_on(disk: SimDisk) -> list[str]:
    return disk.list(META)


def put(disk: SimDisk, name: str, data: bytes) -> None:
    file = disk.open(f"{META}/{name}", create=True)
    write_all(file, [data], 0)
    file.sync()
    file.close()
    disk.sync_directory(META)


# --- the file ----------------------------------------------------------------------------------------------------


def sample() -> Snapshot:
    """Content of the committed sample. `python tests/storage/test_snapshots.py` writes it, for a new format only."""
    sections = {
        SectionKind.CATALOG: b'{"next_topic_id":2,"term":1}',
        SectionKind.TOPICS: b'{"topics":[]}',
        SectionKind.CURSORS: b'{"cursors":[]}',
        SectionKind.SEGMENTS: b'{"segments":[]}',
        SectionKind.KEYS: b'{"keys":[]}',
        SectionKind.DELETED: b"",
        SectionKind.CLIENT_ROWS: bytes(range(64)),
    }
    return Snapshot(42, 8_192, 1_700_000_000_000_000_000, sections)


def test_the_committed_sample_file_is_readable() -> None:
    data = SAMPLE.read_bytes()
    assert Snapshot.parse(data, directory_id=DIRECTORY_ID) == sample()
    assert sample().encode(DIRECTORY_ID) == data


def test_a_snapshot_round_trips() -> None:
    for given in (snapshot(7), Snapshot(0, 0, 0, {}), snapshot(2**64 - 1, at=0)):
        assert Snapshot.parse(given.encode(DIRECTORY_ID), directory_id=DIRECTORY_ID) == given


def test_sections_are_bytes_or_documents() -> None:
    given = snapshot(7)
    assert given.document(SectionKind.TOPICS) == {"topics": []}
    assert given.section(SectionKind.CLIENT_ROWS) == b"\7\0\0\0\0\0\0\0" * 8
    assert (given.section(SectionKind.KEYS), given.document(SectionKind.KEYS)) == (b"", {})
    with pytest.raises(CorruptionError, match=r"position 7.*CLIENT_ROWS"):
        given.document(SectionKind.CLIENT_ROWS)


def test_every_changed_byte_is_detected() -> None:
    data = snapshot(7).encode(DIRECTORY_ID)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        with pytest.raises(CorruptionError):
            Snapshot.parse(bytes(changed), directory_id=DIRECTORY_ID)


def test_every_truncation_is_detected() -> None:
    data = snapshot(7).encode(DIRECTORY_ID)
    for length in (*range(0, 4096, 97), *range(4096, len(data))):
        with pytest.raises(CorruptionError):
            Snapshot.parse(data[:length], directory_id=DIRECTORY_ID)


def body(
    position: int = 7, length: int | None = None, count: int = 0, reserved: int = 0, sections: bytes = b""
) -> bytes:
    length = len(sections) if length is None else length
    return struct.pack("<QQQII", position, 0, length, count, reserved) + sections


def section(kind: int, content: bytes, *, reserved: int = 0, length: int | None = None) -> bytes:
    return struct.pack("<IIQ", kind, reserved, len(content) if length is None else length) + content


@pytest.mark.parametrize(
    "content",
    [
        body(position=8),
        body(reserved=1),
        body(length=1),
        body(count=1),
        body(count=1, sections=section(0, b"")),
        body(count=1, sections=section(99, b"")),
        body(count=1, sections=section(1, b"", reserved=1)),
        body(count=1, sections=section(1, b"x", length=2)),
        body(count=2, sections=section(2, b"x") + section(1, b"x")),
        body(count=2, sections=section(1, b"x") + section(1, b"x")),
        body(count=1, sections=section(1, b"x") + b"y"),
    ],
)
def test_content_that_no_writer_produces_is_corruption_despite_a_valid_checksum(content: bytes) -> None:
    data = Preface(FileKind.SNAPSHOT, DIRECTORY_ID, first=7).encode() + content
    with pytest.raises(CorruptionError):
        Snapshot.parse(data + struct.pack("<I", checksum(data)), directory_id=DIRECTORY_ID)


def test_a_contradicting_preface_is_corruption() -> None:
    for options in ({"first": 8}, {"first": 7, "salt": 1}, {"first": 7, "topic_id": 1}):
        data = Preface(FileKind.SNAPSHOT, DIRECTORY_ID, **options).encode() + body()
        with pytest.raises(CorruptionError, match="preface"):
            Snapshot.parse(data + struct.pack("<I", checksum(data)), directory_id=DIRECTORY_ID)


def test_a_snapshot_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SNAPSHOT_SIZE_MAX", 5_000)
    with pytest.raises(LimitError, match="at most 5000"):
        snapshot(7, rows=bytes(900)).encode(DIRECTORY_ID)
    disk = new_disk()
    put(disk, snapshot_name(7), bytes(5_001))
    assert "at most 5000" in store_on(disk).load().damaged[snapshot_name(7)]


# --- the store ---------------------------------------------------------------------------------------------------


def test_an_empty_directory_has_no_snapshot() -> None:
    store = store_on(new_disk())
    loaded = store.load()
    assert (loaded.snapshot, loaded.damaged, loaded.unknown) == (None, {}, ())
    assert store.wal_needed_from == 0


def test_the_two_newest_are_kept() -> None:
    disk = new_disk()
    store = store_on(disk)
    for position in (5, 10, 20, 20, 30):
        store.write(snapshot(position))
    assert names_on(disk) == [snapshot_name(20), snapshot_name(30)]
    assert store_on(disk).load().snapshot == snapshot(30)
    assert store.wal_needed_from == 2000


def test_the_log_is_kept_until_two_snapshots_are_known_valid() -> None:
    disk = new_disk()
    store = store_on(disk)
    store.write(snapshot(10))
    assert store.wal_needed_from == 0
    store.write(snapshot(20))
    assert store.wal_needed_from == 1000
    again = store_on(disk)
    again.load()
    assert again.wal_needed_from == 0, "the older one was not looked at"
    again.write(snapshot(30))
    assert again.wal_needed_from == 2000


def test_a_damaged_newer_snapshot_is_reported_kept_and_skipped() -> None:
    disk = new_disk()
    store = store_on(disk)
    store.write(snapshot(10))
    store.write(snapshot(20))
    disk.flip_bit(f"{META}/{snapshot_name(20)}", 4200, 3)
    store = store_on(disk)
    loaded = store.load()
    assert loaded.snapshot == snapshot(10)
    assert list(loaded.damaged) == [snapshot_name(20)]
    assert "checksum" in loaded.damaged[snapshot_name(20)]
    store.write(snapshot(30))
    store.write(snapshot(40))
    assert names_on(disk) == [snapshot_name(20), snapshot_name(30), snapshot_name(40)], "damage is never removed"
    assert store.wal_needed_from == 3000


def test_all_snapshots_may_be_damaged() -> None:
    disk = new_disk()
    put(disk, snapshot_name(10), b"")
    put(disk, snapshot_name(20), b"SEAWALL?" * 600)
    put(disk, snapshot_name(30), snapshot(31).encode(DIRECTORY_ID))
    put(disk, snapshot_name(40), snapshot(40).encode(bytes(16)))
    loaded = store_on(disk).load()
    assert loaded.snapshot is None
    assert sorted(loaded.damaged) == [snapshot_name(position) for position in (10, 20, 30, 40)]
    assert "position 31" in loaded.damaged[snapshot_name(30)]


def test_an_unreadable_sector_is_damage_and_other_errors_are_raised() -> None:
    disk = new_disk()
    store = store_on(disk)
    store.write(snapshot(10))
    store.write(snapshot(20))
    disk.fail("read", error=errno.EIO)
    assert store_on(disk).load().snapshot == snapshot(10)
    disk.fail("open", error=errno.EMFILE)
    with pytest.raises(OSError, match="open files"):
        store_on(disk).load()


def test_a_newer_format_is_not_damage() -> None:
    disk = new_disk()
    data = Preface(FileKind.SNAPSHOT, DIRECTORY_ID, first=7, format=FORMAT + 1).encode()
    put(disk, snapshot_name(7), data)
    with pytest.raises(UnsupportedError, match=f"format {FORMAT + 1}"):
        store_on(disk).load()


def test_temporary_files_are_removed_and_unknown_files_stay() -> None:
    disk = new_disk()
    for name in (snapshot_name(5) + ".replacing", "notes.txt", "other.replacing", "snapshot-1.meta"):
        put(disk, name, b"x")
    store = store_on(disk)
    assert store.load().unknown == ("notes.txt", "other.replacing", "snapshot-1.meta")
    store.write(snapshot(10))
    assert names_on(disk) == ["notes.txt", "other.replacing", snapshot_name(10), "snapshot-1.meta"]


def test_a_failed_sync_is_fatal_and_leaves_the_older_snapshot() -> None:
    disk = new_disk()
    store = store_on(disk)
    store.write(snapshot(10))
    disk.fail("sync")
    with pytest.raises(SyncError):
        store.write(snapshot(20))
    assert store_on(disk).load().snapshot == snapshot(10)


# --- crashes -----------------------------------------------------------------------------------------------------


def scenario(disk: SimDisk, done: list[int]) -> None:
    store = store_on(disk)
    store.load()
    for position in (10, 20, 30, 40):
        store.write(snapshot(position, rows=bytes([position]) * 1500))
        done.append(position)


@pytest.mark.parametrize("unit_size", [512, 4096])
@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_the_newest_finished_snapshot_survives_a_crash_anywhere(keep: str, unit_size: int) -> None:
    for calls in itertools.count(1):
        disk = new_disk(calls, unit_size=unit_size)
        done: list[int] = []
        disk.crash_after(calls)
        try:
            scenario(disk, done)
        except SimCrash:
            disk.crash(keep)
        else:
            break
        store = store_on(disk)
        loaded = store.load()
        found = 0 if loaded.snapshot is None else loaded.snapshot.position
        assert found in (done[-1] if done else 0, (done[-1] if done else 0) + 10), calls
        if loaded.snapshot is not None:
            assert loaded.snapshot == snapshot(found, rows=bytes([found]) * 1500)
        assert (loaded.damaged, loaded.unknown) == ({}, ())
        for position in (50, 60):
            store.write(snapshot(position))
        assert names_on(disk) == [snapshot_name(50), snapshot_name(60)]
    assert calls > 20


if __name__ == "__main__":
    SAMPLE.write_bytes(sample().encode(DIRECTORY_ID))
