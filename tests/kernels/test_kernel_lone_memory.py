"""A large batch that came alone, to memory: kernel and twin leave the same, and it stays where it came to lie."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_pod import CLIENT, START, STRONG, TOPIC, Desk, batch

from seawall.core.types import ClientId
from seawall.kernels import jit, lone_arrival, lone_memory, lone_turn
from seawall.kernels.arriving import NO_TOPIC
from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.following import REFERENCE_SIZE
from seawall.kernels.frames import (
    FLAG_SUM_BEHIND,
    FRAME_ROW,
    STATE_SIZE,
    STATE_VERSION,
    SUM_FRAME_SIZE,
    sum_ahead,
    write_sum,
)
from seawall.kernels.goi_frontier import CONTROL_DURABLE
from seawall.kernels.twins import lone_memory as twin
from seawall.storage.control import Reference
from seawall.storage.control_batches import parse_control
from seawall.wire.ack_rows import ack_rows
from seawall.wire.batches import BatchSource, parse_batch_header, verify_block
from seawall.wire.frames import checksum

PASSES_ON = lone_arrival.PASSES_ON
ORDERS = np.array([NO_TOPIC, NO_TOPIC, NO_TOPIC, 2, 5], np.uint8)
LEVELS = np.array([0, 0, 0, 1, 2], np.uint8)


class Memory(Desk):
    """A pod at rest, memory in which batches come to lie one behind the other, and a lane."""

    def __init__(self, kernels: ModuleType) -> None:
        super().__init__(lone_arrival)
        self.turns = kernels
        self.long_desk = np.zeros(lone_memory.MEMORY_DESK_SIZE, np.int64)
        self.long_desk[: self.desk.size] = self.desk
        self.long_desk[[lone_memory.LOG_TERM, lone_arrival.FOLLOWED]] = 6, START
        self.slab, self.end = np.zeros(4_000, np.uint8), 0
        self.lane, self.ack = np.zeros(4096, np.uint8), np.zeros(lone_turn.ACK_SIZE, np.uint8)
        self.turn = np.zeros(lone_turn.TURN_SIZE, np.int64)
        self.turn[: lone_turn.SOCKET] = CLIENT, 1, 0, 256, 4096, 1 << 20, 0

    def keep(self, data: bytes, *, at: int = 0, row: int = 0, summed: int = 0) -> int:
        source = self.slab[self.end : self.end + len(data)]
        source[:] = np.frombuffer(data, np.uint8)
        state = np.zeros(STATE_SIZE, np.int64)
        state[STATE_VERSION] = 2
        if summed:
            sum_ahead(source, 0, summed, state)
        self.long_desk[lone_arrival.WALL_NS] = 10**18
        self.long_desk[lone_arrival.STAGED_ROW] = row
        self.long_desk[lone_arrival.FOLLOWED] = int(self.control[CONTROL_DURABLE])
        done: int = self.turns.take_memory_turn(
            *(self.memory, self.long_desk, self.turn, source, len(data), self.lane, at),
            *(ORDERS, LEVELS, np.zeros(2, FRAME_ROW), state, self.ack),
        )
        if done > 0:
            self.end += done
        else:
            # It goes through the rings from here, as it came.
            assert source.tobytes() == data
        return done

    def everything(self) -> list[bytes]:
        followed = int(self.long_desk[lone_arrival.FOLLOWED]).to_bytes(8, "little")
        return [*self.content(), self.slab[: self.end].tobytes(), self.lane.tobytes(), self.ack.tobytes(), followed]


@settings(max_examples=10 if jit.PYTHON_MODE else 40)
@given(st.lists(st.tuples(st.integers(1, 9), st.binary(max_size=60), st.booleans()), min_size=1, max_size=6))
def test_kernel_and_twin_leave_the_same(steps: list[tuple[int, bytes, bool]]) -> None:
    ours, theirs = (Memory(kernels) for kernels in (lone_memory, twin))
    for number, (seq, value, is_strong) in enumerate(steps):
        data = batch(seq, value, value, topic=STRONG if is_strong else TOPIC)
        codes = [each.keep(data, at=number * REFERENCE_SIZE, row=number % 4) for each in (ours, theirs)]
        assert codes[0] == codes[1]
        assert codes[0] in (PASSES_ON, len(data))
        assert ours.everything() == theirs.everything()


@pytest.mark.parametrize("kernels", [lone_memory, twin])
def test_it_stays_with_its_numbers_and_has_its_mark_in_the_lane(kernels: ModuleType) -> None:
    memory = Memory(kernels)
    sent = [batch(1, b"one", b"two"), batch(2, b"three" * 30)]
    for index, data in enumerate(sent):
        assert memory.keep(data, at=index * REFERENCE_SIZE, row=index, summed=(0, 120)[index]) == len(data)
    kept, at = memory.slab.tobytes(), 0
    for index, data in enumerate(sent):
        header = parse_batch_header(kept[at:], source=BatchSource.STORED)
        verify_block(header, kept[at + 96 : at + len(data)])
        assert kept[at + 96 : at + len(data)] == data[96:]
        assert (header.client_seq, header.term) == (index + 1, 2)
        mark = memory.lane[index * REFERENCE_SIZE :][:REFERENCE_SIZE].tobytes()
        reference = parse_control(int.from_bytes(mark[6:8], "little"), mark[96:])
        assert reference == Reference(header, 0, 0)
        assert (memory.staged[index]["position"], memory.staged[index]["at"]) == (header.position, 0)
        at += len(data)
    assert not any(kept[at:])
    assert memory.store.state(ClientId(CLIENT)).next_expected == 3
    size = lone_turn.ACK_PREFIX + 2 * lone_turn.ACK_ENTRY
    rows = ack_rows(memory.ack[44:size].tobytes())
    assert rows["client_seq"].tolist() == [1, 2]
    assert rows["level"].tolist() == [1, 1]


def with_sum_behind(data: bytes, crc: int) -> bytes:
    """The same batch with a checksum behind it."""
    frame = bytearray(data + bytes(SUM_FRAME_SIZE))
    frame[36:40], frame[95] = bytes(4), FLAG_SUM_BEHIND
    frame[8:12] = checksum(frame[12:96], checksum(frame[:8])).to_bytes(4, "little")
    write_sum(np.frombuffer(frame, np.uint8), len(data), int.from_bytes(data[12:20], "little"), crc)
    return bytes(frame)


@pytest.mark.parametrize("kernels", [lone_memory, twin])
@pytest.mark.parametrize("summed", [0, 120, 96 + 300, 96 + 330])
def test_where_the_checksum_was_leaves_no_trace(kernels: ModuleType, summed: int) -> None:
    data = batch(1, bytes(295))
    plain, other = Memory(kernels), Memory(kernels)
    assert plain.keep(data) == len(data) == 396
    assert other.keep(with_sum_behind(data, checksum(data[96:])), summed=summed) == len(data)
    assert plain.everything() == other.everything()
    assert other.keep(with_sum_behind(batch(2), 1), row=1) == PASSES_ON


@pytest.mark.parametrize("kernels", [lone_memory, twin])
def test_what_is_not_that_simple_changes_nothing(kernels: ModuleType) -> None:
    memory = Memory(kernels)
    for data in (batch(1)[:-1], batch(1) + b"L", batch(1)[:-1] + b"?", batch(1, client=8), batch(3, topic=STRONG)):
        before = memory.everything()
        assert memory.keep(data) == PASSES_ON
        assert memory.everything() == before
    memory.tails[8] = 5
    assert memory.keep(batch(1)) == PASSES_ON
    memory.tails[8] = 0
    memory.turn[lone_turn.ENTRIES] = lone_turn.ENTRIES_MAX
    assert memory.keep(batch(1)) == PASSES_ON
    memory.turn[lone_turn.ENTRIES] = 0
    assert memory.keep(batch(1)) == len(batch(1))
    assert memory.memory[EPOCH_HEADER:][:4].tobytes() == b"LANC"
