"""Kafka through confluent-kafka, the binding of librdkafka.

No delivery callbacks in bulk: they would cost Python code for each record. The end offset of the topic shows that all
records were stored. Waiting publishers use the callback and a thread that polls, as the examples of the library do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic_ns, sleep
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from seawall.bench.peers.clients.base import HOST, Client, TaskPublish, Until, age_ns, paced, stamp

BULK_OPTIONS: Final = {"linger.ms": 5, "batch.size": 1 << 20, "queue.buffering.max.messages": 1_000_000}
WAITING_OPTIONS: Final = {"linger.ms": 0}
_QUEUED_MAX: Final = 200_000
_BATCH: Final = 1_000
_CONSUMED_AT_ONCE: Final = 1_000
_TIMEOUT_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.005
#: A broker that has just started refuses connections for a while: try again soon, and without a message for each.
_COMMON: Final = {
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 20,
    "log_level": 0,
    "socket.nagle.disable": True,
}


class KafkaClient(Client):
    """A topic of one partition; `flush.messages=1` if acks follow the sync."""

    def __init__(self, port: int, topic: str, *, synced: bool) -> None:
        super().__init__(port, topic, synced=synced)
        self._servers = {"bootstrap.servers": f"{HOST}:{port}", **_COMMON}
        self._waiting: Producer | None = None
        self._is_closing = threading.Event()

    def create_topic(self) -> None:
        """Create the topic; waits until the broker can create it."""
        config = {"flush.messages": "1"} if self.synced else {}
        admin = AdminClient(self._servers)
        created = admin.create_topics([NewTopic(self.topic, 1, 1, config=config)], request_timeout=_TIMEOUT_SECONDS)
        created[self.topic].result()

    def delete_topic(self) -> None:
        """Delete the topic and its records."""
        admin = AdminClient(self._servers)
        admin.delete_topics([self.topic], request_timeout=_TIMEOUT_SECONDS)[self.topic].result()

    def close(self) -> None:
        """Stop the polling thread."""
        self._is_closing.set()

    def publish_lists(self, records: list[bytes], until: Until) -> int:
        """`produce_batch`."""
        messages = [{"value": record} for record in records[:_BATCH]]
        producer = Producer(self._servers | BULK_OPTIONS)
        before = self._end()
        published = 0
        while until.goes_on(published):
            while len(producer) > _QUEUED_MAX:
                producer.poll(_POLL_SECONDS)
            published += producer.produce_batch(self.topic, messages)
        self._flush(producer, before + published)
        return published

    def publish_calls(self, records: list[bytes], until: Until) -> int:
        """`produce` for each record."""
        some = records[:_BATCH]
        producer = Producer(self._servers | BULK_OPTIONS)
        produce, topic = producer.produce, self.topic
        before = self._end()
        published = 0
        while until.goes_on(published):
            while len(producer) > _QUEUED_MAX:
                producer.poll(_POLL_SECONDS)
            for record in some:
                produce(topic, record)
            producer.poll(0)
            published += len(some)
        self._flush(producer, before + published)
        return published

    def _flush(self, producer: Any, end: int) -> None:
        left = producer.flush(_TIMEOUT_SECONDS)
        found = self._end()
        if left or found != end:
            raise ConnectionError(f"{left} records not delivered; the topic ends at {found} and not at {end}")

    def _end(self) -> int:
        """The end offset of the topic, once the broker knows a topic that was just created."""
        consumer = Consumer(self._servers | {"group.id": "end"})
        deadline_ns = monotonic_ns() + int(_TIMEOUT_SECONDS * 1e9)
        try:
            while True:
                try:
                    _, end = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=_TIMEOUT_SECONDS)
                    return int(end)
                except KafkaException:
                    if monotonic_ns() > deadline_ns:
                        raise
                    sleep(_POLL_SECONDS)
        finally:
            consumer.close()

    # --- waiting -------------------------------------------------------------------------------------------------

    def _waiting_producer(self) -> Any:
        """The producer of waiting publishers, whose callbacks a thread of its own calls."""
        if self._waiting is None:
            self._waiting = Producer(self._servers | WAITING_OPTIONS)
            threading.Thread(target=self._poll, args=(self._waiting,), daemon=True).start()
        return self._waiting

    def _poll(self, producer: Any) -> None:
        while not self._is_closing.is_set():
            producer.poll(0.1)

    def publish(self, record: bytes) -> None:
        """Produce with a callback, and wait for it."""
        delivered = threading.Event()
        errors: list[object] = []

        def on_delivery(error: object, _message: object) -> None:
            if error is not None:
                errors.append(error)
            delivered.set()

        self._waiting_producer().produce(self.topic, record, on_delivery=on_delivery)
        if not delivered.wait(_TIMEOUT_SECONDS) or errors:
            raise ConnectionError(f"not delivered: {errors}")

    def publish_waiting(self, record: bytes, deadline_ns: int) -> list[int]:
        """`produce` and `poll` until the callback was called: for a single thread the fastest way."""
        producer = Producer(self._servers | WAITING_OPTIONS)
        topic = self.topic
        waited: list[int] = []
        delivered: list[object] = []

        def on_delivery(error: object, _message: object) -> None:
            if error is not None:
                raise ConnectionError(f"not delivered: {error}")
            delivered.append(None)

        before = monotonic_ns()
        while before < deadline_ns or not waited:
            producer.produce(topic, record, on_delivery=on_delivery)
            while not delivered:
                producer.poll(_TIMEOUT_SECONDS)
            delivered.clear()
            now = monotonic_ns()
            waited.append(now - before)
            before = now
        return waited

    async def publisher_of_tasks(self) -> TaskPublish:
        """A future for each record, which the polling thread resolves."""
        loop = asyncio.get_running_loop()
        producer = self._waiting_producer()
        topic = self.topic

        async def publish(record: bytes) -> None:
            future: asyncio.Future[None] = loop.create_future()

            def on_delivery(error: object, _message: object) -> None:
                if error is None:
                    loop.call_soon_threadsafe(future.set_result, None)
                else:
                    loop.call_soon_threadsafe(future.set_exception, ConnectionError(f"not delivered: {error}"))

            producer.produce(topic, record, on_delivery=on_delivery)
            await future

        return publish

    def write_paced(self, size: int, count: int, interval_ns: int) -> None:
        """`produce` without linger."""
        producer = Producer(self._servers | WAITING_OPTIONS)
        for time_ns in paced(count, interval_ns):
            producer.produce(self.topic, stamp(time_ns, size))
            producer.poll(0)
        if producer.flush(_TIMEOUT_SECONDS):
            raise ConnectionError("not all records were delivered")

    # --- reading -------------------------------------------------------------------------------------------------

    def _consumer(self) -> Any:
        """A consumer that is assigned the partition: no group, and so no wait for its members."""
        consumer = Consumer(self._servers | {"group.id": "bench", "enable.auto.commit": False})
        consumer.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
        return consumer

    def follow(self, count: int, on_ready: Callable[[], None]) -> list[int]:
        """`poll`, a record at a time."""
        consumer = self._consumer()
        consumer.poll(1.0)
        on_ready()
        ages: list[int] = []
        deadline_ns = monotonic_ns() + int(_TIMEOUT_SECONDS * 1e9)
        while len(ages) < count:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                ages.append(age_ns(message.value()))
            elif monotonic_ns() > deadline_ns:
                raise ConnectionError(f"{len(ages)} of {count} records came")
        consumer.close()
        return ages

    def consume(self, count: int) -> int:
        """`consume`, a thousand records at a time; waits for a topic that a starting broker does not know yet."""
        consumer = self._consumer()
        size = seen = 0
        deadline_ns = monotonic_ns() + int(_TIMEOUT_SECONDS * 1e9)
        while seen < count:
            with suppress(KafkaException):
                for message in consumer.consume(min(_CONSUMED_AT_ONCE, count - seen), 1.0):
                    error = message.error()
                    if error is not None:
                        _check_retriable(error)
                        continue
                    _, value, _ = message.key(), message.value(), message.offset()
                    size += len(value)
                    seen += 1
            if monotonic_ns() > deadline_ns:
                raise ConnectionError(f"{seen} of {count} records came")
        consumer.close()
        return size


def _check_retriable(error: KafkaError) -> None:
    if error.fatal():
        raise ConnectionError(f"the consumer failed: {error}")
