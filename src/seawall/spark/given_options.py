"""Options as a query gives them: looked up by name whatever their case, and refused where nothing knows them.

What reads and what writes have options of their own, and the server in common. This module must not know which options
there are, beyond those of the server, nor Spark.
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

#: The kinds of query that an option has a meaning for.
BOTH: Final = frozenset({"batch", "stream"})
STREAM: Final = frozenset({"stream"})
BATCH: Final = frozenset({"batch"})

#: What reading and writing have in common.
SERVER_OPTIONS: Final[Mapping[str, frozenset[str]]] = dict.fromkeys(
    ("url", "token", "tls", "tlsCert", "tlsKey", "timeout"), BOTH
)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where the server is, and what it is told. Goes to executors as it is."""

    url: str
    token: str = field(default="", repr=False)
    #: Whether connections are encrypted, or a file of the authorities that are believed; None leaves it to the URL.
    tls: bool | str | None = None
    timeout_s: float = 30.0
    #: Files, where tasks find them, with the client certificate and its key.
    tls_cert: str | None = None
    tls_key: str | None = None


class GivenOptions:
    """What was given, by the names it is known under."""

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
                raise ConfigError(f"option {name} is for {other} queries, and this is a {mine} one: leave it out")
            self._values[name] = value

    def text(self, name: str) -> str | None:
        """The value of an option, None if it was not given."""
        return self._values.get(name)

    def get(self, name: str, read: Callable[[str, str], _Value], default: _Default) -> _Value | _Default:
        """The value of an option, read by a function that is told its name."""
        text = self._values.get(name)
        return default if text is None else read(name, text)

    def given(self, *names: str) -> list[str]:
        """Which of some options were given."""
        return [name for name in names if name in self._values]

    def server(self) -> ServerOptions:
        """Where the server is."""
        url = self.text("url")
        if url is None:
            raise ConfigError("option url is missing: give the address of a server, as in url=seawall://host:1992")
        said = self.text("tls")
        tls = said.lower() == "true" if said is not None and said.lower() in ("true", "false") else said
        timeout_ms = self.get("timeout", read_duration_ms, 30_000)
        return ServerOptions(
            url, self.text("token") or "", tls, timeout_ms / 1e3, self.text("tlsCert"), self.text("tlsKey")
        )


def _unknown(key: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(key.lower(), names, n=1)
    hint = f"; did you mean {names[near[0]]}?" if near else ""
    return f"no option of seawall is called {key!r}{hint} Options: {', '.join(names.values())}"
