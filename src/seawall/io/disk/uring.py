"""Serves a disk ring through io_uring: sets up the kernel's queue, and probes whether io_uring works here.

This module creates the queue with system calls through the C library; after that only the resident loop of
`kernels/runtime/uring.py` touches it. Containers often forbid io_uring by seccomp, and a sysctl can disable it. So
`probe()` does a real write and sync through a real queue instead of trusting a version number.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from seawall.errors import SeawallError, UnsupportedError
from seawall.io.disk.disk_ring import DiskRing, ServerThread
from seawall.kernels.runtime import uring
from seawall.kernels.runtime.system import IS_LINUX, SYS_IO_URING_SETUP, libc_call

_OFFSET_SQ_RING = 0
_OFFSET_CQ_RING = 0x8000000
_OFFSET_SQES = 0x10000000
_SQE_SIZE = 64
_CQE_SIZE = 16


def _u32(names: str) -> list[tuple[str, type[ctypes.c_uint32]]]:
    return [(name, ctypes.c_uint32) for name in names.split()]


class _SubmissionOffsets(ctypes.Structure):
    _fields_ = [*_u32("head tail mask entries flags dropped array reserved"), ("user_address", ctypes.c_uint64)]


class _CompletionOffsets(ctypes.Structure):
    _fields_ = [*_u32("head tail mask entries overflow cqes flags reserved"), ("user_address", ctypes.c_uint64)]


class _Parameters(ctypes.Structure):
    _fields_ = [
        *_u32("sq_entries cq_entries flags sq_cpu sq_idle features wq_fd reserved_0 reserved_1 reserved_2"),
        ("sq", _SubmissionOffsets),
        ("cq", _CompletionOffsets),
    ]


@dataclass(frozen=True, slots=True)
class UringProbe:
    """The result of a probe: whether io_uring works here, and the observation behind that."""

    available: bool
    detail: str


class KernelQueue:
    """One io_uring instance: its descriptor and the arrays over its shared memory."""

    def __init__(self, entries: int) -> None:
        if not IS_LINUX:
            raise UnsupportedError("io_uring exists on Linux only: use the resident back end")
        parameters = _Parameters()
        # One more than the disk ring, for the doorbell; the kernel rounds up to a power of two.
        self.fd = libc_call("syscall", SYS_IO_URING_SETUP, entries + 1, ctypes.addressof(parameters))
        if self.fd < 0:
            reason = os.strerror(-self.fd)
            raise UnsupportedError(f"io_uring is not available here ({reason}): use the resident back end")
        self._maps: list[mmap.mmap] = []
        try:
            self._map(parameters, entries)
        except BaseException:
            self.close()
            raise

    def _map(self, parameters: _Parameters, entries: int) -> None:
        sq_offsets, cq_offsets = parameters.sq, parameters.cq
        self.sq = self._words32(_OFFSET_SQ_RING, sq_offsets.array + parameters.sq_entries * 4)
        self.cq = self._words32(_OFFSET_CQ_RING, cq_offsets.cqes + parameters.cq_entries * _CQE_SIZE)
        sqes = self._map_region(_OFFSET_SQES, parameters.sq_entries * _SQE_SIZE)
        self.sqes = np.frombuffer(sqes, np.int64)
        first, count = cq_offsets.cqes, parameters.cq_entries * 2
        self.cqes = np.frombuffer(self._maps[1], np.int64, count=count, offset=first)
        self.layout = np.zeros(uring.LAYOUT_WORDS, np.int64)
        self.layout[uring.SQ_TAIL] = sq_offsets.tail // 4
        self.layout[uring.SQ_MASK] = sq_offsets.mask // 4
        self.layout[uring.SQ_ARRAY] = sq_offsets.array // 4
        self.layout[uring.CQ_HEAD] = cq_offsets.head // 4
        self.layout[uring.CQ_TAIL] = cq_offsets.tail // 4
        self.layout[uring.CQ_MASK] = cq_offsets.mask // 4
        self.layout[uring.URING_FD] = self.fd
        self.pending = np.zeros(entries * uring.PENDING_WORDS, np.int64)
        self.pending[2 :: uring.PENDING_WORDS] = [*range(1, entries), uring.NO_FREE]

    def _map_region(self, offset: int, length: int) -> mmap.mmap:
        region = mmap.mmap(self.fd, length, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0), offset=offset)
        self._maps.append(region)
        return region

    def _words32(self, offset: int, length: int) -> npt.NDArray[np.uint32]:
        return np.frombuffer(self._map_region(offset, length), np.uint32)

    def close(self) -> None:
        """Drop the arrays, unmap the memory, and close the queue, in that order."""
        for name in ("sq", "cq", "sqes", "cqes"):
            self.__dict__.pop(name, None)
        for region in self._maps:
            region.close()
        self._maps.clear()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class UringServer(ServerThread):
    """Serves a disk ring from an io_uring queue: many operations in flight, chains linked by the operating system."""

    def __init__(self, ring: DiskRing, cpus: Collection[int] = ()) -> None:
        self._queue = queue = KernelQueue(ring.entries)
        words, doorbell, completed = ring.words, ring.doorbell.wait_fd, ring.completed.signal_fd
        arrays = (queue.sq, queue.cq, queue.sqes, queue.cqes, queue.layout, queue.pending)
        super().__init__(ring, "uring", lambda: uring.serve_uring(words, doorbell, completed, *arrays), cpus)

    def stop(self) -> None:
        """Finish the operations in flight, wait for the thread, and close the queue."""
        super().stop()
        self._queue.close()


@cache
def probe() -> UringProbe:
    """Write and sync one page through a real queue, once per process."""
    try:
        started = time.perf_counter()
        ring = DiskRing(2)
        try:
            ring.server = UringServer(ring)
            with tempfile.TemporaryFile() as file:
                ring.write(file, [bytes(4096)], 0, tag=1, link=True)
                ring.sync(file, tag=2)
                ring.submit()
                results = {done.tag: done.result for done in ring.reap(wait_ms=5_000, count=2)}
        finally:
            ring.close()
    except (SeawallError, OSError) as error:
        return UringProbe(False, str(error))
    if results != {1: 4096, 2: 0}:
        return UringProbe(False, f"a linked write and sync gave {results}")
    return UringProbe(True, f"a linked write and sync worked in {(time.perf_counter() - started) * 1e3:.1f} ms")
