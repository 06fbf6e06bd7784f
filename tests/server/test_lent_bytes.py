"""Large batches of one publisher are received directly into the ring; the outcome is the same as without."""

import asyncio
import os

import pytest
from lwp2_peer import world
from watched import accepted_socket

from seawall.broker.ring import BrokerRing
from seawall.io.network.receiving import queued_size
from seawall.limits import KIB, MIB
from seawall.wire.format.codes import AckStatus, ErrorCode
from seawall.wire.lwp2.frames import encode_ping
from seawall.wire.lwp2.session import Error

OK, REJECTED = int(AckStatus.OK), int(AckStatus.REJECTED)
LARGE = 400 * KIB


@pytest.fixture
def loans(monkeypatch):
    """How often bytes of the ring were lent, and revoked before they were used."""
    made = {"lent": 0, "revoked": 0}
    lend = BrokerRing.lend

    def counted(ring, owner, size, revoke, *, at_hand=False):
        def revoked():
            made["revoked"] += 1
            revoke()

        lent = lend(ring, owner, size, revoked, at_hand=at_hand)
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


async def in_a_row(peer, count=6, size=LARGE):
    """Publish large batches one by one, so that bytes are lent for the next."""
    values = [os.urandom(size) for _ in range(count)]
    for value in values:
        assert (await peer.publish(1, value))["status"] == OK
    return values


def test_a_stream_of_large_batches(on_each_loop, tmp_path, loans):
    values = [os.urandom(1 * MIB) for _ in range(20)]

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            for value in values:
                peer.send(peer.batch(1, value))
            rows = await peer.acks(len(values))
            assert {row["status"] for row in rows} == {OK}
            assert await stored(made.log) == values
            peer.close()

    on_each_loop(work())
    assert loans["lent"] > 10
    assert not loans["revoked"]


def test_batches_may_arrive_in_two_pieces(on_each_loop, tmp_path, loans):
    pieces = (1, 43, 95, 100, 5_000, 300 * KIB, 399 * KIB) * 2

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            values = await in_a_row(peer)
            for piece in pieces:
                values.append(os.urandom(LARGE))
                data = peer.batch(1, values[-1])
                peer.send(data[:piece])
                await peer.until_received()
                peer.send(data[piece:])
                assert [row["status"] for row in await peer.acks(1)] == [OK]
            assert await stored(made.log) == values
            peer.close()

    on_each_loop(work())
    assert loans["lent"] >= len(pieces)


def test_the_next_frame_may_be_something_else(on_loop, tmp_path, loans):
    sizes = [LARGE, LARGE, LARGE // 2, 10, LARGE, 3 * LARGE, LARGE, 300 * KIB, 299 * KIB, 20, LARGE]

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            values = await in_a_row(peer)
            more = [os.urandom(size) for size in sizes * 2]
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


def test_another_publisher_revokes_the_loan_in_the_middle_of_a_batch(on_loop, tmp_path, loans):
    async def work():
        async with world(tmp_path) as made:
            peer, other = await made.peer(7), await made.peer(8)
            values = await in_a_row(peer)
            values += [b"other", os.urandom(LARGE)]
            data = peer.batch(1, values[-1])
            peer.send(data[: LARGE // 2])
            await peer.until_received()
            assert (await other.publish(1, b"other"))["status"] == OK
            peer.send(data[LARGE // 2 :])
            assert [row["status"] for row in await peer.acks(1)] == [OK]
            assert await stored(made.log) == values
            peer.close()
            other.close()

    on_loop(work())
    assert loans["revoked"] == 1


def test_a_connection_lost_in_the_middle_of_a_batch_leaves_nothing(on_loop, tmp_path, loans):
    async def work():
        async with world(tmp_path) as made:
            peer, other = await made.peer(7), await made.peer(8)
            values = await in_a_row(peer)
            data = peer.batch(1, os.urandom(LARGE))
            peer.send(data[:-1])
            await peer.until_received()
            peer.writer.transport.abort()
            while len(made.listener.connections) > 1:
                await asyncio.sleep(0)
            values += await in_a_row(other)
            assert await stored(made.log) == values
            other.close()

    on_loop(work())
    assert not loans["revoked"]


def test_damage_closes_the_connection(on_loop, tmp_path, loans):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            values = await in_a_row(peer)
            damaged = bytearray(peer.batch(1, os.urandom(LARGE)))
            damaged[1_000] ^= 1
            peer.send(bytes(damaged[:2_000]))
            await peer.until_received()
            assert loans["lent"]
            peer.send(bytes(damaged[2_000:]))
            assert (await peer.answer(Error)).code == ErrorCode.CRC_MISMATCH
            await peer.ended()
            again = await made.peer(9)
            values += await in_a_row(again)
            assert await stored(made.log) == values
            again.close()

    on_loop(work())


def test_a_refused_batch_leaves_its_bytes_to_the_next(on_loop, tmp_path, loans):
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


def test_a_batch_without_space_waits(on_loop, tmp_path):
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
    """None of them is alone: bytes are lent only for batches that have arrived completely."""
    values = {client: [bytes([client]) + os.urandom(1 * MIB) for _ in range(15)] for client in (7, 8, 9)}

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


def test_a_batch_without_space_is_not_received(on_loop, tmp_path):
    """It stays in the receive queue of the socket, and is received when there is space."""

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            values = await in_a_row(peer)
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
            assert [producer.client_id for producer in ingest.waiting] == [peer.welcome.client_id]
            # The server leaves all further bytes in the socket.
            with accepted_socket(peer.writer.get_extra_info("sockname")) as accepted:
                queued = queued_size(accepted.fileno())
                for _ in range(20):
                    await asyncio.sleep(0)
                assert 0 < queued <= queued_size(accepted.fileno())
            ingest.release()
            assert {row["status"] for row in await peer.acks(len(more))} == {OK}
            assert await stored(made.log) == values + more
            peer.close()

    on_loop(work())
