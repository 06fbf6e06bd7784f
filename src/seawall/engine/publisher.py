"""A publisher that does not wait: records are on their way when `publish` returns, and a `Delivery` tells the rest.

    with log.publisher("events") as publisher:
        for lines in source:
            publisher.publish(lines)       # waits only while more than `max_in_flight` bytes are under way
    # leaving the block flushes: everything is stored, or the first error is raised

While records are written the next ones are encoded; what is published meanwhile shares the next sync.
A publisher with a `client_id` numbers its batches: the log stores each client seq once and tells a repetition
(`Delivery.is_duplicate`), also after a restart, within a window of 256. Whoever numbers its work the same way publishes
it exactly once: after a crash it asks for `next_client_seq` and goes on from there, or sends a batch of unknown fate
again under its old number (`publish(…, client_seq=n)`). A batch that was refused leaves its number free for the next.

`ack` says when a delivery counts as done: 0 at once, 1 when its records have their place in the order, 2 (default) when
they are durable in the topic's class. Failures are reported whatever the level.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.engine.delivery import Delivery, Identity
from seawall.engine.records import Publishable
from seawall.errors import DiskFullError, FullError, InvalidInputError, LimitError, WrongStateError
from seawall.io.exits import finish_at_exit
from seawall.io.process import disown_on_fork, not_inherited
from seawall.limits import MIB

if TYPE_CHECKING:
    from seawall.engine.embedded import EmbeddedLog

#: Bytes that one publisher may have under way.
IN_FLIGHT_SIZE: Final = 64 * MIB

#: What happens when so much is under way: the caller waits, or is told by `FullError`.
WhenFull: TypeAlias = Literal["wait", "raise"]


#: Errors after which the numbers of the batches are free.
_NOTHING_HAPPENED: Final = (FullError, DiskFullError, LimitError, WrongStateError)


@dataclass(slots=True)
class Session:
    """The numbers of one life of a publisher."""

    client_id: ClientId
    epoch: SessionEpoch
    next_seq: ClientSeq
    #: Numbers of batches that were refused, which the log has not seen.
    free: list[ClientSeq] = field(default_factory=list)

    def take(self, count: int, wanted: int | None) -> ClientSeq:
        """The first of `count` client seqs in a row."""
        if wanted is not None:
            self.next_seq = max(self.next_seq, ClientSeq(wanted + count))
            return ClientSeq(wanted)
        if count == 1 and self.free:
            return heappop(self.free)
        first, self.next_seq = self.next_seq, ClientSeq(self.next_seq + count)
        return first


class Publisher:
    """Publishes to one topic. Threads may share it."""

    def __init__(
        self,
        log: EmbeddedLog,
        topic: str,
        ack: int,
        max_in_flight: int,
        when_full: WhenFull,
        session: Session | None = None,
    ) -> None:
        if max_in_flight < 1 or when_full not in ("wait", "raise"):
            raise InvalidInputError(
                f"max_in_flight {max_in_flight}, when_full {when_full!r}: at least 1 byte, and wait or raise"
            )
        self._log = log
        self._ack = ack
        self._max_in_flight = max_in_flight
        self._when_full = when_full
        self._in_flight = 0
        #: Records that are on their way, and those that went wrong so far.
        self._record_count = self._failed_count = 0
        self._first_error: Exception | None = None
        self._change = threading.Condition()
        self._is_closed = False
        self._session = session
        self._is_inherited = False
        self.topic = topic
        disown_on_fork(self)
        finish_at_exit(self)

    def disown(self) -> None:
        """This is a forked child: what is under way is the parent's, and so may be the lock."""
        self._change = threading.Condition()
        self._in_flight = self._record_count = 0
        self._is_inherited = True

    @property
    def in_flight(self) -> int:
        """Bytes that are on their way."""
        return self._in_flight

    @property
    def client_id(self) -> ClientId | None:
        """Whose session it has, while it is open or something of it is under way."""
        is_over = self._is_closed and not self._in_flight
        return None if self._session is None or is_over else self._session.client_id

    @property
    def next_client_seq(self) -> int:
        """The client seq that the next batch gets; the log has decided all below it, but for those under way."""
        if self._session is None:
            raise InvalidInputError("this publisher has no session: give it a client_id")
        return min([self._session.next_seq, *self._session.free])

    def publish(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Send one record or many, in order, as one commit; returns while they are on their way.

        `client_seq` repeats a batch under the number it had; records that make several batches take as many numbers.
        """
        bundle = self._log.bundle_of(self.topic, records)
        bundle.ack = self._ack
        size, batch_count = bundle.size, len(bundle.pieces)
        if client_seq is not None and (self._session is None or client_seq < 1):
            raise InvalidInputError(f"client seq {client_seq}: from 1, and the publisher needs a client_id")
        with self._change:
            if self._is_closed:
                raise InvalidInputError("this publisher is closed")
            if self._in_flight and self._in_flight + size > self._max_in_flight:
                self._make_room(size)
            self._in_flight += size
            self._record_count += bundle.record_count
            if self._session is not None:
                first = self._session.take(batch_count, client_seq)
                bundle.identity = Identity(self._session.client_id, first, self._session.epoch)
            bundle.ends = [partial(self._arrived, size, bundle.record_count, batch_count, bundle.identity)]
            # Queued under the lock: client seqs reach the log in their order.
            delivery = self._log.offer(bundle)
        return delivery if self._ack else delivery.decided()

    def flush(self) -> None:
        """Wait until everything published so far is decided; raises the first error since the last flush."""
        if self._is_inherited:
            raise not_inherited("publisher")
        with self._change:
            while self._in_flight:
                self._change.wait()
            error, self._first_error = self._first_error, None
        if error is not None:
            raise error

    def finish(self, timeout_s: float) -> int:
        """Wait for what is under way when the interpreter ends, for so long at most; records that are not stored."""
        with self._change:
            failed_count = self._failed_count
            self._change.wait_for(lambda: not self._in_flight, timeout_s)
            return self._record_count + self._failed_count - failed_count

    def close(self) -> None:
        """Flush, and take nothing more; closing twice is fine. In a forked child it does nothing."""
        if self._is_inherited:
            return
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

    def _arrived(
        self, size: int, record_count: int, batch_count: int, identity: Identity | None, error: Exception | None
    ) -> None:
        """The commit of a delivery is over; called by whoever committed it."""
        with self._change:
            self._in_flight -= size
            self._record_count -= record_count
            if error is not None:
                self._failed_count += record_count
            self._first_error = self._first_error or error
            if isinstance(error, _NOTHING_HAPPENED) and self._session and identity:
                for index in range(batch_count):
                    heappush(self._session.free, ClientSeq(identity.client_seq + index))
            self._change.notify_all()
