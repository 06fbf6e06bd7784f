"""A rate limit: tokens flow in at a steady rate, up to a burst; work takes tokens out.

Theory of operation. The level is counted in billionths of a token, so a rate of r tokens per second adds exactly r
units per nanosecond. All arithmetic is on integers: many small steps add up exactly to one large step, and `wait_ns` is
exact to the nanosecond.

Rules
- 0 ≤ level ≤ burst, so over any time t at most burst + rate × t tokens are taken.
- The caller passes in the time, in nanoseconds of a monotonic clock. A time before the latest one changes nothing;
  tokens flow again once time has passed that point.
- A bucket starts full. It has one owner and needs no lock.
"""

from __future__ import annotations

from seawall.errors import InvalidInputError

_UNITS_PER_TOKEN = 1_000_000_000


class TokenBucket:
    """Tokens at `rate` per second, at most `burst` at once."""

    __slots__ = ("_burst", "_latest_ns", "_level_units", "_rate")

    def __init__(self, rate: int, burst: int, now_ns: int) -> None:
        _check_at_least_one("rate", rate)
        _check_at_least_one("burst", burst)
        self._rate = rate
        self._burst = burst
        self._level_units = burst * _UNITS_PER_TOKEN
        self._latest_ns = now_ns

    @property
    def rate(self) -> int:
        """Tokens per second."""
        return self._rate

    @property
    def burst(self) -> int:
        """The most tokens that the bucket holds."""
        return self._burst

    def take(self, count: int, now_ns: int) -> bool:
        """Take all `count` tokens or none; False if there are not enough yet."""
        self._check_count(count)
        self._refill(now_ns)
        if self._level_units < count * _UNITS_PER_TOKEN:
            return False
        self._level_units -= count * _UNITS_PER_TOKEN
        return True

    def take_up_to(self, count: int, now_ns: int) -> int:
        """Take the whole tokens that are available, at most `count`; returns how many."""
        if count < 0:
            raise InvalidInputError(f"cannot take {count} tokens")
        self._refill(now_ns)
        taken = min(count, self._level_units // _UNITS_PER_TOKEN)
        self._level_units -= taken * _UNITS_PER_TOKEN
        return taken

    def wait_ns(self, count: int, now_ns: int) -> int:
        """Nanoseconds until `take(count)` succeeds if nothing else is taken; 0 if it would succeed now."""
        self._check_count(count)
        self._refill(now_ns)
        lacking_units = count * _UNITS_PER_TOKEN - self._level_units
        if lacking_units <= 0:
            return 0
        # The latest time may be after `now_ns`; tokens flow only from there on.
        return self._latest_ns - now_ns + -(-lacking_units // self._rate)

    def change(self, rate: int, burst: int, now_ns: int) -> None:
        """Set a new rate and burst from now on; tokens earned so far stay, up to the new burst."""
        _check_at_least_one("rate", rate)
        _check_at_least_one("burst", burst)
        self._refill(now_ns)
        self._rate = rate
        self._burst = burst
        self._level_units = min(self._level_units, burst * _UNITS_PER_TOKEN)

    def _refill(self, now_ns: int) -> None:
        if now_ns > self._latest_ns:
            earned_units = (now_ns - self._latest_ns) * self._rate
            self._level_units = min(self._level_units + earned_units, self._burst * _UNITS_PER_TOKEN)
            self._latest_ns = now_ns

    def _check_count(self, count: int) -> None:
        if not 0 <= count <= self._burst:
            raise InvalidInputError(
                f"cannot take {count} tokens at once from a bucket that holds {self._burst}: use take_up_to"
            )


def _check_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise InvalidInputError(f"the {name} of a token bucket must be at least 1, not {value}")
