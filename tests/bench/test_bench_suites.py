"""The registry of suites, and the `limits` suite as a list of figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from seawall.bench import registry as suites
from seawall.bench.harness import BenchContext
from seawall.bench.results import Aspect, Relation
from seawall.bench.suites import limits
from seawall.errors import InvalidInputError

LISTING_LOADS = """
import sys
import seawall.bench.registry
print(*sorted({"numba", "numpy", "rich", "seawall.bench.suites.limits"} & set(sys.modules)))
"""


@pytest.mark.parametrize("name", suites.SUITES)
def test_every_registered_suite_can_be_loaded(name: str, tmp_path: Path) -> None:
    context = BenchContext(seconds=1.0, rounds=5, directory=tmp_path)
    names = [measurement.name for measurement in suites.load(name)(context)]
    assert names
    assert len(names) == len(set(names))
    assert suites.SUITES[name].summary


def test_an_unknown_suite_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"'limts'; did you mean 'limits'\? Suites: limits, kernels"):
        suites.load("limts")
    with pytest.raises(InvalidInputError, match=r"'zzz'\. Suites: limits, kernels"):
        suites.load("zzz")


def test_importing_the_registry_loads_no_suite() -> None:
    done = subprocess.run([sys.executable, "-c", LISTING_LOADS], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_small_commands_have_a_goal_in_wall_time(tmp_path: Path) -> None:
    figures = {each.name: each for each in limits.suite(BenchContext(1.0, 5, tmp_path))}
    for name in ("seawall --version", "seawall config show", "seawall --help"):
        goal = figures[name].goal
        assert goal is not None
        assert (goal.of, goal.relation, goal.bound) == (Aspect.VALUE, Relation.AT_MOST, 0.3)
        assert figures[name].baseline is not None


def test_all_limits_are_measured(tmp_path: Path) -> None:
    """Everything except the commands, whose start-up the tests of the command line cover."""
    context = BenchContext(seconds=0.01, rounds=5, directory=tmp_path)
    for measurement in limits.suite(context):
        if not measurement.name.startswith("seawall "):
            with measurement.subject() as run:
                assert run(0.0) > 0
    assert list(tmp_path.iterdir()) == []
