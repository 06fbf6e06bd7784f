"""Crashes at any point of a history of appends, deletes, evictions and checkpoints.

Removed records stay removed, and no others are removed.
"""

from __future__ import annotations

import itertools
import random

import pytest
from retention_model import NS_PER_MS, TOPIC, Both, Model, live_seqs, opened, read_live, small_segments

from seawall.storage.control.deletes import MatchKind, TagMatch
from seawall.testing import SimCrash
from seawall.wire.format.records import encode_record

TAGS = (None, b"a", b"ab", b"b")


class History:
    """A store and its model under random changes; `before` and `after` are the model around the current change."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.both = Both(small_segments(cap_records=30, ttl_ms=400), seed=seed)
        self.before = self.both.model.copy()
        self.after: Model = self.before
        self.appending = 0

    def run(self, *, is_checked: bool = False) -> None:
        for _ in range(25):
            self.step()
            if is_checked:
                self.both.check()
        self.both.store.close()

    def step(self) -> None:
        both, chance = self.both, self.chance
        both.clock.advance(chance.randrange(20) * NS_PER_MS)
        self.before, self.appending = both.model.copy(), 0
        self.after = both.model.copy()
        match chance.choice(("append", "append", "append", "delete", "tag", "checkpoint", "retain")):
            case "append":
                groups = [[chance.choice(TAGS) for _ in range(chance.randrange(1, 5))] for _ in range(2)]
                self.appending = sum(map(len, groups))
                self.after.live.clear()
                both.append(groups, chance.choice((3, 50, 20_000)))
            case "delete":
                self.delete(both.topic.floor + chance.randrange(12), None)
            case "tag":
                self.delete(None, TagMatch(chance.choice([*MatchKind]), chance.choice(("a", "b"))))
            case "checkpoint":
                self.after.retain(both.clock.wall_ns())
                both.store.maintenance.checkpoint()
                both.model.retain(both.clock.wall_ns())
            case "retain":
                self.after.retain(both.clock.wall_ns())
                both.store.maintenance.retain()
                both.model.retain(both.clock.wall_ns())

    def delete(self, before_seq: int | None, match: TagMatch | None) -> None:
        self.after.delete(before_seq, match)
        removed = self.both.store.delete_records(TOPIC, before_seq=before_seq, match=match)
        assert removed == self.both.model.delete(before_seq, match)

    def check_after_crash(self) -> None:
        """Every record is as before the interrupted change, or as after it."""
        topic = self.both.topic
        topic.check_invariants()
        live = {*live_seqs(topic)}
        acked, head = self.before.live.keys(), self.before.head
        assert live <= {*acked, *range(head + 1, head + 1 + self.appending)}
        if self.appending:
            # The append may have evicted the oldest records, and no others.
            assert {seq for seq in acked if seq >= topic.evict_floor} <= live
        else:
            assert acked & self.after.live.keys() <= live
        records, _ = read_live(self.both.store)
        assert records.keys() == live
        assert all(records[seq] == self.before.live[seq].record for seq in live if seq in acked)
        assert topic.live_bytes == sum(len(encode_record(record)) for record in records.values())
        self.both.store.maintenance.checkpoint()
        assert all(any(first <= seq <= last for seq in live_seqs(topic)) for first, last in self.both.sealed())


@pytest.mark.parametrize("keep", ["none", "all", "random"])
def test_no_crash_restores_or_removes_records(keep: str) -> None:
    """INV-DELETE-RESOLVED."""
    crashes = 0
    for seed in range(3):
        # Every run below repeats a part of this one.
        History(seed).run(is_checked=True)
        for nth in itertools.count(30 + seed, 11):
            history = History(seed)
            history.both.disk.crash_after(nth)
            try:
                history.run()
                break
            except SimCrash:
                history.both.disk.crash(keep=keep)
            crashes += 1
            history.both.store = opened(history.both.disk, history.both.clock)
            history.check_after_crash()
            history.both.store.close()
    assert crashes > 30
