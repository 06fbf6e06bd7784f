"""The result of a check of `seawall doctor`.

A check examines one thing and reports what it found. If the thing is missing or poor, it also reports what that costs
and the command that fixes it: a finding without a fix does not help the reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from seawall import limits


class Status(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `required` means that Seawall does not work without it."""

    name: str
    status: Status
    found: str
    cost: str = ""
    fix: str = ""
    required: bool = False

    @property
    def is_broken(self) -> bool:
        """True if Seawall cannot work on this machine because of it."""
        return self.required and self.status is Status.MISSING


def size_text(size: int) -> str:
    """Bytes in a readable form: `24.0 GiB`."""
    for unit, name in ((limits.GIB, "GiB"), (limits.MIB, "MiB"), (limits.KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"
