"""Where the log of a command is: in a data directory, or behind a server that `--url` names. The same words for both.

    open_place    to change it: a directory needs its lock, a server serves many at a time
    look_at       to look at it: a directory as it lies, a server as any other reader

The token of a server may also come from the environment, where other users of the machine do not see it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from seawall.cli.data_directory import data_option, look_at_data, open_data
from seawall.config import TOKEN_VARIABLE

if TYPE_CHECKING:
    from seawall.client.remote_log import RemoteLog
    from seawall.engine.api.embedded import EmbeddedLog
    from seawall.engine.api.view import ReadOnlyLog

    #: A log that can be changed, and one that is read.
    OpenLog: TypeAlias = EmbeddedLog | RemoteLog
    ReadableLog: TypeAlias = ReadOnlyLog | RemoteLog

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_URL: Final = "seawall.url"
_TOKEN: Final = "seawall.token"
_TLS_CA: Final = "seawall.tls_ca"
_TLS_CERT: Final = "seawall.tls_cert"
_TLS_KEY: Final = "seawall.tls_key"


def place_options(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """The options `--data`, `--url`, `--token`, `--tls-ca`, `--tls-cert` and `--tls-key`."""
    return data_option(_remote_options(command, url_is_required=False))


def server_options(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """The options `--url`, which has to be given, `--token` and `--tls-ca`: for commands that need a server."""
    return _remote_options(command, url_is_required=True)


def _remote_options(
    command: Callable[_Parameters, _Result], *, url_is_required: bool
) -> Callable[_Parameters, _Result]:
    def keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
        context.meta[f"seawall.{option.name}"] = value

    url = click.option(
        "--url",
        metavar="URL",
        required=url_is_required,
        expose_value=False,
        callback=keep,
        help="The server of the log, as seawall://host:port, or seawalls:// for TLS, in place of a data directory.",
    )
    token = click.option(
        "--token",
        envvar=TOKEN_VARIABLE,
        metavar="TOKEN",
        expose_value=False,
        callback=keep,
        help=f"What the server knows us by; {TOKEN_VARIABLE} may hold it too.",
    )
    authority = click.option(
        "--tls-ca",
        type=click.Path(exists=True, dir_okay=False),
        expose_value=False,
        callback=keep,
        help="Encrypt, and trust servers whose certificate one of these has made (PEM); else those of the system.",
    )
    certificate = click.option(
        "--tls-cert",
        type=click.Path(exists=True, dir_okay=False),
        expose_value=False,
        callback=keep,
        help="Show the server this client certificate (PEM); encrypts, as --tls-ca does.",
    )
    key = click.option(
        "--tls-key",
        type=click.Path(exists=True, dir_okay=False),
        expose_value=False,
        callback=keep,
        help="The key of --tls-cert (PEM), if it is not in the same file.",
    )
    return url(token(authority(certificate(key(command)))))


def is_remote() -> bool:
    """Whether the command was given a server."""
    return click.get_current_context().meta.get(_URL) is not None


def open_place(directory: Path, *, create: bool = False) -> OpenLog:
    """Open the log of this command; a directory that is not there is made only if `create` says so."""
    return _connected() if is_remote() else open_data(directory, create=create)


def look_at(directory: Path) -> ReadableLog:
    """Look at the log of this command."""
    return _connected() if is_remote() else look_at_data(directory)


def _connected() -> RemoteLog:
    if click.get_current_context().get_parameter_source("data") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--data and --url name two logs: give one of them.")
    return connect_to_server()


def connect_to_server() -> RemoteLog:
    """Connect to the server that the options of this command name."""
    import seawall

    context = click.get_current_context()
    certificate = context.meta.get(_TLS_CERT)
    return seawall.connect(
        context.meta[_URL],
        token=context.meta.get(_TOKEN) or "",
        name="seawall command",
        tls=context.meta.get(_TLS_CA) or (True if certificate else None),
        tls_cert=certificate,
        tls_key=context.meta.get(_TLS_KEY),
    )
