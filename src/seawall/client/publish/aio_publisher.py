"""The asynchronous publisher for asyncio, with the API of the one for threads.

    async with await log.publisher("events") as publisher:
        for lines in source:
            await publisher.put(lines)          # waits for space in the in-flight window, not for the ack
    # leaving the block flushes: everything is stored, or the first error is raised

`publish` never waits: it raises `FullError` if more than `max_in_flight` bytes are in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from seawall.api.publishable import Publishable, Records
from seawall.api.publisher_options import PublisherOptions
from seawall.client.connection.targets import Target
from seawall.client.publish.aio_sender import AsyncSender
from seawall.client.publish.delivery import Delivery, decided_delivery
from seawall.client.publish.publisher import PublisherState, hold_records, outgoing_of
from seawall.core.types import TopicId
from seawall.errors import FullError, WrongStateError
from seawall.io.process.own_process import OwnProcess


class AsyncRemotePublisher(PublisherState):
    """Publishes to one topic without waiting, on the loop it was opened on. Created by `AsyncRemoteLog.publisher`.

    Use it in an `async with` block: leaving the block flushes and closes it.
    """

    _sender: AsyncSender

    def __init__(self, target: Target, topic: str, topic_id: TopicId, options: PublisherOptions) -> None:
        self._options = options
        self._topic_id = topic_id
        self._is_closed = False
        self._process = OwnProcess("publisher")
        self._outgoing = outgoing_of(options)
        self._sender = AsyncSender(
            target, self._outgoing, client_id=options.client_id or 0, connections=options.connections
        )
        self.topic = topic

    async def open(self) -> Self:
        """Connect and open the session; `AsyncRemoteLog.publisher` calls it."""
        await self._sender.open()
        return self

    def publish(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Send one record or many, in order; await the returned `Delivery` to know that they are stored.

        Raises `FullError` if more than `max_in_flight` bytes are in flight; use `await put` to wait instead.
        `client_seq` sends a batch again under its old client seq; records that fill several batches take consecutive
        ones.
        """
        if type(records) is bytes and client_seq is None and self._options.ack and not self._is_closed:
            joined = self._sender.join(self._topic_id, records, self._options.max_in_flight)
            if joined is not None:
                return joined
        blocks, size = self._encoded(records, client_seq)
        if not self._sender.has_space(size, self._options.max_in_flight):
            raise FullError(
                f"{self.in_flight} bytes to {self.topic!r} are in flight, the limit is {self._options.max_in_flight}; "
                "wait for some of them, or use `await put`"
            )
        return self._offer(blocks, client_seq)

    async def put(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Like `publish`, but waits while more than `max_in_flight` bytes are in flight."""
        if type(records) is bytes:
            with suppress(FullError):
                return self.publish(records, client_seq=client_seq)
        # Encoded once: an iterator cannot be read a second time.
        blocks, size = self._encoded(records, client_seq)
        if not self._sender.has_space(size, self._options.max_in_flight):
            await self._sender.wait_for_space(size, self._options.max_in_flight)
        return self._offer(blocks, client_seq)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything published so far is stored or has failed; raises the first error since the last flush.

        Raises `TimeoutError` after `timeout_s`.
        """
        self._process.check()
        try:
            async with asyncio.timeout(timeout_s):
                await self._sender.flush()
        except TimeoutError:
            raise TimeoutError(
                f"{self.in_flight} bytes to {self.topic!r} are still in flight after {timeout_s} s"
            ) from None
        error = self._sender.take_error()
        if error is not None:
            raise error

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush and close; records that are still in flight after `timeout_s` fail. Idempotent.

        Does nothing in a forked child.
        """
        if self._is_closed or self._process.is_inherited:
            return
        self._is_closed = True
        try:
            await self.flush(timeout_s)
        finally:
            await self._sender.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _encoded(self, records: Publishable, client_seq: int | None) -> tuple[Sequence[Records], int]:
        if self._is_closed:
            raise WrongStateError("this publisher is closed")
        return hold_records(self._options, records, client_seq)

    def _offer(self, blocks: Sequence[Records], client_seq: int | None) -> Delivery:
        delivery = self._sender.offer(self.topic, self._topic_id, blocks, client_seq)
        return delivery if self._options.ack else decided_delivery(self._sender, delivery)
