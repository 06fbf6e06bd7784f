"""Bytes of a file to a connection, without passing through the memory of this process where that is the shorter way.

An event loop owns the descriptor of its connection and lets nobody else wait on it, so this works on a duplicate. It
must not know what the bytes are, nor what was sent before them: whoever calls has seen to it that nothing waits.

To another machine the system sends the pages of the file themselves. To a peer on this machine it sends a copy: there
the pages would be copied all the same, by the peer, page by page and out of no cache, while a copy lies in one. That is
more work here and less in all, and both sides do their part of it at the same time. The copy is made in memory of this
process, a little at a time: no file is mapped, so one that gets shorter ends nobody.

INV-SEND-BLAME: a failure of the connection is raised; a failure of the file is reported to whoever gave the piece.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from threading import local
from typing import Final

from seawall.limits import SEND_COPY_SIZE

__all__ = ["FilePiece", "FileSender", "is_within_machine", "read_piece"]

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

    __slots__ = ("_descriptor", "_is_within_machine")

    def __init__(self, connected: socket.socket) -> None:
        self._descriptor = os.dup(connected.fileno())
        self._is_within_machine = is_within_machine(connected)

    def fileno(self) -> int:
        """What to wait on until there is room."""
        return self._descriptor

    def send(self, piece: FilePiece, size: int) -> int | None:
        """Send up to `size` bytes of a piece; how many went, None if there is no room, 0 if the file fails or ends.

        `OSError` if the connection fails.
        """
        send = self._copy if self._is_within_machine else self._send
        sent = send(piece, min(size, piece.size))
        if sent == 0:
            piece.failed(piece.at)
        return sent

    def _send(self, piece: FilePiece, size: int) -> int | None:
        try:
            return os.sendfile(self._descriptor, piece.descriptor, piece.at, size)
        except BlockingIOError:
            return None
        except OSError as error:
            if isinstance(error, ConnectionError) or error.errno in _OF_CONNECTION:
                raise
            return 0

    def _copy(self, piece: FilePiece, size: int) -> int | None:
        sent = 0
        while sent < size:
            data = _read(piece.descriptor, min(size - sent, SEND_COPY_SIZE), piece.at + sent)
            if not data:
                break
            try:
                count = os.write(self._descriptor, data)
            except BlockingIOError:
                return sent or None
            sent += count
            if count < len(data):
                break
        return sent

    def close(self) -> None:
        """Let the duplicate go; the connection stays."""
        os.close(self._descriptor)


def is_within_machine(connected: socket.socket) -> bool:
    """Whether both ends of a connection are on this machine, as far as their addresses tell."""
    if connected.family == socket.AF_UNIX:
        return True
    try:
        ours, theirs = connected.getsockname()[0], connected.getpeername()[0]
    except OSError:
        return False
    return bool(ours == theirs)


def read_piece(piece: FilePiece) -> bytes:
    """The bytes themselves, for connections that do not send what is in files; fewer if the file fails or has ended."""
    read: list[bytes] = []
    at, end = piece.at, piece.at + piece.size
    while at < end and (data := bytes(_read(piece.descriptor, min(end - at, SEND_COPY_SIZE), at))):
        read.append(data)
        at += len(data)
    if at < end:
        piece.failed(at)
    return b"".join(read)


class _CopyBuffer(local):
    """Where a thread copies through: what is in it holds until its next copy."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(SEND_COPY_SIZE))


_BUFFER: Final = _CopyBuffer()


def _read(file: int, size: int, at: int) -> memoryview:
    """Bytes of a file, in the buffer of this thread; none if the file fails or has ended."""
    memory = _BUFFER.memory
    try:
        return memory[: os.preadv(file, [memory[:size]], at)]
    except OSError:
        return memory[:0]
