"""Faults of a simulated disk: which call fails, and how.

A `Fault` names a kind of call, which of these calls fails, and how. A `FaultPlan` counts the calls and decides for each
one whether it succeeds, is short, fails, or loses the power.

This module must not know what a call does: it decides, and the disk acts.

Counting: a fault counts the calls of its kind (and path) since it was added. A crash point counts, in `calls`, only the
calls that can change the state after a crash (`CHANGING_CALLS`), so that a sweep over all crash points spends no run on
a read.
"""

from __future__ import annotations

import enum
import errno
import fnmatch
import random
from collections.abc import Iterable
from dataclasses import dataclass
from os import strerror
from typing import Final, Literal, TypeAlias

from seawall.errors import InvalidInputError

__all__ = ["CALLS", "CHANGING_CALLS", "Call", "Fault", "FaultPlan", "Outcome", "SimCall", "SimCrash"]

Call: TypeAlias = Literal[
    "allocate",
    "copy_range",
    "exists",
    "list",
    "lock",
    "make_directory",
    "open",
    "read",
    "rename",
    "sync",
    "sync_directory",
    "truncate",
    "unlink",
    "write",
]

#: Calls that can change the state of the disk after a crash.
CHANGING_CALLS: Final[frozenset[Call]] = frozenset(
    {
        "allocate",
        "copy_range",
        "make_directory",
        "open",
        "rename",
        "sync",
        "sync_directory",
        "truncate",
        "unlink",
        "write",
    }
)

CALLS: Final[frozenset[Call]] = CHANGING_CALLS | {"exists", "list", "lock", "read"}

#: Calls that may do less than requested.
_SHORT_CALLS: Final[frozenset[Call]] = frozenset({"write", "copy_range"})


class SimCrash(BaseException):
    """The simulated machine has lost power, until the test calls `crash` or `kill`.

    Not an `Exception`: a machine without power runs no error handling, so code under test must not catch this.
    """


class Outcome(enum.Enum):
    """The outcome of one call."""

    WHOLE = "whole"
    SHORT = "short"
    CRASH = "crash"


@dataclass(slots=True)
class SimCall:
    """One call in flight: its outcome, and the details for the history."""

    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The `nth` call of one kind fails with `error`: an errno, or "short" for a short write or copy.

    `path` restricts it to paths that match a shell pattern (`/data/wal*`); with `forever` every later call fails too.
    """

    call: Call
    nth: int = 1
    error: int | Literal["short"] = errno.EIO
    forever: bool = False
    path: str = "*"

    def __post_init__(self) -> None:
        if self.call not in CALLS:
            raise InvalidInputError(f"{self.call!r} is not a disk call; choose one of {', '.join(sorted(CALLS))}")
        if self.nth < 1:
            raise InvalidInputError(f"nth is {self.nth}; the next call is number 1")
        if self.error == "short" and self.call not in _SHORT_CALLS:
            raise InvalidInputError(f"{self.call} is never short; use an errno, or fail write or copy_range")


class _CountedFault:
    """A fault and the number of matching calls so far."""

    __slots__ = ("fault", "matched")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.matched = 0

    def applies_to(self, call: Call, path: str) -> bool:
        if call != self.fault.call or not fnmatch.fnmatchcase(path, self.fault.path):
            return False
        self.matched += 1
        return self.matched == self.fault.nth or (self.fault.forever and self.matched > self.fault.nth)


class FaultPlan:
    """The faults and the crash point of one disk."""

    __slots__ = ("_crash_at", "_crash_inside", "_faults", "_random", "calls")

    def __init__(self, chance: random.Random, faults: Iterable[Fault]) -> None:
        self._random = chance
        self._faults = [_CountedFault(fault) for fault in faults]
        self._crash_at: int | None = None
        self._crash_inside: bool | None = None
        self.calls = 0

    def add(self, fault: Fault) -> None:
        """Add one fault; it counts calls from now on."""
        self._faults.append(_CountedFault(fault))

    def clear(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def crash_after(self, count: int, inside: bool | None) -> None:
        """Lose power at the `count`-th changing call from now on, before it or inside it (None: a seeded choice)."""
        if count < 1:
            raise InvalidInputError(f"a crash after {count} calls is in the past; the next call is number 1")
        self._crash_at = self.calls + count
        self._crash_inside = inside

    def disarm(self) -> None:
        """Remove the crash point."""
        self._crash_at = None

    def decide(self, call: Call, path: str) -> Outcome:
        """Decide the outcome of a call; raises `SimCrash` for a crash before it and `OSError` for a failure."""
        if call in CHANGING_CALLS:
            self.calls += 1
            if self.calls == self._crash_at:
                inside = self._random.random() < 0.5 if self._crash_inside is None else self._crash_inside
                if inside:
                    return Outcome.CRASH
                raise SimCrash(f"power lost before {call} {path}, call {self.calls}")
        outcome = Outcome.WHOLE
        for counted in self._faults:
            if counted.applies_to(call, path):
                error = counted.fault.error
                if error != "short":
                    raise OSError(error, strerror(error), path)
                outcome = Outcome.SHORT
        return outcome
