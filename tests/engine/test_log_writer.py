"""Appends through the lane of the log: pending rows, and the observer of its flushes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seawall import limits
from seawall.core.types import Seq, TopicId
from seawall.engine.commit.appends import Append
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.errors import FatalError, SyncError
from seawall.storage.wal.lane_types import FlushOutcome, LaneEvent
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import TopicConfig
from seawall.wire.format.records import Record, encode_block

SMALL = StoreSettings(
    wal_file_size=limits.WAL_FILE_SIZE_MIN * 4, ceiling_step=1 << 20, ballast_size=4096, checkpoint_size=1 << 62
)


def opened(disk: SimDisk, settings: StoreSettings = SMALL) -> Store:
    return open_store(
        Machine(disk, SimClock(wall_ns=10**18), lambda count: bytes(range(count)), pid=7), "/data", settings
    )


def append(topic_id: int, *values: bytes) -> Append:
    return Append(TopicId(topic_id), encode_block([Record(1, value) for value in values]), len(values))


def test_pending_rows_are_applied_before_reads() -> None:
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


def test_the_lane_observer_sees_every_flush() -> None:
    events: list[LaneEvent] = []
    disk = SimDisk(seed=1)
    store = opened(disk, replace(SMALL, lane_observer=events.append))
    store.create_topic("a", TopicConfig())
    store.append([append(1, b"by steps, to make a reservation")])
    store.append([append(1, b"a cycle, but for the observer")])
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
