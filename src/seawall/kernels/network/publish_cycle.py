"""Run complete commit cycles in one call: receive, commit, answer. The publish thread runs it as the commit leader.

    receive ──▶ survey, stage ──▶ write and sync ──▶ settle ──▶ answer ──▶ receive …
    publish_io  commit_cycle      disk_ring          commit_cycle publish_io

The call returns to Python for work that only Python does, with the reason:

    CYCLES_DONE    no publisher sent anything for a moment, another thread wants to lead the commits, a connection has
                   to be returned, or a flush or checkpoint is due
    LACKS_GRANTS   the received batches need reservations that are not granted
    LACKS_ROWS     there is no space for the rows of the received batches: pending rows have to be applied first
    NOT_ELIGIBLE   the received batches, or those in the rings of brokers, need the general commit path
    CYCLES_FAILED  the write failed; `error` has minus errno

    run_cycles       all steps
    stage_received   the steps before the write
    settle_received  the steps after it: both for callers that write in another way, such as a simulated disk

An event notifies threads that wait for stored batches, without Python. After LACKS_… the next call retries the same
batches. The kernel changes the memory that a commit shares with readers under `lock`, and does not hold that lock while
it waits for the disk or a socket.

No batch is answered before its epoch is written, and synced if its topic requires it.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from seawall.kernels.codec.frames import FRAME_ROW
from seawall.kernels.log.commit_cycle import (
    advance_log,
    settle_cycle,
    stage_arrived,
)
from seawall.kernels.log.cycle_records import CYCLE, NOT_ELIGIBLE, RECEIVED_ROW
from seawall.kernels.log.epochs import LOG_NUMBERS
from seawall.kernels.network.publish_io import CONNECTION_ROW, RETURNS, WOKEN, receive_batches, send_acks
from seawall.kernels.ordering.collecting import CURSOR, LINE_WORDS, TAIL_CLAIMED, TAIL_WORDS
from seawall.kernels.runtime.atomics import load_acquire, store_release
from seawall.kernels.runtime.disk_ring import (
    SUBMIT_AT,
    SUBMIT_COUNT,
    SUBMIT_FD,
    SUBMIT_IOVEC,
    SUBMIT_OPERATION,
    SYNC,
    WRITE,
    WRITE_SYNC,
    execute,
)
from seawall.kernels.runtime.jit import bytes_out, int64, kernel, record_array, void
from seawall.kernels.runtime.locks import LISTENING, SIGNALS, WANTED
from seawall.kernels.runtime.memory import Array, Bytes, address_of, as_int64, pointer_at
from seawall.kernels.runtime.system import lock_mutex, signal_event, unlock_mutex, wall_ns

#: Names of the arrays in `PUBLISHERS`, which has an address and a length for each.
PUBLISHER_ARRAYS = (
    *("events", "by_descriptor", "connections", "tails", "owners", "orders", "levels", "frames"),
    *("made", "frame_counts", "state", "progress", "acks", "operation", "iovec"),
)
#: Constants: the descriptors to wait on, the event for threads that wait for stored batches, and the addresses of the
#: lock and of the signals.
CONSTANTS = ("epoll", "waker", "readable", "lock_at", "signals_at")
#: Arguments: the descriptor of the log, whether a durable write is one call there, and the log address from which on
#: a flush or checkpoint is due.
ARGUMENTS = ("fd", "direct_sync", "due_at")
#: Results: the total number of cycles, and of batches in them; and minus errno of a failed write.
RESULTS = ("cycles", "batches", "error")
PUBLISHERS = np.dtype(
    [
        *((name, np.int64) for name in (*CONSTANTS, *ARGUMENTS, *RESULTS)),
        *((f"{name}_{what}", np.int64) for name in PUBLISHER_ARRAYS for what in ("at", "count")),
    ]
)

#: Reasons in addition to those of `stage_arrived`.
CYCLES_DONE = 0
CYCLES_FAILED = 4

#: Words of `operation` and of `iovec`.
OPERATION_WORDS = 7
IOVEC_WORDS = 2

#: How long to wait for publishers before giving up leadership: longer than a publisher takes to send its next batch.
_IDLE_MS = 1

_publishers = record_array(PUBLISHERS)
_publisher = _publishers.dtype
_cycles = record_array(CYCLE)
_cycle = _cycles.dtype


@kernel(int64(_cycle))
def _has_uncollected(cycle: np.void) -> int:
    """1 if a broker ring has an uncollected batch, else 0."""
    tails = carray(pointer_at(cycle["tails_at"]), cycle["tails_count"], np.int64)
    collected = carray(pointer_at(cycle["collected_at"]), cycle["collected_count"], np.int64)
    for broker in range(cycle["ends_count"]):
        if load_acquire(tails, broker * TAIL_WORDS + TAIL_CLAIMED) != collected[broker * LINE_WORDS + CURSOR]:
            return 1
    return 0


@kernel(int64(_publisher, _cycle, bytes_out, int64))
def _write_epoch(publisher: np.void, cycle: np.void, memory: Bytes, size: int) -> int:
    """Append `memory[:size]` to the log, durably if the cycle requires it. Returns 0, or minus errno."""
    log = carray(pointer_at(cycle["log_at"]), cycle["log_count"], LOG_NUMBERS)
    operation = carray(pointer_at(publisher["operation_at"]), publisher["operation_count"], np.int64)
    iovec = carray(pointer_at(publisher["iovec_at"]), publisher["iovec_count"], np.int64)
    at = as_int64(log[0]["at"])
    is_durable = cycle["is_durable"] != 0
    follows_synced = log[0]["synced_through"] == at
    operation[SUBMIT_OPERATION] = WRITE_SYNC if is_durable and follows_synced else WRITE
    operation[SUBMIT_FD] = publisher["fd"]
    operation[SUBMIT_IOVEC] = address_of(iovec, 0)
    operation[SUBMIT_COUNT] = 1
    done = 0
    while done < size:
        iovec[0] = address_of(memory, done)
        iovec[1] = size - done
        operation[SUBMIT_AT] = at + log[0]["file_offset"] + done
        result = execute(operation, publisher["direct_sync"])
        if result < 0:
            return result
        done += result
    if is_durable and not follows_synced:
        operation[SUBMIT_OPERATION] = SYNC
        return execute(operation, publisher["direct_sync"])
    return 0


@kernel(int64(_publishers, _cycles, bytes_out))
def stage_received(publishers: Array, cycles: Array, memory: Bytes) -> int:
    """Build an epoch from the received batches at the beginning of `memory`. Returns its size, or minus a reason."""
    publisher, cycle = publishers[0], cycles[0]
    if _has_uncollected(cycle) != 0:
        return -NOT_ELIGIBLE
    lock_mutex(publisher["lock_at"])
    size = stage_arrived(cycles, memory)
    unlock_mutex(publisher["lock_at"])
    return size


@kernel(void(_publishers, _cycles, int64))
def settle_received(publishers: Array, cycles: Array, size: int) -> None:
    """Publish the batches of the epoch of `size` bytes, which is written."""
    publisher, cycle = publishers[0], cycles[0]
    lock_mutex(publisher["lock_at"])
    settle_cycle(cycles, cycle["first_row"], cycle["count"])
    advance_log(cycles, size)
    unlock_mutex(publisher["lock_at"])
    publisher["cycles"] += 1
    publisher["batches"] += cycle["count"]


@kernel(int64(_publishers, _cycles, bytes_out))
def run_cycles(publishers: Array, cycles: Array, memory: Bytes) -> int:
    """Commit and answer the `received` batches of the cycle, then keep receiving, until there is a reason to return.

    On return `received` is 0, or the batches in the receive buffer are not answered yet.
    """
    publisher, cycle = publishers[0], cycles[0]
    events = carray(pointer_at(publisher["events_at"]), publisher["events_count"], np.uint8)
    by_descriptor = carray(pointer_at(publisher["by_descriptor_at"]), publisher["by_descriptor_count"], np.int32)
    connections = carray(pointer_at(publisher["connections_at"]), publisher["connections_count"], CONNECTION_ROW)
    tails = carray(pointer_at(publisher["tails_at"]), publisher["tails_count"], np.uint8)
    owners = carray(pointer_at(publisher["owners_at"]), publisher["owners_count"], np.int64)
    orders = carray(pointer_at(publisher["orders_at"]), publisher["orders_count"], np.uint8)
    levels = carray(pointer_at(publisher["levels_at"]), publisher["levels_count"], np.uint8)
    frames = carray(pointer_at(publisher["frames_at"]), publisher["frames_count"], FRAME_ROW)
    made = carray(pointer_at(publisher["made_at"]), publisher["made_count"], FRAME_ROW)
    frame_counts = carray(pointer_at(publisher["frame_counts_at"]), publisher["frame_counts_count"], np.int64)
    state = carray(pointer_at(publisher["state_at"]), publisher["state_count"], np.int64)
    progress = carray(pointer_at(publisher["progress_at"]), publisher["progress_count"], np.int64)
    acks = carray(pointer_at(publisher["acks_at"]), publisher["acks_count"], np.uint8)
    signals = carray(pointer_at(publisher["signals_at"]), SIGNALS, np.int64)
    received = carray(pointer_at(cycle["received_at"]), cycle["received_count"], RECEIVED_ROW)
    buffer = carray(pointer_at(cycle["buffer_at"]), cycle["buffer_count"], np.uint8)
    log = carray(pointer_at(cycle["log_at"]), cycle["log_count"], LOG_NUMBERS)
    while True:
        if cycle["received"] == 0:
            # On an error, give up leadership: the next wait, outside this kernel, finds the error again.
            count = receive_batches(
                *(publisher["epoll"], publisher["waker"], _IDLE_MS, events, by_descriptor, connections, buffer),
                *(tails, owners, received, orders, levels, frames, made, frame_counts, state, progress),
            )
            cycle["received"] = max(0, count)
            if count <= 0:
                return CYCLES_DONE
        cycle["wall_ns"] = wall_ns()
        size = stage_received(publishers, cycles, memory)
        if size < 0:
            return -size
        publisher["error"] = _write_epoch(publisher, cycle, memory, size)
        if publisher["error"] < 0:
            return CYCLES_FAILED
        settle_received(publishers, cycles, size)
        # Before the acks: readers have a longer way to go.
        if load_acquire(signals, LISTENING) != 0:
            store_release(signals, LISTENING, 0)
            signal_event(publisher["readable"])
        send_acks(connections, buffer, received, cycle["received"], acks, progress)
        cycle["received"] = 0
        if progress[RETURNS] != 0 or progress[WOKEN] != 0 or load_acquire(signals, WANTED) != 0:
            return CYCLES_DONE
        if log[0]["at"] >= publisher["due_at"]:
            return CYCLES_DONE
