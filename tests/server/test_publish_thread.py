"""The publish thread: it receives, commits and answers small batches of many connections together.

Publishers and readers see the same as with an event loop, and a connection returns to its loop for everything else.
"""

import asyncio
import os
import socket
import struct
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from lwp2_peer import SMALL, world
from watched import accepted_socket, make_wal_unwritable

import seawall
from seawall.config import Config
from seawall.core.types import TopicId
from seawall.kernels.network import publish_cycle
from seawall.limits import KIB, MIB
from seawall.server.connection.context import ServerSettings
from seawall.server.connection.session import ConnectionLimits
from seawall.server.lwp2 import session as lwp2_session
from seawall.server.publish import publish_thread
from seawall.wire.format.codes import AckStatus, Codec, ErrorCode, Features, Kind, ReadBy
from seawall.wire.format.gaps import Gap
from seawall.wire.lwp2.frames import encode_ping, encode_pong
from seawall.wire.lwp2.reading import Bounds, BoundsReply, Fetch
from seawall.wire.lwp2.session import Error, Goodbye

OK, DUPLICATE, REJECTED, UNKNOWN = (int(AckStatus[name]) for name in ("OK", "DUPLICATE", "REJECTED", "UNKNOWN"))


@pytest.fixture(autouse=True)
def attach_soon(monkeypatch):
    """Connections are attached after their first batch."""
    monkeypatch.setattr(lwp2_session, "_ATTACH_AFTER", 1)


async def until(is_so):
    while not is_so():
        await asyncio.sleep(0.001)


@asynccontextmanager
async def attaching(path, **named):
    """A server, and a peer whose connection is attached."""
    async with world(path, **named) as made:
        peer = await made.peer()
        assert (await peer.publish(1, b"0"))["base_seq"] == 1
        await made.publish_thread.until(1)
        yield made, peer
        peer.close()


async def values(log, topic="events"):
    return [record.value for batch in await log.read(topic) for record in batch]


@pytest.mark.parametrize(("order", "durability"), [(1, "disk"), (2, "fsync"), (5, "fsync")])
def test_batches_are_stored_acked_and_read(on_each_loop, tmp_path, order, durability):
    async def work():
        async with attaching(tmp_path, order=order, durability=durability) as (made, peer):
            for number in range(1, 30):
                row = await peer.publish(1, b"%d" % number)
                assert (row["status"], row["level"], row["base_seq"]) == (OK, 2, number + 1)
                assert (row["client_seq"], row["topic_id"], row["record_count"], row["run"]) == (number + 1, 1, 1, 1)
                assert peer.through == number + 1
            assert await values(made.log) == [b"%d" % number for number in range(30)]
        return made.log.commits

    commits = on_each_loop(work())
    assert sum(commits) > 20
    with seawall.open(tmp_path / "data") as log:
        batches = log.read("events")
        assert [record.value for batch in batches for record in batch] == [b"%d" % number for number in range(30)]
        positions = [batch.position for batch in batches]
        assert positions == list(range(positions[0], positions[0] + 30))
        assert log.verify().is_sound


def test_many_connections_share_commits(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peers = [await made.peer(100 + number) for number in range(40)]

            for each in range(15):
                for number, peer in enumerate(peers):
                    peer.send(peer.batch(1, b"%d/%d" % (number, each)))
                for peer in peers:
                    assert [row["status"] for row in await peer.acks(1)] == [OK]
            found = await values(made.log)
            for number in range(40):
                own = [value for value in found if value.startswith(b"%d/" % number)]
                assert own == [b"%d/%d" % (number, each) for each in range(15)]
            for peer in peers:
                peer.close()
        return made.log.commits

    commits = on_loop(work())
    assert sum(commits) > max(450, commits.cycles)


@pytest.mark.parametrize("features", [0, Features.ACK_RUNS])
def test_many_batches_at_once_share_an_ack(on_loop, tmp_path, features):
    async def work():
        async with world(tmp_path, topics=("events", "others")) as made:
            peer = await made.peer(features=features)
            for _ in range(2):
                await peer.publish(1, b"x")
                await peer.publish(2, b"x")
            await made.publish_thread.until(1)
            batches = [peer.batch(1 + (number > 300), b"%d" % number) for number in range(600)]
            # This one is not answered.
            batches[100] = peer.batch(1, b"100", seq=105, ack_level=0)
            peer.send(b"".join(batches))
            rows = await peer.acks(599)
            assert {row["status"] for row in rows} == {OK}
            assert (len(rows) < 50) == bool(features)
            assert peer.through == 604
            assert (await values(made.log))[2:] == [b"%d" % number for number in range(301)]
            assert (await values(made.log, "others"))[2:] == [b"%d" % number for number in range(301, 600)]
            peer.close()
        return made.log.commits

    commits = on_loop(work())
    assert max(commits) > 50


def test_bounds_include_the_committed_batches(on_loop, tmp_path):
    async def work():
        async with attaching(tmp_path) as (made, peer):
            for number in range(1, 8):
                row = await peer.publish(1, b"%d" % number)
                await made.publish_thread.until(1)
                peer.ask(Bounds(TopicId(1)))
                bounds = await peer.answer(BoundsReply)
                assert (bounds.end_seq, bounds.ordered_end_seq) == (number + 2, number + 2)
                assert bounds.end_position == row["position"] + 1
                peer.ask(Fetch(TopicId(1), ReadBy.LATEST, 0, 1000, 0))
                assert (await peer.answer()).prefix.next_seq == number + 2
                assert (await made.log.describe("events")).record_count == number + 1
        return made.log.commits

    commits = on_loop(work())
    assert any(commits)


def test_a_duplicate_is_detected_now_and_after_a_restart(on_loop, tmp_path):
    async def work():
        async with attaching(tmp_path) as (made, peer):
            first = await peer.publish(1, b"one")
            again = await peer.publish(1, b"one", seq=2)
            assert again == first | {"status": DUPLICATE}
            other = await peer.publish(1, b"other", seq=2)
            assert (other["status"], other["reason"]) == (REJECTED, 0x28)
            assert (await peer.publish(1, b"two"))["base_seq"] == 3
        assert any(made.log.commits)
        async with world(tmp_path) as made:
            peer = await made.peer()
            assert peer.welcome.next_seq == 4
            assert (await peer.publish(1, b"one", seq=2))["status"] == DUPLICATE
            assert (await peer.publish(1, b"three"))["base_seq"] == 4
            assert await values(made.log) == [b"0", b"one", b"two", b"three"]
            peer.close()

    on_loop(work())


def test_other_changes_are_ordered_in_between(on_loop, tmp_path):
    async def work():
        async with attaching(tmp_path, topics=("events", "others")) as (made, peer):
            expected = [b"0"]
            for number in range(1, 20):
                assert (await peer.publish(1, b"alone %d" % number))["status"] == OK
                expected.append(b"alone %d" % number)
                if number % 3 == 0:
                    peer.send(b"".join(peer.batch(1, b"%d of three" % each) for each in range(3)))
                    assert {row["status"] for row in await peer.acks(3)} == {OK}
                    expected += [b"%d of three" % each for each in range(3)]
                if number % 4 == 0:
                    await made.log.publish("events", b"local %d" % number)
                    expected.append(b"local %d" % number)
                if number % 5 == 0:
                    await made.log.commit("owner", "events", 1)
                    await made.log.create_topic(f"more-{number}")
                assert await values(made.log) == expected
        return made.log.commits

    commits = on_loop(work())
    assert sum(commits) > 8


def test_a_batch_ahead_of_its_client_seq_is_held_and_released(on_loop, tmp_path):
    async def work():
        async with attaching(tmp_path, order=5) as (made, peer):
            peer.send(peer.batch(1, b"three", seq=3))
            while not await made.log.ask(lambda store: store.orderer.held):
                await asyncio.sleep(0.001)
            other = await made.peer(8)
            for number in range(4):
                # Nothing is eligible for a cycle while something is held.
                assert (await other.publish(1, b"other %d" % number))["status"] == OK
            assert not any(made.log.commits)
            peer.send(peer.batch(1, b"two", seq=2))
            assert [row["client_seq"] for row in await peer.acks(2)] == [2, 3]
            others = [b"other %d" % number for number in range(4)]
            assert await values(made.log) == [b"0", *others, b"two", b"three"]
            for number in range(4, 8):
                assert (await peer.publish(1, b"%d" % number, seq=number))["status"] == OK
                await until(lambda: made.attachments)
            await until(lambda: any(made.log.commits))
            other.close()

    on_loop(work())


def test_a_client_seq_out_of_order_returns_the_connection_to_the_loop(on_loop, tmp_path):
    async def work():
        async with attaching(tmp_path) as (made, peer):
            peer.send(peer.batch(1, b"b", seq=3) + peer.batch(1, b"a", seq=2) + peer.batch(1, b"c", seq=4))
            assert {row["status"] for row in await peer.acks(3)} == {OK}
            assert peer.through == 4
            assert await values(made.log) == [b"0", b"b", b"a", b"c"]
        return made.log.commits

    commits = on_loop(work())
    assert not any(commits)


def test_more_batches_than_rows_and_entries_of_the_order_are_committed(on_loop, tmp_path):
    config = Config()
    config = replace(config, fabric=replace(config.fabric, goi_entries=512))

    async def work():
        async with attaching(tmp_path, config=config, durability="disk") as (made, peer):
            for number in range(1, 1_300):
                assert (await peer.publish(1, b"%d" % number))["base_seq"] == number + 1
            assert (await made.log.describe("events")).record_count == 1_300
            assert (await values(made.log))[-1] == b"1299"
            # The order was checkpointed in between, which a cycle cannot do.
            frontier = await made.log.ask(lambda store: store.orderer.sequencer.frontier)
            assert frontier.checkpoint_position > 500
        return made.log.commits

    commits = on_loop(work())
    assert sum(commits) > 1_000


def test_a_segment_that_is_full_is_rolled(on_loop, tmp_path):
    async def work():
        async with attaching(tmp_path, segment_max_records=10) as (made, peer):
            for number in range(1, 45):
                assert (await peer.publish(1, b"%d" % number))["base_seq"] == number + 1
            assert await values(made.log) == [b"%d" % number for number in range(45)]
        return made.log.commits

    commits = on_loop(work())
    assert sum(commits) > 15


def test_a_topic_without_a_reservation_delays_no_other(on_loop, tmp_path):
    """A capped topic needs the sequencer for every batch; batches of another one are committed meanwhile."""

    async def work():
        async with world(tmp_path) as made:
            await made.log.create_topic("capped", cap_records=3)
            plain, capped = await made.peer(7), await made.peer(8)

            async def publish(peer, topic_id):
                for number in range(60):
                    assert (await peer.publish(topic_id, b"%d" % number))["base_seq"] == number + 1

            await asyncio.gather(publish(plain, 1), publish(capped, 2))
            assert await values(made.log) == [b"%d" % number for number in range(60)]
            assert (await made.log.describe("capped")).record_count == 3
            plain.close()
            capped.close()
        return made.log.commits

    commits = on_loop(work())
    assert sum(commits) > 40


def test_a_small_log_is_checkpointed_between_cycles(on_loop, tmp_path):
    async def work():
        small = replace(SMALL, checkpoint_size=64 * KIB, wal_file_size=256 * KIB)
        async with attaching(tmp_path, store=small) as (made, peer):
            for number in range(1, 400):
                assert (await peer.publish(1, b"%d" % number * 100))["base_seq"] == number + 1
            assert len(await values(made.log)) == 400
        return made.log.commits

    commits = on_loop(work())
    assert sum(commits) > 250


# --- returns to the event loop --------------------------------------------------------------------------------------


def test_large_and_compressed_batches_and_requests_keep_their_order(on_each_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer(features=Features.LZ4)
            expected = []
            for number in range(6):
                parts = [b"%d" % number, b"l" * (100 * KIB) + b"%d" % number, b"c" * 100 + b"%d" % number, b"last"]
                await peer.publish(1, parts[0])
                await made.publish_thread.until(1)
                peer.send(
                    peer.batch(1, b"first")
                    + peer.batch(1, parts[1])
                    + encode_ping(number)
                    + peer.batch(1, parts[2], codec=Codec.LZ4)
                    + peer.batch(1, parts[3])
                )
                expected += [parts[0], b"first", *parts[1:]]
                pongs, rows = 0, 0
                while not pongs or rows < 4:
                    frame = await peer.frame()
                    if frame.header.kind == Kind.KEEPALIVE:
                        assert frame.header.id == number
                        pongs += 1
                    else:
                        rows += frame.header.record_count
            assert await values(made.log) == expected
            peer.close()
        return made.log.commits

    commits = on_each_loop(work())
    assert any(commits)


def test_batches_that_arrive_byte_by_byte(on_loop, tmp_path):
    async def work():
        async with attaching(tmp_path) as (made, peer):
            for number in range(1, 4):
                frame = peer.batch(1, b"%d" % number)
                for at in range(0, len(frame), 7):
                    peer.send(frame[at : at + 7])
                    await peer.until_received()
                assert [row["status"] for row in await peer.acks(1)] == [OK]
            # The end of one and the beginning of the next come together.
            frames = [peer.batch(1, b"%d" % number) for number in range(4, 40)]
            data = b"".join(frames)
            for at in range(0, len(data), len(frames[0]) + 13):
                peer.send(data[at : at + len(frames[0]) + 13])
                await peer.writer.drain()
            assert sum(row["run"] for row in await peer.acks(36)) == 36
            assert await values(made.log) == [b"%d" % number for number in range(40)]
        return made.log.commits

    commits = on_loop(work())
    assert sum(commits) > 30


def test_more_batches_arrive_slowly_than_there_are_tail_buffers(on_loop, tmp_path, monkeypatch):
    monkeypatch.setattr(publish_thread, "_TAILS", 2)

    async def work():
        async with world(tmp_path) as made:
            peers = [await made.peer(100 + number) for number in range(6)]
            for peer in peers:
                await peer.publish(1, b"0")
            await made.publish_thread.until(6)
            frames = [peer.batch(1, b"late") for peer in peers]
            for peer, frame in zip(peers, frames, strict=True):
                peer.send(frame[:50])
            await made.publish_thread.until(2)
            for peer, frame in zip(peers, frames, strict=True):
                peer.send(frame[50:])
                assert [row["status"] for row in await peer.acks(1)] == [OK]
            assert (await values(made.log)).count(b"late") == 6
            for peer in peers:
                peer.close()

    on_loop(work())


def test_a_slow_batch_returns_to_the_loop_which_enforces_timeouts(on_each_loop, tmp_path, monkeypatch):
    monkeypatch.setattr(publish_thread, "_SLOW_S", 0.01)
    bounds = ConnectionLimits(frame_time_s=0.1, frame_bytes_per_second=MIB)

    async def work():
        async with attaching(tmp_path, bounds=bounds) as (made, peer):
            peer.send(peer.batch(1, b"slow")[:30])
            await made.publish_thread.until(0)
            assert (await peer.answer(Error)).code == ErrorCode.TOO_SLOW
            assert made.listener.counts == {"too_slow": 1}
            assert await values(made.log) == [b"0"]

    on_each_loop(work())


def test_a_silent_peer_is_pinged(on_loop, tmp_path):
    settings = ServerSettings(keepalive_ms=200, idle_ms=60_000)

    async def work():
        async with attaching(tmp_path, settings=settings) as (made, peer):
            frame = await peer.frame()
            assert frame.header.kind == Kind.KEEPALIVE
            peer.send(encode_pong(frame.header.id))
            for number in range(1, 3):
                assert (await peer.publish(1, b"%d" % number))["base_seq"] == number + 1
            await made.publish_thread.until(1)

    on_loop(work())


@pytest.mark.parametrize("how", ["close", "half close", "reset"])
def test_a_connection_that_ends_is_detached(on_each_loop, tmp_path, how):
    async def work():
        async with attaching(tmp_path) as (made, peer):
            peer.send(peer.batch(1, b"last"))
            if how == "half close":
                peer.writer.write_eof()
                assert [row["status"] for row in await peer.acks(1)] == [OK]
                await peer.ended()
            else:
                await peer.acks(1)
                if how == "reset":
                    raw = peer.writer.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.close()
            await until(lambda: not made.listener.connections)
            assert not made.attachments
            assert await values(made.log) == [b"0", b"last"]

    on_each_loop(work())


def test_a_drain_sends_goodbye_and_answers_batches_in_flight(on_each_loop, tmp_path):
    async def work():
        async with attaching(tmp_path) as (made, peer):
            (connection,) = made.listener.connections
            connection.drain(500)
            assert (await peer.answer(Goodbye)).code == ErrorCode.SHUTTING_DOWN
            await peer.ended()
            await until(lambda: not made.listener.connections)

    on_each_loop(work())


def test_a_newer_session_ends_an_attached_one(on_loop, tmp_path):
    async def work():
        async with attaching(tmp_path) as (made, peer):
            newer = await made.peer()
            assert (await peer.answer(Error)).code == ErrorCode.FENCED
            await peer.ended()
            assert (await newer.publish(1, b"newer"))["base_seq"] == 2
            newer.close()

    on_loop(work())


def test_held_batches_wait_and_continue(on_each_loop, tmp_path):
    async def work():
        async with attaching(tmp_path) as (made, peer):
            ingest = made.context.ingest
            ingest.hold()
            await made.publish_thread.until(0)
            peer.send(peer.batch(1, b"held"))
            await until(lambda: ingest.waiting)
            assert await values(made.log) == [b"0"]
            ingest.release()
            assert [row["status"] for row in await peer.acks(1)] == [OK]
            await made.publish_thread.until(1)

    on_each_loop(work())


def test_a_connection_with_unsent_acks_is_returned_with_them(on_loop, tmp_path):
    async def work():
        async with attaching(tmp_path, durability="disk") as (made, peer):
            with accepted_socket(peer.writer.get_extra_info("sockname")) as accepted:
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            peer.writer.transport.pause_reading()
            sent = 0
            while made.attachments:
                peer.send(b"".join(peer.batch(1, b"x") for _ in range(300)))
                sent += 300
                while made.attachments and (await made.log.describe("events")).next_seq <= peer.seq:
                    await asyncio.sleep(0)
            peer.writer.transport.resume_reading()
            rows = await peer.acks(sent)
            assert [row["client_seq"] for row in rows] == list(range(2, sent + 2))
            assert {row["status"] for row in rows} == {OK}

    on_loop(work())


def test_a_write_that_fails_leaves_the_log_read_only(on_loop, tmp_path):
    failed = []

    async def work():
        async with attaching(tmp_path) as (made, peer):
            made.log.on_failed = lambda error: (made.context.ingest.fail(error), failed.append(error))
            other = await made.peer(8)
            await other.publish(1, b"1")
            await made.publish_thread.until(2)
            make_wal_unwritable(tmp_path / "data")
            peer.send(peer.batch(1, b"2"))
            assert (await peer.answer(Error)).code == ErrorCode.READ_ONLY
            (row,) = await peer.acks(1)
            assert (row["client_seq"], row["status"], row["reason"]) == (2, UNKNOWN, 0x64)
            # One that had nothing in flight.
            assert (await other.answer(Error)).code == ErrorCode.READ_ONLY
            assert made.log.is_refusing
            # What comes now is certainly not stored.
            row = await peer.publish(1, b"3")
            assert (row["client_seq"], row["status"], row["reason"]) == (3, REJECTED, 0x63)
            assert not made.attachments
            other.close()

    on_loop(work())
    assert "wal" in str(failed[0])
    with seawall.open(tmp_path / "data") as log:
        first, second, *rest = log.read("events")
        assert [record.value for batch in (first, second) for record in batch] == [b"0", b"1"]
        assert [item for item in rest if not isinstance(item, Gap)] == []


def test_the_loop_does_not_wait_for_the_disk(on_loop, tmp_path, monkeypatch):
    """A slow commit delays neither other connections nor readers."""
    run, is_slow, is_writing = publish_cycle.run_cycles, threading.Event(), threading.Event()

    def slow(*arguments):
        if is_slow.is_set():
            is_writing.set()
            os.read(gate[0], 1)
        return run(*arguments)

    gate = os.pipe()
    monkeypatch.setattr(publish_cycle, "run_cycles", slow)

    async def work():
        async with attaching(tmp_path) as (made, peer):
            other = await made.connect()
            await other.hello(0, flags=0)
            is_slow.set()
            peer.send(peer.batch(1, b"slow"))
            await asyncio.to_thread(is_writing.wait)
            for number in range(20):
                other.send(encode_ping(number))
                assert (await other.frame()).header.id == number
            assert await values(made.log) == [b"0"]
            is_slow.clear()
            os.write(gate[1], b"x")
            assert [row["status"] for row in await peer.acks(1)] == [OK]
            other.close()

    on_loop(work())
    for descriptor in gate:
        os.close(descriptor)


def test_closing_the_thread_returns_every_connection(on_each_loop, tmp_path):
    async def work():
        async with attaching(tmp_path) as (made, peer):
            await asyncio.to_thread(made.publish_thread.close)
            await made.publish_thread.until(0)
            for number in range(1, 6):
                assert (await peer.publish(1, b"%d" % number))["base_seq"] == number + 1
            assert not made.attachments

    on_each_loop(work())
