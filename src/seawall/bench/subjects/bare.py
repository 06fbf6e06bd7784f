"""Upper bounds of the suites `publish` and `fetch`: two processes that do only what every log must do.

    publishing   join a list of records, compute a checksum, send; the child receives, checksums, copies to memory
    fetching     the child sends a file from the page cache; receive and checksum it piece by piece, within a CPU cache

There is no protocol, order, index or session, and hardly any Python. The difference from a real server is the cost of
the server; the difference from loopback TCP is the cost of checksums and of memory that does not fit a cache.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Final

import numpy as np

from seawall.api.publishable import encode
from seawall.bench.harness import NANOSECONDS_PER_SECOND, Run, Subject
from seawall.bench.subjects.second_process import listening_child
from seawall.errors import InvariantError
from seawall.io.network.sockets import parse_address
from seawall.kernels.codec.checksum import crc32c
from seawall.limits import KIB, MIB

#: Frames in flight: few enough to fit a CPU cache.
_IN_FLIGHT: Final = 2
#: Size of a receive buffer, as large as a fetch response, and of the pieces to receive and checksum.
_RECEIVED_SIZE: Final = 16 * MIB
_PIECE_SIZE: Final = 256 * KIB

_CONNECT_SECONDS: Final = 10.0


@contextmanager
def publishing() -> Iterator[Run]:
    """Bytes of record values per second, in lists of 1,024 records of 1 KiB."""
    records = [os.urandom(KIB) for _ in range(MIB // KIB)]
    size = len(encode(records)[0].block)
    with (
        listening_child("keep", str(size)) as address,
        socket.create_connection(parse_address(address), timeout=_CONNECT_SECONDS) as connection,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def run(seconds: float) -> float:
            started = perf_counter_ns()
            deadline = started + int(seconds * NANOSECONDS_PER_SECOND)
            sent = kept = 0
            while not sent or perf_counter_ns() < deadline:
                connection.sendall(encode(records)[0].block)
                sent += 1
                if sent - kept >= _IN_FLIGHT:
                    kept += _answers(connection)
            while kept < sent:
                kept += _answers(connection)
            return sent * MIB * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

        yield run


def _answers(connection: socket.socket) -> int:
    """Receive answers; return how many further frames the child has kept."""
    answers = connection.recv(KIB)
    if not answers:
        raise InvariantError("INV-BENCH-OK", "the keep process closed the connection")
    return len(answers)


def fetching(directory: Path, stored_size: int) -> Subject:
    """Bytes per second of a file that the child sends repeatedly."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with TemporaryDirectory(prefix="seawall-bench-", dir=directory) as folder:
            path = Path(folder) / "stored"
            with path.open("wb") as file:
                for _ in range(stored_size // MIB):
                    file.write(os.urandom(MIB))
            with (
                listening_child("give", str(path)) as address,
                socket.create_connection(parse_address(address), timeout=_CONNECT_SECONDS) as connection,
            ):
                yield _receiving(connection)

    return opened


def _receiving(connection: socket.socket) -> Run:
    # No timeout: MSG_WAITALL waits for the whole piece only on a blocking socket.
    connection.settimeout(None)
    # Two buffers, because a reader processes one response while the next one arrives.
    buffers = [np.zeros(_RECEIVED_SIZE, np.uint8) for _ in range(2)]

    def run(seconds: float) -> float:
        started = perf_counter_ns()
        deadline = started + int(seconds * NANOSECONDS_PER_SECOND)
        received = 0
        while not received or perf_counter_ns() < deadline:
            buffer = buffers[received % 2]
            for at in range(0, _RECEIVED_SIZE, _PIECE_SIZE):
                piece = buffer.data[at : at + _PIECE_SIZE]
                if connection.recv_into(piece, 0, socket.MSG_WAITALL) < _PIECE_SIZE:
                    raise InvariantError("INV-BENCH-OK", "the give process closed the connection")
                crc32c(buffer, at, at + _PIECE_SIZE, 0)
            received += 1
        return received * _RECEIVED_SIZE * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

    return run
