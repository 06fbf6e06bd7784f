"""The whole turn of a server for one large batch that came alone, to a topic that is nothing but memory.

    check     as in `lone_turn`; what was summed while it arrived is not summed again, and its checksum may be behind it
    order     as in `lone_arrival`: position and numbers, in a copy of the header
    keep      the batch stays where it lies; a mark goes into the lane that it lies nowhere else
    answer    an entry in an ACK frame, which is sent when there are several or nothing more comes
    number    the ordered header over the one that came, last of all

The batch was received into memory that becomes part of its segment (`io.memory_files`), so nothing of it is moved: a
cache line of it is touched by whoever receives and sums it, and then by nobody. Whatever is not that simple takes the
ordinary way: PASSES_ON, and nothing has changed, the bytes of the batch neither, but for a checksum that was behind it.

INV-LONE-NEXT, INV-TURN-SAME: as there. INV-MEMORY-SAME: what it keeps and marks is, byte for byte, what the follower of
the order would have kept and marked.
"""

from __future__ import annotations

from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.following import REFERENCE_SIZE, write_reference
from seawall.kernels.frames import FRAME_ROW, Rows
from seawall.kernels.frontier import RUN_DONE
from seawall.kernels.jit import bytes_in, bytes_out, int64, int64_out, kernel, record_array
from seawall.kernels.lone_arrival import DESK_SIZE, FOLLOWED, PASSES_ON, order_lone_arrival, settle_lone_arrival
from seawall.kernels.lone_turn import CLIENT_ORDER, ENTRIES, ENTRIES_MAX, ORDERED, check_lone_turn, seal_lone_ack
from seawall.kernels.memory import Bytes, as_int64, copy_bytes
from seawall.kernels.tables import Values

#: On the desk, behind its own words: the term of the log.
LOG_TERM = DESK_SIZE
MEMORY_DESK_SIZE = DESK_SIZE + 1

_HEADER = 96

__all__ = ["LOG_TERM", "MEMORY_DESK_SIZE", "REFERENCE_SIZE", "take_memory_turn"]


@kernel(
    int64(
        *(bytes_out, int64_out, int64_out, bytes_out, int64, bytes_out, int64),
        *(bytes_in, bytes_in, record_array(FRAME_ROW), int64_out, bytes_out),
    )
)
def take_memory_turn(
    memory: Bytes,
    desk: Values,
    turn: Values,
    source: Bytes,
    size: int,
    lane: Bytes,
    start: int,
    orders: Bytes,
    levels: Bytes,
    rows: Rows,
    state: Values,
    ack: Bytes,
) -> int:
    """Order the batch that these bytes are, number it in its place and answer it: its own size, or PASSES_ON.

    There is room for its mark in `lane[start:]`; `state` is that of its connection.
    """
    if turn[ENTRIES] >= ENTRIES_MAX:
        return PASSES_ON
    order = check_lone_turn(turn, source, size, ORDERED, orders, levels, rows, state)
    if order < 0:
        return PASSES_ON
    size = as_int64(rows[0]["size"])
    is_strong = 1 if order == CLIENT_ORDER else 0
    if order_lone_arrival(memory, desk, source, 0, size, is_strong, _HEADER, 0) != RUN_DONE:
        return PASSES_ON
    write_reference(memory, EPOCH_HEADER, lane, start, 0, 0, desk[LOG_TERM])
    settle_lone_arrival(desk, memory)
    seal_lone_ack(turn, desk, source, ack)
    copy_bytes(source, 0, memory, EPOCH_HEADER, _HEADER)
    desk[FOLLOWED] += 1
    return size
