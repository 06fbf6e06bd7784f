"""`seawall read`: print the records of a topic, from one place to another, and end.

It looks at the directory (`engine/api/view.py`), or asks a server: no lock is needed and nothing is changed. The forms
of a record are those of `selection.py`; `seawall sub` goes on where this ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from seawall.cli.log_place import look_at, place_options
from seawall.cli.selection import END, Place, Selection, print_chosen, selection_options

if TYPE_CHECKING:
    from seawall.cli.log_place import ReadableLog
    from seawall.engine.api.embedded import Start


@click.command()
@click.argument("topic")
@selection_options("earliest", "latest")
@place_options
def read(topic: str, start: Start, until: Place | None, limit: int | None, form: str, data: Path) -> None:
    """Print the records of TOPIC up to its present end.

    Another process may be writing: what it has written to its files is seen, which is all it has acknowledged. To go
    on when more comes, use `seawall sub --follow`.

    \b
    Example:
      seawall read events --from 2030-01-31T12:00:00Z --limit 10 --format json
    """
    with look_at(data) as view:
        selection = select(view, topic, view.start_seq(topic, start, None), END if until is None else until, limit)
        print_selected(view, topic, selection, form)


def select(view: ReadableLog, topic: str, start_seq: int, until: Place | None, limit: int | None) -> Selection:
    """A selection from a seq on; without a bound it has no end."""
    from datetime import datetime

    before = until if isinstance(until, datetime) else None
    last_seq = view.describe(topic).next_seq - 1 if until == END else until
    return Selection(start_seq, last_seq=last_seq if isinstance(last_seq, int) else None, before=before, limit=limit)


def print_selected(view: ReadableLog, topic: str, selection: Selection, form: str) -> bool:
    """Print the next piece after another until there is none in the picture; whether there was one."""
    printed = False
    while not selection.is_done and (items := view.read(topic, selection.next_seq)):
        print_chosen(selection.choose(items), form)
        printed = True
    return printed
