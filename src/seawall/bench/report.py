"""Format benchmark results as text: quantities with units, the table, the progress display, and missed goals.

Uses finished results only and knows nothing of how they were measured. Imports `rich` only when it displays something.

Units: times are scaled to ns, µs, ms or s; bytes per second by powers of 1000 up to TB/s; other rates in the same way
(`33.1 M records/s`). Numbers have three significant digits, because the rounds never agree on a fourth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from seawall.bench.comparison import Comparison
from seawall.bench.harness import Measurement, Progress
from seawall.bench.results import Aspect, Goal, Relation, Result, Spread, SuiteReport

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

#: Width in columns of a table that goes to a file or a pipe.
PLAIN_WIDTH = 160

_TIME_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_RATE_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_RELATION_SIGNS = {Relation.AT_LEAST: "≥", Relation.AT_MOST: "≤"}


def quantity(value: float, unit: str) -> str:
    """Format a value given in its base unit: `2.13 GB/s`, `33.1 M records/s`, `5.80 µs`."""
    if unit == "s":
        scale, prefixed = next((pair for pair in _TIME_SCALES if value >= pair[0]), _TIME_SCALES[-1])
        return f"{digits(value / scale)} {prefixed}"
    if not unit.endswith("/s"):
        return f"{digits(value)} {unit}".rstrip()
    scale, prefix = next((pair for pair in _RATE_SCALES if value >= pair[0]), _RATE_SCALES[-1])
    if unit == "B/s":
        return f"{digits(value / scale)} {prefix}B/s"
    return f"{digits(value / scale)} {prefix} {unit}" if prefix else f"{digits(value)} {unit}"


def digits(value: float) -> str:
    """Format a number with three significant digits; only very small ones get an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    if value >= 1:
        return f"{value:.2f}"
    return f"{value:#.3g}"


def aspect_text(figure: float, of: Aspect, unit: str) -> str:
    """Format a ratio as `0.920x` and a value with its unit."""
    return f"{digits(figure)}x" if of is Aspect.RATIO else quantity(figure, unit)


def goal_text(goal: Goal, unit: str) -> str:
    """Format a goal as `≥ 0.500x` or `≤ 300 ms`."""
    return f"{_RELATION_SIGNS[goal.relation]} {aspect_text(goal.bound, goal.of, unit)}"


def spread_text(spread: Spread, unit: str) -> str:
    """Format a spread: the quartiles, then minimum and maximum in parentheses."""
    low, high, least, most = (
        aspect_text(figure, spread.of, unit)
        for figure in (spread.quartile_low, spread.quartile_high, spread.min, spread.max)
    )
    return f"{low} to {high} ({least} to {most})"


def summary(result: Result) -> str:
    """Describe one result in one line."""
    if result.value is None:
        return f"{result.name}: {result.note}"
    text = f"{result.name}: {quantity(result.value, result.unit)}"
    if result.ratio is not None:
        text += f", {digits(result.ratio)}x {result.baseline_name}"
    return text


def missed_lines(report: SuiteReport) -> list[str]:
    """One line for every missed goal, as `--check` prints them."""
    lines: list[str] = []
    for result in report.results:
        goal, judged = result.goal, result.judged
        if goal is not None and judged is not None and not goal.is_met_by(judged):
            found = aspect_text(judged, goal.of, result.unit)
            against = f" of {result.baseline_name}" if report.systems and goal.of is Aspect.RATIO else ""
            lines.append(f"missed: {result.name}: {goal.of} {found}{against}, goal {goal_text(goal, result.unit)}")
    return lines


def write_table(report: SuiteReport, stream: TextIO) -> None:
    """Write the report as a table, with the machine above it and the notes below it."""
    from rich.table import Table

    console = open_console(stream)
    console.print(machine_line(report))
    table = Table(title=f"seawall bench {report.suite}", title_justify="left")
    for heading in ("figure", "value", "baseline", "ratio", "quartiles (min to max)", "goal", "met"):
        table.add_column(heading, justify="left" if heading in ("figure", "baseline") else "right")
    for result in report.results:
        table.add_row(*_row(result))
    console.print(table)
    for result in report.results:
        if result.note:
            console.print(f"{result.name}: {result.note}")


def open_console(stream: TextIO) -> Console:
    """A console that writes plain text, as wide as the terminal."""
    from rich.console import Console

    return Console(file=stream, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False, markup=False)


def machine_line(report: SuiteReport) -> str:
    """Describe the machine in one line."""
    machine = report.machine
    memory = "" if machine.memory_bytes is None else f", {machine.memory_bytes / 2**30:.0f} GiB"
    return f"{machine.cpu}, {machine.cores} cores{memory}, {machine.kernel}, {machine.python}"


@contextmanager
def show_progress(measurements: Sequence[Measurement | Comparison], rounds: int, stream: TextIO) -> Iterator[Progress]:
    """Show progress: a bar on a terminal, otherwise one line per figure."""
    if not stream.isatty():
        yield _Lines(len(measurements), stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(file=stream), transient=True) as bar:
        yield _Bar(bar, len(measurements), rounds)


class _Lines:
    """Progress for a file or a pipe: writes one line when a figure is done."""

    def __init__(self, count: int, stream: TextIO) -> None:
        self._count = count
        self._stream = stream
        self._done = 0

    def begin(self, measurement: Measurement | Comparison) -> None:
        """Write nothing: a line is written when the figure is done."""

    def round_done(self, done: int) -> None:
        """Write nothing; see `begin`."""

    def end(self, *results: Result) -> None:
        """Write the results of the figure or the comparison."""
        self._done += 1
        for result in results:
            self._stream.write(f"[{self._done}/{self._count}] {summary(result)}\n")
        self._stream.flush()


class _Bar:
    """Progress for a terminal: one bar over the rounds of all figures, a line above it when a figure is done."""

    def __init__(self, bar: RichProgress, count: int, rounds: int) -> None:
        self._bar = bar
        self._rounds = rounds
        self._task = bar.add_task("", total=count * rounds)
        self._figures_done = 0

    def begin(self, measurement: Measurement | Comparison) -> None:
        """Show the name of the figure beside the bar."""
        self._bar.update(self._task, description=measurement.name)

    def round_done(self, done: int) -> None:
        """Advance the bar by one round."""
        self._bar.update(self._task, completed=self._figures_done * self._rounds + done)

    def end(self, *results: Result) -> None:
        """Print the results above the bar; a figure that was left out counts with all its rounds."""
        self._figures_done += 1
        self._bar.update(self._task, completed=self._figures_done * self._rounds)
        for result in results:
            self._bar.console.print(summary(result), markup=False, highlight=False)


def _row(result: Result) -> tuple[str, ...]:
    unit = result.unit
    baseline = result.baseline_name or ""
    if result.baseline is not None:
        baseline += f" {quantity(result.baseline, unit)}"
    return (
        result.name,
        "left out" if result.value is None else quantity(result.value, unit),
        baseline,
        "" if result.ratio is None else aspect_text(result.ratio, Aspect.RATIO, unit),
        "" if result.spread is None else spread_text(result.spread, unit),
        "" if result.goal is None else goal_text(result.goal, unit),
        {True: "yes", False: "no", None: ""}[result.met],
    )
