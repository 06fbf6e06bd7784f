"""What the log says: the state of a data directory from its newest snapshot and the batches behind it.

Replay changes no file. It gives the catalog of topics, and for each topic which batches must lie at which place of
which segment (INV-PLACES-FOLLOW in `topic_log`), and where in the log those are that may not be at their place yet.

After damage in the log a topic's next batch begins a new segment: how much room the lost ones took is unknown. A
reference to a large batch tells it again, and what followed the damage up to there lies right before that batch.

The section SEGMENTS of a snapshot holds, for each segment that was not sealed: topic_id u32, count u32, first_seq u64,
then `count` index entries of 48 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

import numpy as np

from seawall.core.types import Seq, TopicId
from seawall.errors import CorruptionError
from seawall.io.interfaces import Files
from seawall.limits import BATCH_HEADER_SIZE
from seawall.storage.batch_index import INDEX_ENTRY, BatchIndex, Entries
from seawall.storage.control import Reference, SegmentRoll
from seawall.storage.control_batches import parts_of, read_control
from seawall.storage.control_documents import TopicDelete
from seawall.storage.directory import DataDirectory
from seawall.storage.epochs import WalAddress
from seawall.storage.snapshots import SectionKind, Snapshot
from seawall.storage.wal_files import WalEnd
from seawall.storage.wal_reader import Damage, WalBatch, read_wal
from seawall.topics.catalog import TopicCatalog
from seawall.topics.persistence import load_catalog
from seawall.wire.batches import BatchHeader

_SEGMENT: Final = Struct("<IIQ")


@dataclass(slots=True)
class ReplayedSegment:
    """A segment that is not sealed: the batches that belong there, and where in the log some of them are."""

    index: BatchIndex = field(default_factory=BatchIndex)
    waiting: dict[int, WalAddress] = field(default_factory=dict)


@dataclass(slots=True)
class Replayed:
    """The state that snapshot and log give."""

    catalog: TopicCatalog
    end: WalEnd
    #: Topic → first seq → segment, in the order in which they began.
    segments: dict[TopicId, dict[Seq, ReplayedSegment]]
    damages: list[Damage]
    #: Topics whose deletion is in the log behind the snapshot.
    deleted: set[TopicId]


def replay(files: Files, directory: DataDirectory, snapshot: Snapshot | None) -> Replayed:
    """Read the log from where the snapshot ends."""
    if snapshot is None:
        state = _Replay(TopicCatalog(), {})
        from_at = WalAddress(0)
    else:
        state = _Replay(load_catalog(snapshot), _load_segments(snapshot))
        from_at = WalAddress(snapshot.wal_from_at)
    for item in read_wal(files, directory.wal, directory.directory_id, from_at):
        match item:
            case WalBatch():
                state.batch(item)
            case Damage():
                state.damaged(item)
            case WalEnd():
                return Replayed(state.catalog, item, state.segments, state.damages, state.deleted)
    raise CorruptionError(f"{directory.wal}: reading the log came to no end")


def segments_section(filling: Iterable[tuple[TopicId, Seq, Entries]]) -> bytes:
    """The section SEGMENTS of a snapshot."""
    pieces: list[bytes] = []
    for topic_id, first_seq, entries in filling:
        pieces += (_SEGMENT.pack(topic_id, len(entries), first_seq), entries.tobytes())
    return b"".join(pieces)


def _load_segments(snapshot: Snapshot) -> dict[TopicId, dict[Seq, ReplayedSegment]]:
    data = snapshot.section(SectionKind.SEGMENTS)
    segments: dict[TopicId, dict[Seq, ReplayedSegment]] = {}
    at = 0
    while at < len(data):
        if at + _SEGMENT.size > len(data):
            raise CorruptionError(f"snapshot at position {snapshot.position}: its segments are cut")
        topic_id, count, first_seq = _SEGMENT.unpack_from(data, at)
        at += _SEGMENT.size
        end = at + count * INDEX_ENTRY.itemsize
        if end > len(data):
            raise CorruptionError(f"snapshot at position {snapshot.position}: {count} entries do not fit")
        index = BatchIndex(np.frombuffer(data[at:end], INDEX_ENTRY))
        segments.setdefault(TopicId(topic_id), {})[Seq(first_seq)] = ReplayedSegment(index)
        at = end
    return segments


@dataclass(slots=True)
class _Replay:
    catalog: TopicCatalog
    segments: dict[TopicId, dict[Seq, ReplayedSegment]]
    damages: list[Damage] = field(default_factory=list)
    #: Topics whose next batch begins a segment of its own.
    broken: set[TopicId] = field(default_factory=set)
    deleted: set[TopicId] = field(default_factory=set)
    #: Segments that damage has begun, by their first seq: where their batches really lie is not known yet.
    strays: dict[TopicId, Seq] = field(default_factory=dict)

    def batch(self, found: WalBatch) -> None:
        header = found.header
        if header.position < self.catalog.next_position:
            return
        if not header.is_control:
            if self.catalog.apply_append(header):
                segment = self._segment_for(header)
                segment.waiting[len(segment.index)] = found.at
                add_entry(segment.index, header, segment.index.end)
            return
        control = read_control(header, found.data[BATCH_HEADER_SIZE:])
        for part in parts_of(control):
            match part:
                case SegmentRoll():
                    self._segments(part.topic_id)[part.first_seq] = ReplayedSegment()
                    self.broken.discard(part.topic_id)
                    self.strays.pop(part.topic_id, None)
                case TopicDelete():
                    self.segments.pop(part.topic_id, None)
                    self.deleted.add(part.topic_id)
                case Reference():
                    self._refer(part)
        self.catalog.apply(control, header.position)

    def damaged(self, damage: Damage) -> None:
        self.damages.append(damage)
        self.broken.update(topic.topic_id for topic in self.catalog)
        self.strays.clear()

    def _refer(self, part: Reference) -> None:
        segments = self._segments(part.topic_id)
        stray = self.strays.pop(part.topic_id, None)
        moved = segments.pop(stray) if stray is not None and stray != part.segment_first_seq else ReplayedSegment()
        segment = segments.setdefault(part.segment_first_seq, ReplayedSegment())
        self.broken.discard(part.topic_id)
        _move(moved, segment, part.file_position)
        add_entry(segment.index, part.header, part.file_position)

    def _segments(self, topic_id: TopicId) -> dict[Seq, ReplayedSegment]:
        return self.segments.setdefault(topic_id, {})

    def _segment_for(self, header: BatchHeader) -> ReplayedSegment:
        segments = self._segments(header.topic_id)
        if not segments or header.topic_id in self.broken:
            if header.topic_id in self.broken:
                self.broken.discard(header.topic_id)
                self.strays[header.topic_id] = header.base_seq
            segments[header.base_seq] = ReplayedSegment()
        return _last(segments.values())


def _move(moved: ReplayedSegment, segment: ReplayedSegment, end: int) -> None:
    """Add the batches of one segment to another, where they end at a file position."""
    before = len(segment.index)
    entries = moved.index.entries.copy()
    entries["at"] += np.uint64(end - moved.index.end)
    segment.index.extend(entries)
    segment.waiting.update((before + entry, address) for entry, address in moved.waiting.items())


def _last(segments: Iterable[ReplayedSegment]) -> ReplayedSegment:
    *_, last = segments
    return last


def add_entry(index: BatchIndex, header: BatchHeader, at: int) -> None:
    """Add the entry of a stamped batch that lies at a file position."""
    index.append(
        base_seq=header.base_seq,
        at=at,
        timestamp_ns=header.timestamp_ns,
        base_offset=header.base_offset,
        position=header.position,
        count=header.record_count,
        length=header.size,
    )


def segment_entries(segments: dict[Seq, ReplayedSegment]) -> Iterator[tuple[Seq, Entries]]:
    """What must be in each segment, by its first seq."""
    return ((first_seq, segment.index.entries) for first_seq, segment in segments.items())
