"""Queues of Redis without a library: a stream with a consumer group, and a list with a list of jobs in progress.

Each thread of a worker has a connection, and claims and acks one job at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import redis

from seawall.bench.peers.clients.base import HOST
from seawall.bench.peers.clients.redis import entries
from seawall.bench.peers.jobs.base import CLAIM_SECONDS, THREADS, JobClient, work_on_threads
from seawall.bench.peers.jobs.executions import executed

_GROUP: Final = "workers"
_BLOCK_MS: Final = int(CLAIM_SECONDS * 1_000)


class RedisQueueClient(JobClient):
    """What both kinds of queues share: a server of its own, of which all keys belong to the queue."""

    def __init__(self, port: int, topic: str, *, keeps_results: bool) -> None:
        super().__init__(port, topic, keeps_results=keeps_results)
        self._redis = redis.Redis(host=HOST, port=port)

    def create_topic(self) -> None:
        """Nothing: a key begins with its first value."""

    def delete_topic(self) -> None:
        """Delete all keys of the server."""
        self._redis.flushall()

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()


class RedisGroupsClient(RedisQueueClient):
    """A stream whose entries a consumer group hands out; an acked entry is deleted."""

    def create_topic(self) -> None:
        """Create the stream and its group."""
        self._redis.xgroup_create(self.topic, _GROUP, id="0", mkstream=True)

    def enqueue(self, sent_ns: int) -> None:
        """XADD."""
        self._redis.xadd(self.topic, {b"v": sent_ns})

    def left(self) -> int:
        """The length of the stream."""
        return int(self._redis.xlen(self.topic))

    def work(self, on_ready: Callable[[], None]) -> None:
        """XREADGROUP COUNT 1; XACK and XDEL in one round trip."""
        clients = [redis.Redis(host=HOST, port=self.port) for _ in range(THREADS)]

        def work_one(number: int) -> None:
            client = clients[number]
            answer = client.xreadgroup(_GROUP, f"worker-{number}", {self.topic: ">"}, count=1, block=_BLOCK_MS)
            for entry_id, fields in entries(answer) if answer else ():
                executed(int(fields[b"v"]))
                with client.pipeline(transaction=False) as pipeline:
                    pipeline.xack(self.topic, _GROUP, entry_id)
                    pipeline.xdel(self.topic, entry_id)
                    pipeline.execute()

        work_on_threads(work_one, on_ready)


class RedisListsClient(RedisQueueClient):
    """A list, and for each worker a list of the jobs that it has in progress."""

    def enqueue(self, sent_ns: int) -> None:
        """LPUSH."""
        self._redis.lpush(self.topic, sent_ns)

    def left(self) -> int:
        """The length of all lists."""
        return int(sum(self._redis.llen(key) for key in (self.topic, *map(self._progress, range(THREADS)))))

    def work(self, on_ready: Callable[[], None]) -> None:
        """BLMOVE, which has replaced BRPOPLPUSH, and LREM."""
        clients = [redis.Redis(host=HOST, port=self.port) for _ in range(THREADS)]

        def work_one(number: int) -> None:
            client, progress = clients[number], self._progress(number)
            value = client.blmove(self.topic, progress, CLAIM_SECONDS, "RIGHT", "LEFT")
            if value is not None:
                executed(int(value))
                client.lrem(progress, 1, value)

        work_on_threads(work_one, on_ready)

    def _progress(self, number: int) -> str:
        return f"{self.topic}.progress-{number}"
