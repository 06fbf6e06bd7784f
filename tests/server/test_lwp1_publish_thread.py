"""Version 1 frames received by the publish thread: answered as by an event loop; other frames return to the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import lz4.block
import pytest
from v1_clients import BATCH, CONTROL, KEEPALIVE, Client, PythonClient, frame, record
from v1_server import Served
from watched import Commits, make_wal_unwritable

import seawall
from seawall.server.lwp1 import session as lwp1_session

LZ4 = 0x01


Serve = Callable[..., None]


@pytest.fixture(autouse=True)
def attach_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lwp1_session, "_ATTACH_AFTER", 1)


async def attaching(server: Served) -> tuple[Client, int]:
    """A client whose connection is attached, with two records stored."""
    client = await PythonClient.connect(server.address)
    topic = await client.create("events")
    await client.publish(topic, record(b"0"))
    await client.publish(topic, record(b"1"))
    await server.attached()
    return client, topic


async def values(server: Served) -> list[bytes]:
    return [item.value for batch in await server.log.read("events") for item in batch]


def test_frames_are_stored_acked_and_read(served_on_each_loop: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client, topic = await attaching(server)
        for number in range(2, 30):
            await client.publish(topic, record(b"%d" % number))
        assert await values(server) == [b"%d" % number for number in range(30)]
        await client.close()
        commits.append(server.log.commits)

    commits: list[Commits] = []
    served_on_each_loop(tmp_path, work)
    assert sum(commits[0]) > 20
    with seawall.open(tmp_path / "data") as log:
        assert [item.value for batch in log.read("events") for item in batch] == [b"%d" % each for each in range(30)]
        assert log.verify().is_sound


def test_many_frames_at_once_become_few_batches(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client, topic = await attaching(server)
        for first in range(2, 3_002, 300):
            await client.publish(topic, *(record(b"%d" % number) for number in range(first, first + 300)))
        assert await values(server) == [b"%d" % number for number in range(3_002)]
        await client.close()
        commits.append(server.log.commits)

    commits: list[Commits] = []
    served(tmp_path, work)
    assert sum(commits[0]) < 1_000


def test_a_payload_that_is_no_record_stays_one_unit(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client, topic = await attaching(server)
        await client.publish(topic, b"not a record", record(b"2") + record(b"3"), b"neither")
        await client.publish(topic, record(b"4"))
        _, count, stream = await client.fetch(topic, 0)
        expected = (record(b"0"), record(b"1"), b"not a record", record(b"2"), record(b"3"), b"neither", record(b"4"))
        assert stream == b"".join(expected)
        assert count == 7
        await client.close()

    served(tmp_path, work)


def test_other_frames_keep_their_order(served: Serve, tmp_path: Path) -> None:
    """Requests, keepalives, other topics, compressed and large frames, between small ones."""

    async def work(server: Served) -> None:
        client, topic = await attaching(server)
        other = await client.create("others")
        large, packed = record(bytes(100_000)), lz4.block.compress(record(b"packed"), store_size=False)
        for _ in range(3):
            await client.publish(topic, record(b"small"))
            await server.attached()
            client.send(client.ingest(record(b"first"), topic), frame(KEEPALIVE), client.ingest(large, topic))
            found = [await client.receive() for _ in range(3)]
            assert sorted(each.flags for each in found) == [8, 8, KEEPALIVE]
            await client.publish(topic, record(b"small"))
            client.send(client.ingest(record(b"elsewhere"), other), client.ingest(packed, topic, flags=BATCH | LZ4))
            assert await client.acks(2) == [client.batch_id - 1, client.batch_id]
            following, _, _ = await client.fetch(topic, 0, 16)
            assert following > 0
        own = [b"small", b"first", bytes(100_000), b"small", b"packed"]
        assert await values(server) == [b"0", b"1", *own * 3]
        await client.close()

    served(tmp_path, work)


def test_frames_that_arrive_byte_by_byte(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client, topic = await attaching(server)
        descriptor = client.writer.get_extra_info("socket").fileno()
        for number in range(2, 6):
            for byte in client.ingest(record(b"%d" % number), topic):
                await asyncio.to_thread(os.write, descriptor, bytes([byte]))
            assert await client.acks(1) == [client.batch_id]
        assert await values(server) == [b"%d" % number for number in range(6)]
        await client.close()

    served(tmp_path, work)


def test_a_deleted_topic_is_reported_in_place_of_the_ack(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client, topic = await attaching(server)
        await server.log.delete_topic("events")
        client.send(client.ingest(record(b"2"), topic))
        answer = await client.receive()
        assert (answer.flags, answer.batch_id) == (CONTROL, 0xFF)
        await client.close()

    served(tmp_path, work)


def test_a_failed_write_is_reported_in_place_of_acks(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client, topic = await attaching(server)
        make_wal_unwritable(tmp_path / "data")
        client.send(client.ingest(record(b"2"), topic), client.ingest(record(b"3"), topic))
        for number in (client.batch_id - 1, client.batch_id):
            answer = await client.receive()
            assert answer.error is not None
            assert answer.document["details"]["batch_id"] == number
        await client.close()

    served(tmp_path, work)
    with seawall.open(tmp_path / "data") as log:
        first, second = log.read("events")[:2]
        assert [item.value for batch in (first, second) for item in batch] == [b"0", b"1"]


def test_frames_before_eof_are_answered(served_on_each_loop: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client, topic = await attaching(server)
        client.send(client.ingest(record(b"2"), topic))
        client.writer.write_eof()
        assert await client.acks(1) == [client.batch_id]
        assert await client.at_end()
        assert await values(server) == [b"0", b"1", b"2"]
        await client.close()

    served_on_each_loop(tmp_path, work)
