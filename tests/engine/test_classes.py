"""What each durability class keeps through an orderly close, a kill of the process and a crash of the machine."""

from __future__ import annotations

import pytest

from seawall import limits
from seawall.core.types import Seq, TopicId
from seawall.engine.commit.appends import Append
from seawall.engine.store.opening import OFFSET_JUMP, open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch
from seawall.errors import ConflictError
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import Durability, TopicConfig, changed_config
from seawall.topics.gaps import Gap
from seawall.wire.format.codes import GapReason
from seawall.wire.format.records import Record, decode_block, encode_block

SMALL = StoreSettings(
    wal_file_size=limits.WAL_FILE_SIZE_MIN * 4, ceiling_step=64, ballast_size=4096, checkpoint_size=1 << 62
)
ORDERLY, KILLED, CRASHED = "close", "kill", "crash"


def opened(disk: SimDisk) -> Store:
    return open_store(Machine(disk, SimClock(wall_ns=10**18), lambda count: bytes(range(count)), pid=7), "/data", SMALL)


def publish(store: Store, name: str, *values: bytes) -> int:
    block = encode_block([Record(1, value) for value in values])
    return store.append([Append(store.topic_named(name).topic_id, block, len(values))])[0].base_seq


def contents(store: Store, name: str) -> tuple[dict[int, bytes], list[Gap]]:
    records: dict[int, bytes] = {}
    gaps: list[Gap] = []
    for item in store.queries.read(name, Seq(1), size_max=1 << 24):
        if isinstance(item, StoredBatch):
            for seq, record in enumerate(decode_block(item.block, item.record_count), item.base_seq):
                records[seq] = record.value
        else:
            gaps.append(item)
    return records, gaps


def end(disk: SimDisk, store: Store, how: str) -> None:
    if how == ORDERLY:
        store.close()
    elif how == KILLED:
        disk.kill()
    else:
        disk.crash(keep="none")


@pytest.mark.parametrize("size", [10, 70_000])
@pytest.mark.parametrize(
    ("durability", "how", "survives"),
    [
        (Durability.FSYNC, ORDERLY, True),
        (Durability.FSYNC, KILLED, True),
        (Durability.FSYNC, CRASHED, True),
        (Durability.DISK, ORDERLY, True),
        (Durability.DISK, KILLED, True),
        (Durability.DISK, CRASHED, False),
        (Durability.MEMORY, ORDERLY, True),
        (Durability.MEMORY, KILLED, False),
        (Durability.MEMORY, CRASHED, False),
        (Durability.EPHEMERAL, ORDERLY, False),
        (Durability.EPHEMERAL, KILLED, False),
        (Durability.EPHEMERAL, CRASHED, False),
    ],
)
def test_what_survives_close_kill_and_crash(durability: Durability, how: str, survives: bool, size: int) -> None:
    disk = SimDisk(seed=1)
    store = opened(disk)
    store.create_topic("events", TopicConfig(durability=durability))
    assert publish(store, "events", bytes(size), b"second") == 1
    assert contents(store, "events")[0] == {1: bytes(size), 2: b"second"}
    end(disk, store, how)
    store = opened(disk)
    records, gaps = contents(store, "events")
    assert records == ({1: bytes(size), 2: b"second"} if survives else {})
    if not survives:
        assert gaps[0].first_seq == 1
        assert {gap.reason for gap in gaps} == {GapReason.CRASH}
    # No seq is assigned twice, and a loss stays a loss.
    assert publish(store, "events", b"after") > 2
    store.close()
    store = opened(disk)
    again, _ = contents(store, "events")
    assert again.get(1) == records.get(1)
    store.catalog.named("events").check_invariants()
    store.close()


def test_memory_batches_are_written_with_the_next_write() -> None:
    disk = SimDisk(seed=1)
    store = opened(disk)
    store.create_topic("weak", TopicConfig(durability=Durability.MEMORY))
    store.create_topic("strong", TopicConfig())
    before = store.parts.wal.at
    publish(store, "weak", b"staged")
    assert store.parts.wal.at == before
    assert contents(store, "weak")[0] == {1: b"staged"}
    publish(store, "strong", b"durable")
    disk.crash(keep="none")
    store = opened(disk)
    assert contents(store, "weak")[0] == {1: b"staged"}
    store.close()


def test_a_full_lane_is_written_and_not_synced() -> None:
    disk = SimDisk(seed=1)
    store = opened(disk)
    store.create_topic("weak", TopicConfig(durability=Durability.MEMORY))
    count = 0
    before = store.parts.wal.at
    while store.parts.wal.at == before:
        publish(store, "weak", bytes(60_000))
        count += 1
    assert len(contents(store, "weak")[0]) == count
    store.controls.sync()
    assert store.parts.wal.synced_through == store.parts.wal.at
    store.maintenance.checkpoint()
    assert len(contents(store, "weak")[0]) == count
    store.close()


def test_ephemeral_records_are_capped_and_can_be_deleted() -> None:
    disk = SimDisk(seed=1)
    store = opened(disk)
    store.create_topic("ram", TopicConfig(durability=Durability.EPHEMERAL, cap_bytes=50_000, segment_max_bytes=10_000))
    for number in range(30):
        publish(store, "ram", bytes([number]) * 4_000)
        if number % 7 == 0:
            store.maintenance.checkpoint()
    records, gaps = contents(store, "ram")
    assert sorted(records) == list(range(19, 31))
    assert gaps == [Gap(Seq(1), Seq(18), GapReason.CAP)]
    held = store.parts.logs[TopicId(1)].directory.files.free_bytes("")
    assert (1 << 63) - held < 300_000
    assert store.delete_records("ram", before_seq=29) == 10
    assert sorted(contents(store, "ram")[0]) == [29, 30]
    assert not disk.exists("/data/topics/00000001")
    store.delete_topic("ram")
    store.close()


def test_an_ephemeral_topic_has_a_default_cap() -> None:
    assert TopicConfig(durability=Durability.EPHEMERAL).bytes_max == limits.EPHEMERAL_BYTES_MAX
    assert TopicConfig().bytes_max == 0
    with pytest.raises(ConflictError, match="ephemeral"):
        changed_config(TopicConfig(), {"durability": "ephemeral"})


def test_offsets_are_not_reused_after_a_crash() -> None:
    disk = SimDisk(seed=1)
    store = opened(disk)
    store.create_topic("events", TopicConfig(durability=Durability.DISK))
    lost = store.append([Append(TopicId(1), encode_block([Record(1, bytes(500))]), 1)])[0]
    disk.crash(keep="none")
    store = opened(disk)
    after = store.append([Append(TopicId(1), encode_block([Record(1, b"x")]), 1)])[0]
    assert after.base_offset == OFFSET_JUMP > lost.base_offset + 505
    store.close()
