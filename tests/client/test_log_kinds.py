"""Every kind of log behaves alike: each test runs with `open`, `connect`, `open_async` and `connect_async`.

Embedded logs have real files, connected ones a real node. Tests are coroutines: blocking calls run on threads, so that
one may wait while another publishes. `tests/test_api_parity.py` checks that the kinds have the same names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from real_server import RealServer

import seawall
from seawall.api.received import ReceivedBatch
from seawall.api.topic_config import Durability, TopicConfig
from seawall.api.topic_info import TopicInfo
from seawall.core.routers import RouterInfo, RouterSettings
from seawall.errors import (
    ConfigError,
    ConflictError,
    DataLossError,
    InvalidInputError,
    NotFoundError,
    SeawallError,
    WrongStateError,
)
from seawall.wire.format.gaps import Gap

SMALL = {"storage_wal_file_size": 4 * 1024 * 1024}
#: A timeout for events that are certain to happen.
TIMEOUT_S = 60.0


class Kind:
    """A log of any kind, or an object that it created, with one interface: every method is awaited."""

    def __init__(self, it: Any, is_async: bool) -> None:
        self.it = it
        self.is_async = is_async

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self.it, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            if self.is_async:
                return await method(*arguments, **named)
            return await asyncio.to_thread(method, *arguments, **named)

        return call

    async def create(self, name: str, *arguments: Any, **named: Any) -> Kind:
        """Create a publisher, a subscriber or a transaction of the log."""
        method = getattr(self.it, name)
        if not self.is_async:
            return Kind(await asyncio.to_thread(method, *arguments, **named), False)
        result = method(*arguments, **named)
        return Kind(await result if asyncio.iscoroutine(result) else result, True)

    async def take(self, count: int) -> list[Any]:
        """Iterate over it and return the first items."""
        if not self.is_async:
            return await asyncio.to_thread(lambda: list(islice(self.it, count)))
        found: list[Any] = []
        async for item in self.it:
            found.append(item)
            if len(found) == count:
                break
        return found

    async def rest(self) -> list[Any]:
        """Iterate over it up to its end."""
        if self.is_async:
            return [item async for item in self.it]
        return await asyncio.to_thread(lambda: list(self.it))

    async def followed(self, *arguments: Any) -> list[Any]:
        """Everything that `follow` yields."""
        if self.is_async:
            return [item async for item in self.it.follow(*arguments)]
        return await asyncio.to_thread(lambda: list(self.it.follow(*arguments)))


Opened = Callable[[], Any]


@pytest.fixture(params=["open", "connect", "open_async", "connect_async"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    kind = request.param
    if kind.startswith("open"):
        yield lambda: using(getattr(seawall, kind)(tmp_path / "data", **SMALL))
        return
    with RealServer(tmp_path / "data") as server:

        @asynccontextmanager
        async def connected() -> AsyncIterator[Kind]:
            async with using(await asyncio.to_thread(getattr(seawall, kind), server.url, timeout_s=30)) as log:
                yield log

        yield connected


@asynccontextmanager
async def using(log: Any) -> AsyncIterator[Kind]:
    if hasattr(log, "__aenter__"):
        async with log:
            yield Kind(log, True)
    else:
        try:
            yield Kind(log, False)
        finally:
            await asyncio.to_thread(log.close)


def run(opened: Opened, work: Callable[[Kind], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with opened() as log:
            await log.create_topic("events")
            async with asyncio.timeout(2 * TIMEOUT_S):
                await work(log)

    asyncio.run(main())


def values(items: list[Any]) -> list[bytes]:
    return [record.value for item in items if isinstance(item, ReceivedBatch) for record in item]


def test_a_topic_is_described_by_one_type(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        made = await log.create_topic("capped", cap_records=7, durability="disk")
        assert type(made) is TopicInfo
        assert made.config == TopicConfig(cap_records=7, durability=Durability.DISK)
        await log.publish("capped", [b"one", b"two"])
        info = await log.describe("capped")
        assert (info.name, info.topic_id, info.topic_epoch) == ("capped", made.topic_id, made.topic_epoch)
        assert (info.floor, info.next_seq, info.record_count) == (1, 3, 2)
        assert info.byte_count > 0
        assert info.created_at == made.created_at > 1_600_000_000
        assert (await log.configure_topic("capped", ttl_ms=60_000)).config.ttl_ms == 60_000

    run(opened, work)


def test_many_topics_are_created_and_each_error_is_returned(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        names = ["a", "events", "b", "no/name"]
        a, conflict, b, wrong = await log.create_topics(names, cap_records=3)
        assert (a.name, b.name, a.config.cap_records, b.config.cap_records) == ("a", "b", 3, 3)
        assert isinstance(conflict, ConflictError)
        assert isinstance(wrong, SeawallError)
        assert await log.topics() == ["a", "b", "events"]
        assert await log.create_topics([]) == []
        (bad,) = await log.create_topics(["c"], cap_record=3)
        assert isinstance(bad, ConfigError)
        with pytest.raises(InvalidInputError, match="list of strings"):
            await log.create_topics("events")

    run(opened, work)


def test_rows_of_a_table_are_records(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        table = pa.table({"value": [b"a", b"b"], "key": [b"x", b"y"]})
        assert list((await log.publish_arrow("events", table)).seqs) == [1, 2]
        assert (await log.publish_arrow("events", table.to_batches()[0])).first_seq == 3
        assert (await log.read_arrow("events", 2)).column("value").to_pylist() == [b"b", b"a", b"b"]

    run(opened, work)


def test_following_stops_at_the_current_end_and_reports_gaps(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await log.create_topic("newest", cap_records=2)
        for number in range(4):
            await log.publish("newest", b"%d" % number)
        gap, *batches = await log.followed("newest")
        assert (type(gap), gap.first_seq, gap.last_seq) == (Gap, 1, 2)
        assert values(batches) == [b"2", b"3"]
        assert values(await log.followed("newest", 4)) == [b"3"]
        assert await log.followed("events") == []
        with pytest.raises(InvalidInputError, match="begin at 1"):
            await log.followed("events", 0)
        with pytest.raises(NotFoundError):
            await log.followed("nowhere")

    run(opened, work)


def test_records_one_by_one_up_to_the_current_end(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        assert await (await log.create("records", "events")).rest() == []
        await log.publish("events", [{"n": 1}, {"n": 2}])
        await log.publish("events", [seawall.Message({"n": n}, key=f"k{n}") for n in range(3, 59)])
        await log.publish("events", seawall.Message("deleted", tag="old"))
        await log.delete("events", tag="old")
        reader = await log.create("records", "events", 2)
        first, *others = await reader.rest()
        assert (first.seq, first.key, first.json()) == (2, None, {"n": 2})
        assert [record.key for record in others] == [b"k%d" % n for n in range(3, 59)]
        assert abs(first.timestamp - datetime.now(UTC)) < timedelta(hours=1)
        assert reader.it.next_seq == 60
        assert await reader.rest() == []
        with pytest.raises(NotFoundError):
            await (await log.create("records", "nowhere")).rest()

    run(opened, work)


def test_a_reader_of_records_commits_up_to_the_current_one(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await log.publish("events", [b"1", b"2", b"3"])
        reader = await log.create("records", "events", "committed", owner="billing", wait=True)
        assert [record.value for record in await reader.take(2)] == [b"1", b"2"]
        await reader.commit()
        assert await log.committed("billing", "events") == reader.it.next_seq == 3
        # A second loop continues, and waits at the end.
        waiting = asyncio.create_task(reader.take(2))
        await log.publish("events", b"4")
        assert [record.value for record in await waiting] == [b"3", b"4"]
        await reader.close()
        assert await reader.rest() == []
        again = await log.create("records", "events", "committed", owner="billing")
        assert [record.value for record in await again.rest()] == [b"3", b"4"]
        with pytest.raises(InvalidInputError, match="without an owner"):
            await (await log.create("records", "events")).commit()

    run(opened, work)


def test_a_reader_of_records_fails_at_a_gap_by_default(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await log.create_topic("newest", cap_records=2)
        for number in range(4):
            await log.publish("newest", b"%d" % number)
        with pytest.raises(DataLossError, match=r"seqs from 1 to 2 are lost, evicted by the cap.*fail_on_loss=False"):
            await (await log.create("records", "newest", 1)).rest()
        reader = await log.create("records", "newest", 1, fail_on_loss=False)
        assert [record.value for record in await reader.rest()] == [b"2", b"3"]
        # Without a seq to start at, records that are gone are no loss.
        assert len(await (await log.create("records", "newest")).rest()) == 2

    run(opened, work)


def test_the_seq_at_a_time(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await log.publish("events", [b"one", b"two"])
        now = datetime.now(UTC)
        assert await log.seq_at("events", now - timedelta(hours=1)) == 1
        assert await log.seq_at("events", now + timedelta(hours=1)) == 3

    run(opened, work)


def test_waiting_for_a_record(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        assert await log.wait_for("events", 1, 0) is False
        assert await log.wait_for("events", 1, timeout_s=0.01) is False
        for timeout_s in (None, TIMEOUT_S):
            seq = (await log.describe("events")).next_seq + 1
            waiting = asyncio.create_task(log.wait_for("events", seq, timeout_s))
            await log.publish("events", b"not yet")
            await log.publish("events", b"awaited")
            assert await waiting is True
        assert await log.wait_for("events", 4, 0) is True
        assert await log.wait_for("events", 5, 0) is False
        with pytest.raises(NotFoundError):
            await log.wait_for("nowhere", 1, 0)

    run(opened, work)


def test_a_deleted_record_counts_as_published(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await log.publish("events", [seawall.Message(b"secret", tag="t"), seawall.Message(b"too", tag="t")])
        assert await log.delete("events", tag="t") == 2
        assert await log.wait_for("events", 2, 0) is True
        assert await log.wait_for("events", 3, 0) is False

    run(opened, work)


def test_waiting_for_a_position(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        delivery = await log.publish("events", b"one")
        assert await log.wait_for_position(0, 0) is True
        assert await log.wait_for_position(delivery.position, 0) is True
        following = delivery.position + 1
        assert await log.wait_for_position(following, 0) is False
        assert await log.wait_for_position(following, timeout_s=0.01) is False
        for timeout_s in (None, TIMEOUT_S):
            waiting = asyncio.create_task(log.wait_for_position(following, timeout_s))
            delivery = await log.publish("events", b"awaited")
            assert await waiting is True
            following = delivery.position + 1
        with pytest.raises(InvalidInputError, match="begin at 0"):
            await log.wait_for_position(-1, 0)

    run(opened, work)


def test_iterating_over_a_subscriber_waits_for_more(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        subscriber = await log.create("subscriber", "events")
        await log.publish("events", b"one")
        assert values(await subscriber.take(1)) == [b"one"]
        assert subscriber.it.next_seq == 2
        waiting = asyncio.create_task(subscriber.take(1))
        await log.publish("events", b"two")
        assert values(await waiting) == [b"two"]
        assert await subscriber.poll() == []

    run(opened, work)


def test_records_not_yet_delivered_are_not_committed(opened: Opened) -> None:
    """Also if one read returned several items."""

    async def work(log: Kind) -> None:
        for number in range(1, 4):
            await log.publish("events", b"%d" % number)
        subscriber = await log.create("subscriber", "events", "committed", owner="billing")
        assert values(await subscriber.take(1)) == [b"1"]
        await subscriber.commit()
        assert await log.committed("billing", "events") == subscriber.it.next_seq == 2
        assert values(await subscriber.poll()) == [b"2", b"3"]
        again = await log.create("subscriber", "events", "committed", owner="billing")
        assert values(await again.take(2)) == [b"2", b"3"]
        with pytest.raises(InvalidInputError, match="without an owner"):
            await (await log.create("subscriber", "events")).commit()

    run(opened, work)


def test_a_subscriber_skips_deleted_records(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        subscriber = await log.create("subscriber", "events")
        await log.publish("events", [seawall.Message(b"secret", tag="t"), seawall.Message(b"too", tag="t")])
        await log.delete("events", tag="t")
        assert await subscriber.poll() == []
        assert subscriber.it.next_seq == 3
        iterating = await log.create("subscriber", "events")
        waiting = asyncio.create_task(iterating.take(1))
        await log.publish("events", b"kept")
        assert values(await waiting) == values(await subscriber.poll(TIMEOUT_S)) == [b"kept"]

    run(opened, work)


def test_polling_waits_for_more(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        subscriber = await log.create("subscriber", "events", "latest")
        everything = await log.create("position_subscriber", "latest")
        assert await subscriber.poll(timeout_s=0.01) == await everything.poll(timeout_s=0.01) == []
        waiting = [asyncio.create_task(each.poll(TIMEOUT_S)) for each in (subscriber, everything)]
        await log.publish("events", b"awaited")
        assert [values(each) for each in await asyncio.gather(*waiting)] == [[b"awaited"]] * 2

    run(opened, work)


def test_iterating_over_all_topics_waits_for_more(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await log.create_topic("others")
        await log.publish("events", b"one")
        await log.publish("others", b"two")
        third = await log.publish("events", b"three")
        subscriber = await log.create("position_subscriber")
        assert values(await subscriber.take(1)) == [b"one"]
        assert values(await subscriber.take(1)) == [b"two"]
        assert subscriber.it.next_position == third.position
        assert values(await subscriber.poll()) == [b"three"]
        assert subscriber.it.next_position == third.position + 1
        waiting = asyncio.create_task(subscriber.take(1))
        await log.publish("others", b"four")
        assert values(await waiting) == [b"four"]

    run(opened, work)


def test_a_shared_position_is_read_again_after_a_reader_stopped_inside(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await log.create_topic("others")
        transaction = await log.create("transaction")
        await transaction.publish("events", b"one")
        await transaction.publish("others", b"two")
        committed = await transaction.commit()
        subscriber = await log.create("position_subscriber")
        assert values(await subscriber.take(1)) == [b"one"]
        assert subscriber.it.next_position == committed.position
        assert values(await subscriber.take(2)) == [b"one", b"two"]
        assert subscriber.it.next_position == committed.position + 1

    run(opened, work)


def test_publishers_put_flush_and_close(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        publisher = await log.create("publisher", "events", max_in_flight=1, linger_s=0.0, compression="lz4")
        assert publisher.it.topic == "events"
        for number in range(20):
            await publisher.put(b"%d" % number)
        # An iterator can be read once, also where there is no space at first.
        delivery = await publisher.put(iter([b"more", b"and more"]))
        await publisher.flush(timeout_s=TIMEOUT_S)
        assert delivery.done
        assert list(delivery.seqs) == [21, 22]
        assert publisher.it.in_flight == 0
        assert publisher.it.latency.count > 0
        assert publisher.it.latency.max_ns > 0
        assert publisher.it.client_id is None
        with pytest.raises(InvalidInputError, match="client_id"):
            _ = publisher.it.next_client_seq
        with pytest.raises(InvalidInputError, match="client_id"):
            await publisher.put(b"x", client_seq=1)
        await publisher.close(timeout_s=TIMEOUT_S)
        await publisher.close()
        with pytest.raises(WrongStateError, match="closed"):
            await publisher.put(b"late")
        assert values(await log.followed("events")) == [b"%d" % number for number in range(20)] + [b"more", b"and more"]

    run(opened, work)


def test_a_publisher_with_a_client_id_continues_its_session(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        publisher = await log.create("publisher", "events", client_id=5)
        assert (publisher.it.client_id, publisher.it.next_client_seq) == (5, 1)
        await publisher.put(b"one")
        await publisher.flush()
        again = await publisher.put(b"one", client_seq=1)
        await publisher.flush()
        assert again.is_duplicate
        await publisher.close()
        assert publisher.it.client_id is None

    run(opened, work)


def test_wrong_options_of_a_publisher_are_refused(opened: Opened) -> None:
    wrong = {
        "ack": 3,
        "client_id": 0,
        "max_in_flight": 0,
        "linger_s": -1,
        "batch_size": 0,
        "compression": "zip",
        "connections": 0,
    }

    async def work(log: Kind) -> None:
        for name, value in wrong.items():
            with pytest.raises(InvalidInputError, match=name.removesuffix("_id")):
                await log.create("publisher", "events", **{name: value})

    run(opened, work)


def test_staging_accepts_a_compression(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        stager = await log.create("stage", compression="zstd")
        await stager.publish([b"one", b"two"])
        ranges = await stager.ranges()
        await stager.close()
        await log.commit_staged("job", 1, [("events", each) for each in ranges])
        assert values(await log.followed("events")) == [b"one", b"two"]
        with pytest.raises(InvalidInputError, match="compression 'zip'"):
            await log.create("stage", compression="zip")

    run(opened, work)


def test_a_transaction_without_an_epoch_gets_the_next_of_its_owner(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        for epoch in (1, 2):
            transaction = await log.create("transaction", "job")
            await transaction.publish("events", b"%d" % epoch)
            assert (await transaction.commit()).epoch == epoch
        assert values(await log.followed("events")) == [b"1", b"2"]

    run(opened, work)


def test_routers_copy_what_is_published(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        made = await log.create_router("copy", "events", "audit", tag_prefix="a", preserve_tag=False)
        assert type(made) is RouterInfo
        assert (made.source, made.dest, made.forwarded, made.next_seq) == ("events", "audit", 0, 1)
        assert made.settings == RouterSettings(tag_prefix="a", preserve_tag=False)
        await log.create_router("audit->all", "audit", "all")
        messages = [seawall.Message(b"%d" % number, tag="ab" if number % 2 else "b") for number in range(10)]
        await log.publish("events", messages)
        assert (await log.describe("all")).next_seq == 6
        assert values(await log.read("all")) == [b"1", b"3", b"5", b"7", b"9"]
        assert (await log.read_arrow("audit", columns=("tag",))).column("tag").null_count == 5
        subscriber = await log.create("subscriber", "all", 6)
        await log.publish("events", seawall.Message(b"later", tag="a"))
        assert values(await subscriber.poll(TIMEOUT_S)) == [b"later"]
        assert [each.name for each in await log.routers()] == ["audit->all", "copy"]
        info = await log.describe_router("copy")
        assert (info.forwarded, info.next_seq, info.blocked) == (6, 12, None)
        with pytest.raises(ConflictError, match="would close a loop"):
            await log.create_router("back", "all", "events")
        with pytest.raises(NotFoundError, match="no topic 'missing'"):
            await log.create_router("x", "events", "missing", create_dest=False)
        with pytest.raises(InvalidInputError):
            await log.create_router("x", "events", "y", tag="a", tag_prefix="b")
        with pytest.raises(InvalidInputError):
            await log.create_router("bad name", "events", "y")
        await log.delete_router("copy")
        with pytest.raises(NotFoundError, match="no router 'copy'"):
            await log.delete_router("copy")
        assert values(await log.read("audit")) == [b"1", b"3", b"5", b"7", b"9", b"later"]

    run(opened, work)
