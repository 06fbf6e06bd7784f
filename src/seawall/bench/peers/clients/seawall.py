"""Seawall's own client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Final

import seawall
from seawall.bench.peers.clients.base import HOST, Client, TaskPublish, Until, age_ns, paced, stamp
from seawall.client.remote_log import RemoteLog

#: Single-record calls between two readings of the clock.
_CALLS_AT_ONCE: Final = 256


class SeawallClient(Client):
    """A topic of class fsync if acks follow the sync, else of class disk."""

    def __init__(self, port: int, topic: str, *, synced: bool) -> None:
        super().__init__(port, topic, synced=synced)
        self._url = f"seawall://{HOST}:{port}"
        self._opened: RemoteLog | None = None

    @property
    def _log(self) -> RemoteLog:
        if self._opened is None:
            self._opened = seawall.connect(self._url)
        return self._opened

    def create_topic(self) -> None:
        """Create the topic with the durability class that the figure asks for."""
        self._log.create_topic(self.topic, durability="fsync" if self.synced else "disk")

    def delete_topic(self) -> None:
        """Delete the topic and its records."""
        self._log.delete_topic(self.topic)

    def close(self) -> None:
        """Close all connections."""
        if self._opened is not None:
            self._opened.close()

    def publish_lists(self, records: list[bytes], until: Until) -> int:
        """Lists through a publisher."""
        published = 0
        with self._log.publisher(self.topic) as publisher:
            while until.goes_on(published):
                publisher.publish(records)
                published += len(records)
        return published

    def publish_calls(self, records: list[bytes], until: Until) -> int:
        """One `publish` of a publisher for each record."""
        published = 0
        some = records[:_CALLS_AT_ONCE]
        with self._log.publisher(self.topic) as publisher:
            publish = publisher.publish
            while until.goes_on(published):
                for record in some:
                    publish(record)
                published += len(some)
        return published

    def publish(self, record: bytes) -> None:
        """Publish one record and wait for its ack."""
        self._log.publish(self.topic, record)

    async def publisher_of_tasks(self) -> TaskPublish:
        """`publish` of a log for asyncio."""
        log = await seawall.connect_async(self._url).open()

        async def publish(record: bytes) -> None:
            await log.publish(self.topic, record)

        return publish

    def write_paced(self, size: int, count: int, interval_ns: int) -> None:
        """Through a publisher, which does not wait."""
        with self._log.publisher(self.topic) as publisher:
            for time_ns in paced(count, interval_ns):
                publisher.publish(stamp(time_ns, size))

    def follow(self, count: int, on_ready: Callable[[], None]) -> list[int]:
        """Iterate over the records, waiting for more."""
        ages: list[int] = []
        with closing(self._log.records(self.topic, wait=True)) as reader:
            on_ready()
            for record in reader:
                ages.append(age_ns(record.value))
                if len(ages) == count:
                    break
        return ages

    def consume(self, count: int) -> int:
        """Record by record."""
        size = 0
        for seen, record in enumerate(self._log.records(self.topic), 1):
            _, value, _ = record.key, record.value, record.seq
            size += len(value)
            if seen == count:
                break
        return size

    def consume_arrow(self, count: int) -> int:
        """The whole topic as an Arrow table; return the bytes of values."""
        import pyarrow.compute

        table = self._log.read_arrow(self.topic)
        lengths = pyarrow.compute.binary_length(table.column("value"))
        return int(pyarrow.compute.sum(lengths.slice(0, count)).as_py())
