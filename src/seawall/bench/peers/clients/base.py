"""What a client adapter can do: publish, follow and consume one topic, as users of that system would.

An adapter runs in a client process (`client_process.py`) and drives one topic of one server. Loops over records are
inside the adapters, so that no figure contains a call of ours for each record beside the calls of the client library.

Deadlines are times of the monotonic clock, which all processes of a machine share. A writer puts the time of a record
into its first eight bytes (`stamp`), and the reader of another process subtracts it (`age_ns`).
"""

from __future__ import annotations

import asyncio
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final, TypeAlias

HOST: Final = "127.0.0.1"
_STAMP_SIZE: Final = 8
_NANOSECONDS: Final = 1_000_000_000
_CONNECT_POLL_SECONDS: Final = 0.002

#: Publishes one record and waits for its ack, in any number of tasks.
TaskPublish: TypeAlias = Callable[[bytes], Coroutine[object, object, object]]


@dataclass(frozen=True, slots=True)
class Until:
    """When to stop publishing: at a time, after some records, or at whichever comes first; never before the first."""

    deadline_ns: int | None = None
    records: int | None = None

    def goes_on(self, published: int) -> bool:
        """True if more is to be published."""
        if not published:
            return True
        if self.records is not None and published >= self.records:
            return False
        return self.deadline_ns is None or monotonic_ns() < self.deadline_ns


class TopicClient(ABC):
    """One topic or queue of one server."""

    def __init__(self, port: int, topic: str, *, synced: bool) -> None:
        """`synced`: records must be on stable storage before their acks."""
        self.port: Final = port
        self.topic: Final = topic
        self.synced: Final = synced

    @abstractmethod
    def create_topic(self) -> None:
        """Create the topic."""

    @abstractmethod
    def delete_topic(self) -> None:
        """Delete the topic and its records."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""


class Client(TopicClient):
    """One topic of one server, through the client library of its system."""

    def wait_until_ready(self) -> None:
        """Wait until a server that already listens also answers."""
        return

    # --- publishing ----------------------------------------------------------------------------------------------

    @abstractmethod
    def publish_lists(self, records: list[bytes], until: Until) -> int:
        """Publish a list of records again and again, the fastest way there is; return the acknowledged number."""

    @abstractmethod
    def publish_calls(self, records: list[bytes], until: Until) -> int:
        """The same with one call for each record, which does not wait for its ack."""

    @abstractmethod
    def publish(self, record: bytes) -> None:
        """Publish one record and wait for its ack. May be called by several threads."""

    @abstractmethod
    async def publisher_of_tasks(self) -> TaskPublish:
        """A coroutine function that publishes one record and waits for its ack, for any number of tasks."""

    def publish_waiting(self, record: bytes, deadline_ns: int) -> list[int]:
        """Publish one record at a time, each after the ack of the one before; return the nanoseconds of each."""
        waited: list[int] = []
        before = monotonic_ns()
        while before < deadline_ns or not waited:
            self.publish(record)
            now = monotonic_ns()
            waited.append(now - before)
            before = now
        return waited

    def publish_threads(self, record: bytes, count: int, deadline_ns: int) -> int:
        """Publish from several threads, each waiting for each ack; return the number of records."""

        def work(_index: int) -> int:
            published = 0
            while not published or monotonic_ns() < deadline_ns:
                self.publish(record)
                published += 1
            return published

        with ThreadPoolExecutor(count) as workers:
            return sum(workers.map(work, range(count)))

    async def publish_tasks(self, publish: TaskPublish, record: bytes, count: int, deadline_ns: int) -> int:
        """Publish from several asyncio tasks, each waiting for each ack; return the number of records."""

        async def work() -> int:
            published = 0
            while not published or monotonic_ns() < deadline_ns:
                await publish(record)
                published += 1
            return published

        return sum(await asyncio.gather(*(work() for _ in range(count))))

    @abstractmethod
    def write_paced(self, size: int, count: int, interval_ns: int) -> None:
        """Publish `count` stamped records, one every interval, and wait for all acks."""

    # --- reading -------------------------------------------------------------------------------------------------

    @abstractmethod
    def follow(self, count: int, on_ready: Callable[[], None]) -> list[int]:
        """Follow the topic from its start; return the age in nanoseconds of each of `count` records on arrival.

        Calls `on_ready` once the subscription is in place.
        """

    @abstractmethod
    def consume(self, count: int) -> int:
        """Read `count` records from the start, touching key, value and offset of each; return the bytes of values."""

    def consume_arrow(self, _count: int) -> int:
        """The same as an Arrow table, for clients that can do it."""
        raise NotImplementedError(f"{type(self).__name__} has no Arrow tables")


def paced(count: int, interval_ns: int) -> Iterator[int]:
    """Yield `count` times, one every interval: the time at which the record that is written next was due.

    That is now, unless the call before took longer than the interval: then the time it held the record back counts.
    """
    due = monotonic_ns() + interval_ns
    for _ in range(count):
        early = due - monotonic_ns()
        if early > 0:
            time.sleep(early / _NANOSECONDS)
            yield monotonic_ns()
        else:
            yield due
        due += interval_ns


def stamp(time_ns: int, size: int) -> bytes:
    """A record of a size that begins with a time."""
    return time_ns.to_bytes(_STAMP_SIZE, "little") + bytes(size - _STAMP_SIZE)


def age_ns(value: bytes | memoryview) -> int:
    """Nanoseconds since the time that a record begins with."""
    return monotonic_ns() - int.from_bytes(value[:_STAMP_SIZE], "little")


def wait_for_port(port: int, seconds: float, is_alive: Callable[[], bool] = lambda: True) -> None:
    """Wait until something listens on a loopback port; an error if that takes too long or the server is dead."""
    deadline = monotonic_ns() + int(seconds * _NANOSECONDS)
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        if not is_alive():
            raise ChildProcessError("it exited")
        if monotonic_ns() > deadline:
            raise TimeoutError(f"nothing listens on port {port} after {seconds:.0f} s")
        time.sleep(_CONNECT_POLL_SECONDS)
