"""Encrypted connections: contexts of servers and clients, and streams of threads over them.

A server has a certificate and its key; clients verify it against the authorities of the system or of a file, and its
name against the host they connect with. TLS 1.2 is the oldest that is spoken.

INV-TLS-PENDING: bytes that were decrypted and not taken are asked for (`has_bytes`) before anybody waits for more: the
socket tells nothing of them.

This module must not know the wire protocol.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

from seawall.errors import CallerError, InvalidInputError
from seawall.io.interfaces import ReadableBuffer, WritableBuffer

__all__ = ["Tls", "TlsStream", "client_context", "encrypted", "refused_handshake", "server_context"]

#: Whether a client encrypts, and whom it believes: as the system does, a file of authorities, or a context of its own.
Tls: TypeAlias = bool | str | Path | ssl.SSLContext

#: Bytes of one record: buffers below it are joined, because each record costs more than the copy.
_RECORD_SIZE: Final = 16 * 1024

_NOT_NOW: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """What a listener encrypts with: a chain of certificates and the key of the first, both PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise InvalidInputError(f"no TLS with certificate {certificate} and key {key}: {error}") from error
    return context


def client_context(tls: Tls) -> ssl.SSLContext | None:
    """What a client encrypts with; None if it does not."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if tls is False:
        return None
    try:
        context = ssl.create_default_context(cafile=None if tls is True else tls)
    except OSError as error:
        raise InvalidInputError(f"no authorities of certificates in {tls}: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def refused_handshake(address: str, error: OSError) -> Exception:
    """Why there is no encrypted connection: a lost one may be made again, one that is not trusted never."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return CallerError(
            f"the certificate of {address} is not trusted ({error.verify_message}): name the authority that made it"
        )
    return ConnectionError(error.errno, f"no TLS with {address}: {error}")


def encrypted(connected: socket.socket, context: ssl.SSLContext, host: str, address: str) -> ssl.SSLSocket:
    """Shake hands over a connection that stands, within the timeout it has."""
    try:
        return context.wrap_socket(connected, server_hostname=host)
    except OSError as error:
        connected.close()
        raise refused_handshake(address, error) from error


class TlsStream:
    """One encrypted connection that stands; the words of `waiting.WaitingStream`."""

    __slots__ = ("_peer", "_socket", "wants_room")
    #: Whether `fill` waits by itself.
    waits: ClassVar[bool] = False

    def __init__(self, connected: ssl.SSLSocket, peer: str) -> None:
        self._socket = connected
        self._peer = peer
        #: Whether somebody waits for it to take more bytes.
        self.wants_room = False

    @property
    def has_bytes(self) -> bool:
        """Whether there are bytes that its descriptor does not tell of."""
        return self._socket.fileno() >= 0 and self._socket.pending() > 0

    def fileno(self) -> int:
        """Its descriptor; -1 once it is closed."""
        return self._socket.fileno()

    def send(self, buffers: Sequence[ReadableBuffer]) -> int:
        """Hand over bytes; how many were taken, 0 if none can be now."""
        taken = 0
        for data in _records(buffers):
            try:
                sent = self._socket.send(data)
            except _NOT_NOW:
                break
            except OSError as error:
                raise self._lost(error) from error
            taken += sent
            if sent < len(data):
                break
        return taken

    def receive_into(self, buffer: WritableBuffer) -> int | None:
        """Take bytes, of as many records as there are; None if there are none now, 0 at the end."""
        room = memoryview(buffer)
        taken = 0
        while taken < len(room):
            try:
                count = self._socket.recv_into(room[taken:])
            except _NOT_NOW:
                return taken or None
            except OSError as error:
                raise self._lost(error) from error
            if not count:
                break
            taken += count
        return taken

    def fill(self, buffer: WritableBuffer) -> int | None:
        """As `receive_into`: records are decrypted one by one, as they come."""
        return self.receive_into(buffer)

    def close(self) -> None:
        """End the connection in both directions; closing twice is fine."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _lost(self, error: OSError) -> ConnectionError:
        if isinstance(error, ConnectionError):
            return error
        return ConnectionError(error.errno, f"connection with {self._peer}: {error}")


def _records(buffers: Sequence[ReadableBuffer]) -> list[ReadableBuffer]:
    """The same bytes, with small ones joined. What was refused before comes again with the same beginning."""
    joined: list[ReadableBuffer] = []
    small: list[ReadableBuffer] = []
    size = 0
    for buffer in buffers:
        length = memoryview(buffer).nbytes
        if small and size + length > _RECORD_SIZE:
            joined.append(b"".join(small))
            small, size = [], 0
        small.append(buffer)
        size += length
        if size >= _RECORD_SIZE:
            joined.append(b"".join(small) if len(small) > 1 else buffer)
            small, size = [], 0
    if small:
        joined.append(b"".join(small))
    return joined
