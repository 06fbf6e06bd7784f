"""What a client of job queues can do: enqueue jobs, execute them as a worker, wait for a result.

A job is a call of `executed` with the time when it was sent. Every store and every ack must be on stable storage before
it counts, for all systems.
"""

from __future__ import annotations

import os
import signal
import threading
from abc import abstractmethod
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from seawall.bench.peers.clients.base import HOST, TopicClient, paced

#: Jobs that a worker process executes at once, where it has threads.
THREADS: Final = 4
#: Longest wait for a result.
RESULT_SECONDS_MAX: Final = 60.0
#: Longest wait of one claim for a job.
CLAIM_SECONDS: Final = 0.5


class JobClient(TopicClient):
    """One queue of one server, through the library that executes its jobs."""

    def __init__(self, port: int, topic: str, *, keeps_results: bool) -> None:
        """`keeps_results`: what a job returns must be stored for `call`."""
        super().__init__(port, topic, synced=True)
        self.keeps_results: Final = keeps_results

    @abstractmethod
    def enqueue(self, sent_ns: int) -> None:
        """Enqueue one job; it is stored when this returns."""

    def call(self, sent_ns: int) -> object:
        """Enqueue one job and wait for its result."""
        raise NotImplementedError(f"{type(self).__name__} has no results")

    @abstractmethod
    def left(self) -> int:
        """How many jobs are not finished: they wait, or a worker has them."""

    @abstractmethod
    def work(self, on_ready: Callable[[], None]) -> None:
        """Execute jobs as the usual worker of the library does, until SIGTERM stops it in order."""

    def enqueue_until(self, deadline_ns: int, count_min: int) -> list[int]:
        """Enqueue one job after another, at least `count_min`; return the nanoseconds of each."""
        waited: list[int] = []
        before = monotonic_ns()
        while before < deadline_ns or len(waited) < count_min:
            self.enqueue(before)
            now = monotonic_ns()
            waited.append(now - before)
            before = now
        return waited

    def enqueue_paced(self, count: int, interval_ns: int) -> None:
        """Enqueue `count` jobs, one every interval."""
        for time_ns in paced(count, interval_ns):
            self.enqueue(time_ns)

    def call_until(self, deadline_ns: int, count_min: int) -> list[int]:
        """Enqueue one job after the result of another, at least `count_min`; return the nanoseconds of each."""
        waited: list[int] = []
        before = monotonic_ns()
        while before < deadline_ns or len(waited) < count_min:
            if self.call(before) != before:
                raise ConnectionError("a job has the result of another one")
            now = monotonic_ns()
            waited.append(now - before)
            before = now
        return waited


def redis_url(port: int) -> str:
    """The address of the Redis server of a library."""
    return f"redis://{HOST}:{port}/0"


def wait_for_stop(on_ready: Callable[[], None]) -> None:
    """Wait for SIGTERM; called by the main thread."""
    read_end, write_end = os.pipe()
    signal.signal(signal.SIGTERM, lambda _number, _frame: os.write(write_end, b"."))
    on_ready()
    os.read(read_end, 1)


def work_on_threads(work_one: Callable[[int], None], on_ready: Callable[[], None]) -> None:
    """Call `work_one` again and again on each thread, with its number, until SIGTERM.

    `work_one` claims a job, executes it and acks it, or returns after a while without a job.
    """
    is_stopping = threading.Event()

    def work(number: int) -> None:
        while not is_stopping.is_set():
            work_one(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        wait_for_stop(on_ready)
    finally:
        is_stopping.set()
        for thread in threads:
            thread.join()
