"""The lease view against a list of jobs, with a clock that jumps, and at sizes at which its arrays grow and shrink."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seawall.kernels.runtime import jit
from seawall.limits import JOBS_MAX
from seawall.topics.queues.lease_view import DELAYED, LEASE_ROW, LEASED, NO_ROW, RETURNED, Claimed, Counts, LeaseView

EXAMPLES = 15 if jit.PYTHON_MODE else 120
#: Jobs of the tests of many.
MANY = 2_000 if jit.PYTHON_MODE else 1_000_000

Integers = npt.NDArray[np.int64]


def array(values: object) -> Integers:
    return np.array(values, np.int64)


def ranges_of(seqs: set[int]) -> npt.NDArray[np.int64]:
    """The rising, merged ranges of some seqs."""
    firsts = sorted(seq for seq in seqs if seq - 1 not in seqs)
    ends = sorted(seq + 1 for seq in seqs if seq + 1 not in seqs)
    return array(list(zip(firsts, ends, strict=True))).reshape(-1, 2)


@dataclass(slots=True)
class Job:
    """One job of the model."""

    seq: int
    priority: int
    state: str
    time_ms: int = 0
    lease_id: int = 0
    deliveries: int = 0
    worker: int = 0
    size: int = 0

    @property
    def order(self) -> tuple[int, bool, int]:
        return -self.priority, self.state == "fresh", self.seq

    def give_back(self, ready_at_ms: int = 0) -> None:
        self.state = "delayed" if ready_at_ms else "returned"
        self.time_ms, self.lease_id, self.worker = ready_at_ms, 0, 0


class Model:
    """A queue as a dict of jobs; each question looks at all of them."""

    def __init__(self, first_lease_id: int) -> None:
        self.jobs: dict[int, Job] = {}
        self.next_lease_id = first_lease_id
        self.scanned_seq = 0

    def expire(self, now: int) -> None:
        for job in self.jobs.values():
            if job.state == "leased" and now > job.time_ms:
                job.state = "expired"
            if job.state == "delayed" and now >= job.time_ms:
                job.give_back()

    def ready(self) -> list[Job]:
        found = [job for job in self.jobs.values() if job.state in ("fresh", "returned", "expired")]
        return sorted(found, key=lambda job: job.order)

    def counts(self, now: int) -> Counts:
        self.expire(now)
        states = [job.state for job in self.jobs.values()]
        # Dying jobs are held until they are dead letters.
        return Counts(len(self.ready()), states.count("leased") + states.count("dying"), states.count("delayed"))

    def held(self, seq: int, lease_id: int, worker: int) -> bool:
        job = self.jobs.get(seq)
        is_leased = job is not None and job.state in ("leased", "expired") and job.worker == worker
        return is_leased and lease_id in (0, job.lease_id)

    def row(self, job: Job) -> tuple[int, ...]:
        state = {"leased": LEASED, "expired": LEASED, "finishing": LEASED, "delayed": DELAYED}.get(job.state, RETURNED)
        times = (job.time_ms, job.lease_id, job.deliveries, job.worker)
        return (job.seq, *times, job.size, job.priority, state, 0)


times = st.integers(0, 25)
counts = st.integers(1, 5)
priorities = st.sampled_from([0, 0, 0, 0, 2, 9])


class LeaseViewMachine(RuleBasedStateMachine):
    """The same calls on the view and on the model."""

    @initialize(first_lease_id=st.sampled_from([1, 2**50]), given=st.lists(priorities, min_size=1, max_size=8))
    def make(self, first_lease_id: int, given: list[int]) -> None:
        self.view, self.model = LeaseView(first_lease_id), Model(first_lease_id)
        self.now = 50
        self.admit_live(1, given, [0] * len(given), set(range(1, len(given) + 1)))

    def admit_live(self, first: int, priorities: list[int], not_before: list[int], live: set[int]) -> None:
        next_seq = first + len(priorities)
        self.view.admit(first, ranges_of(live), array(not_before), array(priorities), next_seq, self.now)
        for seq in range(self.model.scanned_seq + 1, next_seq):
            if seq < first or seq not in live:
                self.model.jobs.pop(seq, None)
            elif seq not in self.model.jobs:
                self.model.jobs[seq] = Job(seq, priorities[seq - first], "fresh")
                if not_before[seq - first] > self.now:
                    self.model.jobs[seq].give_back(not_before[seq - first])
        self.model.scanned_seq = max(self.model.scanned_seq, next_seq - 1)

    @rule(
        gap=st.sampled_from([0, 0, 0, 1, -1]),
        given=st.lists(st.tuples(priorities, st.sampled_from([0, 0, 0, 3, 10])), min_size=1, max_size=6),
        dead=st.sets(st.integers(0, 7), max_size=2),
    )
    def admit(self, gap: int, given: list[tuple[int, int]], dead: set[int]) -> None:
        first = max(1, self.model.scanned_seq + 1 + gap)
        not_before = [self.now + delay if delay else 0 for _, delay in given]
        live = set(range(first, first + len(given) + 1)) - {first + index for index in dead}
        self.admit_live(first, [priority for priority, _ in given], not_before, live)

    @rule(step=st.sampled_from([1, 2, 5, 10, 30, -1, -10, -50]))
    def move_clock(self, step: int) -> None:
        self.now = max(0, self.now + step)

    @rule(count=counts, length=times, worker=st.sampled_from([0, 0, 1]), limit=st.sampled_from([0, 0, 1, 2]))
    def claim(self, count: int, length: int, worker: int, limit: int) -> None:
        claimed = self.view.claim(count, self.now, self.now + length, worker, limit)
        self.model.expire(self.now)
        taken, dead = [], []
        for job in self.model.ready():
            if len(taken) == count:
                break
            if limit and job.deliveries >= limit:
                job.give_back()
                job.state = "dying"
                dead.append(job.seq)
            else:
                taken.append(job)
        for job in sorted(taken, key=lambda job: job.seq):
            job.state, job.time_ms, job.worker = "leased", self.now + length, worker
            job.deliveries += 1
            job.lease_id = self.model.next_lease_id
            self.model.next_lease_id += 1
        taken.sort(key=lambda job: job.seq)
        assert claimed.seqs.tolist() == [job.seq for job in taken]
        assert claimed.lease_ids.tolist() == [job.lease_id for job in taken]
        assert claimed.deliveries.tolist() == [job.deliveries for job in taken]
        assert claimed.dead.tolist() == sorted(dead)

    def some(self, data: st.DataObject) -> tuple[Integers, Integers | None, int, list[bool]]:
        """Seqs of a call, its lease ids and its worker; and which of the jobs it concerns."""
        known = [seq for seq, job in self.model.jobs.items() if job.lease_id] or [1]
        seqs = data.draw(st.lists(st.sampled_from([*known, self.model.scanned_seq, 0]), max_size=4), "seqs")
        jobs = [self.model.jobs.get(seq, Job(seq, 0, "none")) for seq in seqs]
        worker = data.draw(st.sampled_from([*(job.worker for job in jobs[:1]), 0, 1]), "worker")
        wrong = data.draw(st.sampled_from([None, 0, 0, 1]), "wrong")
        ids = None if wrong is None else [data.draw(st.sampled_from([job.lease_id + wrong, 0])) for job in jobs]
        held = [self.model.held(seq, each, worker) for seq, each in zip(seqs, ids or [0] * len(seqs), strict=True)]
        return array(seqs), None if ids is None else array(ids), worker, held

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        seqs, ids, worker, held = self.some(data)
        mask = self.view.ack(seqs, ids, worker, self.now)
        self.model.expire(self.now)
        expected = []
        for seq, each in zip(seqs.tolist(), held, strict=True):
            expected.append(each and self.model.held(seq, 0, worker))
            if expected[-1]:
                self.model.jobs[seq].state = "finishing"
        assert mask.tolist() == expected

    @rule(data=st.data(), delay=st.sampled_from([-1, 0, 3, 12]))
    def nack(self, data: st.DataObject, delay: int) -> None:
        seqs, ids, worker, held = self.some(data)
        mask = self.view.nack(seqs, ids, worker, max(self.now + delay, 0), self.now)
        self.model.expire(self.now)
        expected = []
        for seq, each in zip(seqs.tolist(), held, strict=True):
            expected.append(each and self.model.held(seq, 0, worker))
            if expected[-1]:
                self.model.jobs[seq].give_back(self.now + delay if delay > 0 else 0)
        assert mask.tolist() == expected

    @rule(data=st.data(), length=times)
    def extend(self, data: st.DataObject, length: int) -> None:
        seqs, ids, worker, held = self.some(data)
        mask = self.view.extend(seqs, ids, worker, self.now + length)
        for seq, each in zip(seqs.tolist(), held, strict=True):
            if each:
                self.model.jobs[seq].state, self.model.jobs[seq].time_ms = "leased", self.now + length
        assert mask.tolist() == held

    @rule(data=st.data(), wrong=st.sampled_from([0, 0, 1]))
    def release(self, data: st.DataObject, wrong: int) -> None:
        seqs, _, _, _ = self.some(data)
        jobs = [self.model.jobs.get(seq, Job(seq, 0, "none")) for seq in dict.fromkeys(seqs.tolist())]
        held = [job for job in jobs if job.state in ("leased", "expired") and not wrong]
        ids = array([job.lease_id + wrong for job in jobs])
        assert self.view.release(array([job.seq for job in jobs]), ids).sum() == len(held)
        for job in held:
            job.give_back()

    @precondition(lambda self: any(job.state in ("finishing", "dying") for job in self.model.jobs.values()))
    @rule(succeeds=st.booleans())
    def commit(self, succeeds: bool) -> None:
        """The log has deleted what was acked or moved to the dead-letter topic, or could not."""
        finishing = [job for job in self.model.jobs.values() if job.state == "finishing"]
        dying = [job for job in self.model.jobs.values() if job.state == "dying"]
        if succeeds:
            self.view.removed_ranges(ranges_of({job.seq for job in finishing + dying}))
            for job in finishing + dying:
                del self.model.jobs[job.seq]
            return
        self.view.unfinish(array([job.seq for job in finishing]))
        self.view.revive(array([job.seq for job in dying]), self.now + 3)
        for job in finishing:
            job.state = "leased"
        for job in dying:
            job.give_back(self.now + 3)

    @rule(data=st.data(), length=st.sampled_from([1, 1, 2, 100]))
    def remove(self, data: st.DataObject, length: int) -> None:
        first = data.draw(st.integers(1, self.model.scanned_seq + 2))
        self.view.removed(first, first + length - 1)
        for seq in range(first, first + length):
            self.model.jobs.pop(seq, None)

    @rule(data=st.data())
    def set_sizes(self, data: st.DataObject) -> None:
        seqs, _, _, _ = self.some(data)
        sizes = seqs * 7 + 1
        self.view.set_sizes(seqs, sizes)
        for seq in seqs.tolist():
            job = self.model.jobs.get(seq)
            if job is not None and (job.state != "fresh" or job.priority):
                job.size = seq * 7 + 1
        expected = [self.model.jobs[seq].size if seq in self.model.jobs else 0 for seq in seqs.tolist()]
        assert self.view.sizes(seqs).tolist() == expected

    @rule(count=st.integers(0, 20), is_admitted=st.booleans())
    def restart(self, count: int, is_admitted: bool) -> None:
        """A new view has the rows of the old one, and learns of the others again, before or after."""
        rows = self.view.snapshot()
        self.view = LeaseView(self.model.next_lease_id)
        live = ranges_of(set(self.model.jobs))
        end = self.model.scanned_seq + 1
        options = array([self.model.jobs[seq].priority if seq in self.model.jobs else 0 for seq in range(1, end)])
        if is_admitted:
            self.view.admit(1, live, np.zeros(end - 1, np.int64), options, end, self.now)
        self.view.restore(rows)
        for first in range(self.view.scanned_seq + 1, end, count + 1):
            part = slice(first - 1, min(first + count, end - 1))
            given = options[part]
            self.view.admit(first, live, np.zeros(given.size, np.int64), given, first + given.size, self.now)
        for job in self.model.jobs.values():
            if job.state in ("finishing", "expired"):
                job.state = "leased"
            elif job.state == "dying":
                job.state = "returned"
            elif job.state == "fresh":
                job.size = 0

    @rule()
    def ask(self) -> None:
        """Counts, the next time, and all jobs that nobody holds."""
        assert self.view.counts(self.now) == self.model.counts(self.now)
        timed = [job for job in self.model.jobs.values() if job.state in ("leased", "delayed")]
        ends = [job.time_ms + (job.state == "leased") for job in timed]
        assert self.view.next_time_ms(self.now) == min(ends, default=-1)
        assert min(ends, default=self.now + 1) > self.now
        free = {job.seq for job in self.model.ready()} | {job.seq for job in timed if job.state == "delayed"}
        assert self.view.unclaimed(self.now).tolist() == ranges_of(free).tolist()

    @rule(count=st.integers(0, 12))
    def peek(self, count: int) -> None:
        found = self.view.peek(count, self.now)
        self.model.expire(self.now)
        assert found.tolist() == sorted(job.seq for job in self.model.ready()[:count])

    @invariant()
    def agree(self) -> None:
        """Jobs, rows and the oldest job; nothing here moves what is due."""
        if hasattr(self, "view"):
            assert self.view.scanned_seq == self.model.scanned_seq
            assert self.view.oldest_seq() == min(self.model.jobs, default=0)
            rows = {job.seq: self.model.row(job) for job in self.model.jobs.values() if job.state != "fresh"}
            assert {row["seq"]: row.tolist() for row in self.view.snapshot()} == rows
            seqs = range(1, self.model.scanned_seq + 2)
            expected = [rows.get(seq, (seq, *[0] * (len(LEASE_ROW) - 1))) for seq in seqs]
            assert self.view.rows(array(list(seqs))).tolist() == expected


LeaseViewMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=50)
TestLeaseView = LeaseViewMachine.TestCase


# --- many jobs ----------------------------------------------------------------------------------------------------


def view_of(count: int, priority: int = 0) -> LeaseView:
    """A view of fresh jobs, admitted as one batch."""
    view = LeaseView(1)
    options = np.full(count, priority, np.int64)
    view.admit(1, array([[1, count + 1]]), np.zeros(count, np.int64), options, count + 1, 0)
    return view


def claim_all(view: LeaseView, now: int, deadline: int) -> list[Claimed]:
    claims = [view.claim(JOBS_MAX, now, deadline, 0, 0)]
    while len(claims[-1].seqs):
        claims.append(view.claim(JOBS_MAX, now, deadline, 0, 0))
    return claims


@pytest.mark.parametrize("priority", [0, 5])
def test_many_jobs(priority: int) -> None:
    view = view_of(MANY, priority)
    empty = LeaseView(1).memory_size
    assert priority or view.memory_size == empty, "fresh jobs of the default priority are ranges"
    claims = claim_all(view, 0, 10)
    assert np.array_equal(np.concatenate([claimed.seqs for claimed in claims]), np.arange(1, MANY + 1))
    assert np.array_equal(np.concatenate([claimed.lease_ids for claimed in claims]), np.arange(1, MANY + 1))
    assert view.counts(10) == (0, MANY, 0)
    assert view.next_time_ms(10) == 11
    assert view.memory_size < 300 * MANY + empty
    assert view.counts(11) == (MANY, 0, 0)
    again = claim_all(view, 11, 20)
    assert np.array_equal(np.concatenate([claimed.seqs for claimed in again]), np.arange(1, MANY + 1))
    assert {int(each) for claimed in again for each in claimed.deliveries} == {2}
    for claimed in again[:-1]:
        assert view.ack(claimed.seqs, claimed.lease_ids, 0, 15).all()
        view.removed(int(claimed.seqs[0]), int(claimed.seqs[-1]))
    assert view.counts(99) == (0, 0, 0)
    assert view.oldest_seq() == 0
    view.admit(MANY + 1, array([[MANY + 1, MANY + 2]]), array([0]), array([0]), MANY + 2, 99)
    assert view.claim(1, 99, 100, 0, 0).seqs.tolist() == [MANY + 1]
    assert view.memory_size < 8 * empty, "a view that was drained is small again"


def test_a_delete_of_every_second_job() -> None:
    """Many ranges, removed in rising order and then as a whole."""
    count = min(MANY, 100_000)
    view = view_of(count)
    evens = np.arange(2, count + 1, 2)
    view.removed_ranges(np.stack((evens, evens + 1), axis=1))
    assert view.counts(0) == (count - evens.size, 0, 0)
    assert view.unclaimed(0).tolist() == [[seq, seq + 1] for seq in range(1, count + 1, 2)]
    assert view.claim(3, 0, 10, 0, 0).seqs.tolist() == [1, 3, 5]
    assert view.peek(2, 0).tolist() == [7, 9]
    view.removed(1, count)
    assert (view.counts(0), view.oldest_seq()) == ((0, 0, 0), 0)


def test_repeated_extensions_take_no_memory() -> None:
    view = view_of(100)
    seqs = view.claim(100, 0, 10_000, 0, 0).seqs
    before = view.memory_size
    for step in range(300):
        # Every third deadline is earlier than all before it.
        deadline = 20_000 + step if step % 3 else 9_000 - step
        assert view.extend(seqs, None, 0, deadline).all()
        if step % 100 == 0:
            assert view.next_time_ms(0) == deadline + 1
    assert view.memory_size <= 2 * before
    assert view.next_time_ms(0) == deadline + 1


def test_a_heap_of_stale_entries_is_compacted() -> None:
    """Jobs that are claimed and acked leave entries in the timers."""
    view = LeaseView(1)
    sizes = set()
    for seq in range(1, 1_500 if jit.PYTHON_MODE else 20_000):
        view.admit(seq, array([[seq, seq + 1]]), array([0]), array([seq % 2]), seq + 1, 0)
        assert view.ack(view.claim(1, 0, 100, 0, 0).seqs, None, 0, 0).all()
        view.removed(seq, seq)
        sizes.add(view.memory_size)
    assert max(sizes) <= 4 * min(sizes)


# --- single rules -------------------------------------------------------------------------------------------------


def test_a_late_ack_works_until_another_claim_takes_the_job() -> None:
    view = view_of(2)
    first = view.claim(2, 0, 10, 0, 0)
    assert view.counts(10) == (0, 2, 0)
    assert view.counts(11) == (2, 0, 0)
    second = view.claim(1, 11, 30, 1, 0)
    assert (second.seqs.tolist(), second.deliveries.tolist()) == ([1], [2])
    assert view.ack(first.seqs, first.lease_ids, 0, 12).tolist() == [False, True]
    assert view.ack(second.seqs, None, 1, 12).tolist() == [True]


def test_an_expired_lease_can_be_extended() -> None:
    view = view_of(1)
    claimed = view.claim(1, 0, 10, 0, 0)
    assert view.counts(50) == (1, 0, 0)
    assert view.extend(claimed.seqs, claimed.lease_ids, 0, 60).tolist() == [True]
    assert view.counts(50) == (0, 1, 0)
    assert view.claim(1, 50, 99, 1, 0).seqs.tolist() == []


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    view = view_of(1)
    view.claim(1, 1_000, 2_000, 0, 0)
    assert view.counts(5_000) == (1, 0, 0)
    assert view.counts(1_000) == (1, 0, 0)
    assert view.claim(1, 1_000, 2_000, 1, 0).deliveries.tolist() == [2]
    assert view.counts(1_000) == (0, 1, 0)


def test_a_job_dies_once_and_is_tried_again() -> None:
    view = view_of(2)
    view.claim(1, 0, 1, 0, 1)
    claimed = view.claim(5, 2, 9, 0, 1)
    assert (claimed.seqs.tolist(), claimed.dead.tolist()) == ([2], [1])
    assert view.counts(2) == (0, 2, 0)
    assert view.claim(5, 2, 9, 0, 1).dead.tolist() == []
    assert view.peek(5, 2).tolist() == []
    view.revive(claimed.dead, 5)
    assert view.counts(2) == (0, 1, 1)
    assert view.claim(5, 6, 9, 0, 1).dead.tolist() == [1]
    view.removed(1, 1)
    assert view.oldest_seq() == 2


def test_one_claim_lets_a_bounded_number_of_jobs_die() -> None:
    view = view_of(JOBS_MAX + 7)
    claim_all(view, 0, 1)
    assert [len(view.claim(1, 2, 9, 0, 1).dead) for _ in range(3)] == [JOBS_MAX, 7, 0]


def test_the_order_of_claims() -> None:
    view = LeaseView(1)
    priorities = [0, 0, 3, 3, 9, 0]
    view.admit(1, array([[1, 7]]), array([0, 0, 0, 0, 500, 0]), array(priorities), 7, 0)
    assert view.counts(0) == (5, 0, 1)
    assert view.claim(3, 0, 100, 0, 0).seqs.tolist() == [1, 3, 4]
    assert view.nack(array([1, 4]), None, 0, 0, 0).all()
    assert [view.claim(1, 0, 100, 0, 0).seqs.tolist() for _ in range(3)] == [[4], [1], [2]]
    assert view.next_time_ms(0) == 101
    assert view.claim(1, 500, 900, 0, 0).seqs.tolist() == [5]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8))
def test_removed_ranges_equal_a_set(removed: list[tuple[int, int]]) -> None:
    view = view_of(60)
    view.claim(7, 0, 10, 0, 0)
    left = set(range(1, 61))
    for first, length in removed:
        view.removed(first, first + length - 1)
        left -= set(range(first, first + length))
    assert view.counts(0) == (len([seq for seq in left if seq > 7]), len([seq for seq in left if seq <= 7]), 0)
    assert view.unclaimed(0).tolist() == ranges_of({seq for seq in left if seq > 7}).tolist()
    assert view.snapshot()["seq"].tolist() == [] or set(view.snapshot()["seq"].tolist()) == left & set(range(1, 8))


def test_a_fresh_job_has_no_row() -> None:
    view = view_of(3, priority=4)
    rows = view.rows(array([1, 9, 0]))
    assert rows["seq"].tolist() == [1, 9, 0]
    assert rows["state"].tolist() == [NO_ROW] * 3
    assert len(view.snapshot()) == 0
