"""Version 1 frames through the ring: more than it holds, storage that fails, and refusals."""

from __future__ import annotations

import asyncio
import errno
import struct
from pathlib import Path

import numpy as np
import pytest
from v1_clients import PythonClient, RustClient, record
from v1_server import Served, served

from seawall.errors import FatalError
from seawall.io.disk.disk_ring import Completion, DiskRing
from seawall.limits import FABRIC_BLOG_SIZE, MIB
from seawall.server.lwp1.ingest import Run
from seawall.wire.format.codes import ErrorCode
from seawall.wire.lwp1.frames import encode_ack
from seawall.wire.lwp1.replies import parse_error_reply


def test_more_than_the_ring_holds_waits_and_keeps_its_order(tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await RustClient.connect(server.address)
        topic = await client.create("events")
        payloads = [bytes([number]) * (2 * MIB) for number in range(FABRIC_BLOG_SIZE // (2 * MIB) + 4)]
        client.send(*(client.ingest(payload, topic) for payload in payloads))
        assert await client.acks(len(payloads)) == list(range(1, len(payloads) + 1))
        offset = 0
        for payload in payloads:
            following, count, data = await client.fetch(topic, offset, 1)
            assert (following - offset, count, data == payload) == (2 * MIB, 1, True)
            offset = following
        await client.close()

    served(None, tmp_path, work)


def test_many_small_batches_take_several_commits(tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        # Far more small batches than one commit may write to the log.
        await client.publish(topic, *(record(bytes(999)) * 60 for _ in range(300)))
        assert (await server.log.describe("events")).record_count == 300 * 60
        await client.close()

    served(None, tmp_path, work)


def test_a_storage_failure_is_reported_for_every_waiting_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        # Nothing is committed any more.
        monkeypatch.setattr(server.log, "request_commit", lambda: None)
        client.send(client.ingest(record(b"a"), topic), client.ingest(b"opaque", topic))
        while not server.log.ring.claimed:
            await asyncio.sleep(0.001)
        server.service.ingest.fail(FatalError("the disk is gone"))
        for batch_id in (1, 2):
            refused = await client.receive()
            assert (refused.error, refused.document["details"]) == (0x61, {"batch_id": batch_id})
        # It stays open: stored records can be read.
        assert await client.fetch(topic, 0) == (0, 0, b"")
        monkeypatch.undo()
        await client.close()

    served(None, tmp_path, work)


def test_a_failed_disk_refuses_frames_and_serves_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = DiskRing.reap

    def reap(self: DiskRing, **named: bool) -> list[Completion]:
        return [Completion(tag, -errno.EIO) for tag, _ in real(self, **named)]

    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        await client.publish(topic, record(b"before"))
        monkeypatch.setattr(DiskRing, "reap", reap)
        for batch_id in (2, 3):
            client.send(client.ingest(record(b"lost"), topic))
            refused = await client.receive()
            assert (refused.error, refused.document["details"]) == (0x61, {"batch_id": batch_id})
        refused = await client.ask(0x01, b"others")
        assert refused.error == 0x61
        assert "read-only" in refused.document["message"]
        status = (await client.ask(0x07)).document
        assert (status["healthy_nodes"], status["quorum_available"]) == (0, False)
        assert (await client.fetch(topic, 0))[2] == record(b"before")
        monkeypatch.undo()
        await client.close()

    served(None, tmp_path, work)


def test_a_batch_of_a_topic_deleted_before_its_order_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(server: Served) -> None:
        client, other = [await PythonClient.connect(server.address) for _ in range(2)]
        topic = await client.create("events")
        monkeypatch.setattr(server.log, "request_commit", lambda: None)
        client.send(client.ingest(record(b"a"), topic))
        while not server.log.ring.claimed:
            await asyncio.sleep(0.001)
        deleting = asyncio.ensure_future(server.log.delete_topic("events"))
        monkeypatch.undo()
        await deleting
        answer = await client.receive()
        assert (answer.error, answer.document["details"]) == (0x13, {"batch_id": 1})
        assert (await other.ask(0x03)).document == {"topics": []}
        await client.close()
        await other.close()

    served(None, tmp_path, work)


def test_changes_of_others_delay_no_ack(tmp_path: Path) -> None:
    """A change may apply a batch to the store before any commit does."""

    async def work(server: Served) -> None:
        client, other = [await PythonClient.connect(server.address) for _ in range(2)]
        topic = await client.create("events")
        is_over = False

        async def commit() -> None:
            while not is_over:
                assert (await other.ask(0x22, struct.pack("<IQQ", topic, 1, 7))).batch_id == 0x24

        committing = asyncio.ensure_future(commit())
        for _ in range(40):
            await client.publish(topic, record(b"a"))
        is_over = True
        await committing
        await client.close()
        await other.close()

    served(None, tmp_path, work)


def test_frames_share_the_result_of_their_batch() -> None:
    run = Run(np.arange(7, 13, dtype=np.uint64), 100, 40, np.array([2, 1, 3]))
    assert (run.end_seq, run.is_decided) == (43, False)
    run.decide(np.array([42, 40]), np.array([int(ErrorCode.READ_ONLY), 0]))
    assert not run.is_decided
    run.decide(np.array([41]), np.array([int(ErrorCode.TOPIC_NOT_FOUND)]))
    assert run.is_decided
    answers = run.frames()
    assert answers.startswith(encode_ack(7) + encode_ack(8))
    errors = []
    at = 88
    while at < len(answers):
        end = at + 44 + int.from_bytes(answers[at + 32 : at + 36], "little")
        error = parse_error_reply(answers[at + 44 : end])
        errors.append((error.code, error.details["batch_id"]))
        at = end
    assert errors == [(0x10, 9), (0x61, 10), (0x61, 11), (0x61, 12)]
