"""Start and end the second process of a measurement between two processes, and the roles that it can run.

`child(…)` starts `python -m seawall.bench.subjects.second_process` with one of the roles in `ROLES`:

    send ADDRESS PORT [FILE]     connect and send random bytes, or repeat the file, until the connection ends
    echo READ WRITE              answer every count read from one eventfd by writing to the other
    store DIRECTORY SIZE REPORT  write each record of one connection to a file, sync, and answer
    group DIRECTORY SIZE REPORT  write the records of all connections by one call, sync once, and answer all of them
    publish ADDRESS TOPIC FD     publish records to a node, wait for each, and count them in shared memory
    follow ADDRESS TOPIC FD      follow a topic of a node, and count its records in shared memory
    drain ADDRESS SIZE FD        receive all records of `group`, and count them in shared memory
    flood ADDRESS FD             publish to many topics of the lowest priority and read them, and count the deliveries
    keep SIZE REPORT             checksum each frame of one connection, copy it to memory, and answer
    give FILE REPORT             send a file repeatedly to one connection, without looking at its content
    node DATA FABRIC REPORT      serve a data directory, as `seawall serve` does
    guard                        kill the process groups whose numbers come on the standard input once it ends

Roles with the argument `REPORT` write their listening address, `host:port`, to that descriptor and close it.

A child never outlives its parent. Leaving the context manager kills it and waits for it. If the parent dies before
that, the pipe that is the child's standard input ends, and the child exits. A child runs in its own session, so Ctrl-C
reaches only the parent, which then leaves the context manager.

Imports only the standard library until a role needs more, to keep the start of a child short.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

#: Bytes per send: large enough that the calls do not matter, small enough to stay in the second-level cache.
SEND_SIZE = 1 << 20

#: Bytes of the newest frames that `keep` holds: more than fits a CPU cache.
KEPT_SIZE = 256 << 20

#: The answer of `store`, as long as a frame header, and of `group`, as long as the ACK frame of one batch.
STORED = bytes(64)
GROUP_ANSWER = bytes(108)

#: Longest wait for a killed child. The kernel needs microseconds, so a timeout indicates a serious problem.
EXIT_SECONDS_MAX = 30.0


@contextmanager
def child(*arguments: str, descriptors: Sequence[int] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """Start a child with the given role and arguments, which inherits the descriptors; kill it on exit."""
    command = [sys.executable, "-m", "seawall.bench.subjects.second_process", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=descriptors, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(EXIT_SECONDS_MAX)


@contextmanager
def listening_child(*arguments: str) -> Iterator[str]:
    """Start a child that listens; yields its address."""
    with listening_process(*arguments) as (address, _):
        yield address


@contextmanager
def listening_process(*arguments: str) -> Iterator[tuple[str, int]]:
    """Start a child that listens; yields its address and process id."""
    reading, writing = os.pipe()
    with open(reading, encoding="ascii") as pipe, ExitStack() as stack:
        try:
            process = stack.enter_context(child(*arguments, str(writing), descriptors=(writing,)))
        finally:
            os.close(writing)
        address = pipe.readline().strip()
        if not address:
            raise ChildProcessError(f"child {arguments[0]} exited before it listened")
        yield address, process.pid


def send(address: str, port: str, file: str | None = None) -> None:
    """Connect to a listener and repeatedly send random bytes, or a file, until it closes the connection."""
    # Zeros would all come from one page of the kernel, which is faster than real data.
    block = os.urandom(SEND_SIZE) if file is None else Path(file).read_bytes()
    with socket.create_connection((address, int(port))) as connection, suppress(ConnectionError):
        while True:
            connection.sendall(block)


def echo(read_descriptor: str, write_descriptor: str) -> None:
    """Answer every wake-up with a wake-up. Ends only with its process, because an eventfd has no end of file."""
    reading, writing = int(read_descriptor), int(write_descriptor)
    while True:
        os.eventfd_read(reading)
        os.eventfd_write(writing, 1)


def store(directory: str, size: str, report: str) -> None:
    """Receive, write, sync and answer one record at a time on one connection: a minimal durable server."""
    from seawall.bench.suites.disk import appending_file

    record = memoryview(bytearray(int(size)))
    with socket.create_server(("127.0.0.1", 0)) as listener, appending_file(Path(directory)) as append:
        report_address(int(report), "{}:{}".format(*listener.getsockname()))
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv_into(record, len(record), socket.MSG_WAITALL) == len(record):
                append(record)
                connection.sendall(STORED)


def group(directory: str, size: str, report: str) -> None:
    """Receive a record from every ready connection, write all by one call, sync, answer: a minimal group commit.

    A connection that ends its own direction reads: it gets all records, by one call after each sync.
    """
    from seawall.bench.suites.disk import appending_file

    length = int(size)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=256) as listener,
        appending_file(Path(directory)) as append,
        select.epoll() as ready,
    ):
        ready.register(listener, select.EPOLLIN)
        connections: dict[int, socket.socket] = {}
        readers: list[socket.socket] = []
        report_address(int(report), "{}:{}".format(*listener.getsockname()))
        while True:
            records, answered = [], []
            for descriptor, _ in ready.poll():
                if descriptor == listener.fileno():
                    connection, _ = listener.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connections[connection.fileno()] = connection
                    ready.register(connection, select.EPOLLIN)
                elif record := connections[descriptor].recv(length, socket.MSG_WAITALL):
                    records.append(record)
                    answered.append(connections[descriptor])
                else:
                    ready.unregister(descriptor)
                    readers.append(connections.pop(descriptor))
            if records:
                written = b"".join(records)
                append(memoryview(written))
                for connection in answered:
                    with suppress(ConnectionError):
                        connection.sendall(GROUP_ANSWER)
                for reader in readers:
                    # Fails for those that have left.
                    with suppress(ConnectionError):
                        reader.sendall(written)


def publish(address: str, topic: str, descriptor: str) -> None:
    """Publish records of 1 KiB to a node and wait until each is durable."""
    import mmap

    import seawall

    record, counter = os.urandom(1024), memoryview(mmap.mmap(int(descriptor), 8)).cast("q")
    with seawall.connect(f"seawall://{address}") as log:
        while True:
            log.publish(topic, record)
            counter[0] += 1


def follow(address: str, topic: str, descriptor: str) -> None:
    """Follow a topic from its start."""
    import mmap

    import seawall
    from seawall import ReceivedBatch

    counter = memoryview(mmap.mmap(int(descriptor), 8)).cast("q")
    with seawall.connect(f"seawall://{address}") as log:
        for item in log.subscriber(topic):
            counter[0] += len(item) if isinstance(item, ReceivedBatch) else 0


def drain(address: str, size: str, descriptor: str) -> None:
    """Receive what `group` sends to its readers."""
    import mmap

    counter, length = memoryview(mmap.mmap(int(descriptor), 8)).cast("q"), int(size)
    buffer, received = bytearray(SEND_SIZE), 0
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.shutdown(socket.SHUT_WR)
        while count := connection.recv_into(buffer):
            received += count
            counter[0] = received // length


def flood(address: str, descriptor: str) -> None:
    """Publish to topics of the lowest priority as fast as they are read, on whatever CPU time others leave."""
    from seawall.bench.subjects.flood import flood_topics

    os.nice(19)
    flood_topics(address, int(descriptor))


def keep(size: str, report: str) -> None:
    """Receive, checksum and keep the frames of one connection: a minimal in-memory log."""
    import numpy as np

    from seawall.kernels.codec.checksum import crc32c

    length = int(size)
    frame = np.zeros(length, np.uint8)
    kept = np.zeros(max(length, KEPT_SIZE // length * length), np.uint8)
    # Map all pages, as those of a log that has run for a while are.
    kept[:] = 1
    at = 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        report_address(int(report), "{}:{}".format(*listener.getsockname()))
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv_into(frame.data, length, socket.MSG_WAITALL) == length:
                crc32c(frame, 0, length, 0)
                kept[at : at + length] = frame
                at = (at + length) % len(kept)
                connection.sendall(b"\0")


def give(file: str, report: str) -> None:
    """Send a file from the page cache repeatedly to one connection."""
    import mmap

    with open(file, "rb") as stored, socket.create_server(("127.0.0.1", 0)) as listener:
        # Not by `sendfile`: then the receiver would copy data that is in no CPU cache (decision 0018).
        content = memoryview(mmap.mmap(stored.fileno(), 0, access=mmap.ACCESS_READ))
        report_address(int(report), "{}:{}".format(*listener.getsockname()))
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            while True:
                for at in range(0, len(content), SEND_SIZE):
                    connection.sendall(content[at : at + SEND_SIZE])


def node(data: str, fabric: str, report: str) -> None:
    """Serve a data directory until the process ends."""
    from seawall.bench.subjects.node_server import serve

    serve(Path(data), Path(fabric), lambda address: report_address(int(report), address))


def guard(stream: BinaryIO, kill: Callable[[int, int], object] = os.killpg) -> None:
    """Read numbers of process groups until the parent is gone, then kill them. A negative number: it has ended."""
    groups: set[int] = set()
    for line in stream:
        number = int(line)
        (groups.add if number > 0 else groups.discard)(abs(number))
    for group_id in groups:
        with suppress(ProcessLookupError):
            kill(group_id, signal.SIGKILL)


def report_address(descriptor: int, address: str) -> None:
    """Write the listening address as a line to a pipe, and close the pipe."""
    with open(descriptor, "w", encoding="ascii") as pipe:
        pipe.write(f"{address}\n")


ROLES: dict[str, Callable[..., None]] = {
    "send": send,
    "echo": echo,
    "store": store,
    "group": group,
    "publish": publish,
    "follow": follow,
    "drain": drain,
    "flood": flood,
    "keep": keep,
    "give": give,
    "node": node,
}


def exit_with_parent(stream: BinaryIO, exit_process: Callable[[int], object] = os._exit) -> None:
    """Wait until the parent's end of the pipe closes, then exit this process immediately."""
    stream.read()
    exit_process(0)


def main(arguments: Sequence[str], stream: BinaryIO) -> None:
    """Run one role until it ends or the parent is gone."""
    role, *rest = arguments
    if role == "guard":
        # It reads its input itself.
        guard(stream)
        return
    threading.Thread(target=exit_with_parent, args=(stream,), daemon=True).start()
    ROLES[role](*rest)


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdin.buffer)
