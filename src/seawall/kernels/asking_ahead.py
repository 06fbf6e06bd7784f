"""Asking ahead: while one batch is decided on, the memory that those behind it will touch is on its way.

A worker of many clients touches some ten lines for each batch, none of which is near: the hash table, the client's row
and its side, its memory with two neighbours in the order of use, one result. Each is known only when the one before it
has come. So a drain looks at some refs at a time, link by link for all of them: what would be one wait after the other
is one wait for all.

Where a client has no memory it gets that of the client decided least recently. Which those are is a chain, too; it is
followed a link for each batch, well ahead of its use (VICTIMS in `state`, a ring).

INV-AHEAD-HINT: but for the rows of clients, which do not change within a drain, nothing that is found here decides
anything; a wrong hint costs time.
"""

from __future__ import annotations

import numpy as np
from numba.core import types

from seawall.kernels.client_window import (
    SIDE_MEMORY,
    SLOT_NEWER,
    SLOT_OLDER,
    SLOT_OWNER,
    WINDOW,
    WINDOW_RESULT,
    Rows,
)
from seawall.kernels.collecting import PBR_CLIENT, PBR_SEQ, STUCK, slot_of_ref
from seawall.kernels.holding import AHEAD_ROWS, CHASE_AT, CHASE_USED, CHASED, VICTIMS, VICTIMS_MAX, ClientWords
from seawall.kernels.jit import bytes_out, int64, int64_in, int64_out, kernel, record_array, uint64_out, void
from seawall.kernels.memory import LINE_SIZE, Bytes, as_int64, prefetch
from seawall.kernels.rings import Words
from seawall.kernels.tables import ABSENT, Keys, Values, home_slot, table_find

#: Runs of clients among the refs that are looked at: with fewer, what they need is near already.
FEW_CLIENTS = 3

#: Bytes of a result.
RESULT_SIZE = WINDOW_RESULT.itemsize

_clients = types.Array(types.uint64, 2, "C")
_results = record_array(WINDOW_RESULT)


@kernel(void(_clients, _clients, int64_out), inline=True, counted=False)
def chase_victim(sides: ClientWords, memories: ClientWords, state: Words) -> None:
    """Find one more of the memories that will be taken from their clients next, and ask for what that touches.

    They are a chain through memory, which is followed a link at a time, long before each is needed.
    """
    if state[CHASED] - state[CHASE_USED] < VICTIMS_MAX:
        victim = as_int64(state[CHASE_AT])
        state[VICTIMS + (state[CHASED] & (VICTIMS_MAX - 1))] = victim
        state[CHASED] += 1
        prefetch(sides, (as_int64(memories[victim, SLOT_OWNER]) - 1) * LINE_SIZE)
        newer = as_int64(memories[victim, SLOT_NEWER])
        state[CHASE_AT] = newer
        prefetch(memories, newer * LINE_SIZE)


@kernel(void(_clients, int64_out), inline=True, counted=False)
def _align_chase(memories: ClientWords, state: Words) -> None:
    """Let the victims that were found begin with the one that is next; all over again if it is not among them."""
    oldest = as_int64(memories[memories.shape[0] - 1, SLOT_NEWER])
    while state[CHASE_USED] < state[CHASED] and state[VICTIMS + (state[CHASE_USED] & (VICTIMS_MAX - 1))] != oldest:
        state[CHASE_USED] += 1
    if state[CHASE_USED] == state[CHASED]:
        state[CHASE_AT] = oldest


@kernel(
    int64(
        *(int64_in, int64, int64, int64_in, int64, uint64_out, int64_out, bytes_out, _clients, _clients, _clients),
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
    keys: Keys,
    values: Values,
    used: Bytes,
    clients: ClientWords,
    sides: ClientWords,
    memories: ClientWords,
    results: Rows,
    state: Words,
) -> int:
    """Ask for the memory that the next refs will need, for all of them at once, if they are of many clients.

    1 if so: then `state` has the row of each, −1 where there is none. All else that is found here is a hint.
    """
    changes = 0
    last_client = -1
    for at in range(index, end):
        client_id = as_int64(slots[slot_of_ref(queue[at & (queue.size - 1)] & ~STUCK, pbr_entries) + PBR_CLIENT])
        if client_id != last_client and client_id >= 0:
            home = home_slot(np.uint64(client_id), keys.size)
            prefetch(keys, home * 8)
            prefetch(values, home * 8)
            prefetch(used, home)
            changes += 1
            last_client = client_id
    if changes < FEW_CLIENTS:
        return 0
    for at in range(index, end):
        client_id = as_int64(slots[slot_of_ref(queue[at & (queue.size - 1)] & ~STUCK, pbr_entries) + PBR_CLIENT])
        row = -1
        entry = table_find(keys, used, np.uint64(client_id)) if client_id >= 0 else ABSENT
        if entry != ABSENT:
            row = as_int64(values[entry])
            prefetch(clients, row * LINE_SIZE)
            prefetch(sides, row * LINE_SIZE)
        state[AHEAD_ROWS + at - index] = row
    _align_chase(memories, state)
    victims = as_int64(state[CHASE_USED])
    for at in range(index, end):
        row = as_int64(state[AHEAD_ROWS + at - index])
        if row < 0:
            continue
        memory = as_int64(sides[row, SIDE_MEMORY]) - 1
        if memory < 0 and victims < state[CHASED]:
            memory = as_int64(state[VICTIMS + (victims & (VICTIMS_MAX - 1))])
            victims += 1
        if memory >= 0:
            seq = as_int64(slots[slot_of_ref(queue[at & (queue.size - 1)] & ~STUCK, pbr_entries) + PBR_SEQ])
            prefetch(memories, memory * LINE_SIZE)
            prefetch(results, (memory * WINDOW + (seq & (WINDOW - 1))) * RESULT_SIZE)
    for at in range(index, end):
        row = as_int64(state[AHEAD_ROWS + at - index])
        memory = as_int64(sides[row, SIDE_MEMORY]) - 1 if row >= 0 else -1
        if memory >= 0:
            prefetch(memories, as_int64(memories[memory, SLOT_NEWER]) * LINE_SIZE)
            prefetch(memories, as_int64(memories[memory, SLOT_OLDER]) * LINE_SIZE)
    return 1
