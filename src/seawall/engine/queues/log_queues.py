"""The queue commands of an embedded log, for threads: the backend of `log.queue(…)`.

    claim     serves the claims of its queue that came before it, then itself; waits for jobs if there are none
    ack       marks the jobs, and shares one delete with the acks of other threads
    others    change the lease view, or delete jobs

A thread that waits for jobs is woken by the thread that serves its claim. One waiting thread of each queue watches: it
is woken by commits and when a lease or a delay ends, and serves all claims that wait.

A crash loses leases that are not durable, and no job. This module must not know connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Final

import numpy as np

from seawall.api.publishable import Message, Publishable
from seawall.api.queues.jobs import JobKeys, PushedJob, check_node, not_a_queue, rising
from seawall.core.jobs import JobOutcome, QueueCounts
from seawall.engine.api.log_transactions import unlocked
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.shared_changes import QueuedChange, SharedChanges
from seawall.engine.queues.claims import Claim, ClaimLine, shares
from seawall.engine.queues.dead_letters import DeadLetters
from seawall.engine.queues.host import HostLog
from seawall.engine.queues.job_store import JobChange, JobQueue, JobStore, Taken
from seawall.engine.queues.recent_blocks import Integers
from seawall.errors import InvalidInputError, SeawallError
from seawall.io.process.clocks import OsClock
from seawall.limits import (
    CLAIM_WAIT_MS_MAX,
    JOBS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    NACK_DELAY_MS_MAX,
)
from seawall.topics.config import TopicType
from seawall.wire.jobs.rows import JOB_ROW, ClaimedJobs

#: Queues with claims, before the first check for those that nobody waits for.
_LINES_MIN: Final = 1_024

#: Acks, and changes of durable leases, that share one commit.
_CHANGES_SHARED_MAX: Final = 256

#: Unique keys that are pushed at the same time, and share a commit.
_UNIQUE_LOCKS: Final = 64

_NO_JOBS: Final = np.zeros(0, JOB_ROW)


class LogQueues:
    """The queues of an embedded log. Threads may share it."""

    def __init__(self, log: HostLog, store: JobStore) -> None:
        self._log = log
        self._store = store
        self._changes = SharedChanges(self._commit, _CHANGES_SHARED_MAX)
        #: The claims that wait, by the name of their queue: they wait for jobs of a recreated topic, too.
        self._lines: dict[str, ClaimLine] = {}
        self._check_lines_at = _LINES_MIN
        self.dead_letters = DeadLetters(log, store, self.caught_up, self._jobs_returned)
        #: Held while a job with a unique key is pushed; each lock is for some of the keys.
        self._unique_locks = [Lock() for _ in range(_UNIQUE_LOCKS)]

    def now_ms(self) -> int:
        """The time in milliseconds since the Unix epoch."""
        return self._store.now_ms()

    # --- producers -----------------------------------------------------------------------------------------------

    def push(self, topic: str, records: Publishable) -> Delivery:
        """Append jobs."""
        self.check_queue(topic)
        return self._log.publish(topic, records)

    def check_queue(self, topic: str) -> None:
        """Raise unless a topic exists and is a queue."""
        config = self._log.topic_named(topic).config
        if config.kind is not TopicType.QUEUE:
            raise not_a_queue(topic)

    def push_unique(self, topic: str, record: Message, key: bytes) -> PushedJob:
        """Append a job unless one with this key is there. One call at a time looks and appends for each key."""
        with self._unique_locks[hash((topic, key)) % _UNIQUE_LOCKS]:
            queue = self.caught_up(topic)
            with self._log.inspecting():
                seq = queue.unique.find(key)
            if seq is not None:
                return PushedJob(seq, is_new=False)
            return PushedJob(self._log.publish(topic, record).first_seq, is_new=True)

    # --- claims --------------------------------------------------------------------------------------------------

    def claim(self, topic: str, node: str, count_max: int, lease_ms: int, wait_ms: int) -> ClaimedJobs:
        """Lease jobs to a worker; waits for the first one."""
        woken = Lock()
        woken.acquire()
        claim = new_claim(node, count_max, lease_ms, partial(_release, woken), may_watch=True)
        line = self.begin_claim(topic, claim)
        deadline_ns = OsClock().monotonic_ns() + min(max(wait_ms, 0), CLAIM_WAIT_MS_MAX) * 1_000_000
        try:
            while not claim.is_done:
                gathering_s = self.cohort_s(line)
                left_s = (deadline_ns - OsClock().monotonic_ns()) / 1e9
                if gathering_s > 0:
                    woken.acquire(timeout=gathering_s)
                    self.serve(topic, line)
                elif left_s <= 0:
                    if line.cohort_at_ms:
                        # It has ended just now.
                        self.serve(topic, line)
                    break
                elif line.watches(claim):
                    self._wait_for_jobs(topic, claim, left_s)
                    self.serve(topic, line)
                else:
                    woken.acquire(timeout=left_s)
        except BaseException:
            self._leave(line, claim)
            with suppress(SeawallError):
                self.undo_claim(topic, claim)
            raise
        self._leave(line, claim)
        return self.claimed(topic, claim)

    @staticmethod
    def _leave(line: ClaimLine, claim: Claim) -> None:
        """The thread of a claim waits no more."""
        line.remove(claim)
        line.stop_watching(claim)

    def begin_claim(self, topic: str, claim: Claim) -> ClaimLine:
        """Let a claim wait, and serve all that wait, as far as there are jobs."""
        with self._log.inspecting():
            queue = self._store.queue_locked(topic)
            line = self._lines.get(topic)
            if line is None:
                line = self._lines[topic] = self._new_line()
            line.add(claim, self.now_ms(), queue.topic.config.claim_jitter_ms)
        self.serve(topic, line)
        return line

    def _new_line(self) -> ClaimLine:
        """Where claims of one more queue wait; forgets the queues for which nobody waits, when there are many."""
        if len(self._lines) >= self._check_lines_at:
            self._lines = {topic: line for topic, line in self._lines.items() if len(line)}
            self._check_lines_at = max(_LINES_MIN, 2 * len(self._lines))
        return ClaimLine()

    def claimed(self, topic: str, claim: Claim) -> ClaimedJobs:
        """The outcome of a claim that does not wait any more: its jobs, or none; raises its error."""
        if claim.error is not None:
            raise claim.error
        if claim.result is not None:
            return claim.result
        with self._log.inspecting():
            queue = self._store.queue_locked(topic)
            ready = queue.view.counts(self.now_ms()).ready
            return ClaimedJobs(_NO_JOBS, memoryview(b""), ready, claim.lease_ms or queue.topic.config.lease_ms)

    def undo_claim(self, topic: str, claim: Claim) -> None:
        """Return the jobs of a claim whose caller has left: they were never delivered."""
        if claim.result is None:
            return
        rows = claim.result.rows
        with self._log.inspecting():
            queue, seqs = self._store.queue_locked(topic), rows["seq"].astype(np.int64)
            undone = queue.view.unclaim(seqs, rows["lease_id"].astype(np.int64))
            queued = self._queue_locked(queue, seqs[undone], claim.node)
        if queued is not None:
            self._changes.execute(queued)
        self._jobs_returned(queue)

    def cohort_s(self, line: ClaimLine) -> float:
        """How long the cohort of a line is still gathered."""
        return (line.cohort_at_ms - self.now_ms()) / 1e3 if line.cohort_at_ms else 0.0

    def serve(self, topic: str, line: ClaimLine) -> None:
        """Serve the claims that wait, as far as there are jobs; one thread at a time."""
        with line.serving:
            due = line.due(self.now_ms())
            try:
                if due:
                    self._serve(topic, line, due)
            except (SeawallError, OSError) as error:
                for claim in due:
                    if not claim.is_done:
                        line.decided(claim)
                        claim.decide(None, error)
        if line.watcher is not None and line.watcher.is_done:
            # Its thread waits for jobs, which it has now.
            self._log.commits.notify()

    def _serve(self, topic: str, line: ClaimLine, due: Sequence[Claim]) -> None:
        queue = self.caught_up(topic)
        counts = [claim.count_max for claim in due]
        if queue.topic.config.claim_jitter_ms and len(due) > 1:
            with self._log.inspecting():
                counts = shares(counts, queue.view.counts(self.now_ms()).ready)
        for claim, count in zip(due, counts, strict=True):
            if not count:
                # Others of the cohort want more, and have the larger shares.
                continue
            jobs = self._lease(queue, claim, count)
            if jobs is None:
                return
            line.decided(claim)
            claim.decide(jobs)

    def _lease(self, queue: JobQueue, claim: Claim, count: int) -> ClaimedJobs | None:
        """Lease up to `count` jobs for a claim; None if there are none."""
        while True:
            with self._log.inspecting():
                taken = self._store.take_locked(queue, count, claim.node, claim.lease_ms)
                queued = self._queue_locked(queue, taken.claimed.seqs, claim.node)
            try:
                if queued is not None:
                    self._log_claim(taken, queued)
            finally:
                if len(taken.claimed.dead):
                    self.dead_letters.bury(queue, taken.claimed.dead)
            if not len(taken.claimed.seqs):
                if not len(taken.claimed.dead):
                    return None
                continue
            jobs = self._read(taken, claim.lease_ms or queue.topic.config.lease_ms)
            if len(jobs.rows):
                return jobs

    def _log_claim(self, taken: Taken, queued: QueuedChange[JobChange]) -> None:
        """Log the leases of a claim; returns the jobs if that fails."""
        try:
            self._changes.execute(queued)
        except BaseException:
            for planned in taken.plans:
                planned.release()
            with self._log.commits.state:
                taken.queue.view.release(taken.claimed.seqs, taken.claimed.lease_ids)
            raise

    def _read(self, taken: Taken, lease_ms: int) -> ClaimedJobs:
        """Read the records of leased jobs."""
        read = self._store.read(taken)
        pieces = read.pieces
        block = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
        with self._log.inspecting():
            undone = self._store.read_done_locked(taken, read)
            queued = self._queue_locked(taken.queue, undone, "")
            ready = taken.queue.view.counts(self.now_ms()).ready
        if queued is not None:
            self._changes.execute(queued)
        return ClaimedJobs(read.rows, block, ready, lease_ms)

    def caught_up(self, topic: str) -> JobQueue:
        """The queue with this name, once its view knows every record that can be read now."""
        while True:
            with self._log.inspecting():
                queue = self._store.queue_locked(topic)
                planned = self._store.plan_scan_locked(queue)
            if planned is None:
                return queue
            scanned = self._store.scan(planned)
            with self._log.inspecting():
                self._store.admit_locked(queue, scanned, planned.end_seq)

    def _wait_for_jobs(self, topic: str, claim: Claim, timeout_s: float) -> None:
        """Wait until a queue may have jobs to claim, another thread has served the claim, or for the timeout."""
        with self._log.inspecting():
            queue, now_ms = self._store.queue_locked(topic), self.now_ms()
            next_ms = queue.view.next_time_ms(now_ms)

        def has_jobs() -> bool:
            if claim.is_done:
                return True
            with self._log.inspecting() as store:
                now_ms, view = self.now_ms(), queue.view
                is_new = store.catalog.named(topic) is not queue.topic or view.scanned_seq < queue.topic.head_seq
                return is_new or view.counts(now_ms).ready > 0 or view.next_time_ms(now_ms) != next_ms

        if next_ms >= 0:
            timeout_s = min(timeout_s, (next_ms - now_ms) / 1e3)
        self._log.wait_until(has_jobs, timeout_s)

    def is_awaited(self, topic: str) -> bool:
        """True if a claim waits for jobs of this queue."""
        line = self._lines.get(topic)
        return line is not None and line.watcher is not None

    def pause_s(self, topic: str, line: ClaimLine) -> float:
        """How long to wait before claims are served again, if nothing happens: until a lease, delay or cohort ends."""
        with self._log.inspecting():
            now_ms, view = self.now_ms(), self._store.queue_locked(topic).view
            next_ms, ready = view.next_time_ms(now_ms), view.counts(now_ms).ready
        if line.cohort_at_ms:
            return max(self.cohort_s(line), 0.0)
        if ready:
            # A lease or a delay has ended since the claims were served.
            return 0.0
        longest_s = CLAIM_WAIT_MS_MAX / 1e3
        return longest_s if next_ms < 0 else min(longest_s, (next_ms - now_ms) / 1e3)

    # --- what becomes of claimed jobs ------------------------------------------------------------------------------

    def ack(self, topic: str, node: str, jobs: JobKeys) -> JobOutcome:
        """Delete jobs that are leased to the worker."""
        seqs, lease_ids = arrays_of(node, jobs)
        with self._log.inspecting():
            queue = self._store.queue_locked(topic)
            finished = self._store.finish_locked(queue, node, seqs, lease_ids)
            queued = self._changes.queue(finished) if len(finished.seqs) else None
        if queued is not None:
            try:
                self._changes.execute(queued)
            except BaseException:
                # An interrupted thread does not know whether another one deletes its jobs: that undoes this.
                with self._log.commits.state:
                    self._store.unfinish_locked([finished])
                raise
        return self._outcome(queue, seqs, finished.seqs)

    def _commit(self, changes: Sequence[JobChange]) -> None:
        """Delete the jobs of several acks, and log leases, by one commit."""
        with self._log.changing() as store:
            self._store.commit(changes, partial(unlocked, self._log.commits))
            if store.is_tidy_up_due:
                store.tidy_up()

    def _queue_locked(self, queue: JobQueue, seqs: Integers, node: str) -> QueuedChange[JobChange] | None:
        """Queue what the log has to know of changed leases, in the order of changes; None if it keeps no leases."""
        change = self._store.lease_change_locked(queue, seqs, node)
        return None if change is None else self._changes.queue(change)

    def nack(self, topic: str, node: str, jobs: JobKeys, delay_ms: int) -> JobOutcome:
        """Return jobs, to be delivered again after a delay."""
        seqs, lease_ids = arrays_of(node, jobs)
        delay_ms = min(max(delay_ms, 0), NACK_DELAY_MS_MAX)
        with self._log.inspecting():
            queue, now_ms = self._store.queue_locked(topic), self.now_ms()
            mask = queue.view.nack(seqs, lease_ids, self._store.workers.of(node), now_ms + delay_ms, now_ms)
            queued = self._queue_locked(queue, seqs[mask], node)
        if queued is not None:
            self._changes.execute(queued)
        self._jobs_returned(queue)
        return self._outcome(queue, seqs, seqs[mask])

    def extend(self, topic: str, node: str, jobs: JobKeys, lease_ms: int) -> JobOutcome:
        """Let the leases end `lease_ms` from now; 0 is the topic's lease."""
        seqs, lease_ids = arrays_of(node, jobs)
        with self._log.inspecting():
            queue = self._store.queue_locked(topic)
            deadline_ms = self.now_ms() + clamped_lease(lease_ms or queue.topic.config.lease_ms)
            mask = queue.view.extend(seqs, lease_ids, self._store.workers.of(node), deadline_ms)
            queued = self._queue_locked(queue, seqs[mask], node)
        if queued is not None:
            self._changes.execute(queued)
        # The leases may end earlier than claims that wait expect.
        self._notify(queue)
        return self._outcome(queue, seqs, seqs[mask], deadline_ms)

    def release(self, topic: str, jobs: JobKeys) -> int:
        """Return jobs at once, whoever holds them under these leases: their worker has disappeared."""
        with self._log.inspecting():
            queue = self._store.queue_locked(topic)
            seqs = np.array(jobs.seqs, np.int64)
            released = queue.view.release(seqs, np.array(jobs.lease_ids, np.int64))
            queued = self._queue_locked(queue, seqs[released], "")
        if queued is not None:
            self._changes.execute(queued)
        self._jobs_returned(queue)
        return int(np.count_nonzero(released))

    def _jobs_returned(self, queue: JobQueue) -> None:
        """Serve claims that wait, after jobs became ready or delayed without a commit."""
        line = self._lines.get(queue.topic.name)
        if line is not None and len(line):
            self.serve(queue.topic.name, line)
            self._notify(queue)

    def _notify(self, queue: JobQueue) -> None:
        """Let those who watch the queue look at its next lease or delay again."""
        if len(self._lines.get(queue.topic.name, ())):
            self._log.commits.notify()

    def _outcome(self, queue: JobQueue, wanted: Integers, changed: Integers, deadline_ms: int = 0) -> JobOutcome:
        skipped = tuple(np.setdiff1d(wanted, changed).tolist()) if len(changed) < len(wanted) else ()
        with self._log.inspecting():
            counts = queue.view.counts(self.now_ms())
        return JobOutcome(len(changed), skipped, counts.ready, counts.leased, deadline_ms)

    # --- the queue -------------------------------------------------------------------------------------------------

    def counts(self, topic: str) -> QueueCounts:
        """The jobs by their state."""
        queue = self.caught_up(topic)
        with self._log.inspecting():
            ready, leased, delayed = queue.view.counts(self.now_ms())
            oldest = queue.view.oldest_seq()
            oldest_ms = self._store.stored_ms_locked(queue, oldest) if oldest else None
            return QueueCounts(ready, leased, delayed, queue.topic.dead_lettered, oldest_ms)

    def peek(self, topic: str, count_max: int) -> ClaimedJobs:
        """The jobs that would be claimed next, without a lease."""
        queue = self.caught_up(topic)
        with self._log.inspecting():
            taken = self._store.peek_locked(queue, checked_count(count_max))
        return self._read(taken, 0)

    def purge(self, topic: str) -> int:
        """Delete all jobs that are not leased; returns how many."""
        queue = self.caught_up(topic)
        purged = 0
        with self._log.changing() as store:
            purged = self._store.purge(queue, partial(unlocked, self._log.commits))
            if store.is_tidy_up_due:
                store.tidy_up()
        return purged

    def redrive(self, topic: str, count_max: int) -> int:
        """Move dead letters of this topic back to the queues that they came from; returns how many."""
        return self.dead_letters.redrive(topic, count_max)


def new_claim(node: str, count_max: int, lease_ms: int, wake: Callable[[], None], *, may_watch: bool) -> Claim:
    """A claim with checked values; a lease of 0 is the topic's."""
    check_node(node)
    return Claim(node, checked_count(count_max), clamped_lease(lease_ms) if lease_ms else 0, wake, may_watch=may_watch)


def checked_count(count_max: int) -> int:
    """How many jobs to claim or look at."""
    if count_max < 1:
        raise InvalidInputError(f"{count_max} jobs: claim at least 1")
    return min(count_max, JOBS_MAX)


def clamped_lease(lease_ms: int) -> int:
    """A lease within the bounds."""
    return min(max(lease_ms, LEASE_MS_MIN), LEASE_MS_MAX)


def arrays_of(node: str, jobs: JobKeys) -> tuple[Integers, Integers]:
    """The seqs and leases of jobs as arrays, by rising seq."""
    check_node(node)
    if not 1 <= len(jobs.seqs) <= JOBS_MAX or len(jobs.seqs) != len(jobs.lease_ids):
        raise InvalidInputError(
            f"{len(jobs.seqs)} jobs with {len(jobs.lease_ids)} leases: give 1 to {JOBS_MAX}, each with its lease"
        )
    try:
        seqs, lease_ids = np.array(jobs.seqs, np.int64), np.array(jobs.lease_ids, np.int64)
    except OverflowError:
        raise _not_seqs() from None
    if seqs.min() < 0 or lease_ids.min() < 0:
        raise _not_seqs()
    if len(seqs) > 1 and not bool((seqs[1:] > seqs[:-1]).all()):
        return arrays_of(node, rising(jobs))
    return seqs, lease_ids


def _not_seqs() -> InvalidInputError:
    return InvalidInputError("seqs and leases of jobs are from 0 to 2^63 - 1")


def _release(woken: Lock) -> None:
    """Wake a thread that waits for a lock; a second wake-up before it runs is one."""
    with suppress(RuntimeError):
        woken.release()
