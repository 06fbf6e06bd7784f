"""Figures of suite `order` about a pod of processes: rate and latency end to end, an open gap beside others, idleness.

Writers, broker and sequencer are processes on as many cores as there are; on two, they take turns. Ack level 1: a batch
is answered when it is ordered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns, sleep
from typing import Final

import numpy as np

from seawall.bench.harness import NANOSECONDS_PER_SECOND, Baseline, Measurement, Run, Subject, memory_copy
from seawall.bench.results import Better, Goal
from seawall.bench.subjects.order_pod import STRONG, WEAK, RunningPod, running_pod
from seawall.bench.subjects.order_writers import Writing
from seawall.limits import MIB

WRITERS: Final = 2
#: A record of a small batch, and one that fills a large batch.
SMALL: Final = 32
LARGE: Final = MIB - 5
#: Batches that a writer has under way: many for the rate, fewer where it is about latency.
MANY: Final = 2_048
SOME: Final = 256
FEW: Final = 8
#: How often a byte is copied on its way: into the stream, out of it, into the BLog.
COPIES: Final = 3

_AT_LEAST_SECONDS: Final = 0.1
_IDLE_SECONDS: Final = 0.5


def process_figures() -> Iterator[Measurement]:
    """The figures."""
    small = _writings(SMALL, MANY)
    what = f"{WRITERS} writer processes, one broker, one sequencer, ack 1"
    yield Measurement(
        "one-record batches end to end",
        "batches/s",
        Better.HIGHER,
        _on_pod(small, _rate(1)),
        goal=Goal.value_at_least(300_000),
        note=f"{what}; {MANY:,} batches of each writer under way",
    )
    for percent in (50, 99):
        yield Measurement(
            f"a one-record batch end to end, p{percent}",
            "s",
            Better.LOWER,
            _on_pod(_writings(SMALL, SOME), _latency(percent)),
            note=f"{what}; {SOME} batches of each writer under way",
        )
    yield Measurement(
        "1 MiB batches end to end",
        "B/s",
        Better.HIGHER,
        _on_pod(_writings(LARGE, FEW), _rate(LARGE)),
        baseline=Baseline(f"memory copy ÷ {COPIES}", _copies),
        goal=Goal.ratio_at_least(0.5),
        note=f"{COPIES} copies: writer to stream, stream to broker, broker to BLog",
    )
    yield Measurement(
        "order 2 beside an open gap of order 5, p99",
        "s",
        Better.LOWER,
        _on_pod([*_writings(SMALL, SOME), _strong(leaves_gap=True)], _latency(99)),
        baseline=Baseline(
            "beside order 5 without one", _on_pod([*_writings(SMALL, SOME), _strong(leaves_gap=False)], _latency(99))
        ),
        goal=Goal.ratio_at_most(1.5),
        note="the client with the gap has batches held, which are sent back and come again",
    )
    yield Measurement(
        "cores that an idle pod keeps busy",
        "cores",
        Better.LOWER,
        _on_pod(small, _idle),
        goal=Goal.value_at_most(0.02),
        note=f"all of its processes, {WRITERS} connected writers with them",
    )


def _writings(value_size: int, window: int) -> list[Writing]:
    return [Writing(1_000 + number, WEAK, value_size, window, max(1, window // 2)) for number in range(WRITERS)]


def _strong(*, leaves_gap: bool) -> Writing:
    return Writing(5_000, STRONG, SMALL, 32, 32, leaves_gap=leaves_gap)


def _on_pod(writings: list[Writing], make: Callable[[RunningPod], Run]) -> Subject:
    @contextmanager
    def opened() -> Iterator[Run]:
        with running_pod(writings) as pod:
            yield make(pod)

    return opened


def _rate(amount: int) -> Callable[[RunningPod], Run]:
    """Batches that are acknowledged in a second, or their bytes."""

    def make(pod: RunningPod) -> Run:
        def run(seconds: float) -> float:
            with pod.publishing():
                pod.wait_for_acks()
                before, started = pod.acked, perf_counter_ns()
                sleep(max(seconds, _AT_LEAST_SECONDS))
                pod.wait_for_acks()
                return (pod.acked - before) * amount * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

        return run

    return make


def _latency(percent: int) -> Callable[[RunningPod], Run]:
    """A percentile of the time from sending to the ACK, of the first two writers."""

    def make(pod: RunningPod) -> Run:
        def run(seconds: float) -> float:
            with pod.publishing():
                sleep(max(seconds, _AT_LEAST_SECONDS))
                pod.wait_for_acks()
                samples = np.concatenate([board.latencies() for board in pod.boards[:WRITERS]])
            return float(np.percentile(samples, percent)) / NANOSECONDS_PER_SECOND

        return run

    return make


def _idle(pod: RunningPod) -> Run:
    """Cores that are busy, of all processes together."""

    def run(seconds: float) -> float:
        before, started = pod.cpu_ns(), perf_counter_ns()
        sleep(max(seconds, _IDLE_SECONDS))
        return (pod.cpu_ns() - before) / (perf_counter_ns() - started)

    return run


@contextmanager
def _copies() -> Iterator[Run]:
    with memory_copy() as run:
        yield lambda seconds: run(seconds) / COPIES
