"""Connections for threads that block: opened with a deadline, never blocking for long, polled together.

    stream = open_stream("host:1992", timeout_s=5)
    stream.send([header, block])                       # bytes accepted; send the rest when the stream is writable
    stream.fill(buffer)                                # bytes that are sure to arrive, as many as arrive soon
    await_streams([stream], waker, timeout_s=1)        # until one is readable, the waker is called, or time is up

Every failure of a connection is a `ConnectionError`, as in `sockets.py`; a timeout is not an error. This module must
not know the wire protocol.
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

__all__ = ["BlockingStream", "Waker", "await_streams", "open_stream"]

#: How long `fill` waits for more bytes; as a `timeval` for the system: seconds and microseconds.
_FILL_WAIT_US: Final = 100_000
_FILL_WAIT: Final = Struct("@ll").pack(0, _FILL_WAIT_US)


class BlockingStream:
    """One open TCP connection. Made by `open_stream`."""

    __slots__ = ("_peer", "_socket", "wants_space")
    #: True if `fill` itself blocks for a moment.
    waits: ClassVar[bool] = True

    def __init__(self, connected: socket.socket, peer: str) -> None:
        self._socket = connected
        self._peer = peer
        #: True if the sender has unsent bytes and waits for the stream to become writable.
        self.wants_space = False

    @property
    def has_bytes(self) -> bool:
        """True if there are bytes that polling the descriptor does not show: never, without TLS."""
        return False

    def fileno(self) -> int:
        """The file descriptor; -1 once closed."""
        return self._socket.fileno()

    def send(self, buffers: Sequence[ReadableBuffer]) -> int:
        """Send bytes; return how many were accepted, 0 if none can be now."""
        try:
            return self._socket.sendmsg(buffers[:IOVEC_COUNT_MAX], (), socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._lost(error) from error

    def send_by(self, send: Callable[[int], int]) -> int:
        """Like `send`, with a function that takes the descriptor and returns bytes or minus errno."""
        return self._checked(send(self._socket.fileno())) or 0

    def receive_into(self, buffer: WritableBuffer) -> int | None:
        """Receive bytes; None if there are none now, 0 once the peer has finished sending."""
        try:
            return self._socket.recv_into(buffer, 0, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._lost(error) from error

    def fill(self, buffer: WritableBuffer) -> int | None:
        """Receive bytes until the buffer is full, or none arrive for a moment (`_FILL_WAIT_US`).

        Otherwise like `receive_into`. It is one system call however the bytes arrive, and the thread does not wake up
        for a few of them.
        """
        try:
            return self._socket.recv_into(buffer, 0, socket.MSG_WAITALL)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._lost(error) from error

    def fill_by(self, receive: Callable[[int], int]) -> int | None:
        """Like `fill`, with a function that takes the descriptor, blocks for a moment, and returns bytes, 0 at the end
        of the stream, or minus errno."""
        return self._checked(receive(self._socket.fileno()))

    def _checked(self, count: int) -> int | None:
        """The bytes of a call that returned bytes or minus errno; None if it would block; raises other errors."""
        if count >= 0:
            return count
        if -count in (errno.EAGAIN, errno.EINTR):
            return None
        raise self._lost(OSError(-count, os.strerror(-count)))

    def stop(self) -> None:
        """End the connection for a thread that uses it, from another one: it gets no more bytes, and closes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection in both directions; closing twice is fine."""
        self._socket.close()

    def _lost(self, error: OSError) -> ConnectionError:
        if isinstance(error, ConnectionError):
            return error
        return ConnectionError(error.errno, f"connection with {self._peer}: {error.strerror}")


class Waker:
    """Ends a wait for streams from another thread."""

    __slots__ = ("_receiving", "_sending")

    def __init__(self) -> None:
        self._receiving, self._sending = socket.socketpair()
        self._receiving.setblocking(False)
        self._sending.setblocking(False)

    def fileno(self) -> int:
        """The descriptor that is readable after `wake`."""
        return self._receiving.fileno()

    def wake(self) -> None:
        """End the current wait, or else the next one."""
        # A full buffer means that it is already awake; a closed one has no waiter.
        with contextlib.suppress(OSError):
            self._sending.send(b"\0")

    def clear(self) -> None:
        """Drop all wake-ups so far."""
        with contextlib.suppress(BlockingIOError):
            while self._receiving.recv(4_096):
                pass

    def close(self) -> None:
        """Close the descriptors."""
        self._receiving.close()
        self._sending.close()


def open_stream(address: str, timeout_s: float, tls: SSLContext | None = None) -> BlockingStream | TlsStream:
    """Connect to `host:port`, trying each address of a name; `ConnectionError` if that fails or times out.

    With `tls` the connection is encrypted; `CallerError` if the server is not trusted.
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
    # Each call chooses whether to block; a blocking one returns soon, so that the caller can check its deadline.
    connected.setblocking(True)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _FILL_WAIT)
    return BlockingStream(connected, address)


def await_streams(streams: Iterable[BlockingStream | TlsStream], waker: Waker | None, timeout_s: float) -> None:
    """Wait until a stream is readable, or writable if it wants that, the waker is called, or time is up."""
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
