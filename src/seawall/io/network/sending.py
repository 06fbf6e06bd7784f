"""Sends ranges of files over a connection with `sendfile`, without copying them through this process.

An event loop owns the descriptor of its connection and lets no other code wait on it, so this module uses a duplicate.
It must not know what the bytes are, nor what was sent before: the caller makes sure that no earlier bytes are unsent.

The system sends the pages of the file directly, and a missing page is an error of the call. No file is mapped, so a
truncated file cannot kill the process (decision 0018).

A connection failure raises an exception; a file failure goes to the piece's `failed` callback.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

__all__ = ["FilePiece", "FileSender", "read_piece"]

#: Error codes of a failed connection, beside those of `ConnectionError`.
_CONNECTION_ERRORS: Final = frozenset(
    {errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN}
)


@dataclass(slots=True)
class FilePiece:
    """A range of a file to send; its owner calls `release` once, when it no longer needs the file."""

    descriptor: int
    at: int
    size: int
    release: Callable[[], None]
    #: Called with the position at which reading the file failed, or at which it ended too early.
    failed: Callable[[int], None]


class FileSender:
    """The sending side of one connection, for files."""

    __slots__ = ("_descriptor",)

    def __init__(self, connected: socket.socket) -> None:
        self._descriptor = os.dup(connected.fileno())

    def fileno(self) -> int:
        """The descriptor to wait on until the connection is writable."""
        return self._descriptor

    def send(self, piece: FilePiece, size: int) -> int | None:
        """Send up to `size` bytes of a piece; returns the bytes sent, None if the socket buffer is full, 0 if the file
        fails or ends.

        `OSError` if the connection fails.
        """
        try:
            sent = os.sendfile(self._descriptor, piece.descriptor, piece.at, min(size, piece.size))
        except BlockingIOError:
            return None
        except OSError as error:
            if isinstance(error, ConnectionError) or error.errno in _CONNECTION_ERRORS:
                raise
            sent = 0
        if not sent:
            piece.failed(piece.at)
        return sent

    def close(self) -> None:
        """Close the duplicate; the connection stays open."""
        os.close(self._descriptor)


def read_piece(piece: FilePiece) -> bytes:
    """Read the bytes of a piece, for connections that cannot use `sendfile`; fewer if the file fails or ends."""
    read: list[bytes] = []
    at, end = piece.at, piece.at + piece.size
    with suppress(OSError):
        while at < end and (data := os.pread(piece.descriptor, end - at, at)):
            read.append(data)
            at += len(data)
    if at < end:
        piece.failed(at)
    return b"".join(read)
