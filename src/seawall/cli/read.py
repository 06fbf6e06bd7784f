"""`seawall read`: print the records of a topic, from a seq to the present end.

    text   each value on a line, bytes that are no UTF-8 escaped
    json   an object a line: seq, timestamp, type, key, value, headers, tag; lost seqs are `{"gap": …}` in their order
    raw    the values as they are, with nothing between them

Lost seqs are named on standard error in the forms that have no place for them. Following a topic that somebody writes
needs a server: a data directory is open in one process at a time.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from seawall.cli.data_directory import data_option, open_data

if TYPE_CHECKING:
    from seawall.engine.embedded import EmbeddedLog
    from seawall.engine.records import ReceivedRecord
    from seawall.topics.gaps import Gap
    from seawall.wire.fields import JsonValue

_EARLIEST: Final = "earliest"
_NS_PER_SECOND: Final = 1_000_000_000


def _read_start(_context: click.Context, _option: click.Parameter, text: str) -> int | None:
    """A seq; None is the first that there is."""
    if text == _EARLIEST:
        return None
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise click.BadParameter(f"{text!r} is neither a seq, which begin at 1, nor {_EARLIEST!r}")
    return int(text)


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "from_seq",
    callback=_read_start,
    default=_EARLIEST,
    show_default=True,
    metavar="SEQ|earliest",
    help="Where to begin.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@click.option(
    "--as", "form", type=click.Choice(["text", "json", "raw"]), default="text", show_default=True, help="How to print."
)
@data_option
def read(topic: str, from_seq: int | None, limit: int | None, form: str, data: Path) -> None:
    """Print the records of TOPIC up to its present end.

    Following what others write needs a server.
    """
    output = sys.stdout.buffer
    with open_data(data) as log:
        start = log.describe(topic).floor if from_seq is None else from_seq
        for item in _items(log, topic, start, limit):
            if isinstance(item, list):
                output.write(b"".join(_encoded(item, form)))
            elif form == "json":
                output.write(_line({"gap": _gap(item)}))
            else:
                output.flush()
                click.echo(f"gap: seqs {item.first_seq} to {item.last_seq} are lost: {_reason(item)}", err=True)
    output.flush()


def _items(log: EmbeddedLog, topic: str, start: int, limit: int | None) -> Iterator[list[ReceivedRecord] | Gap]:
    """Runs of records, and the gaps between them, until the limit or the end."""
    from seawall.topics.gaps import Gap

    left = limit
    for item in log.follow(topic, start):
        if isinstance(item, Gap):
            yield item
            continue
        records = list(islice(item.records(), left))
        yield records
        if left is not None:
            left -= len(records)
            if not left:
                return


def _encoded(records: Iterable[ReceivedRecord], form: str) -> Iterator[bytes]:
    for record in records:
        if form == "raw":
            yield record.value
        elif form == "json":
            yield _line(_as_json(record))
        else:
            yield record.value.decode("utf-8", "backslashreplace").encode() + b"\n"


def _as_json(record: ReceivedRecord) -> dict[str, JsonValue]:
    from seawall.storage.inspect import type_name

    headers: list[JsonValue] = [{**_text("name", name), **_text("value", value)} for name, value in record.headers]
    return {
        "seq": record.seq,
        "timestamp": _time(record.timestamp_ns),
        "type": type_name(record.record_type),
        **_text("key", record.key),
        **_text("value", record.value),
        "headers": headers,
        **_text("tag", record.tag),
    }


def _text(name: str, data: bytes | None) -> dict[str, JsonValue]:
    """Bytes as text, or in base64 with a second key to say so: `encoding` for a value, else `<name>_encoding`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: b64encode(data).decode(), "encoding" if name == "value" else f"{name}_encoding": "base64"}


def _time(timestamp_ns: int) -> str:
    """A time of the log for people and parsers, all its nanoseconds kept."""
    seconds, nanoseconds = divmod(timestamp_ns, _NS_PER_SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"


def _gap(gap: Gap) -> dict[str, JsonValue]:
    return {"first_seq": gap.first_seq, "last_seq": gap.last_seq, "reason": _reason(gap)}


def _reason(gap: Gap) -> str:
    return gap.reason.name.lower()


def _line(document: dict[str, JsonValue]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"
