"""Figures of suite `order` about a pod of processes: rate and latency end to end, the cost of an open gap, idle CPU.

Writers, broker and sequencer are processes; on a machine with fewer cores than processes they share them. Ack level 1:
the broker acknowledges a batch when it is ordered.
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
from seawall.bench.subjects.order_writers import WriterLoad
from seawall.limits import MIB

WRITERS: Final = 2
#: A record of a small batch, and one that fills a large batch.
SMALL: Final = 32
LARGE: Final = MIB - 5
#: Batches in flight per writer: many to measure the rate, fewer to measure latency.
MANY: Final = 2_048
SOME: Final = 256
FEW: Final = 8
#: Copies of each byte: into the stream, out of the stream, into the BLog.
COPIES: Final = 3

_RUN_SECONDS_MIN: Final = 0.1
_IDLE_SECONDS_MIN: Final = 0.5


def process_figures() -> Iterator[Measurement]:
    """List the figures of a pod of processes."""
    small = _writer_loads(SMALL, MANY)
    what = f"{WRITERS} writer processes, one broker, one sequencer, ack 1"
    yield Measurement(
        "one-record batches end to end",
        "batches/s",
        Better.HIGHER,
        _on_pod(small, _rate(1)),
        goal=Goal.value_at_least(300_000),
        note=f"{what}; {MANY:,} batches in flight per writer",
    )
    for percent in (50, 99):
        yield Measurement(
            f"a one-record batch end to end, p{percent}",
            "s",
            Better.LOWER,
            _on_pod(_writer_loads(SMALL, SOME), _latency(percent)),
            note=f"{what}; {SOME} batches in flight per writer",
        )
    yield Measurement(
        "1 MiB batches end to end",
        "B/s",
        Better.HIGHER,
        _on_pod(_writer_loads(LARGE, FEW), _rate(LARGE)),
        baseline=Baseline(f"memory copy ÷ {COPIES}", _copies),
        goal=Goal.ratio_at_least(0.5),
        note=f"{COPIES} copies: writer to stream, stream to broker, broker to BLog",
    )
    yield Measurement(
        "order 2 beside an open gap of order 5, p99",
        "s",
        Better.LOWER,
        _on_pod([*_writer_loads(SMALL, SOME), _strong(leaves_gap=True)], _latency(99)),
        baseline=Baseline(
            "beside order 5 without one",
            _on_pod([*_writer_loads(SMALL, SOME), _strong(leaves_gap=False)], _latency(99)),
        ),
        goal=Goal.ratio_at_most(1.5),
        note="the sequencer holds, then rejects the batches behind the gap; their client resends them",
    )
    yield Measurement(
        "cores that an idle pod keeps busy",
        "cores",
        Better.LOWER,
        _on_pod(small, _idle),
        goal=Goal.value_at_most(0.02),
        note=f"all processes of the pod, with {WRITERS} connected writers",
    )


def _writer_loads(value_size: int, window: int) -> list[WriterLoad]:
    return [WriterLoad(1_000 + number, WEAK, value_size, window, max(1, window // 2)) for number in range(WRITERS)]


def _strong(*, leaves_gap: bool) -> WriterLoad:
    return WriterLoad(5_000, STRONG, SMALL, 32, 32, leaves_gap=leaves_gap)


def _on_pod(loads: list[WriterLoad], make: Callable[[RunningPod], Run]) -> Subject:
    @contextmanager
    def opened() -> Iterator[Run]:
        with running_pod(loads) as pod:
            yield make(pod)

    return opened


def _rate(amount: int) -> Callable[[RunningPod], Run]:
    """Acknowledged batches per second; each counts as `amount`."""

    def make(pod: RunningPod) -> Run:
        def run(seconds: float) -> float:
            with pod.publishing():
                pod.wait_for_acks()
                before, started = pod.acked, perf_counter_ns()
                sleep(max(seconds, _RUN_SECONDS_MIN))
                pod.wait_for_acks()
                return (pod.acked - before) * amount * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

        return run

    return make


def _latency(percent: int) -> Callable[[RunningPod], Run]:
    """A percentile of the seconds from sending to the ACK, over the first two writers."""

    def make(pod: RunningPod) -> Run:
        def run(seconds: float) -> float:
            with pod.publishing():
                sleep(max(seconds, _RUN_SECONDS_MIN))
                pod.wait_for_acks()
                samples = np.concatenate([board.latencies() for board in pod.boards[:WRITERS]])
            return float(np.percentile(samples, percent)) / NANOSECONDS_PER_SECOND

        return run

    return make


def _idle(pod: RunningPod) -> Run:
    """Busy cores, summed over all processes."""

    def run(seconds: float) -> float:
        before, started = pod.cpu_ns(), perf_counter_ns()
        sleep(max(seconds, _IDLE_SECONDS_MIN))
        return (pod.cpu_ns() - before) / (perf_counter_ns() - started)

    return run


@contextmanager
def _copies() -> Iterator[Run]:
    with memory_copy() as run:
        yield lambda seconds: run(seconds) / COPIES
