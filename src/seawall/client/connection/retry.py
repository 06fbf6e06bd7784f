"""Exponential backoff with jitter between retries. Pure: the random source is passed in.

The pause doubles with each consecutive failure up to a limit. Half of it is random, so that clients that lost the same
server do not reconnect all at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FIRST_PAUSE_NS: Final = 20_000_000
LAST_PAUSE_NS: Final = 2_000_000_000

_NS: Final = 1_000_000_000


class Backoff:
    """The pauses between failed attempts."""

    __slots__ = ("_failures", "_random")

    def __init__(self, random_fraction: Callable[[], float] = random.random) -> None:
        self._random = random_fraction
        self._failures = 0

    def pause_ns(self) -> int:
        """Count one more failure and return the pause after it."""
        longest = min(FIRST_PAUSE_NS << min(self._failures, 32), LAST_PAUSE_NS)
        self._failures += 1
        return longest // 2 + int(self._random() * (longest // 2))

    def succeeded(self) -> None:
        """Restart with the shortest pause."""
        self._failures = 0


def deadline_ns(now_ns: int, timeout_s: float | None) -> int | None:
    """The deadline of a wait that starts now; None for no limit."""
    return None if timeout_s is None else now_ns + int(timeout_s * _NS)


def seconds(span_ns: int) -> float:
    """Convert nanoseconds to seconds."""
    return span_ns / _NS
