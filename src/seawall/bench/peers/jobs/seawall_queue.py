"""A queue of Seawall without `seawall.tasks`: threads that claim and ack one job at a time."""

from __future__ import annotations

from collections.abc import Callable

import seawall
from seawall.bench.peers.clients.base import HOST
from seawall.bench.peers.jobs.base import CLAIM_SECONDS, JobClient, work_on_threads
from seawall.bench.peers.jobs.executions import executed


class SeawallQueueClient(JobClient):
    """A topic of type queue and of class fsync."""

    def __init__(self, port: int, topic: str, *, keeps_results: bool) -> None:
        super().__init__(port, topic, keeps_results=keeps_results)
        self._log = seawall.connect(f"seawall://{HOST}:{port}")
        self._queue = self._log.queue(topic)

    def create_topic(self) -> None:
        """Create the queue."""
        self._log.create_topic(self.topic, type="queue", durability="fsync")

    def delete_topic(self) -> None:
        """Delete the queue and its jobs."""
        self._log.delete_topic(self.topic)

    def close(self) -> None:
        """Close all connections."""
        self._log.close()

    def enqueue(self, sent_ns: int) -> None:
        """`push`."""
        self._queue.push(b"%d" % sent_ns)

    def left(self) -> int:
        """From the counts of the queue."""
        counts = self._queue.counts()
        return counts.ready + counts.leased + counts.delayed

    def work(self, on_ready: Callable[[], None]) -> None:
        """`claim(1)` and `ack` on each thread; all share one log."""

        def work_one(_number: int) -> None:
            for job in self._queue.claim(1, wait_s=CLAIM_SECONDS):
                executed(int(job.value))
                job.ack()

        work_on_threads(work_one, on_ready)
