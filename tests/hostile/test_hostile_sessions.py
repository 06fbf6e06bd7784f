"""Clients that connect once: a server keeps a bounded number of their sessions, and accepts the next client."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import seawall
from seawall.core.types import ClientId
from seawall.wire.format.codes import Command, HelloFlags, Kind, SessionStatus
from seawall.wire.format.decoder import FrameDecoder
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.session import Hello, Welcome, parse_welcome

if TYPE_CHECKING:
    from hostile_node import HostileNode, StartNode

#: Bytes that a node may grow by while sessions open and expire: far less than Python objects for all would take.
GROWTH_MAX = 96 << 20


def greet(node: HostileNode, client_id: int) -> Welcome:
    """Open a session on its own connection, and disconnect."""
    with socket.create_connection(node.address, timeout=60) as connection:
        connection.sendall(encode_control(Hello(flags=HelloFlags.OPEN, client_id=ClientId(client_id))))
        decoder = FrameDecoder()
        while not (frames := decoder.frames()):
            data = connection.recv(1 << 16)
            assert data, "the node closed the connection"
            decoder.feed(data)
    header = frames[0].header
    assert (header.kind, header.command) == (Kind.CONTROL, Command.WELCOME), frames[0]
    return parse_welcome(frames[0].payload)


def flood(start_node: StartNode, monkeypatch: pytest.MonkeyPatch, clients: int, sessions_max: int) -> None:
    monkeypatch.setenv("SEAWALL_STORAGE_SESSIONS_MAX", str(sessions_max))
    node = start_node()
    with seawall.connect(node.url) as log:
        log.create_topic("events")
        with log.publisher("events", client_id=1 << 60) as stays:
            stays.publish(b"before").result()
            for client_id in range(1, 21):
                greet(node, client_id)
            before = node.resident_size
            with ThreadPoolExecutor(8) as pool:
                statuses = pool.map(lambda client_id: greet(node, client_id).status, range(21, clients + 1))
                assert set(statuses) == {SessionStatus.NEW}
            assert node.resident_size < before + GROWTH_MAX
            assert len(log.sessions()) <= sessions_max
            stays.publish(b"after").result()
        assert [session.client_id for session in log.sessions()][-1] == 1 << 60, "it had a connection all the time"
    node.kill()
    node.start()
    with seawall.connect(node.url) as log:
        known = [session.client_id for session in log.sessions()]
        assert len(known) <= sessions_max
        assert clients in known
        assert greet(node, clients).status is SessionStatus.RESUMED
        assert greet(node, 1).status is SessionStatus.NEW
        for client_id in (1, 1 << 60):
            log.retire_session(client_id)
        assert not {1, 1 << 60} & {session.client_id for session in log.sessions()}
    assert node.stop() == 0


def test_hundreds_of_short_lived_clients(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> None:
    flood(start_node, monkeypatch, clients=300, sessions_max=120)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_thousand_short_lived_clients(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> None:
    flood(start_node, monkeypatch, clients=20_000, sessions_max=10_000)
