"""Explicit losses: ranges of seqs that will never be read, each with its reason.

Readers get a `Gap` (`api/received.py`). `Losses` are the ranges that a topic lost inside its log. What a topic lost at
its start, by cap or age, is a floor and not kept here. Deleted records are not a gap: they were removed on request.

Loss ranges are sorted and disjoint; adjacent ranges have different reasons. A seq that is lost twice keeps its first
reason.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from seawall.core.checks import check
from seawall.core.types import Seq
from seawall.wire.format.gaps import Gap

__all__ = ["Gap", "Losses"]


class Losses:
    """The loss ranges of one topic: one for each crash or damage."""

    __slots__ = ("_gaps",)

    def __init__(self) -> None:
        self._gaps: list[Gap] = []

    def __iter__(self) -> Iterator[Gap]:
        """The ranges, ascending."""
        return iter(self._gaps)

    def add(self, lost: Gap) -> None:
        """Add the parts of a range that are not lost yet."""
        check(1 <= lost.first_seq <= lost.last_seq, "INV-LIVE-EXACT", f"{lost} is empty")
        added = [Gap(first, last, lost.reason) for first, last in self.outside(lost.first_seq, lost.last_seq)]
        merged: list[Gap] = []
        for gap in sorted((*self._gaps, *added), key=_first):
            if merged and merged[-1].last_seq + 1 == gap.first_seq and merged[-1].reason is gap.reason:
                merged[-1] = Gap(merged[-1].first_seq, gap.last_seq, gap.reason)
            else:
                merged.append(gap)
        self._gaps = merged

    def drop_below(self, seq: Seq) -> None:
        """Forget losses below `seq`."""
        clipped = (gap.clipped(seq, gap.last_seq) for gap in self._gaps)
        self._gaps = [gap for gap in clipped if gap is not None]

    def inside(self, first: Seq, last: Seq) -> Iterator[Gap]:
        """The parts of the loss ranges inside a range, ascending."""
        for gap in self._gaps[self._index(first) :]:
            if gap.first_seq > last:
                break
            yield Gap(max(gap.first_seq, first), min(gap.last_seq, last), gap.reason)

    def reach_into(self, first: Seq, last: Seq) -> bool:
        """True if any seq of a range is lost."""
        return bool(self._gaps) and next(self.inside(first, last), None) is not None

    def outside(self, first: Seq, last: Seq) -> Iterator[tuple[Seq, Seq]]:
        """The parts of a range that are not lost, ascending."""
        for gap in self.inside(first, last):
            if first < gap.first_seq:
                yield first, Seq(gap.first_seq - 1)
            first = Seq(gap.last_seq + 1)
        if first <= last:
            yield first, last

    def first_outside(self, seq: Seq) -> Seq:
        """The first seq from `seq` on that is not lost."""
        for gap in self._gaps[self._index(seq) :]:
            if seq < gap.first_seq:
                break
            seq = Seq(gap.last_seq + 1)
        return seq

    def _index(self, seq: Seq) -> int:
        """The first range that ends at `seq` or later."""
        return bisect_left(self._gaps, seq, key=_last)


def _first(gap: Gap) -> Seq:
    return gap.first_seq


def _last(gap: Gap) -> Seq:
    return gap.last_seq
