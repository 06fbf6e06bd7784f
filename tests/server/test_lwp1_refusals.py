"""Version 1 under bad input, wrong tokens, full disks, slow readers: answers as published, no effect on others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from v1_clients import ACK, BATCH, CONTROL, HEADER, PythonClient, Received, RustClient, frame, record
from v1_server import Served, serving

from seawall import limits
from seawall.errors import (
    CorruptionError,
    DiskFullError,
    FatalError,
    FullError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
)
from seawall.limits import MIB
from seawall.server.connection.access import Access, Right
from seawall.server.connection.session import ConnectionLimits
from seawall.server.lwp2.refusals import refusal
from seawall.wire.format.codes import ErrorCode

GOOD = record(b"good")
#: For names of topics that no other stream has used.
TOPIC_NUMBERS = itertools.count()


Serve = Callable[..., None]


def damaged_payload(topic: int) -> bytes:
    whole = bytearray(frame(BATCH, GOOD, batch_id=9, topic=topic))
    whole[-1] ^= 1
    return bytes(whole)


def damaged_header() -> bytes:
    whole = bytearray(frame(BATCH, GOOD, batch_id=9))
    whole[9] ^= 1
    return bytes(whole)


def claiming(version: int = 1, length: int = 0) -> bytes:
    crc = zlib.crc32(struct.pack("<4sBBH", b"LANC", version, BATCH, 0))
    return HEADER.pack(b"LANC", version, BATCH, 0, crc, 9, 0, 0, length, 0, 0)


#: What a peer may send: any frame with any payload, truncated or damaged, and bytes that are no frame.
noise = st.one_of(
    st.builds(
        lambda flags, payload, batch_id, topic: frame(flags, payload, batch_id=batch_id, topic=topic),
        st.sampled_from([0x04, 0x04, 0x05, 0x00, 0x20, 0x08, 0x10, 0x40, 0x44, 0x06, 0x80]),
        st.one_of(st.binary(max_size=40), st.just(GOOD), st.just(b"events")),
        st.one_of(st.integers(0, 0x25), st.just(0xFF), st.integers(0, 2**64 - 1)),
        st.integers(0, 3),
    ),
    st.just(frame(CONTROL, b"events", batch_id=0x01)),
    st.binary(max_size=60),
    st.just(damaged_payload(1)),
)

#: What closes a connection, and the error code that is sent before; None if nothing is sent.
ENDING = {
    "magic": (b"GET / HTTP/1.1\r\n\r\n", None),
    "header checksum": (damaged_header(), None),
    "payload checksum": (damaged_payload(1), None),
    "version": (claiming(version=3), 0x06),
    "changed version": (claiming(version=2) + bytes(52), 0x06),
    "too large": (claiming(length=16 * MIB + 1), 0x03),
}


@pytest.mark.parametrize("what", ENDING)
def test_frames_before_bad_bytes_are_stored_and_answered(served_on_each_loop: Serve, tmp_path: Path, what: str) -> None:
    bad, code = ENDING[what]

    async def work(server: Served) -> None:
        client = await RustClient.connect(server.address)
        topic = await client.create("events")
        client.send(client.ingest(GOOD, topic), client.ingest(b"opaque", topic), bad, client.ingest(GOOD, topic))
        assert await client.acks(2) == [1, 2]
        if code is not None:
            refused = await client.receive()
            assert refused.error == code
            if code == 0x06:
                assert refused.document["details"] == {"supported": [1, 2]}
        assert await client.at_end()
        await client.close()
        other = await RustClient.connect(server.address)
        assert await other.fetch(topic, 0) == (15, 2, GOOD + b"opaque")
        await other.close()

    served_on_each_loop(tmp_path, work)


@pytest.mark.parametrize("what", ["magic", "version", "too large"])
def test_bad_first_bytes_get_only_the_error(served: Serve, tmp_path: Path, what: str) -> None:
    bad, code = ENDING[what]

    async def work(server: Served) -> None:
        client = await RustClient.connect(server.address)
        client.send(bad)
        if code is not None:
            assert (await client.receive()).error == code
        assert await client.at_end()
        await client.close()

    served(tmp_path, work)


def test_a_peer_that_sent_eof_gets_its_acks(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        client.send(*(client.ingest(GOOD, topic) for _ in range(50)), client.ingest(GOOD, topic)[:-1])
        client.writer.write_eof()
        assert await client.acks(50) == list(range(1, 51))
        assert await client.at_end()
        await client.close()
        assert (await server.log.describe("events")).record_count == 50

    served(tmp_path, work)


def test_a_peer_that_disconnects_does_not_affect_others(served_on_each_loop: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        client.send(*(client.ingest(GOOD, topic) for _ in range(100)), frame(CONTROL, batch_id=0x03))
        client.writer.transport.abort()
        other = await PythonClient.connect(server.address)
        await other.publish(topic, GOOD)
        # A part of the first client's frames arrived; the frame of the second is complete and acked.
        assert 1 <= (await server.log.describe("events")).record_count <= 101
        await client.close()
        await other.close()

    served_on_each_loop(tmp_path, work)


def test_an_invalid_request_leaves_the_connection_open(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        short = ((0x02, 3), (0x04, 3), (0x05, 19), (0x06, 1), (0x10, 15), (0x20, 23), (0x21, 11), (0x22, 19))
        for command, size in short:
            assert (await client.ask(command, bytes(size))).error == 0x04
        for command in (0x09, 0x11, 0x12, 0x23, 0x24, 0x80, 0x81, 0xFF, 0x00, 0x0B, 1 << 32 | 1):
            assert (await client.ask(command, bytes(24))).error == 0x04
        for flags, payload in ((0x04, b""), (0x06, GOOD), (0x84, GOOD), (0x05, b"")):
            client.send(client.ingest(payload, topic, flags=flags))
            refused = await client.receive()
            assert (refused.error, refused.document["details"]) == (0x04, {"batch_id": client.batch_id})
        client.send(frame(CONTROL | 0x80, batch_id=3))
        assert "details" not in (await client.receive()).document
        assert (await client.ask(0x08, b"any token")).payload == b"\1welcome"
        await client.publish(topic, GOOD)
        assert (await server.log.describe("events")).record_count == 1
        assert server.service.counts["invalid_payload"] == len(short) + 11 + 5
        await client.close()

    served(tmp_path, work)


def test_tokens(served: Serve, tmp_path: Path) -> None:
    access = Access({"all": Right.ALL, "writer": Right.WRITE_ONLY})

    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        client.send(frame(0x20))
        assert (await client.receive()).flags == 0x20
        assert (await client.ask(0x03)).error == 0x40
        client.send(client.ingest(GOOD, 1))
        refused = await client.receive()
        assert (refused.error, refused.document["details"]) == (0x40, {"batch_id": 1})
        assert (await client.ask(0x08, b"wrong")).payload[:1] == b"\0"
        reply = await client.ask(0x08, b"writer")
        assert (reply.batch_id, reply.payload[:1]) == (0x09, b"\1")
        topic = await client.create("events")
        await client.publish(topic, GOOD)
        for command, payload in ((0x03, b""), (0x04, bytes(4)), (0x07, b""), (0x10, bytes(16)), (0x22, bytes(20))):
            assert (await client.ask(command, payload)).error == 0x42
        assert (await client.ask(0x08, b"all")).payload[:1] == b"\1"
        assert (await client.fetch(topic, 0))[1] == 1
        await client.close()

    served(tmp_path, work, access=access)


def test_the_third_wrong_token_ends_the_connection(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        client.send(*(frame(CONTROL, b"wrong", batch_id=0x08) for _ in range(5)))
        for _ in range(3):
            assert (await client.receive()).payload[:1] == b"\0"
        assert await client.at_end()
        assert server.service.counts["authentication_failed"] == 3
        await client.close()

    served(tmp_path, work, access=Access({"right": Right.ALL}))


def test_a_connection_over_the_limit_is_refused(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        await client.create("events")
        other = await PythonClient.connect(server.address)
        assert (await other.ask(0x03)).error == 0x32
        assert await other.at_end()
        assert (await client.ask(0x03)).error is None
        await client.close()
        await other.close()

    served(tmp_path, work, connections_max=1)


def test_a_frame_that_is_not_stored_gets_an_error_in_place_of_its_ack(
    served: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        monkeypatch.setattr(type(server.log), "is_refusing", True)
        client.send(*(client.ingest(GOOD, topic) for _ in range(3)))
        for batch_id in (1, 2, 3):
            refused = await client.receive()
            assert (refused.error, refused.document["details"]) == (0x61, {"batch_id": batch_id})
        monkeypatch.undo()
        await client.publish(topic, GOOD)
        await client.close()

    served(tmp_path, work)


def test_without_topic_0_its_frames_are_refused_one_by_one(
    served: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(server: Served) -> None:
        client = await RustClient.connect(server.address)
        create = server.log.create_topic

        async def refuse(_name: str) -> None:
            raise DiskFullError("no space left")

        monkeypatch.setattr(server.log, "create_topic", refuse)
        client.send(client.ingest(b"one", 0), client.ingest(b"two", 0))
        assert [(await client.receive()).document["details"] for _ in range(2)] == [{"batch_id": 1}, {"batch_id": 2}]
        monkeypatch.setattr(server.log, "create_topic", create)
        assert await client.write(b"three") == Received(ACK, 3, b"")
        await client.close()

    served(tmp_path, work)


def test_a_full_topic_refuses_frames(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        info = await server.log.create_topic("events", cap_records=2, discard="reject")
        await client.publish(info.topic_id, GOOD)
        await client.publish(info.topic_id, GOOD)
        client.send(client.ingest(GOOD, info.topic_id))
        refused = await client.receive()
        assert (refused.error, refused.document["details"]) == (0x61, {"batch_id": 3})
        await client.close()

    served(tmp_path, work)


def test_a_bug_closes_one_connection_and_is_reported(
    served: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(server: Served) -> None:
        reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: reported.append(about["message"]))
        client, other = [await PythonClient.connect(server.address) for _ in range(2)]
        await other.create("events")

        async def fail(_request: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(server.service.commands, "execute", fail)
        assert (await client.ask(0x03)).error == 0x60
        assert await client.at_end()
        assert reported == ["a command failed"]
        await other.publish(1, GOOD)
        await client.close()
        await other.close()

    served(tmp_path, work)


def test_frames_over_the_unacked_limit_wait_and_are_not_lost(
    served: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "V1_UNACKED_FRAMES_MAX", 5)

    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        await client.publish(topic, *(b"opaque %d" % number for number in range(200)))
        assert (await server.log.describe("events")).record_count == 200
        await client.close()

    served(tmp_path, work)


def test_unread_answers_are_bounded(served: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        await client.publish(topic, *(record(bytes(MIB - 5)) for _ in range(8)))
        asked = frame(CONTROL, struct.pack("<IQI", topic, 0, 8 * MIB), batch_id=0x10)
        client.send(asked * 30)
        most = 0
        for _ in range(200):
            await asyncio.sleep(0)
            most = max(most, *(each.unsent_size for each in server.listener.connections))
        for _ in range(30):
            assert len((await client.receive()).payload) == 8 * MIB + 16
            most = max(most, *(each.unsent_size for each in server.listener.connections))
        assert most <= 2 * 8 * MIB + 1_000
        await client.close()

    served(tmp_path, work)


def test_a_reader_that_receives_nothing_is_disconnected(served_on_each_loop: Serve, tmp_path: Path) -> None:
    async def work(server: Served) -> None:
        client = await PythonClient.connect(server.address)
        topic = await client.create("events")
        await client.publish(topic, *(record(bytes(MIB - 5)) for _ in range(8)))
        client.writer.transport.pause_reading()
        client.send(frame(CONTROL, struct.pack("<IQI", topic, 0, 8 * MIB), batch_id=0x10) * 30)
        while server.listener.connections:
            await asyncio.sleep(0.01)
        assert server.listener.counts["stalled"] == 1
        client.writer.transport.abort()

    served_on_each_loop(tmp_path, work, bounds=ConnectionLimits(stall_s=0.2))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFoundError("there is no topic"), ErrorCode.TOPIC_NOT_FOUND),
        (InvalidInputError("a bad value"), ErrorCode.INVALID_PAYLOAD),
        (DiskFullError("/secret/path"), ErrorCode.STORAGE),
        (FullError("try later"), ErrorCode.BACKPRESSURE),
        (FatalError("/secret/path"), ErrorCode.STORAGE),
        (OutcomeUnknownError("/secret/path"), ErrorCode.STORAGE),
        (OSError("/secret/path"), ErrorCode.STORAGE),
        (CorruptionError("/secret/path"), ErrorCode.STORAGE),
        (ZeroDivisionError("/secret/path"), ErrorCode.INTERNAL),
        (ProtocolError("as it is", code=ErrorCode.LIMIT, closes=True), ErrorCode.LIMIT),
    ],
)
def test_every_error_has_its_code_and_reveals_no_secrets(error: Exception, code: ErrorCode) -> None:
    refused = refusal(error)
    assert refused.code == code
    assert "secret" not in str(refused)
    assert len(str(refusal(InvalidInputError("x" * 9_999)))) == 500


@pytest.fixture(scope="module")
def noise_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, Served]]:
    """One server for all noise, so harm that one stream did would show in the next; and the loop it runs on."""
    with asyncio.Runner() as runner:
        context = serving(tmp_path_factory.mktemp("noise"))
        yield runner, runner.run(context.__aenter__())
        runner.run(context.__aexit__(None, None, None))


@settings(max_examples=25, deadline=None)
@given(st.lists(noise, max_size=12).map(b"".join), st.lists(st.integers(1, 400), min_size=1, max_size=6))
def test_no_bytes_stop_a_server(noise_server: tuple[asyncio.Runner, Served], stream: bytes, slices: list[int]) -> None:
    runner, server = noise_server
    name = f"another-{next(TOPIC_NUMBERS)}"

    async def work() -> None:
        client, other = [await PythonClient.connect(server.address) for _ in range(2)]
        at, sizes = 0, itertools.cycle(slices)
        while at < len(stream):
            size = next(sizes)
            client.send(stream[at : at + size])
            at += size
            await asyncio.sleep(0)
        client.writer.write_eof()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await client.receive()
        topic = await other.create(name)
        await other.publish(topic, GOOD)
        assert await other.fetch(topic, 0) == (len(GOOD), 1, GOOD)
        with contextlib.suppress(ConnectionError):
            await client.close()
        await other.close()

    runner.run(work())
