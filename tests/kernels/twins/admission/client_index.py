"""The client index as a search over all entries, whose rows hold the client ids."""

from __future__ import annotations

from seawall.kernels.admission.client_index import CLIENT_ID, ROW_BITS, IndexTable, Words
from seawall.kernels.runtime.tables import ABSENT
from twins.runtime.tables import home_slot

_HALF = 0xFFFF_FFFF


def tag_of(client_id: int) -> int:
    """Both halves XORed and multiplied by a constant: the eight bits from bit 32 on."""
    folded = client_id & _HALF ^ client_id >> 32
    return (folded * 0x85EB_CA6B >> 32) % 256 << ROW_BITS


def _entries(table: IndexTable) -> dict[int, int]:
    """The tag of each row that has an entry."""
    split = (divmod(int(entry), 1 << ROW_BITS) for entry in table if entry != 0)
    return {low - 1: tag << ROW_BITS for tag, low in split}


def find_row(table: IndexTable, clients: Words, client_id: int) -> int:
    """The indexed row that holds the client's id."""
    rows = (row for row in _entries(table) if int(clients[row, CLIENT_ID]) == client_id)
    return next(rows, ABSENT)


def guess_row(table: IndexTable, client_id: int) -> int:
    """The first entry with the client's tag, from the home slot to the next free slot."""
    home = home_slot(client_id, len(table))
    for step in range(len(table)):
        tag, low = divmod(int(table[(home + step) % len(table)]), 1 << ROW_BITS)
        if low == 0:
            break
        if tag << ROW_BITS == tag_of(client_id):
            return low - 1
    return ABSENT


def add_row(table: IndexTable, client_id: int, row: int) -> None:
    """Write the first free slot from the home slot on."""
    home = home_slot(client_id, len(table))
    slot = next(slot for step in range(len(table)) if table[slot := (home + step) % len(table)] == 0)
    table[slot] = tag_of(client_id) | row + 1


def remove_row(table: IndexTable, clients: Words, row: int) -> None:
    """Remove the entry and reinsert every entry after it, up to the next free slot."""
    count = len(table)
    hole = next(slot for slot in range(count) if int(table[slot]) % (1 << ROW_BITS) == row + 1)
    table[hole] = 0
    slot = (hole + 1) % count
    while table[slot] != 0:
        moved = int(table[slot]) % (1 << ROW_BITS) - 1
        table[slot] = 0
        add_row(table, int(clients[moved, CLIENT_ID]), moved)
        slot = (slot + 1) % count
