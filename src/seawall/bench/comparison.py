"""Compare Seawall with other systems: each side of a comparison runs the same load, in turns, in every round.

    warm up all, then per round   Seawall, first system, second system, …

One run of a side gives several figures, such as a median and a 99th percentile. A comparison becomes one result for
each figure and system, with Seawall's figure as the value and that of the system as the baseline: the ratio is the
median of the ratios within the rounds. A goal on the value itself has a result of its own, without a baseline.

A side that cannot run or fails is left out of the comparison, with the reason; the others go on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

from seawall.bench.results import Aspect, Better, Goal, Result, Spread
from seawall.errors import UnsupportedError

#: Works for about the given seconds, at least once; returns figures by their keys.
SideRun: TypeAlias = Callable[[float], Mapping[str, float]]
#: Opens the resources of a side and closes them.
OpenSide: TypeAlias = Callable[[], AbstractContextManager[SideRun]]


@dataclass(frozen=True, slots=True)
class Side:
    """One system of a comparison: its name, its versions and settings, and what it runs."""

    name: str
    description: str
    open: OpenSide


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure of a comparison. Both sides report it under `key`, unless the others have another one."""

    name: str
    unit: str
    better: Better
    key: str
    other_key: str = ""
    #: Goals on the ratio to a system, by its name, and a goal on the value itself.
    goals: Mapping[str, Goal] = field(default_factory=dict)
    value_goal: Goal | None = None
    note: str = ""

    def of_other(self, figures: Mapping[str, float]) -> float | None:
        """The figure of another system; None if it has no such thing."""
        return figures.get(self.other_key or self.key)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A load to measure on several systems."""

    name: str
    figures: tuple[ComparedFigure, ...]
    subject: Side
    others: tuple[Side, ...]
    #: Systems that this machine does not have, with the way to get them.
    missing: Mapping[str, str] = field(default_factory=dict)
    #: False if every run sets up everything anew, so that a run that does not count would change nothing.
    warms_up: bool = True

    @property
    def sides(self) -> tuple[Side, ...]:
        """All sides, in the order of their turns."""
        return (self.subject, *self.others)


@dataclass(frozen=True, slots=True)
class Compared:
    """The results of a comparison, and why sides failed, by their names."""

    results: tuple[Result, ...]
    failures: Mapping[str, str]


def compare(comparison: Comparison, seconds: float, rounds: int, on_round: Callable[[int], None]) -> Compared:
    """Open and warm up all sides, run the rounds, close all sides. `seconds` are those of one turn."""
    sides = [_Turns(side) for side in comparison.sides]
    with ExitStack() as stack:
        for side in sides:
            side.open(stack)
            if comparison.warms_up:
                side.run(seconds, counts=False)
        for index in range(rounds):
            for side in sides:
                side.run(seconds, counts=True)
            on_round(index + 1)
    found = {each.side.name: each.found for each in sides}
    failures = {each.side.name: each.failure for each in sides if each.failure is not None}
    results = [result for figure in comparison.figures for result in _results(comparison, figure, found, failures)]
    return Compared(tuple(results), failures)


class _Turns:
    """The turns of one side. After a failure it has no more of them."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.found: list[Mapping[str, float]] = []
        self.failure: str | None = None
        self._run: SideRun | None = None

    def open(self, stack: ExitStack) -> None:
        """Open the side; the stack closes it."""
        try:
            self._run = stack.enter_context(self.side.open())
        except (UnsupportedError, OSError) as error:
            self._fail(error)

    def run(self, seconds: float, *, counts: bool) -> None:
        """Take a turn; `counts` says whether its figures do."""
        if self._run is None:
            return
        try:
            figures = _checked(self.side.name, self._run(seconds))
        except (UnsupportedError, OSError) as error:
            self._fail(error)
            return
        if counts:
            self.found.append(figures)

    def _fail(self, error: Exception) -> None:
        self.failure = str(error)
        self._run = None


def _checked(name: str, figures: Mapping[str, float]) -> Mapping[str, float]:
    for key, value in figures.items():
        if not (math.isfinite(value) and value > 0):
            raise OSError(f"{name}: {key} is {value}; a figure must be finite and above 0")
    return figures


def _results(
    comparison: Comparison,
    figure: ComparedFigure,
    found: Mapping[str, Sequence[Mapping[str, float]]],
    failures: Mapping[str, str],
) -> list[Result]:
    """One result for each system that has the figure, and one for a goal on the value; at least one."""
    subject = comparison.subject.name
    if subject in failures:
        return [_alone(figure, [], f"left out: {failures[subject]}")]
    values = [each[figure.key] for each in found[subject]]
    results = []
    for other in comparison.others:
        if other.name in failures:
            note = f"{other.name} left out: {failures[other.name]}"
            results.append(_with_baseline(figure, other.name, values, [], note))
            continue
        others = [value for each in found[other.name] if (value := figure.of_other(each)) is not None]
        if others:
            results.append(_with_baseline(figure, other.name, values, others, figure.note))
    if figure.value_goal is not None or not results:
        results.append(_alone(figure, values, figure.note))
    return results


def _with_baseline(
    figure: ComparedFigure, name: str, values: Sequence[float], others: Sequence[float], note: str
) -> Result:
    ratios = [value / other for value, other in zip(values, others, strict=False)]
    return Result(
        name=figure.name,
        unit=figure.unit,
        better=figure.better,
        value=statistics.median(values),
        baseline_name=name,
        baseline=statistics.median(others) if others else None,
        ratio=statistics.median(ratios) if ratios else None,
        goal=figure.goals.get(name),
        spread=Spread.over(Aspect.RATIO, ratios) if ratios else Spread.over(Aspect.VALUE, values),
        rounds=len(ratios),
        note=note,
    )


def _alone(figure: ComparedFigure, values: Sequence[float], note: str) -> Result:
    return Result(
        name=figure.name,
        unit=figure.unit,
        better=figure.better,
        value=statistics.median(values) if values else None,
        goal=figure.value_goal,
        spread=Spread.over(Aspect.VALUE, values) if values else None,
        rounds=len(values),
        note=note,
    )
