"""What two processes reach that do nothing but what any log has to do: the bounds of the suites `publish` and `fetch`.

    publishing   join a list of records and sum them, send; the peer receives, sums, and copies them to where they stay
    fetching     the peer sends a file out of the system's memory; receive it, and sum each piece while it is in a cache

No protocol, no order, no index, no session, and hardly any Python. What a server is slower than this is its own doing;
what this is slower than loopback TCP is the price of checksums and of memory that does not fit a cache.
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
from seawall.bench.subjects.peers import listening_peer
from seawall.errors import InvariantError
from seawall.io.network.sockets import parse_address
from seawall.kernels.codec.checksum import crc32c
from seawall.limits import KIB, MIB

#: Frames on their way at a time: few enough that all of them are in a cache.
_UNDER_WAY: Final = 2
#: Memory that is received into, as large as a client's answers, and the pieces that it is received and summed in.
_RECEIVED_SIZE: Final = 16 * MIB
_PIECE_SIZE: Final = 256 * KIB

_CONNECT_SECONDS: Final = 10.0


@contextmanager
def publishing() -> Iterator[Run]:
    """Bytes of values in a second, in lists of 1 MiB of records of 1 KiB."""
    records = [os.urandom(KIB) for _ in range(MIB // KIB)]
    size = len(encode(records)[0].block)
    with (
        listening_peer("keep", str(size)) as address,
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
                if sent - kept >= _UNDER_WAY:
                    kept += _answers(connection)
            while kept < sent:
                kept += _answers(connection)
            return sent * MIB * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

        yield run


def _answers(connection: socket.socket) -> int:
    """How many frames more are kept."""
    answers = connection.recv(KIB)
    if not answers:
        raise InvariantError("INV-BENCH-OK", "the keeping process hung up")
    return len(answers)


def fetching(directory: Path, stored_size: int) -> Subject:
    """Bytes in a second, of a file that is sent over and over."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with TemporaryDirectory(prefix="seawall-bench-", dir=directory) as folder:
            path = Path(folder) / "stored"
            with path.open("wb") as file:
                for _ in range(stored_size // MIB):
                    file.write(os.urandom(MIB))
            with (
                listening_peer("give", str(path)) as address,
                socket.create_connection(parse_address(address), timeout=_CONNECT_SECONDS) as connection,
            ):
                yield _receiving(connection)

    return opened


def _receiving(connection: socket.socket) -> Run:
    # Without a time limit: only so a call waits for all of a piece.
    connection.settimeout(None)
    # Two, as a reader looks at one while the next arrives.
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
                    raise InvariantError("INV-BENCH-OK", "the giving process hung up")
                crc32c(buffer, at, at + _PIECE_SIZE, 0)
            received += 1
        return received * _RECEIVED_SIZE * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

    return run
