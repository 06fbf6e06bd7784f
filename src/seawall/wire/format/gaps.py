"""A gap: a range of sequence numbers whose records are lost or removed, and the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from seawall.core.types import Seq
from seawall.wire.format.codes import GapReason


@dataclass(frozen=True, slots=True)
class Gap:
    """Seqs `first_seq` to `last_seq`, both included, have no records. An empty gap has `last_seq` = `first_seq` − 1.

    After a crash some of the numbers may never have had a record: they were only reserved.
    """

    first_seq: Seq
    last_seq: Seq
    reason: GapReason
    #: Distinguishes it from a SKIP of the order, which leaves no seq out.
    is_skip: ClassVar[Literal[False]] = False
    skip_count: ClassVar[int] = 0

    def clipped(self, first: Seq, last: Seq) -> Gap | None:
        """The part of it inside a range, or None."""
        low, high = max(self.first_seq, first), min(self.last_seq, last)
        return Gap(Seq(low), Seq(high), self.reason) if low <= high else None
