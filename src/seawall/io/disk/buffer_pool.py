"""A pool of memory buffers for in-memory files: the buffers of deleted files serve new files.

Buffers have a few fixed sizes, so a returned one fits the next file. A workload that writes and drops data all the time
then needs no fresh pages; clearing fresh pages costs as much as writing them. A reused buffer still holds old bytes: do
not read what was not written.

A buffer returns to the pool when the last view of it is garbage-collected. Any thread may take or drop buffers.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from threading import Lock
from typing import Final

import numpy as np

from seawall.kernels.runtime.memory import Bytes
from seawall.limits import KIB, MIB

__all__ = ["BUFFER_SIZE_MAX", "BUFFER_SIZE_MIN", "BufferPool"]

#: Smallest and largest buffer; the largest ones ask for huge pages.
BUFFER_SIZE_MIN: Final = 64 * KIB
BUFFER_SIZE_MAX: Final = 4 * MIB
#: Free bytes the pool keeps, beside half of the bytes in use: files are freed whole, and grow buffer by buffer.
_FREE_SIZE_MIN: Final = 64 * MIB


class BufferPool:
    """The free buffers that the files of one owner share."""

    __slots__ = ("__weakref__", "_free", "_lock", "_returned", "_used", "size")

    def __init__(self) -> None:
        #: Free buffers by their size.
        self._free: dict[int, list[mmap.mmap]] = {}
        self._used = 0
        #: Free bytes in the pool.
        self.size = 0
        #: Buffers that lost their last view and are not in `_free` yet. Finalizers append at any time on any thread,
        #: even while this thread holds the lock, so appending must not take it.
        self._returned: deque[mmap.mmap] = deque()
        self._lock = Lock()

    def take(self, size: int) -> Bytes:
        """A buffer of one of the pool's sizes, with arbitrary content; it returns to the pool with its last view."""
        with self._lock:
            self._used += size
            free = self._free.get(size)
            memory = free.pop() if free else None
            if memory is not None:
                self.size -= size
        self._collect_returned()
        if memory is None:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if size >= BUFFER_SIZE_MAX and hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
        buffer: Bytes = np.frombuffer(memory, np.uint8)
        # Slices of the array, and slices of those, keep a reference to it.
        weakref.finalize(buffer, self._return, memory).atexit = False
        return buffer

    def _return(self, memory: mmap.mmap) -> None:
        self._returned.append(memory)
        self._collect_returned()

    def _collect_returned(self) -> None:
        """Move returned buffers to the free lists; free the excess to the system.

        If another thread holds the lock, that thread collects them.
        """
        while self._returned and self._lock.acquire(blocking=False):
            try:
                while self._returned:
                    self._keep(self._returned.popleft())
            finally:
                self._lock.release()

    def _keep(self, memory: mmap.mmap) -> None:
        self._used -= len(memory)
        self._free.setdefault(len(memory), []).append(memory)
        self.size += len(memory)
        while self.size > _FREE_SIZE_MIN + self._used // 2:
            largest = max(size for size, free in self._free.items() if free)
            self._free[largest].pop()
            self.size -= largest
