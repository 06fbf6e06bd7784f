"""The commit frontier of a pod against its twin: any entries, stops and numbers give the same arrays."""

from __future__ import annotations

import random
import struct
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.admission import frontier as numbering
from seawall.kernels.ordering import goi_frontier
from seawall.kernels.runtime import jit, tables
from twins.ordering import goi_frontier as twin

EXAMPLES = 40 if jit.PYTHON_MODE else 100
GOI, SLOTS, BROKERS, BLOG = 8, 4, 2, 4096
ENTRY = struct.Struct("<QIIHHqIIIQQII")


class Pod:
    """A small fabric as arrays, filled by chance; equal seeds make equal desks."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.start = chance.choice([0, 3, 2**33 + 6])
        self.goi = np.zeros(GOI * 8, np.int64)
        self.side = np.zeros(GOI * goi_frontier.SIDE_WORDS, np.int64)
        for place in range(GOI):
            status = chance.choice([0, 0, 2])
            self.side[place * 4 : place * 4 + 4] = status << 32 | 5, chance.randrange(3), 7, chance.randrange(100)
        self.notes = np.array([chance.choice([0, 0, 9]) for _ in range(GOI * 2)], np.int64)
        self.blogs = np.frombuffer(chance.randbytes(BLOG * BROKERS), np.uint8)
        self.laps = np.zeros(BROKERS, np.int64)
        self.completion = np.zeros(32 * goi_frontier.COMPLETION_WORDS, np.int64)
        self.completed = [chance.choice([0, 2**32 - 2, 2**32 + 5]) for _ in range(BROKERS)]
        for broker, completed in enumerate(self.completed):
            self.completion[broker * goi_frontier.COMPLETION_WORDS] = completed
        self.results = np.zeros(BROKERS * SLOTS * 8, np.int64)
        self.control = np.zeros(16, np.int64)
        self.control[[4, 5]] = self.start, max(0, self.start - 1)
        self.replicas = np.zeros(16 * 8, np.int64)
        self.replicas[::8] = [self.start + chance.randrange(-2, 9) for _ in range(16)]
        self.topics = np.zeros(4, numbering.TOPIC_ROW)
        self.table = (np.zeros(8, np.uint64), np.zeros(8, np.int64), np.zeros(8, np.uint8))
        counts = np.zeros(1, np.int64)
        for row in range(4):
            tables.table_put(*self.table, counts, np.uint64(row + 1), row)
            flags = 1 | chance.choice([0, 0, 2, 4, 8])
            self.topics[row] = (
                row + 1,
                flags,
                5,
                50,
                5 + chance.choice([4, 40, 400]),
                chance.choice([0, 10**18]),
                1,
                2,
                0,
            )
        self.numbers = np.array([self.start, 10**9], np.int64)
        used = [0] * BROKERS
        for position in range(self.start, self.start + chance.randrange(GOI)):
            self._fill(chance, position, used)
        self.limit = self.start + chance.randrange(GOI)
        self.term_start = self.start + chance.randrange(3)
        self.members = chance.randrange(16)

    def _fill(self, chance: random.Random, position: int, used: list[int]) -> None:
        flags = chance.choice([0, 0, 0, 1, 8, 32, 32, 64 if chance.random() < 0.3 else 0])
        broker = chance.randrange(BROKERS) if flags not in (8, 64) else goi_frontier.NO_BROKER
        index, count = 0, chance.randrange(6)
        if broker != goi_frontier.NO_BROKER:
            if used[broker] == SLOTS:
                return
            index, used[broker] = self.completed[broker] + used[broker], used[broker] + 1
        offset = chance.randrange(2**40 // BLOG) * BLOG + chance.randrange((BLOG - 96) // 64) * 64
        if flags == 32:
            offset = chance.choice([-1, position - 1, position - chance.randrange(1, 12), position + 1])
            count = chance.choice([1, 1, 2 | 0x24 << 8, 4])
        term = 3 if chance.random() < 0.95 else 2
        token = position + 1 if chance.random() < 0.95 else 0
        head = (token, chance.randrange(1, 6), 0, broker, term, offset, chance.randrange(96, 4000), count)
        entry = ENTRY.pack(*head, 0, 1 << 63, 4, index & 0xFFFFFFFF, flags)
        self.goi[position % GOI * 8 : position % GOI * 8 + 8] = np.frombuffer(entry, np.int64)

    def run(self, module: ModuleType) -> list[int]:
        fabric = (self.goi, self.side, self.notes, self.blogs, self.laps, self.completion, self.results, self.control)
        state = (*self.table, self.topics, self.numbers)
        code = module.commit_run(self.limit, 2 * 10**9, 3, self.term_start, *fabric, *state)
        durable = module.advance_durable(self.control, self.replicas, self.members, 1)
        freed = module.advance_completion(self.control, self.results, self.completion, BROKERS)
        return [int(code), int(durable), int(freed)]

    def seen(self) -> list[object]:
        arrays = (self.side, self.completion, self.results, self.control, self.topics, self.numbers)
        return [each.tolist() for each in arrays]


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32))
def test_a_run_equals_its_twin(seed: int) -> None:
    pod, model = Pod(seed), Pod(seed)
    assert pod.run(goi_frontier) == model.run(twin)
    assert pod.seen() == model.seen()
    for topic in pod.topics:
        topic["ceiling"] = 1000
    model.topics["ceiling"] = 1000
    assert pod.run(goi_frontier) == model.run(twin)
    assert pod.seen() == model.seen()


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32), st.integers(0, GOI - 1))
def test_the_parts_of_a_run_equal_their_twins(seed: int, place: int) -> None:
    pod, model = Pod(seed), Pod(seed)
    base = place * 8
    third, fourth = pod.goi[base + 2], pod.goi[base + 3]
    offset = goi_frontier.blog_offset_field(third, fourth)
    assert offset == twin.blog_offset_field(third, fourth)
    for lap in (0, 2**20 * BLOG):
        start = goi_frontier.lap_start(max(0, offset), lap, BLOG)
        assert start == twin.lap_start(max(0, offset), lap, BLOG)
    for flags in (0, 1):
        for known in range(16):
            assert goi_frontier.refusal_of(known, flags) == twin.refusal_of(known, flags)
    codes = []
    for module, each in ((goi_frontier, pod), (twin, model)):
        module.stamp_nop(each.goi, each.start + place, each.side, each.notes)
        codes.append(module.advance_topic(each.topics[2], 5, 300, 33, 10**12))
        module.write_side(each.side, 4, 9, 2, 0x63, 11, 12, 13)
    assert codes[0] == codes[1]
    assert pod.seen() == model.seen()


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32), st.integers(0, 1))
def test_results_equal_their_twin(seed: int, only_missing: int) -> None:
    """Also of slots that are completed already, which a recovery meets."""
    pod, model = Pod(seed), Pod(seed)
    told = []
    for module, each in ((goi_frontier, pod), (twin, model)):
        each.results[7::16] = each.completed[0] + 1 + np.arange(len(each.results[7::16]))
        arrays = (each.goi, each.side, each.completion, each.results)
        stretch = (each.start, each.start + GOI)
        each.goi[2::8] &= ~0xFFFE  # every entry is of one of the brokers
        told.append(module.write_results(*stretch, *arrays, SLOTS, only_missing))
    assert told[0] == told[1]
    assert pod.seen() == model.seen()


@given(st.integers(0, 2**40), st.integers(-(2**31) + 1, 2**31 - 1))
def test_an_index_is_reconstructed_from_its_low_bits(completed: int, ahead: int) -> None:
    index = completed + ahead
    if index < 0:
        return
    for module in (goi_frontier, twin):
        assert module.slot_index_of(index & 0xFFFFFFFF, completed) == (index if ahead >= 0 else -1)


@pytest.mark.parametrize("entries", [2, 128, 1023, 1024, 65_536])
def test_a_chunk_is_at_most_half_of_the_index(entries: int) -> None:
    assert goi_frontier.chunk_of(entries) == twin.chunk_of(entries) <= entries // 2
