"""Finished ranges are joined in the order of their positions, in whatever order they arrive."""

from __future__ import annotations

import random
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.ordering import range_heap
from seawall.kernels.runtime import jit
from seawall.kernels.runtime.rings import CONSUMED, COUNTER_WORDS, PRODUCED
from twins.ordering import range_heap as twin

EXAMPLES = 25 if jit.PYTHON_MODE else 100


class Ranges:
    """Rings of a few workers with four items each, and a small heap."""

    def __init__(self, workers: int, *, space: int = 3, limit: int = 0) -> None:
        self.words = [np.zeros(4 * range_heap.RANGE_WORDS, np.int64) for _ in range(workers)]
        self.counters = [np.zeros(COUNTER_WORDS, np.int64) for _ in range(workers)]
        self.heap = (np.zeros(space, np.int64), np.zeros(space, np.int64), np.zeros(1, np.int64), np.zeros(2, np.int64))
        self.limit = limit

    def push(self, worker: int, first: int, end: int) -> bool:
        counters = self.counters[worker]
        if counters[PRODUCED] - counters[CONSUMED] == 4:
            return False
        at = int(counters[PRODUCED]) % 4 * 2
        self.words[worker][at : at + 2] = first, end
        counters[PRODUCED] += 1
        return True

    def drain(self, module: ModuleType) -> None:
        for words, counters in zip(self.words, self.counters, strict=True):
            self.limit = int(module.drain_ranges(words, counters, *self.heap, self.limit))

    def seen(self) -> tuple[object, ...]:
        firsts, ends, counts, _ = self.heap
        pairs = sorted(zip(firsts[: counts[0]].tolist(), ends[: counts[0]].tolist(), strict=True))
        return self.limit, pairs, [int(each[CONSUMED]) for each in self.counters]


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 5), st.sampled_from([0, 7, 2**40]))
def test_any_order_of_arrival_gives_the_same_limit(seed: int, workers: int, space: int, start: int) -> None:
    """Ranges are assigned to workers in rising order; each worker reports its ranges at random times."""
    chance = random.Random(seed)
    ranges, model = Ranges(workers, space=space, limit=start), Ranges(workers, space=space, limit=start)
    todo: list[list[tuple[int, int]]] = [[] for _ in range(workers)]
    at = start
    for _ in range(30):
        size = chance.randrange(1, 9)
        chance.choice(todo).append((at, at + size))
        at += size
    while any(todo) or ranges.limit < at:
        ready = [worker for worker in range(workers) if todo[worker]]
        if ready and chance.random() < 0.7:
            worker = chance.choice(ready)
            first, end = todo[worker][0]
            if ranges.push(worker, first, end):
                model.push(worker, first, end)
                todo[worker].pop(0)
        if chance.random() < 0.5:
            ranges.drain(range_heap)
            model.drain(twin)
            assert ranges.seen() == model.seen()
            missing = {position for mine in todo for first, end in mine for position in range(first, end)}
            assert ranges.limit <= min(missing, default=at)
    assert ranges.seen()[:2] == (at, [])


@pytest.mark.parametrize("module", [range_heap, twin], ids=["kernel", "twin"])
def test_a_full_heap_does_not_block_the_next_range(module: ModuleType) -> None:
    ranges = Ranges(2, space=1)
    for first in (10, 20, 30):
        ranges.push(0, first, first + 10)
    ranges.drain(module)
    assert ranges.seen() == (0, [(10, 20)], [1, 0])
    ranges.push(1, 0, 10)
    ranges.drain(module)
    assert ranges.seen() == (20, [], [1, 1])
    ranges.drain(module)
    assert ranges.seen() == (40, [], [3, 1])


@pytest.mark.parametrize("module", [range_heap, twin], ids=["kernel", "twin"])
def test_a_range_below_the_limit_changes_nothing(module: ModuleType) -> None:
    ranges = Ranges(1, limit=0)
    ranges.push(0, 4, 8)
    ranges.drain(module)
    ranges.limit = 6  # raised by the owner, who has read the index
    ranges.push(0, 1, 3)
    ranges.drain(module)
    assert ranges.seen() == (8, [], [2])
