"""A dict for the hash table, a sorted list for the heap.

The position of an entry is up to the kernel. Two bounds are part of the meaning: a table takes no new key once three
quarters of its slots are used, and a heap takes no pair once its arrays are full.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from seawall.kernels.runtime.tables import ABSENT, ADDED, FULL, PRESENT, Values

_MIX = 0x9E3779B1
_HALF = 0xFFFFFFFF


@dataclass(slots=True)
class Table:
    """A table with a fixed number of slots."""

    slots: int
    entries: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Heap:
    """A heap with a fixed capacity of pairs, smallest first."""

    capacity: int
    pairs: list[tuple[int, int]] = field(default_factory=list)


def home_slot(key: int, slots: int) -> int:
    """The home slot of a key: multiply the low half, mix its upper bits into the high half, and multiply that too."""
    low = (key & _HALF) * _MIX
    high = (key >> 32) ^ (low >> 32)
    mixed = (low & _HALF) ^ (high * _MIX) ^ (low >> 29)
    return (mixed ^ (mixed >> 15)) % slots


def table_find(table: Table, key: int) -> int:
    """The value of a key (the kernel returns its slot), or ABSENT."""
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
    """True if a pair leaves the heap before another."""
    return (key, value) < (other_key, other_value)


def heap_push(heap: Heap, key: int, value: int) -> int:
    """Add a pair."""
    if len(heap.pairs) == heap.capacity:
        return FULL
    insort(heap.pairs, (key, value))
    return ADDED


def heap_pop(heap: Heap, popped: Values) -> int:
    """Remove the smallest pair into `popped`."""
    if not heap.pairs:
        return ABSENT
    popped[0], popped[1] = heap.pairs.pop(0)
    return PRESENT
