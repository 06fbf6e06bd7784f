"""The whole turn of a server for one batch that came alone: from the bytes that were received to its ack.

    check     the bytes are one whole BATCH frame, and it may be taken
    commit    `lone_arrival`: ordered, numbered, written, durable
    answer    its ACK frame, sent at once where there is a socket
    wait      for the next one, where the connection sends one upon each answer: that is taken by the same call

What is special about the connection lies in the words of a *turn*; what the store needs is on the desk of
`lone_arrival`, where the next turn finds what it needs if nobody else has changed the store meanwhile. Whatever is not
that simple takes the ordinary way: PASSES_ON, and nothing has changed.

INV-TURN-SAME: what is taken here would have been taken there, and its answer is the same bytes (`wire.ack_rows`).
INV-TURN-OTHERS: the next one is waited for a moment only, not at all where it did not come soon the last time, and no
longer than until anybody else wants the thread.
"""

from __future__ import annotations

import errno

from seawall.kernels.arriving import TAKEN, judge_batch
from seawall.kernels.batch_header import CLIENT_SEQ_AT, KIND_AT, LEVEL_AT, RECORD_COUNT_AT, TOPIC_AT
from seawall.kernels.checksum import crc32c
from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.frames import (
    FRAME_ROW,
    KIND_ACK,
    KIND_BATCH,
    MAGIC,
    SPLIT_MORE,
    STATE_CONSUMED,
    STATE_FRAMES,
    Rows,
    split_frames,
)
from seawall.kernels.jit import bytes_in, bytes_out, int64, int64_out, kernel, record_array, void
from seawall.kernels.lone_arrival import (
    ADDRESS,
    BASE_SEQ,
    DESK_SIZE,
    EPOCH,
    FOLLOWED,
    PASSES_ON,
    POSITION,
    STAGED_ROW,
    SYNCED_THROUGH,
    TIMESTAMP,
    WALL_NS,
    commit_lone_arrival,
)
from seawall.kernels.memory import Bytes, address_of, as_int64, load_i64, load_u32, store_u32, store_u64
from seawall.kernels.system import monotonic_ns, poll_readable, receive_some, send_some, yield_core
from seawall.kernels.tables import Values

#: What the connection agreed: its client, session and codecs, its window, and the largest payload.
CLIENT_ID = 0
SESSION_EPOCH = 1
CODECS = 2
WINDOW_BATCHES = 3
WINDOW_BYTES = 4
PAYLOAD_MAX = 5
#: The highest number that it has brought so far, and the socket, or -1 where somebody else sends.
HIGHEST = 6
SOCKET = 7
#: The level of the batch, entries that its ack has for those before it, and bytes of the ack that were sent.
LEVEL = 8
ENTRIES = 9
SENT = 10
#: A descriptor that is readable when others want the thread, or -1 where nothing is waited for; when the last answer
#: went; and bytes that came then, and were not taken.
OTHERS = 11
ANSWERED_NS = 12
RECEIVED = 13
TURN_SIZE = 14

#: On the desk, behind its own words, where the epoch is written: kind of operation, file, position, sync by the write.
KIND = DESK_SIZE
FILE = DESK_SIZE + 1
FILE_AT = DESK_SIZE + 2
DIRECT_SYNC = DESK_SIZE + 3
#: For which topic there is room, until when, for how many batches and records, and for how many bytes of epochs.
TOPIC_ID = DESK_SIZE + 4
UNTIL_NS = DESK_SIZE + 5
BATCHES_LEFT = DESK_SIZE + 6
RECORDS_LEFT = DESK_SIZE + 7
BYTES_LEFT = DESK_SIZE + 8
#: After how long no other batch is waited for.
PATIENCE_NS = DESK_SIZE + 9
#: What came of it: batches that were taken, the bytes of their epochs, and the longest time that one of them took.
TAKEN_BATCHES = DESK_SIZE + 10
TAKEN_BYTES = DESK_SIZE + 11
LONGEST_NS = DESK_SIZE + 12
LONG_DESK_SIZE = DESK_SIZE + 13

#: How soon a batch comes after an answer that was waited for, and for how long the next one is waited for, too.
WAIT_NS = 150_000

#: The largest ACK frame: entries of one turn that go together.
ENTRIES_MAX = 16
ACK_PREFIX = 44 + 16
ACK_ENTRY = 48
ACK_SIZE = ACK_PREFIX + ENTRIES_MAX * ACK_ENTRY

_AS_TOPIC = 0xFF
ORDERED = 1
DURABLE = 2
_NO_ORDER = 0
CLIENT_ORDER = 5
_NOTHING_YET = -errno.EAGAIN
_TURN = int64(
    *(bytes_out, int64_out, int64_out, bytes_out, int64),
    *(bytes_in, bytes_in, record_array(FRAME_ROW), int64_out, bytes_out),
)
_ACK_START = MAGIC | 2 << 32 | KIND_ACK << 40


@kernel(int64(int64_out, bytes_out, int64, int64, bytes_in, bytes_in, record_array(FRAME_ROW), int64_out))
def check_lone_turn(
    turn: Values, source: Bytes, size: int, lowest: int, orders: Bytes, levels: Bytes, rows: Rows, state: Values
) -> int:
    """The order of the batch that these bytes are, if it may be committed alone; PASSES_ON elsewhere.

    It has to be one that is answered, at level `lowest` or above. `rows` has it, as split: what checksum was behind it
    does not count.
    """
    if split_frames(source, 0, size, turn[PAYLOAD_MAX], rows, state) != SPLIT_MORE:
        return PASSES_ON
    if state[STATE_FRAMES] != 1 or state[STATE_CONSUMED] != size or as_int64(source[KIND_AT]) != KIND_BATCH:
        return PASSES_ON
    # An array without elements: nobody asks where the records lie.
    nowhere = state[:0]
    epoch = turn[SESSION_EPOCH] & 0xFFFF_FFFF
    size = as_int64(rows[0]["size"])
    verdict = judge_batch(source, 0, size, turn[CLIENT_ID], epoch, turn[CODECS], orders, nowhere)
    if verdict != TAKEN:
        return PASSES_ON
    topic_id = load_u32(source, TOPIC_AT)
    level = as_int64(source[LEVEL_AT])
    if level == _AS_TOPIC:
        level = as_int64(levels[topic_id])
    turn[LEVEL] = level
    order = as_int64(orders[topic_id])
    return order if lowest <= level <= DURABLE and order != _NO_ORDER else PASSES_ON


@kernel(void(int64_out, int64_out, bytes_in, bytes_out))
def seal_lone_ack(turn: Values, desk: Values, source: Bytes, ack: Bytes) -> None:
    """The ACK frame of the batch, of the level it was checked for, and of those that the frame has already."""
    client_seq = load_i64(source, CLIENT_SEQ_AT)
    at = ACK_PREFIX + turn[ENTRIES] * ACK_ENTRY
    turn[ENTRIES] += 1
    turn[HIGHEST] = max(turn[HIGHEST], client_seq)
    end = at + ACK_ENTRY
    store_u64(ack, 44, turn[SESSION_EPOCH])
    store_u32(ack, 52, turn[WINDOW_BATCHES])
    store_u32(ack, 56, turn[WINDOW_BYTES])
    store_u64(ack, at, client_seq)
    store_u64(ack, at + 8, desk[BASE_SEQ])
    store_u64(ack, at + 16, desk[POSITION])
    store_u64(ack, at + 24, desk[TIMESTAMP])
    store_u32(ack, at + 32, load_u32(source, TOPIC_AT))
    store_u32(ack, at + 36, 1)
    store_u32(ack, at + 40, load_u32(source, RECORD_COUNT_AT))
    store_u32(ack, at + 44, turn[LEVEL] << 8)
    store_u64(ack, 0, _ACK_START)
    store_u64(ack, 12, turn[HIGHEST])
    store_u64(ack, 20, 0)
    store_u32(ack, 28, turn[ENTRIES])
    store_u32(ack, 32, end - 44)
    store_u32(ack, 36, crc32c(ack, 44, end, 0))
    store_u32(ack, 40, 0)
    store_u32(ack, 8, crc32c(ack, 12, 44, crc32c(ack, 0, 8, 0)))


@kernel(void(int64_out, int64))
def prepare_next(desk: Values, size: int) -> None:
    """An epoch of so many bytes is written and durable: the next one goes behind it."""
    desk[EPOCH] += 1
    desk[ADDRESS] += size
    desk[SYNCED_THROUGH] = desk[ADDRESS]
    desk[STAGED_ROW] += 1
    desk[FOLLOWED] += 1
    desk[FILE_AT] += size


@kernel(int64(int64_out, bytes_in, int64))
def has_room(desk: Values, source: Bytes, size: int) -> int:
    """Whether there is room for the batch that these bytes are: 1 or 0."""
    if load_u32(source, TOPIC_AT) != desk[TOPIC_ID] or desk[WALL_NS] >= desk[UNTIL_NS]:
        return 0
    if load_u32(source, RECORD_COUNT_AT) > desk[RECORDS_LEFT] or EPOCH_HEADER + size > desk[BYTES_LEFT]:
        return 0
    return 1 if desk[BATCHES_LEFT] > 0 else 0


@kernel(_TURN)
def take_lone_turn(
    memory: Bytes,
    desk: Values,
    turn: Values,
    source: Bytes,
    size: int,
    orders: Bytes,
    levels: Bytes,
    rows: Rows,
    state: Values,
    ack: Bytes,
) -> int:
    """Commit the batch that these bytes are and answer it: bytes written, PASSES_ON, or minus errno.

    If fewer were written than `EPOCH_HEADER + size`, whoever writes the rest settles the batch and seals its ack.
    """
    turn[SENT] = 0
    order = check_lone_turn(turn, source, size, DURABLE, orders, levels, rows, state)
    if order < 0 or as_int64(rows[0]["size"]) != size or has_room(desk, source, size) == 0:
        return PASSES_ON
    if EPOCH_HEADER + size > memory.size:
        return PASSES_ON
    is_strong = 1 if order == CLIENT_ORDER else 0
    kind, file, at, direct_sync = desk[KIND], desk[FILE], desk[FILE_AT], desk[DIRECT_SYNC]
    written = commit_lone_arrival(memory, desk, source, 0, size, is_strong, kind, file, at, direct_sync)
    if written == EPOCH_HEADER + size:
        seal_lone_ack(turn, desk, source, ack)
        if turn[SOCKET] >= 0:
            size = ACK_PREFIX + turn[ENTRIES] * ACK_ENTRY
            turn[SENT] = max(0, send_some(turn[SOCKET], address_of(ack, 0), size))
        prepare_next(desk, written)
    return written


@kernel(int64(int64_out, bytes_out))
def await_batch(turn: Values, source: Bytes) -> int:
    """Bytes that a connection has sent; 0 if none come soon, or somebody else wants the thread (INV-TURN-OTHERS).

    Who sleeps is woken late: the core is kept, but for others who wait for one.
    """
    began = monotonic_ns()
    received = receive_some(turn[SOCKET], address_of(source, 0), source.size)
    while received == _NOTHING_YET and monotonic_ns() - began < WAIT_NS:
        is_wanted = poll_readable(turn[OTHERS], 0)
        yield_core()
        received = receive_some(turn[SOCKET], address_of(source, 0), source.size)
        if is_wanted != 0:
            # By this connection, perhaps.
            break
    # The end of a stream, and its errors, are for whoever listens to it.
    return max(received, 0)


@kernel(_TURN)
def take_lone_turns(
    memory: Bytes,
    desk: Values,
    turn: Values,
    source: Bytes,
    size: int,
    orders: Bytes,
    levels: Bytes,
    rows: Rows,
    state: Values,
    ack: Bytes,
) -> int:
    """`take_lone_turn`, and those of the batches that come upon its answer: what the last one said.

    The desk says how many were taken before that, or with it; of one that was not all written, and of bytes that were
    received and passed on, nothing counts yet.
    """
    began = monotonic_ns()
    wall_ns, came = desk[WALL_NS], began
    turn[RECEIVED] = 0
    while True:
        is_soon = came - turn[ANSWERED_NS] < WAIT_NS
        written = take_lone_turn(memory, desk, turn, source, size, orders, levels, rows, state, ack)
        if written != EPOCH_HEADER + size:
            return written
        turn[RECEIVED] = 0
        turn[ANSWERED_NS] = monotonic_ns()
        desk[TAKEN_BATCHES] += 1
        desk[TAKEN_BYTES] += written
        desk[BATCHES_LEFT] -= 1
        desk[RECORDS_LEFT] -= load_u32(source, RECORD_COUNT_AT)
        desk[BYTES_LEFT] -= written
        desk[LONGEST_NS] = max(desk[LONGEST_NS], turn[ANSWERED_NS] - came)
        if not is_soon or turn[OTHERS] < 0 or turn[SENT] != ACK_PREFIX + turn[ENTRIES] * ACK_ENTRY:
            return written
        if turn[ANSWERED_NS] - began > desk[PATIENCE_NS] or has_room(desk, source, size) == 0:
            return written
        size = await_batch(turn, source)
        if size == 0:
            return written
        turn[RECEIVED] = size
        turn[ENTRIES] = 0
        came = monotonic_ns()
        desk[WALL_NS] = wall_ns + came - began
