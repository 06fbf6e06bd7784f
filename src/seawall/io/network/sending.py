"""Bytes of a file to a connection without passing through the memory of this process.

An event loop owns the descriptor of its connection and lets nobody else wait on it, so this works on a duplicate. It
must not know what the bytes are, nor what was sent before them: whoever calls has seen to it that nothing waits.

The system sends the pages of the file themselves, and a page that is not there is an error of the call: no file is
mapped, so one that somebody truncates ends nobody (decision 0018).

A failure of the connection is raised; a failure of the file is reported to whoever gave the piece.
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

#: Codes of errors, beside those of `ConnectionError`, by which a call that sends tells of the connection.
_OF_CONNECTION: Final = frozenset(
    {errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN}
)


@dataclass(slots=True)
class FilePiece:
    """A stretch of a file that is still to be sent; `release` is called once, when nobody needs the file any more."""

    descriptor: int
    at: int
    size: int
    release: Callable[[], None]
    #: Told the position at which the file has failed, or ended too early.
    failed: Callable[[int], None]


class FileSender:
    """The sending side of one connection, for files."""

    __slots__ = ("_descriptor",)

    def __init__(self, connected: socket.socket) -> None:
        self._descriptor = os.dup(connected.fileno())

    def fileno(self) -> int:
        """What to wait on until there is room."""
        return self._descriptor

    def send(self, piece: FilePiece, size: int) -> int | None:
        """Send up to `size` bytes of a piece; how many went, None if there is no room, 0 if the file fails or ends.

        `OSError` if the connection fails.
        """
        try:
            sent = os.sendfile(self._descriptor, piece.descriptor, piece.at, min(size, piece.size))
        except BlockingIOError:
            return None
        except OSError as error:
            if isinstance(error, ConnectionError) or error.errno in _OF_CONNECTION:
                raise
            sent = 0
        if not sent:
            piece.failed(piece.at)
        return sent

    def close(self) -> None:
        """Let the duplicate go; the connection stays."""
        os.close(self._descriptor)


def read_piece(piece: FilePiece) -> bytes:
    """The bytes themselves, for connections that do not send what is in files; fewer if the file fails or ends."""
    read: list[bytes] = []
    at, end = piece.at, piece.at + piece.size
    with suppress(OSError):
        while at < end and (data := os.pread(piece.descriptor, end - at, at)):
            read.append(data)
            at += len(data)
    if at < end:
        piece.failed(at)
    return b"".join(read)
