"""Parse the token file of a server: which clients may connect, their rights, and their read rates.

    3f9c0a…                      a token with all rights
    8be1d4… write_only           a token that may not read
    77aa02… read_rate=10MiB      all clients with this token together read no faster than that
    cn=loader write_only         no token: the rights of clients whose certificate has this common name
    # a comment

A client certificate whose name has no line has all rights: the signer of the certificates decides who gets one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seawall.config import SETTINGS
from seawall.errors import InvalidInputError

if TYPE_CHECKING:
    from seawall.server.connection.access import Access, Right

_CERTIFICATE: Final = "cn="


@dataclass(slots=True)
class _Entries:
    """Rights, and read rates above 0, by token or by name."""

    rights: dict[str, Right] = field(default_factory=dict)
    rates: dict[str, int] = field(default_factory=dict)


def read_access(token_file: str, read_rate: int, *, takes_certificates: bool) -> Access:
    """The access rules of a server, from its token file and for certificates; open to all if there is neither."""
    from seawall.server.connection.access import Access

    if not token_file:
        return Access(read_rate=read_rate, takes_certificates=takes_certificates)
    tokens, certificates = _Entries(), _Entries()
    for number, line in enumerate(Path(token_file).read_text(encoding="utf-8").splitlines(), start=1):
        key, *words = line.split() or [""]
        if not key or key.startswith("#"):
            continue
        if not key.startswith(_CERTIFICATE):
            _add(tokens, key, words, f"{token_file}, line {number}")
        elif takes_certificates:
            _add(certificates, key.removeprefix(_CERTIFICATE), words, f"{token_file}, line {number}")
        else:
            raise InvalidInputError(
                f"{token_file}, line {number}: {key!r} needs client certificates: set server.tls_client_ca"
            )
    if not tokens.rights and not takes_certificates:
        raise InvalidInputError(f"{token_file} contains no token: no client could connect")
    return Access(
        tokens.rights,
        read_rate=read_rate,
        read_rates=tokens.rates,
        takes_certificates=takes_certificates,
        certificates=certificates.rights,
        certificate_rates=certificates.rates,
    )


def _add(entries: _Entries, key: str, words: list[str], where: str) -> None:
    from seawall.server.connection.access import Right

    entries.rights[key] = Right.ALL
    for word in words:
        name, separator, value = word.partition("=")
        rate = SETTINGS["server.read_rate"].rule.read(value) if separator and name == "read_rate" else None
        if isinstance(rate, int):
            if rate:
                entries.rates[key] = rate
        elif word in set(Right):
            entries.rights[key] = Right(word)
        else:
            raise InvalidInputError(
                f"{where}: {word!r} is not a right or rate; write {' or '.join(Right)}, or read_rate=SIZE, such as "
                "read_rate=10MiB"
            )
