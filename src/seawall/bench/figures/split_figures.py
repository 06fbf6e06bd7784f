"""Figures of suite `kernels` about splitting a byte stream into frames, fed from a real connection.

Another process sends batches of one 1 KiB record, 1,125 bytes per frame, over loopback TCP. This process receives up to
a megabyte at a time and splits it by one kernel call, which verifies the header and block checksum of every frame.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from seawall.bench.harness import Baseline, Measurement, Run
from seawall.bench.results import Better, Goal
from seawall.bench.suites.processes import BACKLOG_SIZE, incoming, loopback_bandwidth
from seawall.core.types import ClientId, ClientSeq, TimestampNs, TopicId
from seawall.kernels.codec import frames
from seawall.limits import MIB, PAYLOAD_SIZE_MIN
from seawall.wire.format import batches
from seawall.wire.format.records import Record, encode_block

#: Frames in the file that the sender repeats: about a megabyte of them.
FRAME_COUNT = 930
RECEIVE_SIZE = MIB


def figures() -> Iterator[Measurement]:
    """List the figures of splitting frames."""
    yield Measurement(
        "split 1.1 KB frames from a socket",
        "frames/s",
        Better.HIGHER,
        _splitting,
        baseline=Baseline("the same bytes, not split", _bare_loopback),
        goal=Goal.value_at_least(1.5e6),
        note="verifies the header and block checksum of every frame",
    )


def batch_of(block: bytes, record_count: int) -> bytes:
    """Encode a batch as a client sends it."""
    header = batches.batch_header(
        block,
        topic_id=TopicId(1),
        client_id=ClientId(7),
        client_seq=ClientSeq(1),
        session_epoch=1,
        record_count=record_count,
        timestamp_ns=TimestampNs(1),
    )
    return batches.encode_batch(header, block)


def sample_frame() -> bytes:
    """One batch with one record of 1 KiB."""
    return batch_of(encode_block([Record(1, os.urandom(1024))]), 1)


@contextmanager
def _splitting() -> Iterator[Run]:
    with tempfile.NamedTemporaryFile(prefix="seawall-bench-") as file:
        file.write(sample_frame() * FRAME_COUNT)
        file.flush()
        with incoming(file.name) as connection:
            splitter = Splitter(connection)

            def run(seconds: float) -> float:
                backlog = BACKLOG_SIZE
                while backlog > 0:
                    backlog -= splitter.receive()
                splitter.frames = 0
                started = perf_counter()
                while True:
                    splitter.receive()
                    spent = perf_counter() - started
                    if spent >= seconds:
                        return splitter.frames / spent

            yield run


class Splitter:
    """Receives into one buffer, splits the complete frames, and moves the rest to the front."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = np.zeros(2 * RECEIVE_SIZE, np.uint8)
        self.view = self.buffer.data
        self.rows = np.zeros(4 * FRAME_COUNT, frames.FRAME_ROW)
        self.state = np.zeros(frames.STATE_SIZE, np.int64)
        self.end = 0
        self.frames = 0

    def receive(self) -> int:
        """Receive once and split; return the number of bytes received."""
        received = self.connection.recv_into(self.view[self.end : self.end + RECEIVE_SIZE])
        if not received:
            raise ConnectionError("the sending process closed the connection")
        self.end += received
        code = frames.split_frames(self.buffer, 0, self.end, PAYLOAD_SIZE_MIN, self.rows, self.state)
        if code != frames.SPLIT_MORE:
            raise AssertionError(f"splitting valid frames stopped with code {code}")
        consumed = int(self.state[frames.STATE_CONSUMED])
        self.frames += int(self.state[frames.STATE_FRAMES])
        rest = self.end - consumed
        self.view[:rest] = self.view[consumed : self.end]
        self.end = rest
        return received


@contextmanager
def _bare_loopback() -> Iterator[Run]:
    size = len(sample_frame())
    with loopback_bandwidth() as run:
        yield lambda seconds: run(seconds) / size
