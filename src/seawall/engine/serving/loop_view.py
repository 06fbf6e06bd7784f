"""A served log as a loop beside its own has it: a ring and readers of its own, and everything else in common.

    log = LoopView(first, index)      # on the other loop, which ends after the first has closed the log

What connections of this loop publish goes into its ring, and the first loop orders and commits it with everything else:
it is told by `kick`. Answers are taken from the ring here, when the first loop says that there may be some. Questions
and changes work as ever: the locks of the store are for threads.

A topic is told to exist, to have other settings or to be gone when the rules of all loops say so, since a peer may be
told by one loop and publish through another.

A crash takes what was not acked, as ever. This module must not know connections, sockets or frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import ParamSpec, Self, TypeVar

from seawall.engine.serving.served_log import ServedLog
from seawall.engine.serving.topic_rules import TopicRules
from seawall.errors import WrongStateError

P = ParamSpec("P")
R = TypeVar("R")


class LoopView(ServedLog):
    """The log of one loop that does not commit."""

    def __init__(self, first: ServedLog, index: int) -> None:
        """On its loop; the log of the first loop is open, and serves nobody yet."""
        super().__init__(first._path, first._settings, first._config)
        self._first = first
        self._is_kicked = False
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._log, self._driver, self._store, self._orderer = first._log, first._driver, first._store, first._orderer
        self._readers, self._checkers = first._readers, first._checkers
        self.ring, self.pending = first._rings[index], self._orderer.arrivals.pending[index]
        with self._opened().looking():
            self.rules = TopicRules(self._store.catalog)
        self.loop_views = first.loop_views
        self.loop_views.append(self)
        self._opened().queue.listeners.append(partial(self._announce, self._loop))

    async def open(self) -> Self:
        """The first loop has opened it."""
        raise WrongStateError("this log is open already")

    async def close(self) -> None:
        """Leave it to the first loop."""

    def kick(self) -> None:
        """Something was published to the ring: have the first loop commit it soon."""
        if not self._is_kicked:
            self._is_kicked = True
            self._first._loop.call_soon_threadsafe(self._kick_first)

    def _kick_first(self) -> None:
        self._is_kicked = False
        self._first.kick()

    def make_way(self) -> None:
        """The ring has no room: if the order holds something back the first loop steps it."""
        self._first._loop.call_soon_threadsafe(self._first.make_way)

    def abandon(self) -> None:
        """Whatever follows, the end is not in order."""
        self._first.abandon()

    async def _on_thread(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        # What the first loop has gathered was published by nobody here.
        with self._knowing_outcome():
            return await asyncio.to_thread(call, *arguments, **named)
