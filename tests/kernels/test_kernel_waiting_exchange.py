"""One batch and its ack in one call: the frame equals the codec's, and only its own ack completes it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.types import ClientId, ClientSeq, SessionEpoch, TimestampNs, TopicId
from seawall.kernels.codec.frames import FRAME_ROW, STATE_SIZE, STATE_VERSION
from seawall.kernels.network import waiting_exchange as exchange_kernels
from seawall.wire.format.ack_rows import ACK_ROW, encode_ack_rows
from seawall.wire.format.batches import batch_header
from seawall.wire.format.codes import AS_TOPIC
from seawall.wire.lwp2.frames import encode_ping
from twins.network import waiting_exchange as twin

KERNELS = [exchange_kernels, twin]
BLOCK = b"\x01\x03\x00\x00\x00abc"
SEQ, TOPIC, CLIENT, EPOCH, CHOICES, WALL_NS = 5, 3, 77, 2, AS_TOPIC | 2 << 8, 1_234


class Exchange:
    """A frame with a block, the arguments of a call, and the arrays for an answer."""

    def __init__(self, block: bytes = BLOCK, count: int = 1) -> None:
        self.size = exchange_kernels.BLOCK_AT + len(block)
        self.frame = np.zeros(self.size + 10, np.uint8)
        self.frame[exchange_kernels.BLOCK_AT : self.size] = np.frombuffer(block, np.uint8)
        self.arguments = np.zeros(exchange_kernels.ARGUMENTS_SIZE, np.int64)
        self.arguments[exchange_kernels.CLIENT_ID : exchange_kernels.SENT] = (
            *(CLIENT, EPOCH, CHOICES, len(block), count, SEQ, TOPIC, WALL_NS),
        )
        self.rows, self.state = np.zeros(2, FRAME_ROW), np.zeros(STATE_SIZE, np.int64)
        self.state[STATE_VERSION] = 2

    def read(self, kernels: ModuleType, data: bytes) -> int:
        answer = np.frombuffer(bytearray(data + bytes(200)), np.uint8)
        done: int = kernels.read_one_answer(self.arguments, answer, len(data), self.rows, self.state)
        return done

    @property
    def found(self) -> list[int]:
        found: list[int] = self.arguments[exchange_kernels.BASE_SEQ : exchange_kernels.WAITED_NS].tolist()
        return found


def ack(*entries: dict[str, int], window: tuple[int, int] = (256, 4096)) -> bytes:
    rows = np.zeros(len(entries), ACK_ROW)
    for row, entry in zip(rows, entries, strict=True):
        usual = {"client_seq": SEQ, "base_seq": 9, "position": 8, "timestamp_ns": 7, "run": 1, "record_count": 1}
        for name, value in (usual | {"topic_id": TOPIC, "level": 2} | entry).items():
            row[name] = value
    return encode_ack_rows(
        rows, session_epoch=SessionEpoch(EPOCH), window_batches=window[0], window_bytes=window[1], through=SEQ
    )


@pytest.mark.parametrize("kernels", KERNELS)
@given(block=st.binary(min_size=1, max_size=300), count=st.integers(1, 2**32 - 1))
def test_the_frame_equals_that_of_the_codec(kernels: ModuleType, block: bytes, count: int) -> None:
    call = Exchange(block, count)
    kernels.seal_one_frame(call.frame, call.arguments)
    header = batch_header(
        block,
        topic_id=TopicId(TOPIC),
        client_id=ClientId(CLIENT),
        client_seq=ClientSeq(SEQ),
        session_epoch=EPOCH,
        record_count=count,
        timestamp_ns=TimestampNs(WALL_NS),
        ack_level=2,
    )
    assert call.frame[: call.size].tobytes() == header.header_bytes() + block


@pytest.mark.parametrize("kernels", KERNELS)
def test_an_ack_of_the_batch_is_read(kernels: ModuleType) -> None:
    call = Exchange()
    assert call.read(kernels, ack({})) == exchange_kernels.STORED
    assert call.found == [9, 8, 7, 256, 4096]


def _damaged(at: int) -> bytes:
    data = bytearray(ack({}))
    data[at] ^= 1
    return bytes(data)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        ack({})[:-1],
        ack({}) + b"x",
        ack({}, {}),
        ack({"client_seq": SEQ + 1}),
        ack({"status": 1}),
        ack({"run": 2}),
        ack({"position": 2**64 - 1}),
        encode_ping(1) + bytes(64),
        _damaged(0),
        _damaged(20),
        _damaged(70),
    ],
)
def test_any_other_answer_is_left_to_the_connection(kernels: ModuleType, data: bytes) -> None:
    call = Exchange()
    assert call.read(kernels, data) == exchange_kernels.UNRESOLVED
    assert call.found == [0] * 5


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket, socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    waker, waking = socket.socketpair()
    for each in (ours, theirs, waker, waking):
        each.setblocking(False)
    with ours, theirs, waker, waking:
        yield ours, theirs, waker, waking


def exchange(
    call: Exchange, ours: socket.socket, waker: socket.socket, timeout_ms: int = 5_000
) -> tuple[int, list[int]]:
    call.arguments[: exchange_kernels.CLIENT_ID] = ours.fileno(), waker.fileno(), timeout_ms
    answer = np.zeros(512, np.uint8)
    done = exchange_kernels.exchange_one_batch(call.frame, call.arguments, answer, call.rows, call.state)
    return done, call.arguments[[exchange_kernels.SENT, exchange_kernels.RECEIVED]].tolist()


@pytest.mark.parametrize("waited_ns", [0, 10**9])
def test_a_batch_is_sent_and_its_ack_is_received(ends: tuple[socket.socket, ...], waited_ns: int) -> None:
    ours, theirs, waker, _ = ends
    call = Exchange()
    call.arguments[exchange_kernels.WAITED_NS] = waited_ns
    theirs.send(ack({}))
    assert exchange(call, ours, waker) == (exchange_kernels.STORED, [call.size, len(ack({}))])
    assert theirs.recv(4096) == call.frame[: call.size].tobytes()
    assert 0 < call.arguments[exchange_kernels.WAITED_NS] < 10**9


def test_other_received_bytes_are_left_to_the_connection(ends: tuple[socket.socket, ...]) -> None:
    ours, theirs, waker, _ = ends
    theirs.send(encode_ping(3))
    assert exchange(Exchange(), ours, waker)[1][1] == len(encode_ping(3))


def test_a_wake_up_and_a_timeout_end_the_wait(ends: tuple[socket.socket, ...]) -> None:
    ours, _, waker, waking = ends
    call = Exchange()
    assert exchange(call, ours, waker, timeout_ms=0) == (exchange_kernels.UNRESOLVED, [call.size, 0])
    waking.send(b"x")
    assert exchange(call, ours, waker) == (exchange_kernels.UNRESOLVED, [call.size, 0])


def test_a_closed_peer_and_a_full_socket_are_reported(ends: tuple[socket.socket, ...]) -> None:
    ours, theirs, waker, _ = ends
    while True:
        try:
            ours.send(bytes(65_536))
        except BlockingIOError:
            break
    assert exchange(Exchange(), ours, waker) == (exchange_kernels.UNRESOLVED, [-errno.EAGAIN, 0])
    theirs.close()
    assert exchange(Exchange(), ours, waker) == (exchange_kernels.UNRESOLVED, [-errno.EPIPE, 0])
