"""`seawall pub`: publish lines, JSON lines or a whole file to a topic of a data directory.

Input is read piece by piece and published in batches of so many records, or of 16 MiB where that comes first, so input
of any length takes bounded memory. Lines are cut in bulk. Each batch is durable in the topic's class before the next
is read; if one fails, standard error says how much of the input is in the log.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from seawall.cli.data_directory import data_option, json_option, open_data, print_json
from seawall.errors import InvalidInputError, LimitError, SeawallError
from seawall.limits import BLOCK_SIZE_MAX, COPY_BUFFER_SIZE, RECORD_VALUE_SIZE_MAX

if TYPE_CHECKING:
    from seawall.engine.embedded import EmbeddedLog
    from seawall.engine.records import OneRecord

#: Records of one publish, not encoded yet.
_Batch: TypeAlias = "list[bytes] | list[OneRecord]"

_FORMATS: Final = ("lines", "json", "raw")


@click.command()
@click.argument("topic")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default="lines", show_default=True, help="What a record is."
)
@click.option("--key-field", metavar="F", help="With --format json: this field of each object becomes its key.")
@click.option("--batch", type=click.IntRange(min=1), default=1000, show_default=True, help="Records in one publish.")
@click.option("--create", is_flag=True, help="Create the topic, and the data directory, where they are missing.")
@data_option
@json_option
def pub(
    topic: str,
    file: Path | None,
    form: str,
    key_field: str | None,
    batch: int,
    create: bool,
    data: Path,
    as_json: bool,
) -> None:
    """Publish FILE, or standard input, to TOPIC.

    lines: each line is a record, without its line end. json: each line is a JSON object or array. raw: all of it is one
    record.
    """
    if key_field is not None and form != "json":
        raise click.UsageError("--key-field needs --format json.")
    with ExitStack() as stack:
        source = _open_input(file, stack)
        log = stack.enter_context(open_data(data, create=create))
        if create and topic not in log.topics():
            log.create_topic(topic)
        log.describe(topic)
        done = _publish_all(log, topic, _batches(source, form, key_field, batch))
    _report(topic, done, as_json)


@dataclass(slots=True)
class _Done:
    """What is in the log so far."""

    record_count: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    seconds: float = 0.0


def _publish_all(log: EmbeddedLog, topic: str, batches: Iterator[_Batch]) -> _Done:
    done = _Done()
    shows_progress = sys.stderr.isatty()
    begun = time.monotonic()
    try:
        for records in batches:
            published = log.publish(topic, records)
            done.record_count += published.record_count
            done.first_seq = done.first_seq or published.first_seq
            done.last_seq = published.seqs[-1]
            if shows_progress:
                click.echo(f"\r{done.record_count} records", nl=False, err=True)
    except SeawallError:
        if done.record_count:
            click.echo(f"{done.record_count} records, up to seq {done.last_seq}, are in the log", err=True)
        raise
    done.seconds = time.monotonic() - begun
    if shows_progress:
        click.echo("\r\033[K", nl=False, err=True)
    return done


def _report(topic: str, done: _Done, as_json: bool) -> None:
    rate = done.record_count / done.seconds if done.seconds else 0.0
    if as_json:
        print_json(
            {
                "topic": topic,
                "records": done.record_count,
                "first_seq": done.first_seq,
                "last_seq": done.last_seq,
                "seconds": done.seconds,
                "records_per_second": rate,
            }
        )
    elif not done.record_count:
        click.echo("0 records: the input is empty")
    else:
        span = f"seqs {done.first_seq} to {done.last_seq}"
        click.echo(f"{done.record_count} records, {span}, {rate:,.0f} records/s")


# --- input -------------------------------------------------------------------------------------------------------


def _open_input(file: Path | None, stack: ExitStack) -> io.BufferedIOBase:
    if file is None or str(file) == "-":
        stream: object = sys.stdin.buffer
        assert isinstance(stream, io.BufferedIOBase)
        return stream
    return stack.enter_context(file.open("rb"))


def _batches(source: io.BufferedIOBase, form: str, key_field: str | None, count: int) -> Iterator[_Batch]:
    if form == "raw":
        return iter([[_whole(source)]])
    if form == "json":
        return _json_batches(_line_batches(source, count), key_field)
    return _line_batches(source, count)


def _whole(source: io.BufferedIOBase) -> bytes:
    value = source.read(RECORD_VALUE_SIZE_MAX + 1)
    if len(value) > RECORD_VALUE_SIZE_MAX:
        raise LimitError(f"the input is larger than a record may be, {RECORD_VALUE_SIZE_MAX} bytes; split it")
    return value


def _line_batches(source: io.BufferedIOBase, count: int) -> Iterator[list[bytes]]:
    """Lines without their ends, so many at a time."""
    lines: list[bytes] = []
    size = 0
    rest = b""
    # What a pipe holds is taken at once; it may be all that comes for a long time.
    while piece := source.read1(COPY_BUFFER_SIZE):
        data = (rest + piece).replace(b"\r\n", b"\n")
        *whole, rest = data.split(b"\n")
        if len(rest) > RECORD_VALUE_SIZE_MAX:
            raise LimitError(f"a line is larger than a record may be, {RECORD_VALUE_SIZE_MAX} bytes; split it")
        lines += whole
        size += len(data) - len(rest)
        while len(lines) >= count:
            yield lines[:count]
            lines = lines[count:]
            size = sum(map(len, lines))
        if size >= BLOCK_SIZE_MAX:
            yield lines
            lines, size = [], 0
    if rest:
        lines.append(rest)
    if lines:
        yield lines


def _json_batches(batches: Iterator[list[bytes]], key_field: str | None) -> Iterator[list[OneRecord]]:
    """Lines as JSON records; blank lines are passed over."""
    number = 0
    for lines in batches:
        records = []
        for line in lines:
            number += 1
            if line.strip():
                records.append(_json_record(line, key_field, number))
        if records:
            yield records


def _json_record(line: bytes, key_field: str | None, number: int) -> OneRecord:
    from seawall.engine.records import Message
    from seawall.wire.fields import write_text

    try:
        value = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"line {number} is not JSON: {error}") from error
    if key_field is None:
        if not isinstance(value, dict | list):
            raise InvalidInputError(f"line {number} is a JSON {type(value).__name__}: an object or array is needed")
        return value
    if not isinstance(value, dict) or value.get(key_field) is None:
        raise InvalidInputError(f"line {number} has no field {key_field!r} to be its key")
    key = value[key_field]
    text = key if isinstance(key, str) else json.dumps(key, separators=(",", ":"), ensure_ascii=False)
    return Message(value, key=write_text(text, RECORD_VALUE_SIZE_MAX, f"line {number}: key"))


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")
