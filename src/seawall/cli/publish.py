"""`seawall pub`: publish lines, JSON lines or a whole file to a topic of a data directory, or of a server.

`input.py` reads the input piece by piece, and each piece is published as a batch. Each batch is as durable as its topic
promises before the next one is published; if one fails, standard error reports how many records are in the log. If
standard error is a terminal, it shows a progress bar.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from seawall.cli.data_directory import json_option, print_json
from seawall.cli.input import record_batches
from seawall.cli.log_location import location_options, open_writable_log
from seawall.errors import ConflictError, InvalidInputError, SeawallError

if TYPE_CHECKING:
    from seawall.cli.log_location import WritableLog
    from seawall.engine.read.read_results import Publishable

_FORMATS: Final = ("lines", "json", "raw")

#: Records of one publish: enough that their sync is a small part of the work.
_BATCH_RECORDS: Final = 10_000


@click.command()
@click.argument("topic")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default="lines", show_default=True, help="Format of the input."
)
@click.option("--key-field", metavar="FIELD", help="With --format json: use this field of each object as its key.")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=_BATCH_RECORDS,
    show_default=True,
    help="Maximum number of lines in one publish.",
)
@click.option("--create", is_flag=True, help="Create the topic and the data directory if they do not exist.")
@location_options
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

    lines: each line is a record, without its line end. json: each line is a JSON object or array. raw: the whole input
    is one record. Lines from a pipe are published as they arrive.

    \b
    Examples:
      seq 1 1000000 | seawall pub events --create
      seawall pub orders orders.jsonl --format json --key-field customer
    """
    if key_field is not None and form != "json":
        raise click.UsageError("--key-field needs --format json.")
    with ExitStack() as stack:
        source, size = open_input(file, stack)
        log = open_writable_log(data, create=create)
        stack.callback(log.close)
        if create:
            with suppress(ConflictError):
                log.create_topic(topic)
        log.topic_named(topic)
        advance = stack.enter_context(show_progress(size, sys.stderr))
        done = _publish_all(log, topic, record_batches(source, form, key_field, batch), advance)
    _report(topic, done, as_json)


@dataclass(slots=True)
class _Done:
    """The records published so far."""

    record_count: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    seconds: float = 0.0


def _publish_all(
    log: WritableLog, topic: str, batches: Iterator[tuple[Publishable, int]], advance: Callable[[int], None]
) -> _Done:
    done = _Done()
    begun = time.monotonic()
    try:
        for records, size in batches:
            published = log.publish(topic, records)
            done.record_count += published.record_count
            done.first_seq = done.first_seq or published.first_seq
            done.last_seq = published.seqs[-1]
            advance(size)
    except SeawallError:
        if done.record_count:
            click.echo(f"{done.record_count} records, up to seq {done.last_seq}, are in the log", err=True)
        raise
    done.seconds = time.monotonic() - begun
    return done


@contextmanager
def show_progress(size: int | None, stream: TextIO) -> Iterator[Callable[[int], None]]:
    """A callback for the number of bytes done: draws a progress bar if the stream is a terminal, else does nothing."""
    if not stream.isatty():
        yield lambda _size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("publishing", total=size)
        yield lambda done: bar.advance(task, done)


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


def open_input(file: Path | None, stack: ExitStack) -> tuple[io.BufferedIOBase, int | None]:
    """The input stream, and its size or None if that is unknown."""
    if file is None or str(file) == "-":
        # `sys.stdin` is None if the descriptor is closed, and a calling program may have replaced it.
        stream: object = getattr(sys.stdin, "buffer", None)
        if not isinstance(stream, io.BufferedIOBase):
            raise InvalidInputError("standard input is closed or is not a byte stream: name a file to publish")
        return stream, None
    return stack.enter_context(file.open("rb")), file.stat().st_size or None
