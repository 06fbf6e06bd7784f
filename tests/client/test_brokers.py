"""A server with several event loops: how connections are distributed, and what the loops share."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import NoReturn

import pytest
from real_server import SMALL, RealServer

import seawall
from seawall.api.received import ReceivedBatch
from seawall.client.connection.connection import Connection
from seawall.client.remote_log import RemoteLog
from seawall.engine.commit.resident_commit import ResidentCommit
from seawall.engine.serving.loop_view import LoopView
from seawall.engine.serving.served_log import ServedLog
from seawall.errors import FencedError, NotFoundError, SeawallError, WrongStateError
from seawall.io.network.accepting import AcceptingPort
from seawall.io.process.clocks import OsClock
from seawall.server.connection import listener
from seawall.server.lwp2 import session as lwp2_session
from seawall.server.node import NodeSettings, start_node
from seawall.wire.lwp1.replies import BrokerStatus, ClusterStatusReply
from seawall.wire.lwp2.session import Hello

LOOPS = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    with RealServer(tmp_path / "data", event_loops=LOOPS) as real:
        yield real


@pytest.fixture
def logs(server: RealServer) -> Iterator[list[RemoteLog]]:
    """One log for each event loop: each has its own connection, and connections are distributed round-robin."""
    with ExitStack() as opened:
        made = [opened.enter_context(seawall.connect(server.url)) for _ in range(LOOPS)]
        for log in made:
            log.topics()
        assert server.connection_counts == [1] * LOOPS
        yield made


def stored(log: RemoteLog, topic: str) -> list[bytes]:
    return [each.value for item in log.follow(topic) if isinstance(item, ReceivedBatch) for each in item]


def loop_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("seawall-loop-")]


@pytest.mark.usefixtures("each_event_loop")
def test_connections_are_distributed_round_robin_and_limited_together(tmp_path: Path) -> None:
    async def work() -> None:
        node = await start_node(
            tmp_path / "data", NodeSettings(port=0, event_loops=LOOPS, connections_max=7), store=SMALL
        )
        assert loop_threads() == ["seawall-loop-1", "seawall-loop-2"]

        def connect() -> list[Connection]:
            return [Connection.open(node.address, Hello(), timeout_s=20, clock=OsClock()) for _ in range(7)]

        connections = await asyncio.to_thread(connect)
        assert sorted(len(event_loop.listener.connections) for event_loop in node.event_loops) == [2, 2, 3]
        assert node.connection_count == 7
        with pytest.raises(SeawallError, match="its limit of 7 connections"):
            await asyncio.to_thread(connect)
        assert node.counts["connection_limit"] == 1
        for connection in connections:
            connection.close()
        assert await node.drain(20)
        assert loop_threads() == []

    asyncio.run(work())


def test_a_topic_created_at_one_loop_is_known_to_all(logs: list[RemoteLog]) -> None:
    for number in range(2 * LOOPS):
        name = f"topic-{number}"
        logs[number % LOOPS].create_topic(name)
        for log in logs:
            log.publish(name, b"there")
        assert stored(logs[0], name) == [b"there"] * LOOPS
    logs[0].delete_topic("topic-1")
    for log in logs:
        with pytest.raises(NotFoundError):
            log.publish("topic-1", b"deleted")


@pytest.mark.parametrize("order", [2, 5])
def test_one_session_over_all_loops_is_stored_once_and_in_its_order(
    server: RealServer, logs: list[RemoteLog], order: int
) -> None:
    logs[0].create_topic("events", order=order)
    wanted = [b"%d" % number for number in range(3_000)]
    with logs[0].publisher("events", batch_size=100, connections=2 * LOOPS) as publisher:
        for number, value in enumerate(wanted):
            publisher.publish(value)
            if number % 1_000 == 500:
                server.cut_all()
    found = stored(logs[1], "events")
    assert sorted(found) == sorted(wanted)
    if order == 5:
        assert found == wanted


def test_records_published_at_one_loop_are_pushed_at_all(logs: list[RemoteLog]) -> None:
    logs[0].create_topic("events")
    wanted = [b"%d" % number for number in range(300)]
    found: list[list[bytes]] = [[] for _ in logs]

    def follow(log: RemoteLog, values: list[bytes]) -> None:
        records = (each for item in log.subscriber("events") if isinstance(item, ReceivedBatch) for each in item)
        values += [record.value for record in islice(records, len(wanted))]

    readers = [threading.Thread(target=follow, args=pair) for pair in zip(logs, found, strict=True)]
    for reader in readers:
        reader.start()
    for number, value in enumerate(wanted):
        logs[number % LOOPS].publish("events", value)
    for reader in readers:
        reader.join(60)
    assert found == [wanted] * LOOPS


def test_records_committed_by_the_publish_thread_are_pushed_at_all_loops(
    logs: list[RemoteLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits while no event loop is active that would wake its readers."""
    monkeypatch.setattr(lwp2_session, "_ATTACH_AFTER", 1)
    counts: list[int] = []
    commit = ResidentCommit.commit
    monkeypatch.setattr(ResidentCommit, "commit", lambda each, count: counts.append(count) or commit(each, count))
    logs[0].create_topic("events", durability="fsync")
    logs[0].publish("events", b"0")
    found: list[list[bytes]] = [[] for _ in logs]
    arrived = threading.Semaphore(0)

    def follow(log: RemoteLog, values: list[bytes]) -> None:
        for item in log.subscriber("events"):
            assert isinstance(item, ReceivedBatch)
            values += [record.value for record in item]
            arrived.release()
            if len(values) == 20:
                return

    readers = [threading.Thread(target=follow, args=pair) for pair in zip(logs, found, strict=True)]
    for reader in readers:
        reader.start()
    for number in range(20):
        for _ in readers:
            assert arrived.acquire(timeout=20)
        if number < 19:
            logs[0].publish("events", b"%d" % (number + 1))
    for reader in readers:
        reader.join()
    assert found == [[b"%d" % number for number in range(20)]] * LOOPS
    assert counts


def test_a_newer_session_ends_the_older_at_every_loop(logs: list[RemoteLog]) -> None:
    logs[0].create_topic("events")
    old = logs[0].publisher("events", client_id=7, connections=LOOPS)
    old.publish(b"old").result()
    with logs[1].publisher("events", client_id=7) as new:
        new.publish(b"new").result()
        with pytest.raises(FencedError):
            old.publish(b"late").result(20)
    with pytest.raises(FencedError):
        old.close()
    assert stored(logs[2], "events") == [b"old", b"new"]


def test_keys_and_transactions_work_at_every_loop(logs: list[RemoteLog]) -> None:
    logs[0].create_topic("events")
    for log in logs:
        assert log.publish("events", b"once", idempotency_key="key").first_seq == 1
    for log in logs:
        with log.transaction() as transaction:
            transaction.publish("events", b"staged")
    assert stored(logs[0], "events") == [b"once"] + [b"staged"] * LOOPS


@pytest.mark.usefixtures("each_event_loop")
def test_the_status_lists_the_brokers(server: RealServer, logs: list[RemoteLog]) -> None:
    async def ask() -> ClusterStatusReply:
        async with seawall.connect_async(server.url) as log:
            return await log.status()

    status = logs[0].status()
    address = (f"127.0.0.1:{server.port}",)
    assert status.brokers == tuple(BrokerStatus(number, address, 1) for number in range(LOOPS))
    assert (status.mode, status.current_term) == ("standalone", 1)
    assert sum(broker.connections for broker in asyncio.run(ask()).brokers) == LOOPS + 1


@pytest.mark.usefixtures("each_event_loop")
def test_a_port_in_use_leaves_no_threads_and_no_lock_behind(tmp_path: Path) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            settings = NodeSettings(port=taken.getsockname()[1], event_loops=LOOPS)
            with pytest.raises(OSError, match="in use"):
                await start_node(tmp_path / "data", settings, store=SMALL)
        assert loop_threads() == []
        node = await start_node(tmp_path / "data", NodeSettings(port=0), store=SMALL)
        assert await node.drain(20)

    asyncio.run(work())


def test_only_the_first_loop_opens_and_closes_the_log(server: RealServer) -> None:
    async def check(first: ServedLog) -> None:
        assert [type(view) for view in first.loop_views] == [ServedLog, LoopView, LoopView]
        with pytest.raises(WrongStateError):
            await first.loop_views[1].open()
        await first.loop_views[1].close()
        assert await first.loop_views[1].topics() == []

    server.run(check)


def test_a_peer_that_disconnects_before_it_is_accepted_is_harmless(server: RealServer, logs: list[RemoteLog]) -> None:
    for _ in range(3 * LOOPS):
        with socket.create_connection(("127.0.0.1", server.port)) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    logs[0].create_topic("events")
    for log in logs:
        log.publish("events", b"there")
    assert stored(logs[0], "events") == [b"there"] * LOOPS


def test_a_connection_is_accepted_later_if_descriptors_run_out(
    server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, refusals = AcceptingPort.accept, [OSError(errno.EMFILE, "too many open files")]
    monkeypatch.setattr(listener, "_ACCEPT_PAUSE_S", 0.01)
    monkeypatch.setattr(AcceptingPort, "accept", lambda port: _raise(refusals.pop()) if refusals else accept(port))
    with seawall.connect(server.url) as log:
        assert log.topics() == []
    assert server.counts == {"accept_failed": 1}


def _raise(error: Exception) -> NoReturn:
    raise error


def test_bad_bytes_at_any_loop_are_counted_once(server: RealServer) -> None:
    for _ in range(LOOPS):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert peer.recv(1) == b""
    assert server.counts == {"bad_magic": LOOPS}
