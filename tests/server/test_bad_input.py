"""Every kind of bad input, over a real socket, in both versions: the answer, whether it closes, and no harm to others.

Each row of `bad_input_rows` is one test. A connection first sends something valid, then the input of the row, in one
write. It must receive the answer to the valid part and exactly what the row expects. After that a connection that may
continue does, one that may not is closed, nothing of the bad frame is stored, and a witness that was connected all the
time still gets its acks.

All rows without settings of their own share one node, so harm that one row did would also show in the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import uvloop
from bad_input_rows import FULL, MIB, ORDERED, TOPIC, VERSION_1, VERSION_2, Row
from lwp2_peer import SMALL, Peer
from v1_clients import ACK, CONTROL, PythonClient, frame, record

from seawall.core.types import TopicId
from seawall.engine.serving.served_log import ServedLog
from seawall.server.connection.context import ServerSettings
from seawall.server.connection.session import ConnectionLimits
from seawall.server.node import Node, NodeSettings, start_node
from seawall.wire.format.ack_rows import ack_rows
from seawall.wire.format.codes import Command, Kind, ReadBy
from seawall.wire.lwp2.frames import encode_control, encode_ping
from seawall.wire.lwp2.reading import Fetch
from seawall.wire.lwp2.session import Hello, parse_error

WITNESS = 4
#: Client ids that no other test has used; their lowest byte is always 7.
CLIENT_IDS = count(7, 256)
Events = list[tuple[Any, ...]]


class Lwp1Connection:
    """A connection of version 1, and the answers it receives."""

    valid_answer: tuple[Any, ...] = ("ack", 1)

    def __init__(self, client: PythonClient) -> None:
        self.client = client
        self.writer = client.writer

    @classmethod
    async def open(cls, node: Node, _row: Row) -> Lwp1Connection:
        host, port = node.address.rsplit(":", 1)
        return cls(await PythonClient.connect((host, int(port))))

    async def valid(self, value: bytes) -> bytes:
        return self.client.ingest(record(value), TOPIC)

    def large_requests(self) -> bytes:
        """Requests whose answers are large."""
        return frame(CONTROL, b"\1\0\0\0" + bytes(8) + (8 * MIB).to_bytes(4, "little"), batch_id=0x10) * 30

    def another(self, row: Row) -> tuple[bytes, tuple[Any, ...]]:
        """A request that shows that the connection still works, and its answer."""
        if row.first:
            return frame(0x20), ("keepalive",)
        return self.client.ingest(record(b"on"), TOPIC), ("ack", self.client.batch_id)

    async def receive(self) -> Events:
        """The next answers; none at the end of the connection."""
        try:
            received = await self.client.receive()
        except (asyncio.IncompleteReadError, ConnectionError):
            return []
        if received.flags == ACK:
            return [("ack", received.batch_id)]
        if received.flags == 0x20:
            return [("keepalive",)]
        if received.error is None:
            return [("control", received.batch_id)]
        details = received.document.get("details", {})
        if received.error == 0x06:
            assert details == {"supported": [1, 2]}
        return [("error", received.error, details.get("batch_id"))]


class Lwp2Connection:
    """A connection of version 2, and the answers it receives."""

    valid_answer: tuple[Any, ...] = ("ack", 1, 0, 0)

    def __init__(self, peer: Peer) -> None:
        self.client = peer
        self.writer = peer.writer

    @classmethod
    async def open(cls, node: Node, row: Row, client_id: int | None = None) -> Lwp2Connection:
        host, port = node.address.rsplit(":", 1)
        made = cls(Peer(*await asyncio.open_connection(host, int(port), limit=1 << 16)))
        if not row.first:
            await made.client.hello(client_id or next(CLIENT_IDS), **row.settings.get("hello", {}))
        return made

    async def valid(self, value: bytes) -> bytes:
        return self.client.batch(TOPIC, value)

    def large_requests(self) -> bytes:
        """Requests whose answers are large."""
        for number in range(60):
            self.client.ask(Fetch(TopicId(TOPIC), ReadBy.EARLIEST, 0, 8 * MIB, 0), request_id=number)
        return b""

    def another(self, row: Row) -> tuple[bytes, tuple[Any, ...]]:
        """A request that shows that the connection still works, and its answer."""
        if row.first:
            return encode_control(Hello(token="all")), ("control", int(Command.WELCOME))
        self.client.seq = max(self.client.seq, row.settings.get("next_seq", 0) - 1)
        return self.client.batch(TOPIC, b"on"), ("ack", self.client.seq, 0, 0)

    async def receive(self) -> Events:
        """The next answers; none at the end of the connection."""
        try:
            received = await asyncio.wait_for(self.client.frame(), 30)
        except ConnectionError:
            return []
        if received is None:
            return []
        header = received.header
        if header.kind == Kind.ACK:
            names = ("client_seq", "status", "reason")
            return [("ack", *(int(row[name]) for name in names)) for row in ack_rows(received.payload)]
        if header.kind == Kind.KEEPALIVE:
            return [("ping",)]
        if header.command == Command.ERROR:
            error = parse_error(received.payload)
            return [("error", error.code, error.closes)]
        return [("control", header.command)]


class SharedNode:
    """A node for many rows, and the event loop it runs on."""

    def __init__(self, path: Path) -> None:
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.node = self.runner.run(start(path))

    def close(self) -> None:
        with self.runner:
            assert self.runner.run(self.node.drain(20))


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedNode]:
    made = SharedNode(tmp_path_factory.mktemp("bad-input"))
    yield made
    made.close()


async def start(path: Path, row: Row | None = None) -> Node:
    """Start a node, with the settings of a row if it has any."""
    changed = {} if row is None else row.settings
    server = ServerSettings(keepalive_ms=100, idle_ms=300) if changed.get("idle") else ServerSettings()
    settings = NodeSettings(port=0, server=server, bounds=changed.get("bounds", ConnectionLimits(linger_s=0.1)))
    node = await start_node(path / "data", settings, store=SMALL, access=changed.get("access"))
    await node.log.create_topic("events")
    await node.log.create_topic("full", cap_records=1, discard="reject")
    await node.log.create_topic("ordered", order=5)
    await node.log.create_topic("witness")
    assert [node.log.topic_named(name).topic_id for name in ("events", "full", "ordered", "witness")] == [
        *(TOPIC, FULL, ORDERED, WITNESS)
    ]
    return node


async def connect_witness(node: Node) -> Peer:
    host, port = node.address.rsplit(":", 1)
    peer = Peer(*await asyncio.open_connection(host, int(port)))
    await peer.hello(next(CLIENT_IDS), token="all", keepalive_ms=60_000)
    return peer


async def receive_all(connection: Any, expected: Events, *, closes: bool) -> Events:
    """The answers, until there are as many as expected, or to the end of the connection; a ping counts once."""
    received: Events = []
    while closes or len(received) < len(expected):
        events = await connection.receive()
        if not events:
            break
        received += [event for event in events if event != ("ping",) or event not in received]
    return sorted(received, key=repr)


async def act(row: Row, node: Node, connection: Any) -> asyncio.Task[Any] | None:
    """Do what the row says after its input was sent."""
    match row.then:
        case "eof":
            connection.writer.write_eof()
        case "reset":
            connection.writer.transport.abort()
        case "stop reading":
            connection.writer.transport.pause_reading()
            connection.writer.write(connection.large_requests())
        case "fence":
            other = await Lwp2Connection.open(node, row, connection.client.welcome.client_id)
            other.writer.close()
        case "drain":
            # Everything it sent is accepted before the drain begins.
            while (await node.log.describe("events")).record_count < 2:
                await asyncio.sleep(0.001)
            return asyncio.ensure_future(node.drain(20))
    return None


async def execute(row: Row, kind: Any, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    first_seq = (await node.log.describe("events")).next_seq
    await node.log.delete("full", before_seq=(await node.log.describe("full")).next_seq)
    witness = await connect_witness(node)
    connection = await kind.open(node, row)
    is_deaf = row.then == "stop reading"
    valid = b"" if row.first else await connection.valid(bytes(3 * MIB) if is_deaf else b"valid")
    expected = [] if row.first else [connection.valid_answer]
    if row.settings.get("refusing"):
        connection.writer.write(valid)
        assert await receive_all(connection, expected, closes=False) == expected
        valid, expected = b"", []
        monkeypatch.setattr(ServedLog, "is_refusing", True)
    sent = row.send(connection.client)
    first, *later = sent if isinstance(sent, tuple) else (sent,)
    connection.writer.write(valid + first)
    expected += row.answers
    draining = await act(row, node, connection)
    received: Events = []
    for data in later:
        received += await receive_all(connection, [*(() if row.first else (1,)), 1], closes=False)
        connection.writer.write(data)
    if row.then not in ("reset", "stop reading"):
        received += await receive_all(connection, expected[len(received) :], closes=row.closes)
        assert sorted(received, key=repr) == sorted(expected, key=repr)
    monkeypatch.undo()
    if not row.closes:
        data, answer = connection.another(row)
        connection.writer.write(data)
        assert await connection.receive() == [answer]
    connection.writer.close()
    if draining is not None:
        assert await draining
    else:
        await check_witness(row, node, connection, witness)
        stored = [each.value for item in await node.log.read("events", first_seq) for each in item]
        values = [*([] if row.first else [b"valid"]), *row.stored, *([] if row.closes or row.first else [b"on"])]
        assert is_deaf or stored == values
    witness.close()


async def check_witness(row: Row, node: Node, connection: Any, witness: Peer) -> None:
    """The connection ends, and the witness is served as before."""
    while node.connection_count > 1:
        await asyncio.sleep(0.001)
    if row.then == "stop reading":
        connection.writer.transport.abort()
    witness.send(encode_ping(5))
    while (await asyncio.wait_for(witness.frame(), 30)).header.kind != Kind.KEEPALIVE:
        continue
    assert (await witness.publish(WITNESS, b"seen"))["status"] == 0
    witness.close()
    while node.connection_count:
        await asyncio.sleep(0.001)


def check(row: Row, kind: Any, shared: SharedNode, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a row on the shared node, or on its own if it changes the node or ends it."""
    if not row.needs_own_node:
        shared.runner.run(execute(row, kind, shared.node, monkeypatch))
        return

    async def work() -> None:
        node = await start(path, row)
        await execute(row, kind, node, monkeypatch)
        assert row.then == "drain" or await node.drain(20)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())


@pytest.mark.parametrize("name", VERSION_1)
def test_version_1(name: str, shared_node: SharedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(VERSION_1[name], Lwp1Connection, shared_node, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", VERSION_2)
def test_version_2(name: str, shared_node: SharedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(VERSION_2[name], Lwp2Connection, shared_node, tmp_path, monkeypatch)
