"""Prefetch the memory that deciding the next batches will touch, for many batches at once.

A worker of many clients touches about five cache lines per batch, and usually none of them is cached: one line of the
client index, the client's row and its side row, its memory, and one result. Each address depends on the line before. So
a drain prefetches for several refs at a time, one step for all of them before the next: they share one memory latency
per step instead of waiting for each line in turn.

A client without a memory will get the next one that the clock hand does not spare. To predict which, the prefetch runs
ahead of the hand.

Prefetching decides nothing; a wrong prediction only costs time. A row counts as the client's only if it has that
client's id.
"""

from __future__ import annotations

import numpy as np
from numba.core import types

from seawall.kernels.admission.client_index import IndexTable, guess_row
from seawall.kernels.admission.client_window import (
    OWNER_REFERENCED,
    SLOT_COUNT,
    SLOT_HAND,
    WINDOW,
    WINDOW_RESULT,
    Rows,
    first_result,
    index_of_result,
    next_memory,
    own_memory,
    owner_word,
)
from seawall.kernels.ordering.collecting import PBR_CLIENT, PBR_SEQ, STUCK, slot_of_ref
from seawall.kernels.ordering.holding import PREFETCH_ROWS, PREFETCH_SLOTS, ClientWords
from seawall.kernels.runtime.jit import int64, int64_in, int64_out, kernel, record_array, uint32_out
from seawall.kernels.runtime.memory import INDEX_BITS, LINE_SIZE, as_int64, prefetch
from seawall.kernels.runtime.rings import Words
from seawall.kernels.runtime.tables import ABSENT, home_slot

#: Prefetch only if the refs contain at least this many runs of clients: with fewer, their lines are cached anyway.
CLIENT_RUNS_MIN = 3

#: Size of a result in bytes.
RESULT_SIZE = WINDOW_RESULT.itemsize

_clients = types.Array(types.uint64, 2, "C")
_results = record_array(WINDOW_RESULT)


@kernel(int64(_clients, int64), inline=True, counted=False)
def _next_unspared(memories: ClientWords, memory: int) -> int:
    """The first memory, from the given one on, that the hand would not spare; the given one after a full round."""
    for _ in range(as_int64(memories[memories.shape[0] - 1, SLOT_COUNT])):
        if owner_word(memories, memory) & OWNER_REFERENCED == 0:
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
def prefetch_rows(
    queue: Words,
    index: int,
    end: int,
    slots: Words,
    pbr_entries: int,
    index_table: IndexTable,
    clients: ClientWords,
    sides: ClientWords,
    memories: ClientWords,
    results: Rows,
    state: Words,
) -> int:
    """Prefetch the lines that the refs from `index` to `end` will need, if they belong to many clients.

    Returns 1 if it prefetched: then `state` has the probable client row of each ref, −1 if it has none. Else 0.
    """
    client_runs = 0
    last_client = -1
    for at in range(index, end):
        base = slot_of_ref(as_int64(queue[at & (queue.size - 1) & INDEX_BITS]) & ~STUCK, pbr_entries)
        state[PREFETCH_SLOTS + at - index] = base
        client_id = as_int64(slots[base + PBR_CLIENT])
        if client_id != last_client and client_id >= 0:
            home = home_slot(np.uint64(client_id), index_table.size)
            prefetch(index_table, home * 4)
            client_runs += 1
            last_client = client_id
    if client_runs < CLIENT_RUNS_MIN:
        return 0
    count = end - index
    for at in range(count):
        client_id = as_int64(slots[as_int64(state[PREFETCH_SLOTS + at]) + PBR_CLIENT])
        row = guess_row(index_table, np.uint64(client_id)) if client_id >= 0 else ABSENT
        if row != ABSENT:
            prefetch(sides, row * LINE_SIZE)
            prefetch(clients, row * LINE_SIZE)
        state[PREFETCH_ROWS + at] = row
    hand = as_int64(memories[memories.shape[0] - 1, SLOT_HAND])
    for at in range(count):
        row = as_int64(state[PREFETCH_ROWS + at])
        if row >= 0:
            memory = own_memory(sides, memories, row)
            if memory == ABSENT:
                memory = _next_unspared(memories, hand)
                hand = next_memory(memories, memory)
                result_index = memory * WINDOW + first_result(memory)
            else:
                result_index = index_of_result(
                    memories, memory, as_int64(slots[as_int64(state[PREFETCH_SLOTS + at]) + PBR_SEQ])
                )
            prefetch(memories, memory * LINE_SIZE)
            prefetch(results, result_index * RESULT_SIZE)
    return 1
