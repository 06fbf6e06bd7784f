"""Reading by position, SKIPs as readers see them, and reads of batches that are ordered and not yet durable."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_log import GatedDisk, simulated_machine

from seawall.config import Config, FabricConfig
from seawall.core.types import ClientId, ClientSeq, Position, Seq
from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.api.view import open_view
from seawall.engine.ordering.applier import Applier
from seawall.engine.ordering.sequenced_orderer import open_sequenced_store
from seawall.engine.read.read_results import Message, PositionItem, ReceivedBatch, ReceivedSkip, TopicGap
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.errors import InvalidInputError
from seawall.io.disk.files import OsFiles
from seawall.io.process.clocks import OsClock
from seawall.limits import KIB
from seawall.testing import SimSharedMemory
from seawall.testing.checkers.committed_order import CommittedOrder
from seawall.topics.config import Order, TopicConfig
from seawall.wire.format.codes import GapReason
from seawall.wire.format.records import encode_raw

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB, ceiling_step=64)
TINY = Config(fabric=FabricConfig(goi_entries=256, pbr_entries=64, checkpoint_size=64 * KIB, blog_size=256 * KIB))


def opened(path: Path, brokers: int = 0) -> EmbeddedLog:
    return open_log(path / "data", SMALL, config=TINY, brokers=brokers)


def expected(log: EmbeddedLog) -> list[tuple[int, str, list[int]]]:
    """Position, topic and seqs of every batch, by reading topic after topic."""
    batches = [item for topic in log.topics() for item in log.follow(topic) if isinstance(item, ReceivedBatch)]
    return sorted((batch.position, batch.topic, batch.seqs) for batch in batches)


def in_pieces(read: Callable[..., list[PositionItem]], **bounds: int) -> list[PositionItem]:
    found: list[PositionItem] = []
    position = 0
    while items := read(position, **bounds):
        found += items
        position = items[-1].next_position
    return found


def batches_of(items: list[PositionItem]) -> list[tuple[int, str, list[int]]]:
    return [(item.position, item.topic, item.seqs) for item in items if isinstance(item, ReceivedBatch)]


# --- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("brokers", [0, 1, 2])
def test_position_reads_return_every_batch_once_in_order(tmp_path: Path, brokers: int) -> None:
    """INV-POSITION-ONCE."""
    chance = random.Random(brokers)
    with opened(tmp_path, brokers) as log:
        for number in range(4):
            log.create_topic(f"t{number}", segment_max_records=20, durability=("fsync", "ephemeral")[number == 3])
        for number in range(180):
            topic = f"t{chance.randrange(4)}"
            size = chance.choice((10, 300, 50_000 if number % 20 == 0 else 20))
            log.publish(topic, [Message(bytes(size), tag=chance.choice("ab"))] * chance.randint(1, 4))
            if number % 60 == 59:
                log.checkpoint()
            if number % 50 == 49:
                log.delete(topic, tag="a")
                log.delete(f"t{chance.randrange(4)}", before_seq=number // 8)
        whole = expected(log)
        assert [position for position, _, _ in whole] == sorted({position for position, _, _ in whole})
        for bounds in ({}, {"max_bytes": 1}, {"max_bytes": 5_000}, {"limit": 1}, {"limit": 7, "max_bytes": 100_000}):
            items = in_pieces(log.read_positions, **bounds)
            assert batches_of(items) == whole
            assert not any(item.is_skip for item in items)
        assert batches_of(log.read_positions(limit=1)) == whole[:1]
        middle = whole[50][0]
        assert batches_of(log.read_positions(middle, max_bytes=1 << 30)) == whole[50:]
        assert log.read_positions(whole[-1][0] + 1) == []
        kept = [each for each in whole if each[1] != "t3"]
    with open_view(tmp_path / "data") as view:
        assert batches_of(in_pieces(view.read_positions, max_bytes=3_000)) == kept
        with pytest.raises(InvalidInputError, match="begin at 0"):
            view.read_positions(-1)


def test_a_deleted_range_does_not_end_the_reading(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("events")
        log.create_topic("other")
        for number in range(50):
            log.publish("events", bytes([number]) * 1_000)
        log.publish("other", b"behind")
        log.delete("events", before_seq=51)
        for read in (log.read_positions, open_view(tmp_path / "data").read_positions):
            (batch,) = read(max_bytes=3_000)
            assert (batch.topic, batch.seqs) == ("other", [1])
        with pytest.raises(InvalidInputError, match="begin at 0"):
            log.read_positions(-1)


def test_an_empty_log_has_nothing_at_any_position(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        assert log.read_positions() == []
        log.create_topic("events")
        assert log.read_positions() == []
        assert log.read_positions(1 << 40) == []


# --- gaps -----------------------------------------------------------------------------------------------------------


def test_a_gap_is_reported_before_the_next_batch(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("capped", cap_records=2, segment_max_records=2)
        log.create_topic("other")
        for number in range(6):
            log.publish("capped", b"%d" % number)
        log.publish("other", b"between")
        log.publish("capped", b"last")
        log.checkpoint()
        gap, before, between, last = log.read_positions()
        assert (gap.topic, gap.first_seq, gap.last_seq, gap.reason) == ("capped", 1, 5, GapReason.CAP)
        assert (gap.is_skip, gap.skip_count, gap.next_position) == (False, 0, before.position)
        assert [item.topic for item in (before, between, last)] == ["capped", "other", "capped"]
        assert log.read_positions(gap.next_position) == [before, between, last]
        assert log.read_positions(before.next_position) == [between, last]


def test_a_crash_gap_is_reported_before_the_next_batch(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.create_topic("events")
    log.publish("events", b"before")
    # Release the directory without an orderly shutdown, as a kill does.
    with log.changing() as store:
        store.parts.wal.close(clean=False)
        store.parts.directory.close()
    with opened(tmp_path) as again:
        (before,) = again.read_positions()
        again.publish("events", b"after")
        gap, after = again.read_positions(before.next_position)
        assert isinstance(gap, TopicGap)
        assert (gap.first_seq, gap.last_seq) == (2, after.first_seq - 1)


def test_damage_is_a_gap_at_the_end(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("events")
        log.create_topic("other")
        for number in range(3):
            log.publish("events", bytes([number]) * 70_000)
        log.publish("other", b"x")
        log.checkpoint()
    (segment,) = (tmp_path / "data" / "topics").glob("*1/*.active")
    with segment.open("r+b") as file:
        file.seek(4096 + 2 * 70_000 + 5_000)
        file.write(b"damage")
    with opened(tmp_path) as log:
        first, second, other, gap = log.read_positions()
        assert (gap.topic, gap.first_seq, gap.last_seq, gap.reason) == ("events", 3, 3, GapReason.CORRUPTION)
        assert gap.next_position == other.next_position
        assert log.read_positions(gap.next_position) == []
        assert [item.seqs for item in (first, second, other)] == [[1], [2], [1]]


# --- SKIPs ----------------------------------------------------------------------------------------------------------


class Applied:
    """A log whose store applies an order that the test makes."""

    def __init__(self, path: Path) -> None:
        machine = Machine(OsFiles(), OsClock(), os.urandom, os.getpid())
        self.store = open_store(machine, str(path / "data"), SMALL)
        for name in ("events", "other"):
            self.store.create_topic(name, TopicConfig(order=Order.CLIENT, segment_max_records=2))
        self.order = CommittedOrder(self.store.parts.writer.frontier, term=self.store.parts.term)
        self.applier = Applier(self.store.parts, self.store.maintenance, goi_entries=1_024, blog_size=1 << 20)
        self.log = EmbeddedLog(self.store)

    def batch(self, value: bytes, topic_id: int = 1) -> None:
        self.order.batch(topic_id, encode_raw(value), 1, wall_ns=OsClock().wall_ns())
        self.apply()

    def skip(self, first: int, count: int, topic_id: int = 1) -> int:
        self.order.skip(topic_id, 7, first, count)
        self.apply()
        return self.order.committed - 1

    def apply(self) -> None:
        self.order.apply_all(self.applier)


def test_a_skip_is_reported_before_the_next_batch(tmp_path: Path) -> None:
    world = Applied(tmp_path)
    log = world.log
    world.batch(b"1")
    first = world.skip(3, 2)
    assert len(log.read("events")) == 1  # no batch follows it yet
    world.batch(b"elsewhere", 2)
    world.batch(b"2")
    second, third = world.skip(9, 1), world.skip(20, 5)
    world.batch(b"3")
    for read in (log.read, open_view(tmp_path / "data").read):
        one, skip, two, *skips, three = read("events")
        assert skip == ReceivedSkip("events", Position(first), ClientId(7), ClientSeq(3), 2, Seq(2))
        assert (skip.is_skip, one.is_skip, one.skip_count) == (True, False, 0)
        assert [(each.position, each.skip_count) for each in skips] == [(second, 1), (third, 5)]
        assert [item.seqs for item in (one, two, three)] == [[1], [2], [3]]
        assert read("events", 2) == [skip, two, *skips, three]
        assert read("events", 3) == [*skips, three]
        assert read("events", limit=1) == [one]
        assert read("events", limit=2) == [one, skip, two]
        assert read("events", max_bytes=1) == [one]
        assert read("events", 2, max_bytes=1) == [skip, two]
        assert len(read("other")) == 1
    assert [*log.follow("events")] == log.read("events")
    assert log.subscriber("events", start=2).poll() == log.read("events", 2)
    assert log.read_arrow("events", columns=("value",)).column("value").to_pylist() == [b"1", b"2", b"3"]
    log.close()


def test_a_skip_outlives_the_batches_after_it(tmp_path: Path) -> None:
    world = Applied(tmp_path)
    log = world.log
    world.batch(b"1")
    at = world.skip(3, 2)
    world.batch(b"2")
    world.batch(b"3")
    with world.applier.at(Position(world.order.committed)):
        world.store.delete_records("events", before_seq=3)
    world.order.note_control()
    skip, three = log.read("events")
    assert (skip.position, skip.next_seq, three.seqs) == (at, 2, [3])
    with world.applier.at(Position(world.order.committed)):
        world.store.delete_records("events", before_seq=4)
    world.order.note_control()
    (skip,) = log.read("events", 2)
    assert (skip.position, skip.next_seq) == (at, 4)
    assert log.read("events", skip.next_seq) == []
    assert log.read_positions(at) == [skip.__class__("events", at, ClientId(7), ClientSeq(3), 2, Seq(2))]
    log.close()


def test_position_reads_have_skips_at_their_positions(tmp_path: Path) -> None:
    world = Applied(tmp_path)
    log = world.log
    world.batch(b"1")
    at = world.skip(3, 2)
    world.batch(b"elsewhere", 2)
    one, skip, other = log.read_positions()
    assert (one.topic, skip.position, skip.next_position, other.topic) == ("events", at, at + 1, "other")
    assert (skip.topic, skip.client_id, skip.first_client_seq, skip.skip_count) == ("events", 7, 3, 2)
    last = world.skip(8, 1)
    assert [item.position for item in log.read_positions(other.next_position)] == [last]
    assert log.read_positions(last + 1) == []
    assert in_pieces(log.read_positions, limit=1) == log.read_positions()
    assert in_pieces(open_view(tmp_path / "data").read_positions, max_bytes=1) == log.read_positions()
    log.checkpoint()
    world.batch(b"2")
    log.checkpoint()
    assert [item.position for item in log.read_positions(at)][:2] == [at, other.position]
    log.close()


# --- subscribers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("brokers", [0, 2])
def test_a_position_subscriber_continues_where_it_stopped(tmp_path: Path, brokers: int) -> None:
    with opened(tmp_path, brokers) as log:
        log.create_topic("a")
        log.create_topic("b")
        log.publish("a", b"1")
        late = log.position_subscriber("latest")
        subscriber = log.position_subscriber()
        (first,) = subscriber.poll()
        assert subscriber.poll() == subscriber.poll(0.01) == []
        threading.Timer(0.02, lambda: log.publish("b", b"2")).start()
        (second,) = subscriber.poll(30)
        assert (first.topic, second.topic) == ("a", "b")
        assert late.poll() == [second]
        assert log.position_subscriber(second.position).poll() == [second]
        for start in (-1, "committed", 1.5, True):
            with pytest.raises(InvalidInputError, match="earliest, latest or a position"):
                log.position_subscriber(start)


@pytest.mark.usefixtures("each_event_loop")
def test_an_event_loop_follows_by_position(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncLog(tmp_path / "data", SMALL, TINY, brokers=2) as log:
            for topic in "ab":
                await log.create_topic(topic)
            subscriber = log.position_subscriber("latest")
            assert await subscriber.poll() == []
            assert await subscriber.poll(0.01) == []
            waiting = asyncio.ensure_future(subscriber.poll(30))
            await log.publish("b", b"1")
            (item,) = await waiting
            assert (item.topic, subscriber.next_position) == ("b", item.next_position)
            seen = []
            publishing = asyncio.ensure_future(publish_all(log))
            async for each in log.position_subscriber(item.position):
                seen.append(each.topic)
                if len(seen) == 21:
                    break
            await publishing
            assert seen == ["b", *"ab" * 10]
            assert [each.topic for each in await log.read("a", mode="ordered")] == ["a"] * 10

    async def publish_all(log: AsyncLog) -> None:
        for number in range(20):
            await log.publish("ab"[number % 2], b"%d" % number)

    asyncio.run(work())


# --- ordered and not yet durable -------------------------------------------------------------------------------------


def open_gated(disk: GatedDisk, brokers: int) -> EmbeddedLog:
    machine = simulated_machine(disk)
    if not brokers:
        return EmbeddedLog(open_store(machine, "/data", SMALL))
    fabric = replace(TINY.fabric, brokers=brokers)
    return EmbeddedLog(open_sequenced_store(machine, "/data", SimSharedMemory(), bytes(16), fabric, SMALL))


@pytest.mark.parametrize("brokers", [0, 2])
def test_ordered_reads_include_the_commit_in_flight(brokers: int) -> None:
    disk = GatedDisk()
    with open_gated(disk, brokers) as log:
        log.create_topic("events")
        log.create_topic("other")
        log.publish("events", b"before")
        disk.close_gate()
        sent = [
            log.commits.offer(log.pending_batch_of(*each))
            for each in (("events", [b"1", b"2"]), ("other", b"elsewhere"), ("events", bytes(70_000)))
        ]
        thread = threading.Thread(target=log.commits.commit_queued)
        thread.start()
        disk.wait_for_write()
        durable, ahead = log.read("events"), log.read("events", mode="ordered")
        assert [batch.seqs for batch in durable] == [[1]]
        if brokers:
            assert [batch.seqs for batch in ahead] == [[1], [2, 3], [4]]
            assert [batch.seqs for batch in log.read("events", 3, mode="ordered")] == [[3], [4]]
            assert [batch.seqs for batch in log.read("events", 2, mode="ordered", max_bytes=1)] == [[2, 3]]
            assert [batch.seqs for batch in log.read("events", mode="ordered", limit=1)] == [[1]]
            assert log.read("events", 5, mode="ordered") == []
        else:
            assert ahead == durable
        disk.open_gate()
        thread.join()
        assert [delivery.result().first_seq for delivery in sent] == [2, 1, 4]
        after = log.read("events")
        assert after == log.read("events", mode="ordered")
        if brokers:
            # The same batches, with the same bytes and seqs.
            assert after == ahead
        with pytest.raises(InvalidInputError, match="durable or ordered"):
            log.read("events", mode="hopeful")
