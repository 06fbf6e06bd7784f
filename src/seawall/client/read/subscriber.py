"""Subscribers for threads: they read a topic, or all topics, and keep their offset.

    subscriber = log.subscriber("events", "committed", owner="billing")
    for item in subscriber.poll(timeout_s=5): ...     # what is there now, or the next records to arrive
    subscriber.commit()

`poll` sends fetches, with a long poll at the end of the topic. Iterating follows the topic forever over a push
subscription: the server pushes new records within the credit of the reader, and after a lost connection the subscriber
continues where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from seawall.api.owners import check_owner
from seawall.api.received import Item, PositionItem, seq_after, with_next_positions
from seawall.client.commands import READ_SIZE, consumer_of
from seawall.client.connection.connection import Connection
from seawall.client.connection.requests import Requests
from seawall.client.connection.retry import Backoff, seconds
from seawall.client.read.position_reading import PositionReader
from seawall.client.read.prefetch import Prefetch
from seawall.client.read.push_subscription import FRAME_SIZE, Pushed
from seawall.client.read.reading import NO_LIMIT, TopicReader
from seawall.client.read.waiting import PollDeadline
from seawall.core.types import Position, Seq, TopicEpoch
from seawall.errors import RetryableError
from seawall.io.interfaces import Clock
from seawall.io.network.waitable_streams import await_streams
from seawall.io.process.own_process import OwnProcess
from seawall.limits import FETCH_SIZE_MAX
from seawall.wire.lwp2.reading import Commit


class RemoteSubscriber:
    """Reads one topic and keeps its offset. Created by `RemoteLog.subscriber`. For one thread at a time.

    Read with `poll`, or iterate to follow the topic forever. Items are batches, and the gaps and SKIPs between them.
    """

    def __init__(self, requests: Requests, reader: TopicReader, topic_epoch: TopicEpoch, owner: str | None) -> None:
        self._requests = requests
        self._reader = reader
        self._prefetch = Prefetch(requests, reader)
        self._topic_epoch = topic_epoch
        self._owner = owner
        self._next_seq = reader.next_seq
        self._process = OwnProcess("subscriber")
        self.topic = reader.topic

    @property
    def next_seq(self) -> Seq:
        """The seq to read next: the one after the last item returned."""
        return self._next_seq

    def poll(self, timeout_s: float = 0.0) -> list[Item]:
        """The next items; waits up to `timeout_s` if there are none. Returns an empty list after the timeout.

        Gaps are reported in order with the batches.
        """
        self._process.check()
        clock = self._requests.clock
        deadline = PollDeadline(timeout_s, clock.monotonic_ns())
        self._reader.go_back(self._next_seq)
        while True:
            wait_ms = deadline.wait_ms(clock.monotonic_ns())
            fetch = self._reader.fetch(max_bytes=FETCH_SIZE_MAX, wait_ms=wait_ms)
            items = self._prefetch.take(fetch, prefetch_size=FETCH_SIZE_MAX, wait_s=wait_ms / 1e3)
            self._next_seq = self._reader.next_seq
            if items or (self._reader.is_at_end and not wait_ms):
                return items

    def commit(self) -> None:
        """Store `next_seq` durably as the committed offset of the owner: everything before it was processed."""
        self._process.check()
        consumer = consumer_of(check_owner(self._owner))
        self._requests.request(Commit(self._reader.topic_id, consumer, self._topic_epoch, self._next_seq))

    def __iter__(self) -> Iterator[Item]:
        """Follow from here on, forever: waits for more at the end."""
        backoff = Backoff()
        clock = self._requests.clock
        timeout_ns = int(self._requests.target.timeout_s * 1e9)
        unreachable_since_ns = clock.monotonic_ns()
        while True:
            self._process.check()
            connection: Connection | None = None
            self._reader.go_back(self._next_seq)
            size, started_at = self._requests.response_size.at_most(FRAME_SIZE), self._next_seq
            try:
                connection = self._requests.open_connection(clock.monotonic_ns() + timeout_ns)
                pushed = Pushed(self._reader, connection.new_id(), size)
                connection.send(pushed.subscribe())
                for item in self._pushed(connection, pushed):
                    backoff.succeeded()
                    yield item
            except (ConnectionError, RetryableError) as error:
                pause_ns = backoff.pause_ns()
                if connection is not None:
                    if self._next_seq == started_at and connection.has_partial_frame:
                        self._requests.response_size.lost(size)
                    unreachable_since_ns = clock.monotonic_ns()
                elif clock.monotonic_ns() + pause_ns - unreachable_since_ns >= timeout_ns:
                    raise RetryableError(f"no server at {self._requests.target}: {error}") from error
                await_streams([], None, seconds(pause_ns))
            finally:
                if connection is not None:
                    connection.close()

    def _pushed(self, connection: Connection, pushed: Pushed) -> Iterator[Item]:
        clock = self._requests.clock
        while True:
            for frame in connection.receive():
                items = pushed.take(frame)
                self._requests.response_size.arrived(frame.header.payload_length)
                # Before the caller processes the items, so that the server sends more meanwhile.
                credit = pushed.credit()
                if credit is not None:
                    connection.send(credit)
                for item in items:
                    self._next_seq = seq_after(item)
                    yield item
                self._next_seq = self._reader.next_seq
                if pushed.is_over:
                    return
            due_ns = connection.keep_alive(clock.monotonic_ns())
            connection.wait(seconds(due_ns - clock.monotonic_ns()))


class RemotePositionSubscriber:
    """Reads all topics in the total order and keeps its position. For one thread at a time.

    Created by `RemoteLog.position_subscriber`. Read with `poll`, or iterate to follow the log forever.
    """

    def __init__(
        self,
        take: Callable[[PositionReader, int, int, int], list[PositionItem]],
        reader: PositionReader,
        clock: Clock,
    ) -> None:
        self._take = take
        self._reader = reader
        self._clock = clock
        self._next_position = reader.next_position
        self._process = OwnProcess("subscriber")

    @property
    def next_position(self) -> Position:
        """The position to read next: the one after the last item returned."""
        return self._next_position

    def poll(self, timeout_s: float = 0.0) -> list[PositionItem]:
        """The next items of all topics; waits up to `timeout_s` if there are none."""
        items = self._read(timeout_s)
        self._next_position = self._reader.next_position
        return items

    def __iter__(self) -> Iterator[PositionItem]:
        """Follow from here on, forever: waits for more at the end."""
        while True:
            for item, next_position in with_next_positions(self._read(None)):
                self._next_position = next_position
                yield item
            self._next_position = self._reader.next_position

    def _read(self, timeout_s: float | None) -> list[PositionItem]:
        self._process.check()
        self._reader.go_back(self._next_position)
        deadline = PollDeadline(timeout_s, self._clock.monotonic_ns())
        while True:
            wait_ms = deadline.wait_ms(self._clock.monotonic_ns())
            items = self._take(self._reader, READ_SIZE, NO_LIMIT, wait_ms)
            if items or not wait_ms:
                return items
