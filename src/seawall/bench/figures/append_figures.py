"""Figures of appends of class fsync against bare disk writes: large batches, single records, concurrent appenders.

The baseline writes a file once, front to back, into reserved space, as a log does. Overwriting an existing file is
faster on most file systems, but an append cannot do that.

The log flushes small batches to segments in the background (`engine/maintenance/flush_thread.py`). Each run ends with
an untimed checkpoint, so that no flush is left to run while the baseline is measured; one figure includes it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Final

from seawall.bench.harness import NANOSECONDS_PER_SECOND, Baseline, Measurement, Run, Subject, latency, rate
from seawall.bench.results import Better, Goal
from seawall.bench.subjects.logs import TOPIC, on_log
from seawall.bench.suites import disk
from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.errors import UnsupportedError
from seawall.limits import KIB, MIB

APPENDERS: Final = 64
#: In-flight window of the publisher: two batches are encoded while two are written.
IN_FLIGHT: Final = 4 * MIB
#: Bytes appended to measure the write amplification.
COUNTED_SIZE: Final = 256 * MIB

_RECORDS: Final = MIB // (KIB + 5)


def append_figures(directory: Path) -> Iterator[Measurement]:
    """List the figures of appending."""
    one_by_one = disk.append_latency(directory, KIB)
    # Compare a rate with a rate: then the slowest syncs count on both sides.
    by_rate = Baseline("bare write + sync, one by one", disk.append_rate(directory, KIB))
    yield Measurement(
        "append 1 MiB batches, class fsync",
        "B/s",
        Better.HIGHER,
        on_log(directory, _append_large),
        baseline=Baseline("write + sync 1 MiB", disk.append_bandwidth(directory, MIB)),
        goal=Goal.ratio_at_least(0.8),
        note=f"{_RECORDS:,} records of 1 KiB per batch; a publisher with {IN_FLIGHT // MIB} MiB in flight",
    )
    yield Measurement(
        "bytes written for a byte of such batches",
        "B/B",
        Better.LOWER,
        on_log(directory, _bytes_written),
        goal=Goal.value_at_most(1.1),
        note="bytes sent to disks by this process, as the kernel counts them",
    )
    yield Measurement(
        "append one 1 KiB record, lone writer, p50",
        "s",
        Better.LOWER,
        on_log(directory, _append_one),
        baseline=Baseline("bare write + sync", one_by_one),
        goal=Goal.ratio_at_most(1.5),
    )
    yield Measurement(
        f"append one 1 KiB record, {APPENDERS} threads",
        "records/s",
        Better.HIGHER,
        on_log(directory, _append_threads),
        baseline=by_rate,
        goal=Goal.ratio_at_least(2.0),
    )
    yield Measurement(
        f"append one 1 KiB record, {APPENDERS} asyncio tasks",
        "records/s",
        Better.HIGHER,
        _append_tasks(directory),
        baseline=by_rate,
        goal=Goal.ratio_at_least(8.0),
        note="on uvloop if installed; a burst that stays in the log, not yet flushed to segments",
    )
    yield Measurement(
        f"the same, {APPENDERS} asyncio tasks, until all is in its place",
        "records/s",
        Better.HIGHER,
        _append_tasks(directory, includes_flush=True),
        baseline=by_rate,
        note="includes a checkpoint after every burst",
    )


def _values() -> list[bytes]:
    return [os.urandom(KIB) for _ in range(_RECORDS)]


def _append_large(log: EmbeddedLog) -> Run:
    values = _values()

    def run(seconds: float) -> float:
        started = perf_counter_ns()
        deadline = started + int(seconds * NANOSECONDS_PER_SECOND)
        count = 0
        with log.publisher(TOPIC, max_in_flight=IN_FLIGHT) as publisher:
            while not count or perf_counter_ns() < deadline:
                publisher.publish(values)
                count += 1
        # Closing the publisher has made everything durable.
        return count * _RECORDS * (KIB + 5) * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

    return run


def _bytes_written(log: EmbeddedLog) -> Run:
    values = _values()

    def run(_: float) -> float:
        before = _written()
        with log.publisher(TOPIC, max_in_flight=IN_FLIGHT) as publisher:
            for _ in range(COUNTED_SIZE // MIB):
                publisher.publish(values)
        log.checkpoint()
        return (_written() - before) / (COUNTED_SIZE // MIB * _RECORDS * (KIB + 5))

    return run


def _written() -> int:
    """Bytes that this process has sent to disks so far."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise UnsupportedError("this system does not count the bytes that a process writes") from error
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def _append_one(log: EmbeddedLog) -> Run:
    value = os.urandom(KIB)
    return _then_checkpoint(log, latency(lambda: log.publish(TOPIC, value)))


def _then_checkpoint(log: EmbeddedLog, run: Run) -> Run:
    """The same run, followed by an untimed checkpoint."""

    def with_checkpoint(seconds: float) -> float:
        value = run(seconds)
        log.checkpoint()
        return value

    return with_checkpoint


def _append_threads(log: EmbeddedLog) -> Run:
    value = os.urandom(KIB)

    def run(seconds: float) -> float:
        counts: list[float] = []
        one = rate(lambda: log.publish(TOPIC, value), 1.0)
        threads = [threading.Thread(target=lambda: counts.append(one(seconds))) for _ in range(APPENDERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts)

    return _then_checkpoint(log, run)


def _append_tasks(directory: Path, *, includes_flush: bool = False) -> Subject:
    value = os.urandom(KIB)

    async def append(log: AsyncLog, deadline: int) -> int:
        count = 0
        while not count or perf_counter_ns() < deadline:
            await log.publish(TOPIC, value)
            count += 1
        return count

    async def append_all(log: AsyncLog, seconds: float) -> float:
        started = perf_counter_ns()
        deadline = started + int(seconds * NANOSECONDS_PER_SECOND)
        counts = await asyncio.gather(*(append(log, deadline) for _ in range(APPENDERS)))
        ended = perf_counter_ns()
        await log.checkpoint()
        if includes_flush:
            ended = perf_counter_ns()
        return sum(counts) * NANOSECONDS_PER_SECOND / (ended - started)

    @contextmanager
    def opened() -> Iterator[Run]:
        path = tempfile.mkdtemp(prefix="seawall-bench-", dir=directory)
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                log = AsyncLog(path)
                runner.run(log.open())
                runner.run(log.create_topic(TOPIC))
                yield lambda seconds: runner.run(append_all(log, seconds))
                runner.run(log.close())
        finally:
            shutil.rmtree(path, ignore_errors=True)

    return opened


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop if it is installed; None for the event loop of the standard library."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
