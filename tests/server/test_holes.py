"""Order 5 over real sockets: missing and refused batches of one client do not stop other clients."""

import asyncio

from lwp2_peer import world

from seawall.config import Config, FabricConfig
from seawall.core.types import ClientId
from seawall.engine.serving import served_log
from seawall.kernels.ordering import holding
from seawall.limits import BLOCK_SIZE_MAX, FABRIC_BLOG_SIZE, MIB, RECORD_HEADER_SIZE
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


def set_silence(store, silence_ns):
    """Shorten the silence after which the sequencer skips a gap, which no setting of a server changes."""
    (worker,) = store.orderer.sequencer.workers
    worker._state[holding.SILENCE_NS] = silence_ns


def statuses(rows):
    return [(row["client_seq"], row["status"]) for row in rows]


def test_a_held_batch_does_not_stop_others(on_loop, tmp_path):
    """It is returned when the ring needs its bytes, although its client sends nothing more."""

    async def work():
        async with world(tmp_path, WIDE, order=5) as made, asyncio.timeout(PATIENCE_S):
            gapped, other = await made.peer(7), await made.peer(8)
            gapped.send(gapped.batch(1, b"2", seq=2))
            for _ in range(48):
                other.send(other.batch(1, b"o" + bytes(MIB)))
                await other.writer.drain()
            assert {row["status"] for row in await other.acks(48)} == {OK}
            assert statuses(await gapped.acks(1)) == [(2, RETRY)]
            assert (await gapped.publish(1, b"1", seq=1))["status"] == OK
            assert (await gapped.publish(1, b"2", seq=2))["status"] == OK
            assert await firsts(made.log) == b"o" * 48 + b"12"
            for peer in (gapped, other):
                peer.close()

    on_loop(work())


def test_a_window_full_of_held_batches_is_no_sign_of_life(on_loop, tmp_path):
    """Its connection is not read, so neither the missing batch nor EOF can arrive over it."""

    async def work():
        async with world(tmp_path, order=5) as made, asyncio.timeout(PATIENCE_S):
            await made.log.ask(lambda store: set_silence(store, 50_000_000))
            peer = await made.peer(window_batches=2)
            assert set(made.log.live_clients()) == {7}
            for seq in (2, 3):
                peer.send(peer.batch(1, b"%d" % seq, seq=seq))
            peer.writer.write_eof()
            # The missing batch is skipped, and then EOF is read.
            assert statuses(await peer.acks(2)) == [(2, OK), (3, OK)]
            await peer.ended()
            skip, *stored = await made.log.read("events")
            assert (skip.first_client_seq, skip.skip_count) == (1, 1)
            assert [record.value for batch in stored for record in batch] == [b"2", b"3"]

    on_loop(work())


def test_a_window_with_space_is_a_sign_of_life(on_loop, tmp_path, monkeypatch):
    # Live clients are reported much more often than a silence may last.
    monkeypatch.setattr(served_log, "_STEP_S", 0.02)

    async def work():
        async with world(tmp_path, order=5) as made, asyncio.timeout(PATIENCE_S):
            await made.log.ask(lambda store: set_silence(store, 300_000_000))
            loop, is_late, asked = asyncio.get_running_loop(), asyncio.Event(), []
            living = made.log.live_clients

            def ask():
                asked.append(loop.time())
                if asked[-1] - asked[0] > 0.4:
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


def test_the_largest_missing_batch_gets_the_space_of_batches_that_wait_for_it(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, WIDE, order=5) as made, asyncio.timeout(PATIENCE_S):
            early, late = await made.peer(7), await made.connect()
            await late.hello(7, flags=HelloFlags.JOIN, session_epoch=1)
            assert late.welcome.status is SessionStatus.JOINED
            values = {seq: b"%c" % (64 + seq) + bytes(MIB) for seq in range(2, 26)}
            for seq, value in values.items():
                early.send(early.batch(1, value, seq=seq))
                await early.writer.drain()
            while await made.log.ask(lambda store: store.orderer.held) < len(values):
                await asyncio.sleep(0.001)
            # Nothing else is in flight: the answers to returned batches are sent on their own.
            late.send(late.batch(1, b"A" + bytes(LARGEST - 1), seq=1))
            (first,) = await late.acks(1)
            assert (first["client_seq"], first["status"], first["base_seq"]) == (1, OK, 1)
            # The ring has 32 MiB: 16 of them are overwritten, a fifth is kept free, the rest stays.
            back = statuses(await early.acks(23))
            assert back == [(seq, RETRY) for seq in range(2, 25)]
            for seq, _ in back:
                late.send(late.batch(1, values[seq], seq=seq))
            assert {row["status"] for row in await late.acks(23)} == {OK}
            # The last one was ordered in time, or was returned for the space of those before it.
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


def test_a_batch_refused_on_arrival_uses_its_client_seq(on_loop, tmp_path):
    """So no later batch waits for it; a duplicate is refused for the same reason, also after a restart."""

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


def test_a_batch_too_large_for_the_ring_uses_its_client_seq(on_loop, tmp_path):
    async def work():
        config = Config(fabric=FabricConfig(blog_size=MIB // 2))
        async with world(tmp_path, WIDE, order=5, config=config) as made, asyncio.timeout(PATIENCE_S):
            peer = await made.peer(7)
            peer.send(peer.batch(1, bytes(MIB)) + peer.batch(1, b"2"))
            rows = await peer.acks(2)
            assert statuses(rows) == [(1, REJECTED), (2, OK)]
            assert rows[0]["reason"] == ErrorCode.PAYLOAD_TOO_LARGE
            peer.close()

    on_loop(work())


def test_a_refusal_ahead_of_its_client_seq_is_answered_at_once_and_skipped(on_loop, tmp_path):
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


def test_a_connection_that_closes_while_it_waits_for_space_leaves_the_queue(on_loop, tmp_path):
    """Connections wait for space in a queue: those behind one that is closed try again."""

    async def work():
        async with world(tmp_path, order=5) as made, asyncio.timeout(PATIENCE_S):
            first = await made.peer(7)
            (waiting,) = made.listener.connections
            other, holding_peer = await made.peer(8), await made.peer(9)
            holding_peer.send(holding_peer.batch(1, b"2", seq=2))
            while not made.log.ring.claimed:
                await asyncio.sleep(0)
            # Another owner is first in the queue: it wants the whole ring, which has a held batch.
            assert not made.log.ring.has_space(999, FABRIC_BLOG_SIZE)
            for count, peer in enumerate((first, other), 1):
                peer.send(peer.batch(1, b"x"))
                while len(made.context.ingest.waiting) < count:
                    await asyncio.sleep(0)
            assert made.log.ring.leave(999)
            waiting.abort()
            assert statuses(await other.acks(1)) == [(1, OK)]
            assert not made.context.ingest.waiting
            for peer in (first, other, holding_peer):
                peer.close()

    on_loop(work())


def test_a_hello_whose_peer_has_disconnected_opens_no_session(on_loop, tmp_path):
    """A client that timed out sends HELLO again on a new connection: its first HELLO must not fence it."""

    async def work():
        async with world(tmp_path) as made, asyncio.timeout(PATIENCE_S):
            peer = await made.peer(7)
            for _ in range(8):
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
