"""Slots of the fabric against their twin, and the guarantees of a token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.runtime import jit, slots
from twins.runtime import slots as twin

EXAMPLES = 25 if jit.PYTHON_MODE else 100
WORDS = slots.SLOT_WORDS

firsts = st.sampled_from([0, 1, 7, 2**31 - 1, 2**32, 2**62])
token_words = st.sampled_from([0, 7])


@settings(max_examples=EXAMPLES)
@given(st.integers(1, 5), token_words, firsts, st.lists(st.tuples(st.integers(0, 12), st.integers(-9, 9)), max_size=30))
def test_slots_equal_their_twin(capacity: int, token_word: int, first: int, steps: list[tuple[int, int]]) -> None:
    ring, model = np.zeros(capacity * WORDS, np.int64), np.zeros(capacity * WORDS, np.int64)
    newest: dict[int, tuple[int, int]] = {}
    for step, value in steps:
        index = first + step
        slots.publish_slot(ring, token_word, index, np.full(WORDS, value, np.int64))
        twin.publish_slot(model, token_word, index, np.full(WORDS, value, np.int64))
        newest[index % capacity] = (index, value)
        assert ring.tolist() == model.tolist()
        assert slots.slot_base(capacity, index) == twin.slot_base(capacity, index)
        for asked in range(first, first + 13):
            taken, expected = np.zeros(WORDS, np.int64), np.zeros(WORDS, np.int64)
            ready = newest.get(asked % capacity, (None, 0))[0] == asked
            assert slots.read_slot(ring, token_word, asked, taken) == ready
            assert twin.read_slot(model, token_word, asked, expected) == ready
            assert taken.tolist() == expected.tolist()
            if ready:
                want = [newest[asked % capacity][1]] * WORDS
                want[token_word] = asked + 1
                assert taken.tolist() == want
        for limit in (0, 1, 3, 100):
            run = slots.ready_slots(ring, token_word, first, limit)
            assert run == twin.ready_slots(model, token_word, first, limit) <= min(limit, capacity)


def test_a_run_ends_at_the_first_hole() -> None:
    ring, content = np.zeros(8 * WORDS, np.int64), np.arange(WORDS, dtype=np.int64)
    for index in (10, 11, 12, 14):
        slots.publish_slot(ring, 7, index, content)
    assert slots.ready_slots(ring, 7, 10, 8) == 3
    assert slots.ready_slots(ring, 7, 10, 2) == 2
    assert slots.ready_slots(ring, 7, 13, 8) == 0
    slots.publish_slot(ring, 7, 13, content)
    assert slots.ready_slots(ring, 7, 10, 8) == 5


def test_zeroed_memory_and_the_previous_lap_are_not_ready() -> None:
    """INV-RING-TOKEN."""
    ring, content = np.zeros(4 * WORDS, np.int64), np.zeros(WORDS, np.int64)
    assert slots.read_slot(ring, 0, 0, content) == 0
    slots.publish_slot(ring, 0, 1, content)
    assert slots.read_slot(ring, 0, 1, content) == 1
    assert slots.read_slot(ring, 0, 5, content) == 0
    slots.publish_slot(ring, 0, 5, content)
    assert slots.read_slot(ring, 0, 1, content) == 0


@pytest.mark.parametrize("token_word", [0, 7])
def test_content_without_its_token_is_not_ready(token_word: int) -> None:
    """INV-RING-TOKEN."""
    ring, content = np.zeros(2 * WORDS, np.int64), np.arange(WORDS, dtype=np.int64)
    slots.publish_slot(ring, token_word, 3, content)
    ring[WORDS + token_word] = 0
    assert slots.ready_slots(ring, token_word, 3, 1) == 0


@pytest.mark.parametrize("module", [slots, twin])
def test_reading_accepts_read_only_memory(module: object) -> None:
    ring, content = np.zeros(2 * WORDS, np.int64), np.arange(WORDS, dtype=np.int64)
    slots.publish_slot(ring, 7, 0, content)
    ring.setflags(write=False)
    taken, loaded = np.zeros(WORDS, np.int64), np.zeros(3, np.int64)
    assert module.read_slot(ring, 7, 0, taken) == module.ready_slots(ring, 7, 0, 9) == 1
    module.load_words(ring, 1, loaded)
    assert taken.tolist() == [0, 1, 2, 3, 4, 5, 6, 1]
    assert loaded.tolist() == [1, 2, 3]
