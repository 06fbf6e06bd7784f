"""A publisher of the embedded log for asyncio, with the words of the one for threads.

    async with await log.publisher("events") as publisher:
        for lines in source:
            await publisher.put(lines)          # waits for free space, not for the commit
    # leaving the block flushes: everything is stored, or the first error is raised

`publish` does not wait at all: it raises `FullError` where more than `max_in_flight` bytes are under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from seawall.core.latency import LatencySummary
from seawall.core.types import ClientId
from seawall.engine.api.publisher import Publisher
from seawall.engine.api.read_results import Publishable
from seawall.engine.commit.delivery import Delivery

if TYPE_CHECKING:
    from seawall.engine.api.embedded import EmbeddedLog


class AsyncPublisher:
    """Publishes to one topic, on the loop it was opened on."""

    def __init__(self, log: EmbeddedLog, publisher: Publisher) -> None:
        self._log = log
        self._publisher = publisher
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._waiting_count = 0
        self.topic = publisher.topic
        publisher.on_change = self._announce

    @property
    def in_flight(self) -> int:
        """Bytes that are on their way."""
        return self._publisher.in_flight

    @property
    def latency(self) -> LatencySummary:
        """How long calls took that are stored by now, from `publish` to the end of the commit (`core/latency.py`)."""
        return self._publisher.latency

    @property
    def client_id(self) -> ClientId | None:
        """Whose session it has, while it is open or something of it is under way."""
        return self._publisher.client_id

    @property
    def next_client_seq(self) -> int:
        """The client seq that the next batch gets; the log has decided all below it, but for those under way."""
        return self._publisher.next_client_seq

    def publish(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Send one record or many, in order, as one commit; await what is returned to know that they are stored.

        Where more than `max_in_flight` bytes are under way it raises `FullError`, because it must not wait.
        `client_seq` repeats a batch under the number it had; records that make several batches take as many numbers.
        """
        return self._publisher.publish(records, client_seq=client_seq)

    async def put(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Like `publish`, but waits where more than `max_in_flight` bytes are under way."""
        pending_batch = self._log.pending_batch_of(self.topic, records)
        await self._wait_until(lambda: self._publisher.has_space(pending_batch.size))
        return self._publisher.send(pending_batch, client_seq, may_wait=False)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything published so far is decided; raises the first error since the last flush."""
        self._publisher.check_process()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_until(lambda: not self._publisher.in_flight)
        except TimeoutError:
            raise self._publisher.late(timeout_s) from None
        self._publisher.raise_error()

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, and take nothing more; raises `TimeoutError` after `timeout_s`. Closing twice is fine.

        In a forked child it does nothing.
        """
        if self._publisher.end():
            await self.flush(timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        self._waiting_count += 1
        try:
            while True:
                changed = self._changed
                # Looked at with the event in hand: what is decided from here on sets it.
                if is_so():
                    return
                await changed.wait()
        finally:
            self._waiting_count -= 1

    def _announce(self) -> None:
        """Less is under way; called by whoever committed it."""
        if self._waiting_count:
            # Nobody waits on a loop that is closed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
