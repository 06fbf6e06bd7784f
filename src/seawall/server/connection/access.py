"""Who may do what: tokens and client certificates, the rights they give, and how far one connection has come with them.

Without tokens and certificates everybody may do everything. With tokens a connection shows one first, by Authenticate
or in its HELLO, and until then only that and keepalives are answered. A connection whose client certificate TLS has
verified needs no token: it has the rights of the name in the certificate, which are all unless said otherwise. It may
still show a token.

A token or certificate that may only write is for machines whose reading nobody wants: ingest, making, changing and
deleting topics and their records, finding the id of a topic by its name, and transactions, unless how far somebody has
read is to be kept with one.

How fast somebody may read is a matter of access, too: each connection for itself, or all that show a token together.

The third token that is not known ends the connection.

This module must not know frames, or where tokens are kept.
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

_TRIES_MAX: Final = 3

#: What may be done besides ingest by who may only write.
_WRITING: Final[frozenset[int]] = frozenset(
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
    }
)


class Right(StrEnum):
    """What a token allows."""

    ALL = "all"
    WRITE_ONLY = "write_only"


class Access:
    """The tokens of a listener; none of them means that everybody may do everything."""

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
        """`read_rate` is for each connection that has no rate of its own; bytes a second, 0 is no limit.

        With `takes_certificates` who has no token needs a client certificate; `certificates` and `certificate_rates`
        are by the common name in it.
        """
        self._takes_certificates = takes_certificates
        self._certificates = dict(certificates or {})
        self._certificates_shared = {name: ReadRate(rate) for name, rate in (certificate_rates or {}).items()}
        self._tokens = [(token.encode(), right) for token, right in (tokens or {}).items()]
        self._read_rate = read_rate
        #: What all connections with a token share.
        self._shared = {token: ReadRate(rate) for token, rate in (read_rates or {}).items()}

    @property
    def is_open(self) -> bool:
        """Whether nobody has to show a token or a certificate."""
        return not (self._tokens or self._takes_certificates)

    def right_of(self, token: str) -> Right | None:
        """What a token allows, None if it is not known; takes as long whichever it is."""
        shown = token.encode()
        found = None
        for known, right in self._tokens:
            if hmac.compare_digest(known, shown):
                found = right
        return found

    def rate_of(self, token: str) -> ReadRate | None:
        """How fast who shows a token may read; None if that does not depend on it."""
        return self._shared.get(token)

    def right_of_certificate(self, name: str) -> Right:
        """What the holder of a verified certificate with a name may do."""
        return self._certificates.get(name, Right.ALL)

    def rate_of_certificate(self, name: str) -> ReadRate | None:
        """How fast all who show a certificate with a name may read together; None if that does not depend on it."""
        return self._certificates_shared.get(name)

    def own_rate(self) -> ReadRate | None:
        """How fast one more connection may read; None if there is no limit."""
        return ReadRate(self._read_rate) if self._read_rate else None


class Admission:
    """What one connection may do."""

    __slots__ = ("_access", "_rate", "_right", "_tries")

    def __init__(self, access: Access, certificate_name: str | None = None) -> None:
        """`certificate_name` is the name in the verified certificate of the peer; None without one."""
        self._access = access
        self._right = Right.ALL if access.is_open else None
        self._rate = access.own_rate()
        if certificate_name is not None:
            self._right = access.right_of_certificate(certificate_name)
            self._rate = access.rate_of_certificate(certificate_name) or self._rate
        self._tries = 0

    @property
    def payload_max(self) -> int:
        """The largest payload that is taken from it."""
        return limits.PAYLOAD_SIZE_MIN if self.is_admitted else limits.UNADMITTED_PAYLOAD_SIZE_MAX

    @property
    def is_over(self) -> bool:
        """Whether it has shown too many tokens that are not known."""
        return self._tries >= _TRIES_MAX

    @property
    def is_admitted(self) -> bool:
        """Whether it may do something: nothing has to be shown, or what was shown is known."""
        return self._right is not None

    def authenticate(self, token: str) -> bool:
        """Show a token; whether it is known. One that is not leaves everything as it was."""
        if self._access.is_open:
            return True
        right = self._access.right_of(token)
        if right is None:
            self._tries += 1
            return False
        self._right = right
        self._rate = self._access.rate_of(token) or self._rate
        return True

    def check_ingest(self) -> ProtocolError | None:
        """Why nothing may be written, if that is so."""
        return self._unknown() if self._right is None else None

    def check(self, command: int) -> ProtocolError | None:
        """Why a command may not be given, if that is so."""
        if command == V1Command.AUTHENTICATE or self._right is Right.ALL:
            return None
        if self._right is None:
            return self._unknown()
        if command in _WRITING:
            return None
        return refuse(ErrorCode.ACCESS_DENIED, "this token or certificate may only write")

    # --- how fast it may read ----------------------------------------------------------------------------------------

    @property
    def is_slowed(self) -> bool:
        """Whether it may read at a certain rate only."""
        return self._rate is not None

    async def portion(self, size: int, is_over: Callable[[], bool]) -> int:
        """Bytes that may be sent to who asks for so many, at least 1; waits until that can be or nobody wants it."""
        size = max(1, size)
        return size if self._rate is None else await self._rate.wait(size, is_over) or 1

    def response_now(self, size: int) -> int:
        """The same at once; 0 if it would have to wait."""
        return size if self._rate is None else self._rate.take(size)

    def has_sent(self, portion: int, size: int) -> None:
        """Of such a portion so much is sent."""
        if self._rate is not None:
            self._rate.settle(portion, size)

    def _unknown(self) -> ProtocolError:
        return refuse(ErrorCode.AUTHENTICATION_REQUIRED, "show a token or a client certificate first")
