"""Reports as text: units, the table, and progress on a terminal and in a file."""

from __future__ import annotations

import io

import pytest

from seawall.bench import report
from seawall.bench.harness import Measurement, plain
from seawall.bench.machine import Machine
from seawall.bench.results import Aspect, Better, Goal, Result, Spread, SuiteReport

MACHINE = Machine("a processor", 2, 3 * 2**30, "Linux 6", "CPython 3.11", {})

FAST = Result(
    name="fast",
    unit="B/s",
    better=Better.HIGHER,
    value=2.1e9,
    baseline_name="memory copy",
    baseline=4.2e9,
    ratio=0.5,
    goal=Goal.ratio_at_least(0.4),
    spread=Spread(Aspect.RATIO, 0.3, 0.45, 0.55, 0.6),
    rounds=5,
)
SLOW = Result("slow", "s", Better.LOWER, value=0.4, goal=Goal.value_at_most(0.3), note="[red]two[/red] wake-ups")
BEHIND = Result("behind", "records/s", Better.HIGHER, value=1e6, ratio=0.25, goal=Goal.ratio_at_least(0.5))
ABSENT = Result("absent", "s", Better.LOWER, goal=Goal.value_at_most(1.0), note="left out: not here")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def suite_report(*results: Result, machine: Machine = MACHINE) -> SuiteReport:
    return SuiteReport("trial", "2026-01-01T00:00:00+00:00", 1.0, machine, results)


def measurement(name: str) -> Measurement:
    return Measurement(name, "s", Better.LOWER, plain(float))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.134e9, "B/s", "2.13 GB/s"),
        (999.0, "B/s", "999 B/s"),
        (1.5e13, "B/s", "15.0 TB/s"),
        (0.5, "B/s", "0.500 B/s"),
        (33.14e6, "records/s", "33.1 M records/s"),
        (1_800, "batches/s", "1.80 k batches/s"),
        (12, "batches/s", "12.0 batches/s"),
        (5.8e-6, "s", "5.80 µs"),
        (0.0123, "s", "12.3 ms"),
        (3e-8, "s", "30.0 ns"),
        (4e-10, "s", "0.400 ns"),
        (61.0, "s", "61.0 s"),
        (7.0, "", "7.00"),
        (7.0, "files", "7.00 files"),
    ],
)
def test_quantities_have_readable_units(value: float, unit: str, text: str) -> None:
    assert report.quantity(value, unit) == text


def test_goals_and_spreads_are_formatted() -> None:
    assert report.goal_text(Goal.ratio_at_least(0.5), "B/s") == "≥ 0.500x"
    assert report.goal_text(Goal.value_at_most(0.3), "s") == "≤ 300 ms"
    assert report.spread_text(Spread(Aspect.VALUE, 1e-6, 2e-6, 3e-6, 4e-6), "s") == (
        "2.00 µs to 3.00 µs (1.00 µs to 4.00 µs)"
    )


def test_a_summary_is_one_line() -> None:
    assert report.summary(FAST) == "fast: 2.10 GB/s, 0.500x memory copy"
    assert report.summary(SLOW) == "slow: 400 ms"
    assert report.summary(ABSENT) == "absent: left out: not here"


def test_every_missed_goal_is_named_with_figure_and_goal() -> None:
    assert report.missed_lines(suite_report(FAST, SLOW, BEHIND, ABSENT)) == [
        "missed: slow: value 400 ms, goal ≤ 300 ms",
        "missed: behind: ratio 0.250x, goal ≥ 0.500x",
    ]


def test_the_table_shows_everything_untruncated() -> None:
    stream = io.StringIO()
    report.write_table(suite_report(FAST, SLOW, ABSENT), stream)
    text = stream.getvalue()
    assert "a processor, 2 cores, 3 GiB, Linux 6, CPython 3.11" in text
    rows = {
        cells[0]: cells[1:]
        for line in text.splitlines()
        if line.startswith("│")
        for cells in [[cell.strip() for cell in line.strip("│").split("│")]]
    }
    spread = "0.450x to 0.550x (0.300x to 0.600x)"
    assert rows["fast"] == ["2.10 GB/s", "memory copy 4.20 GB/s", "0.500x", spread, "≥ 0.400x", "yes"]
    assert rows["slow"] == ["400 ms", "", "", "", "≤ 300 ms", "no"]
    assert rows["absent"] == ["left out", "", "", "", "≤ 1.00 s", ""]
    assert "slow: [red]two[/red] wake-ups" in text
    assert "…" not in text


def test_a_machine_of_unknown_memory_has_none_in_the_table() -> None:
    stream = Terminal()
    unknown = Machine("a processor", 2, None, "Linux 6", "CPython 3.11", {})
    report.write_table(suite_report(machine=unknown), stream)
    assert "a processor, 2 cores, Linux 6" in stream.getvalue()


def test_progress_in_a_file_is_a_line_per_figure() -> None:
    stream = io.StringIO()
    with report.show_progress([measurement("slow"), measurement("absent")], 5, stream) as progress:
        progress.begin(measurement("slow"))
        progress.round_done(1)
        assert stream.getvalue() == ""
        progress.end(SLOW)
        progress.end(ABSENT)
    assert stream.getvalue() == "[1/2] slow: 400 ms\n[2/2] absent: left out: not here\n"


def test_progress_on_a_terminal_is_a_bar_with_the_figures_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with report.show_progress([measurement("slow"), measurement("absent")], 5, stream) as progress:
        progress.begin(measurement("slow"))
        for done in range(1, 6):
            progress.round_done(done)
        progress.end(SLOW)
        progress.begin(measurement("absent"))
        progress.end(ABSENT)
    text = stream.getvalue()
    assert "slow: 400 ms" in text
    assert "absent: left out: not here" in text
    assert "\x1b[" in text  # escape sequences redraw the display


@pytest.mark.parametrize("terminal", [True, False])
def test_the_display_ends_with_an_interrupt(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal() if terminal else io.StringIO()

    def interrupted() -> None:
        with report.show_progress([measurement("slow")], 5, stream) as progress:
            progress.begin(measurement("slow"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    # A hidden cursor would stay hidden for the user's next command.
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h")
