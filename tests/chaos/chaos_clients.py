"""Clients of version 2 that work until they are told to end, and write down what they did and saw.

Each has a thread of its own; what it wrote down is looked at after it has ended.
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

#: How long clients look for a server that is gone: longer than any restart takes.
TIMEOUT_S = 90.0


class Recorded(Protocol):
    """What a delivery says once it is decided."""

    @property
    def error(self) -> Exception | None: ...
    @property
    def seqs(self) -> Sequence[int]: ...


class Worker(ABC):
    """Something that works on a thread until it is told to end."""

    #: How long it looks for a server.
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
        """Wait for it after it was told; whether it has ended."""
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
        """What to publish next: mostly a few small records, at times many or a large one."""
        kind = self.random.random()
        count, unsealed = (1, 0) if kind < 0.5 else (self.random.randrange(2, 20), 50)
        if kind > 0.97:
            count, unsealed = 1, self.random.randrange(100_000, 400_000)
        values = [value_of(self.name, 0, self._number + index, unsealed) for index in range(count)]
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
    """On a thread; ends its publisher now and then and goes on with another one of the same client."""

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
    """As that, but of batches so large that a few of them fill the ring of the server: of one value or of many, which
    are joined on their way."""

    def next_values(self) -> list[bytes]:
        unsealed = self.random.randrange(600_000, 3_000_000) if self.random.random() < 0.3 else 0
        count = self.random.choice((1, 20)) if unsealed else 1
        values = [value_of(self.name, 0, self._number + index, unsealed // count) for index in range(count)]
        self._number += count
        return values

    def pause_s(self) -> float:
        return self.random.choice((0.0, 0.05, 0.1))


class LonePublisher(PublishingWorker):
    """On a thread; waits for every publish."""

    def work(self) -> None:
        with seawall.connect(self.url, timeout_s=TIMEOUT_S) as log:
            while not self.is_ending.is_set():
                values = self.next_values()
                marks = list(map(mark_of, values))
                self.written.offered += marks
                self.record(marks, log.publish(self.written.topic, values))
                time.sleep(self.pause_s())


class AsyncPublisher(PublishingWorker):
    """On an event loop of its own."""

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
    """Reads a topic from its beginning, and ends once it has come as far as it is told to."""

    #: Waits after each piece: a slow reader.
    pause_s = 0.0

    def __init__(self, name: str, url: str, seed: object, topic: str) -> None:
        super().__init__(name, url, seed)
        self.read = Read(name, topic)
        #: The seq it has to read before it may end; set together with `is_ending`.
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
    """Asks, with long polls."""

    def work(self) -> None:
        with seawall.connect(self.url, timeout_s=TIMEOUT_S) as log:
            subscriber = log.subscriber(self.read.topic, "earliest")
            while not self.is_over:
                self.take(subscriber.poll(0.3))


class AsyncReader(ReadingWorker):
    """Is pushed what comes, on an event loop; looks up at times, since a push may not come for long."""

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
