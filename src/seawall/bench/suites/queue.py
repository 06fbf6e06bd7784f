"""Suite `queue`: job queues of the embedded log against publishing the same records.

All topics are of class fsync. A claim writes nothing; an ack is durable. The cost of a claim must not depend on how
many jobs are ready or leased, nor on how many queues there are.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Final

from seawall.api.queues.jobs import Jobs
from seawall.api.queues.queue import Job, Queue
from seawall.bench.harness import NANOSECONDS_PER_SECOND, Baseline, BenchContext, Measurement, Run, Subject
from seawall.bench.results import Better, Goal
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.errors import InvariantError

QUEUE: Final = "jobs"
TOPIC: Final = "plain"
BATCH: Final = 100
WORKERS: Final = 16
_VALUE: Final = b"x" * 100
_FEW, _MANY = 1_000, 1_000_000
_QUEUES: Final = 10_000
#: Jobs of one push while a queue is filled.
_FILLED_AT_ONCE: Final = 10_000
_LEASE_S: Final = 3_600.0
_WAIT_S: Final = 10.0
#: How often to look whether the worker waits, and how long it then has to fall asleep.
_PAUSE_S: Final = 0.001


def suite(context: BenchContext) -> Iterator[Measurement]:
    """List the figures of this suite."""
    on_log = partial(_on_log, context.directory)
    yield Measurement(
        f"claim and ack {BATCH} jobs of 100 B",
        "jobs/s",
        Better.HIGHER,
        on_log(_claim_batches),
        baseline=Baseline(f"publish {BATCH} records of 100 B", on_log(_publish_batches)),
        goal=Goal.ratio_at_least(0.3),
    )
    yield Measurement(
        f"claim and ack one job, {WORKERS} threads",
        "jobs/s",
        Better.HIGHER,
        on_log(_work_threads),
        baseline=Baseline(f"publish one record and wait, {WORKERS} threads", on_log(_publish_threads)),
        goal=Goal.ratio_at_least(0.5),
    )
    yield Measurement(
        "from push to the claim that waits for it, p50",
        "s",
        Better.LOWER,
        on_log(_push_to_claim),
        baseline=Baseline("a durable publish, p50", on_log(_publish_one)),
        goal=Goal.ratio_at_most(2.0),
    )
    for what, prepare in (("ready", _fill), ("leased", _lease)):
        yield Measurement(
            f"claim {BATCH} of 1,000,000 {what} jobs, p50" if what == "ready" else "claim beside 1,000,000 leases, p50",
            "s",
            Better.LOWER,
            on_log(partial(_claims, prepare, _MANY)),
            baseline=Baseline(f"the same with 1,000 {what}", on_log(partial(_claims, prepare, _FEW))),
            goal=Goal.ratio_at_most(1.5),
        )
    yield Measurement(
        f"claim and ack one job of {_QUEUES:,} queues in turn, p50",
        "s",
        Better.LOWER,
        on_log(partial(_queues_in_turn, _QUEUES)),
        baseline=Baseline("the same with one queue", on_log(partial(_queues_in_turn, 1))),
        goal=Goal.ratio_at_most(1.5),
    )


def _on_log(directory: Path, prepare: Callable[[EmbeddedLog], Run]) -> Subject:
    """A subject on a new log with a queue and a topic; closing the subject removes the log."""

    @contextmanager
    def opened() -> Iterator[Run]:
        path = tempfile.mkdtemp(prefix="seawall-bench-", dir=directory)
        try:
            with open_log(path) as log:
                log.create_topic(QUEUE, type="queue")
                log.create_topic(TOPIC)
                yield prepare(log)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    return opened


# --- rates --------------------------------------------------------------------------------------------------------


def _publish_batches(log: EmbeddedLog) -> Run:
    records = [_VALUE] * BATCH

    def once() -> int:
        log.publish(TOPIC, records)
        return BATCH

    return _rate(once)


def _claim_batches(log: EmbeddedLog) -> Run:
    queue = log.queue(QUEUE)
    records = [_VALUE] * BATCH

    def once() -> int:
        return queue.ack(_claimed(queue, BATCH)).changed

    def run(seconds: float) -> float:
        # The jobs are pushed before the clock runs, more than can be done.
        total, spent = 0, 0
        while not total or spent < seconds * NANOSECONDS_PER_SECOND:
            for _ in range(BATCH):
                queue.push(records)
            started = perf_counter_ns()
            total += sum(once() for _ in range(BATCH))
            spent += perf_counter_ns() - started
        return total * NANOSECONDS_PER_SECOND / spent

    return run


def _publish_threads(log: EmbeddedLog) -> Run:
    def publish(until_ns: int) -> int:
        count = 0
        while not count or perf_counter_ns() < until_ns:
            log.publish(TOPIC, _VALUE)
            count += 1
        return count

    return _threads(publish)


def _work_threads(log: EmbeddedLog) -> Run:
    def work(until_ns: int) -> int:
        queue = log.queue(QUEUE)
        count = 0
        while not count or perf_counter_ns() < until_ns:
            for job in _claimed(queue, 1):
                count += job.ack()
        return count

    run = _threads(work)

    def filled(seconds: float) -> float:
        queue = log.queue(QUEUE)
        while queue.counts().ready < _FILLED_AT_ONCE + seconds * 2 * _FILLED_AT_ONCE:
            queue.push([_VALUE] * _FILLED_AT_ONCE)
        return run(seconds)

    return filled


def _threads(work: Callable[[int], int]) -> Run:
    """Records per second of threads that each work until a time, once at least, and return how many they did."""

    def run(seconds: float) -> float:
        started = perf_counter_ns()
        until_ns = started + int(seconds * NANOSECONDS_PER_SECOND)
        counts: list[int] = []
        threads = [threading.Thread(target=lambda: counts.append(work(until_ns))) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(counts) < WORKERS:
            raise InvariantError("INV-BENCH-OK", f"{len(counts)} of {WORKERS} threads finished")
        return sum(counts) * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

    return run


# --- latencies ----------------------------------------------------------------------------------------------------


def _publish_one(log: EmbeddedLog) -> Run:
    def once() -> int:
        started = perf_counter_ns()
        log.publish(TOPIC, _VALUE)
        return perf_counter_ns() - started

    return _median(once)


def _push_to_claim(log: EmbeddedLog) -> Run:
    """One thread pushes, another waits in `claim`: from the start of the push to the return of the claim."""
    pusher, worker = log.queue(QUEUE), log.queue(QUEUE)

    def once() -> int:
        claimed_ns: list[int] = []

        def claim() -> None:
            jobs = worker.claim(1, wait_s=_WAIT_S)
            claimed_ns.append(perf_counter_ns())
            worker.ack(jobs)

        thread = threading.Thread(target=claim)
        thread.start()
        while not log.queues.is_awaited(QUEUE):
            sleep(_PAUSE_S)
        started = perf_counter_ns()
        pusher.push(_VALUE)
        thread.join()
        return claimed_ns[0] - started

    return _median(once)


def _claims(prepare: Callable[[EmbeddedLog, int], Queue], count: int, log: EmbeddedLog) -> Run:
    """The time of a claim; the jobs are returned after it."""
    queue = prepare(log, count)

    def once() -> int:
        started = perf_counter_ns()
        jobs = _claimed(queue, BATCH)
        spent = perf_counter_ns() - started
        queue.nack(jobs)
        return spent

    return _median(once)


def _fill(log: EmbeddedLog, count: int) -> Queue:
    """A queue with `count` ready jobs."""
    queue = log.queue(QUEUE)
    for _ in range(count // _FEW):
        queue.push([_VALUE] * _FEW)
    return queue


def _lease(log: EmbeddedLog, count: int) -> Queue:
    """A queue with `count` leased jobs, and some ready ones."""
    queue = _fill(log, count + BATCH)
    queue.push([_VALUE] * BATCH)
    for _ in range(count // _FEW):
        if len(queue.claim(_FEW, lease_s=_LEASE_S)) != _FEW:
            raise InvariantError("INV-BENCH-OK", "a claim did not get its jobs")
    return queue


def _queues_in_turn(count: int, log: EmbeddedLog) -> Run:
    names = [f"queue-{number}" for number in range(count)]
    log.create_topics(names, type="queue")
    queues = [log.queue(name) for name in names]
    turns = iter(range(1 << 62))

    def once() -> int:
        queue = queues[next(turns) % count]
        queue.push(_VALUE)
        started = perf_counter_ns()
        for job in _claimed(queue, 1):
            job.ack()
        return perf_counter_ns() - started

    return _median(once)


def _claimed(queue: Queue, count: int) -> Jobs[Job]:
    jobs = queue.claim(count)
    if len(jobs) != count:
        raise InvariantError("INV-BENCH-OK", f"claimed {len(jobs)} of {count} jobs")
    return jobs


def _rate(once: Callable[[], int]) -> Run:
    """Units per second of calls that return how many they did."""

    def run(seconds: float) -> float:
        started = perf_counter_ns()
        until_ns = started + int(seconds * NANOSECONDS_PER_SECOND)
        count = once()
        while perf_counter_ns() < until_ns:
            count += once()
        return count * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

    return run


def _median(once: Callable[[], int]) -> Run:
    """The median of the nanoseconds that calls return, in seconds."""

    def run(seconds: float) -> float:
        until_ns = perf_counter_ns() + int(seconds * NANOSECONDS_PER_SECOND)
        spent = [once()]
        while perf_counter_ns() < until_ns:
            spent.append(once())
        return sorted(spent)[len(spent) // 2] / NANOSECONDS_PER_SECOND

    return run
