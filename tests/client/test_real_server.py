"""Clients of a real server: the API of the embedded log, and nothing lost or stored twice when the server restarts.

The server has three event loops; where the number of loops matters, a test runs with one as well.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from real_server import RealServer, ServerProcess

import seawall
from seawall.api.publishable import Message
from seawall.api.publisher_options import Compression
from seawall.api.received import Item, PositionItem, ReceivedBatch, ReceivedSkip
from seawall.client.connection.connection import Connection
from seawall.client.remote_log import RemoteLog
from seawall.core.types import ClientId, ClientSeq, TimestampNs
from seawall.engine.serving.served_log import ServedLog
from seawall.errors import CallerError, ConfigError, ConflictError, FencedError, InvalidInputError, NotFoundError
from seawall.io.process.clocks import OsClock
from seawall.server.connection.access import Access, Right
from seawall.wire.format.batches import batch_header
from seawall.wire.format.codes import GapReason, HelloFlags
from seawall.wire.format.gaps import Gap
from seawall.wire.format.records import encode_raw
from seawall.wire.lwp2.session import Hello


@pytest.fixture
def event_loops() -> int:
    """How many event loops the server has."""
    return 3


@pytest.fixture
def server(event_loops: int, tmp_path: Path) -> Iterator[RealServer]:
    with RealServer(tmp_path / "data", event_loops=event_loops) as real:
        yield real


one_loop_and_three = pytest.mark.parametrize("event_loops", [1, 3], ids=["one loop", "three loops"])


@pytest.fixture
def log(server: RealServer) -> Iterator[RemoteLog]:
    with seawall.connect(server.url) as connected:
        connected.create_topic("events")
        yield connected


def values(items: list[Item]) -> list[bytes]:
    return [record.value for item in items if isinstance(item, ReceivedBatch) for record in item]


def stored(log: RemoteLog, topic: str = "events") -> list[bytes]:
    return values(list(log.follow(topic)))


def test_every_kind_of_record_is_read_back(log: RemoteLog) -> None:
    published = log.publish("events", [b"bytes", "text", {"n": 1}, Message(b"value", key=b"key", tag="tag")])
    assert published.seqs == range(1, 5)
    table = pa.table({"value": [b"row 1", b"row 2"], "key": [b"a", b"b"]})
    assert log.publish_arrow("events", table).seqs == range(5, 7)
    records = [record for item in log.read("events") if isinstance(item, ReceivedBatch) for record in item]
    assert [record.value for record in records] == [b"bytes", b"text", b'{"n":1}', b"value", b"row 1", b"row 2"]
    assert (records[3].key, records[3].tag) == (b"key", b"tag")
    columns = log.read_arrow("events")
    assert columns.column("key").to_pylist() == [None, None, None, b"key", b"a", b"b"]
    assert columns.column("seq").to_pylist() == [1, 2, 3, 4, 5, 6]


def test_topics_and_their_settings_are_those_of_the_embedded_log(server: RealServer, log: RemoteLog) -> None:
    settings = {
        "order": 5,
        "durability": "disk",
        "ttl_ms": 60_500,
        "cap_records": 9,
        "cap_bytes": 1_000_000,
        "discard": "reject",
        "segment_max_records": 7,
        "segment_max_bytes": 8_192,
        "idempotency_window_ms": 5,
        "ack_level": 1,
        "priority": -3,
        "dead_letter": "events",
    }
    created = log.create_topic("aged", **settings)
    assert created.config.to_json() == server.run(lambda served: served.describe("aged")).config.to_json()
    assert settings.items() <= created.config.to_json().items()
    changed = log.configure_topic("aged", ttl_ms=0, priority=None)
    assert changed.config.to_json() == {**created.config.to_json(), "ttl_ms": 0, "priority": None}
    assert log.describe("aged") == changed
    assert log.topics() == ["aged", "events"]
    with pytest.raises(ConfigError, match="did you mean ttl_ms"):
        log.create_topic("other", ttl_m=1)
    with pytest.raises(ConfigError, match="must be one of 0, 1, 2, 5"):
        log.create_topic("other", order=3)
    with pytest.raises(ConflictError, match="order of a topic is fixed"):
        log.configure_topic("aged", order=2)
    with pytest.raises(InvalidInputError):
        log.create_topic("not a name")
    with pytest.raises(ConflictError):
        log.create_topic("events")
    log.delete_topic("aged")
    with pytest.raises(NotFoundError):
        log.publish("aged", b"value")
    log.publish("events", [b"one", b"two"])
    info = log.describe("events")
    assert (info.floor, info.next_seq, info.record_count, info.byte_count) == (1, 3, 2, 16)


@pytest.mark.usefixtures("each_event_loop")
def test_records_are_deleted_by_seq_and_by_tag(log: RemoteLog) -> None:
    log.publish("events", [Message(b"%d" % number, tag=f"t{number % 3}") for number in range(9)])
    assert log.delete("events", tag="t1", before_seq=6) == 2
    assert log.delete("events", before_seq=2) == 1
    assert log.delete("events", tag_prefix="t2") == 3
    assert log.delete("events", tag_prefix="t2") == 0
    assert stored(log) == [b"3", b"6", b"7"]
    with pytest.raises(NotFoundError):
        log.delete("nowhere", before_seq=2)

    async def work() -> None:
        async with seawall.connect_async(str(log.target)) as other:
            assert (await other.create_topic("more", order=1)).config.order == 1
            assert await other.delete("events", before_seq=1 << 62) == 3

    asyncio.run(work())


def test_a_publisher_of_a_deleted_topic_raises_not_found(log: RemoteLog) -> None:
    publisher = log.publisher("events")
    publisher.publish(b"one").result()
    log.delete_topic("events")
    with pytest.raises(NotFoundError):
        publisher.publish(b"two").result()
    with pytest.raises(NotFoundError):
        publisher.close()


@pytest.mark.parametrize(
    ("event_loops", "compression", "connections"),
    [(1, "none", 1), (1, "lz4", 3), (3, "zstd", 1), (3, "none", 3)],
)
def test_a_publisher_stores_everything_once_in_order(
    server: RealServer, log: RemoteLog, compression: Compression, connections: int
) -> None:
    wanted = [b"%d" % number * 20 for number in range(5_000)]
    with log.publisher("events", batch_size=2_000, compression=compression, connections=connections) as publisher:
        deliveries = [publisher.publish(value) for value in wanted]
        publisher.flush()
    found = dict(enumerate(stored(log), 1))
    assert [found[delivery.first_seq] for delivery in deliveries] == wanted
    assert len(found) == len(wanted)
    if connections == 1:
        assert list(found.values()) == wanted


@one_loop_and_three
def test_cut_connections_lose_nothing_and_store_nothing_twice(server: RealServer, log: RemoteLog) -> None:
    wanted = [b"%d" % number for number in range(3_000)]
    with log.publisher("events", batch_size=100, connections=2) as publisher:
        for number, value in enumerate(wanted):
            publisher.publish(value)
            if number % 500 == 250:
                server.cut_all()
    assert sorted(stored(log)) == sorted(wanted)


@one_loop_and_three
def test_a_restart_loses_nothing_and_stores_nothing_twice(server: RealServer, log: RemoteLog) -> None:
    wanted = [b"%d" % number for number in range(2_000)]
    with log.publisher("events", batch_size=100) as publisher:
        for value in wanted[:1_000]:
            publisher.publish(value)
        server.stop()
        for value in wanted[1_000:]:
            publisher.publish(value)
        server.start()
    assert stored(log) == wanted
    assert log.publish("events", b"after").first_seq == 2_001


@pytest.mark.slow
def test_a_killed_server_loses_nothing_and_stores_nothing_twice(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    try:
        with seawall.connect(server.url, timeout_s=60) as log:
            log.create_topic("events")
            wanted = [b"%d" % number for number in range(6_000)]
            with log.publisher("events", batch_size=200, max_in_flight=20_000) as publisher:
                for number, value in enumerate(wanted):
                    publisher.publish(value)
                    if number % 2_000 == 1_000:
                        server.kill()
                        server.start()
            assert stored(log) == wanted
    finally:
        server.stop()


def test_a_client_continues_its_client_seqs_and_fences_its_old_session(server: RealServer, log: RemoteLog) -> None:
    old = log.publisher("events", client_id=5, batch_size=1)
    old.publish(b"one").result()
    old.publish(b"two").result()
    new = log.publisher("events", client_id=5, batch_size=1)
    assert new.next_client_seq == 3
    repeated = new.publish(b"two", client_seq=2).result()
    assert (repeated.is_duplicate, repeated.first_seq) == (True, 2)
    with pytest.raises(ConflictError):
        new.publish(b"another", client_seq=1).result()
    assert new.publish(b"three").result().first_seq == 3
    with pytest.raises(FencedError):
        old.publish(b"late").result()
    with pytest.raises(FencedError):
        old.close()
    with pytest.raises(ConflictError):
        new.close()
    assert stored(log) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("ack", [0, 1, 2])
def test_every_ack_level(log: RemoteLog, ack: int) -> None:
    with log.publisher("events", ack=ack) as publisher:
        deliveries = [publisher.publish(b"%d" % number) for number in range(100)]
        assert not ack or [delivery.result().first_seq for delivery in deliveries] == list(range(1, 101))
    assert log.wait_for("events", 100, 20)
    assert len(stored(log)) == 100


def test_readers_get_gaps_for_evicted_records_and_none_for_deleted_ones(server: RealServer, log: RemoteLog) -> None:
    log.publish("events", [Message(b"one", tag="a"), Message(b"two", tag="b"), Message(b"three", tag="a")])
    log.publish("events", [b"four", b"five"])

    async def delete(served: ServedLog) -> int:
        return await served.delete("events", tag="b")

    assert server.run(delete) == 1
    batch = log.read("events")[0]
    assert isinstance(batch, ReceivedBatch)
    assert (batch.live, len(batch)) == (((1, 1), (3, 3)), 2)
    assert log.read_arrow("events").column("seq").to_pylist() == [1, 3, 4, 5]
    following = iter(log.subscriber("events"))
    assert values([next(following), next(following)]) == [b"one", b"three", b"four", b"five"]

    async def cap(served: ServedLog) -> None:
        await served.configure_topic("events", cap_records=1)

    server.run(cap)
    log.publish("events", b"six")
    first, *rest = log.read("events")
    assert isinstance(first, Gap)
    assert (first.first_seq, first.reason) == (1, GapReason.CAP)
    assert values(rest)[-1] == b"six"
    assert next(iter(log.subscriber("events"))) == first


def test_starts_and_cursors(log: RemoteLog) -> None:
    before = datetime.now(UTC)
    log.publish("events", [b"one", b"two"])
    log.publish("events", b"three")
    assert log.seq_at("events", before) == 1
    assert log.seq_at("events", datetime(2100, 1, 1, tzinfo=UTC)) == 4
    assert log.start_seq("events", "latest", None) == 4
    assert log.committed("billing", "events") is None
    subscriber = log.subscriber("events", "committed", owner="billing")
    assert values(subscriber.poll()) == [b"one", b"two", b"three"]
    subscriber.commit()
    assert log.committed("billing", "events") == 4
    assert log.subscriber("events", "committed", owner="billing").poll() == []


def test_cursors_survive_a_restart(server: RealServer, log: RemoteLog) -> None:
    log.publish("events", [b"one", b"two"])
    log.commit("billing", "events", 2)
    server.stop()
    server.start()
    assert log.committed("billing", "events") == 2


def test_reading_all_topics_by_position(log: RemoteLog) -> None:
    log.create_topic("other")
    subscriber = log.position_subscriber("latest")
    log.publish("events", b"one")
    log.publish("other", b"two")
    log.publish("events", b"three")
    items = log.read_positions()
    assert [item.topic for item in items] == ["events", "other", "events"]
    assert [item.position for item in subscriber.poll(5) if isinstance(item, ReceivedBatch)] == [
        item.position for item in items if isinstance(item, ReceivedBatch)
    ]
    assert subscriber.poll() == []


@one_loop_and_three
def test_polls_and_iterators_wait_for_records_of_others(server: RealServer, log: RemoteLog) -> None:
    subscriber = log.subscriber("events", "latest")
    following = iter(log.subscriber("events", "latest"))
    assert subscriber.poll(0.01) == []
    writer = threading.Timer(0.05, log.publish, ("events", b"late"))
    writer.start()
    assert values(subscriber.poll(20)) == [b"late"]
    writer.join()
    assert values([next(following)]) == [b"late"]
    log.publish("events", b"later")
    assert values([next(following)]) == [b"later"]


def test_large_batches_are_published_and_read(log: RemoteLog) -> None:
    wanted = [bytes([number]) * 3_000_000 for number in range(12)]
    assert log.publish("events", wanted).seqs == range(1, 13)
    assert stored(log) == wanted
    following = iter(log.subscriber("events"))
    found: list[bytes] = []
    while len(found) < 12:
        found += values([next(following)])
    assert found == wanted


def test_a_token_is_required_and_checked(tmp_path: Path) -> None:
    with RealServer(tmp_path / "data", Access({"secret": Right.ALL})) as server:
        with pytest.raises(CallerError, match="code 40"):
            seawall.connect(server.url)
        with pytest.raises(CallerError, match="code 41"):
            seawall.connect(server.url, token="wrong")
        with seawall.connect(server.url, token="secret") as log:
            log.create_topic("events")
            assert log.publish("events", b"value").first_seq == 1


def test_threads_share_a_log(log: RemoteLog) -> None:
    seqs: list[int] = []

    def work() -> None:
        for _ in range(20):
            seqs.append(log.publish("events", b"value").first_seq)
            log.read("events", seqs[-1], limit=1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seqs) == list(range(1, 121))


@pytest.mark.usefixtures("each_event_loop")
def test_the_same_api_on_an_event_loop(server: RealServer) -> None:
    async def work() -> None:
        async with seawall.connect_async(server.url) as log:
            await log.create_topic("events")
            assert (await log.publish("events", [b"one", b"two"])).seqs == range(1, 3)
            async with await log.publisher("events", batch_size=200) as publisher:
                deliveries = [publisher.publish(b"%d" % number) for number in range(500)]
                server.cut_all()
                assert [(await delivery).first_seq for delivery in deliveries] == list(range(3, 503))
            assert (await log.read_arrow("events")).num_rows == 502
            found = 0
            async for item in log.subscriber("events", 101):
                assert isinstance(item, ReceivedBatch)
                found += len(item)
                if item.last_seq == 502:
                    break
            assert found == 402
            assert await log.topics() == ["events"]
            subscriber = log.position_subscriber("latest")
            assert await subscriber.poll() == []
            await log.create_topic("other")
            last = await log.publish("other", b"last")
            [item] = await subscriber.poll(20)
            assert (item.topic, subscriber.next_position) == ("other", last.position + 1)
            assert [each.topic async for each in _first(log.position_subscriber(last.position))] == ["other"]
            assert len(await log.read_positions(limit=1)) == 1
            with pytest.raises(InvalidInputError):
                await log.read_positions(-1)

    asyncio.run(work())


async def _first(subscriber: AsyncIterable[PositionItem]) -> AsyncIterator[PositionItem]:
    async for item in subscriber:
        yield item
        return


@pytest.mark.usefixtures("each_event_loop")
def test_a_write_only_token_allows_writes_and_no_reads(tmp_path: Path) -> None:
    with RealServer(tmp_path / "data", Access({"writer": Right.WRITE_ONLY})) as server:
        with seawall.connect(server.url, token="writer") as log:
            log.create_topic("events", order=5)
            assert log.publish("events", b"one").seqs == range(1, 2)
            with log.publisher("events") as publisher:
                publisher.publish(b"two")
            assert log.configure_topic("events", ttl_ms=1_000_000).record_count == 2
            assert log.delete("events", before_seq=2) == 1
            for denied in (log.topics, lambda: log.describe("events"), lambda: log.read("events")):
                with pytest.raises(CallerError, match="code 42"):
                    denied()
            log.delete_topic("events")

        async def work() -> None:
            async with seawall.connect_async(server.url, token="writer") as other:
                await other.create_topic("events")
                assert (await other.publish("events", b"three")).first_seq == 1

        asyncio.run(work())


@pytest.mark.usefixtures("each_event_loop")
def test_a_publisher_reports_the_latency_of_its_batches(log: RemoteLog) -> None:
    with log.publisher("events") as publisher:
        assert publisher.latency.count == 0
        for number in range(20):
            publisher.publish(b"%d" % number).result()
        latency = publisher.latency
        assert latency.count == 20
        assert 0 < latency.p50_ns <= latency.p99_ns <= latency.p999_ns <= latency.max_ns

    async def work() -> None:
        async with seawall.connect_async(str(log.target)) as other:
            publisher = await other.publisher("events")
            await publisher.publish(b"one")
            assert publisher.latency.count == 1
            await publisher.close()

    asyncio.run(work())


@pytest.mark.usefixtures("each_event_loop")
def test_skips_are_reported_to_readers_by_seq(server: RealServer, log: RemoteLog) -> None:
    topic_id = log.create_topic("ordered", order=5).topic_id
    hello = Hello(flags=HelloFlags.OPEN, client_id=ClientId(9), gap_timeout_ms=20)
    connection = Connection.open(f"127.0.0.1:{server.port}", hello, timeout_s=20, clock=OsClock())
    for number in (1, 4, 6):
        block = encode_raw(b"%d" % number)
        header = batch_header(
            block,
            topic_id=topic_id,
            client_id=ClientId(9),
            client_seq=ClientSeq(number),
            session_epoch=connection.welcome.session_epoch,
            record_count=1,
            timestamp_ns=TimestampNs(0),
        )
        connection.send(header.header_bytes(), block)
    assert log.wait_for("ordered", 3, 30)
    connection.close()
    kinds = [ReceivedBatch, ReceivedSkip, ReceivedBatch, ReceivedSkip, ReceivedBatch]
    embedded = server.run(lambda served: served.read("ordered"))
    for items in (embedded, log.read("ordered"), list(log.follow("ordered")), list(log.subscriber("ordered").poll())):
        assert [type(item) for item in items] == kinds[: len(items)]
        skips = [(item.position, item.first_client_seq) for item in items if isinstance(item, ReceivedSkip)]
        known = [(item.position, item.first_client_seq) for item in embedded if isinstance(item, ReceivedSkip)]
        assert skips == known[: len(skips)]
    assert len(log.read("ordered")) == len(embedded) == 5
    assert log.read_arrow("ordered").column("value").to_pylist() == [b"1", b"4", b"6"]
    log.commit("consumer:5", "ordered", 2)
    assert log.committed("consumer:5", "ordered") == 2

    async def work() -> None:
        async with seawall.connect_async(server.url) as other:
            assert [type(item) for item in await other.read("ordered")] == kinds
            assert await other.committed("consumer:5", "ordered") == 2

    asyncio.run(work())
