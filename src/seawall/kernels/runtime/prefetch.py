"""Asking ahead: while one batch is decided on, the memory that those behind it will touch is on its way.

A worker of many clients touches some five lines for each batch, none of which is near: one of the table of clients, the
client's row and its side, its memory and one result. Each is known only when the one before it has come. So a drain
looks at some refs at a time, link by link for all of them: what would be one wait after the other is one wait for all.

Where a client has no memory it gets one that the hand comes by; which that will be is found by going ahead of it.

Nothing that is found here decides anything; a wrong hint costs time. A row is taken for a client's only where it has
that client's id.
"""

from __future__ import annotations

import numpy as np
from numba.core import types

from seawall.kernels.admission.client_index import IndexTable, guess_row
from seawall.kernels.admission.client_window import (
    KEEPER_SPARED,
    SLOT_COUNT,
    SLOT_HAND,
    WINDOW,
    WINDOW_RESULT,
    Rows,
    first_result,
    keeper_of,
    next_memory,
    own_memory,
    result_place,
)
from seawall.kernels.ordering.collecting import PBR_CLIENT, PBR_SEQ, STUCK, slot_of_ref
from seawall.kernels.ordering.holding import AHEAD_ROWS, AHEAD_SLOTS, ClientWords
from seawall.kernels.runtime.jit import int64, int64_in, int64_out, kernel, record_array, uint32_out
from seawall.kernels.runtime.memory import INDEX_BITS, LINE_SIZE, as_int64, prefetch
from seawall.kernels.runtime.rings import Words
from seawall.kernels.runtime.tables import ABSENT, home_slot

#: Runs of clients among the refs that are looked at: with fewer, what they need is near already.
FEW_CLIENTS = 3

#: Bytes of a result.
RESULT_SIZE = WINDOW_RESULT.itemsize

_clients = types.Array(types.uint64, 2, "C")
_results = record_array(WINDOW_RESULT)


@kernel(int64(_clients, int64), inline=True, counted=False)
def _next_unspared(memories: ClientWords, memory: int) -> int:
    """The first from a memory on that the hand would not spare; that one itself after a whole round."""
    for _ in range(as_int64(memories[memories.shape[0] - 1, SLOT_COUNT])):
        if keeper_of(memories, memory) & KEEPER_SPARED == 0:
            break
        memory = next_memory(memories, memory)
    return memory


@kernel(
    int64(
        *(int64_in, int64, int64, int64_in, int64, uint32_out, _clients, _clients, _clients),
        *(_results, int64_out),
    ),
    counted=False,
)
def ask_ahead(
    queue: Words,
    index: int,
    end: int,
    slots: Words,
    pbr_entries: int,
    places: IndexTable,
    clients: ClientWords,
    sides: ClientWords,
    memories: ClientWords,
    results: Rows,
    state: Words,
) -> int:
    """Ask for the memory that the next refs will need, for all of them at once, if they are of many clients.

    1 if so: then `state` has the row that each is likely to need, −1 where there is none.
    """
    changes = 0
    last_client = -1
    for at in range(index, end):
        base = slot_of_ref(as_int64(queue[at & (queue.size - 1) & INDEX_BITS]) & ~STUCK, pbr_entries)
        state[AHEAD_SLOTS + at - index] = base
        client_id = as_int64(slots[base + PBR_CLIENT])
        if client_id != last_client and client_id >= 0:
            home = home_slot(np.uint64(client_id), places.size)
            prefetch(places, home * 4)
            changes += 1
            last_client = client_id
    if changes < FEW_CLIENTS:
        return 0
    count = end - index
    for at in range(count):
        client_id = as_int64(slots[as_int64(state[AHEAD_SLOTS + at]) + PBR_CLIENT])
        row = guess_row(places, np.uint64(client_id)) if client_id >= 0 else ABSENT
        if row != ABSENT:
            prefetch(sides, row * LINE_SIZE)
            prefetch(clients, row * LINE_SIZE)
        state[AHEAD_ROWS + at] = row
    hand = as_int64(memories[memories.shape[0] - 1, SLOT_HAND])
    for at in range(count):
        row = as_int64(state[AHEAD_ROWS + at])
        if row >= 0:
            memory = own_memory(sides, memories, row)
            if memory == ABSENT:
                memory = _next_unspared(memories, hand)
                hand = next_memory(memories, memory)
                place = memory * WINDOW + first_result(memory)
            else:
                place = result_place(memories, memory, as_int64(slots[as_int64(state[AHEAD_SLOTS + at]) + PBR_SEQ]))
            prefetch(memories, memory * LINE_SIZE)
            prefetch(results, place * RESULT_SIZE)
    return 1
