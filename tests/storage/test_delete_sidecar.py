"""Deleted records: ranges against a plain set, and a sidecar that is valid or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.errors import CorruptionError, InvalidInputError
from seawall.io.disk.files import write_all
from seawall.storage.preface import FileKind, Preface
from seawall.storage.segments.delete_sidecar import DeletedSeqs, load_deletes, write_deletes
from seawall.storage.segments.sidecars import write_rows
from seawall.testing import SimCrash, SimDisk
from seawall.wire.format.frames import checksum

SEGMENT = Preface(FileKind.SEGMENT, b"directory-id-16b", first=10, created_ns=5, topic_id=3)
PATH = "/topic/00000000000000000010.deletes"

seq_lists = st.lists(st.integers(0, 40), max_size=25)
spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=10)


def deleted(seqs: Any) -> DeletedSeqs:
    return DeletedSeqs.of(np.array(list(seqs), np.int64))


def members(deletes: DeletedSeqs) -> set[int]:
    return {seq for first, end in deletes.ranges.tolist() for seq in range(first, end)}


def new_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    disk.make_directory("/topic")
    disk.sync_directory("/")
    return disk


def content(disk: SimDisk) -> bytes:
    file = disk.open(PATH, read_only=True)
    return file.read(file.size(), 0)


# --- the set ---------------------------------------------------------------------------------------------------


@given(seq_lists, spans, seq_lists)
def test_ranges_equal_a_plain_set(seqs: list[int], ranges: list[tuple[int, int]], others: list[int]) -> None:
    model, found = set(seqs), deleted(seqs)
    for first, more in ranges:
        model |= set(range(first, first + more + 1))
        found = found.union(DeletedSeqs.between(first, first + more))
    assert members(found) == model
    assert len(found) == len(model)
    assert [found.is_deleted(seq) for seq in range(60)] == [seq in model for seq in range(60)]
    for first in range(0, 50, 7):
        assert found.apply(first, 13).tolist() == [seq in model for seq in range(first, first + 13)]
        for last in range(first, first + 9):
            assert found.covers(first, last) is (set(range(first, last + 1)) <= model)
            outside = {seq for low, end in found.outside(first, last).tolist() for seq in range(low, end)}
            assert outside == {*range(first, last + 1)} - model
    assert found.contains(np.array(others, np.int64)).tolist() == [seq in model for seq in others]
    if model:
        assert (found.first_seq, found.last_seq) == (min(model), max(model))
    bounds = found.ranges.reshape(-1).tolist()
    assert bounds == sorted(set(bounds))
    both = found.union(deleted(others))
    assert members(both) == model | set(others)
    assert both == deleted(others).union(found) == DeletedSeqs(both.ranges)
    assert hash(both) == hash(deleted(others).union(found))
    assert found.overlap(deleted(others)) == deleted(others).overlap(found) == len(model & set(others))
    assert DeletedSeqs(found.ranges.copy(), are_merged=True) == found
    assert (found == deleted(others)) is (model == set(others))


def test_the_empty_set() -> None:
    empty = DeletedSeqs()
    assert len(empty) == 0
    assert not empty.is_deleted(1)
    assert empty.apply(1, 3).tolist() == [False] * 3
    assert empty.apply(1, 0).tolist() == []
    assert not empty.covers(1, 1)
    assert empty == deleted([])
    assert empty != set()
    assert empty.union(empty) == empty


def test_adjacent_seqs_become_one_range() -> None:
    assert DeletedSeqs.between(1, 5).union(DeletedSeqs.between(6, 9)).ranges.tolist() == [[1, 10]]
    assert DeletedSeqs.between(1, 5).union(DeletedSeqs.between(7, 9)).ranges.tolist() == [[1, 6], [7, 10]]
    assert DeletedSeqs.between(1, 9).union(DeletedSeqs.between(3, 4)).ranges.tolist() == [[1, 10]]


def test_a_segment_is_fully_deleted_only_without_a_hole() -> None:
    holed = DeletedSeqs.between(10, 14).union(DeletedSeqs.between(16, 20))
    assert not holed.covers(10, 20)
    assert holed.union(deleted([15])).covers(10, 20)
    assert not holed.covers(9, 12)
    assert not holed.covers(12, 15)


def test_a_set_is_immutable() -> None:
    given_ranges = np.array([[1, 3]], np.int64)
    found = DeletedSeqs(given_ranges)
    given_ranges[0] = (7, 9)
    assert found.ranges.tolist() == [[1, 3]]
    with pytest.raises(ValueError, match="read-only"):
        found.ranges[0] = 5


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (5, 4), (1, 2**63 - 1)])
def test_invalid_ranges_are_refused(first: int, last: int) -> None:
    with pytest.raises(InvalidInputError, match="is not a range of seqs"):
        DeletedSeqs.between(first, last)


@pytest.mark.parametrize("seqs", [[-1], [3, -1], [2**63 - 1]])
def test_invalid_seqs_are_refused(seqs: list[int]) -> None:
    with pytest.raises(InvalidInputError, match="not all"):
        deleted(seqs)


# --- the sidecar -----------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(seq_lists)
def test_sidecar_round_trip(seqs: list[int]) -> None:
    disk = new_disk()
    write_deletes(disk, PATH, deleted(seqs), SEGMENT)
    disk.crash("none")
    assert load_deletes(disk, PATH, SEGMENT) == deleted(seqs)


def test_the_sidecar_has_the_documented_bytes() -> None:
    disk = new_disk()
    write_deletes(disk, PATH, deleted([10, 11, 15]), SEGMENT)
    data = content(disk)
    assert Preface.parse(data, kind=FileKind.DELETES).first == 10
    assert data[4096:-4] == b"".join(number.to_bytes(8, "little") for number in (2, 10, 12, 15, 16))
    assert data[-4:] == checksum(data[:-4]).to_bytes(4, "little")


def test_every_flipped_byte_is_refused() -> None:
    disk = new_disk()
    write_deletes(disk, PATH, deleted([10, 11, 15]), SEGMENT)
    data = content(disk)
    file = disk.open(PATH)
    for byte in range(len(data)):
        write_all(file, [bytes([data[byte] ^ (1 << byte % 8)])], byte)
        with pytest.raises(CorruptionError):
            load_deletes(disk, PATH, SEGMENT)
        write_all(file, [data[byte : byte + 1]], byte)
    assert len(load_deletes(disk, PATH, SEGMENT)) == 3


@pytest.mark.parametrize("bounds", [(5, 5), (5, 4), (1, 3, 3, 5), (1, 4, 2, 6), (7, 9, 1, 2), (-4, 2), (1, -1)])
def test_ranges_out_of_order_are_refused(bounds: tuple[int, ...]) -> None:
    disk = new_disk()
    write_rows(disk, PATH, FileKind.DELETES, np.array(bounds, "<i8").tobytes(), len(bounds) // 2, SEGMENT)
    with pytest.raises(CorruptionError, match="do not rise"):
        load_deletes(disk, PATH, SEGMENT)


def test_the_deletes_of_another_segment_are_refused() -> None:
    disk = new_disk()
    other = Preface(FileKind.SEGMENT, SEGMENT.directory_id, first=11, topic_id=3)
    write_deletes(disk, PATH, deleted([10]), other)
    with pytest.raises(CorruptionError, match="belongs to seq 11"):
        load_deletes(disk, PATH, SEGMENT)


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_a_crash_anywhere_leaves_the_old_set_or_the_new_one(keep: Any) -> None:
    old = deleted(range(10, 400, 2))
    new = old.union(deleted(range(400, 900, 2)))
    for calls in range(1, 100):
        disk = new_disk(calls)
        write_deletes(disk, PATH, old, SEGMENT)
        disk.crash_after(calls)
        try:
            write_deletes(disk, PATH, new, SEGMENT)
        except SimCrash:
            disk.crash(keep)
            assert load_deletes(disk, PATH, SEGMENT) in (old, new)
        else:
            disk.crash(keep)
            assert load_deletes(disk, PATH, SEGMENT) == new
            break
    assert calls > 5
