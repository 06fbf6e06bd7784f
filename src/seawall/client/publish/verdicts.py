"""What a server says about the batches of a session, as what the machine of `outgoing` makes of it. No I/O.

ACK frames decide batches, open the window, or ask for a pause; ERROR frames refuse a batch, for now or for good. The
senders for threads and for event loops share this; what a lost connection or a fenced session means is theirs.
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


class Verdicts:
    """Applies the answers of one session's server."""

    def __init__(self, outgoing: Outgoing, clock: Clock) -> None:
        self._outgoing = outgoing
        self._clock = clock
        #: Pauses of a server that is under pressure; they grow until a batch is decided.
        self._pressure = Backoff()

    def apply(self, frame: Frame) -> None:
        """Apply one frame; those that say nothing about batches change nothing.

        `ConnectionError` says that the connection must be made again, an error of `SESSION_ENDING` that the session is over.
        """
        if frame.header.kind == Kind.ACK:
            self._apply_ack(frame)
        elif frame.header.kind == Kind.CONTROL and frame.header.command == Command.ERROR:
            self._apply_refusal(frame)

    def stored(self) -> None:
        """A batch was stored: the next pause is a short one again."""
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
            raise ConnectionError("the server does not know what became of a batch")

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
