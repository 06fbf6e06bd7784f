"""The segments of one topic: where each batch is, where the next one goes, and which batches a read needs.

A batch has its segment position (segment, file position) from the moment it is numbered. Large batches are written
there at once. A small batch is at first *unflushed*: it is in the write-ahead log only, at an address that this module
remembers, until a flush copies it to its segment (`flushing`). Readers see no difference.

A segment is *sealed* or *unsealed*. The last unsealed segment is the active one, which takes appends; the next
checkpoint seals the older ones.

This module plans reads: which entries of which segments (`planning.py`). Executing a plan does not need this object
(`reading.py`).

INV-POSITIONS-REPLAY: replaying the log gives every batch the segment position that it had before. Positions are the
running ends of segments, and a segment begins only where the log says so (a roll, or the first batch).

One owner at a time, for planning too. This module must not know how a batch becomes durable, nor what readers report.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from seawall import limits
from seawall.core.checks import check
from seawall.core.types import Offset, Position, Seq, TimestampNs, TopicId
from seawall.engine.read.planning import (
    LiveRuns,
    Locate,
    Planned,
    SeqRuns,
    split_by_flushed,
)
from seawall.engine.read.segment_search import near_offset, near_position
from seawall.engine.store.unflushed import UnflushedBatches
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
from seawall.wire.format.batches import BatchHeader, BatchSource, parse_batch_header

_NS_PER_MS: Final = 1_000_000

#: Sort keys of sealed segments. Each search calls them about a dozen times, and no Python function is as fast.
_LAST_SEQ: Final = attrgetter("name.last_seq")
_LAST_MS: Final = attrgetter("name.last_ms")


@dataclass(slots=True)
class ActiveSegment:
    """An unsealed segment and its unflushed batches. The last one of a topic is the active segment."""

    segment: SegmentWriter
    unflushed: UnflushedBatches = field(default_factory=UnflushedBatches)
    #: Unread bytes in the segments before this one, less the bytes of this one that were read.
    unread_before: int = 0

    @property
    def unread(self) -> int:
        """Bytes appended up to the end of this segment since the last read at the end of the topic."""
        return self.unread_before + self.segment.size

    @property
    def filled(self) -> int:
        """Bytes of the batches that are already in the segment file."""
        lengths = self.segment.index.entries["length"][self.unflushed.entries]
        return self.segment.size - int(lengths.sum(dtype=np.int64))


class StoredBatch(NamedTuple):
    """One verified batch with its stored bytes, and the records of it that a reader may see."""

    base_seq: Seq
    record_count: int
    position: Position
    timestamp_ns: TimestampNs
    data: memoryview
    #: The seqs that readers may see: ascending, never empty.
    live: SeqRuns
    #: The seq at which reading continues.
    next_seq: Seq

    @property
    def header(self) -> BatchHeader:
        """The parsed batch header."""
        return parse_batch_header(self.data, source=BatchSource.STORED)

    @property
    def is_plain(self) -> bool:
        """True if the block holds uncompressed records: codec none and no flags, the last two bytes of the header."""
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
        unsealed: list[ActiveSegment],
        *,
        is_kept: bool = True,
    ) -> None:
        self._home = home
        #: True if the segments are files that outlive the process; false in memory.
        self.is_kept = is_kept
        self._locate = locate
        self.sealed = sealed
        #: The unsealed segments, oldest first; the last one is active.
        self.unsealed = unsealed
        #: True if the next batch must begin a segment, however small the active one is.
        self.wants_roll = False

    @property
    def directory(self) -> TopicDirectory:
        """The directory of the segments."""
        return self._home

    # --- writing -------------------------------------------------------------------------------------------------

    def needs_roll(self, bounds: SegmentLimits, now_ns: TimestampNs) -> bool:
        """True if the next batch should begin a new segment."""
        if not self.unsealed:
            return False
        segment = self.unsealed[-1].segment
        index = segment.index
        if not len(index):
            return False
        if self.wants_roll:
            return True
        first_ns = index.first_timestamp_ns
        return seal_reason(index.record_count, segment.size, first_ns, now_ns, bounds) is not None

    def begin(self, first_seq: Seq, created_ns: TimestampNs) -> None:
        """Begin a new active segment."""
        self.wants_roll = False
        reserve = limits.SEGMENT_RESERVE_SIZE_MIN
        if self.unsealed and self.is_kept:
            # A topic that fills a segment between two checkpoints will probably need the same space again.
            reserve = min(max(reserve, self.unsealed[-1].segment.reserved), limits.SEGMENT_RESERVE_SIZE_MAX)
        unread = self.unsealed[-1].unread if self.unsealed else 0
        segment = SegmentWriter.create(self._home, first_seq, created_ns, reserve=reserve)
        self.unsealed.append(ActiveSegment(segment, unread_before=unread))

    def undo_begin(self) -> None:
        """Undo `begin`: the segment has no batches, and nothing in the log names it."""
        segment = self.unsealed.pop().segment
        segment.close()
        remove_if_there(self._home.files, segment.path)

    @property
    def active(self) -> ActiveSegment | None:
        """The active segment, or None."""
        return self.unsealed[-1] if self.unsealed else None

    def release(self, segment: SealedSegment | SegmentWriter) -> None:
        """Close a segment and forget it: its file goes to another topic. It must not be the active segment."""
        if isinstance(segment, SealedSegment):
            self.sealed.remove(segment)
        else:
            check(segment is not self.unsealed[-1].segment, "INV-POSITIONS-REPLAY", segment.path)
            self.unsealed = [each for each in self.unsealed if each.segment is not segment]
        segment.close()

    def adopt(self, segment: SegmentWriter) -> None:
        """Take over a segment that belonged to another topic, as the new active segment."""
        unread = self.unsealed[-1].unread if self.unsealed else 0
        self.unsealed.append(ActiveSegment(segment, unread_before=unread))

    # --- checkpoint ----------------------------------------------------------------------------------------------

    def unsealed_entries(self) -> list[tuple[TopicId, Seq, Entries]]:
        """The unsealed segments that outlive the process: topic, first seq, index entries."""
        if not self.is_kept:
            return []
        segments = [unsealed.segment for unsealed in self.unsealed]
        return [(self._home.topic_id, segment.first_seq, segment.index.entries) for segment in segments]

    def replace_oldest(self, segment: SealedSegment) -> None:
        """Replace the oldest unsealed segment by its sealed form."""
        self.sealed.append(segment)
        del self.unsealed[0]

    def seal_rolled(self) -> None:
        """Seal every segment except the active one; all their batches must be flushed."""
        while len(self.unsealed) > 1:
            oldest = self.unsealed[0].segment
            if len(oldest.index):
                self.replace_oldest(oldest.seal())
            else:
                oldest.close()
                del self.unsealed[0]

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
        """Plan a read of whole batches in order: from the one that holds `from_seq`, or the next one, up to `end_seq`.

        The plan ends after `size_max` bytes or `records_max` records, but holds at least one batch. It skips batches
        without a live record, and does not count them. Without `live_runs` all records are live; with `live_runs` this
        method does not limit the number of records.
        """
        planned = Planned(self._home.topic_id, end_seq, size_max, records_max, live_runs)
        try:
            self._plan(planned, from_seq)
        except BaseException:
            planned.release()
            raise
        return planned

    def add_pending(self, planned: Planned, entries: Entries) -> None:
        """Add batches that are not in any index yet, given with their log addresses, to a plan."""
        planned.add_logged(self._locate, entries)

    def note_reader(self, end_seq: Seq) -> None:
        """Note a read up to a seq: if it reaches into the active segment, count later appends as unread from here."""
        writing = self.active
        if writing is not None and end_seq > writing.segment.first_seq:
            writing.unread_before = -writing.segment.size

    def entries_between(self, first_seq: Seq, last_seq: Seq) -> Entries:
        """The entries of all batches that hold any seq of a range, both ends included."""
        found: list[Entries] = []
        for index in self._indexes(bisect_left(self.sealed, first_seq, key=_LAST_SEQ)):
            if len(index) and index.first_seq > last_seq:
                break
            found.append(index.slice(index.find_seq(first_seq), index.seqs_below(Seq(last_seq + 1))))
        return join_entries(found)

    def seq_at(self, timestamp_ns: TimestampNs) -> Seq | None:
        """The first seq of the first batch at or after `timestamp_ns`; None if all batches are older."""
        near = bisect_left(self.sealed, timestamp_ns // _NS_PER_MS, key=_LAST_MS)
        for index in self._indexes(near):
            entry = index.find_time(timestamp_ns)
            if entry < len(index):
                return Seq(index.slice(entry, entry + 1).item()[0])
        return None

    def first_seq_from(self, position: Position) -> Seq | None:
        """The first seq of the first batch at or after a position; None if all batches are before it."""
        for index in self._indexes(near_position(self.sealed, position)):
            entry = index.find_position(position)
            if entry < len(index):
                return Seq(index.slice(entry, entry + 1).item()[0])
        return None

    def from_position(self, position: Position, end_seq: Seq, size_max: int) -> tuple[Seq, Entries]:
        """Find batches from a position on, below `end_seq`: up to the first one that exceeds `size_max` bytes, and all
        others at its position.

        Returns the seq after the batch before them, or 1 if no such batch is left, and their entries.
        """
        near = near_position(self.sealed, position)
        next_seq = Seq(self.sealed[near - 1].name.last_seq + 1) if near else Seq(1)
        found: list[Entries] = []
        last_position = position
        for index in self._indexes(near):
            first, last = index.find_position(position), index.seqs_below(end_seq)
            if not found and first:
                base_seq, *_, count, _ = index.slice(first - 1, first).item()
                next_seq = Seq(base_seq + count)
            if size_max < 0:
                # The batches of a transaction share a position and are delivered together, even across segments.
                last = min(last, index.find_position(Position(last_position + 1)))
            if first < last:
                reached = last if size_max < 0 else min(last, index.fitting(first, last, size_max) + 1)
                last_position = Position(int(index.slice(reached - 1, reached)["position"][0]))
                entries = index.slice(first, min(last, index.find_position(Position(last_position + 1))))
                found.append(entries)
                size_max -= int(entries["length"].sum(dtype=np.int64))
            elif size_max < 0 and len(index):
                break
        return next_seq, join_entries(found)

    def offset_of(self, seq: Seq) -> Offset | None:
        """The version 1 stream offset of the batch that holds `seq`, or of the next batch; None if there is none."""
        for index in self._indexes(bisect_left(self.sealed, seq, key=_LAST_SEQ)):
            entry = index.find_seq(seq)
            if entry < len(index):
                return _first_offset(index, entry)
        return None

    def at_offset(self, offset: Offset) -> tuple[Seq, Seq] | None:
        """Find the last batch that begins at or before an offset: its first seq, and the seq after its last.

        Returns those of the first batch if all begin later; None if there are no batches.
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
        """Bytes of memory that the indexes take now; an index that is not cached takes none."""
        unsealed = sum(each.segment.index.memory_size for each in self.unsealed)
        return unsealed + sum(segment.index_size for segment in self.sealed)

    def _indexes(self, near: int) -> Iterator[BatchIndex]:
        """The index of every segment in order, from the sealed segment number `near` on."""
        # By number: slicing the list costs more than a seek.
        for number in range(near, len(self.sealed)):
            yield self.sealed[number].load_index()
        for unsealed in self.unsealed:
            yield unsealed.segment.index

    def close(self) -> None:
        """Close all files, without a sync."""
        for unsealed in self.unsealed:
            unsealed.segment.close()
        for segment in self.sealed:
            segment.close()

    def _plan(self, planned: Planned, seq: Seq) -> None:
        while seq < planned.end_seq:
            near = bisect_left(self.sealed, seq, key=_LAST_SEQ)
            if near < len(self.sealed):
                segment = self.sealed[near]
                index = segment.load_index()
                # The name gives the last seq even if the end of the segment is damaged.
                last_seq = segment.name.last_seq
                add = partial(self._add_sealed, planned, segment)
            else:
                unsealed = next((each for each in self.unsealed if _reaches(each.segment.index, seq)), None)
                if unsealed is None:
                    return
                index = unsealed.segment.index
                last_seq = index.last_seq
                add = partial(self._add_unsealed, planned, unsealed)
            next_seq = planned.take(index, seq, last_seq, add)
            if next_seq is None:
                return
            seq = next_seq

    def _add_sealed(self, planned: Planned, segment: SealedSegment, entries: Entries, _numbers: Sequence[int]) -> None:
        # If the file is gone or was replaced, nothing is planned, and readers report a gap.
        with suppress(FileNotFoundError, CorruptionError):
            planned.add_stored(segment.open_file(), entries)

    def _add_unsealed(
        self, planned: Planned, unsealed: ActiveSegment, entries: Entries, numbers: Sequence[int]
    ) -> None:
        addresses = unsealed.unflushed.addresses_of(numbers)
        for first, last, is_flushed in split_by_flushed(addresses):
            if is_flushed:
                with suppress(FileNotFoundError):
                    planned.add_stored(unsealed.segment.shared, entries[first:last])
            else:
                planned.add_unflushed(self._locate, entries[first:last], addresses[first:last])


def _first_offset(index: BatchIndex, entry: int) -> Offset:
    return Offset(int(index.slice(entry, entry + 1)["base_offset"][0]))


def _reaches(index: BatchIndex, seq: Seq) -> bool:
    return len(index) > 0 and index.last_seq >= seq


def topic_home(
    files: Files, directory: DataDirectory, topic_id: TopicId, open_files: OpenFiles | None = None
) -> TopicDirectory:
    """The directory of a topic's segments; with `open_files`, segment files are opened on demand."""
    return TopicDirectory(files, directory.topic(topic_id), directory.directory_id, topic_id, open_files)


def remove_segments(home: TopicDirectory) -> None:
    """Remove every file of a deleted topic; files with unknown names stay."""
    names = home.names()
    unknown = sort_names(names).unknown
    for name in names:
        if name not in unknown:
            home.files.unlink(home.path(name))
    if names:
        home.files.sync_directory(home.directory)
