"""Finds the row of a client by its id: a hash table with four bytes per entry.

`table` has a power of two of entries. An entry is 0 if free; otherwise the low 24 bits hold row + 1 and the high eight
bits hold a *tag*: bits of the client id that do not select its home slot. The ids are not in the table but in the rows
of `clients`, which a lookup touches next anyway. A table of 100,000 clients therefore takes 1 MiB and stays in a core's
own cache, and a lookup misses the cache once instead of three times.

Open addressing with linear probing. A deletion shifts later entries of the run back instead of leaving a tombstone, so
lookups do not slow down with age.

Invariants: no slot between an entry's home slot and its slot is free. At least a quarter of the slots are free, so
every probe ends; the owner sizes the table accordingly. The row of an entry holds its client's id from before the entry
is added until after it is removed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba.core import types

from seawall.kernels.runtime.jit import int64, kernel, uint32_out, uint64, void
from seawall.kernels.runtime.memory import as_int64
from seawall.kernels.runtime.tables import ABSENT, home_slot

IndexTable = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint64]

ROW_BITS = 24
#: Highest number of rows: what the row bits of an entry can address.
INDEX_ROWS_MAX = (1 << ROW_BITS) - 1
#: The column of a client row that holds the client id.
CLIENT_ID = 0

_ROW_MASK = (1 << ROW_BITS) - 1
_TAG_MIX = np.uint64(0x85EBCA6B)
_HALF = np.uint64(32)
_MASK_32 = np.uint64(0xFFFFFFFF)
_words = types.Array(types.uint64, 2, "C")


@kernel(int64(uint64), inline=True, counted=False)
def tag_of(client_id: np.uint64) -> int:
    """The tag of a client, shifted to its bits of an entry."""
    wide = np.uint64(client_id)
    mixed = ((wide ^ (wide >> _HALF)) & _MASK_32) * _TAG_MIX
    return as_int64((mixed >> _HALF) & np.uint64(0xFF)) << ROW_BITS


@kernel(int64(uint32_out, uint64), inline=True, counted=False)
def guess_row(table: IndexTable, client_id: np.uint64) -> int:
    """The row of the first entry with the client's tag, or ABSENT: nearly always right, and reads no row."""
    tag = tag_of(client_id)
    slot = home_slot(client_id, table.size)
    while True:
        entry = as_int64(table[slot])
        if entry == 0:
            return ABSENT
        if entry & ~_ROW_MASK == tag:
            return (entry & _ROW_MASK) - 1
        slot = (slot + 1) & (table.size - 1)


@kernel(int64(uint32_out, _words, uint64), inline=True, counted=False)
def find_row(table: IndexTable, clients: Words, client_id: np.uint64) -> int:
    """The row of a client, or ABSENT."""
    tag = tag_of(client_id)
    slot = home_slot(client_id, table.size)
    while True:
        entry = as_int64(table[slot])
        if entry == 0:
            return ABSENT
        if entry & ~_ROW_MASK == tag and clients[(entry & _ROW_MASK) - 1, CLIENT_ID] == client_id:
            return (entry & _ROW_MASK) - 1
        slot = (slot + 1) & (table.size - 1)


@kernel(void(uint32_out, uint64, int64))
def add_row(table: IndexTable, client_id: np.uint64, row: int) -> None:
    """Add the entry of a client that has none; the caller guarantees a free slot."""
    slot = home_slot(client_id, table.size)
    while table[slot] != 0:
        slot = (slot + 1) & (table.size - 1)
    table[slot] = tag_of(client_id) | (row + 1)


@kernel(void(uint32_out, _words, int64))
def remove_row(table: IndexTable, clients: Words, row: int) -> None:
    """Remove the entry of a row, which must have one."""
    slots = table.size
    hole = home_slot(clients[row, CLIENT_ID], slots)
    while as_int64(table[hole]) & _ROW_MASK != row + 1:
        hole = (hole + 1) & (slots - 1)
    slot = hole
    while True:
        slot = (slot + 1) & (slots - 1)
        entry = as_int64(table[slot])
        if entry == 0:
            break
        home = home_slot(clients[(entry & _ROW_MASK) - 1, CLIENT_ID], slots)
        # The entry may move back into the hole only if its home slot is not after the hole.
        if ((slot - home) & (slots - 1)) >= ((slot - hole) & (slots - 1)):
            table[hole] = entry
            hole = slot
    table[hole] = 0
