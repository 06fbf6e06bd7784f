"""The commit frontier of a pod: walks the global order index, stamps each entry once, and writes the results.

An entry is eight words (`fabric.records` has its byte table), written by a worker; readers check its token first. The
frontier stamps four words of the side array: topic, status and reason; base seq; base offset; timestamp.

    BATCH     gets numbers from its topic's row, by the rules of `frontier.admit_batch`, or is refused. A batch whose
              order differs from that of its topic is refused, too, and so is one that was refused on arrival
    NOP       keeps the status and the reason that the worker gave it. A repetition gets the numbers of its original:
              from the worker's note, else from the side array; if neither has them they are unknown. A repetition of a
              refused batch is refused
    SKIP      no numbers
    CONTROL   the run stops before it: the owner executes it, and the next run continues after it

Kernels pass arrays to each other once per chunk, not once per entry: numba counts references to each array, which would
cost more than all the rest. So the work for each entry is one loop over scalars.

Tokens are compared by their difference to an index. If they were compared to index + 1, the compiler would substitute
the token for index + 1, since they are equal, and each entry would wait until the one before is loaded.

A run works in chunks. It stamps each chunk, then stores `committed`, and only then writes results to the rings of the
brokers: no broker gets the result of an entry that readers cannot see yet, and the entries are still in the cache.

INV-GOI-ORDER: positions are committed one after the other, each once, and a result is written only after its position
is committed. An entry that cannot be decided stops the run; nothing overtakes it.
INV-GOI-TERM: from the start of a term on, only entries of that term are committed. Below it, entries of earlier terms
are valid.

Ceilings and times follow the rules of `frontier`. BLogs are read, never written.

After a crash, `committed` separates decided from undecided entries. Stamps above it, a chunk at most, were not visible
and are made again; results of the last chunk may be missing, and recovery writes them (`goi_recovery`).
"""

from __future__ import annotations

import numpy as np

from seawall.kernels.admission.frontier import (
    LAST_TIMESTAMP,
    NEXT_POSITION,
    REASON_READ_ONLY,
    REASON_TOPIC_DELETED,
    REASON_TOPIC_NOT_FOUND,
    RUN_DONE,
    RUN_NEEDS_CEILING,
    STATUS_OK,
    STATUS_REJECTED,
    TOPIC_DELETED,
    TOPIC_EXISTS,
    TOPIC_FULL,
    TOPIC_ROW,
    TOPIC_STRONG,
    Rows,
    next_timestamp,
)
from seawall.kernels.codec.batch_header import RAW_LENGTH_AT
from seawall.kernels.runtime.atomics import load_acquire, store_release
from seawall.kernels.runtime.jit import (
    bytes_in,
    bytes_out,
    int64,
    int64_in,
    int64_out,
    kernel,
    record_array,
    uint64_out,
    void,
)
from seawall.kernels.runtime.memory import INDEX_BITS, LINE_SIZE, Bytes, as_int64, load_u32, prefetch
from seawall.kernels.runtime.rings import SLOT_WORDS, Words
from seawall.kernels.runtime.tables import ABSENT, Keys, Values, table_find

#: Why a run stopped, in addition to RUN_DONE and RUN_NEEDS_CEILING of `frontier`: before a control entry, which the
#: owner executes; before a missing entry; before an entry of another term.
RUN_CONTROL = 5
RUN_HOLE = 6
RUN_STALE_TERM = 7

STATUS_DUPLICATE = 1
REASON_SKIPPED = 0x26
REASON_NOT_ALLOWED = 0x27

#: Flags of an entry, and the broker of one that belongs to no slot.
FLAG_STRONG_ORDER = 1
FLAG_SKIP = 8
FLAG_NOP = 32
FLAG_REFUSED = 128
REFUSED_REASON_SHIFT = 16
FLAG_CONTROL = 64
NO_BROKER = 0xFFFF

#: Words of the fabric: control block, side array, completion vector, results.
CONTROL_COMMITTED = 4
CONTROL_DURABLE = 5
SIDE_WORDS = 4
NOTE_WORDS = 2
COMPLETION_WORDS = 16
REPLICA_WORDS = 8
RESULT_TOKEN = 7

#: Entries that are stamped before they are committed and their results written; at most half of the index.
CHUNK_MAX = 512

#: How many entries ahead to prefetch: about the latency of memory.
PREFETCH_DISTANCE = 16

_LOW = 0xFFFFFFFF
_HALF = 1 << 31
_UNKNOWN = -1

_topics = record_array(TOPIC_ROW)
_topic = _topics.dtype


@kernel(void(int64_out, int64, int64, int64, int64, int64, int64, int64))
def write_side(
    side: Words, at: int, topic: int, status: int, reason: int, base_seq: int, base_offset: int, timestamp_ns: int
) -> None:
    """Fill the entry of the side array whose first word is `at`."""
    side[at] = topic | (status << 32) | (reason << 48)
    side[at + 1] = base_seq
    side[at + 2] = base_offset
    side[at + 3] = timestamp_ns


@kernel(int64(int64, int64))
def blog_offset_field(third: int, fourth: int) -> int:
    """The BLog offset of an entry, which spans two of its words."""
    return ((third >> 32) & _LOW) | (fourth << 32)


@kernel(int64(int64))
def chunk_of(entries: int) -> int:
    """Entries per chunk, for an index of this size."""
    return min(CHUNK_MAX, entries >> 1)


@kernel(void(int64_out, int64, int64_out, int64_out))
def stamp_nop(goi: Words, position: int, side: Words, notes: Words) -> None:
    """Stamp a NOP: the status from its worker and, for a repetition, the numbers of the original.

    An original that is nearly a lap away is not looked up: an interrupted run may have stamped a chunk beyond here.
    """
    mask = goi.size // SLOT_WORDS - 1
    reach = mask + 1 - chunk_of(mask + 1)
    slot = position & mask
    base = slot * SLOT_WORDS
    status = goi[base + 4] & 0xFF
    reason = (goi[base + 4] >> 8) & 0xFFFF
    base_seq = 0
    timestamp = 0
    if status == STATUS_DUPLICATE:
        base_seq = notes[slot * NOTE_WORDS]
        timestamp = notes[slot * NOTE_WORDS + 1]
        original = blog_offset_field(goi[base + 2], goi[base + 3])
        if base_seq == 0 and original >= 0 and original < position and position - original <= reach:
            at = (original & mask) * SIDE_WORDS
            if (side[at] >> 32) & 0xFF == STATUS_OK:
                base_seq = side[at + 1]
                timestamp = side[at + 3]
            else:
                status = STATUS_REJECTED
                reason = REASON_SKIPPED
    write_side(side, slot * SIDE_WORDS, goi[base + 1] & _LOW, status, reason, base_seq, 0, timestamp)


@kernel(int64(int64, int64))
def refusal_of(topic_flags: int, flags: int) -> int:
    """Why a topic refuses a batch with these flags, or 0; `topic_flags` 0 means that there is no topic."""
    if flags & FLAG_REFUSED:
        return (flags >> REFUSED_REASON_SHIFT) & 0xFFFF
    if topic_flags & TOPIC_EXISTS == 0:
        return REASON_TOPIC_NOT_FOUND
    if topic_flags & TOPIC_DELETED:
        return REASON_TOPIC_DELETED
    if ((topic_flags & TOPIC_STRONG) != 0) != ((flags & FLAG_STRONG_ORDER) != 0):
        return REASON_NOT_ALLOWED
    return REASON_READ_ONLY if topic_flags & TOPIC_FULL else 0


@kernel(int64(_topic, int64, int64, int64, int64))
def advance_topic(topic: np.void, record_count: int, size: int, raw_length: int, clock_ns: int) -> int:
    """Advance a topic's numbers past a batch; returns RUN_DONE, or RUN_NEEDS_CEILING and changes only `wanted`."""
    next_seq = as_int64(topic["next_seq"]) + record_count
    if next_seq > as_int64(topic["ceiling"]):
        topic["wanted"] = next_seq
        return RUN_NEEDS_CEILING
    topic["next_seq"] = next_seq
    topic["next_offset"] = as_int64(topic["next_offset"]) + raw_length
    topic["last_timestamp_ns"] = max(clock_ns, as_int64(topic["last_timestamp_ns"]))
    topic["record_total"] = as_int64(topic["record_total"]) + record_count
    topic["byte_total"] = as_int64(topic["byte_total"]) + size
    return RUN_DONE


@kernel(int64(int64, int64, int64))
def lap_start(offset: int, lap: int, blog_size: int) -> int:
    """The start offset of the BLog lap that contains an offset; `lap` is the result of the last call.

    Most offsets are in the same lap, which saves a division.
    """
    if offset >= lap and offset - lap < blog_size:
        return lap
    return offset - offset % blog_size


@kernel(
    int64(
        *(int64, int64, int64, int64),
        *(int64_out, int64_out, int64_out, bytes_in, int64_out),
        *(uint64_out, int64_out, bytes_out, _topics, int64_out),
    )
)
def _stamp(
    end: int,
    wall_ns: int,
    term: int,
    term_start: int,
    goi: Words,
    side: Words,
    notes: Words,
    blogs: Bytes,
    laps: Words,
    keys: Keys,
    values: Values,
    used: Bytes,
    topics: Rows,
    numbers: Values,
) -> int:
    """Decide entries from the next position on, to `end` at most; returns why it stopped."""
    mask = goi.size // SLOT_WORDS - 1
    blog_size = blogs.size // laps.size
    known = row = -1  # the topic of the previous batch: batches of a topic come in runs
    for position in range(numbers[NEXT_POSITION], end):
        base = (position & mask) * SLOT_WORDS & INDEX_BITS
        if load_acquire(goi, base) - position != 1:
            return RUN_HOLE
        if position >= term_start and ((goi[base + 2] >> 16) ^ term) & 0xFFFF != 0:
            return RUN_STALE_TERM
        flags = goi[base + 7] >> 32
        topic_id = goi[base + 1] & _LOW
        stamped = topic_id
        base_seq = base_offset = timestamp = 0
        if flags & FLAG_CONTROL:
            return RUN_CONTROL
        if flags & FLAG_NOP:
            stamp_nop(goi, position, side, notes)
            numbers[NEXT_POSITION] = position + 1
            continue
        if flags & FLAG_SKIP == 0:
            if topic_id != known:
                entry = table_find(keys, used, np.uint64(topic_id))
                row = values[entry] if entry != ABSENT else -1
                known = topic_id
            reason = refusal_of(as_int64(topics[row]["flags"]) if row >= 0 else 0, flags)
            if reason != 0:
                stamped |= (STATUS_REJECTED << 32) | (reason << 48)
            else:
                broker = goi[base + 2] & 0xFFFF
                offset = blog_offset_field(goi[base + 2], goi[base + 3])
                laps[broker] = lap_start(offset, laps[broker], blog_size)
                raw_length = load_u32(blogs, broker * blog_size + offset - laps[broker] + RAW_LENGTH_AT)
                distant = ((position + PREFETCH_DISTANCE) & mask) * SLOT_WORDS & INDEX_BITS
                other = min(goi[distant + 2] & 0xFFFF, laps.size - 1)
                lap_offset = blog_offset_field(goi[distant + 2], goi[distant + 3]) - laps[other]
                prefetch(blogs, other * blog_size + lap_offset + RAW_LENGTH_AT)
                topic = topics[row]
                base_seq = as_int64(topic["next_seq"])
                base_offset = as_int64(topic["next_offset"])
                clock = next_timestamp(numbers[LAST_TIMESTAMP], wall_ns)
                size = (goi[base + 3] >> 32) & _LOW
                if advance_topic(topic, goi[base + 4] & _LOW, size, raw_length, clock) != RUN_DONE:
                    return RUN_NEEDS_CEILING
                numbers[LAST_TIMESTAMP] = clock
                timestamp = as_int64(topic["last_timestamp_ns"])
        at = (position & mask) * SIDE_WORDS & INDEX_BITS
        prefetch(side, ((position + PREFETCH_DISTANCE) & mask) * (SIDE_WORDS * 8))
        side[at] = stamped
        side[at + 1] = base_seq
        side[at + 2] = base_offset
        side[at + 3] = timestamp
        numbers[NEXT_POSITION] = position + 1
    return RUN_DONE


@kernel(int64(int64, int64))
def slot_index_of(low: int, completed: int) -> int:
    """The absolute index of a slot from its low 32 bits in an entry, or -1 if it is completed.

    Rings are far smaller than 2^31, so the completed index of the ring determines the high bits.
    """
    distance = (low - completed) & _LOW
    return completed + distance if distance < _HALF else -1


@kernel(int64(int64, int64, int64_in, int64_in, int64_in, int64_out, int64, int64))
def write_results(
    first: int,
    end: int,
    goi: Words,
    side: Words,
    completion: Words,
    results: Words,
    ring_entries: int,
    only_missing: int,
) -> int:
    """Write the results of a range of positions to the rings of the brokers; returns how many.

    With `only_missing`, slots that have a result or are completed are skipped.
    """
    mask = goi.size // SLOT_WORDS - 1
    written = 0
    for position in range(first, end):
        entry = position & mask & INDEX_BITS
        base = entry * SLOT_WORDS & INDEX_BITS
        broker = goi[base + 2] & 0xFFFF
        if broker == NO_BROKER:
            continue
        index = slot_index_of(goi[base + 7] & _LOW, completion[broker * COMPLETION_WORDS])
        at = (broker * ring_entries + (index & (ring_entries - 1))) * SLOT_WORDS & INDEX_BITS
        if only_missing != 0 and (index < 0 or results[at + RESULT_TOKEN] == index + 1):
            continue
        distant = ((position + PREFETCH_DISTANCE) & mask) * SLOT_WORDS & INDEX_BITS
        slot = (goi[distant + 2] & 0xFFFF) * ring_entries + (goi[distant + 7] & (ring_entries - 1))
        prefetch(results, slot * LINE_SIZE)
        stamped = side[entry * SIDE_WORDS]
        status = (stamped >> 32) & 0xFF
        original = _UNKNOWN
        if status == STATUS_DUPLICATE:
            original = blog_offset_field(goi[base + 2], goi[base + 3])
        results[at] = position
        results[at + 1] = side[entry * SIDE_WORDS + 1]
        results[at + 2] = side[entry * SIDE_WORDS + 3]
        results[at + 3] = original
        results[at + 4] = status | ((stamped >> 48) & 0xFFFF) << 16
        results[at + 5] = 0
        results[at + 6] = 0
        store_release(results, at + RESULT_TOKEN, index + 1)
        written += 1
    return written


@kernel(
    int64(
        *(int64, int64, int64, int64),
        *(int64_out, int64_out, int64_out, bytes_in, int64_out),
        *(int64_out, int64_out, int64_out),
        *(uint64_out, int64_out, bytes_out, _topics, int64_out),
    )
)
def commit_run(
    limit: int,
    wall_ns: int,
    term: int,
    term_start: int,
    goi: Words,
    side: Words,
    notes: Words,
    blogs: Bytes,
    laps: Words,
    completion: Words,
    results: Words,
    control: Words,
    keys: Keys,
    values: Values,
    used: Bytes,
    topics: Rows,
    numbers: Values,
) -> int:
    """Decide and commit entries from the next position on, to `limit` at most; returns why it stopped.

    `goi`, `side`, `completion`, `results` and `blogs` are entire regions of the fabric; `laps` has a word for each
    broker.
    """
    ring_entries = results.size // (SLOT_WORDS * laps.size)
    chunk = chunk_of(goi.size // SLOT_WORDS)
    while True:
        end = min(limit, numbers[NEXT_POSITION] + chunk)
        code = _stamp(
            end, wall_ns, term, term_start, goi, side, notes, blogs, laps, keys, values, used, topics, numbers
        )
        first = control[CONTROL_COMMITTED]
        store_release(control, CONTROL_COMMITTED, numbers[NEXT_POSITION])
        write_results(first, numbers[NEXT_POSITION], goi, side, completion, results, ring_entries, 0)
        if code != RUN_DONE or numbers[NEXT_POSITION] >= limit:
            return code


@kernel(int64(int64_out, int64_out, int64, int64))
def advance_durable(control: Words, replicas: Words, members: int, members_min: int) -> int:
    """Advance the durable frontier to the lowest of all members (a bit each), if there are enough; returns it."""
    durable = as_int64(control[CONTROL_DURABLE])
    reached = as_int64(control[CONTROL_COMMITTED])
    count = 0
    for replica in range(replicas.size // REPLICA_WORDS):
        if (members >> replica) & 1:
            count += 1
            reached = min(reached, load_acquire(replicas, replica * REPLICA_WORDS))
    if count < members_min or reached <= durable:
        return durable
    store_release(control, CONTROL_DURABLE, reached)
    return reached


@kernel(int64(int64_out, int64_out, int64_out, int64))
def advance_completion(control: Words, results: Words, completion: Words, brokers: int) -> int:
    """Complete the slots of all brokers whose results are durable, each ring in order; returns how many."""
    durable = control[CONTROL_DURABLE]
    ring_entries = results.size // (SLOT_WORDS * brokers)
    freed = 0
    for broker in range(brokers):
        before = completion[broker * COMPLETION_WORDS]
        index = before
        while True:
            at = (broker * ring_entries + (index & (ring_entries - 1))) * SLOT_WORDS & INDEX_BITS
            if results[at + RESULT_TOKEN] - index != 1 or results[at] >= durable:
                break
            index += 1
        if index > before:
            store_release(completion, broker * COMPLETION_WORDS, index)
            freed += index - before
    return freed
