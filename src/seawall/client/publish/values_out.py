"""A batch on its way into a socket whose block is made as it goes: plain values, joined a part at a time.

So a large batch is nowhere as a whole, and each part of it is still in a cache when the system copies it. Its checksum
is known when the last value was joined, and goes behind it, in a SUM frame. What the socket does not take now goes with
the next `send`, from where the last one ended.

The list of values is held until the frame is out, and nobody changes it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from seawall.api.publishable import HeldValues
from seawall.kernels.codec.values import CURSOR_SIZE, FILLED, FRAME_ID, HEAD, IS_LAST, SENT, send_values
from seawall.kernels.runtime.memory import Bytes
from seawall.limits import KIB

__all__ = ["PART_SIZE", "StreamedBatch"]

#: Bytes of a part: few calls of the system, and half of a small cache.
PART_SIZE: Final = 256 * KIB


class StreamedBatch:
    """One such batch. Those of one connection share the memory for parts: one is under way at a time."""

    __slots__ = ("_cursor", "_header", "_part", "_values")

    def __init__(self, header: bytes, frame_id: int, held: HeldValues, part: Bytes) -> None:
        self._header = header
        self._values = held.values
        self._cursor = np.zeros(CURSOR_SIZE, np.int64)
        self._cursor[FRAME_ID] = frame_id
        self._part = part

    def send(self, descriptor: int) -> int:
        """Give a socket what it takes now: bytes, or minus errno."""
        values, cursor, part = self._values, self._cursor, self._part
        if self._header:
            part[: len(self._header)] = np.frombuffer(self._header, np.uint8)
            cursor[HEAD] = len(self._header)
            self._header = b""
        return send_values(descriptor, id(values), len(values), cursor, part)

    @property
    def is_out(self) -> bool:
        """Whether the socket has all of it."""
        cursor = self._cursor
        return cursor.item(IS_LAST) == 1 and cursor.item(SENT) == cursor.item(FILLED)
