"""A publisher over the network for asyncio, with the words of the one for threads.

    async with await log.publisher("events") as publisher:
        for lines in source:
            await publisher.put(lines)          # waits for free space, not for the ack
    # leaving the block flushes: everything is stored, or the first error is raised

`publish` does not wait at all: it raises `FullError` where more than `max_in_flight` bytes are under way.
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
from seawall.client.publish.publisher import held, outgoing_of, session_of
from seawall.core.latency import LatencySummary
from seawall.core.types import ClientId, TopicId
from seawall.errors import FullError, InvalidInputError
from seawall.io.process.own_process import OwnProcess


class AsyncRemotePublisher:
    """Publishes to one topic, on the loop it was opened on."""

    def __init__(self, target: Target, topic: str, topic_id: TopicId, options: PublisherOptions) -> None:
        self._options = options
        self._topic_id = topic_id
        self._is_closed = False
        self._process = OwnProcess("publisher")
        self._sender = AsyncSender(
            target, outgoing_of(options), client_id=options.client_id or 0, connections=options.connections
        )
        self.topic = topic

    async def open(self) -> Self:
        """Find the server and open the session."""
        await self._sender.open()
        return self

    @property
    def in_flight(self) -> int:
        """Bytes that are on their way."""
        return self._sender.size

    @property
    def latency(self) -> LatencySummary:
        """How long batches took that are stored by now, from their first record to the ack (`core/latency.py`)."""
        return self._sender.latency

    @property
    def client_id(self) -> ClientId | None:
        """Whose session it has, while it is open or something of it is under way."""
        return session_of(self._options, self._is_closed, self.in_flight)

    @property
    def next_client_seq(self) -> int:
        """The client seq that the next batch gets; the log has decided all below it, but for those under way."""
        self._options.require_client_id()
        return self._sender.next_number

    def publish(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Send one record or many, in order; await what is returned to know that they are stored.

        Where more than `max_in_flight` bytes are under way it raises `FullError`, because it must not wait.
        `client_seq` repeats a batch under the number it had; records that make several batches take as many numbers.
        """
        if type(records) is bytes and client_seq is None and self._options.ack and not self._is_closed:
            joined = self._sender.join(self._topic_id, records, self._options.max_in_flight)
            if joined is not None:
                return joined
        blocks, size = self._encoded(records, client_seq)
        if not self._sender.has_space(size, self._options.max_in_flight):
            raise FullError(
                f"{self.in_flight} bytes are on their way to {self.topic!r}, at most {self._options.max_in_flight}; "
                "wait for some of them, or use `await put`"
            )
        return self._offer(blocks, client_seq)

    async def put(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Like `publish`, but waits where more than `max_in_flight` bytes are under way."""
        if type(records) is bytes:
            with suppress(FullError):
                return self.publish(records, client_seq=client_seq)
        # Encoded once: an iterator cannot be read a second time.
        blocks, size = self._encoded(records, client_seq)
        if not self._sender.has_space(size, self._options.max_in_flight):
            await self._sender.space(size, self._options.max_in_flight)
        return self._offer(blocks, client_seq)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything published so far is decided; raises the first error since the last flush."""
        self._process.check()
        try:
            async with asyncio.timeout(timeout_s):
                await self._sender.flush()
        except TimeoutError:
            raise TimeoutError(
                f"{self.in_flight} bytes are on their way to {self.topic!r} after {timeout_s} s"
            ) from None
        error = self._sender.take_error()
        if error is not None:
            raise error

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, and take nothing more; what is not decided after `timeout_s` fails. Closing twice is fine.

        In a forked child it does nothing.
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
            raise InvalidInputError("this publisher is closed")
        return held(self._options, records, client_seq)

    def _offer(self, blocks: Sequence[Records], client_seq: int | None) -> Delivery:
        delivery = self._sender.offer(self.topic, self._topic_id, blocks, client_seq)
        return delivery if self._options.ack else decided_delivery(self._sender, delivery)
