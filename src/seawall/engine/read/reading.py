"""Read a topic: plan what a reader gets next under the store's lock, and execute the plan without the lock.

Planning looks up the batches, which of their records are live, and the gaps between them (`TopicLog.plan`). It copies
everything that can change. Executing reads and verifies the batches and assembles the result. It holds no lock, and the
files it reads are pinned: whatever happens to the topic in the meantime, the result is that of the moment of planning.

What a reader gets
- Each batch with at least one live record, reduced to its live records (`StoredBatch.live`). Deleted records are
  skipped without a gap.
- A gap for every seq that was evicted or lost, in seq order with the batches.
- A SKIP of the order, directly before the batch with the lowest position above its own. A SKIP is not delivered before
  such a batch is stored.
- INV-READ-NO-HOLE: a reader gets a gap for each live seq that no sound batch holds, and for no other live seq. The gap
  has the reason corruption, and batches behind it are delivered.

A plan pins files until it is executed or released. Its creator must do one of the two promptly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from seawall.core.types import Position, Seq, TimestampNs
from seawall.engine.commit.pending_rows import FoundBatches
from seawall.engine.read.planning import Planned, Run, SeqRuns
from seawall.engine.read.run_pieces import pieces, read_piece
from seawall.engine.store.topic_log import StoredBatch, TopicLog
from seawall.engine.store.unflushed import Numbers
from seawall.io.disk.unreadable import UNREADABLE
from seawall.kernels.log.segments import verify_entries
from seawall.limits import READ_PIECE_SIZE
from seawall.topics.gaps import Gap
from seawall.topics.skips import Skip
from seawall.topics.state import TopicState
from seawall.wire.format.codes import GapReason
from seawall.wire.format.read_buffers import READ_BUFFERS, Bytes


class StoredSkip(NamedTuple):
    """A SKIP in the sequence of a topic's batches."""

    skip: Skip
    #: The seq to continue at: that of the batch after the SKIP.
    next_seq: Seq


#: What a reader gets, in order.
ReadItem: TypeAlias = StoredBatch | Gap | StoredSkip

_BatchOrGap: TypeAlias = StoredBatch | Gap

#: The seq of a SKIP after which nothing is stored yet.
_NEVER: Final = Seq(1 << 64)


class ReadPlan:
    """One read: everything it needs, captured at one moment. Execute it once, or release it."""

    __slots__ = ("_gaps", "_live", "_planned", "end_seq", "from_seq", "next_seq", "skips", "tail")

    def __init__(self, planned: Planned | None, from_seq: Seq, next_seq: Seq, live: SeqRuns, gaps: list[Gap]) -> None:
        self._planned = planned
        self._live = live
        self._gaps = gaps
        #: SKIPs, each with the seq of the batch after it, ascending.
        self.skips: list[tuple[Seq, Skip]] = []
        #: Batches after all others that are in memory already.
        self.tail: list[StoredBatch] = []
        self.from_seq = from_seq
        #: The seq at which the next read continues.
        self.end_seq = max(from_seq, next_seq) if planned is None else planned.end_seq
        #: The seq that the next record of the topic would get, at the moment of planning.
        self.next_seq = next_seq

    @property
    def runs(self) -> list[Run]:
        """The runs to read; empty after the plan is executed."""
        return [] if self._planned is None else self._planned.runs

    @property
    def batch_count(self) -> int:
        """The number of batches, including those that are in memory already."""
        return sum(len(run.entries) for run in self.runs) + len(self.tail)

    @property
    def live(self) -> Numbers:
        """First and last seq of each live range, ascending: two columns."""
        return np.array(self._live, np.int64).reshape(-1, 2)

    @property
    def is_unbroken(self) -> bool:
        """True if the runs hold exactly the records from `from_seq` to `end_seq`, and all of them are live."""
        if self._gaps or self.skips or self.tail or self._live != ((self.from_seq, self.end_seq - 1),):
            return False
        record_count = sum(int(run.entries["count"].sum(dtype=np.int64)) for run in self.runs)
        return bool(self.runs) and int(self.runs[0].entries["base_seq"][0]) + record_count == self.end_seq

    def execute(self) -> list[ReadItem]:
        """Read and verify the batches; returns them with the gaps and SKIPs between them, in order."""
        try:
            batch = self._only_batch()
            items = _with_merged_gaps(self._items()) if batch is None else [batch]
            if not self.skips and not self.tail:
                return [*items]
            return [*self._with_skips(items), *self.tail]
        finally:
            self.release()

    def take_runs(self) -> list[Run]:
        """Hand the runs over to a caller that sends them to the reader itself and releases the pins."""
        planned, self._planned = self._planned, None
        return [] if planned is None else planned.runs

    def release(self) -> None:
        """Release all pins. Calling it twice is fine."""
        if self._planned is not None:
            self._planned.release()

    def _with_skips(self, items: Iterable[_BatchOrGap]) -> list[ReadItem]:
        """Insert each SKIP before the first item after it."""
        found: list[ReadItem] = []
        remaining = deque(self.skips)
        for item in items:
            first = item.first_seq if isinstance(item, Gap) else item.live[0][0]
            while remaining and remaining[0][0] <= first:
                seq, skip = remaining.popleft()
                found.append(StoredSkip(skip, seq))
            found.append(item)
        # The batches after the remaining SKIPs have no live records any more.
        return found + [StoredSkip(skip, self.end_seq) for _, skip in remaining]

    def _only_batch(self) -> StoredBatch | None:
        """The fast path of a seek: the plan is one sound batch that is live from `from_seq` on, without any gap.

        None if the plan is anything else, or if the batch is damaged: then the general path determines the result.
        """
        planned = self._planned
        if planned is None or len(planned.runs) != 1:
            return None
        topic_id, entries, at, size, source, data = planned.runs[0]
        if len(entries) != 1 or size > READ_PIECE_SIZE:
            return None
        base_seq, _, timestamp_ns, _, position, count, _ = entries.item()
        end_seq = Seq(base_seq + count)
        if self.from_seq < base_seq or self._gaps or self._live != ((self.from_seq, end_seq - 1),):
            return None
        if source is not None:
            try:
                data = source.file.read(size, at)
            except OSError as error:
                if error.errno not in UNREADABLE:
                    raise
                return None
        verdict: Bytes = np.empty(1, np.uint8)
        if len(data) < size or verify_entries(np.frombuffer(data, np.uint8), size, at, entries, topic_id, verdict):
            return None
        return StoredBatch(
            Seq(base_seq), count, Position(position), TimestampNs(timestamp_ns), memoryview(data), self._live, end_seq
        )

    def _items(self) -> Iterator[_BatchOrGap]:
        reached = self.from_seq
        for run in self.runs:
            for row, data in _sound(run):
                base_seq, end_seq = Seq(row[0]), Seq(row[0] + row[5])
                if reached < base_seq:
                    yield from self._holes(reached, Seq(base_seq - 1))
                yield from self._live_parts(row, data, max(reached, base_seq), end_seq)
                reached = end_seq
        yield from self._holes(reached, Seq(self.end_seq - 1))

    def _live_parts(self, row: tuple[int, ...], data: memoryview, first: Seq, end: Seq) -> Iterator[_BatchOrGap]:
        """Yield the live records of a batch between two seqs; in several parts if records were lost within it."""

        def part(live: SeqRuns, next_seq: Seq) -> StoredBatch:
            return StoredBatch(Seq(row[0]), row[5], Position(row[4]), TimestampNs(row[2]), data, live, next_seq)

        if len(self._live) == 1 and self._live[0][0] <= first and end <= self._live[0][1] + 1:
            yield part(((first, Seq(end - 1)),), end)
            return
        live: list[tuple[Seq, Seq]] = []
        last = Seq(end - 1)
        inside: list[tuple[Seq, Seq] | Gap] = [*_clipped(self._live, first, last), *self._gaps_inside(first, last)]
        for piece in sorted(inside, key=_first_of):
            if isinstance(piece, tuple):
                live.append(piece)
                continue
            if live:
                yield part(tuple(live), piece.first_seq)
            live = []
            yield piece
        if live:
            yield part(tuple(live), end)

    def _holes(self, first: Seq, last: Seq) -> list[Gap]:
        """Returns the gaps to report for a range that no sound batch covers (INV-READ-NO-HOLE)."""
        if first > last:
            return []
        lost = [Gap(low, high, GapReason.CORRUPTION) for low, high in _clipped(self._live, first, last)]
        return sorted([*self._gaps_inside(first, last), *lost], key=_first_of)

    def _gaps_inside(self, first: Seq, last: Seq) -> list[Gap]:
        clipped = (gap.clipped(first, last) for gap in self._gaps)
        return [gap for gap in clipped if gap is not None]


def stored_batches(log: TopicLog, from_seq: Seq, end_seq: Seq, size_max: int) -> list[StoredBatch]:
    """Read whole batches from the one that holds `from_seq` up to `end_seq`, including deleted records.

    For the owner of the log. Stops after `size_max` bytes, but not before the first batch. Leaves damaged batches out.
    """
    return sound_batches(log.plan(from_seq, end_seq, size_max))


def sound_batches(planned: Planned) -> list[StoredBatch]:
    """Read the whole batches of a plan, without damaged ones, and release its pins."""
    try:
        return [_whole(row, data) for run in planned.runs for row, data in _sound(run)]
    finally:
        planned.release()


def _whole(row: tuple[int, ...], data: memoryview) -> StoredBatch:
    base_seq, end_seq = Seq(row[0]), Seq(row[0] + row[5])
    live = ((base_seq, Seq(end_seq - 1)),)
    return StoredBatch(base_seq, row[5], Position(row[4]), TimestampNs(row[2]), data, live, end_seq)


def plan_read(
    topic: TopicState, log: TopicLog | None, from_seq: Seq, *, size_max: int, records_max: int | None = None
) -> ReadPlan:
    """Plan what a reader at `from_seq` gets next. The caller holds the lock of the store.

    The plan ends after the batch that reaches `size_max` bytes or `records_max` records.
    """
    plan = plan_records(topic, log, from_seq, topic.next_seq, size_max=size_max, records_max=records_max)
    if len(topic.skips) and log is not None:
        try:
            plan.skips = _skips_before(topic, log, from_seq, plan.end_seq)
        except BaseException:
            plan.release()
            raise
    return plan


def plan_pending(topic: TopicState, log: TopicLog | None, found: FoundBatches, from_seq: Seq) -> ReadPlan:
    """Plan a read of pending batches, which follow everything that topic and log know about."""
    if log is None or not len(found.entries):
        return ReadPlan(None, from_seq, max(topic.next_seq, found.next_seq), (), [])
    planned = Planned(topic.topic_id, found.end_seq, 0, None, None)
    log.add_pending(planned, found.entries)
    log.note_reader(found.end_seq)
    return ReadPlan(planned, from_seq, found.next_seq, ((from_seq, Seq(found.end_seq - 1)),), [])


def _skips_before(topic: TopicState, log: TopicLog, from_seq: Seq, end_seq: Seq) -> list[tuple[Seq, Skip]]:
    """Returns the SKIPs before batches that start in a range, each with the seq of that batch."""

    def seq_of(skip: Skip) -> Seq:
        seq = log.first_seq_from(skip.position)
        return _NEVER if seq is None else seq

    kept = list(topic.skips)
    first = bisect_left(kept, from_seq, key=seq_of)
    found: list[tuple[Seq, Skip]] = []
    for skip in kept[first:]:
        seq = seq_of(skip)
        if seq >= end_seq:
            break
        found.append((seq, skip))
    return found


def plan_records(
    topic: TopicState,
    log: TopicLog | None,
    from_seq: Seq,
    next_seq: Seq,
    *,
    size_max: int,
    records_max: int | None = None,
) -> ReadPlan:
    """Like `plan_read`, but only below `next_seq`, and without SKIPs."""
    if from_seq >= next_seq:
        return ReadPlan(None, from_seq, next_seq, (), [])
    planned = None
    # A topic without deletes skips the lookup of live ranges.
    live_runs = topic.live_runs if len(topic.deleted) else None
    if log is not None:
        start = max(from_seq, topic.floor)
        planned = log.plan(start, next_seq, size_max, records_max=records_max, live_runs=live_runs)
        log.note_reader(planned.end_seq)
    try:
        last = Seq((next_seq if planned is None else planned.end_seq) - 1)
        if live_runs is None and from_seq >= topic.floor and not topic.losses.reach_into(from_seq, last):
            return ReadPlan(planned, from_seq, next_seq, ((from_seq, last),), [])
        live = tuple(topic.live_runs(from_seq, last))
        gaps = topic.gaps(from_seq, last)
        return ReadPlan(planned, from_seq, next_seq, live, gaps)
    except BaseException:
        if planned is not None:
            planned.release()
        raise


def seq_at(topic: TopicState, log: TopicLog | None, timestamp_ns: TimestampNs) -> Seq:
    """Returns the seq of the first record that is not older than `timestamp_ns`, or the next seq if all are older."""
    found = None if log is None else log.seq_at(timestamp_ns)
    return topic.next_seq if found is None else max(found, topic.floor)


def _sound(run: Run) -> Iterator[tuple[tuple[int, ...], memoryview]]:
    """Yield each sound batch of a run: its entry and its bytes."""
    at = run.at
    buffer = READ_BUFFERS.take(run.size) if run.source is not None else np.frombuffer(run.data, np.uint8)
    memory = buffer.data.toreadonly()
    for piece in pieces(run):
        for row in read_piece(run, piece, buffer, at).tolist():
            start = row[1] - at
            yield row, memory[start : start + row[6]]


def _with_merged_gaps(items: Iterable[_BatchOrGap]) -> list[_BatchOrGap]:
    """Merge adjacent gaps that have the same reason."""
    found: list[_BatchOrGap] = []
    for item in items:
        before = found[-1] if found else None
        if isinstance(item, Gap) and isinstance(before, Gap) and _can_merge(before, item):
            found[-1] = Gap(before.first_seq, item.last_seq, item.reason)
        else:
            found.append(item)
    return found


def _can_merge(before: Gap, after: Gap) -> bool:
    return before.last_seq + 1 == after.first_seq and before.reason is after.reason


def _clipped(runs: SeqRuns, first: Seq, last: Seq) -> Iterator[tuple[Seq, Seq]]:
    """Clip ascending ranges to the range from `first` to `last`."""
    for index in range(bisect_left(runs, first, key=itemgetter(1)), len(runs)):
        low, high = runs[index]
        if low > last:
            return
        yield max(low, first), min(high, last)


def _first_of(piece: tuple[Seq, Seq] | Gap) -> Seq:
    return piece.first_seq if isinstance(piece, Gap) else piece[0]
