"""The store on a simulated disk: appends, reads, rolls, checkpoints, failures, and recovery after crashes."""

import errno
import itertools
import random
from dataclasses import replace

import pytest

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Seq, TopicId
from seawall.engine.commit.appends import Append
from seawall.engine.commit.log_writer import LogWriter
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch, TopicLog
from seawall.errors import ConflictError, DiskFullError, FatalError, LimitError, NotFoundError, SyncError
from seawall.testing import SimClock, SimCrash, SimDisk
from seawall.topics.config import Durability, TopicConfig
from seawall.topics.gaps import Gap
from seawall.wire.format.codes import GapReason
from seawall.wire.format.records import Record, decode_block, encode_block

SMALL = StoreSettings(
    wal_file_size=limits.WAL_FILE_SIZE_MIN * 4, ceiling_step=64, ballast_size=4096, checkpoint_size=1 << 62
)


def machine(disk: SimDisk, seed: int = 0) -> Machine:
    chance = random.Random(seed)
    return Machine(disk, SimClock(wall_ns=1_700_000_000_000_000_000), chance.randbytes, pid=7)


def batch(topic_id: int, values: list[bytes]) -> Append:
    return Append(TopicId(topic_id), encode_block([Record(1, value) for value in values]), len(values))


def publish(store: Store, name: str, *groups: list[bytes]) -> list[int]:
    topic = store.catalog.named(name)
    headers = store.append([batch(topic.topic_id, values) for values in groups])
    return [header.base_seq for header in headers]


def contents(store: Store, name: str, size_max: int = 1 << 20) -> tuple[dict[int, bytes], list[Gap]]:
    """Every record by its seq, and every gap, read in pieces of `size_max`."""
    records: dict[int, bytes] = {}
    gaps: list[Gap] = []
    seq = Seq(1)
    while items := store.queries.read(name, seq, size_max=size_max):
        for item in items:
            if isinstance(item, StoredBatch):
                for number, record in enumerate(decode_block(item.block, item.header.record_count)):
                    assert item.header.base_seq + number not in records
                    records[item.header.base_seq + number] = record.value
                seq = Seq(item.header.base_seq + item.header.record_count)
            else:
                gaps.append(item)
                seq = Seq(item.last_seq + 1)
    return records, gaps


def new_store(disk: SimDisk | None = None, settings: StoreSettings = SMALL) -> tuple[SimDisk, Store]:
    disk = disk or SimDisk(seed=1)
    return disk, open_store(machine(disk), "/data", settings)


def test_a_checkpoint_includes_sessions() -> None:
    disk, store = new_store()
    for client_id in (4, 9):
        store.sessions.apply(store.sessions.open(ClientId(client_id), ClientSeq(client_id))[2])
    rows = store.sessions.rows()
    store.maintenance.checkpoint()
    store.close()
    assert len(rows) == 2 * limits.CLIENT_ROW_SIZE
    assert open_store(machine(disk), "/data", SMALL).sessions.rows() == rows


@pytest.mark.parametrize("size_max", [1, 300, 1 << 20])
def test_appended_records_are_read_back(size_max: int) -> None:
    _, store = new_store()
    store.create_topic("events", TopicConfig())
    assert publish(store, "events", [b"a", b"b"], [b"c"]) == [1, 3]
    assert publish(store, "events", [b"large" * 20_000]) == [4]
    assert publish(store, "events", [b"d"]) == [5]
    records, gaps = contents(store, "events", size_max)
    assert records == {1: b"a", 2: b"b", 3: b"c", 4: b"large" * 20_000, 5: b"d"}
    assert gaps == []
    store.close()


def test_more_small_batches_than_the_lane_holds_are_refused() -> None:
    _, store = new_store(settings=replace(SMALL, wal_file_size=4 * limits.LANE_BUFFER_SIZE))
    store.create_topic("events", TopicConfig())
    size = 60_000
    too_many = limits.LANE_BUFFER_SIZE // size + 1
    with pytest.raises(LimitError, match="commit fewer at once"):
        publish(store, "events", *[[bytes(size)]] * too_many)
    assert store.catalog.named("events").next_seq == 1
    seqs = publish(store, "events", *[[bytes(size)]] * (too_many - 2))
    assert seqs == list(range(1, too_many - 1))
    assert publish(store, "events", [b"goes on"]) == [too_many - 1]
    records, gaps = contents(store, "events")
    assert (len(records), gaps) == (too_many - 1, [])
    store.close()


def test_a_clean_end_leaves_no_gap() -> None:
    disk, store = new_store()
    store.create_topic("events", TopicConfig())
    publish(store, "events", [b"a"], [b"b" * 70_000])
    store.close()
    _, store = new_store(disk)
    assert publish(store, "events", [b"c"]) == [3]
    assert contents(store, "events") == ({1: b"a", 2: b"b" * 70_000, 3: b"c"}, [])
    store.close()


def test_a_crash_skips_seqs_and_keeps_records() -> None:
    disk, store = new_store()
    store.create_topic("events", TopicConfig())
    publish(store, "events", [b"a"], [b"b"])
    disk.crash(keep="none")
    _, store = new_store(disk)
    (seq,) = publish(store, "events", [b"c"])
    assert seq == 65
    records, gaps = contents(store, "events")
    assert records == {1: b"a", 2: b"b", 65: b"c"}
    assert gaps == [Gap(Seq(3), Seq(64), GapReason.CRASH)]
    store.close()


def test_checkpoints_and_rolls_change_nothing_a_reader_sees() -> None:
    config = TopicConfig(segment_max_records=5)
    disk, store = new_store()
    store.create_topic("events", config)
    expected = {}
    for number in range(40):
        value = b"%d" % number * (30_000 if number % 7 == 0 else 1)
        (seq,) = publish(store, "events", [value])
        expected[seq] = value
        if number % 9 == 8:
            store.maintenance.checkpoint()
    assert contents(store, "events") == (expected, [])
    sealed = [name for name in disk.list("/data/topics/00000001") if name.endswith(".sealed")]
    assert len(sealed) == 7
    store.close()
    _, store = new_store(disk)
    assert contents(store, "events") == (expected, [])
    store.close()


def test_checkpoints_trim_the_log() -> None:
    disk, store = new_store()
    store.create_topic("events", TopicConfig())
    for _ in range(4):
        for _ in range(12):
            publish(store, "events", [bytes(50_000)])
        store.maintenance.checkpoint()
    assert len(disk.list("/data/wal")) <= 6
    assert len(disk.list("/data/meta")) == 2
    store.close()


def test_topics_are_created_deleted_and_recreated() -> None:
    disk, store = new_store()
    store.create_topic("a", TopicConfig())
    store.create_topic("b", TopicConfig())
    publish(store, "a", [b"1"])
    with pytest.raises(ConflictError):
        store.create_topic("a", TopicConfig())
    store.delete_topic("a")
    with pytest.raises(NotFoundError):
        publish(store, "a", [b"2"])
    store.create_topic("a", TopicConfig())
    assert publish(store, "a", [b"new"]) == [1]
    store.configure_topic("b", {"ttl_ms": 5_000})
    store.commit_cursor("reader", "a", Seq(2))
    store.close()
    _, store = new_store(disk)
    assert store.catalog.names() == ["a", "b"]
    assert contents(store, "a") == ({1: b"new"}, [])
    assert store.catalog.named("b").config.ttl_ms == 5_000
    cursor = store.catalog.cursor("reader", store.catalog.named("a").topic_id)
    assert cursor is not None
    assert cursor.next_seq == 2
    store.close()


def test_a_failed_sync_ends_writing_and_leaves_reading() -> None:
    """INV-STORE-FAILED."""
    disk, store = new_store()
    store.create_topic("events", TopicConfig())
    publish(store, "events", [b"kept"])
    disk.fail("sync", nth=1)
    with pytest.raises(FatalError):
        publish(store, "events", [b"unknown"])
    with pytest.raises(FatalError, match="an earlier change failed"):
        publish(store, "events", [b"refused"])
    assert contents(store, "events")[0] == {1: b"kept"}
    store.close()


def test_a_failed_directory_sync_ends_writing() -> None:
    """A power loss would take a directory with an unsynced name, and the acked records in it."""
    disk, store = new_store()
    store.create_topic("events", TopicConfig())
    disk.fail("sync_directory", path="/data/topics")
    with pytest.raises(SyncError):
        publish(store, "events", [b"a"])
    with pytest.raises(FatalError, match="an earlier change failed"):
        store.create_topic("events", TopicConfig())
    store.close()


def test_a_failed_new_segment_ends_writing() -> None:
    disk, store = new_store()
    store.create_topic("events", TopicConfig())
    disk.fail("sync", path="*.active")
    with pytest.raises(SyncError):
        publish(store, "events", [b"a"])
    with pytest.raises(FatalError, match="an earlier change failed"):
        publish(store, "events", [b"a"])
    store.close()


@pytest.mark.parametrize("nth", [2, 3])
def test_a_failed_opening_leaves_no_clean_shutdown_marker(nth: int) -> None:
    """A log that is closed before its losses are logged must not look like one after an orderly shutdown."""
    disk, store = new_store()
    store.create_topic("events", TopicConfig(durability=Durability.MEMORY))
    (seen,) = publish(store, "events", [b"seen and lost"])
    disk.crash(keep="none")
    disk.fail("write", error=errno.EIO, nth=nth, path="/data/wal/*")
    with pytest.raises(FatalError):
        new_store(disk)
    disk.clear_faults()
    _, store = new_store(disk)
    (seq,) = publish(store, "events", [b"another"])
    assert seq > seen
    store.close()


def test_an_opening_without_space_leaves_no_clean_shutdown_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, store = new_store()
    store.create_topic("events", TopicConfig(durability=Durability.MEMORY))
    (seen,) = publish(store, "events", [b"seen and lost"])
    disk.crash(keep="none")

    def reserve(self: LogWriter, length: int, timestamp_ns: int, *, small: bool = False) -> None:
        raise DiskFullError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(LogWriter, "reserve", reserve)
        with pytest.raises(DiskFullError):
            new_store(disk)
    _, store = new_store(disk)
    (seq,) = publish(store, "events", [b"another"])
    assert seq > seen
    store.close()


def test_a_failed_close_releases_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(0)
    store = open_store(machine(disk), "/data", SMALL)
    store.create_topic("t", TopicConfig())
    publish(store, "t", [b"a"])

    def close(_log: TopicLog) -> None:
        raise OSError(errno.EIO, "close failed")

    with monkeypatch.context() as patch:
        patch.setattr(TopicLog, "close", close)
        with pytest.raises(OSError, match="close failed"):
            store.close()
    again = open_store(machine(disk, 1), "/data", SMALL)
    assert contents(again, "t")[0] == {1: b"a"}
    again.close()


def test_an_unsynced_rename_of_a_killed_process_becomes_durable() -> None:
    """Killed between renaming a sealed segment and syncing the name; power is lost after the next checkpoints."""
    for nth in itertools.count(1):
        disk, store = new_store()
        store.create_topic("events", TopicConfig(segment_max_records=2))
        for number in range(3):
            publish(store, "events", [b"%d" % number])
        disk.crash_after(nth, inside=False)
        try:
            store.maintenance.checkpoint()
        except SimCrash:
            disk.kill()
        else:
            break
        _, store = new_store(disk)
        store.maintenance.checkpoint()
        publish(store, "events", [b"3"])
        store.maintenance.checkpoint()
        disk.crash(keep="none")
        _, store = new_store(disk)
        assert sorted(contents(store, "events")[0].values()) == [b"0", b"1", b"2", b"3"]
        store.close()
    assert nth > 5


def test_bytes_that_a_failed_sync_left_in_the_cache_are_rewritten() -> None:
    """The next process reads these bytes, so it must make them durable."""
    disk, store = new_store()
    store.create_topic("events", TopicConfig())
    disk.fail("sync", path="/data/wal/*")
    with pytest.raises(SyncError):
        publish(store, "events", [b"in the cache"])
    disk.kill()
    _, store = new_store(disk)
    assert contents(store, "events")[0] == {1: b"in the cache"}
    disk.crash(keep="none")
    _, store = new_store(disk)
    records, gaps = contents(store, "events")
    assert records == {1: b"in the cache"}
    assert {gap.reason for gap in gaps} == {GapReason.CRASH}
    store.close()


def test_a_deleted_topic_removes_its_files() -> None:
    disk, store = new_store()
    store.create_topic("events", TopicConfig(segment_max_records=2))
    for _ in range(5):
        publish(store, "events", [b"x"])
    store.maintenance.checkpoint()
    disk.open("/data/topics/00000001/notes.txt", create=True).close()
    store.delete_topic("events")
    assert disk.list("/data/topics/00000001") == ["notes.txt"]
    store.close()


def test_large_batches_keep_the_cap_of_their_topic() -> None:
    size = limits.LARGE_BATCH_SIZE
    disk, store = new_store(settings=replace(SMALL, checkpoint_size=16 * size))
    store.create_topic("events", TopicConfig(segment_max_records=2, cap_records=4))
    most = 0
    for number in range(40):
        publish(store, "events", [bytes([number]) * size])
        most = max(most, len(disk.list("/data/topics/00000001")))
    # Two segments with live records, and those filled since the last checkpoint; each with its index.
    assert 3 <= most <= 10
    assert contents(store, "events")[0] == {number + 1: bytes([number]) * size for number in range(36, 40)}
    store.close()


def test_an_interrupted_topic_delete_is_finished() -> None:
    disk, store = new_store()
    store.create_topic("events", TopicConfig())
    publish(store, "events", [b"x"])
    disk.fail("unlink", path="*.active")
    with pytest.raises(OSError, match="Input/output"):
        store.delete_topic("events")
    disk.crash(keep="none")
    disk.make_directory("/data/topics/lost+found")
    _, store = new_store(disk)
    assert store.catalog.names() == []
    assert disk.list("/data/topics/00000001") == []
    store.close()


def test_segments_are_sealed_in_their_order() -> None:
    """The batches of the first segment are unflushed, those of the second are in it already."""
    disk, store = new_store()
    store.create_topic("events", TopicConfig(segment_max_records=2))
    expected = {}
    for value in (b"a", b"b", b"c" * 70_000, b"d" * 70_000, b"e"):
        (seq,) = publish(store, "events", [value])
        expected[seq] = value
    store.close()
    _, store = new_store(disk)
    assert contents(store, "events") == (expected, [])
    store.maintenance.checkpoint()
    assert contents(store, "events") == (expected, [])
    store.close()


def test_restarts_do_not_delay_a_checkpoint() -> None:
    disk = SimDisk(seed=1)
    settings = replace(SMALL, checkpoint_size=100_000)
    for attempt in range(4):
        _, store = new_store(disk, settings)
        if not attempt:
            store.create_topic("events", TopicConfig())
        publish(store, "events", [bytes(40_000)])
        store.close()
    assert disk.list("/data/meta")
    _, store = new_store(disk, settings)
    for seq in range(1, 4_001):
        store.commit_cursor("reader", "events", Seq(seq))
    assert len(disk.list("/data/meta")) == 2
    assert len(contents(store, "events")[0]) == 4
    store.close()


def test_batches_of_another_topic_are_refused() -> None:
    _, store = new_store()
    store.create_topic("events", TopicConfig())
    with pytest.raises(NotFoundError, match="publish anew"):
        store.append([batch(9, [b"x"])])
    assert store.append([]) == []
    assert publish(store, "events", [b"x"]) == [1]
    store.close()


def publish_until_full(store: Store, name: str, value: bytes) -> int:
    """Records that were accepted before the disk was full."""
    for accepted in range(1_000):
        try:
            publish(store, name, [value])
        except DiskFullError:
            return accepted
    raise AssertionError("the disk never got full")


def test_a_full_disk_refuses_and_recovers() -> None:
    disk = SimDisk(seed=1, capacity=(1 << 20) + 600_000)
    _, store = new_store(disk)
    store.create_topic("events", TopicConfig())
    accepted = publish_until_full(store, "events", bytes(20_000))
    assert accepted > 0
    assert len(contents(store, "events")[0]) == accepted
    store.close()
    _, store = new_store(disk)
    assert len(contents(store, "events")[0]) == accepted
    store.close()


def scenario(store: Store, chance: random.Random, acked: dict[int, bytes], attempted: dict[int, bytes]) -> None:
    """Appends of every size to two topics, rolls and checkpoints; adds each record to `acked` when it is."""
    config = TopicConfig(segment_max_records=6)
    for name in ("one", "two"):
        if name not in store.catalog.names():
            store.create_topic(name, config)
    for number in range(14):
        size = chance.choice((1, 10, 200, 3_000, 70_000))
        value = chance.randbytes(4) + bytes(size)
        attempted[len(attempted)] = value
        (seq,) = publish(store, "one", [value])
        acked[seq] = value
        if number % 3 == 2:
            publish(store, "two", [b"x"], [b"y"])
        if number in (5, 9):
            store.maintenance.checkpoint()
    store.close()


def check_oracle(store: Store, acked: dict[int, bytes], attempted: dict[int, bytes]) -> None:
    """Acked records are stored unchanged, nothing else is invented, and every hole is a reported gap."""
    if "one" not in store.catalog.names():
        assert not acked
        return
    records, gaps = contents(store, "one")
    for seq, value in acked.items():
        assert records.get(seq) == value, f"acked seq {seq}"
    assert set(records.values()) <= set(attempted.values())
    assert len(set(records.values())) == len(records)
    covered = set(records)
    for gap in gaps:
        span = set(range(gap.first_seq, gap.last_seq + 1))
        assert not span & covered
        covered |= span
    assert covered == set(range(1, store.catalog.named("one").next_seq))


#: What survives of unsynced bytes, and the unit that is never torn, which matters for a random choice.
CRASHES = [("none", 512), ("all", 4096), ("random", 512), ("random", 4096)]


def sweep(keep: str, unit: int, seeds: int, step: int) -> int:
    """Crash at every `step`-th changing call of the scenario, and again during recovery; returns the crash count."""
    images = 0
    for seed in range(seeds):
        for nth in itertools.count(1 + seed % step, step):
            disk = SimDisk(seed=seed * 10_007 + nth, unit_size=unit)
            acked: dict[int, bytes] = {}
            attempted: dict[int, bytes] = {}
            disk.crash_after(nth)
            try:
                scenario(open_store(machine(disk, seed), "/data", SMALL), random.Random(seed), acked, attempted)
                break
            except SimCrash:
                disk.crash(keep=keep)
            images += 1
            # A crash during recovery must not matter either.
            disk.crash_after(1 + nth % 23)
            try:
                open_store(machine(disk, seed + 1), "/data", SMALL).close()
            except SimCrash:
                disk.crash(keep=keep)
            else:
                disk.kill()
            store = open_store(machine(disk, seed + 2), "/data", SMALL)
            check_oracle(store, acked, attempted)
            head = store.catalog.named("one").next_seq if "one" in store.catalog.names() else 1
            if "one" in store.catalog.names():
                (seq,) = publish(store, "one", [b"after"])
                assert seq == head
                assert seq not in acked
            store.close()
    return images


@pytest.mark.parametrize(("keep", "unit"), CRASHES)
def test_no_crash_loses_what_was_acked(keep: str, unit: int) -> None:
    assert sweep(keep, unit, seeds=2, step=7) > 20
