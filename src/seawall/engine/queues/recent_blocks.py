"""The records of a queue that were read last: most jobs are claimed soon after they were pushed, or soon after others.

Each entry is a run of consecutive records: their bytes, joined, and where each record begins. Runs of a queue never
overlap. All queues of a store share one bound; a claim reads again what was dropped.

Records never change, so a cached one is right for as long as its seq is live. This module must not know who reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


class RecordRun(NamedTuple):
    """Consecutive records that were read."""

    first_seq: int
    #: The joined blocks, and where each record begins in them, and the end.
    data: memoryview
    starts: Integers
    #: The first record of each batch, as an index, and when the log stored the batch.
    batch_firsts: Integers
    batch_times_ns: Integers

    @property
    def end_seq(self) -> int:
        """The seq after the last one."""
        return self.first_seq + len(self.starts) - 1

    def bytes_of(self, first_seq: int, end_seq: int) -> memoryview:
        """The records from one seq to another."""
        start, end = self.starts[first_seq - self.first_seq], self.starts[end_seq - self.first_seq]
        return self.data[int(start) : int(end)]

    def end_within(self, first_seq: int, end_seq: int, size_max: int) -> int:
        """The seq up to which records from `first_seq` have `size_max` bytes; at least one, and not above `end_seq`."""
        limit = self.starts[first_seq - self.first_seq] + size_max
        fitting = self.first_seq + int(self.starts.searchsorted(limit, "right")) - 1
        return min(max(fitting, first_seq + 1), end_seq)

    def times_ns(self, seqs: Integers) -> Integers:
        """When the log stored each of some records."""
        numbers = self.batch_firsts.searchsorted(seqs - self.first_seq, "right") - 1
        times: Integers = self.batch_times_ns[numbers]
        return times

    def sizes(self, seqs: Integers) -> Integers:
        """Plain bytes of each of some records."""
        numbers = seqs - self.first_seq
        sizes: Integers = self.starts[numbers + 1] - self.starts[numbers]
        return sizes


class BlockBudget:
    """The bound of the records that all queues of a store keep. The runs added first are dropped first."""

    #: Bytes of all kept records, and of one run.
    SIZE_MAX: Final = 32 << 20
    RUN_SIZE_MAX: Final = 8 << 20

    def __init__(self) -> None:
        self._added: deque[tuple[RecentBlocks, int, int]] = deque()
        self._size = 0

    def added(self, blocks: RecentBlocks, first_seq: int, size: int) -> None:
        """Count a run, and drop the oldest ones above the bound."""
        self._added.append((blocks, first_seq, size))
        self._size += size
        while self._size > self.SIZE_MAX:
            oldest, first_seq, size = self._added.popleft()
            oldest.drop(first_seq)
            self._size -= size


class RecentBlocks:
    """The records of one queue that were read last."""

    def __init__(self, budget: BlockBudget) -> None:
        self._budget = budget
        self._firsts: list[int] = []
        self._runs: list[RecordRun] = []

    def add(self, run: RecordRun) -> None:
        """Keep a run; one that is too large, or overlaps another, is not kept."""
        at = bisect_right(self._firsts, run.first_seq)
        overlaps = (at and self._runs[at - 1].end_seq > run.first_seq) or (
            at < len(self._firsts) and self._firsts[at] < run.end_seq
        )
        if overlaps or len(run.data) > BlockBudget.RUN_SIZE_MAX:
            return
        self._firsts.insert(at, run.first_seq)
        self._runs.insert(at, run)
        self._budget.added(self, run.first_seq, len(run.data))

    def find(self, seq: int) -> RecordRun | None:
        """The run that holds a record, or None."""
        at = bisect_right(self._firsts, seq) - 1
        return self._runs[at] if at >= 0 and seq < self._runs[at].end_seq else None

    def drop(self, first_seq: int) -> None:
        """Drop the run that begins at a seq."""
        at = bisect_right(self._firsts, first_seq) - 1
        del self._firsts[at], self._runs[at]


def ranges_of(seqs: Integers) -> Integers:
    """The runs of rising seqs, as rows of the first seq and the seq after the last."""
    ranges: Integers
    if not len(seqs):
        ranges = np.empty((0, 2), np.int64)
    elif int(seqs[-1]) - int(seqs[0]) == len(seqs) - 1:
        ranges = np.array([[seqs[0], seqs[-1] + 1]], np.int64)
    else:
        breaks = np.flatnonzero(seqs[1:] - seqs[:-1] != 1)
        ranges = np.empty((len(breaks) + 1, 2), np.int64)
        ranges[0, 0], ranges[-1, 1] = seqs[0], seqs[-1] + 1
        ranges[1:, 0] = seqs[breaks + 1]
        ranges[:-1, 1] = seqs[breaks] + 1
    return ranges


def runs_of(seqs: Integers) -> Iterator[tuple[int, int]]:
    """The same runs, one by one."""
    return ((first, end) for first, end in ranges_of(seqs).tolist())
