"""Segments: positions, sealing, verified reads, damage that is reported and skipped, crashes at every call."""

from __future__ import annotations

import dataclasses
import errno
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall import limits
from seawall.errors import (
    ConflictError,
    CorruptionError,
    DiskFullError,
    InvalidInputError,
    InvariantError,
    SegmentDamageError,
    SyncError,
)
from seawall.io.disk.files import OsFiles, write_all
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.storage.segments import scan as segment_scan
from seawall.storage.segments.batch_index import BatchIndex, write_sidecar
from seawall.storage.segments.delete_sidecar import DeletedSeqs, write_deletes
from seawall.storage.segments.drops import drop_segments
from seawall.storage.segments.limits import SealReason, SegmentLimits, reserve_target, seal_reason
from seawall.storage.segments.names import SealedName, active_name, deletes_name, index_name
from seawall.storage.segments.scan import SegmentDamage, find_damage, read_batches, scan_segment
from seawall.storage.segments.segment import SealedSegment, SegmentWriter
from seawall.storage.segments.topic_directory import TopicDirectory, read_segment_preface
from seawall.testing import SimCrash, SimDisk
from seawall.wire.format.batches import batch_header, encode_batch

TOPIC = 5
DIRECTORY_ID = b"directory-id-16b"
MS = 1_000_000
START_NS = 1_700_000_000_000 * MS
PATH = f"/t/{active_name(10)}"


def make_batch(seq: int, count: int = 1, value: bytes = b"value", *, position: int | None = None) -> bytes:
    """A stored batch of `count` records with one value; time, offset and position follow from its seq."""
    block = (b"\1" + len(value).to_bytes(4, "little") + value) * count
    header = batch_header(
        block,
        topic_id=TOPIC,
        client_id=7,
        client_seq=1,
        session_epoch=1,
        record_count=count,
        timestamp_ns=START_NS + seq * MS,
    )
    position = seq if position is None else position
    return encode_batch(dataclasses.replace(header, position=position, base_seq=seq, base_offset=100 * seq), block)


def chain(*values: bytes, first_seq: int = 10, count: int = 2) -> list[bytes]:
    return [make_batch(first_seq + index * count, count, value) for index, value in enumerate(values)]


BATCHES = chain(b"one", b"three" * 3, b"", b"seven")


def new_disk(seed: int = 0, **options: Any) -> SimDisk:
    disk = SimDisk(seed, **options)
    disk.make_directory("/t")
    disk.sync_directory("/")
    return disk


def home_on(files: Any, directory: str = "/t") -> TopicDirectory:
    return TopicDirectory(files, directory, DIRECTORY_ID, TOPIC)


def add(segment: SegmentWriter, batch: bytes) -> int:
    """Assign a position to one batch, index it and write it."""
    at = segment.allocate(len(batch))
    note(segment, batch, at)
    segment.write_at(at, [batch[:96], batch[96:]])
    return at


def note(segment: SegmentWriter, batch: bytes, at: int) -> None:
    numbers = {"timestamp_ns": (20, 8), "base_offset": (72, 8), "position": (56, 8), "base_seq": (64, 8)}
    numbers["count"] = (28, 4)
    fields = {name: int.from_bytes(batch[here : here + size], "little") for name, (here, size) in numbers.items()}
    segment.index.append(at=at, length=len(batch), **fields)


def new_active(home: TopicDirectory, batches: list[bytes], first_seq: int = 10) -> SegmentWriter:
    segment = SegmentWriter.create(home, first_seq, START_NS)
    for batch in batches:
        add(segment, batch)
    return segment


def new_sealed(home: TopicDirectory, batches: list[bytes] = BATCHES, first_seq: int = 10) -> SealedSegment:
    return new_active(home, batches, first_seq).seal()


def content(files: Any, path: str) -> bytes:
    file = files.open(path, read_only=True)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def overwrite(files: Any, path: str, data: bytes, at: int) -> None:
    file = files.open(path)
    try:
        write_all(file, [data], at)
    finally:
        file.close()


def names(files: Any, directory: str = "/t") -> list[str]:
    return files.list(directory)


# --- when to seal, how much to reserve -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "size", "age_ms", "reason"),
    [
        (9, 999, 59, None),
        (10, 999, 59, SealReason.RECORDS),
        (9, 1000, 59, SealReason.SIZE),
        (9, 999, 60, SealReason.AGE),
        (10, 1000, 60, SealReason.RECORDS),
        (0, 0, 10**6, None),
        (1, 0, -5, None),
    ],
)
def test_a_segment_is_full_by_records_bytes_or_age(records: int, size: int, age_ms: int, reason: Any) -> None:
    bounds = SegmentLimits(records=10, size=1000, age_ms=60)
    assert seal_reason(records, size, START_NS, START_NS + age_ms * MS, bounds) is reason


def test_a_limit_of_zero_means_no_limit() -> None:
    assert seal_reason(10**9, 10**12, 0, 10**18, SegmentLimits(0, 0, 0)) is None


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_reservation_is_sufficient_and_bounded(reserved: int, needed: int) -> None:
    target = reserve_target(reserved, needed)
    assert target >= needed
    assert target >= reserved + limits.SEGMENT_RESERVE_SIZE_MIN
    assert target <= max(needed, reserved + limits.SEGMENT_RESERVE_SIZE_MAX)


# --- the active segment ----------------------------------------------------------------------------------------


def test_a_new_segment_is_durable_with_its_preface() -> None:
    disk = new_disk()
    segment = SegmentWriter.create(home_on(disk), 10, START_NS)
    assert (segment.path, segment.first_seq, segment.end, segment.size) == (PATH, 10, DATA_START, 0)
    disk.crash("none")
    data = content(disk, PATH)
    assert len(data) == limits.SEGMENT_RESERVE_SIZE_MIN
    preface = Preface.parse(data[:DATA_START], kind=FileKind.SEGMENT, directory_id=DIRECTORY_ID)
    assert (preface.first, preface.topic_id, preface.created_ns) == (10, TOPIC, START_NS)
    assert not data[DATA_START:].strip(b"\0")


def test_an_existing_segment_is_not_created_again() -> None:
    disk = new_disk()
    SegmentWriter.create(home_on(disk), 10, START_NS)
    with pytest.raises(FileExistsError):
        SegmentWriter.create(home_on(disk), 10, START_NS)


def test_a_full_disk_is_reported_before_the_segment_exists() -> None:
    disk = new_disk(capacity=limits.SEGMENT_RESERVE_SIZE_MIN - 1)
    with pytest.raises(DiskFullError, match="no space"):
        SegmentWriter.create(home_on(disk), 10, START_NS)
    assert names(disk) == []


@pytest.mark.parametrize("call", ["allocate", "write"])
def test_a_failed_creation_leaves_no_file(call: Any) -> None:
    disk = new_disk()
    disk.fail(call, error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        SegmentWriter.create(home_on(disk), 10, START_NS)
    assert names(disk) == []
    SegmentWriter.create(home_on(disk), 10, START_NS)


def test_a_failed_sync_of_a_new_segment_is_fatal() -> None:
    disk = new_disk()
    disk.fail("sync")
    with pytest.raises(SyncError):
        SegmentWriter.create(home_on(disk), 10, START_NS)


def test_segment_positions_are_adjacent_and_reserved() -> None:
    disk = new_disk()
    segment = SegmentWriter.create(home_on(disk), 10, START_NS)
    file = disk.open(PATH)
    end = DATA_START
    for length in (96, 1000, 60_000, 96, 300_000, 16_777_216, 200):
        assert segment.allocate(length) == end
        end += length
        assert segment.end == end
        assert segment.size == end - DATA_START
        assert file.size() >= end
        assert file.size() % limits.PAGE_SIZE == 0
    assert file.size() <= end + limits.SEGMENT_RESERVE_SIZE_MAX + limits.PAGE_SIZE


def test_space_can_be_reserved_ahead() -> None:
    disk = new_disk(capacity=500_000)
    segment = SegmentWriter.create(home_on(disk), 10, START_NS)
    segment.reserve(1_000)
    assert disk.open(PATH).size() == limits.SEGMENT_RESERVE_SIZE_MIN
    segment.reserve(300_000)
    reserved = disk.open(PATH).size()
    assert reserved >= DATA_START + 300_000
    assert segment.end == DATA_START
    with pytest.raises(DiskFullError):
        segment.reserve(600_000)
    assert segment.allocate(300_000) == DATA_START
    assert disk.open(PATH).size() == reserved


@pytest.mark.parametrize("length", [-1, 0, 95])
def test_a_length_below_a_batch_header_is_refused(length: int) -> None:
    segment = SegmentWriter.create(home_on(new_disk()), 10, START_NS)
    with pytest.raises(InvalidInputError, match="at least 96"):
        segment.allocate(length)


def test_a_full_disk_reserves_only_what_fits() -> None:
    disk = new_disk(capacity=100_000)
    segment = SegmentWriter.create(home_on(disk), 10, START_NS)
    first = segment.allocate(90_000)
    assert first == DATA_START
    before = segment.end
    with pytest.raises(DiskFullError):
        segment.allocate(10_000)
    assert segment.end == before
    segment.write_at(first, [b"x" * 90_000])
    segment.sync()


def test_only_assigned_positions_can_be_written() -> None:
    disk = new_disk()
    segment = SegmentWriter.create(home_on(disk), 10, START_NS)
    at = segment.allocate(100)
    for start, length in ((at - 1, 10), (at, 101), (at + 100, 1)):
        with pytest.raises(InvalidInputError, match="never assigned"):
            segment.write_at(start, [b"x" * length])
        with pytest.raises(InvalidInputError, match="never assigned"):
            segment.copy_from(disk.open(PATH), 0, start, length)


def test_batches_are_copied_from_another_file_in_several_steps() -> None:
    disk = new_disk()
    log = disk.open("/log", create=True)
    stored = b"".join(BATCHES)
    write_all(log, [b"epoch" + stored], 0)
    segment = SegmentWriter.create(home_on(disk), 10, START_NS)
    at = segment.allocate(len(stored))
    disk.fail("copy_range", error="short")
    disk.fail("copy_range", nth=2, error="short")
    segment.copy_from(log, 5, at, len(stored))
    assert content(disk, PATH)[at : at + len(stored)] == stored
    segment.copy_from(log, 5, at, len(stored))
    assert content(disk, PATH)[at : at + len(stored)] == stored
    with pytest.raises(CorruptionError, match="ends 5 bytes before"):
        segment.copy_from(log, 10, at, len(stored))


def test_an_active_segment_reads_what_was_written() -> None:
    disk = new_disk()
    segment = new_active(home_on(disk), BATCHES)
    assert bytes(segment.read(0, 4)) == b"".join(BATCHES)
    assert bytes(segment.read(1, 3)) == b"".join(BATCHES[1:3])
    assert bytes(segment.read(2, 2)) == b""
    late = make_batch(18)
    at = segment.allocate(len(late))
    note(segment, late, at)
    with pytest.raises(SegmentDamageError, match="seqs 18 to 18"):
        segment.read(3, 5)
    segment.write_at(at, [late])
    assert bytes(segment.read(3, 5)) == BATCHES[3] + late


def test_synced_batches_survive_a_crash() -> None:
    disk = new_disk()
    segment = new_active(home_on(disk), BATCHES)
    segment.sync()
    disk.crash("none")
    assert scan_segment(disk.open(PATH), TOPIC, 10).index.entries.tolist() == segment.index.entries.tolist()


# --- sealing ---------------------------------------------------------------------------------------------------


def test_a_sealed_segment_is_renamed_truncated_indexed_and_durable() -> None:
    disk = new_disk()
    active = new_active(home_on(disk), BATCHES)
    sealed = active.seal()
    disk.crash("none")
    name = SealedName.covering(10, 17, START_NS + 10 * MS, START_NS + 16 * MS)
    assert sealed.name == name
    assert names(disk) == sorted((str(name), index_name(10)))
    assert content(disk, f"/t/{name}")[DATA_START:] == b"".join(BATCHES)
    again = SealedSegment(home_on(disk), name)
    assert again.load_index().entries.tolist() == active.index.entries.tolist()
    assert bytes(again.read(0, 4)) == b"".join(BATCHES)
    assert bytes(again.read(3, 3)) == b""
    assert again.damages() == again.verify() == []
    assert not again.repair_index()


def test_batches_leave_a_segment_read_only() -> None:
    view = new_sealed(home_on(new_disk())).read(0, 2)
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1


def test_a_segment_with_missing_batches_cannot_be_sealed() -> None:
    segment = new_active(home_on(new_disk()), BATCHES)
    segment.allocate(100)
    with pytest.raises(InvariantError, match="INV-SEALED-WHOLE"):
        segment.seal()


def test_an_empty_segment_cannot_be_sealed() -> None:
    with pytest.raises(InvalidInputError, match="neither first nor last"):
        SegmentWriter.create(home_on(new_disk()), 10, START_NS).seal()


@pytest.mark.parametrize(("call", "nth"), [("truncate", 1), ("open", 1), ("write", 1), ("rename", 1), ("rename", 2)])
def test_sealing_can_be_retried(call: Any, nth: int) -> None:
    disk = new_disk()
    segment = new_active(home_on(disk), BATCHES)
    disk.fail(call, nth=nth, error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        segment.seal()
    assert bytes(segment.read(0, 4)) == b"".join(BATCHES)
    late = make_batch(18)
    add(segment, late)
    sealed = segment.seal()
    assert bytes(sealed.read(0, 5)) == b"".join((*BATCHES, late))
    assert names(disk) == sorted((str(sealed.name), index_name(10)))


def test_a_failed_sync_of_the_data_is_fatal() -> None:
    disk = new_disk()
    segment = new_active(home_on(disk), BATCHES)
    disk.fail("sync", path="*.active")
    for _ in range(2):
        with pytest.raises(SyncError):
            segment.seal()
    assert names(disk) == [active_name(10)]


def test_sealing_replaces_no_other_segment() -> None:
    disk = new_disk()
    sealed = new_sealed(home_on(disk))
    again = new_active(home_on(disk), BATCHES)
    before = content(disk, sealed.path)
    with pytest.raises(ConflictError, match="move one of them away"):
        again.seal()
    assert content(disk, sealed.path) == before


def test_the_whole_life_on_the_real_file_system(tmp_path: Path) -> None:
    files = OsFiles()
    home = home_on(files, str(tmp_path))
    active = new_active(home, BATCHES)
    active.sync()
    sealed = active.seal()
    assert bytes(sealed.read(1, 4)) == b"".join(BATCHES[1:])
    (tmp_path / index_name(10)).unlink()
    sealed.close()
    assert bytes(sealed.read(0, 4)) == b"".join(BATCHES)
    assert sealed.repair_index()
    assert sealed.verify() == []
    drop_segments(home, [sealed])
    assert list(tmp_path.iterdir()) == []


# --- reading sealed segments -----------------------------------------------------------------------------------


def test_files_are_opened_on_demand_and_closed() -> None:
    disk = new_disk()
    sealed = new_sealed(home_on(disk))
    sealed.close()
    disk.fail("open", error=errno.EMFILE)
    with pytest.raises(OSError, match="open files"):
        sealed.read(0, 1)
    assert bytes(sealed.read(0, 1)) == BATCHES[0]
    assert bytes(sealed.read(1, 2)) == BATCHES[1]
    sealed.close()
    sealed.close()
    assert bytes(sealed.read(0, 1)) == BATCHES[0]


def test_a_rebuilt_index_has_the_same_bytes() -> None:
    disk = new_disk()
    sealed = new_sealed(home_on(disk))
    path = f"/t/{index_name(10)}"
    stored = content(disk, path)
    for damage in (lambda: disk.unlink(path), lambda: overwrite(disk, path, b"?", 4200)):
        damage()
        sealed.close()
        assert bytes(sealed.read(0, 4)) == b"".join(BATCHES)
        assert sealed.repair_index()
        assert not sealed.repair_index()
        assert content(disk, path) == stored


@pytest.mark.parametrize("seqs", [(8, 4), (10, 6)])
def test_an_index_of_other_seqs_is_refused(seqs: tuple[int, int]) -> None:
    disk = new_disk()
    sealed = new_sealed(home_on(disk))
    first_seq, batches = seqs
    other = new_active(home_on(disk), chain(*[b"x"] * batches, first_seq=first_seq), first_seq=99)
    write_sidecar(disk, f"/t/{index_name(10)}", other.index, home_on(disk).preface(10))
    sealed.close()
    assert bytes(sealed.read(0, 4)) == b"".join(BATCHES)
    assert sealed.repair_index()


def test_a_stale_index_of_the_same_seqs_returns_nothing_wrong() -> None:
    disk = new_disk()
    sealed = new_sealed(home_on(disk))
    other = new_active(home_on(disk), chain(b"three" * 3, b"one", b"", b"seven"), first_seq=99)
    write_sidecar(disk, f"/t/{index_name(10)}", other.index, home_on(disk).preface(10))
    sealed.close()
    with pytest.raises(SegmentDamageError, match="seqs 10 to 13"):
        sealed.read(0, 4)


def test_damage_is_reported_and_skipped() -> None:
    """INV-DAMAGE-NAMED."""
    disk = new_disk()
    sealed = new_sealed(home_on(disk))
    index = sealed.load_index()
    at = int(index.entries["at"][1])
    overwrite(disk, sealed.path, b"?", at + 100)
    with pytest.raises(SegmentDamageError) as caught:
        sealed.read(0, 4)
    error = caught.value
    assert (error.path, error.from_at, error.to_at) == (sealed.path, at, at + len(BATCHES[1]))
    assert (error.first_seq, error.last_seq) == (12, 13)
    assert f"bytes {at} to {at + len(BATCHES[1])} are damaged: seqs 12 to 13" in str(error)
    following = index.find_seq(error.last_seq + 1)
    assert bytes(sealed.read(0, index.find_seq(error.first_seq))) == BATCHES[0]
    assert bytes(sealed.read(following, 4)) == b"".join(BATCHES[2:])
    damage = SegmentDamage(sealed.path, at, at + len(BATCHES[1]), 12, 13)
    assert sealed.verify() == [damage]
    assert sealed.damages() == []
    overwrite(disk, sealed.path, b"?", at + len(BATCHES[1]))
    assert sealed.verify() == [dataclasses.replace(damage, to_at=damage.to_at + len(BATCHES[2]), last_seq=15)]


def test_an_index_rebuilt_from_damaged_data_keeps_reporting_the_damage() -> None:
    disk = new_disk()
    sealed = new_sealed(home_on(disk))
    ats = sealed.load_index().entries["at"].tolist()
    overwrite(disk, sealed.path, b"?", ats[1])
    disk.unlink(f"/t/{index_name(10)}")
    sealed.close()
    assert sealed.repair_index()
    for _ in range(2):
        assert sealed.damages() == sealed.verify() == [SegmentDamage(sealed.path, ats[1], ats[2], 12, 13)]
        assert bytes(sealed.read(1, 3)) == b"".join(BATCHES[2:])
        with pytest.raises(SegmentDamageError, match="seqs 12 to 13"):
            sealed.read(0, 3)
        sealed.close()


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("lost", [1, 60, 96 + 8, 10_000])
def test_a_truncated_end_is_damage(lost: int, has_index: bool) -> None:
    disk = new_disk()
    sealed = new_sealed(home_on(disk))
    entries = sealed.load_index().entries
    size = DATA_START + len(b"".join(BATCHES))
    disk.open(sealed.path).truncate(max(0, size - lost))
    if not has_index:
        disk.unlink(f"/t/{index_name(10)}")
    sealed.close()
    intact = int((entries["at"] + entries["length"] <= size - lost).sum())
    if intact:
        assert bytes(sealed.read(0, intact)) == b"".join(BATCHES[:intact])
    assert [(damage.first_seq, damage.last_seq) for damage in sealed.damages()][-1] == (10 + 2 * intact, 17)
    assert sealed.damages() == sealed.verify()


def test_a_damaged_preface_costs_no_record() -> None:
    disk = new_disk()
    sealed = new_sealed(home_on(disk))
    stored = content(disk, f"/t/{index_name(10)}")
    overwrite(disk, sealed.path, b"?", 40)
    disk.unlink(f"/t/{index_name(10)}")
    sealed.close()
    assert bytes(sealed.read(0, 4)) == b"".join(BATCHES)
    assert sealed.damages() == sealed.verify() == [SegmentDamage(sealed.path, 0, DATA_START, 10, 9)]
    assert sealed.repair_index()
    assert content(disk, f"/t/{index_name(10)}")[DATA_START:-4] == stored[DATA_START:-4]


@pytest.mark.parametrize("changes", [{"directory_id": b"another-director"}, {"first": 11}, {"topic_id": 6}])
def test_the_file_of_another_segment_is_refused(changes: dict[str, Any]) -> None:
    disk = new_disk()
    home = home_on(disk)
    sealed = new_sealed(home)
    overwrite(disk, sealed.path, dataclasses.replace(home.preface(10), **changes).encode(), 0)
    sealed.close()
    for _ in range(2):
        with pytest.raises(CorruptionError, match="here belongs seq 10 of topic 5"):
            sealed.read(0, 1)


def test_a_preface_that_ends_early_is_damaged() -> None:
    disk = new_disk()
    home = home_on(disk)
    file = disk.open("/t/short", create=True)
    write_all(file, [home.preface(10).encode()[:100]], 0)
    assert read_segment_preface(file, home, 10) is None


@pytest.mark.parametrize("has_index", [True, False])
def test_no_flipped_byte_of_a_segment_returns_anything_wrong(has_index: bool) -> None:
    """INV-READ-VERIFIED, for each byte: every batch is read as written, or is reported as damaged."""
    disk = new_disk()
    sealed = new_sealed(home_on(disk))
    data = content(disk, sealed.path)
    ats = sealed.load_index().entries["at"].tolist()
    if not has_index:
        disk.unlink(f"/t/{index_name(10)}")
    file = disk.open(sealed.path)
    # A sample of the zeros after the preface is enough: one comparison covers them all.
    for byte in itertools.chain(range(64), range(64, DATA_START, 251), range(DATA_START, len(data))):
        write_all(file, [bytes([data[byte] ^ (1 << byte % 8)])], byte)
        sealed.close()
        hit = next((i for i in range(3, -1, -1) if byte >= ats[i]), None)
        seqs = range(10, 18, 2)
        for number, (seq, batch) in enumerate(zip(seqs, BATCHES, strict=True)):
            entry = sealed.load_index().find_seq(seq)
            if number != hit:
                assert bytes(sealed.read(entry, entry + 1)) == batch
            elif has_index:
                with pytest.raises(SegmentDamageError, match=f"seqs {seq} to {seq + 1}"):
                    sealed.read(entry, entry + 1)
            else:
                assert seq not in sealed.load_index().entries["base_seq"]
        [damage] = sealed.verify()
        first_seq = 10 if hit is None else 10 + 2 * hit
        assert (damage.first_seq, damage.last_seq) == (first_seq, first_seq + (-1 if hit is None else 1))
        write_all(file, [data[byte : byte + 1]], byte)
    sealed.close()
    assert sealed.verify() == []


def test_no_flipped_byte_of_an_index_returns_anything_wrong() -> None:
    disk = new_disk()
    sealed = new_sealed(home_on(disk))
    path = f"/t/{index_name(10)}"
    data = content(disk, path)
    file = disk.open(path)
    for byte in itertools.chain(range(64), range(64, DATA_START, 251), range(DATA_START, len(data))):
        write_all(file, [bytes([data[byte] ^ (1 << byte % 8)])], byte)
        sealed.close()
        assert bytes(sealed.read(0, 4)) == b"".join(BATCHES)
        write_all(file, [data[byte : byte + 1]], byte)


# --- scanning --------------------------------------------------------------------------------------------------


def scanned(data: bytes, first_seq: int = 10) -> tuple[list[Any], list[tuple[int, int, int, Any]]]:
    disk = new_disk()
    file = disk.open("/t/x", create=True)
    write_all(file, [bytes(DATA_START) + data], 0)
    scan = scan_segment(file, TOPIC, first_seq)
    damages = [
        (each.from_at - DATA_START, each.to_at - DATA_START, each.first_seq, each.last_seq) for each in scan.damages
    ]
    return scan.index.entries.tolist(), damages


def test_the_tail_of_a_segment_is_neither_batch_nor_damage() -> None:
    stored = b"".join(BATCHES)
    for tail in (b"", bytes(5000), BATCHES[0][:50], make_batch(18)[:-1], b"LANC" * 100):
        entries, damages = scanned(stored + tail)
        assert (len(entries), damages) == (4, [])
    assert scanned(b"") == ([], [])
    assert scanned(bytes(10_000)) == ([], [])


def test_batch_bytes_inside_a_record_are_not_read_as_a_batch() -> None:
    """The block of a damaged batch ends with an intact batch that would fit in: its length still skips it."""
    inner = make_batch(12, 1, b"inner", position=12)
    outer = make_batch(11, 2, b"outer" + inner)
    after = make_batch(13)
    data = make_batch(10) + outer + after
    for byte in (0, 8, 20, 64, 95, 96, 120):
        damaged = bytearray(data)
        damaged[len(make_batch(10)) + byte] ^= 1
        entries, damages = scanned(bytes(damaged))
        assert [entry[0] for entry in entries] == [10, 13]
        assert damages == [(len(make_batch(10)), len(data) - len(after), 11, 12)]


def test_a_truncated_header_at_the_end_is_neither_batch_nor_damage() -> None:
    stored = b"".join(BATCHES)
    entries, damages = scanned(b"x" * 40)
    assert (entries, damages) == ([], [])
    damaged = bytearray(stored)
    damaged[32:36] = b"\xff" * 4
    entries, damages = scanned(bytes(damaged))
    assert len(entries) == 3
    assert damages == [(0, len(BATCHES[0]), 10, 11)]


def test_the_scan_continues_after_a_valid_header_with_a_bad_block() -> None:
    """The damaged bytes contain a copy of a header; its block does not match, so the search continues."""
    rubble = b"x" * 100 + make_batch(12)[:96] + b"y" * 30
    data = BATCHES[0] + rubble + make_batch(20)
    entries, damages = scanned(data)
    assert [entry[0] for entry in entries] == [10, 20]
    assert damages == [(len(BATCHES[0]), len(BATCHES[0] + rubble), 12, 19)]


@st.composite
def damaged_segments(draw: st.DrawFn) -> tuple[list[bytes], bytes]:
    values = draw(st.lists(st.binary(max_size=60), min_size=1, max_size=8))
    batches = chain(*values)
    data = bytearray(b"".join(batches))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data) - 1))
        length = draw(st.sampled_from([1, 1, 4, 100, 512]))
        data[start : start + length] = bytes(min(length, len(data) - start))
    return batches, bytes(data) + draw(st.sampled_from([b"", bytes(300), b"LANC", batches[0][:97]]))


@settings(max_examples=60)
@given(damaged_segments(), st.sampled_from([96, 100, 257, 1 << 20]), st.sampled_from([1, 2, 1_024]))
def test_a_scan_finds_exactly_the_intact_batches(
    given_segment: tuple[list[bytes], bytes], scan_size: int, entries_per_call: int
) -> None:
    batches, data = given_segment
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SEGMENT_SCAN_SIZE", scan_size)
        patch.setattr(segment_scan, "_ENTRIES_PER_CALL", entries_per_call)
        entries, damages = scanned(data)
    at, intact, lost = 0, [], []
    for index, batch in enumerate(batches):
        if data[at : at + len(batch)] == batch:
            intact.append((10 + 2 * index, DATA_START + at))
        else:
            lost.append((10 + 2 * index, at, at + len(batch)))
        at += len(batch)
    assert [entry[:2] for entry in entries] == intact
    last = entries[-1][0] if entries else 0
    for seq, start, end in lost:
        covered = [each for each in damages if each[0] <= start and end <= each[1]]
        assert bool(covered) is (seq < last)
        assert all(each[2] <= seq < seq + 1 <= each[3] for each in covered)
    assert len(damages) <= len(lost)


@settings(max_examples=40)
@given(damaged_segments(), st.sampled_from([1, 150, 1 << 20]))
def test_damage_found_by_an_index_is_independent_of_the_read_size(
    given_segment: tuple[list[bytes], bytes], scan_size: int
) -> None:
    batches, data = given_segment
    disk = new_disk()
    active = new_active(home_on(disk), batches)
    entries = active.index.entries
    file = disk.open("/t/x", create=True)
    write_all(file, [bytes(DATA_START) + data], 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SEGMENT_SCAN_SIZE", scan_size)
        damages = find_damage(file, entries, TOPIC)
    lost = {seq for each in damages for seq in range(each.first_seq, (each.last_seq or 0) + 1)}
    for index, batch in enumerate(batches):
        at = int(entries["at"][index])
        intact = data[at - DATA_START :][: len(batch)] == batch
        assert intact is (10 + 2 * index not in lost)
        if intact:
            assert bytes(read_batches(file, entries[index : index + 1], TOPIC)) == batch
    assert all(one.to_at < other.from_at for one, other in itertools.pairwise(damages))


def test_a_batch_may_be_larger_than_one_read_of_a_scan() -> None:
    batches = chain(b"x" * (limits.SEGMENT_SCAN_SIZE + 5), b"y", b"z" * limits.SEGMENT_SCAN_SIZE, count=1)
    entries, damages = scanned(b"".join(batches))
    assert ([entry[6] for entry in entries], damages) == ([len(batch) for batch in batches], [])


def test_damage_of_unknown_extent_is_reported_as_such() -> None:
    assert str(SegmentDamage("f", 1, 2, 3, None)) == "f: bytes 1 to 2 are damaged: seqs 3 to an unknown one"
    error = SegmentDamage("f", 1, 2, 3, None).error()
    assert error.last_seq is None
    assert find_damage(new_disk().open("/x", create=True), BatchIndex().entries, TOPIC) == []


# --- crashes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["none", "all", "random"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_crash_while_sealing_leaves_an_active_or_a_sealed_segment(keep: Any, inside: bool) -> None:
    states = set()
    for calls in range(1, 100):
        disk = new_disk(calls)
        segment = new_active(home_on(disk), BATCHES)
        segment.sync()
        disk.crash_after(calls, inside=inside)
        finished = False
        try:
            segment.seal()
            finished = True
        except SimCrash:
            pass
        disk.crash(keep)
        name = SealedName.covering(10, 17, START_NS + 10 * MS, START_NS + 16 * MS)
        there = set(names(disk)) & {active_name(10), str(name)}
        assert len(there) == 1
        if str(name) in there:
            sealed = SealedSegment(home_on(disk), name)
            assert content(disk, sealed.path)[DATA_START:] == b"".join(BATCHES)
            assert not sealed.repair_index()
            assert sealed.verify() == []
        else:
            assert not finished
            scan = scan_segment(disk.open(PATH), TOPIC, 10)
            assert scan.index.entries.tolist() == segment.index.entries.tolist()
        states |= there
        if finished:
            break
    assert states == {active_name(10), str(name)}
    assert calls > 6


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_a_crash_while_dropping_never_brings_deleted_records_back(keep: Any) -> None:
    for calls in range(1, 100):
        disk = new_disk(calls)
        home = home_on(disk)
        sealed = new_sealed(home)
        path = home.path(deletes_name(10))
        write_deletes(disk, path, DeletedSeqs.between(10, 17), home.preface(10))
        disk.crash_after(calls)
        try:
            drop_segments(home, [sealed])
        except SimCrash:
            disk.crash(keep)
            assert str(sealed.name) not in names(disk) or deletes_name(10) in names(disk)
        else:
            disk.crash("none")
            # The delete sidecar may be left; it belongs to no segment.
            assert str(sealed.name) not in names(disk)
            break
    assert calls == 5
