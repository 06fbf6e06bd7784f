"""What threads of Python and resident kernels share: a lock, which is a mutex of the C library, and signals.

Whoever waits for the lock does so without the GIL, so a kernel that holds it never waits for a thread that holds the
GIL. Signals are numbers that threads set, and at which a kernel that leads the commits looks after each of them.
"""

from __future__ import annotations

from seawall.kernels.runtime.jit import int64, int64_out, kernel
from seawall.kernels.runtime.memory import Array, address_of
from seawall.kernels.runtime.system import lock_mutex, try_lock_mutex, unlock_mutex

#: Words of memory that a mutex may take, on any system.
LOCK_WORDS = 16

#: Places among signals: whether somebody else wants to lead, and whether somebody waits for news.
WANTED = 0
LISTENING = 1
SIGNALS = 2


@kernel(int64(int64_out))
def acquire_lock(lock: Array) -> int:
    """Take a lock, and wait until it is free: 0, or an error number."""
    return lock_mutex(address_of(lock, 0))


@kernel(int64(int64_out))
def try_acquire_lock(lock: Array) -> int:
    """Take a lock if it is free: 0, or EBUSY."""
    return try_lock_mutex(address_of(lock, 0))


@kernel(int64(int64_out))
def release_lock(lock: Array) -> int:
    """Give a lock back, on the thread that has taken it: 0, or an error number."""
    return unlock_mutex(address_of(lock, 0))
