"""Receiving the rest of a large batch from a socket, with its checksum."""

from __future__ import annotations

import os
import socket

import numpy as np

from seawall.kernels.codec.frames import STATE_CRC, STATE_SIZE, STATE_SUMMED
from seawall.kernels.network.batch_arrival import PIECE_SIZE, receive_batch
from seawall.wire.format.frames import checksum

HEADER = b"LANC\x02\x05" + bytes(90)


def test_available_bytes_are_received_and_summed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frame = HEADER[:5] + b"\x07" + HEADER[6:] + os.urandom(3_000)
        buffer, state = np.zeros(4_000, np.uint8), np.zeros(STATE_SIZE, np.int64)
        assert receive_batch(ours.fileno(), buffer, 0, len(frame), state) == 0
        theirs.sendall(frame[:1_000])
        assert receive_batch(ours.fileno(), buffer, 0, len(frame), state) == 1_000
        theirs.sendall(frame[1_000:] + b"next")
        assert receive_batch(ours.fileno(), buffer, 1_000, len(frame), state) == len(frame)
        assert buffer[: len(frame)].tobytes() == frame
        assert ours.recv(10) == b"next"
        theirs.close()
        assert receive_batch(ours.fileno(), buffer, 0, 10, state) == 0


def test_the_sum_is_the_checksum_of_the_block() -> None:
    from seawall.kernels.codec.frames import KIND_BATCH

    ours, theirs = socket.socketpair()
    with ours, theirs:
        frame = bytearray(HEADER + os.urandom(50_000))
        frame[5], frame[32:36] = KIND_BATCH, (50_000 + 52).to_bytes(4, "little")
        buffer, state = np.zeros(len(frame), np.uint8), np.zeros(STATE_SIZE, np.int64)
        for start in range(0, len(frame), 10_000):
            theirs.sendall(frame[start : start + 10_000])
            receive_batch(ours.fileno(), buffer, start, len(frame), state)
        assert state[STATE_SUMMED] == len(frame)
        assert state[STATE_CRC] == checksum(frame[96:])


def test_a_piece_is_no_larger_than_a_cache() -> None:
    assert PIECE_SIZE <= 1 << 20
