"""Where a server is and how patient to be with it: the address of `connect` in its parts.

seawall://host            port 1992
seawall://host:1993
seawall://a:1992,b:1992   several, tried in turn
seawall://[::1]:1992
seawalls://host           the same, encrypted
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
    """A server, or several that are the same log, and what is told to it."""

    addresses: tuple[str, ...]
    token: str = field(default="", repr=False)
    #: What the server calls this client in its messages.
    name: str = ""
    #: How long a request may take, and how long a lost server is looked for, before that is an error.
    timeout_s: float = 30.0
    #: How long one attempt to connect may take.
    connect_timeout_s: float = 5.0
    #: How connections are encrypted; None if they are not.
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
    """The server that a URL names; encrypted if the URL or `tls` says so, with a client certificate if one is given."""
    scheme = TLS_SCHEME if url.startswith(TLS_SCHEME) else SCHEME
    if not url.startswith(scheme):
        raise InvalidInputError(f"{url!r} is no address of a log: write {SCHEME}host:port, or {TLS_SCHEME}host:port")
    if tls is None:
        tls = scheme == TLS_SCHEME
    elif tls is False and scheme == TLS_SCHEME:
        raise InvalidInputError(f"{url!r} wants TLS, and tls=False none: write {SCHEME}host:port")
    if timeout_s <= 0 or connect_timeout_s <= 0:
        raise InvalidInputError(f"timeouts of {timeout_s} and {connect_timeout_s} s: both must be above 0")
    texts = url.removeprefix(scheme).rstrip("/").split(",")
    context = None
    if tls is not False or tls_cert is not None or tls_key is not None:
        from seawall.io.network.tls import client_context

        context = client_context(tls, tls_cert, tls_key)
    return Target(tuple(map(_address, texts)), token, name, timeout_s, connect_timeout_s, context)


def _address(text: str) -> str:
    # A name without a port, or a bracketed number without one.
    bare = text.rpartition("]")[2] if text.startswith("[") else text
    address = parse_address(text if ":" in bare else f"{text}:{DEFAULT_PORT}")
    return format_address(*address)
