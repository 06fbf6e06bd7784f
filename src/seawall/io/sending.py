"""Bytes of a file to a connection without passing through the memory of this process.

An event loop owns the descriptor of its connection and lets nobody else wait on it, so this works on a duplicate. It
must not know what the bytes are, nor what was sent before them: whoever calls has seen to it that nothing waits.

To another machine the system sends the pages of the file themselves. To a peer on this machine it sends a copy: there
the pages would be copied all the same, by the peer, page by page and out of no cache, while a copy lies in one. That is
more work here and less in all, and both sides do their part of it at the same time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from seawall.io.mapped import MappedPart

__all__ = ["FilePiece", "FileSender", "is_within_machine", "read_stretch"]


@dataclass(slots=True)
class FilePiece:
    """A stretch of a file that is still to be sent; `release` is called once, when nobody needs the file any more."""

    descriptor: int
    at: int
    size: int
    release: Callable[[], None]
    #: The file in memory, up to a position at the least, if it can be had there.
    mapped: Callable[[int], MappedPart | None] | None = None


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
        """Send up to `size` bytes of a piece; how many went, None if there is no room, 0 if the file has ended."""
        size = min(size, piece.size)
        end = piece.at + size
        memory = piece.mapped(end) if self._is_within_machine and piece.mapped is not None else None
        try:
            if memory is None:
                return os.sendfile(self._descriptor, piece.descriptor, piece.at, size)
            return os.write(self._descriptor, memory.bytes[piece.at - memory.at : end - memory.at].data)
        except BlockingIOError:
            return None

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


def read_stretch(file: int, at: int, size: int) -> bytes:
    """The bytes themselves, for connections that do not send what is in files; fewer if the file is shorter."""
    pieces = []
    while size and (piece := os.pread(file, size, at)):
        pieces.append(piece)
        at += len(piece)
        size -= len(piece)
    return b"".join(pieces)
