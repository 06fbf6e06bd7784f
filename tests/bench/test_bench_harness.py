"""The harness: rounds, ratios, clean-up, unsupported figures, and the loops of subjects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.bench import bounds, harness
from seawall.bench.comparison import Comparison
from seawall.bench.harness import Baseline, BenchContext, Measurement, Run, latency, measure, plain, rate
from seawall.bench.results import Aspect, Better, Goal, Result
from seawall.errors import InvalidInputError, UnsupportedError


class Side:
    """A subject with given figures that records in a shared journal when it is opened, run and closed."""

    def __init__(self, name: str, figures: Iterator[float], journal: list[str]) -> None:
        self.name = name
        self.figures = figures
        self.journal = journal

    @contextmanager
    def __call__(self) -> Iterator[Run]:
        self.journal.append(f"open {self.name}")
        try:
            yield self.run
        finally:
            self.journal.append(f"close {self.name}")

    def run(self, seconds: float) -> float:
        self.journal.append(f"{self.name} {seconds:g}")
        return next(self.figures) if seconds else 1.0


def side(name: str, *figures: float, journal: list[str] | None = None) -> Side:
    return Side(name, itertools.cycle(figures), [] if journal is None else journal)


def context(rounds: int = 5, seconds: float = 10.0) -> BenchContext:
    return BenchContext(seconds=seconds, rounds=rounds, directory=Path())


def measurement(
    subject: harness.Subject, baseline: harness.Subject | None = None, goal: Goal | None = None
) -> Measurement:
    named = None if baseline is None else Baseline("other", baseline)
    return Measurement("figure", "B/s", Better.HIGHER, subject, named, goal, "a note")


def ignore(done: int) -> None:
    pass


def test_the_sides_alternate_and_each_round_starts_with_the_other_one() -> None:
    journal: list[str] = []
    subject, other = side("S", 1.0, journal=journal), side("B", 1.0, journal=journal)
    done: list[int] = []
    measure(measurement(subject, other), context(), done.append)
    assert journal == [
        *("open S", "S 0", "open B", "B 0"),
        *("B 2", "S 2", "S 2", "B 2", "B 2", "S 2", "S 2", "B 2", "B 2", "S 2"),
        *("close B", "close S"),
    ]
    assert done == [1, 2, 3, 4, 5]


def test_a_ratio_compares_the_sides_of_one_round_only() -> None:
    # The machine slows down tenfold, the code is always half as fast as its baseline.
    drift = (100.0, 80.0, 40.0, 20.0, 10.0)
    result = measure(measurement(side("S", *(x / 2 for x in drift)), side("B", *drift)), context(), ignore)
    assert result.ratio == 0.5
    assert (result.value, result.baseline) == (20.0, 40.0)
    assert result.spread is not None
    assert (result.spread.of, result.spread.min, result.spread.max) == (Aspect.RATIO, 0.5, 0.5)
    assert (result.baseline_name, result.rounds, result.note) == ("other", 5, "a note")


def test_one_disturbed_round_shows_in_the_spread_and_not_in_the_median() -> None:
    result = measure(measurement(side("S", 9.0, 10.0, 1000.0, 11.0, 10.0)), context(), ignore)
    assert (result.value, result.ratio, result.baseline, result.baseline_name) == (10.0, None, None, None)
    assert result.spread is not None
    assert (result.spread.of, result.spread.min, result.spread.max) == (Aspect.VALUE, 9.0, 1000.0)
    assert (result.spread.quartile_low, result.spread.quartile_high) == (10.0, 11.0)


@given(st.lists(st.tuples(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9)), min_size=5, max_size=12))
def test_the_median_ratio_is_within_its_spread(rounds: list[tuple[float, float]]) -> None:
    subject, other = side("S", *(pair[0] for pair in rounds)), side("B", *(pair[1] for pair in rounds))
    result = measure(measurement(subject, other), context(rounds=len(rounds)), ignore)
    spread = result.spread
    assert spread is not None
    assert result.ratio is not None
    assert spread.min <= spread.quartile_low <= result.ratio <= spread.quartile_high <= spread.max
    assert {spread.min, spread.max} <= {value / baseline for value, baseline in rounds}


@pytest.mark.parametrize("figure", [0.0, -1.0, float("nan"), float("inf")])
def test_a_figure_that_is_no_rate_is_refused(figure: float) -> None:
    journal: list[str] = []
    with pytest.raises(InvalidInputError, match="figure: a run returned"):
        measure(measurement(side("S", figure, journal=journal)), context(), ignore)
    assert journal[-1] == "close S"
    with pytest.raises(InvalidInputError, match="other: a run returned"):
        measure(measurement(side("S", 1.0), side("B", figure)), context(), ignore)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_both_sides_are_closed_whatever_happens(error: type[BaseException]) -> None:
    journal: list[str] = []

    def failing() -> Iterator[float]:
        yield 1.0
        raise error

    subject = Side("S", failing(), journal)
    with pytest.raises(error):
        measure(measurement(subject, side("B", 1.0, journal=journal)), context(), ignore)
    assert journal[-2:] == ["close B", "close S"]


def unsupported_while_opening(journal: list[str]) -> harness.Subject:
    @contextmanager
    def opened() -> Iterator[Run]:
        raise UnsupportedError("no such thing here")
        yield

    return opened


def unsupported_while_warming_up(journal: list[str]) -> harness.Subject:
    def run(seconds: float) -> float:
        raise UnsupportedError("no such thing here")

    return plain(run)


@pytest.mark.parametrize("make", [unsupported_while_opening, unsupported_while_warming_up])
def test_an_unsupported_figure_is_left_out_with_the_reason(make: Callable[[list[str]], harness.Subject]) -> None:
    journal: list[str] = []
    goal = Goal.ratio_at_least(0.5)
    as_subject = measure(measurement(make(journal), side("B", 1.0, journal=journal), goal), context(), ignore)
    as_baseline = measure(measurement(side("S", 1.0, journal=journal), make(journal), goal), context(), ignore)
    for result in (as_subject, as_baseline):
        assert (result.value, result.ratio, result.spread, result.met, result.rounds) == (None, None, None, None, 0)
        assert (result.note, result.baseline_name, result.goal) == ("left out: no such thing here", "other", goal)
    assert journal[-1] == "close S"
    assert measure(measurement(make(journal)), context(), ignore).baseline_name is None


def test_a_goal_on_the_ratio_needs_a_baseline() -> None:
    with pytest.raises(InvalidInputError, match="needs a baseline"):
        measurement(side("S", 1.0), None, Goal.ratio_at_most(2.0))
    assert measurement(side("S", 1.0), None, Goal.value_at_most(2.0)).goal is not None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_context_needs_a_positive_duration(seconds: float) -> None:
    with pytest.raises(InvalidInputError, match="seconds per figure"):
        context(seconds=seconds)


def test_a_context_needs_enough_rounds() -> None:
    with pytest.raises(InvalidInputError, match=r"rounds is 4; .* at least 5"):
        context(rounds=bounds.BENCH_ROUNDS_MIN - 1)


class Watcher:
    """Progress as a list."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def begin(self, measurement: Measurement | Comparison) -> None:
        self.seen.append(f"begin {measurement.name}")

    def round_done(self, done: int) -> None:
        self.seen.append(str(done))

    def end(self, *results: Result) -> None:
        self.seen += [f"end {result.value}" for result in results]


def test_a_suite_reports_every_figure_in_order() -> None:
    watcher = Watcher()
    figures = [measurement(side("S", 3.0)), measurement(unsupported_while_opening([]))]
    report = harness.run_suite("trial", figures, context(), watcher)
    assert watcher.seen == ["begin figure", "1", "2", "3", "4", "5", "end 3.0", "begin figure", "end None"]
    assert report.suite == "trial"
    assert [result.value for result in report.results] == [3.0, None]
    assert report.left_out == (report.results[1],)
    assert report.seconds >= 0
    assert report.started.endswith("+00:00")
    assert "numpy" in report.machine.libraries


class Clock:
    """A timer that only a step moves."""

    def __init__(self, *steps_ns: int) -> None:
        self.now_ns = 1_000
        self.steps = 0
        self.steps_ns = itertools.cycle(steps_ns)

    def __call__(self) -> int:
        return self.now_ns

    def step(self) -> None:
        self.steps += 1
        self.now_ns += next(self.steps_ns)


def test_a_rate_counts_the_steps_until_the_time_is_over() -> None:
    clock = Clock(100_000_000)
    run = rate(clock.step, 50, clock)
    assert run(1.0) == 500.0
    assert clock.steps == 10
    assert run(0.25) == 500.0  # three steps took 0.3 s: the time really spent counts
    assert clock.steps == 13


def test_a_latency_is_the_median_of_the_steps() -> None:
    clock = Clock(1_000, 5_000_000, 2_000)
    assert latency(clock.step, clock)(0.005) == pytest.approx(2.5005e-3)
    assert clock.steps == 2
    assert latency(clock.step, clock)(0.0) == pytest.approx(2e-6)
    assert latency(clock.step, clock)(0.0051) == pytest.approx(2e-6)


def test_a_run_of_zero_seconds_takes_one_step() -> None:
    clock = Clock(0)
    assert rate(clock.step, 1, clock)(0.0) == 1e9
    assert latency(clock.step, clock)(0.0) == pytest.approx(1e-9)
    assert clock.steps == 2


def test_a_latency_stops_at_its_bound_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BENCH_SAMPLES_MAX", 7)
    clock = Clock(1)
    latency(clock.step, clock)(1e9)
    assert clock.steps == 7


def test_the_memory_copy_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    monkeypatch.setattr(bounds, "BENCH_COPY_SIZE", 4096)
    copied: list[tuple[np.ndarray, np.ndarray]] = []
    copyto = np.copyto

    def watched(target: np.ndarray, source: np.ndarray) -> None:
        copyto(target, source)
        copied.append((target, source))

    monkeypatch.setattr(np, "copyto", watched)
    with harness.MEMORY_COPY.subject() as run:
        assert run(0.0) > 0
    [(target, source)] = copied
    assert target.nbytes == 4096
    assert not np.shares_memory(target, source)
    assert bytes(target) == bytes(source) != bytes(4096)
