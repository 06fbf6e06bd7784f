"""The hash table against a dict and the heap against a sorted list, step by step, at their bounds."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seawall.kernels.runtime import jit, tables
from twins.runtime import tables as twin

EXAMPLES = 15 if jit.PYTHON_MODE else 100
KEY_MAX = 2**64 - 1


class KernelTable:
    """The arrays of one table and the calls on them."""

    def __init__(self, slots: int) -> None:
        self.keys = np.zeros(slots, np.uint64)
        self.values = np.zeros(slots, np.int64)
        self.used = np.zeros(slots, np.uint8)
        self.counts = np.zeros(1, np.int64)

    def put(self, key: int, value: int) -> int:
        return tables.table_put(self.keys, self.values, self.used, self.counts, key, value)

    def remove(self, key: int) -> int:
        return tables.table_remove(self.keys, self.values, self.used, self.counts, key)

    def find(self, key: int) -> int:
        return tables.table_find(self.keys, self.used, key)

    def content(self) -> dict[int, int]:
        return {int(self.keys[slot]): int(self.values[slot]) for slot in np.flatnonzero(self.used)}

    def check_runs(self) -> None:
        """No slot is free between the home of an entry and its slot, and the key of every free slot is zero."""
        slots = self.keys.size
        assert not self.keys[self.used == 0].any()
        for slot in np.flatnonzero(self.used):
            home = tables.home_slot(self.keys[slot], slots)
            distance = (int(slot) - home) % slots
            assert all(self.used[(home + step) % slots] for step in range(distance))


def keys_at_home(slot: int, slots: int, count: int) -> list[int]:
    """Keys that all want the same slot."""
    found = (key for key in range(1 << 16) if tables.home_slot(key, slots) == slot)
    return [next(found) for _ in range(count)]


some_keys = st.one_of(
    st.integers(0, 12), st.sampled_from([0, KEY_MAX, 2**63, 2**32, 2**32 - 1]), st.integers(0, KEY_MAX)
)


class TableMachine(RuleBasedStateMachine):
    """The same calls on the kernel's table and on its twin."""

    @initialize(bits=st.integers(0, 5))
    def make(self, bits: int) -> None:
        self.table, self.model = KernelTable(1 << bits), twin.Table(1 << bits)

    @rule(key=some_keys, value=st.integers(-(2**63), 2**63 - 1))
    def put(self, key: int, value: int) -> None:
        assert self.table.put(key, value) == twin.table_put(self.model, key, value)

    @rule(key=some_keys)
    def remove(self, key: int) -> None:
        assert self.table.remove(key) == twin.table_remove(self.model, key)

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        self.remove(data.draw(st.sampled_from(sorted(self.model.entries))))

    @rule(key=some_keys)
    def find(self, key: int) -> None:
        slot = self.table.find(key)
        assert (slot == tables.ABSENT) == (key not in self.model.entries)
        assert slot == tables.ABSENT or self.table.values[slot] == twin.table_find(self.model, key)

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "table"):
            assert self.table.content() == self.model.entries
            assert self.table.counts[0] == len(self.model.entries)
            assert self.table.counts[0] * 4 <= self.table.keys.size * 3
            self.table.check_runs()


TableMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
TestTable = TableMachine.TestCase


@settings(max_examples=EXAMPLES * 3)
@given(some_keys, st.integers(0, 12))
def test_home_slots_equal_their_twin(key: int, bits: int) -> None:
    assert tables.home_slot(key, 1 << bits) == twin.home_slot(key, 1 << bits)


def test_home_slots_spread() -> None:
    slots = 256
    for stride in (1, 64, 2**32, 2**40):
        homes = {tables.home_slot(index * stride, slots) for index in range(slots)}
        assert len(homes) > slots // 3


@pytest.mark.parametrize("slots", [1, 2, 4, 8, 64])
def test_a_table_accepts_three_quarters_of_its_slots(slots: int) -> None:
    table = KernelTable(slots)
    space = slots * 3 // 4
    assert [table.put(key, key) for key in range(space)] == [tables.ADDED] * space
    assert table.put(space, 0) == tables.FULL
    assert table.find(space) == tables.ABSENT
    if space:
        assert table.put(0, 5) == tables.PRESENT
        assert table.remove(0) == tables.PRESENT
        assert table.put(KEY_MAX, 1) == tables.ADDED
    assert table.counts[0] == space


def test_zero_is_a_valid_key() -> None:
    table = KernelTable(8)
    assert (table.find(0), table.remove(0)) == (tables.ABSENT, tables.ABSENT)
    assert (table.put(0, 9), table.put(KEY_MAX, 8)) == (tables.ADDED, tables.ADDED)
    assert table.content() == {0: 9, KEY_MAX: 8}
    assert (table.remove(0), table.find(0)) == (tables.PRESENT, tables.ABSENT)


def test_a_run_wraps_around_the_end_and_closes_gaps() -> None:
    slots = 8
    crowd = keys_at_home(slots - 2, slots, 4)
    stranger = keys_at_home(1, slots, 1)[0]
    for removed in crowd:
        table = KernelTable(slots)
        for value, key in enumerate([*crowd, stranger]):
            assert table.put(key, value) == tables.ADDED
        assert sorted(np.flatnonzero(table.used)) == [0, 1, 2, 6, 7]
        assert table.remove(removed) == tables.PRESENT
        table.check_runs()
        left = {key: value for value, key in enumerate([*crowd, stranger]) if key != removed}
        assert table.content() == left
        assert table.find(stranger) == 1, "the stranger moves home when the run before it shrinks"


def test_an_entry_at_home_stays_there() -> None:
    slots = 8
    first, second = keys_at_home(3, slots, 1)[0], keys_at_home(4, slots, 1)[0]
    table = KernelTable(slots)
    table.put(first, 1)
    table.put(second, 2)
    assert table.remove(first) == tables.PRESENT
    assert table.find(second) == 4


pairs = st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
close_pairs = st.tuples(st.integers(0, 3), st.integers(0, 3))


@settings(max_examples=EXAMPLES * 2)
@given(st.integers(0, 20), st.lists(st.one_of(pairs, close_pairs, st.none()), max_size=60))
def test_heap_equals_its_twin(space: int, steps: list[tuple[int, int] | None]) -> None:
    keys, values, counts = np.zeros(space, np.int64), np.zeros(space, np.int64), np.zeros(1, np.int64)
    model, taken, expected = twin.Heap(space), np.zeros(2, np.int64), np.zeros(2, np.int64)
    for step in [*steps, *[None] * (space + 1)]:
        if step is None:
            assert tables.heap_pop(keys, values, counts, taken) == twin.heap_pop(model, expected)
            assert taken.tolist() == expected.tolist()
        else:
            assert tables.heap_push(keys, values, counts, *step) == twin.heap_push(model, *step)
        assert counts[0] == len(model.pairs)
        if model.pairs:
            assert (keys[0], values[0]) == model.pairs[0]
    assert counts[0] == 0


def test_a_long_heap_agrees_with_heapq() -> None:
    count = 300 if jit.PYTHON_MODE else 20_000
    numbers = np.random.default_rng(3).integers(0, 1000, (count, 2)).tolist()
    keys, values, counts = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(1, np.int64)
    model: list[tuple[int, int]] = []
    for key, value in numbers:
        assert tables.heap_push(keys, values, counts, key, value) == tables.ADDED
        heapq.heappush(model, (key, value))
    assert tables.heap_push(keys, values, counts, 0, 0) == tables.FULL
    taken = np.zeros(2, np.int64)
    while model:
        assert tables.heap_pop(keys, values, counts, taken) == tables.PRESENT
        assert tuple(taken) == heapq.heappop(model)
    assert tables.heap_pop(keys, values, counts, taken) == tables.ABSENT


@settings(max_examples=EXAMPLES)
@given(st.one_of(pairs, close_pairs), st.one_of(pairs, close_pairs))
def test_pairs_are_ordered_by_both_numbers(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert tables.comes_before(*one, *other) == twin.comes_before(*one, *other)
