"""One batch of a publisher that came alone, from the network to the log in one call: order, numbers, epoch, write.

Where nothing else is under way, the rings of a pod have nothing to decide: the batch that comes is the next one. So it
takes the next position without an entry in the index, is written as an epoch by itself, and is durable when the call
returns. Whatever is not that simple goes through the rings: PASSES_ON, and nothing has changed.

As in `lone_batch`, what the call is told and the addresses of all arrays lie on a *desk*. The window of those who order
and that of the store both learn what became of the batch, the second one only when it is written (INV-FOLLOW-KNOWN).

    memory   epoch header, 64 bytes │ the batch as it came, with the server's fields filled in

INV-LONE-NEXT: a batch goes this way only where every position that was reserved is durable, every slot that was claimed
is completed, and nothing is held, waiting or unsettled: so no other can come before it.
INV-SHORT-WAY: what it writes is, byte for byte, what the long way would have written.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from seawall.kernels.atomics import store_release
from seawall.kernels.batch_header import BLOCK_CRC_AT, CLIENT_ID_AT, CLIENT_SEQ_AT, SESSION_EPOCH_AT, TOPIC_AT
from seawall.kernels.client_index import find_row
from seawall.kernels.client_window import (
    CHECK_NEW,
    NEXT_EXPECTED,
    ROW_WORDS,
    SIDE_PAGE,
    WINDOW_RESULT,
    decide_row,
    judge_row,
)
from seawall.kernels.epochs import EPOCH_HEADER, WAL_ROW, list_batch
from seawall.kernels.frontier import ADMISSION_ROW, LAST_TIMESTAMP, NEXT_POSITION, RUN_DONE, TOPIC_ROW, admit_batch
from seawall.kernels.goi_frontier import (
    COMPLETION_WORDS,
    CONTROL_COMMITTED,
    CONTROL_DURABLE,
    FLAG_STRONG_ORDER,
    refusal_of,
)
from seawall.kernels.holding import HELD, READY_HEAD, READY_TAIL, UNSETTLED_HEAD, UNSETTLED_TAIL
from seawall.kernels.jit import bytes_in, bytes_out, int64, int64_out, kernel, void
from seawall.kernels.lone_batch import seal_epoch, write_epoch
from seawall.kernels.memory import Bytes, as_int64, copy_bytes, load_i64, load_u32, pointer_at
from seawall.kernels.order_entries import FLOOR, RESERVED
from seawall.kernels.tables import ABSENT, Values, table_find

#: What the call is told.
SALT = 0
EPOCH = 1
SYNCED_THROUGH = 2
ADDRESS = 3
WALL_NS = 4
STAGED_ROW = 5
FOLLOWED = 6
#: What the batch was given.
POSITION = 7
BASE_SEQ = 8
TIMESTAMP = 9
#: What never changes: the term, and how many positions behind the floor a checkpoint is due.
TERM = 10
CHECKPOINT_AFTER = 11
#: Pairs of an address and a length: the frontier's table, topics, numbers and rows, and the rows of the log.
KEYS = 12
VALUES = 14
USED = 16
TOPICS = 18
NUMBERS = 20
ROWS = 22
STAGED = 24
#: Five pairs each: places, rows, sides, slots and results of a window.
ORDER_WINDOW = 26
STORE_WINDOW = 36
#: Words of the pod: the control block, the counters of the sequencer, the line of the replica, the tails and the
#: completion of all rings, and the state of the worker.
CONTROL = 46
COUNTERS = 48
REPLICA = 50
TAILS = 52
COMPLETION = 54
WORKER = 56
#: An operation of `disk_ring`, and two words for the one buffer it writes.
OPERATION = 58
DESK_SIZE = 67

#: The batch has to go through the rings.
PASSES_ON = -(1 << 40)

_TAIL_WORDS = 8


@kernel(int64(int64_out))
def _is_at_rest(desk: Values) -> int:
    """INV-LONE-NEXT, and no checkpoint of the order is due."""
    numbers = carray(pointer_at(desk[NUMBERS]), desk[NUMBERS + 1], np.int64)
    control = carray(pointer_at(desk[CONTROL]), desk[CONTROL + 1], np.int64)
    counters = carray(pointer_at(desk[COUNTERS]), desk[COUNTERS + 1], np.int64)
    tails = carray(pointer_at(desk[TAILS]), desk[TAILS + 1], np.int64)
    completion = carray(pointer_at(desk[COMPLETION]), desk[COMPLETION + 1], np.int64)
    state = carray(pointer_at(desk[WORKER]), desk[WORKER + 1], np.int64)
    position = numbers[NEXT_POSITION]
    if counters[RESERVED] != position or control[CONTROL_COMMITTED] != position:
        return 0
    if control[CONTROL_DURABLE] != position or desk[FOLLOWED] != position:
        return 0
    if position - counters[FLOOR] >= desk[CHECKPOINT_AFTER] or state[HELD] != 0:
        return 0
    if state[READY_HEAD] != state[READY_TAIL] or state[UNSETTLED_HEAD] != state[UNSETTLED_TAIL]:
        return 0
    for broker in range(tails.size // _TAIL_WORDS):
        if tails[broker * _TAIL_WORDS] != completion[broker * COMPLETION_WORDS]:
            return 0
    return 1


@kernel(int64(int64_out, int64, int64, int64, int64, int64))
def _new_to(desk: Values, window: int, client_id: int, epoch: int, seq: int, is_strong: int) -> int:
    """The row of a client in a window to which its batch is new, and has its turn; ABSENT elsewhere."""
    places = carray(pointer_at(desk[window]), desk[window + 1], np.uint32)
    clients = carray(pointer_at(desk[window + 2]), (desk[window + 3], ROW_WORDS), np.uint64)
    sides = carray(pointer_at(desk[window + 4]), (desk[window + 5], ROW_WORDS), np.uint64)
    if client_id < 0:
        return ABSENT
    row = find_row(places, clients, np.uint64(client_id))
    if row == ABSENT or judge_row(seq, epoch, clients, sides, row) != CHECK_NEW or sides[row, SIDE_PAGE] != 0:
        return ABSENT
    return row if is_strong == 0 or as_int64(clients[row, NEXT_EXPECTED]) == seq else ABSENT


@kernel(void(int64_out, int64, int64, int64, int64))
def _decide(desk: Values, window: int, row: int, seq: int, crc: int) -> None:
    """A window learns that a batch is stored, with its numbers."""
    clients = carray(pointer_at(desk[window + 2]), (desk[window + 3], ROW_WORDS), np.uint64)
    sides = carray(pointer_at(desk[window + 4]), (desk[window + 5], ROW_WORDS), np.uint64)
    slots = carray(pointer_at(desk[window + 6]), (desk[window + 7], ROW_WORDS), np.uint64)
    results = carray(pointer_at(desk[window + 8]), desk[window + 9], WINDOW_RESULT)
    result = results[decide_row(seq, 1, clients, sides, slots, row)]
    result["position"] = desk[POSITION]
    result["base_seq"] = desk[BASE_SEQ]
    result["timestamp_ns"] = desk[TIMESTAMP]
    result["block_crc"] = crc
    result["reason"] = 0
    result["status"] = 0
    result["known"] = 1


@kernel(int64(bytes_out, int64_out, bytes_in, int64, int64, int64, int64, int64))
def order_lone_arrival(
    memory: Bytes, desk: Values, source: Bytes, at: int, size: int, is_strong: int, copied: int, address: int
) -> int:
    """Order the batch that lies at `at` of a buffer, and list it with its address in the log: RUN_DONE, or PASSES_ON.

    Its first bytes, the header at least, are copied behind the epoch header of `memory`, and numbered there.
    """
    keys = carray(pointer_at(desk[KEYS]), desk[KEYS + 1], np.uint64)
    values = carray(pointer_at(desk[VALUES]), desk[VALUES + 1], np.int64)
    used = carray(pointer_at(desk[USED]), desk[USED + 1], np.uint8)
    topics = carray(pointer_at(desk[TOPICS]), desk[TOPICS + 1], TOPIC_ROW)
    numbers = carray(pointer_at(desk[NUMBERS]), desk[NUMBERS + 1], np.int64)
    rows = carray(pointer_at(desk[ROWS]), desk[ROWS + 1], ADMISSION_ROW)
    staged = carray(pointer_at(desk[STAGED]), desk[STAGED + 1], WAL_ROW)
    client_id, seq = load_i64(source, at + CLIENT_ID_AT), load_i64(source, at + CLIENT_SEQ_AT)
    epoch, crc = load_u32(source, at + SESSION_EPOCH_AT), load_u32(source, at + BLOCK_CRC_AT)
    if _is_at_rest(desk) == 0 or _new_to(desk, STORE_WINDOW, client_id, epoch, seq, 0) == ABSENT:
        return PASSES_ON
    row = _new_to(desk, ORDER_WINDOW, client_id, epoch, seq, is_strong)
    topic = table_find(keys, used, np.uint64(load_u32(source, at + TOPIC_AT)))
    if row == ABSENT or topic == ABSENT:
        return PASSES_ON
    if refusal_of(as_int64(topics[values[topic]]["flags"]), FLAG_STRONG_ORDER if is_strong else 0) != 0:
        return PASSES_ON
    copy_bytes(memory, EPOCH_HEADER, source, at, copied)
    code = admit_batch(memory, EPOCH_HEADER, desk[TERM], desk[WALL_NS], keys, values, used, topics, numbers, rows, 0)
    if code != RUN_DONE:
        return PASSES_ON
    desk[POSITION] = rows[0]["position"]
    desk[BASE_SEQ] = rows[0]["base_seq"]
    desk[TIMESTAMP] = rows[0]["timestamp_ns"]
    list_batch(memory, EPOCH_HEADER, address, size, staged, desk[STAGED_ROW])
    _decide(desk, ORDER_WINDOW, row, seq, crc)
    return RUN_DONE


@kernel(int64(bytes_out, int64_out, bytes_in, int64, int64, int64))
def stage_lone_arrival(memory: Bytes, desk: Values, source: Bytes, at: int, size: int, is_strong: int) -> int:
    """Order the batch that lies at `at` of a buffer, and make it an epoch: its size, or PASSES_ON."""
    address = desk[ADDRESS] + EPOCH_HEADER
    code = order_lone_arrival(memory, desk, source, at, size, is_strong, size, address)
    if code != RUN_DONE:
        return code
    numbers = carray(pointer_at(desk[NUMBERS]), desk[NUMBERS + 1], np.int64)
    first, time_ns = desk[POSITION], numbers[LAST_TIMESTAMP]
    return seal_epoch(memory, size, 1, desk[SALT], desk[EPOCH], desk[SYNCED_THROUGH], first, time_ns)


@kernel(void(int64_out, bytes_in))
def settle_lone_arrival(desk: Values, memory: Bytes) -> None:
    """The epoch is written: the store's window knows the batch, and the pod that its position is taken and durable."""
    client_id, seq = load_i64(memory, EPOCH_HEADER + CLIENT_ID_AT), load_i64(memory, EPOCH_HEADER + CLIENT_SEQ_AT)
    epoch, crc = load_u32(memory, EPOCH_HEADER + SESSION_EPOCH_AT), load_u32(memory, EPOCH_HEADER + BLOCK_CRC_AT)
    _decide(desk, STORE_WINDOW, _new_to(desk, STORE_WINDOW, client_id, epoch, seq, 0), seq, crc)
    following = desk[POSITION] + 1
    counters = carray(pointer_at(desk[COUNTERS]), desk[COUNTERS + 1], np.int64)
    control = carray(pointer_at(desk[CONTROL]), desk[CONTROL + 1], np.int64)
    replica = carray(pointer_at(desk[REPLICA]), desk[REPLICA + 1], np.int64)
    store_release(counters, RESERVED, following)
    store_release(control, CONTROL_COMMITTED, following)
    store_release(replica, 0, following)
    store_release(control, CONTROL_DURABLE, following)


@kernel(int64(bytes_out, int64_out, bytes_in, int64, int64, int64, int64, int64, int64, int64))
def commit_lone_arrival(
    memory: Bytes,
    desk: Values,
    source: Bytes,
    at: int,
    size: int,
    is_strong: int,
    kind: int,
    fd: int,
    file_at: int,
    direct_sync: int,
) -> int:
    """Order a batch, write it to a file, and let it count: bytes written, PASSES_ON, or minus errno.

    If fewer were written than `EPOCH_HEADER + size`, whoever writes the rest calls `settle_lone_arrival`.
    """
    staged = stage_lone_arrival(memory, desk, source, at, size, is_strong)
    if staged < 0:
        return staged
    written = write_epoch(memory, desk[OPERATION:DESK_SIZE], staged, kind, fd, file_at, direct_sync)
    if written == staged:
        settle_lone_arrival(desk, memory)
    return written
