"""Recovery from the order index against its twin, over entries of every kind."""

from __future__ import annotations

import random
import struct
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.admission import frontier as numbering
from seawall.kernels.admission.client_window import WINDOW_BATCH, WINDOW_RESULT
from seawall.kernels.ordering import goi_recovery
from seawall.kernels.ordering.goi_frontier import COMPLETION_WORDS, NO_BROKER
from seawall.kernels.runtime import jit, tables
from twins.ordering import goi_recovery as twin

EXAMPLES = 40 if jit.PYTHON_MODE else 100
GOI, SLOTS, BROKERS = 8, 4, 2
ENTRY = struct.Struct("<QIIHHqIIIQQII")
SIDE = struct.Struct("<IBxHQQQ")


class Index:
    """An index with its side array and the rings, filled by chance; equal seeds make equal desks."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.first = chance.choice([0, 5, 2**33])
        self.end = self.first + chance.randrange(GOI + 1)
        self.completed = [chance.choice([0, 2**32 - 2, 2**32 + 1]) for _ in range(BROKERS)]
        self.completion = np.zeros(32 * COMPLETION_WORDS, np.int64)
        self.completion[: BROKERS * COMPLETION_WORDS : COMPLETION_WORDS] = self.completed
        self.goi = np.zeros(GOI * 8, np.int64)
        self.side = np.zeros(GOI * 4, np.int64)
        self.results = np.zeros(BROKERS * SLOTS * 8, np.int64)
        self.taken = np.zeros(BROKERS * SLOTS, np.int64)
        for position in range(self.first, self.first + GOI):
            self._fill(chance, position)
        for slot in range(BROKERS * SLOTS):
            index = self.completed[slot // SLOTS] // SLOTS * SLOTS + slot % SLOTS
            self.results[slot * 8 + 7] = chance.choice([0, index + 1])
        self.topics = np.zeros(3, numbering.TOPIC_ROW)
        self.table = (np.zeros(4, np.uint64), np.zeros(4, np.int64), np.zeros(4, np.uint8))
        for row in range(3):
            tables.table_put(*self.table, np.zeros(1, np.int64), np.uint64(row + 1), row)
            self.topics[row] = (row + 1, 1, 5, 50, chance.choice([6, 900]), 3, 1, 2, 0)
        self.numbers = np.array([0, chance.choice([0, 10**6])], np.int64)
        self.latest = np.full(3, -1, np.int64)

    def _fill(self, chance: random.Random, position: int) -> None:
        flags = chance.choice([0, 0, 0, 1, 32, 8 if chance.random() < 0.3 else 0, 64 if chance.random() < 0.3 else 0])
        broker = chance.randrange(BROKERS) if flags not in (8, 64) else NO_BROKER
        index = self.completed[broker] + chance.randrange(-2, SLOTS) if broker != NO_BROKER else 0
        client = chance.choice([5, 6, 1 << 63 | 5])
        topic = chance.randrange(1, 5)
        head = (
            position + 1,
            topic,
            chance.randrange(2**32),
            broker,
            3,
            7,
            chance.randrange(96, 999),
            chance.randrange(1, 9),
        )
        place = position % GOI
        entry = ENTRY.pack(*head, 0, client, chance.randrange(9), index & 0xFFFFFFFF, flags)
        self.goi[place * 8 : place * 8 + 8] = np.frombuffer(entry, np.int64)
        stamp = SIDE.pack(
            topic, chance.choice([0, 0, 2]), 0x63, chance.randrange(1, 99), 44, chance.randrange(2 * 10**6)
        )
        self.side[place * 4 : place * 4 + 4] = np.frombuffer(stamp, np.int64)

    def run(self, module: ModuleType, space: int) -> list[object]:
        stretch = (self.first, self.end, self.goi, self.side)
        state = (*self.table, self.topics, self.numbers)
        stops = [module.replay_topics(*stretch, *state, self.latest)]
        batches, outcomes = np.zeros(space, WINDOW_BATCH), np.zeros(space, WINDOW_RESULT)
        counts = np.zeros(1, np.int64)
        stops.append(module.gather_batches(*stretch, batches, outcomes, counts))
        module.mark_ordered(self.first, self.end, self.goi, self.completion, self.taken, BROKERS)
        for broker, completed in enumerate(self.completed):
            module.mark_answered(self.results, broker, completed, completed + SLOTS, self.taken, BROKERS)
        stops.append(module.scrub_from(self.goi, self.end))
        arrays = (self.goi, self.results, self.taken, self.topics, self.numbers, self.latest, batches, outcomes, counts)
        return [[int(each) for each in stops], *(each.tolist() for each in arrays)]


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32), st.integers(0, 5))
def test_a_recovery_equals_its_twin(seed: int, space: int) -> None:
    assert Index(seed).run(goi_recovery, space) == Index(seed).run(twin, space)


@pytest.mark.parametrize("module", [goi_recovery, twin], ids=["kernel", "twin"])
def test_scrubbing_keeps_entries_below_the_first_hole(module: ModuleType) -> None:
    goi = np.zeros(8 * GOI, np.int64)
    goi[::8] = [9, 10, 11, 12, 5, 6, 7, 8]  # positions 8 to 11, and 4 to 7 of the lap before
    assert module.scrub_from(goi, 10) == 2
    assert goi[::8].tolist() == [9, 10, 0, 0, 5, 6, 7, 8]
    assert module.scrub_from(goi, 10) == 0
