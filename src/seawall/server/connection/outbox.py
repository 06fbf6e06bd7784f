"""What a connection still has to send: bytes and stretches of files, in the order they were given.

Bytes go to the transport while no file is before them; a stretch of a file is sent once the transport has sent
everything. What is held in memory for it, here and in the transport, is counted as working memory of the connection.

Everything is sent in the order it was written.

A crash takes what was not sent. This module must not know frames, or when a connection ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from seawall import limits
from seawall.io.network.sending import FilePiece, FileSender
from seawall.server.connection.budget import Account

#: Stretches of files that are sent in one go; others have their turn in between.
_FILE_PIECE_SIZE: Final = 4 * limits.MIB


class Outbox:
    """The unsent bytes of a connection. Calls `sent_all` when nothing is left, `broken` when nothing can follow."""

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
        #: Bytes of the pieces, and of those that are in memory; and what is counted as memory.
        self._pieces_size = 0
        self._memory_size = 0
        self._counted = 0
        self._sender: FileSender | None = None
        self._is_writable = True
        #: Bytes that were ever written.
        self.written = 0
        # Everything that cannot be sent at once is reported: files have to wait for it, and the bound is kept here.
        transport.set_write_buffer_limits(high=0)

    @property
    def unsent_size(self) -> int:
        """Bytes that were written and are not sent."""
        return self._transport.get_write_buffer_size() + self._pieces_size

    @property
    def sent_size(self) -> int:
        """Bytes that were ever sent."""
        return self.written - self.unsent_size

    @property
    def has_pieces(self) -> bool:
        """Whether something waits that the transport does not have yet."""
        return bool(self._pieces)

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes behind everything that was written before."""
        self.written += len(data)
        if self._pieces:
            self._pieces.append(data)
            self._pieces_size += len(data)
            self._memory_size += len(data)
        else:
            self._transport.write(data)
        self._count()

    def send_file(self, piece: FilePiece) -> None:
        """Send a stretch of a file behind everything that was written before; it is released when that is done."""
        self.written += piece.size
        self._pieces.append(piece)
        self._pieces_size += piece.size
        self.pump()

    def pause(self) -> None:
        """The transport could not send everything at once."""
        self._is_writable = False

    def resume(self) -> None:
        """The transport has sent everything that it had."""
        self._is_writable = True
        self.pump()

    def pump(self) -> None:
        """Send what waits behind a file, and files once nothing is before them."""
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
        """The connection is gone: give back what was not sent."""
        if self._sender is not None:
            self._loop.remove_writer(self._sender.fileno())
            self._sender.close()
        for piece in self._pieces:
            if isinstance(piece, FilePiece):
                piece.release()
        self._pieces.clear()

    def _count(self) -> None:
        """Count what is in memory now."""
        size = self._transport.get_write_buffer_size() + self._memory_size
        if size != self._counted:
            self._account.hold(size - self._counted)
            self._counted = size

    def _send_piece(self, piece: FilePiece) -> bool:
        """Send of a file what there is room for; whether it is all sent."""
        sender = self._sender
        if sender is None:
            sender = self._sender = FileSender(self._transport.get_extra_info("socket"))
        try:
            sent = sender.send(piece, _FILE_PIECE_SIZE)
        except OSError:
            sent = 0
        if sent == 0:
            # The file is shorter than was promised, or the peer is gone: no frame can follow.
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
        self._loop.add_writer(sender.fileno(), self.pump)
        return False
