"""Publish and read slots of a ring by absolute index: eight words each, one of them the token.

Two things differ from `kernels.runtime.rings`. The owner of the ring keeps its counters elsewhere. And the token may be
any word: the last one of a pending batch and of a result, the first one of an entry of the global order index.

INV-RING-TOKEN: a slot is ready only if its token is its absolute index + 1, and the token is written after the content.
The token of the previous lap is smaller, and zeroed memory has none. The writer stores the content first, then the
token (store-release); the reader loads the token first (load-acquire), then the content.

This module does not count slots. The owner of the ring makes sure that no slot is overwritten while it may still be
read.

Kernels that only read also accept read-only memory, so a process without write access can inspect a fabric.
"""

from __future__ import annotations

from seawall.kernels.runtime.atomics import load_acquire, store_release
from seawall.kernels.runtime.jit import int64, int64_in, int64_out, kernel, void
from seawall.kernels.runtime.rings import SLOT_WORDS, Words


@kernel(int64(int64, int64))
def slot_base(capacity: int, index: int) -> int:
    """The first word of the slot of an absolute index in a ring of `capacity` slots."""
    return (index % capacity) * SLOT_WORDS


@kernel(void(int64_out, int64, int64, int64_in))
def publish_slot(slots: Words, token_word: int, index: int, content: Words) -> None:
    """Write the slot of an absolute index, its token last; the token word of `content` is ignored."""
    base = slot_base(slots.size // SLOT_WORDS, index)
    for word in range(SLOT_WORDS):
        if word != token_word:
            slots[base + word] = content[word]
    store_release(slots, base + token_word, index + 1)


@kernel(int64(int64_in, int64, int64, int64_out))
def read_slot(slots: Words, token_word: int, index: int, content: Words) -> int:
    """Copy all eight words of the slot of an absolute index. Returns 1, or 0 if the slot is not ready."""
    base = slot_base(slots.size // SLOT_WORDS, index)
    if load_acquire(slots, base + token_word) != index + 1:
        return 0
    for word in range(SLOT_WORDS):
        content[word] = slots[base + word]
    return 1


@kernel(int64(int64_in, int64, int64, int64))
def ready_slots(slots: Words, token_word: int, first: int, limit: int) -> int:
    """Number of consecutive ready slots from index `first` on: at most `limit`, and never more than the ring has."""
    capacity = slots.size // SLOT_WORDS
    count = 0
    while count < min(limit, capacity):
        index = first + count
        if load_acquire(slots, slot_base(capacity, index) + token_word) != index + 1:
            break
        count += 1
    return count


@kernel(void(int64_in, int64, int64_out))
def load_words(words: Words, first: int, target: Words) -> None:
    """Fill `target` with the words from index `first` on, each loaded atomically and in order."""
    for word in range(target.size):
        target[word] = load_acquire(words, first + word)
