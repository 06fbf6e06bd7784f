"""A store that follows an order which others made: committed entries become batches of its log and of its segments.

The sequencer of a pod orders batches in the fabric (GOI and side array), and numbers them from this store's own
frontier. The follower, the replica beside it, brings them to the disk exactly as they are there. One `follow`:

    begin    1. look    which entries fit one commit: admitted batches, small or apart, and those without records
             2. room    for every topic among them, in its segment and in the log; a full disk is found here
             3. stage   small batches and controls by one kernel call a run (`kernels.ordering.applying`); large ones,
             and those
                        of class `ephemeral`, by one a run and topic, with the blocks as they lie in the BLog
    (written by whoever waits: large batches at their places, then the epoch, synced once at the most)
    finish   4. publish catalog, index and sessions learn of it: as after a replay of what was written

INV-FOLLOW-DENSE: each committed entry of the order becomes one batch of the log: its own bytes, at its position. It is
an append, a reference, a NOP or a SKIP. Entries that are CONTROL are not followed: their owner follows up to them, then
makes the change `at` them.

What the store logs by itself takes no position. Replay demands that positions in an epoch are dense, never go back, and
that a batch below what a snapshot has does nothing; it demands nothing of how many control batches stand between two
positions. So rolls, ceilings, evictions and terms are asides (`storage.control.batches`): each carries the position of
the entry that comes next and leaves it to that. The sessions of the store know what is followed, and no more, so a
snapshot never calls a batch stored that the log does not have. The windows of those who order may be ahead.

Disk full: nothing is followed, the error says so, and the same entries may be tried again; they stay in the GOI. A
crash loses what was not synced: those entries are followed again where the fabric outlived it, and else lost as any
append of their class is. Seqs are handed out below durable ceilings, which `ensure_ceilings` raises ahead of need.

One owner at a time, the same as the store's. This module must not know the fabric's layout, brokers or replicas.
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
from seawall.engine.ordering.entry_scan import ENTRIES_MAX, EntryScan, Records, Share, look_at
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

#: What stands at the position of a change that was not made.
_NOTHING_CHANGED: Final = OrderNop(TopicId(0), AckStatus.RETRY, 0, ClientId(0), ClientSeq(0), 0)


@dataclass(frozen=True, slots=True)
class Applied:
    """What one call has followed: `count` entries, so that everything below `next_position` has come as far as its
    class promises: `fsync` synced, `disk` written, `memory` and `ephemeral` in the memory of this process."""

    count: int
    next_position: Position


class ApplyCommit(Commit):
    """Entries that are staged, and what has to be written before they take effect."""

    def __init__(self, look: EntryScan) -> None:
        super().__init__()
        self.look = look
        #: Rows of all that takes effect, in order.
        self.rows: list[WalRows] = []
        self.asides: list[tuple[UnpositionedControl, Position]] = []
        #: NOPs that decide and SKIPs, by their position.
        self.marks: dict[Position, OrderNop | OrderSkip] = {}


class Applier:
    """Applies the order to one store, from where its frontier is now; the store gives no position any more."""

    def __init__(self, parts: StoreParts, maintenance: Maintenance, *, goi_entries: int, blog_size: int) -> None:
        if goi_entries < 1 or goi_entries & (goi_entries - 1) or blog_size < _HEADER:
            raise InvalidInputError(
                f"a GOI of {goi_entries} entries, BLogs of {blog_size} bytes: a power of two of them"
            )
        self._parts = parts
        self._maintenance = maintenance
        self._guard = parts.guard
        self._clock = parts.machine.clock
        #: Bytes that one commit may take in the log.
        self.commit_size_max = parts.settings.commit_size_max
        self._mask = goi_entries - 1
        self._blog_size = blog_size
        #: The newest term of any entry that may come.
        self.term = parts.term
        self._reservations = ApplierReservations(parts.reservations, parts.writer, parts.maker)
        self._rows = np.zeros(ENTRIES_MAX, WAL_ROW)
        self._progress = np.zeros(kernels.PROGRESS_SIZE, np.int64)
        self._progress[kernels.PROGRESS_TIME] = parts.writer.frontier.last_timestamp_ns
        #: `next_position` as an array of one number, and the time of the last entry, which kernels that commit change.
        self.reached = np.array([parts.writer.frontier.next_position], np.int64)
        self._reached = self.reached.data
        parts.writer.follows = True

    @property
    def next_position(self) -> Position:
        """The entry that comes next. The order of a pod may begin anywhere behind what the log has."""
        return Position(self._reached[0])

    @next_position.setter
    def next_position(self, position: Position) -> None:
        self._reached[0] = position

    @property
    def progress(self) -> npt.NDArray[np.int64]:
        """What `kernels.ordering.applying` keeps from one run to the next: the time of the last entry among it."""
        return self._progress

    # --- entries -------------------------------------------------------------------------------------------------

    def follow(self, entries: Records, sides: Records, first_position: Position, count: int, blogs: Bytes) -> Applied:
        """Bring committed entries to the log: as many as one commit holds, at the most `count`.

        `entries` and `sides` are the whole rings, `blogs` is all BLogs one after the other. Raises `DiskFullError`
        where there is no room: nothing is followed then, and it may be tried again.
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
        """Stage entries; None if there are none. The commit has to be carried out, then finished."""
        self._check_run(first_position, count, entries, sides)
        if not count:
            return None
        self._parts.controls.begin_change()
        self._reservations.drop_old()
        with self._guard.preparing():
            now = self._clock.wall_ns()
            order = (entries, sides, self._mask, first_position, count)
            look = look_at(self._parts.catalog, *order, self.commit_size_max)
            needs = [
                (share.topic, Need(share.records, self._plain_size(look, share, blogs), share.size))
                for share in look.shares
            ]
            commit = ApplyCommit(look)
            reservations = self._reservations.make(needs, look.logged_from(0), now, commit.pins)
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
        """The commit is written: its entries take effect. Evictions and a checkpoint may be due behind it."""
        parts, next_position = self._parts, Position(commit.look.first + commit.look.count)
        commit.pins.unpin_all()
        with self._guard.changing():
            if commit.epoch is not None:
                parts.writer.finish_flush(commit.epoch, durable=commit.durable)
            for aside, position in commit.asides:
                self._apply_aside(aside, position)
            self._publish(commit, next_position)
        self.next_position = next_position
        return Applied(commit.look.count, next_position)

    def _apply_aside(self, aside: UnpositionedControl, position: Position) -> None:
        """What was logged ahead of batches takes effect."""
        self._parts.catalog.apply(aside, position)
        for part in (each for each in aside.parts if isinstance(each, FloorRaise)):
            self._parts.cleaner.evicted(part)

    def _check_run(self, first_position: Position, count: int, entries: Records, sides: Records) -> None:
        if not 0 <= count <= self._mask + 1 or not entries.size == sides.size == self._mask + 1:
            raise InvalidInputError(
                f"{count} entries of rings of {entries.size} and {sides.size}, not {self._mask + 1}"
            )
        due = self.next_position
        check(first_position == due, "INV-FOLLOW-DENSE", f"entries from {first_position} on, the next one is {due}")

    # --- rooms ---------------------------------------------------------------------------------------------------

    def reserve(self, needs: Sequence[tuple[TopicState, Need]], logged: int) -> None:
        """Make sure of room for batches that are to be ordered, and for `logged` bytes of them in the log.

        Raises `DiskFullError` where there is none. Follow what was ordered, then call `let_go`, before anything else.
        """
        self._parts.controls.begin_change()
        self._reservations.drop_old()
        with self._guard.preparing():
            self._reservations.prepare(needs, logged, self._clock.wall_ns())

    @property
    def is_even(self) -> bool:
        """Whether nothing is staged that is not written, and the log has come as far as the order that is followed."""
        writer = self._parts.writer
        return not writer.staged and self.next_position == writer.next_position

    def reservation_for(self, topic_id: TopicId, size: int, count: int, logged: int, now: int) -> Reservation | None:
        """The reservation for small batches that are the next entries, and for `logged` bytes in the log; made if there
        is none. None where something has to be logged before such batches, and where there is no space.

        Only while it `is_even`.
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

    def let_go(self) -> None:
        """Give up room and descriptors that were reserved for batches which were not ordered after all."""
        self._reservations.let_go()

    def _plain_size(self, look: EntryScan, share: Share, blogs: Bytes) -> int:
        """How long the plain blocks of a topic are, which matters where it has caps; elsewhere about that."""
        if not self._parts.cleaner.is_limited(share.topic):
            return share.size
        chosen = look.entries[look.is_admitted & (look.entries["topic_id"] == share.topic.topic_id)]
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
        """Stage everything, in order, and give every batch its place."""
        writer, look = self._parts.writer, commit.look
        if look.first != writer.next_position:
            writer.flush(durable=False)
        self._stage_next(reservations, commit, look.first, now)
        by_topic_id = {reservation.topic.topic_id: reservation for reservation in reservations}
        taken = 0
        while taken < look.count:
            stage = self._stage_apart if look.is_apart[taken] else self._stage_run
            taken += stage(commit, by_topic_id, taken, entries, sides, blogs)
        has_controls = not look.is_admitted.all()
        # Readers and publishers are told of marks: they must not come undone.
        commit.durable |= any(reservation.is_durable for reservation in reservations) or bool(commit.marks)
        if commit.durable or has_controls or any(reservation.is_written for reservation in reservations):
            commit.epoch = writer.begin_flush()
        return commit

    def _stage_next(self, reservations: list[Reservation], commit: ApplyCommit, first: Position, now: int) -> None:
        """What has to be in the log before the first batches of rooms."""
        for reservation in reservations:
            if reservation.ahead:
                aside = UnpositionedControl(tuple(reservation.ahead))
                commit.asides.append((aside, self._parts.writer.stage_control(aside, now, at=first)))
                # What readers were told to be gone must not come back with a crash, in no class.
                commit.durable |= reservation.is_kept and any(
                    isinstance(control, FloorRaise) for control in reservation.ahead
                )
                reservation.ahead = []
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
        """Entries up to the next that goes apart, by one call; how many."""
        look, writer, progress = commit.look, self._parts.writer, self._progress
        first = Position(look.first + taken)
        (lane, start), address = writer.space_for_run(look.logged_from(taken))
        code = kernels.apply_run(
            entries.view(np.uint8),
            sides.view(np.uint8),
            self._mask,
            first,
            look.count - taken,
            look.is_apart[taken:],
            blogs,
            self._blog_size,
            lane,
            start,
            address,
            self.term,
            self._rows,
            progress,
        )
        if code == kernels.FOLLOW_BAD:
            raise _bad_entry(Position(first + int(progress[kernels.PROGRESS_ENTRIES])))
        count, size, filled, time_ns = progress.tolist()
        if count:
            writer.stage_run(size, count, first, TimestampNs(time_ns))
            # Most commits are one run, whose rows are read before another begins.
            rows = self._rows[:filled].copy() if look.is_apart.any() else self._rows[:filled]
            for index in np.flatnonzero(rows["command"]).tolist():
                at, length, position, command = rows[["at", "size", "position", "command"]][index].tolist()
                block = lane[start + at - address :][_HEADER:length]
                mark = parse_control(command, block.tobytes())
                assert isinstance(mark, (OrderNop, OrderSkip))
                commit.marks[position] = mark
            commit.rows.append(rows)
            _place(rows[rows["command"] == 0] if commit.marks else rows, reservations)
        return count

    def _stage_apart(
        self,
        commit: ApplyCommit,
        reservations: dict[TopicId, Reservation],
        taken: int,
        entries: Records,
        sides: Records,
        blogs: Bytes,
    ) -> int:
        """Batches of one topic that go to their places at once, with the blocks as they lie in the BLog; how many."""
        look, writer, progress = commit.look, self._parts.writer, self._progress
        first, count = Position(look.first + taken), look.apart_from(taken)
        sizes = look.entries["size"][taken : taken + count].astype(np.int64)
        reservation = reservations[TopicId(int(look.entries["topic_id"][taken]))]
        segment = reservation.filling.segment
        at = segment.place(int(sizes.sum()))
        headers, sources = np.empty(count * _HEADER, np.uint8), np.empty(count, np.int64)
        (lane, start), _ = writer.space_for_run(count * kernels.REFERENCE_SIZE)
        code = kernels.apply_apart(
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
        if code == kernels.FOLLOW_BAD:
            raise _bad_entry(Position(first + int(progress[kernels.PROGRESS_ENTRIES])))
        buffers: list[ReadableBuffer] = []
        heads, blocks = headers.data, blogs.data
        for head, (source, size) in enumerate(zip(sources.tolist(), sizes.tolist(), strict=True)):
            buffers += (heads[head * _HEADER : (head + 1) * _HEADER], blocks[source + _HEADER : source + size])
        if reservation.is_kept:
            commit.add_segment_write(segment.shared, at, buffers, is_uncached=reservation.is_uncached)
        else:
            # Memory needs nobody to write it; readers see it when it is published.
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
        """Let everything take effect, in order; sessions learn of it here."""
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

    # --- beside the entries --------------------------------------------------------------------------------------

    @contextmanager
    def at(self, position: Position) -> Iterator[None]:
        """A stretch in which the first change of the store has a position: that of a CONTROL entry.

        Everything before it is followed, and the frontier has come to it. If nothing is changed there, a NOP says so.
        """
        self._parts.controls.begin_change()
        writer = self._parts.writer
        is_due = position == self.next_position == writer.frontier.next_position
        check(is_due, "INV-FOLLOW-DENSE", f"a CONTROL at {position}, the next entry is {self.next_position}")
        if position != writer.next_position:
            writer.flush(durable=False)
        writer.is_granted = True
        try:
            yield
            if writer.is_granted:
                self._parts.controls.commit(_NOTHING_CHANGED)
        finally:
            writer.is_granted = False
            self.next_position = max(position, writer.next_position)

    def begin_term(self, term: Term) -> None:
        """Entries of a newer term may come; the log knows of it first, so that no later start takes it again."""
        self._parts.controls.commit(TermStart(term, self.term, self.next_position))
        self.term = term

    def ensure_ceilings(self) -> int:
        """Raise every ceiling that is near, durably; how many. Where the frontier needs one, it was too late."""
        needs = self._parts.writer.frontier.needs_ceiling()
        if needs:
            self._parts.controls.commit_many([Ceiling(need.topic_id, need.wanted, need.ceiling) for need in needs])
        return len(needs)


def _place(rows: WalRows, reservations: dict[TopicId, Reservation]) -> None:
    """Give batches that wait in the log their places."""
    for run in by_topic(rows) if len(rows) else ():
        filling = reservations[TopicId(int(run["topic_id"][0]))].filling
        index = filling.segment.index
        before = len(index)
        filling.segment.place(int(run["size"].sum(dtype=np.int64)))
        index.extend(entries_of(run, index.end))
        filling.waiting.extend(before, run["at"])


def _bad_entry(position: Position) -> FatalError:
    return FatalError(
        f"the entry at position {position} is not whole, or its BLog does not hold its batch (INV-FOLLOW-DENSE): "
        "what the fabric holds cannot be trusted; stop, and recover from the log"
    )
