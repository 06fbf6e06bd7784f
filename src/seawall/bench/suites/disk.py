"""Disk subjects of the `limits` suite: what one durable write costs, and how many bytes a second become durable.

Every subject writes into a file of its own in the given directory. The file is filled and synced before the first timed
write, so that a timed write never grows it and never turns reserved blocks into written ones: what is left is the cost
of the data and of the sync, the floor under every durable append. The name is removed as soon as the file is open, so
not even a killed run leaves a file behind.

A write goes to the next place of the file, from the start again at its end. The bytes are random: a disk or file system
that compresses or drops zeros gets no gift.
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

#: Size of the file: many times what is written per sync, small next to any disk.
FILE_SIZE = 64 * MIB

#: An appending file begins anew at this size.
FILES_SIZE = 16 * FILE_SIZE

#: Writes one block at a position and makes it durable.
DurableWrite = Callable[[int, memoryview, int], None]


def write_latency(directory: Path, size: int) -> Subject:
    """Seconds until one write of `size` bytes, followed by a sync, is durable."""
    return _subject(directory, size, write_then_sync, latency)


def flagged_write_latency(directory: Path, size: int) -> Subject:
    """Seconds for the same in one call, a write flagged RWF_DSYNC; not every system and file system has it."""
    return _subject(directory, size, write_flagged, latency)


def write_bandwidth(directory: Path, size: int) -> Subject:
    """Bytes per second that become durable with a sync after every `size` bytes."""
    return _subject(directory, size, write_then_sync, lambda step: rate(step, size))


def append_latency(directory: Path, size: int) -> Subject:
    """Seconds until one write of `size` bytes behind the last one, into reserved space, and a sync are done."""
    return _appending(directory, size, latency)


def append_rate(directory: Path, size: int) -> Subject:
    """How many such writes become durable in a second, one after the other."""
    return _appending(directory, size, lambda step: rate(step, 1.0))


def append_bandwidth(directory: Path, size: int) -> Subject:
    """Bytes per second that become durable that way: what a log can do that never writes a byte twice."""
    return _appending(directory, size, lambda step: rate(step, size))


def write_then_sync(descriptor: int, block: memoryview, position: int) -> None:
    """The portable way: all the bytes, then one sync of data and length."""
    write_fully(os.pwrite, descriptor, block, position)
    sync(descriptor)


def write_flagged(descriptor: int, block: memoryview, position: int) -> None:
    """The Linux way: the write returns when its bytes are durable."""
    if not hasattr(os, "RWF_DSYNC"):
        raise UnsupportedError("this system has no RWF_DSYNC")
    try:
        write_fully(_pwrite_dsync, descriptor, block, position)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise UnsupportedError("this file system refuses RWF_DSYNC") from error
        raise


def write_fully(
    write: Callable[[int, memoryview, int], int], descriptor: int, block: memoryview, position: int
) -> None:
    """Call `write` until the whole block is out: the kernel may take less than it is given."""
    done = 0
    while done < len(block):
        done += write(descriptor, block[done:], position + done)


def sync(descriptor: int) -> None:
    """Have the disk itself hold the bytes; plain fsync on macOS leaves them in the disk's cache."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


@contextmanager
def filled_file(directory: Path) -> Iterator[int]:
    """A descriptor of a nameless file of `FILE_SIZE` durable bytes."""
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
    """What writes a block behind the last one, into reserved space of a nameless file, and syncs."""
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
