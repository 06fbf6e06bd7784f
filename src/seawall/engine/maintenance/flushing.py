"""Flushes: copies unflushed batches from the log to their segments in long runs, and makes the copies durable.

    plan_log_flushes  one job for each unsealed segment; the caller holds the store's memory lock
    execute           copies and syncs without the lock: the file ranges are reserved, and that part of the log is final
    settle            readers find the batches in the segment from now on; the caller holds the lock again

Segments that are complete and no longer active are sealed in the same three steps.

A run of the log is read at once, its batches are joined without the epoch headers between them, and the result is
written at once. Where the bytes in the log are the same as in the segment, the operating system copies them.

INV-FLUSH-DURABLE: the log keeps a small batch until its copy in a segment is durable.

Segments of a topic are sealed in the order in which they began. Nothing may close, seal or delete segments, or drop log
files, between the planning of a job and its `settle`. A crash leaves copies that no index refers to; the batches are
still in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.core.checks import check
from seawall.engine.store.topic_log import ActiveSegment, TopicLog
from seawall.errors import CorruptionError
from seawall.io.interfaces import File
from seawall.kernels.log.flushing import join_pieces
from seawall.kernels.runtime.memory import Bytes
from seawall.limits import KIB, MIB
from seawall.storage.segments.segment import SegmentWriter
from seawall.storage.wal.epochs import WalAddress

Integers: TypeAlias = npt.NDArray[np.int64]

#: Returns the log file that holds an address, and the file position of that address.
LocateFile: TypeAlias = Callable[[WalAddress], tuple[File, int]]

#: The most bytes of the log in one read, unless a single batch is larger.
_RUN_SIZE_MAX: Final = 4 * MIB

#: The smallest contiguous run that the operating system copies; below this, a read and a write are as fast.
_SYSTEM_COPY_SIZE_MIN: Final = 256 * KIB


@dataclass(frozen=True, slots=True)
class FlushRun:
    """Batches that are adjacent in a segment and close together in one log file."""

    source: File
    source_at: int
    #: The start of each batch, relative to `source_at`.
    starts: Integers
    lengths: Integers
    #: File position of the first batch in the segment.
    at: int

    @property
    def span(self) -> int:
        """Bytes of the log from the start of the first batch to the end of the last."""
        return int(self.starts[-1] + self.lengths[-1])

    def execute(self, segment: SegmentWriter, buffer: Bytes) -> None:
        """Copy the batches to the segment, without a sync; `buffer` must hold twice the span."""
        size, span = int(self.lengths.sum()), self.span
        if size == span >= _SYSTEM_COPY_SIZE_MIN:
            # If the log file ends too early, fall through and read what is left of it.
            with suppress(CorruptionError):
                segment.copy_from(self.source, self.source_at, self.at, size)
                return
        read, joined = buffer[:span], buffer[span : span + size]
        got = self.source.read_into([read.data], self.source_at)
        # The log file was truncated. Zeros take the space of the missing batches, and readers report them as a gap, so
        # that no other batch or topic is held up.
        read[got:] = 0
        join_pieces(joined, read, self.starts, self.lengths)
        segment.write_at(self.at, [joined.data])


@dataclass(frozen=True, slots=True)
class FlushJob:
    """The unflushed batches of one segment."""

    target: ActiveSegment
    entries: Integers
    runs: Sequence[FlushRun]

    @property
    def size(self) -> int:
        """Bytes of the log that the job reads."""
        return sum(run.span for run in self.runs)

    def execute(self) -> None:
        """Copy the batches to the segment, durably."""
        buffer = np.empty(2 * max((run.span for run in self.runs), default=0), np.uint8)
        for run in self.runs:
            run.execute(self.target.segment, buffer)
        self.target.segment.sync()

    def settle(self) -> None:
        """Mark the batches as flushed (INV-FLUSH-DURABLE)."""
        self.target.unflushed.drop(self.entries.size)


@dataclass(frozen=True, slots=True)
class SealJob:
    """A segment that is no longer active and has no unflushed batches."""

    log: TopicLog
    target: ActiveSegment

    def execute(self) -> None:
        """Write the index and rename the file, durably; reads continue."""
        self.target.segment.finish()

    def settle(self) -> None:
        """Replace the unsealed segment by the sealed one, for readers too."""
        check(self.log.unsealed[0] is self.target, "INV-SEALED-WHOLE", self.target.segment.path)
        self.log.replace_oldest(self.target.segment.finished())


def plan_log_flushes(log: TopicLog, locate: LocateFile, below: WalAddress) -> list[FlushJob]:
    """One job for each unsealed segment of a topic: its unflushed batches below a log address."""
    return [_plan_flush(target, locate, below) for target in log.unsealed]


def flush_log(log: TopicLog, locate: LocateFile, below: WalAddress) -> None:
    """Flush every unflushed batch of a topic below a log address, durably."""
    for job in plan_log_flushes(log, locate, below):
        job.execute()
        job.settle()


def plan_log_seals(log: TopicLog) -> list[SealJob]:
    """The segments of a topic that are no longer active and have all their batches, oldest first."""
    ready = takewhile(lambda target: len(target.segment.index) and not len(target.unflushed), log.unsealed[:-1])
    return [SealJob(log, target) for target in ready] if log.is_kept else []


def _plan_flush(target: ActiveSegment, locate: LocateFile, below: WalAddress) -> FlushJob:
    addresses = target.unflushed.addresses
    addresses = addresses[addresses < below]
    entries = target.unflushed.entries[: addresses.size]
    index = target.segment.index.entries
    ats, lengths = index["at"][entries].astype(np.int64), index["length"][entries].astype(np.int64)
    return FlushJob(target, entries, list(_split_runs(entries, addresses, ats, lengths, locate)))


def _split_runs(
    entries: Integers, addresses: Integers, ats: Integers, lengths: Integers, locate: LocateFile
) -> Iterator[FlushRun]:
    # Entries and addresses rise together: batches get their segment positions in log order.
    breaks = np.flatnonzero(np.diff(entries) != 1) + 1
    for first, after in zip([0, *breaks.tolist()], [*breaks.tolist(), entries.size], strict=True):
        start = first
        while start < after:
            origin = int(addresses[start])
            source, source_at = locate(WalAddress(origin))
            reach = int(np.searchsorted(addresses[start:after] + lengths[start:after], origin + _RUN_SIZE_MAX, "right"))
            end = start + max(reach, 1)
            while locate(WalAddress(int(addresses[end - 1])))[0] is not source:
                end = start + (end - start) // 2
            yield FlushRun(source, source_at, addresses[start:end] - origin, lengths[start:end], int(ats[start]))
            start = end
