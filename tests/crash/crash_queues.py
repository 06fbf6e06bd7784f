"""A queue under random commands, and a plain model of it: one object for each job, searched as a whole each time.

    history = QueueHistory(seed)
    history.run()                       # every command is compared with the model, and the whole queue after it
    history.run_with_crash(nth)         # the disk crashes at its nth changing call; then nothing is lost or doubled

What the model knows of a job is exact within a life of the log. A restart ends leases, unless the topic keeps them; a
crash leaves the command that it interrupted done, or not done, or done for some of the jobs that it concerned.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from crash_history import NS_PER_MS
from crash_world import BEGAN_NS

from seawall.api.publishable import Message
from seawall.api.queues.jobs import JobKeys
from seawall.api.received_record import ReceivedRecord
from seawall.core.transactions import JobAck
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.commit.worker_thread import WorkerThread
from seawall.engine.queues.dead_letters import _RETRY_MS
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.errors import ConflictError
from seawall.limits import KIB
from seawall.testing import SimClock, SimCrash, SimDisk
from seawall.topics.gaps import Gap
from seawall.topics.queues import lease_view
from seawall.topics.state import TopicState
from seawall.wire.jobs.rows import ClaimedJobs

SETTINGS = StoreSettings(wal_file_size=128 * KIB, ballast_size=4 * KIB, ceiling_step=64, checkpoint_size=1 << 62)
STEPS = 40
NODES = ("ada", "bob")
UNIQUE_KEYS = (b"k1", b"k2")
FRESH, RETURNED, EXPIRED, LEASED, DELAYED = "fresh", "returned", "expired", "leased", "delayed"
READY = (FRESH, RETURNED, EXPIRED)

#: What a job of the model is in rows of the view.
VIEW_STATES = {
    FRESH: lease_view.NO_ROW,
    RETURNED: lease_view.RETURNED,
    EXPIRED: lease_view.LEASED,
    LEASED: lease_view.LEASED,
    DELAYED: lease_view.DELAYED,
}


@dataclass
class ModelJob:
    """One job: its record, and its state."""

    seq: int
    number: int
    priority: int
    not_before_ms: int
    key: bytes | None
    state: str = FRESH
    deliveries: int = 0
    lease_id: int = 0
    node: str = ""
    #: When the lease or the delay ends.
    time_ms: int = 0
    #: State, deliveries, lease, node and time as the log has them; None if it does not know of any.
    logged: tuple[str, int, int, str, int] | None = None

    @property
    def order(self) -> tuple[int, bool, int]:
        return -self.priority, self.state == FRESH, self.seq

    @property
    def is_held(self) -> bool:
        return self.state in (LEASED, EXPIRED)

    def free(self, state: str, time_ms: int = 0) -> None:
        self.state, self.time_ms, self.lease_id, self.node = state, time_ms, 0, ""

    def tick(self, now_ms: int) -> None:
        """An ended lease or delay stays ended, also if the clock goes back."""
        if self.state == LEASED and self.time_ms < now_ms:
            self.state = EXPIRED
        elif self.state == DELAYED and self.time_ms <= now_ms:
            self.free(RETURNED)

    def admit(self, now_ms: int) -> None:
        """A scan has found the record, in a life of the log that knows nothing else of it."""
        self.deliveries = 0
        if self.not_before_ms > now_ms:
            self.free(DELAYED, self.not_before_ms)
        else:
            self.free(FRESH)

    def note_logged(self) -> None:
        self.logged = (self.state, self.deliveries, self.lease_id, self.node, self.time_ms)


@dataclass
class Letter:
    """One dead letter: the job that it was, and what its meta says."""

    job: ModelJob
    meta: dict[str, object]


@dataclass(frozen=True)
class Handle:
    """A delivery that a worker remembers, perhaps for longer than its lease."""

    seq: int
    lease_id: int
    node: str


@dataclass
class Flight:
    """The command that runs when the disk crashes: where the jobs that it concerns may be then."""

    #: Numbers of jobs, and whether each may be in the queue, among the dead letters, or gone.
    may_be_gone: set[int] = field(default_factory=set)
    may_be_dead: set[int] = field(default_factory=set)
    may_be_live: set[int] = field(default_factory=set)
    #: Jobs of which all are gone, or all live.
    together: set[int] = field(default_factory=set)
    #: True if leases may have changed.
    leases: bool = False


class CommitterHere(WorkerThread):
    """Commits on the thread that calls: a crash of the disk ends the command."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(work)
        self.commit = work

    def wake(self) -> None:
        self.commit()

    def stop(self) -> None:
        self.commit()


class BrokenQueueError(AssertionError):
    """A promise of queues that a history has found broken."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise BrokenQueueError(message)


class QueueHistory:
    """A queue, its dead letters and its results, under random commands."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(f"queue {seed}")
        self.disk = SimDisk(seed=seed)
        self.clock = SimClock(wall_ns=BEGAN_NS)
        self.machine = Machine(self.disk, self.clock, random.Random(f"ids {seed}").randbytes, pid=7)
        self.keeps_leases = chance.random() < 0.3
        self.deliveries_max = chance.choice((0, 1, 1, 2, 3))
        self.dead_cap = chance.choice((0, 0, 4))
        self.dead_type = chance.choice(("log", "queue"))
        self.lease_ms = chance.choice((100, 1_000))
        #: The jobs in the queue by seq, the dead letters and the results in their order.
        self.jobs: dict[int, ModelJob] = {}
        self.dead: list[Letter] = []
        self.results: list[int] = []
        self.dead_lettered = 0
        self.acked: set[int] = set()
        self.handles: list[Handle] = []
        self.numbers = 0
        self.owner_epoch = 0
        self.floors: dict[str, tuple[int, int]] = {}
        self.flight = Flight()
        self.log = self._open()
        self.log.create_topic("results")
        self.log.create_topic("dead", type=self.dead_type, cap_records=self.dead_cap, discard="reject")
        self.log.create_topic(
            "jobs",
            type="queue",
            lease_ms=self.lease_ms,
            max_deliveries=self.deliveries_max,
            dead_letter="dead",
            leases_durable=self.keeps_leases,
            segment_max_records=9,
        )

    def _open(self) -> EmbeddedLog:
        log = EmbeddedLog(open_store(self.machine, "/data", SETTINGS))
        log._committer = CommitterHere(log.commits.commit_queued)
        return log

    # --- histories -------------------------------------------------------------------------------------------------

    def run(self, steps: int = STEPS) -> None:
        """Random commands, each compared with the model."""
        for _ in range(steps):
            self.step()
        self.log.close()

    def run_with_crash(self, nth: int) -> None:
        """Random commands until the disk crashes, a recovery, and more commands."""
        self.disk.crash_after(nth, inside=self.chance.random() < 0.5)
        try:
            for _ in range(STEPS):
                self.step()
        except SimCrash:
            pass
        else:
            self.flight = Flight()
        self.disk.crash(keep=self.chance.choice(("none", "all", "random")))
        self.recover()
        for _ in range(10):
            self.step()
        self.log.close()

    def step(self) -> None:
        self.flight = Flight()
        command = self.chance.choice(self.commands())
        command()
        self.flight = Flight()
        self.check()

    def commands(self) -> list[Callable[[], None]]:
        return [
            *[self.push] * 6,
            *[self.claim] * 8,
            *[self.ack] * 5,
            *[self.nack] * 3,
            *[self.pass_time] * 4,
            *(self.push_unique, self.push_unique, self.extend, self.release, self.transact, self.transact),
            *(self.peek, self.delete, self.purge, self.redrive, self.redrive, self.step_clock, self.checkpoint),
            *(self.reopen, self.make_space),
        ]

    # --- commands --------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ns() // NS_PER_MS

    def push(self) -> None:
        count = self.chance.choice((1, 1, 3, 12))
        priority = self.chance.choice((0, 0, 0, 4, 9))
        delay_ms = self.chance.choice((0, 0, 0, 50, 2_000))
        made = [self._made(priority, delay_ms) for _ in range(count)]
        self.flight.may_be_live = self.flight.together = {job.number for job in made}
        messages = [_message(job) for job in made]
        delivery = self.log.queue("jobs", node="p").push(messages, delay_s=delay_ms / 1e3, priority=priority)
        self._stored(made, list(delivery.seqs))

    def push_unique(self) -> None:
        key = self.chance.choice(UNIQUE_KEYS)
        made = self._made(self.chance.choice((0, 3)), 0, key)
        self.flight.may_be_live = {made.number}
        pushed = self.log.queue("jobs", node="p").push_unique(_message(made), key, priority=made.priority)
        holder = min((job.seq for job in self.jobs.values() if job.key == key), default=None)
        require(pushed.is_new == (holder is None), f"{pushed} under a key that {holder} has")
        if holder is None:
            self._stored([made], [pushed.seq])
        else:
            require(pushed.seq == holder, f"{pushed}, but {holder} has the key")

    def claim(self) -> None:
        node, count = self.chance.choice(NODES), self.chance.choice((1, 2, 5, 30))
        lease_ms = self.chance.choice((0, 100, 5_000))
        self._tick()
        taken, dying = self._chosen(count)
        self.flight.may_be_dead = {job.number for job in dying}
        self.flight.leases = True
        now = self.now_ms
        claimed = self.log.queues.claim("jobs", node, count, lease_ms, 0)
        self._bury(dying)
        self._leased(claimed, taken, node, now + (lease_ms or self.lease_ms))

    def ack(self) -> None:
        node, handles = self._some_handles()
        self._tick()
        acked = self._matching(node, handles)
        self.flight.may_be_gone = self.flight.together = {job.number for job in acked}
        outcome = self.log.queues.ack("jobs", node, _keys(handles))
        for job in acked:
            self._finished(job)
        self._check_outcome(outcome, handles, acked)

    def nack(self) -> None:
        node, handles = self._some_handles()
        delay_ms = self.chance.choice((0, 0, 30, 3_000))
        self._tick()
        returned = self._matching(node, handles)
        self.flight.leases = True
        outcome = self.log.queues.nack("jobs", node, _keys(handles), delay_ms)
        for job in returned:
            if delay_ms:
                job.free(DELAYED, self.now_ms + delay_ms)
            else:
                job.free(RETURNED)
            job.note_logged()
        self._check_outcome(outcome, handles, returned)

    def extend(self) -> None:
        node, handles = self._some_handles()
        lease_ms = self.chance.choice((100, 9_000))
        self._tick()
        extended = self._matching(node, handles)
        self.flight.leases = True
        outcome = self.log.queues.extend("jobs", node, _keys(handles), lease_ms)
        for job in extended:
            job.state, job.time_ms = LEASED, self.now_ms + lease_ms
            job.note_logged()
        require(outcome.deadline_ms == self.now_ms + lease_ms, f"{outcome}")
        self._check_outcome(outcome, handles, extended)

    def release(self) -> None:
        _, handles = self._some_handles()
        self._tick()
        held = {(job.seq, job.lease_id): job for job in self.jobs.values() if job.is_held}
        returned = {
            handle.seq: held[handle.seq, handle.lease_id] for handle in handles if (handle.seq, handle.lease_id) in held
        }
        self.flight.leases = True
        count = self.log.queues.release("jobs", _keys(handles))
        require(count == len(returned), f"{count} released, not {sorted(returned)}")
        for job in returned.values():
            job.free(RETURNED)
            job.note_logged()

    def transact(self) -> None:
        """Publish a result for each of some jobs and ack them, all or nothing."""
        node, handles = self._some_handles()
        if not handles:
            return
        self._tick()
        handles = list({handle.seq: handle for handle in handles}.values())
        acked = self._matching(node, handles)
        self.owner_epoch += 1
        is_whole = len(acked) == len(handles)
        if is_whole:
            self.flight.may_be_gone = self.flight.together = {job.number for job in acked}
        ack = JobAck("jobs", node, *zip(*sorted((each.seq, each.lease_id) for each in handles), strict=True))
        stager = self.log.stage()
        values = [b"%d" % job.number for job in acked] or [b"none"]
        stager.publish(values)
        parts = [("results", each) for each in stager.ranges()]
        try:
            for _ in range(self.chance.choice((1, 1, 2))):
                # A repetition under the same key changes nothing.
                self.log.commit_staged("owner", self.owner_epoch, parts, acks=[ack])
        except ConflictError:
            require(not is_whole, f"a transaction of {handles} was refused")
            stager.abort()
            return
        require(is_whole, f"a transaction acked {handles}, of which only {acked} were leased")
        self.results += [job.number for job in acked]
        for job in acked:
            self._finished(job)

    def peek(self) -> None:
        count = self.chance.choice((1, 4, 50))
        self._tick()
        peeked = self.log.queues.peek("jobs", count)
        ready = sorted((job for job in self.jobs.values() if job.state in READY), key=lambda job: job.order)[:count]
        expected = [(job.seq, 0, job.deliveries) for job in sorted(ready, key=lambda job: job.seq)]
        require(_rows(peeked) == expected, f"peek of {count}: {_rows(peeked)}, expected {expected}")

    def delete(self) -> None:
        before = self.chance.randrange(1, max(self.jobs, default=1) + 3) if self.chance.random() < 0.4 else 1
        gone = [job for job in self.jobs.values() if job.seq < before]
        self.flight.may_be_gone = self.flight.together = {job.number for job in gone}
        removed = self.log.delete("jobs", before_seq=before)
        require(removed == len(gone), f"a delete of {len(gone)} removed {removed}")
        for job in gone:
            self._finished(job)

    def purge(self) -> None:
        if self.chance.random() < 0.6:
            return
        self._tick()
        gone = [job for job in self.jobs.values() if job.state in (FRESH, RETURNED, DELAYED)]
        # An ended lease is no lease.
        gone += [job for job in self.jobs.values() if job.state == EXPIRED]
        self.flight.may_be_gone = self.flight.together = {job.number for job in gone}
        purged = self.log.queues.purge("jobs")
        require(purged == len(gone), f"purged {purged} of {len(gone)}")
        for job in gone:
            self._finished(job)

    def redrive(self) -> None:
        count = self.chance.choice((0, 1, 3))
        if self.dead_type == "queue" and any(letter.job.not_before_ms > self.now_ms for letter in self.dead):
            # The clock was set back: the dead letter is delayed, as a job of its queue, and would stay.
            return
        moved = self.dead[: count or None]
        self.flight.may_be_live = {letter.job.number for letter in moved}
        found = self.log.queues.redrive("dead", count)
        require(found == len(moved), f"redrive of {count} moved {found} of {len(self.dead)}")
        self.dead = self.dead[len(moved) :]
        head = self._topic("jobs").head_seq
        for seq, letter in enumerate(moved, head + 1 - len(moved)):
            job = replace(letter.job, seq=seq, logged=None)
            self.jobs[seq] = job
        self._admitted(letter_seqs := [*range(head + 1 - len(moved), head + 1)])
        require(len(letter_seqs) == len(moved), "seqs of redriven jobs")

    def make_space(self) -> None:
        """A full dead-letter topic takes jobs again, once its records are deleted."""
        if self.dead_cap and self.dead and self.chance.random() < 0.5:
            dead = self._topic("dead")
            self.flight.may_be_gone = self.flight.together = {letter.job.number for letter in self.dead}
            require(self.log.delete("dead", before_seq=dead.next_seq) == len(self.dead), "deleted dead letters")
            for letter in self.dead:
                self.acked.add(letter.job.number)
            self.dead = []

    def pass_time(self) -> None:
        self.clock.advance(self.chance.choice((1, 60, 101, 1_001, 6_000)) * NS_PER_MS)

    def step_clock(self) -> None:
        """The clock is set forward or back. It may also be stepped to just where it was."""
        self.clock.step_wall(self.chance.choice((-3_600_000, -500, 500, 3_600_000)) * NS_PER_MS)

    def checkpoint(self) -> None:
        with self.log.changing() as store:
            store.maintenance.checkpoint()

    def reopen(self) -> None:
        self.log.close()
        self.log = self._open()
        self._reopened()

    def recover(self) -> None:
        """Open after a crash: compare, and take over what the interrupted command has done."""
        self.log = self._open()
        flight, self.flight = self.flight, Flight()
        live = {_number(record): int(record.seq) for record in self._records("jobs")}
        dead = [_number(record) for record in self._records("dead")]
        results = [int(record.value) for record in self._records("results")]
        require(len(set(dead)) == len(dead), f"a dead letter is there twice: {dead}")
        require(not live.keys() & set(dead), f"jobs {live.keys() & set(dead)} are live and dead")
        require(not (live.keys() | set(dead)) & self.acked, f"{(live.keys() | set(dead)) & self.acked} are back")
        known = {job.number: job for job in self.jobs.values()}
        letters = {letter.job.number: letter for letter in self.dead}
        for number in known.keys() | letters.keys() | live.keys() | set(dead):
            was = "live" if number in known else "dead" if number in letters else "gone"
            is_now = "live" if number in live else "dead" if number in dead else "gone"
            allowed = {"live": flight.may_be_live, "dead": flight.may_be_dead, "gone": flight.may_be_gone}
            require(was == is_now or number in allowed[is_now], f"job {number} was {was} and is {is_now}")
            require(
                was != is_now or was != "live" or known[number].seq == live[number], f"job {number} has another seq"
            )
        states = {number in live for number in flight.together}
        require(len(states) < 2, f"a part of {sorted(flight.together)} is there: {sorted(live)}")
        self._check_results(results, flight, live)
        died = [number for number in dead if number in known]
        self.dead_lettered += len(died)
        self._take_over(live, dead, known, letters, died)
        self._reopened(flight)
        self.check()

    def _take_over(
        self,
        live: dict[int, int],
        dead: list[int],
        known: dict[int, ModelJob],
        letters: dict[int, Letter],
        died: list[int],
    ) -> None:
        """Make the model what is stored now."""
        jobs: dict[int, ModelJob] = {}
        for record in self._records("jobs"):
            number = _number(record)
            job = known.get(number) or (letters[number].job if number in letters else None) or _job_of(record)
            jobs[int(record.seq)] = replace(job, seq=int(record.seq), logged=job.logged if number in known else None)
        gone = (known.keys() | letters.keys()) - live.keys() - set(dead)
        self.acked |= gone
        stored = {_number(record): json.loads(record.meta or b"") for record in self._records("dead")}
        self.dead = [Letter(known[number], stored[number]) if number in died else letters[number] for number in dead]
        self.jobs = jobs

    def _check_results(self, results: list[int], flight: Flight, live: dict[int, int]) -> None:
        new = results[len(self.results) :]
        require(results[: len(self.results)] == self.results, f"results {self.results} are {results}")
        require(set(new) <= flight.may_be_gone, f"results {new} are not of {flight.may_be_gone}")
        require(not set(new) & live.keys(), f"jobs {new} have a result and are live")
        self.results = results

    def _reopened(self, flight: Flight | None = None) -> None:
        """A new life: leases are those that the log keeps, and the clock may not have ended them yet."""
        now = self.now_ms
        for job in self.jobs.values():
            logged = job.logged if self.keeps_leases else None
            if logged is None:
                job.admit(now)
            else:
                job.state, job.deliveries, job.lease_id, job.node, job.time_ms = logged
                if job.state == EXPIRED:
                    job.state = LEASED
        self.log.queues.counts("jobs")
        if flight is not None and flight.leases and self.keeps_leases:
            self._take_over_leases()
        self._tick()

    def _take_over_leases(self) -> None:
        """After a crash in a command that changes leases: each job is as before, or as after it."""
        for job in self.jobs.values():
            (row,) = self._view().rows(_array([job.seq]))
            found = _row(row)
            if found != _expected(job):
                require(found[1] - job.deliveries in (0, 1), f"{job} is {found} after a crash")
                names = {lease_view.LEASED: LEASED, lease_view.DELAYED: DELAYED, lease_view.RETURNED: RETURNED}
                job.state = names.get(found[0], FRESH)
                job.deliveries, job.lease_id, job.time_ms = found[1:]
                job.node = ""
                job.note_logged()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _made(self, priority: int, delay_ms: int, key: bytes | None = None) -> ModelJob:
        self.numbers += 1
        return ModelJob(0, self.numbers, priority, self.now_ms + delay_ms if delay_ms else 0, key)

    def _stored(self, made: list[ModelJob], seqs: list[int]) -> None:
        for job, seq in zip(made, seqs, strict=True):
            job.seq = seq
            self.jobs[seq] = job
        self._admitted(seqs)

    def _admitted(self, seqs: Iterable[int]) -> None:
        """Let the queue find its new records now, so that the model knows when it has."""
        self.log.queues.counts("jobs")
        for seq in seqs:
            self.jobs[seq].admit(self.now_ms)

    def _tick(self) -> None:
        for job in self.jobs.values():
            job.tick(self.now_ms)

    def _chosen(self, count: int) -> tuple[list[ModelJob], list[ModelJob]]:
        """The jobs that a claim gets, and those that are dead."""
        taken: list[ModelJob] = []
        dying: list[ModelJob] = []
        for job in sorted((job for job in self.jobs.values() if job.state in READY), key=lambda job: job.order):
            if len(taken) == count:
                break
            (dying if 0 < self.deliveries_max <= job.deliveries else taken).append(job)
        return taken, dying

    def _bury(self, dying: list[ModelJob]) -> None:
        dying.sort(key=lambda job: job.seq)
        space = self.dead_cap - len(self.dead) if self.dead_cap else len(dying)
        for number, job in enumerate(dying):
            if number >= space:
                job.free(DELAYED, self.now_ms + _RETRY_MS)
                continue
            self.dead_lettered += 1
            self.dead.append(Letter(job, _marks(job)))
            del self.jobs[job.seq]

    def _leased(self, claimed: ClaimedJobs, taken: list[ModelJob], node: str, deadline_ms: int) -> None:
        taken.sort(key=lambda job: job.seq)
        found = [(int(row["seq"]), int(row["deliveries"]), int(row["deadline_ms"])) for row in claimed.rows]
        expected = [(job.seq, job.deliveries + 1, deadline_ms) for job in taken]
        require(found == expected, f"claimed {found}, expected {expected}")
        for job, row in zip(taken, claimed.rows, strict=True):
            job.state, job.node, job.time_ms, job.lease_id = LEASED, node, deadline_ms, int(row["lease_id"])
            job.deliveries += 1
            job.note_logged()
            require(
                all(handle.lease_id != job.lease_id for handle in self.handles), f"lease {job.lease_id} is given twice"
            )
            self.handles.append(Handle(job.seq, job.lease_id, node))

    def _some_handles(self) -> tuple[str, list[Handle]]:
        """Some deliveries, most of them of late ones, by the worker that has them or by another one."""
        if not self.handles:
            return NODES[0], [Handle(1, 0, NODES[0])]
        recent = self.handles[-12:] if self.chance.random() < 0.8 else self.handles
        chosen = self.chance.sample(recent, min(len(recent), self.chance.choice((1, 2, 6))))
        node = chosen[0].node if self.chance.random() < 0.8 else self.chance.choice(NODES)
        if self.chance.random() < 0.1:
            # 0 stands for any lease of the worker.
            chosen = [replace(handle, lease_id=0) for handle in chosen]
        by_seq = {handle.seq: handle for handle in chosen}
        return node, [by_seq[seq] for seq in sorted(by_seq)]

    def _matching(self, node: str, handles: list[Handle]) -> list[ModelJob]:
        """The jobs that are leased so."""
        found = [(handle, self.jobs.get(handle.seq)) for handle in handles]
        return [
            job
            for handle, job in found
            if job is not None and job.is_held and job.node == node and handle.lease_id in (0, job.lease_id)
        ]

    def _finished(self, job: ModelJob) -> None:
        self.acked.add(job.number)
        del self.jobs[job.seq]

    def _check_outcome(self, outcome: Any, handles: list[Handle], changed: list[ModelJob]) -> None:
        self._tick()
        seqs = {job.seq for job in changed}
        skipped = tuple(handle.seq for handle in handles if handle.seq not in seqs)
        ready, leased, _ = self._counts()
        require(outcome[:4] == (len(changed), skipped, ready, leased), f"{outcome}, expected {len(changed)}, {skipped}")

    def _counts(self) -> tuple[int, int, int]:
        states = [job.state for job in self.jobs.values()]
        return sum(state in READY for state in states), states.count(LEASED), states.count(DELAYED)

    # --- the oracle ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Counters, records, leases and dead letters are those of the model; floors do not go back."""
        self._tick()
        counts = self.log.queues.counts("jobs")
        require(counts[:4] == (*self._counts(), self.dead_lettered), f"{counts}, expected {self._counts()}")
        self._check_topic("jobs", [job.number for _, job in sorted(self.jobs.items())])
        self._check_topic("dead", [letter.job.number for letter in self.dead])
        self._check_topic("results", self.results, _result)
        seqs = sorted(self.jobs)
        rows = [_row(row) for row in self._view().rows(_array(seqs))]
        expected = [_expected(self.jobs[seq]) for seq in seqs]
        require(rows == expected, f"leases {rows}, expected {expected}")
        for record, letter in zip(self._records("dead"), self.dead, strict=True):
            meta = json.loads(record.meta or b"")
            require(meta == letter.meta, f"the dead letter of {letter.job} has {meta}")
            require(record.tag == b"tag" and record.key == b"key", f"the dead letter of {letter.job} is incomplete")

    def _check_topic(
        self, name: str, numbers: list[int], number_of: Callable[[ReceivedRecord], int] | None = None
    ) -> None:
        records = self._records(name)
        found = [(number_of or _number)(record) for record in records]
        require(found == numbers, f"{name} has {found}, expected {numbers}")
        topic = self._topic(name)
        topic.check_invariants()
        require(topic.live_records == len(numbers), f"{name} counts {topic.live_records}, not {len(numbers)}")
        require(bool(topic.live_bytes) == bool(numbers), f"{name}: {topic.live_bytes} bytes of {len(numbers)} records")
        floor, head = self.floors.get(name, (0, 0))
        require(topic.floor >= floor and topic.head_seq >= head, f"{name} went back from {floor}, {head}")
        self.floors[name] = (topic.floor, topic.head_seq)

    def _records(self, name: str) -> list[ReceivedRecord]:
        items = self.log.read(name, max_bytes=1 << 24)
        return [record for item in items if not isinstance(item, Gap) and hasattr(item, "__iter__") for record in item]

    def _topic(self, name: str) -> TopicState:
        with self.log.inspecting() as store:
            return store.catalog.named(name)

    def _view(self) -> lease_view.LeaseView:
        view = self._topic("jobs").leases
        assert view is not None
        return view


def play(seed: int) -> None:
    """One history without a crash. `BrokenQueueError` is a bug found."""
    QueueHistory(seed).run()


def crash(seed: int) -> None:
    """One history with a crash."""
    history = QueueHistory(seed)
    history.run_with_crash(history.chance.randrange(1, 120))


def _message(job: ModelJob) -> Message:
    return Message(
        b"%d" % job.number,
        key="key",
        tag="tag",
        meta=json.dumps({"number": job.number}),
        headers=[("h", b"%d" % job.number)],
    )


def _number(record: ReceivedRecord) -> int:
    """The number of a job or dead letter, whose record is complete."""
    number = int(record.value)
    require(json.loads(record.meta or b"{}").get("number") == number, f"{record} has lost its meta")
    require((b"h", record.value) in record.headers, f"{record} has lost its headers")
    return number


def _result(record: ReceivedRecord) -> int:
    return int(record.value)


def _job_of(record: ReceivedRecord) -> ModelJob:
    """The job that an interrupted push has stored."""
    headers = dict(reversed(record.headers))
    not_before = int(headers.get(b"seawall-not-before", b"0"))
    priority = int(headers.get(b"seawall-priority", b"0"))
    return ModelJob(int(record.seq), _number(record), priority, not_before, headers.get(b"seawall-unique"))


def _marks(job: ModelJob) -> dict[str, object]:
    return {
        "number": job.number,
        "$dead_letter_from": "jobs",
        "$dead_letter_src_seq": job.seq,
        "$dead_letter_deliveries": job.deliveries,
        "$dead_letter_reason": "max_deliveries",
    }


def _keys(handles: list[Handle]) -> JobKeys:
    return JobKeys([handle.seq for handle in handles], [handle.lease_id for handle in handles])


def _rows(claimed: ClaimedJobs) -> list[tuple[int, int, int]]:
    return [(int(row["seq"]), int(row["lease_id"]), int(row["deliveries"])) for row in claimed.rows]


def _row(row: Any) -> tuple[int, int, int, int]:
    return int(row["state"]), int(row["deliveries"]), int(row["lease_id"]), int(row["time_ms"])


def _expected(job: ModelJob) -> tuple[int, int, int, int]:
    if job.state == FRESH:
        return lease_view.NO_ROW, 0, 0, 0
    return VIEW_STATES[job.state], job.deliveries, job.lease_id, job.time_ms


def _array(seqs: list[int]) -> Any:
    return np.array(seqs, np.int64)
