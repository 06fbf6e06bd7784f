"""The settings of a server: where it listens, what it takes, how long it waits.

This module must not know sockets, nor where values come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from seawall import limits
from seawall.config.rules import (
    Section,
    about,
    addresses,
    choice,
    duration,
    duration_or_zero,
    integer,
    path_text,
    size,
    size_or_zero,
)


class PastEnd(StrEnum):
    """What a fetch of version 1 behind the end is told: an error, a frame that some clients wait for, or nothing."""

    ERROR = "error"
    CATCHING_UP = "catching_up"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class ServerConfig(Section):
    """A node that serves a data directory."""

    listen: str = field(
        default=f"127.0.0.1:{limits.LWP_PORT}",
        metadata=about(
            addresses(limits.LISTEN_ADDRESSES_MAX),
            "where it listens; without a host on every interface, port 0 is any free one",
        ),
    )
    brokers: int = field(
        default=1,
        metadata=about(
            # One ring of the fabric is for what the server writes itself.
            integer(1, limits.FABRIC_BROKERS_MAX - 1),
            "event loops that connections are dealt to, each with a ring and a thread of its own",
        ),
    )
    connections: int = field(
        default=limits.CONNECTIONS_MAX, metadata=about(integer(1, 1_000_000), "connections at most, over all addresses")
    )
    token_file: str = field(
        default="",
        metadata=about(path_text(may_be_empty=True), "file of tokens, a line each; if empty, everybody may come in"),
    )
    tls_cert: str = field(
        default="",
        metadata=about(
            path_text(may_be_empty=True), "certificate or chain of them (PEM); if empty, nothing is encrypted"
        ),
    )
    tls_key: str = field(
        default="", metadata=about(path_text(may_be_empty=True), "key of the certificate (PEM); both or neither")
    )
    tls_client_ca: str = field(
        default="",
        metadata=about(
            path_text(may_be_empty=True),
            "authorities of client certificates (PEM): clients must show one that they signed, or a token where there "
            "is a token file; if empty, none is asked for",
        ),
    )
    memory_limit: int = field(
        default=0,
        metadata=about(
            size_or_zero(64 * limits.MIB, limits.TIB),
            "memory it may take before writes are held; 0 is what its control group allows, else what the machine has",
        ),
    )
    peer_memory: int = field(
        default=0,
        metadata=about(
            size_or_zero(limits.PEER_MEMORY_SIZE_MIN, limits.TIB),
            "memory that is held for all peers together (frames, requests, answers); 0 is a quarter of memory_limit",
        ),
    )
    connection_memory: int = field(
        default=limits.CONNECTION_MEMORY_SIZE,
        metadata=about(
            size(limits.MIB, limits.TIB),
            "memory that is held for one connection, but for a single frame or answer that is larger",
        ),
    )
    read_rate: int = field(
        default=0,
        metadata=about(
            size_or_zero(limits.READ_RATE_MIN, limits.TIB), "bytes a second that one connection may read; 0 is no limit"
        ),
    )
    outbox_size: int = field(
        default=limits.OUTBOX_SIZE,
        metadata=about(
            size(limits.MIB, limits.GIB), "bytes that may wait to be sent to a peer before it is not read from any more"
        ),
    )
    stall: float = field(
        default=limits.SEND_STALL_S,
        metadata=about(duration(1, 3600), "time in which a peer has to take something of what waits for it"),
    )
    drain: float = field(
        default=limits.NODE_DRAIN_S,
        metadata=about(duration(0, 3600), "time to end in order; what is not answered then is cut off"),
    )
    v1_past_end: PastEnd = field(
        default=PastEnd.CATCHING_UP,
        metadata=about(choice(PastEnd), "what a fetch of protocol version 1 behind the end of a topic is told"),
    )
    v1_idle: float = field(
        default=0.0,
        metadata=about(
            duration_or_zero(60, 86_400),
            "silence after which a connection of protocol version 1 ends; 0 is never: TCP keepalive ends connections "
            "whose peer is gone",
        ),
    )
