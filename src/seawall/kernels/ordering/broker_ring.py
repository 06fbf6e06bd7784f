"""The broker's side of its pending batch ring and BLog: claims a slot and bytes, fills them, publishes the token.

    claim     the next slot and a range of the BLog; the tails, which the sequencer reads, count both
    fill      copy the batch into the BLog, and describe it in the slot
    publish   write the token, index + 1, last

`state` and `pending`, one row for each slot of the ring, are private to the broker; `tails`, `completion`, `slots` (and
`entries`, the same bytes) and `blog` are in the fabric. One thread of the broker calls all of these kernels.

Wrap-around. Indexes and offsets are absolute; the location is their remainder modulo the size of the ring. A batch is
contiguous and begins on a cache line. A batch that does not fit before the end of the BLog begins at its start, and the
unused bytes belong to the batch before. So a slot's bytes end where those of the next one begin.

INV-BROKER-REUSE: a broker reuses a slot and its bytes only after the batch is completed and its answer was taken.
INV-BROKER-CLAIM-ENDS: every claimed slot is published: as its whole batch, or as a NOP if the batch does not come. A
slot gets its token only when its entry and its bytes are complete, and then they do not change.

Bytes are counted before their slot, so bytes without a slot are freed with the last slot. While a claim waits for
bytes, the tails publish the wanted end; a worker bounces the held batches that are more than a lap below it
(`holding`), so the waiting claim always gets its space.

A crash leaves tails, tokens and bytes as they are; `resume_ring` turns claimed slots without a token into NOPs and
reads from the entries which bytes are in use.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.kernels.admission.frontier import batch_end
from seawall.kernels.codec.batch_header import (
    BLOCK_CRC_AT,
    CLIENT_ID_AT,
    CLIENT_SEQ_AT,
    LEVEL_AT,
    ORDER_AT,
    RECORD_COUNT_AT,
    SESSION_EPOCH_AT,
    TOPIC_AT,
)
from seawall.kernels.runtime.atomics import load_acquire, store_release
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import (
    Bytes,
    as_int64,
    copy_bytes,
    load_i64,
    load_u32,
    load_u64,
    store_u16,
    store_u32,
    store_u64,
)
from seawall.kernels.runtime.rings import SLOT_WORDS, Words
from seawall.kernels.runtime.slots import slot_base

Rows: TypeAlias = npt.NDArray[np.void]

#: The broker's record of one slot. The bytes of the next slot may begin at `blog_end`. No slot between an open slot and
#: its `next_open`, if that is larger, owes an answer.
PENDING_ROW = np.dtype(
    [
        ("owner", np.int64),
        ("client_id", np.uint64),
        ("client_seq", np.uint64),
        ("blog_offset", np.int64),
        ("blog_end", np.int64),
        ("deadline_ns", np.int64),
        ("size", np.int64),
        ("next_open", np.int64),
        ("stage", np.uint8),
        ("ack_level", np.uint8),
        ("order", np.uint8),
    ]
)

#: Stages of a slot: no answer is due; the batch is still being received; an answer is due.
STAGE_DONE = 0
STAGE_RESERVED = 1
STAGE_WAITING = 2

#: Indexes into `state`. Counts are exclusive. Slots below ANSWERED owe no answer, slots below FREED can be reused.
CLAIMED = 0
BLOG_CLAIMED = 1
ANSWERED = 2
FREED = 3
BLOG_FREED = 4
BROKER = 5
BLOG_WANTED = 6
STATE_SIZE = 7

#: Why a claim failed: the ring or the BLog has no space now; the BLog is smaller than the batch.
NO_SPACE = -1
NEVER_FITS = -2

#: Why a run stopped: at its end, or before a batch without space, that never fits, or that is incomplete.
RUN_DONE = 0
RUN_FULL = 1
RUN_NEVER_FITS = 2
RUN_CUT = 3

#: Indexes into `progress`: slots published, the index of the first, and the first byte not consumed.
PROGRESS_COUNT = 0
PROGRESS_FIRST = 1
PROGRESS_CONSUMED = 2
PROGRESS_SIZE = 3

#: The outcome of a reservation: published; abandoned before; its bytes are not one batch of the reserved size.
RESERVED_PUBLISHED = 1
RESERVED_GONE = 0
RESERVED_CUT = -1

#: Words of the fabric: tails, completion vector, token of a pending batch. Flags of its entry.
TAIL_CLAIMED = 0
TAIL_BLOG_CLAIMED = 1
TAIL_BLOG_WANTED = 2
COMPLETED = 0
TOKEN_WORD = 7
FLAG_STRONG_ORDER = 1
FLAG_RECOVERED = 4
FLAG_NOP = 32
FLAG_REFUSED = 128
REFUSED_REASON_SHIFT = 16

#: In the order and the ack level of a batch: that of its topic.
AS_TOPIC = 0xFF
ORDER_STRONG = 5
#: Order and level of a refused batch: it is answered once it is ordered, not on arrival.
ORDER_REFUSED = 2
LEVEL_REFUSED = 1

LINE = 64

_pending = record_array(PENDING_ROW)


@kernel(void(int64_out, int64_out, _pending))
def free_completed(state: Words, completion: Words, pending: Rows) -> None:
    """Update which slots and bytes can be reused."""
    freed = min(load_acquire(completion, COMPLETED), state[ANSWERED])
    if freed > state[FREED]:
        # The row is still that of slot `freed` − 1: no more than a lap is claimed beyond what was free before.
        state[BLOG_FREED] = pending[(freed - 1) % pending.size]["blog_end"]
        state[FREED] = freed


@kernel(void(int64_out, int64_out, int64))
def want_bytes(state: Words, tails: Words, end: int) -> None:
    """Publish the end offset of a claim that waits for space; 0 if none waits."""
    if state[BLOG_WANTED] != end:
        state[BLOG_WANTED] = end
        store_release(tails, TAIL_BLOG_WANTED, end)


@kernel(int64(int64_out, int64_out, int64_out, _pending, int64, int64))
def claim_slot(state: Words, tails: Words, completion: Words, pending: Rows, blog_size: int, size: int) -> int:
    """Claim the next slot and `size` contiguous bytes; returns its absolute index, NO_SPACE or NEVER_FITS."""
    if size > blog_size:
        return NEVER_FITS
    free_completed(state, completion, pending)
    index = as_int64(state[CLAIMED])
    if index - state[FREED] >= pending.size:
        return NO_SPACE
    start = state[BLOG_CLAIMED]
    before_end = blog_size - start % blog_size
    if size > before_end:
        start += before_end
    if index == state[FREED]:
        state[BLOG_FREED] = start  # nothing is in use, so the skipped bytes are free
    after = start + (size + LINE - 1) // LINE * LINE
    if after - state[BLOG_FREED] > blog_size:
        want_bytes(state, tails, after)
        return NO_SPACE
    want_bytes(state, tails, 0)
    row = pending[index % pending.size]
    row["blog_offset"] = start
    row["blog_end"] = after
    row["size"] = size
    row["stage"] = STAGE_DONE
    # The skipped bytes belong to the slot before.
    if index > state[FREED]:
        pending[(index - 1) % pending.size]["blog_end"] = start
    state[CLAIMED] = index + 1
    state[BLOG_CLAIMED] = after
    store_release(tails, TAIL_BLOG_CLAIMED, after)
    store_release(tails, TAIL_CLAIMED, index + 1)
    return index


@kernel(void(bytes_out, int64_out, int64, int64, int64, int64, int64))
def publish_nop(entries: Bytes, slots: Words, index: int, blog_offset: int, broker: int, term: int, flags: int) -> None:
    """Publish a claimed slot without a batch."""
    base = slot_base(slots.size // SLOT_WORDS, index)
    for word in range(TOKEN_WORD):
        slots[base + word] = 0
    slots[base] = blog_offset
    store_u16(entries, base * 8 + 24, broker)
    store_u16(entries, base * 8 + 26, term)
    store_u32(entries, base * 8 + 28, flags | FLAG_NOP)
    store_release(slots, base + TOKEN_WORD, index + 1)


@kernel(void(int64_out, _pending, bytes_out, int64_out, bytes_in, int64, int64, int64, int64, int64))
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
    """Publish a claimed slot whose batch is in the BLog; `order` and `ack_level` are those of its topic."""
    row = pending[index % pending.size]
    at = as_int64(row["blog_offset"]) % blog.size
    asked_order = as_int64(blog[at + ORDER_AT])
    asked_level = as_int64(blog[at + LEVEL_AT])
    if asked_order == AS_TOPIC:
        asked_order = order
    if asked_level == AS_TOPIC:
        asked_level = ack_level
    flags = 0
    if asked_order == ORDER_STRONG:
        flags = FLAG_STRONG_ORDER
    base = slot_base(slots.size // SLOT_WORDS, index)
    to = base * 8
    slots[base] = row["blog_offset"]
    store_u32(entries, to + 8, as_int64(row["size"]))
    store_u32(entries, to + 12, load_u32(blog, at + RECORD_COUNT_AT))
    store_u32(entries, to + 16, load_u32(blog, at + TOPIC_AT))
    store_u32(entries, to + 20, load_u32(blog, at + BLOCK_CRC_AT))
    store_u16(entries, to + 24, state[BROKER])
    store_u16(entries, to + 26, term)
    store_u32(entries, to + 28, flags)
    store_u64(entries, to + 32, load_u64(blog, at + CLIENT_ID_AT))
    store_u64(entries, to + 40, load_u64(blog, at + CLIENT_SEQ_AT))
    store_u32(entries, to + 48, load_u32(blog, at + SESSION_EPOCH_AT))
    store_u32(entries, to + 52, 0)
    row["owner"] = owner
    row["client_id"] = load_u64(blog, at + CLIENT_ID_AT)
    row["client_seq"] = load_u64(blog, at + CLIENT_SEQ_AT)
    row["order"] = asked_order
    row["ack_level"] = asked_level
    row["stage"] = STAGE_WAITING
    store_release(slots, base + TOKEN_WORD, index + 1)


@kernel(void(int64_out, _pending, bytes_out, int64_out, bytes_in, int64, int64, int64, int64, int64))
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
    """Publish a claimed slot without bytes for the refused batch at `source[at]`; its client seq counts as used."""
    row = pending[index % pending.size]
    base = slot_base(slots.size // SLOT_WORDS, index)
    to = base * 8
    slots[base] = row["blog_offset"]
    store_u32(entries, to + 8, 0)
    store_u32(entries, to + 12, 0)
    store_u32(entries, to + 16, load_u32(source, at + TOPIC_AT))
    store_u32(entries, to + 20, load_u32(source, at + BLOCK_CRC_AT))
    store_u16(entries, to + 24, state[BROKER])
    store_u16(entries, to + 26, term)
    store_u32(entries, to + 28, FLAG_REFUSED | reason << REFUSED_REASON_SHIFT)
    store_u64(entries, to + 32, load_u64(source, at + CLIENT_ID_AT))
    store_u64(entries, to + 40, load_u64(source, at + CLIENT_SEQ_AT))
    store_u32(entries, to + 48, load_u32(source, at + SESSION_EPOCH_AT))
    store_u32(entries, to + 52, 0)
    row["owner"] = owner
    row["client_id"] = load_u64(source, at + CLIENT_ID_AT)
    row["client_seq"] = load_u64(source, at + CLIENT_SEQ_AT)
    row["order"] = ORDER_REFUSED
    row["ack_level"] = LEVEL_REFUSED
    row["stage"] = STAGE_WAITING
    store_release(slots, base + TOKEN_WORD, index + 1)


@kernel(
    int64(
        *(bytes_in, int64, int64, int64, int64, int64, int64),
        *(int64_out, int64_out, int64_out, _pending, bytes_out, int64_out, bytes_out, int64_out),
    )
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
    """Claim, fill and publish the adjacent batches in `source[start:end]`; returns why it stopped.

    Their checksums were verified on arrival.
    """
    at = start
    code = RUN_DONE
    progress[PROGRESS_COUNT] = 0
    progress[PROGRESS_FIRST] = state[CLAIMED]
    while at < end:
        after = batch_end(source, at, end)
        if after < 0:
            code = RUN_CUT
            break
        index = claim_slot(state, tails, completion, pending, blog.size, after - at)
        if index < 0:
            code = RUN_FULL if index == NO_SPACE else RUN_NEVER_FITS
            break
        copy_bytes(blog, pending[index % pending.size]["blog_offset"] % blog.size, source, at, after - at)
        publish_filled(state, pending, entries, slots, blog, index, owner, order, ack_level, term)
        progress[PROGRESS_COUNT] += 1
        at = after
    progress[PROGRESS_CONSUMED] = at
    return code


@kernel(int64(int64_out, int64_out, int64_out, _pending, int64, int64, int64))
def reserve_slot(
    state: Words,
    tails: Words,
    completion: Words,
    pending: Rows,
    blog_size: int,
    size: int,
    deadline_ns: int,
) -> int:
    """Claim for a batch that arrives until the deadline; returns its absolute index, NO_SPACE or NEVER_FITS."""
    index = claim_slot(state, tails, completion, pending, blog_size, size)
    if index >= 0:
        row = pending[index % pending.size]
        row["stage"] = STAGE_RESERVED
        row["deadline_ns"] = deadline_ns
    return index


@kernel(int64(int64_out, _pending, int64))
def is_reserved(state: Words, pending: Rows, index: int) -> int:
    """1 if a slot still waits for its batch."""
    if index < state[FREED] or index >= state[CLAIMED]:
        return 0
    return as_int64(pending[index % pending.size]["stage"] == STAGE_RESERVED)


@kernel(int64(int64_out, _pending, bytes_out, int64_out, bytes_in, int64, int64, int64, int64, int64))
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
    """Publish a reserved slot whose bytes are received; changes nothing if RESERVED_GONE or RESERVED_CUT."""
    if is_reserved(state, pending, index) == 0:
        return RESERVED_GONE
    row = pending[index % pending.size]
    size = as_int64(row["size"])
    at = as_int64(row["blog_offset"]) % blog.size
    if batch_end(blog, at, at + size) != at + size:
        return RESERVED_CUT
    publish_filled(state, pending, entries, slots, blog, index, owner, order, ack_level, term)
    return RESERVED_PUBLISHED


@kernel(int64(int64_out, _pending, bytes_out, int64_out, int64, int64))
def abandon_reserved(state: Words, pending: Rows, entries: Bytes, slots: Words, index: int, term: int) -> int:
    """Publish a reserved slot as a NOP; returns 1, or 0 if it is not reserved any more."""
    if is_reserved(state, pending, index) == 0:
        return 0
    row = pending[index % pending.size]
    row["stage"] = STAGE_DONE
    publish_nop(entries, slots, index, as_int64(row["blog_offset"]), state[BROKER], term, 0)
    return 1


@kernel(int64(int64_out, _pending, int64, int64_out))
def find_overdue(state: Words, pending: Rows, now_ns: int, found: Words) -> int:
    """List the reserved slots past their deadline in `found`, oldest first, as many as fit; returns how many."""
    count = 0
    for index in range(state[ANSWERED], state[CLAIMED]):
        if count == found.size:
            break
        row = pending[index % pending.size]
        if row["stage"] == STAGE_RESERVED and as_int64(row["deadline_ns"]) <= now_ns:
            found[count] = index
            count += 1
    return count


@kernel(int64(int64_out, int64_out, int64_out, _pending, bytes_out, int64_out, int64))
def resume_ring(
    state: Words,
    tails: Words,
    completion: Words,
    pending: Rows,
    entries: Bytes,
    slots: Words,
    term: int,
) -> int:
    """Take over the ring of a former broker; returns how many slots became NOPs, or −1 if its counts are inconsistent.

    No answers are due. A new ring is resumed as an empty one.
    """
    claimed = load_acquire(tails, TAIL_CLAIMED)
    completed = load_acquire(completion, COMPLETED)
    after = load_acquire(tails, TAIL_BLOG_CLAIMED)
    if completed < 0 or completed > claimed or claimed - completed > pending.size or after < 0:
        return -1
    state[CLAIMED] = claimed
    state[BLOG_CLAIMED] = after
    state[ANSWERED] = claimed
    state[FREED] = completed
    state[BLOG_WANTED] = 0
    store_release(tails, TAIL_BLOG_WANTED, 0)
    stuck = 0
    for back in range(claimed - completed):
        index = claimed - 1 - back
        row = pending[index % pending.size]
        row["blog_end"] = after
        row["stage"] = STAGE_DONE
        base = slot_base(slots.size // SLOT_WORDS, index)
        if load_acquire(slots, base + TOKEN_WORD) == index + 1:
            after = load_i64(entries, base * 8)
        else:
            publish_nop(entries, slots, index, after, state[BROKER], term, FLAG_RECOVERED)
            stuck += 1
        row["blog_offset"] = after
    state[BLOG_FREED] = after
    return stuck
