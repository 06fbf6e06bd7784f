"""What the kernels of `lone_memory` mean, by the twins they are made of."""

from __future__ import annotations

from seawall.kernels import lone_memory as places
from seawall.kernels import lone_turn
from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.frames import Rows
from seawall.kernels.frontier import RUN_DONE
from seawall.kernels.lone_arrival import FOLLOWED, PASSES_ON
from seawall.kernels.memory import Bytes
from seawall.kernels.tables import Values
from seawall.kernels.twins.following import write_reference
from seawall.kernels.twins.lone_arrival import order_lone_arrival, settle_lone_arrival
from seawall.kernels.twins.lone_turn import check_lone_turn, seal_lone_ack


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
    """Check, order, mark, settle, answer, number."""
    if turn[lone_turn.ENTRIES] >= lone_turn.ENTRIES_MAX:
        return PASSES_ON
    order = check_lone_turn(turn, source, size, lone_turn.ORDERED, orders, levels, rows, state)
    if order < 0:
        return PASSES_ON
    size = int(rows["size"][0])
    if order_lone_arrival(memory, desk, source, 0, size, int(order == 5), 96, 0) != RUN_DONE:
        return PASSES_ON
    write_reference(memory, EPOCH_HEADER, lane, start, 0, 0, int(desk[places.LOG_TERM]))
    settle_lone_arrival(desk, memory)
    seal_lone_ack(turn, desk, source, ack)
    source[:96] = memory[EPOCH_HEADER : EPOCH_HEADER + 96]
    desk[FOLLOWED] += 1
    return size
