"""The batches of one topic: at which place each lies, how it gets there, and how it is read back.

A batch has its place (segment, file position) from the moment it is numbered. Until a checkpoint has filled that place,
a small batch lies in the write-ahead log only, at the address this module remembers; large ones are written to their
place at once. Readers do not notice the difference.

Segments are *sealed*, or *filling*: the last of these is written on, older ones wait for the checkpoint to seal them.

INV-PLACES-FOLLOW: places are the running ends of segments, and a segment begins only where the log says so (a roll, or
the first batch). So replaying the log gives every batch the same place again.

One owner at a time. This module must not know what makes a batch durable, nor which batches a reader may see.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np

from seawall.core.types import Seq, TimestampNs, TopicId
from seawall.errors import CorruptionError
from seawall.io.interfaces import File, Files, Readable
from seawall.limits import BATCH_HEADER_SIZE
from seawall.storage.batch_index import BatchIndex
from seawall.storage.directory import DataDirectory
from seawall.storage.epochs import WalAddress
from seawall.storage.segment_names import sort_names
from seawall.storage.segments import ActiveSegment, SealedSegment, SegmentLimits, TopicHome, seal_reason
from seawall.wire.batches import BatchHeader, BatchSource, parse_batch_header, verify_block

#: Where the batch at an address of the log can be read now, and the position there.
Locate: TypeAlias = Callable[[WalAddress], tuple[Readable, int]]
#: The file an address of the log lies in, and the position there.
LocateFile: TypeAlias = Callable[[WalAddress], tuple[File, int]]
#: Verified bytes of the entries from a first one up to, not including, a last one.
RunReader: TypeAlias = Callable[[int, int], Iterator[memoryview]]


@dataclass(slots=True)
class Filling:
    """A segment that is not sealed, and where those of its batches are that it does not hold yet."""

    segment: ActiveSegment
    #: Entry index → address in the log.
    waiting: dict[int, WalAddress] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One verified batch as it lies on disk."""

    header: BatchHeader
    data: memoryview

    @property
    def block(self) -> memoryview:
        """The block as stored, compressed or not."""
        return self.data[BATCH_HEADER_SIZE:]


class TopicLog:
    """The segments of one topic."""

    def __init__(self, home: TopicHome, locate: Locate, sealed: list[SealedSegment], filling: list[Filling]) -> None:
        self._home = home
        self._locate = locate
        self.sealed = sealed
        self.filling = filling

    # --- writing -------------------------------------------------------------------------------------------------

    def needs_roll(self, bounds: SegmentLimits, now_ns: TimestampNs) -> bool:
        """Whether the next batch should begin a new segment."""
        if not self.filling:
            return False
        segment = self.filling[-1].segment
        index = segment.index
        if not len(index):
            return False
        first_ns = index.first_timestamp_ns
        return seal_reason(index.record_count, segment.size, first_ns, now_ns, bounds) is not None

    def begin(self, first_seq: Seq, created_ns: TimestampNs) -> None:
        """Begin a segment; what is appended from now on goes there."""
        self.filling.append(Filling(ActiveSegment.create(self._home, first_seq, created_ns)))

    def take_back(self) -> None:
        """Undo `begin`: nothing was placed in the segment, and nothing tells of it."""
        segment = self.filling.pop().segment
        segment.close()
        self._home.files.unlink(segment.path)

    @property
    def writing(self) -> Filling | None:
        """The segment that is written on."""
        return self.filling[-1] if self.filling else None

    # --- checkpoint ----------------------------------------------------------------------------------------------

    def fill(self, locate_file: LocateFile) -> None:
        """Copy every batch that waits in the log to its place, and make all places durable."""
        for filling in self.filling:
            for first, last in _runs(filling):
                entries = filling.segment.index.slice(first, last)
                at = int(entries["at"][0])
                length = int(entries["at"][-1]) + int(entries["length"][-1]) - at
                source, source_at = locate_file(filling.waiting[first])
                filling.segment.copy_from(source, source_at, at, length)
            filling.segment.sync()
            filling.waiting.clear()

    def seal_rolled(self) -> None:
        """Seal every segment that is not written on any more; all places must be filled."""
        while len(self.filling) > 1:
            oldest = self.filling[0].segment
            if len(oldest.index):
                self.sealed.append(oldest.seal())
            else:
                oldest.close()
            del self.filling[0]

    # --- reading -------------------------------------------------------------------------------------------------

    def read(self, from_seq: Seq, end_seq: Seq, size_max: int) -> Iterator[StoredBatch]:
        """Whole batches from the one that holds `from_seq`, or the first behind it, up to `end_seq`, in order.

        Ends after `size_max` bytes, but never before the first batch. Batches that lie together are read together.
        Damaged ones are left out: whoever knows which seqs there must be sees the hole.
        """
        left = size_max
        for index, read_run in self._segments_from(from_seq):
            first = index.find_seq(from_seq)
            entries = index.slice(first, len(index))
            visible = int(np.searchsorted(entries["base_seq"], np.uint64(end_seq)))
            ends = np.cumsum(entries["length"][:visible], dtype=np.int64)
            count = int(np.searchsorted(ends, np.int64(left), side="right"))
            if not count and visible and left == size_max:
                count = 1
            if count:
                for data in read_run(first, first + count):
                    yield from _batches_of(data)
                left -= int(ends[count - 1])
            if count < visible:
                return

    def seq_at(self, timestamp_ns: TimestampNs) -> Seq | None:
        """Seq of the first batch that is not older than `timestamp_ns`; None if all are."""
        for index, _ in self._segments_from(Seq(1)):
            entry = index.find_time(timestamp_ns)
            if entry < len(index):
                return Seq(int(index.slice(entry, entry + 1)["base_seq"][0]))
        return None

    def close(self) -> None:
        """Give all files back; syncs nothing."""
        for filling in self.filling:
            filling.segment.close()
        for segment in self.sealed:
            segment.close()

    def _segments_from(self, seq: Seq) -> Iterator[tuple[BatchIndex, RunReader]]:
        """Index and reader of every segment that may hold `seq` or what follows it."""
        starts = [segment.name.first_seq for segment in self.sealed]
        for segment in self.sealed[max(0, bisect_right(starts, seq) - 1) :]:
            if segment.name.last_seq >= seq:
                yield segment.index, partial(_read_sealed, segment)
        for filling in self.filling:
            yield filling.segment.index, partial(self._read_filling, filling)

    def _read_filling(self, filling: Filling, first: int, last: int) -> Iterator[memoryview]:
        """Batches of a segment whose places are partly unfilled: from there, or from the log, one by one."""
        for entry in range(first, last):
            address = filling.waiting.get(entry)
            with suppress(CorruptionError):
                yield filling.segment.read(entry, entry + 1) if address is None else self._read_log(address)

    def _read_log(self, address: WalAddress) -> memoryview:
        """The batch at an address of the log, verified."""
        file, at = self._locate(address)
        header = parse_batch_header(file.read(BATCH_HEADER_SIZE, at), source=BatchSource.STORED)
        data = memoryview(file.read(header.size, at))
        verify_block(header, data[BATCH_HEADER_SIZE:])
        return data


def _read_sealed(segment: SealedSegment, first: int, last: int) -> Iterator[memoryview]:
    """Batches of a sealed segment, by one read; around damage one by one."""
    try:
        yield segment.read(first, last)
    except CorruptionError:
        for entry in range(first, last):
            with suppress(CorruptionError):
                yield segment.read(entry, entry + 1)


def _batches_of(data: memoryview) -> Iterator[StoredBatch]:
    """The batches of a verified run."""
    at = 0
    while at < len(data):
        header = parse_batch_header(data[at:], source=BatchSource.STORED)
        yield StoredBatch(header, data[at : at + header.size])
        at += header.size


def _runs(filling: Filling) -> Iterator[tuple[int, int]]:
    """Ranges of entries that lie back to back in the log as they do in the segment: one copy each."""
    lengths = filling.segment.index.entries["length"]
    first = end = -1
    for entry in sorted(filling.waiting):
        address = filling.waiting[entry]
        if entry != end or address != filling.waiting[entry - 1] + int(lengths[entry - 1]):
            if end > first:
                yield first, end
            first = entry
        end = entry + 1
    if end > first:
        yield first, end


def topic_home(files: Files, directory: DataDirectory, topic_id: TopicId) -> TopicHome:
    """Where the segments of a topic are."""
    return TopicHome(files, directory.topic(topic_id), directory.directory_id, topic_id)


def remove_segments(home: TopicHome) -> None:
    """Remove every file of a topic that is deleted; names that mean nothing to Seawall stay."""
    names = home.files.list(home.directory)
    unknown = sort_names(names).unknown
    for name in names:
        if name not in unknown:
            home.files.unlink(home.path(name))
    home.files.sync_directory(home.directory)
