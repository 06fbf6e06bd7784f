"""The send queue of a connection: bytes and ranges of files, sent in the order in which they were written.

Bytes go to the transport unless a file is queued before them. A file range is sent once the transport is empty. Bytes
in memory, here and in the transport, are counted as working memory of the connection.

A crash loses unsent bytes. This module must not know frames, or when a connection closes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from seawall import limits
from seawall.io.network.sending import FilePiece, FileSender
from seawall.server.connection.budget import Account

#: The most bytes of a file to send at once; other connections run in between.
_FILE_PIECE_SIZE: Final = 4 * limits.MIB


class Outbox:
    """The unsent data of a connection. Calls `sent_all` when it is empty, and `broken` when sending has failed."""

    __slots__ = (
        *("_account", "_broken", "_counted", "_is_writable", "_loop", "_memory_size", "_pieces", "_pieces_size"),
        *("_sender", "_sent_all", "_transport", "written"),
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        account: Account,
        *,
        sent_all: Callable[[], None],
        broken: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._account = account
        self._sent_all = sent_all
        self._broken = broken
        self._pieces: deque[bytes | memoryview | FilePiece] = deque()
        #: Bytes of the queued pieces, those of them in memory, and the bytes counted as memory.
        self._pieces_size = 0
        self._memory_size = 0
        self._counted = 0
        self._sender: FileSender | None = None
        self._is_writable = True
        #: Total bytes written.
        self.written = 0
        # A limit of 0 reports every write that cannot be sent at once: files have to wait for it, and this class
        # enforces the limit.
        transport.set_write_buffer_limits(high=0)

    @property
    def unsent_size(self) -> int:
        """Bytes written and not sent yet."""
        return self._transport.get_write_buffer_size() + self._pieces_size

    @property
    def sent_size(self) -> int:
        """Total bytes sent."""
        return self.written - self.unsent_size

    @property
    def has_pieces(self) -> bool:
        """True if something is queued that the transport does not have yet."""
        return bool(self._pieces)

    def write(self, *pieces: bytes | memoryview) -> None:
        """Send bytes after everything that was written before."""
        size = sum(map(len, pieces))
        self.written += size
        if self._pieces:
            self._pieces.extend(pieces)
            self._pieces_size += size
            self._memory_size += size
        elif len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
        self._count()

    def send_file(self, piece: FilePiece) -> None:
        """Send a range of a file after everything that was written before, then release it."""
        self.written += piece.size
        self._pieces.append(piece)
        self._pieces_size += piece.size
        self.send_queued()

    def pause(self) -> None:
        """Note that the transport has unsent bytes."""
        self._is_writable = False

    def resume(self) -> None:
        """Continue to send: the transport is empty."""
        self._is_writable = True
        self.send_queued()

    def send_queued(self) -> None:
        """Send queued pieces until the transport is busy."""
        while self._pieces and not self._transport.is_closing():
            first = self._pieces[0]
            if not isinstance(first, FilePiece):
                self._pieces.popleft()
                self._pieces_size -= len(first)
                self._memory_size -= len(first)
                self._transport.write(first)
            elif not self._is_writable or self._transport.get_write_buffer_size() or not self._send_piece(first):
                break
        self._count()
        if not self._pieces and self._is_writable:
            self._sent_all()

    def close(self) -> None:
        """Release the files of unsent ranges: the connection is closed."""
        if self._sender is not None:
            self._loop.remove_writer(self._sender.fileno())
            self._sender.close()
        for piece in self._pieces:
            if isinstance(piece, FilePiece):
                piece.release()
        self._pieces.clear()

    def _count(self) -> None:
        """Update the counted memory."""
        size = self._transport.get_write_buffer_size() + self._memory_size
        if size != self._counted:
            self._account.hold(size - self._counted)
            self._counted = size

    def _send_piece(self, piece: FilePiece) -> bool:
        """Send as much of a file range as the socket accepts; True if all of it is sent."""
        sender = self._sender
        if sender is None:
            sender = self._sender = FileSender(self._transport.get_extra_info("socket"))
        try:
            sent = sender.send(piece, _FILE_PIECE_SIZE)
        except OSError:
            sent = 0
        if sent == 0:
            # The file is shorter than announced, or the peer has disconnected: the frame cannot be completed.
            self._broken()
            return False
        if sent is not None:
            piece.at += sent
            piece.size -= sent
            self._pieces_size -= sent
            if not piece.size:
                self._loop.remove_writer(sender.fileno())
                self._pieces.popleft()
                piece.release()
                return True
        self._loop.add_writer(sender.fileno(), self.send_queued)
        return False
