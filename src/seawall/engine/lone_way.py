"""The way of one small batch of a publisher that comes while nothing else is under way: past the rings of the pod.

One kernel call (`kernels.lone_arrival`) orders, numbers, writes and settles it, on the thread that received it. What is
left to do here is what the store's own short way does: the row that catalog and index learn of later (`short_way`).

The loop of a server waits for the disk meanwhile, so this is for disks that are fast: after a write that took long it
is not tried again for fifty times as long, and what comes goes through the rings, which nobody waits for.

INV-LONE-NEXT, INV-SHORT-WAY: as in the kernel. A crash in the middle loses a batch that nobody was told of, or leaves
it in the log, where its publisher finds it when it sends it again. This module must not know who publishes, nor
connections.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import Position, Seq, TimestampNs, TopicId
from seawall.engine.following import Follower
from seawall.engine.sessions import Sessions
from seawall.engine.short_way import ShortWay
from seawall.fabric.arrays import FabricArrays
from seawall.io.interfaces import Clock
from seawall.kernels import lone_arrival as kernels
from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.memory import Bytes
from seawall.sequencer.frontier import CommitFrontier
from seawall.sequencer.pod_sequencer import PodSequencer

#: A write that takes longer than this is long, and how many times as long nothing is written by the loop after it.
LONG_WRITE_NS: Final = 4_000_000
REST_FACTOR: Final = 50

_tell: Final = Struct(f"<{kernels.POSITION}q").pack_into


class LoneNumbers(NamedTuple):
    """What a batch was given, which is durable as its class promises."""

    position: Position
    base_seq: Seq
    timestamp_ns: TimestampNs


class LoneWay:
    """The lone batches of one pod with one worker."""

    def __init__(
        self,
        fabric: FabricArrays,
        sequencer: PodSequencer,
        frontier: CommitFrontier,
        follower: Follower,
        short_way: ShortWay,
        sessions: Sessions,
        clock: Clock,
    ) -> None:
        self._sequencer = sequencer
        self._follower = follower
        self._short_way = short_way
        self._clock = clock
        self._memory = np.zeros(EPOCH_HEADER + limits.LARGE_BATCH_SIZE, np.uint8)
        self._desk = np.zeros(kernels.DESK_SIZE, np.int64)
        self._told = self._desk.data.cast("B")
        self._given = self._desk[kernels.POSITION : kernels.TERM]
        self._rests_until = 0
        (worker, *others) = sequencer.workers
        self.is_open = not others and short_way.can_write
        counters, state = worker.lone_arrays
        # Kept as long as their addresses lie on the desk.
        self._referred: list[npt.NDArray[Any]] = [
            *(*frontier.arrays, short_way.rows, *worker.window.arrays, *sessions.window.arrays),
            *(fabric.control_words, counters, fabric.replica_words[0], fabric.tail_all_words),
            *(fabric.completion_all_words, state),
        ]
        for place, array in enumerate(self._referred):
            self._desk[kernels.KEYS + 2 * place :][:2] = array.ctypes.data, len(array)
        self._desk[kernels.TERM] = sequencer.term
        self._desk[kernels.CHECKPOINT_AFTER] = limits.GOI_CHECKPOINT_PERCENT * len(fabric.goi) // 100

    def commit(
        self, topic_id: TopicId, source: Bytes, at: int, size: int, count: int, *, is_strong: bool
    ) -> LoneNumbers | None:
        """Commit the batch that lies at `at` of a buffer; None if it has to go through the rings.

        The caller has the lead, and the store's memory. An error is one of writing: what is on the disk is unknown.
        """
        clock, follower, short_way = self._clock, self._follower, self._short_way
        began = clock.monotonic_ns()
        if began < self._rests_until or self._sequencer.is_quiescing:
            return None
        now = clock.wall_ns()
        room = follower.lone_room(topic_id, size, count, now)
        if room is None:
            return None
        row = short_way.next_row
        file, file_at, kind, direct_sync = short_way.lone_file(durable=room.is_durable)
        _tell(self._told, 0, *short_way.lone_epoch(), now, row, follower.next_position)
        batch = (self._memory, self._desk, source, at, size, int(is_strong))
        written = kernels.commit_lone_arrival(*batch, kind, file.fileno(), file_at, direct_sync)
        if written == kernels.PASSES_ON:
            return None
        if written != EPOCH_HEADER + size:
            short_way.make_good(file, file_at, self._memory.data[: EPOCH_HEADER + size], written, room.is_durable)
            kernels.settle_lone_arrival(self._desk, self._memory)
        numbers = LoneNumbers(*self._given.tolist())
        room.take(count, size, now)
        short_way.take_row()
        short_way.keep_written(row, EPOCH_HEADER + size, numbers.position, numbers.timestamp_ns, room.is_durable)
        follower.passed_by(numbers.position, numbers.timestamp_ns)
        self._sequencer.frontier.passed_by(numbers.position)
        took = clock.monotonic_ns() - began
        if took > LONG_WRITE_NS:
            self._rests_until = began + REST_FACTOR * took
        return numbers
