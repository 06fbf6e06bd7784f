"""The commit cycle: turns the waiting batches into one epoch of the log, and publishes it after the write.

It collects, decides, numbers and stages batches before the write and makes them visible after it, for any number of
batches and sources; a single batch is a cycle of one.

Batches wait in two places, complete and validated: a receive buffer, which a publish thread fills from its connections
(`publish_io`) or a local orderer fills with the blocks of its callers (`DRAFT_ROW`), and the rings of brokers
(`arriving`). One call stages an epoch of them if nothing is missing; the commit leader has any executor write it; a
second call publishes the result.

    stage_arrived  runs the next three, or returns the reason why it cannot
    survey_cycle   finds the eligible batches, their end in each ring, and what they need of each topic
    lacks_grants   finds the needs that the caller must reserve first
    stage_cycle    decides each batch by the orderer's window, numbers it, copies it after the epoch header, answers it
    settle_cycle   updates the store's window, makes the rows pending, and the positions committed and durable

Two orderers use it. A *local* orderer stages the batches of its callers, all or nothing, and its window is the store's:
a known or refused batch is answered and not stored. With a sequencer (`is_sequenced`), a batch is eligible if it is
small, its topic accepts it and has a reservation, and, if it has a session, it is new to both windows. The first
ineligible batch ends the cycle for its connection or ring: it and all later ones go through the sequencer. Positions of
a cycle have no entries in the GOI.

All arguments and results are fields of one record, `CYCLE` (`cycle_records`).

INV-CYCLE-SAME: a commit cycle stages the same bytes as the general path would for the same batches. The general path
leads through the sequencer and the applier, or through the lane.
INV-CYCLE-BEHIND: a commit cycle becomes visible, to readers and to deduplication, only after its epoch is written. With
a sequencer, the store's window, the pending rows and all frontiers do not change before.

With a sequencer, a cycle begins only if every reserved position is durable, every collected slot is completed, and no
batch is held, ready or unsettled: so no batch can precede it. The batches of one connection or ring are staged in the
order of arrival, without a hole. A cycle allocates and fills rows while it holds the lock of the store's memory, and
never a row that is being applied or that another commit uses.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from seawall.kernels.admission.client_frontier import admit_client_batch
from seawall.kernels.admission.client_index import find_row
from seawall.kernels.admission.client_window import (
    CHECK_NEW,
    NEXT_EXPECTED,
    ROW_WORDS,
    SIDE_PAGE,
    WINDOW_RESULT,
    decide_row,
    judge_row,
)
from seawall.kernels.admission.frontier import (
    ADMISSION_ROW,
    LAST_TIMESTAMP,
    NEXT_POSITION,
    RUN_DONE,
    STATUS_OK,
    TOPIC_ROW,
    admit_batch,
)
from seawall.kernels.codec.batch_header import (
    BLOCK_CRC_AT,
    CLIENT_ID_AT,
    CLIENT_SEQ_AT,
    HEADER_SIZE,
    RECORD_COUNT_AT,
    SESSION_EPOCH_AT,
    TOPIC_AT,
)
from seawall.kernels.log.cycle_records import (
    CYCLE,
    DRAFT_ROW,
    LACKS_GRANTS,
    LACKS_ROWS,
    LARGE_SIZE,
    NEED_ROW,
    NOT_ELIGIBLE,
    NOT_STAGED,
    PENDING_NUMBERS,
    RECEIVED_ROW,
    UNDECIDED,
)
from seawall.kernels.log.epochs import EPOCH_HEADER, LOG_NUMBERS, WAL_ROW, list_batch, seal_epoch
from seawall.kernels.log.staging import write_header
from seawall.kernels.ordering.applying import PROGRESS_TIME, batch_in_blog
from seawall.kernels.ordering.collecting import CURSOR, LINE_WORDS, PBR_TOKEN, TAIL_CLAIMED, TAIL_WORDS
from seawall.kernels.ordering.goi_frontier import (
    COMPLETION_WORDS,
    CONTROL_COMMITTED,
    CONTROL_DURABLE,
    FLAG_STRONG_ORDER,
    RESULT_TOKEN,
    refusal_of,
)
from seawall.kernels.ordering.holding import HELD, READY_HEAD, READY_TAIL, UNSETTLED_HEAD, UNSETTLED_TAIL
from seawall.kernels.ordering.order_entries import FLOOR, RESERVED
from seawall.kernels.runtime.atomics import load_acquire, store_release
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, kernel, record_array, void
from seawall.kernels.runtime.memory import Array, Bytes, as_int64, copy_bytes, load_i64, load_u32, pointer_at
from seawall.kernels.runtime.rings import SLOT_WORDS
from seawall.kernels.runtime.tables import ABSENT, table_find

_SLOT_SIZE = 1
_SLOT_TOPIC = 2
_SLOT_FLAGS = 3
_LOW = 0xFFFFFFFF
_UNKNOWN = -1

_cycles = record_array(CYCLE)
_cycle = _cycles.dtype
_needs = record_array(NEED_ROW)


@kernel(int64(_cycle))
def _is_idle(cycle: np.void) -> int:
    """1 if no batch can precede a cycle and no checkpoint of the order is due."""
    if cycle["is_sequenced"] == 0:
        return 1
    numbers = carray(pointer_at(cycle["numbers_at"]), cycle["numbers_count"], np.int64)
    control = carray(pointer_at(cycle["control_at"]), cycle["control_count"], np.int64)
    counters = carray(pointer_at(cycle["counters_at"]), cycle["counters_count"], np.int64)
    completion = carray(pointer_at(cycle["completion_at"]), cycle["completion_count"], np.int64)
    collected = carray(pointer_at(cycle["collected_at"]), cycle["collected_count"], np.int64)
    state = carray(pointer_at(cycle["worker_at"]), cycle["worker_count"], np.int64)
    reached = carray(pointer_at(cycle["reached_at"]), cycle["reached_count"], np.int64)
    position = numbers[NEXT_POSITION]
    if counters[RESERVED] != position or control[CONTROL_COMMITTED] != position:
        return 0
    if control[CONTROL_DURABLE] != position or reached[0] != position:
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
    """The index of the first word of a slot, in the array of all rings."""
    entries = cycle["slots_count"] // (cycle["ends_count"] * SLOT_WORDS)
    return as_int64((broker * entries + (index & (entries - 1))) * SLOT_WORDS)


@kernel(int64(_cycle, int64, int64))
def _batch_offset(cycle: np.void, broker: int, base: int) -> int:
    """The offset of the batch of a slot in the BLogs, if it is small, complete, no NOP and not refused; else -1."""
    slots = carray(pointer_at(cycle["slots_at"]), cycle["slots_count"], np.int64)
    blogs = carray(pointer_at(cycle["blogs_at"]), cycle["blogs_count"], np.uint8)
    size, count = slots[base + _SLOT_SIZE] & _LOW, (slots[base + _SLOT_SIZE] >> 32) & _LOW
    topic_id, crc = slots[base + _SLOT_TOPIC] & _LOW, (slots[base + _SLOT_TOPIC] >> 32) & _LOW
    if size >= LARGE_SIZE or (slots[base + _SLOT_FLAGS] >> 32) & _LOW & ~FLAG_STRONG_ORDER != 0:
        return -1
    blog_size = cycle["blogs_count"] // cycle["ends_count"]
    return batch_in_blog(blogs, blog_size, broker, slots[base], size, count, crc, topic_id)


@kernel(int64(_needs, int64, int64))
def _find_need(needs: Array, needed: int, topic_id: int) -> int:
    """The row of a topic among the first `needed`, or -1; searches backwards, since batches of a topic come in runs."""
    for back in range(needed):
        if needs[needed - 1 - back]["topic_id"] == topic_id:
            return needed - 1 - back
    return -1


@kernel(int64(_cycle, _needs, int64, int64, int64))
def _count_need(cycle: np.void, needs: Array, topic_id: int, records: int, size: int) -> int:
    """Add a batch to the needs; returns 1, or 0 if the cycle has no capacity for its bytes or its topic."""
    if cycle["size"] + size > cycle["size_max"]:
        return 0
    row = _find_need(needs, cycle["needed"], topic_id)
    if row < 0:
        if cycle["needed"] == needs.size:
            return 0
        row = as_int64(cycle["needed"])
        cycle["needed"] += 1
        needs[row]["topic_id"] = topic_id
        needs[row]["records"] = 0
        needs[row]["size"] = 0
        needs[row]["records_left"] = 0
        needs[row]["bytes_left"] = 0
        needs[row]["taken_records"] = 0
        needs[row]["taken_size"] = 0
        needs[row]["is_reserved"] = 0
    needs[row]["records"] += records
    needs[row]["size"] += size
    cycle["size"] += size
    return 1


@kernel(void(_cycle))
def _encode_drafts(cycle: np.void) -> None:
    """Encode the drafts as batches of the receive buffer, each as a connection of its own."""
    buffer = carray(pointer_at(cycle["buffer_at"]), cycle["buffer_count"], np.uint8)
    received = carray(pointer_at(cycle["received_at"]), cycle["received_count"], RECEIVED_ROW)
    drafts = carray(pointer_at(cycle["drafts_at"]), cycle["drafts_count"], DRAFT_ROW)
    at = 0
    for number in range(cycle["received"]):
        draft, row = drafts[number], received[number]
        start = at + HEADER_SIZE
        end = start + as_int64(draft["length"])
        write_header(
            *(buffer, at, buffer, start, end),
            *(draft["record_count"], draft["topic_id"], draft["client_id"], draft["client_seq"]),
            *(draft["session_epoch"], draft["raw_length"], draft["choices"]),
        )
        row["connection"] = number
        row["at"] = at
        row["size"] = end - at
        row["is_strong"] = 0
        at = end


@kernel(int64(_cycles))
def survey_cycle(cycles: Array) -> int:
    """Find the eligible batches; returns how many, and fills `ends` and `needs`.

    Rows of `needs` from earlier cycles, up to `needed`, keep their grants.
    """
    cycle = cycles[0]
    cycle["size"] = 0
    cycle["surveyed"] = 0
    if _is_idle(cycle) == 0:
        return 0
    slots = carray(pointer_at(cycle["slots_at"]), cycle["slots_count"], np.int64)
    tails = carray(pointer_at(cycle["tails_at"]), cycle["tails_count"], np.int64)
    collected = carray(pointer_at(cycle["collected_at"]), cycle["collected_count"], np.int64)
    needs = carray(pointer_at(cycle["needs_at"]), cycle["needs_count"], NEED_ROW)
    ends = carray(pointer_at(cycle["ends_at"]), cycle["ends_count"], np.int64)
    received = carray(pointer_at(cycle["received_at"]), cycle["received_count"], RECEIVED_ROW)
    buffer = carray(pointer_at(cycle["buffer_at"]), cycle["buffer_count"], np.uint8)
    pending = carray(pointer_at(cycle["pending_at"]), cycle["pending_count"], PENDING_NUMBERS)
    for row in range(cycle["needed"]):
        needs[row]["records"] = 0
        needs[row]["size"] = 0
    count_max = cycle["staged_count"] - pending[0]["next"]
    total = 0
    for number in range(cycle["received"]):
        at, size = as_int64(received[number]["at"]), as_int64(received[number]["size"])
        # A batch that does not fit stays in the receive buffer: staging stops there.
        topic_id, records = load_u32(buffer, at + TOPIC_AT), load_u32(buffer, at + RECORD_COUNT_AT)
        if total >= count_max or _count_need(cycle, needs, topic_id, records, size) == 0:
            break
        total += 1
    cycle["surveyed"] = total
    for step in range(ends.size):
        broker = (cycle["first_ring"] + step) % ends.size
        index = as_int64(collected[broker * LINE_WORDS + CURSOR])
        claimed = as_int64(load_acquire(tails, broker * TAIL_WORDS + TAIL_CLAIMED))
        while index < claimed and total < count_max:
            base = _slot_word(cycle, broker, index)
            if load_acquire(slots, base + PBR_TOKEN) - index != 1 or _batch_offset(cycle, broker, base) < 0:
                break
            size, topic_id = slots[base + _SLOT_SIZE] & _LOW, slots[base + _SLOT_TOPIC] & _LOW
            records = (slots[base + _SLOT_SIZE] >> 32) & _LOW
            if _count_need(cycle, needs, topic_id, records, size) == 0:
                break
            total += 1
            index += 1
        ends[broker] = index
    return total


@kernel(int64(_cycles))
def lacks_grants(cycles: Array) -> int:
    """The number of surveyed topics without a grant or without space in the log; marks the granted ones."""
    cycle = cycles[0]
    needs = carray(pointer_at(cycle["needs_at"]), cycle["needs_count"], NEED_ROW)
    log = carray(pointer_at(cycle["log_at"]), cycle["log_count"], LOG_NUMBERS)
    end_at = log[0]["next_at"] + EPOCH_HEADER + cycle["size"] + cycle["headroom"]
    fits = end_at <= log[0]["limit_at"]
    lacking = 0
    for row in range(cycle["needed"]):
        need = needs[row]
        is_granted = (
            need["taken_records"] + need["records"] <= need["records_left"]
            and need["taken_size"] + need["size"] <= need["bytes_left"]
            and cycle["wall_ns"] < need["until_ns"]
        )
        need["is_reserved"] = 1 if fits and is_granted else 0
        if need["records"] > 0 and need["is_reserved"] == 0:
            lacking += 1
    return lacking


@kernel(int64(_cycle, int64, int64, int64, int64))
def _find_new_in_order(cycle: np.void, client_id: int, epoch: int, seq: int, is_strong: int) -> int:
    """The client's row in the orderer's window if its batch is new there and next in order; else ABSENT."""
    table = carray(pointer_at(cycle["order_table_at"]), cycle["order_table_count"], np.uint32)
    clients = carray(pointer_at(cycle["order_clients_at"]), (cycle["order_clients_count"], ROW_WORDS), np.uint64)
    sides = carray(pointer_at(cycle["order_sides_at"]), (cycle["order_sides_count"], ROW_WORDS), np.uint64)
    row = find_row(table, clients, np.uint64(client_id))
    if row == ABSENT or judge_row(seq, epoch, clients, sides, row) != CHECK_NEW or sides[row, SIDE_PAGE] != 0:
        return ABSENT
    return row if is_strong == 0 or as_int64(clients[row, NEXT_EXPECTED]) == seq else ABSENT


@kernel(int64(_cycle, int64, int64, int64))
def _find_new_in_store(cycle: np.void, client_id: int, epoch: int, seq: int) -> int:
    """The client's row in the store's window if its batch is new there; else ABSENT."""
    table = carray(pointer_at(cycle["store_table_at"]), cycle["store_table_count"], np.uint32)
    clients = carray(pointer_at(cycle["store_clients_at"]), (cycle["store_clients_count"], ROW_WORDS), np.uint64)
    sides = carray(pointer_at(cycle["store_sides_at"]), (cycle["store_sides_count"], ROW_WORDS), np.uint64)
    row = find_row(table, clients, np.uint64(client_id))
    return row if row != ABSENT and judge_row(seq, epoch, clients, sides, row) == CHECK_NEW else ABSENT


@kernel(void(record_array(WINDOW_RESULT).dtype, int64, int64, int64, int64))
def _record_stored(result: np.void, position: int, base_seq: int, timestamp_ns: int, crc: int) -> None:
    """Fill the result of a stored batch, for a window."""
    result["position"] = position
    result["base_seq"] = base_seq
    result["timestamp_ns"] = timestamp_ns
    result["block_crc"] = crc
    result["reason"] = 0
    result["status"] = 0
    result["known"] = 1


@kernel(int64(_cycle, bytes_out, int64, int64, int64))
def _admit(cycle: np.void, memory: Bytes, at: int, client_id: int, row: int) -> int:
    """Admit the batch at `at`, through the window if it has a session; returns the code of `admit_batch`.

    With a sequencer the caller has found the session, at `row`: the orderer's window records the stored batch there.
    """
    keys = carray(pointer_at(cycle["keys_at"]), cycle["keys_count"], np.uint64)
    values = carray(pointer_at(cycle["values_at"]), cycle["values_count"], np.int64)
    used = carray(pointer_at(cycle["used_at"]), cycle["used_count"], np.uint8)
    topics = carray(pointer_at(cycle["topics_at"]), cycle["topics_count"], TOPIC_ROW)
    numbers = carray(pointer_at(cycle["numbers_at"]), cycle["numbers_count"], np.int64)
    frontier = (keys, values, used, topics, numbers)
    rows = carray(pointer_at(cycle["admitted_at"]), cycle["admitted_count"], ADMISSION_ROW)
    clients = carray(pointer_at(cycle["order_clients_at"]), (cycle["order_clients_count"], ROW_WORDS), np.uint64)
    sides = carray(pointer_at(cycle["order_sides_at"]), (cycle["order_sides_count"], ROW_WORDS), np.uint64)
    memories = carray(pointer_at(cycle["order_slots_at"]), (cycle["order_slots_count"], ROW_WORDS), np.uint64)
    known = carray(pointer_at(cycle["order_results_at"]), cycle["order_results_count"], WINDOW_RESULT)
    term, wall_ns = as_int64(cycle["term"]), as_int64(cycle["wall_ns"])
    if client_id >= 0 and cycle["is_sequenced"] == 0:
        table = carray(pointer_at(cycle["order_table_at"]), cycle["order_table_count"], np.uint32)
        answers = carray(pointer_at(cycle["answers_at"]), cycle["answers_count"], WINDOW_RESULT)
        window = (table, clients, sides, memories, known)
        return admit_client_batch(memory, at, term, wall_ns, frontier, window, answers, rows, 0)
    code = admit_batch(memory, at, term, wall_ns, frontier, rows, 0)
    if row != ABSENT and code == RUN_DONE and rows[0]["status"] == STATUS_OK:
        seq, crc = load_i64(memory, at + CLIENT_SEQ_AT), load_u32(memory, at + BLOCK_CRC_AT)
        numbered = (as_int64(rows[0]["position"]), as_int64(rows[0]["base_seq"]), as_int64(rows[0]["timestamp_ns"]))
        _record_stored(known[decide_row(seq, 1, clients, sides, memories, row)], *numbered, crc)
    return code


@kernel(int64(_cycle, bytes_out, int64, int64, bytes_in, int64, int64, int64))
def _stage_batch(
    cycle: np.void, memory: Bytes, at: int, count: int, source: Bytes, source_at: int, size: int, flags: int
) -> int:
    """Decide, number and stage one batch after `count` others; returns its size, or NOT_STAGED.

    If `is_decided` is set, the first row of `admitted` has the outcome.
    """
    keys = carray(pointer_at(cycle["keys_at"]), cycle["keys_count"], np.uint64)
    values = carray(pointer_at(cycle["values_at"]), cycle["values_count"], np.int64)
    used = carray(pointer_at(cycle["used_at"]), cycle["used_count"], np.uint8)
    topics = carray(pointer_at(cycle["topics_at"]), cycle["topics_count"], TOPIC_ROW)
    rows = carray(pointer_at(cycle["admitted_at"]), cycle["admitted_count"], ADMISSION_ROW)
    staged = carray(pointer_at(cycle["staged_at"]), cycle["staged_count"], WAL_ROW)
    needs = carray(pointer_at(cycle["needs_at"]), cycle["needs_count"], NEED_ROW)
    cycle["is_decided"] = 0
    topic_id = load_u32(source, source_at + TOPIC_AT)
    need = _find_need(needs, cycle["needed"], topic_id)
    if need < 0 or needs[need]["is_reserved"] == 0:
        return NOT_STAGED
    is_sequenced = cycle["is_sequenced"] != 0
    topic = table_find(keys, used, np.uint64(topic_id))
    if topic == ABSENT or (is_sequenced and refusal_of(as_int64(topics[values[topic]]["flags"]), flags) != 0):
        return NOT_STAGED
    client_id, seq = load_i64(source, source_at + CLIENT_ID_AT), load_i64(source, source_at + CLIENT_SEQ_AT)
    row = ABSENT
    if client_id >= 0 and is_sequenced:
        epoch = load_u32(source, source_at + SESSION_EPOCH_AT)
        row = _find_new_in_order(cycle, client_id, epoch, seq, flags & FLAG_STRONG_ORDER)
        if row == ABSENT or _find_new_in_store(cycle, client_id, epoch, seq) == ABSENT:
            return NOT_STAGED
    copy_bytes(memory, at, source, source_at, size)
    if _admit(cycle, memory, at, client_id, row) != RUN_DONE:
        return NOT_STAGED
    cycle["is_decided"] = 1
    if rows[0]["status"] != STATUS_OK:
        return NOT_STAGED
    log = carray(pointer_at(cycle["log_at"]), cycle["log_count"], LOG_NUMBERS)
    list_batch(memory, at, log[0]["next_at"] + at, size, staged, cycle["first_row"] + count)
    needs[need]["taken_records"] += load_u32(source, source_at + RECORD_COUNT_AT)
    needs[need]["taken_size"] += size
    cycle["is_durable"] |= needs[need]["is_durable"]
    cycle["position"] = rows[0]["position"]
    cycle["timestamp_ns"] = rows[0]["timestamp_ns"]
    return size


@kernel(int64(_cycle, bytes_out, int64, int64))
def _stage_received(cycle: np.void, memory: Bytes, at: int, count: int) -> int:
    """Stage the receive buffer after `count` batches that end at `at`; returns how many it staged."""
    received = carray(pointer_at(cycle["received_at"]), cycle["received_count"], RECEIVED_ROW)
    rows = carray(pointer_at(cycle["admitted_at"]), cycle["admitted_count"], ADMISSION_ROW)
    buffer = carray(pointer_at(cycle["buffer_at"]), cycle["buffer_count"], np.uint8)
    first, stopped = count, -1
    for number in range(cycle["received"]):
        batch = received[number]
        batch["is_staged"] = 0
        batch["status"] = UNDECIDED
        if as_int64(batch["connection"]) == stopped or number >= cycle["surveyed"]:
            continue
        flags = FLAG_STRONG_ORDER if batch["is_strong"] != 0 else 0
        source_at, size = as_int64(batch["at"]), as_int64(batch["size"])
        size = _stage_batch(cycle, memory, at, count, buffer, source_at, size, flags)
        if cycle["is_decided"] != 0:
            batch["status"] = as_int64(rows[0]["status"])
            batch["reason"] = as_int64(rows[0]["reason"])
            batch["position"] = as_int64(rows[0]["position"])
            batch["base_seq"] = as_int64(rows[0]["base_seq"])
            batch["base_offset"] = as_int64(rows[0]["base_offset"])
            batch["timestamp_ns"] = as_int64(rows[0]["timestamp_ns"])
        if size < 0:
            stopped = as_int64(batch["connection"])
            continue
        batch["is_staged"] = 1
        at += size
        count += 1
    cycle["size"] = at
    return count - first


@kernel(int64(_cycle, bytes_out, int64, int64, int64, int64))
def _stage_slot(cycle: np.void, memory: Bytes, at: int, broker: int, index: int, count: int) -> int:
    """Stage the batch of one slot after `count` others and write its result; returns its size, or NOT_STAGED."""
    slots = carray(pointer_at(cycle["slots_at"]), cycle["slots_count"], np.int64)
    blogs = carray(pointer_at(cycle["blogs_at"]), cycle["blogs_count"], np.uint8)
    results = carray(pointer_at(cycle["results_at"]), cycle["results_count"], np.int64)
    rows = carray(pointer_at(cycle["admitted_at"]), cycle["admitted_count"], ADMISSION_ROW)
    base = _slot_word(cycle, broker, index)
    flags, size = (slots[base + _SLOT_FLAGS] >> 32) & _LOW, slots[base + _SLOT_SIZE] & _LOW
    size = _stage_batch(cycle, memory, at, count, blogs, _batch_offset(cycle, broker, base), size, flags)
    if size < 0:
        return NOT_STAGED
    results[base] = rows[0]["position"]
    results[base + 1] = rows[0]["base_seq"]
    results[base + 2] = rows[0]["timestamp_ns"]
    results[base + 3] = _UNKNOWN
    results[base + 4] = 0
    results[base + 5] = 0
    results[base + 6] = 0
    store_release(results, base + RESULT_TOKEN, index + 1)
    return size


@kernel(int64(_cycles, bytes_out))
def stage_cycle(cycles: Array, memory: Bytes) -> int:
    """Build an epoch of the surveyed batches at the start of `memory`; returns its size, or NOT_STAGED.

    Takes only topics that `lacks_grants` has marked. A batch that turns out not to be eligible ends the cycle for its
    connection or ring. `ends`, `is_staged` and `taken_…` record what was staged.
    """
    cycle = cycles[0]
    pending = carray(pointer_at(cycle["pending_at"]), cycle["pending_count"], PENDING_NUMBERS)
    cycle["first_row"] = pending[0]["next"]
    cycle["is_durable"] = 0
    numbers = carray(pointer_at(cycle["numbers_at"]), cycle["numbers_count"], np.int64)
    collected = carray(pointer_at(cycle["collected_at"]), cycle["collected_count"], np.int64)
    ends = carray(pointer_at(cycle["ends_at"]), cycle["ends_count"], np.int64)
    cycle["first_position"] = numbers[NEXT_POSITION]
    count = _stage_received(cycle, memory, EPOCH_HEADER, 0)
    cycle["of_rings"] = -count
    at = as_int64(cycle["size"])
    for step in range(ends.size):
        broker = (cycle["first_ring"] + step) % ends.size
        index = as_int64(collected[broker * LINE_WORDS + CURSOR])
        while index < ends[broker]:
            size = _stage_slot(cycle, memory, at, broker, index, count)
            if size < 0:
                ends[broker] = index
                break
            at += size
            count += 1
            index += 1
        store_release(collected, broker * LINE_WORDS + CURSOR, index)
    cycle["count"] = count
    cycle["of_rings"] += count
    cycle["size"] = at
    if count == 0:
        return NOT_STAGED
    pending[0]["next"] += count
    pending[0]["in_flight"] += 1
    first, time_ns = cycle["first_position"], numbers[LAST_TIMESTAMP]
    log = carray(pointer_at(cycle["log_at"]), cycle["log_count"], LOG_NUMBERS)
    salt, epoch, synced_through = log[0]["salt"], log[0]["next_epoch"], log[0]["synced_through"]
    return seal_epoch(memory, at - EPOCH_HEADER, count, salt, epoch, synced_through, first, time_ns)


@kernel(int64(_cycles, bytes_out))
def stage_arrived(cycles: Array, memory: Bytes) -> int:
    """Survey the waiting batches and stage them if nothing is missing; returns the epoch's size, or minus the reason.

    With a sequencer and `is_granted`, batches without a grant are left out. A local orderer stages its drafts, all or
    nothing; returns 0 if every one of them is known or refused.
    """
    cycle = cycles[0]
    pending = carray(pointer_at(cycle["pending_at"]), cycle["pending_count"], PENDING_NUMBERS)
    if cycle["staged_count"] - pending[0]["next"] < cycle["received"]:
        return -LACKS_ROWS
    if cycle["is_sequenced"] == 0:
        _encode_drafts(cycle)
    total = survey_cycle(cycles)
    if total == 0 or (cycle["is_sequenced"] == 0 and total < cycle["received"]):
        return -NOT_ELIGIBLE
    if lacks_grants(cycles) != 0 and (cycle["is_granted"] == 0 or cycle["is_sequenced"] == 0):
        return -LACKS_GRANTS
    cycle["is_granted"] = 0
    size = stage_cycle(cycles, memory)
    if size > 0:
        return size
    return -NOT_ELIGIBLE if cycle["is_sequenced"] != 0 else 0


@kernel(void(_cycle, int64, int64))
def _settle_order(cycle: np.void, first_row: int, count: int) -> None:
    """Update the store's window and the frontiers of the order, with a sequencer."""
    staged = carray(pointer_at(cycle["staged_at"]), cycle["staged_count"], WAL_ROW)
    clients = carray(pointer_at(cycle["store_clients_at"]), (cycle["store_clients_count"], ROW_WORDS), np.uint64)
    sides = carray(pointer_at(cycle["store_sides_at"]), (cycle["store_sides_count"], ROW_WORDS), np.uint64)
    memories = carray(pointer_at(cycle["store_slots_at"]), (cycle["store_slots_count"], ROW_WORDS), np.uint64)
    known = carray(pointer_at(cycle["store_results_at"]), cycle["store_results_count"], WINDOW_RESULT)
    for number in range(count):
        batch = staged[first_row + number]
        client_id, seq = as_int64(batch["client_id"]), as_int64(batch["client_seq"])
        if client_id < 0:
            continue
        row = _find_new_in_store(cycle, client_id, as_int64(batch["session_epoch"]), seq)
        _record_stored(
            known[decide_row(seq, 1, clients, sides, memories, row)],
            as_int64(batch["position"]),
            as_int64(batch["base_seq"]),
            as_int64(batch["timestamp_ns"]),
            as_int64(batch["block_crc"]),
        )
    last = staged[first_row + count - 1]
    next_position = as_int64(last["position"]) + 1
    reached = carray(pointer_at(cycle["reached_at"]), cycle["reached_count"], np.int64)
    applier_progress = carray(pointer_at(cycle["applier_progress_at"]), cycle["applier_progress_count"], np.int64)
    reached[0] = next_position
    applier_progress[PROGRESS_TIME] = max(applier_progress[PROGRESS_TIME], as_int64(last["timestamp_ns"]))
    counters = carray(pointer_at(cycle["counters_at"]), cycle["counters_count"], np.int64)
    control = carray(pointer_at(cycle["control_at"]), cycle["control_count"], np.int64)
    replica = carray(pointer_at(cycle["replica_at"]), cycle["replica_count"], np.int64)
    store_release(counters, RESERVED, next_position)
    store_release(control, CONTROL_COMMITTED, next_position)
    store_release(replica, 0, next_position)
    store_release(control, CONTROL_DURABLE, next_position)


@kernel(void(_cycles, int64, int64))
def settle_cycle(cycles: Array, first_row: int, count: int) -> None:
    """Publish a written epoch: make its rows pending and advance the frontiers.

    If earlier rows were applied in the meantime, the rows of the cycle move down.
    """
    cycle = cycles[0]
    if cycle["is_sequenced"] != 0:
        _settle_order(cycle, first_row, count)
    staged = carray(pointer_at(cycle["staged_at"]), cycle["staged_count"], WAL_ROW)
    pending = carray(pointer_at(cycle["pending_at"]), cycle["pending_count"], PENDING_NUMBERS)
    first_free = as_int64(pending[0]["count"])
    if first_free != first_row:
        for number in range(count):
            staged[first_free + number] = staged[first_row + number]
    pending[0]["count"] = first_free + count
    pending[0]["in_flight"] -= 1
    if pending[0]["in_flight"] == 0:
        pending[0]["next"] = first_free + count


@kernel(void(_cycles, int64))
def advance_log(cycles: Array, size: int) -> None:
    """Advance the end of the log past the written epoch of `size` bytes."""
    cycle = cycles[0]
    numbers = carray(pointer_at(cycle["numbers_at"]), cycle["numbers_count"], np.int64)
    log = carray(pointer_at(cycle["log_at"]), cycle["log_count"], LOG_NUMBERS)
    end = log[0]
    end["at"] += size
    end["epoch"] += 1
    end["next_at"] = end["at"]
    end["next_epoch"] = end["epoch"] + 1
    end["position"] = cycle["position"] + 1
    end["timestamp_ns"] = numbers[LAST_TIMESTAMP]
    if cycle["is_durable"] != 0:
        end["synced_through"] = end["at"]
