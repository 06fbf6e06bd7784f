"""A full disk refuses appends and harms nothing: reads and deletes work, and appends work again with free space."""

from __future__ import annotations

import asyncio
import errno
import random
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from crash_history import read_values
from crash_world import encoded

from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.errors import DiskFullError, FatalError
from seawall.limits import KIB, MIB
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import TopicConfig
from seawall.topics.gaps import Gap

SETTINGS = StoreSettings(wal_file_size=128 * KIB, ceiling_step=1_000, ballast_size=192 * KIB, checkpoint_size=256 * KIB)


def opened(disk: SimDisk) -> Store:
    return open_store(Machine(disk, SimClock(wall_ns=1), random.Random(1).randbytes, pid=1), "/data", SETTINGS)


def publish(store: Store, name: str, value: bytes) -> None:
    store.append([encoded(store.catalog.named(name).topic_id, [value])])


def fill(store: Store, name: str, size: int) -> list[bytes]:
    """Append until the disk refuses twice in a row: after the first refusal a checkpoint may trim the log."""
    accepted: list[bytes] = []
    is_full = False
    while True:
        value = b"%08d" % len(accepted) + bytes(size)
        try:
            publish(store, name, value)
        except DiskFullError:
            if is_full:
                return accepted
            is_full = True
        else:
            accepted.append(value)
            is_full = False


@pytest.mark.parametrize("size", [500, 20_000, 80_000])
@pytest.mark.parametrize("capacity", [2 * MIB, 2 * MIB + 300_000])
def test_a_full_disk_refuses_appends_and_harms_nothing(size: int, capacity: int) -> None:
    """INV-LOG-SPACE."""
    disk = SimDisk(seed=size, capacity=capacity)
    store = opened(disk)
    store.create_topic("kept", TopicConfig(segment_max_records=20))
    store.create_topic("victim", TopicConfig(segment_max_records=20))
    publish(store, "kept", b"first")
    victims = fill(store, "victim", size)
    assert len(victims) > 5
    for _ in range(3):
        assert [*read_values(store, "victim")[0].values()] == victims
        with pytest.raises(DiskFullError):
            publish(store, "victim", bytes(size + 8))
    store.delete_topic("victim")
    publish(store, "kept", bytes(size))
    store.close()
    store = opened(disk)
    assert read_values(store, "kept") == ({1: b"first", 2: bytes(size)}, [])
    assert store.catalog.names() == ["kept"]
    store.close()


def test_a_directory_on_a_full_disk_opens_for_reading_and_deleting() -> None:
    disk = SimDisk(seed=5, capacity=2 * MIB)
    store = opened(disk)
    store.create_topic("victim", TopicConfig())
    victims = fill(store, "victim", 3_000)
    disk.crash(keep="none")
    store = opened(disk)
    assert [*read_values(store, "victim")[0].values()] == victims
    store.delete_topic("victim")
    store.create_topic("next", TopicConfig())
    publish(store, "next", b"works")
    store.close()


def test_deletes_use_the_ballast_and_restore_it() -> None:
    disk = SimDisk(seed=6, capacity=3 * MIB)
    store = opened(disk)
    names = [f"topic-{number}" for number in range(40)]
    for name in names:
        store.create_topic(name, TopicConfig(segment_max_records=20))
    fill(store, names[-1], 2_000)
    assert store.parts.directory.has_ballast
    for name in names:
        # Forty deletes need more space than appends leave in a file of the log.
        store.delete_topic(name)
    assert store.catalog.names() == []
    assert store.parts.directory.has_ballast
    store.close()


def test_appends_continue_without_space_for_an_index_or_a_snapshot() -> None:
    disk = SimDisk(seed=7)
    store = opened(disk)
    store.create_topic("events", TopicConfig(segment_max_records=2))
    for number in range(6):
        publish(store, "events", b"%08d" % number)
    disk.fail("write", error=errno.ENOSPC, path="*.replacing", forever=True)
    with pytest.raises(DiskFullError):
        store.maintenance.checkpoint()
    publish(store, "events", b"goes on")
    disk.clear_faults()
    store.maintenance.checkpoint()
    store.close()
    store = opened(disk)
    records, gaps = read_values(store, "events")
    assert [*records.values()] == [*(b"%08d" % number for number in range(6)), b"goes on"]
    assert gaps == []
    store.close()


def test_a_failed_background_checkpoint_does_not_fail_the_append() -> None:
    disk = SimDisk(seed=8)
    store = opened(disk)
    store.create_topic("events", TopicConfig())
    disk.fail("write", error=errno.ENOSPC, path="*.replacing", forever=True)
    for _ in range(30):
        publish(store, "events", bytes(20_000))
    disk.clear_faults()
    disk.fail("sync", path="*.active")
    # The append whose checkpoint fails is durable, so it succeeds; the next one fails.
    with pytest.raises(FatalError, match="an earlier change failed"):
        fill(store, "events", 20_000)
    count = len(read_values(store, "events")[0])
    store.close()
    store = opened(disk)
    assert len(read_values(store, "events")[0]) == count > 30
    store.close()


def test_a_refused_roll_leaves_no_segment_behind() -> None:
    disk = SimDisk(seed=9)
    store = opened(disk)
    store.create_topic("events", TopicConfig(segment_max_records=2))
    publish(store, "events", b"00000001")
    publish(store, "events", b"00000002")
    disk.fail("allocate", error=errno.ENOSPC, nth=2, forever=True)
    with pytest.raises(DiskFullError):
        publish(store, "events", bytes(90_000))
    disk.clear_faults()
    assert [name for name in disk.list("/data/topics/00000001") if name.endswith(".active")] == [
        "00000000000000000001.active"
    ]
    publish(store, "events", b"00000003")
    publish(store, "events", bytes(90_000))
    disk.crash(keep="none")
    store = opened(disk)
    records, _ = read_values(store, "events")
    assert records == {1: b"00000001", 2: b"00000002", 3: b"00000003", 4: bytes(90_000)}
    store.close()


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB, if mounting is permitted."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


REAL_SETTINGS = StoreSettings(wal_file_size=256 * KIB, ballast_size=256 * KIB, checkpoint_size=MIB)


def fill_log(log: EmbeddedLog, topic: str) -> int:
    """Publish until no checkpoint frees space any more; the log is kept for the last two checkpoints."""
    accepted = refused = 0
    while True:
        try:
            log.publish(topic, bytes(50_000))
            accepted, refused = accepted + 1, 0
        except DiskFullError:
            if refused == 2:
                return accepted
            refused += 1
            with suppress(DiskFullError):
                log.checkpoint()


def test_a_real_file_system_fills_up_and_a_delete_frees_it(small_file_system: Path) -> None:
    with open_log(small_file_system / "data", REAL_SETTINGS) as log:
        log.create_topic("kept")
        log.create_topic("victim")
        log.publish("kept", "first")
        accepted = fill_log(log, "victim")
        assert accepted > 40
        assert sum(len(item) for item in log.follow("victim")) == accepted
        log.delete_topic("victim")
        log.publish("kept", bytes(50_000))
    with open_log(small_file_system / "data", REAL_SETTINGS) as log:
        assert log.describe("kept").record_count == 2


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_deleting_records_frees_space_on_a_real_file_system(small_file_system: Path, durability: str) -> None:
    with open_log(small_file_system / "data", REAL_SETTINGS) as log:
        log.create_topic("events", segment_max_records=10, durability=durability)
        accepted = fill_log(log, "events")
        for _ in range(3):
            with pytest.raises(DiskFullError):
                log.publish("events", bytes(50_000))
        assert log.delete("events", before_seq=accepted - 4) == accepted - 5
        log.checkpoint()
        again = fill_log(log, "events")
        # A record takes more than twice its size while the log is kept for the last two checkpoints; how many fit
        # depends on when the background thread makes them.
        assert again > accepted // 3
        assert log.read_arrow("events").num_rows == 5 + again
    with open_log(small_file_system / "data", REAL_SETTINGS) as log:
        assert log.describe("events").record_count == 5 + again
        assert [item for item in log.follow("events") if isinstance(item, Gap)] == []
        assert log.verify().is_sound


async def fill_async_log(log: AsyncLog, topic: str) -> int:
    accepted = refused = 0
    while True:
        try:
            await log.publish(topic, bytes(50_000))
            accepted, refused = accepted + 1, 0
        except DiskFullError:
            if refused == 2:
                return accepted
            refused += 1
            with suppress(DiskFullError):
                await log.checkpoint()


async def use_full_disk(path: Path) -> None:
    async with AsyncLog(path, REAL_SETTINGS) as log:
        await log.create_topic("kept")
        await log.create_topic("victim", segment_max_records=10)
        await log.publish("kept", "first")
        accepted = await fill_async_log(log, "victim")
        assert accepted > 40
        fates = await asyncio.gather(*(log.publish("victim", bytes(50_000)) for _ in range(5)), return_exceptions=True)
        assert {type(fate) for fate in fates} == {DiskFullError}
        assert (await log.read_arrow("victim")).num_rows == accepted
        removed = await log.delete("victim", before_seq=accepted)
        assert removed == accepted - 1
        await log.checkpoint()
        assert await fill_async_log(log, "victim") > accepted // 2
        await log.delete_topic("victim")
        await log.publish("kept", bytes(50_000))


def test_a_full_disk_refuses_appends_of_an_async_log(small_file_system: Path) -> None:
    asyncio.run(use_full_disk(small_file_system / "data"))
    with open_log(small_file_system / "data", REAL_SETTINGS) as log:
        assert log.describe("kept").record_count == 2
