"""`seawall topic`: create, list, describe, change and delete the topics of a data directory or of a server.

Results go to standard output, as a table or, with `--json`, as JSON with every setting. Deleting asks for confirmation,
unless `--yes` is given. Listing and describing take no lock, so another process may be writing; the others take it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from seawall.cli.data_directory import json_option, print_json, read_settings
from seawall.cli.log_location import location_options, open_readable_log, open_writable_log
from seawall.errors import SeawallError

if TYPE_CHECKING:
    from seawall.api.topic_info import TopicInfo
    from seawall.wire.format.fields import JsonValue

#: Topics that are created between two updates of the progress bar, and errors that are printed.
_CREATED_AT_ONCE: Final = 256
_REFUSALS_SHOWN: Final = 20


@click.group()
def topic() -> None:
    """Create, list, describe, change and delete topics.

    \b
    Example:
      seawall topic create events
    """


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a setting of the topics; may be repeated."
)
@click.option(
    "--order", type=click.Choice(["0", "1", "2", "5"]), help="Ordering of the records; short for --set order=N."
)
@location_options
@json_option
def create(names: tuple[str, ...], settings: tuple[str, ...], order: str | None, data: Path, as_json: bool) -> None:
    """Create topics, and the data directory if it does not exist.

    If some of several topics cannot be created, standard error names them, the others are created, and the exit code is
    1.

    \b
    Examples:
      seawall topic create events --set ttl_ms=86400000 --set durability=disk
      seawall topic create orders invoices payments
    """
    wanted = read_settings(settings) | ({} if order is None else {"order": int(order)})
    created: list[TopicInfo] = []
    refused: list[SeawallError] = []
    with open_writable_log(data, create=True) as log, _progress(len(names)) as advance:
        for first in range(0, len(names), _CREATED_AT_ONCE):
            group = names[first : first + _CREATED_AT_ONCE]
            for outcome in log.create_topics(group, **wanted):
                if isinstance(outcome, SeawallError):
                    refused.append(outcome)
                else:
                    created.append(outcome)
            advance(len(group))
    if len(names) == 1 and refused:
        raise refused[0]
    if len(names) == 1:
        _show(created[0], as_json, f"created {created[0].name} (topic {created[0].topic_id})")
    elif as_json:
        print_json([_as_json(info) for info in created])
    else:
        click.echo(f"created {len(created)} of {len(names)} topics")
    if refused:
        _show_refused(refused)
        raise SystemExit(1)


def _show_refused(refused: list[SeawallError]) -> None:
    for error in refused[:_REFUSALS_SHOWN]:
        click.echo(f"seawall: {error}", err=True)
    if refused[_REFUSALS_SHOWN:]:
        click.echo(f"seawall: and {len(refused) - _REFUSALS_SHOWN} more", err=True)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A callback for the number of topics done; for many topics it draws a bar if standard error is a terminal."""
    if total <= _CREATED_AT_ONCE or not sys.stderr.isatty():
        yield lambda _count: None
        return
    with click.progressbar(length=total, label="creating topics", file=sys.stderr) as bar:
        yield bar.update


@topic.command(name="list")
@location_options
@json_option
def list_topics(data: Path, as_json: bool) -> None:
    """List all topics.

    \b
    Example:
      seawall topic list --json
    """
    with open_readable_log(data) as view:
        infos = [view.describe(name) for name in view.topics()]
    if as_json:
        print_json([_as_json(info) for info in infos])
        return
    width = max((len(info.name) for info in infos), default=0)
    for info in infos:
        span = f"seqs {info.floor} to {info.next_seq - 1}" if info.floor < info.next_seq else "empty"
        click.echo(f"{info.name:{width}}  {info.record_count} records  {info.byte_count} bytes  {span}")


@topic.command()
@click.argument("name")
@location_options
@json_option
def describe(name: str, data: Path, as_json: bool) -> None:
    """Show the size and the settings of the topic NAME.

    \b
    Example:
      seawall topic describe events
    """
    with open_readable_log(data) as view:
        info = view.describe(name)
    _show(info, as_json, _as_text(info))


@topic.command(name="set")
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="KEY=VALUE...")
@location_options
@json_option
def change(name: str, settings: tuple[str, ...], data: Path, as_json: bool) -> None:
    """Change settings of the topic NAME; a value is JSON or plain text.

    \b
    Example:
      seawall topic set events cap_records=1000000 discard=old
    """
    wanted = read_settings(settings)
    with open_writable_log(data) as log:
        info = log.configure_topic(name, **wanted)
    _show(info, as_json, f"changed {name}")


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@location_options
@json_option
def delete(name: str, yes: bool, data: Path, as_json: bool) -> None:
    """Delete the topic NAME and all its records.

    \b
    Example:
      seawall topic delete events --yes
    """
    with open_writable_log(data) as log:
        info = log.describe(name)
        if not yes:
            click.confirm(f"Permanently delete {name} and its {info.record_count} records?", abort=True, err=True)
        log.delete_topic(name)
    _show(info, as_json, f"deleted {name}")


def _show(info: TopicInfo, as_json: bool, text: str) -> None:
    if as_json:
        print_json(_as_json(info))
    else:
        click.echo(text)


def _numbers(info: TopicInfo) -> dict[str, JsonValue]:
    return {
        "name": info.name,
        "topic_id": info.topic_id,
        "floor": info.floor,
        "next_seq": info.next_seq,
        "record_count": info.record_count,
        "byte_count": info.byte_count,
    }


def _as_json(info: TopicInfo) -> dict[str, JsonValue]:
    return {**_numbers(info), "config": info.config.to_json()}


def _as_text(info: TopicInfo) -> str:
    rows = {**_numbers(info), **info.config.to_json()}
    width = max(map(len, rows))
    return "\n".join(f"{key:{width}}  {_word(value)}" for key, value in rows.items())


def _word(value: JsonValue) -> str:
    """A value as `topic set` accepts it."""
    return value if isinstance(value, str) else json.dumps(value)
