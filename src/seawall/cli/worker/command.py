"""`seawall worker`: execute the jobs of a queue of tasks in supervised processes until a signal stops them.

SIGTERM and SIGINT stop the command: its processes claim no more jobs, running tasks may finish within `--grace`
seconds, the jobs of the others are returned to the queue, then exit code 0. A second signal kills the processes; their
jobs are delivered again when their leases end. The exit code is 1 if a process had to be killed, and 2 if the module
cannot be imported or the target is not a queue of tasks.

The processes inherit standard output and standard error. Log lines go to standard error, one for each job.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from seawall.cli.worker.log_lines import configure_logging
from seawall.cli.worker.spec import WorkerSpec
from seawall.config import TOKEN_VARIABLE
from seawall.limits import JOBS_MAX, TASK_GRACE_S, TASK_THREADS, TASK_TIME_S_MAX, WORKER_PROCESSES_MAX


@click.command()
@click.argument("target", metavar="MODULE:ATTR")
@click.option(
    "--processes",
    type=click.IntRange(1, WORKER_PROCESSES_MAX),
    default=1,
    show_default=True,
    help="Number of worker processes. A data directory can be used by one only.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, JOBS_MAX),
    default=TASK_THREADS,
    show_default=True,
    help="Jobs that each process executes at once.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0, TASK_TIME_S_MAX),
    default=TASK_GRACE_S,
    show_default=True,
    help="Seconds that running tasks may take to finish when the command stops.",
)
@click.option("--reload", is_flag=True, help="Start the processes again when a source of the module changes.")
@click.option("--url", metavar="URL", help="Server to use instead of the log that the module names.")
@click.option(
    "--data",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Data directory to use instead of the log that the module names.",
)
@click.option("--token", metavar="TOKEN", help=f"Access token for the server; also read from {TOKEN_VARIABLE}.")
@click.option("--json", "as_json", is_flag=True, help="Write log lines as JSON objects.")
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
    default="INFO",
    show_default=True,
    help="Lowest level of log lines.",
)
def worker(
    target: str,
    processes: int,
    threads: int,
    grace: float,
    reload: bool,
    url: str | None,
    data: str | None,
    token: str | None,
    as_json: bool,
    log_level: str,
) -> None:
    """Execute the jobs of the TaskQueue that MODULE:ATTR names.

    \b
    Examples:
      seawall worker shop.mails:tasks --processes 4 --threads 16
      seawall worker shop.mails:tasks --reload
      seawall worker shop.mails:tasks --url seawall://127.0.0.1:1992 --json
    """
    module, separator, attribute = target.partition(":")
    if not (module and separator and attribute):
        raise click.UsageError(f"{target!r} does not name a TaskQueue: write MODULE:ATTR, such as shop.mails:tasks")
    if url is not None and data is not None:
        raise click.UsageError("--data and --url name two logs: use only one of them.")
    if data is not None and processes > 1:
        raise click.UsageError("one process at a time can open a data directory: use --processes 1, or --url.")
    if token is not None:
        os.environ[TOKEN_VARIABLE] = token  # for the processes, out of sight of other users
    configure_logging(0, log_level, as_json=as_json)
    spec = WorkerSpec(target, processes, 0, threads, grace, url or data, as_json, log_level)
    raise SystemExit(asyncio.run(_supervise(spec, module if reload else None)))


async def _supervise(spec: WorkerSpec, watched: str | None) -> int:
    """Run the processes; watch the sources of a module, if one is given."""
    from seawall.cli.worker.sources import Sources
    from seawall.cli.worker.supervisor import Supervisor

    # Processes find modules in the working directory, as `python -m` does.
    sys.path.insert(0, str(Path.cwd()))
    return await Supervisor(spec, None if watched is None else Sources.of_module(watched)).run()
