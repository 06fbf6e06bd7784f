"""A store that applies an order: it stores the same as if the records had been appended."""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from pathlib import Path
from threading import Lock

import pytest

import seawall
from seawall import limits
from seawall.core.types import Position, Seq, TopicId
from seawall.engine.commit.appends import Append
from seawall.engine.ordering.applier import Applier
from seawall.engine.ordering.orderer import SessionSpec
from seawall.engine.read.reading import StoredSkip
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.errors import DiskFullError, FatalError, InvalidInputError, InvariantError, SyncError, WrongStateError
from seawall.io.disk.files import OsFiles
from seawall.io.process.clocks import OsClock
from seawall.limits import BATCH_HEADER_SIZE, KIB
from seawall.storage.control.batches import UnpositionedControl, parts_of, read_control
from seawall.storage.control.codec import Reference
from seawall.storage.control.order import OrderNop, OrderSkip
from seawall.storage.wal.epochs import WalAddress
from seawall.storage.wal.reader import WalBatch, read_wal
from seawall.testing import SimClock, SimDisk
from seawall.testing.checkers.committed_order import CommittedOrder
from seawall.topics.config import Durability, TopicConfig
from seawall.topics.keys import key_of
from seawall.topics.skips import Skip
from seawall.wire.format.codes import AckStatus, BatchFlags, ErrorCode
from seawall.wire.format.records import Record, encode_block

SMALL = StoreSettings(
    wal_file_size=limits.WAL_FILE_SIZE_MIN * 8, ceiling_step=1 << 12, ballast_size=4096, checkpoint_size=1 << 62
)
CLASSES = [*Durability]


class Pod:
    """A store on a simulated disk, and the order that it applies."""

    def __init__(self, disk: SimDisk | None = None, settings: StoreSettings = SMALL, **sizes: int) -> None:
        self.disk = SimDisk(seed=1) if disk is None else disk
        self.clock = SimClock(wall_ns=10**18)
        self.settings = settings
        self.sizes = {"goi_entries": 256, "blog_size": 512 * KIB} | sizes
        self.store = self.open()

    def open(self, *, follows: bool = False) -> Store:
        self.clock.advance(1)
        machine = Machine(self.disk, self.clock, lambda count: bytes(range(count)), pid=7)
        self.store = open_store(machine, "/data", self.settings, follows=follows)
        return self.store

    def start(self) -> None:
        self.order = CommittedOrder(self.store.parts.writer.frontier, term=self.store.parts.term, **self.sizes)
        self.applier = Applier(
            self.store.parts,
            self.store.maintenance,
            goi_entries=self.sizes["goi_entries"],
            blog_size=self.sizes["blog_size"],
        )

    def batch(self, topic_id: int, *values: bytes, **fields: int) -> AckStatus:
        block = encode_block([Record(1, value) for value in values])
        return self.order.batch(topic_id, block, len(values), wall_ns=self.clock.wall_ns(), **fields)

    def apply_all(self) -> None:
        self.order.apply_all(self.applier)

    def logged(self) -> list[tuple[int, object]]:
        """The positions and batches of the log: an append as its base seq, a control as it is."""
        items = read_wal(self.disk, "/data/wal", self.store.parts.directory.directory_id, WalAddress(0))
        found: list[tuple[int, object]] = []
        for item in items:
            if isinstance(item, WalBatch):
                header = item.header
                control = read_control(header, item.data[BATCH_HEADER_SIZE:]) if header.is_control else None
                found.append((header.position, header.base_seq if control is None else control))
        return found


def pod_with(*classes: Durability, disk: SimDisk | None = None, **fields: int) -> Pod:
    pod = Pod(disk)
    for number, durability in enumerate(classes):
        pod.store.create_topic(f"t{number}", TopicConfig(durability=durability, **fields))
    pod.start()
    return pod


def contents_and_state(store: Store) -> dict[str, object]:
    """Everything that a reader could see, and the state that the next numbers depend on."""
    found: dict[str, object] = {}
    for topic in store.catalog:
        items = []
        seq = topic.floor
        while seq < topic.next_seq:
            for item in store.queries.read(topic.name, seq, size_max=1 << 20):
                items.append(
                    (item.base_seq, bytes(item.block), item.position, item.timestamp_ns)
                    if hasattr(item, "block")
                    else item
                )
                seq = item.next_seq if hasattr(item, "next_seq") else Seq(item.last_seq + 1)
        numbers = (topic.head_seq, topic.end_offset, topic.floor, topic.live_records, topic.live_bytes, topic.ceiling)
        found[topic.name] = (numbers, items, list(topic.skips), topic.last_timestamp_ns)
    return found | {"sessions": store.sessions.rows()}


def test_small_batches_keep_the_numbers_of_the_order() -> None:
    pod = pod_with(Durability.FSYNC, Durability.FSYNC)
    first = pod.order.committed
    pod.batch(1, b"a", b"b")
    pod.batch(2, b"c", broker=1)
    pod.batch(1, b"d")
    done = pod.order.apply_once(pod.applier)
    assert (done.count, done.next_position) == (3, first + 3)
    batches = pod.store.queries.read("t0", Seq(1), size_max=1 << 20)
    assert [(each.base_seq, each.position, each.record_count) for each in batches] == [(1, first, 2), (3, first + 2, 1)]
    assert [position for position, _ in pod.logged()[-3:]] == [first, first + 1, first + 2]
    assert pod.order.apply_once(pod.applier).count == 0
    assert not pod.store.verify().findings
    before = contents_and_state(pod.store)
    pod.store.close()
    assert contents_and_state(pod.open()) == before


@pytest.mark.parametrize("durability", CLASSES)
def test_each_class_is_as_durable_as_promised(durability: Durability) -> None:
    pod = pod_with(durability)
    pod.batch(1, b"a")
    pod.batch(1, b"x" * 70_000)
    pod.batch(1, b"b")
    pod.apply_all()
    before = contents_and_state(pod.store)["t0"]
    assert [batch.record_count for batch in pod.store.queries.read("t0", Seq(1), size_max=1 << 20)] == [1, 1, 1]
    pod.disk.crash(keep="none")
    after = contents_and_state(pod.open())["t0"]
    if durability is Durability.FSYNC:
        assert [item for item in after[1] if isinstance(item, tuple)] == before[1]
    else:
        assert not [item for item in after[1] if isinstance(item, tuple)]
    assert not pod.store.verify().findings


def test_entries_without_records_are_logged_and_applied() -> None:
    pod = Pod()
    pod.store.create_topic("t0", TopicConfig())
    pod.store.create_topic("deleted", TopicConfig())
    epoch, _ = pod.store.session_keeper.open(SessionSpec(7, 1))
    pod.store.delete_topic("deleted")
    pod.start()
    first = pod.order.committed
    session = {"client_id": 7, "session_epoch": epoch}
    pod.batch(1, b"a", client_seq=1, **session)
    assert pod.batch(2, b"b", client_seq=2, **session) is AckStatus.REJECTED
    pod.order.nop(AckStatus.DUPLICATE, topic_id=1, client_id=7, client_seq=1, original=first)
    pod.order.skip(1, 7, 3, 2)
    pod.batch(1, b"c", client_seq=5, **session)
    pod.order.nop(AckStatus.RETRY)
    pod.apply_all()
    crc = int(pod.order.entries[(first + 1) & 255]["block_crc"])
    assert pod.logged()[-6:] == [
        (first, 1),
        (first + 1, OrderNop(2, AckStatus.REJECTED, ErrorCode.TOPIC_DELETED, 7, 2, crc, decides=True)),
        (first + 2, OrderNop(1, AckStatus.DUPLICATE, 0, 7, 1, 0, first)),
        (first + 3, OrderSkip(1, 7, 3, 2)),
        (first + 4, 2),
        (first + 5, OrderNop(0, AckStatus.RETRY, 0, 0, 0, 0)),
    ]
    topic = pod.store.catalog.named("t0")
    assert topic.skips.between(first, Position(first + 9)) == [Skip(first + 3, 7, 3, 2)]
    assert pod.store.sessions.window.state(7).next_expected == 6
    before = contents_and_state(pod.store)
    pod.disk.crash(keep="none")
    after = contents_and_state(pod.open())
    assert (after["t0"][2], after["sessions"]) == (before["t0"][2], before["sessions"])
    pod.store.maintenance.checkpoint()
    pod.store.close()
    assert contents_and_state(pod.open()) == after


def test_controls_of_the_store_take_no_position() -> None:
    pod = pod_with(Durability.FSYNC, segment_max_records=4, cap_records=10)
    first = pod.order.committed
    for number in range(30):
        pod.batch(1, b"%d" % number)
        pod.apply_all()
    entries = [(position, what) for position, what in pod.logged() if position >= first]
    controls = [what for _, what in entries if isinstance(what, UnpositionedControl)]
    assert {type(part).__name__ for control in controls for part in parts_of(control)} >= {"SegmentRoll", "FloorRaise"}
    assert [position for position, what in entries if not isinstance(what, UnpositionedControl)] == list(
        range(first, first + 30)
    )
    assert pod.store.catalog.next_position == pod.order.committed
    assert pod.store.catalog.named("t0").live_records == 10
    before = contents_and_state(pod.store)
    pod.store.close()
    assert contents_and_state(pod.open()) == before


def test_ceilings_are_raised_by_durable_unpositioned_controls() -> None:
    pod = Pod(settings=replace(SMALL, ceiling_step=8))
    pod.store.create_topic("t0", TopicConfig())
    pod.start()
    raised = []
    for number in range(40):
        block = encode_block([Record(1, b"%d" % number)])
        pod.order.batch(1, block, 1, raise_ceiling=lambda: raised.append(pod.applier.ensure_ceilings()))
        if number % 7 == 0:
            pod.apply_all()
    pod.apply_all()
    assert set(raised) == {1}
    assert pod.applier.ensure_ceilings() in (0, 1)
    assert pod.applier.ensure_ceilings() == 0
    topic = pod.store.catalog.named("t0")
    assert (topic.head_seq, topic.live_records) == (40, 40)
    pod.disk.crash(keep="none")
    reopened = pod.open().catalog.named("t0")
    assert (reopened.live_records, reopened.next_seq) == (40, topic.ceiling)


def test_a_control_entry_is_applied_by_its_owner_at_its_position() -> None:
    pod = pod_with(Durability.FSYNC)
    pod.batch(1, b"a")
    at = pod.order.committed
    with pytest.raises(InvariantError, match="INV-FOLLOW-DENSE"), pod.applier.at(at):
        pass
    pod.apply_all()
    with pod.applier.at(at):
        pod.store.create_topic("later", TopicConfig())
    pod.order.note_control()
    pod.batch(2, b"b")
    pod.apply_all()
    assert pod.store.catalog.named("later").head_seq == 1
    positions = [position for position, what in pod.logged() if not isinstance(what, UnpositionedControl)]
    assert positions == sorted(set(positions))
    before = contents_and_state(pod.store)
    pod.store.close()
    assert contents_and_state(pod.open()) == before


def test_a_run_ends_before_a_control_entry() -> None:
    pod = pod_with(Durability.FSYNC)
    pod.batch(1, b"a")
    pod.batch(1, b"b")
    pod.order.entries[(pod.order.committed - 1) & 255]["flags"] |= 1 << 6
    assert pod.order.apply_once(pod.applier).count == 1
    with pytest.raises(InvalidInputError, match="CONTROL"):
        pod.order.apply_once(pod.applier)
    pod.store.close()


def test_entries_must_follow_each_other_and_be_whole() -> None:
    pod = pod_with(Durability.FSYNC)
    pod.batch(1, b"a")
    pod.batch(1, b"b")
    rings = (pod.order.entries, pod.order.sides)
    first = pod.order.first
    with pytest.raises(InvariantError, match="INV-FOLLOW-DENSE"):
        pod.applier.apply(*rings, Position(first - 1), 1, pod.order.blogs)
    with pytest.raises(InvalidInputError, match="entries of rings"):
        pod.applier.apply(*rings, first, 257, pod.order.blogs)
    pod.order.apply_once(pod.applier)
    with pytest.raises(InvariantError, match="INV-FOLLOW-DENSE"):
        pod.applier.apply(*rings, Position(first + 3), 1, pod.order.blogs)
    pod.batch(1, b"c")
    pod.order.blogs[:] = 0
    with pytest.raises(FatalError, match="INV-FOLLOW-DENSE"):
        pod.apply_all()
    with pytest.raises(FatalError, match="an earlier change failed"):
        pod.apply_all()
    pod.store.close()


def test_a_large_batch_that_is_not_in_its_blog_is_found() -> None:
    pod = pod_with(Durability.FSYNC)
    pod.batch(1, b"x" * 70_000)
    pod.order.blogs[:] = 0
    with pytest.raises(FatalError, match="INV-FOLLOW-DENSE"):
        pod.apply_all()
    pod.store.close()


def test_direct_batches_keep_their_topic_and_their_order() -> None:
    pod = pod_with(Durability.FSYNC, Durability.EPHEMERAL, Durability.FSYNC)
    large = b"x" * 70_000
    given = [(1, large), (1, b"y" + large), (2, b"e"), (2, large), (3, large), (1, b"small"), (1, large), (2, b"f")]
    first = pod.order.committed
    for topic_id, value in given:
        pod.batch(topic_id, value)
    assert pod.order.apply_once(pod.applier).count == len(given)
    for number in (1, 2, 3):
        batches = pod.store.queries.read(f"t{number - 1}", Seq(1), size_max=1 << 20)
        expected = [(first + at, value) for at, (topic_id, value) in enumerate(given) if topic_id == number]
        assert [(each.position, bytes(each.block)[5:]) for each in batches] == expected
    logged = dict(pod.logged()[-len(given) :])
    references = {position - first: each for position, each in logged.items() if isinstance(each, Reference)}
    assert sorted(references) == [0, 1, 2, 3, 4, 6, 7]
    places = [(references[at].segment_first_seq, references[at].file_position) for at in (0, 1, 2, 3, 4, 6, 7)]
    second = 4_096 + 96 + 5 + len(large)
    assert places[:5] == [(1, 4_096), (1, second), (0, 0), (0, 0), (1, 4_096)]
    assert places[5] == (1, second + 96 + 6 + len(large) + 96 + 5 + len(b"small"))
    assert places[6] == (0, 0)
    before = contents_and_state(pod.store)
    pod.disk.crash(keep="none")
    after = contents_and_state(pod.open())
    for name in ("t0", "t2"):
        assert [item for item in after[name][1] if isinstance(item, tuple)] == before[name][1]
    assert not pod.store.verify().findings


def test_an_unknown_topic_ends_applying() -> None:
    pod = pod_with(Durability.FSYNC)
    pod.batch(1, b"a")
    pod.order.entries["topic_id"] = 9
    with pytest.raises(FatalError, match="topic 9"):
        pod.apply_all()
    pod.store.close()


def test_rings_have_a_power_of_two_of_entries() -> None:
    pod = pod_with(Durability.FSYNC)
    with pytest.raises(InvalidInputError, match="power of two"):
        Applier(pod.store.parts, pod.store.maintenance, goi_entries=100, blog_size=1 << 20)
    pod.store.close()


def test_an_order_may_begin_after_the_end_of_the_log() -> None:
    pod = Pod()
    pod.store.create_topic("t0", TopicConfig(durability=Durability.MEMORY, segment_max_records=2))
    pod.store.append([Append(TopicId(1), encode_block([Record(1, b"x")] * 2), 2)])
    pod.store.parts.writer.frontier.arrays[4][0] += 1_000
    pod.start()
    at = pod.order.committed
    for number in range(5):
        pod.batch(1, b"%d" % number)
    pod.apply_all()
    pod.store.controls.sync()
    assert [position for position, what in pod.logged() if isinstance(what, int)][-5:] == list(range(at, at + 5))
    before = contents_and_state(pod.store)
    pod.store.close()
    assert contents_and_state(pod.open()) == before


@pytest.mark.parametrize("nth", range(1, 7))
def test_a_full_disk_applies_nothing_and_loses_nothing(nth: int) -> None:
    pod = pod_with(Durability.FSYNC, Durability.FSYNC, Durability.FSYNC, segment_max_records=4)
    for topic_id in (1, 2, 3):
        for _ in range(4):
            pod.batch(topic_id, b"before")
    pod.apply_all()
    for topic_id in (1, 2, 3, 1, 2, 3):
        pod.batch(topic_id, b"x" * 60_000)
    before, at = contents_and_state(pod.store), pod.applier.next_position
    pod.disk.fail("allocate", nth=nth, error=errno.ENOSPC, forever=True)
    for _ in range(2):
        with pytest.raises(DiskFullError):
            pod.apply_all()
        assert pod.applier.next_position in (at, at + 4)
    assert pod.applier.next_position > at or contents_and_state(pod.store) == before
    pod.disk.clear_faults()
    pod.apply_all()
    assert [pod.store.catalog.named(name).head_seq for name in ("t0", "t1", "t2")] == [6, 6, 6]
    assert not pod.store.verify().findings
    after = contents_and_state(pod.store)
    pod.store.close()
    assert contents_and_state(pod.open()) == after


def test_a_failed_write_ends_applying() -> None:
    pod = pod_with(Durability.FSYNC)
    pod.batch(1, b"a")
    pod.apply_all()
    pod.batch(1, b"b")
    pod.disk.fail("sync", nth=1, error=errno.EIO)
    with pytest.raises(SyncError):
        pod.apply_all()
    with pytest.raises(FatalError, match="an earlier change failed"):
        pod.apply_all()
    pod.store.close()
    assert pod.open().catalog.named("t0").live_records in (1, 2)


def test_a_run_that_exceeds_one_commit_is_applied_in_part() -> None:
    pod = pod_with(Durability.FSYNC, Durability.FSYNC)
    for topic_id in (1,) * 20 + (2,) * 3:
        pod.batch(topic_id, b"x" * 20_000)
    done = pod.order.apply_once(pod.applier)
    assert 0 < done.count < 20
    pod.apply_all()
    assert [pod.store.catalog.named(name).head_seq for name in ("t0", "t1")] == [20, 3]
    pod.store.close()


def test_closing_with_unapplied_entries_is_not_clean() -> None:
    pod = pod_with(Durability.FSYNC)
    pod.batch(1, b"a")
    pod.apply_all()
    pod.batch(1, b"b")
    pod.store.close()
    topic = pod.open().catalog.named("t0")
    assert (topic.live_records, topic.next_seq) == (1, topic.ceiling)


def test_rings_and_blogs_wrap_around() -> None:
    pod = Pod(goi_entries=8, blog_size=4 * KIB)
    pod.store.create_topic("t0", TopicConfig(durability=Durability.DISK))
    pod.start()
    for number in range(200):
        pod.batch(1, b"%d" % number * 100, broker=number % 2)
        if number % 5 == 4:
            pod.apply_all()
    assert [bytes(batch.block)[5:] for batch in pod.store.queries.read("t0", Seq(1), size_max=1 << 20)] == [
        b"%d" % number * 100 for number in range(200)
    ]
    pod.store.close()


def test_the_order_may_begin_with_a_control() -> None:
    pod = Pod()
    pod.store.create_topic("t0", TopicConfig(durability=Durability.MEMORY))
    pod.store.append([Append(TopicId(1), encode_block([Record(1, b"x")]), 1)])
    pod.store.parts.writer.frontier.arrays[4][0] += 50
    pod.start()
    at = pod.order.committed
    with pod.applier.at(at):
        pod.store.configure_topic("t0", {"ttl_ms": 10_000})
    assert pod.applier.next_position == at + 1
    with pod.applier.at(Position(at + 1)):
        """The change was refused, and its position has a NOP."""
    assert pod.applier.next_position == at + 2
    before = contents_and_state(pod.store)
    pod.store.close()
    assert contents_and_state(pod.open()) == before


@pytest.mark.parametrize("keep", ["none", "all"])
def test_an_order_that_outlived_the_process_is_applied_further(keep: str) -> None:
    pod = pod_with(Durability.FSYNC, Durability.DISK, segment_max_records=5)
    for number in range(40):
        pod.batch(1 + number % 2, b"%d" % number)
        if number in (11, 23):
            pod.apply_all()
    before = pod.store.parts.writer.frontier
    pod.disk.crash(keep=keep)
    pod.open(follows=True)
    pod.applier = Applier(pod.store.parts, pod.store.maintenance, goi_entries=256, blog_size=512 * KIB)
    assert pod.applier.next_position <= pod.order.first + 24
    # As recovery restores it from the fabric.
    for known, found in zip(pod.store.parts.writer.frontier.arrays[:5], before.arrays, strict=False):
        known[:] = found
    pod.order._frontier = pod.store.parts.writer.frontier
    pod.apply_all()
    pod.batch(1, b"later")
    pod.apply_all()
    for name, first, extra in (("t0", 0, [b"later"]), ("t1", 1, [])):
        values = [bytes(batch.block)[5:] for batch in pod.store.queries.read(name, Seq(1), size_max=1 << 20)]
        assert values == [b"%d" % number for number in range(first, 40, 2)] + extra
    assert not pod.store.verify().findings
    after = contents_and_state(pod.store)
    pod.store.close()
    assert contents_and_state(pod.open()) == after


def test_keys_of_keyed_batches_are_remembered() -> None:
    pod = pod_with(Durability.FSYNC)
    pod.batch(1, b"a", client_id=1 << 63 | 5, client_seq=9, flags=int(BatchFlags.KEYED))
    pod.apply_all()
    key = key_of(1 << 63 | 5, 9)
    found = pod.store.catalog.named("t0").keys.find(key, 0, 10**15)
    assert found is not None
    assert (found.first_seq, found.last_seq) == (1, 1)
    pod.store.close()


def test_arrow_readers_see_applied_batches(tmp_path: Path) -> None:
    store = open_store(Machine(OsFiles(), OsClock(), random.Random(1).randbytes, pid=7), str(tmp_path / "data"), SMALL)
    store.create_topic("t0", TopicConfig(segment_max_records=50))
    order = CommittedOrder(store.parts.writer.frontier, term=store.parts.term, goi_entries=256)
    applier = Applier(store.parts, store.maintenance, goi_entries=256, blog_size=order.blog_size)
    values = [b"%d" % number * (1 + number % 7) for number in range(200)] + [b"x" * 70_000]
    for value in values:
        order.batch(1, encode_block([Record(1, value)]), 1, wall_ns=10**18)
    order.apply_all(applier)
    assert not store.verify().findings
    store.close()
    with seawall.open(tmp_path / "data") as log:
        assert log.read_arrow("t0")["value"].to_pylist() == values


def random_run(chance: random.Random, pod: Pod, plain: Store) -> None:
    """Order and append the same records; NOPs and SKIPs are in the order alone."""
    for _ in range(chance.randint(1, 12)):
        kind = chance.random()
        topic_id = chance.choice((1, 2, 3, 4))
        if kind < 0.15:
            pod.order.nop(chance.choice((AckStatus.RETRY, AckStatus.DUPLICATE)), topic_id=topic_id, client_id=5)
        elif kind < 0.2:
            pod.order.skip(topic_id, 5, chance.randint(1, 9), chance.randint(1, 3))
        else:
            size = chance.choice((0, 9, 300, 20_000, 70_000))
            values = [chance.randbytes(size)] * (chance.randint(1, 4) if size < 20_000 else 1)
            pod.batch(topic_id, *values, broker=chance.choice((0, 1)))
            plain.append([Append(TopicId(topic_id), encode_block([Record(1, each) for each in values]), len(values))])


@pytest.mark.parametrize("seed", range(6))
def test_applying_stores_the_same_as_appending(seed: int) -> None:
    chance = random.Random(seed)
    pod, plain = Pod(), Pod()
    for each in (pod, plain):
        for number, durability in enumerate(CLASSES):
            each.store.create_topic(f"t{number}", TopicConfig(durability=durability, segment_max_records=6 + seed % 5))
    pod.start()
    for _ in range(12):
        random_run(chance, pod, plain.store)
        for _ in range(chance.randint(0, 2)):
            pod.order.apply_once(pod.applier)
        pod.apply_all()
        if chance.random() < 0.2:
            pod.store.maintenance.checkpoint()
    assert contents(pod.store) == contents(plain.store)
    assert pod.store.verify().findings == plain.store.verify().findings
    before = contents_and_state(pod.store)
    ephemeral = f"t{CLASSES.index(Durability.EPHEMERAL)}"
    pod.store.close()
    after = contents_and_state(pod.open())
    assert {**after, ephemeral: 0} == {**before, ephemeral: 0}
    assert not pod.store.verify().findings
    pod.store.close()


def contents(store: Store) -> dict[str, list[tuple[int, bytes]]]:
    """The seq and the bytes of every batch."""
    found = {}
    for topic in store.catalog:
        batches, seq = [], Seq(1)
        while seq < topic.next_seq:
            for item in store.queries.read(topic.name, seq, size_max=1 << 20):
                if not isinstance(item, StoredSkip):
                    batches.append((item.base_seq, bytes(item.block)))
                seq = item.next_seq
        found[topic.name] = [*batches, (topic.live_records, str(topic.live_bytes).encode())]
    return found


def test_a_store_with_an_applier_refuses_appends() -> None:
    pod = pod_with(Durability.FSYNC)
    with pytest.raises(WrongStateError, match="applies the order"):
        pod.store.append([Append(TopicId(1), encode_block([Record(1, b"x")]), 1)])
    assert pod.store.commit_one(TopicId(1), encode_block([Record(1, b"x")]), 1, Lock()) is None
    pod.batch(1, b"a")
    pod.apply_all()
    assert pod.store.catalog.named("t0").head_seq == 1
    pod = pod_with(Durability.FSYNC)
    assert isinstance(pod.applier, Applier)
    assert pod.applier.next_position == pod.order.first
    pod.store.close()
