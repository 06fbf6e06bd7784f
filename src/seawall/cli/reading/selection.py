"""Select and print the records of `read` and `sub`: start and end, and the three output formats.

    text   each value on a line; bytes that are not UTF-8 are escaped
    json   one object per line: seq, timestamp, type, key, value, headers, tag; in order with `{"gap": …}` for lost seqs
           and `{"skip": …}` where batches of a publisher were abandoned
    raw    the values unchanged, with nothing between them

The formats text and raw report gaps and skips on standard error.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final, ParamSpec, TypeAlias, TypeVar

import click

if TYPE_CHECKING:
    from seawall.engine.read.read_results import Item, ReceivedBatch, ReceivedRecord, ReceivedSkip
    from seawall.topics.gaps import Gap
    from seawall.wire.format.fields import JsonValue

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

#: A start or end in a topic, as given on the command line: a keyword, a seq, or a time.
Bound: TypeAlias = str | int | datetime

END: Final = "end"

_NS_PER_SECOND: Final = 1_000_000_000


def selection_options(*starts: str) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Add the options `--from`, `--until`, `--limit` and `--format`; `starts` are the keywords of `--from`."""
    options = (
        _bound_option("--from", "start", starts, "Where to start; a TIME is in ISO 8601.", default=starts[0]),
        _bound_option("--until", "until", (END,), "Where to stop: after a seq, before a time, or at the current end."),
        click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records."),
        click.option(
            "--format",
            "form",
            type=click.Choice(["text", "json", "raw"]),
            default="text",
            show_default=True,
            help="Output format.",
        ),
    )

    def add(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _bound_option(
    name: str, variable: str, keywords: tuple[str, ...], help_line: str, default: str | None = None
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    def read(_context: click.Context, _option: click.Parameter, text: str | None) -> Bound | None:
        return None if text is None else parse_bound(text, keywords)

    metavar = "|".join((*keywords, "SEQ", "TIME"))
    return click.option(
        name, variable, callback=read, default=default, show_default=True, metavar=metavar, help=help_line
    )


def parse_bound(text: str, keywords: tuple[str, ...]) -> Bound:
    """Parse one of the keywords, a seq, or a time in ISO 8601; a time without a zone is local."""
    if text in keywords:
        return text
    if text.isascii() and text.isdecimal():
        if int(text) >= 1:
            return int(text)
    else:
        with suppress(ValueError):
            return datetime.fromisoformat(text)
    known = ", ".join(map(repr, keywords))
    raise click.BadParameter(
        f"{text!r} is neither {known}, nor a seq (they start at 1), nor a time such as 2030-01-31T12:00:00Z"
    )


class Selection:
    """The progress of printing, and its end condition."""

    def __init__(self, next_seq: int, *, last_seq: int | None, before: datetime | None, limit: int | None) -> None:
        #: Seq to read next.
        self.next_seq = next_seq
        self._last_seq = last_seq
        self._before_ns = None if before is None else int(before.timestamp() * 1e6) * 1_000
        self._left = limit
        self._time_is_up = False

    @property
    def is_done(self) -> bool:
        """True if the selection is complete: no later record belongs to it."""
        reached = self._last_seq is not None and self.next_seq > self._last_seq
        return reached or self._left == 0 or self._time_is_up

    def skip_to(self, seq: int) -> None:
        """Continue at a seq: the records before it were printed or are deleted."""
        self.next_seq = max(self.next_seq, seq)

    def choose(self, items: Iterable[Item]) -> Iterator[list[ReceivedRecord] | Gap | ReceivedSkip]:
        """Yield the selected records in runs, and the gaps and SKIPs between them."""
        from seawall.engine.read.read_results import ReceivedSkip
        from seawall.topics.gaps import Gap

        for item in items:
            if self.is_done:
                return
            if isinstance(item, Gap):
                yield self._gap(item)
            elif isinstance(item, ReceivedSkip):
                self.next_seq = item.next_seq
                yield item
            elif self._before_ns is not None and item.timestamp_ns >= self._before_ns:
                self._time_is_up = True
            else:
                yield self._records(item)

    def _gap(self, gap: Gap) -> Gap:
        from seawall.core.types import Seq

        last_seq = gap.last_seq if self._last_seq is None else Seq(min(gap.last_seq, self._last_seq))
        self.next_seq = last_seq + 1
        return replace(gap, last_seq=last_seq)

    def _records(self, batch: ReceivedBatch) -> list[ReceivedRecord]:
        wanted = (each for each in batch.records() if self._last_seq is None or each.seq <= self._last_seq)
        records = list(islice(wanted, self._left))
        if self._left is not None:
            self._left -= len(records)
        self.next_seq = batch.next_seq if self._left != 0 else records[-1].seq + 1
        return records


def print_chosen(chosen: Iterable[list[ReceivedRecord] | Gap | ReceivedSkip], form: str) -> None:
    """Print runs of records, gaps and SKIPs, and flush the output."""
    output = sys.stdout.buffer
    for item in chosen:
        if isinstance(item, list):
            output.write(b"".join(_encoded(item, form)))
        elif form == "json":
            output.write(json_line({"skip": skip_document(item)} if item.is_skip else {"gap": gap_document(item)}))
        else:
            output.flush()
            click.echo(loss_message(item), err=True)
    output.flush()


def _encoded(records: Iterable[ReceivedRecord], form: str) -> Iterator[bytes]:
    for record in records:
        if form == "raw":
            yield record.value
        elif form == "json":
            yield json_line(record_document(record))
        else:
            yield text_line(record.value)


def value_text(value: bytes) -> str:
    """A value as text; bytes that are not UTF-8 are escaped."""
    return value.decode("utf-8", "backslashreplace")


def text_line(value: bytes) -> bytes:
    """A value as a line of the format text."""
    return value_text(value).encode() + b"\n"


def record_document(record: ReceivedRecord) -> dict[str, JsonValue]:
    """A record as JSON."""
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
    """Bytes as text, or as base64 with a second key that says so: `encoding` for a value, else `<name>_encoding`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: b64encode(data).decode(), "encoding" if name == "value" else f"{name}_encoding": "base64"}


def _time(timestamp_ns: int) -> str:
    """A timestamp of the log in ISO 8601, with all its nanoseconds."""
    seconds, nanoseconds = divmod(timestamp_ns, _NS_PER_SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"


def gap_document(gap: Gap) -> dict[str, JsonValue]:
    """A gap for the format json."""
    return {"first_seq": gap.first_seq, "last_seq": gap.last_seq, "reason": _reason(gap)}


def skip_document(skip: ReceivedSkip) -> dict[str, JsonValue]:
    """A SKIP for the format json."""
    return {
        "position": skip.position,
        "client_id": skip.client_id,
        "first_client_seq": skip.first_client_seq,
        "count": skip.skip_count,
    }


def loss_message(lost: Gap | ReceivedSkip) -> str:
    """A gap or a SKIP as a line for standard error."""
    if lost.is_skip:
        last = lost.first_client_seq + lost.skip_count - 1
        return f"skip: batches {lost.first_client_seq} to {last} of client {lost.client_id:016x} never arrived"
    return f"gap: seqs {lost.first_seq} to {lost.last_seq} are lost: {_reason(lost)}"


def _reason(gap: Gap) -> str:
    return gap.reason.name.lower()


def json_line(document: dict[str, JsonValue]) -> bytes:
    """One line of the format json."""
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"
