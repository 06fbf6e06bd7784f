"""A dict for the hash table, a sorted list for the heap.

Where an entry lies is the kernel's own business. That a table takes no new key once three quarters of its slots are
used, and a heap none once its arrays are full, is part of the meaning.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from seawall.kernels.runtime.tables import ABSENT, ADDED, FULL, PRESENT, Values

_MIX = 0x9E3779B1
_HALF = 0xFFFFFFFF


@dataclass(slots=True)
class Table:
    """A table of so many slots."""

    slots: int
    entries: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Heap:
    """A heap with room for so many pairs, smallest first."""

    space: int
    pairs: list[tuple[int, int]] = field(default_factory=list)


def home_slot(key: int, slots: int) -> int:
    """The slot a key wants: the low half times a constant, its upper bits into the high half, that times it again."""
    low = (key & _HALF) * _MIX
    high = (key >> 32) ^ (low >> 32)
    mixed = (low & _HALF) ^ (high * _MIX) ^ (low >> 29)
    return (mixed ^ (mixed >> 15)) % slots


def table_find(table: Table, key: int) -> int:
    """The value of a key here, its slot in the kernel's arrays; or ABSENT."""
    return table.entries.get(key, ABSENT)


def table_put(table: Table, key: int, value: int) -> int:
    """Set the value of a key."""
    if key in table.entries:
        table.entries[key] = value
        return PRESENT
    if len(table.entries) + 1 > table.slots * 3 // 4:
        return FULL
    table.entries[key] = value
    return ADDED


def table_remove(table: Table, key: int) -> int:
    """Remove a key."""
    return ABSENT if table.entries.pop(key, None) is None else PRESENT


def comes_before(key: int, value: int, other_key: int, other_value: int) -> bool:
    """Whether a pair leaves the heap ahead of another."""
    return (key, value) < (other_key, other_value)


def heap_push(heap: Heap, key: int, value: int) -> int:
    """Add a pair."""
    if len(heap.pairs) == heap.space:
        return FULL
    insort(heap.pairs, (key, value))
    return ADDED


def heap_pop(heap: Heap, taken: Values) -> int:
    """Remove the smallest pair into `taken`."""
    if not heap.pairs:
        return ABSENT
    taken[0], taken[1] = heap.pairs.pop(0)
    return PRESENT
