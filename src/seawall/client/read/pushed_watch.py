"""The protocol of one watch on one connection: its request, its frames as steps, and its credit. No I/O.

The server sends stored batches without verifying them. If one is damaged, the steps before it count, and the watch is
started again as a *careful* one, for which the server verifies everything and reports the damage as a gap.
"""

from __future__ import annotations

from seawall.api.received import ReceivedSkip, seq_after
from seawall.api.watch_items import Step, TopicMoved, WatchProgress, first_steps, steps_of, watch_item
from seawall.client.connection.connection import refusal_of
from seawall.client.read.granted_credit import GrantedCredit
from seawall.client.read.reading import TopicReader
from seawall.core.types import TopicId
from seawall.core.watches import TopicEvent, TopicEventKind
from seawall.errors import ProtocolError
from seawall.wire.format.codes import Command, ErrorCode, ReadBy, ReadFlags
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.reading import parse_data_prefix, parse_gap
from seawall.wire.lwp2.watches import Watch, Watched, parse_watched

_JOINS = (TopicEventKind.JOINED, TopicEventKind.RECREATED)


class PushedWatch:
    """A watch of one reader on one connection."""

    def __init__(self, watch_id: int, frame_size: int, *, is_careful: bool) -> None:
        self._id = watch_id
        self._frame_size = frame_size
        self._is_careful = is_careful
        self._credit = GrantedCredit()
        self._readers: dict[TopicId, TopicReader] = {}
        #: Events of the topics that match when it begins, until all of them have arrived.
        self._first_events: list[TopicEvent] = []
        self.has_begun = False
        #: True if it must be started again, because the server must verify what it sends.
        self.is_over = False

    def request(self, progress: WatchProgress) -> bytes:
        """The WATCH frame that starts it where a watch is."""
        flags = ReadFlags.NONE if self._is_careful else ReadFlags.STORED_CODEC
        credit = self._credit.granted
        request = Watch(progress.resumed(), credit.bytes_total, credit.records_total, self._frame_size, flags)
        return encode_control(request, request_id=self._id)

    def take(self, frame: Frame) -> list[Step]:
        """The steps of a frame; raises the server's refusal."""
        header = frame.header
        if header.id not in (self._id, 0):
            return []
        refusal = refusal_of(frame)
        if refusal is not None:
            raise refusal
        match header.command:
            case Command.WATCHED:
                return self._take_events(parse_watched(frame.payload))
            case Command.DATA:
                self._credit.use(header)
                return self._take_records(self._reader(parse_data_prefix(frame.payload).topic_id), frame)
            case Command.GAP:
                return self._take_records(self._reader(parse_gap(frame.payload).topic_id), frame)
        return []

    def credit(self) -> bytes | None:
        """The CREDIT frame that grants more, once half of the credit is used; otherwise None."""
        more = self._credit.more()
        return None if more is None else encode_control(more, request_id=self._id)

    def _take_events(self, watched: Watched) -> list[Step]:
        for event in watched.events:
            if event.kind in _JOINS:
                self._readers[event.topic_id] = TopicReader(event.name, event.topic_id, ReadBy.SEQ, event.seq)
            elif event.kind is TopicEventKind.DELETED:
                self._readers.pop(event.topic_id, None)
        if self.has_begun:
            return list(steps_of(watched.events))
        self._first_events += watched.events
        if not watched.later_from:
            return []
        self.has_begun = True
        events, self._first_events = self._first_events, []
        return first_steps(events, watched.later_from)

    def _reader(self, topic_id: TopicId) -> TopicReader:
        reader = self._readers.get(topic_id)
        if reader is None:
            text = f"the server sent records of topic {topic_id}, which has not joined the watch"
            raise ProtocolError(text, code=ErrorCode.INVALID_PAYLOAD, closes=False)
        return reader

    def _take_records(self, reader: TopicReader, frame: Frame) -> list[Step]:
        reached = reader.next_seq
        # Damage in a response that the server has verified is raised.
        reader.is_careful = self._is_careful
        steps: list[Step] = []
        for item in reader.take(frame):
            if not isinstance(item, ReceivedSkip):
                reached = seq_after(item)
            steps.append(watch_item(reader.topic, item))
        if reached < reader.next_seq:
            steps.append(TopicMoved(reader.topic, reader.next_seq))
        self.is_over = reader.is_careful and not self._is_careful
        return steps
