"""Slots of the fabric: entries of eight words, one of them the token, at absolute indexes of a ring.

Unlike in `kernels.runtime.rings` the counts of a ring lie elsewhere, with whoever owns them, and the token may be any
word: the last of a pending batch and of a result, the first of an entry of the global order index.

INV-RING-TOKEN: a slot is ready only if its token is its absolute index + 1, and the token is written after the content.
The token of the lap before is smaller, zeroed memory has none. Content first, token last (store-release); token first
(load-acquire), content after.

Nobody publishes to a slot that somebody may still read. The owner of the ring sees to it; here nothing is counted.

Those that only read take read-only memory as well, so that a fabric can be looked at by somebody who must not write.
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
    """Write the slot of an absolute index, its token last; the token word of `content` is not used."""
    base = slot_base(slots.size // SLOT_WORDS, index)
    for word in range(SLOT_WORDS):
        if word != token_word:
            slots[base + word] = content[word]
    store_release(slots, base + token_word, index + 1)


@kernel(int64(int64_in, int64, int64, int64_out))
def read_slot(slots: Words, token_word: int, index: int, content: Words) -> int:
    """Copy all eight words of the slot of an absolute index: 1, or 0 if it is not ready."""
    base = slot_base(slots.size // SLOT_WORDS, index)
    if load_acquire(slots, base + token_word) != index + 1:
        return 0
    for word in range(SLOT_WORDS):
        content[word] = slots[base + word]
    return 1


@kernel(int64(int64_in, int64, int64, int64))
def ready_slots(slots: Words, token_word: int, first: int, limit: int) -> int:
    """How many slots in a row are ready from index `first` on, `limit` at most and never more than the ring has."""
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
    """Fill `target` with words from index `first` on, each read atomically and in order."""
    for word in range(target.size):
        target[word] = load_acquire(words, first + word)
