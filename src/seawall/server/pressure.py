"""Pressure: what is given back early when memory is short, when writes are held, and who is told to wait.

    calm     nothing happens
    flush    from 80 % of the limit on: batches that wait in the log go to their places, a checkpoint is made, and
             memory that is kept for later is returned to the system; again every few seconds while it lasts
    hold     from 95 % on, moreover: batches of connections are not taken, so those connections are not read from, and
             version 2 is told to wait (error 31, which closes nothing); a publish with a key waits where it is; reads
             and commands of all others go on

Where batches of a connection wait for a second and none of them is taken, though memory is not short, the ring is full:
version 2 is told to wait then, too.

Each level ends a little below where it began. Who is held keeps in memory what it had sent already. So that holding
everybody cannot last for ever, after a while one connection after the other is let through, a receive at each look.

INV-PRESSURE-NOTHING-LOST: short memory delays writes and refuses none: what was sent is taken later, in its order.
Whatever takes the memory, what was received is taken in the end.

A crash takes nothing but the numbers here. This module must not know sockets, nor where the figures come from.
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

#: Why batches are not taken, in words that an error begins with.
_SHORT: Final = "the memory of the server is short"
_FULL: Final = "the server has more on its way to the disk than it has room for"
#: How long publishers are told to wait, and how long they do at a full ring before they are told.
_RETRY_S: Final = limits.PRESSURE_RETRY_MS / 1000
#: While memory stays short, it is given back so often.
_FLUSH_EVERY_S: Final = 5.0


class Level(IntEnum):
    """How short memory is; more is worse."""

    CALM = 0
    FLUSH = 1
    HOLD = 2


_WORDS: Final = {
    Level.CALM: "all is calm",
    Level.FLUSH: "it is given back early",
    Level.HOLD: "writes are held",
}


class Memory(Protocol):
    """What is known of memory."""

    @property
    def limit(self) -> int:
        """Bytes that may be taken."""
        ...

    def taken(self) -> int:
        """Bytes that are taken now."""
        ...


class Levels:
    """The level of what is taken of a limit, which does not change with every look."""

    __slots__ = ("_limit", "level")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.level = Level.CALM

    def observe(self, taken: int) -> Level:
        """The level with so much taken."""
        reached = self._level_at(taken)
        # To leave a level downwards takes a little more than not to reach it.
        margin = self._limit * limits.MEMORY_CALM_BELOW_PERCENT // 100
        self.level = max(reached, min(self.level, self._level_at(taken + margin)))
        return self.level

    def _level_at(self, taken: int) -> Level:
        if taken * 100 >= self._limit * limits.MEMORY_HOLD_PERCENT:
            return Level.HOLD
        return Level.FLUSH if taken * 100 >= self._limit * limits.MEMORY_FLUSH_PERCENT else Level.CALM


class Pressure:
    """Looks at the memory of a server now and then, and does what is due."""

    def __init__(
        self, ingest: Ingest, memory: Memory, give_back: Callable[[], None], tell: Callable[[str], None]
    ) -> None:
        """`give_back` begins to return memory and does not wait for it; `tell` is told of every change in words."""
        self._ingest = ingest
        self._memory = memory
        self._give_back = give_back
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._levels = Levels(memory.limit)
        self._timer: asyncio.TimerHandle | None = None
        self._flush_at = 0.0
        self._held_since = 0.0
        #: When publishers that wait were told so, by their owners.
        self._told: dict[int, float] = {}
        #: How far those were that wait, and since when they are no further, by their owners.
        self._waits: dict[int, tuple[tuple[int, int], float]] = {}
        #: How often memory was given back, writes were held, publishers told and let through.
        self.counts: Counter[str] = Counter()

    @property
    def level(self) -> Level:
        """How short memory was at the last look."""
        return self._levels.level

    def start(self) -> None:
        """Look from now on."""
        self._timer = self._loop.call_later(limits.MEMORY_LOOK_S, self.start)
        self.look(self._loop.time())

    def stop(self) -> None:
        """Look no more, and hold nobody."""
        if self._timer is not None:
            self._timer.cancel()
        self._ingest.release()

    def look(self, now: float) -> None:
        """Do what is due at this time, in seconds of the loop."""
        before, taken = self.level, self._memory.taken()
        level = self._levels.observe(taken)
        if level is not before:
            self._changed(before, level, taken, now)
        if level >= Level.FLUSH and now >= self._flush_at:
            self._flush_at = now + _FLUSH_EVERY_S
            self.counts["memory_flushes"] += 1
            self._give_back()
        stalled = self._stalled(now)
        if level is not Level.HOLD:
            # With as much time between as they are to wait: what the order waits for may be what they have to send.
            self._advise(stalled, now, _FULL, 2 * _RETRY_S)
            return
        self._advise(list(self._ingest.waiting), now, _SHORT, _RETRY_S)
        if now - self._held_since >= limits.PRESSURE_PASS_S and self._ingest.let_one_through():
            self.counts["publishers_let_through"] += 1

    def _changed(self, before: Level, level: Level, taken: int, now: float) -> None:
        if level is Level.HOLD:
            self._held_since = now
            self.counts["memory_holds"] += 1
            self._ingest.hold()
        elif before is Level.HOLD:
            self._told.clear()
            self._ingest.release()
        limit = self._memory.limit
        used = f"{taken // limits.MIB} of {limit // limits.MIB} MiB ({taken * 100 // limit} %)"
        self._tell(f"memory: {used} are taken: {_WORDS[level]}")

    def _stalled(self, now: float) -> list[ProducerSession]:
        """Those that wait, of which nothing was taken or decided for a while."""
        waiting = list(self._ingest.waiting)
        before, self._waits = self._waits, {}
        for each in waiting:
            place = (each.highest, each.undecided)
            known = before.get(each.owner)
            self._waits[each.owner] = known if known is not None and known[0] == place else (place, now)
        return [each for each in waiting if now - self._waits[each.owner][1] >= _RETRY_S]

    def _advise(self, waiting: list[ProducerSession], now: float, cause: str, every_s: float) -> None:
        """Tell who waits to wait, and again after a while."""
        told, self._told = self._told, {}
        for each in waiting:
            at = told.get(each.owner, now - every_s)
            if now - at >= every_s:
                at = now
                self.counts["publishers_told"] += 1
                each.publisher.slow_down(limits.PRESSURE_RETRY_MS, cause)
            self._told[each.owner] = at
