"""The indexes of sealed segments that are in memory, bounded in bytes.

An index is read when somebody looks something up in its segment, and stays until the space is needed for others: the
one that was used least recently goes first and is read again when it is wanted. Whoever holds an index, or a slice of
one, keeps it: dropping it here frees the memory once the last of them is gone.

The cache holds at most `limits.INDEX_CACHE_SIZE` bytes of entries, or one index where that alone is larger.

All logs of a process share one cache, so the bound is one of the process. It keeps no owner alive. Safe from any
thread. A crash does nothing to it. This module must not know where an index comes from.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from threading import Lock
from typing import Final
from weakref import ref

from seawall import limits
from seawall.storage.segments.batch_index import BatchIndex

__all__ = ["INDEXES", "IndexCache"]


class IndexCache:
    """Indexes by whoever they belong to, the one used last at the end."""

    def __init__(self, size_max: int) -> None:
        self._size_max: Final = size_max
        self._lock = Lock()
        self._indexes: OrderedDict[ref[Hashable], BatchIndex] = OrderedDict()
        self._size = 0
        #: Owners that are gone. The collector may find one while the lock is held, so they are dropped later.
        self._gone: deque[ref[Hashable]] = deque()

    def __len__(self) -> int:
        """How many indexes are held."""
        return len(self._indexes)

    @property
    def size(self) -> int:
        """Bytes of all entries that are held."""
        return self._size

    def get(self, owner: Hashable) -> BatchIndex | None:
        """The index of an owner, if it is held; it counts as used."""
        with self._lock:
            index = self._indexes.get(ref(owner))
            if index is not None:
                self._indexes.move_to_end(ref(owner))
            return index

    def peek(self, owner: Hashable) -> BatchIndex | None:
        """The index of an owner, if it is held; it does not count as used."""
        return self._indexes.get(ref(owner))

    def put(self, owner: Hashable, index: BatchIndex) -> None:
        """Hold the index of an owner, in place of one it had; drop others until the bound is kept."""
        with self._lock:
            self._drop(ref(owner))
            while self._gone:
                self._drop(self._gone.popleft())
            self._indexes[ref(owner, self._gone.append)] = index
            self._size += index.memory_size
            while self._size > self._size_max and len(self._indexes) > 1:
                self._drop(next(iter(self._indexes)))

    def discard(self, owner: Hashable) -> None:
        """Hold nothing for an owner any more; fine if nothing was."""
        with self._lock:
            self._drop(ref(owner))

    def clear(self) -> None:
        """Hold nothing: memory is wanted for other things."""
        with self._lock:
            self._indexes.clear()
            self._size = 0

    def _drop(self, owner: ref[Hashable]) -> None:
        index = self._indexes.pop(owner, None)
        if index is not None:
            self._size -= index.memory_size


#: The cache of this process.
INDEXES: Final = IndexCache(limits.INDEX_CACHE_SIZE)
