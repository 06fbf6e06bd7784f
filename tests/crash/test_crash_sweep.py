"""A sample of the crash sweep, and proof that it finds bugs: each planted bug is caught within a bounded search.

`make crash` does the same for 20,000 images, or as many as given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from crash_arriving import ArrivingWorld
from crash_bugs import PLANTED, PLANTED_IN_CYCLES, PLANTED_IN_LOCAL_CYCLES, PLANTED_IN_TRANSACTIONS
from crash_cycling import CyclingWorld
from crash_following import FollowingWorld
from crash_history import BrokenPromiseError
from crash_sweep import case_of, run_case
from crash_transactions import FollowingTransactionWorld, TransactionWorld
from crash_world import World

from seawall.errors import SeawallError

SAMPLE_SEED = 1
CASES = 96
#: Cases of the other worlds, whose scripts take longer: one script of each.
WORLD_CASES = 40
PLANTED_CASES_MAX = 120


def samples(cases: int) -> list[Any]:
    """Every tenth case, and a third of the others as a slow test; each contains photo cases and end cases."""
    others = [number for number in range(cases) if number % 10]
    return [
        pytest.param(range(0, cases, 10), id="sample"),
        pytest.param(others[::3], id="more", marks=pytest.mark.slow),
    ]


#: The first case of the search for a planted bug, where earlier scripts hardly ever run the changed code.
FIRST_CASES = {
    "names of snapshots not synced": 2,
    "checksum skipped at replay": 245,
    "torn tail kept": 4,
    "delete before it is durable": 2,
    "off by one at rotation": 40,
    "continued before the next file has its name": 40,
    "log dropped too early": 120,
    "segment dropped before the eviction is durable": 80,
}


@pytest.mark.parametrize("numbers", samples(CASES))
def test_no_crash_breaks_a_guarantee(numbers: Sequence[int]) -> None:
    assert sum(run_case(SAMPLE_SEED, number) for number in numbers) >= 90


def test_a_case_is_always_the_same() -> None:
    assert case_of(3, 4) == case_of(3, 4)
    assert case_of(3, 4) != case_of(3, 5)
    assert run_case(3, 4) == run_case(3, 4)


@pytest.mark.parametrize(
    ("make", "number"),
    [
        # Segments that a transaction adopts are named out of order, then an append follows.
        (TransactionWorld, 40),
        # A crash skips no seq, and the byte count continues after it.
        (FollowingTransactionWorld, 77),
    ],
)
def test_cases_that_found_a_bug_once(make: type[World], number: int) -> None:
    assert run_case(SAMPLE_SEED, number, make)


def cases_until_caught(first: int, limit: int, make: type[World] = World) -> int | None:
    """The number of cases until one fails, or None."""
    for number in range(first, first + limit):
        try:
            run_case(SAMPLE_SEED, number, make)
        except (BrokenPromiseError, SeawallError, OSError, AssertionError, ValueError, IndexError):
            return number + 1 - first
    return None


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    assert cases_until_caught(FIRST_CASES.get(name, 0), PLANTED_CASES_MAX) is not None


@pytest.mark.parametrize("numbers", samples(WORLD_CASES))
def test_no_crash_of_an_applier_breaks_a_guarantee(numbers: Sequence[int]) -> None:
    assert sum(run_case(SAMPLE_SEED, number, FollowingWorld) for number in numbers) >= 40


@pytest.mark.parametrize("numbers", samples(WORLD_CASES))
def test_no_crash_breaks_a_guarantee_for_connections(numbers: Sequence[int]) -> None:
    assert sum(run_case(SAMPLE_SEED, number, ArrivingWorld) for number in numbers) >= 60


@pytest.mark.parametrize("numbers", samples(WORLD_CASES))
def test_no_crash_breaks_a_guarantee_for_publishers_of_small_batches(numbers: Sequence[int]) -> None:
    assert sum(run_case(SAMPLE_SEED, number, CyclingWorld) for number in numbers) >= 60


@pytest.mark.parametrize("name", PLANTED_IN_LOCAL_CYCLES)
def test_a_bug_planted_in_local_cycles_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED_IN_LOCAL_CYCLES[name](monkeypatch)
    assert cases_until_caught(0, PLANTED_CASES_MAX, CyclingWorld) is not None


@pytest.mark.parametrize("name", PLANTED_IN_CYCLES)
def test_a_bug_planted_in_cycles_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED_IN_CYCLES[name](monkeypatch)
    assert cases_until_caught(0, PLANTED_CASES_MAX, ArrivingWorld) is not None


@pytest.mark.parametrize("make", [TransactionWorld, pytest.param(FollowingTransactionWorld, marks=pytest.mark.slow)])
@pytest.mark.parametrize("numbers", samples(WORLD_CASES))
def test_no_crash_leaves_a_part_of_a_transaction(numbers: Sequence[int], make: type[World]) -> None:
    assert sum(run_case(SAMPLE_SEED, number, make) for number in numbers) >= 40


@pytest.mark.parametrize("name", PLANTED_IN_TRANSACTIONS)
def test_a_bug_planted_in_transactions_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED_IN_TRANSACTIONS[name](monkeypatch)
    assert cases_until_caught(FIRST_CASES.get(name, 0), PLANTED_CASES_MAX, TransactionWorld) is not None
