"""Suite `storage`: the embedded log against the disk and the memory below it.

Every figure works on a log of its own in `bench.directory`, made for it and removed after it. Writes go to class fsync:
what is counted is durable. The disk's own limit is measured by turns, in a file that is preallocated as the log's is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from seawall.bench import append_figures
from seawall.bench.harness import MEMORY_COPY, BenchContext, Measurement, Run, latency, rate
from seawall.bench.logs import TOPIC, on_log
from seawall.bench.results import Better, Goal
from seawall.core.types import Seq
from seawall.engine.embedded import EmbeddedLog
from seawall.engine.records import ReceivedBatch
from seawall.limits import KIB, MIB

#: Records that read figures work on.
READ_SIZE: Final = 64 * MIB


def suite(context: BenchContext) -> Iterator[Measurement]:
    """The figures of this suite."""
    yield from append_figures.figures(context.directory)
    yield from _reads(context.directory)
    yield from _seeks(context.directory)


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
