"""Suite `order`: measure the total order of a pod, in its kernels and end to end through its processes.

For the kernel figures, one thread collects, orders and commits batches that are already in the rings. For the others, a
pod runs its roles as processes, with writers in further processes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from seawall.bench.figures.order_process_figures import process_figures
from seawall.bench.harness import Baseline, BenchContext, Measurement, Run, plain, rate
from seawall.bench.results import Better, Goal
from seawall.bench.subjects.order_rings import Load, ordering_rate
from seawall.kernels.ordering.holding import STATE_WORDS
from seawall.kernels.ordering.order_entries import reserve_repeatedly
from seawall.limits import SEQUENCER_DRAIN_REFS
from seawall.sequencer.shared import SequencerShared

MANY_CLIENTS = 100_000
#: Positions reserved in one step.
POSITIONS = 1 << 20


def suite(_context: BenchContext) -> Iterator[Measurement]:
    """List the figures of this suite."""
    yield from _kernels()
    yield from process_figures()


def _kernels() -> Iterator[Measurement]:
    one = Load()
    weak = Baseline("order 2, one client", ordering_rate(one))
    yield Measurement(
        "collect, order and commit, order 2, one client",
        "batches/s",
        Better.HIGHER,
        ordering_rate(one),
        goal=Goal.value_at_least(10e6),
        note="one thread, one worker; per CPU time of the thread; the rings are filled beforehand",
    )
    yield Measurement(
        "order 5, in order",
        "batches/s",
        Better.HIGHER,
        ordering_rate(Load(is_strong=True)),
        baseline=weak,
        goal=Goal.ratio_at_least(0.6),
    )
    yield Measurement(
        "order 5, one batch of ten out of its place",
        "batches/s",
        Better.HIGHER,
        ordering_rate(Load(is_strong=True, reordered_percent=10)),
        baseline=weak,
        goal=Goal.ratio_at_least(0.4),
    )
    yield Measurement(
        f"order 2, {MANY_CLIENTS:,} clients by chance",
        "batches/s",
        Better.HIGHER,
        ordering_rate(Load(clients=MANY_CLIENTS)),
        baseline=weak,
        goal=Goal.ratio_at_least(0.5),
        note="nearly every batch is from another client than the previous ones; most clients have no cached result",
    )
    yield Measurement(
        f"reserve positions, {SEQUENCER_DRAIN_REFS:,} at once",
        "positions/s",
        Better.HIGHER,
        plain(_reserving(SEQUENCER_DRAIN_REFS)),
        baseline=Baseline("one by one", plain(_reserving(1))),
        note="one reservation per worker cycle against one per batch; a single worker",
    )


def _reserving(each: int) -> Run:
    """Positions per second, reserved `each` at a time."""
    shared = SequencerShared.make(1 << 16)
    state = np.zeros(STATE_WORDS, np.int64)
    times = POSITIONS // each
    arguments = (shared.counters, shared.settled, shared.goi_entries, each, times, state)
    return rate(lambda: reserve_repeatedly(*arguments), times * each)
