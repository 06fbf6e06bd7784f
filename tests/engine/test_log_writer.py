"""What goes to the log: by the long way and the short one, as the lane's watchers see it, and byte for byte."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from seawall import limits
from seawall.core.types import Seq, TopicId
from seawall.engine.appends import Append
from seawall.engine.local_orderer import LocalOrderer
from seawall.engine.opening import open_store
from seawall.engine.settings import Machine, StoreSettings
from seawall.engine.store import Store
from seawall.errors import FatalError, SyncError
from seawall.storage.epochs import WalAddress
from seawall.storage.lane_types import FlushOutcome, LaneEvent
from seawall.storage.wal_reader import WalBatch, read_wal
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import Durability, TopicConfig
from seawall.wire.records import Record, encode_block

SMALL = StoreSettings(
    wal_file_size=limits.WAL_FILE_SIZE_MIN * 4, ceiling_step=1 << 20, ballast_size=4096, checkpoint_size=1 << 62
)


def opened(disk: SimDisk, settings: StoreSettings = SMALL) -> Store:
    return open_store(
        Machine(disk, SimClock(wall_ns=10**18), lambda count: bytes(range(count)), pid=7), "/data", settings
    )


def append(topic_id: int, *values: bytes) -> Append:
    return Append(TopicId(topic_id), encode_block([Record(1, value) for value in values]), len(values))


def logged(disk: SimDisk, store: Store) -> list[bytes]:
    items = read_wal(disk, "/data/wal", store.parts.directory.directory_id, WalAddress(0))
    return [bytes(item.data) for item in items if isinstance(item, WalBatch)]


def run(short_way: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[bytes], list[tuple[int, ...]], str]:
    """The same random appends; what the log, the index and the catalog hold."""
    disk, chance = SimDisk(seed=1), random.Random(5)
    with monkeypatch.context() as patch:
        if not short_way:
            patch.setattr(LocalOrderer, "_short_room", lambda *_: None)
        store = opened(disk)
        for name in ("a", "b"):
            store.create_topic(name, TopicConfig(durability=Durability.DISK, segment_max_records=40))
        told = []
        for _ in range(60):
            group = [
                append(
                    chance.choice((1, 2)),
                    *[chance.randbytes(chance.choice((0, 9, 300, 40_000)))] * chance.randint(1, 3),
                )
                for _ in range(chance.choice((1, 1, 3)))
            ]
            told += [tuple(each) for each in store.append(group)]
            if chance.random() < 0.1:
                assert store.catalog.named("a").head_seq >= 0
        for topic in store.catalog:
            topic.check_invariants()
        entries = [
            tuple(entry)
            for log in store.parts.logs
            for filling in log.filling
            for entry in filling.segment.index.entries.tolist()
        ]
        fillings = [filling for log in store.parts.logs for filling in log.filling]
        waiting = str([(each.waiting.entries.tolist(), each.waiting.addresses.tolist()) for each in fillings])
        found = logged(disk, store)
        store.close()
    return found, [*told, *entries], waiting


def test_both_ways_leave_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = run(True, monkeypatch), run(False, monkeypatch)
    assert short[0] == long[0]
    assert short[1:] == long[1:]


def test_what_came_the_short_way_is_there_for_whoever_looks() -> None:
    disk = SimDisk(seed=1)
    store = opened(disk)
    store.create_topic("a", TopicConfig())
    for number in range(3_000):
        store.append([append(1, b"%d" % number)])
    assert store.catalog.named("a").head_seq == 3_000
    assert len(store.queries.read("a", Seq(1), size_max=1 << 24)) == 3_000
    store.append([append(1, b"last")])
    assert store.queries.read("a", Seq(3_001), size_max=100)
    store.append([append(1, b"one more")])
    store.maintenance.checkpoint()
    assert store.catalog.named("a").live_records == 3_002
    store.close()


def test_the_lane_tells_of_every_flush() -> None:
    events: list[LaneEvent] = []
    disk = SimDisk(seed=1)
    store = opened(disk, replace(SMALL, lane_observer=events.append))
    store.create_topic("a", TopicConfig())
    store.append([append(1, b"long way, to make room")])
    store.append([append(1, b"short way")])
    store.append([append(1, bytes(70_000))])
    assert [event.outcome for event in events] == [FlushOutcome.FLUSHED] * len(events)
    assert [event.epoch for event in events] == list(range(1, len(events) + 1))
    assert len(events) >= 5
    last = events[-1]
    assert last.run_id == f"{store.parts.directory.directory_id.hex()}/1"
    assert (last.lane_state_from, last.lane_state_to) == (f"flushing({last.epoch})", "writable")
    assert (last.core_id, last.error_code) == (0, None)
    assert last.duration_us >= 0
    disk.fail("sync", path="/data/wal/*")
    with pytest.raises(SyncError):
        store.append([append(1, b"never durable")])
    failed = events[-1]
    assert (failed.outcome, failed.error_code) == (FlushOutcome.FAILED, "SyncError")
    with pytest.raises(FatalError):
        store.append([append(1, b"x")])
    assert store.catalog.named("a").head_seq == 3
    store.close()
