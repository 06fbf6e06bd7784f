"""The order in which waiting work is served: bands by priority, taken by deficit weighted round robin.

    ready.add(key, priority, now_ns)      work for this key waits; a key that waits already keeps its place
    key = ready.first(now_ns)             what to serve next
    ready.take(key, cost)                 it is being served; a cost of 1 is one small piece of work

    band      4        3         2         1       0
    priority  750 up   500-749   250-499   0-249   negative
    weight    8        4         2         1       1

Theory of operation. In each round a band may serve as much as its weight, highest band first; what costs more than one
unit is paid back in later rounds. So no band starves: while every band has work, the lowest two get a sixteenth each.
Within a band it is first come, first served. Waiting adds 100 to a priority each second, without a bound, so that work
moves up through the bands, and takes the place there that its age gives it.

The lowest band can be left out for a while (`pauses_lowest`). Its work keeps ageing meanwhile.

The caller passes in the time, in nanoseconds of a monotonic clock. A ready set has one owner and needs no lock. This
module must not know what the work is.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

#: The lowest priority of each band but the first, and the weight of each band, lowest band first.
BAND_STARTS: Final = (0, 250, 500, 750)
WEIGHTS: Final = (1, 1, 2, 4, 8)
BANDS: Final = len(WEIGHTS)
TOP_BAND: Final = BANDS - 1

#: What waiting adds to a priority.
AGE_PER_S: Final = 100
_NS_PER_POINT: Final = 1_000_000_000 // AGE_PER_S

#: The most that one piece of work costs, so that no band has to wait for longer than a few rounds.
COST_MAX: Final = 16


def band_of(priority: int) -> int:
    """The band of a priority."""
    return bisect_right(BAND_STARTS, priority)


def deferred(priority: int) -> int:
    """The highest priority one band lower, or the priority itself in the lowest band."""
    band = band_of(priority)
    return BAND_STARTS[band - 1] - 1 if band else priority


class _Entry(Generic[Key]):
    """Work that waits. The heap of another band may still have it from before it moved up."""

    __slots__ = ("band", "key", "number", "priority", "since_ns")

    def __init__(self, key: Key, priority: int, since_ns: int, number: int) -> None:
        self.key = key
        self.priority = priority
        self.since_ns = since_ns
        self.number = number
        self.band = band_of(priority)

    def __lt__(self, other: _Entry[Key]) -> bool:
        """True if it came first."""
        return (self.since_ns, self.number) < (other.since_ns, other.number)


class ReadySet(Generic[Key]):
    """Keys with work that waits, each once, by their priorities."""

    __slots__ = ("_bands", "_credits", "_entries", "_number", "pauses_lowest")

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry[Key]] = {}
        self._bands: list[list[_Entry[Key]]] = [[] for _ in WEIGHTS]
        #: What each band may still serve in this round; negative if it has served more.
        self._credits = list(WEIGHTS)
        self._number = 0
        #: True while the lowest band is not served.
        self.pauses_lowest = False

    def __len__(self) -> int:
        """How many keys wait."""
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        """True if a key waits."""
        return key in self._entries

    def keys(self) -> list[Key]:
        """The keys that wait, in no order."""
        return list(self._entries)

    def add(self, key: Key, priority: int, now_ns: int) -> None:
        """Let a key wait. One that waits already keeps its place, but may move to a higher band."""
        entry = self._entries.get(key)
        if entry is None:
            self._number += 1
            entry = self._entries[key] = _Entry(key, priority, now_ns, self._number)
            heapq.heappush(self._bands[entry.band], entry)
        elif priority > entry.priority:
            entry.priority = priority
            self._move_up(entry, now_ns)

    def discard(self, key: Key) -> None:
        """Forget a key, if it waits."""
        self._entries.pop(key, None)

    def first(self, now_ns: int) -> Key | None:
        """The key to serve next; None if there is none that may be served."""
        bands = self._waiting(now_ns)
        lowest = 1 if self.pauses_lowest else 0
        if not any(bands[lowest:]):
            return None
        while True:
            for band in range(TOP_BAND, lowest - 1, -1):
                if bands[band] and self._credits[band] > 0:
                    return bands[band][0].key
            # A new round. Bands without work save nothing for later.
            self._credits = [
                min(left + weight, weight) if waits else weight
                for left, weight, waits in zip(self._credits, WEIGHTS, bands, strict=True)
            ]

    def take(self, key: Key, cost: int = 1) -> int:
        """Serve a key: it does not wait any more. Returns since when it has waited."""
        entry = self._entries.pop(key)
        self._credits[entry.band] -= min(max(cost, 1), COST_MAX)
        return entry.since_ns

    def count_of(self, band: int) -> int:
        """How many keys wait in a band."""
        return sum(entry.band == band for entry in self._entries.values())

    def _waiting(self, now_ns: int) -> list[list[_Entry[Key]]]:
        """The bands, each with the entry that came first at its front, after the oldest ones have moved up."""
        for band, entries in enumerate(self._bands):
            while entries:
                entry = entries[0]
                if self._entries.get(entry.key) is not entry or entry.band != band:
                    heapq.heappop(entries)
                elif not self._move_up(entry, now_ns):
                    break
        return self._bands

    def _move_up(self, entry: _Entry[Key], now_ns: int) -> bool:
        """Put an entry into the band that it has by now; True if that is a higher one."""
        band = band_of(entry.priority + (now_ns - entry.since_ns) // _NS_PER_POINT)
        if band <= entry.band:
            return False
        entry.band = band
        heapq.heappush(self._bands[band], entry)
        return True
