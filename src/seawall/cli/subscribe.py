"""`seawall sub`: print the records of a topic as they come, and keep how far an owner has come.

Reading looks at the directory (`engine/api/view.py`): it needs no lock, so a writer may be at work, and its commits are
printed as soon as they are in its files. Between two looks at a log that has not grown a follower waits `IDLE_SECONDS`,
and longer where looking takes long, so that following costs a bounded part of a processor.

With `--url` the server is asked, and answers when something comes; commits and writers do not keep each other out.

A commit is a change, and a data directory has one process at a time that changes it. So `--commit` holds the lock from
beginning to end: it is refused while a writer runs, naming that one, and nobody could write what `--follow` waits for.
Each piece is committed after it was printed: whoever is interrupted in between prints it again, and loses nothing.

It ends by itself at its bound, with 130 when interrupted, and quietly when the reader of its output goes away, which a
follower also notices while nothing comes.
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

from seawall.cli.log_place import is_remote, look_at, open_place, place_options
from seawall.cli.read import print_selected, select
from seawall.cli.selection import END, Place, Selection, selection_options

if TYPE_CHECKING:
    from seawall.cli.log_place import ReadableLog
    from seawall.engine.api.embedded import Start

#: How long a follower waits before it looks again: soon for a person, seldom for a processor.
IDLE_SECONDS: Final = 0.05

#: How long one question to a server waits for something new.
_SERVER_SECONDS: Final = 1.0

#: So many times as long as a look takes a follower waits before the next.
_REST_PER_LOOK: Final = 4


@click.command()
@click.argument("topic")
@selection_options("earliest", "latest", "committed")
@click.option("--follow", is_flag=True, help="Go on at the end and wait for more.")
@click.option("--owner", metavar="NAME", help="Whose commit `--from committed` and `--commit` mean.")
@click.option("--commit", is_flag=True, help="Keep durably how far the owner has come; no writer may be running.")
@place_options
def sub(
    topic: str,
    start: Start,
    until: Place | None,
    limit: int | None,
    form: str,
    follow: bool,
    owner: str | None,
    commit: bool,
    data: Path,
) -> None:
    """Print the records of TOPIC as they come.

    Another process may be writing: what it has written to its files is seen, which is all it has acknowledged. Without
    --follow it ends at the present end. --commit needs the directory for itself.

    \b
    Examples:
      seawall sub events --from latest --follow
      seawall sub events --from committed --owner billing --commit --limit 100
    """
    _check(start, until, follow, owner, commit)
    with ExitStack() as stack:
        log = open_place(data) if commit else None
        if log is not None:
            stack.callback(log.close)
        view = look_at(data)
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
            _await_more(view, topic, selection)


def _check(start: Start, until: Place | None, follow: bool, owner: str | None, commit: bool) -> None:
    """Refuse what contradicts itself."""
    if commit and owner is None:
        raise click.UsageError("--commit needs --owner NAME.")
    if start == "committed" and owner is None:
        raise click.UsageError("--from committed needs --owner NAME.")
    if commit and follow and not is_remote():
        raise click.UsageError("--commit keeps writers out, so there is nothing to --follow; leave one of them away.")
    if follow and until == END:
        raise click.UsageError("--follow goes on behind the end; leave --until end away.")


def _await_more(view: ReadableLog, topic: str, selection: Selection) -> None:
    """Wait until the topic has a seq that is wanted."""
    from seawall.client.remote_log import RemoteLog

    if isinstance(view, RemoteLog):
        # The server answers as soon as there is something; in between the output is looked at.
        while not view.wait_for(topic, selection.next_seq, _SERVER_SECONDS):
            _rest(0)
        return
    pause = IDLE_SECONDS
    while view.describe(topic).next_seq <= selection.next_seq:
        _rest(pause)
        begun = time.monotonic()
        view.refresh()
        pause = max(IDLE_SECONDS, _REST_PER_LOOK * (time.monotonic() - begun))


def _rest(seconds: float) -> None:
    """Wait; `BrokenPipeError` as soon as nobody reads the output any more."""
    try:
        output = sys.stdout.fileno()
    except UnsupportedOperation:
        time.sleep(seconds)
        return
    waiting = descriptors.poll()
    # Nothing is asked for: errors and hang-ups are told in any case.
    waiting.register(output, 0)
    if waiting.poll(seconds * 1e3):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
