"""Every kind of bad input, over a real socket, in both versions: what is told, whether it ends, and nobody is harmed.

Each row of `bad_input_rows` is one test. A connection first sends something sound, then what the row says, in one
write. It must hear the answer to the sound part and exactly what the row expects. After that a connection that may go
on does, one that may not has ended, nothing of the bad frame is stored, and a witness that was connected all the time
still gets its acks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
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
from seawall.server.node import Node, NodeSettings, start_node
from seawall.wire.format.ack_rows import ack_rows
from seawall.wire.format.codes import Command, Kind, ReadBy
from seawall.wire.lwp2.frames import encode_control, encode_ping
from seawall.wire.lwp2.reading import Fetch
from seawall.wire.lwp2.session import Hello, parse_error

WITNESS = 4
Events = list[tuple[Any, ...]]


class OneConnection:
    """A connection of version 1 that tells what it hears."""

    sound_answer: tuple[Any, ...] = ("ack", 1)

    def __init__(self, client: PythonClient) -> None:
        self.client = client
        self.writer = client.writer

    @classmethod
    async def open(cls, node: Node, _row: Row) -> OneConnection:
        host, port = node.address.rsplit(":", 1)
        return cls(await PythonClient.connect((host, int(port))))

    async def sound(self, value: bytes) -> bytes:
        return self.client.ingest(record(value), TOPIC)

    def much(self) -> bytes:
        """Requests whose answers are large."""
        return frame(CONTROL, b"\1\0\0\0" + bytes(8) + (8 * MIB).to_bytes(4, "little"), batch_id=0x10) * 30

    def again(self, row: Row) -> tuple[bytes, tuple[Any, ...]]:
        """Something that shows that the connection goes on."""
        if row.first:
            return frame(0x20), ("keepalive",)
        return self.client.ingest(record(b"on"), TOPIC), ("ack", self.client.batch_id)

    async def hear(self) -> Events:
        """What comes next; nothing at the end."""
        try:
            heard = await self.client.receive()
        except (asyncio.IncompleteReadError, ConnectionError):
            return []
        if heard.flags == ACK:
            return [("ack", heard.batch_id)]
        if heard.flags == 0x20:
            return [("keepalive",)]
        if heard.error is None:
            return [("control", heard.batch_id)]
        details = heard.document.get("details", {})
        if heard.error == 0x06:
            assert details == {"supported": [1, 2]}
        return [("error", heard.error, details.get("batch_id"))]


class TwoConnection:
    """A connection of version 2 that tells what it hears."""

    sound_answer: tuple[Any, ...] = ("ack", 1, 0, 0)

    def __init__(self, peer: Peer) -> None:
        self.client = peer
        self.writer = peer.writer

    @classmethod
    async def open(cls, node: Node, row: Row, client_id: int = 7) -> TwoConnection:
        host, port = node.address.rsplit(":", 1)
        made = cls(Peer(*await asyncio.open_connection(host, int(port), limit=1 << 16)))
        if not row.first:
            await made.client.hello(client_id, **row.settings.get("hello", {}))
        return made

    async def sound(self, value: bytes) -> bytes:
        return self.client.batch(TOPIC, value)

    def much(self) -> bytes:
        """Requests whose answers are large."""
        for number in range(60):
            self.client.ask(Fetch(TopicId(TOPIC), ReadBy.EARLIEST, 0, 8 * MIB, 0), request_id=number)
        return b""

    def again(self, row: Row) -> tuple[bytes, tuple[Any, ...]]:
        """Something that shows that the connection goes on."""
        if row.first:
            return encode_control(Hello(token="all")), ("control", int(Command.WELCOME))
        self.client.seq = max(self.client.seq, row.settings.get("next_seq", 0) - 1)
        return self.client.batch(TOPIC, b"on"), ("ack", self.client.seq, 0, 0)

    async def hear(self) -> Events:
        """What comes next; nothing at the end."""
        try:
            heard = await asyncio.wait_for(self.client.frame(), 30)
        except ConnectionError:
            return []
        if heard is None:
            return []
        header = heard.header
        if header.kind == Kind.ACK:
            names = ("client_seq", "status", "reason")
            return [("ack", *(int(row[name]) for name in names)) for row in ack_rows(heard.payload)]
        if header.kind == Kind.KEEPALIVE:
            return [("ping",)]
        if header.command == Command.ERROR:
            told = parse_error(heard.payload)
            return [("error", told.code, told.closes)]
        return [("control", header.command)]


@contextmanager
def running() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner


async def start(path: Path, row: Row) -> Node:
    idle = row.settings.get("idle", False)
    server = ServerSettings(keepalive_ms=100, idle_ms=300) if idle else ServerSettings()
    named = {"bounds": row.settings["bounds"]} if "bounds" in row.settings else {}
    settings = NodeSettings(port=0, server=server, **named)
    node = await start_node(path / "data", settings, store=SMALL, access=row.settings.get("access"))
    await node.log.create_topic("events")
    await node.log.create_topic("full", cap_records=1, discard="reject")
    await node.log.create_topic("ordered", order=5)
    await node.log.create_topic("witness")
    assert [node.log.topic_named(name).topic_id for name in ("events", "full", "ordered", "witness")] == [
        *(TOPIC, FULL, ORDERED, WITNESS)
    ]
    return node


async def witness_of(node: Node) -> Peer:
    host, port = node.address.rsplit(":", 1)
    peer = Peer(*await asyncio.open_connection(host, int(port)))
    await peer.hello(1, token="all", keepalive_ms=60_000)
    return peer


async def hear_all(connection: Any, wanted: Events, *, ends: bool) -> Events:
    """What is heard until there is as much as is wanted, or all there is; a ping counts once."""
    heard: Events = []
    while ends or len(heard) < len(wanted):
        events = await connection.hear()
        if not events:
            break
        heard += [event for event in events if event != ("ping",) or event not in heard]
    return sorted(heard, key=repr)


async def happen(row: Row, node: Node, connection: Any) -> asyncio.Task[Any] | None:
    """What the row says that happens behind what was sent."""
    match row.then:
        case "eof":
            connection.writer.write_eof()
        case "reset":
            connection.writer.transport.abort()
        case "deaf":
            connection.writer.transport.pause_reading()
            connection.writer.write(connection.much())
        case "fence":
            other = await TwoConnection.open(node, row)
            other.writer.close()
        case "drain":
            # Everything it sent was taken before the end begins.
            while (await node.log.describe("events")).record_count < 2:
                await asyncio.sleep(0.001)
            return asyncio.ensure_future(node.drain(20))
    return None


async def execute(row: Row, kind: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await start(path, row)
    witness = await witness_of(node)
    connection = await kind.open(node, row)
    sound = b"" if row.first else await connection.sound(bytes(3 * MIB) if row.then == "deaf" else b"sound")
    wanted = [] if row.first else [connection.sound_answer]
    if row.settings.get("refusing"):
        connection.writer.write(sound)
        assert await hear_all(connection, wanted, ends=False) == wanted
        sound, wanted = b"", []
        monkeypatch.setattr(ServedLog, "is_refusing", True)
    sent = row.send(connection.client)
    first, *later = sent if isinstance(sent, tuple) else (sent,)
    connection.writer.write(sound + first)
    wanted += row.hear
    draining = await happen(row, node, connection)
    heard: Events = []
    for data in later:
        heard += await hear_all(connection, [*(() if row.first else (1,)), 1], ends=False)
        connection.writer.write(data)
    if row.then not in ("reset", "deaf"):
        heard += await hear_all(connection, wanted[len(heard) :], ends=row.ends)
        assert sorted(heard, key=repr) == sorted(wanted, key=repr)
    monkeypatch.undo()
    stored = [] if row.first else [b"sound"]
    if not row.ends:
        data, answer = connection.again(row)
        connection.writer.write(data)
        assert await connection.hear() == [answer]
    connection.writer.close()
    if draining is not None:
        assert await draining
        witness.close()
    else:
        await leave(row, node, connection, witness)
        found = [each.value for item in await node.log.read("events") for each in item]
        wanted_values = [*stored, *row.stored, *([] if row.ends or row.first else [b"on"])]
        assert row.then == "deaf" or found == wanted_values
        witness.close()
        assert await node.drain(20)


async def leave(row: Row, node: Node, connection: Any, witness: Peer) -> None:
    """The connection goes, and the witness has noticed nothing."""
    while node.connection_count > 1:
        await asyncio.sleep(0.005)
    if row.then == "deaf":
        connection.writer.transport.abort()
    witness.send(encode_ping(5))
    while (await asyncio.wait_for(witness.frame(), 30)).header.kind != Kind.KEEPALIVE:
        continue
    assert (await witness.publish(WITNESS, b"seen"))["status"] == 0


@pytest.mark.parametrize("name", VERSION_1)
def test_version_1(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = VERSION_1[name]
    with running() as runner:
        runner.run(execute(row, OneConnection, tmp_path, monkeypatch))


@pytest.mark.parametrize("name", VERSION_2)
def test_version_2(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as runner:
        runner.run(execute(VERSION_2[name], TwoConnection, tmp_path, monkeypatch))
