"""Finished stretches of the global order index, put into order: how far it is written without a hole.

Each worker tells of the stretches it has written, as (first position, end), in a ring of its own and in rising order;
between workers they come in any order. What cannot be joined yet waits in a heap (`tables`), lowest first.

    words      items of a ring, two words each; the ring's size is a power of two
    counters   its two counts (`rings`): the worker's, written by it, and the consumer's, written here

A stretch that begins at or below the limit is joined at once, so a full heap never keeps back the one that all others
wait for: it is the lowest of its worker, and therefore first in its ring.

A stretch may lie below the limit, wholly or in part: somebody has looked at the index itself meanwhile. What a crash
does: rings and heap are gone; a recovery looks at the index.
"""

from __future__ import annotations

from seawall.kernels.runtime.atomics import load_acquire, store_release
from seawall.kernels.runtime.jit import int64, int64_out, kernel
from seawall.kernels.runtime.rings import CONSUMED, PRODUCED, Words
from seawall.kernels.runtime.tables import FULL, heap_pop, heap_push

RANGE_WORDS = 2


@kernel(int64(int64_out, int64_out, int64_out, int64_out, int64))
def join_ranges(firsts: Words, ends: Words, counts: Words, taken: Words, limit: int) -> int:
    """The limit after everything in the heap that begins at or below it is joined; `taken` is working space."""
    while counts[0] > 0 and firsts[0] <= limit:
        heap_pop(firsts, ends, counts, taken)
        limit = max(limit, taken[1])
    return limit


@kernel(int64(int64_out, int64_out, int64_out, int64_out, int64_out, int64_out, int64))
def drain_ranges(
    words: Words, counters: Words, firsts: Words, ends: Words, counts: Words, taken: Words, limit: int
) -> int:
    """Take what a worker's ring holds, as far as the heap has room, and join what can be joined: the new limit."""
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
