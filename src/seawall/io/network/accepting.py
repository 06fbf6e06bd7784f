"""A listening port that hands out connections one at a time, so that the server can distribute them over event loops.

An event loop that accepts by itself takes all pending connections at once, handles failures on its own, and does not
report failed TLS handshakes.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TypeAlias

from seawall import limits

__all__ = ["Accepted", "AcceptingPort", "enable_keepalive", "shut_down_peer"]

#: A connection that is not assigned to a loop yet.
Accepted: TypeAlias = socket.socket


def enable_keepalive(accepted: Accepted) -> None:
    """Enable TCP keepalive, so that a connection ends when its peer is gone although nothing is sent."""
    wanted = {
        "TCP_KEEPIDLE": limits.TCP_KEEPALIVE_IDLE_S,
        "TCP_KEEPINTVL": limits.TCP_KEEPALIVE_INTERVAL_S,
        "TCP_KEEPCNT": limits.TCP_KEEPALIVE_PROBES,
    }
    # Optional: a platform, or a socket that is not TCP, may lack each of them.
    with suppress(OSError):
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in wanted.items():
            if hasattr(socket, name):
                accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def shut_down_peer(accepted: Accepted) -> None:
    """Shut a connection down in both directions; any reader of it sees the end of the stream."""
    with suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)


class AcceptingPort:
    """A listening socket on a port that another socket has bound; that one may be closed afterwards."""

    __slots__ = ("_socket",)

    def __init__(self, bound: int, backlog: int) -> None:
        self._socket = socket.socket(fileno=os.dup(bound))
        self._socket.setblocking(False)
        self._socket.listen(backlog)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._socket.fileno()

    def accept(self) -> Accepted | None:
        """The next connection, or None if there is none now; `OSError` if no descriptor is left for it."""
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        accepted.setblocking(False)
        with suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return accepted

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        self._socket.close()
