"""Celery on Redis, with its defaults except for late acks: by default a worker that is killed loses its jobs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

import celery
import redis
from celery.signals import worker_ready

from seawall.bench.peers.jobs.base import RESULT_SECONDS_MAX, THREADS, JobClient, redis_url
from seawall.bench.peers.jobs.executions import executed

#: The hash where the broker keeps messages that are delivered and not acked.
_UNACKED = "unacked"


class CeleryClient(JobClient):
    """A queue with one task, executed by a pool of forked processes."""

    #: The pool of the worker.
    pool: ClassVar[str] = "prefork"

    def __init__(self, port: int, topic: str, *, keeps_results: bool) -> None:
        super().__init__(port, topic, keeps_results=keeps_results)
        url = redis_url(port)
        self._redis = redis.Redis.from_url(url)
        self._app = celery.Celery("bench", broker=url, backend=url if keeps_results else None, set_as_current=False)
        # Figures are written to standard output.
        self._app.conf.update(task_default_queue=topic, task_acks_late=True, worker_redirect_stdouts=False)
        self._task = self._app.task(name="executed")(executed)

    def create_topic(self) -> None:
        """Nothing: a queue begins with its first message."""

    def delete_topic(self) -> None:
        """Delete all keys of the server."""
        self._redis.flushall()

    def close(self) -> None:
        """Close all connections."""
        self._app.close()
        self._redis.close()

    def enqueue(self, sent_ns: int) -> None:
        """`delay`."""
        self._task.delay(sent_ns)

    def call(self, sent_ns: int) -> object:
        """`delay` and `get`."""
        return self._task.delay(sent_ns).get(timeout=RESULT_SECONDS_MAX)

    def left(self) -> int:
        """The messages of the queue, and those that are delivered and not acked."""
        return int(self._redis.llen(self.topic)) + int(self._redis.hlen(_UNACKED))

    def work(self, on_ready: Callable[[], None]) -> None:
        """The command `celery worker`."""

        def ready(**_: object) -> None:
            on_ready()

        worker_ready.connect(ready)
        arguments = ["--quiet", "worker", "--pool", self.pool, "--concurrency", str(THREADS), "--loglevel", "WARNING"]
        with suppress(SystemExit):
            self._app.worker_main(arguments)


class CeleryThreadsClient(CeleryClient):
    """A queue with one task, executed by a pool of threads."""

    pool = "threads"
