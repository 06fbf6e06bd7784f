"""Watches of the embedded log: what a wake-up costs, what strong consistency waits for, and what is never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from simulated_log import open_simulated
from test_positions import Applied

import seawall
from seawall.api.received import ReceivedBatch, ReceivedSkip
from seawall.api.watch_items import TopicCaughtUp, TopicDeleted, WatchGap
from seawall.api.watches import spec_of
from seawall.core.types import Seq
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.watch_sources import WatchReader
from seawall.errors import LimitError, ReadOnlyError, SyncError
from seawall.limits import KIB, WATCH_TOPICS_MAX
from seawall.testing import SimDisk
from seawall.topics.changes import TopicChanges

MANY = 10_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with seawall.open(tmp_path / "data") as opened:
        yield opened


def values(items: list[Any]) -> list[bytes]:
    return [record.value for item in items if isinstance(item, ReceivedBatch) for record in item]


def reader_of(log: EmbeddedLog, *topics: str) -> WatchReader:
    return WatchReader(log, spec_of(topics, "earliest", None, "eventual"))


def counting_plans(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that reads are planned for, from now on."""
    planned: list[str] = []
    with log.inspecting() as store:
        plan = store.queries.plan_read

        def counted(name: str, from_seq: Seq, **bounds: Any) -> Any:
            planned.append(name)
            return plan(name, from_seq, **bounds)

        monkeypatch.setattr(store.queries, "plan_read", counted)
    return planned


# --- the work of a wake-up -------------------------------------------------------------------------------------------


def test_a_wake_up_looks_at_the_topics_that_have_changed_only(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"sensor.{number}" for number in range(MANY)]
    log.create_topics([*names, "other"], durability="disk")
    reader = reader_of(log, "sensor.*")
    assert len([step for step in reader.read() if isinstance(step, TopicCaughtUp)]) == MANY
    planned = counting_plans(log, monkeypatch)
    for changed in ([17], [3, 9_999, 4_000], list(range(50, 90))):
        planned.clear()
        before = reader.topics.topics_examined
        for number in changed:
            log.publish(names[number], b"x")
        log.publish("other", b"unwatched")
        batches = [step for step in reader.read() if isinstance(step, ReceivedBatch)]
        assert sorted(batch.topic for batch in batches) == sorted(names[number] for number in changed)
        assert sorted(planned) == sorted(names[number] for number in changed)
        # Each change is found once, or twice: as a pending batch, and after it was applied.
        assert reader.topics.topics_examined - before <= 2 * (len(changed) + 1)
    planned.clear()
    before = reader.topics.topics_examined
    assert reader.read() == []
    assert planned == []
    assert reader.topics.topics_examined - before <= 41


def test_few_changes_are_read_without_applying_them(log: EmbeddedLog) -> None:
    log.create_topic("a")
    log.publish("a", b"1")
    reader = reader_of(log, "a")
    reader.read()
    log.publish("a", b"2")
    assert len(reader.read()) == 1
    with log.inspecting() as store:
        assert store.parts.catalog.named("a").next_seq == 2
        assert store.catalog.named("a").next_seq == 3


def test_a_watch_that_is_far_behind_looks_at_every_topic_and_misses_nothing(log: EmbeddedLog) -> None:
    log.create_topics(["a.1", "a.2", "a.3", "b"])
    with log.inspecting() as store:
        store.catalog.changes = TopicChanges(4)
    reader = reader_of(log, "a.*")
    reader.read()
    for number in range(3):
        log.publish("a.1", b"%d" % number)
        log.publish("b", b"unwatched")
    log.delete_topic("a.2")
    log.create_topic("a.4")
    log.publish("a.4", b"new")
    log.delete_topic("a.3")
    log.create_topic("a.3")
    steps = [step for step in reader.read() if not isinstance(step, TopicCaughtUp)]
    assert sorted(values(steps)) == [b"0", b"1", b"2", b"new"]
    assert [step.topic for step in steps if isinstance(step, TopicDeleted)] == ["a.2"]
    assert [step.topic for step in steps if isinstance(step, WatchGap)] == ["a.3"]
    assert reader.read() == []


def test_batches_of_every_way_to_append_are_noticed(log: EmbeddedLog) -> None:
    log.create_topic("a")
    watch = log.watch(["a"])
    watch.poll()
    ways: list[Callable[[], Any]] = [
        lambda: log.publish("a", b"small"),
        lambda: log.publish("a", bytes(256 * KIB)),
        lambda: log.publish("a", b"keyed", idempotency_key="k"),
    ]
    for append in ways:
        append()
        assert len(values(watch.poll())) == 1
    with log.transaction() as transaction:
        transaction.publish("a", [b"one", b"two"])
    assert values(watch.poll()) == [b"one", b"two"]
    assert watch.poll() == []


def test_a_watch_has_a_bounded_number_of_topics(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WATCH_TOPICS_MAX > MANY
    monkeypatch.setattr("seawall.limits.WATCH_TOPICS_MAX", 2)
    log.create_topics(["a.1", "a.2"])
    watch = log.watch(["a.*"])
    watch.poll()
    log.create_topic("a.3")
    for _ in range(2):
        with pytest.raises(LimitError, match="more than 2 topics"):
            watch.poll()
    with pytest.raises(LimitError):
        log.watch(["a.*"])


# --- strong consistency ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["disk", "memory"])
@pytest.mark.parametrize("consistency", ["eventual", "strong"])
def test_with_strong_consistency_what_was_delivered_survives_a_crash(durability: str, consistency: str) -> None:
    disk = SimDisk(seed=3)
    log = open_simulated(disk)
    log.create_topic("a", durability=durability)
    watch = log.watch(["a"], consistency=consistency)
    delivered: list[bytes] = []
    for number in range(3):
        log.publish("a", b"%d" % number)
        delivered += values(watch.poll())
    assert delivered == [b"0", b"1", b"2"]
    disk.crash(keep="none")
    survived = values(open_simulated(disk).read("a"))
    assert survived == (delivered if consistency == "strong" else [])


def sync_count(disk: SimDisk) -> int:
    return sum(".wal" in line and "sync" in line for line in disk.history())


def test_a_log_that_is_synced_is_not_synced_again() -> None:
    disk = SimDisk(seed=3)
    log = open_simulated(disk)
    log.create_topics(["d.1", "d.2"], durability="disk")
    log.create_topic("f", durability="fsync")
    log.create_topic("e", durability="ephemeral")
    watches = [log.watch(["*"], consistency="strong") for _ in range(3)]
    for watch in watches:
        watch.poll()
    before = sync_count(disk)
    log.publish("d.1", b"x")
    log.publish("d.2", b"y")
    for watch in watches:
        assert sorted(values(watch.poll())) == [b"x", b"y"]
    # One sync for both topics and all three watches.
    assert sync_count(disk) == before + 1
    log.publish("f", b"z")
    before = sync_count(disk)
    for watch in watches:
        assert values(watch.poll()) == [b"z"]
    log.publish("e", b"in memory only")
    for watch in watches:
        assert values(watch.poll()) == [b"in memory only"]
    assert sync_count(disk) == before


def test_nothing_is_delivered_if_the_sync_fails() -> None:
    disk = SimDisk(seed=3)
    log = open_simulated(disk)
    log.create_topic("a", durability="disk")
    watch = log.watch(["a"], consistency="strong")
    watch.poll()
    cursor = watch.cursor
    log.publish("a", b"x")
    disk.fail("sync", path="*.wal")
    with pytest.raises(SyncError):
        watch.poll()
    with pytest.raises(ReadOnlyError):
        watch.poll()
    assert watch.cursor == cursor


# --- nothing twice, nothing lost -------------------------------------------------------------------------------------


def test_a_cancelled_poll_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with seawall.open_async(tmp_path / "data") as log:
            await log.create_topics(["a", "b"], durability="disk")
            watch = log.watch(["a", "b"])
            found: list[Any] = []
            for number in range(60):
                await log.publish("ab"[number % 2], b"%d" % number)
                polling = asyncio.ensure_future(watch.poll(60))
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                polling.cancel()
                with suppress(asyncio.CancelledError):
                    found += await polling
            while len(values(found)) < 60:
                found += await watch.poll(60)
            assert sorted(map(int, values(found))) == list(range(60))
            await watch.close()

    asyncio.run(main())


def test_a_skip_is_delivered_once_also_by_a_watch_that_continues(tmp_path: Path) -> None:
    world = Applied(tmp_path)
    log = world.log
    watch = log.watch(["events", "other"])
    watch.poll()
    world.batch(b"1")
    first, second = world.skip(3, 2), world.skip(9, 1)
    world.batch(b"2")
    items = iter(watch)
    cursors, found = [watch.cursor], []
    for _ in range(4):
        found.append(next(items))
        cursors.append(watch.cursor)
    assert [item.position for item in found if isinstance(item, ReceivedSkip)] == [first, second]
    assert values(found) == [b"1", b"2"]
    for number, cursor in enumerate(cursors):
        rest = [
            item for item in log.watch(["events", "other"], cursor=cursor).poll() if not isinstance(item, TopicCaughtUp)
        ]
        assert rest == found[number:]
    log.close()
