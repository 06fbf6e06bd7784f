"""The interface between a connection and its session, and the time and size limits of a connection.

A session implements one protocol version. It must not know sockets: it consumes frames and produces bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.errors import ProtocolError
from seawall.kernels.codec.frames import Rows

Bytes: TypeAlias = npt.NDArray[np.uint8]


class Session(Protocol):
    """One protocol version on a connection."""

    @property
    def payload_max(self) -> int:
        """The largest payload that is accepted now."""
        ...

    @property
    def is_admitted(self) -> bool:
        """True if the peer has shown a token, or needs none."""
        ...

    def feed(self, buffer: Bytes, rows: Rows) -> int:
        """Accept complete, checked frames in the order of arrival; returns how many were accepted.

        Rows are `FRAME_ROW`, with `at` relative to the buffer; the session may use both only until it returns. If it
        accepts fewer than all frames, the connection stops reading until the session calls `resume`, and then feeds the
        rest again.
        """
        ...

    def buffer_for(self, size: int, revoke: Callable[[], None], *, is_queued: Callable[[], bool]) -> Bytes | None:
        """A buffer to receive the next large batch directly in its final location; None if there is none.

        The connection must stop using it when `revoke` is called. It feeds the batch from there, with nothing after it.
        `is_queued` returns True if all of the batch is in the receive queue of the socket; it costs a system call.
        """
        ...

    def has_space_for(self, size: int) -> bool:
        """True if the next large batch would be accepted; if not, the connection stops reading until `resume`."""
        ...

    def failed(self, error: ProtocolError) -> None:
        """Answer the requests in flight, then `finish`: the peer broke the protocol, and input is discarded."""
        ...

    def ended(self) -> None:
        """Answer the requests in flight, then `finish`: the peer has sent EOF."""
        ...

    def drain(self, drain_ms: int) -> None:
        """Accept nothing more, answer the requests in flight, then `finish`: the server shuts down in this time."""
        ...

    def silent(self) -> None:
        """Ping the peer: nothing was received for `keepalive_s`."""
        ...

    def has_space(self) -> None:
        """Continue to write: everything written is sent."""
        ...

    def lost(self) -> None:
        """Release everything: the connection is closed."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long a peer may take, and how much may be queued for it."""

    frame_time_s: float = limits.FRAME_TIME_S
    frame_bytes_per_second: int = limits.FRAME_BYTES_PER_SECOND
    stall_s: float = limits.SEND_STALL_S
    #: The same while others wait for memory that the peer holds.
    contended_frame_time_s: float = limits.CONTENDED_FRAME_TIME_S
    contended_frame_bytes_per_second: int = limits.CONTENDED_FRAME_BYTES_PER_SECOND
    contended_stall_s: float = limits.CONTENDED_STALL_S
    #: From the start of a connection to its token, if one is needed.
    admission_s: float = limits.ADMISSION_S
    outbox_size: int = limits.OUTBOX_SIZE
    linger_s: float = limits.LINGER_S
    linger_size: int = limits.LINGER_SIZE
    handshake_s: float = limits.HANDSHAKE_S
    #: Idle time after which a connection of version 1, or without any frame yet, is closed; None is never.
    v1_idle_s: float | None = None

    def frame_time(self, size: int, *, is_contended: bool) -> float:
        """Seconds that a frame of `size` bytes may take to arrive."""
        if is_contended:
            return self.contended_frame_time_s + size / self.contended_frame_bytes_per_second
        return self.frame_time_s + size / self.frame_bytes_per_second
