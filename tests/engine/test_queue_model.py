"""Random histories of queues against a plain model, with restarts, crashes and clock jumps; planted bugs are found."""

from __future__ import annotations

import pytest
from queue_model import QueueHistory

#: Histories of one test.
HISTORIES = 12
CRASHES = 16


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 12))])
def test_any_history_matches_the_model(part: int) -> None:
    for seed in range(part * HISTORIES, (part + 1) * HISTORIES):
        QueueHistory(seed).run()


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 12))])
def test_no_crash_loses_or_doubles_a_job(part: int) -> None:
    for seed in range(part * CRASHES, (part + 1) * CRASHES):
        crash(seed)


def crash(seed: int) -> None:
    history = QueueHistory(seed)
    history.run_with_crash(history.chance.randrange(1, 120))
