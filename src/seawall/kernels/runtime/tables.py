"""A hash table and a heap in plain arrays, for use inside kernels.

Hash table: open addressing with linear probing over a power of two of slots, from u64 keys (any value, including zero)
to i64 values. Its arrays are `keys`, `values`, `used` (0 or 1) and `counts`, where `counts[0]` is the number of
entries. Removing an entry moves later entries of the probe run back instead of leaving a tombstone, so lookups do not
slow down with age.

The key of a free slot is zero, so a lookup reads `used` only where it finds a zero key. Most lookups find their key and
touch a single cache line. No slot is free between an entry's home slot and its actual slot. At most three quarters of
the slots are used, so every probe ends.

Heap: a binary heap of (key, value) pairs, smallest key first and equal keys by value, so the content alone determines
the order of removal. Its arrays are `keys`, `values` and `counts`, where `counts[0]` is the number of pairs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba.core import types

from seawall.kernels.runtime.jit import bytes_out, int64, int64_out, kernel, uint64, uint64_out
from seawall.kernels.runtime.memory import Bytes, as_int64

Keys = npt.NDArray[np.uint64]
Values = npt.NDArray[np.int64]

ABSENT = -1
PRESENT = 1
ADDED = 0
FULL = -2

_MASK_32 = np.uint64(0xFFFFFFFF)
_MIX = np.uint64(0x9E3779B1)


@kernel(int64(uint64, int64), inline=True, counted=False)
def home_slot(key: np.uint64, slots: int) -> int:
    """The home slot of a key. The two halves are multiplied separately, so nothing overflows 64 bits."""
    wide = np.uint64(key)
    low = (wide & _MASK_32) * _MIX
    high = ((wide >> np.uint64(32)) ^ (low >> np.uint64(32))) & _MASK_32
    mixed = ((low & _MASK_32) ^ (high * _MIX)) ^ (low >> np.uint64(29))
    return as_int64(((mixed >> np.uint64(15)) ^ mixed) & np.uint64(slots - 1))


@kernel(int64(uint64_out, bytes_out, uint64), inline=True, counted=False)
def table_find(keys: Keys, used: Bytes, key: np.uint64) -> int:
    """The slot of a key, or ABSENT."""
    slots = keys.size
    slot = home_slot(key, slots)
    while True:
        found = keys[slot]
        if found == key and (found != 0 or used[slot] != 0):
            return slot
        if found == 0 and used[slot] == 0:
            return ABSENT
        slot = (slot + 1) & (slots - 1)


@kernel(int64(uint64_out, int64_out, bytes_out, int64_out, uint64, int64))
def table_put(keys: Keys, values: Values, used: Bytes, counts: Values, key: np.uint64, value: int) -> int:
    """Set the value of a key. Returns PRESENT if it existed, ADDED if it is new, FULL if the table takes no new key."""
    slots = keys.size
    slot = home_slot(key, slots)
    while used[slot] != 0:
        if keys[slot] == key:
            values[slot] = value
            return PRESENT
        slot = (slot + 1) & (slots - 1)
    if (counts[0] + 1) * 4 > slots * 3:
        return FULL
    keys[slot] = key
    values[slot] = value
    used[slot] = 1
    counts[0] += 1
    return ADDED


@kernel(int64(uint64_out, int64_out, bytes_out, int64_out, uint64))
def table_remove(keys: Keys, values: Values, used: Bytes, counts: Values, key: np.uint64) -> int:
    """Remove a key. Returns PRESENT if it existed, else ABSENT."""
    slots = keys.size
    hole = table_find(keys, used, key)
    if hole == ABSENT:
        return ABSENT
    slot = hole
    while True:
        slot = (slot + 1) & (slots - 1)
        if used[slot] == 0:
            break
        home = home_slot(keys[slot], slots)
        # The entry may move back into the hole only if its home slot is not after the hole.
        if ((slot - home) & (slots - 1)) >= ((slot - hole) & (slots - 1)):
            keys[hole] = keys[slot]
            values[hole] = values[slot]
            hole = slot
    keys[hole] = 0
    used[hole] = 0
    counts[0] -= 1
    return PRESENT


@kernel(types.boolean(int64, int64, int64, int64))
def comes_before(key: int, value: int, other_key: int, other_value: int) -> bool:
    """True if a pair leaves the heap before another."""
    return key < other_key or (key == other_key and value < other_value)


@kernel(int64(int64_out, int64_out, int64_out, int64, int64))
def heap_push(keys: Values, values: Values, counts: Values, key: int, value: int) -> int:
    """Add a pair. Returns ADDED, or FULL if the arrays are full."""
    child = counts[0]
    if child >= keys.size:
        return FULL
    counts[0] += 1
    while child > 0:
        parent = (child - 1) >> 1
        if not comes_before(key, value, keys[parent], values[parent]):
            break
        keys[child] = keys[parent]
        values[child] = values[parent]
        child = parent
    keys[child] = key
    values[child] = value
    return ADDED


@kernel(int64(int64_out, int64_out, int64_out, int64_out))
def heap_pop(keys: Values, values: Values, counts: Values, popped: Values) -> int:
    """Remove the smallest pair into `popped[0]`, `popped[1]`. Returns PRESENT, or ABSENT if the heap is empty."""
    if counts[0] == 0:
        return ABSENT
    popped[0] = keys[0]
    popped[1] = values[0]
    counts[0] -= 1
    size = counts[0]
    key = keys[size]
    value = values[size]
    parent = 0
    while 2 * parent + 1 < size:
        child = 2 * parent + 1
        right = child + 1
        if right < size and comes_before(keys[right], values[right], keys[child], values[child]):
            child = right
        if not comes_before(keys[child], values[child], key, value):
            break
        keys[parent] = keys[child]
        values[parent] = values[child]
        parent = child
    keys[parent] = key
    values[parent] = value
    return PRESENT
