"""Large batches of one publisher are received where they are to lie in the ring; nobody can tell, whatever comes."""

import asyncio
import os

import pytest
from lwp2_peer import world

from seawall.broker.ring import BrokerRing
from seawall.limits import KIB, MIB
from seawall.wire.format.codes import AckStatus, ErrorCode
from seawall.wire.lwp2.frames import encode_ping
from seawall.wire.lwp2.session import Error

OK, REJECTED = int(AckStatus.OK), int(AckStatus.REJECTED)
LARGE = 400 * KIB


@pytest.fixture
def loans(monkeypatch):
    """Bytes that were lent, and how often they were taken back before they were used."""
    made = {"lent": 0, "taken back": 0}
    lend = BrokerRing.lend

    def counted(ring, owner, size, take_back, *, at_hand=False):
        def taken_back():
            made["taken back"] += 1
            take_back()

        lent = lend(ring, owner, size, taken_back, at_hand=at_hand)
        made["lent"] += lent is not None
        return lent

    monkeypatch.setattr(BrokerRing, "lend", counted)
    return made


async def stored(log, topic="events"):
    """All values, however many reads they take."""
    found, seq = [], 1
    while batches := await log.read(topic, from_seq=seq, max_bytes=8 * MIB):
        for batch in batches:
            found += [record.value for record in batch]
        seq = len(found) + 1
    return found


async def has_come(made, size):
    """Wait until so many bytes of a batch lie in what is lent."""
    while not any(each._incoming._is_lent and each._incoming._own_end == size for each in made.listener.connections):
        await asyncio.sleep(0)


async def in_a_row(peer, count=6, size=LARGE):
    """Large batches one by one, so that bytes are lent for the next."""
    values = [os.urandom(size) for _ in range(count)]
    for value in values:
        assert (await peer.publish(1, value))["status"] == OK
    return values


def test_a_stream_of_large_batches(on_loop, tmp_path, loans):
    values = [os.urandom(1 * MIB) for _ in range(40)]

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            for value in values:
                peer.send(peer.batch(1, value))
            rows = await peer.acks(len(values))
            assert {row["status"] for row in rows} == {OK}
            assert await stored(made.log) == values
            peer.close()

    on_loop(work())
    assert loans["lent"] > 10
    assert not loans["taken back"]


@pytest.mark.parametrize("piece", [1, 43, 95, 100, 5_000, 300 * KIB, 399 * KIB])
def test_batches_in_two_pieces(on_loop, tmp_path, loans, piece):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            values = await in_a_row(peer)
            for _ in range(3):
                values.append(os.urandom(LARGE))
                data = peer.batch(1, values[-1])
                peer.send(data[:piece])
                await has_come(made, piece)
                peer.send(data[piece:])
                assert [row["status"] for row in await peer.acks(1)] == [OK]
            assert await stored(made.log) == values
            peer.close()

    on_loop(work())
    assert loans["lent"] >= 3


def test_what_comes_may_be_something_else(on_loop, tmp_path, loans):
    sizes = [LARGE, LARGE, LARGE // 2, 10, LARGE, 3 * LARGE, LARGE, 300 * KIB, 299 * KIB, 20, LARGE]

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            values = await in_a_row(peer)
            more = [os.urandom(size) for size in sizes * 3]
            data = b"".join(peer.batch(1, value) + encode_ping(number) for number, value in enumerate(more))
            for first in range(0, len(data), 123_457):
                peer.send(data[first : first + 123_457])
                await peer.writer.drain()
            answered = 0
            while answered < len(more):
                frame = await peer.frame()
                answered = max(answered, frame.header.id - len(values) if frame.header.kind == 8 else 0)
            assert await stored(made.log) == values + more
            peer.close()

    on_loop(work())
    assert loans["lent"] > 5


def test_others_publish_in_the_middle_of_a_batch(on_loop, tmp_path, loans):
    async def work():
        async with world(tmp_path) as made:
            peer, other = await made.peer(7), await made.peer(8)
            values = await in_a_row(peer)
            values += [b"other", os.urandom(LARGE)]
            data = peer.batch(1, values[-1])
            peer.send(data[: LARGE // 2])
            await has_come(made, LARGE // 2)
            assert (await other.publish(1, b"other"))["status"] == OK
            peer.send(data[LARGE // 2 :])
            assert [row["status"] for row in await peer.acks(1)] == [OK]
            assert await stored(made.log) == values
            peer.close()
            other.close()

    on_loop(work())
    assert loans["taken back"] == 1


def test_a_connection_that_is_lost_in_the_middle_leaves_nothing(on_loop, tmp_path, loans):
    async def work():
        async with world(tmp_path) as made:
            peer, other = await made.peer(7), await made.peer(8)
            values = await in_a_row(peer)
            data = peer.batch(1, os.urandom(LARGE))
            peer.send(data[:-1])
            await has_come(made, len(data) - 1)
            peer.writer.transport.abort()
            while len(made.listener.connections) > 1:
                await asyncio.sleep(0)
            values += await in_a_row(other)
            assert await stored(made.log) == values
            other.close()

    on_loop(work())
    assert not loans["taken back"]


def test_damage_ends_the_connection(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            values = await in_a_row(peer)
            damaged = bytearray(peer.batch(1, os.urandom(LARGE)))
            damaged[1_000] ^= 1
            peer.send(bytes(damaged[:2_000]))
            await has_come(made, 2_000)
            peer.send(bytes(damaged[2_000:]))
            assert (await peer.answer(Error)).code == ErrorCode.CRC_MISMATCH
            await peer.ended()
            again = await made.peer(9)
            values += await in_a_row(again)
            assert await stored(made.log) == values
            again.close()

    on_loop(work())


def test_what_is_refused_leaves_its_place_to_the_next(on_loop, tmp_path, loans):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            values = await in_a_row(peer)
            for _ in range(3):
                row = await peer.publish(9, os.urandom(LARGE))
                assert (row["status"], row["reason"]) == (REJECTED, ErrorCode.TOPIC_NOT_FOUND)
                values += await in_a_row(peer, 1)
            assert await stored(made.log) == values
            peer.close()

    on_loop(work())
    assert loans["lent"] >= 4


def test_what_has_no_room_waits(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            values = await in_a_row(peer)
            made.context.ingest.hold()
            more = [os.urandom(LARGE) for _ in range(4)]
            peer.send(b"".join(peer.batch(1, value) for value in more))
            while not made.context.ingest.waiting:
                await asyncio.sleep(0)
            made.context.ingest.release()
            assert {row["status"] for row in await peer.acks(4)} == {OK}
            assert await stored(made.log) == values + more
            peer.close()

    on_loop(work())


def test_several_publishers_of_large_batches(on_loop, tmp_path, loans):
    """None of them is alone: bytes are lent for what has come as a whole."""
    values = {client: [bytes([client]) + os.urandom(1 * MIB) for _ in range(30)] for client in (7, 8, 9)}

    async def send(peer, own):
        for value in own:
            peer.send(peer.batch(1, value))
            await peer.writer.drain()
        assert {row["status"] for row in await peer.acks(len(own))} == {OK}

    async def work():
        async with world(tmp_path) as made:
            peers = [await made.peer(client) for client in values]
            await asyncio.gather(*(send(peer, own) for peer, own in zip(peers, values.values(), strict=True)))
            found = await stored(made.log)
            assert {client: [value for value in found if value[0] == client] for client in values} == values
            for peer in peers:
                peer.close()

    on_loop(work())
    assert loans["lent"] > 10


def test_what_there_is_no_room_for_is_not_received(on_loop, tmp_path):
    """It stays in the system's memory, nothing of it is in this process, and it is taken when there is room."""

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            values = await in_a_row(peer)
            (connection,) = made.listener.connections
            ingest, refused = made.context.ingest, asyncio.Event()
            has_space_for = ingest.has_space_for

            def asked(producer, size):
                if not refused.is_set():
                    ingest.hold()
                has_space = has_space_for(producer, size)
                assert has_space is refused.is_set()
                refused.set()
                return has_space

            ingest.has_space_for = asked
            more = [os.urandom(LARGE) for _ in range(24)]
            peer.send(b"".join(peer.batch(1, value) for value in more))
            await refused.wait()
            assert [producer.session for producer in ingest.waiting] == [connection._session]
            assert not connection._is_reading
            assert (connection._incoming._own, connection._incoming._rest.size) == (None, 0)
            assert connection._queued() > 0
            ingest.release()
            assert {row["status"] for row in await peer.acks(len(more))} == {OK}
            assert await stored(made.log) == values + more
            peer.close()

    on_loop(work())
