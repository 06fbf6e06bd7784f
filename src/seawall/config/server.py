"""The settings of a server: addresses, access, memory limits and timeouts.

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
    """The response to a version 1 fetch past the end: an error, a frame that some clients wait for, or no data."""

    ERROR = "error"
    CATCHING_UP = "catching_up"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class ServerConfig(Section):
    """A node that serves a data directory over the network."""

    listen: str = field(
        default=f"127.0.0.1:{limits.LWP_PORT}",
        metadata=about(
            addresses(limits.LISTEN_ADDRESSES_MAX),
            "addresses to listen on; no host means every interface, port 0 means any free port",
        ),
    )
    brokers: int = field(
        default=1,
        metadata=about(
            # One ring of the fabric is for the server's own writes.
            integer(1, limits.FABRIC_BROKERS_MAX - 1),
            "event loops that connections are distributed over, each with its own ring and thread",
        ),
    )
    connections: int = field(
        default=limits.CONNECTIONS_MAX,
        metadata=about(integer(1, 1_000_000), "maximum number of connections, over all addresses"),
    )
    token_file: str = field(
        default="",
        metadata=about(path_text(may_be_empty=True), "file with one token per line; if empty, no token is required"),
    )
    tls_cert: str = field(
        default="",
        metadata=about(
            path_text(may_be_empty=True), "certificate or certificate chain (PEM); if empty, nothing is encrypted"
        ),
    )
    tls_key: str = field(
        default="", metadata=about(path_text(may_be_empty=True), "private key of tls_cert (PEM); set both or neither")
    )
    tls_client_ca: str = field(
        default="",
        metadata=about(
            path_text(may_be_empty=True),
            "certificate authorities for client certificates (PEM): clients must present a certificate that one of "
            "them signed, or a token if there is a token file; if empty, no client certificate is requested",
        ),
    )
    memory_limit: int = field(
        default=0,
        metadata=about(
            size_or_zero(64 * limits.MIB, limits.TIB),
            "memory use at which writes are held; 0 means the limit of the control group, or else the machine's memory",
        ),
    )
    peer_memory: int = field(
        default=0,
        metadata=about(
            size_or_zero(limits.PEER_MEMORY_SIZE_MIN, limits.TIB),
            "memory for all peers together (frames, requests, responses); 0 means a quarter of memory_limit",
        ),
    )
    connection_memory: int = field(
        default=limits.CONNECTION_MEMORY_SIZE,
        metadata=about(
            size(limits.MIB, limits.TIB),
            "memory for one connection; a single frame or response may exceed it",
        ),
    )
    read_rate: int = field(
        default=0,
        metadata=about(
            size_or_zero(limits.READ_RATE_MIN, limits.TIB),
            "bytes per second that one connection may read; 0 means no limit",
        ),
    )
    outbox_size: int = field(
        default=limits.OUTBOX_SIZE,
        metadata=about(
            size(limits.MIB, limits.GIB), "unsent bytes of one peer at which the server stops reading from it"
        ),
    )
    stall: float = field(
        default=limits.SEND_STALL_S,
        metadata=about(duration(1, 3600), "time after which a peer that accepts no data is disconnected"),
    )
    drain: float = field(
        default=limits.NODE_DRAIN_S,
        metadata=about(duration(0, 3600), "time for an orderly shutdown; requests unanswered by then are cut off"),
    )
    v1_past_end: PastEnd = field(
        default=PastEnd.CATCHING_UP,
        metadata=about(choice(PastEnd), "response to a fetch of protocol version 1 past the end of a topic"),
    )
    v1_idle: float = field(
        default=0.0,
        metadata=about(
            duration_or_zero(60, 86_400),
            "silence after which a connection of protocol version 1 is closed; 0 means never: TCP keepalive closes "
            "connections whose peer is gone",
        ),
    )
