"""A publisher of the embedded log for asyncio, with the same API as the one for threads (`publisher.py`).

    async with await log.publisher("events") as publisher:
        for lines in source:
            await publisher.put(lines)          # waits for space in the in-flight window, not for the commit
    # leaving the block flushes: everything is stored, or the first error is raised

`publish` never waits: it raises `FullError` if more than `max_in_flight` bytes are in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from seawall.core.latency import LatencySummary
from seawall.core.types import ClientId
from seawall.engine.api.publisher import Publisher, PublisherLog
from seawall.engine.commit.delivery import Delivery
from seawall.engine.read.read_results import Publishable


class AsyncPublisher:
    """Publishes to one topic, on the event loop it was opened on. Create one with `AsyncLog.publisher`."""

    def __init__(self, log: PublisherLog, publisher: Publisher) -> None:
        self._log = log
        self._publisher = publisher
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._waiting_count = 0
        self.topic = publisher.topic
        publisher.on_change = self._schedule_wake

    @property
    def in_flight(self) -> int:
        """Bytes in flight: published, and neither stored nor failed yet."""
        return self._publisher.in_flight

    @property
    def latency(self) -> LatencySummary:
        """Latency of the calls stored so far, from `publish` to the end of the commit."""
        return self._publisher.latency

    @property
    def client_id(self) -> ClientId | None:
        """The client of its session, while the publisher is open or has records in flight; otherwise None."""
        return self._publisher.client_id

    @property
    def next_client_seq(self) -> int:
        """The client seq of the next batch. The outcome of every lower one is known, except for batches in flight."""
        return self._publisher.next_client_seq

    def publish(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Publish one record or many, in order, as one commit; await the delivery to know that they are stored.

        If more than `max_in_flight` bytes are in flight it raises `FullError`, because it must not wait.
        `client_seq` repeats a batch under its old number. Records that make several batches take consecutive numbers.
        """
        return self._publisher.publish(records, client_seq=client_seq)

    async def put(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Like `publish`, but waits while more than `max_in_flight` bytes are in flight."""
        pending_batch = self._log.pending_batch_of(self.topic, records)
        await self._wait_until(lambda: self._publisher.has_space(pending_batch.size))
        return self._publisher.send(pending_batch, client_seq, may_wait=False)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything published so far is stored or has failed; raises the first error since the last flush.

        Raises `TimeoutError` after `timeout_s`; None waits without limit.
        """
        self._publisher.check_process()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_until(lambda: not self._publisher.in_flight)
        except TimeoutError:
            raise self._publisher.flush_timeout(timeout_s) from None
        self._publisher.raise_error()

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush and stop accepting records. Raises `TimeoutError` after `timeout_s`. Closing twice is fine.

        In a forked child this does nothing.
        """
        if self._publisher.end():
            await self.flush(timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _wait_until(self, is_true: Callable[[], bool]) -> None:
        self._waiting_count += 1
        try:
            while True:
                changed = self._changed
                # Test after taking the event: a delivery that finishes from here on sets it.
                if is_true():
                    return
                await changed.wait()
        finally:
            self._waiting_count -= 1

    def _schedule_wake(self) -> None:
        """Wake the waiting tasks, since fewer bytes are in flight; called by the committing thread."""
        if self._waiting_count:
            # A closed loop has no waiting tasks left.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
