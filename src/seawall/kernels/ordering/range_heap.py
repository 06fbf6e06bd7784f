"""Finds up to which position the global order index is written without a hole, from the ranges of its workers.

Each worker reports the ranges that it has written, as (first position, end), in a ring of its own and in rising order;
ranges of different workers arrive in any order. A range that does not yet connect waits in a heap (`tables`), lowest
first.

    words      items of a ring, two words each; the number of items is a power of two
    counters   its two counts (`rings`): the worker writes the one, this consumer the other

A range that begins at or below the limit is joined without the heap. So a full heap never blocks the range that all
others wait for: it is the lowest of its worker, and therefore first in its ring.

A range may be below the limit, entirely or in part, if the limit was meanwhile taken from the index itself. After a
crash, rings and heap are empty; recovery reads the index.
"""

from __future__ import annotations

from seawall.kernels.runtime.atomics import load_acquire, store_release
from seawall.kernels.runtime.jit import int64, int64_out, kernel
from seawall.kernels.runtime.rings import CONSUMED, PRODUCED, Words
from seawall.kernels.runtime.tables import FULL, heap_pop, heap_push

RANGE_WORDS = 2


@kernel(int64(int64_out, int64_out, int64_out, int64_out, int64))
def join_ranges(firsts: Words, ends: Words, counts: Words, taken: Words, limit: int) -> int:
    """Join the ranges of the heap that begin at or below the limit; returns the new limit. `taken` is scratch space."""
    while counts[0] > 0 and firsts[0] <= limit:
        heap_pop(firsts, ends, counts, taken)
        limit = max(limit, taken[1])
    return limit


@kernel(int64(int64_out, int64_out, int64_out, int64_out, int64_out, int64_out, int64))
def drain_ranges(
    words: Words, counters: Words, firsts: Words, ends: Words, counts: Words, taken: Words, limit: int
) -> int:
    """Consume a worker's ring, as far as the heap has space, and join what connects; returns the new limit."""
    mask = words.size // RANGE_WORDS - 1
    index = counters[CONSUMED]
    produced = load_acquire(counters, PRODUCED)
    while index < produced:
        at = (index & mask) * RANGE_WORDS
        first = words[at]
        end = words[at + 1]
        if first <= limit:
            limit = max(limit, end)
        elif heap_push(firsts, ends, counts, first, end) == FULL:
            break
        index += 1
    store_release(counters, CONSUMED, index)
    return join_ranges(firsts, ends, counts, taken, limit)
