"""Non-blocking TCP of the operating system, and the syntax of addresses.

This module must not know the wire protocol: bytes in, bytes out. No call blocks, with one exception: `connect` asks the
system's resolver for a host name that is not a number.

Addresses are `host:port`; an IPv6 host needs brackets (`[::1]:1992`), because its colons would hide the port.

Invariants
- Every failure of a connection is a `ConnectionError`, raised by `send` and `receive_into` and by every later call on
  that stream, so callers catch one type.

`connect` tries each address of a name in turn (`localhost` is often both `::1` and `127.0.0.1`), so it does not matter
which family the server listens on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from typing import NamedTuple

from seawall.errors import InvalidInputError
from seawall.io.interfaces import ReadableBuffer, WritableBuffer
from seawall.limits import LISTEN_BACKLOG, STREAM_BUFFER_SIZE

__all__ = ["Address", "OsListener", "OsNetwork", "OsStream", "format_address", "parse_address", "stream_pair"]


class Address(NamedTuple):
    """Host name or number, and port."""

    host: str
    port: int


class _Candidate(NamedTuple):
    """One resolved address: the arguments for `socket` to connect to it."""

    family: int
    target: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


def parse_address(text: str) -> Address:
    """Parse `host:port` or `[ipv6]:port`."""
    host, separator, port_text = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if not separator or not bare or any(character in bare for character in "[]") or (":" in bare) != bracketed:
        raise InvalidInputError(
            f"{text!r} is not an address; write host:port, or [ipv6]:port (0.0.0.0:port listens on every interface)"
        )
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65_535:
        raise InvalidInputError(f"{text!r} has no valid port; it is a number from 0 to 65535")
    try:
        # The resolver needs labels of 1 to 63 bytes.
        bare.encode("idna")
    except UnicodeError as error:
        raise InvalidInputError(f"{text[:64]!r} has no valid host name: {error}") from error
    return Address(bare, int(port_text))


def format_address(host: str, port: int) -> str:
    """Format an address as `parse_address` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class OsStream:
    """One TCP connection. Made by `OsNetwork.connect` and `OsListener.accept`."""

    __slots__ = ("_candidates", "_connecting", "_failure", "_peer", "_socket")

    def __init__(self, peer: str, *, accepted: socket.socket | None = None, candidates: list[_Candidate] | None = None):
        self._peer = peer
        self._socket = accepted
        self._candidates = candidates or []
        self._connecting = accepted is None
        self._failure: ConnectionError | None = None

    def send(self, data: ReadableBuffer) -> int:
        """Send bytes; return how many were accepted, 0 if the peer or the network cannot accept more now."""
        connected = self._connected()
        if connected is None:
            return 0
        try:
            return connected.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._fail(error) from error

    def receive_into(self, buffer: WritableBuffer) -> int | None:
        """Receive bytes; None if there are none now or the buffer is empty, 0 once the peer has finished sending."""
        connected = self._connected()
        if connected is None or not len(buffer):
            return None
        try:
            return connected.recv_into(buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._fail(error) from error

    def fileno(self) -> int:
        """The descriptor to wait on; -1 if there is none at the moment."""
        return -1 if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        """End the connection in both directions; closing twice is fine."""
        if self._failure is None:
            self._fail(OSError(errno.EBADF, "closed by this side"))

    def start(self) -> None:
        """Start to connect to the next candidate address; if the last one fails, the stream fails."""
        while self._candidates:
            candidate = self._candidates.pop(0)
            try:
                attempt = socket.socket(candidate.family, socket.SOCK_STREAM)
                attempt.setblocking(False)
                self._socket = attempt
                attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = attempt.connect_ex(candidate.target)
            except OSError as error:
                code = error.errno or errno.EIO
            if code in (0, errno.EINPROGRESS, errno.EINTR):
                return
            self._drop_socket()
            if not self._candidates:
                self._fail(OSError(code, os.strerror(code)))

    def refuse(self, error: OSError) -> None:
        """Fail this stream: its name has no address to connect to."""
        self._fail(error)

    def _connected(self) -> socket.socket | None:
        """The socket once it is connected, None while connecting."""
        if self._connecting and self._socket is not None:
            self._check_connect(self._socket)
        if self._failure is not None:
            # The same error every time, without accumulating the traceback frames of earlier raises.
            raise self._failure.with_traceback(None)
        return None if self._connecting else self._socket

    def _check_connect(self, attempt: socket.socket) -> None:
        """Check without blocking whether the connection attempt has succeeded or failed."""
        poller = select.poll()
        poller.register(attempt, select.POLLOUT)
        if not poller.poll(0):
            return
        code = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0:
            self._connecting = False
        elif self._candidates:
            self._drop_socket()
            self.start()
        else:
            self._fail(OSError(code, os.strerror(code)))

    def _fail(self, error: OSError) -> ConnectionError:
        """Close the socket and record the error as a `ConnectionError`, which is returned."""
        self._drop_socket()
        if isinstance(error, ConnectionError):
            self._failure = error
        else:
            self._failure = ConnectionError(error.errno, f"connection with {self._peer}: {error.strerror}")
        return self._failure

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def stream_pair(name: str) -> tuple[OsStream, OsStream]:
    """The two ends of a local connection (a Unix stream), for a process and its forked child."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in ends:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BUFFER_SIZE)
    return OsStream(name, accepted=ends[0]), OsStream(name, accepted=ends[1])


class OsListener:
    """A listening TCP port. Made by `OsNetwork.listen`."""

    __slots__ = ("_socket",)

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening

    @property
    def address(self) -> str:
        """The bound `host:port`; the actual port if port 0 was requested."""
        host, port = self._socket.getsockname()[:2]
        return format_address(host, port)

    def accept(self) -> OsStream | None:
        """The next connection, or None if there is none now."""
        try:
            accepted, peer = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            # An aborted connection ended before the accept; the next call returns the next one.
            return None
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            # On macOS a connection that the peer has already reset refuses options; the next read reports the reset.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return OsStream(format_address(*peer[:2]), accepted=accepted)

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        self._socket.close()


class OsNetwork:
    """TCP connections of the operating system."""

    __slots__ = ()

    def listen(self, address: str) -> OsListener:
        """Bind and listen; port 0 picks a free one. `OSError` if the address is taken or not of this machine."""
        host, port = parse_address(address)
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            # A restarted server must not wait for old connections of its port in TIME_WAIT.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(target)
            listening.listen(LISTEN_BACKLOG)
            listening.setblocking(False)
        except OSError as error:
            listening.close()
            raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
        return OsListener(listening)

    def connect(self, address: str) -> OsStream:
        """Start a connection; a refused or lost one shows as `ConnectionError` from `send` or `receive_into`."""
        host, port = parse_address(address)
        try:
            resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            stream = OsStream(address)
            stream.refuse(error)
            return stream
        stream = OsStream(address, candidates=[_Candidate(entry[0], entry[4]) for entry in resolved])
        stream.start()
        return stream
