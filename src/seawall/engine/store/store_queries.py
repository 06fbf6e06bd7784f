"""Read-only queries of a store: reads of one topic, reads of all topics by position, and lookups by time or offset.

Reads are planned here while nothing changes. The caller executes the plan without the store. Queries do not change the
state of the store, but the first query of a topic may recover its directory (`topic_logs.py`).

This module must not know who appends. It has no state that a crash could lose.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from seawall.core.types import Offset, Position, Seq, TimestampNs, TopicId
from seawall.engine.ordering.orderer import Orderer
from seawall.engine.read.position_reading import PartialPosition, PositionPlan, plan_positions
from seawall.engine.read.reading import ReadItem, ReadPlan, plan_pending, plan_read, seq_at
from seawall.engine.read.v1_offsets import OffsetBounds, StreamRead, offset_at_seq, offset_bounds, seq_at_offset
from seawall.engine.store.parts import StoreParts
from seawall.engine.store.topic_log import TopicLog
from seawall.topics.changes import TopicIds
from seawall.topics.state import TopicState

#: Topics whose newest batches are searched among the pending rows; for more of them the rows are applied.
_SEARCHED_MAX: Final = 8


class ChangeMark(NamedTuple):
    """A moment after which changes of topics are asked for."""

    applied: int
    next_position: Position


class ChangedTopics(NamedTuple):
    """Topics with changes that are applied, and topics with pending batches; ascending."""

    applied: TopicIds
    pending: TopicIds


class StoreQueries:
    """The read-only queries of one store."""

    def __init__(self, parts: StoreParts, orderer: Orderer) -> None:
        self._parts = parts
        self._orderer = orderer
        self._logs = parts.logs

    def plan_read(self, name: str, from_seq: Seq, *, size_max: int, records_max: int | None = None) -> ReadPlan:
        """Plan the next read at `from_seq`; the plan executes without the store (`reading.py`)."""
        parts = self._parts
        topic = parts.catalog.named(name)
        topic.used_ns = parts.machine.clock.monotonic_ns()
        # A reader at the end does not need the rows applied: that would cost more than the read.
        if from_seq >= topic.next_seq and not len(topic.skips):
            found = parts.pending.find(topic.topic_id, from_seq, size_max, records_max)
            if found is not None:
                return plan_pending(topic, self._logs.get(topic.topic_id), found, from_seq)
        return plan_read(*self._find(name), from_seq, size_max=size_max, records_max=records_max)

    @property
    def next_position(self) -> Position:
        """The position of the next batch of any topic."""
        return self._parts.pending.next_position

    def plan_ordered(self, name: str, from_seq: Seq, *, size_max: int, records_max: int | None = None) -> ReadPlan:
        """Like `plan_read`, plus batches that a sequencer has ordered and that are not stored yet."""
        plan = self.plan_read(name, from_seq, size_max=size_max, records_max=records_max)
        # After a failure, ordered batches are not stored: readers must not see them.
        if plan.end_seq >= plan.next_seq and not self._parts.guard.is_failed:
            plan.tail = self._orderer.tail(self._parts.catalog.named(name).topic_id, from_seq, size_max)
        return plan

    def ordered_end(self, topic_id: TopicId) -> Seq:
        """The seq of the next record of a topic, whether or not the records before it are stored yet."""
        return self._parts.writer.frontier.topic(topic_id).next_seq

    def plan_positions(
        self,
        from_position: Position,
        *,
        size_max: int,
        records_max: int | None = None,
        partial_position: PartialPosition | None = None,
        cuts_positions: bool = False,
    ) -> PositionPlan:
        """Plan the next read of all topics at `from_position`."""
        return plan_positions(
            self._parts.current_catalog().shown(),
            self._logs.get,
            from_position,
            size_max=size_max,
            records_max=records_max,
            partial_position=partial_position,
            cuts_positions=cuts_positions,
        )

    def read(self, name: str, from_seq: Seq, *, size_max: int) -> list[ReadItem]:
        """Read at `from_seq`: batches and gaps, in order."""
        return self.plan_read(name, from_seq, size_max=size_max).execute()

    def seq_at(self, name: str, timestamp_ns: TimestampNs) -> Seq:
        """The seq of the first record at or after `timestamp_ns`; the next seq if all are older."""
        return seq_at(*self._find(name), timestamp_ns)

    def topic_log(self, topic_id: TopicId) -> TopicLog | None:
        """The segments of a topic, or None: for queries that an index lookup answers."""
        return self._logs.get(topic_id)

    def change_mark(self) -> ChangeMark:
        """The present moment, for `topics_changed`."""
        return ChangeMark(self._parts.catalog.changes.mark, self.next_position)

    def topics_changed(self, since: ChangeMark) -> ChangedTopics | None:
        """The topics that were created, deleted or got records or losses since a mark, and maybe shortly before.

        None if too much has changed to know them all. A caller at the end of these topics applies no pending rows by
        reading a few of them; if there are many, they are applied here.
        """
        parts = self._parts
        applied = parts.catalog.changes.since(since.applied)
        pending = parts.pending.topics_from(since.next_position)
        if applied is None or np.unique(pending).size > _SEARCHED_MAX:
            parts.pending.apply()
            applied, pending = parts.catalog.changes.since(since.applied), pending[:0]
        return None if applied is None else ChangedTopics(np.unique(applied), np.unique(pending))

    @property
    def is_synced(self) -> bool:
        """True if everything that can be read now is synced to disk, except for records that live in memory."""
        return self._parts.writer.is_settled

    # --- the byte stream of version 1 ----------------------------------------------------------------------------

    def plan_stream(self, name: str, read: StreamRead) -> bool:
        """Plan the next piece of a stream read, to be executed without the store; false at the end."""
        return read.plan(*self._find(name))

    def offset_bounds(self, name: str) -> OffsetBounds:
        """The first offset that a topic still has, and its end offset."""
        return offset_bounds(*self._find(name))

    def seq_at_offset(self, name: str, offset: Offset) -> Seq:
        """The seq of the first record that starts at or after an offset; the next seq if there is none."""
        return seq_at_offset(*self._find(name), offset)

    def offset_at_seq(self, name: str, seq: Seq) -> Offset:
        """The offset of a record, or of the first kept record after it; the end offset if there is none."""
        return offset_at_seq(*self._find(name), seq)

    def index_size(self, name: str) -> int:
        """Bytes of memory that the indexes of a topic take."""
        _, log = self._find(name)
        return 0 if log is None else log.index_size

    def _find(self, name: str) -> tuple[TopicState, TopicLog | None]:
        topic = self._parts.current_catalog().named(name)
        return topic, self._logs.get(topic.topic_id)
