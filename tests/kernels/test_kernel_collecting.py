"""Collecting against its twin, on arrays filled at random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.ordering import collecting
from seawall.kernels.runtime.rings import CONSUMED, COUNTER_WORDS, PRODUCED
from twins.ordering import collecting as twins

RING = 8
BROKERS = 3


@given(client_id=st.integers(-(2**63), 2**63 - 1), workers=st.integers(1, 9))
def test_the_worker_of_a_client_equals_its_twin(client_id: int, workers: int) -> None:
    worker = collecting.worker_of(client_id, workers)
    assert worker == twins.worker_of(client_id, workers)
    assert 0 <= worker < workers


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_clients_are_spread_over_the_workers(workers: int) -> None:
    counts = np.bincount([collecting.worker_of(client_id, workers) for client_id in range(1, 8_001)])
    assert counts.size == workers
    assert counts.min() > 0.8 * 8_000 / workers


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_collecting_equals_its_twin(data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, 3))
    capacity = data.draw(st.sampled_from([2, 4, 16]))
    cursor = data.draw(st.integers(0, 40))
    slots = np.zeros((BROKERS, RING, 8), np.int64)
    tails = np.zeros((BROKERS, 8), np.int64)
    taken = np.zeros((BROKERS, RING), np.int64)
    collected = np.zeros((BROKERS, 8), np.int64)
    for broker in range(BROKERS):
        collecting.start_cursor(collected.reshape(-1), broker, cursor, data.draw(st.integers(0, cursor + 6)))
        collected[broker, collecting.IS_DEAD] = data.draw(st.integers(0, 1))
        collected[broker, collecting.WAITED_INDEX] = data.draw(st.integers(cursor, cursor + 4))
        collected[broker, collecting.WAITED_SINCE] = data.draw(st.integers(0, 20))
        tails[broker, collecting.TAIL_CLAIMED] = cursor + data.draw(st.integers(0, RING))
        for index in range(cursor, cursor + RING):
            slot = slots[broker, index % RING]
            slot[collecting.PBR_TOKEN] = index + 1 if data.draw(st.integers(0, 3)) else index + 1 - RING
            slot[collecting.PBR_FLAGS] = data.draw(st.sampled_from([0, 1, collecting.FLAG_NOP])) << 32
            slot[collecting.PBR_CLIENT] = data.draw(st.sampled_from([7, 8, 9, -(2**63) + 3]))
            taken[broker, index % RING] = data.draw(st.sampled_from([0, index + 1]))
    counters = np.zeros(workers * COUNTER_WORDS, np.int64)
    counters[PRODUCED::COUNTER_WORDS] = 5
    counters[CONSUMED::COUNTER_WORDS] = data.draw(st.integers(5 - min(capacity, 5), 5))
    brokers = np.array(data.draw(st.permutations(range(BROKERS))), np.int64)
    fixed = (slots.reshape(-1), RING, tails.reshape(-1), brokers, taken.reshape(-1))
    numbers = (data.draw(st.integers(1, RING)), 20, data.draw(st.integers(0, 20)))
    states = [(collected.reshape(-1).copy(), np.zeros(workers * capacity, np.int64), counters.copy()) for _ in range(2)]
    assert collecting.collect_rings(*fixed, *states[0], *numbers) == twins.collect_rings(*fixed, *states[1], *numbers)
    for ours, theirs in zip(*states, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_new_cursor_equals_its_twin() -> None:
    lines = [np.full(16, 9, np.int64) for _ in range(2)]
    collecting.start_cursor(lines[0], 1, 5, 8)
    twins.start_cursor(lines[1], 1, 5, 8)
    np.testing.assert_array_equal(*lines)
