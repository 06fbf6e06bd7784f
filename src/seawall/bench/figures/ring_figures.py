"""Figures of suite `kernels` about disk rings: the latency of a durable write through a ring that needs no GIL.

A kernel submits the writes, as on the commit path, so a figure includes the ring, its server and the disk, but no
Python. The latency must stay about the same while another thread keeps the interpreter busy; a Python thread that
writes and syncs is measured for comparison.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from seawall.bench.harness import Baseline, BenchContext, Measurement, Run, Subject, latency
from seawall.bench.results import Better, Goal
from seawall.bench.suites import disk
from seawall.config import DiskBackend
from seawall.errors import FatalError, UnsupportedError
from seawall.io.disk.disk_ring import DiskRing
from seawall.io.disk.ring_backends import open_disk_ring
from seawall.io.disk.uring import probe
from seawall.kernels.runtime import disk_ring
from seawall.kernels.runtime.rings import CONTENT_WORDS, Words
from seawall.limits import KIB

WRITE_SIZE = 4 * KIB
#: Writes timed by one kernel call: few enough to end close to the requested time.
SAMPLES_PER_CALL = 64


def figures(context: BenchContext) -> Iterator[Measurement]:
    """List the figures of disk rings."""
    directory = context.directory
    bare = Baseline("bare write + sync", disk.write_latency(directory, WRITE_SIZE))
    idle = Baseline("on an idle process", ring_latency(directory, DiskBackend.RESIDENT))
    yield Measurement(
        "write + sync 4 KiB through a resident ring, p50",
        "s",
        Better.LOWER,
        ring_latency(directory, DiskBackend.RESIDENT),
        baseline=bare,
    )
    yield Measurement(
        "write + sync 4 KiB through an io_uring ring, p50",
        "s",
        Better.LOWER,
        ring_latency(directory, DiskBackend.URING),
        baseline=bare,
    )
    yield Measurement(
        "durable write 4 KiB (RWF_DSYNC) through a resident ring, p50",
        "s",
        Better.LOWER,
        ring_latency(directory, DiskBackend.RESIDENT, durable_write=True),
        baseline=bare,
    )
    yield Measurement(
        "ring beside a busy interpreter, p50",
        "s",
        Better.LOWER,
        beside_busy_thread(ring_latency(directory, DiskBackend.RESIDENT)),
        baseline=idle,
        goal=Goal.ratio_at_most(2.0),
        note="a thread runs Python code in a loop while a kernel submits to the resident ring",
    )
    yield Measurement(
        "Python thread beside a busy interpreter, p50",
        "s",
        Better.LOWER,
        beside_busy_thread(python_write_latency(directory)),
        baseline=Baseline("on an idle process", python_write_latency(directory)),
        note="for comparison: the same write and sync, called from Python",
    )


def ring_latency(directory: Path, backend: DiskBackend, *, durable_write: bool = False) -> Subject:
    """Median seconds of a 4 KiB write and its sync through a ring; a kernel submits one at a time."""

    @contextmanager
    def opened() -> Iterator[Run]:
        if backend == DiskBackend.URING and not probe().available:
            raise UnsupportedError(probe().detail)
        block = np.frombuffer(os.urandom(WRITE_SIZE), np.uint8)
        iovec = np.array([block.ctypes.data, block.nbytes], np.int64)
        with disk.filled_file(directory) as descriptor:
            ring = open_disk_ring(backend)
            try:
                operations = _chain(descriptor, iovec, durable_write=durable_write)
                yield lambda seconds: _median(ring, operations, seconds)
            finally:
                ring.close()

    return opened


def _chain(descriptor: int, iovec: Words, *, durable_write: bool) -> Words:
    """The operations of one durable write: a linked write and sync, or one write with RWF_DSYNC."""
    write = np.zeros((1 if durable_write else 2, CONTENT_WORDS), np.int64)
    write[:, disk_ring.SUBMIT_FD] = descriptor
    write[0, disk_ring.SUBMIT_OPERATION] = disk_ring.WRITE_SYNC if durable_write else disk_ring.WRITE | disk_ring.LINK
    write[0, disk_ring.SUBMIT_IOVEC] = iovec.ctypes.data
    write[0, disk_ring.SUBMIT_COUNT] = 1
    write[0, disk_ring.SUBMIT_BYTES] = WRITE_SIZE
    if not durable_write:
        write[1, disk_ring.SUBMIT_TAG] = 1
        write[1, disk_ring.SUBMIT_OPERATION] = disk_ring.SYNC
    return write.reshape(-1)


def _median(ring: DiskRing, operations: Words, seconds: float) -> float:
    samples = np.zeros(SAMPLES_PER_CALL, np.int64)
    collected: list[Words] = []
    spent_ns = 0
    while not collected or spent_ns < seconds * 1e9:
        code = disk_ring.measure_chain(ring.words, ring.doorbell.signal_fd, ring.completed.wait_fd, operations, samples)
        if code < 0:
            raise FatalError(f"a disk operation failed: {os.strerror(-code)}")
        collected.append(samples.copy())
        spent_ns += int(samples.sum())
    return float(np.median(np.concatenate(collected))) / 1e9


def python_write_latency(directory: Path) -> Subject:
    """Median seconds of the same write and sync, called from Python."""

    @contextmanager
    def opened() -> Iterator[Run]:
        block = memoryview(os.urandom(WRITE_SIZE))
        with disk.filled_file(directory) as descriptor:
            yield latency(lambda: disk.write_then_sync(descriptor, block, 0))

    return opened


def beside_busy_thread(subject: Subject) -> Subject:
    """The same subject while another thread of the process runs Python code in a loop."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with subject() as run:

            def run_beside(seconds: float) -> float:
                stop = threading.Event()
                thread = threading.Thread(target=_keep_busy, args=(stop,), daemon=True)
                thread.start()
                try:
                    return run(seconds)
                finally:
                    stop.set()
                    thread.join()

            yield run_beside

    return opened


def _keep_busy(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(10_000))
