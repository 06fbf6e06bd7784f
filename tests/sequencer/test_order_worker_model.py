"""An order worker against a model of dicts: random arrivals over several brokers, and every entry it writes."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from order_pod import SYNTHETIC, TERM, UNKNOWN, Pod, small_fabric
from worker_model import (
    DUPLICATE,
    FENCED,
    MISMATCH,
    NOP,
    OUTSIDE,
    REJECTED,
    RETRY,
    SKIPPED,
    STRONG,
    Client,
    Entry,
    Slot,
    Worker,
)

from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.sequencer.order_worker import OrderSettings
from seawall.sequencer.shared import FLOOR

CLIENTS = (11, 12, 2**63 - 1)
STRANGER = 5
CLIENTS_MAX = 2
SILENCE = 200
STUCK = 300
RING = 64
DRAIN = 32


class Both:
    """A worker and its model: slots are published, steps are taken, entries are committed, in any order."""

    def __init__(self, *, start: int, pages: int, hold_max: int) -> None:
        own = OrderSettings(
            drain_refs=DRAIN,
            hold_max=hold_max,
            pages=pages,
            silence_ns=SILENCE,
            clients_max=CLIENTS_MAX,
            remembered_max=CLIENTS_MAX,
        )
        self.pod = Pod(small_fabric(brokers=2, pbr_entries=RING), own, start=start, stuck_after_ns=STUCK)
        self.model = Worker(hold_max * 80 // 100, pages, RING * 80 // 100, SILENCE, CLIENTS_MAX)
        self.in_memory: set[int] = set()
        self.now = 0
        self.slots: list[list[Slot]] = [[], []]
        self.open_slots: list[set[int]] = [set(), set()]
        self.unpublished: set[tuple[int, int]] = set()
        self.cursors = [0, 0]
        #: Slots below these have bytes that their brokers need.
        self.needed = [0, 0]
        self.waited: dict[int, tuple[int, int]] = {}
        self.queue: list[Slot] = []
        self.written: list[Entry] = []
        self.start = start
        self.is_stalled = False
        self.paused_at: int | None = None
        self.paused_ns = 0
        for client in CLIENTS[:2]:
            self.open_session(client, 0)

    # --- what brokers do

    def publish(self, broker: int, client: int, ahead: int, crc: int, flags: int, epochs_ago: int) -> None:
        known = self.model.clients.get(client, Client(1, 1, 0))
        seq = max(0, known.next + ahead)
        epoch = known.epoch - epochs_ago
        topic = 100 + broker
        if self.take_slot(Slot(broker, len(self.slots[broker]), client, seq, crc, topic, epoch, flags)):
            self.pod.publish(broker, client, seq, block_crc=crc, flags=flags, topic_id=topic, session_epoch=epoch)

    def publish_others(self, broker: int, count: int) -> None:
        for _ in range(count):
            self.publish(broker, SYNTHETIC | 4, 0, 7, 0, 0)

    def publish_nop(self, broker: int) -> None:
        if self.take_slot(Slot(broker, len(self.slots[broker]), topic=3, flags=NOP)):
            self.pod.publish(broker, 0, 0, flags=NOP, topic_id=3, block_crc=0)

    def claim_only(self, broker: int) -> None:
        index = len(self.slots[broker])
        if self.take_slot(Slot(broker, index, flags=NOP)):
            self.unpublished.add((broker, index))
            self.pod.claim(broker)

    def need_bytes(self, broker: int, below: int, is_waiting: bool) -> None:
        """The broker has reached the spare part of the BLog before a slot, or waits for the space of the slot."""
        blog_size = self.pod.arrays.blogs[0].size
        end = (1 << 40) + 64 * below + blog_size
        tails = self.pod.arrays.tail_words[broker]
        tails[2] = end if is_waiting else 0
        tails[1] = max(int(tails[1]), 0 if is_waiting else end - blog_size * 20 // 100)
        by_claims = int(tails[1]) + blog_size * 20 // 100 - blog_size - (1 << 40)
        self.needed[broker] = max(below if is_waiting else 0, -(-by_claims // 64))

    def take_slot(self, slot: Slot) -> bool:
        """Whether the next slot is free: the one a lap before it is committed."""
        used = self.open_slots[slot.broker]
        if slot.index - min(used, default=slot.index) >= RING:
            return False
        used.add(slot.index)
        self.slots[slot.broker].append(slot)
        return True

    # --- what the sequencer does

    def step(self, after: int) -> None:
        self.now += after
        self.pod.stored.log.clear()
        self.pod.step(self.now)
        self.collect()
        self.settle()
        self.write()
        if not self.model.ready:
            now = (self.now if self.paused_at is None else self.paused_at) - self.paused_ns
            self.drain(now)
            if self.model.holding:
                self.model.bounce_pinned(self.cursors, self.needed)
            if self.paused_at is None:
                self.model.expire(now)
            self.write()
        self.compare()

    def collect(self) -> None:
        """A ring ends at a slot without a token; the queue ends all."""
        for broker, slots in enumerate(self.slots):
            end = min(len(slots), self.cursors[broker] + 32)
            while self.cursors[broker] < end:
                index = self.cursors[broker]
                if (broker, index) in self.unpublished:
                    if self.waited.get(broker, (-1, 0))[0] != index:
                        self.waited[broker] = (index, self.now)
                    if self.now - self.waited[broker][1] < STUCK:
                        break
                if len(self.queue) == 64:
                    break
                self.queue.append(slots[index])
                self.cursors[broker] += 1

    def drain(self, now: int) -> None:
        absent = 0
        for _ in range(min(DRAIN, len(self.queue))):
            client = self.queue[0].client
            is_session = not self.queue[0].flags & NOP and client < SYNTHETIC
            if is_session and client not in self.in_memory and client != absent:
                if self.model.holding:
                    self.model.bounce_pinned(self.cursors, self.needed)
                if not self.fetch(client):
                    return
                absent = absent if client in self.in_memory else client
            self.model.take(self.queue.pop(0), now)

    def fetch(self, client: int) -> bool:
        """Check the calls for stored rows; false if there was no space for this one."""
        log = self.pod.stored.log
        assert log.pop(0) == ("load", client)
        if client not in self.model.clients:
            return True
        return self.make_space(client)

    def make_space(self, client: int) -> bool:
        if len(self.in_memory) == CLIENTS_MAX:
            if not self.pod.stored.log or self.pod.stored.log[0][0] != "save":
                return False
            _, evicted = self.pod.stored.log.pop(0)
            if evicted == client:
                return False  # it found no space, and was saved again
            self.model.evict(evicted)
            self.in_memory.remove(evicted)
        self.in_memory.add(client)
        return True

    def settle(self) -> None:
        self.model.settle(int(self.pod.arrays.control["committed"][0]), self.pod.refusals)

    def reserve(self, least: int, most: int) -> int:
        """How many positions there are."""
        reserved = self.start + len(self.written)
        settled = self.model.unsettled[0][0].position if self.model.unsettled else reserved
        fill = reserved - min(int(self.pod.shared.counters[FLOOR]), settled)
        goi = self.pod.goi_entries
        if fill >= goi * 90 // 100 or (self.is_stalled and fill > goi * 80 // 100):
            self.is_stalled = True
            return 0
        self.is_stalled = False
        count = min(most, goi - fill)
        return count if count >= least else 0

    def write(self) -> None:
        if self.model.ready:
            self.write_count(self.reserve(1, len(self.model.ready)))

    def write_count(self, count: int) -> None:
        for _ in range(count):
            entry = self.model.ready.pop(0)
            if not entry.flags & NOP and entry.fate:
                assert entry.slot
                entry.fate.position = self.start + len(self.written)
                client = self.model.clients[entry.slot.client]
                self.model.unsettled.append((entry.fate, client, entry.slot.seq))
            self.written.append(entry)

    def open_session(self, client: int, gap_ns: int) -> None:
        known = self.model.clients.get(client)
        epoch = known.epoch + 1 if known else 1
        self.pod.stored.log.clear()
        opening = self.pod.worker.open_session(ClientId(client), SessionEpoch(epoch), ClientSeq(3), after_gap_ns=gap_ns)
        self.settle()
        self.write()
        position = self.start + len(self.written)
        expected = None
        if not self.model.ready and self.bring(client):
            held = len(known.held) if known else 0
            if self.reserve(held + 1, held + 1):
                expected = (self.model.open(client, epoch, 3, gap_ns), position + held)
                self.write_count(held + 1)
            elif not known:
                self.in_memory.remove(client)
        assert (opening and (opening.next_expected, opening.position)) == expected
        self.compare()

    def bring(self, client: int) -> bool:
        """Bring a client into memory; false if there is no space."""
        if client in self.in_memory:
            return True
        if client in self.model.clients:
            return self.fetch(client)
        assert self.pod.stored.log.pop(0) == ("load", client)
        return self.make_space(client)

    def evict(self) -> None:
        busy = {id(client) for client, _ in self.model.holding} | {id(each) for _, each, _ in self.model.unsettled}
        for client in self.pod.worker.evictable(1):
            assert id(self.model.clients[client]) not in busy
            if not self.model.ready:
                self.pod.stored.save(self.pod.worker.take_rows([client]))
                self.model.evict(client)
                self.in_memory.remove(client)

    def pause(self, after: int) -> None:
        self.now += after
        if self.paused_at is None:
            self.pod.worker.pause_gaps(self.now)
            self.paused_at = self.now
        else:
            self.pod.worker.resume_gaps(self.now)
            self.paused_ns += self.now - self.paused_at
            self.paused_at = None

    # --- what the frontier does

    def commit(self, count: int, refused: int) -> None:
        committed = int(self.pod.arrays.control["committed"][0])
        end = min(committed + count, self.start + len(self.written))
        if committed <= committed + refused < end:
            self.pod.refusals[committed + refused] = 0x13
        self.pod.commit(end)
        for entry in self.written[committed - self.start : end - self.start]:
            if entry.slot:
                self.open_slots[entry.slot.broker].remove(entry.slot.index)

    def complete(self) -> None:
        self.pod.complete()

    # --- what must be

    def compare(self) -> None:
        first = self.pod.position
        entries = self.pod.entries()
        assert first + len(entries) == self.start + len(self.written)
        for number, entry in enumerate(entries, first):
            self.compare_entry(entry, self.written[number - self.start], self.pod.shared.notes[number % 128])
        assert self.pod.worker.held == len(self.model.holding)
        assert self.pod.worker.waiting == len(self.model.ready)

    def compare_entry(self, entry: np.void, expected: Entry, note: np.void) -> None:
        slot = expected.slot
        assert entry["flags"] == expected.flags
        assert entry["term"] == TERM % 65_536
        assert entry["broker"] == (slot.broker if slot else 0xFFFF)
        assert entry["pbr_index"] == (slot.index if slot else 0)
        assert entry["topic_id"] == (slot.topic if slot else expected.topic)
        assert entry["block_crc"] == (slot.crc if slot else 0)
        assert (entry["client_id"], entry["client_seq"]) == (
            (slot.client, slot.seq) if slot else (expected.client, expected.seq)
        )
        if slot and expected.flags & NOP:
            content = (0, expected.status | expected.reason << 8, UNKNOWN)
            if expected.status == DUPLICATE:
                content = (*content[:2], expected.fate.position if expected.fate else UNKNOWN)
                assert tuple(note) == (expected.numbers if expected.fate else (0, 0))
        elif slot:
            content = (200 + slot.index, 3, (1 << 40) + 64 * slot.index)
        else:
            content = (0, expected.count, 0)
        assert (entry["size"], entry["record_count"], entry["blog_offset"]) == content


def arrival(random: Random, both: Both) -> None:
    """A batch with a client seq near the next or far from it, sometimes of an older session or with another block."""
    both.publish(
        random.randrange(2),
        random.choice((*CLIENTS * 6, STRANGER, SYNTHETIC | 4)),
        random.choice((-400, -256, 254, 255, 256, 600)) if random.random() < 0.05 else random.randint(-4, 6),
        7 if random.random() < 0.9 else 8,
        random.choice((0, STRONG, STRONG, STRONG | 4)),
        int(random.random() < 0.05),
    )


def burst(random: Random, both: Both) -> None:
    """Batches of one client that are due, in another order, over both brokers."""
    client = random.choice(CLIENTS)
    turns = list(range(random.choice((2, 8, 25))))
    if random.random() < 0.3:
        del turns[0]
    for _ in range(random.randrange(6)):
        at = random.randrange(len(turns))
        turns[at], turns[at - 1] = turns[at - 1], turns[at]
    for ahead in turns:
        both.publish(random.randrange(2), client, ahead, 7, STRONG, 0)


def act(random: Random, both: Both) -> None:
    """One thing that may happen."""
    match random.choices(range(11), (20, 10, 30, 20, 8, 2, 1, 1, 1, 1, 2))[0]:
        case 0:
            arrival(random, both)
        case 1:
            burst(random, both)
        case 2:
            both.step(random.choice((0, 1, 1, 20, 20, 60, 150)))
        case 3:
            both.commit(random.choice((1, 5, 60, 500)), random.choice((-1, -1, -1, 0, 3)))
        case 4:
            both.complete()
        case 5:
            both.open_session(random.choice(CLIENTS), random.choice((0, 0, 100)))
        case 6:
            both.evict()
        case 7:
            both.pause(random.choice((10, 500)))
        case 8:
            both.claim_only(random.randrange(2))
        case 9:
            broker = random.randrange(2)
            below = both.cursors[broker] - random.randrange(40)
            both.need_bytes(broker, max(0, below), random.random() < 0.5)
        case _:
            both.publish_nop(random.randrange(2))
            both.publish_others(random.randrange(2), random.randrange(30))


@pytest.mark.parametrize("seed", range(16))
def test_every_entry_equals_that_of_the_model(seed: int) -> None:
    """INV-ORDER-ONCE."""
    random = Random(seed)
    both = Both(start=random.choice((0, 1000)), pages=random.choice((1, 2, 4)), hold_max=random.choice((3, 10, 60)))
    for _ in range(1_500):
        act(random, both)
    # Everything that a random run can meet is met by each of them, or the run has said little.
    found = Counter((entry.flags, entry.status, entry.reason) for entry in both.written)
    assert both.pod.worker.skipped > 0
    assert min(found[NOP, RETRY, 0], found[NOP, DUPLICATE, 0], found[STRONG, 0, 0], found[0, 0, 0]) > 0
    assert min(found[NOP, REJECTED, reason] for reason in (FENCED, OUTSIDE, SKIPPED, MISMATCH)) > 0
    assert len(both.written) > 2 * both.pod.goi_entries
