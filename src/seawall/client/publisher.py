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
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

from seawall.client.delivery import Delivery, decided_delivery
from seawall.client.outgoing import Outgoing
from seawall.client.sender import Sender
from seawall.client.targets import Target
from seawall.core.identifiers import check_client_id
from seawall.core.latency import LatencySummary
from seawall.core.types import TopicId
from seawall.errors import InvalidInputError
from seawall.io.process import OwnProcess
from seawall.limits import BLOCK_SIZE_MAX, KIB, MIB
from seawall.wire.arrow import EncodedBlock
from seawall.wire.codes import AckLevel, Codec
from seawall.wire.publishable import Publishable, Records, encode, hold

#: Bytes that one publisher may have under way.
IN_FLIGHT_SIZE: Final = 64 * MIB
#: Bytes at which a batch is full: a quarter of the server's window holds many, and each costs little for its size.
BATCH_SIZE: Final = 256 * KIB

#: What happens when so much is under way: the caller waits, or is told by `FullError`.
WhenFull: TypeAlias = Literal["wait", "raise"]
Compression: TypeAlias = Literal["none", "lz4", "zstd"]

_CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """How a publisher works, checked."""

    ack: int = 2
    client_id: int | None = None
    max_in_flight: int = IN_FLIGHT_SIZE
    when_full: WhenFull = "wait"
    linger_s: float = 0.0
    batch_size: int = BATCH_SIZE
    compression: Compression = "none"
    connections: int = 1

    def __post_init__(self) -> None:
        if self.max_in_flight < 1 or self.when_full not in ("wait", "raise"):
            raise InvalidInputError(
                f"max_in_flight {self.max_in_flight}, when_full {self.when_full!r}: at least 1 byte, and wait or raise"
            )
        if self.ack not in tuple(AckLevel):
            raise InvalidInputError(f"ack {self.ack}: give 0, 1 or 2")
        if not 1 <= self.batch_size <= BLOCK_SIZE_MAX or not 0 <= self.linger_s <= 60:
            raise InvalidInputError(
                f"batch_size {self.batch_size}, linger_s {self.linger_s}: 1 to {BLOCK_SIZE_MAX} bytes, 0 to 60 s"
            )
        if self.compression not in _CODECS or not 1 <= self.connections <= 16:
            words = ", ".join(_CODECS)
            raise InvalidInputError(
                f"compression {self.compression!r}, connections {self.connections}: one of {words}, and 1 to 16"
            )
        if self.client_id is not None:
            check_client_id(self.client_id)

    def outgoing(self) -> Outgoing:
        """The machine of such a publisher."""
        return Outgoing(
            ack=max(self.ack, int(AckLevel.ORDERED)),
            batch_size=self.batch_size,
            linger_ns=int(self.linger_s * 1e9),
            codec=_CODECS[self.compression],
        )

    def hold(self, records: Publishable, client_seq: int | None) -> tuple[Sequence[Records], int]:
        """Records as what becomes blocks, and their bytes; under a number only where such a publisher has its own."""
        if client_seq is not None and (self.client_id is None or client_seq < 1):
            raise InvalidInputError(f"client seq {client_seq}: from 1, and the publisher needs a client_id")
        blocks = hold(records)
        if len(blocks) == 1:
            return blocks, blocks[0].size
        _require_some(blocks)
        return blocks, sum(block.size for block in blocks)


#: Those of `publish`, which waits for each call.
LONE: Final = PublisherOptions()


def encode_lone(records: Publishable) -> list[EncodedBlock]:
    """The records of such a call as blocks."""
    blocks = encode(records)
    _require_some(blocks)
    return blocks


def _require_some(blocks: Sequence[Records]) -> None:
    if not blocks:
        raise InvalidInputError("nothing to publish: give at least one record")


class RemotePublisher:
    """Publishes to one topic. Threads may share it."""

    def __init__(self, target: Target, topic: str, topic_id: TopicId, options: PublisherOptions) -> None:
        self._options = options
        self._topic_id = topic_id
        self._is_closed = False
        self._process = OwnProcess("publisher")
        self._sender = Sender(
            target, options.outgoing(), client_id=options.client_id or 0, connections=options.connections
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
    def next_client_seq(self) -> int:
        """The client seq that the next batch gets; the log has decided all below it, but for those under way."""
        return self._sender.next_number

    def publish(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Send one record or many, in order; returns while they are on their way.

        `client_seq` repeats a batch under the number it had; records that make several batches take as many numbers.
        """
        options = self._options
        if type(records) is bytes and client_seq is None and options.ack:
            # Where something is gathered the publisher is not closed, or is about to send it.
            joined = self._sender.join(self._topic_id, records, options.max_in_flight)
            if joined is not None:
                return joined
        if self._is_closed:
            raise InvalidInputError("this publisher is closed")
        blocks, size = options.hold(records, client_seq)
        self._sender.wait_for_room(size, options.max_in_flight, may_wait=options.when_full == "wait")
        delivery = self._sender.offer(self.topic, self._topic_id, blocks, client_seq)
        return delivery if options.ack else decided_delivery(self._sender, delivery)

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
