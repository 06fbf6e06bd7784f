"""The way of one small batch of a publisher that comes while nothing else is under way: past the rings of the pod.

One kernel call (`kernels.lone_turn`) checks, orders, numbers, writes, settles and answers it, on the thread that
received it, and those that its connection sends upon each answer, for a moment. What is left to do here, while the last
answer is on its way, is what the store's own short way does: the rows that catalog and index learn of later
(`short_way`). Whoever asks the store meanwhile waits for that: what was acked is there to be read.

The loop of a server waits for the disk meanwhile, so this is for disks that are fast: after two writes in a row that
took long it is not tried again for fifty times as long, and what comes goes through the rings, which nobody waits for.

INV-LONE-NEXT, INV-SHORT-WAY: as in the kernel. A crash in the middle loses a batch that nobody was told of, or leaves
it in the log, where its publisher finds it when it sends it again. This module must not know sessions, nor how a
connection sends what the kernel could not.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np

from seawall import limits
from seawall.core.types import Position, TimestampNs, TopicId
from seawall.engine.following import Follower
from seawall.engine.lone_desk import LoneDesk, LoneTurn
from seawall.engine.rooms import Room
from seawall.engine.short_way import ShortWay
from seawall.engine.topic_rules import TopicRules
from seawall.io.files import OsFile
from seawall.io.interfaces import Clock
from seawall.kernels import lone_arrival as kernels
from seawall.kernels import lone_turn
from seawall.kernels.batch_header import RECORD_COUNT_AT
from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.memory import Bytes
from seawall.sequencer.pod_sequencer import PodSequencer

#: A write that takes longer than this is long, and how many times as long nothing is written by the loop after it.
LONG_WRITE_NS: Final = 4_000_000
REST_FACTOR: Final = 50
#: For how long batches that come upon each answer are waited for at once: others may want what is locked meanwhile.
PATIENCE_NS: Final = 500_000

_tell: Final = Struct(f"<{kernels.POSITION}q").pack_into
_tell_file: Final = Struct(f"<{lone_turn.TOPIC_ID - lone_turn.KIND}q").pack_into
_tell_room: Final = Struct(f"<{lone_turn.LONG_DESK_SIZE - lone_turn.TOPIC_ID}q").pack_into
_NONE_TAKEN: Final = (0, 0, 0)
#: Record count and topic in the header of a batch.
_NUMBERS: Final = Struct("<I8xI")
#: Bytes of the log that are looked after at once: batches within them need no look of their own.
_AHEAD_SIZE: Final = limits.MIB


class LoneWay:
    """The lone batches of one pod with one worker."""

    def __init__(
        self,
        desk: LoneDesk,
        sequencer: PodSequencer,
        follower: Follower,
        short_way: ShortWay,
        clock: Clock,
    ) -> None:
        self._sequencer = sequencer
        self._follower = follower
        self._short_way = short_way
        self._clock = clock
        self._memory = np.zeros(EPOCH_HEADER + limits.LARGE_BATCH_SIZE - 1, np.uint8)
        self._lone_desk = desk
        self._desk = desk.words
        self._told = self._desk.data.cast("B")
        self._given = self._desk[kernels.POSITION : kernels.TERM]
        self._rests_until = 0
        self._was_long = False
        #: What is prepared for the next batch, if anything is: its room, its topic, its row, and bytes in the log.
        self._room: Room | None = None
        self._topic_id = self._row = self._left = 0
        self._file: OsFile
        self._is_open = desk.is_complete and short_way.can_write

    def commit(self, turn: LoneTurn, source: Bytes, size: int, rules: TopicRules, *, is_prepared: bool) -> bool:
        """Commit the batch that the first bytes of a buffer are, and answer it; false if it goes through the rings.

        The caller has the lead, and the store's memory; `is_prepared` if nobody has had the lead since the last time.
        An error is one of writing: what is on the disk is unknown.
        """
        if not limits.BATCH_HEADER_SIZE <= size < limits.LARGE_BATCH_SIZE or not self._is_open:
            return False
        now = self._clock.wall_ns()
        # Nobody has checked these numbers yet: the kernel does.
        count, topic_id = _NUMBERS.unpack_from(source.data, RECORD_COUNT_AT)
        room = self._room
        is_prepared &= topic_id == self._topic_id and self._row == self._short_way.next_row
        is_prepared &= EPOCH_HEADER + size <= self._left
        if room is None or not is_prepared:
            if self._clock.monotonic_ns() < self._rests_until:
                return False
            room = self._prepare(topic_id, size, count, now)
        if room is None:
            return False
        left = min(max(self._left, EPOCH_HEADER + size), room.bytes_left)
        most = (room.until_ns, self._short_way.rows_left, room.records_left, left, PATIENCE_NS)
        _tell_room(self._told, 8 * lone_turn.TOPIC_ID, topic_id, *most, *_NONE_TAKEN)
        self._desk[kernels.WALL_NS] = now
        arrays = (self._memory, self._desk, turn.words, source, size)
        written = lone_turn.take_lone_turns(*arrays, rules.orders, rules.levels, turn.rows, turn.state, turn.ack)
        taken, taken_size, longest_ns = self._desk[lone_turn.TAKEN_BATCHES :].tolist()
        if written != kernels.PASSES_ON and written != EPOCH_HEADER + turn.size:
            self._make_good(turn, source, written, room)
            taken, taken_size = taken + 1, taken_size + EPOCH_HEADER + turn.size
        if not taken:
            return False
        self._finish(taken, taken_size, room)
        self._look_at_time(longest_ns)
        return True

    def _look_at_time(self, longest_ns: int) -> None:
        """Leave the loop alone for a while if its disk is slow; one long write may be an accident."""
        was_long, self._was_long = self._was_long, longest_ns > LONG_WRITE_NS
        if was_long and self._was_long:
            self._rests_until = self._clock.monotonic_ns() + REST_FACTOR * longest_ns
            self._room = None

    def _prepare(self, topic_id: int, size: int, count: int, now: int) -> Room | None:
        """Put what the next batch needs on the desk; None if it has no room, or has to go through the rings."""
        short_way, follower = self._short_way, self._follower
        self._room = None
        if self._sequencer.is_quiescing:
            return None
        room = follower.lone_room(TopicId(topic_id), size, count, _AHEAD_SIZE, now)
        self._left = _AHEAD_SIZE
        if room is None or not room.is_durable:
            # What is not durable is followed by what has to be synced with it, which is looked at each time.
            room, self._left = follower.lone_room(TopicId(topic_id), size, count, size, now), 0
        if room is None:
            return None
        self._room, self._topic_id, self._row = room, topic_id, short_way.next_row
        self._file, file_at, kind, direct_sync = short_way.lone_file(durable=room.is_durable)
        _tell(self._told, 0, *short_way.lone_epoch(), now, self._row, follower.next_position)
        _tell_file(self._told, 8 * lone_turn.KIND, kind, self._file.fileno(), file_at, direct_sync)
        return room

    def _make_good(self, turn: LoneTurn, source: Bytes, written: int, room: Room) -> None:
        """Write an epoch that the kernel could not, or not all of it."""
        epoch, at = self._memory.data[: EPOCH_HEADER + turn.size], int(self._desk[lone_turn.FILE_AT])
        self._short_way.make_good(self._file, at, epoch, written, room.is_durable)
        kernels.settle_lone_arrival(self._desk, self._memory)
        lone_turn.seal_lone_ack(turn.words, self._desk, source, turn.ack)
        lone_turn.prepare_next(self._desk, len(epoch))
        count, _ = _NUMBERS.unpack_from(source.data, RECORD_COUNT_AT)
        self._desk[lone_turn.RECORDS_LEFT] -= count
        turn.taken()

    def _finish(self, count: int, size: int, room: Room) -> None:
        """What the kernel has written may take effect: so many epochs, of so many bytes."""
        short_way = self._short_way
        position, timestamp_ns = Position(self._given.item(0)), TimestampNs(self._given.item(2))
        short_way.keep_lone(count, size, position, timestamp_ns, room.is_durable)
        self._follower.passed_by(position, timestamp_ns)
        self._sequencer.frontier.passed_by(position)
        # The kernel has prepared the next one behind them (`lone_turn.prepare_next`).
        room.records_left = self._desk.item(lone_turn.RECORDS_LEFT)
        room.bytes_left -= size - count * EPOCH_HEADER
        self._left -= size
        self._row += count
        if short_way.is_full:
            self._room = None
