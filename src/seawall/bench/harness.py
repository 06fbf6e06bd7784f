"""Measure figures: alternate the subject and its baseline within one run, and report medians.

Machines are noisy and shared: the same code may run twice as fast ten minutes later. The *ratio* to a baseline that
runs on the same cores in the same second is stable. Every figure with a baseline therefore runs

    warm up both, then per round   baseline, subject   (even rounds)
                                   subject, baseline   (odd rounds)

and reports the median of the per-round ratios. Swapping the order every round keeps a machine that steadily slows down
(or speeds up) from favouring one side.

A *subject* is a context manager that opens what it needs (files, processes, buffers) and yields a `Run`: a function
that works for about the given seconds, at least once, and returns a rate or a latency in its base unit. `run(0.0)` is
the warm-up. The harness always closes the context managers, also on Ctrl-C. A subject that this machine cannot run
raises `UnsupportedError` while it opens or warms up; the figure is then left out, with the message as its note.

    def suite(context: BenchContext) -> Iterable[Measurement]:
        yield Measurement("encode", unit="B/s", better=Better.HIGHER, subject=plain(rate(encode_once, block_size)),
                          baseline=MEMORY_COPY, goal=Goal.ratio_at_least(0.5))

The harness drops no rounds: outliers show in the spread.

INV-BENCH-OK: a benchmark reports a figure only if everything that it counted succeeded.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns
from typing import Protocol, TypeAlias

from seawall.bench import bounds, machine
from seawall.bench.comparison import Comparison, compare
from seawall.bench.results import Aspect, Better, Goal, Result, Spread, SuiteReport
from seawall.errors import InvalidInputError, UnsupportedError

NANOSECONDS_PER_SECOND = 1_000_000_000

#: Works for about the given seconds, at least once; returns a rate or a latency.
Run: TypeAlias = Callable[[float], float]
#: Opens the resources of a run and closes them.
Subject: TypeAlias = Callable[[], AbstractContextManager[Run]]
#: Returns nanoseconds since a fixed point; tests pass their own.
Timer: TypeAlias = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Selection:
    """What a comparison with other systems includes: systems and shapes of load by their names, empty for all.

    `programs` is the directory of the other systems' programs, if it is not the default.
    """

    only: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    programs: Path | None = None


@dataclass(frozen=True, slots=True)
class BenchContext:
    """The parameters of a run: seconds per figure and side (split over the rounds), rounds, directory for files."""

    seconds: float
    rounds: int
    directory: Path
    selection: Selection = Selection()
    rounds_min: int = bounds.BENCH_ROUNDS_MIN

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise InvalidInputError(f"seconds per figure is {self.seconds}; it must be above 0")
        if self.rounds < self.rounds_min:
            raise InvalidInputError(f"rounds is {self.rounds}; a median and a spread need at least {self.rounds_min}")


@dataclass(frozen=True, slots=True)
class Baseline:
    """The subject to compare with, and its name in reports."""

    name: str
    subject: Subject


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure to measure. `unit` is `s`, `B/s`, or a count per second such as `records/s`."""

    name: str
    unit: str
    better: Better
    subject: Subject
    baseline: Baseline | None = None
    goal: Goal | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.goal is not None and self.goal.of is Aspect.RATIO and self.baseline is None:
            raise InvalidInputError(f"{self.name}: a goal on the ratio needs a baseline")


#: Lists the figures of a suite, and its comparisons with other systems; the harness measures them.
Suite: TypeAlias = Callable[[BenchContext], Iterable[Measurement | Comparison]]


class Progress(Protocol):
    """Receives the progress of a run."""

    def begin(self, measurement: Measurement | Comparison) -> None:
        """Called before a figure, or a comparison, is opened and warmed up."""
        ...

    def round_done(self, done: int) -> None:
        """Called after each round; `done` counts the completed rounds of this figure."""
        ...

    def end(self, *results: Result) -> None:
        """Called when a figure or a comparison has been measured or left out."""
        ...


def plain(run: Run) -> Subject:
    """Make a subject of a run that needs no resources."""
    return lambda: nullcontext(run)


def rate(step: Callable[[], object], amount: float, timer: Timer = perf_counter_ns) -> Run:
    """Return a run that repeats a step of `amount` bytes or items and reports the amount per second.

    Reads the timer once per step, so a step should take ten microseconds or more; otherwise the timer shows.
    """

    def run(seconds: float) -> float:
        started = timer()
        deadline = started + int(seconds * NANOSECONDS_PER_SECOND)
        steps = 0
        while True:
            step()
            steps += 1
            now = timer()
            if now >= deadline:
                return steps * amount * NANOSECONDS_PER_SECOND / max(now - started, 1)

    return run


def latency(step: Callable[[], object], timer: Timer = perf_counter_ns) -> Run:
    """Return a run that times every repetition of a step and reports the median in seconds.

    The run ends early after `bounds.BENCH_SAMPLES_MAX` samples.
    """

    def run(seconds: float) -> float:
        samples: list[int] = []
        before = timer()
        deadline = before + int(seconds * NANOSECONDS_PER_SECOND)
        while True:
            before = timer()
            step()
            now = timer()
            samples.append(now - before)
            if now >= deadline or len(samples) == bounds.BENCH_SAMPLES_MAX:
                return max(statistics.median(samples), 1) / NANOSECONDS_PER_SECOND

    return run


@contextmanager
def memory_copy() -> Iterator[Run]:
    """Bytes per second of one large memory copy, counting each byte once. All pages are mapped beforehand."""
    import numpy as np

    source = np.full(bounds.BENCH_COPY_SIZE, 0x5A, dtype=np.uint8)
    target = np.full(bounds.BENCH_COPY_SIZE, 0xA5, dtype=np.uint8)
    yield rate(lambda: np.copyto(target, source), source.nbytes)


#: The bandwidth baseline of all suites.
MEMORY_COPY = Baseline("memory copy", memory_copy)


def run_suite(
    name: str, measurements: Iterable[Measurement | Comparison], context: BenchContext, progress: Progress
) -> SuiteReport:
    """Measure all figures of a suite, one after another."""
    started_at = datetime.now(UTC)
    started = perf_counter_ns()
    results: list[Result] = []
    systems: dict[str, str] = {}
    missing: dict[str, str] = {}
    for measurement in measurements:
        progress.begin(measurement)
        if isinstance(measurement, Comparison):
            systems |= {side.name: side.description for side in measurement.sides}
            missing |= measurement.missing
            compared = compare(measurement, context.seconds / context.rounds, context.rounds, progress.round_done)
            missing |= {f"{side}, {measurement.name}": reason for side, reason in compared.failures.items()}
            found = compared.results
        else:
            found = (measure(measurement, context, progress.round_done),)
        progress.end(*found)
        results += found
    return SuiteReport(
        suite=name,
        started=started_at.isoformat(timespec="seconds"),
        seconds=(perf_counter_ns() - started) / NANOSECONDS_PER_SECOND,
        machine=machine.describe(),
        results=tuple(results),
        systems=systems,
        missing=missing,
    )


def measure(measurement: Measurement, context: BenchContext, on_round: Callable[[int], None]) -> Result:
    """Measure one figure: open and warm up both sides, run the rounds, close both sides."""
    other = measurement.baseline
    with ExitStack() as stack:
        try:
            subject = _open(measurement.name, measurement.subject, stack)
            baseline = None if other is None else _open(other.name, other.subject, stack)
        except UnsupportedError as error:
            return _left_out(measurement, str(error))
        rounds: list[_Round] = []
        for index in range(context.rounds):
            rounds.append(_round(subject, baseline, context.seconds / context.rounds, subject_first=index % 2 == 1))
            on_round(index + 1)
    return _result(measurement, rounds)


@dataclass(frozen=True, slots=True)
class _Round:
    value: float
    baseline: float | None


def _open(name: str, subject: Subject, stack: ExitStack) -> Run:
    """Open one side, warm it up, and return its run, which raises an error on results that are no rate or latency."""
    run = stack.enter_context(subject())

    def checked(seconds: float) -> float:
        figure = run(seconds)
        if not (math.isfinite(figure) and figure > 0):
            raise InvalidInputError(f"{name}: a run returned {figure}; a rate or a latency must be finite and above 0")
        return figure

    checked(0.0)
    return checked


def _round(subject: Run, baseline: Run | None, seconds: float, *, subject_first: bool) -> _Round:
    if baseline is None:
        return _Round(subject(seconds), None)
    if subject_first:
        value = subject(seconds)
        return _Round(value, baseline(seconds))
    other = baseline(seconds)
    return _Round(subject(seconds), other)


def _left_out(measurement: Measurement, reason: str) -> Result:
    return Result(
        name=measurement.name,
        unit=measurement.unit,
        better=measurement.better,
        baseline_name=None if measurement.baseline is None else measurement.baseline.name,
        goal=measurement.goal,
        note=f"left out: {reason}",
    )


def _result(measurement: Measurement, rounds: list[_Round]) -> Result:
    values = [each.value for each in rounds]
    baselines = [each.baseline for each in rounds if each.baseline is not None]
    ratios = [each.value / each.baseline for each in rounds if each.baseline is not None]
    return Result(
        name=measurement.name,
        unit=measurement.unit,
        better=measurement.better,
        value=statistics.median(values),
        baseline_name=None if measurement.baseline is None else measurement.baseline.name,
        baseline=statistics.median(baselines) if baselines else None,
        ratio=statistics.median(ratios) if ratios else None,
        goal=measurement.goal,
        spread=Spread.over(Aspect.RATIO, ratios) if ratios else Spread.over(Aspect.VALUE, values),
        rounds=len(rounds),
        note=measurement.note,
    )
