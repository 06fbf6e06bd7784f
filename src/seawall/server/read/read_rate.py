"""How fast a reader may be: what it was sent is paid for with time, and who owes waits.

A portion is charged before it is read, as what it may have at the most, and again when it is known what it has. A
reader may always have one on credit, so a batch larger than a second's worth is sent whole; and over any time t at most
one second's worth, one portion and rate × t go out.

A rate may be shared: all readers with one token owe together. Version 1 must not be made to wait, so it is told that
there is nothing yet.

This module must not know connections, or what is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from seawall.io.interfaces import Clock
from seawall.io.process.clocks import OsClock

_NS_PER_S: Final = 1_000_000_000
#: How long a wait lasts before it is looked whether anybody still waits.
_LOOK_S: Final = 0.25


class ReadRate:
    """Bytes a second for one reader, or for several together."""

    __slots__ = ("_clock", "_paid_ns", "_rate")

    def __init__(self, bytes_per_second: int, clock: Clock | None = None) -> None:
        self._clock = clock or OsClock()
        self._rate = bytes_per_second
        #: When all that was sent is paid for; nobody can save up more than a second.
        self._paid_ns = self._clock.monotonic_ns() - _NS_PER_S

    def take(self, size: int) -> int:
        """Bytes that a portion may have now, of those that are asked for: a second's worth; 0 if one has to wait."""
        now_ns = self._clock.monotonic_ns()
        if self._paid_ns > now_ns:
            return 0
        self._paid_ns = max(self._paid_ns, now_ns - _NS_PER_S)
        taken = min(size, self._rate)
        self.settle(0, taken)
        return taken

    def settle(self, taken: int, used: int) -> None:
        """A portion for which so much was taken has so much."""
        self._paid_ns += (used - taken) * _NS_PER_S // self._rate

    async def wait(self, size: int, is_over: Callable[[], bool]) -> int:
        """`take` once that can be, or as soon as nobody wants it any more."""
        while not (taken := self.take(size)) and not is_over():
            left_ns = self._paid_ns - self._clock.monotonic_ns()
            await asyncio.sleep(min(left_ns / _NS_PER_S, _LOOK_S))
        return taken
