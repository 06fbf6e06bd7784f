"""`seawall bench`: run a benchmark suite, print a table, and optionally write JSON and check the goals.

Progress and missed goals go to standard error, the table to standard output. The exit code is 0 whatever the figures
are; with `--check` it is 1 if a goal is missed. The suites and `rich` are loaded when a suite runs, not for the help.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from seawall.bench.results import SuiteReport
    from seawall.config import LoadedConfig


@click.command()
@click.argument("suite", required=False)
@click.option("--list", "list_suites", is_flag=True, help="List the suites and exit.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report to this file."
)
@click.option("--seconds", type=float, help="Seconds per figure and side, split over the rounds [bench.seconds].")
@click.option("--rounds", type=int, help="Rounds that alternate between baseline and subject [bench.rounds].")
@click.option("--check", is_flag=True, help="Name the missed goals, and exit with 1 if there are any.")
@click.pass_obj
def bench(
    loaded: LoadedConfig,
    suite: str | None,
    list_suites: bool,
    json_file: Path | None,
    seconds: float | None,
    rounds: int | None,
    check: bool,
) -> None:
    """Run the benchmark SUITE on this machine: every figure beside its baseline, measured in the same run.

    \b
    Examples:
      seawall bench --list
      seawall bench kernels --seconds 2 --check
    """
    from seawall.bench import harness, report
    from seawall.bench import registry as suites

    if list_suites:
        width = max(map(len, suites.SUITES))
        for name, entry in suites.SUITES.items():
            click.echo(f"{name:{width}}  {entry.summary}")
        return
    if suite is None:
        raise click.UsageError(f"Name a suite: {', '.join(suites.SUITES)}.")
    if json_file is not None and not json_file.parent.is_dir():
        raise click.BadParameter(f"there is no directory {str(json_file.parent)!r}.", param_hint="--json")
    settings = loaded.config.bench
    context = harness.BenchContext(
        seconds=settings.seconds if seconds is None else seconds,
        rounds=settings.rounds if rounds is None else rounds,
        directory=Path(settings.directory),
    )
    measurements = tuple(suites.load(suite)(context))
    with report.show_progress(measurements, context.rounds, sys.stderr) as progress:
        found = harness.run_suite(suite, measurements, context, progress)
    if json_file is not None:
        json_file.write_text(json.dumps(found.as_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    report.write_table(found, sys.stdout)
    if check:
        _check(found)


def _check(found: SuiteReport) -> None:
    """Print every goal that was missed or could not be judged; exit with 1 if one was missed."""
    from seawall.bench import report

    for result in found.left_out:
        if result.goal is not None:
            click.echo(f"not judged: {result.name}: {result.note}", err=True)
    for line in report.missed_lines(found):
        click.echo(line, err=True)
    if found.missed:
        raise SystemExit(1)
