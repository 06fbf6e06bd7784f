"""`seawall read`: print a range of the records of a topic, and exit.

It reads the directory (`engine/api/view.py`) or a server; it takes no lock and changes nothing. `selection.py` defines
the output formats. `seawall sub` can also wait for new records.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from seawall.cli.log_location import location_options, open_readable_log
from seawall.cli.reading.selection import END, Bound, Selection, print_chosen, selection_options

if TYPE_CHECKING:
    from seawall.api.read_options import Start
    from seawall.cli.log_location import ReadableLog


@click.command()
@click.argument("topic")
@selection_options("earliest", "latest")
@location_options
def read(topic: str, start: Start, until: Bound | None, limit: int | None, form: str, data: Path) -> None:
    """Print the records of TOPIC up to its current end.

    Another process may be writing to the data directory: all records that it has acknowledged are printed. To wait for
    new records, use `seawall sub --follow`.

    \b
    Example:
      seawall read events --from 2030-01-31T12:00:00Z --limit 10 --format json
    """
    with open_readable_log(data) as view:
        selection = select(view, topic, view.start_seq(topic, start, None), END if until is None else until, limit)
        print_selected(view, topic, selection, form)


def select(view: ReadableLog, topic: str, start_seq: int, until: Bound | None, limit: int | None) -> Selection:
    """A selection that starts at a seq; without `until` and `limit` it has no end."""
    from datetime import datetime

    before = until if isinstance(until, datetime) else None
    last_seq = view.describe(topic).next_seq - 1 if until == END else until
    return Selection(start_seq, last_seq=last_seq if isinstance(last_seq, int) else None, before=before, limit=limit)


def print_selected(view: ReadableLog, topic: str, selection: Selection, form: str) -> bool:
    """Print all selected records that exist now; True if there were any."""
    printed = False
    while not selection.is_done and (items := view.read(topic, selection.next_seq)):
        print_chosen(selection.choose(items), form)
        printed = True
    return printed
