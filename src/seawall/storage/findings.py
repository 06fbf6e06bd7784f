"""The report of a verification: each damage with its location and remedy, and totals of what was read."""

from __future__ import annotations

from dataclasses import dataclass, field

from seawall.core.types import Seq

__all__ = ["Finding", "Totals", "VerifyReport"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage: bytes `from_at` up to `to_at` of a file, what is wrong with them, and the remedy.

    `last_seq` is None if the extent is unknown. Both seqs are None if the damage affects no seqs, or if, as in the log,
    the affected seqs are unknown.
    """

    path: str
    from_at: int
    to_at: int
    what: str
    remedy: str
    first_seq: Seq | None = None
    last_seq: Seq | None = None


@dataclass(slots=True)
class Totals:
    """What was read, and notes that are worth knowing but are not damage."""

    file_count: int = 0
    byte_count: int = 0
    logged_batches: int = 0
    batch_count: int = 0
    record_count: int = 0
    damage_count: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a complete verification."""

    findings: tuple[Finding, ...]
    totals: Totals

    @property
    def is_sound(self) -> bool:
        """True if nothing is damaged."""
        return not self.findings
