"""The served log on an additional event loop: its own ring and waiting readers, everything else shared.

    log = LoopView(first, index)      # on the additional loop, which ends after the first loop has closed the log

Connections of this loop publish to its ring; the first loop orders and commits those batches with everything else, when
`request_commit` wakes it. This loop takes the acks from its ring when the first loop signals that there may be some.
Queries and changes work as on the first loop, since the locks of the store are for threads.

The creation, change or deletion of a topic is reported to a peer only after the topic rules of all loops are updated:
the peer may receive the reply through one loop and publish through another.

A crash loses only what was not acked. This module must not know connections, sockets or frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import ParamSpec, Self, TypeVar

from seawall.engine.queues.aio_queues import AsyncLogQueues
from seawall.engine.serving.delivery import Delivery
from seawall.engine.serving.served_log import ServedLog
from seawall.engine.serving.topic_rules import TopicRules
from seawall.errors import WrongStateError

P = ParamSpec("P")
R = TypeVar("R")


class LoopView(ServedLog):
    """The served log on an event loop that does not commit."""

    def __init__(self, first: ServedLog, index: int) -> None:
        """Create it on its own loop, after the first loop has opened the log and before it serves connections."""
        super().__init__(first._path, first._settings, first._config)
        self._first = first
        self._is_commit_requested = False
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._log, self._driver, self._store, self._orderer = first._log, first._driver, first._store, first._orderer
        self._readers, self._checkers, self._state = first._readers, first._checkers, first._state
        self._queues = AsyncLogQueues(self, self._opened().queues, self._on_thread)
        self.ring, self.pending = first._rings[index], self._orderer.arrivals.pending[index]
        with self._opened().inspecting():
            self.rules = TopicRules(self._store.catalog)
        self.delivery = Delivery(self._loop, self, self._opened().forwarder.defer)
        self.loop_views = first.loop_views
        self.loop_views.append(self)
        self._opened().commits.listeners.append(partial(self._schedule_notify, self._loop))

    async def open(self) -> Self:
        """Always raises: the first loop has opened the log."""
        raise WrongStateError("this log is open already")

    async def close(self) -> None:
        """Do nothing: the first loop closes the log."""

    def request_commit(self) -> None:
        """Make the first loop commit soon, after a batch was published to the ring."""
        if not self._is_commit_requested:
            self._is_commit_requested = True
            self._first._loop.call_soon_threadsafe(self._request_first)

    def _request_first(self) -> None:
        self._is_commit_requested = False
        self._first.request_commit()

    def release_held(self) -> None:
        """Make the first loop release held-back batches, since the ring has no space."""
        self._first._loop.call_soon_threadsafe(self._first.release_held)

    def abandon(self) -> None:
        """Mark the shutdown as unclean, whatever follows."""
        self._first.abandon()

    async def _on_thread(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        # Unlike on the first loop, this loop has no records of its own to queue first.
        with self._reporting_unknown_outcome():
            return await asyncio.to_thread(call, *arguments, **named)
