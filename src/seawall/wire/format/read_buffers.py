"""Memory that large reads fill, and large blocks on their way out, used again once nobody looks at it any more.

Fresh memory costs a page fault for every page, about as much as reading into it. So stretches of a few sizes are kept:
one is given out as a read-only view, and comes back by itself when the last view of it is gone.

INV-BUFFER-ALONE: memory that a view refers to is not used again or written. Views are made from an array of their own
that stands between them and the memory; what brings the memory back is the end of that array.

Safe from any thread, also from within the collector: nothing here waits for a lock.
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
    """Stretches of memory in sizes that double from one to the next."""

    def __init__(self) -> None:
        sizes = []
        size = READ_BUFFER_SIZE_MIN
        while size <= READ_BUFFER_SIZE_MAX:
            sizes.append(size)
            size *= 2
        self._free: dict[int, deque[Bytes]] = {size: deque() for size in sizes}

    def take(self, length: int) -> Bytes:
        """An array of `length` bytes, whatever they hold; small and very large ones are fresh, and not kept."""
        if not READ_BUFFER_SIZE_MIN // 2 < length <= READ_BUFFER_SIZE_MAX:
            return np.empty(length, np.uint8)
        size = max(READ_BUFFER_SIZE_MIN, 1 << (length - 1).bit_length())
        try:
            memory = self._free[size].pop()
        except IndexError:
            memory = _on_a_line(size)
        # Through a memoryview: an array of an array would refer to the memory past the one that is watched.
        array: Bytes = np.frombuffer(memory.data, np.uint8, length)
        weakref.finalize(array, self._give_back, memory).atexit = False
        return array

    @property
    def free_size(self) -> int:
        """Bytes that wait to be used again."""
        return sum(size * len(free) for size, free in self._free.items())

    def drop(self) -> None:
        """Keep nothing of what waits to be used again."""
        for free in self._free.values():
            free.clear()

    def _give_back(self, memory: Bytes) -> None:
        size = memory.nbytes
        for other in self._free:
            # What is used now is kept, and not what was used before it.
            while other != size and self.free_size + size > READ_MEMORY_KEPT and self._free[other]:
                with suppress(IndexError):
                    self._free[other].popleft()
        # Two threads may both find room for the last one: the bound is kept to within a stretch or two.
        if self.free_size + size <= READ_MEMORY_KEPT:
            self._free[size].append(memory)


def _on_a_line(size: int) -> Bytes:
    """Fresh memory that begins with a line of the cache, where whole lines are written fastest."""
    memory: Bytes = np.empty(size + LINE_SIZE, np.uint8)
    start = -memory.ctypes.data % LINE_SIZE
    return memory[start : start + size]


#: Those of this process.
READ_BUFFERS: Final = ReadBuffers()
