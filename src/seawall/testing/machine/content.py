"""The bytes of one file on a simulated disk: the durable ones, and those that readers see.

A file has two images. *cached* is the page cache: every write changes it and every read sees it. *durable* is the
storage medium: only `sync`, or chance in a crash, moves bytes there. The difference is tracked per *unit*, the piece
that a disk writes completely or not at all (512 bytes or 4 KiB).

    cached    [ A ][ B'][ C ][ D'][ E ]     length 5 units
    durable   [ A ][ B ][ C ][ D ]          length 4 units
    unsynced        B'         D'   E       any of them may survive a crash, in any combination

Rules
- A unit is never torn. After a crash each unit holds its durable bytes, or those of one of the writes since the last
  sync: a disk may have written an earlier version of a unit and not the last.
- The length is independent of the data: it may survive without its data (zeros) or be lost although the data survives.
- A failed sync marks all units clean: they stay readable, no later sync writes them, and a crash loses them. Kernels do
  the same, which is why a later successful sync proves nothing.
- Disk space is counted in blocks of 4 KiB that were written or allocated; a hole costs nothing until it is written.

This module must not know names, handles or faults.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Literal, TypeAlias

from seawall.limits import PAGE_SIZE
from seawall.testing.limits import SIM_SECTOR_VERSIONS_MAX

__all__ = ["Keep", "SimContent"]

#: Which unsynced state survives a crash.
Keep: TypeAlias = Literal["none", "all", "random"]


class SimContent:
    """The content of one file, without its name."""

    __slots__ = ("_blocks", "_cached", "_durable", "_unit_size", "_unsynced", "lock_holder")

    def __init__(self, unit_size: int) -> None:
        self._unit_size = unit_size
        self._cached = bytearray()
        self._durable = bytearray()
        #: Unit index → the unsynced versions before the cached one, oldest first.
        self._unsynced: dict[int, list[bytes]] = {}
        self._blocks: set[int] = set()
        #: Number of the handle that holds the lock; here, because the lock belongs to the file and not to a name.
        self.lock_holder: int | None = None

    @property
    def unit_size(self) -> int:
        """Bytes that a disk writes completely or not at all."""
        return self._unit_size

    @property
    def length(self) -> int:
        """Length that readers see."""
        return len(self._cached)

    @property
    def block_count(self) -> int:
        """Blocks that this file occupies."""
        return len(self._blocks)

    def read(self, length: int, at: int) -> bytes:
        """Read bytes from the page cache."""
        return bytes(self._cached[at : at + length])

    def durable_bytes(self) -> bytes:
        """The durable bytes."""
        return bytes(self._durable)

    def blocks_needed(self, start: int, end: int) -> int:
        """Blocks that a write from `start` to `end` would add."""
        return sum(block not in self._blocks for block in _block_range(start, end))

    def write(self, data: bytes | memoryview, at: int) -> None:
        """Write bytes to the page cache."""
        end = at + len(data)
        if end == at:
            return
        self._extend(at)
        for unit in range(at // self._unit_size, -(-end // self._unit_size)):
            self._mark_unsynced(unit)
        self._cached[at:end] = data
        self._blocks.update(_block_range(at, end))

    def truncate(self, length: int) -> None:
        """Truncate or extend the page cache."""
        if length >= len(self._cached):
            self._extend(length)
            return
        if length % self._unit_size:
            self._mark_unsynced(length // self._unit_size)
        del self._cached[length:]
        first_removed = -(-length // self._unit_size)
        for unit in [unit for unit in self._unsynced if unit >= first_removed]:
            del self._unsynced[unit]
        self._blocks = {block for block in self._blocks if block * PAGE_SIZE < length}

    def allocate(self, length: int) -> None:
        """Allocate blocks for the first `length` bytes."""
        self._extend(length)
        self._blocks.update(_block_range(0, length))

    def sync(self, start: int = 0, end: int | None = None) -> None:
        """Make all unsynced units durable, or those that overlap a byte range, together with the length."""
        self._set_durable_length(len(self._cached))
        size = self._unit_size
        units = range(start // size, -(-(len(self._cached) if end is None else end) // size))
        synced = [unit for unit in self._unsynced if unit in units]
        self._make_durable(synced)
        for unit in synced:
            del self._unsynced[unit]

    def sync_some(self, chance: random.Random) -> None:
        """Make a random part of the unsynced units durable, as a crash inside a sync does."""
        survivors = [unit for unit in sorted(self._unsynced) if chance.random() < 0.5]
        if chance.random() < 0.5:
            self._set_durable_length(len(self._cached))
        self._make_durable(survivors)
        for unit in survivors:
            # If the length was lost, so was the part of the unit behind the old end.
            if (unit + 1) * self._unit_size <= len(self._durable):
                del self._unsynced[unit]

    def lose_unsynced(self) -> None:
        """Mark all units clean although they are not durable, as a failed sync does."""
        self._unsynced.clear()

    def crash(self, keep: Keep, chance: random.Random) -> None:
        """Decide which unsynced state survives; afterwards the page cache equals the durable bytes."""
        if keep == "all":
            self.sync()
        elif keep == "random":
            self._crash_randomly(chance)
        self._unsynced.clear()
        self._cached = bytearray(self._durable)
        self._blocks = {block for block in self._blocks if block * PAGE_SIZE < len(self._durable)}
        self.lock_holder = None

    def flip_bit(self, byte: int, bit: int) -> None:
        """Flip one durable bit; readers see it too, unless the page cache has an unsynced version of the unit."""
        self._durable[byte] ^= 1 << bit
        if byte < len(self._cached) and byte // self._unit_size not in self._unsynced:
            self._cached[byte] = self._durable[byte]

    def _extend(self, length: int) -> None:
        """Extend the page cache with zeros, which changes units that have other durable bytes."""
        start = len(self._cached)
        if length <= start:
            return
        for unit in range(start // self._unit_size, -(-min(length, len(self._durable)) // self._unit_size)):
            self._mark_unsynced(unit)
        self._cached.extend(bytes(length - start))

    def _mark_unsynced(self, unit: int) -> None:
        """Mark a unit as unsynced before a change; keep its previous version if that was unsynced too."""
        versions = self._unsynced.get(unit)
        if versions is None:
            self._unsynced[unit] = []
            return
        versions.append(self._padded(self._cached, unit))
        if len(versions) > SIM_SECTOR_VERSIONS_MAX:
            del versions[0]

    def _padded(self, image: bytearray, unit: int) -> bytes:
        start = unit * self._unit_size
        return bytes(image[start : start + self._unit_size]).ljust(self._unit_size, b"\0")

    def _make_durable(self, units: Iterable[int]) -> None:
        """Copy units from the page cache to the durable bytes, up to the durable length."""
        for unit in units:
            self._set_durable_unit(unit, self._padded(self._cached, unit))

    def _set_durable_unit(self, unit: int, data: bytes) -> None:
        start = unit * self._unit_size
        end = min(start + self._unit_size, len(self._durable))
        if start < end:
            self._durable[start:end] = data[: end - start]

    def _set_durable_length(self, length: int) -> None:
        if length < len(self._durable):
            del self._durable[length:]
        else:
            self._durable.extend(bytes(length - len(self._durable)))

    def _crash_randomly(self, chance: random.Random) -> None:
        """Choose a seeded outcome: nothing survives, everything, a prefix, or each unit and the length independently.

        The whole-file outcomes are separate choices, because independent units would almost never produce them.
        """
        mode = chance.choice(("nothing", "everything", "prefix", "scattered"))
        if mode == "nothing":
            return
        if mode == "everything":
            self.sync()
            return
        durable_length, cached_length = len(self._durable), len(self._cached)
        between = chance.randint(min(durable_length, cached_length), max(durable_length, cached_length))
        units = sorted(self._unsynced)
        if mode == "prefix":
            units = units[: chance.randint(0, len(units))]
        chosen: dict[int, bytes] = {}
        for unit in units:
            newest = self._padded(self._cached, unit)
            if mode == "prefix":
                chosen[unit] = newest
            else:
                chosen[unit] = chance.choice([self._padded(self._durable, unit), *self._unsynced[unit], newest])
        self._set_durable_length(chance.choice((durable_length, cached_length, between)))
        for unit, data in chosen.items():
            self._set_durable_unit(unit, data)


def _block_range(start: int, end: int) -> range:
    return range(start // PAGE_SIZE, -(-end // PAGE_SIZE)) if start < end else range(0)
