"""The history of a log as its clients saw it, and the check of a store against it.

The history spans crashes: every (seq, value) that an ack or a read has returned, which records must survive which
crash, and which changes were only tried. `check` requires:

- acknowledged records exist, identical: `fsync` after any crash, `disk` after a kill, `memory` after a kill too, once
  anything was written after them; `ephemeral` ones do not survive any crash;
- every record was written by a client, exists once, and the records of a topic are in the order of their writing;
- a record that was neither acknowledged nor returned by an open never reappears later;
- seqs are dense: each one is a record, part of an explicit gap, or deleted; without damage no gap reports corruption;
- deleted records never reappear, and every missing record was deleted or evicted;
- caps and ages evict only what they may, the oldest first, and report a gap;
- no seq ever belongs to two records, at any time;
- next seqs and floors never decrease;
- live records and bytes are counted correctly;
- topics, their configuration and cursors are those of the last ack, or of a change that was tried since then.

`Written` has the sessions and keys, which distinguish two attempts of one publisher.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from enum import IntEnum

from seawall.core.types import Seq, TopicId
from seawall.engine.read.reading import StoredSkip
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch
from seawall.storage.control.deletes import MatchKind, TagMatch
from seawall.topics.config import Discard, Durability, TopicConfig
from seawall.topics.gaps import Gap
from seawall.topics.state import TopicState
from seawall.wire.format.codes import GapReason
from seawall.wire.format.envelope import Envelope, parse_envelope
from seawall.wire.format.fields import write_json
from seawall.wire.format.records import Record, RecordType, decode_block

NS_PER_MS = 1_000_000
EVICTIONS = (GapReason.CAP, GapReason.TTL)


class BrokenPromiseError(AssertionError):
    """The log has broken a guarantee."""


def require(condition: bool, complaint: str) -> None:
    if not condition:
        raise BrokenPromiseError(complaint)


class Level(IntEnum):
    """What has become of something acked: in memory only, in the page cache, on the disk."""

    STAGED = 0
    WRITTEN = 1
    DURABLE = 2


@dataclass(frozen=True, slots=True)
class Written:
    """A record that a client tried to write; its number is unique and rises with time."""

    number: int
    zeros: int
    tag: bytes | None = None

    def record(self) -> Record:
        """The record itself: its number, zeros, and an envelope where there is a tag."""
        data = b"%08d" % self.number + bytes(self.zeros)
        return Record(1, data) if self.tag is None else Envelope(data=data, tag=self.tag).to_record()


@dataclass(frozen=True, slots=True)
class Live:
    """A record as it was shown."""

    value: Written
    size: int
    timestamp_ns: int
    level: Level


#: A topic as a name may show it: its id and its configuration. None where there is none.
Shown = tuple[int, bytes] | None


@dataclass
class TopicFacts:
    """One life of a topic."""

    #: Records that may exist, by number; and the numbers whose seq is unknown.
    values: dict[int, Written] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)
    #: Seq → number, over all crashes.
    seen: dict[int, int] = field(default_factory=dict)
    live: dict[int, Live] = field(default_factory=dict)
    evicted: dict[int, Level] = field(default_factory=dict)
    #: Seqs of deletes that were tried, and of those that took effect.
    deletable: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    #: Every configuration that may have been in force since the last check.
    configs: list[TopicConfig] = field(default_factory=list)
    next_seq: int = 1
    floors: list[int] = field(default_factory=lambda: [1, 1, 1])
    #: Whether its records are in memory alone.
    is_volatile: bool = False

    def copy(self) -> TopicFacts:
        return TopicFacts(
            *(dict(self.values), set(self.pending), dict(self.seen), dict(self.live), dict(self.evicted)),
            *(set(self.deletable), set(self.dead), list(self.configs), self.next_seq, list(self.floors)),
            self.is_volatile,
        )

    def may_be_evicted(self, seq: int, now_ns: int) -> bool:
        """Whether a cap or an age may have taken a live record."""
        newer = [live.size for other, live in self.live.items() if other > seq]
        coming = [self.values[number].record().size for number in self.pending]
        for config in self.configs:
            if config.ttl_ms and self.live[seq].timestamp_ns < now_ns - config.ttl_ms * NS_PER_MS:
                return True
            if config.discard is Discard.OLD:
                records, size = (_kept(cap, config) for cap in (config.cap_records, config.cap_bytes))
                if records and len(newer) + len(coming) >= records:
                    return True
                if size and sum(newer) + sum(coming) + self.live[seq].size > size:
                    return True
        return False


@dataclass
class History:
    """Everything that is known of one data directory."""

    topics: dict[int, TopicFacts] = field(default_factory=dict)
    names: dict[str, set[Shown]] = field(default_factory=dict)
    cursors: dict[tuple[str, int], set[int | None]] = field(default_factory=dict)
    writes: int = 0
    now_ns: int = 0
    #: What the ends since the last opening have left for certain.
    kept: Level = Level.WRITTEN

    def copy(self) -> History:
        return History(
            {topic_id: facts.copy() for topic_id, facts in self.topics.items()},
            {name: set(shown) for name, shown in self.names.items()},
            {key: set(seqs) for key, seqs in self.cursors.items()},
            *(self.writes, self.now_ns, self.kept),
        )

    def topic(self, topic_id: int) -> TopicFacts:
        return self.topics.setdefault(topic_id, TopicFacts())

    # --- attempts and acks ----------------------------------------------------------------------------------------

    def write(self, topic_id: int, zeros: int, tag: bytes | None) -> Written:
        """A value that was never written before."""
        self.writes += 1
        value = Written(self.writes, zeros, tag)
        facts = self.topic(topic_id)
        facts.values[value.number] = value
        facts.pending.add(value.number)
        return value

    def refused(self, topic_id: int, value: Written) -> None:
        """It was not even tried."""
        facts = self.topic(topic_id)
        del facts.values[value.number]
        facts.pending.discard(value.number)

    def acked(self, topic_id: int, seq: int, value: Written, timestamp_ns: int, level: Level) -> None:
        facts = self.topic(topic_id)
        self._saw(facts, topic_id, seq, value.number)
        facts.pending.discard(value.number)
        level = Level.STAGED if facts.is_volatile else level
        facts.live[seq] = Live(value, value.record().size, timestamp_ns, level)

    def reached(self, level: Level) -> None:
        """Everything acked so far has reached this level of durability."""
        for facts in self.topics.values():
            if facts.is_volatile:
                continue
            facts.live = {
                seq: live if live.level >= level else replace(live, level=level) for seq, live in facts.live.items()
            }
            facts.evicted = {seq: max(before, level) for seq, before in facts.evicted.items()}
            facts.floors[level] = max(facts.floors[: level + 1])

    def power_lost(self) -> None:
        self.kept = Level.DURABLE

    def meant(self, topic_id: int, next_seq: int, before_seq: int | None, match: TagMatch | None) -> set[int]:
        """The known seqs that a delete covers."""
        below = next_seq if before_seq is None else min(before_seq, next_seq)
        if match is None:
            return {*range(1, below)}
        live = self.topic(topic_id).live
        return {seq for seq in live if seq < below and _matches(match, live[seq].value.tag)}

    def try_delete(self, topic_id: int, seqs: set[int]) -> None:
        self.topic(topic_id).deletable |= seqs

    def deleted(self, topic_id: int, seqs: set[int]) -> int:
        """A delete was acked; how many live records it must have removed."""
        facts = self.topic(topic_id)
        gone = facts.live.keys() & seqs
        facts.dead |= seqs
        for seq in gone:
            del facts.live[seq]
        return len(gone)

    def observe(self, topic: TopicState, level: Level) -> None:
        """After a change: note its evictions and their level of durability."""
        facts = self.topic(topic.topic_id)
        gone = [seq for seq in facts.live if seq < topic.evict_floor]
        for seq in gone:
            require(facts.may_be_evicted(seq, self.now_ns), f"{topic.name}: seq {seq} was evicted without need")
        if gone and not facts.is_volatile:
            # An eviction is durable in every class: an evicted record does not reappear.
            level = Level.DURABLE
        for seq in gone:
            del facts.live[seq]
            facts.evicted[seq] = level
        facts.floors[level] = max(facts.floors[level], topic.floor)

    def _saw(self, facts: TopicFacts, topic_id: int, seq: int, number: int) -> None:
        before = facts.seen.setdefault(seq, number)
        require(before == number, f"topic {topic_id}: seq {seq} was {before} and is {number}")
        facts.next_seq = max(facts.next_seq, seq + 1)

    # --- names and cursors: allowed states ------------------------------------------------------------------------

    def try_name(self, name: str, shown: Shown, config: TopicConfig | None = None) -> None:
        self.names.setdefault(name, {None}).add(shown)
        if shown is not None and config is not None:
            self.topic(shown[0]).configs.append(config)
            self.topic(shown[0]).is_volatile = config.durability is Durability.EPHEMERAL

    def set_name(self, name: str, shown: Shown) -> None:
        self.names[name] = {shown}

    def try_cursor(self, owner: str, topic_id: int, next_seq: int) -> None:
        self.cursors.setdefault((owner, topic_id), {None}).add(next_seq)

    def set_cursor(self, owner: str, topic_id: int, next_seq: int) -> None:
        self.cursors[owner, topic_id] = {next_seq}

    # --- the oracle ------------------------------------------------------------------------------------------------

    def check(self, store: Store, chance: random.Random, *, whole: bool = True) -> None:
        """Read everything and compare; what a read returns is part of the history from now on.

        `whole` means that the store was just opened; later, some records may be neither durable nor final.
        """
        for name in sorted({*self.names, *store.catalog.names()}):
            shown = shown_by(store, name)
            allowed = self.names.get(name, {None})
            require(shown in allowed, f"{name} is {shown}, allowed is {sorted(map(str, allowed))}")
            if whole:
                self.set_name(name, shown)
            if shown is not None:
                self._check_topic(store, store.catalog.named(name), chance, whole=whole)
        for (owner, topic_id), allowed_seqs in self.cursors.items():
            if store.catalog.find(TopicId(topic_id)) is not None:
                cursor = store.catalog.cursor(owner, TopicId(topic_id))
                next_seq = None if cursor is None else int(cursor.next_seq)
                require(next_seq in allowed_seqs, f"cursor {owner} is {next_seq}, allowed is {allowed_seqs}")
                if whole:
                    self.cursors[owner, topic_id] = {next_seq}
        if whole:
            self.kept = Level.WRITTEN

    def _check_topic(self, store: Store, topic: TopicState, chance: random.Random, *, whole: bool) -> None:
        facts, name = self.topic(topic.topic_id), topic.name
        kept = self.kept if whole else Level.STAGED
        seen = read_all(store, name, chance.choice((1, 5_000, 1 << 22)))
        found = self._check_records(facts, topic, seen, kept)
        for seq in facts.live.keys() - found.keys():
            live = facts.live[seq]
            if seq in seen.silent:
                require(seq in facts.deletable, f"{name}: seq {seq} went without a word: {live}")
            elif seq < topic.evict_floor:
                require(facts.may_be_evicted(seq, self.now_ns), f"{name}: seq {seq} was evicted without need: {live}")
            else:
                require(live.level < kept, f"{name}: seq {seq} was {live.level.name} and is lost: {live}")
        unasked = seen.silent - facts.deletable - facts.dead
        require(not unasked, f"{name}: seqs {sorted(unasked)[:9]} are neither there nor accounted for")
        for gap in seen.gaps:
            evicted = gap.reason in EVICTIONS and gap.last_seq < topic.evict_floor
            require(evicted or gap.reason is GapReason.CRASH, f"{name}: {gap} without any damage")
        require(topic.next_seq >= facts.next_seq, f"{name}: next seq {topic.next_seq}, but {facts.next_seq} was due")
        floor = max(facts.floors[kept:])
        require(topic.floor >= floor, f"{name}: floor went from {floor} to {topic.floor}")
        require(topic.live_records == len(found), f"{name}: {len(found)} records, counted {topic.live_records}")
        size = sum(live.size for live in found.values())
        require(topic.live_bytes == size, f"{name}: {size} bytes, counted {topic.live_bytes}")
        topic.check_invariants()
        if whole:
            # An open syncs what it returns; a record that it does not return and that was not acked is lost for good.
            facts.values = {live.value.number: live.value for live in found.values()}
            facts.live = found
            facts.dead |= seen.silent
            facts.floors = [topic.floor] * 3
            facts.configs = [topic.config]
            for known in (facts.pending, facts.evicted, facts.deletable):
                known.clear()

    def _check_records(self, facts: TopicFacts, topic: TopicState, seen: Seen, kept: Level) -> dict[int, Live]:
        """Whether each record that is shown may be; all of them, as facts."""
        found: dict[int, Live] = {}
        last = 0
        for seq, (record, timestamp_ns) in seen.records.items():
            about = f"{topic.name}: seq {seq}"
            number = number_of(record)
            self._saw(facts, topic.topic_id, seq, number)
            value = facts.values.get(number)
            require(value is not None and value.record() == record, f"{about} was never written so: {number}")
            require(seq not in facts.dead, f"{about} was deleted and is back")
            require(seq not in facts.evicted or facts.evicted[seq] < kept, f"{about} was evicted and is back")
            require(number > last, f"{about} holds {number}, out of order or twice: {last} is before it")
            last = number
            assert value is not None
            found[seq] = Live(value, record.size, timestamp_ns, Level.DURABLE)
        return found


def _kept(cap: int, config: TopicConfig) -> int:
    """What a cap leaves at the least: classes that do not sync anyway evict a 64th more than they must."""
    return cap if config.durability is Durability.FSYNC else cap - cap // 64


def _matches(match: TagMatch, tag: bytes | None) -> bool:
    text = match.text.encode()
    return tag is not None and (tag == text if match.kind is MatchKind.EQ else tag.startswith(text))


def number_of(record: Record) -> int:
    data = parse_envelope(record.value).data if record.record_type == RecordType.ENVELOPE else record.value
    return int(bytes(data[:8]))


def shown_by(store: Store, name: str) -> Shown:
    if name not in store.catalog.names():
        return None
    topic = store.catalog.named(name)
    return int(topic.topic_id), write_json(topic.config.to_json())


@dataclass
class Seen:
    """What a reader of a topic sees: records with the time of their batch by seq, gaps, and the missing seqs."""

    records: dict[int, tuple[Record, int]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    silent: set[int] = field(default_factory=set)


def read_all(store: Store, name: str, size_max: int = 1 << 22) -> Seen:
    """Everything from the first seq to the end, in pieces."""
    seen = Seen()
    seq = 1
    while items := store.queries.read(name, Seq(seq), size_max=size_max):
        for item in items:
            if isinstance(item, StoredSkip):
                # No record stored after it may be left.
                seen.silent |= {*range(seq, item.next_seq)}
                seq = max(seq, int(item.next_seq))
                continue
            first = item.live[0][0] if isinstance(item, StoredBatch) else item.first_seq
            require(first >= seq, f"{name}: reading goes back from {seq} to {first}")
            seen.silent |= {*range(seq, first)}
            if isinstance(item, StoredBatch):
                _take(seen, item)
                seq = int(item.next_seq)
            else:
                seen.gaps.append(item)
                seq = item.last_seq + 1
    seen.silent |= {*range(seq, store.catalog.named(name).next_seq)}
    return seen


def _take(seen: Seen, batch: StoredBatch) -> None:
    records = decode_block(batch.block, batch.record_count)
    shown = {seq for first, last in batch.live for seq in range(first, last + 1)}
    for seq in range(min(shown), batch.next_seq):
        if seq in shown:
            seen.records[seq] = records[seq - batch.base_seq], int(batch.timestamp_ns)
        else:
            seen.silent.add(seq)


def read_values(store: Store, name: str) -> tuple[dict[int, bytes], list[Gap]]:
    """Every value by its seq, and every gap; deleted records are skipped."""
    seen = read_all(store, name)
    return {seq: bytes(record.value) for seq, (record, _) in seen.records.items()}, seen.gaps
