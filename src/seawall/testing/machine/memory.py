"""Shared memory of a simulated machine: survives its processes, but not a power loss.

`SimSharedMemory` implements `SharedMemory` of `seawall.io.interfaces` over unlinked files of the test process. The
mappings are real: page-aligned, and not closable while an array uses them, so kernels run on them unchanged. Their
names are separate from the files of the simulated disk.

What a crash does: `kill` of the host releases all locks and changes nothing else here; `lose_power` removes every name
and every byte. Views that a test still holds stay readable: they belong to a machine that no longer exists.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref

from seawall.errors import InvalidInputError
from seawall.io.process.shared_memory import OsMapping
from seawall.limits import GIB

__all__ = ["SimSharedMemory"]


class _Region:
    """Bytes without a name: an unlinked file, which is closed when the last reference to it is gone."""

    __slots__ = ("__weakref__", "descriptor", "locks", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        #: Mappings that hold the lock; the value is True for a shared lock.
        self.locks: weakref.WeakKeyDictionary[SimMapping, bool] = weakref.WeakKeyDictionary()
        self.descriptor, path = tempfile.mkstemp(prefix="seawall-memory-")
        os.unlink(path)
        weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, size)

    def map(self, memory: SimSharedMemory, path: str, length: int, *, read_only: bool = False) -> SimMapping:
        return SimMapping(memory, self, path, length, read_only=read_only)


class SimMapping(OsMapping):
    """A real mapping with a simulated lock, because all simulated processes are one. Made by `SimSharedMemory`."""

    __slots__ = ("_memory", "_region")

    def __init__(
        self, memory: SimSharedMemory, region: _Region, path: str, length: int, *, read_only: bool = False
    ) -> None:
        super().__init__(os.dup(region.descriptor), path, length, region.size, read_only=read_only)
        self._memory = memory
        self._region = region

    def try_lock(self, *, shared: bool) -> bool:
        """Acquire the lock of the region, or change its kind; False if it is held, or the name leads elsewhere now."""
        others = [is_shared for holder, is_shared in self._region.locks.items() if holder is not self]
        if not all(is_shared and shared for is_shared in others):
            return False
        self._region.locks[self] = shared
        return self.is_named

    @property
    def is_named(self) -> bool:
        """True if its name still leads to this region."""
        return self._memory.names(self._path, self._region)

    def close(self) -> None:
        """Unmap and release the lock; `BufferError` while an array uses the mapping."""
        super().close()
        self._region.locks.pop(self, None)


class SimSharedMemory:
    """Named shared memory of one simulated machine, with `capacity` bytes in total."""

    __slots__ = ("_capacity", "_regions")

    def __init__(self, capacity: int = GIB) -> None:
        self._capacity = capacity
        self._regions: dict[str, _Region] = {}

    def create(self, path: str, length: int) -> SimMapping:
        """Create a region of `length` zero bytes and map it; `FileExistsError` if the name is taken."""
        _require_length(path, length)
        if path in self._regions:
            raise FileExistsError(errno.EEXIST, "shared memory exists already", path)
        size = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        free = self.free_bytes(path)
        if size > free:
            raise OSError(errno.ENOSPC, f"shared memory needs {size} bytes and {free} are free", path)
        region = self._regions[path] = _Region(size)
        return region.map(self, path, length)

    def attach(self, path: str, length: int, *, read_only: bool = False) -> SimMapping:
        """Map an existing region; `InvalidInputError` if it is shorter than `length`."""
        _require_length(path, length)
        if path not in self._regions:
            raise FileNotFoundError(errno.ENOENT, "no such shared memory", path)
        region = self._regions[path]
        if region.size < length:
            raise InvalidInputError(
                f"{path}: holds {region.size} bytes, {length} are needed; it was made with other settings, remove it"
            )
        return region.map(self, path, length, read_only=read_only)

    def free_bytes(self, _path: str, /) -> int:
        """Bytes available for a new region."""
        return self._capacity - sum(region.size for region in self._regions.values())

    def names(self, path: str, region: _Region) -> bool:
        """True if a name leads to this region."""
        return self._regions.get(path) is region

    def remove(self, path: str) -> None:
        """Remove the name, if it exists; its mappings stay valid until closed."""
        self._regions.pop(path, None)

    def kill(self) -> None:
        """Release all locks, as the end of their processes does."""
        for region in self._regions.values():
            region.locks.clear()

    def lose_power(self) -> None:
        """Remove all regions."""
        self._regions.clear()


def _require_length(path: str, length: int) -> None:
    if length <= 0:
        raise InvalidInputError(f"{path}: cannot create shared memory of {length} bytes; it needs at least one")
