"""Streams a large batch of plain values into a socket, building its block one part at a time.

So a large batch never exists as a whole in memory, and each part is still in the CPU cache when the kernel copies it.
The checksum is known after the last value, and follows the batch in a SUM frame. If the socket does not accept all of
it, the next `send` continues where the last one stopped.

The list of values must not change until the frame is sent.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from seawall.api.publishable import UnencodedBlock
from seawall.kernels.codec.values import CURSOR_SIZE, FILLED, FRAME_ID, HEAD, IS_LAST, SENT, send_values
from seawall.kernels.runtime.memory import Bytes
from seawall.limits import KIB

__all__ = ["PART_SIZE", "StreamedBatch"]

#: Bytes of a part: large enough for few system calls, and half the size of a small CPU cache.
PART_SIZE: Final = 256 * KIB


class StreamedBatch:
    """One streamed batch. The batches of a connection share the part buffer, because one is sent at a time."""

    __slots__ = ("_cursor", "_header", "_part", "_values")

    def __init__(self, header: bytes, frame_id: int, held: UnencodedBlock, part: Bytes) -> None:
        self._header = header
        self._values = held.values
        self._cursor = np.zeros(CURSOR_SIZE, np.int64)
        self._cursor[FRAME_ID] = frame_id
        self._part = part

    def send(self, descriptor: int) -> int:
        """Send as much as the socket accepts now; returns the number of bytes, or minus errno."""
        values, cursor, part = self._values, self._cursor, self._part
        if self._header:
            part[: len(self._header)] = np.frombuffer(self._header, np.uint8)
            cursor[HEAD] = len(self._header)
            self._header = b""
        return send_values(descriptor, id(values), len(values), cursor, part)

    @property
    def is_sent(self) -> bool:
        """True once the socket has accepted everything."""
        cursor = self._cursor
        return cursor.item(IS_LAST) == 1 and cursor.item(SENT) == cursor.item(FILLED)
