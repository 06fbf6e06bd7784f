"""A buffer pool for large reads and large outgoing blocks.

Fresh memory costs a page fault for every page, about as much as reading into it. So the pool keeps buffers of a few
sizes. A buffer returns to the pool by itself when the last view of it is garbage collected.

INV-BUFFER-ALONE: memory that a view refers to is not used again or written. Views refer to an array between them and
the memory; a finalizer of that array returns the memory to the pool.

Safe from any thread, also from within the garbage collector: nothing here waits for a lock.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall.kernels.runtime.memory import LINE_SIZE
from seawall.limits import READ_BUFFER_SIZE_MAX, READ_BUFFER_SIZE_MIN, READ_MEMORY_KEPT

Bytes = npt.NDArray[np.uint8]


class ReadBuffers:
    """A pool of buffers with sizes that are powers of two."""

    def __init__(self) -> None:
        sizes = []
        size = READ_BUFFER_SIZE_MIN
        while size <= READ_BUFFER_SIZE_MAX:
            sizes.append(size)
            size *= 2
        self._free: dict[int, deque[Bytes]] = {size: deque() for size in sizes}

    def take(self, length: int) -> Bytes:
        """An uninitialized array of `length` bytes; small and very large ones are not pooled."""
        if not READ_BUFFER_SIZE_MIN // 2 < length <= READ_BUFFER_SIZE_MAX:
            return np.empty(length, np.uint8)
        size = max(READ_BUFFER_SIZE_MIN, 1 << (length - 1).bit_length())
        try:
            memory = self._free[size].pop()
        except IndexError:
            memory = _aligned(size)
        # Through a memoryview: views of a derived array would refer to the memory directly and not to this array.
        array: Bytes = np.frombuffer(memory.data, np.uint8, length)
        weakref.finalize(array, self._release, memory).atexit = False
        return array

    @property
    def free_size(self) -> int:
        """Bytes of free buffers in the pool."""
        return sum(size * len(free) for size, free in self._free.items())

    def drop(self) -> None:
        """Free all buffers in the pool."""
        for free in self._free.values():
            free.clear()

    def _release(self, memory: Bytes) -> None:
        size = memory.nbytes
        for other in self._free:
            # Prefer the size in use now: evict buffers of other sizes.
            while other != size and self.free_size + size > READ_MEMORY_KEPT and self._free[other]:
                with suppress(IndexError):
                    self._free[other].popleft()
        # Two threads may both see space for the last buffer, so the bound may be exceeded by one or two buffers.
        if self.free_size + size <= READ_MEMORY_KEPT:
            self._free[size].append(memory)


def _aligned(size: int) -> Bytes:
    """Fresh memory aligned to a cache line, where whole lines are written fastest."""
    memory: Bytes = np.empty(size + LINE_SIZE, np.uint8)
    start = -memory.ctypes.data % LINE_SIZE
    return memory[start : start + size]


#: The pool of this process.
READ_BUFFERS: Final = ReadBuffers()
