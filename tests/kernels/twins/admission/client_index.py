"""Where the rows of clients are: the rows themselves tell, and every entry of the table names one."""

from __future__ import annotations

from seawall.kernels.admission.client_index import CLIENT_ID, ROW_BITS, IndexTable, Words
from seawall.kernels.runtime.tables import ABSENT
from twins.runtime.tables import home_slot

_HALF = 0xFFFF_FFFF


def tag_of(client_id: int) -> int:
    """Both halves folded, times a constant: the lowest bits of what is above 32."""
    folded = client_id & _HALF ^ client_id >> 32
    return (folded * 0x85EB_CA6B >> 32) % 256 << ROW_BITS


def _entries(places: IndexTable) -> dict[int, int]:
    """The tag of each row that has an entry."""
    split = (divmod(int(entry), 1 << ROW_BITS) for entry in places if entry != 0)
    return {low - 1: tag << ROW_BITS for tag, low in split}


def find_row(places: IndexTable, clients: Words, client_id: int) -> int:
    """The row with an entry that has the client's id."""
    rows = (row for row in _entries(places) if int(clients[row, CLIENT_ID]) == client_id)
    return next(rows, ABSENT)


def guess_row(places: IndexTable, client_id: int) -> int:
    """The first entry from the home slot on, up to a free one, that has the client's tag."""
    home = home_slot(client_id, len(places))
    for step in range(len(places)):
        tag, low = divmod(int(places[(home + step) % len(places)]), 1 << ROW_BITS)
        if low == 0:
            break
        if tag << ROW_BITS == tag_of(client_id):
            return low - 1
    return ABSENT


def add_row(places: IndexTable, client_id: int, row: int) -> None:
    """The first free entry from the home slot on."""
    home = home_slot(client_id, len(places))
    slot = next(slot for step in range(len(places)) if places[slot := (home + step) % len(places)] == 0)
    places[slot] = tag_of(client_id) | row + 1


def remove_row(places: IndexTable, clients: Words, row: int) -> None:
    """All entries that are left, put in anew from the removed one on: each as near to its home as it can get."""
    count = len(places)
    hole = next(slot for slot in range(count) if int(places[slot]) % (1 << ROW_BITS) == row + 1)
    places[hole] = 0
    slot = (hole + 1) % count
    while places[slot] != 0:
        moved = int(places[slot]) % (1 << ROW_BITS) - 1
        places[slot] = 0
        add_row(places, int(clients[moved, CLIENT_ID]), moved)
        slot = (slot + 1) % count
