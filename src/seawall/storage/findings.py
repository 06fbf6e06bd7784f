"""What a verification reports: every damage with its place and its way out, and what was read."""

from __future__ import annotations

from dataclasses import dataclass, field

from seawall.core.types import Seq

__all__ = ["Finding", "Totals", "VerifyReport"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage: bytes `from_at` up to `to_at` of a file, what is wrong with them, and what can be done.

    `last_seq` is None where nothing tells how far it goes; both are None where no seqs are concerned, or where, as in
    the log, nobody can tell which.
    """

    path: str
    from_at: int
    to_at: int
    what: str
    way_out: str
    first_seq: Seq | None = None
    last_seq: Seq | None = None


@dataclass(slots=True)
class Totals:
    """What was read, and what is worth knowing and no damage."""

    file_count: int = 0
    byte_count: int = 0
    logged_batches: int = 0
    batch_count: int = 0
    record_count: int = 0
    damage_count: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """A verification that has ended."""

    findings: tuple[Finding, ...]
    totals: Totals

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.findings
