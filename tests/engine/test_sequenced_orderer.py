"""The embedded log with brokers, whose batches go through rings and one order: behaves like a log without them."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.cli.main import seawall
from seawall.config import Config, FabricConfig
from seawall.core.types import ClientId, ClientSeq, Seq
from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.api.publisher import Publisher
from seawall.engine.commit.appends import Append
from seawall.engine.ordering.orderer import SessionSpec
from seawall.engine.ordering.sequenced_orderer import open_sequenced_store
from seawall.engine.read.read_results import Message, ReceivedBatch
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch
from seawall.errors import (
    ConfigError,
    ConflictError,
    DiskFullError,
    FatalError,
    FencedError,
    FullError,
    InvalidInputError,
    LimitError,
    LockedError,
    NotFoundError,
    SeawallError,
    UnsupportedError,
    WrongStateError,
)
from seawall.fabric.naming import record_fabric, recorded_fabric
from seawall.io.disk.files import OsFiles
from seawall.io.process.boot import boot_id
from seawall.io.process.clocks import OsClock
from seawall.io.process.shared_memory import OsSharedMemory
from seawall.limits import KIB, MIB, RECORD_HEADER_SIZE
from seawall.sequencer.order_worker import OrderSettings
from seawall.sequencer.pod_sequencer import SequencerMode, SequencerSettings
from seawall.testing import SimDisk
from seawall.topics.config import Order, TopicConfig
from seawall.topics.gaps import Gap
from seawall.wire.format.codes import AckStatus
from seawall.wire.format.records import encode_raw

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB, ceiling_step=64)
TINY = FabricConfig(goi_entries=256, pbr_entries=64, checkpoint_size=64 * KIB, blog_size=256 * KIB)


def opened(path: Path, brokers: int = 2, store: StoreSettings = SMALL, fabric: FabricConfig = TINY) -> EmbeddedLog:
    return open_log(path / "data", store, config=Config(fabric=fabric), brokers=brokers)


@pytest.fixture
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EmbeddedLog]:
    """A log with two brokers, or with as many as the test asks for."""
    with opened(tmp_path, getattr(request, "param", 2)) as log:
        log.create_topic("events")
        yield log


each_broker_count = pytest.mark.parametrize("log", [1, 2, 4], indirect=True)


def values(log: EmbeddedLog, topic: str = "events", from_seq: int = 1) -> list[bytes]:
    return [record.value for item in log.follow(topic, from_seq) if isinstance(item, ReceivedBatch) for record in item]


def fabric_of(tmp_path: Path) -> Path:
    """The fabric of the open log in a directory."""
    path = recorded_fabric(OsFiles(), str(tmp_path / "data"))
    assert path is not None
    return Path(path)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run in several threads that start together; raises if one of them does."""
    barrier, errors = threading.Barrier(count), []

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except Exception as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# --- the same log ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, 1, 2, 5])
def test_every_order_stores_what_is_published(log: EmbeddedLog, order: int) -> None:
    topic = log.create_topic("ordered", order=order)
    assert topic.config.order == order
    assert [list(log.publish("ordered", [b"%d" % n, b"more"]).seqs) for n in range(3)] == [[1, 2], [3, 4], [5, 6]]
    with log.publisher("ordered", client_id=9) as publisher:
        sent = [publisher.publish(b"session %d" % n) for n in range(10)]
    assert [delivery.result().first_seq for delivery in sent] == list(range(7, 17))
    positions = [delivery.position for delivery in sent]
    assert positions == sorted(set(positions))
    assert values(log, "ordered")[6:] == [b"session %d" % n for n in range(10)]


@pytest.mark.parametrize("ack", [0, 1, 2])
@pytest.mark.parametrize("order", [0, 2, 5])
def test_every_ack_level_stores_the_records(log: EmbeddedLog, order: int, ack: int) -> None:
    log.create_topic("ordered", order=order)
    with log.publisher("ordered", ack=ack) as publisher:
        for number in range(50):
            publisher.publish(b"%d" % number)
    assert values(log, "ordered") == [b"%d" % number for number in range(50)]


@each_broker_count
def test_positions_are_one_order_over_all_topics(log: EmbeddedLog) -> None:
    topics = [f"topic{number}" for number in range(5)]
    for topic in topics:
        log.create_topic(topic)
    positions = [log.publish(topics[number % 5], b"%d" % number).position for number in range(50)]
    assert positions == sorted(set(positions))


@each_broker_count
def test_a_session_stores_each_client_seq_once_and_ends_the_older_one(log: EmbeddedLog) -> None:
    log.create_topic("strong", order=5)
    for topic in ("events", "strong"):
        first = log.publisher(topic, client_id=7)
        begun = first.next_client_seq
        original = first.publish(b"one", client_seq=begun).result()
        again = first.publish(b"one", client_seq=begun).result()
        assert (again.is_duplicate, again.first_seq, again.position) == (True, original.first_seq, original.position)
        with pytest.raises(ConflictError, match="other records"):
            first.publish(b"another", client_seq=begun).result()
        second = log.publisher(topic, client_id=7)
        assert second.next_client_seq == begun + 1
        with pytest.raises(FencedError):
            first.publish(b"late").result()
        second.publish(b"two").result()
        assert values(log, topic) == [b"one", b"two"]


def test_sessions_continue_after_a_restart_with_other_brokers(tmp_path: Path) -> None:
    for number, brokers in enumerate((2, 0, 1, 4)):
        with opened(tmp_path, brokers) as log:
            if not number:
                log.create_topic("events", order=5)
            publisher = log.publisher("events", client_id=7)
            assert publisher.next_client_seq == 3 * number + 1
            for each in range(3):
                publisher.publish(b"%d" % (3 * number + each)).result()
            if number:
                before = publisher.publish(b"%d" % (3 * number - 1), client_seq=3 * number).result()
                assert (before.is_duplicate, before.first_seq) == (True, 3 * number)
                with pytest.raises(ConflictError, match="other records"):
                    publisher.publish(b"another", client_seq=3 * number).result()
    with opened(tmp_path) as log:
        assert values(log) == [b"%d" % number for number in range(12)]
        assert not [item for item in log.follow("events") if isinstance(item, Gap)]
        assert not log.verify().findings


@each_broker_count
def test_order_5_requires_consecutive_client_seqs(log: EmbeddedLog) -> None:
    log.create_topic("strong", order=5)
    first = log.publisher("events", client_id=7)
    for seq in (1, 2, 4, 5):
        first.publish(b"%d" % seq, client_seq=seq).result()
    second = log.publisher("strong", client_id=7)
    with pytest.raises(WrongStateError, match="ahead of batch 3"):
        second.publish(b"6", client_seq=6).result()
    assert second.publish(b"4", client_seq=4).result().is_duplicate
    # In one commit: batch 3 closes the hole, so that batches 6 and 7 are next.
    sent = [second.publish(b"%d" % seq, client_seq=seq) for seq in (3, 8, 6, 7)]
    assert [sent[index].result().first_seq for index in (0, 2, 3)] == [1, 2, 3]
    with pytest.raises(WrongStateError, match="order 5"):
        sent[1].result()
    assert values(log, "strong") == [b"3", b"6", b"7"]


def test_batches_after_a_refused_one_are_refused_and_can_be_resent(log: EmbeddedLog) -> None:
    log.create_topic("strong", order=5)
    publisher = log.publisher("strong", client_id=7)
    publisher.publish(b"1").result()
    sent = [publisher.publish(value) for value in (bytes(300 * KIB), b"behind", b"further")]
    errors = [LimitError, WrongStateError, WrongStateError]
    for delivery, error in zip(sent, errors, strict=True):
        with pytest.raises(error):
            delivery.result()
    assert publisher.next_client_seq == 2
    assert [publisher.publish(value).result().first_seq for value in (b"2", b"3", b"4")] == [2, 3, 4]
    assert values(log, "strong") == [b"1", b"2", b"3", b"4"]


def test_keys_are_stored_once_even_within_one_commit(log: EmbeddedLog) -> None:
    twins = [log.commits.offer(log.pending_batch_of("events", b"%d" % number, "same")) for number in range(3)]
    assert [delivery.result().first_seq for delivery in twins] == [1, 1, 1]
    assert [delivery.is_duplicate for delivery in twins] == [False, True, True]
    again = log.publish("events", b"again", idempotency_key="same")
    assert (again.is_duplicate, again.first_seq) == (True, 1)
    refused = [log.commits.offer(log.pending_batch_of("events", bytes(300 * KIB), "large")) for _ in range(2)]
    for delivery in refused:
        with pytest.raises(LimitError):
            delivery.result()
    assert values(log) == [b"0"]


def test_caps_evict_and_reject(log: EmbeddedLog) -> None:
    log.create_topic("capped", cap_records=10)
    for number in range(40):
        log.publish("capped", [b"%d" % number] * 3)
        assert log.describe("capped").record_count <= 10
    gap, *batches = log.follow("capped")
    assert (gap.first_seq, gap.last_seq) == (1, 110)
    assert sum(len(batch) for batch in batches) == 10
    log.create_topic("full", cap_records=3, discard="reject")
    log.publish("full", [b"1", b"2", b"3"])
    with pytest.raises(FullError):
        log.publish("full", b"4")
    assert values(log, "full") == [b"1", b"2", b"3"]


def test_deletes_cover_what_was_ordered_before_them(log: EmbeddedLog) -> None:
    for number in range(20):
        log.publish("events", Message(b"%d" % number, tag="odd" if number % 2 else "even"))
    assert log.delete("events", tag="odd", before_seq=11) == 5
    assert log.delete("events", before_seq=4) == 2
    assert log.delete("events", tag_prefix="ev", before_seq=7) == 1
    assert values(log) == [b"6", b"8", *(b"%d" % number for number in range(10, 20))]
    with pytest.raises(InvalidInputError):
        log.delete("events")
    with pytest.raises(NotFoundError):
        log.delete("nobody", before_seq=3)
    log.checkpoint()
    log.publish("events", b"after")
    assert values(log)[-2:] == [b"19", b"after"]


def test_topics_and_cursors_survive_without_brokers(tmp_path: Path, log: EmbeddedLog) -> None:
    with pytest.raises(ConflictError):
        log.create_topic("events")
    log.create_topic("other", ttl_ms=5_000)
    assert log.configure_topic("other", ttl_ms=0).config.ttl_ms == 0
    log.publish("other", [b"a", b"b"])
    log.commit("me", "other", 2)
    log.delete_topic("other")
    for use in (
        lambda: log.publish("other", b"x"),
        lambda: log.delete_topic("other"),
        lambda: log.configure_topic("other", ttl_ms=1),
        lambda: log.commit("me", "other", 1),
    ):
        with pytest.raises(NotFoundError):
            use()
    log.create_topic("other")
    assert log.publish("other", b"anew").first_seq == 1
    log.commit("me", "other", 2)
    log.close()
    with opened(tmp_path, 0) as again:
        assert (again.committed("me", "other"), again.topics()) == (2, ["events", "other"])
        assert values(again, "other") == [b"anew"]


def test_arrow_tables_go_through_brokers(log: EmbeddedLog) -> None:
    table = pa.table({"value": pa.array([b"%d" % n for n in range(5_000)], pa.binary())})
    assert log.publish("events", table).seqs == range(1, 5_001)
    assert log.read_arrow("events", columns=("value",)).column("value").to_pylist() == [b"%d" % n for n in range(5_000)]


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_every_class_stores_small_and_large_batches(tmp_path: Path, durability: str) -> None:
    sizes = [10, 65_000, 70_000, 200_000, 5]
    with opened(tmp_path) as log:
        log.create_topic("events", durability=durability)
        for size in sizes:
            log.publish("events", bytes([size % 251]) * size)
        assert [len(value) for value in values(log)] == sizes
    with opened(tmp_path, 0) as log:
        expected = [] if durability == "ephemeral" else sizes
        assert [len(value) for value in values(log)] == expected
        if durability == "ephemeral":
            (gap,) = log.read("events")
            assert (gap.first_seq, gap.last_seq) == (1, len(sizes))


def test_a_batch_larger_than_the_blog_is_refused(log: EmbeddedLog) -> None:
    log.publish("events", b"before")
    with pytest.raises(LimitError, match="blog_size"):
        log.publish("events", bytes(300 * KIB))
    assert log.publish("events", b"after").first_seq == 2
    assert values(log) == [b"before", b"after"]


@each_broker_count
def test_groups_may_exceed_the_rings(log: EmbeddedLog) -> None:
    log.create_topic("strong", order=5)
    with log.publisher("strong", client_id=3) as session, log.publisher("events") as plain:
        sent = []
        for number in range(400):
            sent.append(session.publish(b"s%d" % number))
            if number % 7 == 0:
                plain.publish(bytes([number % 256]) * 70_000)
    assert [delivery.result().first_seq for delivery in sent] == list(range(1, 401))
    assert values(log, "strong") == [b"s%d" % number for number in range(400)]
    assert [value[0] for value in values(log)] == [number % 256 for number in range(0, 400, 7)]


@each_broker_count
def test_threads_publish_together(log: EmbeddedLog) -> None:
    log.create_topic("strong", order=5)

    def work(thread: int) -> None:
        with log.publisher("strong", client_id=thread + 1) as publisher:
            for number in range(60):
                log.publish("events", b"%d %d" % (thread, number))
                publisher.publish(b"%d %d" % (thread, number))

    in_threads(8, work)
    for topic in ("events", "strong"):
        found = [tuple(map(int, value.split())) for value in values(log, topic)]
        assert len(found) == 480
        for thread in range(8):
            assert [number for who, number in found if who == thread] == [*range(60)]


@pytest.mark.usefixtures("each_event_loop")
def test_an_event_loop_publishes_through_brokers(tmp_path: Path) -> None:
    async def work() -> None:
        config = Config(fabric=TINY)
        async with AsyncLog(tmp_path / "data", SMALL, config, brokers=2) as log:
            await log.create_topic("events", order=5)
            publisher = await log.publisher("events", client_id=5)
            sent = [publisher.publish(b"%d" % number) for number in range(300)]
            sent += [log.publish("events", bytes(70_000)) for _ in range(5)]
            deliveries = await asyncio.gather(*sent)
            assert [delivery.first_seq for delivery in deliveries] == list(range(1, 306))
            await log.delete("events", before_seq=100)
            assert (await log.read("events"))[0].first_seq == 100

    asyncio.run(work())
    with opened(tmp_path, 0) as log:
        assert len(values(log)) == 206


# --- failures --------------------------------------------------------------------------------------------------------


def on_simulated_disk(
    disk: SimDisk, tmp_path: Path, brokers: int = 2, sequencing: SequencerSettings | None = None
) -> Store:
    """A pod with a real fabric and a simulated disk."""
    machine = Machine(disk, OsClock(), random.Random(1).randbytes, pid=1)
    fabric = replace(TINY, brokers=brokers, directory=str(tmp_path))
    store = replace(SMALL, wal_file_size=128 * KIB, ballast_size=192 * KIB, checkpoint_size=256 * KIB)
    return open_sequenced_store(machine, "/data", OsSharedMemory(), boot_id(), fabric, store, sequencing)


def stored(store: Store, name: str) -> list[bytes]:
    found: list[bytes] = []
    seq = Seq(1)
    while items := store.queries.read(name, seq, size_max=MIB):
        found += [bytes(item.block)[RECORD_HEADER_SIZE:] for item in items if isinstance(item, StoredBatch)]
        seq = items[-1].next_seq if isinstance(items[-1], StoredBatch) else Seq(items[-1].last_seq + 1)
    return found


def append(store: Store, name: str, *blocks: bytes) -> None:
    topic_id = store.catalog.named(name).topic_id
    store.append([Append(topic_id, encode_raw(block), 1) for block in blocks])


def fill(store: Store, name: str, size: int) -> list[bytes]:
    """Append, three at a time, until the disk refuses."""
    accepted: list[bytes] = []
    while True:
        values = [b"%08d" % number + bytes(size) for number in range(len(accepted), len(accepted) + 3)]
        try:
            append(store, name, *values)
        except DiskFullError:
            return accepted
        accepted += values


@pytest.mark.parametrize("size", [500, 20_000, 80_000])
def test_a_full_disk_refuses_before_anything_is_ordered(tmp_path: Path, size: int) -> None:
    disk = SimDisk(seed=size, capacity=3 * MIB)
    store = on_simulated_disk(disk, tmp_path)
    for name in ("kept", "victim"):
        store.create_topic(name, TopicConfig(segment_max_records=20))
    append(store, "kept", b"first")
    accepted = fill(store, "victim", size)
    assert len(accepted) > 5
    for _ in range(3):
        assert stored(store, "victim") == accepted
        with pytest.raises(DiskFullError):
            append(store, "victim", *[bytes(size + 8)] * 3)
    store.delete_topic("victim")
    append(store, "kept", bytes(size))
    store.close()
    store = on_simulated_disk(disk, tmp_path)
    assert stored(store, "kept") == [b"first", bytes(size)]
    assert store.catalog.names() == ["kept"]
    assert store.queries.read("kept", Seq(1), size_max=MIB)[-1].next_seq == 3
    store.close()


def test_reservations_of_unordered_batches_are_released(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("events", segment_max_records=3)
        publisher = log.publisher("events", client_id=4)
        for number in range(3):
            publisher.publish(b"%d" % number).result()
        # A new segment is due, but the batches that it is reserved for are duplicates or too large.
        for number in range(3):
            assert publisher.publish(b"%d" % number, client_seq=number + 1).result().is_duplicate
            with pytest.raises(LimitError):
                log.publish("events", bytes(300 * KIB))
        assert len([*(tmp_path / "data" / "topics").glob("*/*.active")]) == 1
        log.checkpoint()
        publisher.publish(b"3").result()
    with opened(tmp_path, 0) as log:
        assert values(log) == [b"0", b"1", b"2", b"3"]
        assert not log.verify().findings


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_failing_disk_ends_writing_and_leaves_reading(tmp_path: Path, call: Literal["write", "sync"]) -> None:
    disk = SimDisk(seed=3)
    store = on_simulated_disk(disk, tmp_path)
    store.create_topic("events", TopicConfig())
    append(store, "events", b"before")
    disk.fail(call, error=errno.EIO, path="*.wal")
    with pytest.raises(FatalError):
        append(store, "events", b"lost")
    for use in (
        lambda: append(store, "events", b"more"),
        lambda: store.create_topic("other", TopicConfig()),
        lambda: store.session_keeper.open(SessionSpec(ClientId(1), ClientSeq(1))),
    ):
        with pytest.raises(FatalError, match="an earlier change failed"):
            use()
    assert stored(store, "events") == [b"before"]
    # A batch that was ordered and not stored is not readable, not even by an ordered read.
    assert store.queries.plan_ordered("events", Seq(1), size_max=1 << 20).tail == []
    store.close()
    assert not [*tmp_path.glob("*.fabric")]


def test_a_second_opener_is_refused(tmp_path: Path, log: EmbeddedLog) -> None:
    for brokers in (0, 2):
        with pytest.raises(LockedError, match="in use by process"):
            opened(tmp_path, brokers)
    assert log.publish("events", b"still here").first_seq == 1


def test_too_little_shared_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, 0) as log:
        log.create_topic("events")
    monkeypatch.setattr(OsSharedMemory, "free_bytes", lambda _self, _path: 1_000)
    with pytest.raises(DiskFullError, match=r"lower .*fabric.*1000 are free|1000 are free there: lower"):
        opened(tmp_path)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="brokers"):
        opened(tmp_path, 1_000)
    # The directory is not locked, and nothing was left in it.
    with opened(tmp_path) as log:
        assert log.topics() == ["events"]


def test_the_fabric_is_removed_on_close_and_a_leftover_is_replaced(tmp_path: Path) -> None:
    fabric = replace(TINY, directory=str(tmp_path))
    with opened(tmp_path, fabric=fabric) as log:
        path = fabric_of(tmp_path)
        assert path.exists()
        log.create_topic("events")
        log.publish("events", b"1")
        left = path.read_bytes()
    assert not path.exists()
    for number, (brokers, sizes) in enumerate(((2, fabric), (1, fabric), (2, replace(fabric, goi_entries=512)))):
        # As a killed process leaves them: the fabric, and the record of its path.
        path.write_bytes(left)
        record_fabric(OsFiles(), str(tmp_path / "data"), str(path))
        with opened(tmp_path, brokers, fabric=sizes) as log:
            assert log.publish("events", b"x").first_seq == number + 2
        assert not path.exists()


def test_a_live_fabric_can_be_inspected(tmp_path: Path, log: EmbeddedLog) -> None:
    log.publish("events", b"x")
    result = CliRunner().invoke(seawall, ["fabric", "inspect", str(fabric_of(tmp_path))])
    assert result.exit_code == 0, result.output
    assert "committed" in result.output


def test_a_forked_child_is_refused_and_keeps_the_fabric(tmp_path: Path, log: EmbeddedLog) -> None:
    log.publish("events", b"parent")
    child = os.fork()
    if not child:
        try:
            log.publish("events", b"child")
        except UnsupportedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert fabric_of(tmp_path).exists()
    log.publish("events", b"parent again")
    assert values(log) == [b"parent", b"parent again"]


SCATTERED = SequencerSettings(SequencerMode.SCATTER_GATHER, collectors=2, workers=2)


@pytest.mark.parametrize("mode", [SequencerSettings(), SCATTERED])
def test_more_clients_than_a_worker_remembers(tmp_path: Path, mode: SequencerSettings) -> None:
    sequencing = replace(mode, ordering=OrderSettings(clients_max=4, remembered_max=2))
    store = on_simulated_disk(SimDisk(seed=1), tmp_path, sequencing=sequencing)
    store.create_topic("events", TopicConfig(order=Order.CLIENT))
    topic_id = store.catalog.named("events").topic_id
    epochs = {
        client: store.session_keeper.open(SessionSpec(ClientId(client), ClientSeq(1)))[0] for client in range(1, 30)
    }

    def publish(client: int, seq: int) -> AckStatus:
        append = Append(topic_id, encode_raw(b"%d" % client), 1, ClientId(client), ClientSeq(seq), epochs[client])
        return store.append([append])[0].status

    for seq in range(1, 4):
        for client in epochs:
            assert publish(client, seq) is AckStatus.OK
        # Rows that a worker has evicted are loaded from the store.
        assert all(publish(client, seq) is AckStatus.DUPLICATE for client in epochs)
    assert [(*store.session_keeper.open(SessionSpec(ClientId(client), ClientSeq(1))),) for client in epochs] == [
        (2, 4)
    ] * len(epochs)
    assert len(stored(store, "events")) == 3 * len(epochs)
    with pytest.raises(FencedError):
        store.append([Append(topic_id, encode_raw(b"x"), 1, ClientId(99), ClientSeq(1), 1)])
    store.close()


def test_changes_take_positions_when_the_order_wraps_around(tmp_path: Path) -> None:
    with opened(tmp_path, fabric=replace(TINY, goi_entries=128)) as log:
        log.create_topic("events")
        for number in range(100):
            log.publish("events", b"%d" % number)
            log.commit("me", "events", number + 1)
            assert log.delete("events", before_seq=number + 1) == min(number, 1)
        assert values(log) == [b"99"]
        assert log.committed("me", "events") == 100


# --- the same as without brokers --------------------------------------------------------------------------------------

TOPICS = ("plain", "strong", "capped", "memory")
CALLS = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(TOPICS), st.integers(1, 4), st.sampled_from((3, 900, 60_000))),
    st.tuples(st.just("keyed"), st.sampled_from(TOPICS), st.sampled_from("abc")),
    st.tuples(st.just("session"), st.sampled_from(("plain", "strong")), st.integers(1, 3), st.integers(-2, 0)),
    st.tuples(st.just("open"), st.sampled_from(("plain", "strong")), st.integers(1, 3)),
    st.tuples(st.just("delete"), st.sampled_from(TOPICS), st.integers(1, 12), st.sampled_from((None, "odd"))),
    st.tuples(st.just("cursor"), st.sampled_from(TOPICS), st.integers(1, 9)),
    st.tuples(st.just("group"), st.lists(st.sampled_from(TOPICS), min_size=1, max_size=8)),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("reopen"), st.sampled_from((0, 1, 3))),
)


class Twin:
    """A log that executes calls and returns the outcome of each, to compare two logs."""

    def __init__(self, path: Path, brokers: int) -> None:
        self._path = path
        self._brokers = brokers
        self._number = 0
        self._sessions: dict[tuple[str, int], Publisher] = {}
        self.log = opened(path, brokers)
        for topic in TOPICS:
            order = 5 if topic == "strong" else 2
            cap = 9 if topic == "capped" else 0
            durability = "memory" if topic == "memory" else "disk"
            self.log.create_topic(topic, order=order, cap_records=cap, durability=durability, segment_max_records=7)

    def execute(self, call: tuple) -> object:
        try:
            return getattr(self, f"_{call[0]}")(*call[1:])
        except SeawallError as error:
            return type(error), error.args

    def contents(self) -> object:
        return [
            (
                replace(self.log.describe(topic), created_at=0),
                [(item.seqs, bytes(item.block)) if isinstance(item, ReceivedBatch) else item for item in items],
            )
            for topic in TOPICS
            for items in [[*self.log.follow(topic)]]
        ]

    def _messages(self, count: int, size: int) -> list[Message]:
        self._number += count
        numbers = range(self._number, self._number + count)
        return [Message(b"%d " % n + bytes(size), tag="odd" if n % 2 else "even") for n in numbers]

    def _publish(self, topic: str, count: int, size: int) -> object:
        return self.log.publish(topic, self._messages(count, size)).seqs

    def _keyed(self, topic: str, key: str) -> object:
        done = self.log.publish(topic, self._messages(1, 5), idempotency_key=key)
        return done.seqs, done.is_duplicate

    def _open(self, topic: str, client_id: int) -> object:
        publisher = self._sessions[topic, client_id] = self.log.publisher(topic, client_id=client_id)
        return publisher.next_client_seq

    def _session(self, topic: str, client_id: int, back: int) -> object:
        publisher = self._sessions.get((topic, client_id))
        if publisher is None:
            return None
        seq = max(1, publisher.next_client_seq + back)
        done = publisher.publish(self._messages(1, 5) if not back else b"again", client_seq=seq).result()
        return done.seqs, done.is_duplicate, publisher.next_client_seq

    def _delete(self, topic: str, before_seq: int, tag: str | None) -> object:
        return self.log.delete(topic, before_seq=before_seq, tag=tag)

    def _cursor(self, topic: str, next_seq: int) -> object:
        self.log.commit("me", topic, next_seq)
        return self.log.committed("me", topic)

    def _group(self, topics: list[str]) -> object:
        sent = [
            self.log.commits.offer(self.log.pending_batch_of(topic, self._messages(1, 9), None)) for topic in topics
        ]
        return [delivery.result().seqs for delivery in sent]

    def _checkpoint(self) -> None:
        self.log.checkpoint()

    def _reopen(self, brokers: int) -> None:
        self._sessions.clear()
        self.log.close()
        self.log = opened(self._path, brokers and self._brokers and brokers)


@settings(max_examples=8)
@given(calls=st.lists(CALLS, min_size=10, max_size=30))
def test_logs_with_and_without_brokers_behave_the_same(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple]
) -> None:
    plain, pod = (Twin(tmp_path_factory.mktemp("twin"), brokers) for brokers in (0, 2))
    try:
        for call in calls:
            assert pod.execute(call) == plain.execute(call), call
        assert pod.contents() == plain.contents()
    finally:
        pod.log.close()
        plain.log.close()
        # Closed logs are reference cycles, and each holds much memory.
        del plain, pod
        gc.collect()
