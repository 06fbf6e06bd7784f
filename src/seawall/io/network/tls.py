"""Encrypted connections: contexts of servers and clients, and streams of threads over them.

A server has a certificate and its key; clients verify it against the authorities of the system or of a file, and its
name against the host they connect with. A server may ask clients for certificates too, and verifies them against
authorities of its own. TLS 1.2 is the oldest that is spoken.

Bytes that were decrypted and not taken are asked for (`has_bytes`) before anybody waits for more: the socket tells
nothing of them.

This module must not know the wire protocol.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, TypeAlias, TypedDict, TypeGuard

from seawall.errors import CallerError, InvalidInputError
from seawall.io.interfaces import ReadableBuffer, WritableBuffer

__all__ = [
    "Tls",
    "TlsStream",
    "client_context",
    "common_name",
    "encrypted",
    "ended_unwelcome",
    "refused_handshake",
    "server_context",
]

#: Whether a client encrypts, and whom it believes: as the system does, a file of authorities, or a context of its own.
Tls: TypeAlias = bool | str | Path | ssl.SSLContext


class PeerCertificate(TypedDict, total=False):
    """What is used of a certificate as `SSLObject.getpeercert` describes it."""

    subject: tuple[tuple[tuple[str, str], ...], ...]


#: Bytes of one record: buffers below it are joined, because each record costs more than the copy.
_RECORD_SIZE: Final = 16 * 1024

_NOT_NOW: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


def server_context(certificate: Path, key: Path, client_authorities: Path | None = None) -> ssl.SSLContext:
    """What a listener encrypts with: a chain of certificates and the key of the first, both PEM.

    With `client_authorities` clients are asked for a certificate, and one that none of these has signed ends the
    handshake. A client that shows none is let through: the session refuses it, in words that the client understands,
    where TLS would only end the connection.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise InvalidInputError(f"no TLS with certificate {certificate} and key {key}: {error}") from error
    if client_authorities is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        _load_authorities(context, client_authorities)
    return context


def client_context(
    tls: Tls, certificate: str | Path | None = None, key: str | Path | None = None
) -> ssl.SSLContext | None:
    """What a client encrypts with, None if it does not; `certificate` is what it shows a server that asks for one."""
    if certificate is None and key is not None:
        raise InvalidInputError(f"the key {key} has no certificate: give tls_cert, too")
    if isinstance(tls, ssl.SSLContext):
        if certificate is not None:
            raise InvalidInputError(
                "a context has its own client certificate: call its load_cert_chain, or give no tls_cert"
            )
        return tls
    if tls is False:
        if certificate is not None:
            raise InvalidInputError("a client certificate needs TLS: connect with seawalls://, or give tls")
        return None
    context = ssl.create_default_context() if tls is True else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls is not True:
        _load_authorities(context, tls)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except OSError as error:
            where = f"{certificate}" if key is None else f"{certificate} and key {key}"
            raise InvalidInputError(f"no client certificate in {where}: {error}") from error
    return context


def _load_authorities(context: ssl.SSLContext, authorities: str | Path) -> None:
    try:
        context.load_verify_locations(cafile=authorities)
    except OSError as error:
        raise InvalidInputError(f"no authorities of certificates in {authorities}: {error}") from error


def common_name(certificate: PeerCertificate) -> str:
    """The common name of the subject of a certificate; empty without one."""
    names = [value for part in certificate.get("subject", ()) for field, value in part if field == "commonName"]
    return names[-1] if names else ""


def refused_handshake(address: str, error: OSError) -> Exception:
    """Why there is no encrypted connection: a lost one may be made again, one that is not trusted never."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return CallerError(
            f"the certificate of {address} is not trusted ({error.verify_message}): name the authority that made it"
        )
    if _is_certificate_refused(error):
        return CallerError(
            f"{address} takes only clients whose certificate it trusts ({error.reason}): give tls_cert and tls_key"
        )
    return ConnectionError(error.errno, f"no TLS with {address}: {error}")


def ended_unwelcome(error: ConnectionError) -> ConnectionError:
    """An encrypted connection that ended before its WELCOME: servers may end TLS without a word about the reason."""
    return ConnectionError(error.errno, f"{error}; a server that does not trust our certificate (tls_cert) does so")


def _is_certificate_refused(error: OSError) -> TypeGuard[ssl.SSLError]:
    """Whether the peer has ended TLS for want of a certificate, or because of the one it was shown."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def encrypted(connected: socket.socket, context: ssl.SSLContext, host: str, address: str) -> ssl.SSLSocket:
    """Shake hands over a connection that stands, within the timeout it has."""
    try:
        return context.wrap_socket(connected, server_hostname=host)
    except OSError as error:
        connected.close()
        raise refused_handshake(address, error) from error


class TlsStream:
    """One encrypted connection that stands; the words of `waiting.WaitingStream`."""

    __slots__ = ("_peer", "_socket", "wants_space")
    #: Whether `fill` waits by itself.
    waits: ClassVar[bool] = False

    def __init__(self, connected: ssl.SSLSocket, peer: str) -> None:
        self._socket = connected
        self._peer = peer
        #: Whether somebody waits for it to take more bytes.
        self.wants_space = False

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
                raise self._lost(self._alert() or error) from error
            taken += sent
            if sent < len(data):
                break
        return taken

    def receive_into(self, buffer: WritableBuffer) -> int | None:
        """Take bytes, of as many records as there are; None if there are none now, 0 at the end."""
        space = memoryview(buffer)
        taken = 0
        while taken < len(space):
            try:
                count = self._socket.recv_into(space[taken:])
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

    def _alert(self) -> OSError | None:
        """Why the peer ended TLS, if it said so before the connection broke."""
        try:
            self._socket.recv(1)
        except ssl.SSLError as error:
            return error
        except OSError:
            return None
        return None

    def _lost(self, error: OSError) -> Exception:
        if isinstance(error, ssl.SSLError):
            # With TLS 1.3 a server judges the certificate of a client when the client's handshake is already over.
            return refused_handshake(self._peer, error)
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
