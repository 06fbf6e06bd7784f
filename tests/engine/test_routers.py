"""Routers of the embedded log: what is copied, when readers see it, what blocks a router, and what it leaves behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from simulated_log import GatedDisk, open_simulated, simulated_machine

from seawall import limits
from seawall.config import Config, FabricConfig
from seawall.core.routers import RouterInfo, RouterSettings
from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.commit.appends import NO_SESSION, Append
from seawall.engine.read.read_results import Message, ReceivedBatch
from seawall.engine.routing import routing
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import StoreSettings
from seawall.engine.store.topic_log import StoredBatch
from seawall.errors import (
    ConflictError,
    FullError,
    InvalidInputError,
    NotFoundError,
    WrongStateError,
)
from seawall.limits import KIB
from seawall.testing import SimDisk
from seawall.topics.gaps import Gap
from seawall.wire.format.codes import BatchFlags, Codec, GapReason
from seawall.wire.format.compression import compress
from seawall.wire.format.records import encode_raw

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB, ceiling_step=64)
TINY = Config(fabric=FabricConfig(goi_entries=256, pbr_entries=64, checkpoint_size=64 * KIB, blog_size=512 * KIB))


def opened(path: Path, brokers: int = 0) -> EmbeddedLog:
    return open_log(path / "data", SMALL, config=TINY, brokers=brokers)


@pytest.fixture(params=[0, 2], ids=["alone", "two brokers"])
def brokers(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def log(tmp_path: Path, brokers: int) -> Iterator[EmbeddedLog]:
    with opened(tmp_path, brokers) as log:
        log.create_topic("a")
        yield log


def values(log: EmbeddedLog, topic: str) -> list[bytes]:
    return [bytes(record.value) for item in log.follow(topic) if isinstance(item, ReceivedBatch) for record in item]


def gaps(log: EmbeddedLog, topic: str) -> list[Gap]:
    return [item for item in log.follow(topic) if isinstance(item, Gap)]


def stored(log: EmbeddedLog, topic: str) -> list[StoredBatch]:
    """The batches of a topic as they are stored."""
    log.catch_up(topic)
    with log.inspecting() as store:
        return [item for item in store.queries.read(topic, 1, size_max=1 << 24) if isinstance(item, StoredBatch)]


def stop_background(log: EmbeddedLog) -> None:
    """From now on, copies are made for readers alone."""
    log.commits.listeners.remove(log.forwarder.notify)


# --- what is copied -------------------------------------------------------------------------------------------------


def test_whole_batches_are_copied_as_they_are(log: EmbeddedLog) -> None:
    log.publish("a", [b"before"])
    router = log.create_router("a->b", "a", "b")
    assert router == RouterInfo("a->b", "a", "b", RouterSettings(), 0, 2)
    log.publish("a", [b"1", Message(b"2", key=b"k", tag="t", node="n", headers={"h": b"v"})])
    log.publish("a", b"x" * 100_000, idempotency_key="key")
    assert values(log, "b") == values(log, "a")[1:]
    (copied, large), (_, original, other) = stored(log, "b"), stored(log, "a")
    assert bytes(copied.block) == bytes(original.block)
    assert bytes(large.block) == bytes(other.block)
    assert (copied.base_seq, original.base_seq) == (1, 2)
    assert copied.position > original.position
    assert copied.timestamp_ns > original.timestamp_ns
    assert (large.header.client_id, large.header.flags) == (NO_SESSION, 0)
    info = log.describe_router("a->b")
    assert (info.forwarded, info.next_seq, info.blocked) == (3, 5, None)
    assert log.verify().findings == ()


@pytest.mark.parametrize("brokers", [0, 1, 2], indirect=True)
def test_routers_survive_a_restart(tmp_path: Path, brokers: int) -> None:
    with opened(tmp_path, brokers) as log:
        log.create_topic("a")
        log.create_router("r", "a", "b", tag_prefix="x", preserve_tag=False)
        log.create_router("s", "b", "c")
        for number in range(12):
            log.publish("a", [Message(b"%d" % number, tag="xy" if number % 2 else "y")])
            if number == 6:
                log.checkpoint()
        before = {topic: values(log, topic) for topic in "bc"}
        routers = log.routers()
        log.publish("a", Message(b"last", tag="x"))
    with opened(tmp_path, brokers) as log:
        assert [each.name for each in routers] == ["r", "s"]
        assert values(log, "c") == [*before["c"], b"last"] == [b"1", b"3", b"5", b"7", b"9", b"11", b"last"]
        assert [each.forwarded for each in log.routers()] == [7, 7]
        assert log.verify().findings == ()


def test_filters_choose_records_and_fields_are_left_out(log: EmbeddedLog) -> None:
    log.create_router("red", "a", "red", tag="red", preserve_node=False)
    log.create_router("north", "a", "north", node="n", preserve_tag=False)
    log.create_router("both", "a", "both", tag_prefix="r", node="n")
    log.publish(
        "a",
        [
            Message(b"1", tag="red", node="n"),
            Message(b"2", tag="redder"),
            Message(b"3", node="n"),
            b"4",
            Message(b"5", tag="red", node="m"),
        ],
    )

    def seen(topic: str) -> list[tuple[bytes, object, object]]:
        rows = log.read_arrow(topic, columns=("value", "tag", "node")).to_pylist()
        return [(row["value"], row["tag"], row["node"]) for row in rows]

    assert seen("red") == [(b"1", b"red", None), (b"5", b"red", None)]
    assert seen("north") == [(b"1", None, b"n"), (b"3", None, b"n")]
    assert seen("both") == [(b"1", b"red", b"n")]
    assert log.delete("both", tag="red") == 1


def test_small_filtered_batches_are_joined(log: EmbeddedLog) -> None:
    log.create_router("r", "a", "b", tag="x")
    stop_background(log)
    for number in range(40):
        log.publish("a", [Message(b"%d" % number, tag="x"), b"not"])
    assert len(values(log, "b")) == 40
    assert len(stored(log, "b")) == 1


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compressed_batches_stay_compressed_unless_they_are_filtered(log: EmbeddedLog, codec: Codec) -> None:
    log.create_router("whole", "a", "b")
    log.create_router("some", "a", "c", tag_prefix="t")
    plain = b"".join(encode_raw(b"v" * 100) for _ in range(20))
    with log.changing() as store:
        topic_id = store.catalog.named("a").topic_id
        block = compress(codec, plain)
        append = Append(topic_id, block, 20, codec=codec, raw_length=len(plain))
        store.append([append])
    (whole,) = stored(log, "b")
    assert (whole.header.codec, bytes(whole.block)) == (codec, block)
    assert values(log, "b") == [b"v" * 100] * 20
    assert values(log, "c") == []
    log.delete("a", before_seq=5)
    log.create_router("later", "a", "d")
    assert values(log, "d") == []


def test_deleted_records_are_not_copied(log: EmbeddedLog) -> None:
    log.create_router("r", "a", "b")
    log.create_topic("c", cap_records=1, discard="reject")
    log.create_router("late", "a", "c")
    log.publish("a", [b"first"])
    log.describe("c")
    log.publish("a", [Message(b"%d" % number, tag="odd" if number % 2 else None) for number in range(6)])
    assert len(values(log, "b")) == 7
    log.delete("a", tag="odd")
    log.configure_topic("c", cap_records=100)
    assert values(log, "c") == [b"first", b"0", b"2", b"4"]
    assert gaps(log, "c") == []
    assert len(values(log, "b")) == 7


def test_an_opaque_batch_is_one_unit(log: EmbeddedLog) -> None:
    log.create_router("whole", "a", "b", preserve_tag=False)
    log.create_router("some", "a", "c", node="n")
    with log.changing() as store:
        store.append([Append(store.catalog.named("a").topic_id, b"bytes", 1, flags=int(BatchFlags.OPAQUE))])
    (copied,) = stored(log, "b")
    assert (copied.header.is_opaque, bytes(copied.block)) == (True, b"bytes")
    assert log.describe_router("some").next_seq == 2
    assert stored(log, "c") == []


def test_a_topic_in_memory_may_be_the_source(log: EmbeddedLog) -> None:
    log.create_topic("brief", durability="ephemeral")
    log.create_router("r", "brief", "b")
    log.publish("brief", [b"1", b"2"])
    assert values(log, "b") == [b"1", b"2"]
    with pytest.raises(ConflictError, match="'brief' is kept in memory alone"):
        log.create_router("s", "a", "brief")


# --- reads after writes ---------------------------------------------------------------------------------------------


def test_every_read_shows_what_was_published_before(log: EmbeddedLog) -> None:
    log.create_router("r", "a", "b")
    log.create_router("s", "b", "c")
    stop_background(log)
    began = datetime.now(UTC)

    def publish() -> None:
        log.publish("a", b"x")

    publish()
    assert log.describe("c").next_seq == 2
    publish()
    assert len(log.read("c")) == 2
    publish()
    assert log.read_arrow("c").num_rows == 3
    publish()
    assert len([item for item in log.read_positions(0) if item.topic == "c"]) == 4
    publish()
    assert log.subscriber("c", "latest").next_seq == 6
    publish()
    assert log.seq_at("c", began) == 1
    assert log.wait_for("c", 6, timeout_s=0)
    publish()
    assert log.wait_for("c", 7, timeout_s=0)
    publish()
    assert sum(1 for _ in log.records("c")) == 8
    publish()
    position = log.start_position("latest")
    assert log.read_positions(position) == []
    publish()
    assert log.wait_for_position(position, timeout_s=0)
    publish()
    assert log.describe_router("s").forwarded == 11
    publish()
    assert [each.forwarded for each in log.routers()] == [12, 12]


def test_subscribers_of_the_destination_are_notified(log: EmbeddedLog) -> None:
    log.create_router("r", "a", "b")
    log.create_router("s", "b", "c", tag="x")
    found: list[bytes] = []
    started = threading.Event()

    def follow() -> None:
        subscriber = log.subscriber("c")
        started.set()
        while len(found) < 3:
            found.extend(
                bytes(record.value)
                for item in subscriber.poll(timeout_s=30)
                if isinstance(item, ReceivedBatch)
                for record in item
            )

    reader = threading.Thread(target=follow)
    reader.start()
    started.wait()
    for number in range(3):
        log.publish("a", [b"no", Message(b"%d" % number, tag="x")])
    reader.join(60)
    assert found == [b"0", b"1", b"2"]


def test_many_publishers_and_readers_share_a_router(log: EmbeddedLog) -> None:
    log.create_router("r", "a", "b")

    def publish(name: bytes) -> None:
        for number in range(40):
            log.publish("a", b"%s %d" % (name, number))
            assert log.describe("b").next_seq > number

    threads = [threading.Thread(target=publish, args=(name,)) for name in (b"x", b"y", b"z")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(log, "b") == values(log, "a")
    assert len(values(log, "b")) == 120


def test_large_backlogs_take_several_steps(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUTER_STEP_SIZE", 4 * KIB)
    log.create_router("r", "a", "b")
    stop_background(log)
    for number in range(300):
        log.publish("a", [b"%d" % number] * 3)
    log.publish("a", b"y" * 200_000)
    steps: list[int] = []
    real = log._store.routing.step
    monkeypatch.setattr(log._store.routing, "step", lambda *given: (steps.append(1), real(*given)))
    assert values(log, "b") == values(log, "a")
    assert len(steps) > 5


# --- blocked ---------------------------------------------------------------------------------------------------------


def test_a_full_destination_holds_the_router(log: EmbeddedLog) -> None:
    log.create_topic("b", cap_records=3, discard="reject")
    log.create_router("r", "a", "b")
    for number in range(6):
        log.publish("a", b"%d" % number)
    assert values(log, "b") == [b"0", b"1", b"2"]
    info = log.describe_router("r")
    assert (info.forwarded, info.next_seq) == (3, 4)
    assert info.blocked is not None
    assert "cap_records of 3" in info.blocked
    log.delete("b", before_seq=2)
    assert values(log, "b") == [b"1", b"2", b"3"]
    log.configure_topic("b", cap_records=100)
    assert values(log, "b") == [b"1", b"2", b"3", b"4", b"5"]
    assert log.describe_router("r").blocked is None
    log.configure_topic("b", cap_records=5)
    with pytest.raises(FullError):
        log.publish("b", b"direct")


def test_pauses_of_a_blocked_router_grow() -> None:
    disk = SimDisk(seed=1)
    machine = simulated_machine(disk)
    store = open_store(machine, "/data", SMALL)
    clock = machine.clock
    store.routing.put("r", "a", "b", RouterSettings(), create_dest=True)
    store.configure_topic("b", {"cap_records": 1, "discard": "reject"})
    topic_id = store.catalog.named("a").topic_id
    store.append([Append(topic_id, encode_raw(b"1"), 1), Append(topic_id, encode_raw(b"2"), 1)])
    pauses = []
    while len(pauses) < 12:
        if store.routing.due("r") is None:
            pause_s = store.routing.retry_s
            assert pause_s is not None
            pauses.append(round(pause_s * 1_000))
            clock.advance(int(pause_s * 1e9) + 1)
        store.routing.step("r")
    assert pauses[:4] == [50, 100, 200, 400]
    assert pauses[-1] == 10_000
    assert store.routing.info("r").forwarded == 1
    store.delete_topic("b")
    assert store.routing.retry_s is None
    assert store.routing._pauses
    assert store.routing.awaiting([]) == []
    assert not store.routing._pauses
    store.close()


def test_evicted_and_lost_records_become_a_gap(log: EmbeddedLog) -> None:
    log.create_topic("b", cap_records=1, discard="reject")
    log.create_router("r", "a", "b")
    log.publish("a", b"first")
    log.describe("b")
    for number in range(10):
        log.publish("a", b"%d" % number)
    log.configure_topic("a", cap_records=3)
    log.checkpoint()
    log.configure_topic("b", cap_records=0)
    log.publish("a", b"last")
    (gap,) = gaps(log, "b")
    copies = values(log, "b")
    assert (copies[0], copies[-1]) == (b"first", b"last")
    assert gap.reason is GapReason.SOURCE_TRIM
    assert gap.first_seq == 2
    # One seq for each record of the source that was evicted first.
    assert gap.last_seq - gap.first_seq + 1 == 12 - len(copies)
    assert log.describe("b").next_seq == 13
    log.publish("b", b"direct")
    assert values(log, "b") == [*copies, b"direct"]


def test_a_damaged_batch_becomes_a_gap(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("a", segment_max_records=1)
        log.create_topic("b", cap_records=1, discard="reject")
        log.create_router("r", "a", "b")
        for number in range(5):
            log.publish("a", b"%d" % number * 50)
        log.describe("b")
        log.checkpoint()
    (segment,) = (tmp_path / "data" / "topics" / "00000001").glob(f"{3:020}-*.sealed")
    data = bytearray(segment.read_bytes())
    data[4096 + 100] ^= 1
    segment.write_bytes(data)
    with opened(tmp_path) as log:
        log.configure_topic("b", cap_records=0)
        assert values(log, "b") == [b"%d" % number * 50 for number in (0, 1, 3, 4)]
        assert gaps(log, "b") == [Gap(3, 3, GapReason.SOURCE_TRIM)]
        assert log.describe_router("r").forwarded == 4


def test_a_source_that_cannot_be_read_blocks_its_routers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as log:
        log.create_router("r", "a", "b")
        stop_background(log)
        log.publish("a", b"1")

        def unreadable(*_: object) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(routing, "make_copies", unreadable)
            assert values(log, "b") == []
            assert "Input/output error" in (log.describe_router("r").blocked or "")
        log.publish("b", b"direct")
        assert values(log, "b") == [b"direct", b"1"]
        assert log.describe_router("r").blocked is None


def test_a_failed_disk_ends_copies_and_not_reads() -> None:
    disk = GatedDisk()
    log = open_simulated(disk)
    log.create_router("r", "a", "b")
    log.publish("a", b"1")
    assert values(log, "b") == [b"1"]
    stop_background(log)
    log.publish("a", b"2")
    disk.fail("sync", forever=True)
    assert values(log, "b") == [b"1"]
    assert values(log, "a") == [b"1", b"2"]
    disk.clear_faults()
    log.close()


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_no_crash_loses_copies_whatever_the_class(durability: str) -> None:
    disk = SimDisk(seed=1)
    log = open_simulated(disk)
    log.create_topic("a", durability=durability)
    log.create_topic("b", durability=durability)
    log.create_router("r", "a", "b")
    log.publish("a", [b"1", b"2"])
    assert values(log, "b") == [b"1", b"2"]
    stop_background(log)
    log.publish("a", b"3")
    # A thread that still looks for steps would use the disk of before the crash.
    log.forwarder.stop()
    disk.crash(keep="none")
    log = open_simulated(disk)
    kept = [b"1", b"2", b"3"] if durability == "fsync" else [b"1", b"2"]
    assert values(log, "a") == values(log, "b") == kept
    assert {gap.reason for gap in gaps(log, "a")} == {GapReason.CRASH}
    assert {gap.reason for gap in gaps(log, "b")} == {GapReason.CRASH, GapReason.SOURCE_TRIM}
    assert log.describe_router("r").forwarded == len(kept)
    log.close()


# --- loops -----------------------------------------------------------------------------------------------------------


def test_copies_in_a_loop_end_at_the_hop_limit(log: EmbeddedLog) -> None:
    log.create_router("ab", "a", "b")
    with pytest.raises(ConflictError, match="b -> a -> b"):
        log.create_router("ba", "b", "a")
    log.create_router("ba", "b", "a", allow_cycle=True)
    log.publish("a", b"x")
    rounds = limits.ROUTER_HOPS_MAX
    assert log.wait_for("b", rounds + 1, timeout_s=60)
    assert log.describe_router("ab").next_seq == log.describe("a").next_seq
    assert values(log, "a") == [b"x"] * (rounds + 1)
    assert values(log, "b") == [b"x"] * (rounds + 1)
    assert log.describe_router("ba").forwarded == rounds


def test_a_loss_does_not_circle(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_router("ab", "a", "b")
        log.create_router("ba", "b", "a", allow_cycle=True)
        log.publish("a", b"x")
        log.wait_for("b", limits.ROUTER_HOPS_MAX + 1, timeout_s=60)
        with log.changing() as store:
            store.marks_clean = False
    with opened(tmp_path) as log:
        # Both topics lost numbers, and each router passes the losses of its source on once.
        before = None
        while before != (before := [log.describe(topic).next_seq for topic in "ab"]):
            log.routers()
        assert log.describe("b").next_seq < 1_000
        assert {gap.reason for gap in gaps(log, "b")} == {GapReason.CRASH, GapReason.SOURCE_TRIM}


# --- the life of a router --------------------------------------------------------------------------------------------


def test_missing_topics_are_created_unless_told_otherwise(log: EmbeddedLog) -> None:
    with pytest.raises(NotFoundError, match="no topic 'c'"):
        log.create_router("r", "new", "c", create_dest=False)
    assert log.topics() == ["a"]
    with pytest.raises(InvalidInputError):
        log.create_router("r", "x", "x")
    with pytest.raises(InvalidInputError):
        log.create_router("r", "bad name", "c")
    assert log.topics() == ["a"]
    log.create_router("r", "new", "c")
    assert log.topics() == ["a", "c", "new"]
    log.create_router("s", "a", "d", create_dest=True)
    log.create_router("t", "d", "c2")


def test_changed_settings_apply_to_what_follows(log: EmbeddedLog) -> None:
    log.create_router("r", "a", "b")
    log.publish("a", b"1")
    assert values(log, "b") == [b"1"]
    changed = log.create_router("r", "a", "b", tag="x", guarantee="exactly_once")
    assert (changed.settings.tag, changed.next_seq, changed.forwarded) == ("x", 2, 1)
    log.publish("a", [b"2", Message(b"3", tag="x")])
    assert values(log, "b") == [b"1", b"3"]
    with pytest.raises(ConflictError, match="its topics are fixed"):
        log.create_router("r", "a", "c")


def test_a_deleted_router_leaves_its_copies(log: EmbeddedLog) -> None:
    log.create_router("r", "a", "b")
    log.publish("a", b"1")
    assert values(log, "b") == [b"1"]
    log.delete_router("r")
    log.publish("a", b"2")
    assert values(log, "b") == [b"1"]
    assert log.routers() == []
    for call in (log.delete_router, log.describe_router):
        with pytest.raises(NotFoundError, match="no router 'r'"):
            call("r")
    log.create_router("r", "a", "b")
    log.publish("a", b"3")
    assert values(log, "b") == [b"1", b"3"]


@pytest.mark.parametrize("topic", ["a", "b"])
def test_a_deleted_topic_ends_its_routers(log: EmbeddedLog, topic: str) -> None:
    log.create_router("r", "a", "b")
    log.publish("a", b"1")
    log.describe("b")
    log.delete_topic(topic)
    assert log.routers() == []
    log.create_topic(topic)
    log.publish("a", b"2")
    assert values(log, "b") == ([b"1"] if topic == "a" else [])


def test_a_closed_log_refuses_routers(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.create_router("r", "a", "b")
    log.close()
    for call in (lambda: log.create_router("r", "a", "b"), log.routers, lambda: log.delete_router("r")):
        with pytest.raises(WrongStateError):
            call()


def test_routers_on_an_event_loop(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncLog(tmp_path / "data", SMALL) as log:
            await log.create_topic("a")
            created = await log.create_router("r", "a", "b", tag="x")
            assert created.settings == RouterSettings(tag="x")
            await log.publish("a", [Message(b"1", tag="x"), b"2"])
            assert (await log.describe("b")).next_seq == 2
            assert [bytes(each.value) for batch in await log.read("b") for each in batch] == [b"1"]
            assert (await log.describe_router("r")).forwarded == 1
            await log.publish("a", Message(b"3", tag="x"))
            assert await log.wait_for("b", 2, timeout_s=30)
            assert [each.name for each in await log.routers()] == ["r"]
            await log.delete_router("r")
            assert await log.routers() == []

    asyncio.run(run())
