"""`seawall bench`: run a benchmark suite, print a table, and optionally write JSON and check the goals.

Progress and missed goals go to standard error, the table to standard output. The exit code is 0 whatever the figures
are; with `--check` it is 1 if a goal is missed, or if a system that it is about is missing. The suites and `rich` are
loaded when a suite runs, not for the help.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from seawall.bench.harness import BenchContext
    from seawall.bench.registry import SuiteEntry
    from seawall.bench.results import SuiteReport
    from seawall.config import LoadedConfig


@click.command()
@click.argument("suite", required=False)
@click.option("--list", "list_suites", is_flag=True, help="List the suites and exit.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report to this file."
)
@click.option(
    "--seconds", type=float, help="Seconds per figure and side, split over the rounds [bench.seconds; peers: 6]."
)
@click.option(
    "--rounds", type=int, help="Rounds that alternate between baseline and subject [bench.rounds; peers: 3, the least]."
)
@click.option("--check", is_flag=True, help="Name the missed goals, and exit with 1 if there are any.")
@click.option("--only", metavar="SYSTEMS", help="peers: compare with these systems only, such as kafka,redis,rq.")
@click.option(
    "--shapes",
    metavar="NAMES",
    help="peers: measure these shapes of load only: bulk, durable, lone, waiting, follow, consume, start, recovery, "
    "disk, queues, jobs.",
)
@click.option(
    "--peers",
    "programs",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="peers: directory with the programs of the other systems [~/.cache/seawall/peers, which `make peers` fills].",
)
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="peers: also draw the ratios to this file (SVG).",
)
@click.pass_obj
def bench(
    loaded: LoadedConfig,
    /,
    suite: str | None,
    list_suites: bool,
    json_file: Path | None,
    seconds: float | None,
    rounds: int | None,
    check: bool,
    plot_file: Path | None,
    **selected: str | Path | None,
) -> None:
    """Run the benchmark SUITE on this machine: every figure beside its baseline, measured in the same run.

    \b
    Examples:
      seawall bench --list
      seawall bench kernels --seconds 2 --check
      seawall bench peers --only kafka,redis --shapes bulk,lone --json peers.json
      seawall bench peers --only rq,dramatiq,celery --shapes jobs
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
    for option, path in (("--json", json_file), ("--plot", plot_file)):
        if path is not None and not path.parent.is_dir():
            raise click.BadParameter(f"there is no directory {str(path.parent)!r}.", param_hint=option)
    load, entry = suites.load(suite), suites.entry_of(suite)
    if not entry.is_comparison and (plot_file is not None or any(value is not None for value in selected.values())):
        raise click.UsageError("--only, --shapes, --peers and --plot are for the suite peers.")
    context = _context(loaded, entry, seconds, rounds, selected)
    measurements = tuple(load(context))
    with report.show_progress(measurements, context.rounds, sys.stderr) as progress:
        found = harness.run_suite(suite, measurements, context, progress)
    _write(found, json_file, plot_file)
    if check:
        _check(found)


def _context(
    loaded: LoadedConfig,
    entry: SuiteEntry,
    seconds: float | None,
    rounds: int | None,
    selected: dict[str, str | Path | None],
) -> BenchContext:
    """The parameters of the run. A comparison has rounds of minutes, so the configured number is not for it."""
    from seawall.bench import bounds, harness

    settings = loaded.config.bench
    seconds_default, rounds_default, rounds_min = settings.seconds, settings.rounds, bounds.BENCH_ROUNDS_MIN
    if entry.is_comparison:
        rounds_default = rounds_min = bounds.COMPARISON_ROUNDS_MIN
        seconds_default = bounds.COMPARISON_SECONDS
    programs = selected["programs"]
    return harness.BenchContext(
        seconds=seconds_default if seconds is None else seconds,
        rounds=rounds_default if rounds is None else rounds,
        directory=Path(settings.directory),
        selection=harness.Selection(
            _names(selected["only"]), _names(selected["shapes"]), None if programs is None else Path(programs)
        ),
        rounds_min=rounds_min,
    )


def _names(text: str | Path | None) -> tuple[str, ...]:
    """The names of a list with commas."""
    return tuple(name.strip() for name in str(text).split(",")) if text else ()


def _write(found: SuiteReport, json_file: Path | None, plot_file: Path | None) -> None:
    """Write the files, and the table to standard output."""
    from seawall.bench import comparison_report, report

    if json_file is not None:
        json_file.write_text(json.dumps(found.as_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if plot_file is not None:
        plot_file.write_text(comparison_report.plot(found), encoding="utf-8")
    if found.systems:
        comparison_report.write_comparison(found, sys.stdout)
    else:
        report.write_table(found, sys.stdout)


def _check(found: SuiteReport) -> None:
    """Print goals that were missed or could not be judged; exit with 1 if one was missed or a system is missing."""
    from seawall.bench import report

    for result in found.left_out:
        if result.goal is not None:
            click.echo(f"not judged: {result.name}: {result.note}", err=True)
    for name, reason in found.missing.items():
        click.echo(f"missing: {name}: {reason}", err=True)
    for line in report.missed_lines(found):
        click.echo(line, err=True)
    if found.missed or found.missing:
        raise SystemExit(1)
