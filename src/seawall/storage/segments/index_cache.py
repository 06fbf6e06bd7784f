"""An LRU cache of the indexes of sealed segments, bounded in bytes.

The first lookup in a segment loads its index. It stays until the cache needs the space for others: the least recently
used index is dropped first, and loaded again at its next use. A caller that holds an index, or a slice of one, keeps
its memory: dropping it here frees the memory with the last such reference.

The cache holds at most `limits.INDEX_CACHE_SIZE` bytes of entries, or one index if that alone is larger.

All logs of a process share one cache, so the bound holds for the process. It keeps no owner alive. Thread-safe. A crash
does not affect it. This module must not know where an index comes from.
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
    """Indexes by their owner, least recently used first."""

    def __init__(self, size_max: int) -> None:
        self._size_max: Final = size_max
        self._lock = Lock()
        self._indexes: OrderedDict[ref[Hashable], BatchIndex] = OrderedDict()
        self._size = 0
        #: Dead owners. The garbage collector may find one while the lock is held, so `put` drops them later.
        self._dead: deque[ref[Hashable]] = deque()

    def __len__(self) -> int:
        """Number of cached indexes."""
        return len(self._indexes)

    @property
    def size(self) -> int:
        """Bytes of all cached entries."""
        return self._size

    def get(self, owner: Hashable) -> BatchIndex | None:
        """The cached index of an owner, or None; it counts as used."""
        with self._lock:
            index = self._indexes.get(ref(owner))
            if index is not None:
                self._indexes.move_to_end(ref(owner))
            return index

    def peek(self, owner: Hashable) -> BatchIndex | None:
        """The cached index of an owner, or None; it does not count as used."""
        return self._indexes.get(ref(owner))

    def put(self, owner: Hashable, index: BatchIndex) -> None:
        """Cache the index of an owner, replacing an earlier one; drop others to keep the bound."""
        with self._lock:
            self._drop(ref(owner))
            while self._dead:
                self._drop(self._dead.popleft())
            self._indexes[ref(owner, self._dead.append)] = index
            self._size += index.memory_size
            while self._size > self._size_max and len(self._indexes) > 1:
                self._drop(next(iter(self._indexes)))

    def discard(self, owner: Hashable) -> None:
        """Drop the index of an owner; fine if it is not cached."""
        with self._lock:
            self._drop(ref(owner))

    def clear(self) -> None:
        """Drop all indexes to free memory."""
        with self._lock:
            self._indexes.clear()
            self._size = 0

    def _drop(self, owner: ref[Hashable]) -> None:
        index = self._indexes.pop(owner, None)
        if index is not None:
            self._size -= index.memory_size


#: The cache of this process.
INDEXES: Final = IndexCache(limits.INDEX_CACHE_SIZE)
