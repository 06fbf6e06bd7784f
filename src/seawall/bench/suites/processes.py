"""Subjects of the `limits` suite that need a second process: loopback bandwidth, wake-ups, and starting Python.

The child process runs while its subject is open; closing the subject ends it (see `second_process.py`).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from seawall.bench.harness import Run, Subject, latency, plain, rate
from seawall.bench.subjects.second_process import child
from seawall.errors import UnsupportedError
from seawall.limits import MIB

#: Bytes received before the clock starts: otherwise bytes that collected in the socket buffers since the last round
#: would count as received in no time.
BACKLOG_SIZE = 32 * MIB

RECEIVE_SIZE = MIB

#: Longest wait for the child to connect, for bytes from it, and for a started command to end.
WAIT_SECONDS_MAX = 30.0


@contextmanager
def loopback_bandwidth() -> Iterator[Run]:
    """Bytes per second over TCP from another process, received into one buffer."""
    with incoming() as connection:
        yield receiving(connection)


@contextmanager
def incoming(*file: str) -> Iterator[socket.socket]:
    """Open a connection over which another process sends random bytes, or repeats the given file."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(WAIT_SECONDS_MAX)
        address, port = listener.getsockname()
        with child("send", address, str(port), *file):
            connection, _ = listener.accept()
            with closing(connection):
                connection.settimeout(WAIT_SECONDS_MAX)
                yield connection


def receiving(connection: socket.socket) -> Run:
    """A run that receives from a connection as fast as it can, a megabyte per step."""
    buffer = memoryview(bytearray(RECEIVE_SIZE))

    def receive() -> None:
        missing = len(buffer)
        while missing:
            received = connection.recv_into(buffer[:missing])
            if not received:
                raise ConnectionError("the sending process closed the connection")
            missing -= received

    timed = rate(receive, len(buffer))

    def run(seconds: float) -> float:
        for _ in range(BACKLOG_SIZE // len(buffer)):
            receive()
        return timed(seconds)

    return run


@contextmanager
def eventfd_round_trip() -> Iterator[Run]:
    """Seconds from waking another process until it has woken this one: two wake-ups."""
    if not hasattr(os, "eventfd"):
        raise UnsupportedError("this system has no eventfd")
    with _eventfd() as there, _eventfd() as back, child("echo", str(there), str(back), descriptors=(there, back)):

        def step() -> None:
            os.eventfd_write(there, 1)
            os.eventfd_read(back)

        yield latency(step)


def command_time(*arguments: str) -> Subject:
    """Wall seconds of a new interpreter with the given arguments, from start to exit."""
    command = (sys.executable, *arguments)

    def step() -> None:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX)
        if done.returncode:
            raise ChildProcessError(f"{' '.join(command)} exited with {done.returncode}: {done.stderr.strip()}")

    return plain(latency(step))


@contextmanager
def _eventfd() -> Iterator[int]:
    descriptor = os.eventfd(0)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
