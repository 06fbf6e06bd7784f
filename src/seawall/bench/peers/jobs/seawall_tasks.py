"""Background tasks of Seawall, with the defaults of `seawall.tasks`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import seawall
from seawall.bench.peers.clients.base import HOST
from seawall.bench.peers.jobs.base import RESULT_SECONDS_MAX, THREADS, JobClient, wait_for_stop
from seawall.bench.peers.jobs.executions import executed
from seawall.errors import NotFoundError
from seawall.tasks import TaskQueue


class SeawallTasksClient(JobClient):
    """A TaskQueue with one task. Its topics have their default class, fsync."""

    def __init__(self, port: int, topic: str, *, keeps_results: bool) -> None:
        super().__init__(port, topic, keeps_results=keeps_results)
        self._url = f"seawall://{HOST}:{port}"
        self._tasks = TaskQueue(self._url, topic=topic, results=keeps_results)
        self._task = self._tasks.task(executed)

    def create_topic(self) -> None:
        """Create the queue and its dead-letter topic, as the first use does."""
        self._tasks.queue.counts()

    def delete_topic(self) -> None:
        """Delete the topics of the TaskQueue."""
        with seawall.connect(self._url) as log:
            for name in (self.topic, f"{self.topic}.dead", f"{self.topic}.results"):
                with suppress(NotFoundError):
                    log.delete_topic(name)

    def close(self) -> None:
        """Close all connections."""
        self._tasks.close()

    def enqueue(self, sent_ns: int) -> None:
        """`send`."""
        self._task.send(sent_ns)

    def call(self, sent_ns: int) -> object:
        """`send` and `result`."""
        return self._task.send(sent_ns).result(RESULT_SECONDS_MAX)

    def left(self) -> int:
        """From the counts of the queue."""
        counts = self._tasks.queue.counts()
        return counts.ready + counts.leased + counts.delayed

    def work(self, on_ready: Callable[[], None]) -> None:
        """The worker that each process of `seawall worker` runs."""
        with self._tasks.worker(threads=THREADS):
            wait_for_stop(on_ready)
