"""The figures of waiting publishers: every record that a client counts is stored.

All figures run in the slow test of `test_bench_figures.py`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from seawall.bench.figures import waiting
from seawall.bench.figures.waiting import Client, PipelinedClient, WaitingClient
from seawall.bench.subjects.publish_node import TOPIC, connected_log
from seawall.client.connection.connection import Connection
from seawall.client.remote_log import RemoteLog
from seawall.errors import InvariantError
from seawall.io.network.sockets import parse_address
from seawall.io.process.clocks import OsClock
from seawall.kernels.runtime import jit
from seawall.limits import SESSION_WINDOW_BATCHES
from seawall.wire.format.codes import HelloFlags
from seawall.wire.lwp2.session import Hello

pytestmark = pytest.mark.skipif(jit.PYTHON_MODE, reason="a node in plain Python takes minutes for a megabyte")

RUN_NS = 50_000_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteLog]:
    """A client of a node with one topic."""
    with connected_log(tmp_path_factory.mktemp("node"), durability="fsync", cap_bytes=0) as connected:
        assert list(connected.topics()) == [TOPIC]
        yield connected


@pytest.fixture
def count_stored(log: RemoteLog) -> Callable[[], int]:
    """How many records the topic got since the test began."""
    before = log.describe(TOPIC).record_count
    return lambda: log.describe(TOPIC).record_count - before


def open_session(log: RemoteLog, stack: ExitStack) -> Connection:
    hello = Hello(flags=HelloFlags.OPEN, window_batches=SESSION_WINDOW_BATCHES)
    connection = Connection.open(log.target.addresses[0], hello, timeout_s=20, clock=OsClock())
    stack.callback(connection.close)
    return connection


def open_socket(log: RemoteLog, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(parse_address(log.target.addresses[0]), timeout=20))


def publish_concurrently(clients: Sequence[Client]) -> int:
    """Run all clients for a short time: the records that they published."""
    until_ns = time.monotonic_ns() + RUN_NS
    threads = [threading.Thread(target=each.run, args=(until_ns,)) for each in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(each.published for each in clients)


def total(clients: Sequence[Client], _seconds: float) -> float:
    return float(sum(each.published for each in clients))


def test_clients_that_wait_are_measured(tmp_path: Path) -> None:
    with waiting.threads(tmp_path, 2)() as run:
        assert run(0.0) > 0
        assert run(0.05) > 0
    assert list(tmp_path.iterdir()) == []


def test_the_baseline_is_measured(tmp_path: Path) -> None:
    with waiting.bare_group(tmp_path, 3, total)() as run:
        assert run(0.05) >= 3
    assert list(tmp_path.iterdir()) == []


def test_the_part_of_a_rate_beside_a_follower_is_measured(tmp_path: Path) -> None:
    """INV-BENCH-OK: a run is valid only if the follower has received records of it."""
    for side in (waiting.connections, waiting.bare_group):
        with waiting.kept(side(tmp_path, 2, total), side(tmp_path, 2, total, is_followed=True))() as run:
            assert run(0.05) > 0
    assert list(tmp_path.iterdir()) == []


def test_every_counted_record_is_stored(log: RemoteLog, count_stored: Callable[[], int]) -> None:
    topic_id = log.describe(TOPIC).topic_id
    with ExitStack() as stack:
        clients = []
        for _ in range(3):
            connection = open_session(log, stack)
            welcome = connection.welcome
            session = (welcome.client_id, welcome.session_epoch, welcome.next_seq)
            clients.append(WaitingClient(connection.stream.fileno(), session, topic_id, 0))
        published = publish_concurrently(clients)
        assert count_stored() == published >= 3
        assert all(each.latencies.size == each.published for each in clients)


@pytest.mark.parametrize("version", [1, 2])
def test_every_record_of_a_pipeline_is_stored(log: RemoteLog, count_stored: Callable[[], int], version: int) -> None:
    topic_id = log.describe(TOPIC).topic_id
    connect = open_session if version == 2 else open_socket
    with ExitStack() as stack:
        clients = [PipelinedClient(connect(log, stack), version, topic_id, 64) for _ in range(2)]
        published = 0
        while published < 64:
            published += publish_concurrently(clients)
        assert count_stored() == published


def test_an_invalid_ack_of_a_pipelined_message_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(bytes(44))
        publisher = PipelinedClient(ours, 1, 1, 1)
        publisher.run(0)
        with pytest.raises(InvariantError, match="received no ack"):
            _ = publisher.published


def test_an_invalid_ack_is_an_error_and_no_figure() -> None:
    """INV-BENCH-OK."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(bytes(108))
        publisher = WaitingClient(ours.fileno(), (1, 1, 1), 1, 0)
        publisher.run(0)
        with pytest.raises(InvariantError, match="received no ack"):
            _ = publisher.latencies


def test_the_table_has_every_count(tmp_path: Path) -> None:
    names = [each.name for each in waiting.table(tmp_path)]
    assert len(set(names)) == len(names)
    for count in waiting.COUNTS:
        assert sum(name.startswith(f"{count} waiting") for name in names) >= 4
