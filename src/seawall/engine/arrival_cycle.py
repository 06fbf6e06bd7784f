"""Commits of what connections have brought, by the kernels of `kernels.arrival_cycle`: most batches take them.

    begin    1. survey       which batches are eligible, and what they need of each topic
             2. reservation  looked up for each topic; batches of one without go through the sequencer, which makes it
             3. stage        decided, numbered and put together as an epoch
    (written by whoever commits, as any commit)
    finish   4. settle       the store's window, the frontiers, and the slots; catalog and index are updated when
                             somebody looks

What is in the receive buffer of the publish thread is part of a cycle that this thread begins (`Received`).

INV-CYCLE-NEXT, INV-CYCLE-SAME, INV-CYCLE-BEHIND: as in the kernels. A crash in the middle loses what was not acked, or
leaves it in the log, where a publisher that sends it again gets the result of the first. This module must not know
connections.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import Position, TimestampNs, TopicId
from seawall.engine.appends import Commit
from seawall.engine.following import Follower
from seawall.engine.pending_rows import PendingRows
from seawall.engine.rooms import Room
from seawall.engine.sessions import Sessions
from seawall.fabric.arrays import FabricArrays
from seawall.io.interfaces import Clock
from seawall.kernels import arrival_cycle as kernels
from seawall.kernels.epochs import EPOCH_HEADER
from seawall.sequencer.frontier import CommitFrontier
from seawall.sequencer.pod_sequencer import PodSequencer

#: Bytes of batches in one cycle, and topics among them, at the most.
_SIZE_MAX: Final = limits.MIB
_TOPICS_MAX: Final = 64
#: Rows that are left at the least for the batches of a cycle.
_ROWS_MIN: Final = limits.RECEIVED_BATCHES_MAX

# Arguments and results by one call each: naming fields one by one takes longer than the kernels.
_set_survey: Final = Struct(f"<{len(kernels.SURVEY_ARGUMENTS)}q").pack_into
_set_stage: Final = Struct(f"<{len(kernels.STAGE_ARGUMENTS)}q").pack_into
_results: Final = Struct(f"<{len(kernels.RESULTS)}q").unpack_from
_STAGE_AT: Final = 8 * len(kernels.SURVEY_ARGUMENTS)
_RESULTS_AT: Final = _STAGE_AT + 8 * len((*kernels.STAGE_ARGUMENTS, *kernels.CONSTANTS))


class Received:
    """Batches in a receive buffer, and what became of each: `rows` are `RECEIVED_ROW`."""

    __slots__ = ("buffer", "count", "rows")

    def __init__(self, size: int = _SIZE_MAX) -> None:
        self.buffer = np.zeros(size, np.uint8)
        self.rows = np.zeros(limits.RECEIVED_BATCHES_MAX, kernels.RECEIVED_ROW)
        #: How many of them the next cycle takes.
        self.count = 0


class ArrivalCycle:
    """The cycles of one pod with one worker."""

    def __init__(
        self,
        fabric: FabricArrays,
        sequencer: PodSequencer,
        frontier: CommitFrontier,
        follower: Follower,
        pending: PendingRows,
        sessions: Sessions,
        clock: Clock,
    ) -> None:
        self._sequencer = sequencer
        self._follower = follower
        self._pending = pending
        self._short_way = short_way = pending.short_way
        self._clock = clock
        self._memory = np.zeros(EPOCH_HEADER + _SIZE_MAX, np.uint8)
        self.received: Final = Received()
        self._needs = np.zeros(_TOPICS_MAX, kernels.NEED_ROW)
        self._cycles = np.zeros(1, kernels.CYCLE)
        self._words = self._cycles.view(np.uint8).data
        self._first_ring, self._ring_count = 0, len(fabric.pbr)
        #: Of the last batch of the cycle.
        self._position = self._timestamp_ns = 0
        #: Whether slots of rings are part of it.
        self._has_slots = False
        worker = sequencer.only_worker
        #: Whether there is one orderer: only then nothing else can come before a cycle.
        self._is_open: Final = worker is not None
        if worker is None:
            return
        counters, state = worker.rest_words
        arrays: tuple[npt.NDArray[Any], ...] = (
            *(*frontier.arrays, short_way.rows, *worker.window.arrays, *sessions.window.arrays),
            *(fabric.control_words, counters, fabric.replica_words[0], fabric.tail_all_words),
            *(fabric.completion_all_words, state, sequencer.collected, fabric.pbr_all_words, fabric.blog_all_bytes),
            *(fabric.result_all_words, self._needs, np.zeros(len(fabric.pbr), np.int64)),
            *(self.received.rows, self.received.buffer),
        )
        # The record has their addresses.
        self._referred: Final = arrays
        for name, array in zip(kernels.CYCLE_ARRAYS, arrays, strict=True):
            self._cycles[f"{name}_at"], self._cycles[f"{name}_count"] = array.ctypes.data, len(array)
        self._cycles["term"] = sequencer.term
        self._cycles["checkpoint_after"] = limits.GOI_CHECKPOINT_PERCENT * len(fabric.goi) // 100
        self._cycles["size_max"] = _SIZE_MAX

    def begin(self) -> Commit | None:
        """Stage what has arrived and is eligible; None if nothing is. The commit has to be written, then finished,
        before anything else is ordered."""
        short_way, follower, received = self._short_way, self._follower, self.received
        count, received.count = received.count, 0
        if not self._is_open or self._sequencer.is_quiescing or not follower.is_even:
            return None
        if short_way.rows_left < _ROWS_MIN:
            self._pending.apply()
        # Each ring is the first in turn, so that one which is always full leaves space to the others.
        self._first_ring = (self._first_ring + 1) % self._ring_count
        _set_survey(self._words, 0, follower.next_position, short_way.rows_left, self._first_ring, count)
        if not kernels.survey_cycle(self._cycles):
            return None
        now = self._clock.wall_ns()
        _, needed, size, *_ = _results(self._words, _RESULTS_AT)
        reservations = self._reservations(needed, EPOCH_HEADER + size, now)
        if not reservations:
            return None
        _set_stage(self._words, _STAGE_AT, *short_way.next_epoch(), now, short_way.next_row)
        size = kernels.stage_cycle(self._cycles, self._memory)
        if size < 0:
            return None
        is_durable = False
        for reservation, need in zip(reservations, self._needs[:needed].tolist(), strict=True):
            if reservation is not None:
                _, _, _, taken_records, taken_size, _ = need
                reservation.records_left -= taken_records
                reservation.bytes_left -= taken_size
                is_durable |= reservation.is_durable and taken_records > 0
        _, _, _, staged, of_rings, _, self._position, _, self._timestamp_ns = _results(self._words, _RESULTS_AT)
        self._has_slots = of_rings > 0
        following, time_ns = Position(self._position + 1), TimestampNs(self._timestamp_ns)
        return short_way.begin_cycle(self._memory.data[:size], staged, following, time_ns, durable=is_durable)

    def _reservations(self, needed: int, logged: int, now: int) -> list[Room | None]:
        """The reservation of each topic for all that was surveyed, or None; an empty list if there is none at all."""
        found: list[Room | None] = []
        for index, (topic_id, records, size, *_) in enumerate(self._needs[:needed].tolist()):
            reservation = self._follower.reservation_for(TopicId(topic_id), size, records, logged, now)
            if reservation is not None:
                self._needs[index]["is_reserved"] = 1
            found.append(reservation)
        return found if any(found) else []

    def finish(self, commit: Commit) -> None:
        """The commit is written: publish its batches, and free its slots."""
        # First: rows may move when they are kept.
        kernels.settle_cycle(self._cycles)
        self._short_way.finish(commit)
        position = Position(self._position)
        self._follower.passed_by(position, TimestampNs(self._timestamp_ns))
        self._sequencer.frontier.passed_by(position)
        if self._has_slots:
            self._sequencer.frontier.advance_completion()
