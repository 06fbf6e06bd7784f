"""Parses the URL of `seawall.connect` and holds the connection settings: addresses, token, timeouts, TLS.

seawall://host            port 1992
seawall://host:1993
seawall://a:1992,b:1992   several addresses of one log, tried in order
seawall://[::1]:1992
seawalls://host           with TLS
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seawall.errors import InvalidInputError
from seawall.io.network.sockets import format_address, parse_address

if TYPE_CHECKING:
    from ssl import SSLContext

    from seawall.io.network.tls import Tls

SCHEME: Final = "seawall://"
TLS_SCHEME: Final = "seawalls://"
DEFAULT_PORT: Final = 1992


@dataclass(frozen=True, slots=True)
class Target:
    """A server, or several addresses of the same log, and how to connect to it."""

    addresses: tuple[str, ...]
    token: str = field(default="", repr=False)
    #: The name of this client in the server's messages.
    name: str = ""
    #: How long a request may take, and how long to retry while no server answers, before an error is raised.
    timeout_s: float = 30.0
    #: How long one attempt to connect may take.
    connect_timeout_s: float = 5.0
    #: TLS settings; None for plain connections.
    tls: SSLContext | None = None

    def __str__(self) -> str:
        return (SCHEME if self.tls is None else TLS_SCHEME) + ",".join(self.addresses)


def parse_target(
    url: str,
    *,
    token: str = "",
    name: str = "",
    timeout_s: float = 30.0,
    connect_timeout_s: float = 5.0,
    tls: Tls | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
) -> Target:
    """Parse a server URL. TLS is on if the scheme or `tls` says so, or if a client certificate is given."""
    scheme = TLS_SCHEME if url.startswith(TLS_SCHEME) else SCHEME
    if not url.startswith(scheme):
        raise InvalidInputError(f"{url!r} is not a log URL: write {SCHEME}host:port, or {TLS_SCHEME}host:port")
    if tls is None:
        tls = scheme == TLS_SCHEME
    elif tls is False and scheme == TLS_SCHEME:
        raise InvalidInputError(f"{url!r} requires TLS, but tls=False turns it off: write {SCHEME}host:port")
    if timeout_s <= 0 or connect_timeout_s <= 0:
        raise InvalidInputError(f"timeouts of {timeout_s} and {connect_timeout_s} s: both must be above 0")
    texts = url.removeprefix(scheme).rstrip("/").split(",")
    context = None
    if tls is not False or tls_cert is not None or tls_key is not None:
        from seawall.io.network.tls import client_context

        context = client_context(tls, tls_cert, tls_key)
    return Target(tuple(map(_address, texts)), token, name, timeout_s, connect_timeout_s, context)


def _address(text: str) -> str:
    # In "[::1]:1992" only a colon after the bracket separates a port.
    bare = text.rpartition("]")[2] if text.startswith("[") else text
    address = parse_address(text if ":" in bare else f"{text}:{DEFAULT_PORT}")
    return format_address(*address)
