"""`seawall queue`: push jobs, work on them, and look at the queues of a data directory or of a server.

    push, stats, purge, dead   for producers and operators
    work                       runs a command for each job: exit code 0 acks the job, any other returns it
    claim, ack, nack           the steps of a worker, one process each: `claim` prints what `ack` and `nack` need

A lease lasts longer than the process only on a server, or in a queue with `leases_durable`. Results go to standard
output, as lines or, with `--json`, as JSON.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, Self, TypeVar, cast

import click

from seawall.cli.data_directory import json_option, print_json
from seawall.cli.input import record_batches
from seawall.cli.log_location import location_options, open_readable_log, open_writable_log
from seawall.cli.publish import open_input, show_progress
from seawall.cli.reading.selection import Selection, record_document, value_text
from seawall.errors import ConfigError, ConflictError, InvalidInputError, SeawallError

if TYPE_CHECKING:
    import pyarrow as pa

    from seawall.api.publishable import OneRecord, Publishable
    from seawall.api.queues.queue import Job, Queue
    from seawall.api.received_record import ReceivedRecord
    from seawall.cli.log_location import ReadableLog, WritableLog
    from seawall.core.jobs import JobOutcome
    from seawall.wire.format.fields import JsonValue

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

#: Jobs of one push from lines.
_BATCH_JOBS: Final = 10_000


def _read_jobs(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> list[tuple[int, int]]:
    """The seq and the lease of each job."""
    jobs = []
    for text in texts:
        seq, _, lease_id = text.partition(":")
        if not (seq.isdecimal() and lease_id.isdecimal()):
            raise click.BadParameter(f"{text!r} is no job: write SEQ:LEASE as `seawall queue claim` prints it")
        jobs.append((int(seq), int(lease_id)))
    return jobs


def _node_option(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    option = click.option("--node", metavar="NAME", help="Name of this worker; default: a new name.")
    return option(command)


def _lease_option(command: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    option = click.option(
        "--lease",
        "lease_s",
        type=click.FloatRange(min=0.1),
        metavar="SECONDS",
        help="Lease time; default: the topic's.",
    )
    return option(command)


@click.group()
def queue() -> None:
    """Push jobs, work on them, and look at queues.

    \b
    Example:
      seawall topic create mails --set type=queue && echo hello | seawall queue push mails
    """


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json", "raw"]),
    default="lines",
    show_default=True,
    help="Format of the input.",
)
@click.option(
    "--delay", "delay_s", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Claim it later."
)
@click.option("--priority", type=click.IntRange(0, 9), default=0, help="Higher first; default: 0.")
@click.option("--unique", metavar="KEY", help="Push one job, unless one with this key is there.")
@click.option("--create", is_flag=True, help="Create the queue and the data directory if they do not exist.")
@location_options
@json_option
def push(
    name: str,
    file: Path | None,
    form: str,
    delay_s: float,
    priority: int,
    unique: str | None,
    create: bool,
    data: Path,
    as_json: bool,
) -> None:
    """Push the jobs of FILE, or of standard input, to QUEUE.

    lines: each line is a job, without its line end. json: each line is a JSON object or array. raw: the whole input is
    one job. On a terminal, standard error shows a progress bar.

    \b
    Examples:
      seq 1 100 | seawall queue push numbers --create
      echo '{"to": "ada"}' | seawall queue push mails --format json --delay 60
    """
    with ExitStack() as stack:
        source, size = open_input(file, stack)
        log = open_writable_log(data, create=create)
        stack.callback(log.close)
        if create:
            with suppress(ConflictError):
                log.create_topic(name, type="queue")
        jobs = log.queue(name)
        batches = record_batches(source, form, None, _BATCH_JOBS)
        if unique is not None:
            found = [record for records, _ in batches for record in _each(records)]
            if len(found) != 1:
                raise InvalidInputError(f"{len(found)} jobs with the unique key {unique!r}: push exactly one")
            pushed = jobs.push_unique(found[0], unique, delay_s=delay_s, priority=priority)
            result: dict[str, JsonValue] = {"queue": name, "seq": pushed.seq, "new": pushed.is_new}
            text = f"job {pushed.seq} {'is new' if pushed.is_new else 'is there already'}"
        else:
            count = 0
            advance = stack.enter_context(show_progress(size, sys.stderr))
            try:
                for records, done in batches:
                    # A table cannot have options.
                    pushable = _each(records) if delay_s or priority else records
                    count += len(jobs.push(pushable, delay_s=delay_s, priority=priority).seqs)
                    advance(done)
            except SeawallError:
                if count:
                    click.echo(f"{count} jobs are in the queue", err=True)
                raise
            result, text = {"queue": name, "jobs": count}, f"{count} jobs"
    _show(result, text, as_json)


def _each(records: Publishable) -> list[OneRecord]:
    """The records of one piece of input."""
    if isinstance(records, bytes):
        return [records]
    if isinstance(records, list):
        return cast("list[OneRecord]", records)
    values: list[OneRecord] = cast("pa.RecordBatch", records).column("value").to_pylist()
    return values


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="Maximum number of jobs.")
@_lease_option
@click.option("--wait", "wait_s", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Wait for a job.")
@_node_option
@location_options
@json_option
def claim(
    name: str, count: int, lease_s: float | None, wait_s: float, node: str | None, data: Path, as_json: bool
) -> None:
    """Lease jobs of QUEUE and print them: SEQ:LEASE, deliveries and value; with --json also the worker and the record.

    Finish or return them with `ack` or `nack` and the same --node; otherwise other workers get them when the lease
    ends. In a data directory it ends with this command, unless the queue has leases_durable. Exits with 1 if there are
    none.

    \b
    Example:
      seawall queue claim mails --node me --url seawall://127.0.0.1:1992
    """
    with open_writable_log(data) as log:
        jobs = log.queue(name, node=node)
        claimed = jobs.claim(count, lease_s=lease_s, wait_s=wait_s)
        if as_json:
            print_json([_document(job, jobs.node) for job in claimed])
        for job in [] if as_json else claimed:
            click.echo(f"{job.seq}:{job.lease_id}\t{job.deliveries}\t{value_text(job.value)}")
    if not claimed:
        raise SystemExit(1)


def _document(job: Job, node: str) -> dict[str, JsonValue]:
    return {
        "job": f"{job.seq}:{job.lease_id}",
        "node": node,
        "deliveries": job.deliveries,
        "deadline": _time(job.deadline_ms),
        **record_document(job.record),
    }


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.argument("jobs", nargs=-1, required=True, callback=_read_jobs, metavar="SEQ:LEASE...")
@click.option("--node", required=True, metavar="NAME", help="Name of the worker that claimed them.")
@location_options
@json_option
def ack(name: str, jobs: list[tuple[int, int]], node: str, data: Path, as_json: bool) -> None:
    """Finish claimed jobs of QUEUE: they are deleted.

    Jobs whose lease has ended are skipped, and the exit code is 1.

    \b
    Example:
      seawall queue ack mails 12:1882230566415237120 --node me --url seawall://127.0.0.1:1992
    """
    with open_writable_log(data) as log:
        own = log.queue(name, node=node)
        outcome = own.ack(_named(own, jobs))
    _show_outcome(name, "acked", outcome, as_json)


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.argument("jobs", nargs=-1, required=True, callback=_read_jobs, metavar="SEQ:LEASE...")
@click.option("--node", required=True, metavar="NAME", help="Name of the worker that claimed them.")
@click.option(
    "--delay", "delay_s", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Deliver them later."
)
@location_options
@json_option
def nack(name: str, jobs: list[tuple[int, int]], node: str, delay_s: float, data: Path, as_json: bool) -> None:
    """Return claimed jobs to QUEUE, to be delivered again.

    Jobs whose lease has ended are skipped, and the exit code is 1.

    \b
    Example:
      seawall queue nack mails 12:1882230566415237120 --node me --delay 60 --url seawall://127.0.0.1:1992
    """
    with open_writable_log(data) as log:
        own = log.queue(name, node=node)
        outcome = own.nack(_named(own, jobs), delay_s)
    _show_outcome(name, "returned", outcome, as_json)


def _named(own: Queue, jobs: list[tuple[int, int]]) -> list[Job]:
    """Jobs that another process has claimed."""
    from seawall.api.queues.queue import Job
    from seawall.api.received_record import ReceivedRecord
    from seawall.core.types import Seq, TimestampNs

    return [
        Job(own.topic, own.node, ReceivedRecord(Seq(seq), 0, b"", TimestampNs(0)), lease_id, 0, 0)
        for seq, lease_id in jobs
    ]


def _show_outcome(name: str, done: str, outcome: JobOutcome, as_json: bool) -> None:
    skipped: list[JsonValue] = [*outcome.skipped]
    result: dict[str, JsonValue] = {
        "queue": name,
        done: outcome.changed,
        "skipped": skipped,
        "ready": outcome.ready,
        "leased": outcome.leased,
    }
    left = f"; the lease of {', '.join(map(str, skipped))} has ended" if skipped else ""
    _show(result, f"{outcome.changed} jobs {done}{left}", as_json)
    if skipped:
        raise SystemExit(1)


@queue.command(context_settings={"allow_interspersed_args": False})
@click.argument("name", metavar="QUEUE")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND [ARGUMENT]...")
@_lease_option
@click.option("--until-empty", is_flag=True, help="Exit when no job is ready, instead of waiting for more.")
@click.option(
    "--backoff",
    "backoff_s",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Delay after the first failure of a job; it doubles with each further one, up to 5 minutes.",
)
@_node_option
@location_options
@json_option
def work(
    name: str,
    command: tuple[str, ...],
    lease_s: float | None,
    until_empty: bool,
    backoff_s: float,
    node: str | None,
    data: Path,
    as_json: bool,
) -> None:
    """Run COMMAND for each job of QUEUE, with its value on standard input.

    Exit code 0 finishes the job, any other returns it with a delay. The lease is extended while the command runs. The
    environment has SEAWALL_JOB_SEQ, SEAWALL_JOB_DELIVERIES and, if the job has a key, SEAWALL_JOB_KEY. Options of this
    command come before QUEUE. At the end, standard error reports how many jobs were done and returned.

    SIGTERM lets the running command finish, and then ends this one. Ctrl-C ends both, and the job is returned.

    \b
    Examples:
      seawall queue work --until-empty mails ./send.sh
      seawall queue work --url seawall://127.0.0.1:1992 images python resize.py
    """
    from seawall.api.queues.jobs import Backoff

    if command[0].startswith("-"):
        raise click.UsageError(f"{command[0]!r} after QUEUE is the command to run: write options before {name!r}.")
    done = failed = 0
    try:
        with open_writable_log(data) as log, _Termination() as termination:
            backoff = Backoff(backoff_s)
            for job in log.queue(name, node=node).work(lease_s=lease_s, backoff=backoff, wait=not until_empty):
                with termination.deferred():
                    if _run(command, job):
                        job.ack()
                        done += 1
                    else:
                        failed += 1
                        job.nack(backoff.delay_s(job.deliveries))
    finally:
        result: dict[str, JsonValue] = {"queue": name, "done": done, "returned": failed}
        if as_json:
            print_json(result)
        else:
            click.echo(f"{done} jobs done, {failed} returned", err=True)


class _Termination:
    """Ends the command with exit code 0 at SIGTERM: at once, or after the block that defers it."""

    def __init__(self) -> None:
        self._is_deferred = False
        self._is_requested = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGTERM, lambda _number, _frame: self._request())
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Finish the block first."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self._is_requested:
            self._request()

    def _request(self) -> None:
        self._is_requested = True
        if not self._is_deferred:
            raise SystemExit(0)


def _run(command: tuple[str, ...], job: Job) -> bool:
    """Run the command for a job; True if it succeeded."""
    environment = os.environ | {"SEAWALL_JOB_SEQ": str(job.seq), "SEAWALL_JOB_DELIVERIES": str(job.deliveries)}
    if job.key is not None:
        environment["SEAWALL_JOB_KEY"] = value_text(job.key)
    sys.stdout.flush()
    try:
        code = subprocess.run(command, input=job.value, env=environment, check=False).returncode
    except FileNotFoundError as error:
        raise InvalidInputError(f"there is no command {command[0]!r}: the job is returned") from error
    except OSError as error:
        text = f"the command {command[0]!r} cannot be run, and the job is returned: {error.strerror}"
        raise InvalidInputError(text) from error
    if code:
        click.echo(f"job {job.seq}, delivery {job.deliveries}: exit code {code}", err=True)
    return code == 0


@queue.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@location_options
@json_option
def stats(names: tuple[str, ...], data: Path, as_json: bool) -> None:
    """Show the jobs of each QUEUE by their state, and how long ago the oldest one was pushed.

    \b
    Example:
      seawall queue stats mails --url seawall://127.0.0.1:1992 --json
    """
    with open_writable_log(data) as log:
        found = {name: log.queue(name).counts() for name in names}
    width = max(map(len, names))
    for name, counts in found.items():
        oldest = "" if counts.oldest_ms is None else f", the oldest of {_time(counts.oldest_ms)}"
        if not as_json:
            numbers = f"{counts.ready} ready, {counts.leased} leased, {counts.delayed} delayed"
            click.echo(f"{name:{width}}  {numbers}, {counts.dead_lettered} dead-lettered{oldest}")
    if as_json:
        print_json([{"queue": name, **counts._asdict()} for name, counts in found.items()])


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.option("--redrive", is_flag=True, help="Move the dead letters back to the queues that they came from.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the oldest N.")
@location_options
@json_option
def dead(name: str, redrive: bool, limit: int | None, data: Path, as_json: bool) -> None:
    """List the dead letters of QUEUE, or move them back.

    They are those in its dead-letter topic, which other queues may share.

    \b
    Example:
      seawall queue dead mails --redrive --limit 10
    """
    if redrive:
        with open_writable_log(data) as log:
            count = log.queue(_dead_letters_of(log, name)).redrive(limit)
        _show({"queue": name, "moved": count}, f"{count} jobs moved back", as_json)
        return
    with open_readable_log(data) as view:
        topic = _dead_letters_of(view, name)
        letters: list[ReceivedRecord] = []
        selection = Selection(1, last_seq=None, before=None, limit=limit)
        # The topic is created with the first dead letter.
        while topic in view.topics() and not selection.is_done and (items := view.read(topic, selection.next_seq)):
            for chosen in selection.choose(items):
                letters += chosen if isinstance(chosen, list) else []
    if as_json:
        print_json([{**record_document(each), "meta": value_text(each.meta or b"")} for each in letters])
    for each in [] if as_json else letters:
        click.echo(f"{each.seq}\t{value_text(each.meta or b'')}\t{value_text(each.value)}")


def _dead_letters_of(log: WritableLog | ReadableLog, name: str) -> str:
    topic = log.describe(name).config.dead_letter
    if topic is None:
        raise ConfigError(f"queue {name!r} has no dead-letter topic: set max_deliveries and dead_letter")
    return topic


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@location_options
@json_option
def purge(name: str, yes: bool, data: Path, as_json: bool) -> None:
    """Delete all jobs of QUEUE that no worker holds.

    \b
    Example:
      seawall queue purge mails --yes
    """
    with open_writable_log(data) as log:
        own = log.queue(name)
        if not yes:
            counts = own.counts()
            click.confirm(f"Permanently delete {counts.ready + counts.delayed} jobs of {name}?", abort=True, err=True)
        count = own.purge()
    _show({"queue": name, "deleted": count}, f"{count} jobs deleted", as_json)


def _time(when_ms: int) -> str:
    return f"{datetime.fromtimestamp(when_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _show(result: dict[str, JsonValue], text: str, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        click.echo(text)
