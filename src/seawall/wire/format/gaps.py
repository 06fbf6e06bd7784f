"""A gap: a range of sequence numbers whose records are gone, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from seawall.core.types import Seq
from seawall.wire.format.codes import GapReason


@dataclass(frozen=True, slots=True)
class Gap:
    """Seqs `first_seq` to `last_seq`, both included, are gone. One that is empty ends right before it begins.

    After a crash some of the numbers may never have had a record: they were reserved ahead.
    """

    first_seq: Seq
    last_seq: Seq
    reason: GapReason
    #: What tells it from a SKIP of the order, after which no seq is missing.
    is_skip: ClassVar[Literal[False]] = False
    skip_count: ClassVar[int] = 0

    def clipped(self, first: Seq, last: Seq) -> Gap | None:
        """The part of it inside a range, if any."""
        low, high = max(self.first_seq, first), min(self.last_seq, last)
        return Gap(Seq(low), Seq(high), self.reason) if low <= high else None
