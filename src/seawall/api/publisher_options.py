"""The options of a publisher: the parameters of `publisher`, validated, for every kind of log.

`linger_s`, `batch_size`, `compression` and `connections` configure sending to a server. An embedded log sends nothing:
it only validates these options, so that a program can switch between logs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from seawall.core.identifiers import check_client_id
from seawall.errors import InvalidInputError
from seawall.limits import BLOCK_SIZE_MAX, KIB, MIB
from seawall.wire.format.codes import AckLevel, Codec

#: Default limit of the bytes that one publisher has in flight.
IN_FLIGHT_SIZE: Final = 64 * MIB
#: Default size of a full batch: a quarter of the server's window holds many of them, and the overhead of each is small.
BATCH_SIZE: Final = 256 * KIB

#: What `publish` does when `max_in_flight` bytes are in flight: wait, or raise `FullError`.
WhenFull: TypeAlias = Literal["wait", "raise"]
Compression: TypeAlias = Literal["none", "lz4", "zstd"]

_CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """The validated options of a publisher."""

    ack: int = 2
    client_id: int | None = None
    max_in_flight: int = IN_FLIGHT_SIZE
    when_full: WhenFull = "wait"
    linger_s: float = 0.0
    batch_size: int = BATCH_SIZE
    compression: Compression = "none"
    connections: int = 1

    def __post_init__(self) -> None:
        if self.max_in_flight < 1 or self.when_full not in ("wait", "raise"):
            raise InvalidInputError(
                f"max_in_flight {self.max_in_flight}, when_full {self.when_full!r}: at least 1 byte, and wait or raise"
            )
        if self.ack not in tuple(AckLevel):
            raise InvalidInputError(f"ack {self.ack}: give 0, 1 or 2")
        if not 1 <= self.batch_size <= BLOCK_SIZE_MAX or not 0 <= self.linger_s <= 60:
            raise InvalidInputError(
                f"batch_size {self.batch_size}, linger_s {self.linger_s}: 1 to {BLOCK_SIZE_MAX} bytes, 0 to 60 s"
            )
        codec_of(self.compression)
        if not 1 <= self.connections <= 16:
            raise InvalidInputError(f"connections {self.connections}: 1 to 16")
        if self.client_id is not None:
            check_client_id(self.client_id)

    def check_client_seq(self, client_seq: int | None) -> None:
        """Raise if a client seq is given but invalid, or the publisher has no client id to number batches for."""
        if client_seq is not None and (self.client_id is None or client_seq < 1):
            raise InvalidInputError(f"client seq {client_seq}: from 1, and the publisher needs a client_id")

    def require_client_id(self) -> None:
        """Raise if the publisher has no client id: no later publisher could continue its numbers."""
        if self.client_id is None:
            raise InvalidInputError("this publisher has no session: give it a client_id")


def codec_of(compression: Compression) -> Codec:
    """Returns the codec of a compression name; raises if the name is unknown."""
    if compression not in _CODECS:
        raise InvalidInputError(f"compression {compression!r}: one of {', '.join(_CODECS)}")
    return _CODECS[compression]
