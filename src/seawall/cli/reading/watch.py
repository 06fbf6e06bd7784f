"""`seawall watch`: print the records of many topics as they arrive, each line with its topic.

    text   the topic, a tab, and the value; gaps and the ends of topics are reported on standard error
    json   one object per line: topic, and what `seawall sub` prints; in order with `{"topic": …, "deleted": {…}}` for a
           topic that was deleted, and `{"topic": …, "caught_up": {…}}` for one that was printed up to its end

With `--cursor-file` the command continues where it stopped: the file has the position of every topic, and is replaced
after what it covers was printed. After an interruption in between, that is printed again, and nothing is lost.

A server pushes new records. A data directory is opened with its lock, so no other process can write to it: then the
command stops at the end. It exits at its bound, with code 130 when interrupted, and quietly when the reader of its
output closes the pipe, which it also notices while it waits.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from seawall.cli.log_location import is_remote, location_options, open_writable_log
from seawall.cli.reading.selection import (
    gap_document,
    json_line,
    loss_message,
    record_document,
    skip_document,
    text_line,
)
from seawall.cli.reading.subscribe import pause_output
from seawall.errors import InvalidInputError

if TYPE_CHECKING:
    from seawall.api.received import ReceivedBatch, ReceivedSkip
    from seawall.api.received_record import ReceivedRecord
    from seawall.api.watch_items import Consistency, TopicCaughtUp, TopicDeleted, WatchGap
    from seawall.api.watches import Watch
    from seawall.wire.format.fields import JsonValue

#: How long one call waits for new records; the output is checked in between.
_WAIT_SECONDS: Final = 1.0


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where to start in each topic.",
)
@click.option("--follow", is_flag=True, help="Wait for new records, and for new topics that match.")
@click.option("--strong", is_flag=True, help="Print records only once they are synced to disk.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)
@click.option(
    "--cursor-file",
    "cursor_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Continue at the cursor in this file, if it exists, and keep it there.",
)
@location_options
def watch(
    names: tuple[str, ...],
    start: str,
    follow: bool,
    strong: bool,
    limit: int | None,
    form: str,
    cursor_file: Path | None,
    data: Path,
) -> None:
    """Print the records of the topics NAME, each line with its topic.

    A NAME that ends with * is a prefix: topics that appear later and match are printed, too. Without --follow the
    command stops at the current end of every topic.

    \b
    Examples:
      seawall watch orders 'audit.*'
      seawall watch 'audit.*' --url seawall://localhost:1992 --follow --cursor-file audit.cursor
    """
    if follow and not is_remote():
        raise click.UsageError("A watch of a data directory locks out writers: --follow needs --url.")
    cursor = None if cursor_file is None else _stored(cursor_file)
    consistency: Consistency = "strong" if strong else "eventual"
    with (
        open_writable_log(data) as log,
        log.watch(list(names), start, cursor=cursor, consistency=consistency) as watching,
    ):
        printing = _Printing(watching, limit, form, follow=follow)
        while not printing.is_done:
            printing.print_more()
            if cursor_file is not None:
                _replace(cursor_file, printing.cursor())
            pause_output(0)


class _Printing:
    """The progress of printing, and its end."""

    def __init__(self, watching: Watch, limit: int | None, form: str, *, follow: bool) -> None:
        self._watch = watching
        self._left = limit
        self._is_json = form == "json"
        #: Topics that were printed up to their end; None if the end is not waited for.
        self._ended: set[str] | None = None if follow else set()
        #: A batch of which only a part was printed: its topic, and the seq to print next.
        self._partly: tuple[str, int] | None = None

    @property
    def is_done(self) -> bool:
        """True if nothing more is to be printed."""
        return self._left == 0 or (self._ended is not None and self._ended.issuperset(self._watch.topics))

    def print_more(self) -> None:
        """Print what has arrived, and flush the output."""
        from seawall.api.received import ReceivedBatch

        # One by one up to a limit: the cursor must not be after items that are not printed.
        for item in self._watch.poll(_WAIT_SECONDS, limit=None if self._left is None else 1):
            if isinstance(item, ReceivedBatch):
                self._print_batch(item)
            else:
                self._print_report(item)
        sys.stdout.buffer.flush()

    def cursor(self) -> str:
        """The position after everything that was printed."""
        from seawall.api.watch_cursor import encode_cursor, parse_cursor
        from seawall.core.types import Seq

        if self._partly is None:
            return self._watch.cursor
        topic, next_seq = self._partly
        cursor = parse_cursor(self._watch.cursor)
        position = cursor.positions[topic]._replace(next_seq=Seq(next_seq))
        return encode_cursor(cursor._replace(positions={**cursor.positions, topic: position}))

    def _print_batch(self, batch: ReceivedBatch) -> None:
        records = list(islice(batch.records(), self._left))
        if self._left is not None:
            self._left -= len(records)
            if self._left == 0 and records[-1].seq + 1 < batch.next_seq:
                self._partly = batch.topic, records[-1].seq + 1
        sys.stdout.buffer.write(b"".join(self._line(batch.topic, record) for record in records))

    def _line(self, topic: str, record: ReceivedRecord) -> bytes:
        if self._is_json:
            return json_line({"topic": topic, **record_document(record)})
        return topic.encode() + b"\t" + text_line(record.value)

    def _print_report(self, item: WatchGap | ReceivedSkip | TopicCaughtUp | TopicDeleted) -> None:
        from seawall.api.received import ReceivedSkip
        from seawall.api.watch_items import TopicCaughtUp, TopicDeleted

        document: dict[str, JsonValue] = {}
        message = ""
        if isinstance(item, TopicCaughtUp):
            if self._ended is not None:
                self._ended.add(item.topic)
            document = {"caught_up": {"next_seq": item.next_seq}}
        elif isinstance(item, TopicDeleted):
            document = {"deleted": {"next_seq": item.next_seq, "end_seq": item.end_seq}}
            message = f"deleted: seqs from {item.next_seq} to before {item.end_seq} were not printed"
        elif isinstance(item, ReceivedSkip):
            document, message = {"skip": skip_document(item)}, loss_message(item)
        elif item.is_recreated:
            document, message = {"gap": gap_document(item)}, "created again: its seqs begin again"
        else:
            document, message = {"gap": gap_document(item)}, loss_message(item)
        if self._is_json:
            sys.stdout.buffer.write(json_line({"topic": item.topic, **document}))
        elif message:
            sys.stdout.buffer.flush()
            click.echo(f"{item.topic}: {message}", err=True)


def _stored(path: Path) -> str | None:
    """The cursor in a file; None if there is no file yet."""
    from seawall.api.watch_cursor import parse_cursor

    if not path.exists():
        if not path.parent.is_dir():
            raise InvalidInputError(f"cursor file {path}: there is no directory {path.parent}; create it")
        return None
    cursor = path.read_text(errors="replace").strip()
    try:
        parse_cursor(cursor)
    except InvalidInputError as error:
        raise InvalidInputError(f"cursor file {path}: {error}; delete it to start anew, or name another one") from error
    return cursor


def _replace(path: Path, cursor: str) -> None:
    """Replace the file of a cursor as a whole, so that an interruption leaves the old one or the new one."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(cursor + "\n")
    temporary.replace(path)
