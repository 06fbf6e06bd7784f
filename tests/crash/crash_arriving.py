"""The script of `crash_world` for a store that connections publish to: received batches are committed together.

Batches arrive in the ring of an event loop, or in the receive buffer of the publish thread while the ring is empty.
Most commits are one epoch of all received batches (`engine.commit.commit_cycle`); large, capped and duplicate batches
go through the sequencer, and the uncommitted rest of the receive buffer goes to the ring, as in a server. Publishers
count answered batches as durable; the answer to a duplicate must have the seq of the first.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from crash_history import Level, Written, require
from crash_world import LEVELS, PATH, World

from seawall.broker.ring import BrokerRing, Stop, TopicDefaults
from seawall.config import FabricConfig
from seawall.core.types import ClientId, ClientSeq, SessionEpoch, TimestampNs, TopicId
from seawall.engine.commit.commit_cycle import Received
from seawall.engine.ordering.orderer import SessionSpec
from seawall.engine.ordering.sequenced_orderer import SequencedOrderer, open_sequenced_store
from seawall.engine.store.settings import Machine
from seawall.engine.store.store import Store
from seawall.io.disk.files import write_all
from seawall.io.interfaces import File
from seawall.io.process.shared_lock import SharedLock
from seawall.kernels.log import cycle_records
from seawall.kernels.network import publish_cycle
from seawall.limits import KIB, LARGE_BATCH_SIZE
from seawall.testing import SimSharedMemory
from seawall.topics.config import Durability, Order, TopicConfig
from seawall.topics.state import TopicState
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import AckLevel, AckStatus
from seawall.wire.format.records import encode_block

FABRIC = FabricConfig(brokers=2, goi_entries=256, pbr_entries=64, checkpoint_size=64 * KIB, blog_size=1024 * KIB)
CLIENTS = (ClientId(77), ClientId(78))
NOBODY = ClientId(1 << 63 | 3)


@dataclass(frozen=True)
class Sent:
    """A batch that is in the ring."""

    topic: TopicState
    values: list[Written]
    client: ClientId
    seq: int
    batch: bytes


class ArrivingWorld(World):
    """A store that receives batches through a network ring, and the history of its clients."""

    def open(self) -> Store:
        self.opened += 1
        random_bytes = random.Random(f"machine {self.script} {self.opened}").randbytes
        self.clock.advance(1)
        machine = Machine(self.disk, self.clock, random_bytes, pid=7)
        # The fabric ends with its process.
        store = open_sequenced_store(machine, PATH, SimSharedMemory(), bytes(16), FABRIC, self.settings(), networks=1)
        self.store = store
        #: Session and next number of each client, and the batch before that with its first seq.
        self.sessions: dict[ClientId, tuple[SessionEpoch, int]] = {}
        self.last: dict[ClientId, tuple[Sent, int]] = {}
        self.sent: dict[int, Sent] = {}
        self.received: list[Sent] = []
        self.owners = 0
        self.short = self.received_total = self.resident = 0
        self.lock = SharedLock()
        return store

    @property
    def orderer(self) -> SequencedOrderer:
        orderer = self._usable().orderer
        assert isinstance(orderer, SequencedOrderer)
        return orderer

    @property
    def ring(self) -> BrokerRing:
        return self.orderer.arrivals.rings[0]

    def _config(self, durability: Durability) -> TopicConfig:
        # Half of them without caps and ages, and with segments of more than one commit.
        if self.chance.random() < 0.5:
            return super()._config(durability)
        return TopicConfig(durability=durability, segment_max_records=self.chance.choice((60, 1_000)))

    def weighted(self) -> list[Callable[[], None]]:
        return [*super().weighted(), *[self.append] * 16, *[self.burst] * 8]

    def burst(self) -> None:
        """Many small batches for one topic, some in each commit."""
        topic = self._pick()
        if topic is not None:
            self._append([(topic, [self.history.write(topic.topic_id, 20, None)]) for _ in range(24)])

    def _append(self, groups: list[tuple[TopicState, list[Written]]]) -> None:
        for client in CLIENTS:
            if client not in self.sessions:
                with self.changing() as store:
                    epoch, first = store.session_keeper.open(SessionSpec(client, ClientSeq(1)))
                self.sessions[client] = epoch, first
        with self.changing():
            self.level = Level.STAGED
            for topic, values in groups:
                self._publish(self._batch(topic, values))
                if self.chance.random() < 0.3:
                    self._commit_some()
                if self.last and self.chance.random() < 0.1:
                    self._publish(self.chance.choice([*self.last.values()])[0])
            self._commit_all()
            # What each commit has made durable is known by then.
            self.level = Level.STAGED
            if self.orderer.is_stuck:
                return  # no space: pending batches are stored later, or never
            require(not self.sent, f"{len(self.sent)} batches were not answered")
            for client, (_, due) in self.sessions.items():
                known = self._usable().sessions.window.state(client)
                require(known.next_expected == due, f"client {client} is at {due}, the store at {known}")

    def _batch(self, topic: TopicState, values: list[Written]) -> Sent:
        client = self.chance.choice((*CLIENTS, NOBODY))
        epoch, seq = self.sessions.get(client, (SessionEpoch(0), 1))
        if client in self.sessions:
            self.sessions[client] = epoch, seq + 1
        block = encode_block([value.record() for value in values])
        header = batch_header(
            block,
            topic_id=TopicId(topic.topic_id),
            client_id=client,
            client_seq=ClientSeq(seq),
            session_epoch=epoch,
            record_count=len(values),
            timestamp_ns=TimestampNs(0),
        )
        return Sent(topic, values, client, seq, encode_batch(header, block))

    def _publish(self, sent: Sent) -> None:
        """Let a batch arrive after all others, because a history has one order."""
        clients = [each.client for each in self.received]
        is_behind = not self.sent and (sent.client not in clients or clients[-1] == sent.client)
        # Between connections no order is promised: a cycle may take a batch of the second and leave one of the first.
        is_behind &= all(each.client == sent.client for each in self.received if each.topic is sent.topic)
        is_new = sent is not self.last.get(sent.client, (None, 0))[0]
        is_small = len(sent.batch) < LARGE_BATCH_SIZE and sent.topic.config.order is not Order.NONE
        if sent.client in CLIENTS and is_behind and is_new and is_small and self.chance.random() < 0.8:
            self.received.append(sent)
            return
        while self.received:
            self._commit_some()
        self._publish_to_ring(sent)

    def _receive(self) -> Received:
        """Put the received batches into the buffer that a cycle reads."""
        received, at = self.orderer.cycle.received, 0
        for number, sent in enumerate(self.received):
            size = len(sent.batch)
            received.buffer[at : at + size] = np.frombuffer(sent.batch, np.uint8)
            is_strong = sent.topic.config.order is Order.CLIENT
            received.rows[number] = (CLIENTS.index(sent.client), at, size, is_strong, 2, at, 1, *[0] * 7)
            at += size
        received.count = len(self.received)
        return received

    def _answer_received(self, received: Received) -> list[Sent]:
        """Answer the committed batches; returns the rest, which goes to the ring."""
        rest: list[Sent] = []
        rows = received.rows[: len(self.received)][["is_staged", "base_seq", "timestamp_ns"]].tolist()
        came, self.received = self.received, []
        for sent, (is_staged, base_seq, timestamp_ns) in zip(came, rows, strict=True):
            if is_staged:
                self._acked(sent, base_seq, timestamp_ns)
                self.received_total += 1
            else:
                rest.append(sent)
        return rest

    def _publish_to_ring(self, sent: Sent) -> None:
        self.owners += 1
        defaults = TopicDefaults(int(sent.topic.config.order), AckLevel.DURABLE)
        batch = np.frombuffer(sent.batch, np.uint8)
        while (published := self.ring.publish(batch, self.owners, defaults)).count == 0:
            require(published.stop is Stop.FULL, f"a batch was not taken: {published.stop}")
            self._commit_some()
        self.sent[self.owners] = sent

    def _commit_all(self) -> None:
        while self.received or self.orderer.is_behind:
            self._commit_some()
        self._take_answers()

    def _commit_resident(self) -> bool:
        """Commit the received batches with the steps of the resident kernel, except its write; False if impossible.

        Missing resources are provided as in `engine.commit.resident_commit`.
        """
        store, cycle = self._usable(), self.orderer.cycle
        if not self.received or not self.orderer.is_at_rest:
            return False
        received = self._receive()
        received.count = 0
        publishers = np.zeros(1, publish_cycle.PUBLISHERS)
        publishers["lock_at"] = self.lock.words.ctypes.data
        cycle.expect(len(self.received))
        size = publish_cycle.stage_received(publishers, cycle.cycles, cycle.memory)
        if size == -cycle_records.LACKS_GRANTS:
            cycle.grant()
            size = publish_cycle.stage_received(publishers, cycle.cycles, cycle.memory)
        if size == -cycle_records.LACKS_ROWS:
            cycle.apply_rows()
        is_durable = bool(cycle.cycles["is_durable"][0])
        if size > 0:
            if self.chance.random() < 0.3:
                self._observe(store, Level.STAGED)
            self._write_epoch(cycle.lend(), cycle.memory[:size].data, is_durable)
            publish_cycle.settle_received(publishers, cycle.cycles, size)
            cycle.take_back()
        self.orderer.cycles_ended()
        if size < 0:
            return False
        self.resident += 1
        rest = self._answer_received(received)
        self.history.reached(Level.DURABLE if is_durable else Level.WRITTEN)
        if store.is_tidy_up_due:
            store.tidy_up()
        for sent in rest:
            self._publish_to_ring(sent)
        return True

    def _write_epoch(self, file: File, epoch: memoryview, is_durable: bool) -> None:
        """What the kernel does with a real file, by the simulated disk."""
        store = self._usable()
        at, synced_through, offset = (
            int(store.parts.wal.numbers[name][0]) for name in ("at", "synced_through", "file_offset")
        )
        try:
            write_all(file, [epoch], at + offset, durable=is_durable and synced_through == at)
            if is_durable and synced_through != at:
                file.sync()
        except BaseException as error:
            store.fail(error)
            raise

    def _commit_some(self) -> None:
        if self.chance.random() < 0.5 and self._commit_resident():
            return
        store = self._usable()
        received = self._receive()
        commit = store.begin([])
        # As in a server: an ordered batch may be answered at ack level 1.
        self._take_answers()
        if self.chance.random() < 0.3:
            # A reader runs during the write, and applies earlier commits.
            self._observe(store, Level.STAGED)
        try:
            commit.execute()
        except BaseException as error:
            store.fail(error)
            raise
        is_untidy = store.finish(commit)
        self.short += commit.is_cycle
        self._take_answers()
        rest = self._answer_received(received)
        if commit.epoch is not None:
            self.history.reached(Level.DURABLE if commit.durable else Level.WRITTEN)
        if is_untidy:
            store.tidy_up(commit.limited)
        # Behind all that: a ring without space needs another commit.
        for sent in rest:
            self._publish_to_ring(sent)

    def _take_answers(self) -> None:
        fields = ["owner", "status", "base_seq", "timestamp_ns"]
        for owner, status, base_seq, timestamp_ns in self.ring.answers()[fields].tolist():
            sent = self.sent.pop(owner)
            if status == AckStatus.OK:
                self._acked(sent, base_seq, timestamp_ns)
            elif status == AckStatus.DUPLICATE:
                known, first = self.last.get(sent.client, (sent, base_seq))
                require(known is not sent or base_seq in (0, first), f"a repetition of {first} was told {base_seq}")
            else:
                for value in sent.values:
                    self.history.refused(sent.topic.topic_id, value)

    def _acked(self, sent: Sent, base_seq: int, timestamp_ns: int) -> None:
        level = LEVELS[sent.topic.config.durability]
        for seq, value in enumerate(sent.values, base_seq):
            self.history.acked(sent.topic.topic_id, seq, value, timestamp_ns, level)
        if sent.client in self.sessions:
            self.last[sent.client] = sent, base_seq


__all__ = ["ArrivingWorld"]
