"""`seawall status`: show the status of a server.

It prints the node, its state (`ok`, or `read-only` and the reason), its connections and brokers, its load, and
everything else that the server reports, such as its counters. With `--json` it prints one JSON object.

The exit code is 0 if the server accepts writes, 1 if it does not or cannot be reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seawall.cli.data_directory import json_option, print_json
from seawall.cli.log_location import connect_to_server, server_options

if TYPE_CHECKING:
    from seawall.wire.format.fields import JsonValue
    from seawall.wire.lwp1.replies import ClusterStatusReply


@click.command()
@server_options
@json_option
def status(as_json: bool) -> None:
    """Show the status of a server: whether it accepts writes, its connections, its load and its counters.

    \b
    Example:
      seawall status --url seawall://127.0.0.1:1992
    """
    with connect_to_server() as log:
        reply = log.status()
    document = _document(reply)
    if as_json:
        print_json(document)
    else:
        lines = _lines(document)
        width = max(len(name) for name, _ in lines) + 2
        for name, value in lines:
            click.echo(f"{name:<{width}}{value}")
    if document["state"] != "ok":
        raise SystemExit(1)


def _document(reply: ClusterStatusReply) -> dict[str, JsonValue]:
    """The server's report as JSON; a server that reports no state accepts writes."""
    return {
        "node": reply.node_id,
        "state": "ok",
        "term": reply.current_term,
        "connections": sum(broker.connections for broker in reply.brokers),
        "brokers": [
            {"number": broker.number, "addresses": list(broker.addresses), "connections": broker.connections}
            for broker in reply.brokers
        ],
        **reply.details,
        **({} if reply.load is None else {"load": reply.load.document()}),
    }


def _lines(document: dict[str, JsonValue]) -> list[tuple[str, str]]:
    """The document as text: the reason after the state, a line for each broker, dotted names for nested values."""
    reason = document.pop("reason", "")
    lines: list[tuple[str, str]] = []
    for name, value in document.items():
        if name == "state" and reason:
            lines.append((name, f"{value}: {reason}"))
        elif name == "brokers" and isinstance(value, list):
            lines += [_broker_line(broker) for broker in value if isinstance(broker, dict)]
        else:
            lines += _flat(name, value)
    return lines


def _broker_line(broker: dict[str, JsonValue]) -> tuple[str, str]:
    addresses = broker["addresses"]
    where = ", ".join(map(str, addresses)) if isinstance(addresses, list) else str(addresses)
    return f"broker {broker['number']}", f"{broker['connections']} connections on {where}"


def _flat(name: str, value: JsonValue) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [line for key, inner in value.items() for line in _flat(f"{name}.{key}", inner)]
    return [(name, str(value))]
