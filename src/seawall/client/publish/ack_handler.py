"""Applies the ACK and ERROR frames of a server to the state machine of `outgoing`. No I/O.

ACK frames decide batches, set the window, or ask for a pause; ERROR frames refuse a batch, temporarily or permanently.
The senders for threads and for asyncio share this module. They handle lost connections and fenced sessions themselves.
"""

from __future__ import annotations

from typing import Final

from seawall.client.connection.refusals import BACKPRESSURE, SESSION_ENDING, error_of
from seawall.client.connection.retry import Backoff
from seawall.client.publish.outgoing import Outgoing
from seawall.errors import RetryableError
from seawall.io.interfaces import Clock
from seawall.wire.format.ack_rows import ack_rows, ack_window
from seawall.wire.format.codes import AckStatus, Command, Kind
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.session import parse_error

_MS: Final = 1_000_000


class AckHandler:
    """Applies the responses of the server to one session."""

    def __init__(self, outgoing: Outgoing, clock: Clock) -> None:
        self._outgoing = outgoing
        self._clock = clock
        #: Pauses for a server under pressure; they grow until a batch is decided.
        self._pressure = Backoff()

    def apply(self, frame: Frame) -> None:
        """Apply one frame; frames that are not about batches are ignored.

        Raises `ConnectionError` if the sender must reconnect, and an error of `SESSION_ENDING` if the session is over.
        """
        if frame.header.kind == Kind.ACK:
            self._apply_ack(frame)
        elif frame.header.kind == Kind.CONTROL and frame.header.command == Command.ERROR:
            self._apply_refusal(frame)

    def stored(self) -> None:
        """A batch was stored: restart with short pauses."""
        self._pressure.succeeded()

    def _apply_ack(self, frame: Frame) -> None:
        outgoing = self._outgoing
        outgoing.allow(*ack_window(frame.payload))
        worst = outgoing.acked(ack_rows(frame.payload), self._clock.monotonic_ns())
        if outgoing.decided:
            self._pressure.succeeded()
        if worst is AckStatus.RETRY:
            outgoing.refused(0, self._clock.monotonic_ns() + self._pressure.pause_ns())
        elif worst is AckStatus.UNKNOWN:
            raise ConnectionError("the server does not know the outcome of a batch")

    def _apply_refusal(self, frame: Frame) -> None:
        refusal = parse_error(frame.payload)
        error = error_of(refusal)
        if isinstance(error, SESSION_ENDING):
            raise error
        if refusal.code in BACKPRESSURE or isinstance(error, RetryableError):
            pause_ns = max(refusal.retry_after_ms * _MS, self._pressure.pause_ns())
            self._outgoing.refused(refusal.ref, self._clock.monotonic_ns() + pause_ns)
        if refusal.closes:
            raise ConnectionError(str(error))
