"""The whole turn of a server for one large batch that came alone, to a topic that is nothing but memory.

    check     as in `lone_turn`; what was summed while it arrived is not summed again
    order     as in `lone_arrival`: position and numbers, in a copy of the header
    keep      header and block into the memory of the segment, and a mark into the lane that it lies nowhere else
    answer    an entry in an ACK frame, which is sent when there are several or nothing more comes

The batch lies in one buffer that is used again and again, so all of this happens in a cache; the copy to its place is
the only time that it leaves one. Places are handed out ahead of need, as *spans*: pairs of an address and a length, one
behind the other. Whatever is not that simple takes the ordinary way: PASSES_ON, and nothing has changed.

INV-LONE-NEXT, INV-TURN-SAME: as there. INV-MEMORY-SAME: what it keeps and marks is, byte for byte, what the follower of
the order would have kept and marked.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.following import REFERENCE_SIZE, write_reference
from seawall.kernels.frames import FRAME_ROW, Rows
from seawall.kernels.frontier import RUN_DONE
from seawall.kernels.jit import bytes_in, bytes_out, int64, int64_out, kernel, record_array, void
from seawall.kernels.lone_arrival import DESK_SIZE, FOLLOWED, PASSES_ON, order_lone_arrival, settle_lone_arrival
from seawall.kernels.lone_turn import CLIENT_ORDER, ENTRIES, ENTRIES_MAX, ORDERED, check_lone_turn, seal_lone_ack
from seawall.kernels.memory import Bytes, copy_out, pointer_at
from seawall.kernels.tables import Values

#: On the desk, behind its own words: bytes of the spans that batches have, and the term of the log.
PLACED = DESK_SIZE
LOG_TERM = DESK_SIZE + 1
MEMORY_DESK_SIZE = DESK_SIZE + 2

_HEADER = 96

__all__ = ["LOG_TERM", "MEMORY_DESK_SIZE", "PLACED", "REFERENCE_SIZE", "copy_to_spans", "take_memory_turn"]


@kernel(void(int64_out, int64, bytes_in, int64, int64))
def copy_to_spans(spans: Values, at: int, source: Bytes, start: int, end: int) -> None:
    """Copy bytes to the place that lies `at` bytes behind the beginning of the first span."""
    index = 0
    while start < end:
        size = spans[2 * index + 1]
        if at < size:
            step = min(end - start, size - at)
            target = carray(pointer_at(spans[2 * index]), size, np.uint8)
            copy_out(target, at, source, start, step)
            start += step
            at += step
        at -= size
        index += 1


@kernel(
    int64(
        *(bytes_out, int64_out, int64_out, bytes_in, int64, int64_out, bytes_out, int64),
        *(bytes_in, bytes_in, record_array(FRAME_ROW), int64_out, bytes_out),
    )
)
def take_memory_turn(
    memory: Bytes,
    desk: Values,
    turn: Values,
    source: Bytes,
    size: int,
    spans: Values,
    lane: Bytes,
    start: int,
    orders: Bytes,
    levels: Bytes,
    rows: Rows,
    state: Values,
    ack: Bytes,
) -> int:
    """Keep the batch that these bytes are and answer it: its size, or PASSES_ON.

    There is room for it in the spans, and for its mark in `lane[start:]`; `state` is that of its connection.
    """
    if turn[ENTRIES] >= ENTRIES_MAX:
        return PASSES_ON
    order = check_lone_turn(turn, source, size, ORDERED, orders, levels, rows, state)
    if order < 0:
        return PASSES_ON
    is_strong = 1 if order == CLIENT_ORDER else 0
    if order_lone_arrival(memory, desk, source, 0, size, is_strong, _HEADER, 0) != RUN_DONE:
        return PASSES_ON
    copy_to_spans(spans, desk[PLACED], memory, EPOCH_HEADER, EPOCH_HEADER + _HEADER)
    copy_to_spans(spans, desk[PLACED] + _HEADER, source, _HEADER, size)
    write_reference(memory, EPOCH_HEADER, lane, start, 0, 0, desk[LOG_TERM])
    settle_lone_arrival(desk, memory)
    seal_lone_ack(turn, desk, source, ack)
    desk[PLACED] += size
    desk[FOLLOWED] += 1
    return size
