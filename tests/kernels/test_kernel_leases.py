"""The lease kernels against their twins: the same calls on arrays and on a dict, and the same jobs after each."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.queues import fresh_ranges, leases
from seawall.kernels.queues import lease_records as records
from seawall.kernels.runtime import jit
from seawall.kernels.runtime.memory import set_addresses
from seawall.kernels.runtime.tables import home_slot
from seawall.wire.jobs import options as job_options
from twins.queues import fresh_ranges as fresh_twin
from twins.queues import leases as twin

EXAMPLES = 15 if jit.PYTHON_MODE else 100
STEPS = 100
SEQ_MAX = 40
NO_SEQS = np.zeros(0, np.int64)


class Arrays:
    """The arrays of a view: space for all jobs, and little in the heaps until `make_space` is called."""

    def __init__(self, first_lease_id: int = 1) -> None:
        self.views = np.zeros(1, records.LEASE_VIEW)
        self.views["next_lease_id"] = first_lease_id
        self.rows = np.zeros(64, records.JOB)
        self.ready = [np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(1, np.int64)]
        self.timers = [np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(1, np.int64)]
        self.ranges = np.zeros((4 * SEQ_MAX, 2), np.int64)
        self.views["first_range"] = self.views["end_range"] = SEQ_MAX
        self.tallies = np.zeros(records.STATES, np.int64)
        self.popped = np.zeros(2, np.int64)
        self.set_addresses()

    def set_addresses(self) -> None:
        arrays = (self.rows, *self.ready, *self.timers, self.ranges, self.tallies, self.popped)
        set_addresses(self.views, records.LEASE_ARRAYS, arrays)

    def make_space(self, heap: list[np.ndarray], count: int) -> None:
        """Make space for more entries: first by a compaction, as the owner of a view does."""
        if heap[2][0] + count > heap[0].size:
            leases.compact_heap(self.views, records.HEAP_READY if heap is self.ready else records.HEAP_TIMERS)
        if heap[2][0] + count > heap[0].size:
            heap[:2] = [np.concatenate((array, np.zeros(count, np.int64))) for array in heap[:2]]
            self.set_addresses()

    def seqs(self) -> set[int]:
        """The seqs in `ranges`."""
        view = self.views[0]
        used = self.ranges[view["first_range"] : view["end_range"]].tolist()
        bounds = [bound for pair in used for bound in pair]
        assert bounds == sorted(bounds)
        return {seq for first, end in used for seq in range(first, end)}

    def content(self) -> tuple[set[int], dict[int, twin.Row]]:
        used = self.rows[self.rows["seq"] != 0]
        rows = [twin.Row(*(int(row[name]) for name in twin.Row.__slots__)) for row in used]
        return self.seqs(), {row.seq: row for row in rows}

    def check(self) -> None:
        """No row is behind a free slot, tallies are exact, and each row that waits has its entry."""
        counted = Counter(self.rows["state"][self.rows["seq"] != 0].tolist())
        counted[records.NO_ROW] = len(self.seqs())
        assert self.tallies.tolist() == [counted[state] for state in range(records.STATES)]
        ready = self.entries(self.ready)
        timers = self.entries(self.timers)
        for slot in np.flatnonzero(self.rows["seq"]):
            row = self.rows[slot]
            seq = int(row["seq"])
            model = twin.Row(*(int(row[name]) for name in twin.Row.__slots__))
            home = home_slot(np.uint64(seq), self.rows.size)
            distance = (int(slot) - home) % self.rows.size
            assert all(self.rows[(home + step) % self.rows.size]["seq"] for step in range(distance))
            rank = 2 * (job_options.PRIORITY_MAX - model.priority) + (model.state == records.FRESH)
            assert not model.is_ready or (row["is_queued"] and (rank, seq) in ready)
            assert model.due == records.NO_TIMER or row["due_ms"] != records.NO_TIMER
            if row["due_ms"] != records.NO_TIMER:
                assert (int(row["due_ms"]), seq) in timers
                assert model.due == records.NO_TIMER or row["due_ms"] <= model.due

    @staticmethod
    def entries(heap: list[np.ndarray]) -> list[tuple[int, int]]:
        size = int(heap[2][0])
        pairs = list(zip(heap[0][:size].tolist(), heap[1][:size].tolist(), strict=True))
        assert all(pairs[(child - 1) // 2] <= pairs[child] for child in range(1, size))
        return pairs


def ranges_of(seqs: set[int]) -> np.ndarray:
    """The rising, merged ranges of some seqs."""
    firsts = sorted(seq for seq in seqs if seq - 1 not in seqs)
    ends = sorted(seq + 1 for seq in seqs if seq + 1 not in seqs)
    return np.array(list(zip(firsts, ends, strict=True)), np.int64).reshape(-1, 2)


class Walk:
    """Random calls on the kernels' arrays and on their twins, which must agree after each."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        first_lease_id = self.chance.choice([1, 2**40])
        self.arrays, self.model = Arrays(first_lease_id), twin.Queue(first_lease_id)
        self.now = 100
        self.calls = (
            *[self.claim] * 4,
            *[self.change] * 8,
            *(self.admit, self.admit, self.expire, self.expire, self.remove, self.restore),
            *(self.peek, self.find, self.oldest, self.compact, self.resize),
        )

    def step(self) -> None:
        """One call at a time that jumps forward and back."""
        self.now = max(0, self.now + self.chance.choice([0, 0, 1, 2, 5, 10, -3, -20]))
        self.chance.choice(self.calls)()
        assert self.arrays.content() == (self.model.fresh, self.model.rows)
        assert int(self.arrays.views["next_lease_id"][0]) == self.model.next_lease_id
        assert int(self.arrays.views["scanned_seq"][0]) == self.model.scanned_seq
        self.arrays.check()

    def time(self) -> int:
        return max(0, self.now + self.chance.randint(-3, 20))

    def seqs(self, count_max: int) -> list[int]:
        """Some jobs, and now and then others."""
        known = [*self.model.rows, *self.model.rows, self.chance.randint(-1, SEQ_MAX + 2)]
        return self.chance.choices(known, k=self.chance.randint(0, count_max))

    def make_space(self, count: int) -> None:
        self.arrays.make_space(self.arrays.ready, count)
        self.arrays.make_space(self.arrays.timers, count)

    def admit(self) -> None:
        scanned, chance = self.model.scanned_seq, self.chance
        first = max(1, scanned + chance.choice([1, 1, 1, 0, -1, 3]))
        next_seq = min(first + chance.randint(0, 8), SEQ_MAX + 1)
        if next_seq < first:
            return
        priorities, not_before = NO_SEQS, NO_SEQS
        if chance.random() < 0.7:
            priorities = np.array([chance.choice([0, 0, 0, 3, 9]) for _ in range(first, next_seq)], np.int64)
            later = [0, 0, 0, self.now, self.now + 5]
            not_before = np.array([chance.choice(later) for _ in range(first, next_seq)], np.int64)
        around = range(max(first - 2, 1), next_seq + 2)
        live = ranges_of({seq for seq in around if chance.random() < 0.9})
        self.make_space(next_seq - first)
        given = (first, next_seq, live, not_before, priorities, self.now)
        leases.admit_jobs(self.arrays.views, *given)
        twin.admit_jobs(self.model, *given)

    def expire(self) -> None:
        while (due := leases.expire_due(self.arrays.views, self.now)) == records.LACKS_SPACE:
            self.arrays.make_space(self.arrays.ready, 1)
        assert due == twin.expire_due(self.model, self.now)

    def claim(self) -> None:
        count, worker = self.chance.randint(0, 6), self.chance.choice([1, 1, 2])
        self.make_space(count)
        seqs, dying = np.zeros((2, count), np.int64), np.zeros((2, self.chance.randint(1, 3)), np.int64)
        args = (count, self.now, self.chance.choice([0, 0, 1, 3]))
        while (found := leases.pick_jobs(self.arrays.views, *args, seqs[0], dying[0])) == records.LACKS_SPACE:
            self.arrays.make_space(self.arrays.ready, 1)
        assert found == twin.pick_jobs(self.model, *args, seqs[1], dying[1])
        assert seqs[0].tolist() == seqs[1].tolist()
        assert (int(self.arrays.views["dead"][0]), *dying[0]) == (self.model.dead, *dying[1])
        results, deadline = np.zeros((2, 2, found), np.int64), self.time()
        leases.lease_jobs(self.arrays.views, seqs[0, :found], deadline, worker, *results[0])
        twin.lease_jobs(self.model, seqs[1, :found], deadline, worker, *results[1])
        assert results[0].tolist() == results[1].tolist()

    def change(self) -> None:
        seqs = self.seqs(5)
        action = self.chance.randint(records.ACTION_FINISH, records.ACTION_UNCLAIM)
        worker = self.chance.choice([1, 1, 1, 2, records.ANY_WORKER])
        known = [self.model.rows[seq].lease_id if seq in self.model.rows else 7 for seq in seqs]
        ids = self.chance.choice([[], known, known, [each + 1 for each in known], [0] * len(seqs)])
        self.make_space(len(seqs))
        changed = np.full((2, len(seqs)), 7, np.uint8)
        args = (action, np.array(seqs, np.int64), np.array(ids, np.int64), worker, self.time())
        count = leases.change_jobs(self.arrays.views, *args, changed[0])
        assert count == twin.change_jobs(self.model, *args, changed[1])
        assert changed[0].tolist() == changed[1].tolist()

    def remove(self) -> None:
        lengths = [-1, 0, 1, 1, 2, 3, SEQ_MAX + 60]
        pairs = [(first, first + self.chance.choice(lengths)) for first in self.seqs(3) if first > 0]
        removed = np.array(pairs, np.int64).reshape(-1, 2)
        leases.remove_jobs(self.arrays.views, removed)
        twin.remove_jobs(self.model, removed)

    def restore(self) -> None:
        chance, seqs = self.chance, sorted(set(self.seqs(4)) - {-1, 0})
        restored = np.zeros(len(seqs), records.JOB)
        for row, seq in zip(restored, seqs, strict=True):
            row["seq"], row["time_ms"], row["lease_id"] = seq, self.time(), chance.choice([0, seq])
            row["state"] = chance.choice([records.RETURNED, records.LEASED, records.DELAYED])
            row["priority"], row["deliveries"], row["worker"], row["size"] = chance.choice([0, 3]), 2, 1, 5
        self.make_space(len(seqs))
        leases.restore_jobs(self.arrays.views, restored)
        twin.restore_jobs(self.model, restored)

    def peek(self) -> None:
        count = self.chance.randint(0, SEQ_MAX)
        seqs = np.zeros((2, count), np.int64)
        found = leases.peek_jobs(self.arrays.views, count, seqs[0])
        assert found == twin.peek_jobs(self.model, count, seqs[1])
        assert seqs[0].tolist() == seqs[1].tolist()

    def find(self) -> None:
        seqs = np.array(self.seqs(4), np.int64)
        slots = np.full((2, seqs.size), 7, np.int64)
        leases.find_jobs(self.arrays.views, seqs, slots[0])
        twin.find_jobs(self.model, seqs, slots[1])
        assert [slot < 0 for slot in slots[0]] == [slot < 0 for slot in slots[1]]
        assert all(slot < 0 or self.arrays.rows[slot]["seq"] == seq for slot, seq in zip(slots[0], seqs, strict=True))

    def oldest(self) -> None:
        assert leases.oldest_job(self.arrays.views) == twin.oldest_job(self.model)

    def compact(self) -> None:
        heap = self.chance.choice([records.HEAP_READY, records.HEAP_TIMERS])
        leases.compact_heap(self.arrays.views, heap)
        twin.compact_heap(self.model, heap)
        kept = self.arrays.entries(self.arrays.ready if heap == records.HEAP_READY else self.arrays.timers)
        rows = self.model.rows.values()
        wanted = {row.seq for row in rows if (row.is_ready if heap == records.HEAP_READY else row.due >= 0)}
        assert {seq for _, seq in kept} == wanted

    def resize(self) -> None:
        tables = np.zeros((2, 1 << self.chance.randint(6, 8)), records.JOB)
        leases.move_rows(self.arrays.rows, tables[0])
        twin.move_rows(self.arrays.rows, tables[1])
        assert tables[0].tolist() == tables[1].tolist()
        self.arrays.rows = tables[0].copy()
        self.arrays.set_addresses()


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**31))
def test_the_kernels_equal_their_twins(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()


def test_constants_equal_those_of_their_owner() -> None:
    assert records.PRIORITY_MAX == job_options.PRIORITY_MAX


steps = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "remove", "first"]), st.integers(0, SEQ_MAX), st.integers(-1, 12)),
    max_size=30,
)


@settings(max_examples=EXAMPLES)
@given(steps, st.sampled_from([0, 20, SEQ_MAX]))
def test_fresh_ranges_equal_their_twin(steps: list[tuple[str, int, int]], start: int) -> None:
    """Splits move the rows before or behind them, as there is space."""
    arrays, model = Arrays(), twin.Queue(1)
    arrays.views["first_range"] = arrays.views["end_range"] = start
    view, end = arrays.views[0], 1
    for kind, at, length in steps:
        if kind == "add":
            first, end = end + at % 3, end + at % 3 + abs(length) + 1
            fresh_ranges.add_fresh(view, first, end)
            fresh_twin.add_fresh(model, first, end)
        elif kind == "remove":
            fresh_ranges.remove_fresh(view, at, at + length)
            fresh_twin.remove_fresh(model, at, at + length)
        else:
            assert fresh_ranges.first_fresh(view) == fresh_twin.first_fresh(model)
        assert arrays.seqs() == model.fresh
        assert arrays.tallies[records.NO_ROW] == len(model.fresh)


@pytest.mark.parametrize("start", [0, 60])
def test_a_split_uses_the_space_that_is_there(start: int) -> None:
    arrays = Arrays()
    arrays.ranges = arrays.ranges[: 61 if start else 1 + 60].copy()
    arrays.set_addresses()
    arrays.views["first_range"] = arrays.views["end_range"] = start
    view = arrays.views[0]
    fresh_ranges.add_fresh(view, 1, 100)
    for seq in range(2, 100, 2):
        fresh_ranges.remove_fresh(view, seq, seq + 1)
    assert arrays.seqs() == set(range(1, 100, 2))
    assert fresh_ranges.first_fresh(view) == 1
    fresh_ranges.remove_fresh(view, 1, 99)
    assert fresh_ranges.first_fresh(view) == 99


def test_a_claim_that_is_undone_after_an_extension_can_be_claimed_again() -> None:
    arrays = Arrays()
    leases.admit_jobs(arrays.views, 1, 2, np.array([[1, 2]], np.int64), NO_SEQS, NO_SEQS, 0)
    seqs, ids, deliveries = np.zeros((3, 1), np.int64)
    assert leases.pick_jobs(arrays.views, 1, 0, 0, seqs, NO_SEQS.copy()) == 1
    leases.lease_jobs(arrays.views, seqs, 5, 1, ids, deliveries)
    assert leases.expire_due(arrays.views, 6) == records.NO_TIMER
    for action, time_ms in ((records.ACTION_EXTEND, 20), (records.ACTION_UNCLAIM, 0)):
        assert leases.change_jobs(arrays.views, action, seqs, ids, 1, time_ms, np.zeros(1, np.uint8)) == 1
        arrays.check()
    arrays.make_space(arrays.ready, 2)
    assert leases.pick_jobs(arrays.views, 1, 6, 1, seqs, np.zeros(1, np.int64)) == 1


def test_the_oldest_of_few_jobs_that_are_far_apart() -> None:
    arrays = Arrays()
    live = np.array([[5, 6], [2**40, 2**40 + 1], [2**41, 2**41 + 1]], np.int64)
    leases.admit_jobs(arrays.views, 1, 2**41 + 1, live, NO_SEQS, NO_SEQS, 0)
    results = np.zeros((3, 2), np.int64)
    arrays.make_space(arrays.timers, 2)
    assert leases.pick_jobs(arrays.views, 2, 0, 0, results[0], NO_SEQS.copy()) == 2
    leases.lease_jobs(arrays.views, results[0], 9, 1, results[1], results[2])
    assert leases.oldest_job(arrays.views) == 5
    leases.remove_jobs(arrays.views, np.array([[1, 6]]))
    assert leases.oldest_job(arrays.views) == 2**40
    leases.remove_jobs(arrays.views, np.array([[1, 2**41]]))
    assert leases.oldest_job(arrays.views) == 2**41
    leases.remove_jobs(arrays.views, np.array([[2**41, 2**41 + 1]]))
    assert leases.oldest_job(arrays.views) == 0


def test_a_row_that_is_replaced_has_no_second_place_in_the_order() -> None:
    arrays = Arrays()
    restored = np.zeros(2, records.JOB)
    restored["seq"], restored["state"], restored["priority"] = [4, 5], records.RETURNED, [3, 0]
    arrays.make_space(arrays.ready, 8)
    leases.restore_jobs(arrays.views, restored)
    restored["priority"] = [0, 3]
    leases.restore_jobs(arrays.views, restored)
    leases.restore_jobs(arrays.views, restored)
    seqs = np.zeros(4, np.int64)
    assert leases.peek_jobs(arrays.views, 1, seqs) == 1
    assert seqs[0] == 5
    assert leases.peek_jobs(arrays.views, 4, seqs) == 2
    assert seqs.tolist()[:2] == [5, 4]
    assert arrays.entries(arrays.ready)[2:] == [], "the peek has dropped the entries of replaced rows"


def test_removing_nothing_splits_nothing() -> None:
    arrays = Arrays()
    fresh_ranges.add_fresh(arrays.views[0], 1, 9)
    for end in (3, 4, 5):
        fresh_ranges.remove_fresh(arrays.views[0], 5, end)
    assert arrays.seqs() == set(range(1, 9))
    assert arrays.views[0]["end_range"] - arrays.views[0]["first_range"] == 1


def test_a_queue_that_is_drained_again_and_again_needs_one_range() -> None:
    arrays = Arrays()
    view = arrays.views[0]
    for seq in range(1, 5):
        fresh_ranges.add_fresh(view, seq, seq + 1)
        fresh_ranges.remove_fresh(view, seq, seq + 1)
        assert fresh_ranges.first_fresh(view) == 0
    assert view["end_range"] - view["first_range"] == 1
