"""Publishing under idempotency keys in version 2: stored once, refused without closing, and bounded like batches."""

import asyncio
import errno

import pytest
from lwp2_peer import Data, world

from seawall import limits
from seawall.core.types import TopicId
from seawall.io.disk import files
from seawall.limits import MIB
from seawall.server.connection.access import Access, Right
from seawall.server.connection.context import ServerSettings
from seawall.wire.format.codes import POSITION_UNKNOWN, Command, ErrorCode, Features, HelloFlags, ReadBy
from seawall.wire.format.records import encode_raw
from seawall.wire.lwp2.frames import encode_control, encode_ping
from seawall.wire.lwp2.keyed import PublishedKeyed, PublishKeyed
from seawall.wire.lwp2.reading import Fetch
from seawall.wire.lwp2.session import Error, Welcome

KEYS = int(Features.IDEMPOTENCY_KEYS)


def keyed(key, *values, topic_id=1):
    return PublishKeyed(TopicId(topic_id), len(values), key, b"".join(map(encode_raw, values)))


async def publish_keyed(peer, key, *values, topic_id=1):
    """Publish records under a key; the answer."""
    peer.ask(keyed(key, *values, topic_id=topic_id))
    return await peer.answer(PublishedKeyed)


async def without_session(made, **named):
    """A peer without a session."""
    peer = await made.connect()
    assert isinstance(await peer.hello(0, flags=HelloFlags.NONE, features=KEYS, **named), Welcome)
    return peer


async def values_of(log, topic="events"):
    return [record.value for batch in await log.read(topic) for record in batch]


@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_a_key_is_stored_once_and_its_location_is_reported(on_loop, tmp_path, order):
    async def work():
        async with world(tmp_path, order=order) as made:
            peer, other = await without_session(made), await made.peer()
            assert peer.welcome.features == KEYS
            await other.publish(1, b"before")
            first = await publish_keyed(peer, b"order-17", b"a", b"b")
            assert (first.first_seq, first.last_seq, first.is_repeated) == (2, 3, False)
            assert 0 < first.position < POSITION_UNKNOWN
            # Over another connection, with a session, and with other records.
            again = await publish_keyed(other, b"order-17", b"c")
            assert (again.first_seq, again.last_seq, again.is_repeated) == (2, 3, True)
            assert again.position == POSITION_UNKNOWN
            assert again.timestamp_ns // 1_000_000 == first.timestamp_ns // 1_000_000
            assert (await publish_keyed(peer, b"", b"d")).first_seq == 4
            assert (await publish_keyed(peer, b"", b"d")).is_repeated
            assert await values_of(made.log) == [b"before", b"a", b"b", b"d"]
            peer.close()
            other.close()

    on_loop(work())


def test_concurrent_requests_with_one_key_store_one_record(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await without_session(made)
            frames = [encode_control(keyed(b"k", b"%d" % number), request_id=number) for number in range(50)]
            peer.send(b"".join(frames))
            answers = [await peer.answer(PublishedKeyed) for _ in range(50)]
            assert {answer.first_seq for answer in answers} == {1}
            assert sum(not answer.is_repeated for answer in answers) == 1
            assert len(await values_of(made.log)) == 1
            peer.close()

    on_loop(work())


def test_connections_and_the_process_share_keys(on_loop, tmp_path):
    """Connections and this process publish under the same keys."""

    async def work():
        async with world(tmp_path) as made:
            peer = await without_session(made)
            assert (await made.log.publish("events", b"here", idempotency_key="schlüssel")).first_seq == 1
            assert (await publish_keyed(peer, "schlüssel".encode(), b"there")).is_repeated
            assert (await publish_keyed(peer, b"other", b"there")).first_seq == 2
            assert (await made.log.publish("events", b"here", idempotency_key=b"other")).is_duplicate
            peer.close()

    on_loop(work())


def test_a_key_survives_a_restart(on_loop, tmp_path):
    async def work():
        for number in range(3):
            async with world(tmp_path) as made:
                peer = await without_session(made)
                found = await publish_keyed(peer, b"k", b"%d" % number)
                assert (found.first_seq, found.is_repeated) == (1, number > 0)
                assert await values_of(made.log) == [b"0"]
                peer.close()

    on_loop(work())


def test_the_largest_request_is_stored(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await without_session(made)
            value = bytes(16 * MIB - 16 - 1 - 5)
            for is_repeated in (False, True):
                found = await publish_keyed(peer, b"k", value)
                assert (found.first_seq, found.is_repeated) == (1, is_repeated)
            assert made.log.topic_named("events").live_bytes == len(value) + 5
            peer.close()

    on_loop(work())


def test_large_requests_alternate_with_large_batches(on_loop, tmp_path):
    """Bytes of the ring are lent for the next large batch, and something else arrives."""

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            for number in range(3):
                assert (await peer.publish(1, b"%d" % number * MIB))["base_seq"] == 2 * number + 1
                assert (await publish_keyed(peer, b"%d" % number, b"k" * (MIB + number))).first_seq == 2 * number + 2
            for number in range(3):
                assert (await publish_keyed(peer, b"%d" % number, b"k" * (MIB + number))).first_seq == 2 * number + 2
            sizes = [len(value) for value in await values_of(made.log)]
            assert sizes == [size for number in range(3) for size in (MIB, MIB + number)]
            peer.close()

    on_loop(work())


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (PublishKeyed(TopicId(1), 1, b"k", b"\1\xff\0\0\0bad"), ErrorCode.INVALID_PAYLOAD, "does not end inside"),
        (PublishKeyed(TopicId(1), 1, b"k", b"\0\0\0\0\0"), ErrorCode.INVALID_PAYLOAD, "only servers write"),
        (PublishKeyed(TopicId(1), 1, b"k", b"\1\0\0\0\0" * 65_537), ErrorCode.INVALID_PAYLOAD, "more than 65536"),
        (PublishKeyed(TopicId(1), 3, b"k", b"\1\0\0\0\0" * 2), ErrorCode.INVALID_PAYLOAD, "2 records where"),
        (keyed(b"k", b"x", topic_id=9), ErrorCode.TOPIC_NOT_FOUND, "no topic 9"),
    ],
)
def test_a_refused_request_keeps_the_connection_and_leaves_the_key_free(on_loop, tmp_path, request_, code, text):
    async def work():
        async with world(tmp_path) as made:
            peer = await without_session(made)
            peer.ask(request_, request_id=5)
            frame = await peer.frame()
            assert frame.header.id == 5
            peer.frames.insert(0, frame)
            error = await peer.answer(Error)
            assert (error.code, error.closes) == (code, False)
            assert text in error.text
            assert await values_of(made.log) == []
            assert not (await publish_keyed(peer, b"k", b"sound")).is_repeated
            peer.close()

    on_loop(work())


def test_a_write_only_token_may_publish_and_an_unknown_peer_may_not(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, access=Access({"writer": Right.WRITE_ONLY})) as made:
            stranger = await made.connect()
            error = await stranger.hello(0, flags=HelloFlags.NONE)
            assert error.code == ErrorCode.AUTHENTICATION_REQUIRED
            stranger.ask(keyed(b"k", b"x"))
            error = await stranger.answer(Error)
            assert (error.code, error.closes) == (ErrorCode.WRONG_STATE, True)
            await stranger.ended()
            writer = await without_session(made, token="writer")
            assert (await publish_keyed(writer, b"k", b"x")).first_seq == 1
            writer.ask(Fetch(TopicId(1), ReadBy.SEQ, 1, 1000, 0))
            assert (await writer.answer(Error)).code == ErrorCode.ACCESS_DENIED
            assert (await publish_keyed(writer, b"k", b"x")).is_repeated
            writer.close()

    on_loop(work())


def test_a_full_topic_and_a_full_disk_refuse_temporarily(on_loop, tmp_path, monkeypatch):
    def full(_descriptor, _length):
        raise OSError(errno.ENOSPC, "no space")

    async def work():
        async with world(tmp_path, cap_records=2, discard="reject") as made:
            peer = await without_session(made)
            with monkeypatch.context() as patch:
                patch.setattr(files, "reserve_space", full)
                peer.ask(keyed(b"large", bytes(8 * MIB)))
                error = await peer.answer(Error)
                assert (error.code, error.closes) == (ErrorCode.BACKPRESSURE, False)
                assert "disk" in error.text
            assert not (await publish_keyed(peer, b"large", bytes(8 * MIB))).is_repeated
            await publish_keyed(peer, b"last", b"x")
            peer.ask(keyed(b"more", b"x"))
            assert (await peer.answer(Error)).code == ErrorCode.BACKPRESSURE
            # A key that is stored is answered although the topic is full.
            assert (await publish_keyed(peer, b"last", b"x")).first_seq == 2
            peer.close()

    on_loop(work())


class Gate:
    """Holds back publishes under keys in front of the log, and counts them."""

    def __init__(self, log, monkeypatch):
        self._publish = log.publish_keyed
        self._open = asyncio.Event()
        self._arrived = asyncio.Condition()
        self.waiting = 0
        monkeypatch.setattr(log, "publish_keyed", self._wait)

    async def _wait(self, *arguments):
        async with self._arrived:
            self.waiting += 1
            self._arrived.notify_all()
        await self._open.wait()
        self.waiting -= 1
        return await self._publish(*arguments)

    def open(self):
        self._open.set()

    async def holds(self, count):
        """Wait until so many wait, and check that no more arrive for a while."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.waiting >= count)
        # No event says that no more will arrive.
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert self.waiting == count


@pytest.mark.parametrize(
    ("settings", "under_way"),
    [(ServerSettings(window_batches=2), 2), (ServerSettings(window_bytes=250), 3), (ServerSettings(), 5)],
)
def test_a_full_window_stops_reading_and_loses_nothing(on_each_loop, tmp_path, monkeypatch, settings, under_way):
    """INV-INGEST-WINDOW."""

    async def work():
        async with world(tmp_path, settings) as made:
            gate = Gate(made.log, monkeypatch)
            peer, other = await without_session(made), await made.peer(8)
            sent = [keyed(b"%d" % number, b"%d" % number + bytes(90)) for number in range(5)]
            peer.send(b"".join(encode_control(each, request_id=number) for number, each in enumerate(sent)))
            peer.send(encode_ping(77))
            await gate.holds(under_way)
            # No other connection is delayed.
            assert (await other.publish(1, b"other"))["base_seq"] == 1
            gate.open()
            frames = [await peer.frame() for _ in range(6)]
            assert sorted(frame.header.id for frame in frames) == [*range(5), 77]
            assert len(await values_of(made.log)) == 6
            peer.close()
            other.close()

    on_each_loop(work())


def test_a_request_over_the_limit_uses_no_window_space(on_loop, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "REQUESTS_MAX", 1)

    async def work():
        async with world(tmp_path, ServerSettings(window_batches=1)) as made:
            peer = await without_session(made)
            peer.ask(Fetch(TopicId(1), ReadBy.LATEST, 0, 1000, 0, wait_ms=30_000))
            for _ in range(3):
                peer.ask(keyed(b"k", b"x"))
                assert (await peer.answer(Error)).code == ErrorCode.LIMIT
            await made.log.publish("events", b"new")
            await peer.answer(Data)
            assert (await publish_keyed(peer, b"k", b"x")).first_seq == 2
            peer.close()

    on_loop(work())


def test_requests_that_wait_for_the_window_are_not_over_the_limit(on_loop, tmp_path, monkeypatch):
    """Answered requests free space for others before the loop has ended their tasks."""
    monkeypatch.setattr(limits, "REQUESTS_MAX", 2)

    async def work():
        async with world(tmp_path, ServerSettings(window_batches=2)) as made:
            gate = Gate(made.log, monkeypatch)
            peer = await without_session(made)
            sent = [keyed(b"%d" % number, b"%d" % number) for number in range(7)]
            peer.send(b"".join(encode_control(each, request_id=number) for number, each in enumerate(sent)))
            await gate.holds(2)
            gate.open()
            frames = [await peer.frame() for _ in sent]
            assert {frame.header.command for frame in frames} == {Command.PUBLISHED_KEYED}
            assert sorted(frame.header.id for frame in frames) == [*range(7)]
            peer.close()

    on_loop(work())


def test_requests_are_held_while_memory_is_short_but_not_forever(on_loop, tmp_path, monkeypatch):
    """INV-PRESSURE-NOTHING-LOST."""

    async def work():
        async with world(tmp_path) as made:
            ingest = made.context.ingest
            gate = Gate(made.log, monkeypatch)
            gate.open()
            peer = await without_session(made)
            ingest.hold()
            for number in range(3):
                peer.ask(keyed(b"%d" % number, b"x"), request_id=number)
            await gate.holds(0)
            assert await values_of(made.log) == []
            ingest.release()
            assert [(await peer.frame()).header.id for _ in range(3)] == [0, 1, 2]
            ingest.hold()
            monkeypatch.setattr(limits, "PRESSURE_HOLD_S", 0.01)
            for number in range(3, 6):
                assert (await publish_keyed(peer, b"%d" % number, b"x")).first_seq == number + 1
            assert ingest.is_held
            peer.close()

    on_loop(work())


def test_an_unanswered_request_is_answered_under_its_key_later(on_loop, tmp_path, monkeypatch):
    async def work():
        async with world(tmp_path) as made:
            peer, other = await without_session(made), await without_session(made)
            real, stored = made.log.publish_keyed, asyncio.Event()

            async def publish_and_lose(*arguments):
                found = await real(*arguments)
                stored.set()
                await asyncio.Event().wait()
                return found

            with monkeypatch.context() as patch:
                patch.setattr(made.log, "publish_keyed", publish_and_lose)
                peer.ask(keyed(b"k", b"x"))
                await stored.wait()
                peer.close()
            assert (await publish_keyed(other, b"k", b"x")).is_repeated
            assert await values_of(made.log) == [b"x"]
            other.close()

    on_loop(work())
