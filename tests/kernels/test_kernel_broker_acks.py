"""Answers of a broker against their twin, and the guarantee of each ack level."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.ordering import broker_acks, broker_ring
from seawall.kernels.runtime import jit
from twins.ordering import broker_acks as twin

EXAMPLES = 25 if jit.PYTHON_MODE else 100
SLOTS = 4
UNKNOWN = 2**64 - 1


@pytest.fixture(autouse=True, scope="module", params=[broker_acks, twin], ids=["kernel", "twin"])
def subject(request: pytest.FixtureRequest) -> None:
    """What holds for the kernels holds for their twins."""
    PendingSlots.subject = request.param


class PendingSlots:
    """Claimed slots of a ring of four, and their results, over memory of its own."""

    subject: ModuleType = broker_acks

    def __init__(self, *waiting: tuple[int, int], first: int = 0, spaces: int = 8) -> None:
        self.state = np.zeros(broker_ring.STATE_SIZE, np.int64)
        self.state[[broker_ring.ANSWERED, broker_ring.CLAIMED]] = first, first + len(waiting)
        self.pending = np.zeros(SLOTS, broker_ring.PENDING_ROW)
        for index, (order, level) in enumerate(waiting, start=first):
            row = self.pending[index % SLOTS]
            row["owner"], row["client_id"], row["client_seq"] = 70 + index, 1 << 63, index
            row["order"], row["ack_level"], row["stage"] = order, level, broker_ring.STAGE_WAITING
        self.slots = np.zeros(SLOTS * 8, np.int64)
        self.results = self.slots.view(np.uint8)
        self.control = np.zeros(16, np.int64)
        self.answers = np.zeros(spaces, broker_acks.ANSWER_ROW)

    def settle(self, index: int, position: int, status: int = 0, reason: int = 0) -> None:
        content = struct.pack("<qQQQBxH20xQ", position, position + 100, position + 200, 7, status, reason, index + 1)
        self.results.reshape(-1, 64)[index % SLOTS] = np.frombuffer(content, np.uint8)

    def collect(self, module: ModuleType | None = None, *, durable: int = 0) -> list[tuple[Any, ...]]:
        self.control[broker_acks.CONTROL_DURABLE] = durable
        arrays = (self.state, self.pending, self.slots, self.results, self.control, self.answers)
        return self.answers[: (module or self.subject).collect_answers(*arrays)].tolist()

    @property
    def answered(self) -> int:
        return int(self.state[broker_ring.ANSWERED])


cells = st.tuples(st.sampled_from([0, 2, 5]), st.sampled_from([0, 1, 2]))
results = st.tuples(st.integers(0, 3), st.integers(-1, 9), st.integers(0, 4), st.integers(0, 9))
stages = st.lists(st.sampled_from([2, 2, 2, 1, 0]), min_size=SLOTS, max_size=SLOTS)


@settings(max_examples=EXAMPLES)
@given(
    st.lists(cells, max_size=4),
    stages,
    st.lists(results, max_size=8),
    st.sampled_from([0, 3, 2**40]),
    st.integers(0, 5),
)
def test_answers_equal_their_twin(
    waiting: list[tuple[int, int]],
    stage: list[int],
    settled: list[tuple[int, int, int, int]],
    first: int,
    spaces: int,
) -> None:
    slots, model = (
        PendingSlots(*waiting, first=first, spaces=spaces),
        PendingSlots(*waiting, first=first, spaces=spaces),
    )
    for each in (slots, model):
        each.pending["stage"] = stage
    for slot, position, status, durable in settled:
        for each in (slots, model):
            each.settle(first + slot, position, status, 5)
        assert slots.collect(broker_acks, durable=durable) == model.collect(twin, durable=durable)
        assert slots.state.tolist() == model.state.tolist()
        for name in broker_ring.PENDING_ROW.names or ():
            if name != "next_open":  # the kernel remembers what it need not check again; the twin checks everything
                assert slots.pending[name].tolist() == model.pending[name].tolist()


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("status", [2, 3, 4])
def test_a_refusal_is_answered_immediately_at_every_level(level: int, status: int) -> None:
    slots = PendingSlots((5, level))
    assert slots.collect() == []
    slots.settle(0, 9, status, 0x25)
    assert slots.collect() == [(70, 0, 1 << 63, 0, 9, 109, 209, 7, 0x25, status, level)]
    assert slots.collect() == []


@pytest.mark.parametrize("status", [0, 1])
def test_level_1_is_acked_when_ordered_level_2_when_durable_and_level_0_never(status: int) -> None:
    """INV-ANSWER-DURABLE."""
    slots = PendingSlots((2, 0), (2, 1), (2, 2))
    for index in range(3):
        slots.settle(index, 10 + index, status)
    assert [answer[1] for answer in slots.collect(durable=12)] == [1]
    assert slots.answered == 2
    assert [answer[1] for answer in slots.collect(durable=13)] == [2]
    assert (slots.answered, slots.collect(durable=99)) == (3, [])


def test_order_0_is_answered_on_arrival_at_level_1_only() -> None:
    slots = PendingSlots((0, 1), (0, 2), (0, 0))
    assert slots.collect() == [(70, 0, 1 << 63, 0, UNKNOWN, 0, 0, UNKNOWN, 0, 0, 1)]
    assert slots.answered == 1
    slots.settle(1, 4)
    assert slots.collect(durable=4) == []
    assert [answer[1] for answer in slots.collect(durable=5)] == [1]


def test_results_arrive_in_any_order_and_the_count_stops_at_the_first_missing() -> None:
    slots = PendingSlots((5, 1), (5, 1), (5, 1))
    slots.settle(2, 1)
    slots.settle(1, 2)
    assert [answer[1] for answer in slots.collect()] == [1, 2]
    assert slots.answered == 0
    slots.settle(0, 3)
    assert [answer[1] for answer in slots.collect()] == [0]
    assert slots.answered == 3


def test_a_reserved_slot_stops_the_count_and_gets_no_answer() -> None:
    slots = PendingSlots((2, 1), (2, 1))
    slots.pending[0]["stage"] = broker_ring.STAGE_RESERVED
    slots.settle(0, 1)
    slots.settle(1, 2)
    assert [answer[1] for answer in slots.collect()] == [1]
    assert slots.answered == 0


def test_a_result_of_the_previous_lap_is_no_answer() -> None:
    slots = PendingSlots((2, 1), first=SLOTS)
    slots.settle(0, 1)
    assert slots.collect() == []
    slots.settle(SLOTS, 2)
    assert [answer[4] for answer in slots.collect()] == [2]


def test_answers_that_do_not_fit_come_with_the_next_call() -> None:
    slots = PendingSlots((2, 1), (2, 1), (2, 1), spaces=2)
    for index in range(3):
        slots.settle(index, index)
    assert [answer[1] for answer in slots.collect()] == [0, 1]
    assert slots.answered == 2
    assert [answer[1] for answer in slots.collect()] == [2]


def test_an_unknown_position_is_not_durable() -> None:
    slots = PendingSlots((2, 2), (2, 1))
    slots.settle(0, -1, 1)
    slots.settle(1, -1, 1)
    assert [(answer[1], answer[4]) for answer in slots.collect(durable=99)] == [(1, UNKNOWN)]
