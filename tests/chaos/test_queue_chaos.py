"""Job queues under kills of workers and of the server; `make chaos` runs more and longer rounds.

The checker finds every fault that is planted in a valid history.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from queue_chaos import QueueRound, Size
from queue_history import (
    FinalCounts,
    Letter,
    Life,
    QueueFigures,
    QueueHistory,
    QueueKind,
    QueueOutcome,
    Result,
    judge,
    measure,
)
from queue_journal import Journal, mark_in, mark_of, read_journal, task_of, value_of

#: Leases of the second life of the server.
LATER = 1 << 41


# --- rounds ----------------------------------------------------------------------------------------------------------


def test_a_short_round_of_kills_breaks_no_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEAWALL_STORAGE_CHECKPOINT_SIZE", str(1 << 20))
    outcome = QueueRound(175, tmp_path, 0, Size(producers=1, workers=3, hands=3)).run()
    assert not outcome.complaints, str(outcome)
    assert outcome.figures.acks["done"]
    assert outcome.faults == {"worker kill": 2, "server kill": 1}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_round_of_kills_breaks_no_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEAWALL_STORAGE_CHECKPOINT_SIZE", str(1 << 20))
    outcome = QueueRound(4, tmp_path, 20).run()
    assert not outcome.complaints, str(outcome)
    assert outcome.figures.redelivered
    assert outcome.figures.transactions["done"]


# --- the checker -----------------------------------------------------------------------------------------------------


def delivery(queue: str, seq: int, lease: int, count: int, at: int, mark: str, **others: Any) -> tuple[object, ...]:
    """A delivery that was asked for at a time and came 10 later; its lease ends after 500 unless said otherwise."""
    deadline, is_bound = others.get("deadline", at + 500), others.get("is_bound", False)
    return "delivery", queue, seq, lease, count, deadline, at, at + 10, at + 10, is_bound, mark


def acked(queue: str, seq: int, lease: int, at: int, outcome: str = "done", jobs: int = 0) -> list[tuple[object, ...]]:
    """An ack, or a transaction, that took 10."""
    return [("finish", queue, seq, lease, jobs, at), ("finished", queue, seq, lease, outcome, at + 10, at + 10)]


JOURNALS: dict[str, list[tuple[object, ...]]] = {
    "producer": [
        *(("offer", "plain", mark, 0, False) for mark in ("p.1.plain", "p.2.once", "p.3.plain", "p.4.plain")),
        *(("push", "plain", mark, seq) for seq, mark in enumerate(("p.1.plain", "p.2.once", "p.3.plain"), 1)),
        ("push", "plain", "p.4.plain", 0),
        ("offer", "durable", "p.5.plain", 405, False),
        ("push", "durable", "p.5.plain", 1),
        ("offer", "limited", "p.6.poison", 0, False),
        ("push", "limited", "p.6.poison", 1),
        # Its outcome is not known.
        ("offer", "plain", "p.7.plain", 0, False),
        ("offer", "plain", "p.8.plain", 0, True),
        ("push", "plain", "p.8.plain", 5),
        ("push", "plain", "p.8.plain", 5),
    ],
    "a": [
        delivery("plain", 1, 100, 1, 100, "p.1.plain"),
        *acked("plain", 1, 100, 120),
        # The server is killed before it is done.
        delivery("plain", 2, 101, 1, 200, "p.2.once"),
        # It takes longer than its lease.
        delivery("plain", 3, 102, 1, 300, "p.3.plain", deadline=500),
        ("extend", "plain", 3, 102, 800),
        *acked("plain", 3, 102, 900, "refused"),
        # The answer to its ack is lost.
        delivery("plain", 4, 104, 1, 880, "p.4.plain", deadline=9_000),
        ("finish", "plain", 4, 104, 0, 990),
        ("finished", "plain", 4, 104, "refused", 1_040, 1_040),
        delivery("durable", 1, 100, 1, 400, "p.5.plain", deadline=9_000),
        ("return", "durable", 1, 100, 420),
        delivery("limited", 1, 100, 1, 430, "p.6.poison"),
        ("return", "limited", 1, 100, 445),
        delivery("plain", 5, 106, 2, 530, "p.8.plain"),
        *acked("plain", 5, 106, 550),
    ],
    "b": [
        delivery("plain", 2, LATER, 1, 1_100, "p.2.once"),
        *acked("plain", 2, LATER, 1_120, jobs=1),
        delivery("plain", 3, 103, 2, 810, "p.3.plain"),
        *acked("plain", 3, 103, 830),
        delivery("durable", 1, LATER, 2, 1_200, "p.5.plain"),
        *acked("durable", 1, LATER, 1_220),
        delivery("limited", 1, 101, 2, 450, "p.6.poison"),
        ("return", "limited", 1, 101, 465),
    ],
    # It is killed while it has a job of a work loop.
    "killed": [delivery("plain", 5, 105, 1, 500, "p.8.plain", is_bound=True)],
}


def valid() -> QueueHistory:
    history = QueueHistory(
        {"plain": QueueKind(), "durable": QueueKind(leases_durable=True), "limited": QueueKind(max_deliveries=2)},
        [Life(0, 1_000, 1_010), Life(1_020, 5_000, 5_010)],
        {"killed": 515, "a": 4_000, "b": 4_000},
    )
    for name, events in JOURNALS.items():
        history.read(name, events)
    history.results = [Result("plain", 2, LATER, "p.2.once")]
    history.letters = [Letter("limited", 1, "p.6.poison", 2, "max_deliveries", True, "limited-dead")]
    history.counts = {"plain": FinalCounts(), "durable": FinalCounts(), "limited": FinalCounts(dead_lettered=1)}
    return history


def test_a_valid_history_has_no_complaint() -> None:
    assert judge(valid()) == []


def test_a_valid_history_is_measured() -> None:
    figures = measure(valid())
    assert (figures.offers, figures.acked_offers, figures.jobs, figures.deliveries) == (8, 7, 7, 12)
    assert (figures.redelivered, figures.redeliveries, figures.returned, figures.unseen) == (5, 5, 2, 0)
    assert (dict(figures.acks), dict(figures.transactions)) == ({"done": 4, "refused": 2}, {"done": 1})
    assert "5 jobs were delivered more than once, 5 redeliveries, 2 of them after a return" in str(figures)
    assert (figures + QueueFigures(deliveries=3)).deliveries == 15
    assert "GUARANTEES BROKEN\n  it is lost" in str(QueueOutcome(1, figures=figures, complaints=["it is lost"]))


def test_deliveries_that_reach_no_worker_are_counted() -> None:
    history = valid()
    history.deliveries["plain", 3, 103].count = 4
    history.deliveries["plain", 1, 100].count = 2
    assert measure(history).unseen == 3


Plant = Callable[[QueueHistory], object]


def lose(history: QueueHistory) -> None:
    del history.deliveries["plain", 1, 100]


def lose_without_a_seq(history: QueueHistory) -> None:
    del history.deliveries["plain", 4, 104]


def vanish(history: QueueHistory) -> None:
    history.deliveries["plain", 1, 100].finish = None


def refuse_all(history: QueueHistory) -> None:
    finish = history.deliveries["plain", 4, 104].finish
    assert finish is not None
    finish.returned_ns = finish.returned_ms = finish.called_ns + 5


def vanish_in_a_refused_transaction(history: QueueHistory) -> None:
    finish = history.deliveries["plain", 4, 104].finish
    assert finish is not None
    finish.jobs = 1


def deliver_again(history: QueueHistory) -> None:
    history.read("b", [delivery("plain", 1, 107, 2, 700, "p.1.plain")])


def deliver_again_in_another_life(history: QueueHistory) -> None:
    history.read("b", [delivery("plain", 1, LATER + 1, 1, 1_300, "p.1.plain")])


def ack_twice(history: QueueHistory) -> None:
    finish = history.deliveries["plain", 3, 102].finish
    assert finish is not None
    finish.outcome = "done"


def refuse_a_live_lease(history: QueueHistory) -> None:
    finish = history.deliveries["plain", 3, 102].finish
    assert finish is not None
    finish.returned_ms = 799


def set_count(name: tuple[str, int, int], count: int) -> Plant:
    return lambda history: setattr(history.deliveries[name], "count", count)


def set_lease(name: tuple[str, int, int], lease: int) -> Plant:
    def plant(history: QueueHistory) -> None:
        own = history.deliveries.pop(name)
        own.lease = lease
        history.deliveries[(*name[:2], lease)] = own

    return plant


def extend(history: QueueHistory) -> None:
    history.read("a", [("extend", "plain", 3, 102, 821)])


def keep(history: QueueHistory) -> None:
    history.deliveries["durable", 1, 100].returned_ns = None


def return_late(history: QueueHistory) -> None:
    history.deliveries["durable", 1, 100].returned_ns = 1_300


def survive(history: QueueHistory) -> None:
    history.killed_ns["killed"] = 600


def add_result(**changes: Any) -> Plant:
    return lambda history: history.results.append(history.results[0]._replace(**changes))


def change_result(**changes: Any) -> Plant:
    return lambda history: history.results.append(history.results.pop()._replace(**changes))


def refuse_the_transaction(history: QueueHistory) -> None:
    finish = history.deliveries["plain", 2, LATER].finish
    assert finish is not None
    finish.outcome = "void"


def change_letter(**changes: Any) -> Plant:
    return lambda history: history.letters.append(history.letters.pop()._replace(**changes))


def add_letter(**changes: Any) -> Plant:
    return lambda history: history.letters.append(history.letters[0]._replace(**changes))


def change_mark(history: QueueHistory) -> None:
    history.deliveries["plain", 3, 103].mark = "p.1.plain"


def store_twice(history: QueueHistory) -> None:
    history.read("b", [delivery("plain", 9, 108, 1, 900, "p.1.plain"), *acked("plain", 9, 108, 920)])


def never_pushed(history: QueueHistory) -> None:
    history.read("b", [delivery("plain", 9, 108, 1, 900, "p.9.plain"), *acked("plain", 9, 108, 920)])


def push_elsewhere(history: QueueHistory) -> None:
    history.offers["plain", "p.1.plain"].seq = 7


def delay(history: QueueHistory) -> None:
    history.offers["durable", "p.5.plain"].not_before_ms = 411


def set_counts(**changes: int) -> Plant:
    return lambda history: history.counts.update(limited=history.counts["limited"]._replace(**changes))


@pytest.mark.parametrize(
    ("plant", "complaint"),
    [
        (lose, "plain: 'p.1.plain' was pushed as 1, and is lost"),
        (lose_without_a_seq, "plain: 'p.4.plain' was pushed as 0, and is lost"),
        (vanish, "plain 1: it is gone after 1 deliveries, neither acked nor a dead letter"),
        (refuse_all, "plain 4: it is gone after 1 deliveries"),
        (vanish_in_a_refused_transaction, "plain 4: it is gone after 1 deliveries"),
        (deliver_again, "plain 1: it was delivered again, to b, after its ack by a was confirmed"),
        (deliver_again_in_another_life, "plain 1: it was delivered again, to b, after its ack by a was confirmed"),
        (ack_twice, "plain 3: its ack was confirmed 2 times: to a, b"),
        (refuse_a_live_lease, "plain 3: lease 102 was refused although it had not ended"),
        (set_count(("plain", 3, 103), 1), "plain 3: delivery 1 came after delivery 1"),
        (set_count(("durable", 1, LATER), 1), "durable 1: delivery 1 came after delivery 1"),
        (set_count(("durable", 1, LATER), 1), "durable 1: deliveries are counted [1, 1]"),
        (set_count(("durable", 1, 100), 3), "durable 1: delivery 2 came after delivery 3"),
        (set_count(("limited", 1, 101), 3), "limited 1: delivery 3, of 2 that are allowed"),
        (set_lease(("plain", 2, LATER), 110), "plain: 8 leases from 100 on belong together"),
        (extend, "plain 3: it was leased to b while a had it"),
        (keep, "durable 1: it was leased to b while a had it"),
        (return_late, "durable 1: it was leased to b while a had it"),
        (survive, "plain 5: it was leased to a while killed had it"),
        (add_result(), "plain 2: 2 results of 'p.2.once', due is 1"),
        (add_result(seq=1), "plain 1: 1 results of 'p.1.plain', due are 0"),
        (add_result(queue="limited", seq=1), "limited 1: 1 results of 'p.6.poison', due are 0"),
        (add_result(seq=77), "plain 77: a result, and the job was never delivered"),
        (lambda history: history.results.clear(), "plain 2: 0 results of 'p.2.once', due is 1"),
        (lambda history: history.results.clear(), "plain 2: the transaction of lease 2199023255552 was confirmed"),
        (change_result(lease=101), "plain 2: its result is from lease 101, whose transaction was not committed"),
        (refuse_the_transaction, "plain 2: its result is from lease 2199023255552, whose transaction"),
        (change_result(mark="p.1.plain"), "plain 2: its result is that of 'p.1.plain'"),
        (lambda history: history.letters.clear(), "limited 1: it is gone after 2 deliveries, neither acked nor"),
        (lambda history: history.letters.clear(), "with 0 dead letters"),
        (add_letter(), "limited 1: it is a dead letter 2 times"),
        (add_letter(queue="plain"), "plain 1: it was acked by a, and is a dead letter"),
        (add_letter(queue="plain"), "plain 1: it is a dead letter in topic 'limited-dead'"),
        (change_letter(topic="other-dead"), "limited 1: it is a dead letter in topic 'other-dead'"),
        (change_letter(deliveries=1), "limited 1: its dead letter says 1 deliveries and reason 'max_deliveries'"),
        (change_letter(reason="other"), "limited 1: its dead letter says 2 deliveries and reason 'other'"),
        (change_letter(is_complete=False), "limited 1: its dead letter is not complete"),
        (change_mark, "plain 3 was delivered with different values"),
        (store_twice, "plain: 'p.1.plain' was pushed once and is stored at [1, 9]"),
        (never_pushed, "plain: 'p.9.plain' at [9] was never pushed"),
        (push_elsewhere, "plain: 'p.1.plain' was pushed as 7, and is at [1]"),
        (delay, "durable 1: it was delivered 1 ms before its delay had elapsed"),
        (set_counts(ready=1), "limited: FinalCounts(ready=1, "),
        (set_counts(records=1), "records=1) at the end"),
        (set_counts(dead_lettered=2), "limited: FinalCounts(ready=0, leased=0, delayed=0, dead_lettered=2"),
        (lambda history: history.findings.append("a bad page"), "verify: a bad page"),
        (lambda history: history.read("b", JOURNALS["a"][:1]), "plain 1 was delivered twice under lease 100"),
        (lambda history: history.read("b", JOURNALS["a"][1:2]), "b has no lease 100 of plain 1: finish"),
    ],
)
def test_a_planted_fault_is_found(plant: Plant, complaint: str) -> None:
    history = valid()
    plant(history)
    assert any(complaint in problem for problem in judge(history)), judge(history)


def ack_unknown(history: QueueHistory) -> None:
    finish = history.deliveries["plain", 1, 100].finish
    assert finish is not None
    finish.outcome = "unknown"


def store_a_unique_job_twice(history: QueueHistory) -> None:
    """A push under a unique key that is repeated after a lost answer, when the first job is done."""
    history.read("b", [delivery("plain", 9, 108, 1, 900, "p.8.plain"), *acked("plain", 9, 108, 920)])


def lose_a_lease_of_a_group(history: QueueHistory) -> None:
    refuse_a_live_lease(history)
    finish = history.deliveries["plain", 3, 102].finish
    assert finish is not None
    finish.jobs = 2


def forget_a_bound_lease(history: QueueHistory) -> None:
    """The server is killed: the lease of a work loop ends with its connection."""
    keep(history)
    history.deliveries["durable", 1, 100].is_bound = True


def shut_down(history: QueueHistory) -> None:
    """The server begins to end while it hands out the job again."""
    survive(history)
    history.lives[0] = Life(0, 535, 1_010)


@pytest.mark.parametrize(
    "change", [ack_unknown, store_a_unique_job_twice, lose_a_lease_of_a_group, forget_a_bound_lease, shut_down]
)
def test_what_is_not_proven_is_no_complaint(change: Plant) -> None:
    history = valid()
    change(history)
    assert judge(history) == []


# --- journals --------------------------------------------------------------------------------------------------------


def test_a_journal_that_was_cut_off_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path).note(("push", "plain", "p.1.plain", 1), ("push", "plain", "p.2.plain", 2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    Journal(path).note()
    assert read_journal(path) == [["push", "plain", "p.1.plain", 1]]


def test_a_changed_value_has_no_mark() -> None:
    sizes = set()
    for number in range(1_000):
        mark = mark_of("p", number, "once")
        value = value_of(mark)
        sizes.add(len(value) > 1_000)
        assert mark_in(value) == mark
        assert task_of(mark) == "once"
        assert mark_in(value + b"x") != mark
    assert sizes == {True, False}
