"""TCP of the real machine, non-blocking, and the one way addresses are written.

This module must not know the wire protocol: bytes in, bytes out. No call waits, with one exception: `connect` asks the
resolver of the system for a host name that is not a number.

Addresses are `host:port`; an IPv6 host stands in brackets (`[::1]:1992`), because its colons would hide the port.

Invariants
- Whatever goes wrong with a connection is a `ConnectionError`, raised by `send` and `receive_into` and by every later
  call on that stream; a caller has one thing to catch.

A name with several addresses (`localhost` is often both `::1` and `127.0.0.1`) is tried address by address, so that
the family a server chose to listen on does not matter.
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
    """One resolved address: what `socket` takes to make a connection there."""

    family: int
    target: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]


def parse_address(text: str) -> Address:
    """`host:port` or `[ipv6]:port` in its parts."""
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
        # As the system will be asked for it: labels of 1 to 63 bytes.
        bare.encode("idna")
    except UnicodeError as error:
        raise InvalidInputError(f"{text[:64]!r} has no valid host name: {error}") from error
    return Address(bare, int(port_text))


def format_address(host: str, port: int) -> str:
    """The text `parse_address` reads."""
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
        """Hand over bytes; return how many were taken, 0 if the peer or the network cannot take more now."""
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
        """Take bytes; None if there are none now (or no room for any), 0 once the peer has finished sending."""
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
        """The descriptor to wait on, -1 if there is none (now)."""
        return -1 if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        """End the connection in both directions; closing twice is fine."""
        if self._failure is None:
            self._fail(OSError(errno.EBADF, "closed by this side"))

    def start(self) -> None:
        """Begin to connect to the next address that lets us; the failure of the last one ends the stream."""
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
        """Make this a stream that never had an address to connect to."""
        self._fail(error)

    def _connected(self) -> socket.socket | None:
        """The socket once the connection stands, None while it is being made."""
        if self._connecting and self._socket is not None:
            self._follow_connect(self._socket)
        if self._failure is not None:
            # The same error every time, but without the frames of earlier raises piling up on it.
            raise self._failure.with_traceback(None)
        return None if self._connecting else self._socket

    def _follow_connect(self, attempt: socket.socket) -> None:
        """See whether the connection under way has been made or refused, without waiting."""
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
        """Give the socket back and remember why, as the one kind of error a caller has to know."""
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
    """Two ends of one connection within this machine (a Unix stream), for a process and one that it forks."""
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
        """`host:port` really bound, also when port 0 was asked for."""
        host, port = self._socket.getsockname()[:2]
        return format_address(host, port)

    def accept(self) -> OsStream | None:
        """The next connection, or None if there is none now."""
        try:
            accepted, peer = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            # An aborted connection was gone before it was accepted; the next call finds the next one.
            return None
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            # A connection that the peer has reset already takes no options on macOS; reading it will tell.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return OsStream(format_address(*peer[:2]), accepted=accepted)

    def close(self) -> None:
        """Stop listening; accepted connections go on."""
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
            # A restarted server must not wait for the old connections of its port to be forgotten.
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
