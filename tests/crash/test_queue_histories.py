"""Random histories of queues against a plain model, with restarts, crashes and clock jumps; planted bugs are found.

`make crash` runs more of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from crash_queue_bugs import PLANTED, PLANTED_FOR_CRASHES
from crash_queues import QueueHistory, crash, play

from seawall.errors import SeawallError

#: Histories of one test, and of the search for a planted bug.
HISTORIES = 8
PLANTED_MAX = 60

#: The first history of the search for a planted bug, where earlier ones hardly ever run the changed code.
FIRST_SEEDS = {
    "dead letter without delete": 5,
    "redrive without meta": 10,
    "dead letters not counted": 5,
    "durable leases not logged": 18,
    "ack before it is durable": 7,
    "dead letter in two steps": 20,
}

PARTS = [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 12))]


@pytest.mark.parametrize("part", PARTS)
def test_any_history_matches_the_model(part: int) -> None:
    for seed in range(part * HISTORIES, (part + 1) * HISTORIES):
        play(seed)


@pytest.mark.parametrize("part", PARTS)
def test_no_crash_loses_or_doubles_a_job(part: int) -> None:
    for seed in range(part * HISTORIES, (part + 1) * HISTORIES):
        crash(seed)


def test_a_history_is_always_the_same() -> None:
    first, second = QueueHistory(3), QueueHistory(3)
    first.run()
    second.run()
    assert (first.disk.calls, first.acked, first.dead_lettered) == (
        second.disk.calls,
        second.acked,
        second.dead_lettered,
    )


def seeds_until_caught(history: Callable[[int], None], first: int) -> int | None:
    """The number of histories until one fails, or None."""
    for seed in range(first, first + PLANTED_MAX):
        try:
            history(seed)
        except (AssertionError, SeawallError, OSError, ValueError, IndexError, KeyError):
            return seed + 1 - first
    return None


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    assert seeds_until_caught(play, FIRST_SEEDS.get(name, 0)) is not None


@pytest.mark.parametrize("name", PLANTED_FOR_CRASHES)
def test_a_planted_bug_is_caught_by_crashes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED_FOR_CRASHES[name](monkeypatch)
    assert seeds_until_caught(crash, FIRST_SEEDS.get(name, 0)) is not None
