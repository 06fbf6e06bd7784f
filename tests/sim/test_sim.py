"""A sample of the simulated pod: runs of seeds that break no promise, and bugs that are planted and caught.

`make sim` does the same for as many seeds as one likes.
"""

from __future__ import annotations

import pytest
from planted import PLANTED, caught_by
from sim_seeds import failure_of

from seawall.testing.pod.run import PodRun

SEEDS = 200
PARTS = 20


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_breaks_a_promise(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        assert failure_of(seed) is None, failure_of(seed)


@pytest.mark.parametrize("seed", [421, 481, 536, 940, 1262, 1299, 1370, 1401, 1409, 1589])
def test_seeds_that_found_something_once(seed: int) -> None:
    assert failure_of(seed) is None, failure_of(seed)


def test_a_seed_is_always_the_same_run() -> None:
    first, second = PodRun(5), PodRun(5)
    first.run()
    second.run()
    assert first.pod.history.render() == second.pod.history.render()
    assert len(first.pod.history) > 500


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_the_power_may_go_in_the_last_reads(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = PodRun(calls, steps=300)
    read_all = made._read_all
    losses: list[int] = []

    def read_and_lose_power() -> None:
        if not losses:
            made.pod.lose_power()  # no topic is recovered now: these reads do that
            made.pod.disk.crash_after(calls)
        losses.append(made.pod.power_losses)
        read_all()

    monkeypatch.setattr(made, "_read_all", read_and_lose_power)
    made.run()
    assert losses == [losses[0], losses[0] + 1]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str) -> None:
    bug = PLANTED[name]
    assert failure_of(bug.seed) is None
    assert caught_by(name, bug.seed) is not None
