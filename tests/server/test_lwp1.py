"""Version 1 over real sockets, with clients that behave as the published ones: answers byte for byte and in order."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import lz4.block
import pytest
from v1_clients import (
    ACK,
    CONTROL,
    END_OF_PYTHON,
    END_OF_RUST,
    KEEPALIVE,
    PythonClient,
    Received,
    RustClient,
    frame,
    record,
)
from v1_server import Served
from watched import accepted_socket

from seawall.config import PastEnd, ServerConfig
from seawall.core.types import Offset
from seawall.engine.read.read_results import ReceivedBatch
from seawall.errors import ProtocolError
from seawall.limits import MIB, TCP_KEEPALIVE_IDLE_S, V1_FETCH_DATA_SIZE_MAX
from seawall.server.connection.access import Admission
from seawall.server.connection.budget import Lease, PeerMemory
from seawall.server.connection.session import ConnectionLimits
from seawall.server.lwp1.reading import Lwp1Reading
from seawall.server.node import NodeSettings
from seawall.wire.format.codes import ErrorCode
from seawall.wire.format.fields import JsonValue
from seawall.wire.lwp1.requests import CommitOffset, Fetch, Subscribe

ALONE = (
    b'{"node_id":0,"is_leader":true,"leader_id":0,"current_term":0,"node_count":1,"healthy_nodes":1,'
    b'"quorum_available":true,"peer_states":{},"mode":"standalone"}'
)


Serve = Callable[..., None]


def vector(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", "").replace("\n", ""))


KEEPALIVE_FRAME = vector("4C414E4301200000 061E9C53" + "00" * 32)
CREATE = vector("4C414E4301400000 26D54B1B 0100000000000000" + "00" * 12 + "06000000 4A578753 00000000 6576656E7473")
INGEST = vector(
    "4C414E4301040000 3AF0D86C 0100000000000000 00002A36FE9C9717 01000000 0A000000 9C17EDB6 01000000"
    "010500000068656C6C6F"
)
ITS_ACK = vector("4C414E4301080000 5E09C265 0100000000000000" + "00" * 24)
FETCH = vector(
    "4C414E4301400000 26D54B1B 1000000000000000" + "00" * 12 + "10000000 85EBC85B 00000000"
    "01000000 0000000000000000 00000100"
)
ITS_REPLY = vector(
    "4C414E4301400000 26D54B1B 1100000000000000" + "00" * 12 + "1A000000 F2836235 00000000"
    "0A00000000000000 0A000000 01000000 010500000068656C6C6F"
)


def test_the_published_vectors_byte_for_byte_in_any_slicing(served_on_each_loop: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        for byte in KEEPALIVE_FRAME + CREATE:
            client.send(bytes([byte]))
            await client.writer.drain()
        assert await client.reader.readexactly(44) == KEEPALIVE_FRAME
        created = await client.receive()
        topic = created.document
        assert (created.flags, created.batch_id) == (CONTROL, 0x80)
        assert created.payload == json.dumps(topic, separators=(",", ":")).encode()
        assert list(topic) == ["id", "name", "created_at", "topic_epoch"]
        assert (topic["id"], topic["name"], topic["topic_epoch"]) == (1, "events", 1)
        client.send(INGEST + FETCH)
        assert await client.reader.readexactly(len(ITS_ACK)) == ITS_ACK
        assert await client.reader.readexactly(len(ITS_REPLY)) == ITS_REPLY
        await client.close()

    served_on_each_loop(tmp_path, work)


def test_a_thousand_frames_are_sent_before_the_first_ack_is_read(served_on_each_loop: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        payloads = [b"".join(record(b"%d-%d" % (number, each)) for each in range(3)) for number in range(2_000)]
        await client.publish(topic, *payloads)
        offset, found = 0, []
        while True:
            following, records = await client.poll(topic, offset)
            if not records:
                break
            offset, found = following, found + records
        assert found == [b"%d-%d" % (number, each) for number in range(2_000) for each in range(3)]
        assert offset == sum(map(len, payloads))
        # Far fewer batches than frames.
        batches = await server.log.read("events")
        assert len(batches) < 200
        await client.close()

    served_on_each_loop(tmp_path, work)


def test_payloads_that_are_no_records_are_returned_byte_for_byte(served: Serve, tmp_path: Path) -> None:
    payloads = [b"x", b"several messages run together", b"\xff\1\0\0\0?", record(b"r") + b"rest", b"\1\2\3\4", bytes(4)]

    async def work(server: Served) -> None:
        client = await RustClient.connect(server.address)
        topic = await client.create_or_find("events")
        assert await client.create_or_find("events") == topic
        for payload in payloads:
            assert await client.write(payload, topic) == Received(ACK, client.batch_id, b"")
        client.send(*(client.ingest(payload, topic) for payload in payloads))
        assert await client.acks(len(payloads)) == list(range(7, 13))
        stream = b"".join(payloads) * 2
        assert await client.fetch(topic, 0) == (len(stream), 12, stream)
        items = await server.log.read("events")
        records = [each for item in items if isinstance(item, ReceivedBatch) for each in item]
        assert [(each.record_type, each.value) for each in records] == [(0x7F, payload) for payload in payloads * 2]
        await client.close()

    served(tmp_path, work)


def test_topic_0_exists_and_is_in_no_list(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await RustClient.connect(server.address)
        assert await client.fetch(0, 0) == (0, 0, b"")
        assert (await client.write(b"hello")).flags == ACK
        client.send(*(client.ingest(b"more %d" % number, 0) for number in range(10)))
        assert await client.acks(10) == list(range(2, 12))
        assert (await client.fetch(0, 0))[1] == 11
        assert (await client.ask(0x03)).payload == b'{"topics":[]}'
        for command, payload in ((0x02, bytes(4)), (0x04, bytes(4)), (0x05, bytes(20))):
            assert (await client.ask(command, payload)).error == 0x10
        # Nor by the id it really has, nor by its name.
        assert (await client.ask(0x04, struct.pack("<I", 1))).error == 0x10
        assert (await client.write(b"no", 1)).error == 0x10
        assert (await client.ask(0x01, b"lwp1:default")).error == 0x12
        reply = await client.ask(0x22, struct.pack("<IQQ", 0, 9, 5))
        assert (reply.batch_id, reply.payload) == (0x24, struct.pack("<QQ", 9, 5))
        assert (await client.ask(0x20, struct.pack("<IQIQ", 0, 0, 1, 9))).payload == struct.pack("<QQ", 9, 5)
        assert await client.create("events") == 2
        await client.close()

    served(tmp_path, work)


def test_the_commands_of_topics(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        assert (await client.ask(0x03)).payload == b'{"topics":[]}'
        first = (await client.ask(0x01, b"a-b_c.d:e")).document
        assert (await client.ask(0x01, b"a-b_c.d:e")).error == 0x11
        for name in (b"", b"x" * 256, b"white space", b"-dash", b"\xff"):
            assert (await client.ask(0x01, name)).error == 0x12
        wanted = struct.pack("<H", 4) + b"kept" + struct.pack("<QQ", 3600, 1 << 40)
        kept = (await client.ask(0x06, wanted)).document
        assert kept["retention"] == {"max_age_secs": 3600, "max_bytes": 1 << 40}
        assert (kept["max_age_secs"], kept["max_bytes"], kept["id"]) == (3600, 1 << 40, 2)
        assert (await client.ask(0x06, wanted + b"!")).error == 0x04
        assert (await client.ask(0x06, struct.pack("<I", 4) + b"long" + bytes(16))).error == 0x04
        assert (await client.ask(0x03)).document == {
            "topics": [first, {key: kept[key] for key in ("id", "name", "created_at", "topic_epoch", "retention")}]
        }
        reply = await client.ask(0x05, struct.pack("<IQQ", 1, 0, 77) + b"ignored")
        assert reply.payload == b'{"topic_id":1,"max_age_secs":0,"max_bytes":77}'
        assert (await client.ask(0x04, struct.pack("<I", 1))).document["retention"] == {
            "max_age_secs": 0,
            "max_bytes": 77,
        }
        assert (await client.ask(0x05, struct.pack("<IQQ", 2, 0, 0))).error is None
        assert "retention" not in (await client.ask(0x04, struct.pack("<I", 2))).document
        # An age that milliseconds cannot express is kept as long as possible.
        assert (await client.ask(0x05, struct.pack("<IQQ", 2, END_OF_RUST, 0))).document["max_age_secs"] == END_OF_RUST
        assert (await client.ask(0x02, struct.pack("<I", 1))).payload == b'{"deleted":1}'
        for command, payload in ((0x02, struct.pack("<I", 1)), (0x04, struct.pack("<I", 1)), (0x05, bytes(20))):
            assert (await client.ask(command, payload)).error == 0x10
        assert (await client.ask(0x10, struct.pack("<IQI", 1, 0, 9))).error == 0x10
        assert await client.create("a-b_c.d:e") == 3
        assert (await client.ask(0x07)).payload == ALONE
        await server.log.create_topic("elsewhere")
        assert [each["name"] for each in (await client.ask(0x03)).document["topics"]] == [
            *("kept", "a-b_c.d:e", "elsewhere")
        ]
        await client.close()

    served(tmp_path, work)


def test_ids_are_not_used_again_after_a_restart(served: Serve, tmp_path: Path) -> None:
    async def delete(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        created = (await client.ask(0x04, struct.pack("<I", topic))).document["created_at"]
        (tmp_path / "created").write_text(str(created))
        assert await client.create("other") == 2
        assert (await client.ask(0x02, struct.pack("<I", 2))).error is None
        await client.close()

    async def create(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        assert await client.create("other") == 3
        topic = (await client.ask(0x04, struct.pack("<I", 1))).document
        assert topic["created_at"] == int((tmp_path / "created").read_text()) > 1_700_000_000
        await client.close()

    served(tmp_path, delete)
    served(tmp_path, create)


def test_every_documented_case_of_fetch(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        assert await client.fetch(topic, 0) == (0, 0, b"")
        assert await client.fetch(topic, END_OF_RUST, 1) == (0, 0, b"")
        assert await client.fetch(topic, END_OF_PYTHON) == (0, 0, b"")
        await client.publish(topic, record(b"aaaaa"))
        await client.publish(topic, record(b"bbbbb"))
        # After a request for the end: from the end as it was then, once.
        assert await client.fetch(topic, END_OF_PYTHON) == (20, 2, record(b"aaaaa") + record(b"bbbbb"))
        assert await client.fetch(topic, END_OF_PYTHON) == (20, 0, b"")
        assert await client.fetch(topic, END_OF_RUST - 1) == (20, 0, b"")
        assert await client.fetch(topic, END_OF_RUST, 1) == (20, 0, b"")
        assert await client.fetch(topic, 0, 1) == (10, 1, record(b"aaaaa"))
        assert await client.fetch(topic, 3, 17) == (20, 1, (record(b"aaaaa") + record(b"bbbbb"))[3:])
        assert await client.fetch(topic, 20) == (20, 0, b"")
        assert await client.fetch(topic, 7, 0) == (7, 0, b"")
        behind = await client.ask(0x10, struct.pack("<IQI", topic, 21, 9))
        assert behind.document["details"] == {"requested": 21, "end": 20}
        assert behind.error == 0x51
        for words in ("no data", "Empty fetch response", "catching up", "CATCHING_UP", "FORWARD_FAILED"):
            assert words not in behind.document["message"]
        await server.log.delete("events", before_seq=2)
        assert await client.fetch(topic, 0) == (20, 1, record(b"bbbbb"))
        assert server.service.counts["fetch_below_floor"] == 1
        await client.close()

    served(tmp_path, work)


@pytest.mark.parametrize("past_end", [PastEnd.CATCHING_UP, PastEnd.EMPTY])
def test_the_published_alternatives_past_the_end(served: Serve, tmp_path: Path, past_end: PastEnd) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        await client.publish(topic, record(b"a"))
        reply = await client.ask(0x10, struct.pack("<IQI", topic, 99, 9))
        if past_end is PastEnd.CATCHING_UP:
            assert (reply.batch_id, reply.payload) == (0x12, struct.pack("<Q", 6))
        else:
            assert (reply.batch_id, reply.payload) == (0x11, struct.pack("<QII", 99, 0, 0))
        await client.close()

    served(tmp_path, work, past_end=past_end)


def test_a_fetch_past_the_end_gets_catching_up_by_default() -> None:
    assert ServerConfig().v1_past_end is PastEnd.CATCHING_UP
    assert NodeSettings().past_end is PastEnd.CATCHING_UP


def test_a_silent_connection_stays_open_and_is_probed_by_tcp_keepalive(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        await client.create("events")
        assert ConnectionLimits().v1_idle_s is None
        with accepted_socket(client.writer.get_extra_info("sockname")) as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == TCP_KEEPALIVE_IDLE_S
        await client.close()

    served(tmp_path, work)


def test_a_consumer_of_a_deleted_topic_can_unsubscribe(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        await client.ask(0x20, struct.pack("<IQIQ", topic, 0, 65_536, 5))
        assert (await client.ask(0x02, struct.pack("<I", topic))).batch_id == 0x80
        assert await client.ask(0x21, struct.pack("<IQ", topic, 5)) == Received(ACK, 5, b"")
        # This topic never existed.
        assert await client.ask(0x21, struct.pack("<IQ", 999, 6)) == Received(ACK, 6, b"")
        await client.close()

    served(tmp_path, work)


def test_consumers_and_their_commits_survive_a_restart(served: Serve, tmp_path: Path) -> None:
    async def commit(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        await client.publish(topic, record(b"aaaaa"), record(b"bbbbb"))

        async def subscribed(start: int, consumer: int) -> int:
            reply = await client.ask(0x20, struct.pack("<IQIQ", topic, start, 65_536, consumer))
            echoed, offset = struct.unpack("<QQ", reply.payload)
            assert (reply.batch_id, echoed) == (0x23, consumer)
            return int(offset)

        async def committed(consumer: int, offset: int) -> None:
            reply = await client.ask(0x22, struct.pack("<IQQ", topic, consumer, offset))
            assert (reply.batch_id, reply.payload) == (0x24, struct.pack("<QQ", consumer, offset))

        assert [await subscribed(start, 5) for start in (0, 7, END_OF_PYTHON, END_OF_RUST)] == [0, 7, 20, 20]
        await committed(5, 13)
        assert await subscribed(0, 5) == 13
        await committed(5, 4)
        assert await subscribed(0, 5) == 4
        await committed(6, END_OF_PYTHON)
        assert await subscribed(0, 6) == 20
        await committed(7, 1_000)
        # The other interfaces see the first record from there on.
        seen = [await server.log.committed(f"consumer:{consumer}", "events") for consumer in (5, 6, 7)]
        assert seen == [2, 3, 3]
        await server.log.commit("consumer:8", "events", 2)
        assert await subscribed(0, 8) == 10
        for consumer in (5, 99):
            reply = await client.ask(0x21, struct.pack("<IQ", topic, consumer))
            assert reply == Received(ACK, consumer, b"")
        for command, size in ((0x20, 24), (0x22, 20)):
            assert (await client.ask(command, b"\x09" + bytes(size - 1))).error == 0x10
        await client.close()

    async def resume(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        for consumer, offset in ((5, 4), (6, 20), (7, 1_000), (8, 10), (9, 0)):
            reply = await client.ask(0x20, struct.pack("<IQIQ", 1, 0, 1, consumer))
            assert reply.payload == struct.pack("<QQ", consumer, offset)
        await client.close()

    served(tmp_path, commit)
    served(tmp_path, resume)


def test_answers_and_acks_come_in_the_order_of_requests(served_on_each_loop: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        sent, expected = [], []
        for number in range(60):
            sent.append(client.ingest(record(b"%02d" % number), topic))
            expected.append((ACK, client.batch_id))
            if number % 3 == 0:
                sent.append(frame(CONTROL, struct.pack("<IQI", topic, 7 * number, 65_536), batch_id=0x10))
                expected.append((CONTROL, 0x11))
            if number % 5 == 0:
                sent.append(client.ingest(b"x", 77))
                expected.append((CONTROL, 0xFF))
            if number % 7 == 0:
                sent.append(frame(CONTROL, batch_id=0x99))
                expected.append((CONTROL, 0xFF))
        client.send(*sent)
        found = [await client.receive() for _ in expected]
        assert [(each.flags, each.batch_id) for each in found] == expected
        fetched = [each.payload[16:] for each in found if each.batch_id == 0x11 and each.flags == CONTROL]
        # Each fetch sees the frames sent before it, and none sent after it.
        assert fetched == [record(b"%02d" % number) for number in range(0, 60, 3)]
        refused = [each.document["details"] for each in found if each.error == 0x10]
        assert refused == [{"batch_id": 2 + 6 * number} for number in range(12)]
        await client.close()

    served_on_each_loop(tmp_path, work)


def test_lz4_is_stored_and_served_plain(served: Serve, tmp_path: Path) -> None:
    payload = b"".join(record(b"squeeze me " * 20) for _ in range(10))

    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        squeezed = lz4.block.compress(payload, store_size=False)
        client.send(client.ingest(squeezed, topic, flags=0x05), client.ingest(b"\xff\xff\xff", topic, flags=0x05))
        assert (await client.receive()).flags == ACK
        refused = await client.receive()
        assert (refused.error, refused.document["details"]) == (0x04, {"batch_id": 2})
        assert await client.fetch(topic, 0) == (len(payload), 10, payload)
        await client.close()

    served(tmp_path, work)


def test_payloads_of_the_largest_size_and_units_above_a_frame(served_on_each_loop: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await RustClient.connect(server.address)
        topic = await client.create("events")
        payload = bytes(range(256)) * (16 * MIB // 256)
        assert (await client.write(payload, topic)).flags == ACK
        many = record(b"") * 100_000
        assert (await client.write(many, topic)).flags == ACK
        following, count, data = await client.fetch(topic, 0, 1)
        assert (following, count, data == payload[:V1_FETCH_DATA_SIZE_MAX]) == (V1_FETCH_DATA_SIZE_MAX, 1, True)
        following, count, data = await client.fetch(topic, following, 60)
        assert (following, count, data) == (16 * MIB, 0, payload[-60:])
        assert await client.fetch(topic, following, MIB) == (16 * MIB + len(many), 100_000, many)
        await client.close()

    served_on_each_loop(tmp_path, work)


def test_two_clients_and_all_interfaces_share_a_topic(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        writer, reader = [await PythonClient.connect(server.address) for _ in range(2)]
        topic = await writer.create("events")

        async def write(client: PythonClient, name: bytes) -> None:
            for round_ in range(10):
                await client.publish(topic, *(record(b"%s %d %d" % (name, round_, each)) for each in range(20)))

        await asyncio.gather(write(writer, b"one"), write(reader, b"two"))
        await server.log.publish("events", b"local")
        offset, found = 0, []
        while (step := await reader.poll(topic, offset))[1]:
            offset, found = step[0], found + step[1]
        for name in (b"one", b"two"):
            mine = [value for value in found if value.startswith(name)]
            assert mine == [b"%s %d %d" % (name, round_, each) for round_ in range(10) for each in range(20)]
        assert found[-1] == b"local"
        assert len(found) == 401
        await writer.close()
        await reader.close()

    served(tmp_path, work)


def test_keepalives_are_answered_and_other_frames_of_servers_ignored(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        client.send(frame(ACK, batch_id=1), frame(0x10), frame(0), frame(KEEPALIVE))
        assert await client.receive() == Received(KEEPALIVE, 0, b"")
        assert (await client.ask(0x07)).batch_id == 0x81
        await client.close()

    served(tmp_path, work)


@pytest.mark.parametrize(
    "config",
    [{"order": 0}, {"order": 1}, {"order": 5}, {"ack_level": 0}, {"durability": "memory"}, {"durability": "ephemeral"}],
    ids=str,
)
def test_topics_of_every_order_and_class(served: Serve, tmp_path: Path, config: dict[str, JsonValue]) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = (await server.log.create_topic("events", **config)).topic_id
        for round_ in range(3):
            await client.publish(topic, record(b"a%d" % round_), b"opaque %d" % round_, record(b"b%d" % round_))
        stream = b"".join(
            record(b"a%d" % round_) + b"opaque %d" % round_ + record(b"b%d" % round_) for round_ in range(3)
        )
        assert await client.fetch(topic, 0) == (len(stream), 9, stream)
        assert await client.fetch(topic, 7, 8) == (15, 1, b"opaque 0")
        await client.close()

    served(tmp_path, work)


def test_a_topic_deleted_during_a_read_is_not_mistaken_for_another(
    served: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        await client.publish(topic, record(b"old"))
        state = server.log.topic_named("events")
        shared = (server.service.commands, PastEnd.ERROR, server.service.count)
        reading = Lwp1Reading(server.log, *shared, Admission(server.service.access))
        await server.log.delete_topic("events")
        await server.log.create_topic("events")
        # Found before: these requests are for a topic that was deleted.
        monkeypatch.setattr(server.service.commands, "find", lambda _topic_id: state)
        memory = PeerMemory().open().working
        for asked in (
            reading.fetch(Fetch(state.topic_id, Offset(0), 9), Lease(memory)),
            reading.subscribe(Subscribe(state.topic_id, Offset(0), 9, 1)),
            reading.commit(CommitOffset(state.topic_id, 1, Offset(0))),
        ):
            with pytest.raises(ProtocolError) as refused:
                await asked
            assert refused.value.code == ErrorCode.TOPIC_NOT_FOUND
        await client.close()

    served(tmp_path, work)
