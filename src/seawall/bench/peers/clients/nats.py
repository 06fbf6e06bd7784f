"""NATS JetStream through nats-py, which is for asyncio only.

The event loop runs in a thread of its own. Loops over records are coroutines on it; the threads of the waiting
publishers wait for theirs from outside, which is the only way for threads to share a client.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from time import monotonic_ns
from typing import Any, Final, TypeVar

import nats
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType

from seawall.bench.peers.clients.base import HOST, Client, TaskPublish, Until, age_ns, paced, stamp
from seawall.io.network.loops import loop_factory

#: Records without an ack: twice the default of nats-py.
IN_FLIGHT: Final = 8_000
_CALLS_AT_ONCE: Final = 256
_FETCHED_AT_ONCE: Final = 1_000
_TIMEOUT_SECONDS: Final = 60.0
_READY_POLL_SECONDS: Final = 0.005

_Result = TypeVar("_Result")


class NatsClient(Client):
    """A stream in files with one subject."""

    def __init__(self, port: int, topic: str, *, synced: bool) -> None:
        super().__init__(port, topic, synced=synced)
        _, make_loop = loop_factory()
        self._loop = make_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._connection: Any = None
        self._opened: Any = None

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _connect(self) -> Any:
        """The JetStream context of the connection, which is opened by its first user."""
        if self._opened is None:
            self._connection = await nats.connect(f"nats://{HOST}:{self.port}")
            self._opened = self._connection.jetstream(publish_async_max_pending=IN_FLIGHT, timeout=_TIMEOUT_SECONDS)
        return self._opened

    @property
    def _stream(self) -> Any:
        return self._opened if self._opened is not None else self._run(self._connect())

    def create_topic(self) -> None:
        """Create the stream."""
        self._run(self._stream.add_stream(name=self.topic, subjects=[self.topic], storage=StorageType.FILE))

    def wait_until_ready(self) -> None:
        """A server that has just started may not have restored the stream yet."""

        async def work() -> None:
            stream = await self._connect()
            deadline_ns = monotonic_ns() + int(_TIMEOUT_SECONDS * 1e9)
            while True:
                try:
                    await stream.stream_info(self.topic)
                except nats.js.errors.APIError:
                    if monotonic_ns() > deadline_ns:
                        raise
                    await asyncio.sleep(_READY_POLL_SECONDS)
                else:
                    return

        self._run(work())

    def delete_topic(self) -> None:
        """Delete the stream."""
        self._run(self._stream.delete_stream(self.topic))

    def close(self) -> None:
        """Close the connection and stop the loop."""
        if self._connection is not None:
            self._run(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def publish_lists(self, records: list[bytes], until: Until) -> int:
        """`publish_async` for each record: there is no call for a list."""
        return self._run(self._publish_all(records[:_CALLS_AT_ONCE], until))

    def publish_calls(self, records: list[bytes], until: Until) -> int:
        """The same."""
        return self.publish_lists(records, until)

    async def _publish_all(self, records: list[bytes], until: Until) -> int:
        stream = await self._connect()
        before = (await stream.stream_info(self.topic)).state.messages
        published = 0
        while until.goes_on(published):
            for record in records:
                await stream.publish_async(self.topic, record)
            published += len(records)
        await asyncio.wait_for(stream.publish_async_completed(), _TIMEOUT_SECONDS)
        stored = (await stream.stream_info(self.topic)).state.messages - before
        if stored != published:
            raise ConnectionError(f"{stored} of {published} records are stored")
        return published

    def publish(self, record: bytes) -> None:
        """Publish and wait for the ack, from outside the event loop."""
        self._run(self._stream.publish(self.topic, record))

    def publish_waiting(self, record: bytes, deadline_ns: int) -> list[int]:
        """The same in a coroutine."""

        async def work() -> list[int]:
            stream = await self._connect()
            waited: list[int] = []
            before = monotonic_ns()
            while before < deadline_ns or not waited:
                await stream.publish(self.topic, record)
                now = monotonic_ns()
                waited.append(now - before)
                before = now
            return waited

        return self._run(work())

    async def publisher_of_tasks(self) -> TaskPublish:
        """`publish` over one connection on the event loop of the tasks."""
        connection = await nats.connect(f"nats://{HOST}:{self.port}")
        stream = connection.jetstream(timeout=_TIMEOUT_SECONDS)

        async def publish(record: bytes) -> None:
            await stream.publish(self.topic, record)

        return publish

    def write_paced(self, size: int, count: int, interval_ns: int) -> None:
        """`publish_async` on the event loop, which this thread wakes: timers of a loop are too coarse.

        A record is stamped on the loop, so that the wake-up is no part of its age.
        """
        stream = self._stream

        async def write() -> None:
            await stream.publish_async(self.topic, stamp(monotonic_ns(), size))

        for _ in paced(count, interval_ns):
            asyncio.run_coroutine_threadsafe(write(), self._loop)
        self._run(asyncio.wait_for(stream.publish_async_completed(), _TIMEOUT_SECONDS))

    def follow(self, count: int, on_ready: Callable[[], None]) -> list[int]:
        """A pushing ordered consumer."""

        async def work() -> list[int]:
            stream = await self._connect()
            pushed = await stream.subscribe(self.topic, ordered_consumer=True, deliver_policy=DeliverPolicy.ALL)
            on_ready()
            ages: list[int] = []
            while len(ages) < count:
                ages.append(age_ns((await pushed.next_msg(_TIMEOUT_SECONDS)).data))
            await pushed.unsubscribe()
            return ages

        return self._run(work())

    def consume(self, count: int) -> int:
        """`fetch`, a thousand records at a time, without acks."""

        async def work() -> int:
            stream = await self._connect()
            config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
            pulled = await stream.pull_subscribe(self.topic, config=config)
            size = seen = 0
            while seen < count:
                for message in await pulled.fetch(min(_FETCHED_AT_ONCE, count - seen), timeout=_TIMEOUT_SECONDS):
                    _, value, _ = message.subject, message.data, message.metadata.sequence.stream
                    size += len(value)
                    seen += 1
            await pulled.unsubscribe()
            return size

        return self._run(work())
