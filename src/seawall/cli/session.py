"""`seawall session`: list and retire the sessions of publishers, in a data directory or on a server.

Results go to standard output, as a table or, with `--json`, as JSON. Listing takes no lock, so another process may be
writing; retiring takes the lock. A server also reports which sessions have a connection.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from seawall.cli.data_directory import json_option, print_json
from seawall.cli.log_location import location_options, open_readable_log, open_writable_log

if TYPE_CHECKING:
    from seawall.core.sessions import SessionInfo


@click.group()
def session() -> None:
    """List and retire the sessions of publishers.

    \b
    Example:
      seawall session list
    """


@session.command(name="list")
@location_options
@json_option
def list_sessions(data: Path, as_json: bool) -> None:
    """List all sessions: client id, session epoch, next client seq, and when the publisher was last seen.

    \b
    Example:
      seawall session list --url seawall://127.0.0.1:1992 --json
    """
    with open_readable_log(data) as view:
        _show(view.sessions(), as_json)


@session.command()
@click.argument("clients", nargs=-1, required=True, type=click.IntRange(1, (1 << 63) - 1), metavar="CLIENT...")
@location_options
@json_option
def retire(clients: tuple[int, ...], data: Path, as_json: bool) -> None:
    """Retire the sessions of clients, given by their ids.

    A publisher that still uses such a session is fenced, and batches that it sends again are refused. The client may
    open a new session.

    \b
    Example:
      seawall session retire 7 8
    """
    with open_writable_log(data) as log:
        found = {each.client_id: each for each in log.sessions() if each.client_id in clients}
        for client_id in clients:
            log.retire_session(client_id)
    _show([found[client_id] for client_id in sorted(found)], as_json)


def _show(sessions: list[SessionInfo], as_json: bool) -> None:
    from seawall.wire.lwp2.sessions import session_document

    if as_json:
        print_json([session_document(each) for each in sessions])
        return
    width = max((len(str(each.client_id)) for each in sessions), default=0)
    for each in sessions:
        seen = f"{datetime.fromtimestamp(each.last_seen_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        state = "  connected" if each.is_live else ""
        numbers = f"epoch {each.session_epoch}  next client seq {each.next_client_seq}"
        click.echo(f"{each.client_id:{width}}  {numbers}  seen {seen}{state}")
