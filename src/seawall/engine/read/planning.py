"""Reads, planned: which batches, where each lies, and the files that hold them pinned.

A plan is made while nothing changes, by lookups in indexes alone; carrying it out needs no lock (`reading.py`). Batches
that lie together are one `Run`, which is one read. What waits in the log is brought along at once: its files may go
with the next checkpoint, it is small, and it was just written.

Every file that a plan names is pinned until the plan is released.

This module must not know what a reader is told, nor what makes a batch durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.core.types import Seq, TopicId
from seawall.engine.store.unflushed import IN_PLACE, Numbers
from seawall.io.disk.unreadable import UNREADABLE, read_readable
from seawall.io.interfaces import Readable
from seawall.limits import READ_GAP_SIZE_MAX
from seawall.storage.segments.batch_index import BatchIndex, Entries
from seawall.storage.shared_file import SharedFile
from seawall.storage.wal.epochs import WalAddress

#: The file an address of the log lies in, and the position there.
Locate: TypeAlias = Callable[[WalAddress], tuple[Readable, int]]
#: First and last seqs of ranges, ascending.
SeqRuns: TypeAlias = tuple[tuple[Seq, Seq], ...]
#: The live ranges inside one from a first seq to a last.
LiveRuns: TypeAlias = Callable[[Seq, Seq], Iterator[tuple[Seq, Seq]]]

#: Takes some entries of a segment, given with their numbers, into the plan.
Add: TypeAlias = Callable[[Entries, Sequence[int]], None]


class Run(NamedTuple):
    """Batches that lie together, to be read and held against their entries.

    The entries say where: in a pinned file, or, of what came out of the log, in `data`, which begins with the first.
    """

    topic_id: TopicId
    entries: Entries
    #: Where the first batch begins, and how many bytes from there the last one ends.
    at: int
    size: int
    source: SharedFile | None
    data: bytes = b""


@dataclass(slots=True)
class Planned:
    """What is to be read, in order; nothing behind it begins below `end_seq`."""

    topic_id: TopicId
    end_seq: Seq
    size_left: int
    #: None where any number of records will do.
    records_left: int | None
    live_runs: LiveRuns | None
    runs: list[Run] = field(default_factory=list)

    def release(self) -> None:
        """Give all pins back; twice is fine."""
        runs, self.runs = self.runs, []
        for run in runs:
            if run.source is not None:
                run.source.unpin()

    def take(self, index: BatchIndex, seq: Seq, last_seq: Seq, add: Add) -> Seq | None:
        """Plan what is wanted of a segment from `seq` on; where to go on behind it, None if the plan is complete."""
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
                    # Nothing up to here: go on at what is live next, however far away.
                    behind = _base_seq(index, first) if first < len(index) else Seq(last_seq + 1)
                    ahead = next(self.live_runs(behind, Seq(self.end_seq - 1)), None)
                    if ahead is None:
                        return None
                    if ahead[0] > last_seq:
                        return ahead[0]
                    first = max(first, index.find_seq(ahead[0]))
                    continue
            add(entries, numbers)
        return Seq(last_seq + 1)

    def _take_one(self, index: BatchIndex, first: int, from_seq: Seq, add: Add) -> bool:
        """The short way of a seek: plan the first batch if it alone is wanted; whether that was so.

        It leads where the long way does: the plan is complete, and ends where the batch behind it begins.
        """
        near = index.slice(first, first + 2).tolist()
        if len(near) < 2 or self.records_left == 0:
            return False
        (base_seq, _, _, _, _, count, length), (next_seq, _, _, _, _, _, next_length) = near
        wanted = self.records_left
        is_enough = wanted is not None and wanted <= base_seq + count - max(from_seq, base_seq)
        if next_seq >= self.end_seq or not (is_enough or length + next_length > self.size_left):
            return False
        add(index.slice(first, first + 1), (first,))
        self.end_seq = next_seq
        return True

    def _choose(self, index: BatchIndex, first: int, last: int, from_seq: Seq) -> int:
        """Which entry from `first` on is the first that there is no room for; `last` if there is for all before it."""
        if self.records_left is not None:
            if self.records_left <= 0:
                return first
            # Each holds a record at the least.
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
        """Batches of a segment that are at their places."""
        if len(entries) == 1:
            _, at, _, _, _, _, length = entries.item()
            self._add(Run(self.topic_id, entries, at, length, source.pin()))
            return
        for first, last in _together(entries["at"], entries["length"]):
            together = entries[first:last]
            at, size = _extent(together)
            self._add(Run(self.topic_id, together, at, size, source.pin()))

    def add_logged(self, locate: Locate, entries: Entries, addresses: Numbers) -> None:
        """Batches that wait in the log, read right here."""
        moved = entries.copy()
        moved["at"] = addresses
        for first, last in _together(addresses, entries["length"]):
            self._read_log(locate, moved[first:last])

    def _read_log(self, locate: Locate, entries: Entries) -> None:
        """One read where all of them lie in one file of the log, else one for each half."""
        first, size = _extent(entries)
        file, at = locate(WalAddress(first))
        last = int(entries[-1]["at"])
        other, other_at = (file, at) if first == last else locate(WalAddress(last))
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
    """Bytes of the log, fewer where its file ends; those that the disk does not give back are zeros."""
    try:
        return file.read(size, at)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    data = bytearray(size)
    return bytes(data[: read_readable(file, memoryview(data), at)])


def split_by_residence(addresses: Numbers) -> Iterator[tuple[int, int, bool]]:
    """Stretches of entries that are all in the log, or none of them; the order stays."""
    in_place = addresses == IN_PLACE
    edges = [0, *(np.flatnonzero(in_place[1:] != in_place[:-1]) + 1).tolist(), len(addresses)]
    for first, last in pairwise(edges):
        yield first, last, bool(in_place[first])


def _with_live(entries: Entries, live_runs: LiveRuns, from_seq: Seq) -> tuple[npt.NDArray[np.bool_], int]:
    """Which of some batches hold a live record from a seq on, and how many there are of those in all."""
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
    """Where the first of some batches begins, and how many bytes from there the last one ends."""
    _, at, _, _, _, _, length = entries[0].item()
    if len(entries) > 1:
        length = int(entries[-1]["at"]) + int(entries[-1]["length"]) - at
    return at, length


def _together(places: npt.NDArray[np.integer], lengths: npt.NDArray[np.uint32]) -> list[tuple[int, int]]:
    """Ranges of batches that one read brings: each begins where the one before ends, or close behind."""
    # What begins before the end of the one before wraps, and is far away too.
    between = (places[1:] - (places + lengths)[:-1]).astype(np.uint64)
    cuts = np.flatnonzero(between > READ_GAP_SIZE_MAX) + 1
    edges = [0, *cuts.tolist(), len(places)]
    return list(pairwise(edges))
