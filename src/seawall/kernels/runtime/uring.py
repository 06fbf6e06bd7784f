"""The io_uring server of a disk ring: operations become entries of the kernel's own queue, many in flight at once.

One thread serves: it translates what was submitted, sleeps in `io_uring_enter` until anything completes, and publishes
results. A read of the doorbell is always in flight too, so a new submission wakes the same sleep.

    sq, cq     the kernel's rings as u32 words: head, tail and mask at places the kernel names in `layout`
    sqes       submission entries of eight words: opcode, flags and fd · position · address · length and flags · id
    cqes       completion entries of two words: id · result (low 32 bits, signed)
    pending    for each entry in flight: tag, operation, and a free list through the third word

Chains are the kernel's: LINK becomes IOSQE_IO_LINK, a failed or short entry cancels the rest. Only behind a sync the
server waits itself: a sync that fails does not cancel what is linked to it (seen on Linux 6.18).

A chain is handed over whole, in one call, since a link does not reach across two. While a submitter is in the middle of
pushing one the server leaves it where it is, and goes on publishing results. What follows a sync in its chain is handed
over only once that sync has succeeded. The server returns only after its read of the doorbell has completed, so that
the kernel never writes into memory that is gone.
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

#: Places in `layout`: indexes of u32 words in `sq` and `cq`, then the number of entries, the ring's descriptor and the
#: head of the free list, a word for the doorbell to be read into, entries in flight, and one more than the entry of
#: the sync whose chain waits for it (0: none does).
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
#: Not failures: a signal came, or the kernel asks to take results first or to come again.
_INTERRUPTED = -errno.EINTR
_AGAIN = -errno.EAGAIN
_BUSY = -errno.EBUSY


@kernel(void(uint32_out, int64_out, int64_in, int64, int64, int64, int64, int64, int64))
def _fill_entry(
    sq: Words32, sqes: Words, layout: Words, operation: int, fd: int, at: int, address: int, length: int, identity: int
) -> None:
    """Write one submission entry at the tail and publish it."""
    tail = as_int64(sq[layout[SQ_TAIL]])
    slot = tail & as_int64(sq[layout[SQ_MASK]])
    base = slot * 8
    sqes[base] = operation | (fd << 32)
    sqes[base + 1] = at
    sqes[base + 2] = address
    sqes[base + 3] = length
    sqes[base + 4] = identity
    sqes[base + 5] = 0
    sqes[base + 6] = 0
    sqes[base + 7] = 0
    sq[layout[SQ_ARRAY] + slot] = slot
    store_release(sq, layout[SQ_TAIL], (tail + 1) & 0xFFFFFFFF)


@kernel(void(uint32_out, int64_out, int64_out, int64_out, int64_in))
def _translate(sq: Words32, sqes: Words, layout: Words, pending: Words, operation: Words) -> None:
    """Turn one operation into one submission entry."""
    kind = operation[SUBMIT_OPERATION] & OPERATION_MASK
    identity = layout[FREE]
    layout[FREE] = pending[identity * PENDING_WORDS + 2]
    pending[identity * PENDING_WORDS] = operation[SUBMIT_TAG]
    pending[identity * PENDING_WORDS + 1] = operation[SUBMIT_OPERATION]
    linked = operation[SUBMIT_OPERATION] & LINK != 0
    fd = operation[SUBMIT_FD]
    if kind == SYNC:
        layout[BARRIER] = identity + 1 if linked else 0
        _fill_entry(sq, sqes, layout, _OP_FSYNC, fd, 0, 0, _FSYNC_DATASYNC << 32, identity)
    else:
        flags = _SQE_LINK << 8 if linked else 0
        opcode = _OP_READV if kind == READ else _OP_WRITEV
        extra = RWF_DSYNC << 32 if kind == WRITE_SYNC else 0
        length = operation[SUBMIT_COUNT] | extra
        _fill_entry(
            sq, sqes, layout, opcode | flags, fd, operation[SUBMIT_AT], operation[SUBMIT_IOVEC], length, identity
        )
    layout[IN_FLIGHT] += 1


@kernel(int64(int64_out, int64_in))
def _chain_waits(ring: Words, layout: Words) -> int:
    """Whether a whole chain (a lone operation is one) may be taken; what waits at a stop will not grow any more."""
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
    """Translate all that waits, whole chains only; return how many entries are new."""
    operation = layout[OPERATION : OPERATION + CONTENT_WORDS]
    fresh = 0
    while _chain_waits(ring, layout) != 0:
        linked = True
        while linked and layout[BARRIER] == 0 and next_operation(ring, operation) != 0:
            linked = operation[SUBMIT_OPERATION] & LINK != 0
            refused = refusal(ring, operation)
            if refused != 0:
                settle(ring, operation, refused)
            else:
                _translate(sq, sqes, layout, pending, operation)
                fresh += 1
    return fresh


@kernel(int64(int64_out, uint32_out, int64_out, int64_out, int64_out))
def _take_results(ring: Words, cq: Words32, cqes: Words, layout: Words, pending: Words) -> int:
    """Publish all that completed; return 1 if the doorbell rang, else 0."""
    rang = 0
    head = as_int64(cq[layout[CQ_HEAD]])
    mask = as_int64(cq[layout[CQ_MASK]])
    while head != as_int64(load_acquire(cq, layout[CQ_TAIL])):
        base = (head & mask) * 2
        identity = cqes[base]
        if identity == _DOORBELL_ID:
            rang = 1
        else:
            result = cqes[base + 1] & 0xFFFFFFFF
            result = result - 0x100000000 if result & 0x80000000 else result
            publish(ring, pending[identity * PENDING_WORDS], pending[identity * PENDING_WORDS + 1], result)
            if layout[BARRIER] == identity + 1:
                layout[BARRIER] = 0
                ring[CONTROL_CHAIN_BROKEN] = as_int64(result < 0)
            pending[identity * PENDING_WORDS + 2] = layout[FREE]
            layout[FREE] = identity
            layout[IN_FLIGHT] -= 1
        head = (head + 1) & 0xFFFFFFFF
        store_release(cq, layout[CQ_HEAD], head)
    return rang


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
    """Serve until asked to stop and nothing is in flight; return 0, or minus errno if the kernel refuses the queue."""
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
            # Something is in flight already, but a new submission must still be able to end this sleep.
            store_release(ring, CONTROL_SLEEPING, 1)
            fence()
            wait = 1 - _chain_waits(ring, layout)
        if submit > 0 or wait > 0:
            entered = uring_enter(layout[URING_FD], submit, wait, _ENTER_GETEVENTS)
            if entered < 0 and entered != _INTERRUPTED and entered != _AGAIN and entered != _BUSY:
                return entered
            submit -= max(entered, 0)
        store_release(ring, CONTROL_SLEEPING, 0)
        if _take_results(ring, cq, cqes, layout, pending) != 0:
            armed = False
        wake_submitter(ring, completed)
