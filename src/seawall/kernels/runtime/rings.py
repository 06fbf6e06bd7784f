"""A ring of 64-byte slots between one producer and one consumer, in memory that two threads or processes share.

    slot        eight 64-bit words: seven of content, then the token
    counters    word 0: slots produced (written by the producer), word 8: slots consumed (written by the consumer); each
                on its own cache line

A slot is ready only if its token is its absolute index + 1. A flag would still be set from the previous lap, while the
token of that lap is smaller; zeroed memory is never ready. The producer stores the content first, then the token
(store-release); the consumer loads the token first (load-acquire), then the content. The producer writes a slot only
after the consumer has counted the slot's previous content as consumed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seawall.kernels.runtime.atomics import load_acquire, spin_hint, store_release
from seawall.kernels.runtime.jit import int64, int64_in, int64_out, kernel
from seawall.kernels.runtime.memory import as_int64
from seawall.kernels.runtime.system import yield_core

Words = npt.NDArray[np.int64]

SLOT_WORDS = 8
CONTENT_WORDS = 7
TOKEN_WORD = 7
PRODUCED = 0
CONSUMED = 8
COUNTER_WORDS = 16

#: Iterations of a spin loop before it yields the core: about as long as a wake-up takes.
SPINS = 2_000


@kernel(int64(int64_out, int64_out, int64_in))
def ring_push(slots: Words, counters: Words, content: Words) -> int:
    """Publish one slot. Returns 1, or 0 if the ring is full."""
    capacity = slots.size // SLOT_WORDS
    index = counters[PRODUCED]
    if index - load_acquire(counters, CONSUMED) >= capacity:
        return 0
    base = (index % capacity) * SLOT_WORDS
    for word in range(CONTENT_WORDS):
        slots[base + word] = content[word]
    store_release(slots, base + TOKEN_WORD, index + 1)
    store_release(counters, PRODUCED, index + 1)
    return 1


@kernel(int64(int64_out, int64_in))
def ring_is_ready(slots: Words, counters: Words) -> int:
    """1 if a slot is ready, else 0; for the consumer only."""
    index = counters[CONSUMED]
    base = (index % (slots.size // SLOT_WORDS)) * SLOT_WORDS
    return as_int64(load_acquire(slots, base + TOKEN_WORD) == index + 1)


@kernel(int64(int64_out, int64_out, int64_out))
def ring_pop(slots: Words, counters: Words, content: Words) -> int:
    """Copy the next slot to `content` and consume it. Returns 1, or 0 if none is ready."""
    if ring_is_ready(slots, counters) == 0:
        return 0
    index = counters[CONSUMED]
    base = (index % (slots.size // SLOT_WORDS)) * SLOT_WORDS
    for word in range(CONTENT_WORDS):
        content[word] = slots[base + word]
    store_release(counters, CONSUMED, index + 1)
    return 1


@kernel(int64(int64_out, int64_out, int64, int64, int64_out))
def produce_pattern(slots: Words, counters: Words, first: int, count: int, content: Words) -> int:
    """Push `count` slots whose words are computed from their number, waiting while the ring is full."""
    for number in range(first, first + count):
        for word in range(CONTENT_WORDS):
            content[word] = number * CONTENT_WORDS + word
        spins = 0
        while ring_push(slots, counters, content) == 0:
            spin_hint()
            spins += 1
            if spins >= SPINS:
                yield_core()
                spins = 0
    return count


@kernel(int64(int64_out, int64_out, int64, int64, int64_out))
def consume_pattern(slots: Words, counters: Words, first: int, count: int, content: Words) -> int:
    """Pop `count` slots and check each word. Returns `count`, or −1 − the number of the first wrong slot."""
    for number in range(first, first + count):
        spins = 0
        while ring_pop(slots, counters, content) == 0:
            spin_hint()
            spins += 1
            if spins >= SPINS:
                yield_core()
                spins = 0
        for word in range(CONTENT_WORDS):
            if content[word] != number * CONTENT_WORDS + word:
                return -1 - number
    return count
