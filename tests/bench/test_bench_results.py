"""Goals, results and reports: when a goal is met, and the JSON format."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.bench.machine import Machine
from seawall.bench.results import Aspect, Better, Goal, Relation, Result, Spread, SuiteReport

MACHINE = Machine("a processor", 2, 1024, "Linux 6", "CPython 3.11", {"numpy": "2.0"})

GOALS = {
    "ratio >=": (Goal.ratio_at_least(2.0), Aspect.RATIO, Relation.AT_LEAST),
    "ratio <=": (Goal.ratio_at_most(2.0), Aspect.RATIO, Relation.AT_MOST),
    "value >=": (Goal.value_at_least(2.0), Aspect.VALUE, Relation.AT_LEAST),
    "value <=": (Goal.value_at_most(2.0), Aspect.VALUE, Relation.AT_MOST),
}


@pytest.mark.parametrize("kind", GOALS)
def test_a_goal_judges_its_own_number_and_its_bound_meets_it(kind: str) -> None:
    goal, of, relation = GOALS[kind]
    assert (goal.of, goal.relation, goal.bound) == (of, relation, 2.0)
    reached, beyond = (3.0, 1.0) if relation is Relation.AT_LEAST else (1.0, 3.0)
    for figure, met in ((reached, True), (2.0, True), (beyond, False)):
        # The other number has the opposite result, so that confusing the two fails.
        opposite = beyond if met else reached
        value, ratio = (figure, opposite) if of is Aspect.VALUE else (opposite, figure)
        result = Result("figure", "s", Better.LOWER, value=value, ratio=ratio, goal=goal)
        assert result.judged == figure
        assert result.met is met


def test_there_is_nothing_to_judge_without_a_goal_or_without_a_figure() -> None:
    assert Result("figure", "s", Better.LOWER, value=1.0).met is None
    assert Result("figure", "s", Better.LOWER, value=1.0).judged is None
    assert Result("figure", "s", Better.LOWER, goal=Goal.value_at_most(1.0)).met is None


@given(st.lists(st.floats(0.001, 1000.0), min_size=2))
def test_a_spread_is_ordered_and_has_the_real_extremes(figures: list[float]) -> None:
    spread = Spread.over(Aspect.VALUE, figures)
    assert min(figures) == spread.min <= spread.quartile_low <= spread.quartile_high <= spread.max == max(figures)


def test_the_report_has_the_documented_json() -> None:
    missed = Result(
        name="slow",
        unit="B/s",
        better=Better.HIGHER,
        value=10.0,
        baseline_name="memory copy",
        baseline=20.0,
        ratio=0.5,
        goal=Goal.ratio_at_least(0.9),
        spread=Spread.over(Aspect.RATIO, [0.4, 0.5, 0.6, 0.7, 0.8]),
        rounds=5,
        note="why",
    )
    left_out = Result("absent", "s", Better.LOWER, note="left out: not here")
    report = SuiteReport("trial", "2026-01-01T00:00:00+00:00", 1.5, MACHINE, (missed, left_out))
    assert json.loads(json.dumps(report.as_json(), allow_nan=False)) == {
        "suite": "trial",
        "started": "2026-01-01T00:00:00+00:00",
        "seconds": 1.5,
        "machine": {
            "cpu": "a processor",
            "cores": 2,
            "memory_bytes": 1024,
            "kernel": "Linux 6",
            "python": "CPython 3.11",
            "libraries": {"numpy": "2.0"},
        },
        "systems": {},
        "missing": {},
        "results": [
            {
                "name": "slow",
                "value": 10.0,
                "unit": "B/s",
                "better": "higher",
                "baseline": 20.0,
                "baseline_name": "memory copy",
                "ratio": 0.5,
                "spread": {"of": "ratio", "min": 0.4, "quartile_low": 0.5, "quartile_high": 0.7, "max": 0.8},
                "goal": {"of": "ratio", "relation": ">=", "bound": 0.9},
                "met": False,
                "rounds": 5,
                "note": "why",
            },
            {
                "name": "absent",
                "value": None,
                "unit": "s",
                "better": "lower",
                "baseline": None,
                "baseline_name": None,
                "ratio": None,
                "spread": None,
                "goal": None,
                "met": None,
                "rounds": 0,
                "note": "left out: not here",
            },
        ],
    }
    assert report.missed == (missed,)
    assert report.left_out == (left_out,)
