"""Batches that come upon each other's answers: taken by one call, until something else is due."""

from __future__ import annotations

import errno
import os
import resource
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from lone_pod import CLIENT, SALT, START, STRONG, TOPIC, Desk, batch

from seawall.kernels import jit, lone_arrival, lone_turn
from seawall.kernels.disk_ring import WRITE_SYNC
from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.frames import FRAME_ROW, STATE_SIZE, STATE_VERSION
from seawall.sequencer.frontier import signed
from seawall.wire.ack_rows import ack_rows
from seawall.wire.decoder import FrameDecoder
from seawall.wire.lwp2 import encode_ping

PASSES_ON = lone_arrival.PASSES_ON
ORDERS = np.array([0, 0, 0, 2, 5], np.uint8)
LEVELS = np.full(5, 2, np.uint8)
LONG = 10**12


class Server:
    """A pod at rest with one connection, whose peer may have sent more than the batch that is taken first."""

    def __init__(self, path: Path) -> None:
        self.pod = Desk(lone_arrival)
        self.desk = np.zeros(lone_turn.LONG_DESK_SIZE, np.int64)
        self.desk[: lone_arrival.DESK_SIZE] = self.pod.desk
        self.file = os.open(path, os.O_CREAT | os.O_RDWR)
        self.socket, self.peer = socket.socketpair()
        #: Readable once somebody else wants the thread.
        self.others, self._wants = os.pipe()
        self.source, self.ack = np.zeros(8_192, np.uint8), np.zeros(lone_turn.ACK_SIZE, np.uint8)
        self.rows, self.state = np.zeros(2, FRAME_ROW), np.zeros(STATE_SIZE, np.int64)
        self.state[STATE_VERSION] = 2
        self.turn = np.zeros(lone_turn.TURN_SIZE, np.int64)
        self.turn[: lone_turn.SOCKET] = CLIENT, 1, 0, 256, 4096, 1 << 20, 0
        self.turn[[lone_turn.SOCKET, lone_turn.OTHERS]] = self.socket.fileno(), self.others
        self.desk[: lone_arrival.POSITION] = signed(SALT), 5, 1_000, 1_000, 10**18, 0, START
        self.desk[lone_turn.KIND : lone_turn.TOPIC_ID] = WRITE_SYNC, self.file, 0, 0
        self.desk[lone_turn.TOPIC_ID : lone_turn.TAKEN_BATCHES] = TOPIC, 2 * 10**18, 4, 100, 8_192, LONG

    def close(self) -> None:
        for each in (self.socket, self.peer):
            each.close()
        for descriptor in (self.file, self.others, self._wants):
            os.close(descriptor)

    def want_thread(self) -> None:
        os.write(self._wants, b".")

    def take(self, data: bytes, *, is_soon: bool = True) -> int:
        """Take the turn of a batch that came, soon or not after the last answer."""
        self.source[: len(data)] = np.frombuffer(data, np.uint8)
        self.turn[lone_turn.ANSWERED_NS] = time.monotonic_ns() + (LONG if is_soon else -LONG)
        arrays = (self.pod.memory, self.desk, self.turn, self.source, len(data))
        done: int = lone_turn.take_lone_turns(*arrays, ORDERS, LEVELS, self.rows, self.state, self.ack)
        return done

    @property
    def taken(self) -> tuple[int, int]:
        batches, size = self.desk[lone_turn.TAKEN_BATCHES : lone_turn.LONGEST_NS].tolist()
        return batches, size

    @property
    def received(self) -> int:
        return int(self.turn[lone_turn.RECEIVED])

    def answers(self) -> list[tuple[int, int]]:
        """Numbers and positions in the acks that the peer got, one in each."""
        decoder = FrameDecoder()
        while select.select([self.peer], [], [], 0)[0]:
            decoder.feed(self.peer.recv(1 << 16))
        rows = [ack_rows(frame.payload) for frame in decoder.frames()]
        return [(int(row["client_seq"].item()), int(row["position"].item())) for row in rows]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "log")
    yield made
    made.close()


def epoch(data: bytes) -> int:
    return EPOCH_HEADER + len(data)


def test_what_comes_upon_an_answer_is_taken_by_the_same_call(server: Server) -> None:
    one, two = batch(1, b"one"), batch(2, b"two", b"too")
    server.peer.sendall(two)
    assert server.take(one) == epoch(two)
    assert server.taken == (2, epoch(one) + epoch(two))
    assert server.received == 0
    assert server.answers() == [(1, START), (2, START + 1)]
    assert server.desk[lone_turn.BATCHES_LEFT : lone_turn.PATIENCE_NS].tolist() == [
        *(2, 100 - 3, 8_192 - epoch(one) - epoch(two))
    ]
    stored = os.pread(server.file, 8_192, 0)
    # Each is an epoch of its own, as it came from its block on.
    assert len(stored) == epoch(one) + epoch(two)
    assert stored[EPOCH_HEADER + 96 : epoch(one)] == one[96:]
    assert stored[epoch(one) + EPOCH_HEADER + 96 :] == two[96:]
    assert server.desk[lone_turn.FILE_AT] == len(stored)
    assert server.pod.staged["position"][:2].tolist() == [START, START + 1]
    assert server.pod.staged["at"][:2].tolist() == [1_000 + EPOCH_HEADER, 1_000 + epoch(one) + EPOCH_HEADER]
    assert server.turn[lone_turn.HIGHEST] == 2
    # Later ones have later times.
    assert server.desk[lone_arrival.WALL_NS] > 10**18
    assert server.desk[lone_turn.LONGEST_NS] > 0


def test_nothing_is_waited_for_that_did_not_come_soon_the_last_time(server: Server) -> None:
    one, two = batch(1), batch(2)
    server.peer.sendall(two)
    assert server.take(one, is_soon=False) == epoch(one)
    assert server.taken == (1, epoch(one))
    assert (server.received, server.answers()) == (0, [(1, START)])
    assert server.socket.recv(1 << 16) == two


@pytest.mark.parametrize("cause", ["others are not known", "there is no room for it", "others have waited long"])
def test_what_is_not_waited_for_is_left_where_it_is(server: Server, cause: str) -> None:
    one, two = batch(1), batch(2)
    if cause == "others are not known":
        server.turn[lone_turn.OTHERS] = -1
    elif cause == "there is no room for it":
        server.desk[lone_turn.BYTES_LEFT] = epoch(one) + epoch(two) - 1
    else:
        server.desk[lone_turn.PATIENCE_NS] = 0
    server.peer.sendall(two)
    assert server.take(one) == epoch(one)
    assert server.taken == (1, epoch(one))
    assert (server.received, server.answers()) == (0, [(1, START)])
    assert server.socket.recv(1 << 16) == two


@pytest.mark.skipif(not jit.PYTHON_MODE, reason="how long it waits is compiled in")
def test_others_that_want_the_thread_have_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-TURN-OTHERS."""
    monkeypatch.setattr(lone_turn, "WAIT_NS", LONG)
    server.want_thread()
    assert server.take(batch(1)) == epoch(batch(1))
    assert (server.taken[0], server.received) == (1, 0)


def test_a_wait_is_over_soon(server: Server) -> None:
    began = time.monotonic_ns()
    assert lone_turn.await_batch(server.turn, server.source) == 0
    assert time.monotonic_ns() - began >= lone_turn.WAIT_NS


def test_what_wants_the_thread_may_be_the_batch_itself(server: Server) -> None:
    server.want_thread()
    server.peer.sendall(b"some bytes")
    assert lone_turn.await_batch(server.turn, server.source) == 10
    assert server.source[:10].tobytes() == b"some bytes"


def test_the_end_of_a_stream_is_left_to_who_listens_to_it(server: Server) -> None:
    server.peer.close()
    assert lone_turn.await_batch(server.turn, server.source) == 0
    assert server.take(batch(1)) == epoch(batch(1))
    assert (server.taken[0], server.received) == (1, 0)
    assert server.turn[lone_turn.SENT] == 0


@pytest.mark.parametrize(
    "data",
    [
        batch(2)[:-1],
        batch(2) + batch(3),
        batch(1),
        batch(2, topic=STRONG),
        batch(2, bytes(4_096)),
        encode_ping(1),
        b"?",
    ],
    ids=["half of one", "two", "a repetition", "another topic", "a large one", "a ping", "no frame"],
)
def test_what_is_not_that_simple_is_passed_on(server: Server, data: bytes) -> None:
    one = batch(1)
    server.peer.sendall(data)
    assert server.take(one) == PASSES_ON
    assert server.taken == (1, epoch(one))
    assert server.answers() == [(1, START)]
    assert server.received == len(data)
    assert server.source[: len(data)].tobytes() == data
    assert server.turn[lone_turn.ENTRIES] == 0
    assert server.pod.frontier.next_position == START + 1


def test_a_write_that_fails_behind_another_is_told_with_what_was_taken_before(server: Server) -> None:
    one, two = batch(1), batch(2)
    server.peer.sendall(two)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (epoch(one), limits[1]))
    try:
        assert server.take(one) == -errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert server.taken == (1, epoch(one))
    assert server.answers() == [(1, START)]


def test_an_answer_that_was_not_all_sent_is_the_end_of_it(server: Server) -> None:
    server.socket.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            server.socket.send(bytes(1 << 16))
    one = batch(1)
    server.peer.sendall(batch(2))
    assert server.take(one) == epoch(one)
    assert (server.taken[0], server.received, int(server.turn[lone_turn.ENTRIES])) == (1, 0, 1)
    assert server.turn[lone_turn.SENT] < lone_turn.ACK_PREFIX + lone_turn.ACK_ENTRY
