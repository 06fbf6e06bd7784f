"""The resident commit kernel: what it commits by itself, and each reason for which it returns to Python."""

from __future__ import annotations

import errno
import os
import random
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_commit_cycle import CLIENTS, PLAIN, SMALL, STRONG, TINY, Log

from seawall.core.types import ClientId
from seawall.engine.commit.commit_queue import CommitQueue
from seawall.engine.commit.resident_commit import ResidentCommit
from seawall.engine.ordering.sequenced_orderer import SequencedOrderer, open_sequenced_store
from seawall.engine.serving.topic_rules import TopicRules
from seawall.engine.store.settings import Machine
from seawall.engine.store.store import Store
from seawall.io.disk.files import OsFiles
from seawall.io.network.readiness import ReadinessSet
from seawall.io.process.clocks import OsClock
from seawall.io.process.shared_lock import SharedLock
from seawall.kernels.codec.frames import FRAME_ROW, STATE_SIZE
from seawall.kernels.log import cycle_records
from seawall.kernels.network import publish_cycle, publish_io
from seawall.kernels.runtime.memory import set_addresses
from seawall.limits import BATCH_HEADER_SIZE, LARGE_BATCH_SIZE
from seawall.storage.wal.epochs import WalAddress
from seawall.testing import SimSharedMemory
from seawall.topics.config import Durability, TopicConfig
from seawall.wire.format.ack_rows import ack_rows
from seawall.wire.format.decoder import FrameDecoder

DISK = "disk"


class Resident(Log):
    """A store on a real disk, a connection for each client, and the kernel."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        super().__init__()
        self.store.create_topic(DISK, TopicConfig(durability=Durability.DISK))
        self.topics = {topic.name: topic.topic_id for topic in self.store.catalog}
        self.warm()
        self.queue = CommitQueue(self.store, SharedLock())
        self.ready = ReadinessSet()
        self.pairs = [socket.socketpair() for _ in CLIENTS]
        self.connections = np.zeros(len(CLIENTS), publish_io.CONNECTION_ROW)
        self.by_descriptor = np.zeros(4_096, np.int32)
        for index, (client, (served, peer)) in enumerate(zip(CLIENTS, self.pairs, strict=True)):
            row = self.connections[index]
            row["fd"], row["client_id"], row["session_epoch"] = served.fileno(), client, self.epochs[client]
            row["version"], row["payload_max"], row["state"], row["tail"], row["has_runs"] = (
                2,
                1 << 20,
                publish_io.ATTACHED,
                -1,
                1,
            )
            self.by_descriptor[served.fileno()] = index + 1
            self.ready.add(served.fileno())
            peer.settimeout(10)
        self.rules = rules = TopicRules(self.store.catalog)
        self.progress = np.zeros(publish_io.PROGRESS_SIZE, np.int64)
        self.arrays = (
            *(np.zeros(64 * publish_io.EVENT_SIZE, np.uint8), self.by_descriptor, self.connections),
            *(np.zeros(LARGE_BATCH_SIZE, np.uint8), np.zeros(1, np.int64), rules.orders, rules.levels),
            *(np.zeros(publish_io.FRAMES_PER_RECEIVE, FRAME_ROW) for _ in range(2)),
            *(np.zeros(publish_io.FRAMES_PER_RECEIVE, np.int64), np.zeros(STATE_SIZE, np.int64), self.progress),
            *(np.zeros(1 << 20, np.uint8), np.zeros(publish_cycle.OPERATION_WORDS, np.int64)),
            np.zeros(publish_cycle.IOVEC_WORDS, np.int64),
        )
        self.publishers = np.zeros(1, publish_cycle.PUBLISHERS)
        self.publishers["epoll"], self.publishers["waker"] = self.ready.descriptor, self.ready.waker
        set_addresses(self.publishers, publish_cycle.PUBLISHER_ARRAYS, self.arrays)
        orderer = self.store.orderer
        assert isinstance(orderer, SequencedOrderer)
        self.orderer, self.cycle = orderer, orderer.cycle
        self.resident = ResidentCommit(self.queue, self.store, orderer, self.publishers, self.ready.wake)
        self.sent = dict.fromkeys(CLIENTS, 0)

    def open(self) -> Store:
        machine = Machine(OsFiles(), OsClock(), random.Random(3).randbytes, pid=1)
        fabric = replace(TINY, brokers=1 + self.networks)
        OsFiles().make_directory(self.path)
        return open_sequenced_store(machine, self.path, SimSharedMemory(), bytes(16), fabric, SMALL, networks=1)

    def send(self, client: ClientId, name: str, *values: bytes) -> None:
        """Send a batch from a publisher."""
        self.sent[client] += 1
        self.pairs[CLIENTS.index(client)][1].send(self.batch(name, self.sent[client], *values, client=client))

    def receive(self) -> int:
        """Receive as the publish thread does before it acquires leadership."""
        events, by_descriptor, connections, tails, *rest = self.arrays
        owners, orders, levels, *scratch = rest[:7]
        received = self.cycle.received
        return publish_io.receive_batches(
            *(self.ready.descriptor, self.ready.waker, 0, events, by_descriptor, connections, received.buffer, tails),
            *(owners, received.rows, orders, levels, *scratch),
            self.progress,
        )

    def acked(self, client: ClientId) -> list[int]:
        decoder = FrameDecoder()
        decoder.feed(self.pairs[CLIENTS.index(client)][1].recv(1 << 20))
        return [int(seq) for frame in decoder.frames() for seq in ack_rows(frame.payload)["client_seq"]]

    def run(self, count: int) -> int:
        """One call of the kernel for rows that were received, as `ResidentCommit` makes it."""
        self.cycle.expect(count)
        return self.run_on()

    def run_on(self) -> int:
        file = self.cycle.lend()
        self.publishers["fd"], self.publishers["due_at"] = file.fileno(), 1 << 62
        reason: int = publish_cycle.run_cycles(self.publishers, self.cycle.cycles, self.cycle.memory)
        if reason != publish_cycle.CYCLES_FAILED:
            self.cycle.take_back()
        return reason

    def run_granted(self) -> int:
        """Receive, and run with what is needed granted."""
        assert self.run(self.receive()) == cycle_records.LACKS_GRANTS
        self.cycle.grant()
        return self.run_on()

    def numbers(self, name: str) -> int:
        return int(self.store.parts.wal.numbers[name][0])

    def values(self, name: str) -> list[bytes]:
        return [block for stored in self.stored(name) for block in [bytes(stored.block)[5:]]]

    def close(self) -> None:
        for pair in self.pairs:
            for each in pair:
                each.close()
        self.ready.close()
        self.orderer.cycles_ended()
        self.store.close()


@pytest.fixture
def resident(tmp_path: Path) -> Iterator[Resident]:
    made = Resident(tmp_path / "data")
    yield made
    made.close()


def test_the_kernel_commits_and_answers_until_it_is_idle(resident: Resident) -> None:
    for client in CLIENTS:
        resident.send(client, PLAIN, b"1")
        resident.send(client, STRONG, b"2")
    before = resident.numbers("epoch")
    assert resident.run_granted() == publish_cycle.CYCLES_DONE
    assert [resident.acked(client) for client in CLIENTS] == [[1, 2], [1, 2]]
    assert resident.cycle.expected == 0
    assert resident.numbers("epoch") == before + 1
    assert resident.numbers("synced_through") == resident.numbers("at")
    assert [int(resident.publishers[name][0]) for name in ("cycles", "batches")] == [1, 4]
    resident.orderer.cycles_ended()
    assert resident.values(PLAIN) == [b"x", b"1", b"1"]
    assert resident.values(STRONG) == [b"x", b"2", b"2"]
    # The next commit continues after it.
    resident.arrive(resident.batch(PLAIN, 3, b"3"))
    resident.commit_all()
    assert resident.values(PLAIN) == [b"x", b"1", b"1", b"3"]


def test_one_call_commits_what_arrives_meanwhile(resident: Resident) -> None:
    """One call of the kernel serves a publisher that waits for each of its batches."""
    acked: list[int] = []

    def publish() -> None:
        for number in range(2, 12):
            acked.extend(resident.acked(CLIENTS[0]))
            resident.send(CLIENTS[0], PLAIN, b"%d" % number)
        acked.extend(resident.acked(CLIENTS[0]))

    resident.send(CLIENTS[0], PLAIN, b"1")
    publisher = threading.Thread(target=publish)
    publisher.start()
    resident.resident.commit(resident.receive())
    while publisher.is_alive():
        # On a busy machine the next batch may arrive too late for the same call.
        count = resident.receive()
        if count:
            resident.resident.commit(count)
    publisher.join()
    assert acked == list(range(1, 12))
    assert resident.resident.unanswered == 0
    assert resident.values(PLAIN) == [b"x", *(b"%d" % number for number in range(1, 12))]


def new_topic(resident: Resident, name: str, config: TopicConfig) -> None:
    topic = resident.store.create_topic(name, config)
    resident.topics[name] = topic.topic_id
    resident.rules.learn(topic)


def test_the_kernel_requests_missing_reservations(resident: Resident) -> None:
    new_topic(resident, "new", TopicConfig())
    resident.send(CLIENTS[0], "new", b"1")
    assert resident.run_granted() == publish_cycle.CYCLES_DONE
    assert resident.acked(CLIENTS[0]) == [1]
    # A control batch has ended all reservations.
    resident.orderer.cycles_ended()
    resident.store.create_topic("another", TopicConfig())
    resident.send(CLIENTS[0], "new", b"2")
    resident.resident.commit(resident.receive())
    assert resident.values("new") == [b"1", b"2"]


def test_batches_without_a_reservation_are_not_eligible(resident: Resident) -> None:
    new_topic(resident, "capped-too", TopicConfig(cap_records=5))
    resident.send(CLIENTS[0], "capped-too", b"1")
    assert resident.run_granted() == cycle_records.NOT_ELIGIBLE
    assert resident.cycle.expected == 1
    assert resident.cycle.received.rows["is_staged"][0] == 0


def test_cycles_are_deducted_from_reservations(resident: Resident) -> None:
    topic_id = resident.topics[PLAIN]
    reservation = resident.orderer._applier._reservations._by_topic[topic_id]
    records, size = reservation.records_left, reservation.bytes_left
    for number in range(3):
        resident.send(CLIENTS[0], PLAIN, b"%d" % number, b"and more")
    assert resident.run_granted() == publish_cycle.CYCLES_DONE
    assert (reservation.records_left, reservation.bytes_left) == (records, size)
    resident.orderer.cycles_ended()
    taken = sum(BATCH_HEADER_SIZE + len(stored.block) for stored in resident.stored(PLAIN)[1:])
    assert (reservation.records_left, reservation.bytes_left) == (records - 6, size - taken)


def test_rows_that_find_no_space_are_applied_first(resident: Resident) -> None:
    pending = resident.store.parts.pending
    resident.send(CLIENTS[0], PLAIN, b"1")
    before = int(pending.numbers["next"][0])
    pending.numbers["next"] = len(pending.rows)
    assert resident.run(resident.receive()) == cycle_records.LACKS_ROWS
    pending.numbers["next"] = before
    assert resident.run_on() == cycle_records.LACKS_GRANTS


def test_batches_in_a_ring_are_not_eligible(resident: Resident) -> None:
    resident.send(CLIENTS[0], PLAIN, b"1")
    resident.arrive(resident.batch(PLAIN, 1, b"ring", client=CLIENTS[1]))
    assert resident.run(resident.receive()) == cycle_records.NOT_ELIGIBLE
    resident.commit_all()
    assert resident.values(PLAIN) == [b"x", b"ring"]
    # `ResidentCommit` commits it together with the received batch.
    resident.arrive(resident.batch(PLAIN, 2, b"ring", client=CLIENTS[1]))
    resident.resident.commit(1)
    assert resident.resident.unanswered == 1
    assert resident.cycle.received.rows["is_staged"][0] == 1
    assert sorted(resident.values(PLAIN)) == [b"1", b"ring", b"ring", b"x"]


def test_a_failed_write_sends_no_answer(resident: Resident) -> None:
    resident.send(CLIENTS[0], PLAIN, b"1")
    at = resident.numbers("at")
    log_file, _ = resident.store.parts.wal.locate(WalAddress(at - 1))
    unwritable = os.open(log_file.path, os.O_RDONLY)
    os.dup2(unwritable, log_file.fileno())
    os.close(unwritable)
    resident.resident.commit(resident.receive())
    assert resident.store.guard.is_failed
    assert resident.resident.unanswered == 1
    assert int(resident.publishers["error"][0]) == -errno.EBADF
    assert resident.numbers("at") == at
    resident.pairs[0][1].setblocking(False)
    with pytest.raises(BlockingIOError):
        resident.acked(CLIENTS[0])
    # Nothing more is committed.
    resident.send(CLIENTS[1], PLAIN, b"2")
    resident.resident.commit(resident.receive())
    assert resident.values(PLAIN) == [b"x"]


def test_listeners_are_notified_by_an_event(resident: Resident) -> None:
    notified = []
    resident.queue.listeners.append(lambda: notified.append(resident.values(PLAIN)[-1]))
    readable = resident.resident.readable
    for number in range(3):
        resident.queue.expect_change()
        resident.send(CLIENTS[0], PLAIN, b"%d" % number)
        resident.resident.commit(resident.receive())
        assert select.select([readable.wait_fd], [], [], 0)[0]
        resident.resident.notify()
        assert notified == [b"%d" % each for each in range(number + 1)]
    # No listener expects a change any more.
    resident.send(CLIENTS[0], PLAIN, b"last")
    resident.resident.commit(resident.receive())
    assert not select.select([readable.wait_fd], [], [], 0)[0]


def test_the_kernel_returns_when_leadership_is_wanted(resident: Resident) -> None:
    resident.queue.signals[publish_cycle.WANTED] = 1
    resident.send(CLIENTS[0], PLAIN, b"1")
    assert resident.run_granted() == publish_cycle.CYCLES_DONE
    resident.send(CLIENTS[0], PLAIN, b"2")
    # The second batch is not received: another leader comes first.
    assert resident.acked(CLIENTS[0]) == [1]


def test_the_kernel_returns_when_a_checkpoint_is_due(resident: Resident) -> None:
    resident.send(CLIENTS[0], PLAIN, b"1")
    resident.store.checkpoint_schedule.next_check_at = resident.numbers("at") + 1
    resident.resident.commit(resident.receive())
    assert resident.acked(CLIENTS[0]) == [1]
    assert resident.store.checkpoint_schedule.next_check_at > resident.numbers("at")


def test_a_busy_publisher_does_not_starve_other_leaders(resident: Resident) -> None:
    """A publisher that never stops does not keep others from changing the store."""
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.is_set():
            resident.send(CLIENTS[0], PLAIN, b"more")
            resident.acked(CLIENTS[0])

    def commit() -> None:
        while publisher.is_alive():
            count = resident.receive()
            if count:
                resident.resident.commit(count)

    publisher, committer = threading.Thread(target=publish), threading.Thread(target=commit)
    publisher.start()
    committer.start()
    try:
        for number in range(20):
            with resident.queue.exclusive() as store:
                store.create_topic(f"other-{number}", TopicConfig())
            with resident.queue.state:
                assert resident.store.catalog.named(f"other-{number}").topic_id
    finally:
        is_over.set()
        publisher.join()
        committer.join()
    assert len(resident.values(PLAIN)) == resident.sent[CLIENTS[0]] + 1


def test_classes_below_fsync_are_written_and_not_synced(resident: Resident) -> None:
    resident.arrive(resident.batch(DISK, 1, b"first", client=CLIENTS[1]))
    resident.commit_all()
    resident.send(CLIENTS[0], DISK, b"1")
    synced = resident.numbers("synced_through")
    assert resident.run_granted() == publish_cycle.CYCLES_DONE
    assert resident.acked(CLIENTS[0]) == [1]
    assert resident.numbers("synced_through") == synced < resident.numbers("at")
    # The next that is synced makes everything before it durable.
    resident.send(CLIENTS[0], PLAIN, b"2")
    resident.orderer.cycles_ended()
    assert resident.run_granted() == publish_cycle.CYCLES_DONE
    assert resident.numbers("synced_through") == resident.numbers("at")
