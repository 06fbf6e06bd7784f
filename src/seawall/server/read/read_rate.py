"""Read rate limit: a reader pays for sent bytes with time, and waits while it is in debt.

A response is charged at its largest possible size before it is read, and corrected when its size is known. A reader may
always have one response on credit, so a batch larger than the bytes of one second is sent whole. In any time t at most
the bytes of one second, one response and rate × t are sent.

All readers with the same token may share one rate. Version 1 must not be delayed, so it gets an empty answer instead.

This module must not know connections, or what is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from seawall.io.interfaces import Clock
from seawall.io.process.clocks import OsClock

_NS_PER_S: Final = 1_000_000_000
#: How often a wait checks whether it is still needed.
_POLL_S: Final = 0.25


class ReadRate:
    """A rate in bytes a second for one reader, or for several together."""

    __slots__ = ("_clock", "_paid_ns", "_rate")

    def __init__(self, bytes_per_second: int, clock: Clock | None = None) -> None:
        self._clock = clock or OsClock()
        self._rate = bytes_per_second
        #: The time at which everything sent is paid for; at most one second of credit accumulates.
        self._paid_ns = self._clock.monotonic_ns() - _NS_PER_S

    def take(self, size: int) -> int:
        """Charge a response now: returns the granted bytes, at most those of one second; 0 if it has to wait."""
        now_ns = self._clock.monotonic_ns()
        if self._paid_ns > now_ns:
            return 0
        self._paid_ns = max(self._paid_ns, now_ns - _NS_PER_S)
        taken = min(size, self._rate)
        self.settle(0, taken)
        return taken

    def settle(self, taken: int, used: int) -> None:
        """Correct the charge of a response: `used` instead of `taken` bytes."""
        self._paid_ns += (used - taken) * _NS_PER_S // self._rate

    async def wait(self, size: int, is_over: Callable[[], bool]) -> int:
        """The same as `take`, but waits until it grants bytes or `is_over`."""
        while not (taken := self.take(size)) and not is_over():
            left_ns = self._paid_ns - self._clock.monotonic_ns()
            await asyncio.sleep(min(left_ns / _NS_PER_S, _POLL_S))
        return taken
