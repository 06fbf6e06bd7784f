"""The history of job queues under faults, and its checker: pure, so that tests can plant faults.

    offers      jobs that producers pushed, and whether the push was acked
    deliveries  jobs that workers received, each with its lease, and what the worker did with it
    results     what transactions published together with the ack of a job
    letters     dead letters
    counts      each queue at the end, when everything was drained
    lives       when the server ran; killed: when workers were killed

`judge` returns complaints; none if every guarantee holds. It complains only about what the journals prove. A worker
sees a lease between its call and the answer; the server granted it at some moment in between. Lease ids of one life
of the server count up from a random number, so they show which leases were granted in one life, and in which order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from typing import Any, NamedTuple, TypeAlias

from queue_journal import ONCE, task_of

#: Leases of one life are closer to each other, those of different lives farther apart (by 2^40 at random).
LEASE_STEP = 1 << 20

#: A queue and a seq.
JobName: TypeAlias = tuple[str, int]


class QueueKind(NamedTuple):
    """The settings of a queue that decide what is promised."""

    leases_durable: bool = False
    max_deliveries: int = 0


@dataclass
class Offer:
    """A job that a producer pushed."""

    queue: str
    mark: str
    #: By the wall clock, before the push; 0 without a delay.
    not_before_ms: int = 0
    #: Pushed under a unique key: a push that is repeated after a lost answer may find its first job done.
    is_unique: bool = False
    is_acked: bool = False
    #: 0 if it is not known.
    seq: int = 0


@dataclass
class Finish:
    """An ack of a job, or its transaction."""

    #: How many jobs the transaction finishes; 0 for an ack.
    jobs: int
    called_ns: int
    #: "done"; "refused": the lease was lost; "void": it has failed for another reason; "unknown".
    outcome: str = "unknown"
    returned_ns: int = 0
    returned_ms: int = 0


@dataclass
class Delivery:
    """A job as a worker received it, and what the worker did with it."""

    queue: str
    seq: int
    lease: int
    #: How often the job was delivered, as the server says.
    count: int
    #: The end of the lease, after its last confirmed extension.
    deadline_ms: int
    #: The lease was granted between these times.
    requested_ns: int
    received_ns: int
    received_ms: int
    #: The lease ends with the connection of the worker.
    is_bound: bool
    mark: str
    worker: str = ""
    #: Before the worker gave the job back.
    returned_ns: int | None = None
    finish: Finish | None = None

    @property
    def job(self) -> JobName:
        return self.queue, self.seq


class Result(NamedTuple):
    """A record that a transaction published with the ack of a job."""

    queue: str
    seq: int
    lease: int
    mark: str


class Letter(NamedTuple):
    """A dead letter, with what it says about its job."""

    queue: str
    seq: int
    mark: str
    deliveries: int
    reason: str
    #: Value, key, headers and meta are those of the job.
    is_complete: bool = True
    #: The topic that it is in.
    topic: str = ""


class FinalCounts(NamedTuple):
    """A queue after it was drained."""

    ready: int = 0
    leased: int = 0
    delayed: int = 0
    dead_lettered: int = 0
    #: Live records of its topic.
    records: int = 0


class Life(NamedTuple):
    """A life of the server: just before its start, just before the signal that ends it, and after its end."""

    started_ns: int
    ending_ns: int
    ended_ns: int


@dataclass
class QueueHistory:
    """One round."""

    kinds: dict[str, QueueKind]
    lives: list[Life] = field(default_factory=list)
    #: When a worker was killed, or told to stop, by its name.
    killed_ns: dict[str, int] = field(default_factory=dict)
    offers: dict[tuple[str, str], Offer] = field(default_factory=dict)
    deliveries: dict[tuple[str, int, int], Delivery] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    counts: dict[str, FinalCounts] = field(default_factory=dict)
    #: What `verify` found in the data directory.
    findings: list[str] = field(default_factory=list)
    #: What the journals already contradict.
    problems: list[str] = field(default_factory=list)

    def read(self, worker: str, events: Iterable[Sequence[Any]]) -> None:
        """Add the journal of a process."""
        for what, queue, *fields in events:
            if what == "offer":
                mark, not_before_ms, is_unique = fields
                self.offers[queue, mark] = Offer(queue, mark, not_before_ms, is_unique)
            elif what == "push":
                offer = self.offers[queue, fields[0]]
                offer.is_acked, offer.seq = True, fields[1]
            elif what == "delivery":
                delivery = Delivery(queue, *fields, worker)
                if self.deliveries.setdefault((queue, *fields[:2]), delivery) is not delivery:
                    self.problems.append(f"{name_of(delivery.job)} was delivered twice under lease {delivery.lease}")
            elif (found := self.deliveries.get((queue, *fields[:2]))) is None or found.worker != worker:
                self.problems.append(f"{worker} has no lease {fields[1]} of {name_of((queue, fields[0]))}: {what}")
            else:
                self._note(found, what, fields[2:])

    @staticmethod
    def _note(delivery: Delivery, what: str, fields: Sequence[Any]) -> None:
        """Add what a worker did with a job."""
        if what == "finish":
            delivery.finish = Finish(*fields)
        elif what == "finished":
            assert delivery.finish is not None, "it is noted before the call"
            delivery.finish.outcome, delivery.finish.returned_ns, delivery.finish.returned_ms = fields
        elif what == "return":
            delivery.returned_ns = fields[0]
        elif what == "extend":
            delivery.deadline_ms = fields[0]
        else:
            raise ValueError(f"unknown event {what!r}")


def name_of(job: JobName) -> str:
    return f"{job[0]} {job[1]}"


# --- the order of leases ---------------------------------------------------------------------------------------------


class Grants:
    """The order in which the server granted the leases of one queue, as far as it can be proven."""

    def __init__(self, deliveries: Sequence[Delivery], lives: Sequence[Life]) -> None:
        self._starts = [life.started_ns for life in lives]
        self._ends = [life.ended_ns for life in lives]
        #: The leases of one life, by its lowest lease: the first and the last life that it can be.
        self._lives: dict[int, tuple[int, int]] = {}
        self._groups: dict[int, int] = {}
        self.problems: list[str] = []
        ordered = sorted(deliveries, key=lambda each: each.lease)
        ends = [
            number for number, (one, next_) in enumerate(pairwise(ordered), 1) if next_.lease - one.lease > LEASE_STEP
        ]
        for first, end in pairwise([0, *ends, len(ordered)] if ordered else []):
            self._add_group(ordered[first:end])

    def _add_group(self, group: Sequence[Delivery]) -> None:
        lowest = group[0].lease
        self._groups.update((each.lease, lowest) for each in group)
        first = max(bisect_left(self._ends, each.requested_ns) for each in group)
        last = min(bisect_right(self._starts, each.received_ns) for each in group) - 1
        self._lives[lowest] = first, last
        if first > last:
            self.problems.append(
                f"{group[0].queue}: {len(group)} leases from {lowest} on belong together, and were granted in "
                "different lives of the server"
            )

    def is_same_life(self, one: Delivery, other: Delivery) -> bool:
        """True if both were granted in the same life."""
        return self._groups[one.lease] == self._groups[other.lease]

    def is_later(self, second: Delivery, first: Delivery) -> bool:
        """True if the server granted `second` after `first`, for certain."""
        if self.is_same_life(second, first):
            return second.lease > first.lease
        second_lives, first_lives = (self._lives[self._groups[each.lease]] for each in (second, first))
        return second_lives[0] > first_lives[1] or second.requested_ns > first.received_ns


def has_ended(lives: Sequence[Life], from_ns: int, to_ns: int) -> bool:
    """True if the server may have ended between two times, so that answers may be lost."""
    return any(life.ending_ns <= to_ns and from_ns <= life.ended_ns for life in lives)


# --- the checker -----------------------------------------------------------------------------------------------------


def judge(history: QueueHistory) -> list[str]:
    """Every broken guarantee."""
    complaints = [*history.problems, *(f"verify: {finding}" for finding in history.findings)]
    deliveries = deliveries_by_job(history)
    letters: dict[JobName, list[Letter]] = defaultdict(list)
    for letter in history.letters:
        letters[letter.queue, letter.seq].append(letter)
    results: dict[JobName, list[Result]] = defaultdict(list)
    for result in history.results:
        results[result.queue, result.seq].append(result)
    complaints += _judge_names(history, deliveries)
    for queue, kind in history.kinds.items():
        grants = Grants([each for each in history.deliveries.values() if each.queue == queue], history.lives)
        complaints += grants.problems
        for job in sorted(job for job in deliveries.keys() | letters.keys() if job[0] == queue):
            own = deliveries.get(job, [])
            found = [
                *_judge_deliveries(history, kind, grants, own),
                *_judge_end(history, kind, own, letters.get(job, []), results.get(job, [])),
            ]
            complaints += [f"{name_of(job)}: {problem}" for problem in found]
    complaints += [
        f"{name_of(job)}: a result, and the job was never delivered" for job in results if job not in deliveries
    ]
    complaints += _judge_counts(history)
    return complaints


def deliveries_by_job(history: QueueHistory) -> dict[JobName, list[Delivery]]:
    """The deliveries of each job."""
    found: dict[JobName, list[Delivery]] = defaultdict(list)
    for delivery in history.deliveries.values():
        found[delivery.job].append(delivery)
    return found


def _judge_names(history: QueueHistory, deliveries: dict[JobName, list[Delivery]]) -> Iterator[str]:
    """Each job that was pushed is there once, at the seq of its ack, and nothing else is."""
    seen: dict[tuple[str, str], set[int]] = defaultdict(set)
    for job, own in deliveries.items():
        for each in own:
            seen[each.queue, each.mark].add(each.seq)
        if len({each.mark for each in own}) > 1:
            yield f"{name_of(job)} was delivered with different values"
    for letter in history.letters:
        seen[letter.queue, letter.mark].add(letter.seq)
    for (queue, mark), seqs in seen.items():
        offer = history.offers.get((queue, mark))
        if offer is None:
            yield f"{queue}: {mark!r} at {sorted(seqs)} was never pushed"
        elif len(seqs) > 1 and not offer.is_unique:
            yield f"{queue}: {mark!r} was pushed once and is stored at {sorted(seqs)}"
    for (queue, mark), offer in history.offers.items():
        seqs = seen.get((queue, mark), set())
        if offer.is_acked and not seqs:
            yield f"{queue}: {mark!r} was pushed as {offer.seq}, and is lost: it was never delivered"
        elif offer.is_acked and offer.seq and offer.seq not in seqs:
            yield f"{queue}: {mark!r} was pushed as {offer.seq}, and is at {sorted(seqs)}"


def _judge_deliveries(
    history: QueueHistory, kind: QueueKind, grants: Grants, deliveries: Sequence[Delivery]
) -> Iterator[str]:
    """The leases of one job."""
    for each in deliveries:
        offer = history.offers.get((each.queue, each.mark))
        if offer is not None and each.received_ms < offer.not_before_ms:
            yield f"it was delivered {offer.not_before_ms - each.received_ms} ms before its delay had elapsed"
        if kind.max_deliveries and each.count > kind.max_deliveries:
            yield f"delivery {each.count}, of {kind.max_deliveries} that are allowed"
        if _was_wrongly_refused(history, each):
            yield f"lease {each.lease} was refused although it had not ended"
    if kind.leases_durable and len({each.count for each in deliveries}) < len(deliveries):
        yield f"deliveries are counted {sorted(each.count for each in deliveries)}"
    for first, second in permutations(deliveries, 2):
        if not grants.is_later(second, first):
            continue
        if first.finish is not None and first.finish.outcome == "done":
            yield f"it was delivered again, to {second.worker}, after its ack by {first.worker} was confirmed"
        are_counted_together = kind.leases_durable or grants.is_same_life(first, second)
        if are_counted_together and second.count <= first.count:
            yield f"delivery {second.count} came after delivery {first.count}"
        if are_counted_together and _overlap(history, first, second, grants.is_same_life(first, second)):
            yield f"it was leased to {second.worker} while {first.worker} had it"


def _overlap(history: QueueHistory, first: Delivery, second: Delivery, is_same_life: bool) -> bool:
    """True if the second lease was granted before the first had ended, for certain."""
    if second.received_ms >= first.deadline_ms:
        return False
    if first.returned_ns is not None and first.returned_ns < second.received_ns:
        return False
    if first.finish is not None and first.finish.outcome == "done":
        # That is another complaint.
        return False
    if first.is_bound:
        # The server ends connections, too, when it shuts down.
        is_alive = second.received_ns < history.killed_ns.get(first.worker, second.received_ns + 1)
        return is_same_life and is_alive and not has_ended(history.lives, first.requested_ns, second.received_ns)
    return True


def _was_wrongly_refused(history: QueueHistory, delivery: Delivery) -> bool:
    """True if a worker still had a job for certain, and its ack was refused."""
    finish = delivery.finish
    return (
        finish is not None
        and finish.outcome == "refused"
        and finish.jobs <= 1
        and finish.returned_ms < delivery.deadline_ms
        and delivery.returned_ns is None
        and not has_ended(history.lives, delivery.requested_ns, finish.returned_ns)
    )


def _may_be_done(history: QueueHistory, finish: Finish) -> bool:
    """True if an ack may have taken effect although no answer confirms it.

    An ack is repeated after a lost answer, and finds the job gone. A refused transaction has no effect.
    """
    if finish.outcome == "refused" and not finish.jobs:
        return has_ended(history.lives, finish.called_ns, finish.returned_ns)
    return finish.outcome == "unknown"


def _judge_end(
    history: QueueHistory,
    kind: QueueKind,
    deliveries: Sequence[Delivery],
    letters: Sequence[Letter],
    results: Sequence[Result],
) -> Iterator[str]:
    """What has become of one job: acked once, or one dead letter; and its result."""
    finishes = [each.finish for each in deliveries if each.finish is not None]
    done = [each for each in deliveries if each.finish is not None and each.finish.outcome == "done"]
    if len(done) > 1:
        yield f"its ack was confirmed {len(done)} times: to {', '.join(each.worker for each in done)}"
    if not done and not letters and not any(_may_be_done(history, finish) for finish in finishes):
        yield f"it is gone after {len(deliveries)} deliveries, neither acked nor a dead letter"
    if done and letters:
        yield f"it was acked by {done[0].worker}, and is a dead letter"
    if len(letters) > 1:
        yield f"it is a dead letter {len(letters)} times"
    for letter in letters:
        yield from _judge_letter(kind, letter)
    yield from _judge_results(deliveries, letters, results)


def _judge_letter(kind: QueueKind, letter: Letter) -> Iterator[str]:
    if not kind.max_deliveries or letter.topic != f"{letter.queue}-dead":
        yield f"it is a dead letter in topic {letter.topic!r}"
    if (letter.deliveries, letter.reason) != (kind.max_deliveries, "max_deliveries"):
        yield f"its dead letter says {letter.deliveries} deliveries and reason {letter.reason!r}"
    if not letter.is_complete:
        yield "its dead letter is not complete"


def _judge_results(
    deliveries: Sequence[Delivery], letters: Sequence[Letter], results: Sequence[Result]
) -> Iterator[str]:
    """A job of task ONCE has one result, unless it is a dead letter; other jobs have none."""
    mark = deliveries[0].mark if deliveries else ""
    due = 1 if task_of(mark) == ONCE and not letters else 0
    if len(results) != due:
        yield f"{len(results)} results of {mark!r}, due {'is' if due == 1 else 'are'} {due}"
    by_lease = {each.lease: each.finish for each in deliveries}
    for result in results:
        finish = by_lease.get(result.lease)
        if finish is None or not finish.jobs or finish.outcome in ("refused", "void"):
            yield f"its result is from lease {result.lease}, whose transaction was not committed"
        if result.mark != mark:
            yield f"its result is that of {result.mark!r}"
    for each in deliveries:
        is_committed = each.finish is not None and each.finish.jobs > 0 and each.finish.outcome == "done"
        if is_committed and each.lease not in {result.lease for result in results}:
            yield f"the transaction of lease {each.lease} was confirmed, and its result is not there"


def _judge_counts(history: QueueHistory) -> Iterator[str]:
    letters = Counter(letter.queue for letter in history.letters)
    for queue in history.kinds:
        counts = history.counts.get(queue)
        if counts != FinalCounts(dead_lettered=letters[queue]):
            yield f"{queue}: {counts} at the end, with {letters[queue]} dead letters"


# --- figures ---------------------------------------------------------------------------------------------------------


@dataclass
class QueueFigures:
    """What a round has measured."""

    offers: int = 0
    acked_offers: int = 0
    jobs: int = 0
    deliveries: int = 0
    #: Jobs that were delivered more than once; their deliveries after the first, and those after a return by a worker.
    redelivered: int = 0
    redeliveries: int = 0
    returned: int = 0
    #: Deliveries that the counts of later ones imply, and that no worker has noted.
    unseen: int = 0
    acks: Counter[str] = field(default_factory=Counter)
    transactions: Counter[str] = field(default_factory=Counter)
    results: int = 0
    letters: int = 0

    def __add__(self, other: QueueFigures) -> QueueFigures:
        return QueueFigures(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs ({self.acked_offers} of {self.offers} pushes acked), {self.deliveries} deliveries: "
            f"{self.redelivered} jobs were delivered more than once, {self.redeliveries} redeliveries, "
            f"{self.returned} of them after a return by the worker; at least {self.unseen} more reached no worker\n"
            f"  acks: {listed(self.acks)}; transactions: {listed(self.transactions)}; {self.results} results, "
            f"{self.letters} dead letters"
        )


def listed(counted: Counter[str]) -> str:
    """Counts as text."""
    return ", ".join(f"{counted[what]} {what}" for what in sorted(counted)) or "none"


def measure(history: QueueHistory) -> QueueFigures:
    """The figures of a history."""
    by_job = deliveries_by_job(history)
    figures = QueueFigures(
        offers=len(history.offers),
        acked_offers=sum(offer.is_acked for offer in history.offers.values()),
        jobs=len(by_job.keys() | {(letter.queue, letter.seq) for letter in history.letters}),
        deliveries=len(history.deliveries),
        redelivered=sum(len(own) > 1 for own in by_job.values()),
        redeliveries=len(history.deliveries) - len(by_job),
        results=len(history.results),
        letters=len(history.letters),
    )
    for own in by_job.values():
        own.sort(key=lambda each: each.received_ns)
        figures.unseen += own[0].count - 1
        for first, second in pairwise(own):
            figures.returned += first.returned_ns is not None
            # The count begins again at 1 in another life, unless it is durable.
            figures.unseen += second.count - (first.count if second.count > first.count else 0) - 1
    for each in history.deliveries.values():
        if each.finish is not None:
            (figures.transactions if each.finish.jobs else figures.acks)[each.finish.outcome] += 1
    return figures


@dataclass
class QueueOutcome:
    """The result of a round."""

    seed: int
    seconds: float = 0.0
    #: Faults by their kind.
    faults: Counter[str] = field(default_factory=Counter)
    figures: QueueFigures = field(default_factory=QueueFigures)
    complaints: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        said = (
            "no guarantee broken" if not self.complaints else "\n  ".join(["GUARANTEES BROKEN", *self.complaints[:20]])
        )
        return f"seed {self.seed}, {self.seconds:.0f} s: {listed(self.faults)}\n  {self.figures}: {said}"
