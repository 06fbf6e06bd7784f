"""Memory pressure: releases memory early, holds writes, and asks publishers to slow down.

    calm     nothing to do
    flush    from 80 % of the limit: flush unflushed batches to segments, write a checkpoint, and return cached memory
             to the system; again every few seconds while the level lasts
    hold     from 95 %, additionally: accept no batches from connections, so the server does not read from these
             connections. Version 2 gets error 31 with a delay, which closes nothing; a publish with a key waits; reads
             and commands continue

If batches of a connection wait for a second and none is accepted although memory is not short, the ring is full:
version 2 gets error 31 then, too.

Each level ends a little below the threshold at which it began. A held connection keeps its received bytes in memory.
So that holding cannot last for ever, after a while each check lets one connection through, for one receive.

INV-PRESSURE-NOTHING-LOST: memory pressure delays writes and refuses none: sent batches are accepted later, in order.
This holds whatever uses the memory.

A crash loses nothing but counters. This module must not know sockets, nor where the figures come from.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

from seawall import limits
from seawall.server.publish.ingest import Ingest
from seawall.server.publish.producer_session import ProducerSession

#: Why batches are not accepted: the start of the error text.
_SHORT: Final = "the memory of the server is short"
_FULL: Final = "the server has more unwritten batches than it has space for"
#: The delay that publishers are asked for, and the time that they wait at a full ring before that.
_RETRY_S: Final = limits.PRESSURE_RETRY_MS / 1000
#: Interval between flushes while memory stays short.
_FLUSH_EVERY_S: Final = 5.0


class Level(IntEnum):
    """How short memory is; a higher level is worse."""

    CALM = 0
    FLUSH = 1
    HOLD = 2


_MESSAGES: Final = {
    Level.CALM: "there is enough",
    Level.FLUSH: "some is released early",
    Level.HOLD: "writes are held",
}


class Memory(Protocol):
    """The memory of the process."""

    @property
    def limit(self) -> int:
        """Bytes that may be used."""
        ...

    def used(self) -> int:
        """Bytes that are used now."""
        ...


class Levels:
    """The level for a memory use, with hysteresis."""

    __slots__ = ("_limit", "level")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.level = Level.CALM

    def observe(self, taken: int) -> Level:
        """The level after a measurement."""
        reached = self._level_at(taken)
        # A level is left at a lower use than it is entered.
        margin = self._limit * limits.MEMORY_MARGIN_PERCENT // 100
        self.level = max(reached, min(self.level, self._level_at(taken + margin)))
        return self.level

    def _level_at(self, taken: int) -> Level:
        if taken * 100 >= self._limit * limits.MEMORY_HOLD_PERCENT:
            return Level.HOLD
        return Level.FLUSH if taken * 100 >= self._limit * limits.MEMORY_FLUSH_PERCENT else Level.CALM


class Pressure:
    """Checks the memory of a server periodically, and acts on it."""

    def __init__(
        self, ingest: Ingest, memory: Memory, release_memory: Callable[[], None], report: Callable[[str], None]
    ) -> None:
        """`release_memory` starts to release memory without waiting; `report` receives a message at every change."""
        self._ingest = ingest
        self._memory = memory
        self._release_memory = release_memory
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._levels = Levels(memory.limit)
        self._timer: asyncio.TimerHandle | None = None
        self._flush_at = 0.0
        self._held_since = 0.0
        #: When each waiting publisher was last asked to slow down, by owner.
        self._slowed: dict[int, float] = {}
        #: Progress of each waiting publisher and when it was first seen there, by owner.
        self._progress: dict[int, tuple[tuple[int, int], float]] = {}
        #: Counts flushes, holds, and publishers slowed down and let through.
        self.counts: Counter[str] = Counter()

    @property
    def level(self) -> Level:
        """The level at the last check."""
        return self._levels.level

    def start(self) -> None:
        """Start the periodic checks."""
        self._timer = self._loop.call_later(limits.MEMORY_CHECK_S, self.start)
        self.check(self._loop.time())

    def stop(self) -> None:
        """Stop the checks, and release held writes."""
        if self._timer is not None:
            self._timer.cancel()
        self._ingest.release()

    def check(self, now: float) -> None:
        """Run one check at a time of the loop, in seconds."""
        before, taken = self.level, self._memory.used()
        level = self._levels.observe(taken)
        if level is not before:
            self._changed(before, level, taken, now)
        if level >= Level.FLUSH and now >= self._flush_at:
            self._flush_at = now + _FLUSH_EVERY_S
            self.counts["memory_flushes"] += 1
            self._release_memory()
        stalled = self._stalled(now)
        if level is not Level.HOLD:
            # Leave as much time between as the delay itself: the order may wait for batches that they still have to
            # send.
            self._slow_down(stalled, now, _FULL, 2 * _RETRY_S)
            return
        self._slow_down(list(self._ingest.waiting), now, _SHORT, _RETRY_S)
        if now - self._held_since >= limits.PRESSURE_HOLD_S and self._ingest.let_one_through():
            self.counts["publishers_let_through"] += 1

    def _changed(self, before: Level, level: Level, taken: int, now: float) -> None:
        if level is Level.HOLD:
            self._held_since = now
            self.counts["memory_holds"] += 1
            self._ingest.hold()
        elif before is Level.HOLD:
            self._slowed.clear()
            self._ingest.release()
        limit = self._memory.limit
        used = f"{taken // limits.MIB} of {limit // limits.MIB} MiB ({taken * 100 // limit} %)"
        self._report(f"memory: {used} are used: {_MESSAGES[level]}")

    def _stalled(self, now: float) -> list[ProducerSession]:
        """The waiting publishers of which no batch was accepted or decided for a while."""
        waiting = list(self._ingest.waiting)
        before, self._progress = self._progress, {}
        for each in waiting:
            progress = (each.highest, each.undecided)
            known = before.get(each.owner)
            self._progress[each.owner] = known if known is not None and known[0] == progress else (progress, now)
        return [each for each in waiting if now - self._progress[each.owner][1] >= _RETRY_S]

    def _slow_down(self, waiting: list[ProducerSession], now: float, cause: str, every_s: float) -> None:
        """Ask waiting publishers to slow down, and again after `every_s`."""
        slowed, self._slowed = self._slowed, {}
        for each in waiting:
            at = slowed.get(each.owner, now - every_s)
            if now - at >= every_s:
                at = now
                self.counts["publishers_told"] += 1
                each.session.slow_down(limits.PRESSURE_RETRY_MS, cause)
            self._slowed[each.owner] = at
