"""How long things take on an event loop, where everybody waits for them: what took too long is counted, by name.

    with probe.watching("receive"):   around what the loop calls
    probe.watched(coroutine)          the same around each step of a task, under the name of its function

The figures of a node are in its status, for people and tests: how often, the longest, and what that was.

A crash takes the figures. This module must not know what is watched.
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
    """Callbacks that took longer than a millisecond: how many, the longest, and what it was."""

    count: int = 0
    longest_us: int = 0
    longest: str = ""

    @classmethod
    def of(cls, probes: Iterable[SlowCallbacks]) -> SlowFigures:
        """Those of several loops together."""
        found = [probe.figures for probe in probes]
        longest = max(found, key=lambda each: each.longest_us, default=cls())
        return cls(sum(each.count for each in found), longest.longest_us, longest.longest)


class SlowCallbacks:
    """What took too long on one loop."""

    __slots__ = ("_began_ns", "_count", "_depth", "_longest", "_longest_ns", "_name", "_now")

    def __init__(self, now_ns: Callable[[], int] | None = None) -> None:
        self._now = now_ns or OsClock().monotonic_ns
        self._count = 0
        self._longest_ns = 0
        self._longest = ""
        self._name = ""
        self._began_ns = 0
        #: How many of those that are watched run inside each other: only the outermost counts.
        self._depth = 0

    @property
    def figures(self) -> SlowFigures:
        """What was counted so far."""
        return SlowFigures(self._count, self._longest_ns // 1_000, self._longest)

    def watching(self, name: str) -> SlowCallbacks:
        """Watch what runs in a `with` block."""
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
        """Run a task, and watch each of its steps."""
        await _Steps(self, work)


class _Steps(Generator[None, None, None]):
    """A coroutine whose steps are watched: what is sent to it or thrown goes on to the coroutine."""

    __slots__ = ("_name", "_probe", "_work")

    def __init__(self, probe: SlowCallbacks, work: Coroutine[None, None, None]) -> None:
        self._probe = probe
        self._work = work
        self._name: str = getattr(work, "__qualname__", "a task")

    def __await__(self) -> Generator[None, None, None]:
        """Drive the coroutine, as `await` does."""
        return self

    def send(self, value: None) -> None:
        """The next step."""
        with self._probe.watching(self._name):
            return self._work.send(value)

    def throw(self, *thrown: Any) -> None:
        """The next step, which begins with an error."""
        with self._probe.watching(self._name):
            return self._work.throw(*thrown)
