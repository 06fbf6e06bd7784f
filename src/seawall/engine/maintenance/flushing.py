"""Batches that wait in the log are brought to their places in segments, in long stretches, and made durable there.

    plan_flushes     what waits, as one job for each segment; who holds the store's memory calls it
    execute       copies and syncs; others may go on: the places are reserved, and that part of the log is not changed
    settle          readers find the batches at their places from now on; who holds the store's memory calls it

Segments that nothing waits for and nothing is added to are sealed in the same three steps.

A stretch is read at once, the batches are put together without the headers of epochs between them, and written at once;
what lies in the log as it will in the segment is copied inside the kernel.

INV-PLACED-DURABLE: the log keeps a small batch until its copy in a segment is durable.

The segments of a topic are sealed in the order in which they began. Whoever closes, seals or removes segments, or drops
files of the log, must not do so before a job is settled. A crash leaves places filled that nobody refers to, and the
batches in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.core.checks import check
from seawall.errors import CorruptionError
from seawall.io.interfaces import File
from seawall.kernels.log.flushing import join_pieces
from seawall.kernels.runtime.memory import Bytes
from seawall.limits import KIB, MIB
from seawall.storage.segments.segment import SegmentWriter
from seawall.storage.wal.epochs import WalAddress

if TYPE_CHECKING:
    from seawall.engine.store.topic_log import ActiveSegment, TopicLog

Integers: TypeAlias = npt.NDArray[np.int64]

#: The file an address of the log lies in, and the position there.
LocateFile: TypeAlias = Callable[[WalAddress], tuple[File, int]]

#: Bytes of the log that are read at once, at the most, unless one batch is larger.
_STRETCH_SIZE: Final = 4 * MIB

#: From here on a stretch that is whole is copied inside the kernel: two calls for less are as quick.
_WHOLE_SIZE: Final = 256 * KIB


@dataclass(frozen=True, slots=True)
class Stretch:
    """Batches that follow one another in a segment, and are near one another in one file of the log."""

    source: File
    source_at: int
    #: Where each begins, from `source_at` on.
    starts: Integers
    lengths: Integers
    #: Where the first belongs in the segment.
    at: int

    @property
    def span(self) -> int:
        """Bytes of the log from the first to the end of the last."""
        return int(self.starts[-1] + self.lengths[-1])

    def execute(self, segment: SegmentWriter, reservation: Bytes) -> None:
        """Fill the places, not durably yet; in `room` there is room for twice the span."""
        size, span = int(self.lengths.sum()), self.span
        if size == span >= _WHOLE_SIZE:
            # Where the log ends too early, what is left of it is read.
            with suppress(CorruptionError):
                segment.copy_from(self.source, self.source_at, self.at, size)
                return
        read, joined = reservation[:span], reservation[span : span + size]
        got = self.source.read_into([read.data], self.source_at)
        # Somebody has cut the log off. What is gone has a place without its batch, and readers are told a gap: no
        # other batch, and no other topic, waits for it.
        read[got:] = 0
        join_pieces(joined, read, self.starts, self.lengths)
        segment.write_at(self.at, [joined.data])


@dataclass(frozen=True, slots=True)
class FlushJob:
    """What waits for one segment."""

    filling: ActiveSegment
    entries: Integers
    stretches: Sequence[Stretch]

    @property
    def size(self) -> int:
        """Bytes of the log that it goes through."""
        return sum(stretch.span for stretch in self.stretches)

    def execute(self) -> None:
        """Bring it to its places, durably."""
        reservation = np.empty(2 * max((stretch.span for stretch in self.stretches), default=0), np.uint8)
        for stretch in self.stretches:
            stretch.execute(self.filling.segment, reservation)
        self.filling.segment.sync()

    def settle(self) -> None:
        """It waits no more (INV-PLACED-DURABLE)."""
        self.filling.waiting.drop(self.entries.size)


@dataclass(frozen=True, slots=True)
class SealJob:
    """A segment that is not written on any more, with all its batches in their places."""

    log: TopicLog
    filling: ActiveSegment

    def execute(self) -> None:
        """Make its file a sealed one, durably; others read on."""
        self.filling.segment.finish()

    def settle(self) -> None:
        """Readers find it sealed from now on."""
        check(self.log.filling[0] is self.filling, "INV-SEALED-WHOLE", self.filling.segment.path)
        self.log.sealed_oldest(self.filling.segment.finished())


def plan_flush(filling: ActiveSegment, locate: LocateFile, below: WalAddress) -> FlushJob:
    """The job for what waits for a segment in the log below an address."""
    addresses = filling.waiting.addresses
    addresses = addresses[addresses < below]
    entries = filling.waiting.entries[: addresses.size]
    index = filling.segment.index.entries
    ats, lengths = index["at"][entries].astype(np.int64), index["length"][entries].astype(np.int64)
    return FlushJob(filling, entries, list(_stretches(entries, addresses, ats, lengths, locate)))


def _stretches(
    entries: Integers, addresses: Integers, ats: Integers, lengths: Integers, locate: LocateFile
) -> Iterator[Stretch]:
    # Entries and addresses rise together: batches get their places in the order of the log.
    breaks = np.flatnonzero(np.diff(entries) != 1) + 1
    for first, after in zip([0, *breaks.tolist()], [*breaks.tolist(), entries.size], strict=True):
        start = first
        while start < after:
            origin = int(addresses[start])
            source, source_at = locate(WalAddress(origin))
            reach = int(np.searchsorted(addresses[start:after] + lengths[start:after], origin + _STRETCH_SIZE, "right"))
            end = start + max(reach, 1)
            while locate(WalAddress(int(addresses[end - 1])))[0] is not source:
                end = start + (end - start) // 2
            yield Stretch(source, source_at, addresses[start:end] - origin, lengths[start:end], int(ats[start]))
            start = end
