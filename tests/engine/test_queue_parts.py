"""The parts of queues: shared changes, lines of claims, recent records, unique keys and numbers of workers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_logs import Call, until

from seawall.core.types import TopicId
from seawall.engine.commit.shared_changes import SharedChanges
from seawall.engine.queues import unique_keys, workers
from seawall.engine.queues.claims import Claim, ClaimLine, shares
from seawall.engine.queues.job_store import live_of
from seawall.engine.queues.recent_blocks import BlockBudget, RecentBlocks, RecordRun, runs_of
from seawall.engine.queues.unique_keys import UniqueKeys
from seawall.engine.queues.workers import WorkerNumbers, digest_of
from seawall.errors import ConflictError, OutcomeUnknownError
from seawall.storage.control.deletes import DeleteRecords
from seawall.storage.segments.delete_sidecar import DeletedSeqs
from seawall.topics.config import TopicConfig
from seawall.topics.state import TopicState

# --- shared changes ---------------------------------------------------------------------------------------------------


class Maker:
    """Makes groups of changes; the first group waits until `gate` is set."""

    def __init__(self, group_max: int = 100) -> None:
        self.groups: list[list[int]] = []
        self.started, self.gate = threading.Event(), threading.Event()
        #: The errors of groups by their number, from 1.
        self.errors: dict[int, BaseException] = {}
        self.changes = SharedChanges(self._make, group_max)

    def _make(self, group: Sequence[int]) -> None:
        self.groups.append(list(group))
        self.started.set()
        assert self.gate.wait(30)
        if len(self.groups) in self.errors:
            raise self.errors[len(self.groups)]

    def execute(self, change: int) -> None:
        self.changes.execute(self.changes.queue(change))

    def queued(self, count: int) -> None:
        """Wait until so many changes wait."""
        until(lambda: len(self.changes._queued) == count)


def test_changes_share_groups_in_their_order() -> None:
    maker = Maker(group_max=3)
    calls = [Call(lambda: maker.execute(0))]
    assert maker.started.wait(30)
    for number in range(1, 8):
        calls.append(Call(lambda number=number: maker.execute(number)))
        maker.queued(number)
    assert all(call.is_running for call in calls)
    maker.gate.set()
    for call in calls:
        call.result()
    assert maker.groups == [[0], [1, 2, 3], [4, 5, 6], [7]]
    maker.execute(8)
    assert maker.groups[-1] == [8]


def test_an_error_reaches_every_thread_of_its_group_and_no_other() -> None:
    maker = Maker(group_max=2)
    first = Call(lambda: maker.execute(0))
    assert maker.started.wait(30)
    calls = []
    for number in (1, 2, 3):
        calls.append(Call(lambda number=number: maker.execute(number)))
        maker.queued(number)
    maker.errors[2] = ConflictError("no")
    maker.gate.set()
    for call in (first, calls[2]):
        call.result()
    for call in calls[:2]:
        with pytest.raises(ConflictError):
            call.result()
    maker.execute(4)
    assert maker.groups == [[0], [1, 2], [3], [4]]


def test_an_interrupted_leader_leaves_the_outcome_unknown_to_the_others() -> None:
    maker = Maker()
    holder = Call(lambda: maker.execute(0))
    assert maker.started.wait(30)

    def lead() -> None:
        with pytest.raises(KeyboardInterrupt):
            maker.execute(1)

    leader = Call(lead)
    maker.queued(1)
    other = Call(lambda: maker.execute(2))
    maker.queued(2)
    maker.errors[2] = KeyboardInterrupt()
    maker.gate.set()
    holder.result()
    leader.result()
    with pytest.raises(OutcomeUnknownError, match="interrupted"):
        other.result()
    maker.execute(3)
    assert maker.groups == [[0], [1, 2], [3]]


@pytest.mark.parametrize("leads", [False, True])
def test_the_change_of_an_interrupted_thread_is_withdrawn(leads: bool) -> None:
    """Also if it was about to lead: the next thread leads."""
    maker = Maker()
    maker.gate.set()
    queued = [maker.changes.queue(number) for number in range(4)]
    if leads:
        # The first one leads its group of one, and names the second as the next leader.
        maker.changes._group_max = 1
        maker.changes.execute(queued[0])
        assert queued[1].leads
        maker.changes._withdraw(queued[1])
        maker.changes._group_max = 100
    else:
        maker.changes._withdraw(queued[1])
        maker.changes.execute(queued[0])
    for each in queued[2:]:
        maker.changes.execute(each)
    assert [number for group in maker.groups for number in group] == [0, 2, 3]
    assert maker.changes._queued == []
    assert not maker.changes._has_leader


def test_a_change_may_be_named_as_leader_before_its_thread_executes_it() -> None:
    maker = Maker(group_max=1)
    maker.gate.set()
    queued = [maker.changes.queue(number) for number in range(3)]
    for each in queued:
        maker.changes.execute(each)
    assert maker.groups == [[0], [1], [2]]


def test_changes_of_many_threads_are_made_once() -> None:
    made = Counter[int]()
    changes = SharedChanges[int](made.update, 7)

    def work(first: int) -> None:
        for number in range(first, first + 200):
            changes.execute(changes.queue(number))

    for call in [Call(lambda first=first: work(first)) for first in range(0, 1_600, 200)]:
        call.result()
    assert made == Counter(range(1_600))


# --- claims -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=30), st.integers(0, 5_000))
def test_shares_are_fair(wanted: list[int], ready: int) -> None:
    found = shares(wanted, ready)
    assert sum(found) == min(ready, sum(wanted))
    assert all(0 <= share <= count for share, count in zip(found, wanted, strict=True))
    for share, count in zip(found, wanted, strict=True):
        # In proportion, to within the jobs that cannot be divided.
        assert abs(share - min(1, ready / sum(wanted)) * count) <= 1


def new_claim(woken: list[int], number: int = 0, *, may_watch: bool = True) -> Claim:
    return Claim("w", 1, 0, lambda: woken.append(number), may_watch=may_watch)


def test_a_line_serves_first_come_first_served() -> None:
    line, woken = ClaimLine(), list[int]()
    claims = [new_claim(woken, number) for number in range(3)]
    for claim in claims:
        line.add(claim, 100, 0)
    assert line.due(100) == claims
    line.decided(claims[0])
    claims[0].decide(None)
    assert (woken, line.due(100), len(line)) == ([0], claims[1:], 2)
    line.remove(claims[1])
    line.remove(claims[1])
    assert line.due(100) == claims[2:]


def test_a_cohort_is_gathered_and_then_due() -> None:
    line = ClaimLine()
    claims = [new_claim([]) for _ in range(3)]
    line.add(claims[0], 100, 50)
    line.add(claims[1], 140, 50)
    assert (line.cohort_at_ms, line.due(149)) == (150, [])
    assert line.due(150) == claims[:2]
    assert line.cohort_at_ms == 0
    line.add(claims[2], 160, 50)
    assert line.due(209) == []
    assert line.due(210) == claims


def test_another_claim_watches_when_the_watcher_leaves() -> None:
    line, woken = ClaimLine(), list[int]()
    first, task, last = new_claim(woken, 1), new_claim(woken, 2, may_watch=False), new_claim(woken, 3)
    for claim in (first, task, last):
        line.add(claim, 0, 0)
    assert line.watches(first)
    assert not line.watches(last)
    line.remove(first)
    line.stop_watching(last)
    assert woken == []
    line.stop_watching(first)
    assert woken == [3]
    assert line.watches(last)
    line.remove(last)
    line.stop_watching(last)
    # A claim that was decided does not watch.
    assert line.watcher is None
    assert not line.watches(last)


def test_all_claims_of_a_line_fail_together() -> None:
    line, woken = ClaimLine(), list[int]()
    claims = [new_claim(woken, number) for number in range(3)]
    for claim in claims:
        line.add(claim, 0, 0)
    error = ConflictError("x")
    line.fail(error)
    assert len(line) == 0
    assert [claim.error for claim in claims] == [error] * 3
    assert woken == [0, 1, 2]


def test_no_claim_is_withdrawn_while_claims_are_served() -> None:
    line = ClaimLine()
    claim = new_claim([])
    line.add(claim, 0, 0)
    with line.serving:
        call = Call(lambda: line.remove(claim))
        line.decided(claim)
        claim.decide(None)
        assert call.is_running
    call.result()
    assert claim.is_done


# --- recent records ---------------------------------------------------------------------------------------------------


def run_of(first_seq: int, *sizes: int, batches: Sequence[int] = (0,)) -> RecordRun:
    starts = np.cumsum([0, *sizes], dtype=np.int64)
    data = b"".join(bytes([first_seq + number & 0xFF]) * size for number, size in enumerate(sizes))
    firsts = np.array(batches, np.int64)
    return RecordRun(first_seq, memoryview(data), starts, firsts, firsts * 1_000)


def test_a_run_knows_its_records() -> None:
    run = run_of(10, 2, 3, 4, 5, batches=(0, 2))
    assert run.end_seq == 14
    assert bytes(run.bytes_of(11, 13)) == b"\x0b" * 3 + b"\x0c" * 4
    seqs = np.array([10, 12, 13])
    assert run.sizes(seqs).tolist() == [2, 4, 5]
    assert run.times_ns(seqs).tolist() == [0, 2_000, 2_000]
    assert [run.end_within(11, 14, size) for size in (0, 2, 3, 6, 7, 11, 12, 99)] == [12, 12, 12, 12, 13, 13, 14, 14]
    assert run.end_within(11, 12, 99) == 12


def test_runs_are_found_and_never_overlap() -> None:
    blocks = RecentBlocks(BlockBudget())
    first, second = run_of(1, 1, 1, 1), run_of(10, 1, 1)
    blocks.add(second)
    blocks.add(first)
    for overlapping in (run_of(3, 1), run_of(1, 1), run_of(2, *[1] * 9), run_of(11, 1), run_of(9, 1, 1)):
        blocks.add(overlapping)
    assert [blocks.find(seq) for seq in (0, 1, 3, 4, 9, 10, 11, 12)] == [
        None,
        first,
        first,
        None,
        None,
        second,
        second,
        None,
    ]
    blocks.add(run_of(4, *[1] * 6))
    assert blocks.find(9) is not None


def test_the_oldest_runs_of_all_queues_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockBudget, "SIZE_MAX", 10)
    monkeypatch.setattr(BlockBudget, "RUN_SIZE_MAX", 8)
    budget = BlockBudget()
    one, other = RecentBlocks(budget), RecentBlocks(budget)
    one.add(run_of(1, 5))
    other.add(run_of(1, 5))
    one.add(run_of(9, 9))
    assert one.find(9) is None
    one.add(run_of(5, 3))
    assert (one.find(1), one.find(5) is not None, other.find(1) is not None) == (None, True, True)
    one.add(run_of(7, 8))
    assert (other.find(1), one.find(5)) == (None, None)
    assert one.find(7) is not None


@given(st.sets(st.integers(1, 60)))
def test_runs_of_seqs(seqs: set[int]) -> None:
    runs = list(runs_of(np.array(sorted(seqs), np.int64)))
    assert {seq for first, end in runs for seq in range(first, end)} == seqs
    assert all(before[1] < after[0] for before, after in pairwise(runs))


# --- topics -----------------------------------------------------------------------------------------------------------


def topic_with(records: int) -> TopicState:
    topic = TopicState(TopicId(3), "jobs", 3, TopicConfig())
    topic.head_seq = topic.live_records = records
    return topic


def delete(topic: TopicState, *seqs: int) -> None:
    topic.apply(DeleteRecords(topic.topic_id, DeletedSeqs.of(np.array(seqs, np.int64)), 0))


@given(st.sets(st.integers(1, 30)), st.sets(st.integers(1, 40)))
def test_the_live_ones_of_seqs(deleted: set[int], seqs: set[int]) -> None:
    topic = topic_with(30)
    if deleted:
        delete(topic, *sorted(deleted))
    found = live_of(topic, np.array(sorted(seqs), np.int64))
    assert set(found.tolist()) == {seq for seq in seqs if seq <= 30} - deleted


def test_a_unique_key_is_free_when_its_jobs_are_gone() -> None:
    topic = topic_with(10)
    keys = UniqueKeys(topic)
    keys.add(b"k", 3)
    keys.add(b"k", 5)
    keys.add(b"l", 4)
    assert (keys.find(b"k"), keys.find(b"l"), keys.find(b"m")) == (3, 4, None)
    delete(topic, 3)
    assert keys.find(b"k") == 5
    delete(topic, 4, 5)
    assert (keys.find(b"k"), keys.find(b"l")) == (None, None)
    keys.add(b"k", 9)
    assert keys.find(b"k") == 9


def test_keys_of_finished_jobs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unique_keys, "_CHECK_AT_MIN", 8)
    topic = topic_with(1_000)
    keys = UniqueKeys(topic)
    for seq in range(1, 1_001):
        keys.add(b"%d" % seq, seq)
        if seq != 500:
            delete(topic, seq)
        assert len(keys._seqs) <= 8
    assert keys.find(b"500") == 500


def test_workers_without_leases_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_NAMES_MAX", 10)
    held: set[int] = set()
    numbers = WorkerNumbers(lambda: held)
    first = numbers.of("holder")
    held.add(first)
    assert numbers.of("holder") == numbers.of_digest(digest_of("holder")) == first
    seen = {numbers.of(f"w{number}") for number in range(100)}
    assert len(seen) == 100
    assert first not in seen
    assert len(numbers._numbers) <= 22
    # Whoever holds a lease keeps its number; another name never gets it.
    assert numbers.of("holder") == first
    assert 0 <= digest_of("é" * 64) < 1 << 63
