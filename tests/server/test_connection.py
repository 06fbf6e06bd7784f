"""One connection over real sockets: slicing, bad input, slow peers, backpressure, and how it closes."""

import asyncio
import os
import socket
from contextlib import asynccontextmanager
from functools import partial

import pytest

from seawall.io.network.sending import FilePiece
from seawall.limits import FRAME_HEADER_SIZE, KIB, MIB, PAYLOAD_SIZE_MIN
from seawall.server.connection.listener import Listener
from seawall.server.connection.session import ConnectionLimits
from seawall.wire.format.codes import ErrorCode, Kind, V1Flags
from seawall.wire.format.frames import checksum, encode_header_v1, encode_header_v2

QUICK = ConnectionLimits(frame_time_s=0.1, frame_bytes_per_second=MIB, stall_s=0.2, linger_s=0.2)


class Recorded:
    """A session that keeps payloads, and accepts as many as it has space for."""

    def __init__(self, world, version, connection):
        world.sessions.append(self)
        self.connection = connection
        self.version = version
        self.payload_max = PAYLOAD_SIZE_MIN
        self.payloads = []
        self.space = world.space
        self.errors = []
        self.silences = 0
        self.is_lost = asyncio.Event()
        self.is_ended = False
        self.changed = asyncio.Event()
        if world.times:
            connection.set_timeouts(**world.times)

    def feed(self, buffer, rows):
        taken = 0
        for at, size in rows[["at", "size"]].tolist():
            if not self.space:
                break
            self.space -= 1
            taken += 1
            self.payloads.append(buffer[at + FRAME_HEADER_SIZE : at + size].tobytes())
        self.changed.set()
        return taken

    def buffer_for(self, _size, _revoke, **_how):
        return None

    def has_space_for(self, _size):
        return True

    def failed(self, error):
        self.errors.append(error)
        self.connection.finish(f"error {error.code:02x}".encode() if error.answered else b"")

    def ended(self):
        self.is_ended = True
        self.connection.finish(b"bye")

    def drain(self, drain_ms):
        self.connection.finish(b"drained %d" % drain_ms)

    def silent(self):
        self.silences += 1
        self.connection.write(b"ping")

    def has_space(self):
        self.changed.set()

    def lost(self):
        self.is_lost.set()

    async def received(self, count):
        while len(self.payloads) < count:
            self.changed.clear()
            await self.changed.wait()
        return self.payloads


class World:
    """A listener, and the sessions it made."""

    def __init__(self, bounds=None, *, connections_max=100, versions=(1, 2), space=1 << 30, **times):
        self.sessions = []
        self.space = space
        self.times = times
        makers = {version: partial(Recorded, self, version) for version in versions}
        self.listener = Listener(makers, bounds=bounds, connections_max=connections_max)

    async def connect(self):
        return await asyncio.open_connection(*self.address, limit=64 * MIB)

    async def session(self, number=0):
        """The session of a connection, once it has one."""
        while len(self.sessions) <= number:
            await asyncio.sleep(0)
        return self.sessions[number]


@asynccontextmanager
async def world(*arguments, **named):
    made = World(*arguments, **named)
    made.address = await made.listener.listen("127.0.0.1", 0)
    try:
        yield made
    finally:
        made.listener.stop()
        for connection in list(made.listener.connections):
            connection.abort()
        while made.listener.connections:
            await asyncio.sleep(0)


def frame(payload=b"", request_id=1):
    return encode_header_v2(
        Kind.KEEPALIVE, 0, request_id=request_id, payload_length=len(payload), payload_crc=checksum(payload)
    ) + (payload)


def test_frames_are_complete_in_any_slicing(on_each_loop):
    payloads = [bytes([number]) * (number * 7) for number in range(40)]
    stream = b"".join(map(frame, payloads))

    async def work():
        async with world() as made:
            for slice_size in (1, 43, 44, 100, len(stream)):
                _, writer = await made.connect()
                for at in range(0, len(stream), slice_size):
                    writer.write(stream[at : at + slice_size])
                    await writer.drain()
                session = await made.session(len(made.sessions))
                assert await session.received(len(payloads)) == payloads
                writer.close()
                await session.is_lost.wait()
                assert session.is_ended

    on_each_loop(work())


def test_large_frames_have_their_own_buffer(on_each_loop):
    payloads = [os.urandom(size) for size in (300 * KIB, 2 * MIB, 2 * MIB, 10, 5 * MIB, 200 * KIB, 1 * MIB)]

    async def work():
        async with world() as made:
            _, writer = await made.connect()
            for payload in payloads:
                writer.write(frame(payload))
            await writer.drain()
            assert await (await made.session()).received(len(payloads)) == payloads
            writer.close()

    on_each_loop(work())


def test_two_connections_do_not_mix_their_bytes(on_each_loop):
    async def work():
        async with world() as made:
            first, second = [await made.connect() for _ in range(2)]
            halves = [(frame(letter * 1000)[:500], frame(letter * 1000)[500:]) for letter in (b"a", b"b")]
            for (_, writer), (start, _) in zip((first, second), halves, strict=True):
                writer.write(frame(b"x") + start)
                await writer.drain()
                await (await made.session(len(made.sessions))).received(1)
            for (_, writer), (_, rest) in zip((first, second), halves, strict=True):
                writer.write(rest)
                await writer.drain()
            for session, letter in zip(made.sessions, (b"a", b"b"), strict=True):
                assert (await session.received(2))[1] == letter * 1000
            first[1].close()
            second[1].close()

    on_each_loop(work())


BROKEN_HEADER = bytearray(frame(b"abc"))
BROKEN_HEADER[13] ^= 1
BROKEN_PAYLOAD = bytearray(frame(b"abc"))
BROKEN_PAYLOAD[-1] ^= 1
BROKEN_V1 = bytearray(encode_header_v1(V1Flags.CONTROL, payload_length=3) + b"abc")
OTHER_VERSION = bytearray(frame())
OTHER_VERSION[4] = 3


@pytest.mark.parametrize(
    ("sent", "answer", "cause"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"", "bad_magic"),
        (bytes(OTHER_VERSION), b"error 06", "unsupported_version"),
        (bytes(BROKEN_HEADER), b"", "crc_mismatch"),
        (bytes(BROKEN_PAYLOAD), b"error 05", "crc_mismatch"),
        (bytes(BROKEN_V1), b"", "crc_mismatch"),
        (encode_header_v2(Kind.CONTROL, 1, payload_length=64 * MIB), b"error 03", "payload_too_large"),
        (encode_header_v2(0x44, 1), b"error 04", "invalid_payload"),
        (encode_header_v2(Kind.BATCH, 0, payload_length=3) + b"abc", b"", "invalid_payload"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_bad_input_closes_its_own_connection_only(on_loop, sent, answer, cause, is_first):
    async def work():
        async with world() as made:
            other, bad = await made.connect(), await made.connect()
            other[1].write(frame(b"one"))
            await (await made.session()).received(1)
            good = (
                b"" if is_first else frame(b"good") if sent != bytes(BROKEN_V1) else encode_header_v1(V1Flags.KEEPALIVE)
            )
            bad[1].write(good + sent + frame(b"unread"))
            assert await bad[0].read() == answer
            assert made.listener.counts[cause] == 1
            if not is_first:
                assert len(made.sessions[1].payloads) == 1
            bad[1].close()
            other[1].write(frame(b"two"))
            assert await made.sessions[0].received(2) == [b"one", b"two"]
            other[1].close()

    on_loop(work())


def test_a_version_does_not_change_on_a_connection(on_each_loop):
    async def work():
        async with world() as made:
            reader, writer = await made.connect()
            writer.write(encode_header_v1(V1Flags.KEEPALIVE) + frame())
            assert await reader.read() == b"error 06"
            assert [session.version for session in made.sessions] == [1]
            writer.close()

    on_each_loop(work())


def test_a_version_that_is_not_offered_is_refused(on_each_loop):
    async def work():
        async with world(versions=(2,)) as made:
            reader, writer = await made.connect()
            writer.write(encode_header_v1(V1Flags.KEEPALIVE))
            assert await reader.read() == b"error 06"
            assert made.sessions[0].payloads == []
            writer.close()

    on_each_loop(work())


def test_a_connection_over_the_limit_is_refused(on_each_loop):
    async def work():
        async with world(connections_max=1) as made:
            first = await made.connect()
            first[1].write(frame(b"a"))
            await (await made.session()).received(1)
            reader, writer = await made.connect()
            writer.write(frame(b"b"))
            assert await reader.read() == b"error 32"
            assert made.sessions[1].payloads == []
            writer.close()
            first[1].close()

    on_each_loop(work())


def test_a_session_without_space_is_fed_again(on_each_loop):
    payloads = [bytes([number]) * 1000 for number in range(200)]

    async def work():
        async with world(space=3) as made:
            _, writer = await made.connect()
            writer.write(b"".join(map(frame, payloads)))
            session = await made.session()
            for count in range(3, 200, 50):
                assert len(await session.received(count)) == count
                session.space = 50
                session.connection.resume()
            assert await session.received(200) == payloads
            writer.close()

    on_each_loop(work())


def test_a_slow_reader_is_not_read_and_then_disconnected(on_each_loop):
    bounds = ConnectionLimits(stall_s=0.3, outbox_size=64 * KIB)

    async def work():
        async with world(bounds) as made:
            slow = socket.create_connection(made.address)
            slow.sendall(frame(b"a"))
            session = await made.session()
            session.connection.write(bytes(32 * MIB))
            assert session.connection.unsent_size > 64 * KIB
            slow.sendall(frame(b"unread"))
            await session.is_lost.wait()
            assert session.payloads == [b"a"]
            assert made.listener.counts["stalled"] == 1
            slow.close()

    on_each_loop(work())


def test_a_reader_that_resumes_is_read_again(on_each_loop):
    async def work():
        async with world(ConnectionLimits(outbox_size=64 * KIB)) as made:
            reader, writer = await made.connect()
            writer.write(frame(b"a"))
            session = await made.session()
            session.connection.write(bytes(16 * MIB))
            writer.write(frame(b"b"))
            assert len(await reader.readexactly(16 * MIB)) == 16 * MIB
            assert await session.received(2) == [b"a", b"b"]
            assert session.connection.unsent_size == 0
            writer.close()

    on_each_loop(work())


@pytest.mark.parametrize(("start", "answer"), [(frame(b"a") + frame(b"bcd")[:46], b"error 0a"), (b"LAN", b"")])
def test_an_incomplete_frame_closes_the_connection_in_time(on_each_loop, start, answer):
    """INV-CONNECTION-ENDS."""

    async def work():
        async with world(QUICK) as made:
            reader, writer = await made.connect()
            writer.write(start)
            assert await reader.read() == answer
            assert made.listener.counts["too_slow"] == 1
            writer.close()

    on_each_loop(work())


def test_a_silent_peer_is_pinged_and_then_disconnected(on_each_loop):
    async def work():
        async with world(keepalive_s=0.05, idle_s=0.3) as made:
            reader, writer = await made.connect()
            writer.write(frame(b"a"))
            answer = await reader.read()
            assert answer.startswith(b"ping")
            assert answer == b"ping" * made.sessions[0].silences
            assert made.listener.counts["idle"] == 1
            writer.close()

    on_each_loop(work())


def test_files_are_sent_in_order_with_other_bytes(on_each_loop, tmp_path):
    content = os.urandom(24 * MIB)
    path = tmp_path / "file"
    path.write_bytes(content)
    released, failed = [], []

    async def work():
        async with world() as made:
            reader, writer = await made.connect()
            writer.write(frame(b"a"))
            connection = (await made.session()).connection
            with path.open("rb") as file:
                connection.write(b"before")
                connection.send_file(FilePiece(file.fileno(), 5, 20 * MIB, partial(released.append, 1), failed.append))
                connection.write(b"between")
                connection.send_file(FilePiece(file.fileno(), 0, 3, partial(released.append, 2), failed.append))
                connection.write(b"after")
                connection.finish(b"end")
                wanted = b"before" + content[5 : 5 + 20 * MIB] + b"between" + content[:3] + b"afterend"
                assert await reader.read() == wanted
                assert released == [1, 2]
                connection.send_file(FilePiece(file.fileno(), 0, 3, partial(released.append, 3), failed.append))
            assert released == [1, 2, 3]
            writer.close()

    on_each_loop(work())


def test_a_file_that_is_too_short_closes_the_connection(on_each_loop, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    released, failed = [], []

    async def work():
        async with world() as made:
            reader, writer = await made.connect()
            writer.write(frame(b"a"))
            session = await made.session()
            with path.open("rb") as file:
                session.connection.send_file(
                    FilePiece(file.fileno(), 0, 10, partial(released.append, 1), failed.append)
                )
                session.connection.send_file(FilePiece(file.fileno(), 0, 2, partial(released.append, 2), failed.append))
                await session.is_lost.wait()
            assert released == [1, 2]
            assert failed == [3]
            assert await read_to_the_end(reader) in (b"abc", b"")
            writer.close()

    on_each_loop(work())


async def read_to_the_end(reader):
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def test_a_peer_that_keeps_sending_after_the_end_is_cut_off(on_each_loop):
    bounds = ConnectionLimits(linger_s=30.0, linger_size=64 * KIB)

    async def work():
        async with world(bounds) as made:
            reader, writer = await made.connect()
            writer.write(b"GET / HTTP/1.1\r\n" * 100_000)
            assert await read_to_the_end(reader) == b""
            while made.listener.connections:
                await asyncio.sleep(0)
            assert made.listener.counts == {ErrorCode.BAD_MAGIC.name.lower(): 1}
            writer.close()

    on_each_loop(work())
