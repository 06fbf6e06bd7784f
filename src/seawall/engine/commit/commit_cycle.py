"""Commits small batches by the kernels of `kernels.log.commit_cycle`: the path that most batches take.

    begin    1. stage    one kernel call decides and numbers what is eligible, and assembles it as an epoch; if it lacks
                         reservations, they are granted, and it is called again
    (the leader writes the epoch, as for any commit)
    finish   2. settle   the rows of its batches become pending and, with a sequencer, the order durable; catalog and
                         index are updated when a reader or a change needs them

A local orderer passes the blocks of its callers (`begin_appends`). With a sequencer the batches are in the rings of the
brokers and in the receive buffer of the publish thread (`begin`). `resident_commit` runs the same kernels in a loop
without Python in between.

Reservations are granted to cycles beforehand (`grant`); afterwards what the cycles used is deducted (`settle_grants`).
The lane must be empty, so that positions stay in order. A local orderer may have two cycles begun and not finished, so
there are two memories to stage in.

The invariants of the kernels hold here. A crash in between loses what was not acknowledged, or leaves it in the log; a
publisher that sends it again then gets the original result. This module must not know connections, nor how reservations
are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import Offset, Position, Seq, TimestampNs, TopicId
from seawall.engine.commit.admission import record_outcome
from seawall.engine.commit.appends import AS_TOPIC_CHOICES, LARGE_BLOCK_SIZE, Append, Commit
from seawall.engine.commit.reservations import Reservation
from seawall.engine.store.control_log import HEADROOM
from seawall.engine.store.parts import StoreParts
from seawall.errors import InvariantError
from seawall.io.interfaces import File
from seawall.kernels.admission.client_window import WINDOW_RESULT
from seawall.kernels.log import commit_cycle as kernels
from seawall.kernels.log import cycle_records as records
from seawall.kernels.log.epochs import EPOCH_HEADER
from seawall.kernels.runtime.memory import set_addresses
from seawall.sequencer.frontier import Numbered
from seawall.storage.wal.epochs import MARKS_SIZE
from seawall.wire.format.codes import AckStatus

#: The most bytes of batches, and the most topics, in one cycle.
_SIZE_MAX: Final = limits.MIB
_TOPICS_MAX: Final = 64
_ROWS_MIN: Final = limits.RECEIVED_BATCHES_MAX
_NEVER: Final = (1 << 63) - 1
_BATCH_HEADER: Final = limits.BATCH_HEADER_SIZE

# Arguments and results are packed by one call each: setting them field by field takes longer than the kernels.
_set_arguments: Final = Struct(f"={len(records.ARGUMENTS)}q").pack_into
_results: Final = Struct(f"={len(records.RESULTS)}q").unpack_from
_RESULTS_AT: Final = 8 * len((*records.ARGUMENTS, *records.CONSTANTS))
_set_draft: Final = Struct(f"={records.DRAFT_ROW.itemsize // 8}Q").pack_into
_DRAFT_SIZE: Final = records.DRAFT_ROW.itemsize
_set_grant: Final = Struct("=4q").pack_into
_GRANT_AT: Final = 8 * (records.NEED_ROW.names or ()).index("records_left")
#: The outcome of a batch in the receive buffer: status, reason, position, seq, offset, time.
_STATUS_AT: Final = (records.RECEIVED_ROW.names or ()).index("status")
_answer_of: Final = Struct(f"={8 * _STATUS_AT}x2q4Q").unpack_from
_ANSWER_SIZE: Final = records.RECEIVED_ROW.itemsize
_STATUSES: Final = {int(status): status for status in AckStatus}

#: Arguments: topic, bytes and records of its small batches, bytes of the whole epoch in the log, and the time. Returns
#: the reservation that they fit, or None.
Reserve: TypeAlias = Callable[[TopicId, int, int, int, int], Reservation | None]


@dataclass(frozen=True, slots=True)
class SequencerArrays:
    """Arrays that a sequencer shares with commit cycles, by their names in `CYCLE_ARRAYS`."""

    window: tuple[npt.NDArray[Any], ...]
    #: From `control` to `results`.
    order: tuple[npt.NDArray[Any], ...]
    reached: npt.NDArray[Any]
    following: npt.NDArray[Any]
    ring_count: int
    #: Positions above the floor of the order after which a checkpoint of the order is due.
    checkpoint_after: int


class Received:
    """Batches in a receive buffer, and the outcome of each: `rows` are `RECEIVED_ROW`."""

    __slots__ = ("buffer", "count", "rows")

    def __init__(self, size: int = _SIZE_MAX) -> None:
        self.buffer = np.zeros(size, np.uint8)
        self.rows = np.zeros(limits.RECEIVED_BATCHES_MAX, records.RECEIVED_ROW)
        #: Rows that the next cycle takes.
        self.count = 0


class CommitCycle:
    """Runs the commit cycles of one store."""

    def __init__(self, parts: StoreParts, reserve: Reserve, sequencer: SequencerArrays | None = None) -> None:
        self._wal = parts.wal
        self._pending = parts.pending
        self._clock = parts.machine.clock
        self._reservations = parts.reservations
        self._reserve = reserve
        #: The arguments of the kernels, and the memory in which epochs are staged.
        self.cycles: Final = np.zeros(1, records.CYCLE)
        self.memory: Final = np.zeros(EPOCH_HEADER + _SIZE_MAX, np.uint8)
        self.received: Final = Received()
        self._memories = (
            self.memory,
            np.zeros(EPOCH_HEADER + _SIZE_MAX, np.uint8) if sequencer is None else self.memory,
        )
        self._views = tuple(memory.data for memory in self._memories)
        self._commits = (Commit(), Commit())
        for commit in self._commits:
            commit.is_cycle = True
        #: Which of the two memories and commits the next cycle uses.
        self._slot = 0
        self._needs = np.zeros(_TOPICS_MAX, records.NEED_ROW)
        self._needs_bytes = self._needs.view(np.uint8).data
        self._words = self.cycles.view(np.uint8).data
        self._buffer = self.received.buffer.data
        self._drafts = np.zeros(limits.RECEIVED_BATCHES_MAX, records.DRAFT_ROW)
        self._drafts_bytes = self._drafts.view(np.uint8).data
        self._rows_bytes = self.received.rows.view(np.uint8).data
        #: Granted reservations by their row in `needs`, and the generation in which they were valid.
        self._granted: dict[int, Reservation] = {}
        self._generation = parts.reservations.generation
        self._first_ring, self._ring_count = 0, 1 if sequencer is None else sequencer.ring_count
        #: True if the last cycle took slots of rings.
        self.has_slots = False
        # Keeps the arrays alive: `cycles` has their addresses only.
        self._kernel_arrays: Final = self._arrays(parts, sequencer)
        set_addresses(self.cycles, records.CYCLE_ARRAYS, self._kernel_arrays)
        self.cycles["term"] = parts.term
        self.cycles["size_max"] = _SIZE_MAX
        self.cycles["headroom"] = HEADROOM + MARKS_SIZE
        if sequencer is not None:
            self.cycles["is_sequenced"] = 1
            self.cycles["checkpoint_after"] = sequencer.checkpoint_after

    def _arrays(self, parts: StoreParts, sequencer: SequencerArrays | None) -> tuple[npt.NDArray[Any], ...]:
        """All arrays in the order of `CYCLE_ARRAYS`. A local orderer uses the window of the store and has no rings."""
        window, empty = parts.sessions.window.arrays, np.zeros(0, np.int64)
        first: tuple[npt.NDArray[Any], ...] = window
        order: tuple[npt.NDArray[Any], ...] = (empty,) * 10
        ends = reached = following = empty
        if sequencer is not None:
            first, order = sequencer.window, sequencer.order
            ends, reached, following = np.zeros(sequencer.ring_count, np.int64), sequencer.reached, sequencer.following
        return (
            *(*parts.writer.frontier.arrays, parts.pending.rows, *first, *window, *order, self._needs, ends),
            *(self.received.rows, self.received.buffer, parts.wal.numbers, parts.pending.numbers),
            *(reached, following, np.zeros(1, WINDOW_RESULT), self._drafts),
        )

    # --- commits ---------------------------------------------------------------------------------------------------

    def begin(self) -> Commit | None:
        """Stage the eligible batches that have arrived, for a sequencer; None if there are none.

        The commit has to be written and finished before anything else is ordered.
        """
        received = self.received
        count, received.count = received.count, 0
        if self._pending.rows_left < _ROWS_MIN:
            self._pending.apply()
        # Start with the next ring each time: one that is always full must not starve the others.
        self._first_ring = (self._first_ring + 1) % self._ring_count
        self.expect(count)
        size: int = kernels.stage_arrived(self.cycles, self.memory)
        if size < 0:
            size = self._provide_and_stage(self.memory, size)
        if size < 0:
            self.settle_grants()
            return None
        return self._begun(size)

    def begin_appends(self, appends: Sequence[Append], wall_ns: int) -> Commit | None:
        """Stage all appends of a local orderer, and set their numbers or errors.

        None, and nothing is staged, if one is not small and plain or has no reservation. One more commit may begin
        before this one is finished; the returned object is reused by the one after that.
        """
        if self._generation != self._reservations.generation:
            self.settle_grants()
            self._generation = self._reservations.generation
        if len(appends) > limits.RECEIVED_BATCHES_MAX:
            return None
        at = 0
        for number, append in enumerate(appends):
            block = append.block
            length = len(block)
            start, at = at + _BATCH_HEADER, at + _BATCH_HEADER + length
            if length >= LARGE_BLOCK_SIZE or append.flags or at > _SIZE_MAX:
                return None
            self._buffer[start:at] = block
            _set_draft(
                self._drafts_bytes,
                number * _DRAFT_SIZE,
                length,
                append.record_count,
                append.topic_id,
                append.client_id,
                append.client_seq,
                append.session_epoch,
                append.raw_length or length,
                AS_TOPIC_CHOICES | append.codec << 16,
            )
        _set_arguments(self._words, 0, 0, len(appends), wall_ns, 0)
        memory = self._memories[self._slot]
        size: int = kernels.stage_arrived(self.cycles, memory)
        if size < 0:
            size = self._provide_and_stage(memory, size)
        if size < 0:
            return None
        for number, append in enumerate(appends):
            self._answer(append, *_answer_of(self._rows_bytes, number * _ANSWER_SIZE))
        return self._begun(size) if size else Commit()

    def finish(self, commit: Commit) -> None:
        """Let a written commit take effect: its rows become pending, and the order durable."""
        assert commit.epoch is not None
        kernels.settle_cycle(self.cycles, commit.first_row, commit.row_count)
        self._wal.finish_encoded(commit.epoch, durable=commit.durable)

    def _provide_and_stage(self, memory: npt.NDArray[np.uint8], reason: int) -> int:
        """Provide what the kernel lacked, and stage again: the size of the epoch, or a negative reason."""
        size = reason
        if size == -records.LACKS_ROWS:
            self._pending.apply()
            size = kernels.stage_arrived(self.cycles, memory)
        if size == -records.LACKS_GRANTS:
            self.grant()
            if self._granted:
                size = kernels.stage_arrived(self.cycles, memory)
        return size

    def _begun(self, size: int) -> Commit:
        """The commit of a staged epoch."""
        _, _, _, count, of_rings, durable, _, first_row, _, position, time_ns = _results(self._words, _RESULTS_AT)
        commit, epoch = self._commits[self._slot], self._views[self._slot][:size]
        self._slot ^= 1
        self.has_slots = of_rings > 0
        commit.durable, commit.first_row, commit.row_count = bool(durable), first_row, count
        next_position, timestamp_ns = Position(position + 1), TimestampNs(time_ns)
        commit.epoch = self._wal.begin_encoded(epoch, next_position, timestamp_ns, durable=commit.durable)
        return commit

    @staticmethod
    def _answer(
        append: Append,
        status: int,
        reason: int,
        position: Position,
        base_seq: Seq,
        base_offset: Offset,
        timestamp_ns: TimestampNs,
    ) -> None:
        if status == records.UNDECIDED:
            raise InvariantError("INV-FRONTIER-CEILING", f"a batch of topic {append.topic_id} was not decided")
        length = len(append.block)
        numbered = Numbered(
            _STATUSES[status],
            reason,
            position,
            append.topic_id,
            base_seq,
            base_offset,
            timestamp_ns,
            append.record_count,
            append.raw_length or length,
            _BATCH_HEADER + length,
        )
        if status:
            record_outcome(append, numbered)
        else:
            append.numbered = numbered

    # --- a kernel that commits -------------------------------------------------------------------------------------

    def lend(self) -> File:
        """Let a kernel write epochs until `take_back`: the log file that it writes to."""
        return self._wal.lend()

    def take_back(self) -> None:
        """End a `lend`: the kernel has written everything that it staged."""
        self._wal.take_back()

    def apply_rows(self) -> None:
        """Apply the pending rows of cycles to catalog and index."""
        self._pending.apply()

    # --- arguments and grants --------------------------------------------------------------------------------------

    def expect(self, count: int) -> None:
        """Set how many rows of the receive buffer the next cycle takes."""
        _set_arguments(self._words, 0, self._first_ring, count, self._clock.wall_ns(), 0)

    @property
    def expected(self) -> int:
        """Rows of the receive buffer that the next cycle takes."""
        return int(self.cycles["received"][0])

    def grant(self) -> None:
        """Grant each topic of a cycle the reservation it needs, if there is one.

        With a sequencer the next cycle leaves out the topics without a grant.
        """
        _, needed, size, *_ = _results(self._words, _RESULTS_AT)
        now, logged = self._clock.wall_ns(), EPOCH_HEADER + size
        for index, (topic_id, count, size, *_, is_reserved) in enumerate(self._needs[:needed].tolist()):
            if is_reserved or not count:
                continue
            self._settle_grant(index)
            reservation = self._reserve(TopicId(topic_id), size, count, logged, now)
            if reservation is not None:
                self._granted[index] = reservation
                grant = (
                    reservation.records_left,
                    reservation.bytes_left,
                    min(reservation.valid_until_ns, _NEVER),
                    reservation.is_durable,
                )
                _set_grant(self._needs_bytes, index * records.NEED_ROW.itemsize + _GRANT_AT, *grant)
        self.cycles["is_granted"] = 1

    def settle_grants(self) -> None:
        """Deduct what cycles have used from the reservations, and revoke all grants."""
        for index in list(self._granted):
            self._settle_grant(index)
        self.cycles["needed"] = 0

    def _settle_grant(self, index: int) -> None:
        reservation, need = self._granted.pop(index, None), self._needs[index]
        if reservation is not None:
            reservation.records_left -= int(need["taken_records"])
            reservation.bytes_left -= int(need["taken_size"])
        need["taken_records"] = need["taken_size"] = need["records_left"] = need["bytes_left"] = 0
