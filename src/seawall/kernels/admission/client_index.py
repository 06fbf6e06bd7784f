"""Where the row of each client is: a hash table of four bytes an entry.

`places` has a power of two of entries: 0 is free, else the row + 1 in the low 24 bits and a *tag* above, eight bits of
the client id that its home slot does not tell. The ids themselves are in the rows of `clients`, which whoever looks for
a client is about to touch anyway. So a table of 100,000 clients is 1 MiB, which stays in a core's own cache, and
finding a client touches one line from afar instead of three.

Open addressing with linear probing. Deletion moves later entries of the run back instead of leaving a mark, so look-ups
never slow down with age.

Between an entry's home slot and its slot no slot is free. At least a quarter of the slots is free, so every probe ends:
the owner makes the table that large. The row of an entry has its client's id, from before the entry is made until after
it is removed.
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
#: Rows that an entry can name.
INDEX_ROWS_MAX = (1 << ROW_BITS) - 1
#: The column of a row that has the client's id.
CLIENT_ID = 0

_ROW_MASK = (1 << ROW_BITS) - 1
_TAG_MIX = np.uint64(0x85EBCA6B)
_HALF = np.uint64(32)
_MASK_32 = np.uint64(0xFFFFFFFF)
_words = types.Array(types.uint64, 2, "C")


@kernel(int64(uint64), inline=True, counted=False)
def tag_of(client_id: np.uint64) -> int:
    """The tag of a client, where an entry has it."""
    wide = np.uint64(client_id)
    mixed = ((wide ^ (wide >> _HALF)) & _MASK_32) * _TAG_MIX
    return as_int64((mixed >> _HALF) & np.uint64(0xFF)) << ROW_BITS


@kernel(int64(uint32_out, uint64), inline=True, counted=False)
def guess_row(places: IndexTable, client_id: np.uint64) -> int:
    """The row that a client has by its tag, or ABSENT: nearly always right, and no row is touched for it."""
    tag = tag_of(client_id)
    slot = home_slot(client_id, places.size)
    while True:
        entry = as_int64(places[slot])
        if entry == 0:
            return ABSENT
        if entry & ~_ROW_MASK == tag:
            return (entry & _ROW_MASK) - 1
        slot = (slot + 1) & (places.size - 1)


@kernel(int64(uint32_out, _words, uint64), inline=True, counted=False)
def find_row(places: IndexTable, clients: Words, client_id: np.uint64) -> int:
    """The row of a client, or ABSENT."""
    tag = tag_of(client_id)
    slot = home_slot(client_id, places.size)
    while True:
        entry = as_int64(places[slot])
        if entry == 0:
            return ABSENT
        if entry & ~_ROW_MASK == tag and clients[(entry & _ROW_MASK) - 1, CLIENT_ID] == client_id:
            return (entry & _ROW_MASK) - 1
        slot = (slot + 1) & (places.size - 1)


@kernel(void(uint32_out, uint64, int64))
def add_row(places: IndexTable, client_id: np.uint64, row: int) -> None:
    """Make the entry of a client that has none; the caller has seen to it that there is room."""
    slot = home_slot(client_id, places.size)
    while places[slot] != 0:
        slot = (slot + 1) & (places.size - 1)
    places[slot] = tag_of(client_id) | (row + 1)


@kernel(void(uint32_out, _words, int64))
def remove_row(places: IndexTable, clients: Words, row: int) -> None:
    """Take out the entry of a row, which has one."""
    slots = places.size
    hole = home_slot(clients[row, CLIENT_ID], slots)
    while as_int64(places[hole]) & _ROW_MASK != row + 1:
        hole = (hole + 1) & (slots - 1)
    slot = hole
    while True:
        slot = (slot + 1) & (slots - 1)
        entry = as_int64(places[slot])
        if entry == 0:
            break
        home = home_slot(clients[(entry & _ROW_MASK) - 1, CLIENT_ID], slots)
        # The entry may move back into the hole only if its home does not lie behind the hole.
        if ((slot - home) & (slots - 1)) >= ((slot - hole) & (slots - 1)):
            places[hole] = entry
            hole = slot
    places[hole] = 0
