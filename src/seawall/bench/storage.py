"""Suite `storage`: the embedded log against the disk and the memory below it.

Every figure works on a log of its own in `bench.directory`, made for it and removed after it. Writes go to class fsync:
what is counted is durable. The disk's own limit is measured by turns, in a file that is preallocated as the log's is.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from seawall.bench import disk, recovery_figures
from seawall.bench.harness import MEMORY_COPY, Baseline, BenchContext, Measurement, Run, Subject, latency, rate
from seawall.bench.results import Better, Goal
from seawall.core.types import Seq
from seawall.engine.embedded import EmbeddedLog, open_log
from seawall.engine.records import ReceivedBatch
from seawall.limits import KIB, MIB

TOPIC: Final = "bench"
THREADS: Final = 64
#: Records that read figures work on.
READ_SIZE: Final = 64 * MIB


def suite(context: BenchContext) -> Iterator[Measurement]:
    """The figures of this suite."""
    yield from _appends(context.directory)
    yield from _reads(context.directory)
    yield from _seeks(context.directory)
    yield from recovery_figures.figures(context.directory)


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


def _reads(directory: Path) -> Iterator[Measurement]:
    yield Measurement(
        "read batches, 1 KiB records",
        "B/s",
        Better.HIGHER,
        on_log(directory, _read_batches),
        baseline=MEMORY_COPY,
        goal=Goal.ratio_at_least(0.4),
        note="sealed segments, checksums verified, no record made",
    )
    yield Measurement(
        "read_arrow, 1 KiB records",
        "B/s",
        Better.HIGHER,
        on_log(directory, lambda log: _read_arrow(log, KIB, count_records=False)),
        baseline=MEMORY_COPY,
        goal=Goal.ratio_at_least(0.5),
    )
    yield Measurement(
        "read_arrow, 100 B records",
        "records/s",
        Better.HIGHER,
        on_log(directory, lambda log: _read_arrow(log, 100, count_records=True)),
        goal=Goal.value_at_least(5e6),
    )


def _seeks(directory: Path) -> Iterator[Measurement]:
    yield Measurement(
        "read one record by its seq, p50",
        "s",
        Better.LOWER,
        on_log(directory, _seek),
        goal=Goal.value_at_most(100e-6),
        note="in 640,000 records, batches of 100",
    )


def on_log(directory: Path, prepare: Callable[[EmbeddedLog], Run]) -> Subject:
    """A subject that gets a fresh log with one topic, and whose log is removed in the end."""

    @contextmanager
    def opened() -> Iterator[Run]:
        path = tempfile.mkdtemp(prefix="seawall-bench-", dir=directory)
        try:
            with open_log(path) as log:
                log.create_topic(TOPIC)
                yield prepare(log)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    return opened


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


def _fill(log: EmbeddedLog, value_size: int, size: int, batch_records: int = 1_000) -> int:
    """Publish records of one size, bring them to their places, and return how many there are."""
    values = [os.urandom(value_size) for _ in range(batch_records)]
    batches = max(1, size // (batch_records * value_size))
    for _ in range(batches):
        log.publish(TOPIC, values)
    log.checkpoint()
    return batches * batch_records


def _read_batches(log: EmbeddedLog) -> Run:
    count = _fill(log, KIB, READ_SIZE)

    def read() -> None:
        assert sum(len(item) for item in log.follow(TOPIC) if isinstance(item, ReceivedBatch)) == count

    return rate(read, count * (KIB + 5))


def _read_arrow(log: EmbeddedLog, value_size: int, *, count_records: bool) -> Run:
    count = _fill(log, value_size, READ_SIZE)

    def read() -> None:
        assert log.read_arrow(TOPIC, columns=("value",)).num_rows == count

    return rate(read, count if count_records else count * (value_size + 5))


def _seek(log: EmbeddedLog) -> Run:
    count = _fill(log, 100, READ_SIZE, batch_records=100)
    wanted = iter(np.random.default_rng(5).integers(1, count, 10_000_000))
    return latency(lambda: log.read(TOPIC, Seq(int(next(wanted))), limit=1, max_bytes=1))
