"""Batches that come alone pass the rings of the pod by: nobody who reads, repeats or recovers can tell."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from lwp2_peer import SMALL, world

import seawall
from seawall.config import Config
from seawall.core.types import TopicId
from seawall.engine import lone_way
from seawall.engine.removal import Removal
from seawall.kernels import lone_arrival, lone_turn
from seawall.server import ingest
from seawall.wire.codes import AckStatus, ErrorCode, ReadBy
from seawall.wire.lwp2_reading import Bounds, BoundsReply, Fetch
from seawall.wire.lwp2_session import Error

OK, DUPLICATE, REJECTED, UNKNOWN = (int(AckStatus[name]) for name in ("OK", "DUPLICATE", "REJECTED", "UNKNOWN"))
PASSES_ON = lone_arrival.PASSES_ON


@pytest.fixture
def done(monkeypatch):
    """What the kernel said of every batch that was tried alone; all of them are."""
    monkeypatch.setattr(ingest, "_ALONE_S", -1.0)
    monkeypatch.setattr(lone_way, "LONG_WRITE_NS", 1 << 62)
    real, codes = lone_turn.take_lone_turns, []

    def counted(*arguments):
        codes.append(real(*arguments))
        return codes[-1]

    monkeypatch.setattr(lone_turn, "take_lone_turns", counted)
    return codes


@asynccontextmanager
async def warmed(path, **named):
    """A server and a peer whose first batch has made room for others."""
    async with world(path, **named) as made:
        peer = await made.peer()
        assert (await peer.publish(1, b"0"))["base_seq"] == 1
        yield made, peer
        peer.close()


async def values(log, topic="events"):
    return [record.value for batch in await log.read(topic) for record in batch]


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("order", [1, 2, 5])
def test_they_are_stored_acked_and_read(on_loop, tmp_path, done, order, durability):
    async def work():
        async with warmed(tmp_path, order=order, durability=durability) as (made, peer):
            for number in range(1, 30):
                row = await peer.publish(1, b"%d" % number)
                assert (row["status"], row["level"], row["base_seq"]) == (OK, 2, number + 1)
                assert (row["client_seq"], row["topic_id"], row["record_count"], row["run"]) == (number + 1, 1, 1, 1)
                assert peer.through == number + 1
            assert await values(made.log) == [b"%d" % number for number in range(30)]

    on_loop(work())
    assert sum(code > 0 for code in done) > 20
    with seawall.open(tmp_path / "data") as log:
        batches = log.read("events")
        assert [record.value for batch in batches for record in batch] == [b"%d" % number for number in range(30)]
        positions = [batch.position for batch in batches]
        assert positions == list(range(positions[0], positions[0] + 30))
        assert log.verify().is_sound


def test_whoever_asks_where_a_topic_ends_is_told_of_them(on_loop, tmp_path, done):
    async def work():
        async with warmed(tmp_path) as (made, peer):
            for number in range(1, 8):
                row = await peer.publish(1, b"%d" % number)
                peer.ask(Bounds(TopicId(1)))
                bounds = await peer.answer(BoundsReply)
                assert (bounds.end_seq, bounds.ordered_end_seq) == (number + 2, number + 2)
                assert bounds.end_position == row["position"] + 1
                peer.ask(Fetch(TopicId(1), ReadBy.LATEST, 0, 1000, 0))
                assert (await peer.answer()).prefix.next_seq == number + 2
                assert (await made.log.describe("events")).record_count == number + 1

    on_loop(work())
    assert any(code > 0 for code in done)


def test_a_repetition_is_known_now_and_after_a_restart(on_loop, tmp_path, done):
    async def work():
        async with warmed(tmp_path) as (_, peer):
            first = await peer.publish(1, b"one")
            again = await peer.publish(1, b"one", seq=2)
            assert again == first | {"status": DUPLICATE}
            other = await peer.publish(1, b"other", seq=2)
            assert (other["status"], other["reason"]) == (REJECTED, 0x28)
            assert (await peer.publish(1, b"two"))["base_seq"] == 3
        assert any(code > 0 for code in done)
        async with world(tmp_path) as made:
            peer = await made.peer()
            assert peer.welcome.next_seq == 4
            assert (await peer.publish(1, b"one", seq=2))["status"] == DUPLICATE
            assert (await peer.publish(1, b"three"))["base_seq"] == 4
            assert await values(made.log) == [b"0", b"one", b"two", b"three"]
            peer.close()

    on_loop(work())


def test_they_and_others_take_turns(on_loop, tmp_path, done):
    async def work():
        async with warmed(tmp_path, topics=("events", "others")) as (made, peer):
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
            assert sum(code > 0 for code in done) > 8

    on_loop(work())


def test_what_is_ahead_of_its_turn_is_held_and_what_follows_it_goes_the_same_way(on_loop, tmp_path, done):
    async def work():
        async with warmed(tmp_path, order=5) as (made, peer):
            peer.send(peer.batch(1, b"three", seq=3))
            while not made.log._pod.held:
                await asyncio.sleep(0.001)
            other = await made.peer(8)
            assert (await other.publish(1, b"other"))["status"] == OK
            peer.send(peer.batch(1, b"two", seq=2))
            assert [row["client_seq"] for row in await peer.acks(2)] == [2, 3]
            assert await values(made.log) == [b"0", b"other", b"two", b"three"]
            assert not any(code > 0 for code in done)
            assert (await peer.publish(1, b"four", seq=4))["status"] == OK
            assert (await peer.publish(1, b"five", seq=5))["status"] == OK
            assert any(code > 0 for code in done)
            other.close()

    on_loop(work())


def test_more_of_them_than_rows_wait_and_the_index_is_never_lapped(on_loop, tmp_path, done):
    config = Config()
    config = replace(config, fabric=replace(config.fabric, goi_entries=1024))

    async def work():
        async with warmed(tmp_path, config=config, durability="disk") as (made, peer):
            for number in range(1, 2_500):
                assert (await peer.publish(1, b"%d" % number))["base_seq"] == number + 1
            assert (await made.log.describe("events")).record_count == 2_500
            assert (await values(made.log))[-1] == b"2499"

    on_loop(work())
    assert PASSES_ON in done
    assert sum(code > 0 for code in done) > 2_400


def test_a_segment_that_is_full_is_rolled(on_loop, tmp_path, done):
    async def work():
        async with warmed(tmp_path, segment_max_records=10) as (made, peer):
            for number in range(1, 45):
                assert (await peer.publish(1, b"%d" % number))["base_seq"] == number + 1
            assert await values(made.log) == [b"%d" % number for number in range(45)]

    on_loop(work())
    assert sum(code > 0 for code in done) > 20


def test_a_slow_disk_is_left_to_others(on_loop, tmp_path, done, monkeypatch):
    monkeypatch.setattr(lone_way, "LONG_WRITE_NS", -1)
    monkeypatch.setattr(lone_way, "REST_FACTOR", 1 << 40)

    async def work():
        async with warmed(tmp_path) as (made, peer):
            for number in range(1, 6):
                assert (await peer.publish(1, b"%d" % number))["status"] == OK
            assert await values(made.log) == [b"%d" % number for number in range(6)]

    on_loop(work())
    # One long write may be an accident.
    assert [code > 0 for code in done] == [True, True]


def test_a_write_that_was_cut_short_is_made_good(on_loop, tmp_path, done, monkeypatch):
    def cut(memory, desk, turn, source, size, orders, levels, rows, state, _ack):
        if lone_turn.check_lone_turn(turn, source, size, lone_turn.DURABLE, orders, levels, rows, state) < 0:
            return PASSES_ON
        staged = lone_arrival.stage_lone_arrival(memory, desk, source, 0, size, 0)
        done.append(staged)
        return staged // 2 if staged > 0 else staged

    monkeypatch.setattr(lone_turn, "take_lone_turns", cut)

    async def work():
        async with warmed(tmp_path) as (made, peer):
            for number in range(1, 4):
                assert (await peer.publish(1, b"%d" % number))["base_seq"] == number + 1
            assert (await peer.publish(1, b"3", seq=4))["status"] == DUPLICATE
            assert await values(made.log) == [b"0", b"1", b"2", b"3"]

    on_loop(work())
    assert any(code > 0 for code in done)
    with seawall.open(tmp_path / "data") as log:
        assert [record.value for batch in log.read("events") for record in batch] == [b"0", b"1", b"2", b"3"]


def test_a_write_that_failed_leaves_the_log_read_only(on_loop, tmp_path, done, monkeypatch):
    failed = []

    async def work():
        async with world(tmp_path) as made:
            made.log.on_failed = lambda error: (made.context.ingest.fail(error), failed.append(error))
            peer = await made.peer()
            await peer.publish(1, b"0")
            monkeypatch.setattr(lone_turn, "take_lone_turns", lambda *_: -5)
            peer.send(peer.batch(1, b"1"))
            assert (await peer.answer(Error)).code == ErrorCode.READ_ONLY
            (row,) = await peer.acks(1)
            assert (row["client_seq"], row["status"], row["reason"]) == (2, UNKNOWN, 0x64)
            assert made.log.is_refusing
            # What comes now is certainly not stored.
            row = await peer.publish(1, b"2")
            assert (row["client_seq"], row["status"], row["reason"]) == (3, REJECTED, 0x63)
            peer.close()

    on_loop(work())
    assert "sync" in str(failed[0]).lower() or "write" in str(failed[0]).lower()


def test_two_that_take_turns_share_syncs(on_loop, tmp_path, monkeypatch, done):
    monkeypatch.setattr(ingest, "_ALONE_S", 1e9)

    async def work():
        async with warmed(tmp_path) as (made, peer):
            other = await made.peer(8)
            for number in range(5):
                assert (await peer.publish(1, b"one %d" % number))["status"] == OK
                assert (await other.publish(1, b"two %d" % number))["status"] == OK
            other.close()

    on_loop(work())
    assert not done


def test_a_small_log_is_checkpointed_meanwhile(on_loop, tmp_path, done):
    async def work():
        small = replace(SMALL, checkpoint_size=64 * 1024, wal_file_size=256 * 1024)
        async with warmed(tmp_path, store=small) as (made, peer):
            for number in range(1, 600):
                assert (await peer.publish(1, b"%d" % number * 100))["base_seq"] == number + 1
            assert len(await values(made.log)) == 600

    on_loop(work())
    assert sum(code > 0 for code in done) > 500


def test_nobody_asks_what_is_to_be_tidied_up_while_somebody_does_it(on_loop, tmp_path, done, monkeypatch):
    """What tidies up, on a thread, has the lead: a look at the same time takes from it what it is about to finish."""
    asked = []

    async def work():
        async with warmed(tmp_path) as (made, peer):
            queue = made.log._opened().queue
            assert queue.take_lone()
            monkeypatch.setattr(Removal, "has_dead", lambda self: asked.append(self) or False)
            made.log._lone_before = (-1, False)
            is_done, early = made.log.commit_lone(None, None, 0), list(asked)
            queue.hand_on(looks=False)
            assert (is_done, early) == (False, [])
            await peer.publish(1, b"next")
            assert asked

    on_loop(work())
