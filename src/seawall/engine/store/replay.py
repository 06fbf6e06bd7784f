"""What the log says: the state of a data directory from its newest snapshot and the batches behind it.

Replay changes no file. It gives the catalog of topics, the sessions of publishers, and for each topic which batches
must lie at which place of which segment (`topic_log`), and where in the log those are that may not
be at their place yet.

Appends come in runs, as rows of arrays, and are applied by arrays: no Python code runs for a batch that is not keyed.
Within a run nothing but appends happens, so all batches of a topic in it go to one segment.

After damage in the log a topic's next batch begins a new segment: how much room the lost ones took is unknown. A
reference to a large batch tells it again, and what followed the damage up to there lies right before that batch.

The section SEGMENTS of a snapshot holds, for each segment that was not sealed: topic_id u32, count u32, first_seq u64,
then `count` index entries of 48 bytes. The section CLIENT_ROWS holds the row of every publisher with a session, of 64
bytes; a snapshot without it knows none. SESSIONS holds the epoch floor u64 and the seq floor u64 of retired sessions
(`sessions`), then for each of those rows when its publisher was last seen, in milliseconds u64.

INV-REPLAY-WHOLE: a directory that lost a file which its state depends on, or its whole log, is refused before a byte is
written. Creations, deletes and cursors in that file would otherwise be undone silently. Damage of bytes inside a file
costs what they held, as a gap (`opening`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

import numpy as np

from seawall.core.types import ClientId, ClientSeq, Seq, TopicId
from seawall.engine.store.sessions import Sessions
from seawall.engine.store.unflushed import UnflushedBatches
from seawall.errors import CorruptionError
from seawall.io.interfaces import Files
from seawall.kernels.log.epochs import WAL_ROW, WalRows
from seawall.limits import BATCH_HEADER_SIZE, SESSION_LOOKS, SESSION_TTL_MS
from seawall.storage.control.batches import parts_of, read_control
from seawall.storage.control.codec import ClientRow, Reference, SegmentRoll
from seawall.storage.control.documents import TopicDelete
from seawall.storage.control.order import OrderNop, OrderSkip
from seawall.storage.control.sessions import SessionsRetired
from seawall.storage.directory import DataDirectory
from seawall.storage.segments.batch_index import INDEX_ENTRY, BatchIndex, Entries, entries_of
from seawall.storage.snapshots import SectionKind, Snapshot
from seawall.storage.wal.epochs import WalAddress
from seawall.storage.wal.files import WalEnd, wal_addresses
from seawall.storage.wal.reader import Damage, WalBatch, WalRun, read_runs
from seawall.topics.catalog import TopicCatalog
from seawall.topics.keys import KeyedAppend, key_of
from seawall.topics.persistence import load_catalog
from seawall.topics.state import TopicState
from seawall.wire.format.batches import BatchHeader
from seawall.wire.format.codes import BatchFlags

_SEGMENT: Final = Struct("<IIQ")
_KEYED: Final = int(BatchFlags.KEYED)
_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000


@dataclass(slots=True)
class ReplayedSegment:
    """A segment that is not sealed: the batches that belong there, and where in the log some of them are."""

    index: BatchIndex = field(default_factory=BatchIndex)
    waiting: UnflushedBatches = field(default_factory=UnflushedBatches)


@dataclass(slots=True)
class Replayed:
    """The state that snapshot and log give."""

    catalog: TopicCatalog
    end: WalEnd
    #: Topic → first seq → segment.
    segments: dict[TopicId, dict[Seq, ReplayedSegment]]
    damages: list[Damage]
    #: Topics whose deletion is in the log behind the snapshot.
    deleted: set[TopicId]
    sessions: Sessions


def replay(
    files: Files,
    directory: DataDirectory,
    snapshot: Snapshot | None,
    *,
    session_ttl_ms: int = SESSION_TTL_MS,
    mapped: bool = False,
) -> Replayed:
    """Read the log from where the snapshot ends; `CorruptionError` if a file is lost (INV-REPLAY-WHOLE).

    When publishers were seen is found to a part of `session_ttl_ms`; `mapped` as for `read_wal`.
    """
    _require_start(files, directory, snapshot)
    sessions = Sessions(look_ms=session_ttl_ms // SESSION_LOOKS)
    if snapshot is None:
        state = _Replay(TopicCatalog(), {}, sessions)
        from_at = WalAddress(0)
    else:
        state = _Replay(load_catalog(snapshot), _load_segments(snapshot), sessions)
        sessions.load(snapshot)
        from_at = WalAddress(snapshot.wal_from_at)
        state.now_ms = snapshot.created_ns // _NANOSECONDS_PER_MILLISECOND
    for part in read_runs(files, directory.wal, directory.directory_id, from_at, mapped=mapped):
        match part:
            case WalRun():
                state.appends(part)
            case WalBatch():
                state.control(part)
            case Damage():
                if part.is_file_lost:
                    raise _file_lost(part)
                state.damaged(part)
            case WalEnd():
                sessions.note(state.now_ms)
                return Replayed(state.catalog, part, state.segments, state.damages, state.deleted, sessions)
    raise CorruptionError(f"{directory.wal}: reading the log came to no end")


def _require_start(files: Files, directory: DataDirectory, snapshot: Snapshot | None) -> None:
    """Refuse a directory in which nothing says what the log held before its first file, or where the log is."""
    starts = wal_addresses(files, directory.wal)
    if not starts and directory.log_has_begun:
        raise CorruptionError(
            f"{directory.wal}: no WAL file is left, though {directory.format_path} says that there was a log; restore "
            "the directory from a backup"
        )
    if snapshot is None and starts and starts[0]:
        raise CorruptionError(
            f"{directory.meta}: no sound snapshot (snapshot-<position>.meta) is left, and the log before address "
            f"{starts[0]} was dropped when one was made, so topics and deletes are not known; restore the newest "
            "snapshot from a backup. Until then seawall dump shows the records of single segments"
        )


def _file_lost(damage: Damage) -> CorruptionError:
    return CorruptionError(
        f"{damage.reason}: the log from address {damage.from_at} to {damage.to_at}, with its records, topics and "
        "deletes, is lost with it; restore the file from a backup"
    )


def store_sections(filling: Iterable[tuple[TopicId, Seq, Entries]], sessions: Sessions) -> dict[SectionKind, bytes]:
    """What a snapshot holds beside the catalog: segments that are not sealed, and sessions."""
    pieces: list[bytes] = []
    for topic_id, first_seq, entries in filling:
        pieces += (_SEGMENT.pack(topic_id, len(entries), first_seq), entries.tobytes())
    return {SectionKind.SEGMENTS: b"".join(pieces)} | sessions.sections()


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
    sessions: Sessions
    damages: list[Damage] = field(default_factory=list)
    #: Topics whose next batch begins a segment of its own.
    broken: set[TopicId] = field(default_factory=set)
    deleted: set[TopicId] = field(default_factory=set)
    #: Segments that damage has begun, by their first seq: where their batches really lie is not known yet.
    strays: dict[TopicId, Seq] = field(default_factory=dict)
    #: The latest time that the log has told.
    now_ms: int = 0

    def appends(self, run: WalRun) -> None:
        rows = self.catalog.not_applied(run.rows)
        if not len(rows):
            return
        for part in self.sessions.by_look(rows):
            self._tick(int(part["timestamp_ns"][0]))
            self.sessions.decide_run(part)
            self.now_ms = max(self.now_ms, int(part["timestamp_ns"][-1]) // _NANOSECONDS_PER_MILLISECOND)
        for topic, appended in self.catalog.apply_run(rows):
            remember_keys(topic, appended)
            segment = self._segment_for(topic.topic_id, Seq(int(appended["base_seq"][0])))
            before = len(segment.index)
            segment.index.extend(entries_of(appended, segment.index.end))
            segment.waiting.extend(before, appended["at"])

    def control(self, found: WalBatch) -> None:
        header = found.header
        if header.position < self.catalog.next_position:
            return
        control = read_control(header, found.data[BATCH_HEADER_SIZE:])
        self._tick(header.timestamp_ns)
        self.catalog.apply(control, header.position)
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
                case ClientRow():
                    self.sessions.apply(part, self.now_ms)
                case SessionsRetired():
                    self.sessions.apply_retired(part)
                case OrderNop():
                    self.sessions.refuse(part, header.position)
                case OrderSkip():
                    self.sessions.skip(part)

    def _tick(self, timestamp_ns: int) -> None:
        """The log comes to a time: whoever was active before it was seen then, and not now."""
        now_ms = timestamp_ns // _NANOSECONDS_PER_MILLISECOND
        if self.sessions.is_look_due(now_ms):
            self.sessions.note(self.now_ms or now_ms)
        self.now_ms = max(self.now_ms, now_ms)

    def damaged(self, damage: Damage) -> None:
        self.damages.append(damage)
        self.broken.update(topic.topic_id for topic in self.catalog)
        self.strays.clear()

    def _refer(self, part: Reference) -> None:
        if part.segment_first_seq:
            self._place(part)
        row = row_of(part.header)
        self.sessions.decide_run(row)
        topic = self.catalog.find(part.topic_id)
        if topic is not None:
            remember_keys(topic, row)

    def _place(self, part: Reference) -> None:
        """What is in the segments by a reference; one to a batch that was kept in memory puts nothing there."""
        segments = self._segments(part.topic_id)
        stray = self.strays.pop(part.topic_id, None)
        moved = segments.pop(stray) if stray is not None and stray != part.segment_first_seq else ReplayedSegment()
        segment = segments.setdefault(part.segment_first_seq, ReplayedSegment())
        self.broken.discard(part.topic_id)
        _move(moved, segment, part.file_position)
        add_entry(segment.index, part.header, part.file_position)

    def _segments(self, topic_id: TopicId) -> dict[Seq, ReplayedSegment]:
        return self.segments.setdefault(topic_id, {})

    def _segment_for(self, topic_id: TopicId, base_seq: Seq) -> ReplayedSegment:
        segments = self._segments(topic_id)
        if not segments or topic_id in self.broken:
            if topic_id in self.broken:
                self.broken.discard(topic_id)
                self.strays[topic_id] = base_seq
            segments[base_seq] = ReplayedSegment()
        # Not the last that the log has named: a transaction names rolls before the segments they follow.
        return segments[max(segments)]


def remember_keys(topic: TopicState, rows: WalRows) -> None:
    """The keys of the keyed batches among some of a topic; those whose window has passed by then are forgotten."""
    keyed = np.flatnonzero(rows["flags"] & _KEYED)
    for row in rows.take(keyed):
        first_seq = int(row["base_seq"])
        append = KeyedAppend(
            Seq(first_seq),
            Seq(first_seq + int(row["count"]) - 1),
            int(row["timestamp_ns"]) // _NANOSECONDS_PER_MILLISECOND,
        )
        topic.keys.remember(key_of(ClientId(int(row["client_id"])), ClientSeq(int(row["client_seq"]))), append)
    if keyed.size:
        topic.keys.expire(append.at_ms, topic.config.idempotency_window_ms)


def row_of(header: BatchHeader) -> WalRows:
    """The row of a batch that the log refers to; it has no address there."""
    row = np.zeros(1, WAL_ROW)
    for name in {*(WAL_ROW.names or ())} - {"at", "count"}:
        row[name] = getattr(header, name)
    row["count"] = header.record_count
    return row


def _move(moved: ReplayedSegment, segment: ReplayedSegment, end: int) -> None:
    """Add the batches of one segment to another, where they end at a file position."""
    before = len(segment.index)
    entries = moved.index.entries.copy()
    entries["at"] += np.uint64(end - moved.index.end)
    segment.index.extend(entries)
    segment.waiting.append(moved.waiting, before)


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


def still_needed(topic: TopicState, segments: dict[Seq, ReplayedSegment]) -> dict[Seq, ReplayedSegment]:
    """The unsealed segments of a topic that recovery needs: the last one, and all with live records.

    The others may have been sealed and dropped since the snapshot that lists them as unsealed.
    """
    last = max(segments, default=None)
    return {
        first_seq: segment
        for first_seq, segment in segments.items()
        if first_seq == last
        or not len(segment.index)
        or not topic.is_disposable(segment.index.first_seq, segment.index.last_seq)
    }


def segment_entries(segments: dict[Seq, ReplayedSegment]) -> Iterator[tuple[Seq, Entries]]:
    """What must be in each segment, by its first seq."""
    return ((first_seq, segment.index.entries) for first_seq, segment in segments.items())
