"""A node in the process of the test: what its connections share, and how a drain ends them."""

import asyncio
import errno
import socket
import struct
import threading

import pytest
from lwp2_peer import SMALL, Data, Peer

from seawall import limits
from seawall.engine.serving.served_log import ServedLog
from seawall.engine.serving.topic_rules import TopicRules
from seawall.io.disk.disk_ring import Completion, DiskRing
from seawall.kernels.admission.arriving import NO_TOPIC
from seawall.server.connection.session import ConnectionLimits
from seawall.server.node import NodeSettings, start_node
from seawall.wire.format.codes import AckStatus, ErrorCode, ReadBy
from seawall.wire.lwp1.requests import CreateTopic, ListTopics
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.reading import Fetch
from seawall.wire.lwp2.session import Error, Goodbye, Hello


async def connect(node):
    host, _, port = node.address.rpartition(":")
    return Peer(*await asyncio.open_connection(host, int(port)))


async def started(path, **named):
    bounds = ConnectionLimits(linger_s=0.1)
    return await start_node(path / "data", NodeSettings(port=0, bounds=bounds, **named), store=SMALL)


def test_a_drain_closes_all_connections_and_answers_requests_in_flight(on_each_loop, tmp_path):
    async def work():
        node = await started(tmp_path)
        unknown, peer, waiting = await connect(node), await connect(node), await connect(node)
        await peer.hello()
        await waiting.hello(8)
        peer.ask(CreateTopic("events"))
        await peer.frame()
        waiting.ask(Fetch(1, ReadBy.LATEST, 0, 1 << 20, 0, min_bytes=1 << 20, wait_ms=30_000), request_id=4)
        peer.send(b"".join(peer.batch(1, b"%d" % number) for number in range(50)))
        first = await peer.acks(1)
        assert node.connection_count == 3
        draining = asyncio.ensure_future(node.drain(20))
        frame = await waiting.answer(Goodbye)
        assert frame.code == ErrorCode.SHUTTING_DOWN
        await waiting.answer(Data)
        await waiting.ended()
        await unknown.ended()
        seen = len(first)
        goodbyes = 0
        while (frame := await peer.frame()) is not None:
            seen += frame.header.record_count
            goodbyes += frame.header.kind == 0x40
        assert goodbyes == 1
        assert await draining is True
        assert node.counts == {}
        peer.close()
        async with ServedLog(tmp_path / "data", SMALL) as log:
            stored = sum(len(batch) for batch in await log.read("events"))
            assert stored == seen

    on_each_loop(work())


def test_a_drained_node_frees_its_port_and_a_port_in_use_is_an_error(on_loop, tmp_path):
    async def work():
        node = await started(tmp_path)
        port = int(node.address.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            await start_node(tmp_path / "other", NodeSettings(port=port), store=SMALL)
        assert await node.drain(5)
        again = await start_node(tmp_path / "other", NodeSettings(port=port), store=SMALL)
        assert await again.drain(5)

    on_loop(work())


def test_a_failed_disk_is_reported_to_the_owner_of_the_node(on_loop, tmp_path, monkeypatch):
    real = DiskRing.reap

    def reap(self, **named):
        return [Completion(tag, -errno.EIO) for tag, _ in real(self, **named)]

    async def work():
        node = await started(tmp_path)
        peer = await connect(node)
        await peer.hello()
        peer.ask(CreateTopic("events"))
        await peer.frame()
        monkeypatch.setattr(DiskRing, "reap", reap)
        peer.send(peer.batch(1, b"lost"))
        assert (await peer.answer(Error)).code == ErrorCode.READ_ONLY
        assert "EIO" in str(await node.failure)
        (row,) = await peer.acks(1)
        assert (row["status"], row["reason"]) == (AckStatus.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN)
        peer.close()
        monkeypatch.undo()
        assert await node.drain(5)

    on_loop(work())


def test_connections_left_at_the_deadline_are_cut_off(on_each_loop, tmp_path):
    """INV-NODE-DRAINED: no clean-shutdown marker is left, and everything that was acked is stored."""

    async def work():
        node = await started(tmp_path)
        peer = await connect(node)
        await peer.hello()
        await node.log.create_topic("events")
        await peer.publish(1, bytes(4 << 20))
        for number in range(40):
            peer.ask(Fetch(1, ReadBy.EARLIEST, 0, 1 << 22, 0), request_id=number)
        await peer.writer.drain()
        while not any(connection.is_full for connection in node.event_loops[0].listener.connections):
            await asyncio.sleep(0)
        peer.writer.transport.pause_reading()
        assert not await node.drain(0.05)
        peer.close()
        async with ServedLog(tmp_path / "data", SMALL) as log:
            await log.publish("events", b"after")
            found = await log.read("events", max_bytes=1 << 24)
            assert [type(item).__name__ for item in found] == ["ReceivedBatch", "Gap", "ReceivedBatch"]

    on_each_loop(work())


def test_a_log_that_cannot_be_closed_in_time_is_cut_off(on_loop, tmp_path, monkeypatch):
    async def work():
        node = await started(tmp_path)
        real, may_close = node.log.close, asyncio.Event()

        async def close():
            await may_close.wait()
            await real()

        monkeypatch.setattr(node.log, "close", close)
        monkeypatch.setattr(limits, "CUT_OFF_S", 0.01)
        assert not await node.drain(0)
        may_close.set()
        await real()

    on_loop(work())


def test_a_disconnected_peer_does_not_stop_a_drain(on_each_loop, tmp_path):
    async def work():
        node = await started(tmp_path)
        host, _, port = node.address.rpartition(":")
        peers = [await connect(node) for _ in range(2)]
        gone = socket.create_connection((host, int(port)))
        gone.sendall(encode_control(Hello(), request_id=1))
        await asyncio.to_thread(gone.recv, 1)
        for number, peer in enumerate(peers):
            await peer.hello(number + 1)
        # A reset that the loop has not seen when the drain begins.
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        assert await node.drain(5)
        for peer in peers:
            await peer.answer(Goodbye)
            peer.close()

    on_each_loop(work())


def test_a_node_listens_at_several_addresses(on_loop, tmp_path):
    async def work():
        node = await started(tmp_path, also=(("127.0.0.1", 0), ("127.0.0.1", 0)))
        assert len(set(node.addresses)) == 3
        for address in node.addresses:
            host, _, port = address.rpartition(":")
            peer = Peer(*await asyncio.open_connection(host, int(port)))
            await peer.hello()
            peer.close()
        taken = int(node.address.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            await start_node(tmp_path / "other", NodeSettings(port=0, also=(("127.0.0.1", taken),)), store=SMALL)
        assert await node.drain(5)

    on_loop(work())


def test_both_versions_share_topics(on_loop, tmp_path):
    async def work():
        node = await started(tmp_path)
        await node.log.create_topic("made-here", order=5)
        peer = await connect(node)
        await peer.hello()
        peer.ask(ListTopics(), request_id=3)
        frame = await peer.frame()
        assert b"made-here" in bytes(frame.payload)
        row = await peer.publish(1, b"one")
        assert row["status"] == AckStatus.OK
        await node.log.delete_topic("made-here")
        row = await peer.publish(1, b"two")
        assert (row["status"], row["reason"]) == (AckStatus.REJECTED, ErrorCode.TOPIC_NOT_FOUND)
        peer.close()
        assert await node.drain(5)

    on_loop(work())


def test_queries_wait_on_a_thread_while_the_store_is_changed(on_loop, tmp_path):
    async def work():
        async with ServedLog(tmp_path / "data", SMALL) as log:
            await log.create_topic("events")
            is_changing, may_end = threading.Event(), threading.Event()

            def change(_store):
                is_changing.set()
                assert may_end.wait(60)

            changing = asyncio.ensure_future(log.change(change))
            assert await asyncio.to_thread(is_changing.wait, 60)
            query = asyncio.ensure_future(log.ask(lambda store: store.catalog.names()))
            await asyncio.sleep(0)
            assert not query.done()
            may_end.set()
            assert await query == ["events"]
            await changing
            assert log.topic(1) is log.topic_named("events")
            assert log.topic(9) is None
            assert await log.session_of(7) is None

    on_loop(work())


def test_rules_have_every_topic_however_many(on_loop, tmp_path):
    async def work():
        async with ServedLog(tmp_path / "data", SMALL) as log:
            for number in range(70):
                await log.create_topic(f"topic-{number}", order=5 if number % 2 else 2)
            await log.configure_topic("topic-69", ack_level=1)
            fresh = TopicRules([log.topic(topic_id) for topic_id in range(1, 71)])
            for rules in (log.rules, fresh):
                assert rules.orders[:71].tolist() == [NO_TOPIC, *([2, 5] * 35)]
                assert rules.levels[70] == 1
                assert (rules.orders[71:] == NO_TOPIC).all()

    on_loop(work())
