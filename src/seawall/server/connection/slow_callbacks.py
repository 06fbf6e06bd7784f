"""Counts callbacks that block an event loop for too long, by name.

    with probe.watching("receive"):   measures a block that the loop calls
    probe.watched(coroutine)          measures each step of a task, under the name of its function

The status of a node shows the figures: how many were slow, the longest duration, and its name.

A crash loses the figures. This module must not know what it measures.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from seawall.io.process.clocks import OsClock
from seawall.limits import SLOW_CALLBACK_NS

__all__ = ["SlowCallbacks", "SlowFigures"]


@dataclass(frozen=True, slots=True)
class SlowFigures:
    """Callbacks that took longer than a millisecond: their count, the longest duration, and its name."""

    count: int = 0
    longest_us: int = 0
    longest: str = ""

    @classmethod
    def of(cls, probes: Iterable[SlowCallbacks]) -> SlowFigures:
        """The combined figures of several loops."""
        found = [probe.figures for probe in probes]
        longest = max(found, key=lambda each: each.longest_us, default=cls())
        return cls(sum(each.count for each in found), longest.longest_us, longest.longest)


class SlowCallbacks:
    """Measures the callbacks of one loop."""

    __slots__ = ("_began_ns", "_count", "_depth", "_longest", "_longest_ns", "_name", "_now")

    def __init__(self, now_ns: Callable[[], int] | None = None) -> None:
        self._now = now_ns or OsClock().monotonic_ns
        self._count = 0
        self._longest_ns = 0
        self._longest = ""
        self._name = ""
        self._began_ns = 0
        #: Nesting depth of measured blocks: only the outermost counts.
        self._depth = 0

    @property
    def figures(self) -> SlowFigures:
        """The figures so far."""
        return SlowFigures(self._count, self._longest_ns // 1_000, self._longest)

    def watching(self, name: str) -> SlowCallbacks:
        """Measure a `with` block."""
        if not self._depth:
            self._name = name
        return self

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._began_ns = self._now()

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._depth -= 1
        if not self._depth and (taken_ns := self._now() - self._began_ns) > SLOW_CALLBACK_NS:
            self._count += 1
            if taken_ns > self._longest_ns:
                self._longest_ns, self._longest = taken_ns, self._name

    async def watched(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine and measure each of its steps."""
        await _Steps(self, work)


class _Steps(Generator[None, None, None]):
    """Drives a coroutine and measures its steps: passes on values and exceptions."""

    __slots__ = ("_name", "_probe", "_work")

    def __init__(self, probe: SlowCallbacks, work: Coroutine[None, None, None]) -> None:
        self._probe = probe
        self._work = work
        self._name: str = getattr(work, "__qualname__", "a task")

    def __await__(self) -> Generator[None, None, None]:
        """Return the iterator that `await` drives."""
        return self

    def send(self, value: None) -> None:
        """Run the next step."""
        with self._probe.watching(self._name):
            return self._work.send(value)

    def throw(self, *thrown: Any) -> None:
        """Run the next step, which starts with an exception."""
        with self._probe.watching(self._name):
            return self._work.throw(*thrown)
