"""Holds batches of order 5 that arrived before an earlier one of their client, and queues decided items.

A held batch is the ref of its slot: the slot stays pinned in its ring, so a crash loses none. Three arrays:

    holds   rows of eight words. The first 32 are the list heads of one doubly linked list per broker, in the order of
            arrival; the others hold one batch each, or are free (linked by NEWER).
    pages   one for each client with held batches: a head of eight words, then the row of each held seq at seq mod 256
    ready   decided items that wait for a position, six words each, in the order in which they will be written

Held seqs are between next expected and next expected + 255, so a page has one slot for each.

Bounds: `hold_high` batches in total, and none whose slot blocks its ring or whose bytes block its BLog. Beyond that the
oldest are bounced: they become NOPs with status RETRY, and their publisher sends them again. Load never causes a SKIP.

The gap timer of a client is in its page: when the gap opened, when a frame of the session was last seen, and how long
the session allows a gap to last (0: until the session has been silent for `SILENCE_NS`). It starts with the first held
batch, keeps running whatever else arrives, and restarts when held batches are released and others remain.

A client has a page exactly while it has held batches; the page counts them. After a drain no held batch occupies bytes
that its broker needs next, either for a waiting claim or as a reserve for future ones (`BLOG_RESERVE`). So a held batch
never blocks a ring. Each held batch is in the list of its broker, and lists are in the order of arrival.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numba.core import types

from seawall.kernels.admission.client_window import SIDE_GAP_NS, SIDE_PAGE, WINDOW
from seawall.kernels.ordering.collecting import BROKER_SHIFT, INDEX_MASK, TAIL_WORDS, slot_of_ref
from seawall.kernels.runtime.atomics import load_acquire
from seawall.kernels.runtime.jit import int64, int64_in, int64_out, kernel, tuple_of, void
from seawall.kernels.runtime.memory import INDEX_BITS, as_int64
from seawall.kernels.runtime.rings import Words

ClientWords = npt.NDArray[np.uint64]
#: A worker's own arrays: holds, pages, ready and state.
HoldArrays: TypeAlias = tuple[Words, Words, Words, Words]

#: Words of a held batch.
HOLD_WORDS = 8
HOLD_REF = 0
HOLD_ROW = 1
HOLD_SEQ = 2
HOLD_NEWER = 3
HOLD_OLDER = 4
HOLD_ARRIVAL = 5
#: Words of a pending batch and of a broker's tails.
PBR_BLOG_OFFSET = 0
TAIL_BLOG_CLAIMED = 1
TAIL_BLOG_WANTED = 2
#: Rows of `holds` that are the list heads of brokers.
BROKERS = 32

#: Words of a page's head, before its 256 slots. A slot is 0 or a row of `holds`.
PAGE_HEAD = 8
PAGE_WORDS = PAGE_HEAD + WINDOW
PAGE_OWNER = 0
PAGE_HELD = 1
PAGE_GAP_SINCE = 2
PAGE_LAST_SEEN = 3
PAGE_GAP_NS = 4
PAGE_NEXT_FREE = 5

#: Words of a ready item. REF: the slot; for a SKIP its topic and count. ROW: of the client, −1 without one. AT: for a
#: batch its result; for a duplicate the original's position, or −2 − the original's item, or −1 if it was evicted; for
#: a SKIP its first seq. A control item has topic, client and seq in these three.
READY_WORDS = 6
READY_REF = 0
READY_CODE = 1
READY_ROW = 2
READY_AT = 3
READY_BASE_SEQ = 4
READY_TIMESTAMP = 5

#: Kinds of a ready item, in READY_CODE above the status (8 bits) and the reason (16 bits).
KIND_SHIFT = 32
KIND_BATCH = 0
KIND_NOP = 1 << KIND_SHIFT
KIND_SKIP = 2 << KIND_SHIFT
KIND_CONTROL = 3 << KIND_SHIFT
REASON_SHIFT = 8
STATUS_OK = 0
STATUS_DUPLICATE = 1
STATUS_REJECTED = 2
STATUS_RETRY = 4

#: Indexes into `state`, which belongs to one worker. READY_HEAD to READY_TAIL are the queued items.
READY_HEAD = 0
READY_TAIL = 1
HELD = 2
HOLD_FREE = 3
PAGE_FREE = 4
ARRIVALS = 5
NEXT_DEADLINE = 6
IS_STALLED = 7
UNKNOWN_CLIENT = 8
UNSETTLED_HEAD = 9
UNSETTLED_TAIL = 10
HOLD_HIGH = 11
PIN_LIMIT = 12
SILENCE_NS = 13
BOUNCED_TOTAL = 14
SKIPPED_TOTAL = 15
RESERVED_COUNT = 16
BLOG_SIZE = 17
BLOG_RESERVE = 18
PREFETCH_ROWS = 24
#: Refs that a drain prefetches before it decides them: the slot of each and the row of its client, one word each from
#: PREFETCH_SLOTS and PREFETCH_ROWS on (`runtime.prefetch`).
PREFETCH_MAX = 32
PREFETCH_SLOTS = PREFETCH_ROWS + PREFETCH_MAX
STATE_WORDS = PREFETCH_SLOTS + PREFETCH_MAX

#: In NEXT_DEADLINE: no gap is open.
NEVER = 1 << 62

#: The type of `HoldArrays`.
hold_arrays = tuple_of(int64_out, int64_out, int64_out, int64_out)
_clients = types.Array(types.uint64, 2, "C")


@kernel(void(int64_out, int64_out, int64, int64, int64, int64), inline=True, counted=False)
def push_ready(ready: Words, state: Words, ref: int, code: int, row: int, at: int) -> None:
    """Append an item; the caller guarantees the space."""
    item = as_int64(state[READY_TAIL]) * READY_WORDS & INDEX_BITS
    ready[item + READY_REF] = ref
    ready[item + READY_CODE] = code
    ready[item + READY_ROW] = row
    ready[item + READY_AT] = at
    state[READY_TAIL] += 1


@kernel(void(_clients, int64_out, int64_out, int64_out, int64), counted=False)
def unhold(sides: ClientWords, holds: Words, pages: Words, state: Words, hold: int) -> None:
    """Remove a held batch from its list and its page; an empty page becomes free, and its timer ends."""
    at = hold * HOLD_WORDS
    newer = as_int64(holds[at + HOLD_NEWER])
    older = as_int64(holds[at + HOLD_OLDER])
    holds[newer * HOLD_WORDS + HOLD_OLDER] = older
    holds[older * HOLD_WORDS + HOLD_NEWER] = newer
    row = as_int64(holds[at + HOLD_ROW])
    page = as_int64(sides[row, SIDE_PAGE]) - 1
    head = page * PAGE_WORDS
    pages[head + PAGE_HEAD + (holds[at + HOLD_SEQ] & (WINDOW - 1))] = 0
    pages[head + PAGE_HELD] -= 1
    if pages[head + PAGE_HELD] == 0:
        sides[row, SIDE_PAGE] = 0
        pages[head + PAGE_OWNER] = 0
        pages[head + PAGE_NEXT_FREE] = state[PAGE_FREE]
        state[PAGE_FREE] = page
    holds[at + HOLD_NEWER] = state[HOLD_FREE]
    state[HOLD_FREE] = hold
    state[HELD] -= 1


@kernel(void(_clients, int64_out, int64_out, int64_out, int64_out, int64, int64), counted=False)
def bounce(
    sides: ClientWords, holds: Words, pages: Words, ready: Words, state: Words, hold: int, status_reason: int
) -> None:
    """Turn a held batch into a NOP with the given status and reason."""
    ref = as_int64(holds[hold * HOLD_WORDS + HOLD_REF])
    unhold(sides, holds, pages, state, hold)
    push_ready(ready, state, ref, KIND_NOP | status_reason, -1, -1)
    state[BOUNCED_TOTAL] += 1


@kernel(int64(int64_out), counted=False)
def oldest_hold(holds: Words) -> int:
    """The row of the batch that has been held longest; 0 if there is none."""
    oldest = 0
    for broker in range(BROKERS):
        first = as_int64(holds[broker * HOLD_WORDS + HOLD_NEWER])
        if first != broker and (
            oldest == 0 or holds[first * HOLD_WORDS + HOLD_ARRIVAL] < holds[oldest * HOLD_WORDS + HOLD_ARRIVAL]
        ):
            oldest = first
    return oldest


@kernel(void(int64_out, int64_out, int64, int64), counted=False)
def start_gap(pages: Words, state: Words, page: int, now_ns: int) -> None:
    """Start the gap timer of a page."""
    head = page * PAGE_WORDS
    pages[head + PAGE_GAP_SINCE] = now_ns
    allowed = as_int64(pages[head + PAGE_GAP_NS])
    if allowed == 0:
        allowed = as_int64(state[SILENCE_NS])
    state[NEXT_DEADLINE] = min(as_int64(state[NEXT_DEADLINE]), now_ns + allowed)


@kernel(void(_clients, int64_out, int64_out, int64_out, int64_out, int64, int64, int64, int64), counted=False)
def hold_batch(
    sides: ClientWords,
    holds: Words,
    pages: Words,
    ready: Words,
    state: Words,
    row: int,
    seq: int,
    ref: int,
    now_ns: int,
) -> None:
    """Hold a batch; bounces the oldest ones first if there is no space."""
    while state[HELD] >= state[HOLD_HIGH] or (sides[row, SIDE_PAGE] == 0 and state[PAGE_FREE] < 0):
        bounce(sides, holds, pages, ready, state, oldest_hold(holds), STATUS_RETRY)
    page = as_int64(sides[row, SIDE_PAGE]) - 1
    if page < 0:
        page = as_int64(state[PAGE_FREE])
        head = page * PAGE_WORDS
        state[PAGE_FREE] = pages[head + PAGE_NEXT_FREE]
        sides[row, SIDE_PAGE] = page + 1
        pages[head + PAGE_OWNER] = row + 1
        pages[head + PAGE_LAST_SEEN] = now_ns
        pages[head + PAGE_GAP_NS] = as_int64(sides[row, SIDE_GAP_NS])
        start_gap(pages, state, page, now_ns)
    hold = as_int64(state[HOLD_FREE])
    at = hold * HOLD_WORDS
    state[HOLD_FREE] = holds[at + HOLD_NEWER]
    broker = ref >> BROKER_SHIFT
    newest = as_int64(holds[broker * HOLD_WORDS + HOLD_OLDER])
    holds[at + HOLD_REF] = ref
    holds[at + HOLD_ROW] = row
    holds[at + HOLD_SEQ] = seq
    holds[at + HOLD_NEWER] = broker
    holds[at + HOLD_OLDER] = newest
    holds[at + HOLD_ARRIVAL] = state[ARRIVALS]
    holds[newest * HOLD_WORDS + HOLD_NEWER] = hold
    holds[broker * HOLD_WORDS + HOLD_OLDER] = hold
    pages[page * PAGE_WORDS + PAGE_HEAD + (seq & (WINDOW - 1))] = hold
    pages[page * PAGE_WORDS + PAGE_HELD] += 1
    state[ARRIVALS] += 1
    state[HELD] += 1


@kernel(int64(int64, int64_in, int64_out), counted=False)
def needed_from(broker: int, tails: Words, state: Words) -> int:
    """The BLog offset below which a broker needs the bytes for its next batches."""
    line = broker * TAIL_WORDS
    end = load_acquire(tails, line + TAIL_BLOG_CLAIMED) + state[BLOG_RESERVE]
    return max(as_int64(end), as_int64(load_acquire(tails, line + TAIL_BLOG_WANTED))) - as_int64(state[BLOG_SIZE])


@kernel(
    void(
        *(int64_in, int64, _clients, int64_out, int64_out, int64_out, int64_out),
        *(int64_out, int64_in),
    ),
    counted=False,
)
def bounce_pinned(
    slots: Words,
    pbr_entries: int,
    sides: ClientWords,
    holds: Words,
    pages: Words,
    ready: Words,
    state: Words,
    collected: Words,
    tails: Words,
) -> None:
    """Bounce the batches that are so old that they would block their broker's ring or BLog."""
    for broker in range(BROKERS):
        hold = as_int64(holds[broker * HOLD_WORDS + HOLD_NEWER])
        if hold == broker:
            continue
        cursor = as_int64(collected[broker * HOLD_WORDS])
        needed = needed_from(broker, tails, state)
        while hold != broker:
            ref = as_int64(holds[hold * HOLD_WORDS + HOLD_REF])
            is_pinning = cursor - (ref & INDEX_MASK) >= state[PIN_LIMIT]
            if not is_pinning and slots[slot_of_ref(ref, pbr_entries) + PBR_BLOG_OFFSET] >= needed:
                break
            bounce(sides, holds, pages, ready, state, hold, STATUS_RETRY)
            hold = as_int64(holds[broker * HOLD_WORDS + HOLD_NEWER])


@kernel(int64(_clients, int64_out, int64_out, int64_out, int64_out, int64, int64), counted=False)
def bounce_client(
    sides: ClientWords, holds: Words, pages: Words, ready: Words, state: Words, row: int, status_reason: int
) -> int:
    """Bounce all held batches of a client, by seq mod 256; returns how many."""
    count = 0
    page = as_int64(sides[row, SIDE_PAGE]) - 1
    if page >= 0:
        first = page * PAGE_WORDS + PAGE_HEAD
        for at in range(first, first + WINDOW):
            if pages[at] != 0:
                bounce(sides, holds, pages, ready, state, as_int64(pages[at]), status_reason)
                count += 1
    return count
