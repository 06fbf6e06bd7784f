"""The frontier of a pod against its twin: the same arrays, whatever entries, stops and numbers there are."""

from __future__ import annotations

import random
import struct
from types import ModuleType

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels import frontier as numbering
from seawall.kernels import goi_frontier, jit, tables
from seawall.kernels.twins import goi_frontier as twin

EXAMPLES = 40 if jit.PYTHON_MODE else 400
GOI, SLOTS, BROKERS, BLOG = 8, 4, 2, 4096
ENTRY = struct.Struct("<QIIHHqIIIQQII")


class Desk:
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
    desk, model = Desk(seed), Desk(seed)
    assert desk.run(goi_frontier) == model.run(twin)
    assert desk.seen() == model.seen()
    for topic in desk.topics:
        topic["ceiling"] = 1000
    model.topics["ceiling"] = 1000
    assert desk.run(goi_frontier) == model.run(twin)
    assert desk.seen() == model.seen()


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32), st.integers(0, GOI - 1))
def test_the_parts_of_a_run_equal_their_twins(seed: int, place: int) -> None:
    desk, model = Desk(seed), Desk(seed)
    base = place * 8
    assert goi_frontier.blog_offset_of(desk.goi, base) == twin.blog_offset_of(model.goi, base)
    for flags in (0, 1):
        for row in (-1, 0, 1, 2, 3):
            assert goi_frontier.refusal_of(desk.topics, row, flags) == twin.refusal_of(model.topics, row, flags)
    for module, each in ((goi_frontier, desk), (twin, model)):
        module.settle_nop(each.goi, each.start + place, each.side, each.notes)
        module.number_entry(each.goi, base, 33, 10**12, each.topics, 2, each.numbers, each.side, place * 4)
        module.write_side(each.side, 4, 9, 2, 0x63, 11, 12, 13)
    assert desk.seen() == model.seen()
    if int(desk.goi[base + 2]) & 0xFFFF < BROKERS:
        at = goi_frontier.blog_place(desk.goi, base, desk.laps, BLOG)
        assert at == twin.blog_place(model.goi, base, model.laps, BLOG)
        assert desk.laps.tolist() == model.laps.tolist() or desk.laps.tolist() == [0, 0]
        index = goi_frontier.slot_index_of(desk.goi, base, desk.completion)
        assert index == twin.slot_index_of(model.goi, base, model.completion)
        for module, each in ((goi_frontier, desk), (twin, model)):
            module.write_result(each.goi, each.side, each.start + place, 5, each.results, 8)
        assert desk.seen() == model.seen()
