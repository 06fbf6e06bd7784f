"""What a check of `seawall doctor` is, and the words it reports in.

A check looks at one thing and says what it found. If the thing is absent or poor, it also says what that costs and the
command that gets it: a finding without a way out is of no use to the person who reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from seawall import limits


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `required` means that Seawall does not work where it is missing."""

    name: str
    status: Status
    found: str
    cost: str = ""
    fix: str = ""
    required: bool = False

    @property
    def is_broken(self) -> bool:
        """Whether Seawall cannot work on this machine because of it."""
        return self.required and self.status is Status.MISSING


def size_text(size: int) -> str:
    """Bytes for people: `24.0 GiB`."""
    for unit, name in ((limits.GIB, "GiB"), (limits.MIB, "MiB"), (limits.KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"
