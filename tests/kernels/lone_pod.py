"""The arrays that kernels of batches that come alone work on, as a pod at rest has them."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from seawall.core.types import ClientId, ClientSeq, Position, Seq, SessionEpoch, TimestampNs, TopicId
from seawall.kernels import lone_arrival
from seawall.kernels.epochs import EPOCH_HEADER, WAL_ROW
from seawall.kernels.goi_frontier import COMPLETION_WORDS, CONTROL_COMMITTED, CONTROL_DURABLE
from seawall.kernels.holding import STATE_WORDS
from seawall.kernels.order_entries import RESERVED
from seawall.sequencer.client_window import ClientWindow
from seawall.sequencer.frontier import CommitFrontier, TopicNumbers, signed
from seawall.wire.batches import batch_header, encode_batch
from seawall.wire.records import encode_raw

TOPIC, STRONG, CLIENT, START = 3, 4, 9, 7
SALT = (1 << 63) + 77


def batch(seq: int, *values: bytes, topic: int = TOPIC, client: int = CLIENT, epoch: int = 1) -> bytes:
    block = b"".join(map(encode_raw, values or (b"x",)))
    header = batch_header(
        block,
        topic_id=TopicId(topic),
        client_id=ClientId(client),
        client_seq=ClientSeq(seq),
        session_epoch=SessionEpoch(epoch),
        record_count=len(values or (b"x",)),
        timestamp_ns=TimestampNs(0),
    )
    return encode_batch(header, block)


class Desk:
    """The arrays of a pod at rest at position 7, and a desk that refers to them."""

    def __init__(self, kernels: ModuleType, ceiling: int = 1_000) -> None:
        self.kernels = kernels
        topics = [
            TopicNumbers(TopicId(number), ceiling=Seq(ceiling), is_strong=number == STRONG)
            for number in (TOPIC, STRONG)
        ]
        self.frontier = CommitFrontier(next_position=Position(START), topics=topics)
        self.order, self.store = (ClientWindow(clients_max=8, remembered_max=4) for _ in range(2))
        for window in (self.order, self.store):
            window.open(ClientId(CLIENT), SessionEpoch(1), ClientSeq(1))
        self.control, self.counters, self.replica = (np.zeros(16, np.int64) for _ in range(3))
        self.control[[CONTROL_COMMITTED, CONTROL_DURABLE]] = self.counters[RESERVED] = START
        self.tails, self.completion = np.zeros(2 * 8, np.int64), np.zeros(2 * COMPLETION_WORDS, np.int64)
        self.worker = np.zeros(STATE_WORDS, np.int64)
        self.memory, self.staged = np.zeros(EPOCH_HEADER + 4096, np.uint8), np.zeros(4, WAL_ROW)
        self.desk = np.zeros(lone_arrival.DESK_SIZE, np.int64)
        self.arrays = (
            *(*self.frontier.arrays, self.staged, *self.order.arrays, *self.store.arrays),
            *(self.control, self.counters, self.replica, self.tails, self.completion, self.worker),
        )
        for place, array in enumerate(self.arrays):
            self.desk[lone_arrival.KEYS + 2 * place :][:2] = array.ctypes.data, len(array)
        self.desk[[lone_arrival.TERM, lone_arrival.CHECKPOINT_AFTER]] = 2, 100

    def stage(self, data: bytes, *, is_strong: bool = False, row: int = 0) -> int:
        source = np.frombuffer(b"..." + data, np.uint8)
        followed = int(self.control[CONTROL_DURABLE])
        self.desk[: lone_arrival.POSITION] = (signed(SALT), 5, 900, 1_000, 10**18, row, followed)
        done: int = self.kernels.stage_lone_arrival(self.memory, self.desk, source, 3, len(data), int(is_strong))
        return done

    def take(self, data: bytes, *, is_strong: bool = False, row: int = 0) -> int:
        done = self.stage(data, is_strong=is_strong, row=row)
        if done > 0:
            self.kernels.settle_lone_arrival(self.desk, self.memory)
        return done

    def content(self) -> list[bytes]:
        return [array.tobytes() for array in (*self.arrays, self.memory)]
