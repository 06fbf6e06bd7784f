"""What can be asked of a store: reads of a topic, of all of them by position, and where a time lies.

Reads are planned here, while nothing changes, and carried out by whoever asked, without the store. Nothing here changes
what a store holds; but the first question about a topic may recover it, which changes its directory (`topic_logs.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from seawall.core.types import Offset, Position, Seq, TimestampNs, TopicId
from seawall.engine.orderer import Orderer
from seawall.engine.parts import StoreParts
from seawall.engine.position_reading import PositionPlan, Told, plan_positions
from seawall.engine.reading import ReadItem, ReadPlan, plan_read, seq_at
from seawall.engine.served_offsets import OffsetBounds, StreamRead, offset_at_seq, offset_bounds, seq_at_offset
from seawall.engine.topic_log import TopicLog
from seawall.engine.topic_logs import TopicLogs
from seawall.topics.catalog import TopicCatalog


class StoreQuestions(ABC):
    """The part of a store that only looks."""

    _logs: TopicLogs
    parts: StoreParts
    orderer: Orderer

    @property
    @abstractmethod
    def catalog(self) -> TopicCatalog:
        """All topics as they are now."""

    def plan_read(self, name: str, from_seq: Seq, *, size_max: int, records_max: int | None = None) -> ReadPlan:
        """What a reader at `from_seq` gets next, to be carried out without the store (`reading.py`)."""
        topic = self.catalog.named(name)
        return plan_read(topic, self._logs.get(topic.topic_id), from_seq, size_max=size_max, records_max=records_max)

    def plan_ordered(self, name: str, from_seq: Seq, *, size_max: int, records_max: int | None = None) -> ReadPlan:
        """The same, and what is ordered and not stored yet, where others order."""
        plan = self.plan_read(name, from_seq, size_max=size_max, records_max=records_max)
        # What is ordered when writing fails is not stored: nobody is shown it any more.
        if plan.end_seq >= plan.next_seq and not self.parts.guard.is_failed:
            plan.tail = self.orderer.tail(self.catalog.named(name).topic_id, from_seq, size_max)
        return plan

    def ordered_end(self, topic_id: TopicId) -> Seq:
        """The seq that the next record of a topic gets, whatever of those before is stored yet."""
        return self.parts.writer.frontier.topic(topic_id).next_seq

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
            self.catalog.shown(),
            self._logs.get,
            from_position,
            size_max=size_max,
            records_max=records_max,
            told=told,
            cuts_positions=cuts_positions,
        )

    def read(self, name: str, from_seq: Seq, *, size_max: int) -> list[ReadItem]:
        """What a reader at `from_seq` gets next: batches and, in order with them, the gaps it has to know of."""
        return self.plan_read(name, from_seq, size_max=size_max).carry_out()

    def seq_at(self, name: str, timestamp_ns: TimestampNs) -> Seq:
        """Seq of the first record that is not older than `timestamp_ns`; the next one to come if all are."""
        topic = self.catalog.named(name)
        return seq_at(topic, self._logs.get(topic.topic_id), timestamp_ns)

    def topic_log(self, topic_id: TopicId) -> TopicLog | None:
        """The segments of a topic, if it has any: for questions that lookups in its indexes answer."""
        return self._logs.get(topic_id)

    # --- the byte stream of version 1 ----------------------------------------------------------------------------

    def plan_stream(self, name: str, read: StreamRead) -> bool:
        """Plan the next piece of a read of the stream, to be carried out without the store; false if that was all."""
        topic = self.catalog.named(name)
        return read.plan(topic, self._logs.get(topic.topic_id))

    def offset_bounds(self, name: str) -> OffsetBounds:
        """The first byte that is kept of a topic, and the one behind the last."""
        topic = self.catalog.named(name)
        return offset_bounds(topic, self._logs.get(topic.topic_id))

    def seq_at_offset(self, name: str, offset: Offset) -> Seq:
        """The first record that starts at an offset or behind it; the next one to come if there is none."""
        topic = self.catalog.named(name)
        return seq_at_offset(topic, self._logs.get(topic.topic_id), offset)

    def offset_at_seq(self, name: str, seq: Seq) -> Offset:
        """Where a record starts, or the first one kept behind it; the end if there is none."""
        topic = self.catalog.named(name)
        return offset_at_seq(topic, self._logs.get(topic.topic_id), seq)

    def index_size(self, name: str) -> int:
        """Bytes of memory that the indexes of a topic take."""
        log = self._logs.get(self.catalog.named(name).topic_id)
        return 0 if log is None else log.index_size
