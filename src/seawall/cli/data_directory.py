"""What the commands on a data directory share: the option that names it, ways to open it, settings as text.

    open_data      to change it: needs its lock, which one process has at a time
    look_at_data   to look at it: needs nothing, changes nothing, and a writer may be at work

The engine, and with it numba, is loaded when a directory is opened, not when help is shown.
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
    """The option `--data`."""
    option = click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("seawall-data"),
        show_default=True,
        metavar="DIR",
        help="The data directory.",
    )
    return option(command)


def json_option(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """The option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def open_data(directory: Path, *, create: bool = False) -> EmbeddedLog:
    """Open a data directory as a log; one that is not there is made only if `create` says so."""
    from seawall.engine.api.open_log import open_log

    if not create:
        require_data(directory)
    return open_log(directory)


def look_at_data(directory: Path) -> ReadOnlyLog:
    """Look at a data directory that is there."""
    from seawall.engine.api.view import open_view

    require_data(directory)
    return open_view(directory)


def print_json(document: JsonValue) -> None:
    """One document on a line of its own."""
    click.echo(json.dumps(document, ensure_ascii=False))


def read_settings(texts: Iterable[str]) -> dict[str, JsonValue]:
    """Settings of a topic from `key=value` texts: values that are JSON are read as such, all others are words."""
    from seawall.topics.config import TopicConfig

    settings: dict[str, JsonValue] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise InvalidInputError(f"{text!r} has no value; write key=value")
        settings[key.strip()] = _value(value)
    # Here and not only by the log, which takes settings as keyword arguments: not every text can be one.
    TopicConfig.from_json(settings)
    return settings


def require_data(directory: Path) -> None:
    """Say so clearly where there is no data directory."""
    from seawall.storage.directory import FORMAT_NAME

    if not (directory / FORMAT_NAME).exists():
        raise NotFoundError(
            f"{directory} is no data directory of Seawall; name one with --data, or create a topic in it"
        )


def _value(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return value


def _refuse(constant: str) -> JsonValue:
    """NaN and the infinities are words here: JSON has no such numbers."""
    raise ValueError(constant)
