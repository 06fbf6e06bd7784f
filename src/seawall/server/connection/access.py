"""Access control: tokens and client certificates, the rights that they grant, and the state of each connection.

Without tokens and certificates every peer may do everything. With tokens a connection has to show one first, by
Authenticate or in its HELLO; until then the server answers only that and keepalives. A connection with a client
certificate that TLS has verified needs no token: it has the rights of the common name in the certificate, which are all
rights unless configured otherwise. It may still show a token.

A write-only token or certificate is for machines that must not read. It allows ingest, creating, changing and deleting
topics and their records, finding the id of a topic by its name, and transactions, except those that commit consumer
offsets. In a queue it may push jobs, decide what becomes of claimed ones, delete jobs and move dead letters; it may not
claim jobs or look at them.

Access also limits the read rate: for each connection, or for all connections with the same token together.

The third unknown token closes the connection.

This module must not know frames, or where tokens are stored.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from seawall import limits
from seawall.errors import ProtocolError
from seawall.server.lwp2.refusals import refuse
from seawall.server.read.read_rate import ReadRate
from seawall.wire.format.codes import Command, ErrorCode, V1Command

_UNKNOWN_TOKENS_MAX: Final = 3

#: Commands that a write-only token allows, besides ingest.
_WRITE_COMMANDS: Final[frozenset[int]] = frozenset(
    {
        V1Command.CREATE_TOPIC,
        V1Command.DELETE_TOPIC,
        V1Command.SET_RETENTION,
        V1Command.CREATE_TOPIC_WITH_RETENTION,
        Command.TOPIC_CREATE,
        Command.TOPIC_CONFIGURE,
        Command.TOPIC_FIND,
        Command.RECORDS_DELETE,
        Command.STAGING_FIND,
        Command.TRANSACTION_COMMIT,
        Command.TRANSACTION_ABORT,
        Command.TRANSACTION_STATE,
        Command.PUBLISH_KEYED,
        Command.JOB_ACK,
        Command.JOB_NACK,
        Command.JOB_EXTEND,
        Command.QUEUE_PURGE,
        Command.QUEUE_REDRIVE,
        Command.JOB_PUSH_UNIQUE,
    }
)


class Right(StrEnum):
    """The rights of a token."""

    ALL = "all"
    WRITE_ONLY = "write_only"


class Access:
    """The tokens and certificates of a server; without any, every peer may do everything."""

    def __init__(
        self,
        tokens: Mapping[str, Right] | None = None,
        *,
        read_rate: int = 0,
        read_rates: Mapping[str, int] | None = None,
        takes_certificates: bool = False,
        certificates: Mapping[str, Right] | None = None,
        certificate_rates: Mapping[str, int] | None = None,
    ) -> None:
        """`read_rate` applies to each connection without a rate of its own, in bytes a second; 0 is no limit.

        With `takes_certificates` a peer without a token needs a client certificate; the keys of `certificates` and
        `certificate_rates` are common names.
        """
        self._takes_certificates = takes_certificates
        self._certificates = dict(certificates or {})
        self._certificate_rates = {name: ReadRate(rate) for name, rate in (certificate_rates or {}).items()}
        self._tokens = [(token.encode(), right) for token, right in (tokens or {}).items()]
        self._read_rate = read_rate
        #: Read rates by token; all connections with a token share one.
        self._token_rates = {token: ReadRate(rate) for token, rate in (read_rates or {}).items()}

    @property
    def is_open(self) -> bool:
        """True if peers need neither a token nor a certificate."""
        return not (self._tokens or self._takes_certificates)

    def right_of(self, token: str) -> Right | None:
        """The rights of a token, None if it is unknown. Takes constant time, so that timing reveals nothing."""
        shown = token.encode()
        found = None
        for known, right in self._tokens:
            if hmac.compare_digest(known, shown):
                found = right
        return found

    def rate_of(self, token: str) -> ReadRate | None:
        """The read rate that all connections with a token share; None if the token has no rate of its own."""
        return self._token_rates.get(token)

    def right_of_certificate(self, name: str) -> Right:
        """The rights of a verified certificate, by its common name."""
        return self._certificates.get(name, Right.ALL)

    def rate_of_certificate(self, name: str) -> ReadRate | None:
        """The read rate that all connections with a certificate name share; None if it has no rate of its own."""
        return self._certificate_rates.get(name)

    def own_rate(self) -> ReadRate | None:
        """A read rate for one connection; None if there is no limit."""
        return ReadRate(self._read_rate) if self._read_rate else None


class Admission:
    """The rights of one connection."""

    __slots__ = ("_access", "_rate", "_right", "_unknown_tokens")

    def __init__(self, access: Access, certificate_name: str | None = None) -> None:
        """`certificate_name` is the common name in the verified certificate of the peer; None without one."""
        self._access = access
        self._right = Right.ALL if access.is_open else None
        self._rate = access.own_rate()
        if certificate_name is not None:
            self._right = access.right_of_certificate(certificate_name)
            self._rate = access.rate_of_certificate(certificate_name) or self._rate
        self._unknown_tokens = 0

    @property
    def payload_max(self) -> int:
        """The largest payload that is accepted."""
        return limits.PAYLOAD_SIZE_MIN if self.is_admitted else limits.UNADMITTED_PAYLOAD_SIZE_MAX

    @property
    def is_over(self) -> bool:
        """True after too many unknown tokens."""
        return self._unknown_tokens >= _UNKNOWN_TOKENS_MAX

    @property
    def is_admitted(self) -> bool:
        """True if no token is needed, or a known token or certificate was shown."""
        return self._right is not None

    def authenticate(self, token: str) -> bool:
        """Apply a token; False if it is unknown. An unknown token changes no rights."""
        if self._access.is_open:
            return True
        right = self._access.right_of(token)
        if right is None:
            self._unknown_tokens += 1
            return False
        self._right = right
        self._rate = self._access.rate_of(token) or self._rate
        return True

    def check_ingest(self) -> ProtocolError | None:
        """The error that forbids ingest, or None."""
        return self._unauthenticated() if self._right is None else None

    def check(self, command: int) -> ProtocolError | None:
        """The error that forbids a command, or None."""
        if command == V1Command.AUTHENTICATE or self._right is Right.ALL:
            return None
        if self._right is None:
            return self._unauthenticated()
        if command in _WRITE_COMMANDS:
            return None
        return refuse(ErrorCode.ACCESS_DENIED, "this token or certificate may only write")

    # --- read rate
    # ------------------------------------------------------------------------------------------------------

    @property
    def is_slowed(self) -> bool:
        """True if the read rate is limited."""
        return self._rate is not None

    async def fair_size(self, size: int, is_over: Callable[[], bool]) -> int:
        """The bytes of `size` that may be sent now, at least 1. Waits for the read rate, or until `is_over`."""
        size = max(1, size)
        return size if self._rate is None else await self._rate.wait(size, is_over) or 1

    def fair_size_now(self, size: int) -> int:
        """The same without waiting; 0 if the read rate allows nothing now."""
        return size if self._rate is None else self._rate.take(size)

    def has_sent(self, granted: int, size: int) -> None:
        """Correct the read rate: of the `granted` bytes only `size` were sent."""
        if self._rate is not None:
            self._rate.settle(granted, size)

    def _unauthenticated(self) -> ProtocolError:
        return refuse(ErrorCode.AUTHENTICATION_REQUIRED, "show a token or a client certificate first")
