"""A broker's ring as a list of claims: slots and byte ranges that follow each other. Single-threaded."""

from __future__ import annotations

import struct

import numpy as np

from seawall.kernels.ordering import broker_ring as ring
from seawall.kernels.ordering.broker_ring import Rows
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.rings import SLOT_WORDS, Words
from twins.admission.frontier import batch_end

_ENTRY = struct.Struct("<QIIIIHHIQQII")


def _publish(entries: Bytes, slots: Words, index: int, *fields: int) -> None:
    row = index % (slots.size // SLOT_WORDS)
    entries.reshape(-1, 64)[row, :56] = np.frombuffer(_ENTRY.pack(*fields), np.uint8)
    slots.reshape(-1, SLOT_WORDS)[row, ring.TOKEN_WORD] = index + 1


def free_completed(state: Words, completion: Words, pending: Rows) -> None:
    """Free the slots that are both completed and answered, with their bytes."""
    freed = min(int(completion[0]), int(state[ring.ANSWERED]))
    if freed > state[ring.FREED]:
        state[ring.FREED], state[ring.BLOG_FREED] = freed, pending[(freed - 1) % len(pending)]["blog_end"]


def want_bytes(state: Words, tails: Words, end: int) -> None:
    """Set the wanted end in state and tails."""
    state[ring.BLOG_WANTED] = tails[ring.TAIL_BLOG_WANTED] = end


def claim_slot(state: Words, tails: Words, completion: Words, pending: Rows, blog_size: int, size: int) -> int:
    """Claim the next slot, unless a whole lap of slots or bytes is in use."""
    if size > blog_size:
        return ring.NEVER_FITS
    free_completed(state, completion, pending)
    index, start, freed = (int(state[at]) for at in (ring.CLAIMED, ring.BLOG_CLAIMED, ring.FREED))
    if index == freed + len(pending):
        return ring.NO_SPACE
    if size and start // blog_size != (start + size - 1) // blog_size:
        start = (start // blog_size + 1) * blog_size
    after = -(-(start + size) // ring.LINE) * ring.LINE
    if index == freed:
        state[ring.BLOG_FREED] = start
    elif after > state[ring.BLOG_FREED] + blog_size:
        want_bytes(state, tails, after)
        return ring.NO_SPACE
    else:
        pending[(index - 1) % len(pending)]["blog_end"] = start
    want_bytes(state, tails, 0)
    row = pending[index % len(pending)]
    row["blog_offset"], row["blog_end"], row["size"], row["stage"] = start, after, size, ring.STAGE_DONE
    state[ring.CLAIMED] = tails[ring.TAIL_CLAIMED] = index + 1
    state[ring.BLOG_CLAIMED] = tails[ring.TAIL_BLOG_CLAIMED] = after
    return index


def publish_nop(entries: Bytes, slots: Words, index: int, blog_offset: int, broker: int, term: int, flags: int) -> None:
    """Publish an entry with only its offset, broker, term and flags."""
    _publish(entries, slots, index, blog_offset, 0, 0, 0, 0, broker, term & 0xFFFF, flags | ring.FLAG_NOP, 0, 0, 0, 0)


def publish_filled(
    state: Words,
    pending: Rows,
    entries: Bytes,
    slots: Words,
    blog: Bytes,
    index: int,
    owner: int,
    order: int,
    ack_level: int,
    term: int,
) -> None:
    """Fill entry and row from the header of the batch."""
    row = pending[index % len(pending)]
    at = int(row["blog_offset"]) % blog.size
    header = struct.unpack("<12xQ8xI4xII4xQ32xIBB2x", blog[at : at + 96].tobytes())
    client_seq, records, crc, topic, client, epoch, own_order, own_level = header
    row["owner"], row["client_id"], row["client_seq"] = owner, client, client_seq
    row["order"] = order if own_order == ring.AS_TOPIC else own_order
    row["ack_level"] = ack_level if own_level == ring.AS_TOPIC else own_level
    row["stage"] = ring.STAGE_WAITING
    flags = ring.FLAG_STRONG_ORDER if row["order"] == ring.ORDER_STRONG else 0
    fields = (int(row["blog_offset"]), int(row["size"]), records, topic, crc, int(state[ring.BROKER]), term & 0xFFFF)
    _publish(entries, slots, index, *fields, flags, client, client_seq, epoch, 0)


def publish_refused(
    state: Words,
    pending: Rows,
    entries: Bytes,
    slots: Words,
    source: Bytes,
    at: int,
    index: int,
    owner: int,
    reason: int,
    term: int,
) -> None:
    """Publish an entry without bytes and records that identifies the batch and the reason."""
    row = pending[index % len(pending)]
    client_seq, crc, topic, client, epoch = struct.unpack("<12xQ16xII4xQ32xI4x", source[at : at + 96].tobytes())
    row["owner"], row["client_id"], row["client_seq"] = owner, client, client_seq
    row["order"], row["ack_level"], row["stage"] = ring.ORDER_REFUSED, ring.LEVEL_REFUSED, ring.STAGE_WAITING
    flags = ring.FLAG_REFUSED | reason << ring.REFUSED_REASON_SHIFT
    offset, broker = int(row["blog_offset"]), int(state[ring.BROKER])
    _publish(
        entries, slots, index, offset, 0, 0, topic, crc, broker, term & 0xFFFF, flags, client, client_seq, epoch, 0
    )


def publish_run(
    source: Bytes,
    start: int,
    end: int,
    owner: int,
    order: int,
    ack_level: int,
    term: int,
    state: Words,
    tails: Words,
    completion: Words,
    pending: Rows,
    entries: Bytes,
    slots: Words,
    blog: Bytes,
    progress: Words,
) -> int:
    """Publish batch after batch until one has no space or is incomplete."""
    stops = {ring.NO_SPACE: ring.RUN_FULL, ring.NEVER_FITS: ring.RUN_NEVER_FITS}
    progress[:] = 0, state[ring.CLAIMED], start
    while (at := int(progress[ring.PROGRESS_CONSUMED])) < end:
        size = batch_end(source, at, end) - at
        if size < 0:
            return ring.RUN_CUT
        index = claim_slot(state, tails, completion, pending, blog.size, size)
        if index < 0:
            return stops[index]
        to = int(pending[index % len(pending)]["blog_offset"]) % blog.size
        blog[to : to + size] = source[at : at + size]
        publish_filled(state, pending, entries, slots, blog, index, owner, order, ack_level, term)
        progress[:] += np.array([1, 0, size])
    return ring.RUN_DONE


def reserve_slot(
    state: Words,
    tails: Words,
    completion: Words,
    pending: Rows,
    blog_size: int,
    size: int,
    deadline_ns: int,
) -> int:
    """Claim with a deadline."""
    index = claim_slot(state, tails, completion, pending, blog_size, size)
    if index >= 0:
        row = pending[index % len(pending)]
        row["stage"], row["deadline_ns"] = ring.STAGE_RESERVED, deadline_ns
    return index


def is_reserved(state: Words, pending: Rows, index: int) -> int:
    """1 for a slot in use with stage STAGE_RESERVED."""
    in_use = state[ring.FREED] <= index < state[ring.CLAIMED]
    return int(in_use and pending[index % len(pending)]["stage"] == ring.STAGE_RESERVED)


def publish_reserved(
    state: Words,
    pending: Rows,
    entries: Bytes,
    slots: Words,
    blog: Bytes,
    index: int,
    owner: int,
    order: int,
    ack_level: int,
    term: int,
) -> int:
    """Publish a batch that fills its reservation exactly."""
    if not is_reserved(state, pending, index):
        return ring.RESERVED_GONE
    row = pending[index % len(pending)]
    at = int(row["blog_offset"]) % blog.size
    end = at + int(row["size"])
    if batch_end(blog, at, end) != end:
        return ring.RESERVED_CUT
    publish_filled(state, pending, entries, slots, blog, index, owner, order, ack_level, term)
    return ring.RESERVED_PUBLISHED


def abandon_reserved(state: Words, pending: Rows, entries: Bytes, slots: Words, index: int, term: int) -> int:
    """Publish a NOP instead of the batch."""
    if not is_reserved(state, pending, index):
        return 0
    row = pending[index % len(pending)]
    row["stage"] = ring.STAGE_DONE
    publish_nop(entries, slots, index, int(row["blog_offset"]), int(state[ring.BROKER]), term, 0)
    return 1


def find_overdue(state: Words, pending: Rows, now_ns: int, found: Words) -> int:
    """List the first overdue reservations."""
    claimed = range(int(state[ring.ANSWERED]), int(state[ring.CLAIMED]))
    overdue = [
        index
        for index in claimed
        if is_reserved(state, pending, index) and pending[index % len(pending)]["deadline_ns"] <= now_ns
    ][: found.size]
    found[: len(overdue)] = overdue
    return len(overdue)


def resume_ring(
    state: Words,
    tails: Words,
    completion: Words,
    pending: Rows,
    entries: Bytes,
    slots: Words,
    term: int,
) -> int:
    """From the last claimed slot back to the first in use: each ends where the next one begins."""
    claimed, after = tails[:2].tolist()
    completed = int(completion[0])
    if not (0 <= completed <= claimed <= completed + len(pending) and after >= 0):
        return -1
    state[ring.CLAIMED], state[ring.ANSWERED], state[ring.FREED] = claimed, claimed, completed
    state[ring.BLOG_CLAIMED] = after
    want_bytes(state, tails, 0)
    stuck = 0
    for index in reversed(range(completed, claimed)):
        row, slot = pending[index % len(pending)], slots.reshape(-1, SLOT_WORDS)[index % len(pending)]
        row["blog_end"], row["stage"] = after, ring.STAGE_DONE
        if slot[ring.TOKEN_WORD] != index + 1:
            stuck += 1
            publish_nop(entries, slots, index, after, int(state[ring.BROKER]), term, ring.FLAG_RECOVERED)
        after = row["blog_offset"] = int(slot[0])
    state[ring.BLOG_FREED] = after
    return stuck
