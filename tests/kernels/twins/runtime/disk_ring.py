"""The bookkeeping of a disk ring: which operations a server may start, and what a result means for later operations.

Kernels that call the operating system have no twin; a simulated disk replaces them through the same functions.
"""

from __future__ import annotations

import errno

import numpy as np

from seawall.kernels.runtime.disk_ring import (
    COMPLETE_RESULT,
    COMPLETE_TAG,
    CONTROL_CHAIN_BROKEN,
    CONTROL_POISON,
    CONTROL_SLEEPING,
    CONTROL_STOP,
    LINK,
    OPERATION_MASK,
    READ,
    SUBMIT_BYTES,
    SUBMIT_OPERATION,
    SUBMIT_TAG,
    SYNC,
    WRITE_SYNC,
    ring_words,
)
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.rings import COUNTER_WORDS, Words
from twins.runtime.rings import ring_is_ready, ring_pop, ring_push

#: Words before the slots; the server assembles its result in eight of them.
_FIXED_WORDS = ring_words(0)
_RESULT_AT = 48
_RESULT_WORDS = 7


def submit_counters(ring: Words) -> Words:
    """The second to last counter block before the slots."""
    return ring[_FIXED_WORDS - 2 * COUNTER_WORDS : _FIXED_WORDS - COUNTER_WORDS]


def complete_counters(ring: Words) -> Words:
    """The last counter block before the slots."""
    return ring[_FIXED_WORDS - COUNTER_WORDS : _FIXED_WORDS]


def submit_slots(ring: Words) -> Words:
    """The first half of the slots."""
    return np.split(ring[_FIXED_WORDS:], 2)[0]


def complete_slots(ring: Words) -> Words:
    """The second half of the slots."""
    return np.split(ring[_FIXED_WORDS:], 2)[1]


def submit(ring: Words, operation: Words) -> int:
    """Publish one operation. Returns 1, or 0 if the ring is full."""
    return ring_push(submit_slots(ring), submit_counters(ring), operation)


def next_operation(ring: Words, operation: Words) -> int:
    """Pop the next operation. Returns 1, or 0 if none is queued."""
    return ring_pop(submit_slots(ring), submit_counters(ring), operation)


def has_operation(ring: Words) -> int:
    """1 if an operation is queued, else 0."""
    return ring_is_ready(submit_slots(ring), submit_counters(ring))


def sleep_is_due(ring: Words) -> int:
    """Set the flag and return 1 if there is neither work nor a stop request. How long to spin is not specified."""
    if has_operation(ring):
        return 0
    ring[CONTROL_SLEEPING] = int(ring[CONTROL_STOP] == 0)
    return int(ring[CONTROL_SLEEPING])


def refusal(ring: Words, operation: Words) -> int:
    """The error of an operation that may not start, or 0."""
    reads = operation[SUBMIT_OPERATION] & OPERATION_MASK == READ
    if ring[CONTROL_CHAIN_BROKEN]:
        return -errno.ECANCELED
    return -errno.EIO if ring[CONTROL_POISON] and not reads else 0


def publish(ring: Words, tag: int, operation: int, result: int) -> None:
    """Publish a result; the first failed sync poisons the ring, after which only reads succeed."""
    kind = operation & OPERATION_MASK
    poisoned = ring[CONTROL_POISON] != 0
    if poisoned and kind != READ and result >= 0:
        result = -errno.EIO
    if not poisoned and kind in (SYNC, WRITE_SYNC) and result < 0 and result != -errno.ECANCELED:
        ring[CONTROL_POISON] = result
    content = ring[_RESULT_AT : _RESULT_AT + _RESULT_WORDS]
    content[COMPLETE_TAG], content[COMPLETE_RESULT] = tag, result
    ring_push(complete_slots(ring), complete_counters(ring), content)


def settle(ring: Words, operation: Words, result: int) -> None:
    """Publish a result; the rest of a chain runs only after full success."""
    flags = int(operation[SUBMIT_OPERATION])
    done = result >= 0 if flags & OPERATION_MASK == SYNC else result == operation[SUBMIT_BYTES]
    ring[CONTROL_CHAIN_BROKEN] = int(bool(flags & LINK) and not done)
    publish(ring, int(operation[SUBMIT_TAG]), flags, result)


def buffer_address(buffer: Bytes) -> int:
    """The address as reported by numpy."""
    return int(buffer.ctypes.data)
