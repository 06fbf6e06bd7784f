"""A lock and signals shared by Python threads and resident kernels.

The lock is a mutex of the C library. A thread waits for it without the GIL, so a kernel that holds the lock never waits
for a thread that holds the GIL. Signals are words that threads set; a kernel that leads the commits checks them after
each commit.
"""

from __future__ import annotations

from seawall.kernels.runtime.jit import int64, int64_out, kernel
from seawall.kernels.runtime.memory import Array, address_of
from seawall.kernels.runtime.system import lock_mutex, lock_mutex_until, monotonic_ns, try_lock_mutex, unlock_mutex

#: Words of memory that a mutex needs at most, on any system.
LOCK_WORDS = 16

#: Indexes in the signals: another thread wants to lead the commits; a thread waits for a wake-up after a commit.
WANTED = 0
LISTENING = 1
SIGNALS = 2


@kernel(int64(int64_out))
def acquire_lock(lock: Array) -> int:
    """Acquire a lock, blocking until it is free. Returns 0, or an error number."""
    return lock_mutex(address_of(lock, 0))


@kernel(int64(int64_out))
def try_acquire_lock(lock: Array) -> int:
    """Acquire a lock if it is free. Returns 0, or EBUSY."""
    return try_lock_mutex(address_of(lock, 0))


@kernel(int64(int64_out, int64))
def acquire_lock_within(lock: Array, wait_ns: int) -> int:
    """Acquire a lock, waiting for so long. Returns 0, or an error number, ETIMEDOUT or EBUSY."""
    return lock_mutex_until(address_of(lock, 0), monotonic_ns() + wait_ns)


@kernel(int64(int64_out))
def release_lock(lock: Array) -> int:
    """Release a lock, on the thread that acquired it. Returns 0, or an error number."""
    return unlock_mutex(address_of(lock, 0))
