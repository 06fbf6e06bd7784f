"""A store with routers under random changes, and a plain model of what every topic must hold.

    source ── all ──▶ all ── chain ──▶ chain
       └──── some ──▶ some                       a filter on tags, and copies without a node

The model copies one record after the other, when the store is told to make all steps that are due.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from retention_model import append_batches, batch_of, live_seqs, opened, read_live

from seawall.core.routers import RouterSettings
from seawall.core.types import Seq
from seawall.engine.store.store import Store
from seawall.errors import NotFoundError
from seawall.storage.control.deletes import MatchKind, TagMatch
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import TopicConfig
from seawall.wire.format.codes import Codec
from seawall.wire.format.envelope import Envelope
from seawall.wire.format.records import Record, RecordType

SOURCE = "source"
TAGS = (None, b"a", b"ab", b"b")
NODES = (None, b"n", b"m")


@dataclass(frozen=True)
class Written:
    """A record of the model."""

    number: int
    tag: bytes | None
    node: bytes | None
    size: int

    def record(self) -> Record:
        value = b"%06d" % self.number + bytes(self.size)
        if self.tag is None and self.node is None and not self.number % 3:
            return Record(RecordType.RAW, value)
        return Envelope(value, tag=self.tag, node=self.node).to_record()


@dataclass
class TopicModel:
    """What a topic must hold."""

    live: dict[int, tuple[Written, Record]] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    head: int = 0
    evict_floor: int = 1

    def append(self, written: Written, record: Record) -> None:
        self.head += 1
        self.live[self.head] = written, record

    def lose(self, count: int) -> None:
        self.lost |= {*range(self.head + 1, self.head + 1 + count)}
        self.head += count

    def evict_to(self, kept: int) -> None:
        for seq in sorted(self.live)[: max(0, len(self.live) - kept)]:
            del self.live[seq]
            self.evict_floor = seq + 1


@dataclass
class RouterModel:
    """A router: its topics, what it copies, and how far it is."""

    source: str
    dest: str
    settings: RouterSettings
    next_seq: int
    forwarded: int = 0

    def copy(self, written: Written, record: Record) -> tuple[Written, Record] | None:
        settings, tag = self.settings, written.tag
        if settings.tag is not None and tag != settings.tag.encode():
            return None
        if settings.tag_prefix is not None and (tag is None or not tag.startswith(settings.tag_prefix.encode())):
            return None
        if settings.node is not None and written.node != settings.node.encode():
            return None
        if not settings.preserve_node and written.node is not None:
            written = replace(written, node=None)
            record = Envelope(b"%06d" % written.number + bytes(written.size), tag=written.tag).to_record()
        return written, record


ROUTERS = {
    "all": RouterModel(SOURCE, "all", RouterSettings(), 1),
    "some": RouterModel(SOURCE, "some", RouterSettings(tag_prefix="a", preserve_node=False), 1),
    "chain": RouterModel("all", "chain", RouterSettings(), 1),
}


class RoutedStore:
    """A store and its model, changed together and compared."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = SimDisk(seed=seed)
        self.clock = SimClock(wall_ns=1_700_000_000_000_000_000)
        self.store: Store = opened(self.disk, self.clock)
        self.written = 0
        self.topics = {name: TopicModel() for name in (SOURCE, "all", "some", "chain")}
        self.routers: dict[str, RouterModel] = {}
        config = replace(TopicConfig(), segment_max_records=9)
        self.store.create_topics([(name, config) for name in self.topics])

    # --- changes -----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One random change."""
        chance = self.chance
        change = chance.choice(
            (
                *[self.append] * 6,
                *[self.drain] * 3,
                *(self.step_once, self.put, self.put, self.remove, self.delete, self.evict, self.checkpoint),
            )
        )
        change()

    def append(self) -> None:
        groups = [self._group() for _ in range(self.chance.randint(1, 3))]
        name = SOURCE if self.chance.random() < 0.9 else "all"
        topic_id = self.store.catalog.named(name).topic_id
        codec = self.chance.choice((Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD))
        self.stage(name, groups)
        append_batches(
            self.store, *(batch_of(topic_id, [each.record() for each in group], codec=codec) for group in groups)
        )
        for written in [each for group in groups for each in group]:
            self.topics[name].append(written, written.record())

    def stage(self, name: str, groups: list[list[Written]]) -> None:
        """Called before an append; tests of crashes note what may be stored."""

    def _group(self) -> list[Written]:
        size = self.chance.choice((0, 0, 30, 3_000, 66_000))
        count = 1 if size > 3_000 else self.chance.randint(1, 4)
        first, self.written = self.written + 1, self.written + count
        chance = self.chance
        return [
            Written(number, chance.choice(TAGS), chance.choice(NODES), size) for number in range(first, first + count)
        ]

    def drain(self) -> None:
        """Make every step that is due."""
        for name in self.store.routing.upstream(None):
            while self.store.routing.due(name) is not None:
                self.store.routing.step(name)
        for name in ROUTERS:
            if name in self.routers:
                self._copy(self.routers[name])

    def step_once(self) -> None:
        """One step of one router; it may be all that is due. Then all others, so that the model knows what happened."""
        if self.routers:
            self.store.routing.step(self.chance.choice(sorted(self.routers)))
        self.drain()

    def _copy(self, router: RouterModel) -> None:
        source, dest = self.topics[router.source], self.topics[router.dest]
        while router.next_seq <= source.head:
            seq = router.next_seq
            router.next_seq += 1
            if seq < source.evict_floor or seq in source.lost:
                dest.lose(1)
            elif seq in source.live:
                copy = router.copy(*source.live[seq])
                if copy is not None:
                    dest.append(*copy)
                    router.forwarded += 1

    def put(self) -> None:
        name = self.chance.choice(sorted(ROUTERS))
        model = self.routers.get(name)
        settings = ROUTERS[name].settings
        if model is not None:
            settings = replace(settings, tag_prefix=self.chance.choice((None, "a", "b")))
        self.store.routing.put(name, ROUTERS[name].source, ROUTERS[name].dest, settings, create_dest=True)
        if model is None:
            model = replace(ROUTERS[name], next_seq=self.topics[ROUTERS[name].source].head + 1)
        self.routers[name] = replace(model, settings=settings)

    def remove(self) -> None:
        if self.routers and self.chance.random() < 0.5:
            name = self.chance.choice(sorted(self.routers))
            self.store.routing.delete(name)
            del self.routers[name]

    def delete(self) -> None:
        name = self.chance.choice((SOURCE, "all"))
        model = self.topics[name]
        tag = self.chance.choice(("a", "b"))
        if self.chance.random() < 0.5:
            before = model.evict_floor + self.chance.randint(0, 20)
            self.store.delete_records(name, before_seq=before)
            doomed = [seq for seq in model.live if seq < before]
        else:
            self.store.delete_records(name, match=TagMatch(MatchKind.PREFIX, tag))
            doomed = [seq for seq, (each, _) in model.live.items() if (each.tag or b"").startswith(tag.encode())]
        for seq in doomed:
            del model.live[seq]

    def evict(self) -> None:
        kept = self.chance.randint(1, 12)
        self.store.configure_topic(SOURCE, {"cap_records": kept})
        self.store.maintenance.retain()
        self.store.configure_topic(SOURCE, {"cap_records": 0})
        self.topics[SOURCE].evict_to(kept)

    def checkpoint(self) -> None:
        self.store.maintenance.checkpoint()

    def reopen(self, *, crash: bool) -> None:
        """Close or crash between two changes, and open again."""
        if crash:
            self.disk.crash(keep=self.chance.choice(("none", "all", "random")))
        else:
            self.store.close()
        self.store = opened(self.disk, self.clock)
        for name, model in self.topics.items():
            # Skipped numbers are a loss, and never less than the records that were acknowledged.
            topic = self.store.catalog.named(name)
            assert topic.head_seq >= model.head
            model.lose(topic.head_seq - model.head)

    # --- comparing ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for name, model in self.topics.items():
            topic = self.store.catalog.named(name)
            topic.check_invariants()
            assert (topic.head_seq, topic.evict_floor) == (model.head, model.evict_floor), name
            assert live_seqs(topic) == sorted(model.live), name
            records, gaps = read_live(self.store, name)
            assert records == {seq: record for seq, (_, record) in model.live.items()}, name
            lost = {seq for gap in gaps for seq in range(gap.first_seq, gap.last_seq + 1)}
            assert lost == model.lost | {*range(1, model.evict_floor)}, name
        infos = {each.name: each for each in self.store.routing.infos()}
        assert {*infos} == {*self.routers}
        for name, router in self.routers.items():
            info = infos[name]
            assert (info.next_seq, info.forwarded) == (router.next_seq, router.forwarded), name
            assert (info.source, info.dest, info.settings) == (router.source, router.dest, router.settings)
            assert info.blocked is None


def values(store: Store, name: str) -> list[int]:
    """The numbers of the live records of a topic, in order."""
    try:
        records, _ = read_live(store, name)
    except NotFoundError:
        return []
    return [number_of(records[seq]) for seq in sorted(records)]


def number_of(record: Record) -> int:
    """The number that a record was written with."""
    data = record.value
    if record.record_type == RecordType.ENVELOPE:
        flags = int.from_bytes(data[:2], "little")
        at = 2
        for bit in (0x04, 0x08):
            at += 4 + int.from_bytes(data[at : at + 4], "little") if flags & bit else 0
        data = data[at:]
    return int(data[:6])


__all__ = ["ROUTERS", "SOURCE", "RoutedStore", "Seq", "Written", "number_of", "values"]
