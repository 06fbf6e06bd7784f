"""A commit of what has arrived, in two calls: collect, decide, number and stage before the write; publish behind it.

Batches lie in the rings of brokers, judged and whole (`arriving`). One call looks at what is there, so that its room is
found; one makes an epoch of it; whoever commits has that written, by any executor; and one lets it count. One batch is
a cycle of one batch.

    survey_cycle   slots that may go this way, up to where in each ring, and what they need of each topic
    stage_cycle    each is decided by the window of who orders, numbered, copied behind the epoch header, and answered
    settle_cycle   the window of the store learns of each, and everybody that the positions are taken and durable

A slot goes this way if it is a small whole batch, of a topic that takes it, and new to both windows where it has a
session. The first that is not ends the cycle of its ring: it goes the long way, through the index of the order, with
everything behind it. Positions of a cycle have no entries in that index.

What the calls are told, what they give and where all arrays lie are fields of one record, `CYCLE`.

INV-CYCLE-NEXT: a cycle begins only where every position that was reserved is durable, every slot that was collected is
completed, and nothing is held, waiting or unsettled: so nothing can come before it.
INV-CYCLE-SAME: what it stages is, byte for byte, what the long way would have staged for the same slots.
INV-CYCLE-BEHIND: the store's window, and all counts of the order, change when the epoch is written, never before.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from seawall.kernels.atomics import load_acquire, store_release
from seawall.kernels.client_index import find_row
from seawall.kernels.client_window import (
    CHECK_NEW,
    NEXT_EXPECTED,
    ROW_WORDS,
    SIDE_PAGE,
    WINDOW_RESULT,
    decide_row,
    judge_row,
)
from seawall.kernels.collecting import CURSOR, LINE_WORDS, PBR_TOKEN, TAIL_CLAIMED, TAIL_WORDS
from seawall.kernels.epochs import EPOCH_HEADER, WAL_ROW, list_batch
from seawall.kernels.following import batch_in_blog
from seawall.kernels.frontier import (
    ADMISSION_ROW,
    LAST_TIMESTAMP,
    NEXT_POSITION,
    RUN_DONE,
    STATUS_OK,
    TOPIC_ROW,
    admit_batch,
)
from seawall.kernels.goi_frontier import (
    COMPLETION_WORDS,
    CONTROL_COMMITTED,
    CONTROL_DURABLE,
    FLAG_STRONG_ORDER,
    RESULT_TOKEN,
    refusal_of,
)
from seawall.kernels.holding import HELD, READY_HEAD, READY_TAIL, UNSETTLED_HEAD, UNSETTLED_TAIL
from seawall.kernels.jit import bytes_out, int64, kernel, record_array, void
from seawall.kernels.lone_batch import seal_epoch
from seawall.kernels.memory import Array, Bytes, as_int64, copy_bytes, pointer_at
from seawall.kernels.order_entries import FLOOR, RESERVED
from seawall.kernels.rings import SLOT_WORDS
from seawall.kernels.tables import ABSENT, table_find

#: What a cycle needs of one topic, and what it took.
NEED_ROW = np.dtype(
    [
        ("topic_id", np.int64),
        ("records", np.int64),
        ("size", np.int64),
        ("taken_records", np.int64),
        ("taken_size", np.int64),
    ]
)

#: Arrays by the names of their fields in `CYCLE`: each has an address there, and a length.
CYCLE_ARRAYS = (
    *("keys", "values", "used", "topics", "numbers", "admitted", "staged"),
    *("order_places", "order_clients", "order_sides", "order_slots", "order_results"),
    *("store_places", "store_clients", "store_sides", "store_slots", "store_results"),
    *("control", "counters", "replica", "tails", "completion", "worker", "collected"),
    *("slots", "blogs", "results", "needs", "ends"),
)

#: What the calls are told: the epoch that is due, the time, the term, how far the order was followed, when its
#: checkpoint is due, how much one cycle may take, and which ring comes first; and what they give: of the cycle, and of
#: its last batch.
CYCLE = np.dtype(
    [
        *((name, np.int64) for name in ("salt", "epoch", "synced_through", "address", "wall_ns", "term")),
        *((name, np.int64) for name in ("followed", "checkpoint_after", "size_max", "count_max", "first_row")),
        ("first_ring", np.int64),
        *((name, np.int64) for name in ("count", "size", "needed", "first_position", "position", "timestamp_ns")),
        *((f"{name}_{what}", np.int64) for name in CYCLE_ARRAYS for what in ("at", "count")),
    ]
)

#: Nothing that has arrived goes this way.
PASSES_ON = -1

#: Bytes of a batch that are enough for it to go to its place at once.
LARGE_SIZE = 65_536

_SLOT_SIZE = 1
_SLOT_TOPIC = 2
_SLOT_FLAGS = 3
_SLOT_CLIENT = 4
_SLOT_SEQ = 5
_SLOT_EPOCH = 6
_LOW = 0xFFFFFFFF
_UNKNOWN = -1

_cycles = record_array(CYCLE)
_cycle = _cycles.dtype
_needs = record_array(NEED_ROW)


@kernel(int64(_cycle))
def _is_at_rest(cycle: np.void) -> int:
    """INV-CYCLE-NEXT, and no checkpoint of the order is due."""
    numbers = carray(pointer_at(cycle["numbers_at"]), cycle["numbers_count"], np.int64)
    control = carray(pointer_at(cycle["control_at"]), cycle["control_count"], np.int64)
    counters = carray(pointer_at(cycle["counters_at"]), cycle["counters_count"], np.int64)
    completion = carray(pointer_at(cycle["completion_at"]), cycle["completion_count"], np.int64)
    collected = carray(pointer_at(cycle["collected_at"]), cycle["collected_count"], np.int64)
    state = carray(pointer_at(cycle["worker_at"]), cycle["worker_count"], np.int64)
    position = numbers[NEXT_POSITION]
    if counters[RESERVED] != position or control[CONTROL_COMMITTED] != position:
        return 0
    if control[CONTROL_DURABLE] != position or cycle["followed"] != position:
        return 0
    if position - counters[FLOOR] >= cycle["checkpoint_after"] or state[HELD] != 0:
        return 0
    if state[READY_HEAD] != state[READY_TAIL] or state[UNSETTLED_HEAD] != state[UNSETTLED_TAIL]:
        return 0
    for broker in range(cycle["ends_count"]):
        if collected[broker * LINE_WORDS + CURSOR] != completion[broker * COMPLETION_WORDS]:
            return 0
    return 1


@kernel(int64(_cycle, int64, int64))
def _slot_word(cycle: np.void, broker: int, index: int) -> int:
    """The first word of a slot among all rings."""
    entries = cycle["slots_count"] // (cycle["ends_count"] * SLOT_WORDS)
    return as_int64((broker * entries + (index & (entries - 1))) * SLOT_WORDS)


@kernel(int64(_cycle, int64, int64))
def _source_of(cycle: np.void, broker: int, base: int) -> int:
    """Where the batch of a slot lies, if it may go this way: small, whole, no NOP and not refused; or -1."""
    slots = carray(pointer_at(cycle["slots_at"]), cycle["slots_count"], np.int64)
    blogs = carray(pointer_at(cycle["blogs_at"]), cycle["blogs_count"], np.uint8)
    size, count = slots[base + _SLOT_SIZE] & _LOW, (slots[base + _SLOT_SIZE] >> 32) & _LOW
    topic_id, crc = slots[base + _SLOT_TOPIC] & _LOW, (slots[base + _SLOT_TOPIC] >> 32) & _LOW
    if size >= LARGE_SIZE or (slots[base + _SLOT_FLAGS] >> 32) & _LOW & ~FLAG_STRONG_ORDER != 0:
        return -1
    blog_size = cycle["blogs_count"] // cycle["ends_count"]
    return batch_in_blog(blogs, blog_size, broker, slots[base], size, count, crc, topic_id)


@kernel(int64(_needs, int64, int64))
def _need_of(needs: Array, needed: int, topic_id: int) -> int:
    """The row of a topic among the first ones, or -1; the last one first, since batches come in runs."""
    for back in range(needed):
        if needs[needed - 1 - back]["topic_id"] == topic_id:
            return needed - 1 - back
    return -1


@kernel(int64(_cycles))
def survey_cycle(cycles: Array) -> int:
    """Find what goes this way now: how many slots, with `ends` and `needs`; 0 if nothing does."""
    cycle = cycles[0]
    cycle["needed"] = 0
    cycle["size"] = 0
    if _is_at_rest(cycle) == 0:
        return 0
    slots = carray(pointer_at(cycle["slots_at"]), cycle["slots_count"], np.int64)
    tails = carray(pointer_at(cycle["tails_at"]), cycle["tails_count"], np.int64)
    collected = carray(pointer_at(cycle["collected_at"]), cycle["collected_count"], np.int64)
    needs = carray(pointer_at(cycle["needs_at"]), cycle["needs_count"], NEED_ROW)
    ends = carray(pointer_at(cycle["ends_at"]), cycle["ends_count"], np.int64)
    total = 0
    for turn in range(ends.size):
        broker = (cycle["first_ring"] + turn) % ends.size
        index = as_int64(collected[broker * LINE_WORDS + CURSOR])
        claimed = as_int64(load_acquire(tails, broker * TAIL_WORDS + TAIL_CLAIMED))
        while index < claimed and total < cycle["count_max"]:
            base = _slot_word(cycle, broker, index)
            if load_acquire(slots, base + PBR_TOKEN) - index != 1 or _source_of(cycle, broker, base) < 0:
                break
            size, topic_id = slots[base + _SLOT_SIZE] & _LOW, slots[base + _SLOT_TOPIC] & _LOW
            if cycle["size"] + size > cycle["size_max"]:
                break
            row = _need_of(needs, cycle["needed"], topic_id)
            if row < 0:
                if cycle["needed"] == needs.size:
                    break
                row = as_int64(cycle["needed"])
                cycle["needed"] += 1
                needs[row]["topic_id"] = topic_id
                needs[row]["records"] = 0
                needs[row]["size"] = 0
                needs[row]["taken_records"] = 0
                needs[row]["taken_size"] = 0
            needs[row]["records"] += (slots[base + _SLOT_SIZE] >> 32) & _LOW
            needs[row]["size"] += size
            cycle["size"] += size
            total += 1
            index += 1
        ends[broker] = index
    return total


@kernel(int64(_cycle, int64, int64, int64, int64))
def _new_to_order(cycle: np.void, client_id: int, epoch: int, seq: int, is_strong: int) -> int:
    """The row of a client, in the window of who orders, to which its batch is new and has its turn; else ABSENT."""
    places = carray(pointer_at(cycle["order_places_at"]), cycle["order_places_count"], np.uint32)
    clients = carray(pointer_at(cycle["order_clients_at"]), (cycle["order_clients_count"], ROW_WORDS), np.uint64)
    sides = carray(pointer_at(cycle["order_sides_at"]), (cycle["order_sides_count"], ROW_WORDS), np.uint64)
    row = find_row(places, clients, np.uint64(client_id))
    if row == ABSENT or judge_row(seq, epoch, clients, sides, row) != CHECK_NEW or sides[row, SIDE_PAGE] != 0:
        return ABSENT
    return row if is_strong == 0 or as_int64(clients[row, NEXT_EXPECTED]) == seq else ABSENT


@kernel(int64(_cycle, int64, int64, int64))
def _new_to_store(cycle: np.void, client_id: int, epoch: int, seq: int) -> int:
    """The row of a client, in the window of the store, to which its batch is new; else ABSENT."""
    places = carray(pointer_at(cycle["store_places_at"]), cycle["store_places_count"], np.uint32)
    clients = carray(pointer_at(cycle["store_clients_at"]), (cycle["store_clients_count"], ROW_WORDS), np.uint64)
    sides = carray(pointer_at(cycle["store_sides_at"]), (cycle["store_sides_count"], ROW_WORDS), np.uint64)
    row = find_row(places, clients, np.uint64(client_id))
    return row if row != ABSENT and judge_row(seq, epoch, clients, sides, row) == CHECK_NEW else ABSENT


@kernel(void(record_array(WINDOW_RESULT).dtype, int64, int64, int64, int64))
def _remember_stored(result: np.void, position: int, base_seq: int, timestamp_ns: int, crc: int) -> None:
    """What a window knows of a batch that is stored."""
    result["position"] = position
    result["base_seq"] = base_seq
    result["timestamp_ns"] = timestamp_ns
    result["block_crc"] = crc
    result["reason"] = 0
    result["status"] = 0
    result["known"] = 1


@kernel(int64(_cycle, bytes_out, int64, int64, int64, int64))
def _stage_slot(cycle: np.void, memory: Bytes, at: int, broker: int, index: int, count: int) -> int:
    """Decide, number and stage the batch of one slot behind `count` others: its size, or PASSES_ON."""
    slots = carray(pointer_at(cycle["slots_at"]), cycle["slots_count"], np.int64)
    blogs = carray(pointer_at(cycle["blogs_at"]), cycle["blogs_count"], np.uint8)
    keys = carray(pointer_at(cycle["keys_at"]), cycle["keys_count"], np.uint64)
    values = carray(pointer_at(cycle["values_at"]), cycle["values_count"], np.int64)
    used = carray(pointer_at(cycle["used_at"]), cycle["used_count"], np.uint8)
    topics = carray(pointer_at(cycle["topics_at"]), cycle["topics_count"], TOPIC_ROW)
    numbers = carray(pointer_at(cycle["numbers_at"]), cycle["numbers_count"], np.int64)
    rows = carray(pointer_at(cycle["admitted_at"]), cycle["admitted_count"], ADMISSION_ROW)
    staged = carray(pointer_at(cycle["staged_at"]), cycle["staged_count"], WAL_ROW)
    results = carray(pointer_at(cycle["results_at"]), cycle["results_count"], np.int64)
    base = _slot_word(cycle, broker, index)
    client_id, seq = as_int64(slots[base + _SLOT_CLIENT]), as_int64(slots[base + _SLOT_SEQ])
    epoch, crc = slots[base + _SLOT_EPOCH] & _LOW, (slots[base + _SLOT_TOPIC] >> 32) & _LOW
    flags = (slots[base + _SLOT_FLAGS] >> 32) & _LOW
    topic = table_find(keys, used, np.uint64(slots[base + _SLOT_TOPIC] & _LOW))
    if topic == ABSENT or refusal_of(as_int64(topics[values[topic]]["flags"]), flags) != 0:
        return PASSES_ON
    row = ABSENT
    if client_id >= 0:
        row = _new_to_order(cycle, client_id, epoch, seq, flags & FLAG_STRONG_ORDER)
        if row == ABSENT or _new_to_store(cycle, client_id, epoch, seq) == ABSENT:
            return PASSES_ON
    size = slots[base + _SLOT_SIZE] & _LOW
    copy_bytes(memory, at, blogs, _source_of(cycle, broker, base), size)
    code = admit_batch(memory, at, cycle["term"], cycle["wall_ns"], keys, values, used, topics, numbers, rows, 0)
    if code != RUN_DONE or rows[0]["status"] != STATUS_OK:
        return PASSES_ON
    list_batch(memory, at, cycle["address"] + at, size, staged, cycle["first_row"] + count)
    position, base_seq = as_int64(rows[0]["position"]), as_int64(rows[0]["base_seq"])
    timestamp_ns = as_int64(rows[0]["timestamp_ns"])
    if row != ABSENT:
        clients = carray(pointer_at(cycle["order_clients_at"]), (cycle["order_clients_count"], ROW_WORDS), np.uint64)
        sides = carray(pointer_at(cycle["order_sides_at"]), (cycle["order_sides_count"], ROW_WORDS), np.uint64)
        memories = carray(pointer_at(cycle["order_slots_at"]), (cycle["order_slots_count"], ROW_WORDS), np.uint64)
        known = carray(pointer_at(cycle["order_results_at"]), cycle["order_results_count"], WINDOW_RESULT)
        _remember_stored(
            known[decide_row(seq, 1, clients, sides, memories, row)], position, base_seq, timestamp_ns, crc
        )
    results[base] = position
    results[base + 1] = base_seq
    results[base + 2] = timestamp_ns
    results[base + 3] = _UNKNOWN
    results[base + 4] = 0
    results[base + 5] = 0
    results[base + 6] = 0
    store_release(results, base + RESULT_TOKEN, index + 1)
    cycle["position"] = position
    cycle["timestamp_ns"] = timestamp_ns
    return as_int64(size)


@kernel(int64(_cycles, bytes_out))
def stage_cycle(cycles: Array, memory: Bytes) -> int:
    """Make an epoch of what was surveyed, at the beginning of a memory: its size, or PASSES_ON.

    Slots that turn out not to go this way end the cycle of their ring. `ends` and `taken_…` tell what was staged.
    """
    cycle = cycles[0]
    numbers = carray(pointer_at(cycle["numbers_at"]), cycle["numbers_count"], np.int64)
    slots = carray(pointer_at(cycle["slots_at"]), cycle["slots_count"], np.int64)
    collected = carray(pointer_at(cycle["collected_at"]), cycle["collected_count"], np.int64)
    needs = carray(pointer_at(cycle["needs_at"]), cycle["needs_count"], NEED_ROW)
    ends = carray(pointer_at(cycle["ends_at"]), cycle["ends_count"], np.int64)
    at = EPOCH_HEADER
    count = 0
    cycle["first_position"] = numbers[NEXT_POSITION]
    for turn in range(ends.size):
        broker = (cycle["first_ring"] + turn) % ends.size
        index = as_int64(collected[broker * LINE_WORDS + CURSOR])
        while index < ends[broker]:
            size = _stage_slot(cycle, memory, at, broker, index, count)
            if size < 0:
                ends[broker] = index
                break
            base = _slot_word(cycle, broker, index)
            row = _need_of(needs, cycle["needed"], slots[base + _SLOT_TOPIC] & _LOW)
            needs[row]["taken_records"] += (slots[base + _SLOT_SIZE] >> 32) & _LOW
            needs[row]["taken_size"] += size
            at += size
            count += 1
            index += 1
        store_release(collected, broker * LINE_WORDS + CURSOR, index)
    cycle["count"] = count
    cycle["size"] = at
    if count == 0:
        return PASSES_ON
    first, time_ns = cycle["first_position"], numbers[LAST_TIMESTAMP]
    salt, epoch, synced_through = cycle["salt"], cycle["epoch"], cycle["synced_through"]
    return seal_epoch(memory, at - EPOCH_HEADER, count, salt, epoch, synced_through, first, time_ns)


@kernel(void(_cycles))
def settle_cycle(cycles: Array) -> None:
    """The epoch is written: the store's window knows the batches, and the order that their positions are durable."""
    cycle = cycles[0]
    staged = carray(pointer_at(cycle["staged_at"]), cycle["staged_count"], WAL_ROW)
    clients = carray(pointer_at(cycle["store_clients_at"]), (cycle["store_clients_count"], ROW_WORDS), np.uint64)
    sides = carray(pointer_at(cycle["store_sides_at"]), (cycle["store_sides_count"], ROW_WORDS), np.uint64)
    memories = carray(pointer_at(cycle["store_slots_at"]), (cycle["store_slots_count"], ROW_WORDS), np.uint64)
    known = carray(pointer_at(cycle["store_results_at"]), cycle["store_results_count"], WINDOW_RESULT)
    for number in range(cycle["count"]):
        batch = staged[cycle["first_row"] + number]
        client_id, seq = as_int64(batch["client_id"]), as_int64(batch["client_seq"])
        if client_id < 0:
            continue
        row = _new_to_store(cycle, client_id, as_int64(batch["session_epoch"]), seq)
        _remember_stored(
            known[decide_row(seq, 1, clients, sides, memories, row)],
            as_int64(batch["position"]),
            as_int64(batch["base_seq"]),
            as_int64(batch["timestamp_ns"]),
            as_int64(batch["block_crc"]),
        )
    following = cycle["position"] + 1
    counters = carray(pointer_at(cycle["counters_at"]), cycle["counters_count"], np.int64)
    control = carray(pointer_at(cycle["control_at"]), cycle["control_count"], np.int64)
    replica = carray(pointer_at(cycle["replica_at"]), cycle["replica_count"], np.int64)
    store_release(counters, RESERVED, following)
    store_release(control, CONTROL_COMMITTED, following)
    store_release(replica, 0, following)
    store_release(control, CONTROL_DURABLE, following)
