"""Collects the published slots of brokers, in order, and queues each for the worker of its client.

A queued slot is a *ref*: broker << 48 | absolute index. The state of a broker is one line of `collected`: the cursor
(slots below it are collected), the slot that it waits for and since when, whether the broker is dead, the index below
which slots may already have an entry from before a restart, and the number of abandoned slots.

    token is index + 1       collected
    claimed, no token        awaited until `stuck_after_ns` have passed or the broker is marked dead; then queued with
                             the STUCK bit, and its content is ignored
    index below RESUME_UNTIL skipped if `taken` marks it: it got an entry before the restart
    queue of its worker full not collected, and no later slot of that broker either

All batches of a client go to one worker, by `worker_of`. Slots without a session (synthetic clients, NOPs) go to the
worker of their broker, so that they keep the broker's order.

Slots of a broker are collected strictly by rising index, each once, without a hole. A collected slot keeps its content
until the completion vector has passed it, so a ref is enough.

A crash loses the cursors; they restart at the completion vector, and `taken` marks the slots with an entry. Only one
thread uses the arrays of a collector; workers read the cursors, which only grow.
"""

from __future__ import annotations

import numpy as np

from seawall.kernels.runtime.atomics import load_acquire, store_release
from seawall.kernels.runtime.jit import int64, int64_in, int64_out, kernel, void
from seawall.kernels.runtime.memory import INDEX_BITS, as_int64
from seawall.kernels.runtime.rings import CONSUMED, COUNTER_WORDS, PRODUCED, SLOT_WORDS, Words

#: Words of a broker's line in `collected`.
LINE_WORDS = 8
CURSOR = 0
WAITED_INDEX = 1
WAITED_SINCE = 2
IS_DEAD = 3
RESUME_UNTIL = 4
STUCK_TOTAL = 5

#: In WAITED_INDEX: the collector waits for no slot.
NO_SLOT = -1

#: A ref: the broker in the high bits, the index in the low bits, and a bit for abandoned slots.
BROKER_SHIFT = 48
INDEX_MASK = (1 << BROKER_SHIFT) - 1
STUCK = 1 << 62

#: Words of a pending batch and of a broker's line in the tails.
PBR_FLAGS = 3
PBR_CLIENT = 4
PBR_SEQ = 5
PBR_TOKEN = 7
TAIL_WORDS = 8
TAIL_CLAIMED = 0
FLAG_NOP = 32

_LOW = np.uint64(0xFFFFFFFF)
_MIX = np.uint64(0x85EBCA6B)
_HALF = np.uint64(32)


@kernel(int64(int64, int64), counted=False)
def worker_of(client_id: int, workers: int) -> int:
    """The worker of a client; uses other hash bits than the hash tables, so that a worker's table fills evenly."""
    wide = np.uint64(client_id & 0x7FFFFFFFFFFFFFFF)
    folded = ((wide ^ (wide >> _HALF)) & _LOW) * _MIX
    mixed = ((folded ^ (folded >> _HALF)) & _LOW) * _MIX
    return (as_int64((mixed >> np.uint64(16)) & np.uint64(0xFFFF)) * workers) >> 16


@kernel(int64(int64, int64), inline=True, counted=False)
def slot_of_ref(ref: int, pbr_entries: int) -> int:
    """The index of the first word of a slot, in the array of all rings."""
    return ((ref >> BROKER_SHIFT) * pbr_entries + (ref & INDEX_MASK & (pbr_entries - 1))) * SLOT_WORDS & INDEX_BITS


@kernel(int64(int64_out, int64, int64, int64, int64), counted=False)
def is_abandoned(collected: Words, line: int, index: int, now_ns: int, stuck_after_ns: int) -> int:
    """1 if a claimed slot without a token is abandoned; otherwise starts waiting for it, if not yet done."""
    if collected[line + IS_DEAD] != 0:
        return 1
    if collected[line + WAITED_INDEX] != index:
        collected[line + WAITED_INDEX] = index
        collected[line + WAITED_SINCE] = now_ns
    return as_int64(now_ns - collected[line + WAITED_SINCE] >= stuck_after_ns)


@kernel(int64(int64_out, int64_out, int64, int64), counted=False)
def push_ref(queue_words: Words, queue_counters: Words, worker: int, ref: int) -> int:
    """Append a ref to the queue of a worker; returns 1, or 0 if it is full."""
    capacity = queue_words.size // (queue_counters.size // COUNTER_WORDS)
    counts = worker * COUNTER_WORDS
    produced = queue_counters[counts + PRODUCED]
    if produced - load_acquire(queue_counters, counts + CONSUMED) >= capacity:
        return 0
    queue_words[worker * capacity + (produced & (capacity - 1))] = ref
    store_release(queue_counters, counts + PRODUCED, produced + 1)
    return 1


@kernel(
    int64(
        *(int64_in, int64, int64_in, int64, int64_in),
        *(int64_out, int64_out, int64_out, int64, int64, int64),
    ),
    counted=False,
)
def collect_ring(
    slots: Words,
    pbr_entries: int,
    tails: Words,
    broker: int,
    taken: Words,
    collected: Words,
    queue_words: Words,
    queue_counters: Words,
    limit: int,
    now_ns: int,
    stuck_after_ns: int,
) -> int:
    """Queue up to `limit` slots of one broker; returns how far the cursor advanced, skipped slots included."""
    workers = queue_counters.size // COUNTER_WORDS
    line = broker * LINE_WORDS
    ring = broker * pbr_entries
    first = as_int64(collected[line + CURSOR])
    claimed = as_int64(load_acquire(tails, broker * TAIL_WORDS + TAIL_CLAIMED))
    own_worker = broker % workers
    index = first
    end = min(claimed, first + limit)
    while index < end:
        slot = ring + (index & (pbr_entries - 1))
        if index < collected[line + RESUME_UNTIL] and taken[slot] == index + 1:
            index += 1
            continue
        base = slot * SLOT_WORDS
        ref = (broker << BROKER_SHIFT) | index
        worker = own_worker
        # Not `== index + 1`: the compiler would then compute with the loaded value and wait for it each time.
        is_ready = load_acquire(slots, base + PBR_TOKEN) - index == 1
        if is_ready:
            client_id = as_int64(slots[base + PBR_CLIENT])
            is_nop = (slots[base + PBR_FLAGS] >> 32) & FLAG_NOP
            if workers > 1 and client_id >= 0 and is_nop == 0:
                worker = worker_of(client_id, workers)
        elif is_abandoned(collected, line, index, now_ns, stuck_after_ns) != 0:
            ref |= STUCK
        else:
            break
        if push_ref(queue_words, queue_counters, worker, ref) == 0:
            break
        if not is_ready:
            collected[line + STUCK_TOTAL] += 1
        index += 1
    store_release(collected, line + CURSOR, index)
    return index - first


@kernel(
    int64(
        *(int64_in, int64, int64_in, int64_in, int64_in),
        *(int64_out, int64_out, int64_out, int64, int64, int64),
    ),
    counted=False,
)
def collect_rings(
    slots: Words,
    pbr_entries: int,
    tails: Words,
    brokers: Words,
    taken: Words,
    collected: Words,
    queue_words: Words,
    queue_counters: Words,
    limit: int,
    now_ns: int,
    stuck_after_ns: int,
) -> int:
    """`collect_ring` for each of the given brokers; returns the total number of slots."""
    total = 0
    for at in range(brokers.size):
        total += collect_ring(
            slots,
            pbr_entries,
            tails,
            brokers[at],
            taken,
            collected,
            queue_words,
            queue_counters,
            limit,
            now_ns,
            stuck_after_ns,
        )
    return total


@kernel(void(int64_out, int64, int64, int64), counted=False)
def start_cursor(collected: Words, broker: int, cursor: int, resume_until: int) -> None:
    """Start a broker at slot `cursor`; slots below `resume_until` are collected only if they have no entry yet."""
    line = broker * LINE_WORDS
    for word in range(LINE_WORDS):
        collected[line + word] = 0
    collected[line + WAITED_INDEX] = NO_SLOT
    collected[line + RESUME_UNTIL] = resume_until
    store_release(collected, line + CURSOR, cursor)
