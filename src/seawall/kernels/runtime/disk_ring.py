"""Disk I/O over two slot rings: a submission ring and a completion ring, served without the GIL.

A submitter (a Python thread or a kernel) pushes operations and pops completions; a server executes the operations. The
server is the resident kernel below on its own thread, `serve_pending` on the waiting thread itself, the io_uring loop
of `uring.py`, or a simulated disk. They share one array of 64-bit words:

    control              one cache line each: server sleeps, submitter waits, stop requested, poison, chain broken;
                         beside the last: a durable write is one call (RWF_DSYNC), or a write and a sync
    scratch              content of one slot for each side, because kernels allocate nothing
    counters             of the submission ring, of the completion ring
    submission slots     tag, operation with LINK, UNCACHED, fd, address of an iovec array, its count, position, bytes
    completion slots     tag, bytes done or minus errno

INV-DISK-LINK: a disk operation of a chain starts only after the one before it has succeeded in full. After a failed or
short operation the rest of its chain completes with −ECANCELED, unexecuted. Operations are ordered only within a chain.

A failed sync poisons the ring: no later write or sync reaches the disk, all fail with −EIO. The operating system may
have dropped the dirty pages, so a later sync could succeed without having written them. A submitter has at most as many
operations in flight as the completion ring has slots, so a server never waits for a free slot.

Before it sleeps, either side sets its flag, fences, and checks the ring once more. The other side publishes, fences,
then reads the flag. So at least one of the two sees the other, and no wake-up is lost.
"""

from __future__ import annotations

import errno

from seawall.kernels.runtime.atomics import fence, load_acquire, spin_hint, store_release
from seawall.kernels.runtime.jit import bytes_in, int64, int64_in, int64_out, kernel, void
from seawall.kernels.runtime.memory import Bytes, address_of, as_int64
from seawall.kernels.runtime.rings import (
    CONTENT_WORDS,
    COUNTER_WORDS,
    SLOT_WORDS,
    Words,
    ring_is_ready,
    ring_pop,
    ring_push,
)
from seawall.kernels.runtime.system import (
    RWF_DONTCACHE,
    RWF_DSYNC,
    monotonic_ns,
    poll_readable,
    read_vector,
    signal_event,
    sync_data,
    take_event,
    write_flagged,
    write_vector,
)

WRITE = 1
SYNC = 2
WRITE_SYNC = 3
READ = 4
OPERATION_MASK = 0xFF
LINK = 0x100
#: Flag of a write whose bytes are not read soon: they need not stay in the page cache.
UNCACHED = 0x200

SUBMIT_TAG = 0
SUBMIT_OPERATION = 1
SUBMIT_FD = 2
SUBMIT_IOVEC = 3
SUBMIT_COUNT = 4
SUBMIT_AT = 5
SUBMIT_BYTES = 6

COMPLETE_TAG = 0
COMPLETE_RESULT = 1

CONTROL_SLEEPING = 0
CONTROL_WAITING = 8
CONTROL_STOP = 16
CONTROL_POISON = 24
CONTROL_CHAIN_BROKEN = 32
CONTROL_DIRECT_SYNC = 33

_SERVER_SCRATCH = 40
_SERVER_RESULT = 48
_SUBMITTER_SCRATCH = 56
_SUBMIT_COUNTERS = 64
_COMPLETE_COUNTERS = _SUBMIT_COUNTERS + COUNTER_WORDS
_SLOTS = _COMPLETE_COUNTERS + COUNTER_WORDS

#: Checks of an empty ring before sleeping: a few microseconds, less than a sleep and a wake-up take.
SERVER_SPINS = 500

#: If the last pause was shorter than this, the server spins for up to this long before it sleeps.
SHORT_PAUSE_NS = 300_000
_SPINS_PER_CHECK = 16

_CANCELED = -errno.ECANCELED
_IO_ERROR = -errno.EIO
_UNSUPPORTED = -errno.EOPNOTSUPP
_INTERRUPTED = -errno.EINTR
_TIMED_OUT = -errno.ETIMEDOUT


_words = int64_out


def ring_words(entries: int) -> int:
    """Number of words of a ring with this many entries."""
    return _SLOTS + 2 * entries * SLOT_WORDS


@kernel(_words(_words))
def submit_counters(ring: Words) -> Words:
    """Counters of the submission ring."""
    return ring[_SUBMIT_COUNTERS:_COMPLETE_COUNTERS]


@kernel(_words(_words))
def submit_slots(ring: Words) -> Words:
    """Slots of the submission ring."""
    return ring[_SLOTS : (_SLOTS + ring.size) // 2]


@kernel(_words(_words))
def complete_counters(ring: Words) -> Words:
    """Counters of the completion ring."""
    return ring[_COMPLETE_COUNTERS:_SLOTS]


@kernel(_words(_words))
def complete_slots(ring: Words) -> Words:
    """Slots of the completion ring."""
    return ring[(_SLOTS + ring.size) // 2 :]


@kernel(int64(bytes_in))
def buffer_address(buffer: Bytes) -> int:
    """The memory address of a buffer, for an iovec."""
    return address_of(buffer, 0)


@kernel(int64(_words, int64_in))
def submit(ring: Words, operation: Words) -> int:
    """Publish one operation of seven words. Returns 1, or 0 if the ring is full. The server may start at once."""
    return ring_push(submit_slots(ring), submit_counters(ring), operation)


@kernel(void(_words, int64))
def wake_server(ring: Words, doorbell: int) -> None:
    """Signal the doorbell if the server sleeps."""
    fence()
    if ring[CONTROL_SLEEPING] != 0:
        signal_event(doorbell)


@kernel(int64(_words, _words))
def next_operation(ring: Words, operation: Words) -> int:
    """Pop the next operation, for the server. Returns 1, or 0 if none is queued."""
    return ring_pop(submit_slots(ring), submit_counters(ring), operation)


@kernel(int64(_words))
def has_operation(ring: Words) -> int:
    """1 if an operation is queued, else 0; for the server only."""
    return ring_is_ready(submit_slots(ring), submit_counters(ring))


@kernel(int64(_words))
def sleep_is_due(ring: Words) -> int:
    """Spin briefly, then announce that the server sleeps. Returns 1 if it may sleep, 0 if there is work or a stop."""
    for _ in range(SERVER_SPINS):
        if has_operation(ring) != 0:
            return 0
        spin_hint()
    store_release(ring, CONTROL_SLEEPING, 1)
    fence()
    if has_operation(ring) != 0 or load_acquire(ring, CONTROL_STOP) != 0:
        store_release(ring, CONTROL_SLEEPING, 0)
        return 0
    return 1


@kernel(int64(_words, int64, int64))
def _pause(ring: Words, doorbell: int, last_pause_ns: int) -> int:
    """Wait for an operation, spinning or sleeping. Returns the duration in nanoseconds.

    Waking a sleeping server costs the submitter as much time as a small write costs the disk. So the server spins while
    pauses are short, and sleeps when the ring is mostly idle, which then costs no CPU time.
    """
    started = monotonic_ns()
    if last_pause_ns < SHORT_PAUSE_NS:
        while has_operation(ring) == 0 and monotonic_ns() - started < SHORT_PAUSE_NS:
            for _ in range(_SPINS_PER_CHECK):
                spin_hint()
    if sleep_is_due(ring) != 0:
        take_event(doorbell)
        store_release(ring, CONTROL_SLEEPING, 0)
    return monotonic_ns() - started


@kernel(int64(int64_in, int64))
def _write(operation: Words, direct_sync: int) -> int:
    """Execute one write, without flags that the file system does not support. Returns bytes done, or minus errno."""
    fd = operation[SUBMIT_FD]
    iovec = operation[SUBMIT_IOVEC]
    count = operation[SUBMIT_COUNT]
    at = operation[SUBMIT_AT]
    is_durable = operation[SUBMIT_OPERATION] & OPERATION_MASK == WRITE_SYNC
    flags = RWF_DSYNC if is_durable and direct_sync != 0 else 0
    result = _UNSUPPORTED
    if operation[SUBMIT_OPERATION] & UNCACHED != 0:
        result = write_flagged(fd, iovec, count, at, flags | RWF_DONTCACHE)
    if result == _UNSUPPORTED and flags != 0:
        result = write_flagged(fd, iovec, count, at, flags)
    if result == _UNSUPPORTED:
        flags = 0
        result = write_vector(fd, iovec, count, at)
    if is_durable and flags == 0 and result >= 0:
        # A write followed by a sync gives the same guarantee.
        synced = sync_data(fd)
        result = synced if synced < 0 else result
    return result


@kernel(int64(int64_in, int64))
def execute(operation: Words, direct_sync: int) -> int:
    """Execute one operation. Returns bytes done, or minus errno."""
    kind = operation[SUBMIT_OPERATION] & OPERATION_MASK
    fd = operation[SUBMIT_FD]
    iovec = operation[SUBMIT_IOVEC]
    count = operation[SUBMIT_COUNT]
    at = operation[SUBMIT_AT]
    result = _INTERRUPTED
    while result == _INTERRUPTED:
        if kind == SYNC:
            result = sync_data(fd)
        elif kind == READ:
            result = read_vector(fd, iovec, count, at)
        else:
            result = _write(operation, direct_sync)
    return result


@kernel(int64(_words, int64_in))
def refusal(ring: Words, operation: Words) -> int:
    """The error of an operation that may not start: −ECANCELED in a broken chain, −EIO on a poisoned ring; else 0."""
    if ring[CONTROL_CHAIN_BROKEN] != 0:
        return _CANCELED
    if ring[CONTROL_POISON] != 0 and operation[SUBMIT_OPERATION] & OPERATION_MASK != READ:
        return _IO_ERROR
    return 0


@kernel(void(_words, int64, int64, int64))
def publish(ring: Words, tag: int, operation: int, result: int) -> None:
    """Publish the result of an operation; a failed sync poisons the ring.

    Operations that were in flight at that moment and succeed later are reported as failed: after the failed sync their
    success proves nothing.
    """
    kind = operation & OPERATION_MASK
    if ring[CONTROL_POISON] != 0:
        if result >= 0 and kind != READ:
            result = _IO_ERROR
    elif result < 0 and result != _CANCELED and (kind == SYNC or kind == WRITE_SYNC):
        store_release(ring, CONTROL_POISON, result)
    content = ring[_SERVER_RESULT : _SERVER_RESULT + CONTENT_WORDS]
    content[COMPLETE_TAG] = tag
    content[COMPLETE_RESULT] = result
    ring_push(complete_slots(ring), complete_counters(ring), content)


@kernel(void(_words, int64_in, int64))
def settle(ring: Words, operation: Words, result: int) -> None:
    """Publish the result of an operation executed in order, and record whether it breaks its chain."""
    kind = operation[SUBMIT_OPERATION] & OPERATION_MASK
    linked = operation[SUBMIT_OPERATION] & LINK != 0
    succeeded = result >= 0 and (kind == SYNC or result == operation[SUBMIT_BYTES])
    ring[CONTROL_CHAIN_BROKEN] = as_int64(linked and not succeeded)
    publish(ring, operation[SUBMIT_TAG], operation[SUBMIT_OPERATION], result)


@kernel(void(_words, int64))
def wake_submitter(ring: Words, completed: int) -> None:
    """Signal `completed` if the submitter waits."""
    fence()
    if ring[CONTROL_WAITING] != 0:
        signal_event(completed)


@kernel(int64(_words))
def serve_pending(ring: Words) -> int:
    """Execute all queued operations, in order, on the calling thread. Returns how many."""
    operation = ring[_SERVER_SCRATCH : _SERVER_SCRATCH + CONTENT_WORDS]
    served = 0
    while next_operation(ring, operation) != 0:
        result = refusal(ring, operation)
        if result == 0:
            result = execute(operation, ring[CONTROL_DIRECT_SYNC])
        settle(ring, operation, result)
        served += 1
    return served


@kernel(int64(_words, int64, int64))
def serve_resident(ring: Words, doorbell: int, completed: int) -> int:
    """Serve until a stop is requested, sleeping on the doorbell while idle. Returns the number of operations served."""
    served = 0
    pause_ns = SHORT_PAUSE_NS
    while True:
        done = serve_pending(ring)
        served += done
        if done > 0:
            wake_submitter(ring, completed)
        elif load_acquire(ring, CONTROL_STOP) != 0:
            return served
        else:
            pause_ns = _pause(ring, doorbell, pause_ns)


@kernel(int64(_words, int64, _words, int64))
def take_completion(ring: Words, completed: int, content: Words, wait_ms: int) -> int:
    """Pop one completion into `content`, waiting up to `wait_ms` for it. Returns 1, or 0 after the timeout."""
    slots = complete_slots(ring)
    counters = complete_counters(ring)
    deadline = monotonic_ns() + wait_ms * 1_000_000
    while ring_pop(slots, counters, content) == 0:
        remaining_ms = (deadline - monotonic_ns() + 999_999) // 1_000_000
        if wait_ms <= 0 or remaining_ms <= 0:
            return 0
        spins = 0
        while spins < SERVER_SPINS and ring_is_ready(slots, counters) == 0:
            spin_hint()
            spins += 1
        if spins == SERVER_SPINS:
            store_release(ring, CONTROL_WAITING, 1)
            fence()
            if ring_is_ready(slots, counters) == 0 and poll_readable(completed, remaining_ms) > 0:
                take_event(completed)
            store_release(ring, CONTROL_WAITING, 0)
    return 1


@kernel(int64(_words))
def request_signal(ring: Words) -> int:
    """Request a signal at the next completion, for a submitter that waits elsewhere. Returns 1 if one is ready."""
    store_release(ring, CONTROL_WAITING, 1)
    fence()
    return ring_is_ready(complete_slots(ring), complete_counters(ring))


@kernel(int64(_words, int64))
def wake_server_and_request_signal(ring: Words, doorbell: int) -> int:
    """`wake_server`, then `request_signal`, in one call."""
    wake_server(ring, doorbell)
    return request_signal(ring)


@kernel(int64(_words, int64, int64, int64_in, _words))
def measure_chain(ring: Words, doorbell: int, completed: int, operations: Words, latencies_ns: Words) -> int:
    """Submit the same chain of operations repeatedly, one chain at a time, and record the latency of each.

    `operations` holds seven words for each operation. The submitter is a kernel too, as on the path of an ack, so this
    measures the ring, and not how long a Python thread waits for the GIL. Returns 0, or the first error.
    """
    content = ring[_SUBMITTER_SCRATCH : _SUBMITTER_SCRATCH + CONTENT_WORDS]
    chain = operations.size // CONTENT_WORDS
    for index in range(latencies_ns.size):
        started = monotonic_ns()
        for link in range(chain):
            submit(ring, operations[link * CONTENT_WORDS : (link + 1) * CONTENT_WORDS])
        wake_server(ring, doorbell)
        for _ in range(chain):
            if take_completion(ring, completed, content, 10_000) == 0:
                return _TIMED_OUT
            if content[COMPLETE_RESULT] < 0:
                return as_int64(content[COMPLETE_RESULT])
        latencies_ns[index] = monotonic_ns() - started
    return 0
