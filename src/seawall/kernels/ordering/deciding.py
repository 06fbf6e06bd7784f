"""Decides what each collected slot becomes and in which order, by the windows of its clients.

Every ref ends in exactly one ready item (`holding`), now or later, and so in one entry of the GOI:

    abandoned slot, NOP                  NOP, status RETRY
    client without a session             batch
    known to the window                  NOP: DUPLICATE with the original's numbers, or REJECTED with a reason
    new, order 2 or next expected        batch; then the held batches that directly follow it
    new, order 5, too early              held
    same seq is held already             NOP: REJECTED as a mismatch if its block differs, else RETRY

A batch of order 2 never waits, even if its client has held batches. A drain does not sort: a batch that arrives early
is held and released when the ones before it are decided, which gives the same order. A gap that opens and closes within
one drain leaves no timer running.

`gaps` skips the seqs that do not arrive in time; a drain refuses them if they arrive late.

INV-ORDER-ONCE: each collected slot of a broker ends in exactly one entry of the order. A ref is in one ready item or
held, never both.
INV-ORDER-CLIENT: batches of order 5 stand in the client's own order, and a SKIP names every seq that is missing.

A drain begins without ready items, so there are never more of them than refs in the drain plus held batches.

The result of a ready batch has no position yet; it refers to the item instead (IN_READY). A crash loses all of this;
slots without an entry are collected again.
"""

from __future__ import annotations

import numpy as np

from seawall.kernels.admission.client_index import CLIENT_ID, find_row
from seawall.kernels.admission.client_window import (
    CHECK_DUPLICATE,
    CHECK_FENCED,
    CHECK_MISMATCH,
    CHECK_NEW,
    CHECK_OUTSIDE,
    NEXT_EXPECTED,
    SIDE_PAGE,
    WINDOW,
    WindowArrays,
    decide_row,
    judge_row,
    known_result,
    window_arrays,
)
from seawall.kernels.ordering.collecting import PBR_CLIENT, PBR_FLAGS, PBR_SEQ, STUCK, slot_of_ref
from seawall.kernels.ordering.holding import (
    HELD,
    HOLD_REF,
    HOLD_WORDS,
    KIND_BATCH,
    KIND_NOP,
    PAGE_HEAD,
    PAGE_LAST_SEEN,
    PAGE_WORDS,
    PREFETCH_MAX,
    PREFETCH_ROWS,
    READY_BASE_SEQ,
    READY_TAIL,
    READY_TIMESTAMP,
    READY_WORDS,
    REASON_SHIFT,
    STATUS_DUPLICATE,
    STATUS_REJECTED,
    STATUS_RETRY,
    UNKNOWN_CLIENT,
    HoldArrays,
    bounce_pinned,
    hold_arrays,
    hold_batch,
    push_ready,
    start_gap,
    unhold,
)
from seawall.kernels.runtime.atomics import load_acquire, store_release
from seawall.kernels.runtime.jit import int64, int64_in, int64_out, kernel, void
from seawall.kernels.runtime.memory import INDEX_BITS, as_int64
from seawall.kernels.runtime.prefetch import prefetch_rows
from seawall.kernels.runtime.rings import CONSUMED, PRODUCED, Words
from seawall.kernels.runtime.tables import ABSENT

#: Words of a pending batch, and its flags.
PBR_TOPIC = 2
PBR_EPOCH = 6
FLAG_STRONG_ORDER = 1
FLAG_NOP = 32

#: Why a client's batch is refused: error codes of the wire.
REASON_FENCED = 0x24
REASON_OUTSIDE_WINDOW = 0x25
REASON_SKIPPED = 0x26
REASON_MISMATCH = 0x28

#: In the position of a result: the batch is ready, and the lower bits are the number of its item.
IN_READY = np.uint64(1 << 63)

#: Why a drain ended: the queue is empty or the limit is reached; the window does not have the client of the next slot.
DRAIN_DONE = 0
DRAIN_UNKNOWN_CLIENT = 1

#: For `absent_client`: every client may have a row.
NO_CLIENT = 0

_LOW = 0xFFFFFFFF


@kernel(
    void(int64_in, int64, int64, int64, int64, window_arrays, int64_out, int64_out),
    inline=True,
    counted=False,
)
def _push_batch(
    slots: Words,
    base: int,
    ref: int,
    seq: int,
    row: int,
    window: WindowArrays,
    ready: Words,
    state: Words,
) -> None:
    """Decide a new batch as stored; it gets its numbers later."""
    _, clients, sides, memories, results = window
    at = decide_row(seq, 1, clients, sides, memories, row) & INDEX_BITS
    result = results[at]
    result["position"] = IN_READY | np.uint64(state[READY_TAIL])
    result["base_seq"] = 0
    result["timestamp_ns"] = 0
    result["block_crc"] = (slots[base + PBR_TOPIC] >> 32) & _LOW
    result["reason"] = 0
    result["status"] = 0
    result["known"] = 1
    push_ready(ready, state, ref, KIND_BATCH, row, at)


@kernel(void(int64, int64, int64, int64, int64, window_arrays, int64_out, int64_out), counted=False)
def _push_known(
    verdict: int,
    ref: int,
    seq: int,
    crc: int,
    row: int,
    window: WindowArrays,
    ready: Words,
    state: Words,
) -> None:
    """Push a NOP for a batch that the window does not find new."""
    _, _, sides, memories, results = window
    code = verdict
    reason = 0
    original = -1
    base_seq = 0
    timestamp = 0
    at = ABSENT
    if code != CHECK_FENCED and code != CHECK_OUTSIDE:
        at = known_result(seq, sides, memories, row)
    if at != ABSENT:
        result = results[at]
        if as_int64(result["block_crc"]) != crc:
            code = CHECK_MISMATCH
        elif code == CHECK_DUPLICATE:
            # An original without a position yet is encoded as −2 − its item.
            original = as_int64(result["position"])
            if original < -1:
                original = -2 - (original & (2**63 - 1))
            base_seq = as_int64(result["base_seq"])
            timestamp = as_int64(result["timestamp_ns"])
        else:
            reason = as_int64(result["reason"])
    if code == CHECK_DUPLICATE:
        item = as_int64(state[READY_TAIL]) * READY_WORDS
        ready[item + READY_BASE_SEQ] = base_seq
        ready[item + READY_TIMESTAMP] = timestamp
        push_ready(ready, state, ref, KIND_NOP | STATUS_DUPLICATE, row, original)
        return
    if code == CHECK_FENCED:
        reason = REASON_FENCED
    elif code == CHECK_OUTSIDE:
        reason = REASON_OUTSIDE_WINDOW
    elif code == CHECK_MISMATCH:
        reason = REASON_MISMATCH
    elif reason == 0:
        # Skipped, or refused and the reason has been evicted: it was not stored in either case.
        reason = REASON_SKIPPED
    push_ready(ready, state, ref, KIND_NOP | STATUS_REJECTED | reason << REASON_SHIFT, row, -1)


@kernel(
    void(int64_in, int64, int64, int64, window_arrays, hold_arrays),
    counted=False,
)
def release_held(
    slots: Words,
    pbr_entries: int,
    row: int,
    now_ns: int,
    window: WindowArrays,
    held: HoldArrays,
) -> None:
    """Release the held batches of a client from next_expected on, up to the first missing one."""
    _, clients, sides, _, _ = window
    holds, pages, ready, state = held
    released = 0
    page = as_int64(sides[row, SIDE_PAGE]) - 1
    while sides[row, SIDE_PAGE] != 0:
        seq = as_int64(clients[row, NEXT_EXPECTED])
        hold = as_int64(pages[page * PAGE_WORDS + PAGE_HEAD + (seq & (WINDOW - 1))])
        if hold == 0:
            break
        ref = as_int64(holds[hold * HOLD_WORDS + HOLD_REF])
        unhold(sides, holds, pages, state, hold)
        base = slot_of_ref(ref, pbr_entries)
        _push_batch(slots, base, ref, seq, row, window, ready, state)
        released += 1
    if released > 0 and sides[row, SIDE_PAGE] != 0:
        start_gap(pages, state, page, now_ns)


@kernel(
    void(int64_in, int64, int64, int64, int64, int64, window_arrays, hold_arrays),
    inline=True,
    counted=False,
)
def _decide_session_batch(
    slots: Words,
    pbr_entries: int,
    base: int,
    ref: int,
    row: int,
    now_ns: int,
    window: WindowArrays,
    held: HoldArrays,
) -> None:
    """Decide one batch of a client whose row is known."""
    _, clients, sides, _, _ = window
    holds, pages, ready, state = held
    seq = as_int64(slots[base + PBR_SEQ])
    crc = (slots[base + PBR_TOPIC] >> 32) & _LOW
    verdict = judge_row(seq, slots[base + PBR_EPOCH] & _LOW, clients, sides, row)
    head = (as_int64(sides[row, SIDE_PAGE]) - 1) * PAGE_WORDS
    if head >= 0 and verdict != CHECK_FENCED:
        pages[head + PAGE_LAST_SEEN] = now_ns
    if verdict != CHECK_NEW:
        _push_known(verdict, ref, seq, crc, row, window, ready, state)
        return
    if head >= 0:
        hold = as_int64(pages[head + PAGE_HEAD + (seq & (WINDOW - 1))])
        if hold != 0:
            other = slot_of_ref(as_int64(holds[hold * HOLD_WORDS + HOLD_REF]), pbr_entries)
            code = KIND_NOP | STATUS_RETRY
            if ((slots[other + PBR_TOPIC] >> 32) & _LOW) != crc:
                code = KIND_NOP | STATUS_REJECTED | REASON_MISMATCH << REASON_SHIFT
            push_ready(ready, state, ref, code, row, -1)
            return
    is_strong = (slots[base + PBR_FLAGS] >> 32) & FLAG_STRONG_ORDER
    if is_strong != 0 and seq > as_int64(clients[row, NEXT_EXPECTED]):
        hold_batch(sides, holds, pages, ready, state, row, seq, ref, now_ns)
        return
    _push_batch(slots, base, ref, seq, row, window, ready, state)
    if head >= 0:
        release_held(slots, pbr_entries, row, now_ns, window, held)


@kernel(
    int64(
        *(int64_in, int64_out, int64, int64_in, int64, int64, int64),
        *(window_arrays, hold_arrays, int64_out, int64_in),
    ),
    counted=False,
)
def drain_refs(
    queue: Words,
    counters: Words,
    limit: int,
    slots: Words,
    pbr_entries: int,
    now_ns: int,
    absent_client: int,
    window: WindowArrays,
    held: HoldArrays,
    collected: Words,
    tails: Words,
) -> int:
    """Consume up to `limit` refs of one queue and decide each; `absent_client` is known to have no row.

    Returns DRAIN_UNKNOWN_CLIENT if the next slot's client (in `state`) is not in the window; leaves that slot queued.
    """
    table, clients, sides, memories, results = window
    holds, pages, ready, state = held
    code = DRAIN_DONE
    last_client = row = -1
    index = as_int64(counters[CONSUMED])
    end = min(as_int64(load_acquire(counters, PRODUCED)), index + limit)
    chunk_start = chunk_end = index
    has_rows = 0
    while index < end:
        if index == chunk_end:
            chunk_end = min(end, index + PREFETCH_MAX)
            chunk_start = index
            last_client = -1
            has_rows = prefetch_rows(
                queue, index, chunk_end, slots, pbr_entries, table, clients, sides, memories, results, state
            )
        ref = as_int64(queue[index & (queue.size - 1) & INDEX_BITS])
        base = slot_of_ref(ref & ~STUCK, pbr_entries)
        client_id = as_int64(slots[base + PBR_CLIENT])
        index += 1
        is_nop = ref & STUCK != 0 or (slots[base + PBR_FLAGS] >> 32) & FLAG_NOP != 0
        if is_nop or client_id < 0:
            push_ready(ready, state, ref, KIND_NOP | STATUS_RETRY if is_nop else KIND_BATCH, -1, -1)
            continue
        if has_rows != 0:
            row = as_int64(state[PREFETCH_ROWS + index - 1 - chunk_start])
            is_known = row >= 0 and as_int64(clients[row, CLIENT_ID]) == client_id
        else:
            is_known = client_id == last_client
        if not is_known:
            row = find_row(table, clients, np.uint64(client_id))
            if row == ABSENT and client_id != absent_client:
                state[UNKNOWN_CLIENT] = client_id
                code = DRAIN_UNKNOWN_CLIENT
                index -= 1
                break
            last_client = client_id
        if row < 0:
            push_ready(ready, state, ref, KIND_NOP | STATUS_REJECTED | REASON_FENCED << REASON_SHIFT, -1, -1)
            continue
        _decide_session_batch(slots, pbr_entries, base, ref, row, now_ns, window, held)
    store_release(counters, CONSUMED, index)
    if state[HELD] > 0:
        bounce_pinned(slots, pbr_entries, sides, holds, pages, ready, state, collected, tails)
    return code
