"""Clients of protocol version 2 that publish or read until they are stopped, and record their history.

Each has its own thread; its history is checked after it has ended.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from chaos_history import Mark, Read, ReadItem, Written, mark_of, value_of

import seawall
from seawall.client.aio_remote_log import AsyncRemoteLog
from seawall.errors import SeawallError
from seawall.wire.format.gaps import Gap

#: How long clients try to reconnect: longer than any restart takes.
TIMEOUT_S = 90.0


class Recorded(Protocol):
    """The result of a delivery."""

    @property
    def error(self) -> Exception | None: ...
    @property
    def seqs(self) -> Sequence[int]: ...


class Worker(ABC):
    """A client on its own thread that works until it is stopped."""

    #: How long it tries to connect.
    timeout_s = TIMEOUT_S

    def __init__(self, name: str, url: str, seed: object) -> None:
        self.name = name
        self.url = url
        self.random = random.Random(f"{seed} {name}")
        self.is_ending = threading.Event()
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self, timeout_s: float) -> bool:
        """Wait for it to end after `is_ending` was set; True if it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @abstractmethod
    def work(self) -> None:
        """What it does until `is_ending` is set."""

    def _run(self) -> None:
        try:
            self.work()
        except (SeawallError, OSError, AssertionError, TimeoutError, ValueError, KeyError, RuntimeError) as error:
            self.problem = error


class PublishingWorker(Worker):
    """Publishes numbered values to a topic."""

    def __init__(self, name: str, url: str, seed: object, topic: str, client_id: int, **options: object) -> None:
        super().__init__(name, url, seed)
        self.written = Written(name, topic)
        self.client_id = client_id
        self.options = options
        self._number = 0

    def next_values(self) -> list[bytes]:
        """The next values: mostly a few small records, sometimes many or a large one."""
        kind = self.random.random()
        count, padding = (1, 0) if kind < 0.5 else (self.random.randrange(2, 20), 50)
        if kind > 0.97:
            count, padding = 1, self.random.randrange(100_000, 400_000)
        values = [value_of(self.name, 0, self._number + index, padding) for index in range(count)]
        self._number += count
        return values

    def record(self, marks: list[Mark], delivery: Recorded) -> None:
        error = delivery.error
        if error is not None:
            self.written.failures.append(f"{marks[0]!r}: {error!r}")
            return
        seqs = delivery.seqs or [0] * len(marks)
        self.written.acked.update(zip(marks, seqs, strict=True))

    def pause_s(self) -> float:
        return self.random.choice((0.0, 0.0, 0.001, 0.005, 0.02))


class SyncPublisher(PublishingWorker):
    """Publishes without waiting; sometimes closes its publisher and continues with another one of the same client."""

    def work(self) -> None:
        with seawall.connect(self.url, timeout_s=self.timeout_s) as log:
            while not self.is_ending.is_set():
                with log.publisher(self.written.topic, client_id=self.client_id, **self.options) as publisher:
                    for _ in range(self.random.randrange(200, 2_000)):
                        if self.is_ending.is_set():
                            break
                        values = self.next_values()
                        marks = list(map(mark_of, values))
                        self.written.offered += marks
                        publisher.publish(values).add_callback(lambda done, marks=marks: self.record(marks, done))
                        time.sleep(self.pause_s())


class HeavyPublisher(SyncPublisher):
    """The same with batches so large that a few of them fill the ring of the server, of one value or of many."""

    def next_values(self) -> list[bytes]:
        padding = self.random.randrange(600_000, 3_000_000) if self.random.random() < 0.3 else 0
        count = self.random.choice((1, 20)) if padding else 1
        values = [value_of(self.name, 0, self._number + index, padding // count) for index in range(count)]
        self._number += count
        return values

    def pause_s(self) -> float:
        return self.random.choice((0.0, 0.05, 0.1))


class WaitingPublisher(PublishingWorker):
    """Waits for every publish."""

    def work(self) -> None:
        with seawall.connect(self.url, timeout_s=TIMEOUT_S) as log:
            while not self.is_ending.is_set():
                values = self.next_values()
                marks = list(map(mark_of, values))
                self.written.offered += marks
                self.record(marks, log.publish(self.written.topic, values))
                time.sleep(self.pause_s())


class AsyncPublisher(PublishingWorker):
    """Publishes on its own event loop."""

    def work(self) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        async with seawall.connect_async(self.url, timeout_s=TIMEOUT_S) as log:
            while not self.is_ending.is_set():
                made = await log.publisher(self.written.topic, client_id=self.client_id, **self.options)
                async with made as publisher:
                    for _ in range(self.random.randrange(200, 2_000)):
                        if self.is_ending.is_set():
                            break
                        values = self.next_values()
                        marks = list(map(mark_of, values))
                        self.written.offered += marks
                        delivery = await publisher.put(values)
                        delivery.add_callback(lambda done, marks=marks: self.record(marks, done))
                        await asyncio.sleep(self.pause_s())


class ReadingWorker(Worker):
    """Reads a topic from its beginning, and ends after `last_seq`."""

    #: Pause after each read, for a slow reader.
    pause_s = 0.0

    def __init__(self, name: str, url: str, seed: object, topic: str) -> None:
        super().__init__(name, url, seed)
        self.read = Read(name, topic)
        #: The last seq that it must read before it ends; set together with `is_ending`.
        self.last_seq = 0

    def take(self, items: Sequence[object]) -> None:
        for item in items:
            if getattr(item, "is_skip", False):
                continue
            if isinstance(item, Gap):
                self.read.items.append(ReadItem(item.first_seq, None, item.last_seq))
            else:
                self.read.items += [ReadItem(record.seq, mark_of(record.value)) for record in item]
        if self.pause_s:
            time.sleep(self.pause_s)

    @property
    def is_over(self) -> bool:
        if not self.is_ending.is_set() or not self.read.items:
            return self.is_ending.is_set() and not self.last_seq
        return max(self.read.items[-1].seq, self.read.items[-1].last) >= self.last_seq


class PollingReader(ReadingWorker):
    """Reads with long polls."""

    def work(self) -> None:
        with seawall.connect(self.url, timeout_s=TIMEOUT_S) as log:
            subscriber = log.subscriber(self.read.topic, "earliest")
            while not self.is_over:
                self.take(subscriber.poll(0.3))


class AsyncReader(ReadingWorker):
    """Subscribes on an event loop; checks regularly whether it should end, because no push may arrive for long."""

    def work(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        async with seawall.connect_async(self.url, timeout_s=TIMEOUT_S) as log:
            following = asyncio.ensure_future(self._take_all(log))
            while not self.is_over and not following.done():
                await asyncio.wait((following,), timeout=0.1)
            if following.done():
                following.result()
            following.cancel()
            await asyncio.wait((following,))

    async def _take_all(self, log: AsyncRemoteLog) -> None:
        async for item in log.subscriber(self.read.topic, "earliest"):
            self.take([item])
