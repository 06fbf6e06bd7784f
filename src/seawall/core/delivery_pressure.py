"""How much more there is to deliver than can be delivered, from 0 to 1, and what is done about it.

Pressure is the highest of three figures, each averaged over about a second: how long work waited for its turn, compared
with 5 ms; how many topics wait; and how many large reads wait for a thread.

    above 0.2    records are merged: a topic below the top band waits up to 20 ms before its next delivery
    above 0.8    copies of routers are deferred by a band, and deliveries of the lowest band pause; until pressure is
                 below 0.6 again, and for at most 5 s. After a pause they continue for at least as long.

The waits that this causes do not count as waits: pressure ends when its reason does.

Nothing else is needed for commits: records that arrive while one is written share the next one, so commits grow while
the disk is busy, and none waits while it is idle. Publishers are held back by full rings.

A governor has one owner and needs no lock; the caller passes in the time. A crash loses nothing here. This module must
not know what is delivered.
"""

from __future__ import annotations

from typing import Final

_NS_PER_MS: Final = 1_000_000

#: How often the figures are sampled, and the share of a new sample in the average.
SAMPLE_NS: Final = 100 * _NS_PER_MS
_SHARE: Final = 0.3

#: What is pressure 1: the average wait, the topics that wait, and the reads that wait.
_WAIT_NS_FULL: Final = 5 * _NS_PER_MS
_TOPICS_FULL: Final = 512
_READS_FULL: Final = 32

_MERGE_FROM: Final = 0.2
_MERGE_NS_MAX: Final = 20 * _NS_PER_MS
_DEFER_FROM: Final = 0.8
_DEFER_UNTIL: Final = 0.6
#: The longest pause of the lowest band, and the shortest time between two pauses that lasted for so long.
PAUSE_NS_MAX: Final = 5_000 * _NS_PER_MS


class Governor:
    """Decides by samples of a busy server what waits."""

    __slots__ = ("_average", "_deferred_at_ns", "_may_defer_at_ns", "_sampled_ns", "_waits", "_waits_ns")

    def __init__(self, now_ns: int) -> None:
        self._sampled_ns = now_ns
        self._waits = self._waits_ns = 0
        self._average = 0.0
        #: Since when the lowest band pauses; 0 if it does not. And when it may pause again.
        self._deferred_at_ns = 0
        self._may_defer_at_ns = 0

    @property
    def pressure(self) -> float:
        """From 0 to 1, at the last sample."""
        return self._average

    @property
    def merge_ns(self) -> int:
        """How long records are merged before a delivery; 0 below the threshold."""
        share = (self._average - _MERGE_FROM) / (1 - _MERGE_FROM)
        return int(_MERGE_NS_MAX * share) if share > 0 else 0

    @property
    def defers(self) -> bool:
        """True while copies of routers are deferred, and the lowest band pauses."""
        return self._deferred_at_ns > 0

    def waited(self, wait_ns: int) -> None:
        """Note how long some work had to wait."""
        self._waits += 1
        self._waits_ns += max(wait_ns, 0)

    def sample(self, now_ns: int, topics_waiting: int, reads_waiting: int) -> None:
        """Take a sample, if the last one is old enough: what waits now beside what has waited."""
        elapsed = (now_ns - self._sampled_ns) // SAMPLE_NS
        if elapsed < 1:
            return
        wait_ns = self._waits_ns / self._waits if self._waits else 0.0
        figure = max(wait_ns / _WAIT_NS_FULL, topics_waiting / _TOPICS_FULL, reads_waiting / _READS_FULL)
        # Samples that nobody has taken were of an idle server.
        self._average *= (1 - _SHARE) ** elapsed
        self._average += _SHARE * min(figure, 1.0)
        self._waits = self._waits_ns = 0
        self._sampled_ns = now_ns
        self._decide(now_ns)

    def _decide(self, now_ns: int) -> None:
        if not self.defers:
            if self._average > _DEFER_FROM and now_ns >= self._may_defer_at_ns:
                self._deferred_at_ns = max(now_ns, 1)
        elif self._average < _DEFER_UNTIL:
            self._deferred_at_ns = 0
        elif now_ns - self._deferred_at_ns >= PAUSE_NS_MAX:
            self._deferred_at_ns = 0
            self._may_defer_at_ns = now_ns + PAUSE_NS_MAX
