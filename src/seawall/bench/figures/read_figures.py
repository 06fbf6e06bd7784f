"""Figures of reading: batches, Arrow tables, single records in a large topic, and the memory of its indexes.

All records are in sealed segments in the page cache, and reads verify them. The figures that need a large topic share
one: the first figure builds it, the last one removes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final

import numpy as np

from seawall.bench.harness import MEMORY_COPY, BenchContext, Measurement, Run, Subject, latency, rate
from seawall.bench.results import Better, Goal
from seawall.bench.subjects.logs import TOPIC, on_log
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.read.read_results import ReceivedBatch
from seawall.limits import KIB, MIB

#: Bytes of records in the topic that is read.
READ_SIZE: Final = 64 * MIB

#: The large topic: records, records per batch, and bytes per value.
LARGE_RECORDS: Final = 10_000_000
LARGE_BATCH: Final = 100
LARGE_VALUE_SIZE: Final = 16

#: Different seqs or times to look up; the run repeats them.
_SEEKS: Final = 100_000


def read_figures(context: BenchContext) -> Iterator[Measurement]:
    """List the figures of reading; those that need the large topic come last."""
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
        note="sealed segments; checksums verified; no object per record",
    )
    yield Measurement(
        "read_arrow, 1 KiB records",
        "B/s",
        Better.HIGHER,
        on_log(directory, partial(_read_arrow, value_size=KIB, count_records=False)),
        baseline=MEMORY_COPY,
        goal=Goal.ratio_at_least(0.5),
    )
    yield Measurement(
        "read_arrow, 100 B records",
        "records/s",
        Better.HIGHER,
        on_log(directory, partial(_read_arrow, value_size=100, count_records=True)),
        goal=Goal.value_at_least(5e6),
    )


def _seeks(directory: Path) -> Iterator[Measurement]:
    large = f"in {LARGE_RECORDS:,} records, batches of {LARGE_BATCH}"
    topic = LargeTopic(directory, LARGE_RECORDS, figures=3)
    yield Measurement(
        "read one record by its seq, p50",
        "s",
        Better.LOWER,
        topic.subject(_seek),
        goal=Goal.value_at_most(100e-6),
        note=large,
    )
    yield Measurement(
        "read the first record from a time on, p50",
        "s",
        Better.LOWER,
        topic.subject(_seek_time),
        goal=Goal.value_at_most(100e-6),
        note=large,
    )
    yield Measurement(
        "memory of the indexes",
        "MB",
        Better.LOWER,
        topic.subject(_index_size),
        goal=Goal.value_at_most(16),
        note=large,
    )


class LargeTopic:
    """A log with many records that several figures share, one after another; the last one removes it."""

    def __init__(self, directory: Path, records: int, *, figures: int) -> None:
        self._directory = directory
        self._records = records
        self._figures_left = figures
        self._log: EmbeddedLog | None = None
        self._remove: Callable[[], object] = lambda: None

    def subject(self, prepare: Callable[[EmbeddedLog], Run]) -> Subject:
        """A subject that uses the shared log."""

        @contextmanager
        def opened() -> Iterator[Run]:
            try:
                yield prepare(self._open_or_build())
            finally:
                self._figures_left -= 1
                if not self._figures_left and self._log is not None:
                    self._log.close()
                    self._log = None
                    self._remove()

        return opened

    def _open_or_build(self) -> EmbeddedLog:
        if self._log is None:
            path = tempfile.mkdtemp(prefix="seawall-bench-", dir=self._directory)
            # Removes the log even if the run ends before the last figure.
            self._remove = weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
            self._log = open_log(path)
            # Class disk, because no figure measures these writes.
            self._log.create_topic(TOPIC, durability="disk")
            _fill(self._log, LARGE_VALUE_SIZE, self._records, LARGE_BATCH)
        return self._log


def _fill(log: EmbeddedLog, value_size: int, records: int, batch_records: int = 1_000) -> int:
    """Publish records of one size and flush them to segments; return their number."""
    values = [os.urandom(value_size) for _ in range(batch_records)]
    batches = max(1, records // batch_records)
    for _ in range(batches):
        log.publish(TOPIC, values)
    log.checkpoint()
    return batches * batch_records


def _read_batches(log: EmbeddedLog) -> Run:
    count = _fill(log, KIB, READ_SIZE // KIB)

    def read() -> None:
        assert sum(len(item) for item in log.follow(TOPIC) if isinstance(item, ReceivedBatch)) == count

    return rate(read, count * (KIB + 5))


def _read_arrow(log: EmbeddedLog, *, value_size: int, count_records: bool) -> Run:
    count = _fill(log, value_size, READ_SIZE // value_size)

    def read() -> None:
        assert log.read_arrow(TOPIC, columns=("value",)).num_rows == count

    return rate(read, count if count_records else count * (value_size + 5))


def _seek(log: EmbeddedLog) -> Run:
    wanted = cycle(np.random.default_rng(5).integers(1, log.describe(TOPIC).next_seq, _SEEKS).tolist())
    return latency(lambda: log.read(TOPIC, next(wanted), limit=1, max_bytes=1))


def _seek_time(log: EmbeddedLog) -> Run:
    edges = [_timestamp_ns(log, seq) / 1e9 for seq in (1, log.describe(TOPIC).next_seq - 1)]
    times = np.random.default_rng(6).uniform(edges[0], edges[1], _SEEKS).tolist()
    wanted = cycle([datetime.fromtimestamp(each, UTC) for each in times])
    return latency(lambda: log.read(TOPIC, log.seq_at(TOPIC, next(wanted)), limit=1, max_bytes=1))


def _timestamp_ns(log: EmbeddedLog, seq: int) -> int:
    (batch,) = log.read(TOPIC, seq, limit=1, max_bytes=1)
    assert isinstance(batch, ReceivedBatch)
    return batch.timestamp_ns


def _index_size(log: EmbeddedLog) -> Run:
    return lambda _seconds: log.index_size(TOPIC) / 1e6
