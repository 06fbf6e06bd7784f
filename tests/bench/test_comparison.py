"""Comparisons with other systems: turns, ratios, failures, and what the report, the table and the plot show of them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from seawall import config
from seawall.bench import comparison_report, harness, report
from seawall.bench import registry as suites
from seawall.bench.comparison import ComparedFigure, Comparison, Side, SideRun, compare
from seawall.bench.harness import BenchContext
from seawall.bench.results import Better, Goal, SuiteReport
from seawall.cli.bench import bench
from seawall.errors import InvalidInputError, UnsupportedError

RATE = ComparedFigure(
    "rate", "B/s", Better.HIGHER, "lists", "best", goals={"A": Goal.ratio_at_least(2.0), "B": Goal.ratio_at_least(1.0)}
)
DELAY = ComparedFigure("delay", "s", Better.LOWER, "p50", goals={"A": Goal.ratio_at_most(1.0)})
START = ComparedFigure("start", "s", Better.LOWER, "start", value_goal=Goal.value_at_most(1.0))


def side(name: str, turns: list[str], figures: Sequence[Mapping[str, float] | Exception]) -> Side:
    """A side that reports these figures, one after another, and notes its turns."""

    @contextmanager
    def opened() -> Iterator[SideRun]:
        left = iter(figures)

        def run(_seconds: float) -> Mapping[str, float]:
            turns.append(name)
            found = next(left)
            if isinstance(found, Exception):
                raise found
            return found

        yield run
        turns.append(f"{name} closed")

    return Side(name, f"{name} 1.0", opened)


def comparison(turns: list[str], *, warms_up: bool = False, other: Exception | None = None) -> Comparison:
    ours = [
        {"lists": 4.0, "p50": 2.0, "start": 0.5},
        {"lists": 9.0, "p50": 3.0, "start": 2.0},
        {"lists": 10.0, "p50": 1.0, "start": 3.0},
    ]
    first: list[Mapping[str, float] | Exception] = [
        {"best": each, "p50": 2.0, "start": 1.0} for each in (1.0, 3.0, 10.0)
    ]
    second: list[Mapping[str, float] | Exception] = [{"best": 8.0}] * 3
    if other is not None:
        second[1] = other
    sides = [side(*each) for each in (("Seawall", turns, ours), ("A", turns, first), ("B", turns, second))]
    missing = {"C": "get it with: make peers"}
    return Comparison("trial", (RATE, DELAY, START), sides[0], tuple(sides[1:]), missing, warms_up)


def suite_report(*compared: Comparison) -> SuiteReport:
    class Silent:
        def begin(self, measurement: object) -> None: ...
        def round_done(self, done: int) -> None: ...
        def end(self, *results: object) -> None: ...

    return harness.run_suite("trial", compared, BenchContext(3.0, 3, Path(), rounds_min=3), Silent())


def test_sides_take_turns_and_ratios_stay_within_their_round() -> None:
    turns: list[str] = []
    rounds: list[int] = []
    found = compare(comparison(turns), 1.0, 3, rounds.append)
    assert turns == ["Seawall", "A", "B"] * 3 + ["B closed", "A closed", "Seawall closed"]
    assert rounds == [1, 2, 3]
    assert found.failures == {}
    assert [
        (each.name, each.baseline_name, each.value, each.baseline, each.ratio, each.met) for each in found.results
    ] == [
        ("rate", "A", 9.0, 3.0, 3.0, True),
        ("rate", "B", 9.0, 8.0, 1.125, True),
        ("delay", "A", 2.0, 2.0, 1.0, True),
        ("start", "A", 2.0, 1.0, 2.0, None),
        ("start", None, 2.0, None, None, False),
    ]


def test_the_warm_up_is_not_counted() -> None:
    turns: list[str] = []
    ours, other = [{"p50": each} for each in (100.0, 1.0, 1.0, 1.0)], [{"p50": each} for each in (1.0, 4.0, 4.0, 4.0)]
    warmed = Comparison("trial", (DELAY,), side("Seawall", turns, ours), (side("A", turns, other),))
    (result,) = compare(warmed, 1.0, 3, lambda _: None).results
    assert turns[:4] == ["Seawall", "A", "Seawall", "A"]
    assert (result.value, result.ratio, result.rounds) == (1.0, 0.25, 3)


@pytest.mark.parametrize("error", [ChildProcessError("the server died"), UnsupportedError("not here")])
def test_a_side_that_fails_is_left_out_and_the_others_go_on(error: Exception) -> None:
    turns: list[str] = []
    found = compare(comparison(turns, other=error), 1.0, 3, lambda _: None)
    assert turns == ["Seawall", "A", "B", "Seawall", "A", "B", "Seawall", "A", "B closed", "A closed", "Seawall closed"]
    assert found.failures == {"B": str(error)}
    failed = next(each for each in found.results if each.baseline_name == "B")
    assert (failed.ratio, failed.met, failed.note) == (None, None, f"B left out: {error}")
    assert [each.ratio for each in found.results if each.baseline_name == "A"] == [3.0, 1.0, 2.0]


def test_without_seawall_there_is_no_figure() -> None:
    broken = Comparison("trial", (DELAY,), side("Seawall", [], [OSError("no disk")]), (), warms_up=False)
    (result,) = compare(broken, 1.0, 3, lambda _: None).results
    assert (result.value, result.note) == (None, "left out: no disk")


def test_a_figure_that_is_not_above_zero_is_a_failure() -> None:
    broken = Comparison("trial", (DELAY,), side("Seawall", [], [{"p50": 0.0}]), (), warms_up=False)
    assert "p50 is 0.0" in compare(broken, 1.0, 3, lambda _: None).failures["Seawall"]


def test_the_report_has_settings_and_missing_systems() -> None:
    found = suite_report(comparison([], other=OSError("died")))
    assert found.systems == {"Seawall": "Seawall 1.0", "A": "A 1.0", "B": "B 1.0"}
    assert found.missing == {"C": "get it with: make peers", "B, trial": "died"}
    as_json = json.loads(json.dumps(found.as_json()))
    assert as_json["systems"]["A"] == "A 1.0"
    assert as_json["missing"]["C"] == "get it with: make peers"


def test_the_table_has_a_column_for_each_system_and_names_missed_goals() -> None:
    stream = io.StringIO()
    found = suite_report(comparison([]))
    comparison_report.write_comparison(found, stream)
    text = stream.getvalue()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]
    assert rows == [
        ["rate", "9.00 B/s", "3.00 B/s (3.00x)", "8.00 B/s (1.12x)", "≥ 2.00x A; ≥ 1.00x B", ""],
        ["delay", "2.00 s", "2.00 s (1.00x)", "", "≤ 1.00x A", ""],
        ["start", "2.00 s", "1.00 s (2.00x)", "", "≤ 1.00 s", "value"],
    ]
    assert "A: A 1.0" in text
    assert "missing: C: get it with: make peers" in text
    assert report.missed_lines(found) == ["missed: start: value 2.00 s, goal ≤ 1.00 s"]


def test_figures_with_other_systems_have_a_table_of_their_own() -> None:
    jobs = ComparedFigure("jobs", "jobs/s", Better.HIGHER, "rate")
    ours, other = side("Seawall", [], [{"rate": 6.0}] * 3), side("D", [], [{"rate": 2.0}] * 3)
    found = suite_report(comparison([]), Comparison("queues", (jobs,), ours, (other,), warms_up=False))
    assert [([row.name for row in each.rows], list(each.systems)) for each in comparison_report.tables(found)] == [
        (["rate", "delay", "start"], ["A", "B"]),
        (["jobs"], ["D"]),
    ]
    stream = io.StringIO()
    comparison_report.write_comparison(found, stream)
    headings = [line.strip("┃").split("┃") for line in stream.getvalue().splitlines() if line.startswith("┃")]
    assert [[cell.strip() for cell in each] for each in headings] == [
        ["figure", "Seawall", "A", "B", "goals", "missed"],
        ["figure", "Seawall", "D", "goals", "missed"],
    ]


def test_a_missed_ratio_names_the_system() -> None:
    slow = ComparedFigure("delay", "s", Better.LOWER, "p50", goals={"A": Goal.ratio_at_most(1.0)})
    ours, other = side("Seawall", [], [{"p50": 2.0}] * 3), side("A", [], [{"p50": 1.0}] * 3)
    found = suite_report(Comparison("trial", (slow,), ours, (other,), warms_up=False))
    assert report.missed_lines(found) == ["missed: delay: ratio 2.00x of A, goal ≤ 1.00x"]


def test_the_plot_is_a_picture_with_a_dot_for_each_ratio() -> None:
    picture = ET.fromstring(comparison_report.plot(suite_report(comparison([]))))
    space = "{http://www.w3.org/2000/svg}"
    titles = [each.text for each in picture.iter(f"{space}title")]
    # A delay that is twice as long is half as good.
    assert titles == ["A: 3.00x", "B: 1.12x", "A: 1.00x", "A: 0.500x"]
    circles = [float(each.get("cx", "")) for each in picture.iter(f"{space}circle") if len(each)]
    assert circles[0] > circles[1] > circles[2] > circles[3]


# --- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The suite `peers` replaced by the trial comparison."""
    taken: list[str] = []
    monkeypatch.setattr(suites, "load", lambda _: lambda _: [comparison(taken)])
    return taken


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments, obj=config.load(environ={}))


def test_check_fails_for_missed_goals_and_missing_systems(turns: list[str], tmp_path: Path) -> None:
    plot, kept = tmp_path / "plot.svg", tmp_path / "report.json"
    done = invoke("peers", "--check", "--plot", str(plot), "--json", str(kept))
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-2:] == [
        "missing: C: get it with: make peers",
        "missed: start: value 2.00 s, goal ≤ 1.00 s",
    ]
    assert "seawall bench peers" in done.stdout
    assert plot.read_text(encoding="utf-8").startswith("<svg")
    assert len(json.loads(kept.read_text(encoding="utf-8"))["results"]) == 5
    assert invoke("peers").exit_code == 0


def test_a_comparison_has_three_rounds_unless_told_otherwise(turns: list[str]) -> None:
    assert invoke("peers").exit_code == 0
    assert turns.count("Seawall") == 3
    assert isinstance(invoke("peers", "--rounds", "2").exception, InvalidInputError)


@pytest.mark.parametrize("option", [("--only", "kafka"), ("--shapes", "bulk"), ("--peers", "x"), ("--plot", "x.svg")])
def test_options_of_comparisons_are_refused_for_other_suites(option: tuple[str, str]) -> None:
    done = invoke("limits", *option)
    assert done.exit_code == 2
    assert "are for the suite peers" in done.stderr


def test_a_plot_that_cannot_be_written_is_refused_before_measuring(turns: list[str], tmp_path: Path) -> None:
    assert invoke("peers", "--plot", str(tmp_path / "absent" / "plot.svg")).exit_code == 2
    assert turns == []
