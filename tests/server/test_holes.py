"""What is missing of a client's order 5, and what was refused of it, must stop nobody: over real sockets."""

import asyncio

from lwp2_peer import SMALL, world

from seawall.core.types import ClientId
from seawall.engine.serving import served_log
from seawall.kernels.ordering import holding
from seawall.limits import BLOCK_SIZE_MAX, MIB, RECORD_HEADER_SIZE
from seawall.server.connection.context import ServerSettings
from seawall.wire.format.codes import AckStatus, ErrorCode, HelloFlags, SessionStatus
from seawall.wire.lwp2.session import Hello

OK, REJECTED, RETRY = int(AckStatus.OK), int(AckStatus.REJECTED), int(AckStatus.RETRY)
WIDE = ServerSettings(window_bytes=64 * MIB)
#: The largest value that a batch can have.
LARGEST = BLOCK_SIZE_MAX - RECORD_HEADER_SIZE
PATIENCE_S = 60


async def firsts(log, topic="events"):
    """The first letter of each value that is stored, in order."""
    found = []
    while batches := await log.read(topic, len(found) + 1):
        found += [record.value[:1] for batch in batches for record in batch]
    return b"".join(found)


def statuses(rows):
    return [(row["client_seq"], row["status"]) for row in rows]


def test_a_held_batch_does_not_stop_others(on_loop, tmp_path):
    """It goes back when the ring needs its bytes, although nothing more comes of its client."""

    async def work():
        async with world(tmp_path, WIDE, order=5) as made, asyncio.timeout(PATIENCE_S):
            holed, other = await made.peer(7), await made.peer(8)
            holed.send(holed.batch(1, b"2", seq=2))
            for _ in range(48):
                other.send(other.batch(1, b"o" + bytes(MIB)))
                await other.writer.drain()
            assert {row["status"] for row in await other.acks(48)} == {OK}
            assert statuses(await holed.acks(1)) == [(2, RETRY)]
            assert (await holed.publish(1, b"1", seq=1))["status"] == OK
            assert (await holed.publish(1, b"2", seq=2))["status"] == OK
            assert await firsts(made.log) == b"o" * 48 + b"12"
            for peer in (holed, other):
                peer.close()

    on_loop(work())


def test_a_window_that_is_full_of_what_waits_is_no_sign_of_life(on_loop, tmp_path):
    """Its connection is not read from, so neither what is missing nor the end of the peer can come over it."""

    async def work():
        async with world(tmp_path, order=5) as made, asyncio.timeout(PATIENCE_S):
            (worker,) = made.log._orderer.sequencer.workers
            worker._state[holding.SILENCE_NS] = 50_000_000
            peer = await made.peer(window_batches=2)
            assert set(made.log.live_clients()) == {7}
            for seq in (2, 3):
                peer.send(peer.batch(1, b"%d" % seq, seq=seq))
            peer.writer.write_eof()
            # What is missing is given up, and then the end is heard.
            assert statuses(await peer.acks(2)) == [(2, OK), (3, OK)]
            await peer.ended()
            skip, *stored = await made.log.read("events")
            assert (skip.first_client_seq, skip.skip_count) == (1, 1)
            assert [record.value for batch in stored for record in batch] == [b"2", b"3"]

    on_loop(work())


def test_a_window_with_room_is_a_sign_of_life(on_loop, tmp_path, monkeypatch):
    # Who lives is asked much more often than a silence may last.
    monkeypatch.setattr(served_log, "_STEP_S", 0.02)

    async def work():
        async with world(tmp_path, order=5) as made, asyncio.timeout(PATIENCE_S):
            (worker,) = made.log._orderer.sequencer.workers
            worker._state[holding.SILENCE_NS] = 1_000_000_000
            loop, is_late, asked = asyncio.get_running_loop(), asyncio.Event(), []
            living = made.log.live_clients

            def ask():
                asked.append(loop.time())
                if asked[-1] - asked[0] > 1.2:
                    is_late.set()
                return living()

            made.log.live_clients = ask
            peer = await made.peer(window_batches=2)
            peer.send(peer.batch(1, b"2", seq=2))
            await is_late.wait()
            peer.send(peer.batch(1, b"1", seq=1))
            assert statuses(await peer.acks(2)) == [(1, OK), (2, OK)]
            assert await firsts(made.log) == b"12"
            peer.close()

    on_loop(work())


def test_the_largest_missing_batch_finds_room_among_what_waits_for_it(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, WIDE, order=5) as made, asyncio.timeout(PATIENCE_S):
            early, late = await made.peer(7), await made.connect()
            await late.hello(7, flags=HelloFlags.JOIN, session_epoch=1)
            assert late.welcome.status is SessionStatus.JOINED
            values = {seq: b"%c" % (64 + seq) + bytes(MIB) for seq in range(2, 26)}
            for seq, value in values.items():
                early.send(early.batch(1, value, seq=seq))
                await early.writer.drain()
            while made.log._orderer.held < len(values):
                await asyncio.sleep(0.001)
            # Nothing is under way but this: answers to what goes back are sent for their own sake.
            late.send(late.batch(1, b"A" + bytes(LARGEST - 1), seq=1))
            (first,) = await late.acks(1)
            assert (first["client_seq"], first["status"], first["base_seq"]) == (1, OK, 1)
            # The ring has 32 MiB: 16 of them are written over, a fifth is kept for what comes, the rest stays.
            back = statuses(await early.acks(23))
            assert back == [(seq, RETRY) for seq in range(2, 25)]
            for seq, _ in back:
                late.send(late.batch(1, values[seq], seq=seq))
            assert {row["status"] for row in await late.acks(23)} == {OK}
            # It had its turn in time, or is in the way of those before it too.
            ((seq, status),) = statuses(await early.acks(1))
            assert (seq, status == OK or (await late.publish(1, values[25], seq=25))["status"] == OK) == (25, True)
            assert await firsts(made.log) == bytes(range(65, 65 + 25))
            for peer in (early, late):
                peer.close()

    on_loop(work())


def refused_batches(peer):
    """Batches that are refused on arrival, each for its own reason, with the reason."""
    return [
        (peer.batch(9, b"no topic"), ErrorCode.TOPIC_NOT_FOUND),
        (peer.batch(1, b"x", order=2), ErrorCode.NOT_ALLOWED_BY_TOPIC),
        (peer.batch(1, b"x", record_count=2), ErrorCode.INVALID_PAYLOAD),
        (peer.batch(1), ErrorCode.INVALID_PAYLOAD),
    ]


def test_what_is_refused_on_arrival_uses_its_number(on_loop, tmp_path):
    """So no later batch waits for it; a repetition is refused for the same reason, also after a restart."""

    async def work():
        async with world(tmp_path, order=5) as made, asyncio.timeout(PATIENCE_S):
            peer = await made.peer(7)
            assert (await peer.publish(1, b"1"))["status"] == OK
            batches = refused_batches(peer)
            peer.send(b"".join(each for each, _ in batches) + peer.batch(1, b"6"))
            rows = await peer.acks(5)
            assert statuses(rows) == [(2, REJECTED), (3, REJECTED), (4, REJECTED), (5, REJECTED), (6, OK)]
            assert [row["reason"] for row in rows[:4]] == [reason for _, reason in batches]
            assert {row["level"] for row in rows[:4]} == {1}
            assert peer.through == 6
            again = await peer.publish(1, b"another", seq=4)
            assert (again["status"], again["reason"]) == (REJECTED, ErrorCode.PAYLOAD_MISMATCH)
            peer.send(batches[0][0])
            (again,) = await peer.acks(1)
            assert (again["status"], again["reason"]) == (REJECTED, ErrorCode.TOPIC_NOT_FOUND)
            assert await firsts(made.log) == b"16"
            peer.close()
        async with world(tmp_path, order=5) as made, asyncio.timeout(PATIENCE_S):
            peer = await made.peer(7)
            assert (peer.welcome.status, peer.welcome.next_seq) == (SessionStatus.RESUMED, 7)
            assert (await peer.publish(1, b"7"))["status"] == OK
            assert await firsts(made.log) == b"167"
            peer.close()

    on_loop(work())


def test_a_batch_too_large_for_the_ring_uses_its_number(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, WIDE, order=5, store=SMALL) as made, asyncio.timeout(PATIENCE_S):
            peer = await made.peer(7)
            blog_size = made.log.ring._blog.size
            made.log.ring._blog = made.log.ring._blog[: MIB // 2]
            peer.send(peer.batch(1, bytes(MIB)) + peer.batch(1, b"2"))
            rows = await peer.acks(2)
            assert statuses(rows) == [(1, REJECTED), (2, OK)]
            assert rows[0]["reason"] == ErrorCode.PAYLOAD_TOO_LARGE
            assert blog_size > MIB
            peer.close()

    on_loop(work())


def test_a_refusal_ahead_of_its_turn_is_told_at_once_and_its_number_is_passed_over(on_loop, tmp_path):
    """INV-INGEST-THROUGH."""

    async def work():
        async with world(tmp_path, order=5) as made, asyncio.timeout(PATIENCE_S):
            peer = await made.peer(7)
            peer.send(peer.batch(1, b"4", seq=4) + peer.batch(9, b"x", seq=3) + peer.batch(1, b"2", seq=2))
            assert statuses(await peer.acks(1)) == [(3, REJECTED)]
            assert peer.through == 1
            peer.send(peer.batch(1, b"1", seq=1))
            assert statuses(await peer.acks(3)) == [(1, OK), (2, OK), (4, OK)]
            assert await firsts(made.log) == b"124"
            peer.close()

    on_loop(work())


def test_a_connection_that_ends_while_it_waits_for_room_makes_way(on_loop, tmp_path):
    """Connections that wait for room stand in a queue: those behind one that is gone try again."""

    async def work():
        async with world(tmp_path) as made, asyncio.timeout(PATIENCE_S):
            first = await made.peer(7)
            (waiting,) = made.listener.connections
            other = await made.peer(8)
            ring = made.log.ring
            # Somebody stands before them, for whom there is no room.
            ring._queue[999] = None
            for count, peer in enumerate((first, other), 2):
                peer.send(peer.batch(1, b"x"))
                while len(ring._queue) < count:
                    await asyncio.sleep(0)
            del ring._queue[999]
            waiting.abort()
            assert statuses(await other.acks(1)) == [(1, OK)]
            assert not ring._queue
            first.close()
            other.close()

    on_loop(work())


def test_a_hello_whose_peer_has_gone_opens_no_session(on_loop, tmp_path):
    """A client that lost patience says HELLO again elsewhere: what it said before must not fence it."""

    async def work():
        async with world(tmp_path) as made, asyncio.timeout(PATIENCE_S):
            peer = await made.peer(7)
            for _ in range(20):
                gone = await made.connect()
                gone.ask(Hello(flags=HelloFlags.OPEN, client_id=ClientId(7)))
                gone.close()
                while len(made.listener.connections) > 1:
                    await asyncio.sleep(0)
            state = await made.log.session_of(ClientId(7))
            assert state.session_epoch == peer.welcome.session_epoch
            assert (await peer.publish(1, b"x"))["status"] == OK
            peer.close()

    on_loop(work())
