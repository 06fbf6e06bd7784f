"""Writes ready items to the global order index: reserves positions, writes entries, records the committed numbers.

    reserve_positions   reserves a range of positions by one atomic operation, within the capacity of the ring
    write_entries       writes ready items as GOI entries, duplicates with a note, each with its token last; then
                        reports one range to the frontier
    settle_entries      copies seq and timestamp of committed batches from the side array to their client's window, or
                        marks them refused there if the frontier refused them

INV-GOI-WRAP: no entry of the order is overwritten while the frontier, a worker or a recovery still needs it:
reserved − floor ≤ `goi_entries`, where floor is the lowest position that the frontier still needs or that a worker has
not settled.

A position is reserved once, and only its worker writes its entry and its note. Once a refusal is settled, no repetition
is called its duplicate; before, a duplicate refers to the original's position, whose status the frontier knows.

The fill level has two watermarks: at the high one workers stop reserving, until it falls to the low one.
"""

from __future__ import annotations

import numpy as np
from numba.core import types

from seawall.kernels.admission.client_window import WINDOW_RESULT, Rows, refuse_row
from seawall.kernels.ordering.collecting import BROKER_SHIFT, INDEX_MASK, STUCK, slot_of_ref
from seawall.kernels.ordering.deciding import IN_READY
from seawall.kernels.ordering.holding import (
    IS_STALLED,
    KIND_BATCH,
    KIND_CONTROL,
    KIND_NOP,
    KIND_SHIFT,
    KIND_SKIP,
    READY_AT,
    READY_BASE_SEQ,
    READY_CODE,
    READY_HEAD,
    READY_REF,
    READY_ROW,
    READY_TAIL,
    READY_TIMESTAMP,
    READY_WORDS,
    RESERVED_COUNT,
    STATUS_DUPLICATE,
    STATUS_OK,
    STATUS_REJECTED,
    UNSETTLED_HEAD,
    UNSETTLED_TAIL,
    ClientWords,
)
from seawall.kernels.runtime.atomics import compare_exchange, fence, load_acquire, store_release
from seawall.kernels.runtime.jit import int64, int64_in, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import INDEX_BITS, LINE_SIZE, as_int64, prefetch
from seawall.kernels.runtime.prefetch import RESULT_SIZE
from seawall.kernels.runtime.rings import CONSUMED, PRODUCED, SLOT_WORDS, Words

#: Words of the shared counters and of a worker's line in `settled`.
RESERVED = 0
FLOOR = 8
LINE_WORDS = 8
NOTHING_UNSETTLED = 1 << 62

#: No position was reserved.
NONE_RESERVED = -1

#: Words of a batch that is not settled.
UNSETTLED_WORDS = 5
UNSETTLED_POSITION = 0
UNSETTLED_RESULT = 1
UNSETTLED_ROW = 2
UNSETTLED_SEQ = 3
UNSETTLED_REF = 4

#: Flags of an entry, and the broker of one that belongs to no slot.
FLAGS_KEPT = 1 | 4 | 128 | 0xFFFF0000
FLAG_SKIP = 8
FLAG_SKIP_RANGE = 16
FLAG_NOP = 32
FLAG_CONTROL = 64
NO_BROKER = 0xFFFF

#: Words of a side entry and of a result.
SIDE_WORDS = 4
SIDE_BASE_SEQ = 1
SIDE_TIMESTAMP = 3
RESULT_STATUS = 4
RESULT_TOKEN = 7
REASON_SKIPPED = 0x26

#: How many items ahead to prefetch: about the latency of memory.
PREFETCH_DISTANCE = 16

_LOW = 0xFFFFFFFF
_clients = types.Array(types.uint64, 2, "C")
_results = record_array(WINDOW_RESULT)


@kernel(int64(int64_out, int64_out), counted=False)
def wrap_floor(counters: Words, settled: Words) -> int:
    """The position below which entries may be overwritten."""
    floor = as_int64(load_acquire(counters, FLOOR))
    for at in range(0, settled.size, LINE_WORDS):
        floor = min(floor, as_int64(load_acquire(settled, at)))
    return floor


@kernel(int64(int64_out, int64_out, int64, int64, int64, int64, int64, int64, int64_out), counted=False)
def reserve_positions(
    counters: Words,
    settled: Words,
    worker: int,
    goi_entries: int,
    high: int,
    low: int,
    least: int,
    most: int,
    state: Words,
) -> int:
    """Reserve from `least` to `most` positions, as space allows; returns the first, or NONE_RESERVED.

    Writes their number to `state[RESERVED_COUNT]`.
    """
    line = worker * LINE_WORDS
    reserved = as_int64(load_acquire(counters, RESERVED))
    if settled[line] == NOTHING_UNSETTLED:
        # Before the reservation, so that no other worker overwrites the entries before they are settled.
        store_release(settled, line, reserved)
        fence()
    while True:
        fill = reserved - wrap_floor(counters, settled)
        if fill >= high or (state[IS_STALLED] != 0 and fill > low):
            state[IS_STALLED] = 1
            return NONE_RESERVED
        state[IS_STALLED] = 0
        count = min(most, goi_entries - fill)
        if count < least:
            return NONE_RESERVED
        before = as_int64(compare_exchange(counters, RESERVED, reserved, reserved + count))
        if before == reserved:
            state[RESERVED_COUNT] = count
            return reserved
        reserved = before


@kernel(int64(int64_out, int64_out, int64, int64, int64, int64_out), counted=False)
def reserve_repeatedly(counters: Words, settled: Words, goi_entries: int, each: int, times: int, state: Words) -> int:
    """Reserve and free `each` positions, `times` times; returns the total. For benchmarks."""
    total = 0
    for _ in range(times):
        start = reserve_positions(counters, settled, 0, goi_entries, goi_entries, goi_entries, each, each, state)
        store_release(counters, FLOOR, start + each)
        store_release(settled, 0, NOTHING_UNSETTLED)
        total += as_int64(state[RESERVED_COUNT])
    return total


@kernel(void(int64_out, int64, int64, int64, int64, int64, int64, int64), counted=False)
def _fill_without_batch(
    goi: Words, at: int, term: int, broker: int, index: int, flags: int, record_count: int, blog_offset: int
) -> None:
    """Fill an entry without a batch, except token, topic, checksum, client and seq."""
    goi[at + 2] = broker | term << 16 | (blog_offset << 32)
    goi[at + 3] = (blog_offset >> 32) & _LOW
    goi[at + 4] = record_count
    goi[at + 7] = (index & _LOW) | flags << 32


@kernel(void(int64_out, int64, int64, int64_in, int64, int64_out, int64, _clients), counted=False)
def _write_without_batch(
    goi: Words,
    at: int,
    term: int,
    slots: Words,
    pbr_entries: int,
    ready: Words,
    item: int,
    clients: ClientWords,
) -> None:
    """Write the entry of a NOP, a SKIP or a control item, without its token."""
    ref = as_int64(ready[item + READY_REF])
    code = as_int64(ready[item + READY_CODE])
    kind = code >> KIND_SHIFT << KIND_SHIFT
    target = as_int64(ready[item + READY_AT])
    if kind == KIND_SKIP:
        count = ref & _LOW
        flags = FLAG_SKIP | FLAG_SKIP_RANGE if count > 1 else FLAG_SKIP
        _fill_without_batch(goi, at, term, NO_BROKER, 0, flags, count, 0)
        goi[at + 1] = ref >> KIND_SHIFT
        goi[at + 5] = as_int64(clients[as_int64(ready[item + READY_ROW]), 0])
        goi[at + 6] = target
    elif kind == KIND_CONTROL:
        _fill_without_batch(goi, at, term, NO_BROKER, 0, FLAG_CONTROL, code & _LOW, 0)
        goi[at + 1] = ref
        goi[at + 5] = ready[item + READY_ROW]
        goi[at + 6] = target
    else:
        slot = ref & ~STUCK
        if target < -1:
            # The original is already written, and its item now holds its position.
            target = as_int64(ready[(-2 - target) * READY_WORDS + READY_REF])
        _fill_without_batch(goi, at, term, slot >> BROKER_SHIFT, slot & INDEX_MASK, FLAG_NOP, code & 0xFFFFFF, target)
        base = slot_of_ref(slot, pbr_entries)
        has_content = ref & STUCK == 0
        goi[at + 1] = slots[base + 2] if has_content else 0
        goi[at + 5] = slots[base + 4] if has_content else 0
        goi[at + 6] = slots[base + 5] if has_content else 0


@kernel(void(int64_out, int64_out, int64, int64), counted=False)
def _push_range(ranges: Words, range_counters: Words, start: int, end: int) -> None:
    produced = as_int64(range_counters[PRODUCED])
    at = (produced & (ranges.size // 2 - 1)) * 2
    ranges[at] = start
    ranges[at + 1] = end
    store_release(range_counters, PRODUCED, produced + 1)


@kernel(int64(int64_in, int64_out), counted=False)
def has_range_space(ranges: Words, range_counters: Words) -> int:
    """1 if another range can be reported to the frontier."""
    unread = range_counters[PRODUCED] - load_acquire(range_counters, CONSUMED)
    return as_int64(unread < ranges.size // 2)


@kernel(
    void(
        *(int64, int64, int64_in, int64, int64_out, int64_out),
        *(_clients, _results, int64_out, int64_out, int64_out, int64_out, int64_out),
    ),
    counted=False,
)
def write_entries(
    start: int,
    term: int,
    slots: Words,
    pbr_entries: int,
    goi: Words,
    notes: Words,
    clients: ClientWords,
    results: Rows,
    ready: Words,
    unsettled: Words,
    ranges: Words,
    range_counters: Words,
    state: Words,
) -> None:
    """Write the first `state[RESERVED_COUNT]` ready items at positions from `start` on and report them."""
    mask = goi.size // SLOT_WORDS - 1
    term_bits = (term & 0xFFFF) << 16
    first = as_int64(state[READY_HEAD])
    count = as_int64(state[RESERVED_COUNT])
    tail = as_int64(state[UNSETTLED_TAIL])
    last = (first + count - 1) * READY_WORDS
    for number in range(first, first + count):
        item = number * READY_WORDS & INDEX_BITS
        position = start + number - first
        at = (position & mask) * SLOT_WORDS & INDEX_BITS
        prefetch(goi, ((position + PREFETCH_DISTANCE) & mask) * LINE_SIZE)
        code = as_int64(ready[item + READY_CODE])
        if code == KIND_BATCH:
            ref = as_int64(ready[item + READY_REF])
            base = slot_of_ref(ref, pbr_entries)
            offset = slots[base]
            sizes = slots[base + 1]
            goi[at + 1] = slots[base + 2]
            goi[at + 2] = (slots[base + 3] & 0xFFFF) | term_bits | (offset << 32)
            goi[at + 3] = ((offset >> 32) & _LOW) | (sizes << 32)
            goi[at + 4] = (sizes >> 32) & _LOW
            goi[at + 5] = slots[base + 4]
            goi[at + 6] = slots[base + 5]
            goi[at + 7] = (ref & _LOW) | ((slots[base + 3] >> 32 & FLAGS_KEPT) << 32)
            row = as_int64(ready[item + READY_ROW])
            if row >= 0:
                prefetch(
                    results, as_int64(ready[min(item + PREFETCH_DISTANCE * READY_WORDS, last) + READY_AT]) * RESULT_SIZE
                )
                result_at = as_int64(ready[item + READY_AT]) & INDEX_BITS
                if results[result_at]["position"] == IN_READY | np.uint64(number):
                    results[result_at]["position"] = position
                pending_at = (tail & mask) * UNSETTLED_WORDS & INDEX_BITS
                unsettled[pending_at + UNSETTLED_POSITION] = position
                unsettled[pending_at + UNSETTLED_RESULT] = result_at
                unsettled[pending_at + UNSETTLED_ROW] = row
                unsettled[pending_at + UNSETTLED_SEQ] = slots[base + 5]
                unsettled[pending_at + UNSETTLED_REF] = ref
                tail += 1
            ready[item + READY_REF] = position
        else:
            _write_without_batch(goi, at, term & 0xFFFF, slots, pbr_entries, ready, item, clients)
            if code == KIND_NOP | STATUS_DUPLICATE:
                note = (position & mask) * 2
                notes[note] = ready[item + READY_BASE_SEQ]
                notes[note + 1] = ready[item + READY_TIMESTAMP]
        store_release(goi, at, position + 1)
    state[UNSETTLED_TAIL] = tail
    state[READY_HEAD] = first + count
    if state[READY_HEAD] == state[READY_TAIL]:
        state[READY_HEAD] = 0
        state[READY_TAIL] = 0
    _push_range(ranges, range_counters, start, start + count)


@kernel(
    int64(
        *(int64, int64_in, int64_in, int64, int64, _clients, _clients, _results),
        *(int64_in, int64_out, int64, int64_out),
    ),
    counted=False,
)
def settle_entries(
    committed: int,
    side: Words,
    result_slots: Words,
    pbr_entries: int,
    goi_entries: int,
    clients: ClientWords,
    sides: ClientWords,
    results: Rows,
    unsettled: Words,
    settled: Words,
    worker: int,
    state: Words,
) -> int:
    """Record numbers or refusals of the batches below `committed` in the window; returns how many."""
    head = as_int64(state[UNSETTLED_HEAD])
    first = head
    while head < state[UNSETTLED_TAIL]:
        pending_at = (head & (goi_entries - 1)) * UNSETTLED_WORDS & INDEX_BITS
        position = as_int64(unsettled[pending_at + UNSETTLED_POSITION])
        if position >= committed:
            break
        distant = ((head + PREFETCH_DISTANCE) & (goi_entries - 1)) * UNSETTLED_WORDS & INDEX_BITS
        prefetch(results, unsettled[distant + UNSETTLED_RESULT] * RESULT_SIZE)
        entry = (position & (goi_entries - 1)) * SIDE_WORDS & INDEX_BITS
        result = results[unsettled[pending_at + UNSETTLED_RESULT] & INDEX_BITS]
        is_cached = as_int64(result["position"]) == position
        if (side[entry] >> 32) & 0xFF == STATUS_OK:
            if is_cached:
                result["base_seq"] = side[entry + SIDE_BASE_SEQ]
                result["timestamp_ns"] = side[entry + SIDE_TIMESTAMP]
        else:
            ref = as_int64(unsettled[pending_at + UNSETTLED_REF])
            slot = slot_of_ref(ref, pbr_entries)
            token = load_acquire(result_slots, slot + RESULT_TOKEN)
            if token < (ref & INDEX_MASK) + 1:
                break  # the result, which has the reason, is not written yet
            reason = REASON_SKIPPED
            if token == (ref & INDEX_MASK) + 1:
                reason = (result_slots[slot + RESULT_STATUS] >> 16) & 0xFFFF
            refuse_row(unsettled[pending_at + UNSETTLED_SEQ], clients, sides, unsettled[pending_at + UNSETTLED_ROW])
            if is_cached:
                result["status"] = STATUS_REJECTED
                result["reason"] = reason
        head += 1
    count = head - first
    lowest = NOTHING_UNSETTLED
    if head < state[UNSETTLED_TAIL]:
        lowest = as_int64(unsettled[(head & (goi_entries - 1)) * UNSETTLED_WORDS + UNSETTLED_POSITION])
    else:
        # Restart at index 0, which is in the cache, instead of cycling through a ring as long as the GOI.
        head = 0
        state[UNSETTLED_TAIL] = 0
    state[UNSETTLED_HEAD] = head
    store_release(settled, worker * LINE_WORDS, lowest)
    return count
