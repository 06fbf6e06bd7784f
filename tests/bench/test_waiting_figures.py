"""What is measured of waiting publishers is what it says: each record is stored before the next is sent."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from seawall.bench.figures import waiting
from seawall.bench.figures.waiting import WaitingClient
from seawall.bench.harness import BenchContext, Subject
from seawall.bench.subjects.publish_node import TOPIC, connected_log
from seawall.errors import InvariantError
from seawall.kernels.runtime import jit

pytestmark = pytest.mark.skipif(jit.PYTHON_MODE, reason="a node in plain Python takes minutes for a megabyte")


@pytest.mark.parametrize("subject", [waiting.processes, waiting.threads, waiting.tasks, waiting.server_time])
def test_clients_that_wait_are_measured(tmp_path: Path, subject: Callable[[Path, int], Subject]) -> None:
    with subject(tmp_path, 2)() as run:
        assert run(0.0) > 0
        assert run(0.05) > 0
    assert list(tmp_path.iterdir()) == []


def test_the_limit_is_measured_the_same_way(tmp_path: Path) -> None:
    for figure in (waiting._rate, waiting._median):
        with waiting.bare_group(tmp_path, 3, figure)() as run:
            assert run(0.05) > 0
    assert list(tmp_path.iterdir()) == []


def test_every_record_that_counts_is_stored(tmp_path: Path) -> None:
    with connected_log(tmp_path, durability="fsync", cap_bytes=0) as log, ExitStack() as stack:
        clients = waiting._waiting_clients(log.target.addresses[0], 3, stack)
        published = waiting._concurrently(clients, waiting._total)(0.05)
        assert log.describe(TOPIC).record_count == published >= 3
        assert all(each.latencies.size == each.published for each in clients)


@pytest.mark.parametrize("version", [1, 2])
def test_every_message_that_is_under_way_is_stored(tmp_path: Path, version: int) -> None:
    with connected_log(tmp_path, durability="fsync", cap_bytes=0) as log, ExitStack() as stack:
        address, topic_id = log.target.addresses[0], log.describe(TOPIC).topic_id
        connect = waiting._session if version == 2 else waiting._socket
        clients = [waiting.PipelinedClient(connect(address, stack), version, topic_id, 64) for _ in range(2)]
        published = waiting._concurrently(clients, waiting._total)(0.05)
        assert log.describe(TOPIC).record_count == published >= 64


def test_versions_are_measured_the_same_way(tmp_path: Path) -> None:
    for version in (1, 2):
        with waiting.versioned(tmp_path, version, 2, 1)() as run:
            assert run(0.05) > 0
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_ack_of_a_message_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(bytes(44))
        publisher = waiting.PipelinedClient(ours, 1, 1, 1)
        publisher.run(0)
        with pytest.raises(InvariantError, match="received no ack"):
            _ = publisher.published


def test_an_answer_that_is_no_ack_is_an_error_and_no_figure() -> None:
    """INV-BENCH-OK."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(bytes(108))
        publisher = WaitingClient(ours.fileno(), (1, 1, 1), 1, 0)
        publisher.run(0)
        with pytest.raises(InvariantError, match="received no ack"):
            _ = publisher.latencies


def test_the_table_has_every_count(tmp_path: Path) -> None:
    names = [each.name for each in waiting.table(BenchContext(0.01, 5, tmp_path).directory)]
    assert len(set(names)) == len(names)
    for count in waiting.COUNTS:
        assert sum(name.startswith(f"{count} waiting") for name in names) >= 4
