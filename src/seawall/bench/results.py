"""Results of a benchmark run: goals, spreads, results and the report of a suite, with their JSON form.

Knows nothing of how figures are measured or displayed. Values are in base units (`B/s`, `s`, `records/s`, …), so two
reports can be compared without parsing unit prefixes; `report.py` scales them for display.

JSON of a report

    {"suite": name, "started": UTC time, "seconds": wall time of the run, "machine": {…}, "results": [result, …],
     "systems": {name: versions and settings}, "missing": {name: reason}}

The last two are about the systems of a comparison (`comparison.py`), and empty otherwise.

JSON of a result

    name, value, unit, better     median over the rounds; null if the figure was left out
    baseline, baseline_name       median of the baseline; null without one
    ratio                         median of value ÷ baseline of the *same* round; null without a baseline
    spread                        {"of": "ratio" or "value", "min", "quartile_low", "quartile_high", "max"}
    goal, met                     {"of", "relation", "bound"} and whether it was met; null without a goal
    rounds, note

A ratio never mixes rounds: the speed of a machine drifts within minutes, so only two sides measured next to each other
are comparable.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Self, TypeAlias

from seawall.bench.machine import Machine

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"


class Better(StrEnum):
    """The direction in which a figure improves."""

    HIGHER = "higher"
    LOWER = "lower"


class Aspect(StrEnum):
    """The number of a result that a goal or a spread refers to: the absolute value, or the ratio to the baseline."""

    VALUE = "value"
    RATIO = "ratio"


class Relation(StrEnum):
    """The side of the bound on which a goal is met; the bound itself meets it."""

    AT_LEAST = ">="
    AT_MOST = "<="


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound that a figure should meet."""

    of: Aspect
    relation: Relation
    bound: float

    @classmethod
    def ratio_at_least(cls, bound: float) -> Self:
        """The subject reaches at least this fraction of its baseline."""
        return cls(Aspect.RATIO, Relation.AT_LEAST, bound)

    @classmethod
    def ratio_at_most(cls, bound: float) -> Self:
        """The subject costs no more than this multiple of its baseline."""
        return cls(Aspect.RATIO, Relation.AT_MOST, bound)

    @classmethod
    def value_at_least(cls, bound: float) -> Self:
        """The value, in its base unit, is at least the bound."""
        return cls(Aspect.VALUE, Relation.AT_LEAST, bound)

    @classmethod
    def value_at_most(cls, bound: float) -> Self:
        """The value, in its base unit, is at most the bound."""
        return cls(Aspect.VALUE, Relation.AT_MOST, bound)

    def is_met_by(self, figure: float) -> bool:
        """True if the number (value or ratio, see `of`) meets the bound."""
        return figure >= self.bound if self.relation is Relation.AT_LEAST else figure <= self.bound


@dataclass(frozen=True, slots=True)
class Spread:
    """The variation over the rounds: of the ratios if the figure has a baseline, otherwise of the values."""

    of: Aspect
    min: float
    quartile_low: float
    quartile_high: float
    max: float

    @classmethod
    def over(cls, of: Aspect, figures: Sequence[float]) -> Self:
        """Compute the spread of two or more rounds."""
        quartile_low, _, quartile_high = statistics.quantiles(figures, n=4, method="inclusive")
        return cls(of, min(figures), quartile_low, quartile_high, max(figures))


@dataclass(frozen=True, slots=True)
class Result:
    """One figure as measured, or left out with the reason in its note."""

    name: str
    unit: str
    better: Better
    value: float | None = None
    baseline_name: str | None = None
    baseline: float | None = None
    ratio: float | None = None
    goal: Goal | None = None
    spread: Spread | None = None
    rounds: int = 0
    note: str = ""

    @property
    def judged(self) -> float | None:
        """The number that the goal refers to; None without a goal or without a measurement."""
        if self.goal is None:
            return None
        return self.ratio if self.goal.of is Aspect.RATIO else self.value

    @property
    def met(self) -> bool | None:
        """True if the goal was met; None without a goal or without a measurement."""
        judged = self.judged
        return None if self.goal is None or judged is None else self.goal.is_met_by(judged)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the JSON form described in the module docstring."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "better": self.better.value,
            "baseline": self.baseline,
            "baseline_name": self.baseline_name,
            "ratio": self.ratio,
            "spread": None if self.spread is None else asdict(self.spread),
            "goal": None if self.goal is None else asdict(self.goal),
            "met": self.met,
            "rounds": self.rounds,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """The results of one run of a suite."""

    suite: str
    started: str
    seconds: float
    machine: Machine
    results: tuple[Result, ...]
    systems: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def missed(self) -> tuple[Result, ...]:
        """Results that missed their goal."""
        return tuple(result for result in self.results if result.met is False)

    @property
    def left_out(self) -> tuple[Result, ...]:
        """Figures that this machine could not measure."""
        return tuple(result for result in self.results if result.value is None)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the JSON form described in the module docstring."""
        return {
            "suite": self.suite,
            "started": self.started,
            "seconds": self.seconds,
            "machine": asdict(self.machine),
            "results": [result.as_json() for result in self.results],
            "systems": dict(self.systems),
            "missing": dict(self.missing),
        }
