"""Commits of what connections have brought, by the calls of `kernels.arrival_cycle`: the way of most batches.

    begin    1. survey   which batches may go this way, and what they need of each topic
             2. room     looked up for each of these; where one has none ready, all go the long way, which makes it
             3. stage    decided, numbered and put together as an epoch
    (written by whoever waits, as any commit)
    finish   4. settle   the store's window, the order, and the slots; catalog and index learn of it when somebody looks

INV-CYCLE-NEXT, INV-CYCLE-SAME, INV-CYCLE-BEHIND: as in the kernels. A crash in the middle loses what nobody was told
of, or leaves it in the log, where its publishers find it when they send it again. This module must not know
connections.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import Position, TimestampNs, TopicId
from seawall.engine.appends import Commit
from seawall.engine.committer import Committer
from seawall.engine.following import Follower
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


class ArrivalCycle:
    """The cycles of one pod with one worker."""

    def __init__(
        self,
        fabric: FabricArrays,
        sequencer: PodSequencer,
        frontier: CommitFrontier,
        follower: Follower,
        committer: Committer,
        sessions: Sessions,
        clock: Clock,
    ) -> None:
        self._sequencer = sequencer
        self._follower = follower
        self._committer = committer
        self._short_way = short_way = committer.short_way
        self._clock = clock
        self._memory = np.zeros(EPOCH_HEADER + _SIZE_MAX, np.uint8)
        self._needs = np.zeros(_TOPICS_MAX, kernels.NEED_ROW)
        self._cycles = np.zeros(1, kernels.CYCLE)
        self._cycle: Any = self._cycles[0]
        worker = sequencer.only_worker
        #: Whether there is one who orders: only then nothing else can come before a cycle.
        self._is_open: Final = worker is not None
        if worker is None:
            return
        counters, state = worker.lone_arrays
        arrays: tuple[npt.NDArray[Any], ...] = (
            *(*frontier.arrays, short_way.rows, *worker.window.arrays, *sessions.window.arrays),
            *(fabric.control_words, counters, fabric.replica_words[0], fabric.tail_all_words),
            *(fabric.completion_all_words, state, sequencer.collected, fabric.pbr_all_words, fabric.blog_all_bytes),
            *(fabric.result_all_words, self._needs, np.zeros(len(fabric.pbr), np.int64)),
        )
        # Kept as long as their addresses are told.
        self._referred: Final = arrays
        for name, array in zip(kernels.CYCLE_ARRAYS, arrays, strict=True):
            self._cycle[f"{name}_at"], self._cycle[f"{name}_count"] = array.ctypes.data, len(array)
        self._cycle["term"] = sequencer.term
        self._cycle["checkpoint_after"] = limits.GOI_CHECKPOINT_PERCENT * len(fabric.goi) // 100
        self._cycle["size_max"] = _SIZE_MAX

    def begin(self) -> Commit | None:
        """Stage what has arrived and may go this way; None if that is nothing. The commit has to be written, then
        finished, before anything else is ordered."""
        short_way, cycle = self._short_way, self._cycle
        if not self._is_open or self._sequencer.is_quiescing or not self._follower.is_even:
            return None
        if short_way.is_full:
            self._committer.absorb()
        now = self._clock.wall_ns()
        cycle["count_max"] = short_way.rows_left
        cycle["followed"] = self._follower.next_position
        # Each ring is the first in its turn, so that one which is always full leaves room to the others.
        cycle["first_ring"] = (cycle["first_ring"] + 1) % cycle["ends_count"]
        if not kernels.survey_cycle(self._cycles):
            return None
        needed = int(cycle["needed"])
        rooms = self._find_rooms(needed, EPOCH_HEADER + int(cycle["size"]), now)
        if rooms is None:
            return None
        cycle["wall_ns"], cycle["first_row"] = now, short_way.next_row
        cycle["salt"], cycle["epoch"], cycle["synced_through"], cycle["address"] = short_way.lone_epoch()
        size = kernels.stage_cycle(self._cycles, self._memory)
        if size < 0:
            return None
        for room, taken_records, taken_size in zip(
            rooms, *(self._needs[name][:needed].tolist() for name in ("taken_records", "taken_size")), strict=True
        ):
            room.records_left -= taken_records
            room.bytes_left -= taken_size
        following, time_ns = Position(int(cycle["position"]) + 1), TimestampNs(int(cycle["timestamp_ns"]))
        is_durable = any(room.is_durable for room in rooms)
        return short_way.begin_cycle(
            self._memory.data[:size], int(cycle["count"]), following, time_ns, durable=is_durable
        )

    def _find_rooms(self, needed: int, logged: int, now: int) -> list[Room] | None:
        """The room of each topic, in which all that was surveyed fits; None if one has to be made."""
        rooms: list[Room] = []
        for topic_id, records, size, _, _ in self._needs[:needed].tolist():
            room = self._follower.lone_room(TopicId(topic_id), size, records, logged, now)
            if room is None:
                return None
            rooms.append(room)
        return rooms

    def finish(self, commit: Commit) -> None:
        """The commit is written: what is in it counts, and its slots are free."""
        # First: rows may move when they are kept.
        kernels.settle_cycle(self._cycles)
        self._short_way.finish(commit)
        position, timestamp_ns = Position(int(self._cycle["position"])), TimestampNs(int(self._cycle["timestamp_ns"]))
        self._follower.passed_by(position, timestamp_ns)
        self._sequencer.frontier.passed_by(position)
        self._sequencer.frontier.advance_completion()
