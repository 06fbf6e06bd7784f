"""Slow, large and rate-limited readers: they delay neither writers nor other readers."""

import asyncio
import os
import threading

import pytest
from lwp2_peer import Data, world
from v1_clients import PythonClient, record
from v1_server import serving

from seawall import limits
from seawall.core.types import TopicId
from seawall.limits import KIB, MIB
from seawall.server.connection.access import Access, Right
from seawall.server.read import cold_files
from seawall.server.read.read_rate import ReadRate
from seawall.testing.machine.clock import SimClock
from seawall.wire.format.codes import ReadBy, ReadFlags
from seawall.wire.lwp2.frames import encode_ping
from seawall.wire.lwp2.reading import Fetch
from seawall.wire.lwp2.subscriptions import CaughtUp, Subscribe, Subscribed

PLENTY = 1 << 40
RATE = 1 * MIB


def fetch(start=1, max_bytes=1 << 22, **named):
    return Fetch(TopicId(1), ReadBy.SEQ, start, max_bytes, 0, **named)


async def fill(made, count, size=900 * KIB):
    for _ in range(count):
        await made.log.publish("events", os.urandom(size))


@pytest.mark.parametrize("flags", [ReadFlags(0), ReadFlags.STORED_CODEC])
def test_a_reader_that_receives_nothing_delays_no_other(on_each_loop, tmp_path, flags):
    """It requests everything a thousand times and reads not one byte; its unsent answers are bounded."""

    async def work():
        async with world(tmp_path) as made:
            await fill(made, 30)
            slow = await made.peer(1)
            (connection,) = made.listener.connections
            slow.writer.transport.pause_reading()
            for number in range(limits.REQUESTS_MAX - 1):
                slow.ask(fetch(flags=flags), request_id=number)
            slow.ask(Subscribe(TopicId(1), ReadBy.EARLIEST, 0, PLENTY, PLENTY, flags), request_id=5_000)
            await slow.writer.drain()
            while not connection.is_full:
                await asyncio.sleep(0)
            writer, reader = await made.peer(2), await made.peer(3)
            for number in range(20):
                assert (await writer.publish(1, b"%d" % number))["base_seq"] == 31 + number
                reader.ask(fetch(31 + number))
                assert len((await reader.answer(Data)).batches) == 1
            # Its outbox, the responses that were read before it was full, and one of the subscription.
            bound = limits.OUTBOX_SIZE + (limits.FETCHES_AT_ONCE + 2) * (limits.FETCH_SIZE_MAX + MIB)
            assert connection.unsent_size <= bound
            for each in (slow, writer, reader):
                each.close()

    on_each_loop(work())


def test_a_reader_that_rereads_everything_delays_no_other(on_loop, tmp_path):
    """It reads everything again and again, as fast as it can, while others write and read."""

    async def work():
        async with world(tmp_path) as made:
            await fill(made, 30)
            huge, writer, reader = await made.peer(1), await made.peer(2), await made.peer(3)
            is_over = asyncio.Event()
            responses = 0

            async def read_on():
                nonlocal responses
                for number in range(16):
                    huge.ask(fetch(), request_id=number)
                while not is_over.is_set():
                    answer = await huge.answer(Data)
                    responses += 1
                    huge.ask(fetch(answer.prefix.next_seq % 30 + 1), request_id=responses)

            reading = asyncio.ensure_future(read_on())
            for number in range(30):
                assert (await writer.publish(1, b"%d" % number))["base_seq"] == 31 + number
                reader.ask(fetch(31 + number))
                assert len((await reader.answer(Data)).batches) == 1
            seen = responses
            while responses == seen:
                await asyncio.sleep(0)
            is_over.set()
            await reading
            for each in (huge, writer, reader):
                each.close()

    on_loop(work())


def test_uncached_files_are_read_by_reader_threads(on_loop, tmp_path, monkeypatch):
    async def work():
        names = []

        def load(*_range):
            names.append(threading.current_thread().name)

        monkeypatch.setattr(cold_files, "is_cached", lambda *_: False)
        monkeypatch.setattr(cold_files, "load_into_cache", load)
        async with world(tmp_path) as made:
            await fill(made, 3)
            peer = await made.peer(1)
            peer.ask(fetch(flags=ReadFlags.STORED_CODEC))
            assert len((await peer.answer(Data)).batches) == 3
            assert names
            assert all(name.startswith("seawall-reader") for name in names)
            peer.close()

    on_loop(work())


def test_a_file_stays_pinned_while_it_is_read_for_a_closed_connection(on_loop, tmp_path, monkeypatch):
    """INV-PINNED-OPEN."""

    async def work():
        is_reading, may_end, released = threading.Event(), threading.Event(), asyncio.Event()

        def load(*_range):
            is_reading.set()
            may_end.wait()

        monkeypatch.setattr(cold_files, "is_cached", lambda *_: False)
        monkeypatch.setattr(cold_files, "load_into_cache", load)
        async with world(tmp_path) as made:
            warming = asyncio.ensure_future(cold_files.warm_up(made.log, [(0, 0, 1)], released.set))
            await asyncio.to_thread(is_reading.wait)
            warming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await warming
            assert not released.is_set()
            may_end.set()
            await released.wait()

    on_loop(work())


# --- rates -----------------------------------------------------------------------------------------------------------


def test_sent_bytes_are_charged():
    clock = SimClock()
    rate = ReadRate(1000, clock)
    # The saved credit pays for the bytes of the first second, the next response is on credit.
    assert [rate.take(5000), rate.take(1), rate.take(999), rate.take(1)] == [1000, 1, 0, 0]
    clock.advance(1_000_000)
    assert rate.take(600) == 600
    # Fewer bytes than were charged, then more: one batch.
    rate.settle(600, 100)
    clock.advance(100_000_000)
    assert rate.take(1000) == 1000
    rate.settle(1000, 2500)
    clock.advance(2_499_000_000)
    assert rate.take(1) == 0
    clock.advance(1_000_000)
    assert rate.take(1) == 1
    # At most one second of credit accumulates.
    clock.advance(10**12)
    assert [rate.take(1000), rate.take(1000), rate.take(1)] == [1000, 1000, 0]


def test_a_wait_ends_when_it_is_no_longer_needed():
    async def work():
        rate = ReadRate(1, SimClock())
        rate.settle(0, 1 << 40)
        looks = iter((False, False, True))
        assert await rate.wait(1, lambda: next(looks)) == 0
        assert next(looks, None) is None

    asyncio.run(work())


def test_access_has_the_configured_rates():
    access = Access({"bulk": Right.ALL}, read_rate=RATE, read_rates={"bulk": RATE})
    assert access.rate_of("bulk") is access.rate_of("bulk") is not None
    assert access.rate_of("other") is None
    first, second = access.own_rate(), access.own_rate()
    assert (first.take(5 * RATE), second.take(5 * RATE)) == (RATE, RATE)
    assert Access().own_rate() is None


class TimedAccess(Access):
    """Access whose read rate follows a clock that the test advances: of each connection, or of one token."""

    def __init__(self, clock, token=None):
        super().__init__({} if token is None else {token: Right.ALL, "free": Right.ALL})
        self._clock, self._token = clock, token
        self._shared = ReadRate(RATE, clock)

    def own_rate(self):
        return ReadRate(RATE, self._clock) if self._token is None else None

    def rate_of(self, token):
        return self._shared if token == self._token else None


@pytest.fixture
def clock():
    return SimClock()


async def is_silent(peer):
    """Whether nothing arrived before the answer to a ping."""
    peer.send(encode_ping(999))
    return (await peer.frame()).header.id == 999


def test_fetches_keep_to_the_rate_and_the_connection_stays_open(on_loop, tmp_path, clock):
    async def work():
        async with world(tmp_path, access=TimedAccess(clock)) as made:
            await fill(made, 12)
            peer, other = await made.peer(1), await made.peer(2)
            for number in range(1, 5):
                peer.ask(fetch(3 * number), request_id=number)
            # Each has the bytes of one second at most. The first is on credit, which was saved before.
            for _ in range(2):
                assert len((await peer.answer(Data)).batches) == 1
            assert await is_silent(peer)
            # Every connection has its own rate.
            other.ask(fetch(2))
            await other.answer(Data)
            clock.advance(2 * 10**9)
            assert len((await peer.answer(Data)).batches) == 1
            for each in (peer, other):
                each.close()

    on_loop(work())


def test_pushes_keep_to_the_rate(on_loop, tmp_path, clock):
    async def work():
        async with world(tmp_path, access=TimedAccess(clock)) as made:
            await fill(made, 4)
            peer = await made.peer(1)
            peer.ask(Subscribe(TopicId(1), ReadBy.EARLIEST, 0, PLENTY, PLENTY, 0), request_id=2)
            await peer.answer(Subscribed)
            seqs = [(await peer.answer(Data)).prefix.first_seq for _ in range(2)]
            assert await is_silent(peer)
            while len(seqs) < 4:
                clock.advance(10**9)
                seqs.append((await peer.answer(Data)).prefix.first_seq)
            assert seqs == [1, 2, 3, 4]
            clock.advance(10**9)
            await peer.answer(CaughtUp)
            peer.close()

    on_loop(work())


def test_connections_with_one_token_share_its_rate(on_loop, tmp_path, clock):
    async def work():
        async with world(tmp_path, access=TimedAccess(clock, "bulk")) as made:
            await fill(made, 6)
            first, second, free = [await made.connect() for _ in range(3)]
            for number, (peer, token) in enumerate(((first, "bulk"), (second, "bulk"), (free, "free")), 1):
                await peer.hello(number, token=token)
            for peer in (first, second):
                peer.ask(fetch(1))
                await peer.answer(Data)
            first.ask(fetch(2))
            assert await is_silent(first)
            free.ask(fetch(1))
            assert len((await free.answer(Data)).batches) > 1
            clock.advance(2 * 10**9)
            await first.answer(Data)
            for each in (first, second, free):
                each.close()

    on_loop(work())


def test_a_drain_does_not_wait_for_a_rate(on_loop, tmp_path, clock):
    async def work():
        async with world(tmp_path, access=TimedAccess(clock)) as made:
            await fill(made, 4)
            peer = await made.peer(1)
            peer.ask(Subscribe(TopicId(1), ReadBy.EARLIEST, 0, PLENTY, PLENTY, 0), request_id=2)
            for number in (3, 4, 5):
                peer.ask(fetch(1), request_id=number)
            await peer.answer(Subscribed)
            for _ in range(2):
                await peer.answer(Data)
            assert await is_silent(peer)
            (connection,) = made.listener.connections
            connection.drain(1000)
            frames = []
            while (frame := await peer.frame()) is not None:
                frames.append(frame.header.id)
            assert {3, 4, 5} & set(frames)
            peer.close()

    on_loop(work())


def test_version_1_gets_an_empty_answer_over_the_rate(on_loop, tmp_path, clock):
    async def work():
        async with serving(tmp_path, access=TimedAccess(clock)) as made:
            client = await PythonClient.connect(made.address)
            topic = await client.create("events")
            await client.publish(topic, *(record(os.urandom(400 * KIB)) for _ in range(8)))
            at, sizes = 0, []
            for _ in range(3):
                at, _, data = await client.fetch(topic, at, 16 * MIB)
                sizes.append(len(data))
            unit = 400 * KIB + 5
            assert sizes == [2 * unit, 2 * unit, 0]
            assert at == 4 * unit
            assert made.service.counts["read_rate"] == 1
            clock.advance(10**9)
            at, _, data = await client.fetch(topic, at, 16 * MIB)
            assert len(data) == 2 * unit
            await client.close()

    on_loop(work())
