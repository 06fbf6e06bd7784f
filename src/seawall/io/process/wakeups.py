"""A wake-up event for a role in its own process: the role blocks on it while idle, and other processes wake it.

    with work       the role steps, and steps again
    idle            it spins briefly, longer if that has paid off before (at most `SPIN_NS`), then blocks until another
                    process wakes it
    stopping        it ends after its current step

Waking is one atomic operation while the role is awake, and a system call only if it blocks. The words of the event are
in memory that forked processes share, so create the event before the fork.

No wake-up is lost: a role first arms the event and then checks for work once more; a producer first publishes work and
then checks whether the event is armed. One of them sees the other. A sleep also times out, since roles have timers.

What a crash does: waking a killed role has no effect. This module must not know what the work is.
"""

from __future__ import annotations

import mmap
import os
import select
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from seawall.io.disk.disk_ring import Event
from seawall.kernels.runtime.atomics import compare_exchange_u64, load_acquire_u64, store_release_u64

__all__ = ["WakeUpEvent", "keep_stepping"]

#: Longest spin without work before a role blocks; on a busy machine spinning takes a core from others.
SPIN_NS: Final = 50_000
#: Longest sleep without a wake-up.
SLEEP_MS: Final = 100

#: Offsets of the two shared words: 1 while the role blocks or is about to; 1 once it must stop.
_ARMED: Final = 0
_STOPPING: Final = 8


class WakeUpEvent:
    """The event that one role blocks on; others wake it."""

    __slots__ = ("_event", "_memory", "_poll", "_words")

    def __init__(self) -> None:
        self._event: Final = Event(block=False)
        self._memory: Final = mmap.mmap(-1, mmap.PAGESIZE)
        self._words: Final = np.frombuffer(self._memory, np.uint64)
        self._poll: Final = select.poll()
        self._poll.register(self._event.wait_fd, select.POLLIN)

    def wake(self) -> None:
        """Wake the role; call this after the work is visible to it."""
        if compare_exchange_u64(self._words, _ARMED, 1, 0) == 1:
            self._event.signal()

    def stop(self) -> None:
        """Make the role of this event stop, whatever process it runs in."""
        store_release_u64(self._words, _STOPPING, 1)
        self._event.signal()

    @property
    def is_stopping(self) -> bool:
        """True once the role of this event must stop."""
        return load_acquire_u64(self._words, _STOPPING) == 1

    def watch(self, descriptor: int, *, bytes_come: bool = True, has_space: bool = False) -> None:
        """End a sleep when a descriptor becomes readable or writable; replaces an earlier `watch` of it.

        Call it in the process that sleeps.
        """
        wanted = (select.POLLIN if bytes_come else 0) | (select.POLLOUT if has_space else 0)
        self._poll.register(descriptor, wanted)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        self._poll.unregister(descriptor)

    def arm(self) -> None:
        """From now on `ring` signals the event. Check for work once more before sleeping."""
        compare_exchange_u64(self._words, _ARMED, 0, 1)

    def sleep(self, timeout_ms: int = SLEEP_MS) -> bool:
        """Block until the event is signalled or a watched descriptor is ready; false on a timeout."""
        return bool(self._poll.poll(timeout_ms))

    def disarm(self) -> None:
        """The role is awake again: `ring` needs no signal."""
        compare_exchange_u64(self._words, _ARMED, 1, 0)
        self._event.clear()

    def close(self) -> None:
        """Close the descriptor of this process."""
        self._event.close()


def keep_stepping(step: Callable[[], int], wakeup: WakeUpEvent, spin_ns_max: int = SPIN_NS) -> None:
    """Run the steps of a role until its event says stop; `step` returns how much it did, 0 if it had no work."""
    spin_ns = spin_ns_max
    while not wakeup.is_stopping:
        if step():
            continue
        if _spin(step, spin_ns):
            spin_ns = min(spin_ns_max, 2 * spin_ns + 1)
            continue
        spin_ns //= 2
        wakeup.arm()
        while not step() and not wakeup.sleep() and not wakeup.is_stopping:
            pass
        wakeup.disarm()


def _spin(step: Callable[[], int], spin_ns: int) -> bool:
    """Step for `spin_ns` at the most; true as soon as a step had work."""
    deadline = time.monotonic_ns() + spin_ns
    while time.monotonic_ns() < deadline:
        os.sched_yield()
        if step():
            return True
    return False
