"""A batch that came alone: kernel and twin leave the same everywhere, and leave alone what is not that simple."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_pod import CLIENT, START, STRONG, TOPIC, Desk, batch

from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.kernels import jit, lone_arrival
from seawall.kernels.client_window import SIDE_PAGE
from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.goi_frontier import CONTROL_COMMITTED, CONTROL_DURABLE
from seawall.kernels.holding import HELD, READY_TAIL, UNSETTLED_TAIL
from seawall.kernels.order_entries import FLOOR, RESERVED
from seawall.kernels.twins import lone_arrival as twin
from seawall.wire.batches import BatchSource, parse_batch_header, verify_block

PASSES_ON = lone_arrival.PASSES_ON


def both() -> list[Desk]:
    return [Desk(lone_arrival), Desk(twin)]


@settings(max_examples=15 if jit.PYTHON_MODE else 60)
@given(st.lists(st.tuples(st.integers(1, 12), st.binary(max_size=40), st.booleans()), min_size=1, max_size=8))
def test_kernel_and_twin_leave_the_same(steps: list[tuple[int, bytes, bool]]) -> None:
    ours, theirs = both()
    for number, (seq, value, is_strong) in enumerate(steps):
        data = batch(seq, value, value, topic=STRONG if is_strong else TOPIC)
        codes = [desk.take(data, is_strong=is_strong, row=number % 4) for desk in (ours, theirs)]
        assert codes[0] == codes[1]
        assert codes[0] in (PASSES_ON, EPOCH_HEADER + len(data))
        assert ours.content() == theirs.content()
        assert ours.desk[lone_arrival.POSITION : lone_arrival.TERM].tolist() == (
            theirs.desk[lone_arrival.POSITION : lone_arrival.TERM].tolist()
        )


@pytest.mark.parametrize("kernels", [lone_arrival, twin])
def test_the_batch_is_as_it_came_with_the_numbers_of_the_server(kernels: ModuleType) -> None:
    desk, data = Desk(kernels), batch(1, b"one", b"two")
    assert desk.take(data) == EPOCH_HEADER + len(data)
    stored = desk.memory[EPOCH_HEADER : EPOCH_HEADER + len(data)].tobytes()
    header = parse_batch_header(stored, source=BatchSource.STORED)
    verify_block(header, stored[96:])
    assert stored[96:] == data[96:]
    assert (header.position, header.base_seq, header.record_count, header.term) == (START, 1, 2, 2)
    assert desk.counters[RESERVED] == desk.replica[0] == desk.control[CONTROL_DURABLE] == START + 1
    assert desk.control[CONTROL_COMMITTED] == desk.frontier.next_position == START + 1
    described = desk.staged[0]
    assert (described["at"], described["position"], described["client_seq"]) == (1_000 + EPOCH_HEADER, START, 1)
    for window in (desk.order, desk.store):
        assert window.state(ClientId(CLIENT)).next_expected == 2
        original = window.check(ClientId(CLIENT), SessionEpoch(1), ClientSeq(1), header.block_crc).original
        assert original is not None
        assert (original.position, original.base_seq, original.timestamp_ns) == (START, 1, header.timestamp_ns)


def _claim(desk: Desk) -> None:
    desk.tails[8] = 5


def _word(name: str, at: int, value: int) -> Callable[[Desk], None]:
    def change(desk: Desk) -> None:
        getattr(desk, name)[at] = value

    return change


def _hold(desk: Desk) -> None:
    desk.order.arrays[2][0, SIDE_PAGE] = 1


UNREST: dict[str, Callable[[Desk], None]] = {
    "something is reserved": _word("counters", RESERVED, START + 1),
    "something is not committed": _word("control", CONTROL_COMMITTED, START - 1),
    "something is not durable": _word("control", CONTROL_DURABLE, START - 1),
    "a checkpoint is due": _word("counters", FLOOR, START - 100),
    "something is held": _word("worker", HELD, 1),
    "something is ready": _word("worker", READY_TAIL, 1),
    "something is not settled": _word("worker", UNSETTLED_TAIL, 1),
    "a slot is claimed": _claim,
    "the client has something held": _hold,
}


@pytest.mark.parametrize("kernels", [lone_arrival, twin])
@pytest.mark.parametrize("unrest", UNREST.values(), ids=UNREST.keys())
def test_what_is_under_way_comes_first(kernels: ModuleType, unrest: Callable[[Desk], None]) -> None:
    desk = Desk(kernels)
    unrest(desk)
    before = desk.content()
    assert desk.stage(batch(1)) == PASSES_ON
    assert desk.content() == before


ODD = {
    "a repetition": (batch(1), False),
    "outside of the window": (batch(600), False),
    "another session": (batch(2, epoch=2), False),
    "a client that nobody knows": (batch(2, client=10), False),
    "no session": (batch(2, client=(1 << 63) + 1), False),
    "no topic": (batch(2, topic=99), False),
    "the order of another topic": (batch(2, topic=STRONG), False),
    "ahead of its turn": (batch(4, topic=STRONG), True),
}


@pytest.mark.parametrize("kernels", [lone_arrival, twin])
@pytest.mark.parametrize(("data", "is_strong"), ODD.values(), ids=ODD.keys())
def test_what_is_odd_goes_through_the_rings(kernels: ModuleType, data: bytes, is_strong: bool) -> None:
    desk = Desk(kernels)
    assert desk.take(batch(1)) > 0
    before = desk.content()
    assert desk.stage(data, is_strong=is_strong) == PASSES_ON
    assert desk.content() == before
    assert desk.take(batch(2)) > 0


@pytest.mark.parametrize("kernels", [lone_arrival, twin])
def test_a_ceiling_is_raised_by_those_who_can(kernels: ModuleType) -> None:
    desk = Desk(kernels, ceiling=3)
    assert desk.take(batch(1, b"one", b"two")) > 0
    position = desk.frontier.next_position
    assert desk.take(batch(2, b"three")) == PASSES_ON
    assert desk.frontier.next_position == position
    assert desk.order.state(ClientId(CLIENT)).next_expected == desk.store.state(ClientId(CLIENT)).next_expected == 2
    assert TOPIC in [need.topic_id for need in desk.frontier.needs_ceiling()]
