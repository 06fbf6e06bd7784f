"""Recovery of a topic's directory: every state a crash or damage can leave, and crashes inside recovery itself."""

from __future__ import annotations

import dataclasses
import errno
import itertools
from typing import Any

import numpy as np
import pytest

from seawall import limits
from seawall.errors import SeawallError, SegmentDamageError, UnsupportedError
from seawall.io.disk.files import write_all
from seawall.storage.preface import DATA_START
from seawall.storage.segments.batch_index import INDEX_ENTRY, BatchIndex
from seawall.storage.segments.delete_sidecar import DeletedSeqs, load_deletes, write_deletes
from seawall.storage.segments.names import active_name, deletes_name, index_name
from seawall.storage.segments.recovery import TopicRecovery, recover_topic
from seawall.storage.segments.scan import SegmentDamage
from seawall.storage.segments.segment import SealedSegment, SegmentWriter
from seawall.storage.segments.topic_directory import TopicDirectory
from seawall.testing import SimCrash, SimDisk
from seawall.testing.machine.disk_file import SimFile
from seawall.wire.format.batches import batch_header, encode_batch

TOPIC = 5
DIRECTORY_ID = b"directory-id-16b"
MS = 1_000_000
START_NS = 1_700_000_000_000 * MS


def make_batch(seq: int, count: int = 2, value: bytes = b"value") -> bytes:
    """A stored batch of `count` records; time, offset and position follow from its seq."""
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
    return encode_batch(dataclasses.replace(header, position=seq, base_seq=seq, base_offset=100 * seq), block)


def chain(first_seq: int, batches: int = 3) -> list[bytes]:
    return [make_batch(seq, value=b"v" * seq) for seq in range(first_seq, first_seq + 2 * batches, 2)]


def entries_of(batches: list[bytes]) -> Any:
    rows, at = [], DATA_START
    for batch in batches:
        seq, position, offset = (int.from_bytes(batch[here : here + 8], "little") for here in (64, 56, 72))
        rows.append((seq, at, START_NS + seq * MS, offset, position, 2, len(batch)))
        at += len(batch)
    return np.array(rows, INDEX_ENTRY)


def new_home(seed: int = 0, disk_class: type[SimDisk] = SimDisk, **options: Any) -> tuple[SimDisk, TopicDirectory]:
    disk = disk_class(seed, **options)
    disk.make_directory("/t")
    disk.sync_directory("/")
    return disk, TopicDirectory(disk, "/t", DIRECTORY_ID, TOPIC)


def new_active(home: TopicDirectory, batches: list[bytes], first_seq: int) -> SegmentWriter:
    segment = SegmentWriter.create(home, first_seq, START_NS)
    segment.index.extend(entries_of(batches))
    for batch in batches:
        segment.write_at(segment.allocate(len(batch)), [batch])
    segment.sync()
    return segment


def content(disk: SimDisk, path: str) -> bytes:
    file = disk.open(path, read_only=True)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def overwrite(disk: SimDisk, path: str, data: bytes, at: int = 0) -> None:
    file = disk.open(path, create=True)
    write_all(file, [data], at)
    file.sync()
    file.close()
    disk.sync_directory("/t")


def everything(disk: SimDisk) -> dict[str, bytes]:
    return {name: content(disk, f"/t/{name}") for name in disk.list("/t")}


def report(recovery: TopicRecovery) -> Any:
    """The result of a recovery in a comparable form."""
    return (
        [(str(segment.name), segment.load_index().entries.tolist()) for segment in recovery.sealed],
        recovery.active and (recovery.active.path, recovery.active.index.entries.tolist()),
        [(segment.path, segment.index.entries.tolist()) for segment in recovery.pending],
        dict(recovery.deletes),
        recovery.damages,
        recovery.conflicts,
        recovery.unknown,
    )


def recover(home: TopicDirectory, expected: Any = None, **options: Any) -> TopicRecovery:
    """Recover twice: the second run changes nothing and reports the same."""
    first = report(recover_topic(home, expected, **options))
    files = everything(home.files)
    again = recover_topic(home, expected, **options)
    assert report(again) == first
    assert everything(home.files) == files
    home.files.crash("none")
    assert everything(home.files) == files
    return recover_topic(home, expected, **options)


def read_all(recovery: TopicRecovery) -> list[bytes]:
    unsealed = [*recovery.pending, *([recovery.active] if recovery.active else [])]
    segments: list[tuple[BatchIndex, Any]] = [(each.load_index(), each) for each in recovery.sealed]
    segments += [(each.index, each) for each in unsealed]
    segments.sort(key=lambda each: each[0].first_seq if len(each[0]) else 0)
    return [bytes(segment.read(i, i + 1)) for index, segment in segments for i in range(len(index))]


# --- sound directories -----------------------------------------------------------------------------------------


def test_an_empty_directory_recovers_to_no_segments() -> None:
    _, home = new_home()
    assert report(recover(home)) == ([], None, [], {}, (), (), ())
    assert report(recover(home, {})) == ([], None, [], {}, (), (), ())


@pytest.mark.parametrize("authority", [True, False])
def test_an_undamaged_topic_continues_at_its_end(authority: bool) -> None:
    _, home = new_home()
    first, second = chain(1), chain(7)
    sealed = new_active(home, first, 1).seal()
    new_active(home, second, 7)
    expected = {7: entries_of(second)} if authority else None
    found = recover(home, expected)
    assert [segment.name for segment in found.sealed] == [sealed.name]
    assert read_all(found) == first + second
    assert found.active is not None
    assert (found.damages, found.conflicts, found.unknown, found.pending) == ((), (), (), ())
    batch = make_batch(13)
    at = found.active.allocate(len(batch))
    assert at == DATA_START + len(b"".join(second))
    found.active.index.extend(entries_of([*second, batch])[-1:])
    found.active.write_at(at, [batch])
    found.active.seal()
    assert read_all(recover(home)) == [*first, *second, batch]


def test_an_empty_active_segment_is_kept() -> None:
    disk, home = new_home()
    SegmentWriter.create(home, 1, START_NS)
    for expected in (None, {1: entries_of([])}):
        found = recover(home, expected)
        assert found.active is not None
        assert len(found.active.index) == 0
        assert len(content(disk, f"/t/{active_name(1)}")) == DATA_START


# --- active segments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("authority", [True, False])
@pytest.mark.parametrize("tail", [b"", b"x" * 50, make_batch(7)[:-1], bytes(10_000)])
def test_bytes_after_the_last_batch_are_truncated(tail: bytes, authority: bool) -> None:
    disk, home = new_home()
    batches = chain(1)
    end = new_active(home, batches, 1).end
    overwrite(disk, f"/t/{active_name(1)}", tail, end)
    found = recover(home, {1: entries_of(batches)} if authority else None)
    assert content(disk, f"/t/{active_name(1)}")[DATA_START:] == b"".join(batches)
    assert read_all(found) == batches
    assert found.damages == ()


def test_unacknowledged_batches_are_truncated() -> None:
    disk, home = new_home()
    batches = chain(1, 4)
    new_active(home, batches, 1)
    found = recover(home, {1: entries_of(batches[:2])})
    assert read_all(found) == batches[:2]
    assert content(disk, f"/t/{active_name(1)}")[DATA_START:] == b"".join(batches[:2])


def test_missing_batches_are_reported_until_the_caller_writes_them() -> None:
    disk, home = new_home()
    batches = chain(1, 4)
    expected = {1: entries_of(batches)}
    new_active(home, batches[:2], 1)
    found = recover(home, expected)
    ats = expected[1]["at"].tolist()
    end = DATA_START + len(b"".join(batches))
    path = f"/t/{active_name(1)}"
    assert found.damages == (SegmentDamage(path, ats[2], end, 5, 8),)
    assert found.active is not None
    assert bytes(found.active.read(0, 2)) == b"".join(batches[:2])
    found.active.write_at(ats[2], [b"".join(batches[2:])])
    found.active.sync()
    found = recover(home, expected)
    assert (found.damages, read_all(found)) == ((), batches)
    assert disk.list("/t") == [active_name(1)]


@pytest.mark.parametrize("authority", [True, False])
def test_damage_in_the_middle_is_kept_and_named(authority: bool) -> None:
    disk, home = new_home()
    batches = chain(1, 4)
    new_active(home, batches, 1)
    path = f"/t/{active_name(1)}"
    ats = entries_of(batches)["at"].tolist()
    overwrite(disk, path, b"?", ats[1] + 30)
    before = content(disk, path)
    found = recover(home, {1: entries_of(batches)} if authority else None)
    assert found.damages == (SegmentDamage(path, ats[1], ats[2], 3, 4),)
    assert content(disk, path) == before[: DATA_START + len(b"".join(batches))]
    assert found.active is not None
    entry = found.active.index.find_seq(5)
    assert bytes(found.active.read(entry, len(found.active.index))) == b"".join(batches[2:])
    with pytest.raises(SegmentDamageError, match="seqs 3 to 4"):
        found.active.read(0, len(found.active.index))


@pytest.mark.parametrize("authority", [True, False])
def test_a_damaged_preface_costs_no_record(authority: bool) -> None:
    disk, home = new_home()
    batches = chain(1)
    new_active(home, batches, 1)
    path = f"/t/{active_name(1)}"
    overwrite(disk, path, b"?", 17)
    found = recover(home, {1: entries_of(batches)} if authority else None)
    assert found.damages == (SegmentDamage(path, 0, DATA_START, 1, 0),)
    assert read_all(found) == batches


@pytest.mark.parametrize("size", [0, 100, limits.SEGMENT_RESERVE_SIZE_MIN])
def test_an_incomplete_segment_is_removed_or_recreated(size: int) -> None:
    disk, home = new_home()
    path = f"/t/{active_name(1)}"
    overwrite(disk, path, bytes(size))
    assert report(recover(home)) == ([], None, [], {}, (), (), ())
    assert disk.list("/t") == []
    overwrite(disk, path, bytes(size))
    assert report(recover(home, {1: entries_of([])})) == ([], (path, []), [], {}, (), (), ())
    assert content(disk, path) == home.preface(1).encode()


def test_an_unreadable_segment_stays_without_authority_of_the_log() -> None:
    disk, home = new_home()
    path = f"/t/{active_name(1)}"
    overwrite(disk, path, b"x" * 5000)
    found = recover(home)
    assert found.damages == (SegmentDamage(path, 0, 5000, 1, None),)
    assert content(disk, path) == b"x" * 5000
    assert recover(home, {7: entries_of([])}).damages == ()
    assert disk.list("/t") == [active_name(7)]


def test_an_active_segment_unknown_to_the_log_is_removed() -> None:
    """If it were kept, later batches would get other segment positions than a replay of the log gives them."""
    disk, home = new_home()
    new_active(home, chain(1), 1)
    assert report(recover(home, {})) == ([], None, [], {}, (), (), ())
    assert disk.list("/t") == []


def test_a_segment_unknown_to_the_log_is_removed_with_its_deletes() -> None:
    """Its roll never became durable: a process created it and died before the log was synced."""
    disk, home = new_home()
    batches = chain(1)
    new_active(home, batches, 1)
    new_active(home, chain(7), 7)
    write_deletes(disk, f"/t/{deletes_name(7)}", DeletedSeqs.between(7, 7), home.preface(7))
    found = recover(home, {1: entries_of(batches)})
    assert read_all(found) == batches
    assert disk.list("/t") == [active_name(1)]
    assert found.deletes == {}


def test_missing_segments_are_recreated_to_be_written_again() -> None:
    disk, home = new_home()
    batches, later = chain(1), chain(7)
    path = f"/t/{active_name(1)}"
    expected = {1: entries_of(batches), 7: entries_of(later), 5: entries_of([])}
    found = recover(home, expected)
    assert [(each.path, each.first_seq, each.last_seq) for each in found.damages] == [
        (path, 1, 6),
        (f"/t/{active_name(7)}", 7, 12),
    ]
    assert disk.list("/t") == [active_name(1), active_name(7)]
    [waiting] = found.pending
    assert found.active is not None
    for segment, data in ((waiting, batches), (found.active, later)):
        segment.write_at(DATA_START, [b"".join(data)])
        segment.sync()
    found = recover(home, expected)
    assert (read_all(found), found.damages) == (batches + later, ())
    assert len(found.sealed) == 1


def test_a_file_with_the_preface_of_another_segment_is_kept() -> None:
    disk, home = new_home()
    batches = chain(1)
    sealed = new_active(home, batches, 1).seal()
    foreign = dataclasses.replace(home.preface(1), directory_id=b"another-director").encode()
    overwrite(disk, sealed.path, foreign)
    overwrite(disk, f"/t/{active_name(7)}", dataclasses.replace(home.preface(8)).encode() + b"".join(chain(7)))
    before = everything(disk)
    for expected in (None, {}, {7: entries_of([])}):
        found = recover(home, expected)
        assert [(each.path, each.from_at, each.last_seq) for each in found.damages] == [
            (sealed.path, 0, None),
            (f"/t/{active_name(7)}", 0, None),
        ]
        assert (found.sealed, found.active) == ((), None)
        assert everything(disk) == before


def test_a_newer_format_is_refused() -> None:
    disk, home = new_home()
    overwrite(disk, f"/t/{active_name(1)}", dataclasses.replace(home.preface(1), format=9).encode())
    with pytest.raises(UnsupportedError, match="format 9"):
        recover_topic(home)


# --- sealing during recovery ----------------------------------------------------------------------------------------


class CountingDisk(SimDisk):
    """A disk that knows the numbers of its open files."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.open_numbers: set[int] = set()

    def open(self, path: str, **options: bool) -> SimFile:
        file = super().open(path, **options)
        self.open_numbers.add(file.fileno())
        return file

    def release(self, number: int) -> None:
        super().release(number)
        self.open_numbers.discard(number)


@pytest.mark.parametrize("call", ["truncate", "sync", "rename", "sync_directory"])
def test_a_failed_recovery_leaves_no_file_open_and_can_be_retried(call: str) -> None:
    disk, home = new_home(disk_class=CountingDisk)
    first, second = chain(1), chain(7)
    new_active(home, first, 1).close()
    new_active(home, second, 7).close()
    overwrite(disk, f"/t/{active_name(7)}", b"tail", 100_000)
    before = set(disk.open_numbers)
    for _ in range(3):
        disk.fail(call, error=errno.ENOSPC)
        with pytest.raises((OSError, SeawallError)):
            recover(home, None)
        disk.clear_faults()
        assert disk.open_numbers == before
    assert read_all(recover(home, None)) == first + second


@pytest.mark.parametrize("authority", [True, False])
def test_older_active_segments_are_sealed(authority: bool) -> None:
    disk, home = new_home()
    first, second, third = chain(1), chain(7), chain(13)
    new_active(home, first, 1)
    new_active(home, second, 7)
    new_active(home, third, 13)
    expected = {1: entries_of(first), 7: entries_of(second), 13: entries_of(third)} if authority else None
    found = recover(home, expected)
    assert [(segment.name.first_seq, segment.name.last_seq) for segment in found.sealed] == [(1, 6), (7, 12)]
    assert found.active is not None
    assert found.active.first_seq == 13
    assert read_all(found) == first + second + third
    sealed = [str(segment.name) for segment in found.sealed]
    assert disk.list("/t") == sorted([*sealed, index_name(1), index_name(7), active_name(13)])


@pytest.mark.parametrize("authority", [True, False])
def test_an_older_empty_segment_is_removed(authority: bool) -> None:
    disk, home = new_home()
    SegmentWriter.create(home, 1, START_NS)
    new_active(home, chain(3), 3)
    found = recover(home, {1: entries_of([]), 3: entries_of(chain(3))} if authority else None)
    assert disk.list("/t") == [active_name(3)]
    assert found.damages == ()


def test_an_older_segment_waits_for_its_missing_batches() -> None:
    disk, home = new_home()
    batches, later = chain(1, 4), chain(9)
    expected = {1: entries_of(batches), 9: entries_of(later)}
    new_active(home, batches[:3], 1)
    new_active(home, later, 9)
    found = recover(home, expected)
    [waiting] = found.pending
    assert found.sealed == ()
    assert disk.list("/t") == [active_name(1), active_name(9)]
    waiting.write_at(int(expected[1]["at"][3]), [batches[3]])
    waiting.sync()
    found = recover(home, expected)
    assert (found.pending, found.damages) == ((), ())
    assert read_all(found) == batches + later


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_damaged_segment_is_sealed_on_request(lost: int) -> None:
    """Nothing can replace the lost batches: the segment is sealed with its damage and keeps reporting it."""
    _, home = new_home()
    batches, later = chain(1, 4), chain(9)
    new_active(home, batches, 1)
    new_active(home, later, 9)
    ats = [*entries_of(batches)["at"].tolist(), DATA_START + len(b"".join(batches))]
    overwrite(home.files, f"/t/{active_name(1)}", b"?", ats[lost] + 99)
    expected = {1: entries_of(batches), 9: entries_of(later)}
    first = recover_topic(home, expected, seal_damaged=True)
    assert [(each.first_seq, each.last_seq) for each in first.damages] == [(1 + 2 * lost, 2 + 2 * lost)]
    found = recover(home, {9: entries_of(later)})
    [sealed] = found.sealed
    assert sealed.verify() == [SegmentDamage(sealed.path, ats[lost], ats[lost + 1], 1 + 2 * lost, 2 + 2 * lost)]
    for number, batch in enumerate(batches):
        if number != lost:
            assert bytes(sealed.read(number, number + 1)) == batch
    home.files.unlink(f"/t/{index_name(1)}")
    found = recover(home, {9: entries_of(later)})
    assert [(each.first_seq, each.last_seq) for each in found.damages] == [(1 + 2 * lost, 2 + 2 * lost)]


def test_without_a_log_a_damaged_older_segment_is_sealed_as_it_is() -> None:
    disk, home = new_home()
    batches, later = chain(1, 4), chain(9)
    new_active(home, batches, 1)
    new_active(home, later, 9)
    ats = entries_of(batches)["at"].tolist()
    overwrite(disk, f"/t/{active_name(1)}", b"?", ats[1])
    [waiting] = recover(home).pending
    assert len(waiting.index) == 3
    waiting.close()
    found = recover_topic(home, seal_damaged=True)
    assert read_all(found) == [batches[0], *batches[2:], *later]
    [damage] = recover(home).damages
    assert (damage.from_at, damage.to_at, damage.first_seq, damage.last_seq) == (ats[1], ats[2], 3, 4)


# --- sealed segments and sidecars ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["missing", "damaged", "empty"])
def test_a_missing_or_damaged_index_is_rebuilt(state: str) -> None:
    disk, home = new_home()
    batches = chain(1)
    new_active(home, batches, 1).seal()
    path = f"/t/{index_name(1)}"
    stored = content(disk, path)
    if state == "damaged":
        overwrite(disk, path, b"?", 4110)
    else:
        disk.unlink(path)
        if state == "empty":
            overwrite(disk, path, b"")
    found = recover(home)
    assert content(disk, path) == stored
    assert (found.damages, read_all(found)) == ((), batches)


def test_damage_of_sealed_data_is_found_when_it_is_read() -> None:
    disk, home = new_home()
    batches = chain(1)
    sealed = new_active(home, batches, 1).seal()
    overwrite(disk, sealed.path, b"?", DATA_START)
    before = content(disk, sealed.path)
    found = recover(home)
    assert found.damages == ()
    with pytest.raises(SegmentDamageError, match="seqs 1 to 2"):
        found.sealed[0].read(0, 3)
    disk.unlink(f"/t/{index_name(1)}")
    assert [damage.last_seq for damage in recover(home).damages] == [2]
    assert content(disk, sealed.path) == before


def test_a_sealed_segment_without_readable_batches_is_reported() -> None:
    disk, home = new_home()
    sealed = new_active(home, chain(1), 1).seal()
    size = len(content(disk, sealed.path))
    overwrite(disk, sealed.path, bytes(size))
    disk.unlink(f"/t/{index_name(1)}")
    found = recover(home)
    assert [(each.from_at, each.to_at, each.first_seq, each.last_seq) for each in found.damages] == [
        (0, DATA_START, 1, 0),
        (DATA_START, size, 1, 6),
    ]
    assert len(found.sealed[0].load_index()) == 0


def test_temporary_files_are_removed_and_unknown_files_stay() -> None:
    disk, home = new_home()
    new_active(home, chain(1), 1)
    debris = [f"{index_name(1)}.replacing", f"{deletes_name(1)}.replacing", index_name(1), index_name(50)]
    debris += [deletes_name(50)]
    strangers = ["notes.txt", "x.replacing", f"{active_name(1)}.replacing", "7.active"]
    for name in (*debris, *strangers):
        overwrite(disk, f"/t/{name}", b"?")
    found = recover(home)
    assert disk.list("/t") == sorted([active_name(1), *strangers])
    assert sorted(found.unknown) == sorted(strangers)
    assert found.damages == ()


def test_deletes_are_loaded_with_their_segments() -> None:
    disk, home = new_home()
    new_active(home, chain(1), 1).seal()
    new_active(home, chain(7), 7)
    deletes = {1: DeletedSeqs.between(2, 3), 7: DeletedSeqs.between(7, 12), 20: DeletedSeqs.between(20, 20)}
    for first_seq, deleted in deletes.items():
        write_deletes(disk, f"/t/{deletes_name(first_seq)}", deleted, home.preface(first_seq))
    assert recover(home, {7: entries_of(chain(7)), 20: entries_of([])}).deletes == deletes
    assert recover(home, {20: entries_of([])}).deletes == deletes
    disk.unlink(f"/t/{active_name(20)}")
    assert recover(home).deletes == {1: deletes[1], 7: deletes[7]}


def test_damaged_deletes_are_an_error_never_an_empty_set() -> None:
    disk, home = new_home()
    new_active(home, chain(1), 1)
    path = f"/t/{deletes_name(1)}"
    write_deletes(disk, path, DeletedSeqs.between(2, 3), home.preface(1))
    overwrite(disk, path, b"?", 4105)
    found = recover(home)
    assert found.deletes == {}
    assert found.damages == (SegmentDamage(path, 0, len(content(disk, path)), 1, None),)


def test_a_sealed_segment_with_too_few_batches_is_reported() -> None:
    _, home = new_home()
    batches = chain(1, 4)
    sealed = new_active(home, batches[:3], 1).seal()
    found = recover(home, {1: entries_of(batches)})
    end = DATA_START + len(b"".join(batches[:3]))
    assert found.damages == (SegmentDamage(sealed.path, end, end, 7, 8),)
    assert recover(home, {1: entries_of(batches[:3])}).damages == ()


def test_two_sealed_segments_of_one_seq_are_a_conflict() -> None:
    disk, home = new_home()
    batches = chain(1, 4)
    short = new_active(home, batches[:3], 1).seal()
    new_active(home, batches, 1).seal()
    found = recover(home)
    assert read_all(found) == batches
    assert found.conflicts == ((found.sealed[0].path, short.path),)
    assert content(disk, short.path)[DATA_START:] == b"".join(batches[:3])


# --- active beside sealed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 2, 3])
def test_an_active_segment_with_a_sealed_twin_is_removed(kept: int) -> None:
    disk, home = new_home()
    batches = chain(1)
    sealed = new_active(home, batches, 1).seal()
    new_active(home, batches[:kept], 1)
    found = recover(home)
    assert disk.list("/t") == sorted([str(sealed.name), index_name(1)])
    assert (read_all(found), found.conflicts) == (batches, ())
    assert found.active is None


@pytest.mark.parametrize("case", ["more", "other", "damaged"])
def test_a_contradicting_active_and_sealed_pair_is_kept(case: str) -> None:
    disk, home = new_home()
    batches = chain(1)
    sealed = new_active(home, batches, 1).seal()
    others = {"more": chain(1, 4), "other": [make_batch(1, value=b"other")], "damaged": batches[:1]}[case]
    new_active(home, others, 1)
    if case == "damaged":
        overwrite(disk, sealed.path, b"?", DATA_START + 10)
    before = everything(disk)
    found = recover(home)
    assert found.conflicts == ((sealed.path, f"/t/{active_name(1)}"),)
    assert everything(disk) == before
    assert [segment.name for segment in found.sealed] == [sealed.name]


# --- crashes ---------------------------------------------------------------------------------------------------


def write_topic(home: TopicDirectory) -> None:
    """A history of a topic: two segments written and sealed, deletes replaced, a third begun; all synced."""
    for first_seq in (1, 7):
        segment = new_active(home, chain(first_seq), first_seq)
        path = home.path(deletes_name(first_seq))
        write_deletes(home.files, path, DeletedSeqs.between(first_seq, first_seq), home.preface(first_seq))
        segment.seal()
        both = DeletedSeqs.between(first_seq, first_seq + 1)
        write_deletes(home.files, path, both, home.preface(first_seq))
    new_active(home, chain(13), 13)


def check_prefix(home: TopicDirectory, recovery: TopicRecovery) -> None:
    """The readable batches are a prefix of the written ones, and each segment is intact up to its end."""
    written = chain(1) + chain(7) + chain(13)
    found = read_all(recovery)
    assert found == written[: len(found)]
    assert recovery.damages == recovery.conflicts == recovery.unknown == recovery.pending == ()
    for first_seq, deleted in recovery.deletes.items():
        assert deleted.ranges.tolist() in ([[first_seq, first_seq + 1]], [[first_seq, first_seq + 2]])
        assert load_deletes(home.files, home.path(deletes_name(first_seq)), home.preface(first_seq)) == deleted


@pytest.mark.parametrize("keep", ["none", "all", "random"])
@pytest.mark.parametrize("unit_size", [512, 4096])
def test_a_crash_anywhere_in_the_life_of_a_topic(keep: Any, unit_size: int) -> None:
    for calls in itertools.count(1):
        disk, home = new_home(calls, unit_size=unit_size)
        disk.crash_after(calls)
        try:
            write_topic(home)
            break
        except SimCrash:
            disk.crash(keep)
        check_prefix(home, recover(home))
    assert calls > 50


def broken_topic(home: TopicDirectory) -> dict[int, Any]:
    """A directory that needs every step of recovery at once; returns what must be in its active segments."""
    disk: Any = home.files
    new_active(home, chain(1), 1).seal()
    disk.unlink(home.path(index_name(1)))
    new_active(home, chain(7), 7).seal()
    overwrite(disk, home.path(index_name(7)), b"?", 4100)
    new_active(home, chain(7, 2), 7)
    new_active(home, chain(13), 13)
    new_active(home, chain(19), 19)
    SegmentWriter.create(home, 30, START_NS)
    for name in (index_name(13), index_name(13) + ".replacing", deletes_name(99), "stranger"):
        overwrite(disk, home.path(name), b"?")
    write_deletes(disk, home.path(deletes_name(13)), DeletedSeqs.between(13, 13), home.preface(13))
    overwrite(disk, home.path(active_name(19)), b"torn", DATA_START + len(b"".join(chain(19))))
    return {13: entries_of(chain(13)), 19: entries_of(chain(19))}


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_a_crash_anywhere_inside_recovery(keep: Any) -> None:
    _, intact = new_home()
    wanted = report(recover(intact, broken_topic(intact)))
    files = everything(intact.files)
    assert [seq for seq, _ in itertools.groupby(entry[0] for _, rows in wanted[0] for entry in rows)] == [
        *range(1, 19, 2)
    ]
    for calls in itertools.count(1):
        disk, home = new_home(calls)
        expected = broken_topic(home)
        disk.crash_after(calls)
        try:
            recover_topic(home, expected)
            break
        except SimCrash:
            disk.crash(keep)
        assert report(recover(home, expected)) == wanted
        assert everything(disk) == files
    assert calls > 30


class ForgetfulFile:
    """A file of a `ForgetfulDisk`."""

    def __init__(self, disk: ForgetfulDisk, file: SimFile) -> None:
        self._disk = disk
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        if self._disk.forgets != "data" or not self._file.path.endswith(".active"):
            self._file.sync()


class ForgetfulDisk(SimDisk):
    """A disk that skips one kind of sync once `forgets` says which."""

    forgets: str | None = None

    def open(self, path: str, **options: bool) -> ForgetfulFile:
        return ForgetfulFile(self, super().open(path, **options))

    def sync_directory(self, directory: str) -> None:
        if self.forgets != "directory":
            super().sync_directory(directory)


def is_sealed_for_good(home: TopicDirectory, batches: list[bytes], forgets: str | None) -> bool:
    """Whether a segment that was written, never synced and then sealed survives a power failure."""
    segment = SegmentWriter.create(home, 1, START_NS)
    home.files.forgets = forgets
    segment.index.extend(entries_of(batches))
    segment.write_at(segment.allocate(len(b"".join(batches))), [b"".join(batches)])
    segment.seal()
    home.files.crash("none")
    found = recover_topic(home)
    return bool(found.sealed) and not found.damages and read_all(found) == batches


@pytest.mark.parametrize("forgets", [None, "data", "directory"])
def test_sealing_syncs_data_and_directory(forgets: str | None) -> None:
    """Each sync of the sealing is needed: without it the segment is lost in a crash, and this test detects it."""
    _, home = new_home(disk_class=ForgetfulDisk)
    assert is_sealed_for_good(home, chain(1), forgets) is (forgets is None)


def test_reading_continues_while_an_index_is_missing() -> None:
    disk, home = new_home()
    batches = chain(1)
    sealed = new_active(home, batches, 1).seal()
    disk.unlink(home.path(index_name(1)))
    again = SealedSegment(home, sealed.name)
    assert isinstance(again.load_index(), BatchIndex)
    assert bytes(again.read(0, 3)) == b"".join(batches)
    assert disk.list("/t") == [str(sealed.name)]
