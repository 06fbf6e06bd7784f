"""Show the results of comparisons: tables with one column for each system, and a plot of the ratios as an SVG file.

A row of a table has the figure of every system, with the ratio of Seawall to it behind it, and the goals; a goal that
is missed is named in the last column. Figures with other systems have a table of their own. Below the tables are the
versions and settings, and the systems that are missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final, TextIO

from seawall.bench.report import aspect_text, digits, goal_text, machine_line, open_console, quantity
from seawall.bench.results import Aspect, Better, Result, SuiteReport

_ROW_HEIGHT: Final = 26
_LABEL_WIDTH: Final = 420
_PLOT_WIDTH: Final = 560
_TOP: Final = 70
_BOTTOM: Final = 50
_COLOURS: Final = (
    *("#b5482f", "#2f6fb5", "#3d8f4f", "#8a5fb0", "#b08a1f"),
    *("#3fa7a3", "#c75c8f", "#6b6b6b", "#7a4a2a", "#1f3f6f"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """All results of one figure."""

    name: str
    results: tuple[Result, ...]

    @property
    def first(self) -> Result:
        """A result to take Seawall's figure from."""
        return self.results[0]

    def beside(self, system: str) -> Result | None:
        """The result of a system; None if it has none."""
        return next((each for each in self.results if each.baseline_name == system), None)


def rows(report: SuiteReport) -> list[Row]:
    """The results of a report by their figures."""
    names = dict.fromkeys(result.name for result in report.results)
    return [Row(name, tuple(each for each in report.results if each.name == name)) for name in names]


@dataclass(frozen=True, slots=True)
class Table:
    """Consecutive figures that share systems."""

    rows: list[Row] = field(default_factory=list)
    #: The other systems, in the order in which they came.
    systems: dict[str, None] = field(default_factory=dict)


def tables(report: SuiteReport) -> list[Table]:
    """The figures of a report; a figure whose systems are all others than those before begins a new table."""
    found = [Table()]
    for row in rows(report):
        systems = dict.fromkeys(each.baseline_name for each in row.results if each.baseline_name is not None)
        if found[-1].systems and systems and found[-1].systems.keys().isdisjoint(systems):
            found.append(Table())
        found[-1].rows.append(row)
        found[-1].systems.update(systems)
    return found


def write_comparison(report: SuiteReport, stream: TextIO) -> None:
    """Write the tables, the settings of all systems, and what is missing."""
    from rich.table import Table as RichTable

    console = open_console(stream)
    console.print(machine_line(report))
    ours = next(iter(report.systems))
    for table in tables(report):
        shown = RichTable(title=f"seawall bench {report.suite}", title_justify="left")
        for heading in ("figure", ours, *table.systems, "goals", "missed"):
            shown.add_column(heading, justify="right" if heading in report.systems else "left")
        for row in table.rows:
            own = "left out" if row.first.value is None else quantity(row.first.value, row.first.unit)
            shown.add_row(row.name, own, *(_cell(row, system) for system in table.systems), _goals(row), _missed(row))
        console.print(shown)
    for name, description in report.systems.items():
        console.print(f"{name}: {description}")
    for note in dict.fromkeys(f"{result.name}: {result.note}" for result in report.results if result.note):
        console.print(note)
    for name, reason in report.missing.items():
        console.print(f"missing: {name}: {reason}")


def _cell(row: Row, system: str) -> str:
    """The figure of a system and the ratio of Seawall to it."""
    result = row.beside(system)
    if result is None:
        return ""
    if result.baseline is None or result.ratio is None:
        return "left out"
    return f"{quantity(result.baseline, result.unit)} ({aspect_text(result.ratio, Aspect.RATIO, result.unit)})"


def _goals(row: Row) -> str:
    """The goals; systems with the same one share it."""
    systems: dict[str, list[str]] = {}
    for result in row.results:
        if result.goal is not None:
            named = [result.baseline_name] if result.baseline_name and result.goal.of is Aspect.RATIO else []
            systems.setdefault(goal_text(result.goal, result.unit), []).extend(named)
    return "; ".join(f"{text} {', '.join(names)}".strip() for text, names in systems.items())


def _missed(row: Row) -> str:
    return ", ".join(
        result.baseline_name if result.goal.of is Aspect.RATIO and result.baseline_name else "value"
        for result in row.results
        if result.met is False and result.goal is not None
    )


# --- plot --------------------------------------------------------------------------------------------------------


def plot(report: SuiteReport) -> str:
    """An SVG picture: for each figure, how many times better than each system Seawall is, on a logarithmic axis."""
    compared = [row for row in rows(report) if any(each.ratio is not None for each in row.results)]
    others = list(report.systems)[1:]
    factors = [_factor(each) for row in compared for each in row.results if each.ratio is not None]
    low = math.floor(min((math.log10(each) for each in factors), default=-1.0))
    high = math.ceil(max((math.log10(each) for each in factors), default=1.0))
    high = max(high, low + 1)

    def across(factor: float) -> float:
        return _LABEL_WIDTH + _PLOT_WIDTH * (math.log10(factor) - low) / (high - low)

    height = _TOP + _ROW_HEIGHT * len(compared) + _BOTTOM
    width = _LABEL_WIDTH + _PLOT_WIDTH + 40
    parts = [
        f'<svg xmlns="{_SVG}" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="15">How many times better Seawall is ({report.started[:10]})</text>',
        *_legend(others),
    ]
    for power in range(low, high + 1):
        parts += _tick(across(10.0**power), 10.0**power, height)
    for index, row in enumerate(compared):
        parts += _dots(row, others, _TOP + _ROW_HEIGHT * index + _ROW_HEIGHT // 2, across)
    return "\n".join([*parts, "</svg>"]) + "\n"


#: The name of the format, not an address to load anything from.
_SVG: Final = "http://www.w3.org/2000/svg"


def _factor(result: Result) -> float:
    """The ratio, or its inverse where less is better."""
    assert result.ratio is not None
    return result.ratio if result.better is Better.HIGHER else 1 / result.ratio


def _legend(others: Sequence[str]) -> list[str]:
    return [
        f'<circle cx="{18 + 110 * index}" cy="42" r="5" fill="{_colour(index)}"/>'
        f'<text x="{28 + 110 * index}" y="46">{escape(name)}</text>'
        for index, name in enumerate(others)
    ]


def _tick(x: float, factor: float, height: int) -> list[str]:
    stroke = "#444444" if factor == 1 else "#dddddd"
    return [
        f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{height - _BOTTOM + 6}" stroke="{stroke}"/>',
        f'<text x="{x:.1f}" y="{height - _BOTTOM + 24}" text-anchor="middle">{digits(factor)}x</text>',
    ]


def _dots(row: Row, others: Sequence[str], y: int, across: Callable[[float], float]) -> list[str]:
    parts = [f'<text x="12" y="{y + 4}">{escape(row.name)}</text>']
    for index, name in enumerate(others):
        result = row.beside(name)
        if result is not None and result.ratio is not None:
            factor = _factor(result)
            title = f"<title>{escape(name)}: {digits(factor)}x</title>"
            parts.append(f'<circle cx="{across(factor):.1f}" cy="{y}" r="5" fill="{_colour(index)}">{title}</circle>')
    return parts


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]
