"""Shapes of load on job queues, and what Seawall should reach in them.

    enqueue    one producer, one job at a time, each stored before the next
    drain      one worker process executes what was enqueued
    start      from the call that enqueues a job to the start of its execution, at 20 jobs a second
    result     from the call that enqueues a job to its result, one job at a time

Each turn starts a new worker, and stops it in order at its end. Then every job must either have been executed or be in
the queue: a library that loses one, or executes one twice, has no figure. Jobs that were executed may be in the queue
again if the stop has overtaken their acks. The job does nothing but write down when it started
(`jobs/executions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Final

from seawall.bench.comparison import ComparedFigure, OpenSide
from seawall.bench.peers.bed import Bed, Shape, Target, served
from seawall.bench.peers.client_process import NANOSECONDS, RESULTS, Options, percentiles
from seawall.bench.peers.client_runs import ClientRun
from seawall.bench.peers.jobs import executions
from seawall.bench.peers.jobs.base import THREADS
from seawall.bench.peers.system import System
from seawall.bench.peers.systems.jobs import JOB_LIBRARIES, REDIS_QUEUES, SeawallQueue, SeawallTasks
from seawall.bench.results import Better, Goal

#: Time between two jobs of the paced producer.
_INTERVAL_NS: Final = NANOSECONDS // 20
#: The part of the drained jobs that does not count: the worker starts its threads and processes meanwhile.
_WARM_UP_PART: Final = 0.1
#: Jobs that a worker may have at once, so that a stop may overtake their acks: the prefetch of Celery.
_UNACKED_MAX: Final = 4 * THREADS
#: Longest wait for a job.
_WAIT_SECONDS_MAX: Final = 120.0
_POLL_SECONDS: Final = 0.01


class _Worker:
    """A worker process that executes the jobs of a queue."""

    def __init__(self, client: ClientRun, path: Path) -> None:
        self._client = client
        self._path = path

    def wait_for(self, count: int, seconds: float = _WAIT_SECONDS_MAX, count_min: int = 0) -> None:
        """Wait until `count` jobs have started, or for some seconds from the first one, if `count_min` have."""
        give_up_ns = monotonic_ns() + int(_WAIT_SECONDS_MAX * NANOSECONDS)
        deadline_ns = 0
        while (executed := executions.count(self._path)) < count:
            now_ns = monotonic_ns()
            if executed and not deadline_ns:
                deadline_ns = now_ns + int(seconds * NANOSECONDS)
            if count_min and executed >= count_min and now_ns >= deadline_ns:
                return
            if now_ns >= give_up_ns:
                raise TimeoutError(f"{executed} of {count} jobs were executed in {_WAIT_SECONDS_MAX:.0f} s")
            self._client.check_runs()
            sleep(_POLL_SECONDS)


@contextmanager
def _working(target: Target, options: Options, path: Path) -> Iterator[_Worker]:
    """A worker process that stops in order at the end."""
    with target.client("work", replace(options, executions=str(path))) as client:
        client.wait_until_ready()
        yield _Worker(client, path)
        client.stop()


@contextmanager
def _queue(target: Target, *, way: str) -> Iterator[tuple[Options, Path]]:
    """A new queue, and the file for its executions."""
    path = target.server.setup.shared / "executions"
    with target.new_topic() as options:
        yield replace(options, way=way), path
    path.unlink()


def _executed(target: Target, options: Options, path: Path, sent: int) -> Sequence[executions.Execution]:
    """The executions, once no worker runs; an error if jobs were executed twice, are lost, or were not acked."""
    found = executions.read(path)
    left = int(target.run("left", options)["jobs"])
    repeated = len(found) - len({each.sent_ns for each in found})
    unacked = len(found) + left - sent
    if repeated or not 0 <= unacked <= _UNACKED_MAX:
        raise ConnectionError(
            f"of {sent} jobs, {len(found)} were executed, {repeated} of them again, and {left} are in the queue"
        )
    return found


def drain_rates(target: Target, seconds: float, *, way: str) -> Mapping[str, float]:
    """Jobs a second that one producer enqueues, and that one worker then executes."""
    count_min = target.bed.scale.jobs_min
    with _queue(target, way=way) as (options, path):
        enqueued = target.run("enqueue", replace(options, seconds=seconds, count=count_min))
        sent = int(enqueued["jobs"])
        with _working(target, options, path) as worker:
            worker.wait_for(sent, seconds, count_min)
        starts = [each.started_ns for each in _executed(target, options, path, sent)]
    counted = starts[int(len(starts) * _WARM_UP_PART) :]
    drained = (len(counted) - 1) * NANOSECONDS / (counted[-1] - counted[0])
    return {"enqueued": enqueued["per_second"], "drained": drained}


def start_latency(target: Target, seconds: float, *, way: str) -> Mapping[str, float]:
    """Seconds from the call that enqueues a job to its start."""
    scale = target.bed.scale
    count = scale.jobs_warm_up + max(scale.jobs_min, int(seconds * NANOSECONDS) // _INTERVAL_NS)
    with _queue(target, way=way) as (options, path):
        with _working(target, options, path) as worker:
            target.run("pace", replace(options, count=count, interval_ns=_INTERVAL_NS))
            worker.wait_for(count)
        found = sorted(_executed(target, options, path, count))
    figures = percentiles([each.started_ns - each.sent_ns for each in found[scale.jobs_warm_up :]])
    return {"p50": figures["p50"], "p99": figures["p99"]}


def result_latency(target: Target, seconds: float) -> Mapping[str, float]:
    """Seconds from the call that enqueues a job to its result."""
    scale = target.bed.scale
    with _queue(target, way=RESULTS) as (options, path):
        with _working(target, options, path):
            asked = replace(options, seconds=seconds, count=scale.jobs_min, warm_up=scale.jobs_warm_up)
            figures = target.run("call", asked)
        _executed(target, options, path, scale.jobs_warm_up + int(figures["records"]))
    return {"p50": figures["p50"], "p99": figures["p99"]}


# --- the list ----------------------------------------------------------------------------------------------------


def queue_shapes() -> tuple[Shape, ...]:
    """Queues without a library."""
    systems: tuple[System, ...] = (SeawallQueue(), *REDIS_QUEUES)
    return (_drain("queues", systems), _start("queues", systems))


def job_shapes() -> tuple[Shape, ...]:
    """Background tasks, with the usual libraries."""
    systems: tuple[System, ...] = (SeawallTasks(), *JOB_LIBRARIES)
    return (
        _drain("jobs", systems),
        _drain("jobs with results", systems, way=RESULTS),
        _start("jobs", systems),
        _result(systems),
    )


def _drain(name: str, systems: Sequence[System], way: str = "") -> Shape:
    goals = dict.fromkeys((each.name for each in systems[1:]), Goal.ratio_at_least(1.0))
    figures = (
        ComparedFigure(f"{name}, enqueued one at a time", "jobs/s", Better.HIGHER, "enqueued", goals=goals),
        ComparedFigure(f"{name}, drained by one worker", "jobs/s", Better.HIGHER, "drained", goals=goals),
    )
    return Shape(name, tuple(systems), figures, served(partial(drain_rates, way=way), synced=True))


def _start(what: str, systems: Sequence[System]) -> Shape:
    name = f"{what} at 20/s, from enqueuing to start"
    return _latency(name, systems, served(partial(start_latency, way=""), synced=True))


def _result(systems: Sequence[System]) -> Shape:
    return _latency("jobs one at a time, from enqueuing to result", systems, served(result_latency, synced=True))


def _latency(name: str, systems: Sequence[System], opened: Callable[[Bed], OpenSide]) -> Shape:
    goals = dict.fromkeys((each.name for each in systems[1:]), Goal.ratio_at_most(1.0))
    figures = (
        ComparedFigure(f"{name}, p50", "s", Better.LOWER, "p50", goals=goals),
        ComparedFigure(f"{name}, p99", "s", Better.LOWER, "p99"),
    )
    return Shape(name, tuple(systems), figures, opened)
