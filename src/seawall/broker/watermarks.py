"""Measures the backpressure of a broker with two watermarks, and decides when publishers should slow down.

    calm        below the high watermark
    high        at the high watermark or above, until the fill level is below the low one: read less from sockets
    sustained   high for so long that publishers are asked to slow down

All of it is advice: nothing is refused. A batch without space waits.

Between the watermarks the pressure does not change.

The caller passes the time, in nanoseconds of a monotonic clock; a clock that runs backwards does no harm.
"""

from __future__ import annotations

from enum import IntEnum

from seawall.errors import InvalidInputError
from seawall.limits import BROKER_HIGH_WATERMARK_PERCENT, BROKER_LOW_WATERMARK_PERCENT, BROKER_PRESSURE_MS


class Pressure(IntEnum):
    """The level of backpressure; higher is worse."""

    CALM = 0
    HIGH = 1
    SUSTAINED = 2


class Watermarks:
    """Tracks the pressure of one broker."""

    __slots__ = ("_high_percent", "_low_percent", "_since_ns", "_sustained_ns")

    def __init__(
        self,
        high_percent: int = BROKER_HIGH_WATERMARK_PERCENT,
        low_percent: int = BROKER_LOW_WATERMARK_PERCENT,
        sustained_ms: int = BROKER_PRESSURE_MS,
    ) -> None:
        if not 0 < low_percent < high_percent <= 100:
            raise InvalidInputError(
                f"watermarks of {low_percent} and {high_percent} %: give a low one above 0 and below the high one, "
                "and a high one of at most 100"
            )
        self._high_percent = high_percent
        self._low_percent = low_percent
        self._sustained_ns = sustained_ms * 1_000_000
        self._since_ns: int | None = None

    def observe(self, used: int, capacity: int, now_ns: int) -> Pressure:
        """The pressure with `used` of `capacity` in use."""
        if self._since_ns is None:
            if used * 100 < capacity * self._high_percent:
                return Pressure.CALM
            self._since_ns = now_ns
        elif used * 100 < capacity * self._low_percent:
            self._since_ns = None
            return Pressure.CALM
        return Pressure.SUSTAINED if now_ns - self._since_ns >= self._sustained_ns else Pressure.HIGH
