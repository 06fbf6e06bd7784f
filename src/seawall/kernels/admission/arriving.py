"""Validates the batches that publishers send and publishes the accepted ones to a broker's ring.

    validate_batches     one verdict for each BATCH frame of a run, from its header and its records
    publish_validated    copies the accepted batches into the ring of a broker; stops when the ring is full
    free_space_for    the offset that the next batch will get: a batch received there needs no copy

The frames are complete and their checksums verified (`frames.split_frames`). `orders` and `levels` give the order and
the ack level of each topic, by topic id; NO_TOPIC in `orders`, or an id beyond its end, means that there is no such
topic.

A verdict is ACCEPTED; the wire code of a refusal; INSPECT for a compressed batch, whose records the caller must check;
or MALFORMED for a header that no client may send, which closes the connection. NUMBER_USED is added to a code if the
batch belongs to the session. Such a refusal gets a slot too, without bytes: the sequencer then decides the batch's
client seq, so later batches do not wait for it.

INV-ARRIVAL-JUDGED: a batch of a connection is published only after it was verified: whole, of its session, and of a
type that a client may send. Its verdict was ACCEPTED: its record count is correct, and the server's fields are 0.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.kernels.codec.batch_header import (
    CLIENT_ID_AT,
    CLIENT_SEQ_AT,
    CODEC_AT,
    COMMAND_AT,
    FLAGS_AT,
    HEADER_SIZE,
    LEVEL_AT,
    ORDER_AT,
    RAW_LENGTH_AT,
    RECORD_COUNT_AT,
    RESERVED_AT,
    SESSION_EPOCH_AT,
    TERM_AT,
    TOPIC_AT,
)
from seawall.kernels.codec.blocks import RECORDS_VERSION_2, scan_block
from seawall.kernels.codec.frames import FRAME_ROW
from seawall.kernels.ordering.broker_ring import (
    BLOG_CLAIMED,
    BLOG_FREED,
    CLAIMED,
    FREED,
    LINE,
    NO_SPACE,
    PENDING_ROW,
    RUN_DONE,
    RUN_FULL,
    claim_slot,
    free_completed,
    publish_filled,
    publish_refused,
    want_bytes,
)
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import Bytes, address_of, as_int64, copy_bytes, load_i64, load_u16, load_u32
from seawall.kernels.runtime.rings import Words

Rows: TypeAlias = npt.NDArray[np.void]

#: Verdicts that are not wire codes.
ACCEPTED = 0
INSPECT = -1
MALFORMED = -2
#: Added to the code of a refusal that uses up the client seq of its batch.
NUMBER_USED = 1 << 16
CODE_MASK = NUMBER_USED - 1

REASON_TOO_LARGE = 0x03
REASON_INVALID = 0x04
REASON_TOPIC_NOT_FOUND = 0x10
REASON_FENCED = 0x24
REASON_NOT_ALLOWED = 0x27

#: In `orders`: no topic has this id.
NO_TOPIC = 0xFE

#: Indexes into `progress`: batches published, their bytes, the first slot index, and the first row not handled.
PROGRESS_COUNT = 0
PROGRESS_BYTES = 1
PROGRESS_FIRST = 2
PROGRESS_ROWS = 3
PROGRESS_SIZE = 4

_AS_TOPIC = 0xFF
_LEVEL_MAX = 2
_FLAG_OPAQUE = 2
_RECORDS_MAX = 65_536
_BLOCK_MAX = 16 * 1024 * 1024

_rows = record_array(FRAME_ROW)
_pending = record_array(PENDING_ROW)


@kernel(int64(bytes_in, int64, int64, int64, bytes_in, int64_out))
def _judge_content(buffer: Bytes, at: int, size: int, codecs: int, orders: Bytes, offsets: Words) -> int:
    """The verdict on a batch of the right session, without NUMBER_USED."""
    for word in range(at + 56, at + 80, 8):
        if load_i64(buffer, word) != 0:
            return REASON_INVALID
    if load_u32(buffer, at + RESERVED_AT) != 0 or load_u32(buffer, at + TERM_AT) != 0:
        return REASON_INVALID
    topic_id = load_u32(buffer, at + TOPIC_AT)
    if topic_id >= orders.size or orders[topic_id] == NO_TOPIC:
        return REASON_TOPIC_NOT_FOUND
    asked_order = as_int64(buffer[at + ORDER_AT])
    if asked_order != _AS_TOPIC and asked_order != as_int64(orders[topic_id]):
        return REASON_NOT_ALLOWED
    level = as_int64(buffer[at + LEVEL_AT])
    codec = as_int64(buffer[at + CODEC_AT])
    flags = as_int64(buffer[at + FLAGS_AT])
    if (level > _LEVEL_MAX and level != _AS_TOPIC) or (flags != 0 and flags != _FLAG_OPAQUE):
        return REASON_INVALID
    count = load_u32(buffer, at + RECORD_COUNT_AT)
    length = size - HEADER_SIZE
    raw_length = load_u32(buffer, at + RAW_LENGTH_AT)
    if count < 1 or count > _RECORDS_MAX or raw_length > _BLOCK_MAX or raw_length < 1:
        return REASON_INVALID
    if flags == _FLAG_OPAQUE and count != 1:
        return REASON_INVALID
    if codec != 0:
        return INSPECT if codec < 8 and (codecs >> codec) & 1 else REASON_INVALID
    if raw_length != length:
        return REASON_INVALID
    if flags == _FLAG_OPAQUE:
        return ACCEPTED
    found = scan_block(buffer, at + HEADER_SIZE, at + size, RECORDS_VERSION_2, _RECORDS_MAX, offsets)
    return ACCEPTED if found == count else REASON_INVALID


@kernel(int64(bytes_in, int64, int64, int64, int64, int64, bytes_in, int64_out))
def validate_batch(
    buffer: Bytes, at: int, size: int, client_id: int, session_epoch: int, codecs: int, orders: Bytes, offsets: Words
) -> int:
    """The verdict on one complete batch; `codecs` has a bit for each negotiated codec, `offsets` is empty."""
    if load_u16(buffer, at + COMMAND_AT) != 0 or load_i64(buffer, at + CLIENT_SEQ_AT) <= 0:
        return MALFORMED
    if load_i64(buffer, at + CLIENT_ID_AT) != client_id:
        return REASON_INVALID
    if load_u32(buffer, at + SESSION_EPOCH_AT) != session_epoch:
        return REASON_FENCED
    verdict = _judge_content(buffer, at, size, codecs, orders, offsets)
    return verdict | NUMBER_USED if verdict > ACCEPTED else verdict


@kernel(int64(bytes_in, _rows, int64, int64, int64, bytes_in, int64_out, int64_out))
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
    """Write a verdict for each row, all of them BATCH frames; returns how many are not ACCEPTED."""
    others = 0
    for index in range(rows.size):
        at = as_int64(rows[index]["at"])
        size = as_int64(rows[index]["size"])
        verdict = validate_batch(buffer, at, size, client_id, session_epoch, codecs, orders, offsets)
        verdicts[index] = verdict
        if verdict != ACCEPTED:
            others += 1
    return others


@kernel(int64(int64_out, int64, int64))
def _next_start(state: Words, blog_size: int, size: int) -> int:
    """The absolute BLog offset at which the next claim of `size` bytes starts."""
    start = as_int64(state[BLOG_CLAIMED])
    before_end = blog_size - start % blog_size
    return start + before_end if size > before_end else start


@kernel(int64(int64_out, int64_out, _pending, int64, int64))
def free_space_for(state: Words, completion: Words, pending: Rows, blog_size: int, size: int) -> int:
    """The BLog offset of the next claim of `size` bytes, valid until another claim is made; or NO_SPACE."""
    free_completed(state, completion, pending)
    if size > blog_size or state[CLAIMED] - state[FREED] >= pending.size:
        return NO_SPACE
    start = _next_start(state, blog_size, size)
    freed = start if state[CLAIMED] == state[FREED] else as_int64(state[BLOG_FREED])
    after = start + (size + LINE - 1) // LINE * LINE
    return NO_SPACE if after - freed > blog_size else start % blog_size


@kernel(void(int64_out, int64_out, int64, int64))
def want_space(state: Words, tails: Words, blog_size: int, size: int) -> None:
    """Ask to be woken when the next claim of `size` bytes, which fit the BLog, has space."""
    want_bytes(state, tails, _next_start(state, blog_size, size) + (size + LINE - 1) // LINE * LINE)


@kernel(
    int64(
        *(bytes_in, _rows, int64_out, int64, bytes_in, bytes_in, int64),
        *(int64_out, int64_out, int64_out, _pending, bytes_out, int64_out, bytes_out, int64_out),
    )
)
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
    """Claim, fill and publish the batches with verdict ACCEPTED, and the refusals with NUMBER_USED.

    A batch that was received at its claimed offset (`free_space_for`) is not copied. A batch anywhere in the free
    part of the BLog must be the only one of the call: copying another one could overwrite it.

    Returns RUN_DONE, or RUN_FULL before the first batch without space. Refuses a batch larger than the whole BLog.
    """
    code = RUN_DONE
    count = 0
    size_total = 0
    index = 0
    progress[PROGRESS_FIRST] = state[0]
    while index < rows.size:
        at = as_int64(rows[index]["at"])
        size = as_int64(rows[index]["size"])
        if verdicts[index] == ACCEPTED and size > blog.size:
            verdicts[index] = REASON_TOO_LARGE | NUMBER_USED
        if verdicts[index] == ACCEPTED or verdicts[index] >= NUMBER_USED:
            is_accepted = verdicts[index] == ACCEPTED
            slot = claim_slot(state, tails, completion, pending, blog.size, size if is_accepted else 0)
            if slot == NO_SPACE:
                code = RUN_FULL
                break
            if is_accepted:
                topic_id = load_u32(source, at + TOPIC_AT)
                order = as_int64(orders[topic_id])
                level = as_int64(levels[topic_id])
                offset = as_int64(pending[slot % pending.size]["blog_offset"]) % blog.size
                if address_of(blog, offset) != address_of(source, at):
                    copy_bytes(blog, offset, source, at, size)
                publish_filled(state, pending, entries, slots, blog, slot, owner, order, level, term)
                size_total += size
            else:
                reason = as_int64(verdicts[index]) & CODE_MASK
                publish_refused(state, pending, entries, slots, source, at, slot, owner, reason, term)
            count += 1
        index += 1
    progress[PROGRESS_COUNT] = count
    progress[PROGRESS_BYTES] = size_total
    progress[PROGRESS_ROWS] = index
    return code
