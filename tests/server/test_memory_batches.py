"""Large batches for topics of class ephemeral: kept in memory, acked, read, evicted, and checked for duplicates."""

import os

import pytest
from lwp2_peer import world

from seawall.limits import KIB, MIB
from seawall.wire.format.codes import AckStatus, ErrorCode
from seawall.wire.format.gaps import Gap
from seawall.wire.lwp2.session import Error, Goodbye

OK, DUPLICATE, REJECTED = int(AckStatus.OK), int(AckStatus.DUPLICATE), int(AckStatus.REJECTED)
LARGE = 600 * KIB


def served(path, **named):
    return world(path, durability="ephemeral", **named)


async def stored(log, topic="events", from_seq=1):
    """All values, however many reads they take."""
    found, seq = [], from_seq
    while batches := await log.read(topic, from_seq=seq, max_bytes=8 * MIB):
        for batch in batches:
            seq = batch.last_seq + 1
            if not isinstance(batch, Gap):
                found += [record.value for record in batch]
    return found


async def in_a_row(peer, count, size=LARGE, topic=1):
    """Publish large batches, one after the other is acked."""
    values = [os.urandom(size) for _ in range(count)]
    for value in values:
        assert (await peer.publish(topic, value))["status"] == OK
    return values


@pytest.mark.parametrize(("order", "level"), [(1, 0xFF), (2, 1), (5, 2)])
def test_a_stream_of_batches_is_kept_acked_and_read(on_loop, tmp_path, order, level):
    values = [os.urandom(1 * MIB + number) for number in range(20)]

    async def work():
        async with served(tmp_path, order=order) as made:
            peer = await made.peer()
            for value in values:
                peer.send(peer.batch(1, value, ack_level=level))
            rows = await peer.acks(len(values))
            assert [row["client_seq"] for row in rows] == list(range(1, 21))
            assert [row["base_seq"] for row in rows] == list(range(1, 21))
            assert {(row["status"], row["level"]) for row in rows} == {(OK, 1 if level == 1 else 2)}
            positions = [row["position"] for row in rows]
            assert positions == list(range(positions[0], positions[0] + 20))
            assert peer.through == 20
            assert await stored(made.log) == values
            peer.close()

    on_loop(work())


def test_batches_may_arrive_in_two_pieces(on_each_loop, tmp_path):
    async def work():
        async with served(tmp_path) as made:
            peer = await made.peer()
            values = await in_a_row(peer, 3)
            for piece in (1, 43, 95, 100, 5_000, 300 * KIB, 599 * KIB) * 2:
                value = os.urandom(LARGE)
                frame = peer.batch(1, value)
                peer.send(frame[:piece])
                await peer.until_received()
                peer.send(frame[piece:])
                (row,) = await peer.acks(1)
                assert row["status"] == OK
                values.append(value)
            assert await stored(made.log) == values
            peer.close()

    on_each_loop(work())


def test_a_batch_is_readable_as_soon_as_it_is_acked(on_loop, tmp_path):
    async def work():
        async with served(tmp_path) as made:
            peer = await made.peer()
            for number in range(1, 20):
                (value,) = await in_a_row(peer, 1)
                assert await stored(made.log, from_seq=number) == [value]
                described = await made.log.describe("events")
                assert (described.record_count, described.next_seq) == (number, number + 1)
            peer.close()

    on_loop(work())


def test_a_duplicate_is_detected_now_and_after_a_restart(on_loop, tmp_path):
    value = os.urandom(LARGE)

    async def work():
        async with served(tmp_path) as made:
            peer = await made.peer()
            await in_a_row(peer, 3)
            first = await peer.publish(1, value)
            assert await peer.publish(1, value, seq=4) == first | {"status": DUPLICATE}
            other = await peer.publish(1, os.urandom(LARGE), seq=4)
            assert (other["status"], other["reason"]) == (REJECTED, 0x28)
            peer.close()
        async with served(tmp_path) as made:
            peer = await made.peer()
            assert peer.welcome.next_seq == 5
            assert (await peer.publish(1, value, seq=4))["status"] == DUPLICATE
            # Records in memory are lost with their process, and their seqs are not used again.
            assert (await peer.publish(1, b"next"))["base_seq"] == 5
            assert await stored(made.log) == [b"next"]
            peer.close()

    on_loop(work())


def test_a_topic_keeps_to_its_caps(on_loop, tmp_path):
    settings = {"cap_bytes": 8 * MIB, "segment_max_bytes": 1 * MIB}

    async def work():
        async with served(tmp_path, **settings) as made:
            peer = await made.peer()
            values = []
            for _ in range(4):
                values += await in_a_row(peer, 10)
                described = await made.log.describe("events")
                assert described.byte_count <= 8 * MIB
                found = await stored(made.log, from_seq=described.floor)
                assert found == values[-len(found) :]
                assert found == values or len(found) * LARGE > 6 * MIB
            peer.close()
            # What is evicted takes no memory any more.
            assert await made.log.ask(lambda store: sum(len(log.sealed) for log in store.parts.logs)) < 10

    on_loop(work())


@pytest.mark.parametrize("settings", [{"cap_bytes": 2 * MIB}, {"cap_records": 4}])
def test_batches_that_are_large_for_a_cap_are_evicted_to_keep_it(on_loop, tmp_path, settings):
    async def work():
        async with served(tmp_path, **settings) as made:
            peer = await made.peer()
            values = await in_a_row(peer, 9)
            described = await made.log.describe("events")
            assert described.byte_count <= 2.5 * MIB
            found = await stored(made.log, from_seq=described.floor)
            assert found == values[-len(found) :]
            peer.close()

    on_loop(work())


def test_a_full_topic_that_rejects_new_batches_does(on_loop, tmp_path):
    async def work():
        async with served(tmp_path, cap_bytes=2 * MIB, discard="reject") as made:
            peer = await made.peer()
            rows = [await peer.publish(1, os.urandom(LARGE)) for _ in range(8)]
            assert [row["status"] for row in rows] == [OK] * 3 + [REJECTED] * 5
            peer.close()

    on_loop(work())


def test_large_and_small_batches_alternate(on_loop, tmp_path):
    async def work():
        async with served(tmp_path, topics=("events", "others")) as made:
            peer, other = await made.peer(), await made.peer(8)
            expected, elsewhere = [], []
            for number in range(15):
                expected += await in_a_row(peer, 2)
                if number % 2 == 0:
                    assert (await peer.publish(1, b"small"))["status"] == OK
                    expected.append(b"small")
                if number % 3 == 0:
                    await made.log.publish("events", b"local")
                    expected.append(b"local")
                if number % 4 == 0:
                    elsewhere += await in_a_row(other, 2, topic=2)
                if number % 5 == 0:
                    values = [os.urandom(LARGE) for _ in range(3)]
                    peer.send(b"".join(peer.batch(1, value) for value in values))
                    await peer.acks(3)
                    expected += values
                if number % 6 == 0:
                    await made.log.commit("owner", "events", 1)
                    await made.log.create_topic(f"more-{number}")
                if number % 7 == 0:
                    await made.log.change(lambda store: store.maintenance.checkpoint())
            assert await stored(made.log) == expected
            assert await stored(made.log, "others") == elsewhere
            for each in (peer, other):
                each.close()

    on_loop(work())


def test_batches_of_two_peers_that_arrive_in_alternate_pieces_do_not_mix(on_loop, tmp_path):
    async def work():
        async with served(tmp_path) as made:
            peers = [await made.peer(client) for client in (7, 8)]
            total = []
            for number in range(6):
                first, second = peers if number % 2 else reversed(peers)
                values = [os.urandom(LARGE) for _ in peers]
                frames = [peer.batch(1, value) for peer, value in zip((first, second), values, strict=True)]
                total += await in_a_row(first, 2)
                first.send(frames[0][:100_000])
                await first.until_received()
                total += await in_a_row(second, 2)
                second.send(frames[1][:200_000])
                await second.until_received()
                first.send(frames[0][100_000:])
                assert (await first.acks(1))[0]["status"] == OK
                second.send(frames[1][200_000:])
                assert (await second.acks(1))[0]["status"] == OK
                total += values
            assert sorted(await stored(made.log)) == sorted(total)
            for peer in peers:
                peer.close()

    on_loop(work())


def test_damage_is_detected_and_nothing_is_stored(on_loop, tmp_path):
    async def work():
        async with served(tmp_path) as made:
            peer = await made.peer()
            values = await in_a_row(peer, 4)
            frame = bytearray(peer.batch(1, os.urandom(LARGE)))
            frame[-1] ^= 1
            peer.send(bytes(frame))
            error = await peer.answer(Error)
            assert error.code == ErrorCode.CRC_MISMATCH
            await peer.ended()
            assert await stored(made.log) == values
            again = await made.peer(8)
            values += await in_a_row(again, 4)
            assert await stored(made.log) == values
            again.close()

    on_loop(work())


@pytest.mark.parametrize("how", ["goodbye", "end"])
def test_batches_in_flight_are_answered_before_a_connection_closes(on_loop, tmp_path, how):
    async def work():
        async with served(tmp_path) as made:
            peer = await made.peer()
            await in_a_row(peer, 4)
            last = b"".join(peer.batch(1, os.urandom(LARGE)) for _ in range(3))
            if how == "goodbye":
                peer.send(last)
                peer.ask(Goodbye(0, 0))
            else:
                peer.send(last)
                peer.writer.write_eof()
            assert {row["status"] for row in await peer.acks(3)} == {OK}
            assert len(await stored(made.log)) == 7
            peer.close()

    on_loop(work())


def test_nothing_is_evicted_for_a_refused_batch(on_loop, tmp_path):
    async def work():
        async with served(tmp_path, cap_records=1_000) as made:
            peer = await made.peer()
            await in_a_row(peer, 4)
            for changed in ({"record_count": 1_000_000}, {"session_epoch": 99}):
                assert (await peer.publish(1, os.urandom(LARGE), **changed))["status"] == REJECTED
            described = await made.log.describe("events")
            assert (described.floor, described.record_count) == (1, 4)
            peer.close()

    on_loop(work())


def test_a_deleted_topic_refuses_batches(on_loop, tmp_path):
    async def work():
        async with served(tmp_path) as made:
            peer = await made.peer()
            await in_a_row(peer, 4)
            await made.log.delete_topic("events")
            assert (await peer.publish(1, os.urandom(LARGE)))["status"] == REJECTED
            await made.log.create_topic("again", durability="ephemeral")
            values = await in_a_row(peer, 6, topic=2)
            assert await stored(made.log, "again") == values
            peer.close()

    on_loop(work())
