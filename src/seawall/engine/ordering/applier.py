"""Applies the order of a sequencer to a store: committed entries become batches of its log and its segments.

The sequencer of a pod orders batches in the fabric (GOI and side array), and numbers them from the frontier of this
store. The applier is the replica beside it: it writes the batches to disk exactly as the fabric has them. One `follow`:

    begin    1. scan     which entries fit one commit: admitted batches, small or direct, and entries without records
             2. reserve  space for every topic among them, in its segment and in the log; a full disk is detected here
             3. stage    one kernel call for each run of small batches and controls (`kernels.ordering.applying`), and
                         one for each run of direct batches of a topic, with the blocks as they are in the BLog. Direct
                         batches are written straight to their segment: large ones, and those of class `ephemeral`
    (the leader writes large batches to their segments, then the epoch, with one sync at most)
    finish   4. publish  catalog, index and sessions are updated, with the same result as a replay of what was written

INV-FOLLOW-DENSE: each committed entry of the order becomes one batch of the log: its own bytes, at its position. It is
an append, a reference, a NOP or a SKIP. CONTROL entries are not applied here: their owner applies everything before
them, then makes the change `at` their position.

What the store logs by itself takes no position. Replay requires that the positions in an epoch are dense and never go
back, and that a batch below the position of a snapshot has no effect; it does not restrict how many control batches are
between two positions. So rolls, ceilings, evictions and terms are unpositioned control batches
(`storage.control.batches`): each carries the position of the next entry, and does not use it up. The sessions of the
store know exactly what is applied, so a snapshot never reports a batch as stored that the log does not have. The
windows of the sequencer may know more.

If the disk is full, nothing is applied, the error reports it, and the same entries can be tried again: they stay in the
GOI. A crash loses what was not synced: those entries are applied again if the fabric survived, and otherwise lost like
any append of their class. Seqs are assigned below durable ceilings, which `ensure_ceilings` raises before they are
reached.

One owner at a time, the owner of the store. This module must not know the layout of the fabric, brokers or replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.checks import check
from seawall.core.types import ClientId, ClientSeq, Position, Term, TimestampNs, TopicId
from seawall.engine.commit.appends import Commit
from seawall.engine.commit.reservations import Reservation
from seawall.engine.commit.reserver import Need
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.ordering.applier_reservations import ApplierReservations
from seawall.engine.ordering.entry_scan import ENTRIES_MAX, EntryScan, Records, TopicTotals, scan_entries
from seawall.engine.store.parts import StoreParts
from seawall.engine.store.replay import remember_keys
from seawall.errors import CallerError, FatalError, InvalidInputError, RetryableError
from seawall.io.interfaces import ReadableBuffer
from seawall.kernels.codec.batch_header import RAW_LENGTH_AT
from seawall.kernels.log.epochs import WAL_ROW, WalRows
from seawall.kernels.ordering import applying as kernels
from seawall.kernels.runtime.memory import Bytes
from seawall.storage.control.batches import UnpositionedControl, parse_control
from seawall.storage.control.codec import Ceiling
from seawall.storage.control.documents import FloorRaise, TermStart
from seawall.storage.control.order import OrderNop, OrderSkip
from seawall.storage.segments.batch_index import entries_of
from seawall.topics.catalog import by_topic
from seawall.topics.state import TopicState
from seawall.wire.format.codes import AckStatus

_HEADER: Final = limits.BATCH_HEADER_SIZE

#: The control at the position of a change that was not made.
_NOTHING_CHANGED: Final = OrderNop(TopicId(0), AckStatus.RETRY, 0, ClientId(0), ClientSeq(0), 0)


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of one call: it applied `count` entries, and all entries below `next_position` are as durable as their
    class promises: `fsync` synced, `disk` written, `memory` and `ephemeral` in the memory of this process."""

    count: int
    next_position: Position


class ApplyCommit(Commit):
    """Staged entries, and what has to be written before they take effect."""

    def __init__(self, scan: EntryScan) -> None:
        super().__init__()
        self.scan = scan
        #: The rows of its batches, in position order.
        self.rows: list[WalRows] = []
        #: Unpositioned controls, with the positions that they carry.
        self.unpositioned: list[tuple[UnpositionedControl, Position]] = []
        #: SKIPs, and NOPs that decide a client seq, by position.
        self.marks: dict[Position, OrderNop | OrderSkip] = {}


class Applier:
    """Applies the order to one store, from its current frontier on; the store itself assigns no positions any more."""

    def __init__(self, parts: StoreParts, maintenance: Maintenance, *, goi_entries: int, blog_size: int) -> None:
        if goi_entries < 1 or goi_entries & (goi_entries - 1) or blog_size < _HEADER:
            raise InvalidInputError(
                f"a GOI of {goi_entries} entries, BLogs of {blog_size} bytes: a power of two of them"
            )
        self._parts = parts
        self._maintenance = maintenance
        self._guard = parts.guard
        self._clock = parts.machine.clock
        #: The most bytes that one commit takes in the log.
        self.commit_size_max = parts.settings.commit_size_max
        self._mask = goi_entries - 1
        self._blog_size = blog_size
        #: The newest term that entries may have.
        self.term = parts.term
        self._reservations = ApplierReservations(parts.reservations, parts.writer, parts.reserver)
        self._rows = np.zeros(ENTRIES_MAX, WAL_ROW)
        self._progress = np.zeros(kernels.PROGRESS_SIZE, np.int64)
        self._progress[kernels.PROGRESS_TIME] = parts.writer.frontier.last_timestamp_ns
        #: `next_position` as an array of one number, because the kernels of commit cycles change it.
        self.reached = np.array([parts.writer.frontier.next_position], np.int64)
        self._reached = self.reached.data
        parts.writer.follows = True

    @property
    def next_position(self) -> Position:
        """The position of the next entry. The order of a pod may begin anywhere after the end of the log."""
        return Position(self._reached[0])

    @next_position.setter
    def next_position(self, position: Position) -> None:
        self._reached[0] = position

    @property
    def progress(self) -> npt.NDArray[np.int64]:
        """State that `kernels.ordering.applying` keeps between runs, such as the time of the last entry."""
        return self._progress

    # --- entries -------------------------------------------------------------------------------------------------

    def apply(self, entries: Records, sides: Records, first_position: Position, count: int, blogs: Bytes) -> Applied:
        """Apply committed entries: as many as one commit holds, at most `count`.

        `entries` and `sides` are the whole rings, `blogs` is all BLogs, concatenated. Raises `DiskFullError` if there
        is no space; then nothing is applied, and the call can be repeated.
        """
        commit = self.begin(entries, sides, first_position, count, blogs)
        if commit is None:
            return Applied(0, self.next_position)
        self.write(commit)
        done = self.finish(commit)
        self._maintenance.tidy_up(commit.limited)
        return done

    def begin(
        self, entries: Records, sides: Records, first_position: Position, count: int, blogs: Bytes
    ) -> ApplyCommit | None:
        """Stage entries; None if there are none. Write the commit next, then finish it."""
        self._check_run(first_position, count, entries, sides)
        if not count:
            return None
        self._parts.controls.begin_change()
        self._reservations.drop_invalid()
        with self._guard.preparing():
            now = self._clock.wall_ns()
            order = (entries, sides, self._mask, first_position, count)
            scan = scan_entries(self._parts.catalog, *order, self.commit_size_max)
            needs = [
                (totals.topic, Need(totals.records, self._plain_size(scan, totals, blogs), totals.size))
                for totals in scan.totals
            ]
            commit = ApplyCommit(scan)
            reservations = self._reservations.make(needs, scan.logged_from(0), now, commit.pins)
        with self._guard.changing():
            return self._stage(commit, reservations, entries, sides, blogs, now)

    def write(self, commit: ApplyCommit) -> None:
        """Write a commit, on this thread."""
        try:
            commit.execute()
        except BaseException as error:
            self._guard.refuse(error)
            self._parts.writer.fail_flush(error)
            raise

    def finish(self, commit: ApplyCommit) -> Applied:
        """Let the entries of a written commit take effect. Evictions and a checkpoint may be due afterwards."""
        parts, next_position = self._parts, Position(commit.scan.first + commit.scan.count)
        commit.pins.unpin_all()
        with self._guard.changing():
            if commit.epoch is not None:
                parts.writer.finish_flush(commit.epoch, durable=commit.durable)
            for control, position in commit.unpositioned:
                self._apply_unpositioned(control, position)
            self._publish(commit, next_position)
        self.next_position = next_position
        return Applied(commit.scan.count, next_position)

    def _apply_unpositioned(self, control: UnpositionedControl, position: Position) -> None:
        """Let a control that was logged before batches take effect."""
        self._parts.catalog.apply(control, position)
        for part in (each for each in control.parts if isinstance(each, FloorRaise)):
            self._parts.cleaner.evicted(part)

    def _check_run(self, first_position: Position, count: int, entries: Records, sides: Records) -> None:
        if not 0 <= count <= self._mask + 1 or not entries.size == sides.size == self._mask + 1:
            raise InvalidInputError(
                f"{count} entries of rings of {entries.size} and {sides.size}, not {self._mask + 1}"
            )
        due = self.next_position
        check(first_position == due, "INV-FOLLOW-DENSE", f"entries from {first_position} on, the next one is {due}")

    # --- reservations --------------------------------------------------------------------------------------------

    def reserve(self, needs: Sequence[tuple[TopicState, Need]], logged: int) -> None:
        """Reserve space for batches that will be ordered next, and for `logged` bytes in the log.

        Raises `DiskFullError` if there is none. Apply what was ordered, then call `release`, before anything else.
        """
        self._parts.controls.begin_change()
        self._reservations.drop_invalid()
        with self._guard.preparing():
            self._reservations.prepare(needs, logged, self._clock.wall_ns())

    @property
    def is_caught_up(self) -> bool:
        """True if nothing is staged, and the log has every entry that was applied."""
        writer = self._parts.writer
        return not writer.staged and self.next_position == writer.next_position

    def reservation_for(self, topic_id: TopicId, size: int, count: int, logged: int, now: int) -> Reservation | None:
        """The reservation of a topic for small batches as the next entries, and for `logged` bytes in the log.

        Makes one if needed. None if a control has to be logged before the batches, or if there is no space. Call it
        only while it `is_caught_up`.
        """
        found = self._reservations.reservation_for(topic_id, size, count, logged, now)
        if found is not None:
            return found
        topic = self._parts.catalog.find(topic_id)
        if topic is None or self._parts.cleaner.is_limited(topic):
            return None
        try:
            self.reserve([(topic, Need(count, size, size))], logged)
        except (CallerError, RetryableError):
            return None
        return self._reservations.reservation_for(topic_id, size, count, logged, now)

    def release(self) -> None:
        """Release what was reserved for batches that were not ordered after all."""
        self._reservations.release()

    def _plain_size(self, scan: EntryScan, totals: TopicTotals, blogs: Bytes) -> int:
        """Uncompressed bytes of the blocks of a topic: exact if the topic has caps, else approximate."""
        if not self._parts.cleaner.is_limited(totals.topic):
            return totals.size
        chosen = scan.entries[scan.is_admitted & (scan.entries["topic_id"] == totals.topic.topic_id)]
        at = chosen["broker"].astype(np.int64) * self._blog_size
        at += (chosen["blog_offset"] % np.uint64(self._blog_size)).astype(np.int64) + RAW_LENGTH_AT
        return int(blogs[at[:, None] + np.arange(4)].view("<u4").sum(dtype=np.int64))

    # --- staging -------------------------------------------------------------------------------------------------

    def _stage(
        self,
        commit: ApplyCommit,
        reservations: list[Reservation],
        entries: Records,
        sides: Records,
        blogs: Bytes,
        now: int,
    ) -> ApplyCommit:
        """Stage all entries, in order, and allocate the segment offset of every batch."""
        writer, scan = self._parts.writer, commit.scan
        if scan.first != writer.next_position:
            writer.flush(durable=False)
        self._stage_preceding(reservations, commit, scan.first, now)
        by_topic_id = {reservation.topic.topic_id: reservation for reservation in reservations}
        taken = 0
        while taken < scan.count:
            stage = self._stage_direct if scan.is_direct[taken] else self._stage_run
            taken += stage(commit, by_topic_id, taken, entries, sides, blogs)
        has_controls = not scan.is_admitted.all()
        # Readers and publishers may see marks: no crash may undo them.
        commit.durable |= any(reservation.is_durable for reservation in reservations) or bool(commit.marks)
        if commit.durable or has_controls or any(reservation.is_written for reservation in reservations):
            commit.epoch = writer.begin_flush()
        return commit

    def _stage_preceding(self, reservations: list[Reservation], commit: ApplyCommit, first: Position, now: int) -> None:
        """Stage the controls that have to be in the log before the first batches of the reservations."""
        for reservation in reservations:
            if reservation.controls:
                control = UnpositionedControl(tuple(reservation.controls))
                commit.unpositioned.append((control, self._parts.writer.stage_control(control, now, at=first)))
                # Readers may see an eviction: no crash may undo it, whatever the durability class.
                commit.durable |= reservation.is_kept and any(
                    isinstance(part, FloorRaise) for part in reservation.controls
                )
                reservation.controls = []
                reservation.allows_cycles = reservation.is_written and not self._parts.writer.is_observed
            if reservation.is_limited:
                commit.limited.append(reservation.topic)

    def _stage_run(
        self,
        commit: ApplyCommit,
        reservations: dict[TopicId, Reservation],
        taken: int,
        entries: Records,
        sides: Records,
        blogs: Bytes,
    ) -> int:
        """Stage the entries up to the next direct one, by one kernel call; how many."""
        scan, writer, progress = commit.scan, self._parts.writer, self._progress
        first = Position(scan.first + taken)
        (lane, start), address = writer.space_for_run(scan.logged_from(taken))
        code = kernels.apply_run(
            entries.view(np.uint8),
            sides.view(np.uint8),
            self._mask,
            first,
            scan.count - taken,
            scan.is_direct[taken:],
            blogs,
            self._blog_size,
            lane,
            start,
            address,
            self.term,
            self._rows,
            progress,
        )
        if code == kernels.APPLY_BAD:
            raise _bad_entry(Position(first + int(progress[kernels.PROGRESS_ENTRIES])))
        count, size, filled, time_ns = progress.tolist()
        if count:
            writer.stage_run(size, count, first, TimestampNs(time_ns))
            # Most commits are one run, whose rows are used before the array is: no copy then.
            rows = self._rows[:filled].copy() if scan.is_direct.any() else self._rows[:filled]
            for index in np.flatnonzero(rows["command"]).tolist():
                at, length, position, command = rows[["at", "size", "position", "command"]][index].tolist()
                block = lane[start + at - address :][_HEADER:length]
                mark = parse_control(command, block.tobytes())
                assert isinstance(mark, (OrderNop, OrderSkip))
                commit.marks[position] = mark
            commit.rows.append(rows)
            _allocate(rows[rows["command"] == 0] if commit.marks else rows, reservations)
        return count

    def _stage_direct(
        self,
        commit: ApplyCommit,
        reservations: dict[TopicId, Reservation],
        taken: int,
        entries: Records,
        sides: Records,
        blogs: Bytes,
    ) -> int:
        """Stage batches of one topic that are written directly to its segment, with blocks from the BLog; how many."""
        scan, writer, progress = commit.scan, self._parts.writer, self._progress
        first, count = Position(scan.first + taken), scan.direct_from(taken)
        sizes = scan.entries["size"][taken : taken + count].astype(np.int64)
        reservation = reservations[TopicId(int(scan.entries["topic_id"][taken]))]
        segment = reservation.segment.segment
        at = segment.allocate(int(sizes.sum()))
        headers, sources = np.empty(count * _HEADER, np.uint8), np.empty(count, np.int64)
        (lane, start), _ = writer.space_for_run(count * kernels.REFERENCE_SIZE)
        code = kernels.apply_direct(
            entries.view(np.uint8),
            sides.view(np.uint8),
            self._mask,
            first,
            count,
            blogs,
            self._blog_size,
            headers,
            sources,
            lane,
            start,
            *((segment.first_seq, at) if reservation.is_kept else (0, 0)),
            self.term,
            self._parts.term,
            self._rows,
            progress,
        )
        if code == kernels.APPLY_BAD:
            raise _bad_entry(Position(first + int(progress[kernels.PROGRESS_ENTRIES])))
        buffers: list[ReadableBuffer] = []
        heads, blocks = headers.data, blogs.data
        for head, (source, size) in enumerate(zip(sources.tolist(), sizes.tolist(), strict=True)):
            buffers += (heads[head * _HEADER : (head + 1) * _HEADER], blocks[source + _HEADER : source + size])
        if reservation.is_kept:
            commit.add_segment_write(segment.shared, at, buffers, is_uncached=reservation.is_uncached)
        else:
            # Written to memory right here; readers see it when the commit finishes.
            segment.write_at(at, buffers)
        writer.stage_run(
            int(progress[kernels.PROGRESS_BYTES]), count, first, TimestampNs(int(progress[kernels.PROGRESS_TIME]))
        )
        rows = self._rows[:count].copy()
        segment.index.extend(entries_of(rows, at))
        commit.rows.append(rows)
        return count

    # --- publishing ----------------------------------------------------------------------------------------------

    def _publish(self, commit: ApplyCommit, next_position: Position) -> None:
        """Let the batches and marks of a commit take effect, in order, on sessions and catalog."""
        catalog, sessions = self._parts.catalog, self._parts.sessions
        rows = np.concatenate(commit.rows) if len(commit.rows) > 1 else commit.rows[0]
        start = 0
        for index in [*np.flatnonzero(rows["command"]).tolist(), rows.size]:
            sessions.decide_run(rows[start:index])
            start = index + 1
            if index < rows.size:
                position = Position(int(rows["position"][index]))
                mark = commit.marks[position]
                if isinstance(mark, OrderSkip):
                    sessions.skip(mark)
                    catalog.apply_skip(mark, position)
                else:
                    sessions.refuse(mark, position)
        appended = rows[rows["command"] == 0] if commit.marks else rows
        for topic, run in catalog.apply_ordered_run(appended, next_position):
            remember_keys(topic, run)

    # --- CONTROL entries, terms and ceilings ---------------------------------------------------------------------

    @contextmanager
    def at(self, position: Position) -> Iterator[None]:
        """A context in which the first change of the store takes the position of a CONTROL entry.

        Everything before it must be applied, and the frontier must have reached it. If nothing is changed, a NOP takes
        the position.
        """
        self._parts.controls.begin_change()
        writer = self._parts.writer
        is_due = position == self.next_position == writer.frontier.next_position
        check(is_due, "INV-FOLLOW-DENSE", f"a CONTROL at {position}, the next entry is {self.next_position}")
        if position != writer.next_position:
            writer.flush(durable=False)
        writer.has_position_grant = True
        try:
            yield
            if writer.has_position_grant:
                self._parts.controls.commit(_NOTHING_CHANGED)
        finally:
            writer.has_position_grant = False
            self.next_position = max(position, writer.next_position)

    def begin_term(self, term: Term) -> None:
        """Allow entries of a newer term. The term is logged first, so that no later start uses it again."""
        self._parts.controls.commit(TermStart(term, self.term, self.next_position))
        self.term = term

    def ensure_ceilings(self) -> int:
        """Durably raise every ceiling that is nearly reached; how many. Call it before seqs run out."""
        needs = self._parts.writer.frontier.needs_ceiling()
        if needs:
            self._parts.controls.commit_many([Ceiling(need.topic_id, need.wanted, need.ceiling) for need in needs])
        return len(needs)


def _allocate(rows: WalRows, reservations: dict[TopicId, Reservation]) -> None:
    """Allocate segment offsets for batches that are only in the log so far (unflushed)."""
    for run in by_topic(rows) if len(rows) else ():
        active = reservations[TopicId(int(run["topic_id"][0]))].segment
        index = active.segment.index
        before = len(index)
        active.segment.allocate(int(run["size"].sum(dtype=np.int64)))
        index.extend(entries_of(run, index.end))
        active.unflushed.extend(before, run["at"])


def _bad_entry(position: Position) -> FatalError:
    return FatalError(
        f"the entry at position {position} is incomplete, or its BLog does not hold its batch (INV-FOLLOW-DENSE): "
        "the fabric cannot be trusted; stop, and recover from the log"
    )
