"""From ready items to entries: reserve positions, write the global order index, and learn numbers once they are given.

    reserve_positions   a stretch of positions, by one atomic operation, inside the ring
    write_entries       ready items become GOI entries, duplicates with a note, each with its token last; then one
                        range for the frontier
    settle_entries      batches below committed get seq and timestamp from the side array into their client's window,
                        or are marked as refused there if the frontier refused them

INV-GOI-WRAP: no entry of the order is overwritten while the frontier, a worker or a recovery still needs it:
reserved − floor ≤ `goi_entries`, floor being the least of what the frontier needs and of what each worker has still to
settle.

A position is reserved once, and only its worker writes its entry and its note. A seq is called a duplicate of a refused
batch never after the refusal was settled, and before that only by naming the original's position, whose status the
frontier knows.

Fill has two watermarks: from the high one on nothing is reserved, until it is down to the low one.
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

#: Items ahead of the present one whose results are asked for: about as long as memory takes.
AHEAD = 16

_LOW = 0xFFFFFFFF
_clients = types.Array(types.uint64, 2, "C")
_results = record_array(WINDOW_RESULT)


@kernel(int64(int64_out, int64_out), counted=False)
def wrap_floor(counters: Words, settled: Words) -> int:
    """Entries below it may be written over."""
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
    """Reserve from `least` to `most` positions, as many as there is room for: the first, or NONE_RESERVED.

    How many they are is in `state[RESERVED_COUNT]`.
    """
    line = worker * LINE_WORDS
    reserved = as_int64(load_acquire(counters, RESERVED))
    if settled[line] == NOTHING_UNSETTLED:
        # Before positions are taken, so that nobody laps them before they are settled.
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
    """Reserve `each` positions so often, all of which are free again at once; how many in all. For measuring."""
    total = 0
    for _ in range(times):
        start = reserve_positions(counters, settled, 0, goi_entries, goi_entries, goi_entries, each, each, state)
        store_release(counters, FLOOR, start + each)
        store_release(settled, 0, NOTHING_UNSETTLED)
        total += as_int64(state[RESERVED_COUNT])
    return total


@kernel(void(int64_out, int64, int64, int64, int64, int64, int64, int64), counted=False)
def _fill_odd(
    goi: Words, at: int, term: int, broker: int, index: int, flags: int, record_count: int, blog_offset: int
) -> None:
    """Everything but token, topic, checksum, client and seq of an entry that brings no batch."""
    goi[at + 2] = broker | term << 16 | (blog_offset << 32)
    goi[at + 3] = (blog_offset >> 32) & _LOW
    goi[at + 4] = record_count
    goi[at + 7] = (index & _LOW) | flags << 32


@kernel(void(int64_out, int64, int64, int64_in, int64, int64_out, int64, _clients), counted=False)
def _write_odd(
    goi: Words,
    at: int,
    term: int,
    slots: Words,
    pbr_entries: int,
    ready: Words,
    item: int,
    clients: ClientWords,
) -> None:
    """The entry of a NOP, a SKIP or a control item, without its token."""
    ref = as_int64(ready[item + READY_REF])
    code = as_int64(ready[item + READY_CODE])
    kind = code >> KIND_SHIFT << KIND_SHIFT
    target = as_int64(ready[item + READY_AT])
    if kind == KIND_SKIP:
        count = ref & _LOW
        flags = FLAG_SKIP | FLAG_SKIP_RANGE if count > 1 else FLAG_SKIP
        _fill_odd(goi, at, term, NO_BROKER, 0, flags, count, 0)
        goi[at + 1] = ref >> KIND_SHIFT
        goi[at + 5] = as_int64(clients[as_int64(ready[item + READY_ROW]), 0])
        goi[at + 6] = target
    elif kind == KIND_CONTROL:
        _fill_odd(goi, at, term, NO_BROKER, 0, FLAG_CONTROL, code & _LOW, 0)
        goi[at + 1] = ref
        goi[at + 5] = ready[item + READY_ROW]
        goi[at + 6] = target
    else:
        slot = ref & ~STUCK
        if target < -1:
            # The original has been written before this one, and its item has learnt its position.
            target = as_int64(ready[(-2 - target) * READY_WORDS + READY_REF])
        _fill_odd(goi, at, term, slot >> BROKER_SHIFT, slot & INDEX_MASK, FLAG_NOP, code & 0xFFFFFF, target)
        base = slot_of_ref(slot, pbr_entries)
        is_whole = ref & STUCK == 0
        goi[at + 1] = slots[base + 2] if is_whole else 0
        goi[at + 5] = slots[base + 4] if is_whole else 0
        goi[at + 6] = slots[base + 5] if is_whole else 0


@kernel(void(int64_out, int64_out, int64, int64), counted=False)
def _push_range(ranges: Words, range_counters: Words, start: int, end: int) -> None:
    produced = as_int64(range_counters[PRODUCED])
    at = (produced & (ranges.size // 2 - 1)) * 2
    ranges[at] = start
    ranges[at + 1] = end
    store_release(range_counters, PRODUCED, produced + 1)


@kernel(int64(int64_in, int64_out), counted=False)
def has_range_space(ranges: Words, range_counters: Words) -> int:
    """Whether another range can be told to the frontier."""
    waiting = range_counters[PRODUCED] - load_acquire(range_counters, CONSUMED)
    return as_int64(waiting < ranges.size // 2)


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
    """Write the first `state[RESERVED_COUNT]` ready items at positions from `start` on, and tell the frontier."""
    mask = goi.size // SLOT_WORDS - 1
    term_bits = (term & 0xFFFF) << 16
    first = as_int64(state[READY_HEAD])
    count = as_int64(state[RESERVED_COUNT])
    waiting = as_int64(state[UNSETTLED_TAIL])
    last = (first + count - 1) * READY_WORDS
    for number in range(first, first + count):
        item = number * READY_WORDS & INDEX_BITS
        position = start + number - first
        at = (position & mask) * SLOT_WORDS & INDEX_BITS
        prefetch(goi, ((position + AHEAD) & mask) * LINE_SIZE)
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
                prefetch(results, as_int64(ready[min(item + AHEAD * READY_WORDS, last) + READY_AT]) * RESULT_SIZE)
                result_at = as_int64(ready[item + READY_AT]) & INDEX_BITS
                if results[result_at]["position"] == IN_READY | np.uint64(number):
                    results[result_at]["position"] = position
                place = (waiting & mask) * UNSETTLED_WORDS & INDEX_BITS
                unsettled[place + UNSETTLED_POSITION] = position
                unsettled[place + UNSETTLED_RESULT] = result_at
                unsettled[place + UNSETTLED_ROW] = row
                unsettled[place + UNSETTLED_SEQ] = slots[base + 5]
                unsettled[place + UNSETTLED_REF] = ref
                waiting += 1
            ready[item + READY_REF] = position
        else:
            _write_odd(goi, at, term & 0xFFFF, slots, pbr_entries, ready, item, clients)
            if code == KIND_NOP | STATUS_DUPLICATE:
                note = (position & mask) * 2
                notes[note] = ready[item + READY_BASE_SEQ]
                notes[note + 1] = ready[item + READY_TIMESTAMP]
        store_release(goi, at, position + 1)
    state[UNSETTLED_TAIL] = waiting
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
    """Give batches below `committed` their numbers or their refusal in the window; how many."""
    head = as_int64(state[UNSETTLED_HEAD])
    first = head
    while head < state[UNSETTLED_TAIL]:
        place = (head & (goi_entries - 1)) * UNSETTLED_WORDS & INDEX_BITS
        position = as_int64(unsettled[place + UNSETTLED_POSITION])
        if position >= committed:
            break
        far = ((head + AHEAD) & (goi_entries - 1)) * UNSETTLED_WORDS & INDEX_BITS
        prefetch(results, unsettled[far + UNSETTLED_RESULT] * RESULT_SIZE)
        entry = (position & (goi_entries - 1)) * SIDE_WORDS & INDEX_BITS
        result = results[unsettled[place + UNSETTLED_RESULT] & INDEX_BITS]
        is_remembered = as_int64(result["position"]) == position
        if (side[entry] >> 32) & 0xFF == STATUS_OK:
            if is_remembered:
                result["base_seq"] = side[entry + SIDE_BASE_SEQ]
                result["timestamp_ns"] = side[entry + SIDE_TIMESTAMP]
        else:
            ref = as_int64(unsettled[place + UNSETTLED_REF])
            slot = slot_of_ref(ref, pbr_entries)
            token = load_acquire(result_slots, slot + RESULT_TOKEN)
            if token < (ref & INDEX_MASK) + 1:
                break  # its result, which has the reason, is about to be written
            reason = REASON_SKIPPED
            if token == (ref & INDEX_MASK) + 1:
                reason = (result_slots[slot + RESULT_STATUS] >> 16) & 0xFFFF
            refuse_row(unsettled[place + UNSETTLED_SEQ], clients, sides, unsettled[place + UNSETTLED_ROW])
            if is_remembered:
                result["status"] = STATUS_REJECTED
                result["reason"] = reason
        head += 1
    count = head - first
    lowest = NOTHING_UNSETTLED
    if head < state[UNSETTLED_TAIL]:
        lowest = as_int64(unsettled[(head & (goi_entries - 1)) * UNSETTLED_WORDS + UNSETTLED_POSITION])
    else:
        # From the beginning again, which is in the cache, and not on through a ring as long as that of entries.
        head = 0
        state[UNSETTLED_TAIL] = 0
    state[UNSETTLED_HEAD] = head
    store_release(settled, worker * LINE_WORDS, lowest)
    return count
