"""Commit cycles of batches that connections deliver: they leave the same log as the sequencer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.broker.ring import BrokerRing, TopicDefaults
from seawall.config import FabricConfig
from seawall.core.types import ClientId, ClientSeq, Seq, SessionEpoch, TimestampNs
from seawall.engine.commit import commit_cycle
from seawall.engine.commit.appends import Commit
from seawall.engine.commit.commit_cycle import CommitCycle
from seawall.engine.ordering.orderer import SessionSpec
from seawall.engine.ordering.sequenced_orderer import open_sequenced_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch
from seawall.errors import FatalError
from seawall.kernels.codec.batch_header import COMMAND_AT
from seawall.kernels.log import commit_cycle as kernels
from seawall.kernels.runtime import jit
from seawall.limits import KIB, MIB
from seawall.storage.wal.reader import WalBatch, read_wal
from seawall.testing import SimClock, SimDisk, SimSharedMemory
from seawall.topics.config import Durability, Order, TopicConfig
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import AckLevel, AckStatus
from seawall.wire.format.records import encode_raw
from twins.log import commit_cycle as twin

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB, ceiling_step=64)
TINY = FabricConfig(goi_entries=256, pbr_entries=64, checkpoint_size=64 * KIB, blog_size=256 * KIB)
CLIENTS = (ClientId(7), ClientId(8))
#: A client without a session, as connections of version 1 have.
NO_SESSION = ClientId(1 << 63 | 5)
PLAIN, STRONG, CAPPED = "plain", "strong", "capped"


class Log:
    """A store on a simulated disk; its last ring belongs to connections."""

    def __init__(self, networks: int = 1) -> None:
        self.networks = networks
        self.disk = SimDisk(seed=1)
        self.clock = SimClock(wall_ns=1_700_000_000_000_000_000)
        self.store = self.open()
        for name, config in (
            (PLAIN, TopicConfig()),
            (STRONG, TopicConfig(order=Order.CLIENT)),
            (CAPPED, TopicConfig(cap_records=3)),
        ):
            self.store.create_topic(name, config)
        # Kept here, because using the catalog applies the pending rows.
        self.topics = {topic.name: topic.topic_id for topic in self.store.catalog}
        self.epochs = {
            client: self.store.session_keeper.open(SessionSpec(client, ClientSeq(1)))[0] for client in CLIENTS
        }

    def open(self) -> Store:
        machine = Machine(self.disk, self.clock, random.Random(3).randbytes, pid=1)
        fabric = replace(TINY, brokers=1 + self.networks)
        return open_sequenced_store(
            machine, "/data", SimSharedMemory(), bytes(16), fabric, SMALL, networks=self.networks
        )

    @property
    def ring(self) -> BrokerRing:
        return self.store.orderer.arrivals.rings[0]

    def batch(
        self, name: str, seq: int, *values: bytes, client: ClientId = CLIENTS[0], epoch: int | None = None
    ) -> bytes:
        block = b"".join(map(encode_raw, values or (b"x",)))
        header = batch_header(
            block,
            topic_id=self.topics[name],
            client_id=client,
            client_seq=ClientSeq(seq),
            session_epoch=SessionEpoch(self.epochs.get(client, 0) if epoch is None else epoch),
            record_count=len(values or (b"x",)),
            timestamp_ns=TimestampNs(0),
        )
        return encode_batch(header, block)

    def arrive(self, *batches: bytes, strong: bool = False) -> None:
        defaults = TopicDefaults(int(Order.CLIENT if strong else Order.TOTAL), AckLevel.DURABLE)
        for batch in batches:
            published = self.ring.publish(np.frombuffer(batch, np.uint8), 1, defaults)
            assert published.count == 1

    def commit(self) -> Commit:
        commit = self.store.begin([])
        commit.execute()
        if self.store.finish(commit):
            self.store.tidy_up(commit.limited)
        return commit

    def commit_all(self) -> None:
        while self.store.orderer.is_behind:
            self.commit()

    def answers(self) -> list[tuple[int, int, int, int]]:
        """Client seq, status, reason and first seq of what is answered now."""
        found = self.ring.answers()[["client_seq", "status", "reason", "base_seq"]].tolist()
        return [(int(seq), int(status), int(reason), int(base)) for seq, status, reason, base in found]

    def stored(self, name: str) -> list[StoredBatch]:
        items = self.store.queries.read(name, Seq(1), size_max=MIB)
        return [item for item in items if isinstance(item, StoredBatch)]

    def warm(self) -> None:
        """Make reservations: the first batch of a topic goes through the sequencer."""
        for name in (PLAIN, STRONG):
            self.arrive(self.batch(name, 1, client=NO_SESSION), strong=name == STRONG)
            self.commit_all()
        self.answers()


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    made.warm()
    yield made
    made.store.close()


def test_batches_of_several_publishers_are_one_epoch(log: Log) -> None:
    before = int(log.store.parts.wal.numbers["epoch"][0])
    log.arrive(*(log.batch(PLAIN, seq, b"%d" % seq, b"more", client=client) for seq in (1, 2, 3) for client in CLIENTS))
    log.arrive(log.batch(STRONG, 4, b"strong"), strong=True)
    log.arrive(log.batch(PLAIN, 1, b"no session", client=NO_SESSION))
    commit = log.commit()
    assert (commit.is_cycle, commit.row_count, commit.durable) == (True, 8, True)
    assert int(log.store.parts.wal.numbers["epoch"][0]) == before + 1
    assert [status for _, status, _, _ in log.answers()] == [AckStatus.OK] * 8
    assert [each.base_seq for each in log.stored(PLAIN)] == [1, 2, 4, 6, 8, 10, 12, 14]
    assert bytes(log.stored(STRONG)[-1].block) == encode_raw(b"strong")


def test_answers_and_reads_wait_for_the_write(log: Log) -> None:
    """INV-CYCLE-BEHIND."""
    log.arrive(log.batch(PLAIN, 1))
    commit = log.store.begin([])
    window, pod = log.store.sessions.window, log.store.orderer
    assert commit.is_cycle
    assert log.answers() == []
    assert window.state(CLIENTS[0]).next_expected == 1
    assert pod.sequencer.frontier.committed == pod._applier.next_position
    assert len(log.stored(PLAIN)) == 1
    commit.execute()
    log.store.finish(commit)
    assert log.answers() == [(1, AckStatus.OK, 0, 2)]
    assert window.state(CLIENTS[0]).next_expected == 2
    assert len(log.stored(PLAIN)) == 2


def test_a_failed_write_ends_writing(log: Log) -> None:
    log.arrive(log.batch(PLAIN, 1))
    commit = log.store.begin([])
    log.disk.fail("sync", path="*.wal")
    log.disk.fail("write", path="*.wal")
    with pytest.raises((FatalError, OSError)) as raised:
        commit.execute()
    log.store.fail(raised.value)
    assert log.answers() == []
    with pytest.raises(FatalError):
        log.store.begin([])
    assert len(log.stored(PLAIN)) == 1


#: Batches that are not eligible for a cycle.
INELIGIBLE: dict[str, Callable[[Log], bytes]] = {
    "a duplicate": lambda log: log.batch(PLAIN, 1, b"first"),
    "another batch with the same client seq": lambda log: log.batch(PLAIN, 1, b"other"),
    "of an older session": lambda log: log.batch(PLAIN, 2, epoch=99),
    "of an unknown client": lambda log: log.batch(PLAIN, 1, client=ClientId(9), epoch=1),
    "large": lambda log: log.batch(PLAIN, 2, bytes(70 * KIB)),
    "outside the window": lambda log: log.batch(PLAIN, 1_000),
}


@pytest.mark.parametrize("reason", INELIGIBLE)
def test_ineligible_batches_go_through_the_sequencer(log: Log, reason: str) -> None:
    log.arrive(log.batch(PLAIN, 1, b"first"))
    log.commit_all()
    log.answers()
    log.arrive(log.batch(PLAIN, 1, b"before", client=CLIENTS[1]), INELIGIBLE[reason](log))
    log.arrive(log.batch(PLAIN, 2, b"behind", client=CLIENTS[1]))
    first, second = log.commit(), log.commit()
    assert (first.is_cycle, first.row_count) == (True, 1)
    assert not second.is_cycle
    log.commit_all()
    assert len(log.answers()) == 3
    values = [bytes(each.block) for each in log.stored(PLAIN)]
    assert encode_raw(b"before") in values
    assert encode_raw(b"behind") in values


def test_batches_of_a_capped_topic_go_through_the_sequencer(log: Log) -> None:
    log.arrive(log.batch(PLAIN, 1), *(log.batch(CAPPED, seq, b"%d" % seq) for seq in (2, 3, 4, 5)))
    # The eligible batch before them is a commit of its own.
    assert log.commit().is_cycle
    assert not log.commit().is_cycle
    log.commit_all()
    assert [status for _, status, _, _ in log.answers()] == [AckStatus.OK] * 5
    assert [bytes(each.block) for each in log.stored(CAPPED)] == [encode_raw(b"%d" % seq) for seq in (3, 4, 5)]


def test_a_held_batch_goes_through_the_sequencer(log: Log) -> None:
    log.arrive(log.batch(STRONG, 2, b"second"), strong=True)
    assert not log.commit().is_cycle
    log.arrive(log.batch(STRONG, 1, b"first"), strong=True)
    log.commit_all()
    assert [bytes(each.block) for each in log.stored(STRONG)[1:]] == [encode_raw(b"first"), encode_raw(b"second")]
    # Nothing is held any more: the next batch is eligible again.
    log.arrive(log.batch(STRONG, 3, b"third"), strong=True)
    assert log.commit().is_cycle


def test_batches_and_sessions_survive_a_crash(log: Log) -> None:
    log.arrive(*(log.batch(PLAIN, seq, b"%d" % seq) for seq in (1, 2, 3)))
    assert log.commit().is_cycle
    log.disk.crash(keep="none")
    log.store = log.open()
    assert [bytes(each.block) for each in log.stored(PLAIN)[1:]] == [encode_raw(b"%d" % seq) for seq in (1, 2, 3)]
    assert log.store.sessions.window.state(CLIENTS[0]).next_expected == 4


def test_classes_below_fsync_are_written_and_not_synced(log: Log) -> None:
    log.topics["disk"] = log.store.create_topic("disk", TopicConfig(durability=Durability.DISK)).topic_id
    log.arrive(log.batch("disk", 1, client=NO_SESSION))
    log.commit_all()
    log.arrive(log.batch("disk", 1, client=CLIENTS[0]))
    commit = log.commit()
    assert (commit.is_cycle, commit.durable) == (True, False)


def test_reading_during_a_cycle_changes_nothing(log: Log) -> None:
    """The reader applies pending rows, and the rows of the cycle move up."""
    for first in (1, 11, 31):
        log.arrive(*(log.batch(PLAIN, seq, b"%d" % seq) for seq in range(first, first + 10)))
        if first == 11:
            log.arrive(*(log.batch(PLAIN, seq, b"%d" % seq) for seq in range(21, 31)))
        commit = log.store.begin([])
        assert commit.is_cycle
        assert len(log.stored(PLAIN)) == first
        commit.execute()
        log.store.finish(commit)
    assert log.store.sessions.window.state(CLIENTS[0]).next_expected == 41
    assert [bytes(each.block) for each in log.stored(PLAIN)[1:]] == [encode_raw(b"%d" % seq) for seq in range(1, 41)]
    log.store.close()
    log.store = log.open()
    assert log.store.sessions.window.state(CLIENTS[0]).next_expected == 41


@pytest.mark.parametrize(("size_max", "records_max"), [(MIB, None), (300, None), (MIB, 3), (1, 1)])
def test_a_reader_at_the_end_finds_pending_batches(log: Log, size_max: int, records_max: int | None) -> None:
    """It gets the same as after they are applied, and does not apply them."""
    queries, pending = log.store.queries, log.store.parts.pending
    first = log.store.catalog.named(PLAIN).next_seq
    for seq in range(1, 6):
        log.arrive(log.batch(PLAIN, seq, b"%d" % seq, b"more"))
        log.arrive(log.batch(STRONG, seq, client=CLIENTS[1]), strong=True)
        assert log.commit().is_cycle

    def read(seq: int) -> tuple[list[StoredBatch], int, int]:
        plan = queries.plan_read(PLAIN, Seq(seq), size_max=size_max, records_max=records_max)
        items = plan.execute()
        return [each for each in items if isinstance(each, StoredBatch)], plan.end_seq, plan.next_seq

    rows = pending.rows_left
    found = [read(seq) for seq in range(first, first + 12)]
    position = queries.next_position
    assert pending.rows_left == rows
    assert [batches[0].live[0][0] for batches, _, _ in found[:10]] == [*range(first, first + 10)]
    assert found[10:] == [([], first + 10, first + 10), ([], first + 11, first + 10)]
    assert log.store.catalog.next_position == position
    assert pending.rows_left > rows
    assert [read(seq) for seq in range(first, first + 12)] == found


def test_a_full_ring_does_not_starve_the_others() -> None:
    log = Log(networks=2)
    log.warm()
    log.store.orderer.cycle.cycles["size_max"] = 3 * len(log.batch(PLAIN, 1))
    other, defaults = log.store.orderer.arrivals.rings[1], TopicDefaults(int(Order.TOTAL), AckLevel.DURABLE)
    log.arrive(*(log.batch(PLAIN, seq) for seq in range(1, 13)))
    for seq in range(1, 13):
        batch = log.batch(PLAIN, seq, b"y", client=CLIENTS[1])
        assert other.publish(np.frombuffer(batch, np.uint8), 2, defaults).count == 1
    # One of the three rings is empty.
    for _ in range(3):
        assert log.commit().is_cycle
    assert sorted((len(log.ring.answers()), len(other.answers()))) == [3, 6]
    log.store.close()


# --- the same as the sequencer and as the twin -----------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A batch that arrives, or a commit."""

    client: int
    seq: int
    topic: str
    size: int
    commits: bool


STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, 2),
        st.integers(1, 6),
        st.sampled_from([PLAIN, PLAIN, STRONG, CAPPED]),
        st.sampled_from([0, 1, 40, 70_000]),
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


def _run(steps: list[Step], path: str) -> tuple[list[tuple[int, int, int, int]], list[bytes], int]:
    """The answers, all batches of the log after its beginning, and how many commits were cycles."""
    shim = SimpleNamespace(**{**vars(kernels), **vars(twin)}) if path == "twin" else kernels
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_cycle, "kernels", shim)
        if path == "sequencer":
            patch.setattr(CommitCycle, "begin", lambda _self: None)
        log = Log()
        at = log.store.parts.wal.at
        log.warm()
        answers: list[tuple[int, int, int, int]] = []
        cycles = 0
        for step in steps:
            client = (*CLIENTS, NO_SESSION)[step.client]
            log.arrive(
                log.batch(step.topic, step.seq, bytes([step.seq]) * step.size, client=client),
                strong=step.topic == STRONG,
            )
            while step.commits and log.store.orderer.is_behind:
                cycles += log.commit().is_cycle
                answers += log.answers()
        log.commit_all()
        answers += log.answers()
        items = read_wal(log.disk, "/data/wal", log.store.parts.directory.directory_id, at)
        found = [bytes(item.data) for item in items if isinstance(item, WalBatch)]
        log.store.close()
        return answers, found, cycles


@settings(max_examples=8 if jit.PYTHON_MODE else 40, deadline=None)
@given(STEPS)
def test_cycles_leave_the_same_log_as_the_sequencer(steps: list[Step]) -> None:
    """INV-CYCLE-SAME."""
    ours, theirs = _run(steps, "cycle"), _run(steps, "sequencer")
    assert ours[0] == theirs[0]
    if all(step.topic != CAPPED for step in steps):
        assert ours[1] == theirs[1]
    else:
        # Evictions depend on which batches share a commit.
        assert _batches(ours[1]) == _batches(theirs[1])


def _batches(found: list[bytes]) -> list[bytes]:
    """Those with records."""
    return [each for each in found if not int.from_bytes(each[COMMAND_AT : COMMAND_AT + 2], "little")]


@settings(max_examples=6 if jit.PYTHON_MODE else 10, deadline=None)
@given(STEPS)
def test_kernel_and_twin_leave_the_same(steps: list[Step]) -> None:
    assert _run(steps, "cycle") == _run(steps, "twin")
