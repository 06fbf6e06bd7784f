"""RQ with its defaults: it keeps results for 500 seconds, whether or not they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import redis
import rq

from seawall.bench.peers.jobs.base import RESULT_SECONDS_MAX, JobClient, redis_url
from seawall.bench.peers.jobs.executions import executed


class RqClient(JobClient):
    """A queue whose worker forks a process for each job."""

    #: The class of the worker.
    worker_class: ClassVar[Any] = rq.Worker

    def __init__(self, port: int, topic: str, *, keeps_results: bool) -> None:
        super().__init__(port, topic, keeps_results=keeps_results)
        self._redis = redis.Redis.from_url(redis_url(port))
        self._queue = rq.Queue(topic, connection=self._redis)

    def create_topic(self) -> None:
        """Nothing: a queue begins with its first job."""

    def delete_topic(self) -> None:
        """Delete all keys of the server."""
        self._redis.flushall()

    def close(self) -> None:
        """Close all connections."""
        self._redis.close()

    def enqueue(self, sent_ns: int) -> None:
        """`enqueue`."""
        self._queue.enqueue(executed, sent_ns)

    def call(self, sent_ns: int) -> object:
        """`enqueue`, and `latest_result`, which waits in the server."""
        result = self._queue.enqueue(executed, sent_ns).latest_result(timeout=int(RESULT_SECONDS_MAX))
        if result is None:
            raise ConnectionError(f"no result after {RESULT_SECONDS_MAX} s")
        return result.return_value

    def left(self) -> int:
        """The jobs of the queue, those that a worker has taken, and those that it has started."""
        queue = self._queue
        taken, started = queue.intermediate_queue.get_job_ids(), queue.started_job_registry.get_job_ids()
        return len({*queue.get_job_ids(), *taken, *started})

    def work(self, on_ready: Callable[[], None]) -> None:
        """`Worker.work`, which executes one job at a time."""
        on_ready()
        with suppress(SystemExit):  # of a second SIGTERM
            self.worker_class([self._queue], connection=self._redis).work(logging_level="WARNING")


class RqSimpleClient(RqClient):
    """A queue whose worker executes jobs in its own process."""

    worker_class = rq.SimpleWorker
