"""What a benchmark run leaves behind: goals, spreads, results and the report of a suite, with their JSON form.

Knows nothing of how a figure is measured or shown. Values are in base units (`B/s`, `s`, `records/s`, …), so that two
reports can be compared without parsing a prefix; `report.py` scales them for people.

JSON of a report

    {"suite": name, "started": UTC time, "seconds": wall time of the run, "machine": {…}, "results": [result, …]}

JSON of a result

    name, value, unit, better     median over the rounds; null where the figure was left out
    baseline, baseline_name       median of the other side, null without one
    ratio                         median of value ÷ baseline of the *same* round, null without a baseline
    spread                        {"of": "ratio" or "value", "min", "quartile_low", "quartile_high", "max"}
    goal, met                     {"of", "relation", "bound"} and whether it was reached; null where none was set
    rounds, note

A ratio never mixes rounds. The machine drifts within minutes, so only two sides measured next to each other say
something about the code.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Self, TypeAlias

from seawall.bench.machine import Machine

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"


class Better(StrEnum):
    """Which way a figure improves."""

    HIGHER = "higher"
    LOWER = "lower"


class Aspect(StrEnum):
    """Which number of a result is meant: the absolute one, or the one relative to its baseline."""

    VALUE = "value"
    RATIO = "ratio"


class Relation(StrEnum):
    """On which side of its bound a goal is met; the bound itself meets it."""

    AT_LEAST = ">="
    AT_MOST = "<="


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound that a figure should reach."""

    of: Aspect
    relation: Relation
    bound: float

    @classmethod
    def ratio_at_least(cls, bound: float) -> Self:
        """The subject reaches this share of its baseline."""
        return cls(Aspect.RATIO, Relation.AT_LEAST, bound)

    @classmethod
    def ratio_at_most(cls, bound: float) -> Self:
        """The subject costs no more than this multiple of its baseline."""
        return cls(Aspect.RATIO, Relation.AT_MOST, bound)

    @classmethod
    def value_at_least(cls, bound: float) -> Self:
        """The figure itself, in its base unit, reaches the bound."""
        return cls(Aspect.VALUE, Relation.AT_LEAST, bound)

    @classmethod
    def value_at_most(cls, bound: float) -> Self:
        """The figure itself, in its base unit, stays below the bound."""
        return cls(Aspect.VALUE, Relation.AT_MOST, bound)

    def is_met_by(self, figure: float) -> bool:
        """Whether the number this goal is about is on the right side of the bound."""
        return figure >= self.bound if self.relation is Relation.AT_LEAST else figure <= self.bound


@dataclass(frozen=True, slots=True)
class Spread:
    """How far the rounds lie apart, for the ratios where there is a baseline and for the values where there is none."""

    of: Aspect
    min: float
    quartile_low: float
    quartile_high: float
    max: float

    @classmethod
    def over(cls, of: Aspect, figures: Sequence[float]) -> Self:
        """The spread of two or more rounds."""
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
        """The number that the goal is about; None without a goal or without a measurement."""
        if self.goal is None:
            return None
        return self.ratio if self.goal.of is Aspect.RATIO else self.value

    @property
    def met(self) -> bool | None:
        """Whether the goal was reached; None where there is nothing to judge."""
        judged = self.judged
        return None if self.goal is None or judged is None else self.goal.is_met_by(judged)

    def as_json(self) -> dict[str, JsonValue]:
        """The form documented at the top of this module."""
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
    """Everything one run of a suite found out."""

    suite: str
    started: str
    seconds: float
    machine: Machine
    results: tuple[Result, ...]

    @property
    def missed(self) -> tuple[Result, ...]:
        """Results whose goal was judged and not reached."""
        return tuple(result for result in self.results if result.met is False)

    @property
    def left_out(self) -> tuple[Result, ...]:
        """Figures this machine could not give."""
        return tuple(result for result in self.results if result.value is None)

    def as_json(self) -> dict[str, JsonValue]:
        """The form documented at the top of this module."""
        return {
            "suite": self.suite,
            "started": self.started,
            "seconds": self.seconds,
            "machine": asdict(self.machine),
            "results": [result.as_json() for result in self.results],
        }
