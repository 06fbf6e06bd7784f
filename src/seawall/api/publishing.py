"""The method of a log that opens publishers, for threads and for asyncio.

    with log.publisher("events", linger_s=0.01) as publisher:
        delivery = publisher.publish(records)                   # returns while the records are in flight
    delivery.result()

Every kind of log takes the same options; each has publishers of its own class. This module must not know where a log
is, nor how its publishers send.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from seawall.api.publisher_options import BATCH_SIZE, IN_FLIGHT_SIZE, Compression, PublisherOptions, WhenFull

#: The publisher of one kind of log.
AnyPublisher = TypeVar("AnyPublisher")


class PublishingLog(ABC, Generic[AnyPublisher]):
    """The part of a log that opens publishers."""

    def publisher(
        self,
        topic: str,
        *,
        ack: int = 2,
        client_id: int | None = None,
        max_in_flight: int = IN_FLIGHT_SIZE,
        when_full: WhenFull = "wait",
        linger_s: float = 0.0,
        batch_size: int = BATCH_SIZE,
        compression: Compression = "none",
        connections: int = 1,
    ) -> AnyPublisher:
        """Open a publisher that does not wait: each `publish` returns a `Delivery` while its records are in flight.

        `ack` says when a delivery is done: 0 at once, 1 when its records are ordered, 2 when they are stored at the
        durability class of the topic. At most `max_in_flight` bytes are in flight; then `publish` waits, or raises
        `FullError` with `when_full="raise"`.

        With a `client_id` the publisher numbers its batches in a session of that client, and continues the numbers of
        its predecessor, so that a batch sent again after a crash is stored once (see `next_client_seq` of the
        publisher). Opening the session ends any older session of the client.

        While other batches are in flight, or for `linger_s`, small records are gathered into batches of up to
        `batch_size` bytes. `linger_s`, `batch_size`, `compression` and `connections` configure sending to a server. An
        embedded log only validates them.
        """
        options = PublisherOptions(
            ack, client_id, max_in_flight, when_full, linger_s, batch_size, compression, connections
        )
        return self._open_publisher(topic, options)

    @abstractmethod
    def _open_publisher(self, topic: str, options: PublisherOptions) -> AnyPublisher: ...


class AsyncPublishingLog(ABC, Generic[AnyPublisher]):
    """The part of a log for asyncio that opens publishers."""

    async def publisher(
        self,
        topic: str,
        *,
        ack: int = 2,
        client_id: int | None = None,
        max_in_flight: int = IN_FLIGHT_SIZE,
        linger_s: float = 0.0,
        batch_size: int = BATCH_SIZE,
        compression: Compression = "none",
        connections: int = 1,
    ) -> AnyPublisher:
        """Open a publisher that does not wait: each `publish` returns a `Delivery` while its records are in flight.

        At most `max_in_flight` bytes are in flight; then `publish` raises `FullError` and `put` waits. All else is as
        for threads.
        """
        options = PublisherOptions(
            ack, client_id, max_in_flight, "raise", linger_s, batch_size, compression, connections
        )
        return await self._open_publisher(topic, options)

    @abstractmethod
    async def _open_publisher(self, topic: str, options: PublisherOptions) -> AnyPublisher: ...
