"""Suite `design`: measure the alternatives of the decision records side by side.

The records in `docs/decisions/` cite figures of this suite, so anyone can repeat them. The figures have no goals: a
different outcome on another machine is a reason to reconsider a decision, not a failure.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seawall.bench.harness import Baseline, BenchContext, Measurement, Run, Subject, latency, plain, rate
from seawall.bench.results import Better
from seawall.bench.suites import disk
from seawall.bench.suites.processes import command_time
from seawall.kernels.codec import blocks
from seawall.kernels.runtime.warm import warm
from seawall.limits import KIB

RECORDS = 10_000_000
RECORDS_PER_BATCH = 100
VALUE_SIZE = 100
FILES = 4


def suite(context: BenchContext) -> Iterator[Measurement]:
    """List the figures of this suite."""
    yield from _kernels()
    yield from _roles()
    yield from _index()
    yield from _one_wal(context)


def _kernels() -> Iterator[Measurement]:
    yield Measurement(
        "scan 64 B records by a kernel",
        "records/s",
        Better.HIGHER,
        plain(_scanning(1_000, _kernel_scan)),
        baseline=Baseline("by a Python loop", plain(_scanning(1_000, python_scan))),
    )
    yield Measurement(
        "load every kernel from the cache",
        "s",
        Better.LOWER,
        command_time("-c", "from seawall.kernels.runtime.warm import warm; warm()"),
        baseline=Baseline("import numba alone", command_time("-c", "import numba")),
    )


def _sample_block(count: int, value_size: int) -> npt.NDArray[np.uint8]:
    values = np.zeros(count * value_size, np.uint8)
    offsets = np.arange(count + 1, dtype=np.int64) * value_size
    block = np.zeros(blocks.encoded_size(offsets, count, 1), np.uint8)
    blocks.encode_block(values, offsets, count, 1, block, 0)
    return block


def _scanning(count: int, scan: Callable[[npt.NDArray[np.uint8], npt.NDArray[np.int64]], int]) -> Run:
    block = _sample_block(count, 64)
    offsets = np.zeros(count + 1, np.int64)
    return rate(lambda: scan(block, offsets), count)


def _kernel_scan(block: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> int:
    return blocks.scan_block(block, 0, block.nbytes, blocks.RECORDS_STORED, offsets.size, offsets)


def python_scan(block: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> int:
    """Scan a block by a plain Python loop over standard types, as one would without kernels."""
    data = block.tobytes()
    at = count = 0
    while at < len(data):
        offsets[count] = at
        at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        count += 1
    return count


def _roles() -> Iterator[Measurement]:
    yield Measurement(
        "fork a role from a warm process",
        "s",
        Better.LOWER,
        _forking,
        baseline=Baseline(
            "start it in a fresh interpreter",
            command_time("-c", "from seawall.kernels.runtime.warm import warm; warm()"),
        ),
        note="until the child process has exited",
    )


@contextmanager
def _forking() -> Iterator[Run]:
    warm()

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)

    yield latency(fork)


def _index() -> Iterator[Measurement]:
    batches = RECORDS // RECORDS_PER_BATCH
    yield Measurement(
        "find a record through an index of batches",
        "s",
        Better.LOWER,
        _batch_seek,
        baseline=Baseline("through an index of records", _record_seek),
        note=f"{RECORDS:,} records: {batches * 48 / 1e6:.1f} MB batch index, {RECORDS * 20 / 1e6:.0f} MB record index",
    )


@contextmanager
def _batch_seek() -> Iterator[Run]:
    base_seqs = np.arange(1, RECORDS, RECORDS_PER_BATCH, dtype=np.uint64)
    block = _sample_block(RECORDS_PER_BATCH, VALUE_SIZE)
    offsets = np.zeros(RECORDS_PER_BATCH + 1, np.int64)
    wanted = _wanted_seqs()

    def seek() -> None:
        seq = next(wanted)
        found = np.searchsorted(base_seqs, seq, side="right") - 1
        blocks.scan_block(block, 0, block.nbytes, blocks.RECORDS_STORED, RECORDS_PER_BATCH, offsets)
        offsets[int(seq) - int(base_seqs[found])]

    yield latency(seek)


@contextmanager
def _record_seek() -> Iterator[Run]:
    positions = np.arange(RECORDS, dtype=np.uint64) * np.uint64(VALUE_SIZE)
    timestamps = np.arange(RECORDS, dtype=np.uint64)
    wanted = _wanted_seqs()

    def seek() -> None:
        # A record index finds a seq by its index without a search; this is the lookup of a time.
        positions[np.searchsorted(timestamps, next(wanted))]

    yield latency(seek)


def _wanted_seqs() -> Iterator[np.uint64]:
    random = np.random.default_rng(3)
    while True:
        yield from random.integers(1, RECORDS, 1_000, dtype=np.uint64)


def _one_wal(context: BenchContext) -> Iterator[Measurement]:
    yield Measurement(
        "64 KiB each made durable in four files, a thread each",
        "B/s",
        Better.HIGHER,
        _several_files(context.directory),
        baseline=Baseline("256 KiB in one file", disk.write_bandwidth(context.directory, FILES * 64 * KIB)),
        note="the same bytes: four logs in parallel against one group commit",
    )


def _several_files(directory: Path) -> Subject:
    @contextmanager
    def opened() -> Iterator[Run]:
        block = memoryview(os.urandom(64 * KIB))
        begin, end = threading.Barrier(FILES + 1), threading.Barrier(FILES + 1)
        stopping = threading.Event()

        def work(descriptor: int) -> None:
            position = 0
            while True:
                begin.wait()
                if stopping.is_set():
                    return
                disk.write_then_sync(descriptor, block, position)
                position = (position + len(block)) % disk.FILE_SIZE
                end.wait()

        def step() -> None:
            begin.wait()
            end.wait()

        with ExitStack() as files:
            descriptors = [files.enter_context(disk.filled_file(directory)) for _ in range(FILES)]
            threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in descriptors]
            for thread in threads:
                thread.start()
            try:
                yield rate(step, FILES * len(block))
            finally:
                stopping.set()
                begin.wait()
                for thread in threads:
                    thread.join()

    return opened
