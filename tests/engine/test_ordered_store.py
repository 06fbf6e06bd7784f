"""The embedded log with brokers: the same log, whose batches go through rings and one order on their way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from seawall.config import Config, FabricConfig
from seawall.engine.aio import AsyncLog
from seawall.engine.embedded import EmbeddedLog
from seawall.engine.open_log import open_log
from seawall.engine.ordered_store import OrderedStore
from seawall.engine.records import Message, ReceivedBatch
from seawall.engine.settings import StoreSettings
from seawall.errors import (
    ConflictError,
    FencedError,
    FullError,
    InvalidInputError,
    LimitError,
    NotFoundError,
)
from seawall.limits import KIB
from seawall.topics.gaps import Gap

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB, ceiling_step=64)
TINY = FabricConfig(goi_entries=256, pbr_entries=64, checkpoint_size=64 * KIB, blog_size=256 * KIB)


def opened(path: Path, brokers: int = 2, store: StoreSettings = SMALL, fabric: FabricConfig = TINY) -> EmbeddedLog:
    return open_log(path / "data", store, config=Config(fabric=fabric), brokers=brokers)


@pytest.fixture(params=[1, 2, 4])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EmbeddedLog]:
    with opened(tmp_path, request.param) as log:
        log.create_topic("events")
        yield log


def values(log: EmbeddedLog, topic: str = "events", from_seq: int = 1) -> list[bytes]:
    return [record.value for item in log.follow(topic, from_seq) if isinstance(item, ReceivedBatch) for record in item]


def fabric_of(log: EmbeddedLog) -> Path:
    store = log._store
    assert isinstance(store, OrderedStore)
    return Path(store._fabric.path)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run in several threads that begin together; an error of one is an error here."""
    barrier, errors = threading.Barrier(count), []

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except Exception as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# --- the same log ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_every_order_stores_what_is_published(tmp_path: Path, log: EmbeddedLog, order: int) -> None:
    topic = log.create_topic("ordered", order=order)
    assert topic.config.order == order
    assert [list(log.publish("ordered", [b"%d" % n, b"more"]).seqs) for n in range(3)] == [[1, 2], [3, 4], [5, 6]]
    with log.publisher("ordered", client_id=9) as publisher:
        sent = [publisher.publish(b"session %d" % n) for n in range(10)]
    assert [delivery.result().first_seq for delivery in sent] == list(range(7, 17))
    positions = [delivery.position for delivery in sent]
    assert positions == sorted(set(positions))
    assert values(log, "ordered")[6:] == [b"session %d" % n for n in range(10)]


@pytest.mark.parametrize("ack", [0, 1, 2])
@pytest.mark.parametrize("order", [0, 2, 5])
def test_levels_of_acks(log: EmbeddedLog, order: int, ack: int) -> None:
    log.create_topic("ordered", order=order)
    with log.publisher("ordered", ack=ack) as publisher:
        for number in range(50):
            publisher.publish(b"%d" % number)
    assert values(log, "ordered") == [b"%d" % number for number in range(50)]


def test_positions_are_one_order_over_all_topics(log: EmbeddedLog) -> None:
    topics = [f"topic{number}" for number in range(5)]
    for topic in topics:
        log.create_topic(topic)
    positions = [log.publish(topics[number % 5], b"%d" % number).position for number in range(50)]
    assert positions == sorted(set(positions))


def test_a_session_stores_each_client_seq_once_and_ends_the_older_one(tmp_path: Path, log: EmbeddedLog) -> None:
    log.create_topic("strong", order=5)
    for topic in ("events", "strong"):
        first = log.publisher(topic, client_id=7)
        begun = first.next_client_seq
        original = first.publish(b"one", client_seq=begun).result()
        again = first.publish(b"one", client_seq=begun).result()
        assert (again.is_duplicate, again.first_seq, again.position) == (True, original.first_seq, original.position)
        with pytest.raises(ConflictError, match="other records"):
            first.publish(b"another", client_seq=begun).result()
        second = log.publisher(topic, client_id=7)
        assert second.next_client_seq == begun + 1
        with pytest.raises(FencedError):
            first.publish(b"late").result()
        second.publish(b"two").result()
        assert values(log, topic) == [b"one", b"two"]


def test_sessions_go_on_after_a_restart_with_other_brokers(tmp_path: Path) -> None:
    for number, brokers in enumerate((2, 0, 1, 4, 0, 2)):
        with opened(tmp_path, brokers) as log:
            if not number:
                log.create_topic("events", order=5)
            publisher = log.publisher("events", client_id=7)
            assert publisher.next_client_seq == 3 * number + 1
            for each in range(3):
                publisher.publish(b"%d" % (3 * number + each)).result()
            if number:
                before = publisher.publish(b"%d" % (3 * number - 1), client_seq=3 * number).result()
                assert (before.is_duplicate, before.first_seq) == (True, 3 * number)
                with pytest.raises(ConflictError, match="other records"):
                    publisher.publish(b"another", client_seq=3 * number).result()
    with opened(tmp_path) as log:
        assert values(log) == [b"%d" % number for number in range(18)]
        assert not [item for item in log.follow("events") if isinstance(item, Gap)]
        assert not log.verify().findings


def test_keys_are_stored_once_also_within_one_commit(tmp_path: Path, log: EmbeddedLog) -> None:
    twins = [log.queue.offer(log.bundle_of("events", b"%d" % number, "same")) for number in range(3)]
    assert [delivery.result().first_seq for delivery in twins] == [1, 1, 1]
    assert [delivery.is_duplicate for delivery in twins] == [False, True, True]
    again = log.publish("events", b"again", idempotency_key="same")
    assert (again.is_duplicate, again.first_seq) == (True, 1)
    refused = [log.queue.offer(log.bundle_of("events", bytes(300 * KIB), "large")) for _ in range(2)]
    for delivery in refused:
        with pytest.raises(LimitError):
            delivery.result()
    assert values(log) == [b"0"]


def test_caps_evict_and_reject(log: EmbeddedLog) -> None:
    log.create_topic("capped", cap_records=10)
    for number in range(40):
        log.publish("capped", [b"%d" % number] * 3)
        assert log.describe("capped").record_count <= 10
    gap, *batches = log.follow("capped")
    assert (gap.first_seq, gap.last_seq) == (1, 110)
    assert sum(len(batch) for batch in batches) == 10
    log.create_topic("full", cap_records=3, discard="reject")
    log.publish("full", [b"1", b"2", b"3"])
    with pytest.raises(FullError):
        log.publish("full", b"4")
    assert values(log, "full") == [b"1", b"2", b"3"]


def test_deletes_cover_what_was_ordered_before_them(log: EmbeddedLog) -> None:
    for number in range(20):
        log.publish("events", Message(b"%d" % number, tag="odd" if number % 2 else "even"))
    assert log.delete("events", tag="odd", before_seq=11) == 5
    assert log.delete("events", before_seq=4) == 2
    assert log.delete("events", tag_prefix="ev", before_seq=7) == 1
    assert values(log) == [b"6", b"8", *(b"%d" % number for number in range(10, 20))]
    with pytest.raises(InvalidInputError):
        log.delete("events")
    with pytest.raises(NotFoundError):
        log.delete("nobody", before_seq=3)
    log.checkpoint()
    log.publish("events", b"after")
    assert values(log)[-2:] == [b"19", b"after"]


def test_topics_cursors_and_errors(tmp_path: Path, log: EmbeddedLog) -> None:
    with pytest.raises(ConflictError):
        log.create_topic("events")
    log.create_topic("other", ttl_ms=5_000)
    assert log.configure_topic("other", ttl_ms=0).config.ttl_ms == 0
    log.publish("other", [b"a", b"b"])
    log.commit("me", "other", 2)
    log.delete_topic("other")
    for use in (
        lambda: log.publish("other", b"x"),
        lambda: log.delete_topic("other"),
        lambda: log.configure_topic("other", ttl_ms=1),
        lambda: log.commit("me", "other", 1),
    ):
        with pytest.raises(NotFoundError):
            use()
    log.create_topic("other")
    assert log.publish("other", b"anew").first_seq == 1
    log.commit("me", "other", 2)
    log.close()
    with opened(tmp_path, 0) as again:
        assert (again.committed("me", "other"), again.topics()) == (2, ["events", "other"])
        assert values(again, "other") == [b"anew"]


def test_arrow_goes_through_brokers(log: EmbeddedLog) -> None:
    table = pa.table({"value": pa.array([b"%d" % n for n in range(5_000)], pa.binary())})
    assert log.publish("events", table).seqs == range(1, 5_001)
    assert log.read_arrow("events", columns=("value",)).column("value").to_pylist() == [b"%d" % n for n in range(5_000)]


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_classes_and_large_batches(tmp_path: Path, durability: str) -> None:
    sizes = [10, 65_000, 70_000, 200_000, 5]
    with opened(tmp_path) as log:
        log.create_topic("events", durability=durability)
        for size in sizes:
            log.publish("events", bytes([size % 251]) * size)
        assert [len(value) for value in values(log)] == sizes
    with opened(tmp_path, 0) as log:
        expected = [] if durability == "ephemeral" else sizes
        assert [len(value) for value in values(log)] == expected
        if durability == "ephemeral":
            (gap,) = log.read("events")
            assert (gap.first_seq, gap.last_seq) == (1, len(sizes))


def test_what_a_blog_cannot_hold_is_refused_and_harms_nothing(log: EmbeddedLog) -> None:
    log.publish("events", b"before")
    with pytest.raises(LimitError, match="blog_size"):
        log.publish("events", bytes(300 * KIB))
    assert log.publish("events", b"after").first_seq == 2
    assert values(log) == [b"before", b"after"]


def test_groups_larger_than_the_rings(log: EmbeddedLog) -> None:
    log.create_topic("strong", order=5)
    with log.publisher("strong", client_id=3) as session, log.publisher("events") as plain:
        sent = []
        for number in range(1_000):
            sent.append(session.publish(b"s%d" % number))
            if number % 7 == 0:
                plain.publish(bytes([number % 256]) * 70_000)
    assert [delivery.result().first_seq for delivery in sent] == list(range(1, 1_001))
    assert values(log, "strong") == [b"s%d" % number for number in range(1_000)]
    assert [value[0] for value in values(log)] == [number % 256 for number in range(0, 1_000, 7)]


def test_threads_publish_together(log: EmbeddedLog) -> None:
    log.create_topic("strong", order=5)

    def work(thread: int) -> None:
        with log.publisher("strong", client_id=thread + 1) as publisher:
            for number in range(200):
                log.publish("events", b"%d %d" % (thread, number))
                publisher.publish(b"%d %d" % (thread, number))

    in_threads(8, work)
    for topic in ("events", "strong"):
        found = [tuple(map(int, value.split())) for value in values(log, topic)]
        assert len(found) == 1_600
        for thread in range(8):
            assert [number for who, number in found if who == thread] == [*range(200)]


def test_an_event_loop_with_brokers(tmp_path: Path) -> None:
    async def work() -> None:
        config = Config(fabric=TINY)
        async with AsyncLog(tmp_path / "data", SMALL, config, brokers=2) as log:
            await log.create_topic("events", order=5)
            publisher = await log.publisher("events", client_id=5)
            sent = [publisher.publish(b"%d" % number) for number in range(300)]
            sent += [log.publish("events", bytes(70_000)) for _ in range(5)]
            deliveries = await asyncio.gather(*sent)
            assert [delivery.first_seq for delivery in deliveries] == list(range(1, 306))
            await log.delete("events", before_seq=100)
            assert (await log.read("events"))[0].first_seq == 100

    asyncio.run(work())
    with opened(tmp_path, 0) as log:
        assert len(values(log)) == 206
