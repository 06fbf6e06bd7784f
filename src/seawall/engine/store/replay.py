"""Replays the log: the state of a data directory, from its newest snapshot and the batches after it.

Replay changes no file. It returns the catalog of topics, the sessions of publishers, and for each topic the position of
every batch in its unsealed segments (`topic_log`), with the log address of batches that may be unflushed.

Appends arrive in runs, as rows of arrays, and are applied as arrays: no Python code runs for a single batch, unless it
is keyed. A run holds appends only, so all batches of a topic in one run go to one segment.

After damage in the log the next batch of a topic begins a new segment, since the space that the lost batches took is
unknown. A reference to a large batch makes the position known again: the batches between the damage and the reference
are right before the large batch.

The section SEGMENTS of a snapshot holds, for each unsealed segment: topic_id u32, count u32, first_seq u64, then
`count` index entries of 48 bytes. The section CLIENT_ROWS holds the row of every publisher with a session, of 64 bytes;
a snapshot without the section has no sessions. SESSIONS holds the epoch floor u64 and the seq floor u64 of retired
sessions (`sessions`), then for each of those rows when its publisher was last seen, in milliseconds u64.

INV-REPLAY-WHOLE: a directory that lost a file which its state depends on, or its whole log, is refused before a byte is
written. Otherwise the creations, deletes and cursors in that file would be undone silently. Damaged bytes inside a file
cost what they held, reported as a gap (`opening`).
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
from seawall.limits import BATCH_HEADER_SIZE, SESSION_CHECKS, SESSION_TTL_MS
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
    """An unsealed segment: the index of its batches, and the log address of those that may be unflushed."""

    index: BatchIndex = field(default_factory=BatchIndex)
    unflushed: UnflushedBatches = field(default_factory=UnflushedBatches)


@dataclass(slots=True)
class Replayed:
    """The state after replay of snapshot and log."""

    catalog: TopicCatalog
    end: WalEnd
    #: Topic → first seq → segment.
    segments: dict[TopicId, dict[Seq, ReplayedSegment]]
    damages: list[Damage]
    #: Topics whose deletion is in the log after the snapshot.
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
    """Read the log from the end of the snapshot; `CorruptionError` if a file is missing (INV-REPLAY-WHOLE).

    Last-seen times of publishers are exact to a fraction of `session_ttl_ms`; `mapped` as for `read_wal`.
    """
    _require_start(files, directory, snapshot)
    sessions = Sessions(check_interval_ms=session_ttl_ms // SESSION_CHECKS)
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
                state.apply_appends(part)
            case WalBatch():
                state.apply_control(part)
            case Damage():
                if part.is_file_lost:
                    raise _file_lost(part)
                state.note_damage(part)
            case WalEnd():
                sessions.note_activity(state.now_ms)
                return Replayed(state.catalog, part, state.segments, state.damages, state.deleted, sessions)
    raise CorruptionError(f"{directory.wal}: the log has no end")


def _require_start(files: Files, directory: DataDirectory, snapshot: Snapshot | None) -> None:
    """Refuse a directory if the log before its first file is unknown, or if the log is missing."""
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


def store_sections(unsealed: Iterable[tuple[TopicId, Seq, Entries]], sessions: Sessions) -> dict[SectionKind, bytes]:
    """The sections of a snapshot besides the catalog: unsealed segments, and sessions."""
    pieces: list[bytes] = []
    for topic_id, first_seq, entries in unsealed:
        pieces += (_SEGMENT.pack(topic_id, len(entries), first_seq), entries.tobytes())
    return {SectionKind.SEGMENTS: b"".join(pieces)} | sessions.sections()


def _load_segments(snapshot: Snapshot) -> dict[TopicId, dict[Seq, ReplayedSegment]]:
    data = snapshot.section(SectionKind.SEGMENTS)
    segments: dict[TopicId, dict[Seq, ReplayedSegment]] = {}
    at = 0
    while at < len(data):
        if at + _SEGMENT.size > len(data):
            raise CorruptionError(f"snapshot at position {snapshot.position}: the SEGMENTS section is truncated")
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
    #: Topics that had no append since damage: their next batch begins a segment.
    after_damage: set[TopicId] = field(default_factory=set)
    deleted: set[TopicId] = field(default_factory=set)
    #: Segments that began after damage, by their first seq: the real position of their batches is not known yet.
    provisional: dict[TopicId, Seq] = field(default_factory=dict)
    #: The latest time in the log so far.
    now_ms: int = 0

    def apply_appends(self, run: WalRun) -> None:
        rows = self.catalog.not_applied(run.rows)
        if not len(rows):
            return
        for part in self.sessions.split_by_interval(rows):
            self._advance_time(int(part["timestamp_ns"][0]))
            self.sessions.decide_run(part)
            self.now_ms = max(self.now_ms, int(part["timestamp_ns"][-1]) // _NANOSECONDS_PER_MILLISECOND)
        has_keys = bool((rows["flags"] & _KEYED).any())
        for topic, appended in self.catalog.apply_run(rows):
            if has_keys:
                remember_keys(topic, appended)
            segment = self._segment_for(topic.topic_id, Seq(int(appended["base_seq"][0])))
            before = len(segment.index)
            segment.index.extend(entries_of(appended, segment.index.end))
            segment.unflushed.extend(before, appended["at"])

    def apply_control(self, found: WalBatch) -> None:
        header = found.header
        if header.position < self.catalog.next_position:
            return
        control = read_control(header, found.data[BATCH_HEADER_SIZE:])
        self._advance_time(header.timestamp_ns)
        self.catalog.apply(control, header.position)
        for part in parts_of(control):
            match part:
                case SegmentRoll():
                    self._segments(part.topic_id)[part.first_seq] = ReplayedSegment()
                    self.after_damage.discard(part.topic_id)
                    self.provisional.pop(part.topic_id, None)
                case TopicDelete():
                    self.segments.pop(part.topic_id, None)
                    self.deleted.add(part.topic_id)
                case Reference():
                    self._apply_reference(part)
                case ClientRow():
                    self.sessions.apply(part, self.now_ms)
                case SessionsRetired():
                    self.sessions.apply_retired(part)
                case OrderNop():
                    self.sessions.refuse(part, header.position)
                case OrderSkip():
                    self.sessions.skip(part)

    def _advance_time(self, timestamp_ns: int) -> None:
        """Advance to the time of a batch; publishers that were active before it were last seen at the time before."""
        now_ms = timestamp_ns // _NANOSECONDS_PER_MILLISECOND
        if self.sessions.is_check_due(now_ms):
            self.sessions.note_activity(self.now_ms or now_ms)
        self.now_ms = max(self.now_ms, now_ms)

    def note_damage(self, damage: Damage) -> None:
        self.damages.append(damage)
        self.after_damage.update(topic.topic_id for topic in self.catalog)
        self.provisional.clear()

    def _apply_reference(self, part: Reference) -> None:
        if part.segment_first_seq:
            self._index_reference(part)
        row = _row_of(part.header)
        self.sessions.decide_run(row)
        topic = self.catalog.find(part.topic_id)
        if topic is not None:
            remember_keys(topic, row)

    def _index_reference(self, part: Reference) -> None:
        """Add a referenced batch to its segment. A reference to a batch in memory adds nothing."""
        segments = self._segments(part.topic_id)
        provisional_seq = self.provisional.pop(part.topic_id, None)
        moved = (
            segments.pop(provisional_seq)
            if provisional_seq is not None and provisional_seq != part.segment_first_seq
            else ReplayedSegment()
        )
        segment = segments.setdefault(part.segment_first_seq, ReplayedSegment())
        self.after_damage.discard(part.topic_id)
        _append_segment(segment, moved, part.file_position)
        _add_entry(segment.index, part.header, part.file_position)

    def _segments(self, topic_id: TopicId) -> dict[Seq, ReplayedSegment]:
        return self.segments.setdefault(topic_id, {})

    def _segment_for(self, topic_id: TopicId, base_seq: Seq) -> ReplayedSegment:
        segments = self._segments(topic_id)
        if not segments or topic_id in self.after_damage:
            if topic_id in self.after_damage:
                self.after_damage.discard(topic_id)
                self.provisional[topic_id] = base_seq
            segments[base_seq] = ReplayedSegment()
        # Not the last one named in the log: a transaction logs a roll before the segments that precede it.
        return segments[max(segments)]


def remember_keys(topic: TopicState, rows: WalRows) -> None:
    """Remember the keys of the keyed batches of a topic, and forget the keys that have expired by then."""
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


def _row_of(header: BatchHeader) -> WalRows:
    """The row of a referenced batch; it has no log address."""
    row = np.zeros(1, WAL_ROW)
    for name in {*(WAL_ROW.names or ())} - {"at", "count"}:
        row[name] = getattr(header, name)
    row["count"] = header.record_count
    return row


def _append_segment(segment: ReplayedSegment, moved: ReplayedSegment, end: int) -> None:
    """Append the batches of another segment, so that they end at a file position."""
    before = len(segment.index)
    entries = moved.index.entries.copy()
    entries["at"] += np.uint64(end - moved.index.end)
    segment.index.extend(entries)
    segment.unflushed.append(moved.unflushed, before)


def _add_entry(index: BatchIndex, header: BatchHeader, at: int) -> None:
    """Add the index entry of a stamped batch at a file position."""
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
    """The index entries of each segment, by its first seq."""
    return ((first_seq, segment.index.entries) for first_seq, segment in segments.items())
