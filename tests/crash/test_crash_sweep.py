"""A sample of the crash sweep, and proof that it finds bugs: each planted one is caught within so many cases.

`python tests/crash/run.py` does the same for as many images as one likes.
"""

from __future__ import annotations

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
SAMPLE_CASES = 96
SAMPLE_PARTS = 8
PLANTED_CASES_MAX = 120
FOLLOWING_CASES = 40
FOLLOWING_PARTS = 4
ARRIVING_CASES = 40
ARRIVING_PARTS = 4
CYCLING_CASES = 40
CYCLING_PARTS = 4
TRANSACTION_CASES = 40
TRANSACTION_PARTS = 4

#: Where the search for a planted bug begins, if the scripts before hardly ever do what it spoils.
FIRST_CASES = {
    "checksum skipped at replay": 240,
    "off by one at rotation": 40,
    "continued before the next file has its name": 40,
    "log dropped too early": 120,
    "segment dropped before the eviction is durable": 80,
}


@pytest.mark.parametrize("part", range(SAMPLE_PARTS))
def test_no_crash_breaks_a_promise(part: int) -> None:
    images = sum(run_case(SAMPLE_SEED, number) for number in range(part, SAMPLE_CASES, SAMPLE_PARTS))
    # All parts together take more than a thousand.
    assert images >= 90


def test_a_case_is_always_the_same() -> None:
    assert case_of(3, 4) == case_of(3, 4)
    assert case_of(3, 4) != case_of(3, 5)
    assert run_case(3, 4) == run_case(3, 4)


@pytest.mark.parametrize(
    ("make", "number"),
    [
        # Segments that a transaction adopts are named out of their order, and an append follows.
        (TransactionWorld, 40),
        # No seq is lost by a crash, and bytes are counted over it.
        (FollowingTransactionWorld, 77),
    ],
)
def test_what_was_found_stays_mended(make: type[World], number: int) -> None:
    assert run_case(SAMPLE_SEED, number, make)


def cases_until_caught(first: int, limit: int, make: type[World] = World) -> int | None:
    """How many cases it takes until the sweep complains."""
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


@pytest.mark.parametrize("part", range(FOLLOWING_PARTS))
def test_no_crash_of_a_follower_breaks_a_promise(part: int) -> None:
    numbers = range(part, FOLLOWING_CASES, FOLLOWING_PARTS)
    assert sum(run_case(SAMPLE_SEED, number, FollowingWorld) for number in numbers) >= 40


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, ARRIVING_PARTS))]
)
def test_no_crash_breaks_a_promise_to_a_connection(part: int) -> None:
    numbers = range(part, ARRIVING_CASES, ARRIVING_PARTS)
    assert sum(run_case(SAMPLE_SEED, number, ArrivingWorld) for number in numbers) >= 60


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, CYCLING_PARTS))])
def test_no_crash_breaks_a_promise_to_publishers_of_small_batches(part: int) -> None:
    numbers = range(part, CYCLING_CASES, CYCLING_PARTS)
    assert sum(run_case(SAMPLE_SEED, number, CyclingWorld) for number in numbers) >= 60


@pytest.mark.parametrize("name", PLANTED_IN_LOCAL_CYCLES)
def test_a_bug_planted_in_local_cycles_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED_IN_LOCAL_CYCLES[name](monkeypatch)
    assert cases_until_caught(0, PLANTED_CASES_MAX, CyclingWorld) is not None


@pytest.mark.parametrize("name", PLANTED_IN_CYCLES)
def test_a_bug_planted_in_cycles_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED_IN_CYCLES[name](monkeypatch)
    assert cases_until_caught(0, PLANTED_CASES_MAX, ArrivingWorld) is not None


@pytest.mark.parametrize("make", [TransactionWorld, FollowingTransactionWorld])
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, TRANSACTION_PARTS))]
)
def test_no_crash_leaves_a_part_of_a_transaction(part: int, make: type[World]) -> None:
    numbers = range(part, TRANSACTION_CASES, TRANSACTION_PARTS)
    assert sum(run_case(SAMPLE_SEED, number, make) for number in numbers) >= 40


@pytest.mark.parametrize("name", PLANTED_IN_TRANSACTIONS)
def test_a_bug_planted_in_transactions_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED_IN_TRANSACTIONS[name](monkeypatch)
    assert cases_until_caught(FIRST_CASES.get(name, 0), PLANTED_CASES_MAX, TransactionWorld) is not None
