"""The options of a job, as headers of its record: when it may be claimed first, its priority, and its unique key.

| header             | value                                                             | absent |
|--------------------|-------------------------------------------------------------------|--------|
| seawall-not-before | decimal milliseconds since the Unix epoch, 1 to 18 digits         | 0      |
| seawall-priority   | one digit, 0 to 9; jobs of a higher priority are claimed first    | 0      |
| seawall-unique     | 1 to 255 bytes; one job of this key at a time is ready or leased  | none   |

The first header of a name counts. An option whose value breaks these rules is ignored: the log stores records as they
arrive, and one bad record must not make a queue unusable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from seawall.errors import InvalidInputError

NOT_BEFORE: Final = b"seawall-not-before"
PRIORITY: Final = b"seawall-priority"
UNIQUE: Final = b"seawall-unique"

PRIORITY_MAX: Final = 9
UNIQUE_SIZE_MAX: Final = 255
NOT_BEFORE_DIGITS_MAX: Final = 18


class JobOptions(NamedTuple):
    """The options of one job."""

    not_before_ms: int = 0
    priority: int = 0
    unique: bytes | None = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that carry them; raises if a value is not allowed."""
        found = []
        if self.not_before_ms:
            text = str(self.not_before_ms)
            if self.not_before_ms < 0 or len(text) > NOT_BEFORE_DIGITS_MAX:
                raise InvalidInputError(f"a job not before {text} ms: give 1 to {NOT_BEFORE_DIGITS_MAX} digits")
            found.append((NOT_BEFORE, text.encode()))
        if self.priority:
            if not 0 <= self.priority <= PRIORITY_MAX:
                raise InvalidInputError(f"priority {self.priority} of a job: it is from 0 to {PRIORITY_MAX}")
            found.append((PRIORITY, str(self.priority).encode()))
        if self.unique is not None:
            if not 1 <= len(self.unique) <= UNIQUE_SIZE_MAX:
                raise InvalidInputError(f"a unique key of {len(self.unique)} bytes: 1 to {UNIQUE_SIZE_MAX} are allowed")
            found.append((UNIQUE, self.unique))
        return found


def job_options(headers: Iterable[tuple[bytes, bytes]]) -> JobOptions:
    """The options in the headers of a record."""
    first: dict[bytes, bytes] = {}
    for name, value in headers:
        first.setdefault(name, value)
    not_before = first.get(NOT_BEFORE, b"")
    priority = first.get(PRIORITY, b"")
    unique = first.get(UNIQUE)
    return JobOptions(
        int(not_before) if not_before.isdigit() and len(not_before) <= NOT_BEFORE_DIGITS_MAX else 0,
        int(priority) if priority.isdigit() and len(priority) == 1 else 0,
        unique if unique is not None and 1 <= len(unique) <= UNIQUE_SIZE_MAX else None,
    )
