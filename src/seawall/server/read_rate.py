"""How fast a reader may be: what it was sent is paid for, and who owes waits.

A reader may always have one portion on credit. So a portion need not be known before it is read, a batch larger than a
second's worth is sent whole, and over any time t at most two seconds' worth, one batch and rate × t go out.

A rate may be shared: all readers with one token owe together. Version 1 must not be made to wait, so it is told that
there is nothing yet.

This module must not know connections, or what is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from seawall.core.token_bucket import TokenBucket
from seawall.io.clocks import OsClock
from seawall.io.interfaces import Clock

_NS_PER_S: Final = 1_000_000_000
#: How long a wait lasts before it is looked whether anybody still waits.
_LOOK_S: Final = 0.25


class ReadRate:
    """Bytes a second for one reader, or for several together."""

    __slots__ = ("_bucket", "_clock", "_owed")

    def __init__(self, bytes_per_second: int, clock: Clock | None = None) -> None:
        self._clock = clock or OsClock()
        self._bucket = TokenBucket(bytes_per_second, bytes_per_second, self._clock.monotonic_ns())
        self._owed = 0

    @property
    def portion_size(self) -> int:
        """Bytes that a portion has at the most, if it is not one batch: a second's worth."""
        return self._bucket.burst

    def is_free(self) -> bool:
        """Whether a portion may be sent now."""
        self._owed -= self._bucket.take_up_to(self._owed, self._clock.monotonic_ns())
        return not self._owed

    def spend(self, size: int) -> None:
        """So much was sent."""
        self._owed += size

    async def wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until a portion may be sent, or until nobody wants it any more."""
        while not self.is_free() and not is_over():
            owed = min(self._owed, self._bucket.burst)
            wait_ns = self._bucket.wait_ns(owed, self._clock.monotonic_ns())
            await asyncio.sleep(min(wait_ns / _NS_PER_S, _LOOK_S))
