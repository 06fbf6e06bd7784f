"""The other process of a measurement between two processes, and how it is started and always ended.

`peer(…)` starts `python -m seawall.bench.subjects.peers` with one of the parts in `PARTS`:

    send ADDRESS PORT [FILE]  connect and send bytes, or the file over and over, until the connection ends
    echo READ WRITE           answer every count read from one eventfd with one written to the other
    store DIRECTORY SIZE TOLD write each record that comes over a connection to a file, sync, and answer
    group DIRECTORY SIZE TOLD write what all connections have sent by one call, sync once, and answer all of them
    publish ADDRESS TOPIC FD  publish records to a node, each waited for, and count them in shared memory
    keep SIZE TOLD            sum each frame that comes over a connection, copy it to where it stays, and answer
    give FILE TOLD            send a file over and over to whoever connects, without reading it
    node DATA FABRIC TOLD     serve a data directory, as `seawall serve` does

All of them that are given `TOLD` write where they listen, `host:port`, to that descriptor and close it.

A peer never outlives its parent. Leaving the context manager kills it and waits for it; and should the parent die
without getting there, the pipe that is the peer's standard input ends, which ends the peer. It has a session of its
own, so Ctrl-C reaches the parent alone, which then closes the context manager.

Loads nothing but the standard library before a part needs more, since the start of a peer is time nobody measures.
"""

from __future__ import annotations

import os
import select
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

#: What `keep` keeps, of the newest: more than a cache holds.
KEPT_SIZE = 256 << 20

#: What `store` answers: as long as the header of a frame. And `group`: as long as an ACK frame of one batch.
STORED = bytes(64)
GROUP_ANSWER = bytes(108)

#: Longest wait for a killed peer; the kernel needs microseconds, so more means something is badly wrong.
EXIT_SECONDS_MAX = 30.0


@contextmanager
def peer(*arguments: str, descriptors: Sequence[int] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """Start a peer with the given part and arguments, inheriting the descriptors; kill it on the way out."""
    command = [sys.executable, "-m", "seawall.bench.subjects.peers", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=descriptors, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(EXIT_SECONDS_MAX)


@contextmanager
def listening_peer(*arguments: str) -> Iterator[str]:
    """Start a peer that listens, and wait until it tells where."""
    with listening_process(*arguments) as (address, _):
        yield address


@contextmanager
def listening_process(*arguments: str) -> Iterator[tuple[str, int]]:
    """The same: where it listens, and the number of its process."""
    reading, writing = os.pipe()
    with open(reading, encoding="ascii") as pipe, ExitStack() as opened:
        try:
            process = opened.enter_context(peer(*arguments, str(writing), descriptors=(writing,)))
        finally:
            os.close(writing)
        address = pipe.readline().strip()
        if not address:
            raise ChildProcessError(f"peer {arguments[0]} has ended before it listened")
        yield address, process.pid


def send(address: str, port: str, file: str | None = None) -> None:
    """Send random bytes, or those of a file, to a listener again and again until it hangs up."""
    # Zeros would all come from one page of the kernel, faster than real data ever is.
    block = os.urandom(SEND_SIZE) if file is None else Path(file).read_bytes()
    with socket.create_connection((address, int(port))) as connection, suppress(ConnectionError):
        while True:
            connection.sendall(block)


def echo(read_descriptor: str, write_descriptor: str) -> None:
    """Answer every wake-up with a wake-up. Ends only with its process: an eventfd has no end of file."""
    reading, writing = int(read_descriptor), int(write_descriptor)
    while True:
        os.eventfd_read(reading)
        os.eventfd_write(writing, 1)


def store(directory: str, size: str, told: str) -> None:
    """Receive, write, sync, answer, one record at a time, for one connection: the least that a durable server does."""
    from seawall.bench.suites.disk import appending_file

    record = memoryview(bytearray(int(size)))
    with socket.create_server(("127.0.0.1", 0)) as listener, appending_file(Path(directory)) as append:
        tell(int(told), "{}:{}".format(*listener.getsockname()))
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv_into(record, len(record), socket.MSG_WAITALL) == len(record):
                append(record)
                connection.sendall(STORED)


def group(directory: str, size: str, told: str) -> None:
    """Receive a record of every connection that has sent one, write all by one call, sync, answer: group commit."""
    from seawall.bench.suites.disk import appending_file

    length = int(size)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=256) as listener,
        appending_file(Path(directory)) as append,
        select.epoll() as ready,
    ):
        ready.register(listener, select.EPOLLIN)
        connections: dict[int, socket.socket] = {}
        tell(int(told), "{}:{}".format(*listener.getsockname()))
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
                    connections.pop(descriptor).close()
            if records:
                append(memoryview(b"".join(records)))
                for connection in answered:
                    with suppress(ConnectionError):
                        connection.sendall(GROUP_ANSWER)


def publish(address: str, topic: str, descriptor: str) -> None:
    """Publish records of 1 KiB to a node, each waited for until it is durable."""
    import mmap

    import seawall

    record, counted = os.urandom(1024), memoryview(mmap.mmap(int(descriptor), 8)).cast("q")
    with seawall.connect(f"seawall://{address}") as log:
        while True:
            log.publish(topic, record)
            counted[0] += 1


def keep(size: str, told: str) -> None:
    """Receive, sum and keep frames for one connection: the least that a log in memory does."""
    import numpy as np

    from seawall.kernels.codec.checksum import crc32c

    length = int(size)
    frame = np.zeros(length, np.uint8)
    kept = np.zeros(max(length, KEPT_SIZE // length * length), np.uint8)
    # Memory that was touched, as that of a log is which runs for a while.
    kept[:] = 1
    at = 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tell(int(told), "{}:{}".format(*listener.getsockname()))
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv_into(frame.data, length, socket.MSG_WAITALL) == length:
                crc32c(frame, 0, length, 0)
                kept[at : at + length] = frame
                at = (at + length) % len(kept)
                connection.sendall(b"\0")


def give(file: str, told: str) -> None:
    """Send a file out of the system's memory, again and again, to one connection."""
    import mmap

    with open(file, "rb") as stored, socket.create_server(("127.0.0.1", 0)) as listener:
        # Not by `sendfile`: the peer would copy what lies in no cache (decision 0018).
        content = memoryview(mmap.mmap(stored.fileno(), 0, access=mmap.ACCESS_READ))
        tell(int(told), "{}:{}".format(*listener.getsockname()))
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            while True:
                for at in range(0, len(content), SEND_SIZE):
                    connection.sendall(content[at : at + SEND_SIZE])


def node(data: str, fabric: str, told: str) -> None:
    """Serve a data directory until the process ends."""
    from seawall.bench.subjects.publish_node import serve

    serve(Path(data), Path(fabric), lambda address: tell(int(told), address))


def tell(descriptor: int, text: str) -> None:
    """Write a line to a pipe, and close it."""
    with open(descriptor, "w", encoding="ascii") as pipe:
        pipe.write(f"{text}\n")


PARTS: dict[str, Callable[..., None]] = {
    "send": send,
    "echo": echo,
    "store": store,
    "group": group,
    "publish": publish,
    "keep": keep,
    "give": give,
    "node": node,
}


def leave_with_parent(stream: BinaryIO, leave: Callable[[int], object] = os._exit) -> None:
    """Wait until the parent's end of the pipe is gone, then end this process at once."""
    stream.read()
    leave(0)


def main(arguments: Sequence[str], stream: BinaryIO) -> None:
    """Play one part until it is over or the parent is gone."""
    part, *rest = arguments
    threading.Thread(target=leave_with_parent, args=(stream,), daemon=True).start()
    PARTS[part](*rest)


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdin.buffer)
