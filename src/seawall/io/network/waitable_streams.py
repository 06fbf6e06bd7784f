"""Connections for threads that wait: made with a deadline, never blocking for long, and waited for together.

    stream = open_stream("host:1992", timeout_s=5)
    stream.send([header, block])                       # how much was taken; what was not is sent when there is room
    stream.fill(buffer)                                # what is sure to come, all of it, as far as it comes soon
    await_streams([stream], waker, timeout_s=1)        # until one can be read, the waker is called, or time is up

Whatever goes wrong with a connection is a `ConnectionError`, as in `sockets.py`; time that is up is none. This module
must not know the wire protocol.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final

from seawall.io.interfaces import ReadableBuffer, WritableBuffer
from seawall.io.network.sockets import parse_address
from seawall.limits import IOVEC_COUNT_MAX

if TYPE_CHECKING:
    from ssl import SSLContext

    from seawall.io.network.tls import TlsStream

__all__ = ["WaitingStream", "Waker", "await_streams", "open_stream"]

#: How long `fill` waits for more, and that as the system takes it: seconds and microseconds.
_FILL_WAIT_US: Final = 100_000
_FILL_WAIT: Final = Struct("@ll").pack(0, _FILL_WAIT_US)


class WaitingStream:
    """One TCP connection that stands. Made by `open_stream`."""

    __slots__ = ("_peer", "_socket", "wants_space")
    #: Whether `fill` waits by itself.
    waits: ClassVar[bool] = True

    def __init__(self, connected: socket.socket, peer: str) -> None:
        self._socket = connected
        self._peer = peer
        #: Whether somebody waits for it to take more bytes.
        self.wants_space = False

    @property
    def has_bytes(self) -> bool:
        """Whether there are bytes that its descriptor does not tell of."""
        return False

    def fileno(self) -> int:
        """Its descriptor; -1 once it is closed."""
        return self._socket.fileno()

    def send(self, buffers: Sequence[ReadableBuffer]) -> int:
        """Hand over bytes; how many were taken, 0 if none can be now."""
        try:
            return self._socket.sendmsg(buffers[:IOVEC_COUNT_MAX], (), socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._lost(error) from error

    def send_by(self, send: Callable[[int], int]) -> int:
        """`send`, by who takes a descriptor, and tells bytes or minus errno."""
        return self._told(send(self._socket.fileno())) or 0

    def receive_into(self, buffer: WritableBuffer) -> int | None:
        """Take bytes; None if there are none now, 0 once the peer has finished sending."""
        try:
            return self._socket.recv_into(buffer, 0, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._lost(error) from error

    def fill(self, buffer: WritableBuffer) -> int | None:
        """Take bytes that are on their way until the buffer is full, or none come for a moment (`_FILL_WAIT_US`).

        Otherwise as `receive_into`. It is one call of the system however the bytes come, and nobody is woken for a few.
        """
        try:
            return self._socket.recv_into(buffer, 0, socket.MSG_WAITALL)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._lost(error) from error

    def fill_by(self, receive: Callable[[int], int]) -> int | None:
        """`fill`, by who takes a descriptor that waits a moment, and tells bytes, 0 at the end, or minus errno."""
        return self._told(receive(self._socket.fileno()))

    def _told(self, count: int) -> int | None:
        """Bytes, or None if there can be none now, of a call that has told bytes or minus errno."""
        if count >= 0:
            return count
        if -count in (errno.EAGAIN, errno.EINTR):
            return None
        raise self._lost(OSError(-count, os.strerror(-count)))

    def close(self) -> None:
        """End the connection in both directions; closing twice is fine."""
        self._socket.close()

    def _lost(self, error: OSError) -> ConnectionError:
        if isinstance(error, ConnectionError):
            return error
        return ConnectionError(error.errno, f"connection with {self._peer}: {error.strerror}")


class Waker:
    """What ends a wait for streams from another thread."""

    __slots__ = ("_receiving", "_sending")

    def __init__(self) -> None:
        self._receiving, self._sending = socket.socketpair()
        self._receiving.setblocking(False)
        self._sending.setblocking(False)

    def fileno(self) -> int:
        """The descriptor that can be read after a wake."""
        return self._receiving.fileno()

    def wake(self) -> None:
        """End the wait that is under way, or else the next one."""
        # A full buffer has woken it already, a closed one has nobody to wake.
        with contextlib.suppress(OSError):
            self._sending.send(b"\0")

    def clear(self) -> None:
        """Forget the wakes so far."""
        with contextlib.suppress(BlockingIOError):
            while self._receiving.recv(4_096):
                pass

    def close(self) -> None:
        """Give the descriptors back."""
        self._receiving.close()
        self._sending.close()


def open_stream(address: str, timeout_s: float, tls: SSLContext | None = None) -> WaitingStream | TlsStream:
    """Connect with `host:port`, trying each address of a name; `ConnectionError` if that fails or takes too long.

    With `tls` it is encrypted; a server that is not trusted is a `CallerError`.
    """
    host, port = parse_address(address)
    try:
        connected = socket.create_connection((host, port), timeout=timeout_s)
    except TimeoutError as error:
        raise ConnectionError(f"no connection with {address} within {timeout_s:.3g} s") from error
    except OSError as error:
        raise ConnectionError(error.errno, f"no connection with {address}: {error.strerror or error}") from error
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        from seawall.io.network.tls import TlsStream, encrypted

        secured = encrypted(connected, tls, host, address)
        secured.setblocking(False)
        return TlsStream(secured, address)
    # Each call says whether it waits; those that do end soon, so that whoever calls can look at the clock.
    connected.setblocking(True)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _FILL_WAIT)
    return WaitingStream(connected, address)


def await_streams(streams: Iterable[WaitingStream | TlsStream], waker: Waker | None, timeout_s: float) -> None:
    """Wait until a stream can be read, has room that somebody wants, the waker is called, or time is up."""
    poller = select.poll()
    for stream in streams:
        if stream.has_bytes:
            timeout_s = 0.0
        poller.register(stream, select.POLLIN | select.POLLOUT if stream.wants_space else select.POLLIN)
    if waker is not None:
        poller.register(waker, select.POLLIN)
    found = poller.poll(max(0.0, timeout_s) * 1_000)
    if waker is not None and any(descriptor == waker.fileno() for descriptor, _ in found):
        waker.clear()
