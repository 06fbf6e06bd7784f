"""Retention and deletes: removes records on request, because they are too old, or because a topic is full.

Every removal is planned here and takes effect by a control batch that states the result: which seqs, how many bytes.
Only the owner changes the topics meanwhile, so the plan matches the state that precedes the control in the log.

    delete      everything below a seq, records with a tag, or both: readers get no gap for them
    age         records older than `ttl_ms`, by the time of their batch: whole batches
    caps        the oldest records until the topic is within both caps: exactly, to the record, in class fsync, up to
                a 64th more in other classes; with `discard` "reject" nothing is evicted, and an append that would not
                fit is refused before it gets a number (`check_space`)

Evictions raise the floor, and readers report them as a gap. They run before appends (`plan_eviction`), after appends
and at checkpoints (`retain`); until then records that are too old stay readable.

Segments: a sealed segment without live records is dropped once the control is durable (`drop_dead`). The active segment
stays until it is sealed. A crash in between leaves files without live records: the first `drop_dead` after their topic
is used again, or one of the next checkpoints, checks every segment. A segment with some deleted records gets a sidecar
file that lists them, for tools that read the files (`store_deletes`); the log and its snapshots are authoritative.

Each call does a limited amount of work; the rest stays due.

This module must not know how a control becomes durable.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice
from typing import Final

import numpy as np

from seawall import limits
from seawall.core.types import Seq, TimestampNs, TopicId
from seawall.engine.maintenance.stored_sizes import StoredSizes
from seawall.engine.store.control_log import ControlLog
from seawall.engine.store.ephemeral_memory import EphemeralMemory
from seawall.engine.store.topic_logs import TopicLogs
from seawall.errors import CorruptionError, FullError, InvalidInputError, LimitError
from seawall.storage.control.deletes import DeleteRecords, TagMatch
from seawall.storage.control.documents import FloorRaise
from seawall.storage.segments.delete_sidecar import DeletedSeqs, Ranges, load_deletes, write_deletes
from seawall.storage.segments.drops import drop_segments
from seawall.storage.segments.names import deletes_name
from seawall.storage.segments.segment import SealedSegment
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import Discard, Durability
from seawall.topics.state import TopicState
from seawall.topics.tags import TagIndex
from seawall.wire.format.codes import GapReason

#: The most evictions, and dropped segments, of one call: a few milliseconds of work.
_EVICTIONS_MAX: Final = 256
_DROPS_MAX: Final = 64

#: The most unrecovered topics whose segments one checkpoint checks.
_RECOVERIES_MAX: Final = 64

_NS_PER_MS: Final = 1_000_000

#: An eviction removes up to this fraction of a cap more than needed, if that saves syncs.
_EXTRA_FRACTION: Final = 64

#: A commit of this size counts as large.
_LARGE_COMMIT_SIZE: Final = limits.MIB


class LogCleaner:
    """Removes records and segments of the topics of one store. One owner at a time."""

    def __init__(self, catalog: TopicCatalog, logs: TopicLogs, controls: ControlLog, ephemeral_size: int) -> None:
        """`ephemeral_size` limits the bytes that topics of class ephemeral hold together."""
        self._catalog = catalog
        self._logs = logs
        self._controls = controls
        self._memory = EphemeralMemory(ephemeral_size)
        self._sizes: dict[TopicId, StoredSizes] = {}
        self._tags: dict[TopicId, TagIndex] = {}
        #: The floor of a topic and the time of its batch, to compare with the maximum age.
        self._oldest: dict[TopicId, tuple[Seq, TimestampNs]] = {}
        #: Ranges of seqs, first to last, in which sealed segments may have no live records any more.
        self.unchecked: dict[TopicId, tuple[Seq, Seq]] = {}
        #: The deleted seqs stored in the sidecar of each segment, by its first seq.
        self._sidecars: dict[TopicId, dict[Seq, DeletedSeqs]] = {}

    # --- deletes -------------------------------------------------------------------------------------------------

    def delete(self, name: str, *, before_seq: int | None = None, match: TagMatch | None = None) -> int:
        """Delete the records below `before_seq`, those whose tag matches, or those that are both; returns how many.

        Durable when this returns. An error may leave some of them deleted; a repeated call deletes the others.
        """
        if before_seq is None and match is None:
            raise InvalidInputError("a delete of records needs a seq to delete below, a tag, or both")
        if before_seq is not None and not 1 <= before_seq < 1 << 63:
            raise InvalidInputError(f"delete below seq {before_seq}: seqs begin at 1 and have 63 bits")
        topic = self._catalog.named(name)
        below = topic.next_seq if before_seq is None else min(Seq(before_seq), topic.next_seq)
        before = topic.live_records
        if topic.topic_id not in self._logs or below <= topic.floor:
            return 0
        requested = None if before_seq is None else Seq(before_seq)
        pieces = self._removed(topic, match, below)
        for number, removed in enumerate(pieces, 1):
            runs = topic.live(removed.first_seq, removed.last_seq) if match is None else removed.ranges
            size = self._sizes_of(topic).bytes_of(runs)
            control = DeleteRecords(topic.topic_id, removed, size, requested, match)
            # One sync at the end makes all parts durable.
            self._controls.commit_many([control], durable=number == len(pieces))
            self._mark_unchecked(topic.topic_id, removed.first_seq, removed.last_seq)
        if match is not None:
            self._tags[topic.topic_id].forget(match, below)
        return before - topic.live_records

    def _removed(self, topic: TopicState, match: TagMatch | None, below: Seq) -> list[DeletedSeqs]:
        """The seqs that a delete removes, in pieces that fit one control each."""
        if match is None:
            return [DeletedSeqs.between(topic.floor, Seq(below - 1))]
        while self.look_up_tags(topic.name):
            continue
        seqs = self._tags[topic.topic_id].find(match, below)
        if not len(seqs):
            return []
        dead = topic.dead(Seq(int(seqs[0])), Seq(int(seqs[-1])))
        ranges = DeletedSeqs.of(seqs[~dead.contains(seqs)]).ranges
        firsts = range(0, len(ranges), limits.DELETE_RANGES_MAX)
        return [DeletedSeqs(ranges[first : first + limits.DELETE_RANGES_MAX]) for first in firsts]

    def look_up_tags(self, name: str) -> bool:
        """Index the tags of some more records before a delete by tag; true if there are records left.

        A delete does the same for all records that are left. Callers that call this first, piece by piece, let other
        threads run in between.
        """
        topic = self._catalog.named(name)
        if topic.topic_id not in self._logs:
            return False
        # Imported here so that only a delete by tag loads Arrow, not every opening.
        from seawall.engine.maintenance.tag_scan import catch_up

        tags = self._tags.setdefault(topic.topic_id, TagIndex())
        return catch_up(tags, topic, self._logs[topic.topic_id])

    # --- retention -----------------------------------------------------------------------------------------------

    def check_space(
        self, topic: TopicState, record_count: int, byte_count: int, now_ns: TimestampNs, *, evicts: bool = True
    ) -> None:
        """Refuse an append to a full topic that rejects: `FullError`, or `LimitError` if it could never fit.

        If `evicts`, evict expired records first.
        """
        if topic.config.discard is not Discard.REJECT:
            return
        for setting, cap, _, added in _caps(topic, topic.config.bytes_max, record_count, byte_count):
            if added > cap:
                raise LimitError(f"{added} in topic {topic.name!r} can never fit: its {setting} is {cap}")
        caps = _caps(topic, self._memory.bytes_max(topic, byte_count), record_count, byte_count)
        if evicts and any(present + added > cap for _, cap, present, added in caps):
            self.retain(now_ns, [topic])
        for setting, cap, present, added in _caps(topic, self._memory.bytes_max(topic), record_count, byte_count):
            if present + added > cap:
                raise FullError(
                    f"topic {topic.name!r} holds {present}, {added} more exceed its {setting} of {cap}; delete "
                    f"records, or raise {setting}"
                )

    def bytes_max(self, topic: TopicState) -> int:
        """Bytes of records that a topic may hold now; 0 if unlimited."""
        return self._memory.bytes_max(topic)

    def plan_eviction(
        self, topic: TopicState, record_count: int, byte_count: int, now_ns: TimestampNs
    ) -> FloorRaise | None:
        """Plan the eviction that makes space for an append: a control to log right before it, without an extra sync.

        The caller logs it and calls `evicted`. If it does not free enough space, as for an append larger than a cap,
        `retain` is due after the append.
        """
        if not self.is_limited(topic):
            return None
        if self._is_expired(topic, now_ns):
            return next(self._plan_expiry([topic], now_ns))
        if self._is_overfull(topic, record_count, byte_count):
            config, extra = topic.config, 0
            # An eviction costs a sync. Classes that do not sync every append evict more at once, so that evictions are
            # rare, and up to the end of a batch if one is near, which saves reading the batch. Reading a batch costs
            # more than logging an eviction, so a large commit does the same in every class.
            if config.durability is not Durability.FSYNC or byte_count >= _LARGE_COMMIT_SIZE:
                extra = self._memory.bytes_max(topic) // _EXTRA_FRACTION
                record_count += config.cap_records // _EXTRA_FRACTION
            return self._plan_shrink(topic, record_count, byte_count + extra, extra)
        return None

    def size_of(self, topic: TopicState, runs: Ranges) -> int:
        """Plain bytes of rising runs of live records, as a delete states them."""
        return self._sizes_of(topic).bytes_of(runs)

    def time_of(self, topic: TopicState, seq: Seq) -> TimestampNs | None:
        """When the record with a seq was stored; None if no segment holds it."""
        return self._sizes_of(topic).time_of(seq)

    def deleted(self, delete: DeleteRecords) -> None:
        """Note a durable delete that was planned elsewhere; its segments may be dropped."""
        self._mark_unchecked(delete.topic_id, delete.removed.first_seq, delete.removed.last_seq)

    def evicted(self, raised: FloorRaise) -> None:
        """Note an applied eviction. Segment files may be dropped once it is durable; segments in memory are dropped
        now."""
        topic_id, first, last = raised.topic_id, raised.previous, Seq(raised.evict_floor - 1)
        log = self._logs.get(topic_id)
        if log is not None and not log.is_kept:
            self._drop(topic_id, self._disposable(topic_id, first, last))
        else:
            self._mark_unchecked(topic_id, first, last)

    def is_due(self, topic: TopicState, now_ns: TimestampNs) -> bool:
        """True if `retain` would evict records of a topic; costs a few comparisons."""
        return self.is_limited(topic) and (self._is_overfull(topic) or self._is_expired(topic, now_ns))

    def retain(self, now_ns: TimestampNs, topics: Iterable[TopicState] | None = None) -> int:
        """Run the evictions that are due, of some topics or of all; returns how many. Durable when it returns."""
        chosen = list(self._recovered() if topics is None else topics)
        return self._evict(self._plan_expiry(chosen, now_ns)) + self._evict(self._plan_cap_evictions(chosen))

    def _recovered(self) -> Iterator[TopicState]:
        """All recovered topics, and some unrecovered ones that may have something to remove."""
        left = _RECOVERIES_MAX
        for topic in self._catalog:
            if self._logs.is_unrecovered(topic.topic_id):
                has_dead = topic.floor > 1 or len(topic.deleted) > 0
                if not left or not (has_dead or self.is_limited(topic)):
                    continue
                left -= 1
            yield topic

    def _evict(self, planned: Iterator[FloorRaise]) -> int:
        raised = list(islice(planned, _EVICTIONS_MAX))
        if raised:
            self._controls.commit_many(raised)
        for each in raised:
            self.evicted(each)
        return len(raised)

    def _plan_expiry(self, topics: Iterable[TopicState], now_ns: TimestampNs) -> Iterator[FloorRaise]:
        """Plan the evictions of records that are too old."""
        for topic in topics:
            if self._is_expired(topic, now_ns):
                since = TimestampNs(now_ns - topic.config.ttl_ms * _NS_PER_MS)
                keep = self._sizes_of(topic).first_since(since) or topic.next_seq
                yield self._eviction(topic, GapReason.TTL, keep)

    def _plan_cap_evictions(self, topics: Iterable[TopicState]) -> Iterator[FloorRaise]:
        """Plan the evictions of the oldest records of topics that exceed a cap."""
        return (self._plan_shrink(topic) for topic in topics if self._is_overfull(topic))

    def _plan_shrink(self, topic: TopicState, record_count: int = 0, byte_count: int = 0, extra: int = 0) -> FloorRaise:
        """Plan the eviction that leaves space for an append, or `extra` bytes less, or empties the topic."""
        config, runs = topic.config, topic.live(topic.floor, topic.head_seq)
        keep = topic.floor
        if config.cap_records:
            keep = max(keep, _seq_after_records(runs, topic.live_records + record_count - config.cap_records))
        if bytes_max := self._memory.bytes_max(topic):
            keep = max(keep, self._seq_after_bytes(topic, runs, topic.live_bytes + byte_count - bytes_max, extra))
        return self._eviction(topic, GapReason.CAP, keep)

    def is_limited(self, topic: TopicState) -> bool:
        """True if a topic has caps or a maximum age."""
        config = topic.config
        return bool(config.ttl_ms or config.cap_records or config.bytes_max)

    def _is_overfull(self, topic: TopicState, record_count: int = 0, byte_count: int = 0) -> bool:
        caps = _caps(topic, self._memory.bytes_max(topic, byte_count), record_count, byte_count)
        over = any(present + added > cap for _, cap, present, added in caps)
        return over and topic.live_records > 0 and topic.config.discard is Discard.OLD

    def _is_expired(self, topic: TopicState, now_ns: TimestampNs) -> bool:
        ttl_ms = topic.config.ttl_ms
        if not ttl_ms or not topic.live_records or topic.topic_id not in self._logs:
            return False
        floor, oldest_ns = self._oldest.get(topic.topic_id, (Seq(0), TimestampNs(0)))
        if floor != topic.floor:
            # If no segment holds its records, their age is unknown: they count as new.
            oldest_ns = self._sizes_of(topic).time_of(topic.floor) or now_ns
            self._oldest[topic.topic_id] = (topic.floor, oldest_ns)
        return oldest_ns < now_ns - ttl_ms * _NS_PER_MS

    def _eviction(self, topic: TopicState, reason: GapReason, keep: Seq) -> FloorRaise:
        """The control that evicts all live records below `keep`. It does not cover records that are dead already."""
        runs = topic.live(topic.floor, Seq(keep - 1))
        size = self._sizes_of(topic).bytes_of(runs)
        return FloorRaise(topic.topic_id, reason, Seq(int(runs[-1, 1])), topic.evict_floor, size)

    def _seq_after_bytes(self, topic: TopicState, runs: Ranges, excess: int, extra: int) -> Seq:
        """The seq below which live records have at least `excess` bytes, or `extra` less if a batch ends there."""
        if excess <= 0:
            return topic.floor
        for first, end in runs:
            seq, size = self._sizes_of(topic).reaching(Seq(int(first)), Seq(int(end) - 1), excess, extra)
            if size >= excess - extra:
                return Seq(seq + 1)
            excess -= size
        return topic.next_seq

    # --- segments ------------------------------------------------------------------------------------------------

    def recheck_all(self) -> None:
        """Let the next `drop_dead` check every segment of the recovered topics and of some others: after segments were
        sealed."""
        for topic in self._recovered():
            self._logs.get(topic.topic_id)
            self.recheck(topic)

    def recheck(self, topic: TopicState) -> None:
        """Let the next `drop_dead` check every segment of a topic: after it was recovered."""
        self._mark_unchecked(topic.topic_id, Seq(1), topic.head_seq)

    def has_dead(self) -> bool:
        """True if `drop_dead` has something to drop; cheap if nothing was removed since the last call."""
        for topic_id, (first, last) in list(self.unchecked.items()):
            if self._disposable(topic_id, first, last):
                return True
            del self.unchecked[topic_id]
        return False

    def drop_dead(self) -> int:
        """Drop sealed segments that are not needed any more; returns how many."""
        dropped = 0
        for topic_id, (first, last) in list(self.unchecked.items()):
            found = self._disposable(topic_id, first, last)
            chosen = found[: _DROPS_MAX - dropped]
            if chosen:
                if not dropped:
                    # The controls that removed the records may not be durable yet.
                    self._controls.sync()
                self._drop(topic_id, chosen)
                dropped += len(chosen)
            if len(chosen) < len(found):
                break
            del self.unchecked[topic_id]
        return dropped

    def _drop(self, topic_id: TopicId, chosen: Sequence[SealedSegment]) -> None:
        log = self._logs[topic_id]
        for segment in chosen:
            log.sealed.remove(segment)
            self._sidecars.get(topic_id, {}).pop(segment.name.first_seq, None)
        drop_segments(log.directory, chosen)

    def _disposable(self, topic_id: TopicId, first: Seq, last: Seq) -> list[SealedSegment]:
        """The sealed segments that overlap a range and are not needed any more."""
        topic, log = self._catalog.find(topic_id), self._logs.get(topic_id)
        if topic is None or log is None:
            return []
        low = bisect_left(log.sealed, first, key=lambda each: each.name.last_seq)
        high = bisect_right(log.sealed, last, key=lambda each: each.name.first_seq)
        names = (segment.name for segment in log.sealed[low:high])
        is_disposable = [topic.is_disposable(name.first_seq, name.last_seq) for name in names]
        return list(compress(log.sealed[low:high], is_disposable))

    def store_deletes(self) -> int:
        """Bring the delete sidecars of sealed segments up to date; returns how many were written."""
        written = 0
        for topic in self._catalog:
            log = None if self._logs.is_unrecovered(topic.topic_id) else self._logs.get(topic.topic_id)
            if log is None or not log.is_kept or (topic.floor == 1 and not len(topic.deleted)):
                continue
            for segment in log.sealed:
                written += self._store_deletes(topic, segment.name.first_seq, segment.name.last_seq)
        return written

    def _store_deletes(self, topic: TopicState, first: Seq, last: Seq) -> bool:
        dead = topic.dead(first, last)
        inside = DeletedSeqs(np.clip(dead.ranges, first, last + 1))
        if not len(inside):
            return False
        home, stored = self._logs[topic.topic_id].directory, self._sidecars.setdefault(topic.topic_id, {})
        path = home.path(deletes_name(first))
        if first not in stored:
            try:
                stored[first] = load_deletes(home.files, path, home.preface(first))
            except (CorruptionError, FileNotFoundError):
                stored[first] = DeletedSeqs()
        if stored[first] == inside:
            return False
        write_deletes(home.files, path, inside, home.preface(first))
        stored[first] = inside
        return True

    def forget(self, topic_id: TopicId) -> None:
        """Forget a deleted topic."""
        for kept in (self._sizes, self._tags, self._oldest, self.unchecked, self._sidecars):
            kept.pop(topic_id, None)
        self._memory.forget(topic_id)

    # --- helpers -------------------------------------------------------------------------------------------------

    def _sizes_of(self, topic: TopicState) -> StoredSizes:
        sizes = self._sizes.get(topic.topic_id)
        if sizes is None:
            sizes = self._sizes[topic.topic_id] = StoredSizes(self._logs[topic.topic_id])
        return sizes

    def _mark_unchecked(self, topic_id: TopicId, first: Seq, last: Seq) -> None:
        low, high = self.unchecked.get(topic_id, (first, last))
        self.unchecked[topic_id] = (min(low, first), max(high, last))


def _caps(topic: TopicState, bytes_max: int, record_count: int, byte_count: int) -> list[tuple[str, int, int, int]]:
    """Every cap of a topic: its name, its value, the present amount, and the amount to add."""
    bytes_name = "cap_bytes" if bytes_max == topic.config.bytes_max else "part of storage.ephemeral_size"
    every = (
        ("cap_records", topic.config.cap_records, topic.live_records, record_count),
        (bytes_name, bytes_max, topic.live_bytes, byte_count),
    )
    return [each for each in every if each[1]]


def _seq_after_records(runs: Ranges, excess: int) -> Seq:
    """The seq below which there are `excess` live records."""
    if excess <= 0:
        return Seq(0)
    ends = (runs[:, 1] - runs[:, 0]).cumsum()
    if excess >= int(ends[-1]):
        return Seq(int(runs[-1, 1]))
    number = int(ends.searchsorted(excess, "left"))
    return Seq(int(runs[number, 1]) - (int(ends[number]) - excess))
