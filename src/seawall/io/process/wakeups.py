"""How a role in a process of its own rests while it has nothing to do, and how others wake it.

    with work       it steps, and steps again
    without         it looks on for a moment, longer the more often that has paid (at most `SPIN_NS`), then lies down:
                    from then on whoever has work for it rings
    told to stop    it ends after its step

Ringing is one atomic operation while the other is awake, and a system call only if it lies. The words of a bell are in
memory that forked processes share, so it is made before the fork.

Whoever lies down says so first and then looks for work once more; whoever has made work asks afterwards whether the
other lies. One of them sees the other. A sleep ends after a while by itself all the same, since roles have clocks to
keep.

What a crash does: the bell of a process that was killed is rung and nobody comes. It must not know what the work is.
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

#: Longest that a role looks on without work before it lies down; on a busy machine that takes a core from others.
SPIN_NS: Final = 50_000
#: Longest sleep without being rung for.
SLEEP_MS: Final = 100

_LIES: Final = 0
_STOPS: Final = 8


class WakeUpEvent:
    """What one role sleeps on, and others ring."""

    __slots__ = ("_event", "_memory", "_poll", "_words")

    def __init__(self) -> None:
        self._event: Final = Event(block=False)
        self._memory: Final = mmap.mmap(-1, mmap.PAGESIZE)
        self._words: Final = np.frombuffer(self._memory, np.uint64)
        self._poll: Final = select.poll()
        self._poll.register(self._event.wait_fd, select.POLLIN)

    def ring(self) -> None:
        """There is work: called after it can be seen."""
        if compare_exchange_u64(self._words, _LIES, 1, 0) == 1:
            self._event.signal()

    def stop(self) -> None:
        """End the role of this bell, in whichever process it is."""
        store_release_u64(self._words, _STOPS, 1)
        self._event.signal()

    @property
    def is_stopping(self) -> bool:
        """Whether the role of this bell is to end."""
        return load_acquire_u64(self._words, _STOPS) == 1

    def watch(self, descriptor: int, *, bytes_come: bool = True, has_space: bool = False) -> None:
        """Let bytes that arrive here end a sleep, or room to send; in the process that sleeps. Replaces what was."""
        wanted = (select.POLLIN if bytes_come else 0) | (select.POLLOUT if has_space else 0)
        self._poll.register(descriptor, wanted)

    def unwatch(self, descriptor: int) -> None:
        """Sleep on, whatever happens here."""
        self._poll.unregister(descriptor)

    def lie_down(self) -> None:
        """From here on others ring. Look for work once more before sleeping."""
        compare_exchange_u64(self._words, _LIES, 0, 1)

    def sleep(self, timeout_ms: int = SLEEP_MS) -> bool:
        """Wait until it is rung, something arrives, or the time is over; false for the last."""
        return bool(self._poll.poll(timeout_ms))

    def get_up(self) -> None:
        """Awake again: nobody needs to ring."""
        compare_exchange_u64(self._words, _LIES, 1, 0)
        self._event.clear()

    def close(self) -> None:
        """Give back the descriptor of this process."""
        self._event.close()


def keep_stepping(step: Callable[[], int], wakeup: WakeUpEvent, spin_ns_max: int = SPIN_NS) -> None:
    """Step a role, which says how much it did, until its bell tells to stop."""
    spin_ns = spin_ns_max
    while not wakeup.is_stopping:
        if step():
            continue
        if _looks_on(step, spin_ns):
            spin_ns = min(spin_ns_max, 2 * spin_ns + 1)
            continue
        spin_ns //= 2
        wakeup.lie_down()
        while not step() and not wakeup.sleep() and not wakeup.is_stopping:
            pass
        wakeup.get_up()


def _looks_on(step: Callable[[], int], spin_ns: int) -> bool:
    """Whether work comes within a moment."""
    deadline = time.monotonic_ns() + spin_ns
    while time.monotonic_ns() < deadline:
        os.sched_yield()
        if step():
            return True
    return False
