"""The asynchronous publisher for threads: `publish` returns while the records are in flight.

    with log.publisher("events") as publisher:
        for lines in source:
            publisher.publish(lines)       # blocks if `max_in_flight` bytes are in flight, until a quarter is free
    # leaving the block flushes: everything is stored, or the first error is raised

A publisher has its own session and connections. Its batches are numbered, so that a batch that is sent again after a
lost connection is stored once. Records of several calls share a batch while others are in flight, or for `linger_s`.
A background thread sends and receives while no caller waits.

`ack` says when a delivery is done: 0 at once, 1 when its records are ordered, 2 (default) when they are stored at the
durability class of the topic. Errors are reported at every level, so the publisher asks the server for level 1 at
least: without an ack it could not send lost batches again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from seawall.api.publishable import Publishable, Records, encode, hold
from seawall.api.publisher_options import PublisherOptions, codec_of
from seawall.client.connection.targets import Target
from seawall.client.publish.delivery import Delivery, decided_delivery
from seawall.client.publish.outgoing import Outgoing
from seawall.client.publish.sender import Sender
from seawall.core.latency import LatencySummary
from seawall.core.types import ClientId, TopicId
from seawall.errors import InvalidInputError, WrongStateError
from seawall.io.process.own_process import OwnProcess
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.codes import AckLevel

#: The options of `RemoteLog.publish`, which waits for each call.
SYNC_OPTIONS: Final = PublisherOptions()


def encode_records(records: Publishable) -> list[EncodedBlock]:
    """Encode the records of a `publish` call that waits; raises `InvalidInputError` if there are none."""
    blocks = encode(records)
    _require_records(blocks)
    return blocks


def outgoing_of(options: PublisherOptions) -> Outgoing:
    """The session state machine for a publisher with these options."""
    return Outgoing(
        ack=max(options.ack, int(AckLevel.ORDERED)),
        batch_size=options.batch_size,
        linger_ns=int(options.linger_s * 1e9),
        codec=codec_of(options.compression),
    )


def hold_records(
    options: PublisherOptions, records: Publishable, client_seq: int | None
) -> tuple[Sequence[Records], int]:
    """The records of a call before they are encoded, and their size in bytes; checks that a `client_seq` is allowed."""
    options.check_client_seq(client_seq)
    blocks = hold(records)
    if len(blocks) == 1:
        return blocks, blocks[0].size
    _require_records(blocks)
    return blocks, sum(block.size for block in blocks)


def _require_records(blocks: Sequence[Records]) -> None:
    if not blocks:
        raise InvalidInputError("nothing to publish: give at least one record")


class _SessionState(Protocol):
    """What publishers ask their senders."""

    @property
    def next_number(self) -> int: ...


class PublisherState:
    """What publishers for threads and for asyncio report about their session."""

    _options: PublisherOptions
    _outgoing: Outgoing
    _sender: _SessionState
    _is_closed: bool

    @property
    def in_flight(self) -> int:
        """Bytes of the records in flight."""
        return self._outgoing.size

    @property
    def latency(self) -> LatencySummary:
        """The latency of the batches stored so far, from their first record to the ack."""
        return self._outgoing.latency.summary()

    @property
    def client_id(self) -> ClientId | None:
        """The client id of the session while the publisher is open or has records in flight; None without one."""
        is_over = self._is_closed and not self.in_flight
        client_id = self._options.client_id
        return None if client_id is None or is_over else ClientId(client_id)

    @property
    def next_client_seq(self) -> int:
        """The client seq of the next batch. All lower ones are decided or in flight."""
        self._options.require_client_id()
        return self._sender.next_number


class RemotePublisher(PublisherState):
    """Publishes to one topic without waiting. Created by `RemoteLog.publisher`. Threads may share it.

    Use it in a `with` block: leaving the block flushes and closes it.
    """

    _sender: Sender

    def __init__(self, target: Target, topic: str, topic_id: TopicId, options: PublisherOptions) -> None:
        self._options = options
        self._topic_id = topic_id
        self._is_closed = False
        self._process = OwnProcess("publisher")
        self._outgoing = outgoing_of(options)
        self._sender = Sender(target, self._outgoing, client_id=options.client_id or 0, connections=options.connections)
        self.topic = topic
        self._sender.open()
        self._thread = threading.Thread(target=self._sender.drive, name=f"seawall-publisher-{topic}", daemon=True)
        self._thread.start()

    def publish(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Send one record or many, in order; returns a `Delivery` while they are in flight.

        Blocks while more than `max_in_flight` bytes are in flight, or raises `FullError` with `when_full="raise"`.
        `client_seq` sends a batch again under its old client seq; records that fill several batches take consecutive
        ones.
        """
        options = self._options
        if type(records) is bytes and client_seq is None and options.ack:
            # No check for `close` is needed: while there is an open batch, `close` has not finished its flush.
            joined = self._sender.join(self._topic_id, records, options.max_in_flight)
            if joined is not None:
                return joined
        return self._send(records, client_seq, may_wait=options.when_full == "wait")

    def put(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Like `publish`, but always blocks while more than `max_in_flight` bytes are in flight."""
        return self._send(records, client_seq, may_wait=True)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything published so far is stored or has failed; raises the first error since the last flush.

        Raises `TimeoutError` after `timeout_s`.
        """
        self._process.check()
        if not self._sender.flush(timeout_s):
            raise TimeoutError(f"{self.in_flight} bytes to {self.topic!r} are still in flight after {timeout_s} s")
        error = self._sender.take_error()
        if error is not None:
            raise error

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and close; records that are still in flight after `timeout_s` fail. Idempotent.

        Does nothing in a forked child.
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
            raise WrongStateError("this publisher is closed")
        blocks, size = hold_records(self._options, records, client_seq)
        self._sender.wait_for_space(size, self._options.max_in_flight, may_wait=may_wait)
        delivery = self._sender.offer(self.topic, self._topic_id, blocks, client_seq)
        return delivery if self._options.ack else decided_delivery(self._sender, delivery)
