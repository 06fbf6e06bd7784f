"""Bytes of a file to a connection without passing through this process.

An event loop owns the descriptor of its connection and lets nobody else wait on it, so this works on a duplicate. It
must not know what the bytes are, nor what was sent before them: whoever calls has seen to it that nothing waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["FilePiece", "FileSender", "read_stretch"]


@dataclass(slots=True)
class FilePiece:
    """A stretch of a file that is still to be sent; `release` is called once, when nobody needs the file any more."""

    descriptor: int
    at: int
    size: int
    release: Callable[[], None]


class FileSender:
    """The sending side of one connection, for files."""

    __slots__ = ("_descriptor",)

    def __init__(self, connection: int) -> None:
        self._descriptor = os.dup(connection)

    def fileno(self) -> int:
        """What to wait on until there is room."""
        return self._descriptor

    def send(self, file: int, at: int, size: int) -> int | None:
        """Send up to `size` bytes from `at` of a file; how many went, None if there is no room, 0 if the file ended."""
        try:
            return os.sendfile(self._descriptor, file, at, size)
        except BlockingIOError:
            return None

    def close(self) -> None:
        """Let the duplicate go; the connection stays."""
        os.close(self._descriptor)


def read_stretch(file: int, at: int, size: int) -> bytes:
    """The bytes themselves, for connections that do not send what is in files; fewer if the file is shorter."""
    pieces = []
    while size and (piece := os.pread(file, size, at)):
        pieces.append(piece)
        at += len(piece)
        size -= len(piece)
    return b"".join(pieces)
