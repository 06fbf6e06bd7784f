"""A publisher over the network that does not wait: records are on their way when `publish` returns.

    with log.publisher("events") as publisher:
        for lines in source:
            publisher.publish(lines)       # waits only once `max_in_flight` bytes are under way, until a quarter is not
    # leaving the block flushes: everything is stored, or the first error is raised

It has a session and connections of its own: its batches are numbered, so that what is sent again after a lost
connection is stored once. Records of several calls share a batch while others are on their way, or for `linger_s`.
A thread sends and receives where nobody waits.

`ack` says when a delivery counts as done: 0 at once, 1 when its records have their place in the order, 2 (default) when
they are durable in the topic's class. Failures are reported whatever the level, so the server is asked for level 1 at
least: what nobody answers could not be sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from seawall.api.publishable import Publishable, Records, encode, hold
from seawall.api.publisher_options import PublisherOptions, codec_of
from seawall.client.connection.targets import Target
from seawall.client.publish.delivery import Delivery, decided_delivery
from seawall.client.publish.outgoing import Outgoing
from seawall.client.publish.sender import Sender
from seawall.core.latency import LatencySummary
from seawall.core.types import ClientId, TopicId
from seawall.errors import InvalidInputError
from seawall.io.process.own_process import OwnProcess
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.codes import AckLevel

#: Those of `publish`, which waits for each call.
LONE: Final = PublisherOptions()


def encode_one(records: Publishable) -> list[EncodedBlock]:
    """The records of such a call as blocks."""
    blocks = encode(records)
    _require_some(blocks)
    return blocks


def outgoing_of(options: PublisherOptions) -> Outgoing:
    """The machine of such a publisher."""
    return Outgoing(
        ack=max(options.ack, int(AckLevel.ORDERED)),
        batch_size=options.batch_size,
        linger_ns=int(options.linger_s * 1e9),
        codec=codec_of(options.compression),
    )


def held(options: PublisherOptions, records: Publishable, client_seq: int | None) -> tuple[Sequence[Records], int]:
    """Records as what becomes blocks, and their bytes; under a number only where such a publisher has its own."""
    options.check_client_seq(client_seq)
    blocks = hold(records)
    if len(blocks) == 1:
        return blocks, blocks[0].size
    _require_some(blocks)
    return blocks, sum(block.size for block in blocks)


def _require_some(blocks: Sequence[Records]) -> None:
    if not blocks:
        raise InvalidInputError("nothing to publish: give at least one record")


def session_of(options: PublisherOptions, is_closed: bool, in_flight: int) -> ClientId | None:
    """Whose session a publisher has, while it is open or something of it is under way."""
    is_over = is_closed and not in_flight
    return None if options.client_id is None or is_over else ClientId(options.client_id)


class RemotePublisher:
    """Publishes to one topic. Threads may share it."""

    def __init__(self, target: Target, topic: str, topic_id: TopicId, options: PublisherOptions) -> None:
        self._options = options
        self._topic_id = topic_id
        self._is_closed = False
        self._process = OwnProcess("publisher")
        self._sender = Sender(
            target, outgoing_of(options), client_id=options.client_id or 0, connections=options.connections
        )
        self.topic = topic
        self._sender.open()
        self._thread = threading.Thread(target=self._sender.drive, name=f"seawall-publisher-{topic}", daemon=True)
        self._thread.start()

    @property
    def in_flight(self) -> int:
        """Bytes that are on their way."""
        return self._sender.size

    @property
    def latency(self) -> LatencySummary:
        """How long batches took that are stored by now, from their first record to the ack (`core/latency.py`)."""
        return self._sender.latency

    @property
    def client_id(self) -> ClientId | None:
        """Whose session it has, while it is open or something of it is under way."""
        return session_of(self._options, self._is_closed, self.in_flight)

    @property
    def next_client_seq(self) -> int:
        """The client seq that the next batch gets; the log has decided all below it, but for those under way."""
        self._options.require_client_id()
        return self._sender.next_number

    def publish(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Send one record or many, in order; returns while they are on their way.

        Where more than `max_in_flight` bytes are under way it waits, or with `when_full="raise"` raises `FullError`.
        `client_seq` repeats a batch under the number it had; records that make several batches take as many numbers.
        """
        options = self._options
        if type(records) is bytes and client_seq is None and options.ack:
            # Where something is gathered the publisher is not closed, or is about to send it.
            joined = self._sender.join(self._topic_id, records, options.max_in_flight)
            if joined is not None:
                return joined
        return self._send(records, client_seq, may_wait=options.when_full == "wait")

    def put(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Like `publish`, but always waits where more than `max_in_flight` bytes are under way."""
        return self._send(records, client_seq, may_wait=True)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything published so far is decided; raises the first error since the last flush."""
        self._process.check()
        if not self._sender.flush(timeout_s):
            raise TimeoutError(f"{self.in_flight} bytes are on their way to {self.topic!r} after {timeout_s} s")
        error = self._sender.take_error()
        if error is not None:
            raise error

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, and take nothing more; what is not decided after `timeout_s` fails. Closing twice is fine.

        In a forked child it does nothing.
        """
        if self._is_closed or self._process.is_inherited:
            return
        self._is_closed = True
        try:
            self.flush(timeout_s)
        finally:
            self._sender.close()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, records: Publishable, client_seq: int | None, *, may_wait: bool) -> Delivery:
        if self._is_closed:
            raise InvalidInputError("this publisher is closed")
        blocks, size = held(self._options, records, client_seq)
        self._sender.wait_for_space(size, self._options.max_in_flight, may_wait=may_wait)
        delivery = self._sender.offer(self.topic, self._topic_id, blocks, client_seq)
        return delivery if self._options.ack else decided_delivery(self._sender, delivery)
