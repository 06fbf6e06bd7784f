"""One small batch and its ack over a connection on which nothing else is under way, in one kernel call.

    exchange = WaitingExchange(connection, waker, timeout_ms, session)
    stored = exchange.execute(block, …)      # what the ack says, or None: then `settle`, and the usual way

It is for who publishes a little and waits: making the frame, sending it, waiting and reading the ack are one call of
`kernels.network.waiting_exchange` on the caller's thread, without the interpreter's lock. Whatever else happens
meanwhile is left to the ordinary way: bytes that were not sent wait in the connection, bytes that came are decoded by
it.

`session` is the client, the low half of its epoch, and the choices in the headers of its batches. One thread uses it
at a time. It must not know topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import numpy as np

from seawall.client.connection.connection import Connection
from seawall.io.network.waitable_streams import Waker
from seawall.kernels.codec.frames import FRAME_ROW, STATE_SIZE, STATE_VERSION
from seawall.kernels.network import waiting_exchange as kernels
from seawall.limits import KIB
from seawall.wire.format.codes import VERSION_2
from seawall.wire.format.fields import Buffer

#: Longest block that is sent so: larger ones gain nothing by it.
BLOCK_SIZE_MAX: Final = 32 * KIB

#: An ack is a tenth of this; what comes behind it is for the connection.
_ANSWER_SIZE: Final = KIB
_TOLD_AT: Final = 8 * kernels.BLOCK_SIZE
_tell: Final = Struct(f"<{kernels.SENT - kernels.BLOCK_SIZE}q").pack_into


class WaitingExchange:
    """Exchanges over one connection."""

    def __init__(self, connection: Connection, waker: Waker, timeout_ms: int, session: Sequence[int]) -> None:
        self.connection = connection
        self._frame = np.zeros(kernels.BLOCK_AT + BLOCK_SIZE_MAX, np.uint8)
        self._memory = self._frame.data
        self._answer = np.zeros(_ANSWER_SIZE, np.uint8)
        self._arguments = np.zeros(kernels.DESK_SIZE, np.int64)
        self._arguments[: kernels.BLOCK_SIZE] = connection.stream.fileno(), waker.fileno(), timeout_ms, *session
        self._told = self._arguments.data.cast("B")
        self._found = self._arguments[kernels.BASE_SEQ : kernels.WAITED_NS]
        self._rows = np.zeros(2, FRAME_ROW)
        self._state = np.zeros(STATE_SIZE, np.int64)
        self._state[STATE_VERSION] = VERSION_2

    def execute(self, block: Buffer, count: int, client_seq: int, topic_id: int, wall_ns: int) -> list[int] | None:
        """Send a batch and wait for its ack; None if anything else came of it (`settle`).

        Of an ack: base seq, position, timestamp, and how many batches and bytes the window has.
        """
        size = len(block)
        self._memory[kernels.BLOCK_AT : kernels.BLOCK_AT + size] = block
        _tell(self._told, _TOLD_AT, size, count, client_seq, topic_id, wall_ns)
        if not kernels.exchange_one_batch(self._frame, self._arguments, self._answer, self._rows, self._state):
            return None
        found: list[int] = self._found.tolist()
        return found

    def settle(self) -> None:
        """Let the connection go on from an exchange that brought no answer; `ConnectionError` if it cannot."""
        size = kernels.BLOCK_AT + int(self._arguments[kernels.BLOCK_SIZE])
        sent, received = self._arguments[kernels.SENT : kernels.RECEIVED + 1].tolist()
        unsent = bytes(self._memory[max(0, sent) : size])
        self.connection.resume(unsent, bytes(self._answer[: max(0, received)]))
