"""The commit cycle: collect, decide, number and stage before the write; publish behind it. The same at every count of
batches and sources; one batch is a cycle of one.

Batches lie at two places, judged and whole: a receive buffer, which a publish thread fills from its connections
(`publish_io`) or a local orderer with the blocks of its callers (`DRAFT_ROW`), and the rings of brokers (`arriving`).
One call looks at what is there and makes an epoch of it, if nothing is lacking; whoever commits has that written, by
any executor; and one publishes the result.

    stage_arrived  the next three, or a reason why that cannot be
    survey_cycle   batches that are eligible, up to where in each ring, and what they need of each topic
    lacks_grants   what of that the caller has to reserve first
    stage_cycle    each is decided by the window of the orderer, numbered, copied behind the epoch header, and answered
    settle_cycle   the store's window is updated, the rows are pending, and the positions are committed and durable

Two orderers use it. A *local* one stages what its callers bring, all or nothing, and its window is the store's: what
is known or refused is answered and not stored. Where a sequencer orders (`is_sequenced`), a batch is eligible if it is
small, its topic accepts it and has a reservation, and it is new to both windows where it has a session. The first that
is not ends the cycle for its connection or its ring: it goes through the sequencer, with everything behind it.
Positions of a cycle have no entries in the GOI.

All arguments and results are fields of one record, `CYCLE` (`cycle_records`).

INV-CYCLE-SAME: a commit cycle stages the same bytes as the general path would for the same batches. That is the path by
the sequencer and the follower, or the one by the lane.
INV-CYCLE-BEHIND: a commit cycle becomes visible, to readers and to deduplication, only after its epoch is written. The
window of a store behind a sequencer, the pending rows and all frontiers do not change before.

A cycle of a sequencer begins only where every reserved position is durable, every collected slot is completed, and
nothing is held, waiting or unsettled: so nothing can come before it. Of one connection and of one ring, batches are
staged in the order in which they came, without a hole. A row is taken and filled while the store's memory is held, and
never one that is being applied or that another commit has.
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
    PASSES_ON,
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
def _is_at_rest(cycle: np.void) -> int:
    """Whether nothing can come before a cycle, and no checkpoint of the order is due."""
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
    """The first word of a slot among all rings."""
    entries = cycle["slots_count"] // (cycle["ends_count"] * SLOT_WORDS)
    return as_int64((broker * entries + (index & (entries - 1))) * SLOT_WORDS)


@kernel(int64(_cycle, int64, int64))
def _source_of(cycle: np.void, broker: int, base: int) -> int:
    """Where the batch of a slot lies, if that is small, whole, no NOP and not refused; or -1."""
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


@kernel(int64(_cycle, _needs, int64, int64, int64))
def _count_need(cycle: np.void, needs: Array, topic_id: int, records: int, size: int) -> int:
    """Count a batch in: 1, or 0 if the cycle takes no more bytes or topics."""
    if cycle["size"] + size > cycle["size_max"]:
        return 0
    row = _need_of(needs, cycle["needed"], topic_id)
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
def _put_drafts(cycle: np.void) -> None:
    """Make batches of the drafts, in the receive buffer. Each is a connection of its own."""
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
    """Find what is eligible now: how many batches, with `ends` and `needs`; 0 if nothing is.

    Rows of `needs` that are there from earlier cycles, up to `needed`, keep what is granted.
    """
    cycle = cycles[0]
    cycle["size"] = 0
    cycle["surveyed"] = 0
    if _is_at_rest(cycle) == 0:
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
        # One that does not fit stays in the receive buffer: staging stops there.
        topic_id, records = load_u32(buffer, at + TOPIC_AT), load_u32(buffer, at + RECORD_COUNT_AT)
        if total >= count_max or _count_need(cycle, needs, topic_id, records, size) == 0:
            break
        total += 1
    cycle["surveyed"] = total
    for turn in range(ends.size):
        broker = (cycle["first_ring"] + turn) % ends.size
        index = as_int64(collected[broker * LINE_WORDS + CURSOR])
        claimed = as_int64(load_acquire(tails, broker * TAIL_WORDS + TAIL_CLAIMED))
        while index < claimed and total < count_max:
            base = _slot_word(cycle, broker, index)
            if load_acquire(slots, base + PBR_TOKEN) - index != 1 or _source_of(cycle, broker, base) < 0:
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
    """Whether something of what was surveyed is not granted: space in the log, or what a topic needs. Marks what is."""
    cycle = cycles[0]
    needs = carray(pointer_at(cycle["needs_at"]), cycle["needs_count"], NEED_ROW)
    log = carray(pointer_at(cycle["log_at"]), cycle["log_count"], LOG_NUMBERS)
    behind = log[0]["next_at"] + EPOCH_HEADER + cycle["size"] + cycle["headroom"]
    fits = behind <= log[0]["limit_at"]
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
def _new_to_order(cycle: np.void, client_id: int, epoch: int, seq: int, is_strong: int) -> int:
    """The row of a client, in the orderer's window, to which its batch is new and the next in order; else ABSENT."""
    places = carray(pointer_at(cycle["order_places_at"]), cycle["order_places_count"], np.uint32)
    clients = carray(pointer_at(cycle["order_clients_at"]), (cycle["order_clients_count"], ROW_WORDS), np.uint64)
    sides = carray(pointer_at(cycle["order_sides_at"]), (cycle["order_sides_count"], ROW_WORDS), np.uint64)
    row = find_row(places, clients, np.uint64(client_id))
    if row == ABSENT or judge_row(seq, epoch, clients, sides, row) != CHECK_NEW or sides[row, SIDE_PAGE] != 0:
        return ABSENT
    return row if is_strong == 0 or as_int64(clients[row, NEXT_EXPECTED]) == seq else ABSENT


@kernel(int64(_cycle, int64, int64, int64))
def _new_to_store(cycle: np.void, client_id: int, epoch: int, seq: int) -> int:
    """The row of a client, in the store's window, to which its batch is new; else ABSENT."""
    places = carray(pointer_at(cycle["store_places_at"]), cycle["store_places_count"], np.uint32)
    clients = carray(pointer_at(cycle["store_clients_at"]), (cycle["store_clients_count"], ROW_WORDS), np.uint64)
    sides = carray(pointer_at(cycle["store_sides_at"]), (cycle["store_sides_count"], ROW_WORDS), np.uint64)
    row = find_row(places, clients, np.uint64(client_id))
    return row if row != ABSENT and judge_row(seq, epoch, clients, sides, row) == CHECK_NEW else ABSENT


@kernel(void(record_array(WINDOW_RESULT).dtype, int64, int64, int64, int64))
def _remember_stored(result: np.void, position: int, base_seq: int, timestamp_ns: int, crc: int) -> None:
    """The result that a window keeps of a stored batch."""
    result["position"] = position
    result["base_seq"] = base_seq
    result["timestamp_ns"] = timestamp_ns
    result["block_crc"] = crc
    result["reason"] = 0
    result["status"] = 0
    result["known"] = 1


@kernel(int64(_cycle, bytes_out, int64, int64, int64))
def _admit(cycle: np.void, memory: Bytes, at: int, client_id: int, row: int) -> int:
    """Number the batch at `at`, behind the window of a local orderer if it has a session: what `admit_batch` says.

    For a sequencer its session is found already, at `row`: the window of the orderer remembers what is stored.
    """
    keys = carray(pointer_at(cycle["keys_at"]), cycle["keys_count"], np.uint64)
    values = carray(pointer_at(cycle["values_at"]), cycle["values_count"], np.int64)
    used = carray(pointer_at(cycle["used_at"]), cycle["used_count"], np.uint8)
    topics = carray(pointer_at(cycle["topics_at"]), cycle["topics_count"], TOPIC_ROW)
    numbers = carray(pointer_at(cycle["numbers_at"]), cycle["numbers_count"], np.int64)
    rows = carray(pointer_at(cycle["admitted_at"]), cycle["admitted_count"], ADMISSION_ROW)
    clients = carray(pointer_at(cycle["order_clients_at"]), (cycle["order_clients_count"], ROW_WORDS), np.uint64)
    sides = carray(pointer_at(cycle["order_sides_at"]), (cycle["order_sides_count"], ROW_WORDS), np.uint64)
    memories = carray(pointer_at(cycle["order_slots_at"]), (cycle["order_slots_count"], ROW_WORDS), np.uint64)
    known = carray(pointer_at(cycle["order_results_at"]), cycle["order_results_count"], WINDOW_RESULT)
    term, wall_ns = as_int64(cycle["term"]), as_int64(cycle["wall_ns"])
    if client_id >= 0 and cycle["is_sequenced"] == 0:
        places = carray(pointer_at(cycle["order_places_at"]), cycle["order_places_count"], np.uint32)
        answers = carray(pointer_at(cycle["answers_at"]), cycle["answers_count"], WINDOW_RESULT)
        return admit_client_batch(
            *(memory, at, term, wall_ns, keys, values, used, topics, numbers),
            *(places, clients, sides, memories, known, answers, rows, 0),
        )
    code = admit_batch(memory, at, term, wall_ns, keys, values, used, topics, numbers, rows, 0)
    if row != ABSENT and code == RUN_DONE and rows[0]["status"] == STATUS_OK:
        seq, crc = load_i64(memory, at + CLIENT_SEQ_AT), load_u32(memory, at + BLOCK_CRC_AT)
        numbered = (as_int64(rows[0]["position"]), as_int64(rows[0]["base_seq"]), as_int64(rows[0]["timestamp_ns"]))
        _remember_stored(known[decide_row(seq, 1, clients, sides, memories, row)], *numbered, crc)
    return code


@kernel(int64(_cycle, bytes_out, int64, int64, bytes_in, int64, int64, int64))
def _stage_batch(
    cycle: np.void, memory: Bytes, at: int, count: int, source: Bytes, source_at: int, size: int, flags: int
) -> int:
    """Decide and number one batch, and stage it behind `count` others: its size, or PASSES_ON.

    If it `is_decided`, the first row of `admitted` says how.
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
    need = _need_of(needs, cycle["needed"], topic_id)
    if need < 0 or needs[need]["is_reserved"] == 0:
        return PASSES_ON
    is_sequenced = cycle["is_sequenced"] != 0
    topic = table_find(keys, used, np.uint64(topic_id))
    if topic == ABSENT or (is_sequenced and refusal_of(as_int64(topics[values[topic]]["flags"]), flags) != 0):
        return PASSES_ON
    client_id, seq = load_i64(source, source_at + CLIENT_ID_AT), load_i64(source, source_at + CLIENT_SEQ_AT)
    row = ABSENT
    if client_id >= 0 and is_sequenced:
        epoch = load_u32(source, source_at + SESSION_EPOCH_AT)
        row = _new_to_order(cycle, client_id, epoch, seq, flags & FLAG_STRONG_ORDER)
        if row == ABSENT or _new_to_store(cycle, client_id, epoch, seq) == ABSENT:
            return PASSES_ON
    copy_bytes(memory, at, source, source_at, size)
    if _admit(cycle, memory, at, client_id, row) != RUN_DONE:
        return PASSES_ON
    cycle["is_decided"] = 1
    if rows[0]["status"] != STATUS_OK:
        return PASSES_ON
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
    """Stage what the receive buffer has, behind so many batches that end at `at`: how many it staged."""
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
    """Stage the batch of one slot behind `count` others, and write its result: its size, or PASSES_ON."""
    slots = carray(pointer_at(cycle["slots_at"]), cycle["slots_count"], np.int64)
    blogs = carray(pointer_at(cycle["blogs_at"]), cycle["blogs_count"], np.uint8)
    results = carray(pointer_at(cycle["results_at"]), cycle["results_count"], np.int64)
    rows = carray(pointer_at(cycle["admitted_at"]), cycle["admitted_count"], ADMISSION_ROW)
    base = _slot_word(cycle, broker, index)
    flags, size = (slots[base + _SLOT_FLAGS] >> 32) & _LOW, slots[base + _SLOT_SIZE] & _LOW
    size = _stage_batch(cycle, memory, at, count, blogs, _source_of(cycle, broker, base), size, flags)
    if size < 0:
        return PASSES_ON
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
    """Make an epoch of what was surveyed, at the beginning of a memory: its size, or PASSES_ON.

    Only what `lacks_grants` has marked is. A batch that turns out not to be eligible ends the cycle for its connection
    or ring. `ends`, `is_staged` and `taken_…` say what was staged.
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
    for turn in range(ends.size):
        broker = (cycle["first_ring"] + turn) % ends.size
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
        return PASSES_ON
    pending[0]["next"] += count
    pending[0]["under_way"] += 1
    first, time_ns = cycle["first_position"], numbers[LAST_TIMESTAMP]
    log = carray(pointer_at(cycle["log_at"]), cycle["log_count"], LOG_NUMBERS)
    salt, epoch, synced_through = log[0]["salt"], log[0]["next_epoch"], log[0]["synced_through"]
    return seal_epoch(memory, at - EPOCH_HEADER, count, salt, epoch, synced_through, first, time_ns)


@kernel(int64(_cycles, bytes_out))
def stage_arrived(cycles: Array, memory: Bytes) -> int:
    """Survey what has arrived, and stage it, if nothing is lacking: the size of the epoch, or minus the reason.

    What a local orderer stages are drafts.

    With `is_granted` what is not granted is left out, where a sequencer orders. A local orderer stages all or nothing;
    0 if everything was known before, or is refused.
    """
    cycle = cycles[0]
    pending = carray(pointer_at(cycle["pending_at"]), cycle["pending_count"], PENDING_NUMBERS)
    if cycle["staged_count"] - pending[0]["next"] < cycle["received"]:
        return -LACKS_ROWS
    if cycle["is_sequenced"] == 0:
        _put_drafts(cycle)
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
    """The store's window, and how far the order has come, behind a sequencer."""
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
        row = _new_to_store(cycle, client_id, as_int64(batch["session_epoch"]), seq)
        _remember_stored(
            known[decide_row(seq, 1, clients, sides, memories, row)],
            as_int64(batch["position"]),
            as_int64(batch["base_seq"]),
            as_int64(batch["timestamp_ns"]),
            as_int64(batch["block_crc"]),
        )
    last = staged[first_row + count - 1]
    behind = as_int64(last["position"]) + 1
    reached = carray(pointer_at(cycle["reached_at"]), cycle["reached_count"], np.int64)
    following = carray(pointer_at(cycle["following_at"]), cycle["following_count"], np.int64)
    reached[0] = behind
    following[PROGRESS_TIME] = max(following[PROGRESS_TIME], as_int64(last["timestamp_ns"]))
    counters = carray(pointer_at(cycle["counters_at"]), cycle["counters_count"], np.int64)
    control = carray(pointer_at(cycle["control_at"]), cycle["control_count"], np.int64)
    replica = carray(pointer_at(cycle["replica_at"]), cycle["replica_count"], np.int64)
    store_release(counters, RESERVED, behind)
    store_release(control, CONTROL_COMMITTED, behind)
    store_release(replica, 0, behind)
    store_release(control, CONTROL_DURABLE, behind)


@kernel(void(_cycles, int64, int64))
def settle_cycle(cycles: Array, first_row: int, count: int) -> None:
    """The epoch with these rows is written: they are pending, and how far the order has come is published.

    Somebody may have applied rows meanwhile: then those of the cycle move to the front.
    """
    cycle = cycles[0]
    if cycle["is_sequenced"] != 0:
        _settle_order(cycle, first_row, count)
    staged = carray(pointer_at(cycle["staged_at"]), cycle["staged_count"], WAL_ROW)
    pending = carray(pointer_at(cycle["pending_at"]), cycle["pending_count"], PENDING_NUMBERS)
    front = as_int64(pending[0]["count"])
    if front != first_row:
        for number in range(count):
            staged[front + number] = staged[first_row + number]
    pending[0]["count"] = front + count
    pending[0]["under_way"] -= 1
    if pending[0]["under_way"] == 0:
        pending[0]["next"] = front + count


@kernel(void(_cycles, int64))
def advance_log(cycles: Array, size: int) -> None:
    """The epoch of the cycle, of so many bytes, is written: the log ends behind it."""
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
