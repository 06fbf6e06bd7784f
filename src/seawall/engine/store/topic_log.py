"""The batches of one topic: at which place each lies, how it gets there, and how it is read back.

A batch has its place (segment, file position) from the moment it is numbered. Until a checkpoint has filled that place,
a small batch lies in the write-ahead log only, at the address this module remembers; large ones are written to their
place at once. Readers do not notice the difference.

A read is planned here: which entries of which segments (`planning.py`). Carrying the plan out needs nothing of this
object any more (`reading.py`).

Segments are *sealed*, or *filling*: the last of these is written on, older ones wait for the checkpoint to seal them.

INV-PLACES-FOLLOW: replaying the log gives every batch the segment position that it had before. Positions are the
running ends of segments, and a segment begins only where the log says so (a roll, or the first batch).

One owner at a time, for planning too. This module must not know what makes a batch durable, nor what a reader is told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from seawall import limits
from seawall.core.checks import check
from seawall.core.types import Offset, Position, Seq, TimestampNs, TopicId
from seawall.engine.maintenance.flushing import FlushJob, LocateFile, SealJob, plan_flush
from seawall.engine.read.planning import (
    LiveRuns,
    Locate,
    Planned,
    SeqRuns,
    split_by_residence,
)
from seawall.engine.read.segment_search import near_offset, near_position
from seawall.engine.store.unflushed import Waiting
from seawall.errors import CorruptionError
from seawall.io.disk.files import remove_if_there
from seawall.io.interfaces import Files
from seawall.limits import BATCH_HEADER_SIZE
from seawall.storage.directory import DataDirectory
from seawall.storage.open_files import OpenFiles
from seawall.storage.segments.batch_index import BatchIndex, Entries, join_entries
from seawall.storage.segments.limits import SegmentLimits, seal_reason
from seawall.storage.segments.names import sort_names
from seawall.storage.segments.segment import SealedSegment, SegmentWriter
from seawall.storage.segments.topic_directory import TopicDirectory
from seawall.storage.wal.epochs import WalAddress
from seawall.wire.format.batches import BatchHeader, BatchSource, parse_batch_header

_NS_PER_MS: Final = 1_000_000

#: Of a sealed segment. Searches call these a dozen times each: no function of ours is that quick.
_LAST_SEQ: Final = attrgetter("name.last_seq")
_LAST_MS: Final = attrgetter("name.last_ms")


@dataclass(slots=True)
class ActiveSegment:
    """A segment that is not sealed, and where those of its batches are that it does not hold yet."""

    segment: SegmentWriter
    waiting: Waiting = field(default_factory=Waiting)
    #: Bytes of the segments before it that nobody has read; less the bytes of this one that somebody has.
    unread_before: int = 0

    @property
    def unread(self) -> int:
        """Bytes up to its end that have come since a reader was there."""
        return self.unread_before + self.segment.size

    @property
    def filled(self) -> int:
        """Bytes of the batches that it holds."""
        lengths = self.segment.index.entries["length"][self.waiting.entries]
        return self.segment.size - int(lengths.sum(dtype=np.int64))


class StoredBatch(NamedTuple):
    """One verified batch as it lies on disk, and which of its records a reader may see."""

    base_seq: Seq
    record_count: int
    position: Position
    timestamp_ns: TimestampNs
    data: memoryview
    #: What is shown of it: ascending, never empty.
    live: SeqRuns
    #: Where reading goes on.
    next_seq: Seq

    @property
    def header(self) -> BatchHeader:
        """All of its header."""
        return parse_batch_header(self.data, source=BatchSource.STORED)

    @property
    def is_plain(self) -> bool:
        """Whether the block is records as they are: codec none and no flags, the last two bytes of the header."""
        return not (self.data[BATCH_HEADER_SIZE - 2] or self.data[BATCH_HEADER_SIZE - 1])

    @property
    def block(self) -> memoryview:
        """The block as stored, compressed or not."""
        return self.data[BATCH_HEADER_SIZE:]


class TopicLog:
    """The segments of one topic."""

    def __init__(
        self,
        home: TopicDirectory,
        locate: Locate,
        sealed: list[SealedSegment],
        filling: list[ActiveSegment],
        *,
        is_kept: bool = True,
    ) -> None:
        self._home = home
        #: Whether its segments are files that outlive the process.
        self.is_kept = is_kept
        self._locate = locate
        self.sealed = sealed
        self.filling = filling
        #: Whether the next batch begins a segment, however little is in the one that is written on.
        self.wants_roll = False

    @property
    def home(self) -> TopicDirectory:
        """Where its segments are."""
        return self._home

    # --- writing -------------------------------------------------------------------------------------------------

    def needs_roll(self, bounds: SegmentLimits, now_ns: TimestampNs) -> bool:
        """Whether the next batch should begin a new segment."""
        if not self.filling:
            return False
        segment = self.filling[-1].segment
        index = segment.index
        if not len(index):
            return False
        if self.wants_roll:
            return True
        first_ns = index.first_timestamp_ns
        return seal_reason(index.record_count, segment.size, first_ns, now_ns, bounds) is not None

    def begin(self, first_seq: Seq, created_ns: TimestampNs) -> None:
        """Begin a segment; what is appended from now on goes there."""
        self.wants_roll = False
        reserve = limits.SEGMENT_RESERVE_SIZE_MIN
        if self.filling and self.is_kept:
            # A topic that fills segments without a checkpoint in between will need as much again.
            reserve = min(max(reserve, self.filling[-1].segment.reserved), limits.SEGMENT_RESERVE_SIZE_MAX)
        unread = self.filling[-1].unread if self.filling else 0
        segment = SegmentWriter.create(self._home, first_seq, created_ns, reserve=reserve)
        self.filling.append(ActiveSegment(segment, unread_before=unread))

    def take_back(self) -> None:
        """Undo `begin`: nothing was placed in the segment, and nothing tells of it."""
        segment = self.filling.pop().segment
        segment.close()
        remove_if_there(self._home.files, segment.path)

    @property
    def writing(self) -> ActiveSegment | None:
        """The segment that is written on."""
        return self.filling[-1] if self.filling else None

    def give_up(self, segment: SealedSegment | SegmentWriter) -> None:
        """Have a segment no more: its file becomes somebody else's. It is not the one that is written on."""
        if isinstance(segment, SealedSegment):
            self.sealed.remove(segment)
        else:
            check(segment is not self.filling[-1].segment, "INV-PLACES-FOLLOW", segment.path)
            self.filling = [each for each in self.filling if each.segment is not segment]
        segment.close()

    def adopt(self, segment: SegmentWriter) -> None:
        """Have a segment that was another topic's; what is appended from now on goes there."""
        unread = self.filling[-1].unread if self.filling else 0
        self.filling.append(ActiveSegment(segment, unread_before=unread))

    # --- checkpoint ----------------------------------------------------------------------------------------------

    def plan_flushes(self, locate_file: LocateFile, below: WalAddress) -> list[FlushJob]:
        """What waits in the log below an address, to be brought to its places."""
        return [plan_flush(filling, locate_file, below) for filling in self.filling]

    def fill(self, locate_file: LocateFile, below: WalAddress) -> None:
        """Copy every batch that waits in the log to its place, and make all places durable."""
        for job in self.plan_flushes(locate_file, below):
            job.execute()
            job.settle()

    def unsealed(self) -> list[tuple[TopicId, Seq, Entries]]:
        """The segments that are not sealed and outlive the process: topic, first seq, index."""
        if not self.is_kept:
            return []
        segments = [filling.segment for filling in self.filling]
        return [(self._home.topic_id, segment.first_seq, segment.index.entries) for segment in segments]

    def plan_seals(self) -> list[SealJob]:
        """Segments that are not written on any more and have all their batches, the oldest first."""
        ready = takewhile(lambda filling: len(filling.segment.index) and not len(filling.waiting), self.filling[:-1])
        return [SealJob(self, filling) for filling in ready] if self.is_kept else []

    def sealed_oldest(self, segment: SealedSegment) -> None:
        """The oldest segment that was not sealed is now."""
        self.sealed.append(segment)
        del self.filling[0]

    def seal_rolled(self) -> None:
        """Seal every segment that is not written on any more; all places must be filled."""
        while len(self.filling) > 1:
            oldest = self.filling[0].segment
            if len(oldest.index):
                self.sealed_oldest(oldest.seal())
            else:
                oldest.close()
                del self.filling[0]

    # --- reading -------------------------------------------------------------------------------------------------

    def plan(
        self,
        from_seq: Seq,
        end_seq: Seq,
        size_max: int,
        *,
        records_max: int | None = None,
        live_runs: LiveRuns | None = None,
    ) -> Planned:
        """Whole batches from the one that holds `from_seq`, or the first behind it, up to `end_seq`, in order.

        Ends after `size_max` bytes, or once `records_max` records are there, but never before the first batch. Batches
        without a live record are passed over, and count for neither; without `live_runs` all are live, and with them
        the number of records is not bounded here.
        """
        planned = Planned(self._home.topic_id, end_seq, size_max, records_max, live_runs)
        try:
            self._plan(planned, from_seq)
        except BaseException:
            planned.release()
            raise
        return planned

    def note_reader(self, end_seq: Seq) -> None:
        """Somebody reads up to a seq: where that is what is being written, what follows is read soon as well."""
        writing = self.writing
        if writing is not None and end_seq > writing.segment.first_seq:
            writing.unread_before = -writing.segment.size

    def entries_between(self, first_seq: Seq, last_seq: Seq) -> Entries:
        """The entries of all batches that hold something from a seq to another."""
        found: list[Entries] = []
        for index in self._indexes(bisect_left(self.sealed, first_seq, key=_LAST_SEQ)):
            if len(index) and index.first_seq > last_seq:
                break
            found.append(index.slice(index.find_seq(first_seq), index.seqs_below(Seq(last_seq + 1))))
        return join_entries(found)

    def seq_at(self, timestamp_ns: TimestampNs) -> Seq | None:
        """Seq of the first batch that is not older than `timestamp_ns`; None if all are."""
        near = bisect_left(self.sealed, timestamp_ns // _NS_PER_MS, key=_LAST_MS)
        for index in self._indexes(near):
            entry = index.find_time(timestamp_ns)
            if entry < len(index):
                return Seq(index.slice(entry, entry + 1).item()[0])
        return None

    def seq_behind(self, position: Position) -> Seq | None:
        """Seq of the first batch at a position or behind it; None if all are before it."""
        for index in self._indexes(near_position(self.sealed, position)):
            entry = index.find_position(position)
            if entry < len(index):
                return Seq(index.slice(entry, entry + 1).item()[0])
        return None

    def from_position(self, position: Position, end_seq: Seq, size_max: int) -> tuple[Seq, Entries]:
        """Batches at a position or behind it, below `end_seq`, up to the first that `size_max` bytes do not hold, and
        all at its position; and the seq behind the batch before them, 1 if there is none any more."""
        near = near_position(self.sealed, position)
        behind = Seq(self.sealed[near - 1].name.last_seq + 1) if near else Seq(1)
        found: list[Entries] = []
        shared = position
        for index in self._indexes(near):
            first, last = index.find_position(position), index.seqs_below(end_seq)
            if not found and first:
                base_seq, *_, count, _ = index.slice(first - 1, first).item()
                behind = Seq(base_seq + count)
            if size_max < 0:
                # What a transaction has written is told together, also if it lies in several segments.
                last = min(last, index.find_position(Position(shared + 1)))
            if first < last:
                reached = last if size_max < 0 else min(last, index.fitting(first, last, size_max) + 1)
                shared = Position(int(index.slice(reached - 1, reached)["position"][0]))
                entries = index.slice(first, min(last, index.find_position(Position(shared + 1))))
                found.append(entries)
                size_max -= int(entries["length"].sum(dtype=np.int64))
            elif size_max < 0 and len(index):
                break
        return behind, join_entries(found)

    def offset_of(self, seq: Seq) -> Offset | None:
        """The first byte, in the stream of version 1, of the batch that holds `seq`, or of the first behind it."""
        for index in self._indexes(bisect_left(self.sealed, seq, key=_LAST_SEQ)):
            entry = index.find_seq(seq)
            if entry < len(index):
                return _first_offset(index, entry)
        return None

    def at_offset(self, offset: Offset) -> tuple[Seq, Seq] | None:
        """The first seq of the last batch that begins at an offset or before it, and the seq behind that batch.

        Those of the first batch if all begin behind it; None if there is none.
        """
        found = None
        for index in self._indexes(near_offset(self.sealed, offset)):
            if not len(index):
                continue
            if found is not None and _first_offset(index, 0) > offset:
                break
            entry = index.find_offset(offset)
            base_seq, *_, count, _ = index.slice(entry, entry + 1).item()
            found = Seq(base_seq), Seq(base_seq + count)
        return found

    @property
    def index_size(self) -> int:
        """Bytes of memory that the indexes take now; those that are not in the cache take none."""
        filling = sum(each.segment.index.memory_size for each in self.filling)
        return filling + sum(segment.index_size for segment in self.sealed)

    def _indexes(self, near: int) -> Iterator[BatchIndex]:
        """The index of every segment from a sealed one on."""
        # By their numbers: a copy of the rest of the list costs more than a seek.
        for number in range(near, len(self.sealed)):
            yield self.sealed[number].index
        for filling in self.filling:
            yield filling.segment.index

    def close(self) -> None:
        """Give all files back; syncs nothing."""
        for filling in self.filling:
            filling.segment.close()
        for segment in self.sealed:
            segment.close()

    def _plan(self, planned: Planned, seq: Seq) -> None:
        while seq < planned.end_seq:
            near = bisect_left(self.sealed, seq, key=_LAST_SEQ)
            if near < len(self.sealed):
                segment = self.sealed[near]
                index = segment.index
                # Where the end of a segment is damaged its name still says how far it went.
                last_seq = segment.name.last_seq
                add = partial(self._add_sealed, planned, segment)
            else:
                filling = next((each for each in self.filling if _reaches(each.segment.index, seq)), None)
                if filling is None:
                    return
                index = filling.segment.index
                last_seq = index.last_seq
                add = partial(self._add_filling, planned, filling)
            next_seq = planned.take(index, seq, last_seq, add)
            if next_seq is None:
                return
            seq = next_seq

    def _add_sealed(self, planned: Planned, segment: SealedSegment, entries: Entries, _numbers: Sequence[int]) -> None:
        # If the file is gone, or another one has its name, nothing is planned, and a reader gets a gap.
        with suppress(FileNotFoundError, CorruptionError):
            planned.add_stored(segment.shared, entries)

    def _add_filling(self, planned: Planned, filling: ActiveSegment, entries: Entries, numbers: Sequence[int]) -> None:
        addresses = filling.waiting.addresses_of(numbers)
        for first, last, in_place in split_by_residence(addresses):
            if in_place:
                with suppress(FileNotFoundError):
                    planned.add_stored(filling.segment.shared, entries[first:last])
            else:
                planned.add_logged(self._locate, entries[first:last], addresses[first:last])


def _first_offset(index: BatchIndex, entry: int) -> Offset:
    return Offset(int(index.slice(entry, entry + 1)["base_offset"][0]))


def _reaches(index: BatchIndex, seq: Seq) -> bool:
    return len(index) > 0 and index.last_seq >= seq


def topic_home(
    files: Files, directory: DataDirectory, topic_id: TopicId, open_files: OpenFiles | None = None
) -> TopicDirectory:
    """Where the segments of a topic are; those with `open_files` are opened as they are needed."""
    return TopicDirectory(files, directory.topic(topic_id), directory.directory_id, topic_id, open_files)


def remove_segments(home: TopicDirectory) -> None:
    """Remove every file of a topic that is deleted; names that mean nothing to Seawall stay."""
    names = home.names()
    unknown = sort_names(names).unknown
    for name in names:
        if name not in unknown:
            home.files.unlink(home.path(name))
    if names:
        home.files.sync_directory(home.directory)
