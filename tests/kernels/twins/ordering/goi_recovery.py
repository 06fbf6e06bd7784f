"""Recovery from the order index, with entries as tuples. Single-threaded."""

from __future__ import annotations

import numpy as np

from seawall.kernels.admission.frontier import LAST_TIMESTAMP, NEXT_POSITION, STATUS_OK, Rows
from seawall.kernels.ordering import goi_frontier as frontier
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.rings import SLOT_WORDS, Words
from seawall.kernels.runtime.tables import Keys, Values
from twins.ordering.goi_frontier import Entry, Stamp, entry_at, slot_index_of, stamp_at


def _read(goi: Words, side: Words, position: int) -> tuple[Entry, Stamp]:
    slot = position % (len(goi) // SLOT_WORDS)
    return entry_at(goi, slot * SLOT_WORDS), stamp_at(side, slot * frontier.SIDE_WORDS)


def scrub_from(goi: Words, hole: int) -> int:
    """Clear all tokens at once."""
    tokens = goi.reshape(-1, SLOT_WORDS)[:, 0]
    above = tokens > hole
    tokens[above] = 0
    return int(above.sum())


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
    """Replay batch after batch, up to a CONTROL."""
    rows = {int(keys[entry]): int(values[entry]) for entry in np.flatnonzero(used)}
    for position in range(first, end):
        entry, stamp = _read(goi, side, position)
        if entry.flags & frontier.FLAG_CONTROL:
            return position
        numbers[NEXT_POSITION] = position + 1
        if entry.flags & (frontier.FLAG_NOP | frontier.FLAG_SKIP) or stamp.status != STATUS_OK:
            continue
        numbers[LAST_TIMESTAMP] = max(int(numbers[LAST_TIMESTAMP]), stamp.timestamp_ns)
        row = rows.get(stamp.topic_id)
        if row is not None:
            topic, after = topics[row], stamp.base_seq + entry.record_count
            topic["next_seq"], topic["next_offset"], topic["last_timestamp_ns"] = (
                *(after, stamp.base_offset),
                stamp.timestamp_ns,
            )
            topic["ceiling"] = max(int(topic["ceiling"]), after)
            topic["record_total"] = int(topic["record_total"]) + entry.record_count
            topic["byte_total"] = int(topic["byte_total"]) + entry.size
            latest[row] = position
    return end


def gather_batches(first: int, end: int, goi: Words, side: Words, batches: Rows, outcomes: Rows, counts: Words) -> int:
    """List batch after batch, up to a SKIP or CONTROL or until the arrays are full."""
    counts[0] = 0
    for position in range(first, end):
        entry, stamp = _read(goi, side, position)
        if entry.flags & (frontier.FLAG_SKIP | frontier.FLAG_CONTROL):
            return position
        if entry.flags & frontier.FLAG_NOP or entry.client_id >> 63:
            continue
        if counts[0] == len(batches):
            return position
        batches[counts[0]] = (entry.client_id, entry.client_seq, 0, entry.block_crc)
        numbers = (position, stamp.base_seq, stamp.timestamp_ns)
        outcomes[counts[0]] = (*numbers, entry.block_crc, stamp.reason, stamp.status, 1)
        counts[0] += 1
    return end


def mark_ordered(first: int, end: int, goi: Words, completion: Words, taken: Words, brokers: int) -> None:
    """Mark the slot of each entry."""
    marks = taken.reshape(brokers, -1)
    for position in range(first, end):
        entry = entry_at(goi, position % (len(goi) // SLOT_WORDS) * SLOT_WORDS)
        if entry.broker != frontier.NO_BROKER:
            index = slot_index_of(entry.pbr_index, int(completion[entry.broker * frontier.COMPLETION_WORDS]))
            if index >= 0:
                marks[entry.broker, index % marks.shape[1]] = index + 1


def mark_answered(results: Words, broker: int, first: int, end: int, taken: Words, brokers: int) -> None:
    """Mark each slot with a result."""
    rings, marks = results.reshape(brokers, -1, SLOT_WORDS), taken.reshape(brokers, -1)
    for index in range(first, end):
        if rings[broker, index % marks.shape[1], frontier.RESULT_TOKEN] == index + 1:
            marks[broker, index % marks.shape[1]] = index + 1
