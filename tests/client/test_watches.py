"""Watches behave alike with every kind of log: each test runs with `open`, `connect`, `open_async`, `connect_async`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_log_kinds import TIMEOUT_S, Kind, Opened, opened, run, values

from seawall.api.received import ReceivedBatch
from seawall.api.watch_items import TopicCaughtUp, TopicDeleted, WatchGap
from seawall.errors import DataLossError, InvalidInputError, LimitError, NotFoundError, WrongStateError
from seawall.limits import WATCH_NAMES_MAX
from seawall.wire.format.codes import GapReason

__all__ = ["opened"]


async def items_until(watch: Kind, count: int) -> list[Any]:
    """Poll until there are `count` items."""
    found: list[Any] = []
    while len(found) < count:
        arrived = await watch.poll(TIMEOUT_S)
        assert arrived, found
        found += arrived
    return found


def by_topic(items: list[Any]) -> dict[str, list[bytes]]:
    return {
        topic: values([item for item in items if item.topic == topic])
        for topic in sorted({item.topic for item in items if isinstance(item, ReceivedBatch)})
    }


async def filled(log: Kind) -> None:
    await log.create_topics(["audit.a", "audit.b", "other"])
    for topic in ("events", "audit.a", "other"):
        await log.publish(topic, [f"{topic} {number}".encode() for number in range(3)])


def test_topics_are_watched_by_name_and_by_prefix(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await filled(log)
        watch = await log.create("watch", ["events", "audit.*"])
        items = await items_until(watch, 5)
        assert by_topic(items) == {
            "audit.a": [b"audit.a 0", b"audit.a 1", b"audit.a 2"],
            "events": [b"events 0", b"events 1", b"events 2"],
        }
        caught_up = [item for item in items if isinstance(item, TopicCaughtUp)]
        assert {(item.topic, item.next_seq) for item in caught_up} == {("audit.a", 4), ("audit.b", 1), ("events", 4)}
        assert watch.it.topics == ["audit.a", "audit.b", "events"]
        await log.publish("other", b"unseen")
        await log.publish("audit.b", b"first")
        await log.publish("events", b"next")
        # No report of a topic that stays at its end.
        assert by_topic(await items_until(watch, 2)) == {"audit.b": [b"first"], "events": [b"next"]}
        await watch.close()

    run(opened, work)


def test_everything_is_watched_by_an_asterisk(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await filled(log)
        watch = await log.create("watch", ["*"], "latest")
        assert {type(item) for item in await items_until(watch, 4)} == {TopicCaughtUp}
        for topic in ("other", "audit.b"):
            await log.publish(topic, b"x")
        assert by_topic(await items_until(watch, 2)) == {"audit.b": [b"x"], "other": [b"x"]}
        await watch.close()

    run(opened, work)


def test_topics_that_appear_later_join_from_their_beginning(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        watch = await log.create("watch", ["audit.*"], "latest")
        await watch.poll()
        assert watch.it.topics == []
        await log.create_topic("audit.x")
        await log.publish("audit.x", [b"1", b"2"])
        items = await items_until(watch, 2)
        while not by_topic(items):
            items += await items_until(watch, 1)
        assert by_topic(items) == {"audit.x": [b"1", b"2"]}
        assert watch.it.topics == ["audit.x"]
        # The one that appeared while nobody watched is new to the cursor, too.
        cursor = watch.it.cursor
        await watch.close()
        await log.create_topic("audit.y")
        await log.publish("audit.y", b"3")
        again = await log.create("watch", ["audit.*", "events"], "latest", cursor=cursor)
        assert by_topic(await items_until(again, 4)) == {"audit.y": [b"3"]}
        await again.close()

    run(opened, work)


def test_a_watch_starts_where_requested(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await filled(log)
        for start, expected in (
            (
                "earliest",
                {
                    "audit.a": [b"audit.a 0", b"audit.a 1", b"audit.a 2"],
                    "events": [b"events 0", b"events 1", b"events 2"],
                },
            ),
            ("latest", {}),
            ({"events": 3}, {"audit.a": [b"audit.a 0", b"audit.a 1", b"audit.a 2"], "events": [b"events 2"]}),
        ):
            watch = await log.create("watch", ["events", "audit.*"], start)
            assert by_topic(await items_until(watch, 3 + len(expected))) == expected
            cursor = watch.it.cursor
            await watch.close()
            # The cursor comes before the start.
            again = await log.create("watch", ["events", "audit.*"], start, cursor=cursor)
            assert by_topic(await items_until(again, 3)) == {}
            await again.close()

    run(opened, work)


def test_wrong_watches_are_refused(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        for wrong, error in (
            (([],), InvalidInputError),
            (("events",), InvalidInputError),
            ((["no/name"],), InvalidInputError),
            ((["a*b"],), InvalidInputError),
            ((["_staging*"],), InvalidInputError),
            ((["events"] * (WATCH_NAMES_MAX + 1),), LimitError),
            ((["events"], "yesterday"), InvalidInputError),
            ((["events"], {"other": 1}), InvalidInputError),
            ((["events"], {"events": 0}), InvalidInputError),
        ):
            with pytest.raises(error):
                await log.create("watch", *wrong)
        for named in ({"cursor": "nonsense"}, {"cursor": ""}, {"consistency": "weak"}):
            with pytest.raises(InvalidInputError):
                await log.create("watch", ["events"], **named)
        for missing in ((["nowhere"],), (["no*"], {"nowhere": 1})):
            with pytest.raises(NotFoundError, match="nowhere"):
                # On an event loop the first read looks the topics up.
                await (await log.create("watch", *missing)).poll()

    run(opened, work)


def test_a_deleted_topic_ends_and_the_others_go_on(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await filled(log)
        watch = await log.create("watch", ["events", "audit.*"])
        await items_until(watch, 5)
        before = watch.it.cursor
        await log.publish("audit.b", b"unread")
        await log.delete_topic("audit.b")
        await log.delete_topic("events")
        await log.publish("audit.a", b"still there")
        items = await items_until(watch, 3)
        while "audit.a" not in by_topic(items) or not {"audit.b", "events"} <= {
            item.topic for item in items if isinstance(item, TopicDeleted)
        }:
            items += await items_until(watch, 1)
        assert by_topic(items)["audit.a"] == [b"still there"]
        assert [item for item in items if item.topic == "events"] == [TopicDeleted("events", 4, 4)]
        assert watch.it.topics == ["audit.a"]
        # A watch that was away reports the same, though the names are known from its cursor only.
        again = await log.create("watch", ["events", "audit.*"], cursor=before)
        items = await items_until(again, 4)
        deleted = {item.topic: item.next_seq for item in items if isinstance(item, TopicDeleted)}
        assert deleted == {"audit.b": 1, "events": 4}
        await watch.close()
        await again.close()

    run(opened, work)


def test_a_topic_that_was_created_again_is_reported_and_continues(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await filled(log)
        watch = await log.create("watch", ["events"])
        await items_until(watch, 2)
        cursor = watch.it.cursor
        await watch.close()
        await log.delete_topic("events")
        await log.create_topic("events")
        again = await log.create("watch", ["events"], cursor=cursor)
        assert await items_until(again, 2) == [
            WatchGap(1, 0, GapReason.RECREATED, "events"),
            TopicCaughtUp("events", 1),
        ]
        await log.publish("events", [b"new", b"life"])
        assert values(await items_until(again, 1)) == [b"new", b"life"]
        await again.close()
        third = await log.create("watch", ["events"], cursor=cursor)
        gap, *rest = await items_until(third, 2)
        assert gap == WatchGap(1, 2, GapReason.RECREATED, "events")
        assert values(rest) == [b"new", b"life"]
        # A watch that has seen the end of a topic reads its next life like any other that joins.
        await log.delete_topic("events")
        rest = await items_until(third, 1)
        while not isinstance(rest[-1], TopicDeleted):
            rest += await items_until(third, 1)
        await log.create_topic("events")
        await log.publish("events", b"third life")
        items = await items_until(third, 1)
        while not values(items):
            items += await items_until(third, 1)
        assert values(items) == [b"third life"]
        assert not any(isinstance(item, WatchGap) for item in items)
        await third.close()

    run(opened, work)


def test_lost_records_are_gaps_with_their_topic(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await log.create_topic("capped", cap_records=2)
        for number in range(5):
            await log.publish("capped", b"%d" % number)
        watch = await log.create("watch", ["capped", "events"], {"capped": 2})
        items = [item for item in await items_until(watch, 4) if item.topic == "capped"]
        assert items[0] == WatchGap(2, 3, GapReason.CAP, "capped")
        assert values(items) == [b"3", b"4"]
        await watch.close()
        strict = await log.create("watch", ["capped"], {"capped": 2})
        with pytest.raises(DataLossError, match="from 2 to 3 are lost"):
            await first_records(strict, 1)
        await strict.close()
        lax = await log.create("watch", ["capped"])
        # It starts at the beginning, so what was evicted before is no loss.
        assert [record.value for _, record in await first_records(lax, 2)] == [b"3", b"4"]
        await lax.close()

    run(opened, work)


async def first_records(watch: Kind, count: int, **named: Any) -> list[Any]:
    """The first of the records that a watch returns one by one."""
    records = watch.it.records(**named)
    if watch.is_async:
        found = []
        async for each in records:
            found.append(each)
            if len(found) == count:
                return found
    return await asyncio.to_thread(lambda: [next(records) for _ in range(count)])


def test_records_come_with_their_topic_and_the_cursor_is_behind_the_current_one(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await log.publish("events", [b"%d" % number for number in range(70)])
        watch = await log.create("watch", ["events"])
        found = await first_records(watch, 40)
        assert [(topic, record.seq, record.value) for topic, record in found] == [
            ("events", seq, b"%d" % (seq - 1)) for seq in range(1, 41)
        ]
        again = await log.create("watch", ["events"], cursor=watch.it.cursor)
        assert [record.seq for _, record in await first_records(again, 30)] == list(range(41, 71))
        # Another iteration continues in the middle of the batch.
        assert [record.seq for _, record in await first_records(watch, 30)] == list(range(41, 71))
        await watch.close()
        await again.close()

    run(opened, work)


def test_waiting_for_the_next_record_of_any_topic(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await log.create_topics(["audit.a", "audit.b"])
        watch = await log.create("watch", ["audit.*"], "latest")
        await items_until(watch, 2)
        polling = asyncio.ensure_future(watch.poll(TIMEOUT_S))
        await log.publish("audit.b", b"one")
        assert values(await polling) == [b"one"]
        iterating = asyncio.ensure_future(watch.take(2))
        await log.publish("audit.a", b"two")
        await log.publish("audit.b", b"three")
        assert sorted(values(await iterating)) == [b"three", b"two"]
        assert await watch.poll(0.01) == []
        await watch.close()
        with pytest.raises(WrongStateError, match="closed"):
            await watch.poll()

    run(opened, work)


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_strong_consistency_delivers_every_class(opened: Opened, durability: str) -> None:
    async def work(log: Kind) -> None:
        await log.create_topic("topic", durability=durability)
        await log.publish("topic", b"before")
        watch = await log.create("watch", ["topic"], consistency="strong")
        assert values(await items_until(watch, 2)) == [b"before"]
        for number in range(3):
            await log.publish("topic", b"%d" % number)
            assert values(await items_until(watch, 1)) == [b"%d" % number]
        await watch.close()

    run(opened, work)


def test_a_large_backlog_of_one_topic_does_not_hold_up_the_others(opened: Opened) -> None:
    async def work(log: Kind) -> None:
        await log.create_topics(["a.large", "b.small"])
        block = bytes(1 << 20)
        for _ in range(24):
            await log.publish("a.large", [block])
        await log.publish("b.small", b"quick")
        watch = await log.create("watch", ["a.*", "b.*"])
        items: list[Any] = []
        while b"quick" not in values(items):
            items += await items_until(watch, 1)
        assert TopicCaughtUp("a.large", 25) not in items
        while TopicCaughtUp("a.large", 25) not in items:
            items += await items_until(watch, 1)
        assert [item.first_seq for item in items if item.topic == "a.large" and isinstance(item, ReceivedBatch)] == [
            *range(1, 25)
        ]
        await watch.close()

    run(opened, work)
