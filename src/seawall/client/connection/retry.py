"""How long to wait before trying again, and when to stop trying. Pure: time and chance are passed in.

A pause doubles with every failure in a row up to a bound, and half of it is left to chance, so that clients that lost
the same server do not come back all at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FIRST_PAUSE_NS: Final = 20_000_000
LAST_PAUSE_NS: Final = 2_000_000_000

_NS: Final = 1_000_000_000


class Backoff:
    """Pauses between attempts that fail."""

    __slots__ = ("_chance", "_failures")

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._failures = 0

    def pause_ns(self) -> int:
        """The pause after one more failure."""
        longest = min(FIRST_PAUSE_NS << min(self._failures, 32), LAST_PAUSE_NS)
        self._failures += 1
        return longest // 2 + int(self._chance() * (longest // 2))

    def succeeded(self) -> None:
        """Begin with short pauses again."""
        self._failures = 0


def deadline_ns(now_ns: int, timeout_s: float | None) -> int | None:
    """When a wait of so many seconds ends; None never does."""
    return None if timeout_s is None else now_ns + int(timeout_s * _NS)


def seconds(span_ns: int) -> float:
    """Nanoseconds as seconds."""
    return span_ns / _NS
