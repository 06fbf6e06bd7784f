"""Version 2 under bad input, slow peers, full and failed disks: the answers, what is closed, and what continues."""

import asyncio
import errno
import gc
import socket

import pytest
from lwp2_peer import Data, world

from seawall import limits
from seawall.core.types import TopicId
from seawall.io.disk import files
from seawall.io.disk.disk_ring import Completion, DiskRing
from seawall.limits import KIB, MIB
from seawall.server.connection.context import ServerSettings
from seawall.server.connection.session import ConnectionLimits
from seawall.server.lwp2 import session as lwp2_session
from seawall.server.lwp2.session import Lwp2Session
from seawall.wire.format.codes import AckLevel, AckStatus, Command, ErrorCode, Kind, ReadBy
from seawall.wire.format.frames import checksum, encode_header_v2
from seawall.wire.format.records import encode_raw
from seawall.wire.lwp1.requests import CreateTopic
from seawall.wire.lwp2.frames import encode_ping
from seawall.wire.lwp2.keyed import PublishKeyed
from seawall.wire.lwp2.reading import Fetch
from seawall.wire.lwp2.session import Error, parse_error
from seawall.wire.lwp2.subscriptions import Subscribe

OK, REJECTED, UNKNOWN = int(AckStatus.OK), int(AckStatus.REJECTED), int(AckStatus.UNKNOWN)


def control(command, payload=b"", request_id=5):
    crc = checksum(payload) if payload else 0
    header = encode_header_v2(
        Kind.CONTROL, command, request_id=request_id, payload_length=len(payload), payload_crc=crc
    )
    return header + payload


REFUSED = [
    (control(0x7F), ErrorCode.UNKNOWN_COMMAND),
    (control(Command.WELCOME, bytes(80)), ErrorCode.UNKNOWN_COMMAND),
    (control(0x80), ErrorCode.UNKNOWN_COMMAND),
    (control(Command.FETCH, b"short"), ErrorCode.INVALID_PAYLOAD),
    (control(Command.SUBSCRIBE, bytes(49)), ErrorCode.INVALID_PAYLOAD),
    (control(0x01, b"\xff\xfe"), ErrorCode.TOPIC_NAME),
    (control(0x01, b"bad name"), ErrorCode.TOPIC_NAME),
    (control(0x01, b"events"), ErrorCode.TOPIC_EXISTS),
    (control(0x02, b"\x09\0\0\0"), ErrorCode.TOPIC_NOT_FOUND),
    (encode_header_v2(Kind.ACK, 0, request_id=5), ErrorCode.UNKNOWN_COMMAND),
]


def test_a_refused_request_keeps_the_connection_open(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            for sent, code in REFUSED:
                peer.send(sent)
                error = await peer.answer(Error)
                assert (error.code, error.closes) == (code, False)
                assert (await peer.publish(1, b"one"))["status"] == OK
            peer.close()

    on_loop(work())


def flipped(frame, at):
    damaged = bytearray(frame)
    damaged[at] ^= 1
    return bytes(damaged)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda batch: flipped(batch, -1), ErrorCode.CRC_MISMATCH),
        (lambda batch: flipped(batch, 50), None),
        (lambda batch: flipped(batch, 0), None),
        (lambda batch: flipped(batch, 4), ErrorCode.UNSUPPORTED_VERSION),
        (lambda _: encode_header_v2(Kind.CONTROL, 1, payload_length=32 * MIB), ErrorCode.PAYLOAD_TOO_LARGE),
        (lambda _: encode_header_v2(0x41, 1), ErrorCode.INVALID_PAYLOAD),
        (lambda _: control(Command.HELLO, bytes(56)), ErrorCode.INVALID_PAYLOAD),
    ],
)
def test_complete_earlier_frames_are_answered_before_the_end(on_each_loop, tmp_path, damage, code):
    """INV-SESSION-ANSWERED."""

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            good = b"".join(peer.batch(1, b"%d" % number) for number in range(20))
            peer.send(good + damage(peer.batch(1, b"bad")) + peer.batch(1, b"unread"))
            answered = 0
            while answered < 20:
                frame = await peer.frame()
                if frame.header.kind == Kind.CONTROL:
                    peer.frames.insert(0, frame)
                    break
                answered += frame.header.record_count
            if code is not None:
                error = await peer.answer(Error)
                assert error.code == code
                if not error.closes:
                    assert code == ErrorCode.INVALID_PAYLOAD
                    await peer.acks(20 - answered + 1)
                    peer.close()
                    return
            assert answered == 20
            await peer.ended()
            assert len(await made.log.read("events")) == 20

    on_each_loop(work())


@pytest.mark.parametrize(
    "request_of",
    [lambda: Fetch(TopicId(1), ReadBy.SEQ, 1, KIB, 0), lambda: PublishKeyed(TopicId(1), 1, b"key", encode_raw(b"x"))],
    ids=["fetch", "publish under a key"],
)
def test_a_request_of_a_connection_that_ends_immediately_leaves_no_coroutine(
    on_loop, tmp_path, monkeypatch, request_of
):
    """Its task is cancelled before the first step: a coroutine that is never awaited would raise a warning."""
    begin = Lwp2Session._begin

    def begin_and_lose(session, work, request_id):
        begin(session, work, request_id)
        session._connection.abort()
        session.lost()

    async def work():
        async with world(tmp_path) as made:
            peer, other = await made.peer(), await made.peer(8)
            with monkeypatch.context() as patch:
                patch.setattr(Lwp2Session, "_begin", begin_and_lose)
                peer.ask(request_of())
                await peer.ended()
            assert (await other.publish(1, b"one"))["base_seq"] == 1
            other.close()

    on_loop(work())
    gc.collect()


def test_a_second_hello_closes_the_connection(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            error = await peer.hello()
            assert (error.code, error.closes) == (ErrorCode.WRONG_STATE, True)
            await peer.ended()

    on_loop(work())


def test_a_slow_frame_and_silence_close_a_connection(on_each_loop, tmp_path):
    bounds = ConnectionLimits(frame_time_s=0.1, frame_bytes_per_second=MIB)

    async def work():
        settings = ServerSettings(keepalive_ms=100, idle_ms=300)
        async with world(tmp_path, settings, bounds=bounds) as made:
            slow, silent = await made.peer(), await made.peer(8)
            slow.send(slow.batch(1, b"never")[:60])
            while (frame := await slow.frame()).header.kind == Kind.KEEPALIVE:
                continue
            assert frame.header.command == Command.ERROR
            pings = 0
            while (frame := await silent.frame()) is not None:
                assert (frame.header.kind, frame.header.command) == (Kind.KEEPALIVE, 0)
                pings += 1
            assert pings >= 1
            assert made.listener.counts == {"too_slow": 1, "idle": 1}
            slow.close()
            silent.close()

    on_each_loop(work())


def test_a_peer_that_answers_pings_stays_connected(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, ServerSettings(keepalive_ms=100, idle_ms=300)) as made:
            peer = await made.peer()
            for _ in range(5):
                ping = await peer.frame()
                assert ping.header.kind == Kind.KEEPALIVE
                peer.send(encode_header_v2(Kind.KEEPALIVE, 1, request_id=ping.header.id))
            assert made.listener.counts == {}
            peer.close()

    on_loop(work())


def test_an_incomplete_frame_before_eof_is_dropped(on_each_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            whole = peer.batch(1, b"whole")
            peer.send(whole + peer.batch(1, b"cut")[:70])
            peer.writer.write_eof()
            assert len(await peer.acks(1)) == 1
            await peer.ended()
            assert len(await made.log.read("events")) == 1

    on_each_loop(work())


def test_a_reset_connection_does_not_affect_others(on_each_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            good, bad = await made.peer(), await made.peer(8)
            bad.send(b"".join(bad.batch(1, b"x" * 1000) for _ in range(100)))
            bad.ask(Fetch(TopicId(1), ReadBy.LATEST, 0, 1000, 0, wait_ms=30_000))
            await bad.writer.drain()
            bad.writer.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0"
            )
            bad.writer.transport.abort()
            for number in range(10):
                assert (await good.publish(1, b"%d" % number))["status"] == OK
            while len(made.listener.connections) > 1:
                await asyncio.sleep(0)
            good.close()

    on_each_loop(work())


def test_a_full_topic_refuses_and_accepts_again(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, cap_records=2, discard="reject") as made:
            peer = await made.peer()
            for status in (OK, OK, REJECTED):
                row = await peer.publish(1, b"x")
                assert row["status"] == status
            assert row["reason"] == ErrorCode.READ_ONLY
            await made.log.delete("events", before_seq=2)
            assert (await peer.publish(1, b"y"))["status"] == OK
            peer.close()

    on_loop(work())


def test_a_full_disk_refuses_and_accepts_again(on_loop, tmp_path, monkeypatch):
    def full(_descriptor, _length):
        raise OSError(errno.ENOSPC, "no space")

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            assert (await peer.publish(1, b"one"))["status"] == OK
            with monkeypatch.context() as patch:
                patch.setattr(files, "reserve_space", full)
                row = await peer.publish(1, b"x" * (8 * MIB))
                assert (row["status"], row["reason"]) == (REJECTED, ErrorCode.READ_ONLY)
                # The order has refused it: its client seq is used up.
                assert row["level"] == AckLevel.ORDERED
                peer.ask(Fetch(TopicId(1), ReadBy.EARLIEST, 0, 1000, 0))
                assert len((await peer.answer(Data)).batches) == 1
            assert (await peer.publish(1, b"x" * (8 * MIB)))["status"] == OK
            peer.close()

    on_loop(work())


def test_a_failed_disk_refuses_batches_and_serves_readers(on_loop, tmp_path, monkeypatch):
    real = DiskRing.reap

    def reap(self, **named):
        return [Completion(tag, -errno.EIO) for tag, _ in real(self, **named)]

    # What the publish thread commits is not written by the ring (`test_publish_thread`).
    monkeypatch.setattr(lwp2_session, "_ATTACH_AFTER", 1 << 60)

    async def work():
        async with world(tmp_path) as made:
            peer, reader = await made.peer(), await made.connect()
            await reader.hello(0, flags=0)
            assert (await peer.publish(1, b"one"))["status"] == OK
            failed = asyncio.get_running_loop().create_future()
            ingest = made.context.ingest
            made.log.on_failed = lambda error: (ingest.fail(error), failed.set_result(error))
            monkeypatch.setattr(DiskRing, "reap", reap)
            peer.send(peer.batch(1, b"two"))
            error = await peer.answer(Error)
            assert (error.code, error.closes) == (ErrorCode.READ_ONLY, False)
            assert "Input/output error" in error.text
            (row,) = await peer.acks(1)
            assert (row["client_seq"], row["status"], row["reason"]) == (2, UNKNOWN, ErrorCode.OUTCOME_UNKNOWN)
            assert "EIO" in str(await failed)
            row = await peer.publish(1, b"three")
            assert (row["client_seq"], row["status"], row["reason"]) == (3, REJECTED, ErrorCode.READ_ONLY)
            peer.ask(CreateTopic("others"))
            assert (await peer.answer(Error)).code == ErrorCode.READ_ONLY
            reader.ask(Fetch(TopicId(1), ReadBy.EARLIEST, 0, 1000, 0))
            assert len((await reader.answer(Data)).batches) == 1
            late = await made.connect()
            error = await late.hello(9)
            assert error.code == ErrorCode.READ_ONLY
            await late.hello(0, flags=0)
            for each in (peer, reader, late):
                each.close()
            monkeypatch.undo()

    on_loop(work())


def test_a_full_ring_stops_reading_and_loses_nothing(on_loop, tmp_path):
    """More large batches than the ring holds bytes of, from several connections at once."""

    async def work():
        async with world(tmp_path) as made:
            peers = [await made.peer(10 + number) for number in range(3)]
            value = b"z" * (3 * MIB)

            async def publish(peer):
                peer.send(b"".join(peer.batch(1, value) for _ in range(8)))
                return await peer.acks(8)

            for rows in await asyncio.gather(*map(publish, peers)):
                assert [row["status"] for row in rows] == [OK] * 8
            assert made.log.topic_named("events").next_seq == 25
            for peer in peers:
                peer.close()

    on_loop(work())


def test_the_largest_batch_is_stored(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            row = await peer.publish(1, b"z" * (16 * MIB - 5))
            assert row["status"] == OK
            peer.send(encode_ping(3))
            assert (await peer.frame()).header.id == 3
            assert made.log.topic_named("events").live_bytes == 16 * MIB
            peer.close()

    on_loop(work())


async def limit_error(peer):
    """The next ERROR for a limit; other frames before it are skipped."""
    while (frame := await peer.frame()).header.command != Command.ERROR:
        continue
    assert parse_error(frame.payload).code == ErrorCode.LIMIT
    return frame


def test_too_many_subscriptions_and_requests_are_refused(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            for number in range(limits.SUBSCRIPTIONS_MAX + 1):
                peer.ask(Subscribe(TopicId(1), ReadBy.LATEST, 0, 4 * KIB, 10, 0), request_id=number)
            assert (await limit_error(peer)).header.id == limits.SUBSCRIPTIONS_MAX
            for number in range(limits.REQUESTS_MAX + 1):
                peer.ask(Fetch(TopicId(1), ReadBy.LATEST, 0, 1000, 0, wait_ms=30_000), request_id=number)
            assert (await limit_error(peer)).header.id == limits.REQUESTS_MAX
            peer.close()

    on_loop(work())
