"""The protocol of one push subscription: its request, its data frames, and its credit (`granted_credit.py`). No I/O."""

from __future__ import annotations

from typing import Final

from seawall.api.received import Item
from seawall.client.connection.connection import refusal_of
from seawall.client.read.granted_credit import GrantedCredit
from seawall.client.read.reading import TopicReader
from seawall.limits import FETCH_SIZE_MAX
from seawall.wire.format.codes import Command
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.subscriptions import Subscribe

#: The largest frame that a reader asks for.
FRAME_SIZE: Final = FETCH_SIZE_MAX


class Pushed:
    """A subscription of one reader on one connection."""

    def __init__(self, reader: TopicReader, subscription_id: int, frame_size: int = FRAME_SIZE) -> None:
        self._reader = reader
        self._frame_size = frame_size
        self._id = subscription_id
        self._credit = GrantedCredit()
        #: True once the server has sent everything up to the end of the topic.
        self.is_caught_up = False
        #: True if it must be started again, because the server must verify what it sends.
        self.is_over = False

    def subscribe(self) -> bytes:
        """The SUBSCRIBE frame that starts it."""
        by, start = self._reader.start
        request = Subscribe(
            self._reader.topic_id,
            by,
            start,
            credit_bytes=self._credit.granted.bytes_total,
            credit_records=self._credit.granted.records_total,
            max_frame=self._frame_size,
            flags=self._reader.flags,
        )
        return encode_control(request, request_id=self._id)

    def take(self, frame: Frame) -> list[Item]:
        """The items of a frame; raises the server's refusal."""
        header = frame.header
        if header.id not in (self._id, 0):
            return []
        refusal = refusal_of(frame)
        if refusal is not None:
            raise refusal
        if header.command == Command.CAUGHT_UP:
            self.is_caught_up = True
        if header.command not in (Command.DATA, Command.GAP):
            return []
        self.is_caught_up = False
        if header.command == Command.DATA:
            self._credit.use(header)
        items = self._reader.take(frame)
        self.is_over = self._reader.is_careful
        return items

    def credit(self) -> bytes | None:
        """The CREDIT frame that grants more, once half of the credit is used; otherwise None."""
        more = self._credit.more()
        return None if more is None else encode_control(more, request_id=self._id)
