"""Helpers of the commands on a data directory: the option `--data`, opening it, and parsing topic settings.

    open_data   for changes: takes the lock, which one process holds at a time
    view_data   read-only: takes no lock and changes nothing; another process may be writing

The engine, and with it numba, is loaded when a directory is opened, not for the help.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from seawall.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from seawall.engine.api.embedded import EmbeddedLog
    from seawall.engine.api.view import ReadOnlyLog
    from seawall.wire.format.fields import JsonValue

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def data_option(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Add the option `--data`."""
    option = click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("seawall-data"),
        show_default=True,
        metavar="DIR",
        help="Data directory.",
    )
    return option(command)


def json_option(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Add the option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def open_data(directory: Path, *, create: bool = False) -> EmbeddedLog:
    """Open a data directory as a log; create a missing directory only if `create` is true."""
    from seawall.engine.api.open_log import open_log

    if not create:
        require_data(directory)
    return open_log(directory)


def view_data(directory: Path) -> ReadOnlyLog:
    """Open an existing data directory read-only."""
    from seawall.engine.api.view import open_view

    require_data(directory)
    return open_view(directory)


def print_json(document: JsonValue) -> None:
    """Print one JSON document on a line."""
    click.echo(json.dumps(document, ensure_ascii=False))


def read_settings(texts: Iterable[str]) -> dict[str, JsonValue]:
    """Parse topic settings from `key=value` texts: a value is JSON if it parses as JSON, else a string."""
    from seawall.topics.config import TopicConfig

    settings: dict[str, JsonValue] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise InvalidInputError(f"{text!r} has no value; write key=value")
        settings[key.strip()] = _value(value)
    # Validate before the log does: it takes settings as keyword arguments, and not every key can be one.
    TopicConfig.from_json(settings)
    return settings


def require_data(directory: Path) -> None:
    """Raise `NotFoundError` if this is not a data directory."""
    from seawall.storage.directory import FORMAT_NAME

    if not (directory / FORMAT_NAME).exists():
        raise NotFoundError(
            f"{directory} is not a data directory of Seawall; name one with --data, or create a topic in it"
        )


def _value(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return value


def _refuse(constant: str) -> JsonValue:
    """Treat NaN and the infinities as strings: JSON has no such numbers."""
    raise ValueError(constant)
