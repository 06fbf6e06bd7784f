"""`seawall sub`: print the records of a topic as they arrive, and optionally commit an owner's cursor.

A data directory is read without its lock (`engine/api/view.py`), so another process may be writing; its commits are
printed as soon as they are in its files. With `--follow` the command polls the log every `IDLE_SECONDS`, or less often
if a refresh takes long, so that polling takes a bounded part of a processor.

With `--url` the server answers as soon as there are new records; commits and writers do not exclude each other.

A cursor commit is a change, and only one process at a time can change a data directory. So `--commit` holds the lock
from start to end: it is refused while a writer runs, with the name of that process, and `--follow` would wait for
records that nobody can write. Each piece is committed after it was printed: after an interruption in between it is
printed again, and nothing is lost.

The command exits at its bound, with code 130 when interrupted, and quietly when the reader of its output closes the
pipe, which it also notices while it waits.
"""

from __future__ import annotations

import errno
import os
import select as descriptors
import sys
import time
from contextlib import ExitStack
from io import UnsupportedOperation
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from seawall.cli.log_location import is_remote, location_options, open_readable_log, open_writable_log
from seawall.cli.reading.read import print_selected, select
from seawall.cli.reading.selection import END, Bound, Selection, selection_options

if TYPE_CHECKING:
    from seawall.api.read_options import Start
    from seawall.cli.log_location import ReadableLog

#: Interval of polling the log: short for a person, long for a processor.
IDLE_SECONDS: Final = 0.05

#: How long one request to a server waits for new records.
_SERVER_WAIT_SECONDS: Final = 1.0

#: The pause before the next refresh is at least this many times the duration of the last one.
_PAUSE_PER_REFRESH: Final = 4


@click.command()
@click.argument("topic")
@selection_options("earliest", "latest", "committed")
@click.option("--follow", is_flag=True, help="Wait for new records at the end.")
@click.option("--owner", metavar="NAME", help="Owner of the cursor of `--from committed` and `--commit`.")
@click.option("--commit", is_flag=True, help="Commit the owner's cursor durably; takes the lock of the data directory.")
@location_options
def sub(
    topic: str,
    start: Start,
    until: Bound | None,
    limit: int | None,
    form: str,
    follow: bool,
    owner: str | None,
    commit: bool,
    data: Path,
) -> None:
    """Print the records of TOPIC as they arrive.

    Another process may be writing to the data directory: all records that it has acknowledged are printed. Without
    --follow the command stops at the current end. With --commit no other process may be writing.

    \b
    Examples:
      seawall sub events --from latest --follow
      seawall sub events --from committed --owner billing --commit --limit 100
    """
    _check(start, until, follow, owner, commit)
    with ExitStack() as stack:
        log = open_writable_log(data) if commit else None
        if log is not None:
            stack.callback(log.close)
        view = open_readable_log(data)
        stack.callback(view.close)
        bound = END if until is None and not follow else until
        selection = select(view, topic, view.start_seq(topic, start, owner), bound, limit)
        while True:
            end_seq = view.describe(topic).next_seq
            if print_selected(view, topic, selection, form) and log is not None and owner is not None:
                log.commit(owner, topic, selection.next_seq)
            if selection.is_done or not follow:
                return
            selection.skip_to(end_seq)
            _wait_for_more(view, topic, selection)


def _check(start: Start, until: Bound | None, follow: bool, owner: str | None, commit: bool) -> None:
    """Refuse options that contradict each other."""
    if commit and owner is None:
        raise click.UsageError("--commit needs --owner NAME.")
    if start == "committed" and owner is None:
        raise click.UsageError("--from committed needs --owner NAME.")
    if commit and follow and not is_remote():
        raise click.UsageError("--commit locks out writers, so there is nothing to --follow; use only one of them.")
    if follow and until == END:
        raise click.UsageError("--follow continues after the end; omit --until end.")


def _wait_for_more(view: ReadableLog, topic: str, selection: Selection) -> None:
    """Wait until the topic has records to print."""
    from seawall.client.remote_log import RemoteLog

    if isinstance(view, RemoteLog):
        # The server answers as soon as there are new records; check the output in between.
        while not view.wait_for(topic, selection.next_seq, _SERVER_WAIT_SECONDS):
            pause_output(0)
        return
    pause = IDLE_SECONDS
    while view.describe(topic).next_seq <= selection.next_seq:
        pause_output(pause)
        started = time.monotonic()
        view.refresh()
        pause = max(IDLE_SECONDS, _PAUSE_PER_REFRESH * (time.monotonic() - started))


def pause_output(seconds: float) -> None:
    """Sleep; `BrokenPipeError` as soon as the reader of the output closes the pipe."""
    try:
        output = sys.stdout.fileno()
    except UnsupportedOperation:
        time.sleep(seconds)
        return
    poller = descriptors.poll()
    # Request no events: errors and hang-ups are reported in any case.
    poller.register(output, 0)
    if poller.poll(seconds * 1e3):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
