"""The commit frontier of a pod with entries as tuples: stamps all, then writes the results. Single-threaded."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from seawall.kernels.admission import frontier as numbering
from seawall.kernels.admission.frontier import LAST_TIMESTAMP, NEXT_POSITION, Rows
from seawall.kernels.ordering import goi_frontier as frontier
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.rings import SLOT_WORDS, Words
from seawall.kernels.runtime.tables import Keys, Values
from twins.admission.frontier import header_at, next_timestamp

_ENTRY = struct.Struct("<QIIHHqIIIQQII")
_SIDE = struct.Struct("<IBxHQQQ")
_RESULT = struct.Struct("<QQQqBxH20xQ")


class Entry(NamedTuple):
    """The fields of an entry, in order."""

    token: int
    topic_id: int
    block_crc: int
    broker: int
    term: int
    blog_offset: int
    size: int
    record_count: int
    zero: int
    client_id: int
    client_seq: int
    pbr_index: int
    flags: int


class Stamp(NamedTuple):
    """The fields of an entry of the side array."""

    topic_id: int
    status: int
    reason: int = 0
    base_seq: int = 0
    base_offset: int = 0
    timestamp_ns: int = 0


def entry_at(goi: Words, base: int) -> Entry:
    """The entry whose first word is `base`."""
    return Entry(*_ENTRY.unpack(goi[base : base + SLOT_WORDS].tobytes()))


def stamp_at(side: Words, at: int) -> Stamp:
    """The side entry whose first word is `at`."""
    return Stamp(*_SIDE.unpack(side[at : at + frontier.SIDE_WORDS].tobytes()))


def _put(words: Words, at: int, content: bytes) -> None:
    words[at : at + len(content) // 8] = np.frombuffer(content, np.int64)


def _base(goi: Words, position: int) -> int:
    return position % (len(goi) // SLOT_WORDS) * SLOT_WORDS


def _side_at(goi: Words, position: int) -> int:
    return _base(goi, position) // SLOT_WORDS * frontier.SIDE_WORDS


def write_side(
    side: Words, at: int, topic: int, status: int, reason: int, base_seq: int, base_offset: int, timestamp_ns: int
) -> None:
    """Pack the fields."""
    _put(side, at, _SIDE.pack(topic, status, reason, base_seq, base_offset, timestamp_ns))


def blog_offset_field(third: int, fourth: int) -> int:
    """A signed number from byte 4 to 12 of the two words."""
    joined = struct.pack("<qq", third, fourth)
    return int.from_bytes(joined[4:12], "little", signed=True)


def chunk_of(entries: int) -> int:
    """CHUNK_MAX, or half of a small index."""
    return frontier.CHUNK_MAX if entries >= 2 * frontier.CHUNK_MAX else entries // 2


def stamp_nop(goi: Words, position: int, side: Words, notes: Words) -> None:
    """Status and reason of the worker; numbers from the note, else from the original if it is within reach."""
    entry = entry_at(goi, _base(goi, position))
    stamp = Stamp(entry.topic_id, entry.record_count & 0xFF, entry.record_count >> 8 & 0xFFFF)
    if stamp.status == frontier.STATUS_DUPLICATE:
        base_seq, timestamp_ns = notes.reshape(-1, frontier.NOTE_WORDS)[position % (len(goi) // SLOT_WORDS)].tolist()
        stamp = stamp._replace(base_seq=base_seq, timestamp_ns=timestamp_ns)
        entries = len(goi) // SLOT_WORDS
        reach = range(max(0, position - entries + chunk_of(entries)), position)
        if base_seq == 0 and entry.blog_offset in reach:
            original = stamp_at(side, _side_at(goi, entry.blog_offset))
            if original.status == numbering.STATUS_OK:
                stamp = stamp._replace(base_seq=original.base_seq, timestamp_ns=original.timestamp_ns)
            else:
                stamp = Stamp(entry.topic_id, numbering.STATUS_REJECTED, frontier.REASON_SKIPPED, 0, 0, timestamp_ns)
    write_side(side, _side_at(goi, position), *stamp)


def refusal_of(topic_flags: int, flags: int) -> int:
    """The reason of the first violated rule."""
    wrong_order = bool(topic_flags & numbering.TOPIC_STRONG) != bool(flags & frontier.FLAG_STRONG_ORDER)
    rules = (
        (flags & frontier.FLAG_REFUSED, flags >> frontier.REFUSED_REASON_SHIFT),
        (not topic_flags & numbering.TOPIC_EXISTS, numbering.REASON_TOPIC_NOT_FOUND),
        (topic_flags & numbering.TOPIC_DELETED, numbering.REASON_TOPIC_DELETED),
        (wrong_order, frontier.REASON_NOT_ALLOWED),
        (topic_flags & numbering.TOPIC_FULL, numbering.REASON_READ_ONLY),
    )
    return next((reason for is_broken, reason in rules if is_broken), 0)


def advance_topic(topic: np.void, record_count: int, size: int, raw_length: int, clock_ns: int) -> int:
    """Advance the topic's numbers by those of the batch."""
    if int(topic["next_seq"]) + record_count > int(topic["ceiling"]):
        topic["wanted"] = int(topic["next_seq"]) + record_count
        return numbering.RUN_NEEDS_CEILING
    topic["last_timestamp_ns"] = max(clock_ns, int(topic["last_timestamp_ns"]))
    for name, more in (
        ("next_seq", record_count),
        ("next_offset", raw_length),
        ("record_total", record_count),
        ("byte_total", size),
    ):
        topic[name] = int(topic[name]) + more
    return numbering.RUN_DONE


def lap_start(offset: int, lap: int, blog_size: int) -> int:
    """The last multiple of the BLog size; ignores `lap`."""
    return offset // blog_size * blog_size


def slot_index_of(low: int, completed: int) -> int:
    """The number with these low bits that is nearest to `completed`; -1 if it is lower."""
    near = completed >> 32 << 32 | low
    index = min((near - (1 << 32), near, near + (1 << 32)), key=lambda each: abs(each - completed))
    return index if index >= completed else -1


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
    """Pack the result of each entry."""
    rings = results.reshape(-1, ring_entries, SLOT_WORDS)
    written = 0
    for position in range(first, end):
        entry, stamp = entry_at(goi, _base(goi, position)), stamp_at(side, _side_at(goi, position))
        if entry.broker == frontier.NO_BROKER:
            continue
        index = slot_index_of(entry.pbr_index, int(completion[entry.broker * frontier.COMPLETION_WORDS]))
        result = rings[entry.broker, index % ring_entries]
        if only_missing and (index < 0 or result[frontier.RESULT_TOKEN] == index + 1):
            continue
        original = entry.blog_offset if stamp.status == frontier.STATUS_DUPLICATE else -1
        numbers = (position, stamp.base_seq, stamp.timestamp_ns, original)
        _put(result, 0, _RESULT.pack(*numbers, stamp.status, stamp.reason, index + 1))
        written += 1
    return written


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
    """Stamp until an entry stops the run, commit, and write all results."""
    code = numbering.RUN_DONE
    rows = {int(keys[entry]): int(values[entry]) for entry in np.flatnonzero(used)}
    flags_of = {topic_id: int(topics[row]["flags"]) for topic_id, row in rows.items()}
    while code == numbering.RUN_DONE and (position := int(numbers[NEXT_POSITION])) < limit:
        entry, at = entry_at(goi, _base(goi, position)), _side_at(goi, position)
        if entry.token != position + 1:
            code = frontier.RUN_HOLE
        elif position >= term_start and entry.term != term & 0xFFFF:
            code = frontier.RUN_STALE_TERM
        elif entry.flags & frontier.FLAG_CONTROL:
            code = frontier.RUN_CONTROL
        elif entry.flags & frontier.FLAG_NOP:
            stamp_nop(goi, position, side, notes)
        elif entry.flags & frontier.FLAG_SKIP:
            write_side(side, at, entry.topic_id, numbering.STATUS_OK, 0, 0, 0, 0)
        elif reason := refusal_of(flags_of.get(entry.topic_id, 0), entry.flags):
            write_side(side, at, entry.topic_id, numbering.STATUS_REJECTED, reason, 0, 0, 0)
        else:
            code = _number(position, wall_ns, goi, side, blogs, laps, topics[rows[entry.topic_id]], numbers)
        numbers[NEXT_POSITION] += code == numbering.RUN_DONE
    committed, control[frontier.CONTROL_COMMITTED] = int(control[frontier.CONTROL_COMMITTED]), numbers[NEXT_POSITION]
    ring_entries = len(results) // (SLOT_WORDS * len(laps))
    write_results(committed, int(numbers[NEXT_POSITION]), goi, side, completion, results, ring_entries, 0)
    return code


def _number(
    position: int,
    wall_ns: int,
    goi: Words,
    side: Words,
    blogs: Bytes,
    laps: Words,
    topic: np.void,
    numbers: Values,
) -> int:
    entry, blog_size = entry_at(goi, _base(goi, position)), len(blogs) // len(laps)
    header = header_at(blogs, entry.broker * blog_size + entry.blog_offset % blog_size)
    base_seq, base_offset = int(topic["next_seq"]), int(topic["next_offset"])
    clock = next_timestamp(int(numbers[LAST_TIMESTAMP]), wall_ns)
    code = advance_topic(topic, entry.record_count, entry.size, header.raw_length, clock)
    if code == numbering.RUN_DONE:
        numbers[LAST_TIMESTAMP] = clock
        stamp = Stamp(entry.topic_id, numbering.STATUS_OK, 0, base_seq, base_offset, int(topic["last_timestamp_ns"]))
        write_side(side, _side_at(goi, position), *stamp)
    return code


def advance_durable(control: Words, replicas: Words, members: int, members_min: int) -> int:
    """The lowest position of all members, never lower than before."""
    vector = replicas.reshape(-1, frontier.REPLICA_WORDS)[:, 0].tolist()
    counts = [durable for replica, durable in enumerate(vector) if members >> replica & 1]
    if len(counts) >= members_min:
        reached = min([*counts, int(control[frontier.CONTROL_COMMITTED])])
        control[frontier.CONTROL_DURABLE] = max(reached, int(control[frontier.CONTROL_DURABLE]))
    return int(control[frontier.CONTROL_DURABLE])


def advance_completion(control: Words, results: Words, completion: Words, brokers: int) -> int:
    """Complete slot after slot of each ring while its result exists and is durable."""
    freed = 0
    for broker, ring in enumerate(results.reshape(brokers, -1, SLOT_WORDS)):
        at = broker * frontier.COMPLETION_WORDS
        while True:
            index = int(completion[at])
            result = ring[index % len(ring)]
            if result[frontier.RESULT_TOKEN] != index + 1 or result[0] >= control[frontier.CONTROL_DURABLE]:
                break
            completion[at] = index + 1
            freed += 1
    return freed
