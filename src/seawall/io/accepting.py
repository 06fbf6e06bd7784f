"""A listening port whose connections are taken one by one, by whoever gives them to event loops.

Event loops accept for themselves, all that wait at once; where several loops share a port, the first that wakes would
have them all.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TypeAlias

__all__ = ["Accepted", "AcceptingPort"]

#: A connection that no loop has yet.
Accepted: TypeAlias = socket.socket


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
