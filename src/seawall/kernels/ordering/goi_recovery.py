"""Recovers a sequencer from the global order index, and repairs the index and the rings in the fabric.

    scrub      erases the entries above the first hole: their batches are still in the rings of the brokers
    replay     restores the rows of topics from the committed batches; gathers batches of sessions for the client window
    mark       marks slots that have an entry: they must not be ordered again

The caller guarantees that every entry of the range has its token: no replayed entry was overwritten, since workers
reserve no position whose entry recovery would need.

No entry below the hole changes, and none at or above it remains. Each step can be interrupted anywhere and repeated.
"""

from __future__ import annotations

import numpy as np

from seawall.kernels.admission.client_window import WINDOW_BATCH, WINDOW_RESULT
from seawall.kernels.admission.frontier import LAST_TIMESTAMP, NEXT_POSITION, STATUS_OK, TOPIC_ROW, Rows
from seawall.kernels.ordering.goi_frontier import (
    COMPLETION_WORDS,
    FLAG_CONTROL,
    FLAG_NOP,
    FLAG_SKIP,
    NO_BROKER,
    RESULT_TOKEN,
    SIDE_WORDS,
    slot_index_of,
)
from seawall.kernels.runtime.atomics import load_acquire, store_release
from seawall.kernels.runtime.jit import bytes_out, int64, int64_in, int64_out, kernel, record_array, uint64_out, void
from seawall.kernels.runtime.memory import Bytes, as_int64
from seawall.kernels.runtime.rings import SLOT_WORDS, Words
from seawall.kernels.runtime.tables import ABSENT, Keys, Values, table_find

_LOW = 0xFFFFFFFF
_SYNTHETIC_SHIFT = np.uint64(63)

_topics = record_array(TOPIC_ROW)
_batches = record_array(WINDOW_BATCH)
_results = record_array(WINDOW_RESULT)


@kernel(int64(int64_out, int64))
def scrub_from(goi: Words, hole: int) -> int:
    """Clear the token of every entry at or above position `hole`; returns how many had one."""
    scrubbed = 0
    for index in range(goi.size // SLOT_WORDS):
        if load_acquire(goi, index * SLOT_WORDS) > hole:
            store_release(goi, index * SLOT_WORDS, 0)
            scrubbed += 1
    return scrubbed


@kernel(
    int64(
        *(int64, int64, int64_in, int64_in),
        *(uint64_out, int64_out, bytes_out, _topics, int64_out, int64_out),
    )
)
def replay_topics(
    first: int,
    end: int,
    goi: Words,
    side: Words,
    keys: Keys,
    values: Values,
    used: Bytes,
    topics: Rows,
    numbers: Values,
    latest: Words,
) -> int:
    """Restore the numbers of topics after the batches of a range; returns where it stopped: the end, or a CONTROL.

    Writes the position of the last batch of each row to `latest`. The next offset of a row becomes the base offset of
    that batch: only the batch's bytes contain its length. Raises the ceiling to the seqs that were assigned.
    """
    mask = goi.size // SLOT_WORDS - 1
    for position in range(first, end):
        base = (position & mask) * SLOT_WORDS
        at = (position & mask) * SIDE_WORDS
        flags = goi[base + 7] >> 32
        if flags & FLAG_CONTROL:
            return position
        numbers[NEXT_POSITION] = position + 1
        if flags & (FLAG_NOP | FLAG_SKIP) or (side[at] >> 32) & 0xFF != STATUS_OK:
            continue
        numbers[LAST_TIMESTAMP] = max(numbers[LAST_TIMESTAMP], side[at + 3])
        entry = table_find(keys, used, np.uint64(side[at] & _LOW))
        if entry == ABSENT:
            continue
        row = values[entry]
        topic = topics[row]
        count = goi[base + 4] & _LOW
        topic["next_seq"] = side[at + 1] + count
        topic["next_offset"] = side[at + 2]
        topic["ceiling"] = max(as_int64(topic["ceiling"]), side[at + 1] + count)
        topic["last_timestamp_ns"] = side[at + 3]
        topic["record_total"] = as_int64(topic["record_total"]) + count
        topic["byte_total"] = as_int64(topic["byte_total"]) + ((goi[base + 3] >> 32) & _LOW)
        latest[row] = position
    return end


@kernel(int64(int64, int64, int64_in, int64_in, _batches, _results, int64_out))
def gather_batches(first: int, end: int, goi: Words, side: Words, batches: Rows, outcomes: Rows, counts: Words) -> int:
    """List the stored and refused batches of clients with a session, `counts[0]` of them; returns where it stopped.

    It stops at the end, a SKIP, a CONTROL, or the first batch without space.
    """
    mask = goi.size // SLOT_WORDS - 1
    count = 0
    position = first
    while position < end:
        base = (position & mask) * SLOT_WORDS
        flags = goi[base + 7] >> 32
        if flags & (FLAG_SKIP | FLAG_CONTROL):
            break
        if flags & FLAG_NOP == 0 and np.uint64(goi[base + 5]) >> _SYNTHETIC_SHIFT == 0:
            if count == batches.size:
                break
            at = (position & mask) * SIDE_WORDS
            batch = batches[count]
            batch["client_id"] = goi[base + 5]
            batch["client_seq"] = goi[base + 6]
            batch["session_epoch"] = 0
            batch["block_crc"] = (goi[base + 1] >> 32) & _LOW
            outcome = outcomes[count]
            outcome["position"] = position
            outcome["base_seq"] = side[at + 1]
            outcome["timestamp_ns"] = side[at + 3]
            outcome["block_crc"] = (goi[base + 1] >> 32) & _LOW
            outcome["status"] = (side[at] >> 32) & 0xFF
            outcome["reason"] = (side[at] >> 48) & 0xFFFF
            outcome["known"] = 1
            count += 1
        position += 1
    counts[0] = count
    return position


@kernel(void(int64, int64, int64_in, int64_in, int64_out, int64))
def mark_ordered(first: int, end: int, goi: Words, completion: Words, taken: Words, brokers: int) -> None:
    """Mark the slots that have an entry in a range of positions.

    `taken` has a word for each slot of all rings: index + 1 if the slot has an entry.
    """
    mask = goi.size // SLOT_WORDS - 1
    ring_entries = taken.size // brokers
    for position in range(first, end):
        base = (position & mask) * SLOT_WORDS
        broker = goi[base + 2] & 0xFFFF
        if broker != NO_BROKER:
            index = slot_index_of(goi[base + 7] & _LOW, completion[broker * COMPLETION_WORDS])
            if index >= 0:
                taken[broker * ring_entries + (index & (ring_entries - 1))] = index + 1


@kernel(void(int64_in, int64, int64, int64, int64_out, int64))
def mark_answered(results: Words, broker: int, first: int, end: int, taken: Words, brokers: int) -> None:
    """Mark the slots of a broker from `first` to `end` that have a result; their entry may be overwritten by now."""
    ring_entries = taken.size // brokers
    for index in range(first, end):
        slot = broker * ring_entries + (index & (ring_entries - 1))
        if results[slot * SLOT_WORDS + RESULT_TOKEN] == index + 1:
            taken[slot] = index + 1
