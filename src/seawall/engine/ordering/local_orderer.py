"""The orderer of a store without a sequencer: it numbers the appends of its own process.

Small batches that need nothing but numbers are committed by a cycle of kernels (`commit_cycle`). Large, keyed and
in-memory batches, and batches without a reservation, take the general path:

    begin    1. reserve   space in segments, lane and log: a full disk is detected before any batch is numbered
             2. number    the frontier stamps position, seq, offset and time, in the order of the appends
             3. allocate  each batch gets the next offset of its topic's active segment
             4. stage     small batches go to the lane as they are, large ones as a reference
    (the leader writes large batches to their segments, then the epoch)
    finish   5. publish   catalog and index are updated: readers see the batches, and the callers get their answers

A change that is not an append is made immediately, because every ordered batch is already stored.

Once a batch has its numbers, only a failing disk can keep it out of the log. The log refers to a large batch only after
the batch is durable in its segment. Commits finish in the order in which they began; one is in flight at a time, and at
most one more has begun.

A crash loses what was not written. This module must not know the waiters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from seawall import limits
from seawall.core.types import ClientId, Seq, SessionEpoch, TimestampNs, TopicId
from seawall.engine.commit.admission import Admission, need_of, record_outcome, refuse
from seawall.engine.commit.appends import LARGE_BLOCK_SIZE, NO_SESSION, Append, Commit, logged_size
from seawall.engine.commit.commit_cycle import CommitCycle
from seawall.engine.commit.reservations import Reservation
from seawall.engine.commit.reserver import CONTROL_SIZE_MAX
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.ordering.orderer import Opened, SessionSpec
from seawall.engine.store.control_log import HEADROOM
from seawall.engine.store.parts import StoreParts
from seawall.engine.store.topic_log import StoredBatch
from seawall.errors import UnsupportedError, WrongStateError
from seawall.io.interfaces import ReadableBuffer
from seawall.io.process.shared_lock import MemoryLock
from seawall.sequencer.client_window import WindowCode
from seawall.sequencer.frontier import Numbered
from seawall.storage.control.documents import FloorRaise
from seawall.wire.format.codes import BatchFlags
from seawall.wire.format.frames import checksum

R = TypeVar("R")

_BATCH_HEADER: Final = limits.BATCH_HEADER_SIZE


class LocalOrderer:
    """Numbers and stages the appends of one store."""

    def __init__(self, parts: StoreParts, maintenance: Maintenance) -> None:
        self._catalog = parts.catalog
        self._writer = parts.writer
        self._cleaner = parts.cleaner
        self._window = parts.sessions.window
        self._clock = parts.machine.clock
        self._reserver = parts.reserver
        self._ceiling_step = parts.settings.ceiling_step
        self._reservations = parts.reservations.by_topic
        self._pending = parts.pending
        self._admission = Admission(parts)
        self._maintenance = maintenance
        self._cycle = CommitCycle(parts, self._reservation_for)

    def begin(self, appends: Sequence[Append]) -> Commit:
        """Number and stage the appends that can be stored; the others get their errors."""
        if self._writer.follows:
            refuse(appends, WrongStateError("this store applies the order of a sequencer: publish through its brokers"))
            return Commit()
        now = self._clock.wall_ns()
        appends = self._admission.without_ended_sessions(appends)
        if not self._writer.staged:
            staged = self._cycle.begin_appends(appends, now)
            if staged is not None:
                return staged
        self._cycle.settle_grants()
        appends = self._without_known_batches(self._admission.without_known_keys(appends, now), now)
        if not self._take_reserved(appends, now):
            self._pending.apply()
            self._make_reservations(appends, TimestampNs(now))
        self._pending.apply()
        commit = Commit()
        is_written = False
        self._pin_segments(appends, commit)
        for append in appends:
            if append.error is None:
                reservation = self._reservations[append.topic_id]
                if reservation.controls or reservation.is_limited:
                    self._stage_preceding(reservation, commit, now)
                self._number(append, reservation, commit, now)
                commit.durable |= reservation.is_durable
                is_written |= reservation.is_written
        if is_written or commit.durable:
            commit.epoch = self._writer.begin_flush()
        return commit

    def _pin_segments(self, appends: Sequence[Append], commit: Commit) -> None:
        """Open and pin the segment files of large batches; refuses a batch if no descriptor is free."""
        for append in appends:
            if append.error is None and len(append.block) >= LARGE_BLOCK_SIZE:
                reservation = self._reservations[append.topic_id]
                if reservation.is_kept:
                    self._admission.attempt((append,), partial(commit.pins.pin, reservation.segment.segment.shared))

    def begin_next(self, appends: Sequence[Append]) -> Commit | None:
        """`begin` before the commit in flight is finished; None if that is impossible.

        Both commits must be cycles. Appends of a session have to wait: whether they are duplicates depends on the
        commit in flight.
        """
        if self._maintenance.is_tidy_up_due or not self._pending.has_commit or self._writer.staged:
            return None
        if any(append.client_id != NO_SESSION for append in appends):
            return None
        return self._cycle.begin_appends(appends, self._clock.wall_ns())

    def commit_one(
        self, topic_id: TopicId, block: ReadableBuffer, record_count: int, state: MemoryLock
    ) -> Numbered | None:
        """Commit one plain block on this thread; None if it needs the general path."""
        if self._writer.staged or self._writer.follows:
            return None
        append = Append(topic_id, block, record_count)
        with state:
            commit = self._cycle.begin_appends((append,), self._clock.wall_ns())
        if commit is None:
            return None
        commit.execute()
        with state:
            self._cycle.finish(commit)
        return append.numbered

    def finish(self, commit: Commit) -> None:
        """Let a written commit take effect: readers see its batches."""
        if commit.is_cycle:
            self._cycle.finish(commit)
            return
        commit.pins.unpin_all()
        if commit.epoch is not None:
            self._writer.finish_flush(commit.epoch, durable=commit.durable)
        for effect in commit.effects:
            if isinstance(effect, Append):
                assert effect.numbered is not None
                self._catalog.apply_append(effect.numbered)
                if effect.flags & BatchFlags.KEYED:
                    self._admission.remember_key(effect, effect.numbered)
            else:
                self._catalog.apply(*effect)
                if isinstance(effect[0], FloorRaise):
                    self._cleaner.evicted(effect[0])

    # --- changes that are not appends ----------------------------------------------------------------------------

    def change(self, apply_change: Callable[[], R], _topic_id: TopicId | None = None) -> R:
        """Make a change immediately."""
        return apply_change()

    def open_session(self, wanted: SessionSpec, log_session: Callable[[], Opened]) -> Opened:
        """Open a session immediately. No batch is ever held here, so there are no gaps to wait for or to abandon."""
        if wanted.abandons:
            raise UnsupportedError("only a sequencer can abandon batches; open the log with brokers")
        return log_session()

    def retire(
        self, client_ids: Sequence[ClientId], log_retired: Callable[[Sequence[ClientId]], None]
    ) -> Sequence[ClientId]:
        """Retire sessions immediately: none has a batch in flight."""
        log_retired(client_ids)
        return client_ids

    def tail(self, _topic_id: TopicId, _from_seq: Seq, _size_max: int) -> list[StoredBatch]:
        """Empty: batches are readable only once they are stored."""
        return []

    def close(self) -> None:
        """Nothing to release."""

    # --- reservations --------------------------------------------------------------------------------------------

    def _reservation_for(self, topic_id: TopicId, size: int, count: int, logged: int, now: int) -> Reservation | None:
        """The reservation that a cycle may use for a topic; None if a new one is needed."""
        reservation = self._reservations.get(topic_id)
        if reservation is None or not reservation.allows_cycles or not reservation.fits(count, size, now):
            return None
        return reservation if self._writer.has_space(HEADROOM + logged) else None

    def _without_known_batches(self, appends: Sequence[Append], now: int) -> Sequence[Append]:
        """The appends without those that the window of their session knows or refuses.

        These get their answers here, so that nothing is evicted for them.
        """
        for append in appends:
            if append.has_session and not self._is_new(append):
                numbered, _ = self._writer.number_direct(append.draft(), append.block, now, self._window)
                record_outcome(append, numbered)
        return [append for append in appends if append.numbered is None]

    def _is_new(self, append: Append) -> bool:
        epoch, crc = SessionEpoch(append.session_epoch), checksum(append.block)
        return self._window.check(append.client_id, epoch, append.client_seq, crc).code is WindowCode.NEW

    def _take_reserved(self, appends: Sequence[Append], now: int) -> bool:
        """Deduct all appends from the current reservations; False if one does not fit."""
        logged = HEADROOM
        for append in appends:
            length = len(append.block)
            reservation = self._reservations.get(append.topic_id)
            if reservation is None or not reservation.take(append.record_count, _BATCH_HEADER + length, now):
                return False
            logged += logged_size(length)
        return self._writer.has_space(logged)

    def _make_reservations(self, appends: Sequence[Append], now_ns: TimestampNs) -> None:
        """Reserve space for the batches of each topic, in its segment and in the log; refuses those without space."""
        # First what may log controls, which invalidates reservations: raised ceilings and evictions.
        admitted = self._admission.admit_all(appends, now_ns)
        logged = HEADROOM
        for group in admitted:
            needed = CONTROL_SIZE_MAX + sum(logged_size(len(append.block)) for append in group)
            if self._admission.attempt(group, partial(self._reserve, group, logged + needed, now_ns)):
                logged += needed

    def _reserve(self, group: Sequence[Append], logged: int, now_ns: TimestampNs) -> None:
        """Reserve space for the batches of one topic: in its segment, in the log, and below its ceiling."""
        topic = self._admission.topic(group[0].topic_id)
        reservation = self._reserver.reserve(topic, need_of(group), logged, now_ns)
        seqs_left = self._writer.frontier.seqs_left(topic.topic_id) - self._ceiling_step // 4
        reservation.records_left = min(
            reservation.records_left, seqs_left - sum(append.record_count for append in group)
        )
        self._reservations[topic.topic_id] = reservation

    # --- numbering and staging -----------------------------------------------------------------------------------

    def _stage_preceding(self, reservation: Reservation, commit: Commit, now: int) -> None:
        """Stage the controls that have to be in the log before the first batch of a reservation."""
        for control in reservation.controls:
            commit.effects.append((control, self._writer.stage_control(control, now)))
            # Readers may see an eviction: no crash may undo it, whatever the durability class.
            commit.durable |= reservation.is_kept and isinstance(control, FloorRaise)
        reservation.controls = []
        reservation.allows_cycles = reservation.is_written and not self._writer.is_observed
        if reservation.is_limited and reservation.topic not in commit.limited:
            commit.limited.append(reservation.topic)

    def _number(self, append: Append, reservation: Reservation, commit: Commit, now: int) -> None:
        """Number one batch, allocate its segment offset, and stage it."""
        if append.flags & BatchFlags.KEYED and self._admission.is_repeated(append, reservation.topic, commit, now):
            return
        active, segment, draft = reservation.segment, reservation.segment.segment, append.draft()
        window = self._window if append.has_session else None
        if reservation.is_kept and len(append.block) < LARGE_BLOCK_SIZE:
            numbered, address = self._writer.stage_batch(draft, append.block, now, window)
            if not record_outcome(append, numbered):
                return
            at = segment.allocate(numbered.size)
            active.unflushed.add(len(segment.index), address)
        else:
            numbered, header = self._writer.number_direct(draft, append.block, now, window)
            if not record_outcome(append, numbered):
                return
            at = segment.allocate(numbered.size)
            if reservation.is_kept:
                commit.add_segment_write(
                    segment.shared, at, [header, append.block], is_uncached=reservation.is_uncached
                )
                self._writer.stage_reference(header, segment.first_seq, at)
            else:
                # Written to memory right here; readers see it when the commit finishes.
                segment.write_at(at, [header, append.block])
                self._writer.stage_reference(header, Seq(0), 0)
        segment.index.append(
            base_seq=numbered.base_seq,
            at=at,
            timestamp_ns=numbered.timestamp_ns,
            base_offset=numbered.base_offset,
            position=numbered.position,
            count=numbered.record_count,
            length=numbered.size,
        )
        commit.effects.append(append)
