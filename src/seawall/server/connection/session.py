"""What a connection and the session behind it say to each other, and how patient a connection is.

A session is one protocol version, and what was agreed in it. It must not know sockets: it takes frames and gives bytes.
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
    """What a connection talks to: one protocol version."""

    @property
    def payload_max(self) -> int:
        """The largest payload that is taken now."""
        ...

    @property
    def is_admitted(self) -> bool:
        """Whether the peer has shown a token, or needs none."""
        ...

    def feed(self, buffer: Bytes, rows: Rows) -> int:
        """Take frames, whole and checked, in the order they came; how many were taken.

        Rows are `FRAME_ROW`, their `at` counts in the buffer; both belong to the session only until it returns. If it
        takes fewer than there are, nothing more is received until it calls `go_on`, and then the rest comes again.
        """
        ...

    def place_for(self, size: int, take_back: Callable[[], None], *, at_hand: Callable[[], bool]) -> Bytes | None:
        """Memory for a large batch that comes next, if it can be received where it is to lie; None if it cannot.

        It has to be left when `take_back` is called. The batch is fed from there, with nothing behind it. One that is
        `at_hand` can be received as a whole right now; to ask costs a call of the system.
        """
        ...

    def has_space_for(self, size: int) -> bool:
        """Whether a large batch that comes next would be taken; if not, nothing is received until `go_on`."""
        ...

    def failed(self, error: ProtocolError) -> None:
        """The peer broke the protocol and is not listened to any more: answer what is under way, then `finish`."""
        ...

    def ended(self) -> None:
        """The peer sends nothing more: answer what is under way, then `finish`."""
        ...

    def drain(self, drain_ms: int) -> None:
        """The server ends within this time: take nothing more, answer what is under way, then `finish`."""
        ...

    def silent(self) -> None:
        """Nothing was received for `keepalive_s`."""
        ...

    def has_space(self) -> None:
        """All that was written is sent."""
        ...

    def lost(self) -> None:
        """The connection is gone."""
        ...


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How long a peer may take, and how much may wait for it."""

    frame_time_s: float = limits.FRAME_TIME_S
    frame_bytes_per_second: int = limits.FRAME_BYTES_PER_SECOND
    stall_s: float = limits.SEND_STALL_S
    #: The same while others wait for the memory that the peer holds.
    contended_frame_time_s: float = limits.CONTENDED_FRAME_TIME_S
    contended_frame_bytes_per_second: int = limits.CONTENDED_FRAME_BYTES_PER_SECOND
    contended_stall_s: float = limits.CONTENDED_STALL_S
    #: From the beginning of a connection to its token, where one is needed.
    admission_s: float = limits.ADMISSION_S
    outbox_size: int = limits.OUTBOX_SIZE
    linger_s: float = limits.LINGER_S
    linger_size: int = limits.LINGER_SIZE
    handshake_s: float = limits.HANDSHAKE_S
    #: Silence after which a connection of version 1, or one that has sent nothing yet, ends; None is never.
    v1_idle_s: float | None = None

    def frame_time(self, size: int, *, is_contended: bool) -> float:
        """Seconds that a frame of so many bytes may take to arrive."""
        if is_contended:
            return self.contended_frame_time_s + size / self.contended_frame_bytes_per_second
        return self.frame_time_s + size / self.frame_bytes_per_second
