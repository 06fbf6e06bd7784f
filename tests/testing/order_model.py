"""A correct model of a pod in one thread: a seed chooses the order of its steps, and it records a history.

It is as small as the guarantees allow, and shares no code with the checkers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from seawall.testing.checkers import order_events as e
from seawall.testing.checkers.history import History, PodShape
from seawall.testing.checkers.order_events import AckStatus, EntryKind, GapReason, OrderEvent, ReadBy, ReadMode, Role

SHAPE = PodShape(goi_entries=24, pbr_entries=4, copies_needed=2)
BROKERS = (0, 1)
CLIENTS = (7, 8)
ORDERS = {1: 2, 2: 5, 3: 0}  #: by topic
REPLICAS = (0, 1, 2)


@dataclass
class Publisher:
    epoch: int = 0
    next_seq: int = 1
    outbox: dict[int, e.Sent] = field(default_factory=dict)
    known_to_end: set[int] = field(default_factory=set)  #: epochs that it knows have ended
    decided: dict[int, int] = field(default_factory=dict)  #: position by client seq, as the sequencer has it

    @property
    def next_expected(self) -> int:
        expected = 1
        while expected in self.decided:
            expected += 1
        return expected


@dataclass
class Reader:
    by: ReadBy
    mode: ReadMode
    topic: int
    position: int = 0
    seq: int = 1


class PodModel:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.history = History(SHAPE)
        self.publishers = {client: Publisher() for client in CLIENTS}
        self.readers: dict[int, Reader] = {}
        self.term = 0
        self.written: list[tuple[e.Ordered, e.Committed]] = []  #: ordered and not committed, with the outcome
        self.log: dict[int, tuple[e.Ordered, e.Committed]] = {}
        self.next_position = 0
        self.durable = 0
        self.copies = dict.fromkeys(REPLICAS, 0)
        self.next_seqs = dict.fromkeys(ORDERS, 1)
        self.records: dict[int, int] = {}  #: by block
        self._clear_rings()
        self.say(e.ViewChanged(1, REPLICAS))
        self._new_term()
        for client in CLIENTS:
            self.open_session(client)
        self._new_readers()

    def _clear_rings(self) -> None:
        self.claimed = dict.fromkeys(BROKERS, 0)
        self.cursors = dict.fromkeys(BROKERS, 0)
        self.completed = dict.fromkeys(BROKERS, 0)
        self.slots: dict[tuple[int, int], e.Published] = {}
        self.ended: dict[tuple[int, int], int] = {}
        self.pending: list[e.Published] = []
        self.results: list[tuple[e.Ordered, e.Committed]] = []

    def _new_term(self) -> None:
        self.term += 1
        self.say(e.TermGranted(self.term, self.committed))

    def _new_readers(self) -> None:
        for by, topic in ((ReadBy.POSITION, 0), (ReadBy.TOPIC, 1), (ReadBy.TOPIC, 2)):
            for mode in ReadMode:
                self.readers[len(self.readers)] = Reader(by, mode, topic)

    def say(self, event: OrderEvent) -> None:
        self.history.record(event)

    @property
    def committed(self) -> int:
        return self.next_position - len(self.written)

    def run(self, steps: int) -> History:
        actions = [self.send] * 4 + [self.collect] * 4 + [self.order] * 4 + [self.commit] * 4
        actions += [self.replicate, self.complete, self.answer, self.read] * 2 + [self.send_again, self.join]
        for _ in range(steps):
            self.random.choice(actions)()
            if self.random.random() < 0.01:
                self.random.choice((self.crash_sequencer, self.lose_power, self.take_over, self.kill_broker))()
        self.settle()
        return self.history

    def settle(self) -> None:
        while any(each.outbox for each in self.publishers.values()) or len(self.ended) < sum(self.claimed.values()):
            for client in CLIENTS:
                for sent in list(self.publishers[client].outbox.values()):
                    self._send(sent)
            for _ in range(8):
                self.collect()
                self.order()
            while self.written:
                self.commit()
            for _ in REPLICAS:
                self.replicate(everything=True)
            self.answer()
            self.complete()
            self.read()
        self.say(e.Settled())

    # --- publishers and brokers ---

    def open_session(self, client: int) -> None:
        while self.written:
            self.commit()
        publisher = self.publishers[client]
        publisher.epoch += 1
        position = self._write(EntryKind.CONTROL, None, 0, 0, AckStatus.OK)
        self.commit()
        self.say(e.SessionOpened(client, publisher.epoch, 1, position))
        for _ in REPLICAS:
            self.replicate(everything=True)

    def take_over(self) -> None:
        if self._space():
            self.open_session(self.random.choice(CLIENTS))

    def join(self) -> None:
        client = self.random.choice(CLIENTS)
        self.say(e.SessionJoined(client, self.publishers[client].epoch, len(self.history)))

    def send(self) -> None:
        client = self.random.choice(CLIENTS)
        publisher = self.publishers[client]
        if len(publisher.outbox) < 8:
            topic, broker = self.random.choice(tuple(ORDERS)), self.random.choice(BROKERS)
            numbers = (self.random.randint(1, 3), len(self.history), self.random.choice((0, 1, 2)))
            sent = e.Sent(client, publisher.next_seq, publisher.epoch, broker, topic, ORDERS[topic], *numbers)
            publisher.next_seq += 1
            self.records[sent.block] = sent.records
            if sent.ack_level:
                publisher.outbox[sent.client_seq] = sent
            self._send(sent)

    def send_again(self) -> None:
        if waiting := [sent for publisher in self.publishers.values() for sent in publisher.outbox.values()]:
            self._send(self.random.choice(waiting))

    def _send(self, sent: e.Sent) -> None:
        broker = self.random.choice(BROKERS)
        sent = replace(sent, broker=broker, session_epoch=self.publishers[sent.client].epoch)
        self.say(sent)
        index = self.claimed[broker]
        if index - self.completed[broker] >= SHAPE.pbr_entries or self.random.random() < 0.1:
            return  # no space, or lost in the network
        self.claimed[broker] += 1
        self.say(e.Claimed(broker, broker, index))
        self.say(e.PayloadWritten(broker, broker, index, sent.block))
        identity = (sent.client, sent.client_seq, sent.session_epoch)
        self.slots[broker, index] = published = e.Published(broker, broker, index, *identity, sent.order, sent.block)
        self.say(published)
        publisher = self.publishers[sent.client]
        if sent.order == 0 and sent.ack_level == 1 and sent.client_seq not in publisher.decided:
            publisher.outbox.pop(sent.client_seq, None)
            self.say(e.Answered(sent.client, sent.client_seq, 1, AckStatus.OK, None, 0))

    def kill_broker(self) -> None:
        """A broker dies with a claimed slot, which the sequencer fills."""
        broker = self.random.choice(BROKERS)
        index = self.claimed[broker]
        if index - self.completed[broker] >= SHAPE.pbr_entries or not self._space():
            return
        self.claimed[broker] += 1
        self.say(e.Claimed(broker, broker, index))
        self.say(e.Crashed(Role.BROKER, broker))
        while self.cursors[broker] < index:
            self._collect(broker)
        self.cursors[broker] += 1
        self._write(EntryKind.NOP, (broker, index), 0, 0, AckStatus.REJECTED)
        while self.written:
            self.commit()

    # --- sequencer and frontier ---

    def collect(self) -> None:
        broker = self.random.choice(BROKERS)
        if self.cursors[broker] < self.claimed[broker]:
            self._collect(broker)

    def _collect(self, broker: int) -> None:
        slot = (broker, self.cursors[broker])
        self.cursors[broker] += 1
        if slot in self.slots:
            self.say(e.Collected(*slot, self.slots[slot].block))
            if slot not in self.ended:
                self.pending.append(self.slots[slot])

    def _space(self) -> bool:
        return self.next_position - self.durable < SHAPE.goi_entries - 4

    def order(self) -> None:
        if not self.pending or not self._space():
            return
        slot = self.random.choice(self.pending)
        publisher = self.publishers[slot.client]
        status, kind = AckStatus.OK, EntryKind.BATCH
        if slot.session_epoch != publisher.epoch:
            status, kind = AckStatus.REJECTED, EntryKind.NOP
        elif slot.client_seq in publisher.decided:
            original = self._entry(publisher.decided[slot.client_seq])
            stored = original[0].kind is EntryKind.BATCH and original[1].status is AckStatus.OK
            status, kind = (AckStatus.DUPLICATE if stored else AckStatus.REJECTED), EntryKind.NOP
        elif slot.order == 5 and slot.client_seq > publisher.next_expected:
            draw = self.random.random()
            if draw < 0.5:
                return  # held
            if draw < 0.7:
                status, kind = AckStatus.RETRY, EntryKind.NOP
            else:
                self._skip(slot.client, slot.client_seq)
                return
        elif self.random.random() < 0.05:
            status = AckStatus.REJECTED
        self.pending.remove(slot)
        position = self._write(kind, (slot.broker, slot.index), slot.client, slot.client_seq, status)
        if kind is EntryKind.BATCH:
            publisher.decided[slot.client_seq] = position

    def _skip(self, client: int, before: int) -> None:
        decided = self.publishers[client].decided
        first = last = self.publishers[client].next_expected
        while last < before and last not in decided:
            last += 1
        position = self._write(EntryKind.SKIP, None, client, first, AckStatus.OK, last - first)
        decided.update(dict.fromkeys(range(first, last), position))

    def _entry(self, position: int) -> tuple[e.Ordered, e.Committed]:
        return self.log.get(position) or next(each for each in self.written if each[0].position == position)

    def _write(
        self,
        kind: EntryKind,
        at: tuple[int, int] | None,
        client: int,
        client_seq: int,
        status: AckStatus,
        skips: int = 0,
    ) -> int:
        slot = None if at is None else self.slots.get(at)
        position, records = self.next_position, 0
        topic = 2 if kind is EntryKind.SKIP else 0
        if slot is not None and kind is EntryKind.BATCH:
            topic = next(each for each, order in ORDERS.items() if order == slot.order)
            if status is AckStatus.OK:
                records = self.records[slot.block]
        order, block = (0, 0) if slot is None else (slot.order, slot.block)
        epoch = 0 if slot is None else slot.session_epoch
        identity = (*(at or (None, None)), client, client_seq, epoch)
        ordered = e.Ordered(position, self.term, kind, *identity, order, block, skips)
        self.next_position += 1
        self.say(ordered)
        self.written.append((ordered, e.Committed(position, status, topic, 0, records)))
        return position

    def commit(self) -> None:
        if not self.written:
            return
        ordered, committed = self.written.pop(0)
        if committed.records:
            committed = replace(committed, base_seq=self.next_seqs[committed.topic])
            self.next_seqs[committed.topic] += committed.records
        self.log[ordered.position] = (ordered, committed)
        self.say(committed)
        if ordered.broker is not None and ordered.index is not None:
            self.ended[ordered.broker, ordered.index] = ordered.position
            self.results.append((ordered, committed))

    def replicate(self, *, everything: bool = False) -> None:
        replica = min(REPLICAS, key=lambda each: self.copies[each])
        self.copies[replica] = (
            self.committed if everything else self.random.randint(self.copies[replica], self.committed)
        )
        self.say(e.ReplicaDurable(replica, self.copies[replica]))
        if min(self.copies.values()) > self.durable:
            self.durable = min(self.copies.values())
            self.say(e.DurableAdvanced(self.durable))

    def complete(self) -> None:
        for broker in BROKERS:
            index = self.completed[broker]
            while self.ended.get((broker, index), self.durable) < self.durable and index < self.cursors[broker]:
                index += 1
            if index > self.completed[broker]:
                self.completed[broker] = index
                self.say(e.Completed(broker, index))

    def answer(self) -> None:
        self.results = [each for each in self.results if not self._answer(*each)]

    def _answer(self, ordered: e.Ordered, committed: e.Committed) -> bool:
        if ordered.client == 0:
            return True
        publisher = self.publishers[ordered.client]
        if ordered.session_epoch != publisher.epoch:
            if ordered.session_epoch not in publisher.known_to_end:
                publisher.known_to_end.add(ordered.session_epoch)
                self.say(e.SessionFenced(ordered.client, ordered.session_epoch))
            return True
        sent, status = publisher.outbox.get(ordered.client_seq), committed.status
        if sent is None:
            return True
        if status in (AckStatus.REJECTED, AckStatus.RETRY):
            self.say(e.Answered(ordered.client, ordered.client_seq, sent.ack_level, status, None, 0))
            if status is AckStatus.REJECTED:
                del publisher.outbox[ordered.client_seq]
            return True
        original = self._entry(publisher.decided[ordered.client_seq])
        position, base_seq = original[0].position, original[1].base_seq
        if sent.ack_level == 2 and position >= self.durable:
            return False
        known = status is AckStatus.OK or self.random.random() < 0.5
        numbers = (position, base_seq) if known else (None, 0)
        self.say(e.Answered(ordered.client, ordered.client_seq, sent.ack_level, status, *numbers))
        del publisher.outbox[ordered.client_seq]
        return True

    # --- readers ---

    def read(self) -> None:
        for number, reader in self.readers.items():
            end = self.committed if reader.mode is ReadMode.ORDERED else self.durable
            while reader.position < end and self.random.random() < 0.9:
                if reader.position in self.log:
                    self._read(number, reader, *self.log[reader.position])
                reader.position += 1

    def _read(self, number: int, reader: Reader, ordered: e.Ordered, committed: e.Committed) -> None:
        if reader.by is ReadBy.TOPIC and committed.topic != reader.topic:
            return
        at = (number, reader.by, reader.mode, ordered.position)
        if ordered.kind is EntryKind.SKIP:
            self.say(e.SkipSeen(*at, ordered.client, ordered.client_seq, ordered.skip_count))
        elif committed.records:
            if reader.by is ReadBy.TOPIC and committed.base_seq > reader.seq:
                self.say(e.GapSeen(number, reader.topic, reader.seq, committed.base_seq - 1))
            reader.seq = committed.base_seq + committed.records
            numbers = (committed.topic, committed.base_seq, committed.records)
            self.say(e.BatchSeen(*at, *numbers, ordered.client, ordered.client_seq, ordered.block))

    # --- crashes ---

    def crash_sequencer(self) -> None:
        self.say(e.Crashed(Role.SEQUENCER, self.term))
        self.next_position = self.committed
        self.written.clear()
        self.pending.clear()
        self.say(e.Recovered(True, self.committed, self.committed))
        self._new_term()
        for broker in BROKERS:
            self.cursors[broker] = self.completed[broker]
            self.say(e.CursorRestored(broker, self.cursors[broker]))
        self._restore_clients()

    def lose_power(self) -> None:
        self.say(e.Crashed(Role.POWER, 0))
        kept = self.random.randint(self.durable, self.committed)
        following = self.committed + self.random.randint(0, 3)
        for topic in ORDERS:
            lost = [
                entry for at, (_, entry) in self.log.items() if at >= kept and entry.topic == topic and entry.records
            ]
            first = lost[0].base_seq if lost else self.next_seqs[topic]
            ceiling = self.next_seqs[topic] + self.random.randint(0, 2)
            if first < ceiling:
                self.say(e.GapDeclared(topic, first, ceiling - 1, GapReason.CRASH))
            self.next_seqs[topic] = ceiling
        self.log = {at: entry for at, entry in self.log.items() if at < kept}
        self.written.clear()
        self._clear_rings()
        self.next_position = self.durable = following
        self.copies = dict.fromkeys(REPLICAS, following)
        self.say(e.Recovered(False, kept, following))
        for replica in REPLICAS:
            self.say(e.ReplicaDurable(replica, following))
        self._new_term()
        self._restore_clients()
        self._new_readers()

    def _restore_clients(self) -> None:
        for client, publisher in self.publishers.items():
            publisher.decided = {}
            for position, (ordered, _) in sorted(self.log.items()):
                if ordered.client == client and ordered.kind in (EntryKind.BATCH, EntryKind.SKIP):
                    count = max(1, ordered.skip_count)
                    for client_seq in range(ordered.client_seq, ordered.client_seq + count):
                        publisher.decided.setdefault(client_seq, position)
            self.say(e.ClientRestored(client, publisher.epoch, publisher.next_expected))


def good_history(seed: int, steps: int = 300) -> History:
    """What a pod did that did everything right."""
    return PodModel(seed).run(steps)
