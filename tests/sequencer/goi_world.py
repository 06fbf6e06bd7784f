"""A pod without workers: brokers with real rings, a frontier, and methods that write entries as workers would.

A model in plain Python computes the expected result of every position. It records each entry when it is written and
commits on its own; `Model.commit` is everything that the frontier promises about numbers.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field, replace

import numpy as np

from seawall.broker.ring import BrokerRing, TopicDefaults
from seawall.core.clock import HybridClock
from seawall.core.types import ClientId, ClientSeq, Position, Seq, TimestampNs, TopicId
from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.layout import FabricLayout, FabricSizes
from seawall.kernels.ordering.goi_frontier import chunk_of
from seawall.kernels.runtime.atomics import store_release_u64
from seawall.kernels.runtime.rings import PRODUCED
from seawall.limits import KIB
from seawall.sequencer import shared as private
from seawall.sequencer.frontier import CommitFrontier, TopicNumbers
from seawall.sequencer.goi_frontier import FrontierStop, GoiFrontier
from seawall.sequencer.shared import SequencerShared
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import AckLevel, AckStatus, ErrorCode

GOI = 128
CHUNK = chunk_of(GOI)
SLOTS = 64
BROKERS = 3
WALL_NS = 1_700_000_000_000_000_000
STEP = 64
TERM = 3
UNKNOWN = 2**64 - 1

PLAIN, STRONG, DELETED, FULL, ABSENT = 1, 2, 3, 4, 9


@dataclass(frozen=True)
class Slot:
    """One published batch."""

    broker: int
    index: int
    topic: int
    count: int
    raw: int
    size: int
    crc: int
    client: int
    seq: int
    offset: int
    strong: bool


@dataclass(frozen=True)
class Item:
    """One entry, as a worker writes it."""

    kind: int = 0  #: a flag of the records, 0 for a batch
    slot: Slot | None = None
    status: int = 0
    reason: int = 0
    original: int = UNKNOWN
    note: tuple[int, int] = (0, 0)
    client: int = 0
    seq: int = 0
    lost: int = 0
    topic: int = 0
    makes: TopicNumbers | None = None


@dataclass
class Stamp:
    """The result of a position."""

    topic: int
    status: int = 0
    reason: int = 0
    base_seq: int = 0
    base_offset: int = 0
    timestamp_ns: int = 0
    original: int = UNKNOWN


@dataclass
class Model:
    """Numbers of topics, and the stamp of every committed position."""

    committed: int
    topics: dict[int, TopicNumbers]
    clock: HybridClock = field(default_factory=HybridClock)
    items: dict[int, Item] = field(default_factory=dict)
    stamps: dict[int, Stamp] = field(default_factory=dict)

    def commit(self, end: int, wall_ns: int) -> None:
        for position in range(self.committed, end):
            self.stamps[position] = self._stamp(position, self.items[position], wall_ns)
        self.committed = max(self.committed, end)

    def _stamp(self, position: int, item: Item, wall_ns: int) -> Stamp:
        if item.kind == records.FLAG_CONTROL:
            if item.makes:
                self.topics[item.makes.topic_id] = item.makes
            return Stamp(item.topic, timestamp_ns=self.clock.now(wall_ns))
        if item.slot is None:
            return Stamp(item.topic)
        if item.kind == records.FLAG_NOP:
            return self._repeated(position, item, item.slot)
        reason = self._refusal(item.slot)
        if reason:
            return Stamp(item.slot.topic, int(AckStatus.REJECTED), reason)
        topic = self.topics[item.slot.topic]
        timestamp = TimestampNs(max(self.clock.now(wall_ns), topic.last_timestamp_ns))
        self.topics[item.slot.topic] = replace(
            topic,
            next_seq=topic.next_seq + item.slot.count,
            next_offset=topic.next_offset + item.slot.raw,
            last_timestamp_ns=timestamp,
            record_total=topic.record_total + item.slot.count,
            byte_total=topic.byte_total + item.slot.size,
        )
        return Stamp(item.slot.topic, 0, 0, topic.next_seq, topic.next_offset, timestamp)

    def _refusal(self, slot: Slot) -> int:
        topic = self.topics.get(slot.topic)
        if topic is None:
            return int(ErrorCode.TOPIC_NOT_FOUND)
        if topic.is_deleted:
            return int(ErrorCode.TOPIC_DELETED)
        if topic.is_strong != slot.strong:
            return int(ErrorCode.NOT_ALLOWED_BY_TOPIC)
        return int(ErrorCode.READ_ONLY) if topic.is_full else 0

    def _repeated(self, position: int, item: Item, slot: Slot) -> Stamp:
        if item.status != AckStatus.DUPLICATE:
            return Stamp(slot.topic, item.status, item.reason)
        if item.note[0]:
            return Stamp(slot.topic, item.status, 0, item.note[0], 0, item.note[1], item.original)
        original = self.stamps.get(item.original)
        if original is None or position - item.original > GOI - CHUNK:
            return Stamp(slot.topic, item.status, original=item.original)
        if original.status != AckStatus.OK:
            return Stamp(slot.topic, int(AckStatus.REJECTED), int(ErrorCode.CLIENT_SEQ_SKIPPED))
        return Stamp(slot.topic, item.status, 0, original.base_seq, 0, original.timestamp_ns, item.original)

    def waits(self, position: int) -> bool:
        """Whether the entry at the next position needs a higher ceiling."""
        item = self.items[position]
        if item.slot is None or item.kind or self._refusal(item.slot):
            return False
        topic = self.topics[item.slot.topic]
        return topic.next_seq + item.slot.count > topic.ceiling


def topics() -> list[TopicNumbers]:
    """A topic of each kind; the first ones run out of seqs from time to time."""
    return [
        TopicNumbers(TopicId(PLAIN), ceiling=Seq(STEP)),
        TopicNumbers(TopicId(STRONG), next_seq=Seq(10), ceiling=Seq(STEP), is_strong=True),
        TopicNumbers(TopicId(DELETED), ceiling=Seq(STEP), is_deleted=True),
        TopicNumbers(TopicId(FULL), ceiling=Seq(STEP), is_full=True),
    ]


class World:
    """The pod; positions begin at `start`."""

    def __init__(self, *, start: int = 0, workers: int = 2) -> None:
        sizes = FabricSizes(
            brokers=BROKERS, goi_entries=GOI, pbr_entries=SLOTS, checkpoint_size=64 * KIB, blog_size=64 * KIB
        )
        layout = FabricLayout.of(sizes)
        self.arrays = FabricArrays(memoryview(mmap.mmap(-1, layout.size)), layout)
        control = self.arrays.control
        control["term"], control["committed"], control["durable"] = TERM, start, start
        self.rings = [BrokerRing(self.arrays, broker) for broker in range(BROKERS)]
        self.shared = SequencerShared.make(GOI, workers=workers, start=start)
        self.model = Model(start, {each.topic_id: each for each in topics()})
        self.commit_frontier = CommitFrontier(
            next_position=Position(start), topics=topics(), ceiling_step=STEP, topics_max=16, rows_max=1
        )
        self.controls: list[int] = []
        self.wall_ns = WALL_NS
        self.now_ns = 0
        self.term = TERM
        self.slots: dict[tuple[int, int], Slot] = {}
        self.frontier = self.make_frontier(start)
        self.frontier.write_checkpoint(np.zeros(0, np.uint8))

    def make_frontier(self, start: int, limit: int | None = None) -> GoiFrontier:
        return GoiFrontier(
            *(self.arrays, self.shared, self.commit_frontier),
            on_control=self.on_control,
            term_start=Position(start),
            limit=None if limit is None else Position(limit),
            reconcile_after_ns=1_000,
            lease_ns=500,
        )

    def on_control(self, position: Position) -> None:
        assert int(self.arrays.control["committed"][0]) == position
        self.controls.append(position)
        self.commit_frontier.number_control(self.wall_ns)

    # --- brokers ------------------------------------------------------------------------------------------------

    def publish(
        self, broker: int, topic: int, count: int = 1, *, client: int = 1 << 63, seq: int = 1, text: int = 20
    ) -> Slot | None:
        """Publish one batch to a broker's ring; None if there is no space."""
        block = bytes([1, *text.to_bytes(4, "little"), *bytes([seq % 251]) * text]) * count
        header = batch_header(
            block,
            topic_id=TopicId(topic),
            client_id=ClientId(client),
            client_seq=ClientSeq(seq),
            session_epoch=1,
            record_count=count,
            timestamp_ns=TimestampNs(0),
        )
        order = 5 if topic == STRONG else 2
        data = np.frombuffer(encode_batch(header, block), np.uint8)
        done = self.rings[broker].publish(data, 7, TopicDefaults(order, AckLevel.ORDERED))
        if done.count == 0:
            return None
        entry = self.arrays.pbr[broker][done.first % SLOTS]
        slot = Slot(
            *(broker, done.first, topic, count, len(block), data.size, int(entry["block_crc"])),
            *(client, seq, int(entry["blog_offset"]), order == 5),
        )
        self.slots[broker, done.first] = slot
        return slot

    # --- workers -------------------------------------------------------------------------------------------------

    def reserve(self, count: int) -> int | None:
        """The first of `count` positions; None while they would lap what is needed."""
        counters = self.shared.counters
        first = int(counters[private.RESERVED])
        if first + count - int(counters[private.FLOOR]) > GOI:
            return None
        counters[private.RESERVED] = first + count
        return first

    def write(self, position: int, item: Item, *, is_whole: bool = True) -> None:
        """One entry; without its token if it is not whole."""
        entry = self.arrays.goi[position % GOI]
        slot = item.slot
        content = np.zeros(1, records.GOI_ENTRY)[0]
        content["term"] = self.term & 0xFFFF
        if slot:
            for name, value in (
                ("topic_id", slot.topic),
                ("block_crc", slot.crc),
                ("broker", slot.broker),
                ("pbr_index", slot.index & 0xFFFFFFFF),
                ("client_id", slot.client),
                ("client_seq", slot.seq),
                ("blog_offset", item.original if item.kind else slot.offset),
                ("size", 0 if item.kind else slot.size),
                ("record_count", item.status | item.reason << 8 if item.kind else slot.count),
                ("flags", item.kind or (records.FLAG_STRONG_ORDER if slot.strong else 0)),
            ):
                content[name] = value
        else:
            content["broker"], content["flags"] = records.NO_BROKER, item.kind
            content["client_id"], content["client_seq"], content["record_count"] = item.client, item.seq, item.lost
            content["topic_id"] = item.topic
        note = self.shared.notes[position % GOI]
        note["base_seq"], note["timestamp_ns"] = item.note
        content["token"] = entry["token"]
        self.arrays.goi[position % GOI] = content
        if is_whole:
            entry["token"] = position + 1
        self.model.items[position] = item

    def report(self, worker: int, first: int, end: int) -> None:
        """Report a finished range to the frontier."""
        ring = self.shared.ranges[worker]
        at = int(ring.counters[PRODUCED]) % ring.capacity * 2
        ring.words[at : at + 2] = first, end
        ring.counters[PRODUCED] += 1

    def order(self, *items: Item, worker: int = 0) -> int:
        """Write entries and report them at once; the first position."""
        first = self.reserve(len(items))
        assert first is not None
        for position, item in enumerate(items, first):
            self.write(position, item)
        self.report(worker, first, first + len(items))
        return first

    # --- the frontier, and its expected results -------------------------------------------------------------------

    def step(self) -> FrontierStop:
        """One step of the frontier, then of the model."""
        self.now_ns += 1
        stop = self.frontier.step(self.now_ns, self.wall_ns)
        self.model.commit(self.frontier.committed, self.wall_ns)
        return stop

    def settle(self) -> None:
        """Steps, with higher ceilings whenever they are needed."""
        while self.step() == FrontierStop.NEEDS_CEILING:
            assert self.model.waits(self.frontier.committed)
            self.raise_ceilings()

    def raise_ceilings(self) -> None:
        for need in self.commit_frontier.needs_ceiling():
            self.commit_frontier.set_ceiling(need.topic_id, need.wanted)
            known = self.model.topics[need.topic_id]
            self.model.topics[need.topic_id] = replace(known, ceiling=need.wanted)

    def replicate(self, replica: int, durable: int) -> None:
        store_release_u64(self.arrays.replica_words[replica], records.REPLICA_DURABLE, durable)

    def check(self) -> None:
        """Everything that the fabric says equals the model."""
        model, committed = self.model, int(self.arrays.control["committed"][0])
        assert committed == model.committed == self.commit_frontier.next_position
        assert {each.topic_id: each for each in self.commit_frontier.snapshot().topics} == model.topics
        assert self.commit_frontier.last_timestamp_ns == model.clock.last_ns
        # An interrupted run may have overwritten entries one lap below the chunk that it was in.
        first = max(min(model.stamps, default=committed), committed - GOI + CHUNK)
        for position in range(first, committed):
            stamp, side = model.stamps[position], self.arrays.side[position % GOI]
            expected = (
                stamp.topic,
                stamp.status,
                0,
                stamp.reason,
                stamp.base_seq,
                stamp.base_offset,
                stamp.timestamp_ns,
            )
            assert side.item() == expected, position
        self.check_results()

    def check_results(self) -> None:
        completed = self.arrays.completion_vector["completed"].tolist()
        for position, item in self.model.items.items():
            slot = item.slot
            if slot is None or slot.index < completed[slot.broker]:
                continue
            result = self.arrays.results[slot.broker][slot.index % SLOTS]
            is_there = int(result["token"]) == slot.index + 1
            assert is_there == (position < self.model.committed), (position, slot)
            if is_there:
                stamp = self.model.stamps[position]
                assert (int(result["position"]), int(result["base_seq"])) == (position, stamp.base_seq)
                assert (int(result["status"]), int(result["reason"])) == (stamp.status, stamp.reason)
                assert int(result["timestamp_ns"]) == stamp.timestamp_ns
                assert int(result["original_position"]) == stamp.original
