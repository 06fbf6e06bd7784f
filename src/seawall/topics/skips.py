"""Where the order of a topic's batches passes over some that never came: its SKIPs, by position.

A publisher whose batches keep their order may lose one for good; what it sent behind that one is stored only after the
order has given the lost ones up, by a SKIP. A reader that follows the publisher's numbers is owed a word at that
position. SKIPs are rare, so a topic keeps the newest `limits.SKIPS_KEPT` of them and the position below which it has
forgotten some.

Positions rise. Changes by batches of the log only, in their order, so replay gives the same again. This module must not
know sessions.
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
    """The SKIPs of one topic, the newest of them at least."""

    __slots__ = ("_kept", "_kept_max", "forgotten_below")

    def __init__(self, *, kept_max: int = limits.SKIPS_KEPT) -> None:
        self._kept: list[Skip] = []
        self._kept_max = kept_max
        #: SKIPs below this position may have been forgotten; 0 where none was.
        self.forgotten_below = Position(0)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Skip]:
        """By rising position."""
        return iter(self._kept)

    def add(self, skip: Skip) -> None:
        """One more, behind all others."""
        check(
            not self._kept or self._kept[-1].position < skip.position,
            "INV-WAL-ORDER",
            f"a SKIP at {skip.position} behind one at {self._kept[-1].position if self._kept else 0}",
        )
        self._kept.append(skip)
        if len(self._kept) > self._kept_max:
            # A good part at once, since the front of a list is expensive to take away.
            gone = self._kept_max // 4 + 1
            self.forgotten_below = Position(self._kept[gone - 1].position + 1)
            del self._kept[:gone]

    def between(self, first: Position, end: Position) -> list[Skip]:
        """Those at positions from `first` to below `end`."""
        low = bisect_left(self._kept, first, key=_position_of)
        return self._kept[low : bisect_left(self._kept, end, key=_position_of)]


def _position_of(skip: Skip) -> Position:
    return skip.position
