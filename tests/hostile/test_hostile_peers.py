"""Thousands of silent, slow or half-closed peers: a node serves honest clients meanwhile, in bounded memory."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hostile_node import StartNode
from hostile_peers import Peers, fetch, filled, served, subscribe, watching

from seawall.core.types import ClientId
from seawall.io.process.descriptors import raise_descriptor_limit
from seawall.limits import KIB, MIB
from seawall.wire.format.codes import HelloFlags
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.session import Hello

MEMORY_LIMIT = 384 * MIB
#: The receive buffer of a peer that does not read.
SMALL = 4 * KIB
HELLO = encode_control(Hello(flags=HelloFlags(0), client_id=ClientId(0)), request_id=1)


def say_nothing(peers: Peers, _topic_id: int) -> None:
    peers.connect()


def greet_and_wait(peers: Peers, _topic_id: int) -> None:
    peers.greet()


def begin_a_header(peers: Peers, _topic_id: int) -> None:
    peers.connect().sendall(HELLO[:10])


def subscribe_and_never_read(peers: Peers, topic_id: int) -> None:
    peers.greet(receive_size=SMALL).sendall(subscribe(topic_id, 1))


def ask_and_close_one_side(peers: Peers, topic_id: int) -> None:
    made = peers.greet(receive_size=SMALL)
    made.sendall(fetch(topic_id, 1, max_bytes=MIB))
    made.shutdown(socket.SHUT_WR)


def ask_and_reset(peers: Peers, topic_id: int) -> None:
    made = peers.greet(receive_size=SMALL)
    made.sendall(fetch(topic_id, 1, max_bytes=MIB))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()


ATTACKS = [
    say_nothing,
    greet_and_wait,
    begin_a_header,
    subscribe_and_never_read,
    ask_and_close_one_side,
    ask_and_reset,
]
PEERS = 2_000


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_honest_client_is_served_during_an_attack(
    start_node: StartNode, attack: Callable[[Peers, int], None]
) -> None:
    raise_descriptor_limit()
    node = start_node("--memory-limit", str(MEMORY_LIMIT))
    topic_id = filled(node, 16)
    with Peers(node) as peers, watching(node) as watch:
        for _ in range(PEERS):
            attack(peers, topic_id)
        served(node)
    assert watch.most < MEMORY_LIMIT, f"{watch.most // MIB} MiB"
    assert node.stop() == 0, node.stderr


def test_an_honest_client_is_served_beside_peers_that_send_single_bytes(start_node: StartNode) -> None:
    raise_descriptor_limit()
    node = start_node("--memory-limit", str(MEMORY_LIMIT))
    with Peers(node) as peers, watching(node) as watch:
        for _ in range(PEERS // 2):
            peers.connect()
        with trickling(peers, HELLO * 1_000):
            served(node)
    assert watch.most < MEMORY_LIMIT, f"{watch.most // MIB} MiB"
    assert node.stop() == 0, node.stderr


@contextmanager
def trickling(peers: Peers, data: bytes) -> Iterator[None]:
    """Send one byte at a time over each connection, round-robin, and never read."""
    is_over = threading.Event()

    def trickle() -> None:
        for at in range(len(data)):
            for each in peers.sockets:
                if is_over.is_set():
                    return
                with suppress(OSError):
                    each.send(data[at : at + 1], socket.MSG_DONTWAIT)

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
