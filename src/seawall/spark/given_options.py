"""The raw options of a query: looked up case-insensitively, with errors for unknown names.

Reading and writing have options of their own; those of the server are common to both. This module must not know the
other options, nor Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from seawall.errors import ConfigError
from seawall.spark.option_values import read_duration_ms

_Value = TypeVar("_Value")
_Default = TypeVar("_Default")

#: The kinds of query that an option applies to.
BOTH: Final = frozenset({"batch", "stream"})
STREAM: Final = frozenset({"stream"})
BATCH: Final = frozenset({"batch"})

#: The options that reading and writing have in common.
SERVER_OPTIONS: Final[Mapping[str, frozenset[str]]] = dict.fromkeys(
    ("url", "token", "tls", "tlsCert", "tlsKey", "timeout"), BOTH
)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How to connect to the server. Pickled to executors."""

    url: str
    token: str = field(default="", repr=False)
    #: True or False, or a file of trusted certificate authorities; None leaves it to the scheme of the URL.
    tls: bool | str | None = None
    timeout_s: float = 30.0
    #: Paths, on the executors too, of the client certificate and its key.
    tls_cert: str | None = None
    tls_key: str | None = None


class GivenOptions:
    """The options of a query by their canonical names."""

    def __init__(self, given: Mapping[str, str], known: Mapping[str, frozenset[str]], kind: str | None) -> None:
        self._values: dict[str, str] = {}
        names = {name.lower(): name for name in known}
        for key, value in given.items():
            name = names.get(key.lower())
            if name is None:
                raise ConfigError(_unknown(key, names))
            if kind is not None and kind not in known[name]:
                other = "batch" if kind == "stream" else "streaming"
                mine = "streaming" if kind == "stream" else "batch"
                raise ConfigError(f"option {name} is for {other} queries, but this is a {mine} query: leave it out")
            self._values[name] = value

    def text(self, name: str) -> str | None:
        """The text of an option; None if it was not given."""
        return self._values.get(name)

    def get(self, name: str, read: Callable[[str, str], _Value], default: _Default) -> _Value | _Default:
        """The value of an option, parsed by `read(name, text)`; `default` if it was not given."""
        text = self._values.get(name)
        return default if text is None else read(name, text)

    def given(self, *names: str) -> list[str]:
        """Those of `names` that were given."""
        return [name for name in names if name in self._values]

    def server(self) -> ServerOptions:
        """The options of the server."""
        url = self.text("url")
        if url is None:
            raise ConfigError("option url is missing: give the address of a server, as in url=seawall://host:1992")
        text = self.text("tls")
        tls = text.lower() == "true" if text is not None and text.lower() in ("true", "false") else text
        timeout_ms = self.get("timeout", read_duration_ms, 30_000)
        return ServerOptions(
            url, self.text("token") or "", tls, timeout_ms / 1e3, self.text("tlsCert"), self.text("tlsKey")
        )


def _unknown(key: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(key.lower(), names, n=1)
    hint = f"; did you mean {names[near[0]]}?" if near else ""
    return f"no option of seawall is called {key!r}{hint} Options: {', '.join(names.values())}"
