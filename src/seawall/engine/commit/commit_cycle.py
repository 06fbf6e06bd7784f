"""Commits of small batches by the kernels of `kernels.log.commit_cycle`: most batches take them.

    begin    1. stage    what is eligible is decided, numbered and put together as an epoch, by one kernel call;
                         where that lacks reservations, they are granted, and it is called again
    (written by whoever commits, as any commit)
    finish   2. settle   the rows of its batches are pending, and, behind a sequencer, the order is durable;
                         catalog and index are updated when somebody looks

A local orderer brings the blocks of its callers (`begin_appends`); behind a sequencer they are in the rings of brokers,
and in the receive buffer of the publish thread. The same kernels run there without Python between them
(`resident_commit`). What cycles may take of a reservation is granted ahead, and what they have taken is accounted for
behind. The lane must be empty, so that positions stay in order. Of a local orderer two cycles may have begun and not be
finished, so there are two memories.

What the kernels promise holds here. A crash in the middle loses what was not acked, or
leaves it in the log, where a publisher that sends it again gets the result of the first. This module must not know
connections, nor where reservations come from.
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
from seawall.engine.commit.admission import is_admitted
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

#: Bytes of batches in one cycle, and topics among them, at the most.
_SIZE_MAX: Final = limits.MIB
_TOPICS_MAX: Final = 64
_ROWS_MIN: Final = limits.RECEIVED_BATCHES_MAX
_NEVER: Final = (1 << 63) - 1
_BATCH_HEADER: Final = limits.BATCH_HEADER_SIZE

# Arguments and results by one call each: naming fields one by one takes longer than the kernels.
_set_arguments: Final = Struct(f"={len(records.ARGUMENTS)}q").pack_into
_results: Final = Struct(f"={len(records.RESULTS)}q").unpack_from
_RESULTS_AT: Final = 8 * len((*records.ARGUMENTS, *records.CONSTANTS))
_set_draft: Final = Struct(f"={records.DRAFT_ROW.itemsize // 8}Q").pack_into
_DRAFT_SIZE: Final = records.DRAFT_ROW.itemsize
_set_grant: Final = Struct("=4q").pack_into
_GRANT_AT: Final = 8 * (records.NEED_ROW.names or ()).index("records_left")
#: What became of a batch of the receive buffer: status, reason, position, seq, offset, time.
_STATUS_AT: Final = (records.RECEIVED_ROW.names or ()).index("status")
_answer_of: Final = Struct(f"={8 * _STATUS_AT}x2q4Q").unpack_from
_ANSWER_SIZE: Final = records.RECEIVED_ROW.itemsize
_STATUSES: Final = {int(status): status for status in AckStatus}

#: The reservation of a topic for so many bytes and records of small batches, and for so many bytes in the log, now.
Reserve: TypeAlias = Callable[[TopicId, int, int, int, int], Reservation | None]


@dataclass(frozen=True, slots=True)
class SequencerArrays:
    """What a sequencer shares with the cycles that commit behind it, each array as `CYCLE_ARRAYS` names it."""

    window: tuple[npt.NDArray[Any], ...]
    #: From `control` to `results`.
    order: tuple[npt.NDArray[Any], ...]
    reached: npt.NDArray[Any]
    following: npt.NDArray[Any]
    ring_count: int
    #: Positions from the floor of the order on behind which it has to be checkpointed.
    checkpoint_after: int


class Received:
    """Batches in a receive buffer, and what became of each: `rows` are `RECEIVED_ROW`."""

    __slots__ = ("buffer", "count", "rows")

    def __init__(self, size: int = _SIZE_MAX) -> None:
        self.buffer = np.zeros(size, np.uint8)
        self.rows = np.zeros(limits.RECEIVED_BATCHES_MAX, records.RECEIVED_ROW)
        #: How many of them the next cycle takes.
        self.count = 0


class CommitCycle:
    """The cycles of one store."""

    def __init__(self, parts: StoreParts, reserve: Reserve, sequencer: SequencerArrays | None = None) -> None:
        self._wal = parts.wal
        self._pending = parts.pending
        self._clock = parts.machine.clock
        self._reservations = parts.reservations
        self._reserve = reserve
        #: The arguments of its kernels, and the memory that epochs are staged in.
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
        self._turn = 0
        self._needs = np.zeros(_TOPICS_MAX, records.NEED_ROW)
        self._needs_bytes = self._needs.view(np.uint8).data
        self._words = self.cycles.view(np.uint8).data
        self._buffer = self.received.buffer.data
        self._drafts = np.zeros(limits.RECEIVED_BATCHES_MAX, records.DRAFT_ROW)
        self._drafts_bytes = self._drafts.view(np.uint8).data
        self._rows_bytes = self.received.rows.view(np.uint8).data
        #: Reservations of which something is granted, by their row in `needs`; and when they were valid.
        self._granted: dict[int, Reservation] = {}
        self._forgotten = parts.reservations.forgotten
        self._first_ring, self._ring_count = 0, 1 if sequencer is None else sequencer.ring_count
        #: Whether the last cycle has taken slots of rings.
        self.has_slots = False
        # The record has the addresses of these arrays.
        self._referred: Final = self._arrays(parts, sequencer)
        set_addresses(self.cycles, records.CYCLE_ARRAYS, self._referred)
        self.cycles["term"] = parts.term
        self.cycles["size_max"] = _SIZE_MAX
        self.cycles["headroom"] = HEADROOM + MARKS_SIZE
        if sequencer is not None:
            self.cycles["is_sequenced"] = 1
            self.cycles["checkpoint_after"] = sequencer.checkpoint_after

    def _arrays(self, parts: StoreParts, sequencer: SequencerArrays | None) -> tuple[npt.NDArray[Any], ...]:
        """All arrays in the order of `CYCLE_ARRAYS`. A local orderer has the store's window and no rings."""
        window, nothing = parts.sessions.window.arrays, np.zeros(0, np.int64)
        first: tuple[npt.NDArray[Any], ...] = window
        order: tuple[npt.NDArray[Any], ...] = (nothing,) * 10
        ends = reached = following = nothing
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
        """Stage what has arrived and is eligible, behind a sequencer; None if nothing is. The commit has to be written,
        then finished, before anything else is ordered."""
        received = self.received
        count, received.count = received.count, 0
        if self._pending.rows_left < _ROWS_MIN:
            self._pending.apply()
        # Each ring is the first in turn, so that one which is always full leaves space to the others.
        self._first_ring = (self._first_ring + 1) % self._ring_count
        self.expect(count)
        size: int = kernels.stage_arrived(self.cycles, self.memory)
        if size < 0:
            size = self._stage_lacking(self.memory, size)
        if size < 0:
            self.account()
            return None
        return self._begun(size)

    def begin_appends(self, appends: Sequence[Append], wall_ns: int) -> Commit | None:
        """Stage batches of a local orderer, all of them, each of which has its answer then; None if one is not small
        and plain, or something is lacking. One more may begin before it is finished; what is returned is valid until
        the next but one begins."""
        if self._forgotten != self._reservations.forgotten:
            self.account()
            self._forgotten = self._reservations.forgotten
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
        memory = self._memories[self._turn]
        size: int = kernels.stage_arrived(self.cycles, memory)
        if size < 0:
            size = self._stage_lacking(memory, size)
        if size < 0:
            return None
        for number, append in enumerate(appends):
            self._answer(append, *_answer_of(self._rows_bytes, number * _ANSWER_SIZE))
        return self._begun(size) if size else Commit()

    def finish(self, commit: Commit) -> None:
        """The commit is written: its batches are pending, and the order has come as far."""
        assert commit.epoch is not None
        kernels.settle_cycle(self.cycles, commit.first_row, commit.row_count)
        self._wal.finish_encoded(commit.epoch, durable=commit.durable)

    def _stage_lacking(self, memory: npt.NDArray[np.uint8], reason: int) -> int:
        """Stage what has arrived, with what it lacked for a reason: the size of the epoch, 0, or minus a reason."""
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
        """The commit of an epoch that is staged."""
        _, _, _, count, of_rings, durable, _, first_row, _, position, time_ns = _results(self._words, _RESULTS_AT)
        commit, epoch = self._commits[self._turn], self._views[self._turn][:size]
        self._turn ^= 1
        self.has_slots = of_rings > 0
        commit.durable, commit.first_row, commit.row_count = bool(durable), first_row, count
        following, timestamp_ns = Position(position + 1), TimestampNs(time_ns)
        commit.epoch = self._wal.begin_encoded(epoch, following, timestamp_ns, durable=commit.durable)
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
            is_admitted(append, numbered)
        else:
            append.numbered = numbered

    # --- a kernel that commits -------------------------------------------------------------------------------------

    def lend(self) -> File:
        """Let a kernel run cycles, until `take_back`: the file of the log that it writes to."""
        return self._wal.lend()

    def take_back(self) -> None:
        """The kernel has ended; what it did is written."""
        self._wal.take_back()

    def apply_rows(self) -> None:
        """Have catalog and index apply what cycles have stored."""
        self._pending.apply()

    # --- what a cycle is given and what it took --------------------------------------------------------------------

    def expect(self, count: int) -> None:
        """The next cycle takes so many rows of the receive buffer."""
        _set_arguments(self._words, 0, self._first_ring, count, self._clock.wall_ns(), 0)

    @property
    def expected(self) -> int:
        """Rows of the receive buffer that the next cycle takes."""
        return int(self.cycles["received"][0])

    def grant(self) -> None:
        """Grant each topic of a cycle what it needs, as far as there is a reservation for it. Where a sequencer orders,
        the next cycle leaves out the others."""
        _, needed, size, *_ = _results(self._words, _RESULTS_AT)
        now, logged = self._clock.wall_ns(), EPOCH_HEADER + size
        for index, (topic_id, count, size, *_, is_reserved) in enumerate(self._needs[:needed].tolist()):
            if is_reserved or not count:
                continue
            self._account(index)
            reservation = self._reserve(TopicId(topic_id), size, count, logged, now)
            if reservation is not None:
                self._granted[index] = reservation
                grant = (
                    reservation.records_left,
                    reservation.bytes_left,
                    min(reservation.until_ns, _NEVER),
                    reservation.is_durable,
                )
                _set_grant(self._needs_bytes, index * records.NEED_ROW.itemsize + _GRANT_AT, *grant)
        self.cycles["is_granted"] = 1

    def account(self) -> None:
        """What cycles took of reservations is gone, and nothing is granted any more."""
        for index in list(self._granted):
            self._account(index)
        self.cycles["needed"] = 0

    def _account(self, index: int) -> None:
        reservation, need = self._granted.pop(index, None), self._needs[index]
        if reservation is not None:
            reservation.records_left -= int(need["taken_records"])
            reservation.bytes_left -= int(need["taken_size"])
        need["taken_records"] = need["taken_size"] = need["records_left"] = need["bytes_left"] = 0
