"""A sample of the simulated pod: runs of seeds that break no guarantee, and planted bugs that are caught.

`make sim` does the same for 2,000 seeds, or as many as given.
"""

from __future__ import annotations

from typing import cast

import pytest
from planted import PLANTED, caught_by
from sim_seeds import failure_of

from seawall.testing.checkers.ordering_checkers import check_all
from seawall.testing.pod.readers import StoreReader
from seawall.testing.pod.run import PodRun
from seawall.testing.pod.world import SimPod

SEEDS = 40
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_a_guarantee(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        assert failure_of(seed) is None, failure_of(seed)


@pytest.mark.parametrize("seed", [421, 481, 536, 940, 1262, 1299, 1370, 1401, 1409, 1589])
def test_seeds_that_found_a_bug_once(seed: int) -> None:
    assert failure_of(seed) is None, failure_of(seed)


def test_a_seed_is_always_the_same_run() -> None:
    first, second = PodRun(5), PodRun(5)
    first.run()
    second.run()
    assert first.pod.history.render() == second.pod.history.render()
    assert len(first.pod.history) > 500


class PowerLoss:
    """A reader whose first step loses the power, and makes the reads after it lose it again at their n-th disk call."""

    def __init__(self, pod: SimPod, calls: int) -> None:
        self.pod = pod
        self.calls = calls
        self.losses: list[int] = []

    def step(self) -> None:
        if not self.losses:
            self.pod.lose_power()  # no topic is recovered now: the next reads do that
            self.pod.disk.crash_after(self.calls)
        self.losses.append(self.pod.power_losses)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_power_loss_in_the_last_reads_is_recovered(calls: int) -> None:
    made = PodRun(calls, steps=300)
    for publisher in made.publishers.values():
        publisher.open()
    for _ in range(made.steps):
        made.step()
    reader = PowerLoss(made.pod, calls)
    made.store_readers = {0: cast("StoreReader", reader), **made.store_readers}
    made.settle()
    check_all(made.pod.history)
    assert set(reader.losses) == {reader.losses[0], reader.losses[0] + 1}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str) -> None:
    bug = PLANTED[name]
    assert failure_of(bug.seed) is None
    assert caught_by(name, bug.seed) is not None
