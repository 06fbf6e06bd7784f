"""Memory pressure: what is released, which writes are held and reported, and that nothing is lost."""

import asyncio
import os
import re
import signal
import threading

import pytest
from lwp2_peer import SMALL, Data, Peer
from test_node import node as process
from v1_clients import PythonClient

from seawall import limits
from seawall.config import Config, ServerConfig
from seawall.core.types import TopicId
from seawall.errors import InvalidInputError
from seawall.limits import MIB
from seawall.server.connection.session import ConnectionLimits
from seawall.server.node import NodeSettings, start_node
from seawall.server.pressure import Level, Levels
from seawall.wire.format.codes import ErrorClass, ErrorCode, ReadBy
from seawall.wire.lwp1.requests import CreateTopic
from seawall.wire.lwp2.frames import encode_ping
from seawall.wire.lwp2.reading import Fetch
from seawall.wire.lwp2.session import Error

LIMIT = 1_000 * MIB


class Memory:
    """Memory whose use a test sets."""

    limit = LIMIT

    def __init__(self, percent=10):
        self.percent = percent

    def used(self):
        return self.limit * self.percent // 100


class World:
    """A node whose memory checks the test makes, and its messages."""

    def __init__(self, node, memory, messages):
        self.node = node
        self.memory = memory
        self.messages = messages
        self.now = asyncio.get_running_loop().time() + 1_000

    def check(self, percent, later_s=0.0):
        self.memory.percent = percent
        self.now += later_s
        self.node.event_loops[0].pressure.check(self.now)

    async def connect(self, kind=Peer):
        host, _, port = self.node.address.rpartition(":")
        if kind is Peer:
            return Peer(*await asyncio.open_connection(host, int(port)))
        return await kind.connect((host, int(port)))

    async def peer(self, client_id=7):
        made = await self.connect()
        await made.hello(client_id)
        return made

    async def waiting(self, count):
        """Wait until so many connections wait."""
        while len(self.node.event_loops[0].ingest.waiting) < count:
            await asyncio.sleep(0.001)

    async def stored(self):
        return [record.value for batch in await self.node.log.read("events") for record in batch]


def with_node(on_loop, tmp_path, work):
    async def run():
        memory, messages = Memory(), []
        settings = NodeSettings(port=0, bounds=ConnectionLimits(linger_s=0.1))
        node = await start_node(tmp_path / "data", settings, store=SMALL, memory=memory, warn=messages.append)
        # The test makes the checks.
        node.event_loops[0].pressure.stop()
        try:
            await node.log.create_topic("events")
            await work(World(node, memory, messages))
        finally:
            await node.drain(20)

    on_loop(run())


@pytest.mark.parametrize(
    ("percents", "levels"),
    [
        ((0, 79, 80, 79, 76, 75, 74), "CCFFFFC"),
        ((94, 95, 94, 91, 90, 89, 80, 75, 74), "FHHHHFFFC"),
        ((96, 10, 200), "HCH"),
        ((96, 85, 95), "HFH"),
    ],
)
def test_levels_have_hysteresis(percents, levels):
    """A level ends five percent below where it began."""
    words = {Level.CALM: "C", Level.FLUSH: "F", Level.HOLD: "H"}
    watched = Levels(LIMIT)
    assert "".join(words[watched.observe(LIMIT * percent // 100)] for percent in percents) == levels


def test_writes_are_held_and_everything_else_continues(on_loop, tmp_path):
    """INV-PRESSURE-NOTHING-LOST."""

    async def work(made):
        peer, reader, old = await made.peer(), await made.peer(8), await made.connect(PythonClient)
        await peer.publish(1, b"before")
        made.check(96)
        assert made.messages == ["memory: 960 of 1000 MiB (96 %) are used: writes are held"]
        peer.send(peer.batch(1, b"held") + peer.batch(1, b"behind it"))
        old.send(old.ingest(b"of version 1", topic=1))
        await made.waiting(2)
        # Reads, commands and keepalives of others.
        reader.ask(Fetch(TopicId(1), ReadBy.EARLIEST, 0, 1 << 20, 0))
        assert len((await reader.answer(Data)).batches) == 1
        reader.ask(CreateTopic("others"), request_id=3)
        assert (await reader.frame()).header.id == 3
        reader.send(encode_ping(77))
        assert (await reader.frame()).header.id == 77
        assert await made.stored() == [b"before"]
        made.check(96)
        error = await peer.answer(Error)
        assert (error.code, error.closes, error.retry_after_ms) == (ErrorCode.BACKPRESSURE, False, 1000)
        assert (error.error_class, error.ref) == (ErrorClass.RETRYABLE, 0)
        # A publisher is asked again when that time is over, and not before.
        made.check(94)
        made.check(94, limits.PRESSURE_RETRY_MS / 1000)
        assert (await peer.answer(Error)).code == ErrorCode.BACKPRESSURE
        made.check(80)
        assert [row["status"] for row in await peer.acks(2)] == [0, 0]
        assert (await old.receive()).batch_id == 1
        assert sorted(await made.stored()) == [b"before", b"behind it", b"held", b"of version 1"]
        assert (await peer.publish(1, b"after"))["base_seq"] == 5
        # Version 1 is not asked.
        assert made.node.counts == {"memory_flushes": 1, "memory_holds": 1, "publishers_told": 4}
        assert made.messages[1] == "memory: 800 of 1000 MiB (80 %) are used: some is released early"
        made.check(10)
        assert made.messages[2].endswith("there is enough")
        for each in (peer, reader):
            each.close()
        await old.close()

    with_node(on_loop, tmp_path, work)


def test_a_publisher_that_finds_the_ring_full_for_a_second_is_slowed_down(on_loop, tmp_path):
    """A disk that stalls: no batch is refused, and memory has nothing to do with it."""

    async def work(made):
        peer, late = await made.peer(), await made.peer(8)
        has_stalled, may_continue = threading.Event(), threading.Event()

        def stall(_store):
            has_stalled.set()
            assert may_continue.wait(60)

        stalled = asyncio.ensure_future(made.node.log.change(stall))
        assert await asyncio.to_thread(has_stalled.wait, 60)
        count = 40
        peer.send(b"".join(peer.batch(1, bytes(MIB)) for _ in range(count)))
        await made.waiting(1)
        made.check(10)
        made.check(10, 0.9)
        assert made.node.counts == {}
        made.check(10, 0.2)
        error = await peer.answer(Error)
        assert (error.code, error.closes, error.retry_after_ms) == (ErrorCode.BACKPRESSURE, False, 1000)
        assert "unwritten batches" in error.text
        # Not again before it could send batches that others may wait for, and only publishers that wait.
        made.check(10, 1.9)
        assert made.node.counts == {"publishers_told": 1}
        made.check(10, 0.2)
        assert (await peer.answer(Error)).code == ErrorCode.BACKPRESSURE
        may_continue.set()
        await stalled
        assert [row["status"] for row in await peer.acks(count)] == [0] * count
        assert await late.publish(1, b"behind them")
        made.check(10, 10)
        assert made.node.counts == {"publishers_told": 2}
        assert made.messages == []
        for each in (peer, late):
            each.close()

    with_node(on_loop, tmp_path, work)


def test_held_publishers_are_let_through_one_by_one(on_loop, tmp_path):
    """INV-PRESSURE-NOTHING-LOST: sent batches take memory until they are stored, so they are, however short it is."""

    async def work(made):
        made.check(99)
        peers = [await made.peer(number) for number in (1, 2, 3)]
        for number, peer in enumerate(peers):
            peer.send(peer.batch(1, b"%d" % number))
        await made.waiting(3)
        made.check(99, limits.PRESSURE_HOLD_S - 1)
        assert len(made.node.event_loops[0].ingest.waiting) == 3
        for left, peer in ((2, peers[0]), (1, peers[1]), (0, peers[2])):
            made.check(99, limits.PRESSURE_HOLD_S)
            assert len(made.node.event_loops[0].ingest.waiting) == left
            assert (await peer.answer(Error)).code == ErrorCode.BACKPRESSURE
            while (frame := await peer.frame()).header.kind != 0x08:
                pass
            assert frame.header.id == 1
        made.check(99, 1)
        assert made.node.counts["publishers_let_through"] == 3
        # The first is behind those that have waited since.
        for peer in peers:
            peer.send(peer.batch(1, b"again"))
        await made.waiting(3)
        made.check(99, limits.PRESSURE_HOLD_S)
        assert len(made.node.event_loops[0].ingest.waiting) == 2
        assert {producer.client_id for producer in made.node.event_loops[0].ingest.waiting} == {2, 3}
        assert len(await made.stored()) >= 3
        for peer in peers:
            peer.close()

    with_node(on_loop, tmp_path, work)


def test_memory_is_released_periodically_while_it_is_short(on_loop, tmp_path):
    async def work(made):
        for _ in range(3):
            await made.node.log.publish("events", os.urandom(1000))

        async def has_unflushed():
            return bool(await made.node.log.ask(lambda store: store.maintenance.plan_flushes()))

        assert await has_unflushed()
        made.check(85)
        while await has_unflushed():
            await asyncio.sleep(0.001)
        assert made.node.counts == {"memory_flushes": 1}
        made.check(85, 1)
        assert made.node.counts == {"memory_flushes": 1}
        made.check(85, 5)
        assert made.node.counts == {"memory_flushes": 2}
        assert len(await made.stored()) == 3

    with_node(on_loop, tmp_path, work)


def test_releasing_memory_makes_a_checkpoint(on_loop, tmp_path):
    async def work(made):
        await made.node.log.publish("events", os.urandom(1000))
        snapshots = tmp_path / "data" / "meta"
        before = set(snapshots.iterdir())
        made.node.log.release_memory()
        while set(snapshots.iterdir()) == before:
            await asyncio.sleep(0.001)

    with_node(on_loop, tmp_path, work)


def test_held_batches_are_answered_by_a_drain(on_loop, tmp_path):
    async def work(made):
        peer = await made.peer()
        made.check(96)
        peer.send(peer.batch(1, b"held"))
        await made.waiting(1)
        assert await made.node.drain(20)
        rows = []
        while (frame := await peer.frame()) is not None:
            rows += [frame] if frame.header.kind == 0x08 else []
        assert [frame.header.id for frame in rows] == [1]
        peer.close()

    with_node(on_loop, tmp_path, work)


def test_a_memory_limit_below_the_need_of_a_server_is_refused(on_loop, tmp_path):
    async def work():
        config = Config(server=ServerConfig(memory_limit=64 * MIB))
        with pytest.raises(InvalidInputError, match=r"server\.memory_limit is 64 MiB"):
            await start_node(tmp_path / "data", NodeSettings(port=0), store=SMALL, config=config)

    on_loop(work())


def own_memory(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return sum(int(size) for size in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status.read())) // 1024


def test_writes_are_held_while_real_memory_is_short_and_released_later(tmp_path, monkeypatch):
    """Many peers have sent parts of large frames, which the budget for peers allows here: a publisher has to wait."""
    monkeypatch.setenv("SEAWALL_SERVER_PEER_MEMORY", "16GiB")
    limit_mib = 448
    part = os.urandom(16 * MIB - 100)

    async def work(made):
        peer, reader = await made.connect(), await made.connect()
        await peer.hello(7)
        await reader.hello(8)
        peer.ask(CreateTopic("events"))
        await peer.frame()
        await peer.publish(1, b"before")
        loads = []
        for number in range(100, 100 + (limit_mib - own_memory(made.process.pid)) // 15 + 2):
            load = await made.connect()
            await load.hello(number)
            # All but its last bytes.
            load.send(load.batch(1, part)[:-10])
            await load.writer.drain()
            loads.append(load)
        error = None
        while error is None:
            peer.send(peer.batch(1, b"sent meanwhile"))
            frame = await peer.frame()
            error = frame if frame.header.kind == 0x40 else None
        reader.ask(Fetch(TopicId(1), ReadBy.EARLIEST, 0, 1 << 20, 0))
        assert (await reader.answer(Data)).batches
        for load in loads:
            load.close()
        while (frame := await peer.frame()).header.kind != 0x08 or frame.header.id < peer.seq:
            pass
        for each in (peer, reader):
            each.close()

    with process(tmp_path / "data", "--memory-limit", f"{limit_mib}MiB") as made:
        asyncio.run(work(made))
        made.signal(signal.SIGTERM)
        code, said = made.ended()
        assert code == 0, said
        assert "writes are held" in said
        assert re.search(r"counters: .*memory_holds \d", said)
