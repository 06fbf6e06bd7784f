"""A listening port whose connections are accepted one by one, by whoever gives them to event loops.

An event loop that accepts by itself takes all that wait at once, decides alone what becomes of a failure, and does not
report TLS handshakes that fail.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TypeAlias

from seawall import limits

__all__ = ["Accepted", "AcceptingPort", "hang_up", "watch_peer"]

#: A connection that no loop has yet.
Accepted: TypeAlias = socket.socket


def watch_peer(accepted: Accepted) -> None:
    """Have the system probe a silent peer, so that a connection whose peer is gone ends although nothing is sent."""
    wanted = {
        "TCP_KEEPIDLE": limits.TCP_KEEPALIVE_IDLE_S,
        "TCP_KEEPINTVL": limits.TCP_KEEPALIVE_INTERVAL_S,
        "TCP_KEEPCNT": limits.TCP_KEEPALIVE_PROBES,
    }
    # Each is a refinement that a platform, or a socket that is no TCP socket, may lack.
    with suppress(OSError):
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in wanted.items():
            if hasattr(socket, name):
                accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def hang_up(accepted: Accepted) -> None:
    """End a connection in both directions, whoever has it: who waits for its peer is told that the peer is gone."""
    with suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)


class AcceptingPort:
    """A port that another socket is bound to, which may be closed then."""

    __slots__ = ("_socket",)

    def __init__(self, bound: int, backlog: int) -> None:
        self._socket = socket.socket(fileno=os.dup(bound))
        self._socket.setblocking(False)
        self._socket.listen(backlog)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._socket.fileno()

    def accept(self) -> Accepted | None:
        """The next connection, or None if there is none now; `OSError` if there is one, and no room for it."""
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        accepted.setblocking(False)
        with suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return accepted

    def close(self) -> None:
        """Listen no more; connections go on."""
        self._socket.close()
