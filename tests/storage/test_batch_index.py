"""The index of a segment: lookups against a plain list, growth, and a sidecar that is valid or refused."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.errors import CorruptionError, InvalidInputError, UnsupportedError
from seawall.io.disk.files import write_all
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.storage.segments.batch_index import INDEX_ENTRY, BatchIndex, load_sidecar, order_fault, write_sidecar
from seawall.testing import SimCrash, SimDisk
from seawall.wire.format.frames import checksum

SEGMENT = Preface(FileKind.SEGMENT, b"directory-id-16b", first=10, created_ns=5, topic_id=3)
PATH = "/topic/00000000000000000010.index"

steps = st.tuples(
    st.integers(0, 3),  # seqs skipped
    st.integers(1, 5),  # records
    st.integers(96, 300),  # bytes
    st.integers(0, 2),  # time step
    st.integers(1, 4),  # position step
)


def entries_from(drawn: list[tuple[int, int, int, int, int]], first_seq: int = 10) -> Any:
    rows, seq, at, time, position, offset = [], first_seq, DATA_START, 100, 7, 50
    for skipped, count, length, passed, advance in drawn:
        seq, time, position = seq + skipped, time + passed, position + advance
        rows.append((seq, at, time, offset, position, count, length))
        seq, at, offset = seq + count, at + length, offset + length - 96
    return np.array(rows, INDEX_ENTRY)


def index_of(count: int) -> BatchIndex:
    return BatchIndex(entries_from([(0, 2, 100, 1, 1)] * count))


def new_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    disk.make_directory("/topic")
    disk.sync_directory("/")
    return disk


def content(disk: SimDisk, path: str = PATH) -> bytes:
    file = disk.open(path, read_only=True)
    return file.read(file.size(), 0)


def store(disk: SimDisk, data: bytes, path: str = PATH) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    write_all(file, [data], 0)


@given(st.lists(steps, min_size=1, max_size=12), st.data())
def test_fitting_equals_a_running_sum_of_lengths(drawn: list[Any], draw: st.DataObject) -> None:
    entries = entries_from(drawn)
    index = BatchIndex.over(entries)
    first = draw.draw(st.integers(0, len(entries)))
    last = draw.draw(st.integers(first, len(entries)))
    size = draw.draw(st.integers(0, 4_000))
    fitting = first
    while fitting < last and int(entries["length"][first : fitting + 1].sum()) <= size:
        fitting += 1
    assert index.fitting(first, last, size) == fitting
    for seq in range(5, 40):
        assert index.seqs_below(seq) == np.count_nonzero(entries["base_seq"] < seq)


def test_an_index_over_entries_shares_their_memory_until_it_grows() -> None:
    entries = entries_from([(0, 2, 100, 1, 1)] * 3)
    entries.flags.writeable = False
    index = BatchIndex.over(entries)
    assert np.shares_memory(index.entries, entries)
    assert (index.record_count, len(index), index.memory_size) == (6, 3, 3 * 48)
    index.append(base_seq=20, at=9_000, timestamp_ns=200, base_offset=900, position=90, count=1, length=100)
    assert not np.shares_memory(index.entries, entries)
    assert (len(index), index.last_seq, len(entries)) == (4, 20, 3)


# --- lookups ---------------------------------------------------------------------------------------------------


@given(st.lists(steps, max_size=12))
def test_lookups_equal_a_walk_through_the_list(drawn: list[Any]) -> None:
    entries = entries_from(drawn)
    index = BatchIndex(entries)
    rows = entries.tolist()
    for seq in range(5, 10 + 8 * len(rows) + 5):
        expected = next((i for i, row in enumerate(rows) if row[0] + row[5] > seq), len(rows))
        assert index.find_seq(seq) == expected
    for time in range(98, 104 + 2 * len(rows)):
        assert index.find_time(time) == bisect.bisect_left([row[2] for row in rows], time)
    for position in range(5, 12 + 4 * len(rows)):
        assert index.find_position(position) == bisect.bisect_left([row[4] for row in rows], position)
    for offset in range(40, 60 + sum(row[6] - 96 for row in rows), 7):
        before = [i for i, row in enumerate(rows) if row[3] <= offset]
        assert index.find_offset(offset) == (before[-1] if before else 0)


def test_numbers_at_the_ends_of_64_bits() -> None:
    index = index_of(3)
    assert index.find_seq(0) == index.find_time(0) == index.find_position(0) == index.find_offset(0) == 0
    largest = 2**64 - 1
    assert index.find_seq(largest) == index.find_time(largest) == index.find_position(largest) == 3
    assert index.find_offset(largest) == 2
    for find in (index.find_seq, index.find_time, index.find_position, index.find_offset):
        for number in (-1, 2**64):
            with pytest.raises(InvalidInputError, match="64 bits"):
                find(number)


def test_an_empty_index_finds_nothing() -> None:
    index = BatchIndex()
    assert (len(index), index.record_count, index.end) == (0, 0, DATA_START)
    assert index.find_seq(1) == index.find_time(1) == index.find_position(1) == index.find_offset(1) == 0
    for name in ("first_seq", "last_seq", "first_timestamp_ns", "last_timestamp_ns"):
        with pytest.raises(InvalidInputError, match="without entries"):
            getattr(index, name)


@given(st.lists(steps, max_size=80), st.lists(st.integers(0, 20), max_size=10))
def test_growing_in_any_steps_gives_the_same_index(drawn: list[Any], cuts: list[int]) -> None:
    entries = entries_from(drawn)
    index = BatchIndex()
    at = 0
    for cut in cuts:
        index.extend(entries[at : at + cut])
        at = min(len(entries), at + cut)
    for row in entries[at:]:
        index.append(**{name: int(row[name]) for name in INDEX_ENTRY.names})
    assert (index.entries == entries).all()
    assert len(index) == len(entries)
    assert index.record_count == int(entries["count"].sum())
    if len(entries):
        last = entries[-1]
        assert index.first_seq == entries[0]["base_seq"]
        assert index.last_seq == last["base_seq"] + last["count"] - 1
        assert index.first_timestamp_ns == entries[0]["timestamp_ns"]
        assert index.last_timestamp_ns == last["timestamp_ns"]
        assert index.end == last["at"] + last["length"]


def test_a_view_is_read_only_and_unaffected_by_growth() -> None:
    index = index_of(16)
    view, part = index.entries, index.slice(3, 5)
    before = view.tolist()
    index.extend(entries_from([(100, 1, 96, 50, 50)]))
    assert view.tolist() == before
    assert part.tolist() == before[3:5]
    assert index.slice(16, 99).tolist() == index.entries[16:].tolist()
    with pytest.raises(ValueError, match="read-only"):
        view["count"] = 1
    # Growth within the allocated space must not change a view either.
    early = BatchIndex(entries_from([(0, 1, 96, 0, 1)]))
    view = early.entries
    early.extend(entries_from([(5, 1, 96, 0, 3)]))
    assert len(view) == 1


def test_memory_is_proportional_to_batches() -> None:
    """10,000,000 records in batches of 100 take less than 16 MB, appended in steps."""
    index = BatchIndex()
    piece = entries_from([(0, 100, 96, 0, 1)] * 1_000)
    for _ in range(100):
        index.extend(piece)
    assert index.record_count == 10_000_000
    assert index.memory_size <= 16_000_000


# --- order -----------------------------------------------------------------------------------------------------


@given(st.lists(steps, max_size=10))
def test_ordered_entries_have_no_fault(drawn: list[Any]) -> None:
    assert order_fault(entries_from(drawn)) is None


@pytest.mark.parametrize(
    ("field", "row", "value", "fault"),
    [
        ("base_seq", 1, 10, "base_seq goes back"),
        ("base_seq", 1, 11, "base_seq goes back"),
        ("base_seq", 2, 2**64 - 1, "base_seq goes back"),
        ("at", 1, DATA_START + 99, "at goes back"),
        ("at", 0, DATA_START - 1, "before byte"),
        ("at", 2, 2**64 - 1, "at goes back"),
        ("timestamp_ns", 1, 100, "timestamp_ns goes back"),
        ("base_offset", 1, 49, "base_offset goes back"),
        ("position", 1, 7, "position goes back"),
        ("count", 1, 0, "without records"),
        ("count", 0, 3, "base_seq goes back"),
        ("length", 1, 95, "shorter than its header"),
        ("length", 0, 101, "at goes back"),
    ],
)
def test_each_fault_of_order_is_named(field: str, row: int, value: int, fault: str) -> None:
    entries = entries_from([(0, 2, 100, 1, 1)] * 3)
    entries[field][row] = value
    found = order_fault(entries)
    assert found is not None
    assert fault in found
    disk = new_disk()
    write_sidecar(disk, PATH, BatchIndex(entries), SEGMENT)
    with pytest.raises(CorruptionError, match=fault):
        load_sidecar(disk, PATH, SEGMENT)


def test_a_missing_entry_is_no_fault_of_order() -> None:
    entries = entries_from([(0, 2, 100, 1, 1)] * 3)
    assert order_fault(entries[[0, 2]]) is None


# --- the sidecar -----------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(steps, max_size=30))
def test_sidecar_round_trip(drawn: list[Any]) -> None:
    disk = new_disk()
    index = BatchIndex(entries_from(drawn))
    write_sidecar(disk, PATH, index, SEGMENT)
    assert (load_sidecar(disk, PATH, SEGMENT).entries == index.entries).all()
    first = content(disk)
    write_sidecar(disk, PATH, index, SEGMENT)
    assert content(disk) == first
    disk.crash("none")
    assert content(disk) == first


def test_the_sidecar_has_the_documented_bytes() -> None:
    disk = new_disk()
    index = index_of(2)
    write_sidecar(disk, PATH, index, SEGMENT)
    data = content(disk)
    assert Preface.parse(data, kind=FileKind.INDEX).first == 10
    assert data[4096:4104] == (2).to_bytes(8, "little")
    assert data[4104:-4] == index.entries.tobytes()
    assert len(data) == 4104 + 2 * 48 + 4
    assert data[-4:] == checksum(data[:-4]).to_bytes(4, "little")


def test_every_flipped_byte_is_refused() -> None:
    disk = new_disk()
    write_sidecar(disk, PATH, index_of(2), SEGMENT)
    data = content(disk)
    file = disk.open(PATH)
    for byte in range(len(data)):
        write_all(file, [bytes([data[byte] ^ (1 << byte % 8)])], byte)
        with pytest.raises(CorruptionError):
            load_sidecar(disk, PATH, SEGMENT)
        write_all(file, [data[byte : byte + 1]], byte)
    assert len(load_sidecar(disk, PATH, SEGMENT)) == 2


def test_every_cut_and_every_longer_file_is_refused() -> None:
    disk = new_disk()
    write_sidecar(disk, PATH, index_of(1), SEGMENT)
    data = content(disk)
    for cut in (0, 1, 63, 64, 4095, 4096, 4103, 4104, 4107, 4108, *range(len(data) - 50, len(data))):
        store(disk, data[:cut])
        with pytest.raises(CorruptionError):
            load_sidecar(disk, PATH, SEGMENT)
    store(disk, data + bytes(48))
    with pytest.raises(CorruptionError, match="not the length"):
        load_sidecar(disk, PATH, SEGMENT)


@pytest.mark.parametrize(
    ("other", "error"),
    [
        (Preface(FileKind.SEGMENT, b"another-director", first=10, topic_id=3), CorruptionError),
        (Preface(FileKind.SEGMENT, b"directory-id-16b", first=11, topic_id=3), CorruptionError),
        (Preface(FileKind.SEGMENT, b"directory-id-16b", first=10, topic_id=4), CorruptionError),
        (Preface(FileKind.SEGMENT, b"directory-id-16b", first=10, topic_id=3, format=9), UnsupportedError),
    ],
)
def test_the_index_of_another_segment_is_refused(other: Preface, error: type[Exception]) -> None:
    disk = new_disk()
    write_sidecar(disk, PATH, index_of(1), other)
    with pytest.raises(error, match="index"):
        load_sidecar(disk, PATH, SEGMENT)


def test_a_missing_sidecar_is_missing() -> None:
    with pytest.raises(FileNotFoundError):
        load_sidecar(new_disk(), PATH, SEGMENT)


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_a_crash_anywhere_leaves_the_old_index_or_the_new_one(keep: Any) -> None:
    old, new = index_of(2), index_of(30)
    for calls in range(1, 100):
        disk = new_disk(calls)
        write_sidecar(disk, PATH, old, SEGMENT)
        disk.crash_after(calls)
        try:
            write_sidecar(disk, PATH, new, SEGMENT)
        except SimCrash:
            disk.crash(keep)
            found = load_sidecar(disk, PATH, SEGMENT).entries.tolist()
            assert found in (old.entries.tolist(), new.entries.tolist())
        else:
            disk.crash(keep)
            assert load_sidecar(disk, PATH, SEGMENT).entries.tolist() == new.entries.tolist()
            break
    assert calls > 5


def test_batches_of_a_transaction_share_a_position() -> None:
    entries = entries_from([(0, 2, 100, 1, 1)] * 3)
    entries["position"][1:] = entries["position"][0]
    assert order_fault(entries) is None
