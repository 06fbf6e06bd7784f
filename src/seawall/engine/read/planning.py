"""Plan reads: choose the batches, locate them, and pin the files that hold them.

A plan is made under the store's lock, by index lookups only; executing it needs no lock (`reading.py`). Batches that
are adjacent in a file form one `Run`, which is read with one read. Unflushed batches are read from the write-ahead log
while planning: the next checkpoint may drop their log files, they are small, and they were just written.

Every file that a plan refers to stays pinned until the plan is released.

This module must not know what a reader gets, nor what makes a batch durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.core.types import Seq, TopicId
from seawall.engine.store.unflushed import FLUSHED, Numbers
from seawall.io.disk.unreadable import UNREADABLE, read_skipping_errors
from seawall.io.interfaces import Readable
from seawall.limits import READ_GAP_SIZE_MAX
from seawall.storage.segments.batch_index import BatchIndex, Entries
from seawall.storage.shared_file import SharedFile
from seawall.storage.wal.epochs import WalAddress

#: Returns the log file that holds an address, and the position in it.
Locate: TypeAlias = Callable[[WalAddress], tuple[Readable, int]]
#: Ranges of seqs as pairs of first and last, ascending.
SeqRuns: TypeAlias = tuple[tuple[Seq, Seq], ...]
#: Returns the live ranges within a range given by its first and last seq.
LiveRuns: TypeAlias = Callable[[Seq, Seq], Iterator[tuple[Seq, Seq]]]

#: Adds entries of a segment, given with their entry numbers, to the plan.
Add: TypeAlias = Callable[[Entries, Sequence[int]], None]


class Run(NamedTuple):
    """Adjacent batches, to be read and verified against their index entries.

    The entries give the file positions in the pinned `source`. For unflushed batches, `source` is None, and `data`
    holds their bytes from the first batch on.
    """

    topic_id: TopicId
    entries: Entries
    #: Position of the first batch, and bytes from there to the end of the last one.
    at: int
    size: int
    source: SharedFile | None
    data: bytes = b""


@dataclass(slots=True)
class Planned:
    """The batches to read, in order. Every batch after them starts at `end_seq` or higher."""

    topic_id: TopicId
    end_seq: Seq
    size_left: int
    #: None if the number of records is not limited.
    records_left: int | None
    live_runs: LiveRuns | None
    runs: list[Run] = field(default_factory=list)

    def release(self) -> None:
        """Release all pins. Calling it twice is fine."""
        runs, self.runs = self.runs, []
        for run in runs:
            if run.source is not None:
                run.source.unpin()

    def take(self, index: BatchIndex, seq: Seq, last_seq: Seq, add: Add) -> Seq | None:
        """Add the batches of a segment from `seq` on; returns the seq to continue at, None if the plan is complete."""
        first = index.find_seq(seq)
        if self.live_runs is None and not self.runs and self._take_one(index, first, seq, add):
            return None
        last = index.seqs_below(self.end_seq)
        while first < last:
            chosen = self._choose(index, first, last, seq)
            if chosen == first:
                self.end_seq = _base_seq(index, first)
                return None
            entries = index.slice(first, chosen)
            numbers: Sequence[int] = range(first, chosen)
            first = chosen
            if self.live_runs is not None:
                wanted, live = _with_live(entries, self.live_runs, seq)
                entries, numbers = entries[wanted], np.array(numbers)[wanted].tolist()
                self.records_left = None if self.records_left is None else self.records_left - live
                if not len(entries):
                    # No live record in these batches: jump to the next live range, however far away it is.
                    next_seq = _base_seq(index, first) if first < len(index) else Seq(last_seq + 1)
                    next_live = next(self.live_runs(next_seq, Seq(self.end_seq - 1)), None)
                    if next_live is None:
                        return None
                    if next_live[0] > last_seq:
                        return next_live[0]
                    first = max(first, index.find_seq(next_live[0]))
                    continue
            add(entries, numbers)
        return Seq(last_seq + 1)

    def _take_one(self, index: BatchIndex, first: int, from_seq: Seq, add: Add) -> bool:
        """The fast path of a seek: add the first batch if it alone completes the plan; True if it does.

        The result is the same as that of the general path: the plan ends where the next batch starts.
        """
        pair = index.slice(first, first + 2).tolist()
        if len(pair) < 2 or self.records_left == 0:
            return False
        (base_seq, _, _, _, _, count, length), (next_seq, _, _, _, _, _, next_length) = pair
        wanted = self.records_left
        is_enough = wanted is not None and wanted <= base_seq + count - max(from_seq, base_seq)
        if next_seq >= self.end_seq or not (is_enough or length + next_length > self.size_left):
            return False
        add(index.slice(first, first + 1), (first,))
        self.end_seq = next_seq
        return True

    def _choose(self, index: BatchIndex, first: int, last: int, from_seq: Seq) -> int:
        """Returns the first entry from `first` on that exceeds the limits of the plan; `last` if none does."""
        if self.records_left is not None:
            if self.records_left <= 0:
                return first
            # Each batch holds at least one record.
            last = min(last, first + self.records_left)
        fitting = index.fitting(first, last, self.size_left)
        if fitting == first and not self.runs:
            fitting = first + 1
        if self.records_left is None or self.live_runs is not None or fitting == first:
            return fitting
        entries = index.slice(first, fitting)
        base_seq, _, _, _, _, count, _ = entries[0].item()
        before = max(0, from_seq - base_seq)
        if self.records_left <= count - before:
            self.records_left = 0
            return first + 1
        counted = np.cumsum(entries["count"], dtype=np.int64)
        enough = min(fitting, first + 1 + int(counted.searchsorted(np.int64(self.records_left + before))))
        self.records_left -= int(counted[enough - first - 1]) - before
        return enough

    def add_stored(self, source: SharedFile, entries: Entries) -> None:
        """Add batches that are flushed to a segment file."""
        if len(entries) == 1:
            _, at, _, _, _, _, length = entries.item()
            self._add(Run(self.topic_id, entries, at, length, source.pin()))
            return
        for first, last in _adjacent_ranges(entries["at"], entries["length"]):
            adjacent = entries[first:last]
            at, size = _extent(adjacent)
            self._add(Run(self.topic_id, adjacent, at, size, source.pin()))

    def add_unflushed(self, locate: Locate, entries: Entries, addresses: Numbers) -> None:
        """Add unflushed batches, reading them from the write-ahead log now."""
        logged = entries.copy()
        logged["at"] = addresses
        self.add_logged(locate, logged)

    def add_logged(self, locate: Locate, entries: Entries) -> None:
        """Like `add_unflushed`, for entries that have log addresses instead of segment positions."""
        if len(entries) == 1:
            self._read_log(locate, entries)
            return
        for first, last in _adjacent_ranges(entries["at"], entries["length"]):
            self._read_log(locate, entries[first:last])

    def _read_log(self, locate: Locate, entries: Entries) -> None:
        """Read adjacent batches with one read if one log file holds all of them, otherwise in halves."""
        first, size = _extent(entries)
        file, at = locate(WalAddress(first))
        if len(entries) > 1:
            last = int(entries[-1]["at"])
            other, other_at = locate(WalAddress(last))
            if other is not file or other_at - at != last - first:
                half = len(entries) // 2
                self._read_log(locate, entries[:half])
                self._read_log(locate, entries[half:])
                return
        self._add(Run(self.topic_id, entries, first, size, None, _read_log(file, size, at)))

    def _add(self, run: Run) -> None:
        self.runs.append(run)
        self.size_left = max(0, self.size_left - run.size)


def _read_log(file: Readable, size: int, at: int) -> bytes:
    """Read bytes of a log file, fewer at its end. Bytes of unreadable sectors are zeros."""
    try:
        return file.read(size, at)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    data = bytearray(size)
    return bytes(data[: read_skipping_errors(file, memoryview(data), at)])


def split_by_flushed(addresses: Numbers) -> Iterator[tuple[int, int, bool]]:
    """Split entries into ranges that are all flushed or all unflushed: first, last, and True if flushed."""
    in_place = addresses == FLUSHED
    edges = [0, *(np.flatnonzero(in_place[1:] != in_place[:-1]) + 1).tolist(), len(addresses)]
    for first, last in pairwise(edges):
        yield first, last, bool(in_place[first])


def _with_live(entries: Entries, live_runs: LiveRuns, from_seq: Seq) -> tuple[npt.NDArray[np.bool_], int]:
    """Returns which batches hold a live record from `from_seq` on, and the number of those records."""
    starts = entries["base_seq"].astype(np.int64)
    ends = starts + entries["count"]
    inside = live_runs(max(from_seq, Seq(int(starts[0]))), Seq(int(ends[-1]) - 1))
    runs: Numbers = np.array(list(inside), np.int64).reshape(-1, 2)
    if not len(runs):
        return np.zeros(len(entries), np.bool_), 0
    near = runs[:, 1].searchsorted(starts)
    reached = runs[np.minimum(near, len(runs) - 1), 0] < ends
    return (near < len(runs)) & reached, int((runs[:, 1] - runs[:, 0] + 1).sum())


def _base_seq(index: BatchIndex, entry: int) -> Seq:
    return Seq(int(index.slice(entry, entry + 1)["base_seq"][0]))


def _extent(entries: Entries) -> tuple[int, int]:
    """Returns the position of the first batch, and the bytes from there to the end of the last one."""
    _, at, _, _, _, _, length = entries[0].item()
    if len(entries) > 1:
        length = int(entries[-1]["at"]) + int(entries[-1]["length"]) - at
    return at, length


def _adjacent_ranges(starts: npt.NDArray[np.integer], lengths: npt.NDArray[np.uint32]) -> list[tuple[int, int]]:
    """Split batches into ranges for one read each: a batch starts at the end of the previous one or shortly after."""
    # A batch that starts before the end of the previous one wraps around to a large distance, so it is split off too.
    distances = (starts[1:] - (starts + lengths)[:-1]).astype(np.uint64)
    cuts = np.flatnonzero(distances > READ_GAP_SIZE_MAX) + 1
    edges = [0, *cuts.tolist(), len(starts)]
    return list(pairwise(edges))
