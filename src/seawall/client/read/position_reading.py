"""The protocol of reading all topics in the total order: batches and SKIPs by position. No I/O.

Responses are ordered by position. Evicted and lost records have no position; they show as missing seqs of their topic.
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
    """The position of a reader of all topics, and its next request."""

    def __init__(self, by: ReadBy, start: int) -> None:
        self._by = by
        self._start = start
        #: How much of the next position was received already, if the last response ended within it.
        self._within: Within | None = None
        #: True if the last response reached the end of the log.
        self.is_at_end = False

    @property
    def is_within(self) -> bool:
        """True if the last response ended in the middle of a position; the next response has the rest of it."""
        return self._within is not None

    @property
    def next_position(self) -> Position:
        """The position to read next; 0 while only the server knows it."""
        return Position(self._start if self._by is ReadBy.POSITION else 0)

    def go_back(self, position: Position) -> None:
        """Rewind to an earlier position, because the caller has not consumed the items after it."""
        if self._by is ReadBy.POSITION and position < self._start:
            self._continue_at(position)
            self.is_at_end = False

    def fetch(self, *, max_bytes: int, max_records: int = NO_LIMIT, wait_ms: int = 0) -> Fetch:
        """The next request. The server verifies the batches, because a damaged batch has no position to report."""
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
        """The items of a response, with topics resolved by `names`; moves the reader past them."""
        command = frame.header.command
        if command == Command.GAP:
            gap = parse_gap(frame.payload)
            self._continue_at(gap.position + 1)
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
        self._continue_at(prefix.next_position)
        if prefix.flags & DataFlags.PART:
            last = chunks[-1]
            self._within = Within(TopicId(last.topic_id), Seq(last.base_seq + last.record_count))
        return found

    def _continue_at(self, position: int) -> None:
        self._by, self._start, self._within = ReadBy.POSITION, position, None


def topics_in(frame: Frame) -> set[TopicId]:
    """The ids of the topics in a response."""
    if frame.header.command == Command.GAP:
        return {parse_gap(frame.payload).topic_id} - {TopicId(0)}
    if frame.header.command != Command.FETCH_DATA:
        return set()
    chunks, _ = checked_chunks(frame, parse_data_prefix(frame.payload))
    return {TopicId(chunk.topic_id) for chunk in chunks}
