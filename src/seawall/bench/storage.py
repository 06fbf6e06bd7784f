"""Suite `storage`: the embedded log against the disk and the memory below it.

Every figure works on a log of its own in `bench.directory`, made for it and removed after it. Writes go to class fsync:
what is counted is durable. The disk's own limit is measured by turns, in a file that is preallocated as the log's is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from seawall.bench import disk
from seawall.bench.harness import Baseline, BenchContext, Measurement, Run, Subject, latency, rate
from seawall.bench.read_figures import TOPIC, on_log, read_figures
from seawall.bench.results import Better, Goal
from seawall.engine.embedded import EmbeddedLog
from seawall.limits import KIB, MIB

THREADS: Final = 64


def suite(context: BenchContext) -> Iterator[Measurement]:
    """The figures of this suite."""
    yield from _appends(context.directory)
    yield from read_figures(context)


def _appends(directory: Path) -> Iterator[Measurement]:
    one_by_one = disk.write_latency(directory, KIB)
    yield Measurement(
        "append 1 MiB batches, class fsync",
        "B/s",
        Better.HIGHER,
        on_log(directory, _append_large),
        baseline=Baseline("write + sync 1 MiB", disk.write_bandwidth(directory, MIB)),
        goal=Goal.ratio_at_least(0.8),
        note="1,019 records of 1 KiB in each",
    )
    yield Measurement(
        "append one 1 KiB record, lone writer, p50",
        "s",
        Better.LOWER,
        on_log(directory, _append_lone),
        baseline=Baseline("bare write + sync", one_by_one),
        goal=Goal.ratio_at_most(1.5),
    )
    yield Measurement(
        f"append one 1 KiB record, {THREADS} threads",
        "records/s",
        Better.HIGHER,
        on_log(directory, _append_threads),
        baseline=Baseline("bare write + sync, one by one", _as_rate(one_by_one)),
        goal=Goal.ratio_at_least(2.0),
    )


def _append_large(log: EmbeddedLog) -> Run:
    values = [os.urandom(KIB) for _ in range(MIB // (KIB + 5))]
    return rate(lambda: log.publish(TOPIC, values), len(values) * (KIB + 5))


def _append_lone(log: EmbeddedLog) -> Run:
    value = os.urandom(KIB)
    return latency(lambda: log.publish(TOPIC, value))


def _append_threads(log: EmbeddedLog) -> Run:
    value = os.urandom(KIB)

    def run(seconds: float) -> float:
        counts: list[float] = []
        one = rate(lambda: log.publish(TOPIC, value), 1.0)
        threads = [threading.Thread(target=lambda: counts.append(one(seconds))) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts)

    return run


def _as_rate(subject: Subject) -> Subject:
    @contextmanager
    def opened() -> Iterator[Run]:
        with subject() as run:
            yield lambda seconds: 1 / run(seconds)

    return opened
