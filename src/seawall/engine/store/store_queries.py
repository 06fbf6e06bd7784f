"""Read-only queries of a store: reads of a topic, of all of them by position, and where a time lies.

Reads are planned here, while nothing changes, and carried out by whoever asked, without the store. Nothing here changes
what a store holds; but the first query of a topic may recover it, which changes its directory (`topic_logs.py`).

This module must not know who appends. A crash takes nothing of it.
"""

from __future__ import annotations

from seawall.core.types import Offset, Position, Seq, TimestampNs, TopicId
from seawall.engine.ordering.orderer import Orderer
from seawall.engine.read.position_reading import PositionPlan, Told, plan_positions
from seawall.engine.read.reading import ReadItem, ReadPlan, plan_read, seq_at
from seawall.engine.read.v1_offsets import OffsetBounds, StreamRead, offset_at_seq, offset_bounds, seq_at_offset
from seawall.engine.store.parts import StoreParts
from seawall.engine.store.topic_log import TopicLog
from seawall.topics.state import TopicState


class StoreQueries:
    """The read-only queries of one store."""

    def __init__(self, parts: StoreParts, orderer: Orderer) -> None:
        self._parts = parts
        self._orderer = orderer
        self._logs = parts.logs

    def plan_read(self, name: str, from_seq: Seq, *, size_max: int, records_max: int | None = None) -> ReadPlan:
        """What a reader at `from_seq` gets next, to be carried out without the store (`reading.py`)."""
        return plan_read(*self._find(name), from_seq, size_max=size_max, records_max=records_max)

    def plan_ordered(self, name: str, from_seq: Seq, *, size_max: int, records_max: int | None = None) -> ReadPlan:
        """The same, and what is ordered and not stored yet, where others order."""
        plan = self.plan_read(name, from_seq, size_max=size_max, records_max=records_max)
        # What is ordered when writing fails is not stored: nobody is shown it any more.
        if plan.end_seq >= plan.next_seq and not self._parts.guard.is_failed:
            plan.tail = self._orderer.tail(self._parts.catalog.named(name).topic_id, from_seq, size_max)
        return plan

    def ordered_end(self, topic_id: TopicId) -> Seq:
        """The seq that the next record of a topic gets, whatever of those before is stored yet."""
        return self._parts.writer.frontier.topic(topic_id).next_seq

    def plan_positions(
        self,
        from_position: Position,
        *,
        size_max: int,
        records_max: int | None = None,
        told: Told | None = None,
        cuts_positions: bool = False,
    ) -> PositionPlan:
        """What a reader of all topics at `from_position` gets next."""
        return plan_positions(
            self._parts.current_catalog().shown(),
            self._logs.get,
            from_position,
            size_max=size_max,
            records_max=records_max,
            told=told,
            cuts_positions=cuts_positions,
        )

    def read(self, name: str, from_seq: Seq, *, size_max: int) -> list[ReadItem]:
        """What a reader at `from_seq` gets next: batches and, in order with them, the gaps it has to know of."""
        return self.plan_read(name, from_seq, size_max=size_max).execute()

    def seq_at(self, name: str, timestamp_ns: TimestampNs) -> Seq:
        """Seq of the first record that is not older than `timestamp_ns`; the next one to come if all are."""
        return seq_at(*self._find(name), timestamp_ns)

    def topic_log(self, topic_id: TopicId) -> TopicLog | None:
        """The segments of a topic, if it has any: for queries that lookups in its indexes answer."""
        return self._logs.get(topic_id)

    # --- the byte stream of version 1 ----------------------------------------------------------------------------

    def plan_stream(self, name: str, read: StreamRead) -> bool:
        """Plan the next piece of a read of the stream, to be carried out without the store; false if that was all."""
        return read.plan(*self._find(name))

    def offset_bounds(self, name: str) -> OffsetBounds:
        """The first byte that is kept of a topic, and the one behind the last."""
        return offset_bounds(*self._find(name))

    def seq_at_offset(self, name: str, offset: Offset) -> Seq:
        """The first record that starts at an offset or behind it; the next one to come if there is none."""
        return seq_at_offset(*self._find(name), offset)

    def offset_at_seq(self, name: str, seq: Seq) -> Offset:
        """Where a record starts, or the first one kept behind it; the end if there is none."""
        return offset_at_seq(*self._find(name), seq)

    def index_size(self, name: str) -> int:
        """Bytes of memory that the indexes of a topic take."""
        _, log = self._find(name)
        return 0 if log is None else log.index_size

    def _find(self, name: str) -> tuple[TopicState, TopicLog | None]:
        topic = self._parts.current_catalog().named(name)
        return topic, self._logs.get(topic.topic_id)
