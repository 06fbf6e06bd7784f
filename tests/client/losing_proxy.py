"""A proxy that forwards everything, except that it may drop the answers of one command by closing the connection.

So the server executes a request and its client gets no answer, which a server cannot be made to do.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Self

_HEADER = 44
_COMMAND = struct.Struct("<H")
_LENGTH = struct.Struct("<I")
_CONTROL = 0x40


class LosingProxy:
    """Listens on its own port and forwards to another; every connection has two threads."""

    def __init__(self, port: int, command: int) -> None:
        self._target = port
        self._command = command
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.port = self._listener.getsockname()[1]
        #: How many answers are still to be dropped, and how many were.
        self.left = 0
        self.lost = 0

    @property
    def url(self) -> str:
        return f"seawall://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        # Only this wakes a thread that is blocked in accept.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._sockets):
            _close(each)
        for thread in list(self._threads):
            thread.join()

    def _run(self, work: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self._sockets.append(client)
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    _close(client)
                    continue
                self._sockets.append(server)
                self._run(self._forward, client, server)
                self._run(self._forward_answers, server, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        _close(target)

    def _forward_answers(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source.makefile("rb") as frames:
            while len(header := frames.read(_HEADER)) == _HEADER:
                payload = frames.read(_LENGTH.unpack_from(header, 32)[0])
                is_answer = header[5] == _CONTROL and _COMMAND.unpack_from(header, 6)[0] == self._command
                if is_answer and self.left:
                    self.left -= 1
                    self.lost += 1
                    break
                target.sendall(header + payload)
        _close(source)
        _close(target)


def _close(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
