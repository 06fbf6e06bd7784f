"""Attacks on the descriptors of a server: neither silent connections nor many topics stop it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack

from hostile_node import HostileNode

import seawall


def create(node: HostileNode, names: list[str]) -> None:
    with seawall.connect(node.url) as log:
        log.create_topics(names)


def connect_silently(node: HostileNode, count: int, stack: ExitStack) -> None:
    """Open connections that never send anything; the node closes those over its limit."""
    for _ in range(count):
        connected = socket.create_connection(node.address, timeout=10)
        stack.callback(connected.close)


def test_silent_connections_leave_descriptors_for_segments(start_node: Callable[..., HostileNode]) -> None:
    """INV-LISTENER-BOUND."""
    node = start_node(descriptors=512)
    names = [f"t{number}" for number in range(120)]
    create(node, names)
    with seawall.connect(node.url) as log, ExitStack() as stack:
        log.publish(names[0], b"before")
        connect_silently(node, 1_000, stack)
        for name in names:
            log.publish(name, b"x" * 100_000)
        assert [len(log.read(name)) for name in names[1:]] == [1] * 119
        assert node.is_running
    assert node.stop() == 0
    assert "connection_limit" in node.stderr


def test_more_topics_than_descriptors_are_written_and_read(start_node: Callable[..., HostileNode]) -> None:
    node = start_node(descriptors=300)
    names = [f"t{number}" for number in range(320)]
    create(node, names)
    with seawall.connect(node.url) as log:
        for name in names:
            log.publish(name, name.encode())
        for name in names:
            log.publish(name, b"y" * 70_000)
        assert node.descriptor_count < 300
    assert node.stop() == 0
    node.start()
    with seawall.connect(node.url) as log:
        for name in names:
            values = [record.value for item in log.read(name) for record in item.records()]
            assert values == [name.encode(), b"y" * 70_000]
        assert node.descriptor_count < 300
    assert node.stop() == 0
