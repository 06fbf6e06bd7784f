"""Redis streams through redis-py with the hiredis parser.

A stream is created by its first entry. Bulk means pipelines of 1,000 XADD; readers use XREAD.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns, sleep
from typing import Any, Final

import redis
import redis.asyncio

from seawall.bench.peers.clients.base import HOST, Client, TaskPublish, Until, age_ns, paced, stamp

PIPELINE: Final = 1_000
_READ_AT_ONCE: Final = 1_000
_BLOCK_MS: Final = 10_000
_TASKS_MAX: Final = 1_024
_LOADING_SECONDS: Final = 120.0
_LOADING_POLL_SECONDS: Final = 0.005


class RedisClient(Client):
    """A stream with one field for each record."""

    def __init__(self, port: int, topic: str, *, synced: bool) -> None:
        super().__init__(port, topic, synced=synced)
        self._redis = redis.Redis(host=HOST, port=port)

    def create_topic(self) -> None:
        """Nothing: a stream begins with its first entry."""

    def wait_until_ready(self) -> None:
        """Redis answers all commands with an error until it has loaded its file."""
        deadline_ns = monotonic_ns() + int(_LOADING_SECONDS * 1e9)
        while True:
            try:
                self._redis.ping()
            except redis.exceptions.BusyLoadingError:
                if monotonic_ns() > deadline_ns:
                    raise
                sleep(_LOADING_POLL_SECONDS)
            else:
                return

    def delete_topic(self) -> None:
        """Delete the stream; the server frees its memory in the background."""
        self._redis.unlink(self.topic)

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()

    def publish_lists(self, records: list[bytes], until: Until) -> int:
        """Pipelines of XADD."""
        some = records[:PIPELINE]
        published = 0
        while until.goes_on(published):
            pipeline = self._redis.pipeline(transaction=False)
            for record in some:
                pipeline.xadd(self.topic, {b"v": record})
            pipeline.execute()
            published += len(some)
        return published

    def publish_calls(self, records: list[bytes], until: Until) -> int:
        """The same: one call for each record, sent when the pipeline is full."""
        return self.publish_lists(records, until)

    def publish(self, record: bytes) -> None:
        """One XADD."""
        self._redis.xadd(self.topic, {b"v": record})

    async def publisher_of_tasks(self) -> TaskPublish:
        """XADD over a pool with a connection for each task."""
        pool = redis.asyncio.BlockingConnectionPool(host=HOST, port=self.port, max_connections=_TASKS_MAX)
        log = redis.asyncio.Redis(connection_pool=pool)
        topic = self.topic

        async def publish(record: bytes) -> None:
            await log.xadd(topic, {b"v": record})

        return publish

    def write_paced(self, size: int, count: int, interval_ns: int) -> None:
        """XADD, which waits for its answer."""
        for time_ns in paced(count, interval_ns):
            self._redis.xadd(self.topic, {b"v": stamp(time_ns, size)})

    def follow(self, count: int, on_ready: Callable[[], None]) -> list[int]:
        """XREAD BLOCK."""
        self._redis.ping()
        on_ready()
        ages: list[int] = []
        last: Any = b"0"
        while len(ages) < count:
            answer = self._redis.xread({self.topic: last}, block=_BLOCK_MS)
            if not answer:
                raise ConnectionError(f"{len(ages)} of {count} records came")
            for entry_id, fields in entries(answer):
                ages.append(age_ns(fields[b"v"]))
                last = entry_id
        return ages[:count]

    def consume(self, count: int) -> int:
        """XREAD COUNT."""
        size = seen = 0
        last: Any = b"0"
        while seen < count:
            answer = self._redis.xread({self.topic: last}, count=min(_READ_AT_ONCE, count - seen))
            if not answer:
                raise ConnectionError(f"{seen} of {count} records came")
            for entry_id, fields in entries(answer):
                for value in fields.values():
                    size += len(value)
                last = entry_id
                seen += 1
        return size


def entries(answer: Any) -> Any:
    """The entries of the only stream of an answer, which is a list in protocol 2 and a dictionary in protocol 3."""
    if isinstance(answer, dict):
        (found,) = answer.values()
        return found[0]
    return answer[0][1]
