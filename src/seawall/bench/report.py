"""A run for people: numbers with sane units, the table, the progress display, the lines about missed goals.

Knows results, not how they came about. `rich` is loaded only when something is shown.

Units: times are scaled to ns, µs, ms or s; bytes per second by powers of 1000 up to TB/s; other rates the same way with
the things they count (`33.1 M records/s`). Three significant digits: the rounds never agree on a fourth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from seawall.bench.harness import Measurement, Progress
from seawall.bench.results import Aspect, Goal, Relation, Result, Spread, SuiteReport

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

#: Columns of a table that goes to a file or a pipe, where nobody can make the window wider.
PLAIN_WIDTH = 160

_TIME_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_RATE_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_RELATION_SIGNS = {Relation.AT_LEAST: "≥", Relation.AT_MOST: "≤"}


def quantity(value: float, unit: str) -> str:
    """A value in its base unit as people write it: `2.13 GB/s`, `33.1 M records/s`, `5.80 µs`."""
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
    """Three significant digits, as an exponent only where nobody would count the zeros."""
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    if value >= 1:
        return f"{value:.2f}"
    return f"{value:#.3g}"


def aspect_text(figure: float, of: Aspect, unit: str) -> str:
    """A ratio as `0.920x`, a value with its unit."""
    return f"{digits(figure)}x" if of is Aspect.RATIO else quantity(figure, unit)


def goal_text(goal: Goal, unit: str) -> str:
    """A goal as `≥ 0.500x` or `≤ 300 ms`."""
    return f"{_RELATION_SIGNS[goal.relation]} {aspect_text(goal.bound, goal.of, unit)}"


def spread_text(spread: Spread, unit: str) -> str:
    """Quartiles first, since they are what one may expect; the extremes in brackets."""
    low, high, least, most = (
        aspect_text(figure, spread.of, unit)
        for figure in (spread.quartile_low, spread.quartile_high, spread.min, spread.max)
    )
    return f"{low} to {high} ({least} to {most})"


def summary(result: Result) -> str:
    """One result in one line."""
    if result.value is None:
        return f"{result.name}: {result.note}"
    text = f"{result.name}: {quantity(result.value, result.unit)}"
    if result.ratio is not None:
        text += f", {digits(result.ratio)}x {result.baseline_name}"
    return text


def missed_lines(report: SuiteReport) -> list[str]:
    """What `--check` says about every goal that was not reached."""
    lines: list[str] = []
    for result in report.results:
        goal, judged = result.goal, result.judged
        if goal is not None and judged is not None and not goal.is_met_by(judged):
            found = aspect_text(judged, goal.of, result.unit)
            lines.append(f"missed: {result.name}: {goal.of} {found}, goal {goal_text(goal, result.unit)}")
    return lines


def write_table(report: SuiteReport, stream: TextIO) -> None:
    """The whole report as a table, with the machine above and the notes below."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=stream, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False, markup=False)
    machine = report.machine
    memory = "" if machine.memory_bytes is None else f", {machine.memory_bytes / 2**30:.0f} GiB"
    console.print(f"{machine.cpu}, {machine.cores} cores{memory}, {machine.kernel}, {machine.python}")
    table = Table(title=f"seawall bench {report.suite}", title_justify="left")
    for heading in ("figure", "value", "baseline", "ratio", "quartiles (min to max)", "goal", "met"):
        table.add_column(heading, justify="left" if heading in ("figure", "baseline") else "right")
    for result in report.results:
        table.add_row(*_row(result))
    console.print(table)
    for result in report.results:
        if result.note:
            console.print(f"{result.name}: {result.note}")


@contextmanager
def show_progress(measurements: Sequence[Measurement], rounds: int, stream: TextIO) -> Iterator[Progress]:
    """A bar on a terminal, a line per figure elsewhere."""
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
    """Progress for a file or a pipe: one line when a figure is done."""

    def __init__(self, count: int, stream: TextIO) -> None:
        self._count = count
        self._stream = stream
        self._done = 0

    def begin(self, measurement: Measurement) -> None:
        """Say nothing: lines come when there is something to know."""

    def round_done(self, done: int) -> None:
        """Say nothing: see `begin`."""

    def end(self, result: Result) -> None:
        """Write the figure."""
        self._done += 1
        self._stream.write(f"[{self._done}/{self._count}] {summary(result)}\n")
        self._stream.flush()


class _Bar:
    """Progress for a terminal: one bar over the rounds of all figures, a line above it when a figure is done."""

    def __init__(self, bar: RichProgress, count: int, rounds: int) -> None:
        self._bar = bar
        self._rounds = rounds
        self._task = bar.add_task("", total=count * rounds)
        self._figures_done = 0

    def begin(self, measurement: Measurement) -> None:
        """Name the figure beside the bar."""
        self._bar.update(self._task, description=measurement.name)

    def round_done(self, done: int) -> None:
        """Move the bar by a round."""
        self._bar.update(self._task, completed=self._figures_done * self._rounds + done)

    def end(self, result: Result) -> None:
        """Leave the figure above the bar; one that was left out counts with all its rounds."""
        self._figures_done += 1
        self._bar.update(self._task, completed=self._figures_done * self._rounds)
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
