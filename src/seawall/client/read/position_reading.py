"""Readers of everything in the one order, over the network: batches of all topics, and SKIPs. No I/O.

The server tells positions; what was evicted or lost has none, and shows by the seqs of its topic.
"""

from __future__ import annotations

from collections.abc import Mapping

from seawall.api.received import PositionItem, ReceivedSkip
from seawall.client.connection.connection import refusal_of
from seawall.client.read.reading import NO_LIMIT, received_batch
from seawall.core.types import ClientSeq, Position, Seq, TopicId
from seawall.errors import ProtocolError
from seawall.limits import FETCH_SIZE_MAX
from seawall.wire.format.chunks import checked_chunks
from seawall.wire.format.codes import ALL_TOPICS, Command, DataFlags, ErrorCode, ReadBy, ReadFlags
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.reading import Fetch, Within, parse_data_prefix, parse_gap


class PositionReader:
    """Where a reader of all topics is, and what its next request is."""

    def __init__(self, by: ReadBy, start: int) -> None:
        self._by = by
        self._start = start
        #: How far the position that is read next was told, where some of it was.
        self._within: Within | None = None
        #: Whether the last answer said that there is no more now.
        self.is_at_end = False

    @property
    def is_within(self) -> bool:
        """Whether the last answer ended in the middle of a position: the rest of it belongs to what it told."""
        return self._within is not None

    @property
    def next_position(self) -> Position:
        """What is read next; 0 while only the server knows."""
        return Position(self._start if self._by is ReadBy.POSITION else 0)

    def go_back(self, position: Position) -> None:
        """Read again from a position on that was passed, because nobody has seen what lies behind it."""
        if self._by is ReadBy.POSITION and position < self._start:
            self._go_on_at(position)
            self.is_at_end = False

    def fetch(self, *, max_bytes: int, max_records: int = NO_LIMIT, wait_ms: int = 0) -> Fetch:
        """The next request. The server looks at what it sends: damage would have no position to be told at."""
        return Fetch(
            TopicId(ALL_TOPICS),
            self._by,
            self._start,
            max_bytes=min(max_bytes, FETCH_SIZE_MAX),
            max_records=max_records,
            min_bytes=1 if wait_ms else 0,
            wait_ms=wait_ms,
            flags=ReadFlags.NONE,
            within=self._within,
        )

    def take(self, frame: Frame, names: Mapping[TopicId, str]) -> list[PositionItem]:
        """What an answer holds, with topics by their names; the place moves behind it."""
        command = frame.header.command
        if command == Command.GAP:
            gap = parse_gap(frame.payload)
            self._go_on_at(gap.position + 1)
            self.is_at_end = False
            topic, count = names.get(gap.topic_id, ""), gap.last - gap.first + 1
            return [ReceivedSkip(topic, gap.position, gap.client_id, ClientSeq(gap.first), count, Seq(0))]
        if command != Command.FETCH_DATA:
            raise refusal_of(frame) or ProtocolError(
                f"a read was answered by command {command:#x}", code=ErrorCode.UNKNOWN_COMMAND, closes=False
            )
        prefix = parse_data_prefix(frame.payload)
        chunks, damage = checked_chunks(frame, prefix)
        if damage is not None:
            raise damage
        batches = (
            received_batch(names.get(TopicId(chunk.topic_id), ""), frame.payload, chunk, Seq(1)) for chunk in chunks
        )
        found: list[PositionItem] = [batch for batch in batches if batch is not None]
        self.is_at_end = bool(prefix.flags & DataFlags.CAUGHT_UP) or not prefix.chunk_count
        self._go_on_at(prefix.next_position)
        if prefix.flags & DataFlags.PART:
            last = chunks[-1]
            self._within = Within(TopicId(last.topic_id), Seq(last.base_seq + last.record_count))
        return found

    def _go_on_at(self, position: int) -> None:
        self._by, self._start, self._within = ReadBy.POSITION, position, None


def topics_in(frame: Frame) -> set[TopicId]:
    """The ids of the topics that an answer has something of."""
    if frame.header.command == Command.GAP:
        return {parse_gap(frame.payload).topic_id} - {TopicId(0)}
    if frame.header.command != Command.FETCH_DATA:
        return set()
    chunks, _ = checked_chunks(frame, parse_data_prefix(frame.payload))
    return {TopicId(chunk.topic_id) for chunk in chunks}
