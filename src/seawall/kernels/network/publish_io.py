"""Receive the small batches of many connections in one call, and send their acks in another.

    receive_batches   wait until connections are readable, receive, split and check: the complete batches of all of
                      them, as rows for a commit cycle (`cycle_records.RECEIVED_ROW`) that point into the receive buffer
    accept_batches    its part for one connection, without system calls
    accept_v1_frames  the same for a version 1 connection, whose frames are converted to batches first
    send_acks         one ACK frame for each connection with stored batches, sent immediately
    write_ack         its part that builds the frame
    write_v1_acks     the same for version 1: an ack for each frame

Only the simple case is handled here: plain batches below LARGE_SIZE, of the connection's own session, each with the
next client seq, for topics with an order; for version 1, plain ingest frames for the topic that the connection was
attached with. Anything else, including errors and the end of the stream, makes the connection RETURNED: the event loop
handles its bytes from there on. Batches before that point are still part of the cycle.

The beginning of a batch that is still arriving is kept in one of a few tail buffers. If none is free, the connection is
RETURNED, too.

INV-PUBLISH-IO-WHOLE: every whole batch that the publish thread receives is committed, in its order, or returned with
its connection. It is a row, or among the bytes of a RETURNED connection. The rows of one connection are consecutive,
and their client seqs rise by one from the connection's highest.
"""

from __future__ import annotations

import errno
import platform

import numpy as np

from seawall.kernels.admission.arriving import ACCEPTED, NO_TOPIC, validate_batch
from seawall.kernels.codec.batch_header import (
    CLIENT_SEQ_AT,
    CRC_AT,
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    KIND_AT,
    LENGTH_AT,
    LEVEL_AT,
    RECORD_COUNT_AT,
    TOPIC_AT,
)
from seawall.kernels.codec.checksum import crc32, crc32c
from seawall.kernels.codec.frames import (
    FRAME_ROW,
    KIND_ACK,
    KIND_BATCH,
    MAGIC,
    SPLIT_MORE,
    STATE_CONSUMED,
    STATE_CRC,
    STATE_FRAMES,
    STATE_NEEDED,
    STATE_SUMMED,
    STATE_VERSION,
    Rows,
    split_frames,
)
from seawall.kernels.codec.v1_payloads import make_batches
from seawall.kernels.log.cycle_records import LARGE_SIZE, RECEIVED_ROW
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int32_out, int64, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import (
    Array,
    Bytes,
    address_of,
    as_int64,
    copy_bytes,
    load_i64,
    load_u32,
    store_u32,
    store_u64,
)
from seawall.kernels.runtime.system import epoll_ready, monotonic_ns, receive_some, send_some, take_event
from seawall.kernels.runtime.tables import Values

#: A connection: its socket, version and session; for version 1, its topic as numbered in frames and in the log; the
#: content of its acks; its state, highest client seq and last receive time; its tail buffer, or -1, the size of its
#: content and its age. For the current cycle: the end of its bytes in the receive buffer, the range of unhandled bytes
#: if it is RETURNED, and the range of unsent bytes of its ack.
CONNECTION_ROW = np.dtype(
    [
        *((name, np.int64) for name in ("fd", "version", "client_id", "session_epoch", "payload_max")),
        *((name, np.int64) for name in ("wire_topic", "topic_id")),
        *((name, np.int64) for name in ("window_batches", "window_bytes", "has_runs")),
        *((name, np.int64) for name in ("state", "highest", "received_ns")),
        *((name, np.int64) for name in ("tail", "tail_size", "tail_ns")),
        *((name, np.int64) for name in ("end", "rest_at", "rest_end", "unsent_at", "unsent_end")),
    ]
)

#: States of a connection.
FREE = 0
ATTACHED = 1
RETURNED = 2

#: Indexes in `progress`: rows, used bytes of the receive buffer, number of RETURNED connections, whether the waker was
#: signalled, and bytes of acks.
ROWS = 0
BYTES = 1
RETURNS = 2
WOKEN = 3
ACK_BYTES = 4
PROGRESS_SIZE = 5

#: The smallest batch, and the most rows and version 1 frames of one receive.
BATCH_SIZE_MIN = 97
ROWS_PER_RECEIVE = LARGE_SIZE // BATCH_SIZE_MIN + 1
FRAMES_PER_RECEIVE = LARGE_SIZE // (FRAME_HEADER_SIZE + 1) + 1

#: Bytes of the receive buffer that one receive needs: version 1 batches are built after the received frames.
RECEIVE_SIZE = LARGE_SIZE
V1_RECEIVE_SIZE = 3 * LARGE_SIZE

#: Size of an epoll event, which is packed on x86-64 only, and the offset of its descriptor.
EVENT_SIZE, EVENT_FD_AT = (12, 4) if platform.machine() == "x86_64" else (16, 8)

ACK_PREFIX = 44 + 16
ACK_ENTRY = 48

_AS_TOPIC = 0xFF
_LEVEL_MAX = 2
_NO_ORDER = 0
_CLIENT_ORDER = 5
_VERSION = 2
_WOULD_BLOCK = -errno.EAGAIN
_INTERRUPTED = -errno.EINTR
_ACK_START = MAGIC | _VERSION << 32 | KIND_ACK << 40
_V1_ACK_START = MAGIC | 1 << 32 | KIND_ACK << 40
_LEVEL_DURABLE = 2

_connections = record_array(CONNECTION_ROW)
_connection = _connections.dtype
_received = record_array(RECEIVED_ROW)
_frames = record_array(FRAME_ROW)


@kernel(int64(_connection, bytes_out, int64, int64, bytes_in, int64_out))
def _order_if_handled(connection: np.void, buffer: Bytes, at: int, size: int, orders: Bytes, state: Values) -> int:
    """The order of a batch that is handled here, else -1."""
    if size >= LARGE_SIZE or as_int64(buffer[at + KIND_AT]) != KIND_BATCH:
        return -1
    if load_i64(buffer, at + CLIENT_SEQ_AT) != connection["highest"] + 1:
        return -1
    # Empty: the offsets of the records are not needed. Compressed batches are not handled here.
    no_offsets = state[:0]
    epoch = connection["session_epoch"] & 0xFFFF_FFFF
    if validate_batch(buffer, at, size, connection["client_id"], epoch, 0, orders, no_offsets) != ACCEPTED:
        return -1
    order = as_int64(orders[load_u32(buffer, at + TOPIC_AT)])
    return order if order != _NO_ORDER else -1


@kernel(void(_connection, bytes_out, int64, int64, _frames, int64_out))
def _split(connection: np.void, buffer: Bytes, at: int, end: int, rows: Rows, state: Values) -> None:
    """Split `buffer[at:end]` into frames. The rest is a frame that is still arriving, or the connection is RETURNED."""
    state[STATE_VERSION] = connection["version"]
    state[STATE_SUMMED] = 0
    state[STATE_CRC] = 0
    code = split_frames(buffer, at, end, connection["payload_max"], rows, state)
    connection["rest_at"] = state[STATE_CONSUMED]
    connection["rest_end"] = end
    connection["end"] = end
    if code != SPLIT_MORE or state[STATE_NEEDED] > LARGE_SIZE:
        connection["state"] = RETURNED


@kernel(int64(_connections, int64, bytes_out, int64, int64, _received, int64, bytes_in, bytes_in, _frames, int64_out))
def accept_batches(
    connections: Array,
    index: int,
    buffer: Bytes,
    at: int,
    end: int,
    received: Array,
    count: int,
    orders: Bytes,
    levels: Bytes,
    rows: Rows,
    state: Values,
) -> int:
    """Append a row to `received[:count]` for each batch in `buffer[at:end]`. Returns the new number of rows.

    Afterwards `rest_at` of the connection is the start of a batch that is still arriving; or the connection is RETURNED
    with the bytes that are not handled here.
    """
    connection = connections[index]
    _split(connection, buffer, at, end, rows, state)
    for number in range(state[STATE_FRAMES]):
        frame_at, size = as_int64(rows[number]["at"]), as_int64(rows[number]["size"])
        order = _order_if_handled(connection, buffer, frame_at, size, orders, state)
        if order < 0:
            connection["state"] = RETURNED
            connection["rest_at"] = frame_at
            return count
        level = as_int64(buffer[frame_at + LEVEL_AT])
        if level == _AS_TOPIC:
            level = as_int64(levels[load_u32(buffer, frame_at + TOPIC_AT)])
        row = received[count]
        row["connection"] = index
        row["at"] = frame_at
        row["size"] = size
        row["is_strong"] = 1 if order == _CLIENT_ORDER else 0
        row["level"] = level
        row["frames_at"] = frame_at
        row["frames"] = 1
        row["is_staged"] = 0
        connection["highest"] += 1
        count += 1
    return count


@kernel(
    int64(
        *(_connections, int64, bytes_out, int64, int64, _received, int64, bytes_in, _frames, _frames),
        *(int64_out, int64_out),
    )
)
def accept_v1_frames(
    connections: Array,
    index: int,
    buffer: Bytes,
    at: int,
    end: int,
    received: Array,
    count: int,
    orders: Bytes,
    rows: Rows,
    made_rows: Rows,
    frame_counts: Values,
    state: Values,
) -> int:
    """`accept_batches` for version 1: converts frames to batches, which it writes to the buffer from `end` on."""
    connection = connections[index]
    _split(connection, buffer, at, end, rows, state)
    topic_id = as_int64(connection["topic_id"])
    order = as_int64(orders[topic_id]) if topic_id < orders.size else _NO_ORDER
    frames = rows[: state[STATE_FRAMES]]
    if frames.size == 0:
        return count
    made = 0
    if order != _NO_ORDER and order != NO_TOPIC and as_int64(frames[0]["topic_id"]) == connection["wire_topic"]:
        out = buffer[end : end + V1_RECEIVE_SIZE - LARGE_SIZE]
        free_rows = made_rows[: max(0, min(made_rows.size, received.size - count))]
        next_seq = connection["highest"] + 1
        size_max = LARGE_SIZE - HEADER_SIZE - 1
        made = make_batches(
            buffer, frames, 0, topic_id, connection["client_id"], next_seq, size_max, out, free_rows, frame_counts
        )
    frames_used = 0
    for number in range(made):
        batch = made_rows[number]
        if as_int64(batch["size"]) >= LARGE_SIZE:
            break
        row = received[count]
        row["connection"] = index
        row["at"] = end + as_int64(batch["at"])
        row["size"] = batch["size"]
        row["is_strong"] = 1 if order == _CLIENT_ORDER else 0
        row["level"] = _LEVEL_DURABLE
        row["frames_at"] = frames[frames_used]["at"]
        row["frames"] = frame_counts[number]
        row["is_staged"] = 0
        connection["end"] = row["at"] + row["size"]
        connection["highest"] += 1
        count += 1
        frames_used += frame_counts[number]
    if frames_used < frames.size:
        connection["state"] = RETURNED
        connection["rest_at"] = frames[frames_used]["at"]
    return count


@kernel(int64(_connection, bytes_in, bytes_out, int64_out))
def _keep_tail(connection: np.void, buffer: Bytes, tails: Bytes, owners: Values) -> int:
    """Copy the bytes of a batch that is still arriving to a tail buffer. Returns 1, or 0 if no tail buffer is free."""
    size = as_int64(connection["rest_end"] - connection["rest_at"])
    tail = as_int64(connection["tail"])
    if size > 0 and tail < 0:
        for number in range(owners.size):
            if owners[number] == 0:
                tail = number
                break
        if tail < 0:
            return 0
        owners[tail] = 1
    if size > 0:
        copy_bytes(tails, tail * LARGE_SIZE, buffer, as_int64(connection["rest_at"]), size)
    elif tail >= 0:
        owners[tail] = 0
        tail = -1
    connection["tail"] = tail
    connection["tail_size"] = size
    return 1


@kernel(int64(_connection, bytes_in, bytes_out, int64_out))
def _keep_or_return(connection: np.void, buffer: Bytes, tails: Bytes, owners: Values) -> int:
    """Finish a receive: keep the tail. Returns 1 if the connection is RETURNED, which frees its tail buffer; else 0."""
    if connection["state"] == ATTACHED and _keep_tail(connection, buffer, tails, owners) == 0:
        connection["state"] = RETURNED
    if connection["state"] != RETURNED:
        return 0
    if connection["tail"] >= 0:
        owners[connection["tail"]] = 0
        connection["tail"] = -1
    return 1


@kernel(
    int64(
        *(int64, int64, int64, bytes_out, int32_out, _connections, bytes_out, bytes_out, int64_out),
        *(_received, bytes_in, bytes_in, _frames, _frames, int64_out, int64_out, int64_out),
    )
)
def receive_batches(
    epoll: int,
    waker: int,
    timeout_ms: int,
    events: Bytes,
    by_descriptor: Array,
    connections: Array,
    buffer: Bytes,
    tails: Bytes,
    owners: Values,
    received: Array,
    orders: Bytes,
    levels: Bytes,
    rows: Rows,
    made_rows: Rows,
    frame_counts: Values,
    state: Values,
    progress: Values,
) -> int:
    """Wait up to `timeout_ms`, and receive from all readable connections. Returns the number of rows, or minus errno.

    `by_descriptor` has 1 + the index of each connection. Bytes stay in their socket if the buffer or the rows have no
    space for them.
    """
    progress[:] = 0
    found = epoll_ready(epoll, address_of(events, 0), events.size // EVENT_SIZE, timeout_ms)
    if found < 0:
        return 0 if found == _INTERRUPTED else found
    now = monotonic_ns()
    used = count = 0
    for event in range(found):
        descriptor = load_u32(events, event * EVENT_SIZE + EVENT_FD_AT)
        if descriptor == waker:
            take_event(waker)
            progress[WOKEN] = 1
            continue
        index = as_int64(by_descriptor[descriptor]) - 1
        if index < 0 or connections[index]["state"] != ATTACHED:
            continue
        connection = connections[index]
        needed = RECEIVE_SIZE if connection["version"] == _VERSION else V1_RECEIVE_SIZE
        if used + needed > buffer.size or count + ROWS_PER_RECEIVE > received.size:
            break
        kept = as_int64(connection["tail_size"])
        size = receive_some(descriptor, address_of(buffer, used + kept), LARGE_SIZE - kept)
        if size == _WOULD_BLOCK:
            continue
        if kept > 0:
            copy_bytes(buffer, used, tails, as_int64(connection["tail"]) * LARGE_SIZE, kept)
        end = used + kept + max(0, size)
        connection["end"] = end
        if size > 0:
            connection["received_ns"] = now
            arguments = (buffer, used, end, received, count, orders)
            if connection["version"] == _VERSION:
                count = accept_batches(connections, index, *arguments, levels, rows, state)
            else:
                count = accept_v1_frames(connections, index, *arguments, rows, made_rows, frame_counts, state)
            if kept == 0 or connection["rest_at"] != used:
                connection["tail_ns"] = now
        else:
            # The end of the stream or an error: the event loop will find it again.
            connection["state"] = RETURNED
            connection["rest_at"] = used
            connection["rest_end"] = end
        progress[RETURNS] += _keep_or_return(connection, buffer, tails, owners)
        used = as_int64(connection["end"])
    progress[ROWS] = count
    progress[BYTES] = used
    return count


@kernel(int64(_connections, int64, bytes_in, _received, int64, int64, bytes_out, int64))
def write_ack(
    connections: Array, index: int, buffer: Bytes, received: Array, first: int, end: int, acks: Bytes, at: int
) -> int:
    """Write the ACK frame of the stored rows from `first` to `end` at `at`. Returns its end.

    Writes nothing if no batch requests an ack. Consecutive batches of one topic and level share an entry if the peer
    supports that.
    """
    connection = connections[index]
    entries = 0
    entry = at + ACK_PREFIX
    through = 0
    run = 0
    for number in range(first, end):
        row = received[number]
        source = as_int64(row["at"])
        through = load_i64(buffer, source + CLIENT_SEQ_AT)
        level = as_int64(row["level"])
        if level == 0:
            run = 0
            continue
        topic_id = load_u32(buffer, source + TOPIC_AT)
        is_same = run > 0 and load_u32(acks, entry + 32) == topic_id and as_int64(acks[entry + 45]) == level
        if is_same and connection["has_runs"] != 0:
            run += 1
        else:
            run = 1
            entry = at + ACK_PREFIX + entries * ACK_ENTRY
            entries += 1
        store_u64(acks, entry, through)
        store_u64(acks, entry + 8, row["base_seq"])
        store_u64(acks, entry + 16, row["position"])
        store_u64(acks, entry + 24, row["timestamp_ns"])
        store_u32(acks, entry + 32, topic_id)
        store_u32(acks, entry + 36, run)
        store_u32(acks, entry + 40, load_u32(buffer, source + RECORD_COUNT_AT))
        store_u32(acks, entry + 44, level << 8)
    if entries == 0:
        return at
    after = at + ACK_PREFIX + entries * ACK_ENTRY
    store_u64(acks, at + 44, connection["session_epoch"])
    store_u32(acks, at + 52, connection["window_batches"])
    store_u32(acks, at + 56, connection["window_bytes"])
    store_u64(acks, at, _ACK_START)
    store_u64(acks, at + 12, through)
    store_u64(acks, at + 20, 0)
    store_u32(acks, at + 28, entries)
    store_u32(acks, at + 32, after - at - 44)
    store_u32(acks, at + 36, crc32c(acks, at + 44, after, 0))
    store_u32(acks, at + 40, 0)
    store_u32(acks, at + 8, crc32c(acks, at + 12, at + 44, crc32c(acks, at, at + 8, 0)))
    return after


@kernel(int64(bytes_in, _received, int64, int64, bytes_out, int64))
def write_v1_acks(buffer: Bytes, received: Array, first: int, end: int, acks: Bytes, at: int) -> int:
    """Write an ack for each frame of the stored rows from `first` to `end` at `at`. Returns the end of the acks."""
    for number in range(first, end):
        frame_at = as_int64(received[number]["frames_at"])
        for _ in range(received[number]["frames"]):
            store_u64(acks, at, _V1_ACK_START)
            store_u32(acks, at + CRC_AT, crc32(acks, at, at + CRC_AT, 0))
            store_u64(acks, at + CLIENT_SEQ_AT, load_i64(buffer, frame_at + CLIENT_SEQ_AT))
            for word in range(at + CLIENT_SEQ_AT + 8, at + FRAME_HEADER_SIZE, 8):
                store_u64(acks, word, 0)
            frame_at += FRAME_HEADER_SIZE + load_u32(buffer, frame_at + LENGTH_AT)
            at += FRAME_HEADER_SIZE
    return at


@kernel(int64(_connections, bytes_in, _received, int64, bytes_out, int64_out))
def send_acks(connections: Array, buffer: Bytes, received: Array, count: int, acks: Bytes, progress: Values) -> int:
    """Send the acks of the staged rows, whose epoch is written. Returns the number of these rows.

    A connection with an unstaged row, or whose ack could not be sent in full, becomes RETURNED.
    """
    first = 0
    answered = 0
    at = 0
    while first < count:
        index = as_int64(received[first]["connection"])
        connection = connections[index]
        end = first
        while end < count and as_int64(received[end]["connection"]) == index and received[end]["is_staged"] != 0:
            end += 1
        if connection["version"] == _VERSION:
            after = write_ack(connections, index, buffer, received, first, end, acks, at)
        else:
            after = write_v1_acks(buffer, received, first, end, acks, at)
        was_returned = connection["state"] == RETURNED
        sent = after - at
        if after > at:
            sent = max(0, send_some(connection["fd"], address_of(acks, at), after - at))
        if sent < after - at:
            connection["unsent_at"] = at + sent
            connection["unsent_end"] = after
            connection["state"] = RETURNED
        answered += end - first
        at = after
        if end < count and as_int64(received[end]["connection"]) == index:
            # The first unstaged row: the event loop handles everything from there on.
            connection["rest_at"] = received[end]["frames_at"]
            connection["state"] = RETURNED
            connection["highest"] = load_i64(buffer, as_int64(received[end]["at"]) + CLIENT_SEQ_AT) - 1
            while end < count and as_int64(received[end]["connection"]) == index:
                end += 1
        if connection["state"] == RETURNED and not was_returned:
            progress[RETURNS] += 1
        first = end
    progress[ACK_BYTES] = at
    return answered
