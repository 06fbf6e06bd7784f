"""The SKIPs of a topic, by position: client seqs that the order gave up because their batches never arrived.

An ordered publisher may lose a batch for good. Its later batches are stored only after a SKIP in the order has given
the lost ones up, and a reader that follows the publisher's numbers must be notified at that position. SKIPs are rare,
so a topic keeps the newest `limits.SKIPS_KEPT` of them, and the position below which it has forgotten some.

Positions rise. Only logged batches change this state, in log order, so replay gives the same state. This module must
not know sessions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from seawall import limits
from seawall.core.checks import check
from seawall.core.types import ClientId, ClientSeq, Position


@dataclass(frozen=True, slots=True)
class Skip:
    """Client seqs that were given up at a position: `count` of them from `first_client_seq` on."""

    position: Position
    client_id: ClientId
    first_client_seq: ClientSeq
    count: int


class Skips:
    """The SKIPs of one topic, or the newest of them."""

    __slots__ = ("_kept", "_kept_max", "forgotten_below")

    def __init__(self, *, kept_max: int = limits.SKIPS_KEPT) -> None:
        self._kept: list[Skip] = []
        self._kept_max = kept_max
        #: SKIPs below this position may have been forgotten; 0 if none was.
        self.forgotten_below = Position(0)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Skip]:
        """By rising position."""
        return iter(self._kept)

    def add(self, skip: Skip) -> None:
        """Add a SKIP at a higher position than all others."""
        check(
            not self._kept or self._kept[-1].position < skip.position,
            "INV-WAL-ORDER",
            f"a SKIP at {skip.position} after one at {self._kept[-1].position if self._kept else 0}",
        )
        self._kept.append(skip)
        if len(self._kept) > self._kept_max:
            # Drop many at once: removing the front of a list is expensive.
            gone = self._kept_max // 4 + 1
            self.forgotten_below = Position(self._kept[gone - 1].position + 1)
            del self._kept[:gone]

    def between(self, first: Position, end: Position) -> list[Skip]:
        """The SKIPs at positions from `first` to below `end`."""
        low = bisect_left(self._kept, first, key=_position_of)
        return self._kept[low : bisect_left(self._kept, end, key=_position_of)]


def _position_of(skip: Skip) -> Position:
    return skip.position
