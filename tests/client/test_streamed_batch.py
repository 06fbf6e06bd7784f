"""Values that are encoded while they are sent: the same bytes as their block, however the socket splits them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from seawall.api.publishable import UnencodedBlock, made
from seawall.client.connection.connection import Connection
from seawall.core.types import ClientId, ClientSeq, SessionEpoch, Term, TimestampNs
from seawall.io.network.waitable_streams import BlockingStream
from seawall.io.process.clocks import OsClock
from seawall.kernels.codec.frames import SUM_FRAME_SIZE, write_sum
from seawall.kernels.codec.values import HAS_KNOWN_LAYOUT
from seawall.limits import PAYLOAD_SIZE_MIN
from seawall.wire.format.codes import Features, SessionStatus
from seawall.wire.format.frames import checksum
from seawall.wire.format.records import encode_raw
from seawall.wire.lwp2.session import Welcome

pytestmark = pytest.mark.skipif(not HAS_KNOWN_LAYOUT, reason="this interpreter has another object layout")

HEADER = bytes(range(96))


def _welcome(features: int) -> Welcome:
    numbers = ClientId(1), SessionEpoch(1), ClientSeq(1), 256, 1 << 20, 0, 0, Term(1), TimestampNs(0), 0
    return Welcome(2, SessionStatus.NEW, PAYLOAD_SIZE_MIN, features, *numbers)


class Pair:
    """A connection with a small send buffer, and the socket of its peer."""

    def __init__(self, features: int = int(Features.TRAILING_CHECKSUM)) -> None:
        ours, self.peer = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
        self.connection = Connection(BlockingStream(ours, "the peer"), "the peer", OsClock(), PAYLOAD_SIZE_MIN)
        self.connection._welcome = _welcome(features)

    def receive(self, size: int) -> bytes:
        """Receive so many bytes, while the connection flushes."""
        received = bytearray()
        while len(received) < size:
            self.connection.flush()
            received += self.peer.recv(30_000)
        return bytes(received)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    with pair.peer:
        yield pair
        pair.connection.close()


def held(count: int) -> UnencodedBlock:
    values = [b"%d " % number * (number % 300) for number in range(count)]
    return UnencodedBlock(values, sum(map(len, map(encode_raw, values))))


def sent_for(values: UnencodedBlock) -> bytes:
    """The block of the values, and its trailing checksum."""
    block = made(values)
    trailer = np.zeros(SUM_FRAME_SIZE, np.uint8)
    write_sum(trailer, 0, 7, checksum(block.block))
    return bytes(block.block) + trailer.tobytes()


def test_values_are_sent_as_their_block_and_in_order(pair: Pair) -> None:
    connection, first, second = pair.connection, held(2_000), held(1_000)
    assert connection.can_stream_values
    connection.send(b"before")
    connection.send_values(HEADER, 7, first)
    assert connection.is_write_blocked
    assert connection.stream.wants_space
    assert not connection.is_idle
    connection.send(b"after")
    expected = b"before" + HEADER + sent_for(first) + b"after"
    assert pair.receive(len(expected)) == expected
    assert not connection.is_write_blocked
    assert not connection.stream.wants_space
    assert connection.is_idle
    # The next batch reuses the memory.
    connection.send_values(HEADER, 7, second)
    expected = HEADER + sent_for(second)
    assert pair.receive(len(expected)) == expected


def test_a_server_without_trailing_checksums_gets_blocks() -> None:
    older = Pair(features=int(Features.LZ4 | Features.ZSTD))
    with older.peer:
        assert not older.connection.can_stream_values
        older.connection.close()


def test_values_that_fit_are_sent_at_once(pair: Pair) -> None:
    values = UnencodedBlock([b"value"] * 20, 200)
    pair.connection.send_values(HEADER, 7, values)
    assert not pair.connection.is_write_blocked
    assert pair.peer.recv(1_000) == HEADER + sent_for(values)


def test_values_are_refused_while_data_is_unsent(pair: Pair) -> None:
    pair.connection.send_values(HEADER, 7, held(2_000))
    with pytest.raises(AssertionError, match="unsent data"):
        pair.connection.send_values(HEADER, 7, held(10))


def test_a_peer_that_disconnects_ends_the_connection(pair: Pair) -> None:
    pair.connection.send_values(HEADER, 7, held(2_000))
    pair.peer.close()
    with pytest.raises(ConnectionError):
        pair.connection.flush()


def test_half_a_frame_is_not_followed_by_a_goodbye(pair: Pair) -> None:
    values = held(2_000)
    pair.connection.send_values(HEADER, 7, values)
    pair.connection.close()
    pair.peer.setblocking(False)
    received = b""
    while piece := pair.peer.recv(100_000):
        received += piece
    assert (HEADER + sent_for(values)).startswith(received)
