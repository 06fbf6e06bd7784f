"""Memory of files that are gone, for those that come.

A piece is an array of bytes of one of a few sizes, so that those of files that are gone fit the files that come: what
is written and dropped all the time needs no fresh pages, whose clearing costs as much as the writing. A piece is as it
was left: what nobody has written must not be looked at.

Memory is handed out again only when nobody has a view of it any more, wherever that is.

Pieces may be taken, and let go, on any thread.
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

__all__ = ["PIECE_SIZE_MAX", "PIECE_SIZE_MIN", "BufferPool"]

#: Smallest and largest piece of a file; the largest are asked for in huge pages.
PIECE_SIZE_MIN: Final = 64 * KIB
PIECE_SIZE_MAX: Final = 4 * MIB
#: What is kept of files that are gone, beside half of what files have: they go whole, and come piece by piece.
_SPARE_SIZE: Final = 64 * MIB


class BufferPool:
    """What files of one owner share."""

    __slots__ = ("__weakref__", "_lock", "_pieces", "_returned", "_used", "size")

    def __init__(self) -> None:
        #: By their size.
        self._pieces: dict[int, list[mmap.mmap]] = {}
        self._used = 0
        #: Bytes that are kept.
        self.size = 0
        #: What nobody has a view of any more, and is not among the others yet. It comes whenever and wherever the last
        #: view goes, even in the middle of a change here: so it waits for no lock.
        self._returned: deque[mmap.mmap] = deque()
        self._lock = Lock()

    def take(self, size: int) -> Bytes:
        """A piece of one of the sizes there are, which may hold anything; it comes back with the last view of it."""
        with self._lock:
            self._used += size
            spare = self._pieces.get(size)
            memory = spare.pop() if spare else None
            if memory is not None:
                self.size -= size
        self._sort_in()
        if memory is None:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if size >= PIECE_SIZE_MAX and hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
        piece: Bytes = np.frombuffer(memory, np.uint8)
        # Slices of an array, and slices of those, all hold on to it.
        weakref.finalize(piece, self._come_back, memory).atexit = False
        return piece

    def _come_back(self, memory: mmap.mmap) -> None:
        self._returned.append(memory)
        self._sort_in()

    def _sort_in(self) -> None:
        """Keep what has come back, as far as there is room for it; the rest goes back to the system.

        If somebody else is changing something right now, that looks here next.
        """
        while self._returned and self._lock.acquire(blocking=False):
            try:
                while self._returned:
                    self._keep(self._returned.popleft())
            finally:
                self._lock.release()

    def _keep(self, memory: mmap.mmap) -> None:
        self._used -= len(memory)
        self._pieces.setdefault(len(memory), []).append(memory)
        self.size += len(memory)
        while self.size > _SPARE_SIZE + self._used // 2:
            largest = max(size for size, spare in self._pieces.items() if spare)
            self._pieces[largest].pop()
            self.size -= largest
