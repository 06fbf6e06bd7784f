"""Shared memory of a simulated machine: survives its processes, not its power.

`SimSharedMemory` implements `SharedMemory` of `seawall.io.interfaces` over unlinked files of the test process: real
mappings, which start on a page and refuse to close under a live array, so that kernels run on them as they are.
Names are its own: nothing here shows up in the files of the simulated disk.

What a crash does: `kill` of the host changes nothing here; `lose_power` removes every name and every byte. Views that a
test still holds stay readable, as they belong to a machine that no longer exists.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref

from seawall.errors import InvalidInputError
from seawall.io.memory import OsMapping
from seawall.limits import GIB

__all__ = ["SimSharedMemory"]


class _Region:
    """Bytes without a name: a file that was unlinked at birth, given back when nobody refers to it."""

    __slots__ = ("__weakref__", "descriptor", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.descriptor, path = tempfile.mkstemp(prefix="seawall-memory-")
        os.unlink(path)
        weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, size)

    def map(self, length: int) -> OsMapping:
        return OsMapping(mmap.mmap(self.descriptor, self.size), length)


class SimSharedMemory:
    """Named memory of one simulated machine, `capacity` bytes in all."""

    __slots__ = ("_capacity", "_regions")

    def __init__(self, capacity: int = GIB) -> None:
        self._capacity = capacity
        self._regions: dict[str, _Region] = {}

    def create(self, path: str, length: int) -> OsMapping:
        """Create a region of `length` zero bytes and map it; `FileExistsError` if the name is taken."""
        _require_length(path, length)
        if path in self._regions:
            raise FileExistsError(errno.EEXIST, "shared memory exists already", path)
        size = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        free = self._capacity - sum(region.size for region in self._regions.values())
        if size > free:
            raise OSError(errno.ENOSPC, f"shared memory needs {size} bytes and {free} are free", path)
        region = self._regions[path] = _Region(size)
        return region.map(length)

    def attach(self, path: str, length: int) -> OsMapping:
        """Map an existing region; `InvalidInputError` if it is shorter than `length`."""
        _require_length(path, length)
        if path not in self._regions:
            raise FileNotFoundError(errno.ENOENT, "no such shared memory", path)
        region = self._regions[path]
        if region.size < length:
            raise InvalidInputError(
                f"{path}: holds {region.size} bytes, {length} are needed; it was made with other settings, remove it"
            )
        return region.map(length)

    def remove(self, path: str) -> None:
        """Remove the name, fine if it is not there; mappings of it stay valid until closed."""
        self._regions.pop(path, None)

    def lose_power(self) -> None:
        """Remove every name."""
        self._regions.clear()


def _require_length(path: str, length: int) -> None:
    if length <= 0:
        raise InvalidInputError(f"{path}: shared memory of {length} bytes was asked for; it needs at least one")
