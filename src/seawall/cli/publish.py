"""`seawall pub`: publish lines, JSON lines or a whole file to a topic of a data directory, or of a server.

Input is read piece by piece (`input.py`) and published in batches. Each batch is durable in the topic's class before
the next is read; if one fails, standard error says how much of the input is in the log. On a terminal a bar on standard
error shows how far it is.
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
from seawall.cli.log_place import open_place, place_options
from seawall.errors import ConflictError, InvalidInputError, SeawallError

if TYPE_CHECKING:
    from seawall.cli.log_place import OpenLog
    from seawall.engine.api.read_results import Publishable

_FORMATS: Final = ("lines", "json", "raw")

#: Records of one publish: so many that their sync is a small part of the work.
_BATCH_RECORDS: Final = 10_000


@click.command()
@click.argument("topic")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default="lines", show_default=True, help="What a record is."
)
@click.option("--key-field", metavar="F", help="With --format json: this field of each object becomes its key.")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=_BATCH_RECORDS,
    show_default=True,
    help="Lines in one publish at most.",
)
@click.option("--create", is_flag=True, help="Create the topic, and the data directory, where they are missing.")
@place_options
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
    record. Lines from a pipe are published as they come.

    \b
    Examples:
      seq 1 1000000 | seawall pub events --create
      seawall pub orders orders.jsonl --format json --key-field customer
    """
    if key_field is not None and form != "json":
        raise click.UsageError("--key-field needs --format json.")
    with ExitStack() as stack:
        source, size = _open_input(file, stack)
        log = open_place(data, create=create)
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
    """What is in the log so far."""

    record_count: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    seconds: float = 0.0


def _publish_all(
    log: OpenLog, topic: str, batches: Iterator[tuple[Publishable, int]], advance: Callable[[int], None]
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
    """Something to call with the bytes that are done: it draws a bar on a terminal, and is silent elsewhere."""
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


def _open_input(file: Path | None, stack: ExitStack) -> tuple[io.BufferedIOBase, int | None]:
    """The input, and its size where that is known."""
    if file is None or str(file) == "-":
        # Python has no `sys.stdin` where the descriptor is closed; a program that runs the command may replace it.
        stream: object = getattr(sys.stdin, "buffer", None)
        if not isinstance(stream, io.BufferedIOBase):
            raise InvalidInputError("standard input is closed or has no bytes: name a file to publish")
        return stream, None
    return stack.enter_context(file.open("rb")), file.stat().st_size or None
