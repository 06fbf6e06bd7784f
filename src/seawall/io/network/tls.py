"""TLS: contexts for servers and clients, and a stream for threads that block.

A server has a certificate and its key. Clients verify the certificate against the authorities of the system or of a
file, and its name against the host they connect to. A server may request client certificates too, and verifies them
against its own list of authorities. The oldest supported version is TLS 1.2.

Decrypted bytes may wait inside the TLS object, where polling the socket does not show them: check `has_bytes` before
waiting.

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
    "closed_before_welcome",
    "common_name",
    "encrypted",
    "handshake_error",
    "server_context",
]

#: TLS setting of a client: off, the system's authorities, a file of authorities, or a complete context.
Tls: TypeAlias = bool | str | Path | ssl.SSLContext


class PeerCertificate(TypedDict, total=False):
    """The part of `SSLObject.getpeercert` that Seawall uses."""

    subject: tuple[tuple[tuple[str, str], ...], ...]


#: Size of one TLS record: smaller buffers are joined, because a record costs more than the copy.
_RECORD_SIZE: Final = 16 * 1024

_NOT_NOW: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


def server_context(certificate: Path, key: Path, client_authorities: Path | None = None) -> ssl.SSLContext:
    """The context of a listener, from a certificate chain and the key of its first certificate, both PEM.

    With `client_authorities` the server requests client certificates; one that none of the authorities has signed ends
    the handshake. A client without a certificate passes: the session refuses it with an error that the client
    understands, where TLS would only end the connection.
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
    """The context of a client, None without TLS; `certificate` is for servers that request one."""
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
    """The common name in the subject of a certificate; empty if it has none."""
    names = [value for part in certificate.get("subject", ()) for field, value in part if field == "commonName"]
    return names[-1] if names else ""


def handshake_error(address: str, error: OSError) -> Exception:
    """The error to raise for a failed handshake: `ConnectionError` may be retried, `CallerError` (no trust) may not."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return CallerError(
            f"the certificate of {address} is not trusted ({error.verify_message}): name the authority that made it"
        )
    if _is_certificate_refused(error):
        return CallerError(
            f"{address} takes only clients whose certificate it trusts ({error.reason}): give tls_cert and tls_key"
        )
    return ConnectionError(error.errno, f"no TLS with {address}: {error}")


def closed_before_welcome(error: ConnectionError) -> ConnectionError:
    """The error for a TLS connection that ended before WELCOME: servers may close it without giving a reason."""
    return ConnectionError(error.errno, f"{error}; a server that does not trust our certificate (tls_cert) does so")


def _is_certificate_refused(error: OSError) -> TypeGuard[ssl.SSLError]:
    """True if the peer ended TLS because it got no certificate, or does not trust the one it got."""
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def encrypted(connected: socket.socket, context: ssl.SSLContext, host: str, address: str) -> ssl.SSLSocket:
    """Do the TLS handshake on an open connection, within the timeout of the socket."""
    try:
        return context.wrap_socket(connected, server_hostname=host)
    except OSError as error:
        connected.close()
        raise handshake_error(address, error) from error


class TlsStream:
    """One open TLS connection; the same API as `waitable_streams.BlockingStream`."""

    __slots__ = ("_peer", "_socket", "wants_space")
    #: True if `fill` itself blocks for a moment.
    waits: ClassVar[bool] = False

    def __init__(self, connected: ssl.SSLSocket, peer: str) -> None:
        self._socket = connected
        self._peer = peer
        #: True if the sender has unsent bytes and waits for the stream to become writable.
        self.wants_space = False

    @property
    def has_bytes(self) -> bool:
        """True if there are decrypted bytes that polling the descriptor does not show."""
        return self._socket.fileno() >= 0 and self._socket.pending() > 0

    def fileno(self) -> int:
        """The file descriptor; -1 once closed."""
        return self._socket.fileno()

    def send(self, buffers: Sequence[ReadableBuffer]) -> int:
        """Send bytes; return how many were accepted, 0 if none can be now."""
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
        """Receive the bytes of all available records; None if there are none now, 0 at the end."""
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
        """Same as `receive_into`: records are decrypted one at a time, as they arrive."""
        return self.receive_into(buffer)

    def stop(self) -> None:
        """End the connection for a thread that uses it, from another one: it gets no more bytes, and closes."""
        with contextlib.suppress(OSError):
            # Not the method of the TLS socket, which the other thread is using.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection in both directions; closing twice is fine."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _alert(self) -> OSError | None:
        """The TLS alert that the peer sent before the connection broke, or None."""
        try:
            self._socket.recv(1)
        except ssl.SSLError as error:
            return error
        except OSError:
            return None
        return None

    def _lost(self, error: OSError) -> Exception:
        if isinstance(error, ssl.SSLError):
            # With TLS 1.3 a server checks the client's certificate after the client's handshake is already complete.
            return handshake_error(self._peer, error)
        if isinstance(error, ConnectionError):
            return error
        return ConnectionError(error.errno, f"connection with {self._peer}: {error}")


def _records(buffers: Sequence[ReadableBuffer]) -> list[ReadableBuffer]:
    """The same bytes with small buffers joined; after a short send, a retry starts with the same bytes again."""
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
