"""The way of one large batch of a publisher that comes while nothing else is under way, to a topic of class ephemeral.

One kernel call (`kernels.lone_memory`) checks, orders, numbers and answers it, on the thread that received it: past the
rings of the pod. It stays where it was received (`landing`): that memory becomes its segment's, before anybody can read
there. Room, in the log too, and evictions are looked after for several batches at once; catalog and index learn of them
later (`short_way`).

INV-LONE-NEXT, INV-MEMORY-SAME: as in the kernel. A crash loses it, as it does everything of the class. This module must
not know sessions, nor how a connection sends what the kernel could not.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final
from weakref import ref

import numpy as np

from seawall import limits
from seawall.core.types import Position, Term, TimestampNs, TopicId
from seawall.engine.committer import Committer
from seawall.engine.following import Follower
from seawall.engine.landing import Landing
from seawall.engine.lone_desk import LoneDesk, LoneTurn
from seawall.engine.room_making import Need
from seawall.engine.topic_rules import TopicRules
from seawall.io.interfaces import Clock
from seawall.io.memory_files import MemoryFile
from seawall.kernels import lone_arrival, lone_turn
from seawall.kernels import lone_memory as kernels
from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.memory import Bytes
from seawall.kernels.tables import Values
from seawall.sequencer.pod_sequencer import PodSequencer

#: Record count and topic in the header of a batch.
_NUMBERS: Final = Struct("<I8xI")
_NUMBERS_AT: Final = 28


class MemoryWay:
    """The lone batches of one pod that go to memory."""

    def __init__(
        self,
        desk: LoneDesk,
        sequencer: PodSequencer,
        follower: Follower,
        committer: Committer,
        clock: Clock,
        term: Term,
    ) -> None:
        self._lone_desk = desk
        self._desk = desk.words
        self._desk[kernels.LOG_TERM] = term
        self._given = self._desk[lone_arrival.POSITION : lone_arrival.TERM]
        self._memory = np.zeros(EPOCH_HEADER + limits.BATCH_HEADER_SIZE, np.uint8)
        self._sequencer = sequencer
        self._follower = follower
        self._committer = committer
        self._short_way = committer.short_way
        self._clock = clock
        self._is_open = desk.is_complete
        #: What is prepared for batches of a topic: how much of each there is, the file, and where the next one goes. A
        #: file goes with its topic, and takes its memory along, whether another batch comes or not.
        self._topic_id = self._records_left = self._bytes_left = self._until_ns = 0
        self._file: Callable[[], MemoryFile | None] = _no_file
        self._at = 0

    def commit(
        self,
        turn: LoneTurn,
        source: Bytes,
        size: int,
        rules: TopicRules,
        state: Values,
        landing: Landing,
        *,
        is_prepared: bool,
    ) -> bool:
        """Keep the batch that a buffer holds, where it has landed, and answer it; false if it goes through the rings.

        `state` is what is known of the bytes, which have been summed as they came. The caller has the lead, and the
        store's memory; `is_prepared` if nobody has had the lead since the last time.
        """
        if not self._is_open:
            return False
        # Nobody has checked these numbers yet: the kernel does.
        count, topic_id = _NUMBERS.unpack_from(source.data, _NUMBERS_AT)
        now = self._clock.wall_ns()
        has_room = is_prepared and topic_id == self._topic_id and now < self._until_ns
        has_room &= count <= self._records_left and size <= self._bytes_left
        if not has_room:
            # Nothing is evicted for what nobody may send. What has been summed is known to the kernel, too.
            known = state.copy()
            checked = (turn.words, source, size, lone_turn.ORDERED, rules.orders, rules.levels, turn.rows, known)
            if lone_turn.check_lone_turn(*checked) < 0 or not self._prepare(TopicId(topic_id), size, count, now):
                return False
        short_way, desk = self._short_way, self._desk
        if short_way.is_full:
            self._committer.absorb()
        row = short_way.next_row
        desk[lone_arrival.WALL_NS] = now
        desk[lone_arrival.STAGED_ROW] = row
        lane, start = self._follower.room_for_mark()
        source = landing.land(source, size)
        arrays = (self._memory, desk, turn.words, source, size, lane, start)
        size = kernels.take_memory_turn(*arrays, rules.orders, rules.levels, turn.rows, state, turn.ack)
        if size < 0:
            return False
        file = self._file()
        assert file is not None, "nobody has had the lead since it was found"
        landing.keep(file, self._at, size, topic_id)
        self._at += size
        self._records_left -= count
        self._bytes_left -= size
        position, timestamp_ns = Position(self._given.item(0)), TimestampNs(self._given.item(2))
        self._follower.marked(position, timestamp_ns)
        short_way.take_row()
        short_way.keep_row(row)
        self._sequencer.frontier.passed_by(position)
        return True

    def _prepare(self, topic_id: TopicId, size: int, count: int, now: int) -> bool:
        """Look for room, for this batch and some like it; false if it has none, or has to go through the rings."""
        self._topic_id = 0
        if self._sequencer.is_quiescing:
            return False
        found = self._follower.memory_room(topic_id, Need(count, size, size), now)
        if found is None:
            return False
        room, need = found
        segment = room.filling.segment
        file = segment.shared.file
        assert isinstance(file, MemoryFile), "a topic of this class has no other"
        self._file, self._at = ref(file), segment.end
        self._desk[lone_arrival.FOLLOWED] = self._follower.next_position
        self._topic_id, self._until_ns = topic_id, room.until_ns
        self._records_left, self._bytes_left = need.records, need.size
        return True


def _no_file() -> None:
    """Nothing was prepared yet."""
