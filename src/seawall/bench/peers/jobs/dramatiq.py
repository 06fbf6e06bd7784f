"""Dramatiq with its defaults, on its Redis broker."""

from __future__ import annotations

from collections.abc import Callable

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from seawall.bench.peers.jobs.base import RESULT_SECONDS_MAX, THREADS, JobClient, redis_url, wait_for_stop
from seawall.bench.peers.jobs.executions import executed


class DramatiqClient(JobClient):
    """A queue with one actor; results need a middleware."""

    def __init__(self, port: int, topic: str, *, keeps_results: bool) -> None:
        super().__init__(port, topic, keeps_results=keeps_results)
        self._broker = RedisBroker(url=redis_url(port))
        options = {}
        if keeps_results:
            self._broker.add_middleware(Results(backend=RedisBackend(url=redis_url(port))))
            options["store_results"] = True
        dramatiq.set_broker(self._broker)
        self._actor = dramatiq.actor(executed, queue_name=topic, broker=self._broker, **options)

    def create_topic(self) -> None:
        """Nothing: a queue begins with its first message."""

    def delete_topic(self) -> None:
        """Delete all keys of the server."""
        self._broker.client.flushall()

    def close(self) -> None:
        """Close all connections."""
        self._broker.client.close()

    def enqueue(self, sent_ns: int) -> None:
        """`send`."""
        self._actor.send(sent_ns)

    def call(self, sent_ns: int) -> object:
        """`send`, and `get_result`, which waits in the server."""
        return self._actor.send(sent_ns).get_result(block=True, timeout=int(RESULT_SECONDS_MAX * 1_000))

    def left(self) -> int:
        """The messages that are not acked."""
        return int(self._broker.client.hlen(f"{self._broker.namespace}:{self.topic}.msgs"))

    def work(self, on_ready: Callable[[], None]) -> None:
        """What each process of the command `dramatiq` does."""
        self._broker.emit_after("process_boot")
        worker = dramatiq.Worker(self._broker, worker_threads=THREADS)
        worker.start()
        try:
            wait_for_stop(on_ready)
        finally:
            worker.stop()
