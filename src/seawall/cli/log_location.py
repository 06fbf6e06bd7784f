"""Locate and open the log of a command: a data directory (`--data`) or a server (`--url`). Both have the same API.

    open_writable_log   for changes: takes the lock of a directory; a server serves many clients at once
    open_readable_log   for reading: a directory without its lock, or a server

The token of a server may also come from the environment, where other users of the machine do not see it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from seawall.cli.data_directory import data_option, open_data, view_data
from seawall.config import TOKEN_VARIABLE

if TYPE_CHECKING:
    from seawall.client.remote_log import RemoteLog
    from seawall.engine.api.embedded import EmbeddedLog
    from seawall.engine.api.view import ReadOnlyLog

    #: The logs that the two functions return.
    WritableLog: TypeAlias = EmbeddedLog | RemoteLog
    ReadableLog: TypeAlias = ReadOnlyLog | RemoteLog

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_URL: Final = "seawall.url"
_TOKEN: Final = "seawall.token"
_TLS_CA: Final = "seawall.tls_ca"
_TLS_CERT: Final = "seawall.tls_cert"
_TLS_KEY: Final = "seawall.tls_key"


def location_options(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Add the options `--data`, `--url`, `--token`, `--tls-ca`, `--tls-cert` and `--tls-key`."""
    return data_option(_remote_options(command, url_is_required=False))


def server_options(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Add the same options without `--data`, and require `--url`: for commands that need a server."""
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
        help="Server to use instead of a data directory: seawall://host:port, or seawalls:// for TLS.",
    )
    token = click.option(
        "--token",
        envvar=TOKEN_VARIABLE,
        metavar="TOKEN",
        expose_value=False,
        callback=keep,
        help=f"Access token for the server; also read from {TOKEN_VARIABLE}.",
    )
    authority = click.option(
        "--tls-ca",
        type=click.Path(exists=True, dir_okay=False),
        expose_value=False,
        callback=keep,
        help="Use TLS, and trust these certificate authorities (PEM) instead of those of the system.",
    )
    certificate = click.option(
        "--tls-cert",
        type=click.Path(exists=True, dir_okay=False),
        expose_value=False,
        callback=keep,
        help="Use TLS, and present this client certificate (PEM) to the server.",
    )
    key = click.option(
        "--tls-key",
        type=click.Path(exists=True, dir_okay=False),
        expose_value=False,
        callback=keep,
        help="Private key of --tls-cert (PEM), if it is not in the same file.",
    )
    return url(token(authority(certificate(key(command)))))


def is_remote() -> bool:
    """True if the command got the address of a server."""
    return click.get_current_context().meta.get(_URL) is not None


def open_writable_log(directory: Path, *, create: bool = False) -> WritableLog:
    """Open the log of this command for changes; create a missing directory only if `create` is true."""
    return _connected() if is_remote() else open_data(directory, create=create)


def open_readable_log(directory: Path) -> ReadableLog:
    """Open the log of this command for reading."""
    return _connected() if is_remote() else view_data(directory)


def _connected() -> RemoteLog:
    if click.get_current_context().get_parameter_source("data") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--data and --url name two logs: use only one of them.")
    return connect_to_server()


def connect_to_server() -> RemoteLog:
    """Connect to the server given by the options of this command."""
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
