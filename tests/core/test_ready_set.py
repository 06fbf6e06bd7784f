"""The ready set: rounds by weight, ageing, and what work of each band waits in simulated floods."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.ready_set import BANDS, TOP_BAND, WEIGHTS, ReadySet, band_of, deferred

MS = 1_000_000
SECOND = 1_000 * MS
#: A priority of each band.
PRIORITIES = (-500, 100, 300, 600, 900)


@pytest.mark.parametrize(
    ("priority", "band"),
    [(-1000, 0), (-1, 0), (0, 1), (249, 1), (250, 2), (499, 2), (500, 3), (749, 3), (750, 4), (1000, 4), (99_999, 4)],
)
def test_bands(priority: int, band: int) -> None:
    assert band_of(priority) == band


def test_deferred_work_is_one_band_lower() -> None:
    assert [band_of(deferred(priority)) for priority in PRIORITIES] == [0, 0, 1, 2, 3]
    assert deferred(-500) == -500


def served(ready: ReadySet[str], count: int, now_ns: int = 0) -> list[str]:
    found = []
    for _ in range(count):
        key = ready.first(now_ns)
        if key is None:
            break
        ready.take(key)
        found.append(key)
    return found


def test_a_band_is_first_come_first_served() -> None:
    ready: ReadySet[str] = ReadySet()
    for number, key in enumerate("abc"):
        ready.add(key, 100, number)
    # It waits already, and keeps its place.
    ready.add("a", 100, 9)
    assert len(ready) == 3
    assert "a" in ready
    assert served(ready, 9) == ["a", "b", "c"]
    assert not ready
    assert ready.first(0) is None


def test_a_round_serves_each_band_by_its_weight() -> None:
    ready: ReadySet[str] = ReadySet()
    for number in range(100):
        for band, priority in enumerate(PRIORITIES):
            ready.add(f"{band}{number:03}", priority, number)
    rounds = 5
    counts = Counter(key[0] for key in served(ready, rounds * sum(WEIGHTS)))
    assert [counts[str(band)] for band in range(BANDS)] == [rounds * weight for weight in WEIGHTS]


def test_expensive_work_is_paid_back() -> None:
    ready: ReadySet[str] = ReadySet()
    counts = Counter()
    for turn in range(10_000):
        for key, priority in (("large", 100), ("small", 150), ("top", 900)):
            ready.add(key, priority, turn)
        key = ready.first(turn)
        assert key is not None
        ready.take(key, 8 if key == "top" else 1)
        counts[key] += 1
    # The top band has eight times the weight of the other one, and its work costs eight times as much.
    assert abs(counts["top"] - counts["large"] - counts["small"]) <= 10


def test_a_higher_priority_moves_waiting_work_up() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("a", 100, 0)
    ready.add("b", 100, 1)
    ready.add("b", 900, 2)
    ready.add("b", -900, 3)
    assert served(ready, 2, 4) == ["b", "a"]


def test_forgotten_work_is_not_served() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("a", 100, 0)
    ready.add("b", 100, 1)
    ready.discard("a")
    ready.discard("never there")
    ready.add("a", 100, 2)
    assert served(ready, 3, 3) == ["b", "a"]


def test_waiting_moves_work_up_without_a_bound() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("old", -1000, 0)
    assert ready.count_of(0) == 1
    for second, band in ((9, 0), (10, 1), (12.5, 2), (15, 3), (17.5, 4), (1_000, 4)):
        ready.first(int(second * SECOND))
        assert [ready.count_of(each) for each in range(BANDS)].index(1) == band
    # There it is before what came later.
    ready.add("new", 900, 1_000 * SECOND)
    assert served(ready, 2, 1_000 * SECOND) == ["old", "new"]


def test_the_lowest_band_pauses() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("low", -1, 0)
    ready.pauses_lowest = True
    assert ready.first(0) is None
    ready.add("high", 0, 0)
    assert served(ready, 2) == ["high"]
    # It has waited for long enough to be in a higher band.
    assert ready.first(SECOND) == "low"
    ready.pauses_lowest = False
    assert served(ready, 1) == ["low"]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(-1000, 1000), st.integers(0, 3 * SECOND), st.integers(0, 30)),
        max_size=200,
    )
)
def test_everything_is_served_once(work: list[tuple[int, int, int, int]]) -> None:
    ready: ReadySet[int] = ReadySet()
    waiting: set[int] = set()
    now_ns = 0
    for key, priority, pause_ns, cost in work:
        now_ns += pause_ns
        ready.add(key, priority, now_ns)
        waiting.add(key)
        if cost % 3 == 0:
            first = ready.first(now_ns)
            assert first == ready.first(now_ns)
            assert first in waiting
            since_ns = ready.take(first, cost)
            assert since_ns <= now_ns
            waiting.remove(first)
        assert set(ready.keys()) == waiting
        assert sum(ready.count_of(band) for band in range(BANDS)) == len(waiting)
    while (first := ready.first(now_ns)) is not None:
        ready.take(first)
        waiting.remove(first)
    assert not waiting


@pytest.mark.parametrize("seed", range(3))
def test_a_flood_in_the_lowest_band_delays_the_top_band_by_a_few_quanta_and_progresses(seed: int) -> None:
    """Simulated: each delivery takes a quantum, and 500 topics of the lowest band always have new records."""
    chance = random.Random(seed)
    ready: ReadySet[str] = ReadySet()
    since: dict[str, int] = {}
    waits: dict[int, list[int]] = {band: [] for band in range(BANDS)}
    flood = [f"0-{number}" for number in range(500)]
    others = [f"{band}-{number}" for band in range(1, BANDS) for number in range(3)]
    for turn in range(10_000):
        now_ns = turn * MS
        for key in [*(flood if turn == 0 else ()), *(key for key in others if chance.random() < 0.03)]:
            ready.add(key, PRIORITIES[int(key[0])], now_ns)
            since.setdefault(key, turn)
        first = ready.first(now_ns)
        assert first is not None
        ready.take(first)
        waits[int(first[0])].append(turn - since.pop(first))
        if first in flood:
            ready.add(first, PRIORITIES[0], now_ns)
            since[first] = turn
    # Itself, the delivery before it, two topics of its band, and one of the others whose turn it was.
    assert max(waits[TOP_BAND]) <= 5
    assert max(waits[1]) <= 5 * sum(WEIGHTS)
    # Everything else is left to the flood, each topic of it in turn.
    assert len(waits[0]) >= 10_000 - sum(len(waits[band]) for band in range(1, BANDS))
    assert max(waits[0]) <= 2 * len(flood)


def test_a_flood_everywhere_starves_no_band() -> None:
    """Simulated: every band always has more than can be delivered."""
    ready: ReadySet[str] = ReadySet()
    keys = [f"{band}-{number}" for band in range(BANDS) for number in range(50)]
    for key in keys:
        ready.add(key, PRIORITIES[int(key[0])], 0)
    counts: Counter[str] = Counter()
    for turn in range(8_000):
        (key,) = served(ready, 1, turn * MS)
        counts[key] += 1
        ready.add(key, PRIORITIES[int(key[0])], turn * MS)
    assert min(counts[key] for key in keys) >= 8_000 // sum(WEIGHTS) // 50
    assert set(counts) == set(keys)
