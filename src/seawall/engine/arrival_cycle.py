"""Commits of what connections have brought, by the kernels of `kernels.arrival_cycle`: most batches take them.

    begin    1. survey       which batches are eligible, and what they need of each topic
             2. grant        the reservation of each topic is looked up; without one, batches go through the sequencer
             3. stage        decided, numbered and put together as an epoch
    (written by whoever commits, as any commit)
    finish   4. settle       the store's window, the frontiers, and the slots; catalog and index are updated when
                             somebody looks

What is in the receive buffer of the publish thread is part of a cycle that this thread begins (`Received`). The same
kernels run there without Python between them (`resident_commit`): what cycles may take is granted ahead, and what they
have taken is accounted for behind.

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
from seawall.engine.control_log import HEADROOM
from seawall.engine.following import Follower
from seawall.engine.pending_rows import PendingRows
from seawall.engine.rooms import Room
from seawall.engine.sessions import Sessions
from seawall.fabric.arrays import FabricArrays
from seawall.io.interfaces import Clock, File
from seawall.kernels import arrival_cycle as kernels
from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.memory import set_addresses
from seawall.sequencer.frontier import CommitFrontier
from seawall.sequencer.pod_sequencer import PodSequencer
from seawall.storage.epochs import MARKS_SIZE

#: Bytes of batches in one cycle, and topics among them, at the most.
_SIZE_MAX: Final = limits.MIB
_TOPICS_MAX: Final = 64
#: Rows that are left at the least for the batches of a cycle.
_ROWS_MIN: Final = limits.RECEIVED_BATCHES_MAX
_NEVER: Final = (1 << 63) - 1

# Arguments and results by one call each: naming fields one by one takes longer than the kernels.
_set_arguments: Final = Struct(f"={len(kernels.ARGUMENTS)}q").pack_into
_results: Final = Struct(f"={len(kernels.RESULTS)}q").unpack_from
_RESULTS_AT: Final = 8 * len((*kernels.ARGUMENTS, *kernels.CONSTANTS))
_set_grant: Final = Struct("=4q").pack_into
_GRANT_AT: Final = 8 * (kernels.NEED_ROW.names or ()).index("records_left")


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
        #: The arguments of its kernels, and the memory that epochs are staged in.
        self.cycles: Final = np.zeros(1, kernels.CYCLE)
        self.memory: Final = np.zeros(EPOCH_HEADER + _SIZE_MAX, np.uint8)
        self.received: Final = Received()
        self._needs = np.zeros(_TOPICS_MAX, kernels.NEED_ROW)
        self._needs_bytes = self._needs.view(np.uint8).data
        self._words = self.cycles.view(np.uint8).data
        #: Reservations of which something is granted, by their row in `needs`.
        self._granted: dict[int, Room] = {}
        self._first_ring, self._ring_count = 0, len(fabric.pbr)
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
            *(short_way.log_numbers, short_way.pending, follower.reached, follower.progress),
        )
        # The record has their addresses.
        self._referred: Final = arrays
        set_addresses(self.cycles, kernels.CYCLE_ARRAYS, arrays)
        self.cycles["term"] = sequencer.term
        self.cycles["checkpoint_after"] = limits.GOI_CHECKPOINT_PERCENT * len(fabric.goi) // 100
        self.cycles["size_max"] = _SIZE_MAX
        self.cycles["headroom"] = HEADROOM + MARKS_SIZE

    @property
    def is_ready(self) -> bool:
        """Whether a cycle may begin: nothing is staged, and the order is not being checkpointed."""
        return self._is_open and not self._sequencer.is_quiescing and self._follower.is_even

    def begin(self) -> Commit | None:
        """Stage what has arrived and is eligible; None if nothing is. The commit has to be written, then finished,
        before anything else is ordered."""
        short_way, received = self._short_way, self.received
        count, received.count = received.count, 0
        if not self.is_ready:
            return None
        if short_way.rows_left < _ROWS_MIN:
            self._pending.apply()
        # Each ring is the first in turn, so that one which is always full leaves space to the others.
        self._first_ring = (self._first_ring + 1) % self._ring_count
        self.expect(count)
        if not kernels.survey_cycle(self.cycles):
            return None
        self.grant()
        if not self._granted:
            return None
        kernels.lacks_grants(self.cycles)
        size = kernels.stage_cycle(self.cycles, self.memory)
        if size < 0:
            self.account()
            return None
        _, _, _, staged, of_rings, is_durable, _, _, position, _, timestamp_ns = _results(self._words, _RESULTS_AT)
        self._has_slots = of_rings > 0
        following, time_ns = Position(position + 1), TimestampNs(timestamp_ns)
        return short_way.begin_cycle(self.memory.data[:size], staged, following, time_ns, durable=bool(is_durable))

    def finish(self, commit: Commit) -> None:
        """The commit is written: publish its batches, and free its slots."""
        kernels.settle_cycle(self.cycles)
        self._short_way.finish_cycle(commit)
        self.account()
        if self._has_slots:
            self._sequencer.frontier.advance_completion()

    def lend(self) -> File:
        """Let a kernel run cycles, until `take_back`: the file of the log that it writes to."""
        return self._short_way.lend()

    def take_back(self) -> None:
        """The kernel has ended; what it did is written."""
        self._short_way.take_back()

    def apply_rows(self) -> None:
        """Have catalog and index apply what cycles have stored."""
        self._pending.apply()

    # --- what a cycle is given and what it took --------------------------------------------------------------------

    def expect(self, count: int) -> None:
        """The next cycle takes so many rows of the receive buffer. Nothing is granted yet."""
        _set_arguments(self._words, 0, self._first_ring, count, self._clock.wall_ns())
        self.cycles["needed"] = 0

    @property
    def expected(self) -> int:
        """Rows of the receive buffer that the next cycle takes."""
        return int(self.cycles["received"][0])

    def grant(self) -> None:
        """Grant each topic of a cycle what it needs, as far as there is a reservation for it."""
        _, needed, size, *_ = _results(self._words, _RESULTS_AT)
        now, logged = self._clock.wall_ns(), EPOCH_HEADER + size
        for index, (topic_id, records, size, *_, is_reserved) in enumerate(self._needs[:needed].tolist()):
            if is_reserved or not records:
                continue
            self._account(index)
            room = self._follower.reservation_for(TopicId(topic_id), size, records, logged, now)
            if room is not None:
                self._granted[index] = room
                grant = (room.records_left, room.bytes_left, min(room.until_ns, _NEVER), room.is_durable)
                _set_grant(self._needs_bytes, index * kernels.NEED_ROW.itemsize + _GRANT_AT, *grant)

    def account(self) -> None:
        """Cycles are written, or none will be: what they took of reservations is gone, and nothing is granted."""
        for index in list(self._granted):
            self._account(index)
        self._sequencer.frontier.passed_by(Position(self._follower.next_position - 1))

    def _account(self, index: int) -> None:
        room, need = self._granted.pop(index, None), self._needs[index]
        if room is not None:
            room.records_left -= int(need["taken_records"])
            room.bytes_left -= int(need["taken_size"])
        need["taken_records"] = need["taken_size"] = need["records_left"] = need["bytes_left"] = 0
