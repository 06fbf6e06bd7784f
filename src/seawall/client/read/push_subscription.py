"""The protocol of one push subscription: its request, its data frames, and its credit. No I/O.

Credit is a running total of bytes and records since the subscription started, as the frame headers count them. The
reader grants more once half of it is used, so that the server never waits for a reader that keeps up, and never sends
more than the reader can buffer.
"""

from __future__ import annotations

from typing import Final

from seawall.api.received import Item
from seawall.client.connection.connection import refusal_of
from seawall.client.read.reading import TopicReader
from seawall.limits import FETCH_SIZE_MAX, MIB
from seawall.wire.format.codes import Command
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.subscriptions import Credit, Subscribe

#: How far the server may send ahead of the reader, and the largest frame.
CREDIT_BYTES: Final = 32 * MIB
CREDIT_RECORDS: Final = 4_000_000
FRAME_SIZE: Final = FETCH_SIZE_MAX


class Pushed:
    """A subscription of one reader on one connection."""

    def __init__(self, reader: TopicReader, subscription_id: int, frame_size: int = FRAME_SIZE) -> None:
        self._reader = reader
        self._frame_size = frame_size
        self._id = subscription_id
        self._bytes = self._records = 0
        self._granted_bytes, self._granted_records = CREDIT_BYTES, CREDIT_RECORDS
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
            credit_bytes=CREDIT_BYTES,
            credit_records=CREDIT_RECORDS,
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
            self._bytes += header.payload_length
            self._records += header.record_count
        items = self._reader.take(frame)
        self.is_over = self._reader.is_careful
        return items

    def credit(self) -> bytes | None:
        """The CREDIT frame that grants more, once half of the credit is used; otherwise None."""
        used_bytes = self._bytes + CREDIT_BYTES - self._granted_bytes
        used_records = self._records + CREDIT_RECORDS - self._granted_records
        if used_bytes < CREDIT_BYTES // 2 and used_records < CREDIT_RECORDS // 2:
            return None
        self._granted_bytes = self._bytes + CREDIT_BYTES
        self._granted_records = self._records + CREDIT_RECORDS
        return encode_control(Credit(self._granted_bytes, self._granted_records), request_id=self._id)
