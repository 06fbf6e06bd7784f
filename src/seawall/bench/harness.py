"""How a figure is measured: subject and baseline by turns, in the same run.

Machines are noisy and shared: the same code shows twice the speed ten minutes later. What stays is the *ratio* to a
baseline that runs on the same cores in the same second. So every figure with a baseline goes

    warm up both, then per round   baseline, subject   (even rounds)
                                   subject, baseline   (odd rounds)

and reports the median of the per-round ratios. Turning the order round every time keeps a machine that steadily slows
down (or speeds up) from favouring one side.

A *subject* opens what it needs (files, processes, buffers) as a context manager and hands out a `Run`: a function that
works for about the given seconds, at least once, and returns a rate or a latency in its base unit. `run(0.0)` is the
warm-up. Whatever happens, also Ctrl-C, the context managers are closed. A subject that this machine cannot run raises
`UnsupportedError` while it opens or warms up: the figure is left out and the message becomes its note.

    def suite(context: BenchContext) -> Iterable[Measurement]:
        yield Measurement("encode", unit="B/s", better=Better.HIGHER, subject=plain(rate(encode_once, block_size)),
                          baseline=MEMORY_COPY, goal=Goal.ratio_at_least(0.5))

Rounds are never dropped: an outlier shows in the spread, not in a hidden decision.

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
from seawall.bench.results import Aspect, Better, Goal, Result, Spread, SuiteReport
from seawall.errors import InvalidInputError, UnsupportedError

NANOSECONDS_PER_SECOND = 1_000_000_000

#: Works for about the given seconds, at least once, and returns a rate or a latency.
Run: TypeAlias = Callable[[float], float]
#: Opens what a run needs, and closes it.
Subject: TypeAlias = Callable[[], AbstractContextManager[Run]]
#: Nanoseconds from a fixed point; tests pass their own.
Timer: TypeAlias = Callable[[], int]


@dataclass(frozen=True, slots=True)
class BenchContext:
    """What every suite is told: time per figure and side (split over the rounds), rounds, and where files may go."""

    seconds: float
    rounds: int
    directory: Path

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise InvalidInputError(f"seconds per figure is {self.seconds}; give a number above 0")
        if self.rounds < bounds.BENCH_ROUNDS_MIN:
            raise InvalidInputError(
                f"{self.rounds} rounds; at least {bounds.BENCH_ROUNDS_MIN} make a median and a spread"
            )


@dataclass(frozen=True, slots=True)
class Baseline:
    """The other side of a ratio, with the name it has in reports."""

    name: str
    subject: Subject


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure to find out. `unit` is `s`, `B/s`, or things per second such as `records/s`."""

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


#: A suite names its figures; measuring them is the harness's work.
Suite: TypeAlias = Callable[[BenchContext], Iterable[Measurement]]


class Progress(Protocol):
    """Who is told how far a run has come."""

    def begin(self, measurement: Measurement) -> None:
        """A figure is about to be opened and warmed up."""
        ...

    def round_done(self, done: int) -> None:
        """So many of its rounds are over."""
        ...

    def end(self, result: Result) -> None:
        """The figure is measured or left out."""
        ...


def plain(run: Run) -> Subject:
    """Wrap a run that needs nothing opened or closed as a subject."""
    return lambda: nullcontext(run)


def rate(step: Callable[[], object], amount: float, timer: Timer = perf_counter_ns) -> Run:
    """Repeat a step that handles `amount` bytes or things; the run's figure is the amount per second.

    The timer is read once a step: a step should take some ten microseconds or more, or the timer is measured too.
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
    """Repeat a step and time each one; the run's figure is the median in seconds.

    Ends early with `bounds.BENCH_SAMPLES_MAX` samples.
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
    """Bytes per second of one large copy in memory, each byte counted once; both buffers have all their pages."""
    import numpy as np

    source = np.full(bounds.BENCH_COPY_SIZE, 0x5A, dtype=np.uint8)
    target = np.full(bounds.BENCH_COPY_SIZE, 0xA5, dtype=np.uint8)
    yield rate(lambda: np.copyto(target, source), source.nbytes)


#: What every suite measures bandwidth against.
MEMORY_COPY = Baseline("memory copy", memory_copy)


def run_suite(name: str, measurements: Iterable[Measurement], context: BenchContext, progress: Progress) -> SuiteReport:
    """Measure every figure of a suite, one after the other."""
    started_at = datetime.now(UTC)
    started = perf_counter_ns()
    results: list[Result] = []
    for measurement in measurements:
        progress.begin(measurement)
        result = measure(measurement, context, progress.round_done)
        progress.end(result)
        results.append(result)
    return SuiteReport(
        suite=name,
        started=started_at.isoformat(timespec="seconds"),
        seconds=(perf_counter_ns() - started) / NANOSECONDS_PER_SECOND,
        machine=machine.describe(),
        results=tuple(results),
    )


def measure(measurement: Measurement, context: BenchContext, on_round: Callable[[int], None]) -> Result:
    """Open both sides, warm them up, run the rounds by turns, and close both."""
    other = measurement.baseline
    with ExitStack() as opened:
        try:
            subject = _open(measurement.name, measurement.subject, opened)
            baseline = None if other is None else _open(other.name, other.subject, opened)
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


def _open(name: str, subject: Subject, opened: ExitStack) -> Run:
    """Open one side and warm it up; its runs are checked, since a ratio of nonsense looks like any other number."""
    run = opened.enter_context(subject())

    def checked(seconds: float) -> float:
        figure = run(seconds)
        if not (math.isfinite(figure) and figure > 0):
            raise InvalidInputError(f"{name}: a run returned {figure}; a rate or a latency is finite and above 0")
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
