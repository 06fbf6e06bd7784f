"""Validation and publishing of received batches, one at a time, from their unpacked headers."""

from __future__ import annotations

import struct

import numpy as np

from seawall.kernels.admission import arriving
from seawall.kernels.admission.arriving import Rows
from seawall.kernels.codec.blocks import RECORDS_VERSION_2
from seawall.kernels.ordering import broker_ring
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.rings import Words
from twins.codec.blocks import scan_block
from twins.ordering.broker_ring import claim_slot, free_completed, publish_filled, publish_refused

_HEADER = struct.Struct("<4sBBHIqQIIIIIqQQQIIIBBBB")


def validate_batch(
    buffer: Bytes, at: int, size: int, client_id: int, session_epoch: int, codecs: int, orders: Bytes, offsets: Words
) -> int:
    """The first violated rule, checked in the order of the kernel."""
    fields = _HEADER.unpack(buffer[at : at + _HEADER.size].tobytes())
    _, _, _, command, _, client_seq, _, count, _, _, topic_id, reserved, client, *rest = fields
    position, base_seq, base_offset, raw_length, term, epoch, order, level, codec, flags = rest
    if command or client_seq < 1:
        return arriving.MALFORMED
    if client != client_id:
        return arriving.REASON_INVALID
    if epoch != session_epoch:
        return arriving.REASON_FENCED
    if any((position, base_seq, base_offset, reserved, term)):
        return arriving.REASON_INVALID | arriving.NUMBER_USED
    topic_order = int(orders[topic_id]) if topic_id < len(orders) else arriving.NO_TOPIC
    if topic_order == arriving.NO_TOPIC:
        return arriving.REASON_TOPIC_NOT_FOUND | arriving.NUMBER_USED
    if order not in (0xFF, topic_order):
        return arriving.REASON_NOT_ALLOWED | arriving.NUMBER_USED
    is_counted = 1 <= count <= (1 if flags == 2 else 65_536) and 1 <= raw_length <= 16 << 20
    if level not in (0, 1, 2, 0xFF) or flags not in (0, 2) or not is_counted:
        return arriving.REASON_INVALID | arriving.NUMBER_USED
    if codec:
        return arriving.INSPECT if codec < 8 and codecs >> codec & 1 else arriving.REASON_INVALID | arriving.NUMBER_USED
    if raw_length != size - _HEADER.size:
        return arriving.REASON_INVALID | arriving.NUMBER_USED
    start = at + _HEADER.size
    if flags == 2 or scan_block(buffer, start, at + size, RECORDS_VERSION_2, 65_536, offsets) == count:
        return arriving.ACCEPTED
    return arriving.REASON_INVALID | arriving.NUMBER_USED


def validate_batches(
    buffer: Bytes,
    rows: Rows,
    client_id: int,
    session_epoch: int,
    codecs: int,
    orders: Bytes,
    offsets: Words,
    verdicts: Words,
) -> int:
    """`validate_batch` for each row."""
    for index, (at, size) in enumerate(rows[["at", "size"]].tolist()):
        verdicts[index] = validate_batch(buffer, at, size, client_id, session_epoch, codecs, orders, offsets)
    return int(np.count_nonzero(verdicts[: len(rows)]))


def free_space_for(state: Words, completion: Words, pending: Rows, blog_size: int, size: int) -> int:
    """Claim it in a copy of the state and return its offset."""
    copied, rows = state.copy(), pending.copy()
    slot = claim_slot(copied, np.zeros(8, np.int64), completion, rows, blog_size, size)
    free_completed(state, completion, pending)
    return broker_ring.NO_SPACE if slot < 0 else int(rows[slot % len(rows)]["blog_offset"]) % blog_size


def want_space(state: Words, tails: Words, blog_size: int, size: int) -> None:
    """Claim it in a copy in which everything is in use, which records the wanted space."""
    copied, rows = state.copy(), np.zeros(2, broker_ring.PENDING_ROW)
    copied[[broker_ring.CLAIMED, broker_ring.ANSWERED, broker_ring.FREED]] = 1, 0, 0
    copied[broker_ring.BLOG_FREED] = copied[broker_ring.BLOG_CLAIMED] - blog_size
    claim_slot(copied, tails, np.zeros(8, np.int64), rows, blog_size, size)
    state[broker_ring.BLOG_WANTED] = copied[broker_ring.BLOG_WANTED]


def publish_validated(
    source: Bytes,
    rows: Rows,
    verdicts: Words,
    owner: int,
    orders: Bytes,
    levels: Bytes,
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
    """Slot by slot, until one has no space."""
    progress[:] = 0, 0, state[broker_ring.CLAIMED], 0
    for index, (at, size, topic_id) in enumerate(rows[["at", "size", "topic_id"]].tolist()):
        if verdicts[index] == arriving.ACCEPTED and size > len(blog):
            verdicts[index] = arriving.REASON_TOO_LARGE | arriving.NUMBER_USED
        is_accepted, uses_number = verdicts[index] == arriving.ACCEPTED, verdicts[index] & arriving.NUMBER_USED
        if is_accepted or (verdicts[index] > 0 and uses_number):
            slot = claim_slot(state, tails, completion, pending, len(blog), size if is_accepted else 0)
            if slot == broker_ring.NO_SPACE:
                return broker_ring.RUN_FULL
            progress[arriving.PROGRESS_COUNT] += 1
            if not is_accepted:
                reason = int(verdicts[index]) - arriving.NUMBER_USED
                publish_refused(state, pending, entries, slots, source, at, slot, owner, reason, term)
            else:
                offset = int(pending[slot % len(pending)]["blog_offset"]) % len(blog)
                blog[offset : offset + size] = source[at : at + size]
                numbers = (owner, int(orders[topic_id]), int(levels[topic_id]), term)
                publish_filled(state, pending, entries, slots, blog, slot, *numbers)
                progress[arriving.PROGRESS_BYTES] += size
        progress[arriving.PROGRESS_ROWS] = index + 1
    return broker_ring.RUN_DONE
