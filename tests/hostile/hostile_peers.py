"""Peers on plain sockets that send and do not read; honest clients; and a monitor of the memory of a node."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from hostile_node import HostileNode

import seawall
from seawall.core.types import ClientId, TopicId
from seawall.limits import KIB, MIB
from seawall.wire.format.codes import HelloFlags, ReadBy, ReadFlags
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.reading import Fetch
from seawall.wire.lwp2.session import Hello
from seawall.wire.lwp2.subscriptions import Subscribe

PATIENCE_S = 60.0
_WITHOUT_LIMIT = 1 << 62
VALUE = bytes(256 * KIB)


class Peers:
    """Sockets to a node, closed together."""

    def __init__(self, node: HostileNode) -> None:
        self._node = node
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for each in self.sockets:
            each.close()

    def connect(self, *, receive_size: int = 0) -> socket.socket:
        """One more connection, with a small receive buffer of the system if a size is given."""
        made = socket.socket()
        if receive_size:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_size)
        made.settimeout(PATIENCE_S)
        made.connect(self._node.address)
        self.sockets.append(made)
        return made

    def greet(self, *, token: str = "", receive_size: int = 0) -> socket.socket:
        """A connection that has sent HELLO, without a session, and has read WELCOME."""
        made = self.connect(receive_size=receive_size)
        made.sendall(encode_control(Hello(flags=HelloFlags(0), client_id=ClientId(0), token=token), request_id=1))
        assert made.recv(4096), "the node has closed the connection"
        return made


def subscribe(topic_id: int, request_id: int) -> bytes:
    """A SUBSCRIBE from the beginning with unlimited credit, for batches that the server has to read."""
    asked = Subscribe(TopicId(topic_id), ReadBy.EARLIEST, 0, _WITHOUT_LIMIT, _WITHOUT_LIMIT, 0)
    return encode_control(asked, request_id=request_id)


def fetch(topic_id: int, request_id: int, *, max_bytes: int = 16 << 20) -> bytes:
    """A FETCH from the beginning, of batches that the server has to read."""
    asked = Fetch(TopicId(topic_id), ReadBy.EARLIEST, 0, max_bytes, 0, flags=ReadFlags.NONE)
    return encode_control(asked, request_id=request_id)


def send_what_it_takes(peer: socket.socket, data: bytes) -> int:
    """Send until the node stops reading for a moment, or closes the connection; returns the number of bytes sent."""
    sent = 0
    peer.settimeout(0.2)
    with contextlib.suppress(TimeoutError, ConnectionError):
        while sent < len(data):
            sent += peer.send(data[sent:])
    peer.settimeout(PATIENCE_S)
    return sent


class Watch:
    """The most memory that a node had resident while it was watched."""

    def __init__(self) -> None:
        self.most = 0


@contextlib.contextmanager
def watching(node: HostileNode) -> Iterator[Watch]:
    """Measure the memory of a node continuously."""
    watch, is_over = Watch(), threading.Event()

    def measure() -> None:
        while not is_over.wait(0.02) and node.is_running:
            with contextlib.suppress(OSError, AssertionError):
                watch.most = max(watch.most, node.resident_size)

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield watch
    finally:
        is_over.set()
        thread.join()


def filled(node: HostileNode, mib: int, *, token: str = "") -> int:
    """Publish so many MiB to a topic; its id."""
    with seawall.connect(node.url, token=token) as log:
        topic_id = log.create_topic("t").topic_id
        for _ in range(mib // 8):
            log.publish("t", [VALUE] * (8 * MIB // len(VALUE)))
    return topic_id


def served(node: HostileNode, *, token: str = "") -> None:
    """An honest client is served: it publishes, and reads what it has published."""
    with seawall.connect(node.url, token=token) as log:
        log.create_topic("honest")
        log.publish("honest", [b"value"] * 100)
        assert log.read_arrow("honest").num_rows == 100
