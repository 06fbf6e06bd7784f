"""`seawall dump`: print the contents of one file of a data directory, item by item, as text or as JSON lines.

The preface of the file determines its kind, not its name. The output stops after `--limit` lines and says so.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from seawall.cli.data_directory import json_option, print_json

if TYPE_CHECKING:
    from seawall.storage.inspect import Item
    from seawall.wire.format.fields import JsonValue


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--records", is_flag=True, help="Show the records of each batch, shortened, and the documents of a snapshot."
)
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Maximum number of lines.")
@json_option
def dump(file: Path, records: bool, limit: int, as_json: bool) -> None:
    """Show the contents of FILE: write-ahead log, segment, index, deletes, snapshot or FORMAT.

    The command takes no lock. A write in progress by the process that has the directory open may look like damage; use
    `seawall verify` to find real damage.

    \b
    Example:
      seawall dump seawall-data/wal/wal-00000000000000000000.wal --records --limit 20
    """
    from seawall.io.disk.files import OsFiles
    from seawall.storage.inspect import inspect_file

    items = inspect_file(OsFiles(), str(file), records=records)
    for item in islice(items, limit):
        if as_json:
            print_json(item)
        else:
            click.echo(_as_text(item))
    if next(items, None) is not None:
        click.echo(f"stopped after {limit} lines; --limit shows more", err=True)
    items.close()


def _as_text(item: Item) -> str:
    """The kind of the item, then its fields by name."""
    fields = " ".join(f"{name}={_word(value)}" for name, value in item.items() if name != "item")
    return f"{item['item']!s:<8}  {fields}"


def _word(value: JsonValue) -> str:
    is_plain = isinstance(value, str) and value.isprintable() and not set(value) & set(' "=')
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False)
