"""What everybody was told about a log, and whether what it shows now can be true.

Facts are kept across crashes: every (seq, value) that an ack or a read has shown, what must survive, what was only
tried. `check` holds a store against them:

- records that were promised as durable are there, identical;
- nothing is there that nobody wrote, nothing twice, and the records of a topic are in the order of their writing;
- seqs are dense: each one is a record or part of an explicit gap, and without damage no gap says corruption;
- no seq ever belongs to two records, whoever saw it and however long ago;
- next seqs and floors never go back;
- topics, their configuration and cursors are as the last ack says, or as something that was tried since then would
  have made them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from seawall.core.types import Seq
from seawall.engine.store import Store
from seawall.engine.topic_log import StoredBatch
from seawall.topics.gaps import Gap
from seawall.wire.codes import GapReason
from seawall.wire.fields import write_json
from seawall.wire.records import decode_block


class BrokenPromiseError(AssertionError):
    """The log has broken a promise."""


def require(condition: bool, complaint: str) -> None:
    if not condition:
        raise BrokenPromiseError(complaint)


#: A topic as a name may show it: its id and its configuration. None where there is none.
Shown = tuple[int, bytes] | None


@dataclass
class TopicFacts:
    """One life of a topic."""

    attempted: dict[bytes, int] = field(default_factory=dict)
    seen: dict[int, bytes] = field(default_factory=dict)
    durable: dict[int, bytes] = field(default_factory=dict)
    #: Acked, and durable as soon as anything is synced.
    weak: dict[int, bytes] = field(default_factory=dict)
    next_seq: int = 1
    floor: int = 1


@dataclass
class History:
    """Everything that is known of one data directory."""

    topics: dict[int, TopicFacts] = field(default_factory=dict)
    names: dict[str, set[Shown]] = field(default_factory=dict)
    cursors: dict[tuple[str, int], set[int | None]] = field(default_factory=dict)
    writes: int = 0

    def topic(self, topic_id: int) -> TopicFacts:
        return self.topics.setdefault(topic_id, TopicFacts())

    def new_value(self, topic_id: int, size: int) -> bytes:
        """A value that was never written before; its number says when it was."""
        self.writes += 1
        value = b"%08d" % self.writes + bytes(size)
        self.topic(topic_id).attempted[value[:8]] = len(value)
        return value

    def saw(self, topic_id: int, seq: int, value: bytes) -> None:
        """Somebody was shown a record."""
        facts = self.topic(topic_id)
        before = facts.seen.setdefault(seq, value)
        require(before == value, f"topic {topic_id}: seq {seq} was {before[:8]!r} and is {value[:8]!r}")
        facts.next_seq = max(facts.next_seq, seq + 1)

    def synced(self) -> None:
        """Everything acked so far is durable."""
        for facts in self.topics.values():
            facts.durable |= facts.weak
            facts.weak.clear()

    # --- names and cursors: what may be shown ---------------------------------------------------------------------

    def try_name(self, name: str, shown: Shown) -> None:
        self.names.setdefault(name, {None}).add(shown)

    def set_name(self, name: str, shown: Shown) -> None:
        self.names[name] = {shown}

    def try_cursor(self, owner: str, topic_id: int, next_seq: int) -> None:
        self.cursors.setdefault((owner, topic_id), {None}).add(next_seq)

    def set_cursor(self, owner: str, topic_id: int, next_seq: int) -> None:
        self.cursors[owner, topic_id] = {next_seq}

    # --- the oracle ------------------------------------------------------------------------------------------------

    def check(self, store: Store, chance: random.Random, *, whole: bool = True) -> None:
        """Read everything and compare; what is shown now is a fact from now on.

        `whole` says that the store was opened just now; later some of what it shows may be neither durable nor final.
        """
        for name in sorted({*self.names, *store.catalog.names()}):
            shown = shown_by(store, name)
            allowed = self.names.get(name, {None})
            require(shown in allowed, f"{name} is {shown}, allowed is {sorted(map(str, allowed))}")
            if whole:
                self.set_name(name, shown)
            if shown is not None:
                records = self._check_topic(store, name, shown[0], chance)
                if whole:
                    # What an open shows was synced by it; what it does not show and was not promised is gone for good.
                    self.topic(shown[0]).weak.clear()
                    self.topic(shown[0]).durable |= records
        for (owner, topic_id), allowed_seqs in self.cursors.items():
            if store.catalog.find(topic_id) is not None:
                cursor = store.catalog.cursor(owner, topic_id)
                next_seq = None if cursor is None else int(cursor.next_seq)
                require(next_seq in allowed_seqs, f"cursor {owner} is {next_seq}, allowed is {allowed_seqs}")
                if whole:
                    self.cursors[owner, topic_id] = {next_seq}

    def _check_topic(self, store: Store, name: str, topic_id: int, chance: random.Random) -> dict[int, bytes]:
        facts = self.topic(topic_id)
        topic = store.catalog.named(name)
        records, gaps = read_all(store, name, chance.choice((1, 5_000, 1 << 22)))
        numbers = [value[:8] for value in records.values()]
        for seq, value in records.items():
            self.saw(topic_id, seq, value)
            require(facts.attempted.get(value[:8]) == len(value), f"{name}: seq {seq} was never written: {value[:8]!r}")
            require(not any(value[8:]), f"{name}: seq {seq} has other bytes than were written")
        require(numbers == sorted(set(numbers)), f"{name}: records out of order, or twice: {numbers}")
        for seq, value in facts.durable.items():
            require(records.get(seq) == value, f"{name}: seq {seq} was durable and is lost: {value[:8]!r}")
        for gap in gaps:
            require(gap.reason is GapReason.CRASH, f"{name}: {gap} without any damage")
        covered = len(records) + sum(gap.last_seq - gap.first_seq + 1 for gap in gaps)
        require(covered == topic.next_seq - 1, f"{name}: {covered} seqs accounted for, next is {topic.next_seq}")
        require(topic.next_seq >= facts.next_seq, f"{name}: next seq {topic.next_seq}, but {facts.next_seq} was due")
        require(topic.floor >= facts.floor, f"{name}: floor went from {facts.floor} to {topic.floor}")
        facts.floor = topic.floor
        topic.check_invariants()
        return records


def shown_by(store: Store, name: str) -> Shown:
    if name not in store.catalog.names():
        return None
    topic = store.catalog.named(name)
    return int(topic.topic_id), write_json(topic.config.to_json())


def read_all(store: Store, name: str, size_max: int = 1 << 22) -> tuple[dict[int, bytes], list[Gap]]:
    """Every record by its seq and every gap, in pieces; each begins right where the one before has ended."""
    records: dict[int, bytes] = {}
    gaps: list[Gap] = []
    seq = Seq(1)
    while items := store.read(name, seq, size_max=size_max):
        for item in items:
            first = item.header.base_seq if isinstance(item, StoredBatch) else item.first_seq
            require(first == seq, f"{name}: reading goes on at {first}, due is {seq}")
            if isinstance(item, StoredBatch):
                for record in decode_block(item.block, item.header.record_count):
                    records[seq] = record.value
                    seq = Seq(seq + 1)
            else:
                gaps.append(item)
                seq = Seq(item.last_seq + 1)
    return records, gaps
