"""Disk subjects of the `limits` suite: the latency and the bandwidth of durable writes.

Every subject writes to its own file in the given directory. `write_…` subjects fill and sync the file before the first
timed write, so a timed write neither grows the file nor converts reserved blocks to written ones. The remaining cost is
that of the data and of the sync: the lower bound of every durable append. `append_…` subjects write behind the last
block into reserved space, as a log does. Every file is unlinked as soon as it is open, so even a killed run leaves no
file behind.

`write_…` subjects write sequentially and wrap around at the end of the file. The bytes are random, so that a disk or
file system that compresses or drops zeros gains nothing.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from seawall.bench.harness import Run, Subject, latency, rate
from seawall.errors import UnsupportedError
from seawall.io.disk.files import reserve_space
from seawall.limits import MIB

#: Size of a file: many times the bytes per sync, small compared with any disk.
FILE_SIZE = 64 * MIB

#: An append file is truncated and starts again at this size.
FILES_SIZE = 16 * FILE_SIZE

#: Writes one block at a position and makes it durable.
DurableWrite = Callable[[int, memoryview, int], None]


def write_latency(directory: Path, size: int) -> Subject:
    """Seconds until one write of `size` bytes, followed by a sync, is durable."""
    return _subject(directory, size, write_then_sync, latency)


def flagged_write_latency(directory: Path, size: int) -> Subject:
    """Seconds until one write with RWF_DSYNC is durable; some systems and file systems do not support the flag."""
    return _subject(directory, size, write_flagged, latency)


def write_bandwidth(directory: Path, size: int) -> Subject:
    """Bytes per second that become durable with a sync after every `size` bytes."""
    return _subject(directory, size, write_then_sync, lambda step: rate(step, size))


def append_latency(directory: Path, size: int) -> Subject:
    """Seconds until one append of `size` bytes into reserved space, followed by a sync, is durable."""
    return _appending(directory, size, latency)


def append_rate(directory: Path, size: int) -> Subject:
    """Appends per second, each into reserved space and followed by a sync."""
    return _appending(directory, size, lambda step: rate(step, 1.0))


def append_bandwidth(directory: Path, size: int) -> Subject:
    """Bytes per second of such appends: the limit of a log that writes every byte once."""
    return _appending(directory, size, lambda step: rate(step, size))


def write_then_sync(descriptor: int, block: memoryview, position: int) -> None:
    """Write a block and sync data and length; works on every system."""
    write_fully(os.pwrite, descriptor, block, position)
    sync(descriptor)


def write_flagged(descriptor: int, block: memoryview, position: int) -> None:
    """Write a block with RWF_DSYNC (Linux), which returns when the bytes are durable."""
    if not hasattr(os, "RWF_DSYNC"):
        raise UnsupportedError("this system has no RWF_DSYNC")
    try:
        write_fully(_pwrite_dsync, descriptor, block, position)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise UnsupportedError("this file system does not support RWF_DSYNC") from error
        raise


def write_fully(
    write: Callable[[int, memoryview, int], int], descriptor: int, block: memoryview, position: int
) -> None:
    """Call `write` until the whole block is written; the kernel may write less than requested."""
    done = 0
    while done < len(block):
        done += write(descriptor, block[done:], position + done)


def sync(descriptor: int) -> None:
    """Make the written bytes durable. On macOS a plain fsync leaves them in the disk's cache, so use F_FULLFSYNC."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


@contextmanager
def filled_file(directory: Path) -> Iterator[int]:
    """Open an unlinked file of `FILE_SIZE` durable bytes; yields its descriptor."""
    descriptor, path = tempfile.mkstemp(prefix="seawall-bench-", dir=directory)
    try:
        os.unlink(path)
        block = memoryview(os.urandom(MIB))
        for position in range(0, FILE_SIZE, len(block)):
            write_fully(os.pwrite, descriptor, block, position)
        sync(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def appending_file(directory: Path) -> Iterator[Callable[[memoryview], None]]:
    """Open an unlinked file; yields a function that appends a block into reserved space and syncs."""
    descriptor, path = tempfile.mkstemp(prefix="seawall-bench-", dir=directory)
    os.unlink(path)
    position = reserved = 0

    def append(block: memoryview) -> None:
        nonlocal position, reserved
        if position + len(block) > reserved:
            if reserved >= FILES_SIZE:
                os.ftruncate(descriptor, 0)
                position = reserved = 0
            reserve_space(descriptor, reserved + FILE_SIZE)
            reserved += FILE_SIZE
        write_then_sync(descriptor, block, position)
        position += len(block)

    try:
        yield append
    finally:
        os.close(descriptor)


def _appending(directory: Path, size: int, timed: Callable[[Callable[[], None]], Run]) -> Subject:
    @contextmanager
    def opened() -> Iterator[Run]:
        block = memoryview(os.urandom(size))
        with appending_file(directory) as append:
            yield timed(lambda: append(block))

    return opened


def _pwrite_dsync(descriptor: int, block: memoryview, position: int) -> int:
    return os.pwritev(descriptor, (block,), position, os.RWF_DSYNC)


def _subject(directory: Path, size: int, write: DurableWrite, timed: Callable[[Callable[[], None]], Run]) -> Subject:
    @contextmanager
    def opened() -> Iterator[Run]:
        block = memoryview(os.urandom(size))
        position = 0
        with filled_file(directory) as descriptor:

            def step() -> None:
                nonlocal position
                write(descriptor, block, position)
                position = (position + size) % FILE_SIZE

            yield timed(step)

    return opened
