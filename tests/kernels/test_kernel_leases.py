"""The lease kernels against their twins: the same calls on arrays and on a dict, and the same jobs after each."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seawall.kernels.queues import fresh_ranges, leases
from seawall.kernels.queues import lease_records as records
from seawall.kernels.runtime import jit
from seawall.kernels.runtime.memory import set_addresses
from seawall.kernels.runtime.tables import home_slot
from seawall.wire.format import job_options
from twins.queues import fresh_ranges as fresh_twin
from twins.queues import leases as twin

EXAMPLES = 15 if jit.PYTHON_MODE else 150
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


times = st.integers(0, 30)
workers = st.integers(1, 2)
seqs_of_calls = st.lists(st.integers(-1, SEQ_MAX + 2), max_size=6).map(lambda seqs: np.array(seqs, np.int64))
some_ranges = st.lists(st.tuples(st.integers(1, SEQ_MAX), st.integers(-2, SEQ_MAX + 60)), max_size=3)


class LeaseMachine(RuleBasedStateMachine):
    """The same calls on the kernels' arrays and on their twins."""

    @initialize(first_lease_id=st.sampled_from([1, 2**40]))
    def make(self, first_lease_id: int) -> None:
        self.arrays, self.model = Arrays(first_lease_id), twin.Queue(first_lease_id)

    @rule(data=st.data(), now=times)
    def admit(self, data: st.DataObject, now: int) -> None:
        first = data.draw(st.integers(max(self.model.scanned_seq - 1, 1), self.model.scanned_seq + 3), "first")
        next_seq = data.draw(st.integers(first, max(first, min(first + 8, SEQ_MAX + 1))), "next")
        count = next_seq - first
        priorities, not_before = NO_SEQS, NO_SEQS
        if data.draw(st.booleans(), "has options"):
            priorities = np.array(data.draw(st.lists(st.sampled_from([0, 0, 3, 9]), min_size=count, max_size=count)))
            not_before = np.array(data.draw(st.lists(st.sampled_from([0, 0, 5, 20]), min_size=count, max_size=count)))
        live = ranges_of(data.draw(st.sets(st.integers(max(first - 2, 1), next_seq + 2)), "live"))
        if next_seq > SEQ_MAX + 1:
            return
        self.make_space(count)
        given = (first, next_seq, live, not_before.astype(np.int64), priorities.astype(np.int64), now)
        leases.admit_jobs(self.arrays.views, *given)
        twin.admit_jobs(self.model, *given)
        assert int(self.arrays.views["scanned_seq"][0]) == self.model.scanned_seq

    @rule(now=times)
    def expire(self, now: int) -> None:
        while (due := leases.expire_due(self.arrays.views, now)) == records.LACKS_SPACE:
            self.arrays.make_space(self.arrays.ready, 1)
        assert due == twin.expire_due(self.model, now)

    @rule(
        count=st.integers(0, 8),
        now=times,
        length=times,
        worker=workers,
        limit=st.integers(0, 3),
        dead=st.integers(1, 4),
    )
    def claim(self, count: int, now: int, length: int, worker: int, limit: int, dead: int) -> None:
        self.make_space(count)
        seqs, dying = np.zeros((2, count), np.int64), np.zeros((2, dead), np.int64)
        args = (count, now, limit)
        while (found := leases.pick_jobs(self.arrays.views, *args, seqs[0], dying[0])) == records.LACKS_SPACE:
            self.arrays.make_space(self.arrays.ready, 1)
        assert found == twin.pick_jobs(self.model, *args, seqs[1], dying[1])
        assert seqs[0].tolist() == seqs[1].tolist()
        assert int(self.arrays.views["dead"][0]) == self.model.dead
        assert dying[0].tolist() == dying[1].tolist()
        results = np.zeros((2, 2, found), np.int64)
        leases.lease_jobs(self.arrays.views, seqs[0, :found], now + length, worker, *results[0])
        twin.lease_jobs(self.model, seqs[1, :found], now + length, worker, *results[1])
        assert results[0].tolist() == results[1].tolist()

    @rule(
        action=st.integers(records.ACTION_FINISH, records.ACTION_REVIVE),
        data=st.data(),
        ids=st.sampled_from(["none", "right", "right", "wrong", "zero"]),
        worker=st.sampled_from([1, 2, records.ANY_WORKER]),
        time=times,
    )
    def change(self, action: int, data: st.DataObject, ids: str, worker: int, time: int) -> None:
        seqs = data.draw(seqs_of_calls)
        if self.model.rows:
            rows = data.draw(st.lists(st.sampled_from(sorted(self.model.rows)), max_size=6))
            seqs = np.concatenate((seqs, np.array(rows, np.int64)))
        self.make_space(seqs.size)
        known = [self.model.rows[seq].lease_id if seq in self.model.rows else 7 for seq in seqs.tolist()]
        given = {"none": [], "right": known, "wrong": [each + 1 for each in known], "zero": [0] * seqs.size}[ids]
        changed = np.full((2, seqs.size), 7, np.uint8)
        args = (action, seqs, np.array(given, np.int64), worker, time)
        count = leases.change_jobs(self.arrays.views, *args, changed[0])
        assert count == twin.change_jobs(self.model, *args, changed[1])
        assert changed[0].tolist() == changed[1].tolist()

    @rule(given=some_ranges)
    def remove(self, given: list[tuple[int, int]]) -> None:
        removed = np.array([(first, first + length) for first, length in given], np.int64).reshape(-1, 2)
        leases.remove_jobs(self.arrays.views, removed)
        twin.remove_jobs(self.model, removed)

    @rule(data=st.data(), seqs=st.sets(st.integers(1, SEQ_MAX), max_size=4))
    def restore(self, data: st.DataObject, seqs: set[int]) -> None:
        restored = np.zeros(len(seqs), records.JOB)
        states = st.sampled_from([records.RETURNED, records.LEASED, records.DELAYED])
        for row, seq in zip(restored, seqs, strict=True):
            row["seq"], row["state"], row["time_ms"], row["lease_id"] = seq, data.draw(states), data.draw(times), seq
            row["priority"], row["deliveries"], row["worker"], row["size"] = data.draw(st.sampled_from([0, 3])), 2, 1, 5
        self.make_space(len(seqs))
        leases.restore_jobs(self.arrays.views, restored)
        twin.restore_jobs(self.model, restored)

    @rule(count=st.integers(0, SEQ_MAX))
    def peek(self, count: int) -> None:
        self.make_space(count)
        seqs = np.zeros((2, count), np.int64)
        found = leases.peek_jobs(self.arrays.views, count, seqs[0])
        assert found == twin.peek_jobs(self.model, count, seqs[1])
        assert seqs[0].tolist() == seqs[1].tolist()

    @rule(seqs=seqs_of_calls)
    def find(self, seqs: np.ndarray) -> None:
        slots = np.full((2, seqs.size), 7, np.int64)
        leases.find_jobs(self.arrays.views, seqs, slots[0])
        twin.find_jobs(self.model, seqs, slots[1])
        assert [slot < 0 for slot in slots[0]] == [slot < 0 for slot in slots[1]]
        assert all(slot < 0 or self.arrays.rows[slot]["seq"] == seq for slot, seq in zip(slots[0], seqs, strict=True))

    @rule()
    def oldest(self) -> None:
        assert leases.oldest_job(self.arrays.views) == twin.oldest_job(self.model)

    @rule(heap=st.sampled_from([records.HEAP_READY, records.HEAP_TIMERS]))
    def compact(self, heap: int) -> None:
        leases.compact_heap(self.arrays.views, heap)
        twin.compact_heap(self.model, heap)
        ready, timers = self.arrays.entries(self.arrays.ready), self.arrays.entries(self.arrays.timers)
        kept, rows = ready if heap == records.HEAP_READY else timers, self.model.rows
        states = (1, 2, 3) if heap == records.HEAP_READY else (4, 5)
        assert {seq for _, seq in kept} == {seq for seq, row in rows.items() if row.state in states}

    @rule(bits=st.integers(6, 8))
    def resize(self, bits: int) -> None:
        tables = np.zeros((2, 1 << bits), records.JOB)
        leases.move_rows(self.arrays.rows, tables[0])
        twin.move_rows(self.arrays.rows, tables[1])
        assert tables[0].tolist() == tables[1].tolist()
        self.arrays.rows = tables[0].copy()
        self.arrays.set_addresses()

    def make_space(self, count: int) -> None:
        self.arrays.make_space(self.arrays.ready, count)
        self.arrays.make_space(self.arrays.timers, count)

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "arrays"):
            assert self.arrays.content() == (self.model.fresh, self.model.rows)
            assert int(self.arrays.views["next_lease_id"][0]) == self.model.next_lease_id
            self.arrays.check()


LeaseMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
TestLeases = LeaseMachine.TestCase


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
