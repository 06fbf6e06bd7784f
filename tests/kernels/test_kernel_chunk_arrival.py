"""Receiving batches from a socket, verified piece by piece."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from struct import Struct

import crc32c as wheel
import numpy as np
import pytest

from seawall.kernels.codec import chunks
from seawall.kernels.network.chunk_arrival import ARRIVAL_SIZE, ARRIVED, CODE, PIECE_SIZE, receive_chunks

_HEADER = Struct("<4sBBHIQQIIIIIQQQQIIIBBBB")

#: How long a socket waits for more: long enough that a busy machine sends meanwhile.
_WAIT = Struct("@ll").pack(0, 300_000)


def batch(number: int, value_size: int) -> bytes:
    """A stored batch of one record."""
    block = b"\x01" + value_size.to_bytes(4, "little") + bytes([number]) * value_size
    start = (b"LANC", 2, 4, 0)
    rest = (1, 5, 1, 52 + len(block), wheel.crc32c(block), 3, 0, 7, number, number + 1, 0, len(block), 1, 1, 2, 2, 0, 0)
    header = _HEADER.pack(*start, 0, *rest)
    crc = wheel.crc32c(header[12:], wheel.crc32c(header[:8]))
    return header[:8] + crc.to_bytes(4, "little") + header[12:] + block


class Arrival:
    """A buffer that is filled from one end of a connection."""

    def __init__(self, size: int, rows: int = 64) -> None:
        self.buffer = np.zeros(size, np.uint8)
        self.rows = np.zeros(rows, chunks.CHUNK_ROW)
        self.state = np.zeros(ARRIVAL_SIZE, np.int64)
        self.state[CODE] = chunks.CHUNKS_MORE
        self.receiving, self.sending = socket.socketpair()
        self.receiving.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _WAIT)

    def receive(self) -> int:
        return receive_chunks(self.receiving.fileno(), self.buffer, self.rows, self.state)

    @property
    def found(self) -> tuple[int, int, int]:
        """Bytes, rows, and why the last check stopped."""
        return int(self.state[ARRIVED]), int(self.state[chunks.STATE_ROWS]), int(self.state[CODE])


@pytest.fixture
def arrivals() -> Iterator[list[Arrival]]:
    made: list[Arrival] = []
    yield made
    for arrival in made:
        arrival.receiving.close()
        arrival.sending.close()


def test_a_long_stream_is_received_in_pieces(arrivals: list[Arrival]) -> None:
    data = b"".join(batch(number, 100_000) for number in range(40))
    arrival = Arrival(len(data))
    arrivals.append(arrival)
    sender = threading.Thread(target=arrival.sending.sendall, args=(data,))
    sender.start()
    # One call is enough unless the machine is slow. The sender ends only when all is received.
    results = [arrival.receive()]
    while arrival.state[ARRIVED] < len(data):
        results.append(arrival.receive())
    sender.join()
    assert all(0 < result <= PIECE_SIZE or result == -errno.EAGAIN for result in results)
    assert arrival.found == (len(data), 40, chunks.CHUNKS_DONE)
    assert arrival.buffer.tobytes() == data
    assert arrival.rows["base_seq"][:40].tolist() == list(range(1, 41))


def test_receiving_stops_at_an_incomplete_piece(arrivals: list[Arrival]) -> None:
    data = b"".join(batch(number, 100_000) for number in range(4))
    arrival = Arrival(len(data))
    arrivals.append(arrival)
    assert arrival.receive() == -errno.EAGAIN
    arrival.sending.sendall(data[:150_000])
    assert arrival.receive() == 150_000
    assert arrival.found == (150_000, 1, chunks.CHUNKS_MORE)
    arrival.sending.sendall(data[150_000:200_000])
    arrival.sending.shutdown(socket.SHUT_WR)
    assert arrival.receive() == 50_000
    assert arrival.receive() == 0
    assert arrival.found == (200_000, 1, chunks.CHUNKS_MORE)


def test_after_damage_the_rest_is_received_and_not_checked(arrivals: list[Arrival]) -> None:
    sound, damaged = batch(0, 1_000), bytearray(batch(1, 1_000))
    damaged[500] ^= 1
    data = sound + bytes(damaged) + sound
    arrival = Arrival(len(data))
    arrivals.append(arrival)
    arrival.sending.sendall(data[:2_000])
    arrival.receive()
    arrival.sending.sendall(data[2_000:])
    assert arrival.receive() == len(data) - 2_000
    assert arrival.found == (len(data), 1, chunks.CHUNKS_BAD)
    assert arrival.state[chunks.STATE_CONSUMED] == len(sound)


def test_a_full_table_stops_checking_but_not_receiving(arrivals: list[Arrival]) -> None:
    data = b"".join(batch(number, 1_000) for number in range(5))
    arrival = Arrival(len(data), rows=2)
    arrivals.append(arrival)
    arrival.sending.sendall(data)
    assert arrival.receive() == len(data)
    assert arrival.found == (len(data), 2, chunks.CHUNKS_FULL)
