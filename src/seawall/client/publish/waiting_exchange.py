"""Sends one small batch over an idle connection and waits for its ack, in one kernel call.

    exchange = WaitingExchange(connection, waker, timeout_ms, session)
    stored = exchange.execute(block, …)      # the fields of the ack, or None: then call `settle` and use the sender

For callers that publish a little and wait for it: one call of `kernels.network.waiting_exchange` on the caller's thread
builds the frame, sends it, waits and reads the ack, without the GIL. If anything else happens meanwhile, the connection
takes over: it sends the unsent bytes, and decodes the received ones.

`session` is the client id, the low half of the session epoch, and the flags in the headers of the batches. One thread
uses an exchange at a time. This module must not know about topics.
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

#: The largest block to send this way: larger ones gain nothing from it.
BLOCK_SIZE_MAX: Final = 32 * KIB

#: The receive buffer. An ack takes a tenth of it; the connection decodes what follows.
_RESPONSE_SIZE: Final = KIB
#: The arguments that change with each call, and where they start.
_CALL_ARGUMENTS_AT: Final = 8 * kernels.BLOCK_SIZE
_pack_call_arguments: Final = Struct(f"<{kernels.SENT - kernels.BLOCK_SIZE}q").pack_into


class WaitingExchange:
    """Exchanges over one connection."""

    def __init__(self, connection: Connection, waker: Waker, timeout_ms: int, session: Sequence[int]) -> None:
        self.connection = connection
        self._frame = np.zeros(kernels.BLOCK_AT + BLOCK_SIZE_MAX, np.uint8)
        self._frame_view = self._frame.data
        self._response = np.zeros(_RESPONSE_SIZE, np.uint8)
        self._arguments = np.zeros(kernels.ARGUMENTS_SIZE, np.int64)
        self._arguments[: kernels.BLOCK_SIZE] = connection.stream.fileno(), waker.fileno(), timeout_ms, *session
        self._arguments_view = self._arguments.data.cast("B")
        self._ack_fields = self._arguments[kernels.BASE_SEQ : kernels.WAITED_NS]
        self._rows = np.zeros(2, FRAME_ROW)
        self._state = np.zeros(STATE_SIZE, np.int64)
        self._state[STATE_VERSION] = VERSION_2

    def execute(self, block: Buffer, count: int, client_seq: int, topic_id: int, wall_ns: int) -> list[int] | None:
        """Send a batch and wait for its ack; None if anything else happened (then call `settle`).

        Returns base seq, position, timestamp, and the window in batches and bytes.
        """
        size = len(block)
        self._frame_view[kernels.BLOCK_AT : kernels.BLOCK_AT + size] = block
        _pack_call_arguments(self._arguments_view, _CALL_ARGUMENTS_AT, size, count, client_seq, topic_id, wall_ns)
        if not kernels.exchange_one_batch(self._frame, self._arguments, self._response, self._rows, self._state):
            return None
        found: list[int] = self._ack_fields.tolist()
        return found

    def settle(self) -> None:
        """Let the connection take over an exchange without an ack; `ConnectionError` if it cannot."""
        size = kernels.BLOCK_AT + int(self._arguments[kernels.BLOCK_SIZE])
        sent, received = self._arguments[kernels.SENT : kernels.RECEIVED + 1].tolist()
        unsent = bytes(self._frame_view[max(0, sent) : size])
        self.connection.resume(unsent, bytes(self._response[: max(0, received)]))
