"""The index of a segment: one entry of 48 bytes per batch, so its memory grows with batches, not with records.

Entry (`INDEX_ENTRY`), little-endian:

| at | size | field        | notes                                                                          |
|----|------|--------------|--------------------------------------------------------------------------------|
| 0  | 8    | base_seq     | seq of the first record                                                        |
| 8  | 8    | at           | position of the batch in the segment file                                      |
| 16 | 8    | timestamp_ns | never decreases in a topic, so times are searched like seqs                    |
| 24 | 8    | base_offset  | version 1 offset of the first byte                                             |
| 32 | 8    | position     | in the total order                                                             |
| 40 | 4    | count        | records, at least one                                                          |
| 44 | 4    | length       | bytes of the whole stored batch, 96 or more                                    |

On disk it is a sidecar (`sidecars.py`) of kind INDEX whose rows are the entries; valid if they keep the order below.

Each entry begins, in seqs and in file positions, at or after the end of the one before it; positions, times and offsets
do not decrease. Bytes between two entries that belong to neither were damaged when the index was built.

A lost index can be rebuilt by a scan of the segment. This module must not know how a segment is written or read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import Offset, Position, Seq, TimestampNs
from seawall.errors import CorruptionError, InvalidInputError
from seawall.io.interfaces import Files
from seawall.kernels.log.epochs import WalRows
from seawall.kernels.log.segments import INDEX_ENTRY, Entries
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.storage.segments.sidecars import read_rows, write_rows

__all__ = [
    "INDEX_ENTRY",
    "BatchIndex",
    "Entries",
    "IndexEnds",
    "entries_of",
    "join_entries",
    "load_sidecar",
    "order_fault",
    "write_sidecar",
]

#: Capacity of a new index: a topic with a handful of batches costs 768 bytes.
_FIRST_CAPACITY: Final = 16

_U64_MAX: Final = (1 << 64) - 1


class BatchIndex:
    """The entries of one segment, in order; grows at its end."""

    __slots__ = ("_array", "_count", "_record_count")

    def __init__(self, entries: Entries | None = None) -> None:
        self._array: Entries = np.zeros(_FIRST_CAPACITY, INDEX_ENTRY)
        self._count = 0
        self._record_count = 0
        if entries is not None:
            self.extend(entries)

    @classmethod
    def over(cls, entries: Entries) -> BatchIndex:
        """An index over an array without a copy; the array must not change. Growing copies it."""
        index = cls()
        index._array = entries
        index._count = len(entries)
        index._record_count = int(entries["count"].sum(dtype=np.uint64))
        return index

    def __len__(self) -> int:
        return self._count

    @property
    def record_count(self) -> int:
        """Records of all batches together."""
        return self._record_count

    @property
    def memory_size(self) -> int:
        """Bytes of memory of the entries, unused capacity included."""
        return self._array.nbytes

    @property
    def entries(self) -> Entries:
        """All current entries, read-only; the array does not change when the index grows."""
        return self.slice(0, self._count)

    @property
    def first_seq(self) -> Seq:
        """Seq of the first record; the index must not be empty."""
        return Seq(int(self._entry(0)["base_seq"]))

    @property
    def last_seq(self) -> Seq:
        """Seq of the last record; the index must not be empty."""
        last = self._entry(self._count - 1)
        return Seq(int(last["base_seq"]) + int(last["count"]) - 1)

    @property
    def first_timestamp_ns(self) -> TimestampNs:
        """Time of the first batch; the index must not be empty."""
        return TimestampNs(int(self._entry(0)["timestamp_ns"]))

    @property
    def last_timestamp_ns(self) -> TimestampNs:
        """Time of the last batch; the index must not be empty."""
        return TimestampNs(int(self._entry(self._count - 1)["timestamp_ns"]))

    @property
    def end(self) -> int:
        """File position after the last batch; the start of the data if there is none."""
        if not self._count:
            return DATA_START
        last = self._array[self._count - 1]
        return int(last["at"]) + int(last["length"])

    def slice(self, first: int, last: int) -> Entries:
        """Entries `first` up to, not including, `last`, read-only."""
        view = self._array[: self._count][first:last]
        view.flags.writeable = False
        return view

    def append(
        self,
        *,
        base_seq: Seq,
        at: int,
        timestamp_ns: TimestampNs,
        base_offset: Offset,
        position: Position,
        count: int,
        length: int,
    ) -> None:
        """Add the entry of one batch. The caller keeps the order; loading a stored index checks it."""
        self._reserve(1)
        self._array[self._count] = (base_seq, at, timestamp_ns, base_offset, position, count, length)
        self._count += 1
        self._record_count += count

    def extend(self, entries: Entries) -> None:
        """Add many entries with one copy."""
        added = len(entries)
        self._reserve(added)
        self._array[self._count : self._count + added] = entries
        self._count += added
        self._record_count += int(entries["count"].sum(dtype=np.uint64))

    def find_seq(self, seq: Seq) -> int:
        """The batch that holds `seq`, else the first one after it; the number of entries if there is none."""
        index = self._search("base_seq", seq, "right") - 1
        if index < 0:
            return 0
        entry = self._array[index]
        return index if seq - int(entry["base_seq"]) < int(entry["count"]) else index + 1

    def seqs_below(self, seq: Seq) -> int:
        """How many batches begin below `seq`."""
        return self._search("base_seq", seq, "left")

    def fitting(self, first: int, last: int, size: int) -> int:
        """The end of the entries from `first` on, at most `last`, that fit into `size` bytes of the file."""
        if first >= last:
            return first
        limit = int(self._array[first]["at"]) + size
        end = min(last, self._search("at", min(limit, _U64_MAX), "right"))
        final = self._array[end - 1]
        return end if int(final["at"]) + int(final["length"]) <= limit else end - 1

    def find_time(self, timestamp_ns: TimestampNs) -> int:
        """The first batch that is not older than `timestamp_ns`; the number of entries if there is none."""
        return self._search("timestamp_ns", timestamp_ns, "left")

    def find_position(self, position: Position) -> int:
        """The first batch at or after `position`; the number of entries if there is none."""
        return self._search("position", position, "left")

    def find_offset(self, offset: Offset) -> int:
        """The last batch that begins at or before `offset`, the first one if none does.

        The index does not know the end offset of the last batch; its header does.
        """
        return max(0, self._search("base_offset", offset, "right") - 1)

    def _search(self, field: str, value: int, side: Literal["left", "right"]) -> int:
        """One binary search; for a plain integer numpy would convert the whole column first, hence `np.uint64`."""
        if not 0 <= value < 1 << 64:
            raise InvalidInputError(f"{field} {value} is not a number of 64 bits")
        column: npt.NDArray[np.uint64] = self._array[field][: self._count]
        return int(column.searchsorted(np.uint64(value), side))

    def _entry(self, index: int) -> np.void:
        if not self._count:
            raise InvalidInputError("an index without entries has neither first nor last batch")
        entry: np.void = self._array[index]
        return entry

    def _reserve(self, added: int) -> None:
        """Ensure capacity, doubling it, so that appending is amortised constant."""
        needed = self._count + added
        if needed <= len(self._array):
            return
        # A new array instead of a resize: existing views keep the old one.
        grown = np.zeros(max(needed, 2 * len(self._array)), INDEX_ENTRY)
        grown[: self._count] = self._array[: self._count]
        self._array = grown


class IndexEnds(NamedTuple):
    """The first offset and the last position of an index; both -1 if it has no entries."""

    first_offset: Offset
    last_position: Position

    @classmethod
    def of(cls, index: BatchIndex) -> IndexEnds:
        """The ends of an index as it is now."""
        entries = index.entries
        if not len(entries):
            return cls(Offset(-1), Position(-1))
        return cls(Offset(int(entries["base_offset"][0])), Position(int(entries["position"][-1])))


def entries_of(rows: WalRows, at: int) -> Entries:
    """The entries for log batches that will be contiguous from a file position on."""
    entries: Entries = np.empty(len(rows), INDEX_ENTRY)
    for name in ("base_seq", "timestamp_ns", "base_offset", "position", "count"):
        entries[name] = rows[name]
    entries["length"] = rows["size"]
    ends = rows["size"].astype(np.uint64).cumsum() + np.uint64(at)
    entries["at"] = ends - rows["size"]
    return entries


def join_entries(parts: Sequence[Entries]) -> Entries:
    """Concatenate entries. It joins bytes, because numpy would compare the record types of every part."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.zeros(0, np.uint8), *(part.view(np.uint8) for part in parts)]).view(INDEX_ENTRY)


def order_fault(entries: Entries) -> str | None:
    """Describe what breaks the order of the entries, or an entry that cannot be a batch; None if they are valid."""
    if not len(entries):
        return None
    ends = {"base_seq": entries["base_seq"] + entries["count"], "at": entries["at"] + entries["length"]}
    if int(entries["at"][0]) < DATA_START or not entries["count"].all():
        return f"an entry before byte {DATA_START}, or without records"
    if int(entries["length"].min()) < limits.BATCH_HEADER_SIZE:
        return f"a batch shorter than its header of {limits.BATCH_HEADER_SIZE} bytes"
    for field, end in ends.items():
        # An end below its beginning has wrapped around; each entry is compared with the end of the one before.
        if np.any(end < entries[field]) or np.any(entries[field][1:] < end[:-1]):
            return f"{field} goes back or overlaps"
    for field in ("position", "timestamp_ns", "base_offset"):
        if np.any(entries[field][1:] < entries[field][:-1]):
            return f"{field} goes back"
    return None


def write_sidecar(files: Files, path: str, index: BatchIndex, segment: Preface) -> None:
    """Write the index sidecar of the segment with this preface, durably, replacing an existing one."""
    write_rows(files, path, FileKind.INDEX, index.entries.tobytes(), len(index), segment)


def load_sidecar(files: Files, path: str, segment: Preface) -> BatchIndex:
    """Load the index at `path`; `CorruptionError` if it is damaged or belongs to another segment."""
    rows = read_rows(files, path, FileKind.INDEX, INDEX_ENTRY.itemsize, segment)
    entries: Entries = np.frombuffer(rows, INDEX_ENTRY)
    fault = order_fault(entries)
    if fault is not None:
        raise CorruptionError(f"{path}: {fault}")
    return BatchIndex.over(entries)
