"""The io_uring server of a disk ring: it forwards operations to the Linux queue, many in flight at once.

One thread serves: it translates submitted operations, blocks in `io_uring_enter` until something completes, and
publishes the results. A read of the doorbell is always in flight too, so a new submission ends the same wait.

    sq, cq     the kernel's rings as u32 words: head, tail and mask at the indexes that the kernel reports in `layout`
    sqes       submission entries of eight words: opcode, flags and fd · position · address · length and flags · id
    cqes       completion entries of two words: id · result (low 32 bits, signed)
    pending    for each entry in flight: tag, operation, and a free list through the third word

"The kernel" is Linux here. It executes the chains: LINK becomes IOSQE_IO_LINK, and a failed or short entry cancels the
rest of its chain. A sync is the exception: a failed sync does not cancel the entries linked to it (seen on Linux 6.18).
So the server itself waits for a linked sync, and submits the operations after it only once it has succeeded.

A chain is submitted whole, in one call, because a link does not extend over two calls. While a submitter is still
pushing a chain, the server leaves it queued and continues to publish results. The server returns only after its read of
the doorbell has completed, so the kernel never writes into freed memory.
"""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt

from seawall.kernels.runtime.atomics import fence, load_acquire, store_release
from seawall.kernels.runtime.disk_ring import (
    CONTROL_CHAIN_BROKEN,
    CONTROL_SLEEPING,
    CONTROL_STOP,
    LINK,
    OPERATION_MASK,
    READ,
    SUBMIT_AT,
    SUBMIT_COUNT,
    SUBMIT_FD,
    SUBMIT_IOVEC,
    SUBMIT_OPERATION,
    SUBMIT_TAG,
    SYNC,
    WRITE_SYNC,
    has_operation,
    next_operation,
    publish,
    refusal,
    settle,
    sleep_is_due,
    submit_counters,
    submit_slots,
    wake_submitter,
)
from seawall.kernels.runtime.jit import int64, int64_in, int64_out, kernel, uint32_out, void
from seawall.kernels.runtime.memory import address_of, as_int64
from seawall.kernels.runtime.rings import CONSUMED, CONTENT_WORDS, SLOT_WORDS, TOKEN_WORD, Words
from seawall.kernels.runtime.system import RWF_DSYNC, uring_enter

Words32 = npt.NDArray[np.uint32]

#: Indexes in `layout`. SQ_… and CQ_…: indexes of u32 words in `sq` and `cq`. URING_FD: the ring's descriptor. FREE:
#: head of the free list. DOORBELL_WORD: buffer for reads of the doorbell. IN_FLIGHT: number of entries in flight.
#: BARRIER: 1 + the entry of the sync that its chain waits for, or 0. OPERATION: scratch for one operation.
SQ_TAIL = 0
SQ_MASK = 1
SQ_ARRAY = 2
CQ_HEAD = 3
CQ_TAIL = 4
CQ_MASK = 5
URING_FD = 6
FREE = 7
DOORBELL_WORD = 8
IN_FLIGHT = 9
BARRIER = 10
OPERATION = 11
LAYOUT_WORDS = OPERATION + CONTENT_WORDS

PENDING_WORDS = 3
NO_FREE = -1

_OP_READV = 1
_OP_WRITEV = 2
_OP_FSYNC = 3
_OP_READ = 22
_FSYNC_DATASYNC = 1
_SQE_LINK = 4
_ENTER_GETEVENTS = 1
_DOORBELL_ID = -1
#: Not failures: a signal interrupted the call, or the kernel wants results consumed first or a retry.
_INTERRUPTED = -errno.EINTR
_AGAIN = -errno.EAGAIN
_BUSY = -errno.EBUSY


@kernel(void(uint32_out, int64_out, int64_in, int64, int64, int64, int64, int64, int64))
def _fill_entry(
    sq: Words32, sqes: Words, layout: Words, operation: int, fd: int, at: int, address: int, length: int, entry_id: int
) -> None:
    """Write one submission entry at the tail, and publish it."""
    tail = as_int64(sq[layout[SQ_TAIL]])
    slot = tail & as_int64(sq[layout[SQ_MASK]])
    base = slot * 8
    sqes[base] = operation | (fd << 32)
    sqes[base + 1] = at
    sqes[base + 2] = address
    sqes[base + 3] = length
    sqes[base + 4] = entry_id
    sqes[base + 5] = 0
    sqes[base + 6] = 0
    sqes[base + 7] = 0
    sq[layout[SQ_ARRAY] + slot] = slot
    store_release(sq, layout[SQ_TAIL], (tail + 1) & 0xFFFFFFFF)


@kernel(void(uint32_out, int64_out, int64_out, int64_out, int64_in))
def _translate(sq: Words32, sqes: Words, layout: Words, pending: Words, operation: Words) -> None:
    """Convert one operation to one submission entry."""
    kind = operation[SUBMIT_OPERATION] & OPERATION_MASK
    entry_id = layout[FREE]
    layout[FREE] = pending[entry_id * PENDING_WORDS + 2]
    pending[entry_id * PENDING_WORDS] = operation[SUBMIT_TAG]
    pending[entry_id * PENDING_WORDS + 1] = operation[SUBMIT_OPERATION]
    linked = operation[SUBMIT_OPERATION] & LINK != 0
    fd = operation[SUBMIT_FD]
    if kind == SYNC:
        layout[BARRIER] = entry_id + 1 if linked else 0
        _fill_entry(sq, sqes, layout, _OP_FSYNC, fd, 0, 0, _FSYNC_DATASYNC << 32, entry_id)
    else:
        flags = _SQE_LINK << 8 if linked else 0
        opcode = _OP_READV if kind == READ else _OP_WRITEV
        extra = RWF_DSYNC << 32 if kind == WRITE_SYNC else 0
        length = operation[SUBMIT_COUNT] | extra
        _fill_entry(
            sq, sqes, layout, opcode | flags, fd, operation[SUBMIT_AT], operation[SUBMIT_IOVEC], length, entry_id
        )
    layout[IN_FLIGHT] += 1


@kernel(int64(int64_out, int64_in))
def _chain_is_ready(ring: Words, layout: Words) -> int:
    """1 if a whole chain (or a single operation) is queued and may start; at a stop, an unfinished chain counts too."""
    if layout[BARRIER] != 0:
        return 0
    slots = submit_slots(ring)
    capacity = slots.size // SLOT_WORDS
    first = submit_counters(ring)[CONSUMED]
    for index in range(first, first + capacity):
        base = (index % capacity) * SLOT_WORDS
        if load_acquire(slots, base + TOKEN_WORD) != index + 1:
            return as_int64(index > first and load_acquire(ring, CONTROL_STOP) != 0)
        if slots[base + SUBMIT_OPERATION] & LINK == 0:
            return 1
    return 1


@kernel(int64(int64_out, uint32_out, int64_out, int64_out, int64_out))
def _take_operations(ring: Words, sq: Words32, sqes: Words, layout: Words, pending: Words) -> int:
    """Translate all queued chains that are whole. Returns the number of new entries."""
    operation = layout[OPERATION : OPERATION + CONTENT_WORDS]
    added = 0
    while _chain_is_ready(ring, layout) != 0:
        linked = True
        while linked and layout[BARRIER] == 0 and next_operation(ring, operation) != 0:
            linked = operation[SUBMIT_OPERATION] & LINK != 0
            refused = refusal(ring, operation)
            if refused != 0:
                settle(ring, operation, refused)
            else:
                _translate(sq, sqes, layout, pending, operation)
                added += 1
    return added


@kernel(int64(int64_out, uint32_out, int64_out, int64_out, int64_out))
def _take_results(ring: Words, cq: Words32, cqes: Words, layout: Words, pending: Words) -> int:
    """Publish all completed results. Returns 1 if the doorbell was signalled, else 0."""
    signalled = 0
    head = as_int64(cq[layout[CQ_HEAD]])
    mask = as_int64(cq[layout[CQ_MASK]])
    while head != as_int64(load_acquire(cq, layout[CQ_TAIL])):
        base = (head & mask) * 2
        entry_id = cqes[base]
        if entry_id == _DOORBELL_ID:
            signalled = 1
        else:
            result = cqes[base + 1] & 0xFFFFFFFF
            result = result - 0x100000000 if result & 0x80000000 else result
            publish(ring, pending[entry_id * PENDING_WORDS], pending[entry_id * PENDING_WORDS + 1], result)
            if layout[BARRIER] == entry_id + 1:
                layout[BARRIER] = 0
                ring[CONTROL_CHAIN_BROKEN] = as_int64(result < 0)
            pending[entry_id * PENDING_WORDS + 2] = layout[FREE]
            layout[FREE] = entry_id
            layout[IN_FLIGHT] -= 1
        head = (head + 1) & 0xFFFFFFFF
        store_release(cq, layout[CQ_HEAD], head)
    return signalled


@kernel(int64(int64_out, int64, int64, uint32_out, uint32_out, int64_out, int64_out, int64_out, int64_out))
def serve_uring(
    ring: Words,
    doorbell: int,
    completed: int,
    sq: Words32,
    cq: Words32,
    sqes: Words,
    cqes: Words,
    layout: Words,
    pending: Words,
) -> int:
    """Serve until a stop is requested and nothing is in flight. Returns 0, or minus errno of `io_uring_enter`."""
    armed = False
    submit = 0
    while True:
        stopping = load_acquire(ring, CONTROL_STOP) != 0
        if not armed and not stopping:
            word = address_of(layout, DOORBELL_WORD * 8)
            _fill_entry(sq, sqes, layout, _OP_READ, doorbell, 0, word, 8, _DOORBELL_ID)
            armed = True
            submit += 1
        submit += _take_operations(ring, sq, sqes, layout, pending)
        if stopping and not armed and layout[IN_FLIGHT] == 0 and has_operation(ring) == 0:
            return 0
        if submit == 0 and layout[IN_FLIGHT] == 0:
            wait = sleep_is_due(ring)
        else:
            # Operations are in flight already, but a new submission must still be able to end this wait.
            store_release(ring, CONTROL_SLEEPING, 1)
            fence()
            wait = 1 - _chain_is_ready(ring, layout)
        if submit > 0 or wait > 0:
            entered = uring_enter(layout[URING_FD], submit, wait, _ENTER_GETEVENTS)
            if entered < 0 and entered != _INTERRUPTED and entered != _AGAIN and entered != _BUSY:
                return entered
            submit -= max(entered, 0)
        store_release(ring, CONTROL_SLEEPING, 0)
        if _take_results(ring, cq, cqes, layout, pending) != 0:
            armed = False
        wake_submitter(ring, completed)
