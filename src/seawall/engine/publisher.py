"""A publisher that does not wait: records are on their way when `publish` returns, and a `Delivery` tells the rest.

    with log.publisher("events") as publisher:
        for lines in source:
            publisher.publish(lines)       # waits only while more than `max_in_flight` bytes are under way
    # leaving the block flushes: everything is stored, or the first error is raised

While records are written the next ones are encoded; what is published meanwhile shares the next sync.
`ack` says when a delivery counts as done: 0 at once, 1 when its records have their place in the order, 2 (default) when
they are durable in the topic's class. Failures are reported whatever the level.
"""

from __future__ import annotations

import threading
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from seawall.engine.delivery import Delivery
from seawall.engine.records import Publishable
from seawall.errors import FullError, InvalidInputError
from seawall.limits import MIB
from seawall.wire.codes import AckLevel

if TYPE_CHECKING:
    from seawall.engine.embedded import EmbeddedLog

#: Bytes that one publisher may have under way.
IN_FLIGHT_SIZE: Final = 64 * MIB

#: What happens when so much is under way: the caller waits, or is told by `FullError`.
WhenFull: TypeAlias = Literal["wait", "raise"]


class Publisher:
    """Publishes to one topic. Threads may share it."""

    def __init__(self, log: EmbeddedLog, topic: str, ack: AckLevel, max_in_flight: int, when_full: WhenFull) -> None:
        if max_in_flight < 1 or when_full not in ("wait", "raise"):
            raise InvalidInputError(
                f"max_in_flight {max_in_flight}, when_full {when_full!r}: at least 1 byte, and wait or raise"
            )
        self._log = log
        self._ack = ack
        self._max_in_flight = max_in_flight
        self._when_full = when_full
        self._in_flight = 0
        self._first_error: Exception | None = None
        self._change = threading.Condition()
        self._is_closed = False
        self.topic = topic

    @property
    def in_flight(self) -> int:
        """Bytes that are on their way."""
        return self._in_flight

    def publish(self, records: Publishable) -> Delivery:
        """Send one record or many, in order, as one commit; returns while they are on their way."""
        delivery = self._log.delivery_of(self.topic, records)
        delivery.ack = self._ack
        size = sum(len(block.block) for block in delivery.blocks)
        with self._change:
            if self._is_closed:
                raise InvalidInputError("this publisher is closed")
            if self._in_flight and self._in_flight + size > self._max_in_flight:
                self._make_room(size)
            self._in_flight += size
        delivery.at_end = partial(self._arrived, size)
        self._log.offer(delivery)
        return delivery

    def flush(self) -> None:
        """Wait until everything published so far is decided; raises the first error since the last flush."""
        with self._change:
            while self._in_flight:
                self._change.wait()
            error, self._first_error = self._first_error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Flush, and take nothing more; closing twice is fine."""
        with self._change:
            self._is_closed = True
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_room(self, size: int) -> None:
        if self._when_full == "raise":
            raise FullError(
                f"{self._in_flight} bytes are on their way to {self.topic!r}, at most {self._max_in_flight}; "
                "wait for some of them"
            )
        while self._in_flight and self._in_flight + size > self._max_in_flight:
            self._change.wait()

    def _arrived(self, size: int, error: Exception | None) -> None:
        """The commit of a delivery is over; called by whoever committed it."""
        with self._change:
            self._in_flight -= size
            self._first_error = self._first_error or error
            self._change.notify_all()
