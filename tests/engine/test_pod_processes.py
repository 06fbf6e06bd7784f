"""A pod of processes: batches sent to the broker process are ordered once, and in order, by the sequencer process."""

from __future__ import annotations

import mmap
import select
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from seawall.broker.ring import TopicDefaults
from seawall.core.types import ClientId, ClientSeq, Position, Seq, SessionEpoch, Term, TimestampNs, TopicId
from seawall.engine.ordering.broker_connections import Publisher
from seawall.engine.ordering.pod_processes import BrokerRole, SequencerRole
from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.layout import FabricLayout, FabricSizes
from seawall.io.network.sockets import OsStream, stream_pair
from seawall.io.process.clocks import OsClock
from seawall.io.process.role_process import RoleProcess
from seawall.io.process.wakeups import WakeUpEvent, keep_stepping
from seawall.kernels.runtime import jit
from seawall.kernels.runtime.atomics import store_release_u64
from seawall.limits import KIB
from seawall.sequencer.frontier import CommitFrontier, TopicNumbers
from seawall.sequencer.pod_sequencer import PodSequencer
from seawall.wire.format.ack_rows import ack_rows
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import AckLevel, AckStatus
from seawall.wire.format.frames import parse_frame_header

pytestmark = pytest.mark.skipif(jit.PYTHON_MODE, reason="Python stand-ins are atomic under one GIL only")

TOPIC = TopicId(4)
CLIENTS = (9, 10)
BATCHES = 500
WAIT_MS = 30_000


class Owner:
    """An owner of the store that must not be called."""

    def load(self, _client_id: ClientId, /) -> bytes | None:
        return None

    def save(self, _rows: bytes, /) -> None:
        raise AssertionError("no row has to leave")

    def execute(self, _position: Position, /) -> None:
        raise AssertionError("no change was ordered")

    def raise_ceilings(self) -> None:
        raise AssertionError("the ceiling is high enough")


class PodUnderTest:
    """A sequencer and a broker, in this process or forked, and the writers' ends of two connections."""

    def __init__(self, order: int, *, is_forked: bool = True) -> None:
        sizes = FabricSizes(brokers=1, goi_entries=256, pbr_entries=64, checkpoint_size=8 * KIB, blog_size=64 * KIB)
        layout = FabricLayout.of(sizes)
        self.arrays = FabricArrays(memoryview(mmap.mmap(-1, layout.size)), layout)
        self.wakeups = [WakeUpEvent(), WakeUpEvent()]
        pairs = [stream_pair("a writer") for _ in CLIENTS]
        self.streams = [far for far, _ in pairs]
        sequencer = self._sequencer(order)
        broker = BrokerRole(self.arrays, 0, wakeup=self.wakeups[1], sequencer=self.wakeups[0])
        publisher = Publisher(SessionEpoch(1), ClientSeq(0), TopicDefaults(order, AckLevel.ORDERED))
        for _, near in pairs:
            broker.connect(near, publisher)
        assert broker.connections == len(pairs)
        self.steps = (sequencer, broker.step)
        self.roles: list[RoleProcess] = []
        if is_forked:
            self.roles = [self._fork(name, number) for number, name in enumerate(("sequencer", "broker"))]
            for _, near in pairs:
                near.close()

    def _sequencer(self, order: int) -> Callable[[], int]:
        frontier = CommitFrontier()
        frontier.add_topic(TopicNumbers(TOPIC, ceiling=Seq(1 << 40), is_strong=order == 5))
        sequencer = PodSequencer.start_cold(self.arrays, frontier, Owner(), Term(1))
        for client in CLIENTS:
            sequencer.workers[0].import_rows(np.array([client, 1, 1, 0, 0, 0, 0, 0], np.uint64).tobytes())
        role = SequencerRole(sequencer, OsClock(), members=(0,), min_replicas=1, brokers=self.wakeups[1:])
        replica = self.arrays.replica_words[0]

        def step() -> int:
            store_release_u64(replica, records.REPLICA_DURABLE, sequencer.frontier.committed)
            return role.step()

        return step

    def _fork(self, name: str, number: int) -> RoleProcess:
        def work() -> None:
            for stream in self.streams:
                stream.close()
            keep_stepping(self.steps[number], self.wakeups[number])

        return RoleProcess(name, work, on_terminate=self.wakeups[number].stop)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        for role in self.roles:
            role.close()
        for wakeup in self.wakeups:
            wakeup.close()


@pytest.fixture(params=[2, 5], ids=["order 2", "order 5"])
def pod(request: pytest.FixtureRequest) -> Iterator[PodUnderTest]:
    made = PodUnderTest(request.param)
    yield made
    made.close()


def batch(client: int, seq: int, size: int = 50) -> bytes:
    block = bytes(size)
    header = batch_header(
        block,
        topic_id=TOPIC,
        client_id=ClientId(client),
        client_seq=ClientSeq(seq),
        session_epoch=1,
        record_count=1,
        timestamp_ns=TimestampNs(0),
    )
    return encode_batch(header, block)


class Conversation:
    """What one writer sends, and the ACK entries it has got."""

    def __init__(self, stream: OsStream, data: bytes) -> None:
        self.stream = stream
        self.unsent = data
        self.received = b""
        self.entries: list[tuple[int, int, int]] = []
        self.through = 0

    def exchange(self) -> None:
        self.unsent = self.unsent[self.stream.send(self.unsent) :] if self.unsent else b""
        buffer = bytearray(64 * KIB)
        count = self.stream.receive_into(buffer)
        assert count != 0, "the broker has closed the connection"
        self.received += bytes(buffer[: count or 0])
        while len(self.received) >= 44 and len(self.received) >= parse_frame_header(self.received).frame_size:
            header = parse_frame_header(self.received)
            rows = ack_rows(self.received[44 : header.frame_size])
            self.entries += rows[["client_seq", "position", "status"]].tolist()
            self.through = header.id
            self.received = self.received[header.frame_size :]


def talk(conversations: list[Conversation], count: int) -> None:
    """Continue until each writer has this many answers."""
    while any(len(each.entries) < count for each in conversations):
        poller = select.poll()
        for each in conversations:
            poller.register(each.stream.fileno(), select.POLLIN | (select.POLLOUT if each.unsent else 0))
        assert poller.poll(WAIT_MS), "nothing is answered"
        for each in conversations:
            each.exchange()


def test_batches_of_two_writers_are_ordered_once_each_in_its_own_order(pod: PodUnderTest) -> None:
    """Many times more batches than the rings hold."""
    conversations = [
        Conversation(stream, b"".join(batch(client, seq) for seq in range(1, BATCHES + 1)))
        for client, stream in zip(CLIENTS, pod.streams, strict=True)
    ]
    talk(conversations, BATCHES)
    for each in conversations:
        assert [seq for seq, _, _ in each.entries] == list(range(1, BATCHES + 1))
        assert {status for _, _, status in each.entries} == {int(AckStatus.OK)}
        positions = [position for _, position, _ in each.entries]
        assert positions == sorted(positions)
        assert each.through == BATCHES
    assert sorted(position for each in conversations for _, position, _ in each.entries) == list(range(2 * BATCHES))


def test_a_repeated_batch_is_answered_as_a_duplicate(pod: PodUnderTest) -> None:
    first = Conversation(pod.streams[0], batch(9, 1))
    talk([first], 1)
    again = Conversation(pod.streams[0], batch(9, 1) + batch(9, 2))
    talk([again], 2)
    assert [(seq, status) for seq, _, status in again.entries] == [(1, AckStatus.DUPLICATE), (2, AckStatus.OK)]


def test_roles_stop_cleanly(pod: PodUnderTest) -> None:
    talk([Conversation(pod.streams[0], batch(9, 1))], 1)
    pod.wakeups[0].stop()
    pod.roles[1].terminate()
    for role in pod.roles:
        assert role.wait(WAIT_MS / 1_000)
        assert role.exit_code == 0


def test_the_roles_also_run_in_one_thread() -> None:
    pod = PodUnderTest(2, is_forked=False)
    conversations = [
        Conversation(stream, b"".join(batch(client, seq) for seq in range(1, 101)))
        for client, stream in zip(CLIENTS, pod.streams, strict=True)
    ]
    done = 1
    while done:
        for each in conversations:
            each.exchange()
        done = sum(step() for _ in range(2) for step in pod.steps)
    for each in conversations:
        each.exchange()
    assert [each.through for each in conversations] == [100, 100]
    pod.close()
    assert sum(step() for _ in range(3) for step in pod.steps) == 0


def test_a_held_batch_does_not_stop_the_ring_of_its_broker() -> None:
    """One writer has a hole and another fills the BLog: held batches are returned, and the largest fits."""
    pod = PodUnderTest(5, is_forked=False)
    holed = Conversation(pod.streams[0], batch(CLIENTS[0], 2, 20_000))
    other = Conversation(pod.streams[1], b"".join(batch(CLIENTS[1], seq, 20_000) for seq in range(1, 9)))

    def run_until(*counts: int) -> None:
        for _ in range(1_000):
            for step in reversed(pod.steps):
                step()
            for each in (holed, other):
                each.exchange()
            if [len(holed.entries), len(other.entries)] == list(counts):
                return
        raise AssertionError(f"{len(holed.entries)} and {len(other.entries)} answers, wanted {counts}")

    run_until(1, 8)
    assert (holed.entries[0][0], holed.entries[0][2]) == (2, int(AckStatus.RETRY))
    # Nothing else is in flight, and held batches occupy the space of the missing one.
    holed.unsent = batch(CLIENTS[0], 2, 20_000) + batch(CLIENTS[0], 3, 20_000)
    for _ in range(20):
        for step in reversed(pod.steps):
            step()
        holed.exchange()
    assert len(holed.entries) == 1
    holed.unsent = batch(CLIENTS[0], 1, 60_000)
    run_until(4, 8)
    assert sorted(entry[0] for entry in holed.entries[1:]) == [1, 2, 3]
    pod.close()
    # The broker notices that its writers have closed, and closes its ends.
    assert sum(step() for step in reversed(pod.steps)) == 0
