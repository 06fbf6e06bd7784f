"""One batch as an epoch by itself: kernel and twin write the same bytes, rows and numbers, and refuse the same."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.core.types import Position, Seq, TopicId
from seawall.kernels import jit, lone_batch
from seawall.kernels.epochs import EPOCH_HEADER, WAL_ROW
from seawall.kernels.twins import lone_batch as twin
from seawall.sequencer.frontier import CommitFrontier, TopicNumbers, signed
from seawall.storage.epochs import WalAddress, parse_epoch_header
from seawall.wire.batches import BatchSource, parse_batch_header, verify_block
from seawall.wire.codes import AS_TOPIC

TOPIC, SALT = 3, (1 << 63) + 77


class Desk:
    """A kernel's arrays, and the desk that refers to them."""

    def __init__(self, kernels: ModuleType, ceiling: int = 1_000) -> None:
        self.kernels = kernels
        self.frontier = CommitFrontier(
            next_position=Position(7), topics=[TopicNumbers(TopicId(TOPIC), ceiling=Seq(ceiling))]
        )
        self.memory = np.zeros(lone_batch.BLOCK_AT + 70_000, np.uint8)
        self.staged = np.zeros(4, WAL_ROW)
        self.desk = np.zeros(lone_batch.DESK_SIZE, np.int64)
        self.arrays = (*self.frontier.arrays, self.staged)
        for place, array in enumerate(self.arrays):
            self.desk[lone_batch.KEYS + 2 * place :][:2] = array.ctypes.data, array.size

    def stage(self, block: bytes, count: int, *, choices: int = AS_TOPIC | AS_TOPIC << 8, row: int = 1) -> int:
        self.memory[lone_batch.BLOCK_AT : lone_batch.BLOCK_AT + len(block)] = np.frombuffer(block, np.uint8)
        batch = (len(block), count, TOPIC, signed(1 << 63), len(block), choices)
        self.desk[: lone_batch.POSITION] = (*batch, signed(SALT), 5, 900, 1_000, 2, 10**18, row)
        size: int = self.kernels.stage_lone_batch(self.memory, self.desk)
        return size

    @property
    def given(self) -> list[int]:
        numbers: list[int] = self.desk[lone_batch.POSITION : lone_batch.KEYS].tolist()
        return numbers


@settings(max_examples=20 if jit.PYTHON_MODE else 60)
@given(
    block=st.binary(min_size=5, max_size=3_000),
    counts=st.lists(st.integers(1, 50), min_size=1, max_size=3),
    codec=st.sampled_from((0, 2)),
    row=st.integers(0, 3),
)
def test_kernel_and_twin_leave_the_same(block: bytes, counts: list[int], codec: int, row: int) -> None:
    choices = AS_TOPIC | AS_TOPIC << 8 | codec << 16
    desks = [Desk(lone_batch), Desk(twin)]
    for count in counts:
        assert [desk.stage(block, count, choices=choices, row=row) for desk in desks] == [160 + len(block)] * 2
    first, second = desks
    assert first.memory.tobytes() == second.memory.tobytes()
    assert first.staged.tobytes() == second.staged.tobytes()
    assert first.given == second.given
    for one, other in zip(first.frontier.arrays, second.frontier.arrays, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("kernels", [lone_batch, twin])
def test_it_is_an_epoch_that_readers_understand(kernels: ModuleType) -> None:
    desk, block = Desk(kernels), b"\x01\x02\x00\x00\x00hi" * 4
    size = desk.stage(block, 4)
    epoch = parse_epoch_header(desk.memory[:EPOCH_HEADER].tobytes(), salt=SALT, at=WalAddress(1_000))
    assert epoch is not None
    assert (epoch.epoch, epoch.length, epoch.synced_through, epoch.batch_count) == (5, 96 + len(block), 900, 1)
    header = parse_batch_header(desk.memory[EPOCH_HEADER:size].tobytes(), source=BatchSource.STORED)
    assert (header.position, header.base_seq, header.record_count, header.term) == (7, 1, 4, 2)
    assert desk.given == [7, 1, 0, header.timestamp_ns]
    assert (epoch.first_position, epoch.timestamp_ns) == (7, header.timestamp_ns)
    verify_block(header, block)
    described = desk.staged[1]
    assert (described["at"], described["position"], described["size"], described["count"]) == (1_064, 7, 124, 4)


@pytest.mark.parametrize("kernels", [lone_batch, twin])
def test_a_ceiling_refuses_it(kernels: ModuleType) -> None:
    desk = Desk(kernels, ceiling=4)
    assert desk.stage(bytes(9), 4) == lone_batch.STAGE_REFUSED
    assert desk.frontier.next_position == 7
