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
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from seawall.api.publisher_options import PublisherOptions
from seawall.core.latency import LatencyHistogram, LatencySummary
from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.engine.api.read_results import Publishable
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.pending_batches import Identity, PendingBatch
from seawall.errors import DiskFullError, FullError, InvalidInputError, LimitError, WrongStateError
from seawall.io.process.clocks import OsClock
from seawall.io.process.exits import finish_at_exit
from seawall.io.process.own_process import disown_on_fork, not_inherited

if TYPE_CHECKING:
    from seawall.engine.api.embedded import EmbeddedLog

#: Errors after which the numbers of the batches are free.
_NOTHING_HAPPENED: Final = (FullError, DiskFullError, LimitError, WrongStateError)

_CLOCK: Final = OsClock()


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
        options: PublisherOptions,
        session: Session | None = None,
    ) -> None:
        self._log = log
        self._options = options
        self._ack = options.ack
        self._max_in_flight = options.max_in_flight
        self._latency = LatencyHistogram()
        self._in_flight = 0
        #: Records that are on their way, and those that went wrong so far.
        self._record_count = self._failed_count = 0
        self._first_error: Exception | None = None
        self._change = threading.Condition()
        self._is_closed = False
        self._session = session
        self._is_inherited = False
        self.topic = topic
        #: Called by whoever commits, when less is under way; it must be quick.
        self.on_change: Callable[[], None] | None = None
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
    def latency(self) -> LatencySummary:
        """How long calls took that are stored by now, from `publish` to the end of the commit (`core/latency.py`)."""
        return self._latency.summary()

    @property
    def client_id(self) -> ClientId | None:
        """Whose session it has, while it is open or something of it is under way."""
        is_over = self._is_closed and not self._in_flight
        return None if self._session is None or is_over else self._session.client_id

    @property
    def next_client_seq(self) -> int:
        """The client seq that the next batch gets; the log has decided all below it, but for those under way."""
        self._options.require_client_id()
        assert self._session is not None, "a publisher with a client_id has one"
        return min([self._session.next_seq, *self._session.free])

    def publish(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Send one record or many, in order, as one commit; returns while they are on their way.

        Where more than `max_in_flight` bytes are under way it waits, or with `when_full="raise"` raises `FullError`.
        `client_seq` repeats a batch under the number it had; records that make several batches take as many numbers.
        """
        pending_batch = self._log.pending_batch_of(self.topic, records)
        return self.send(pending_batch, client_seq, may_wait=self._options.when_full == "wait")

    def put(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Like `publish`, but always waits where more than `max_in_flight` bytes are under way."""
        return self.send(self._log.pending_batch_of(self.topic, records), client_seq, may_wait=True)

    def send(self, pending_batch: PendingBatch, client_seq: int | None, *, may_wait: bool) -> Delivery:
        """Queue encoded records, when there is space for them."""
        self._options.check_client_seq(client_seq)
        pending_batch.ack = self._ack
        size, batch_count = pending_batch.size, len(pending_batch.pieces)
        begun_ns = _CLOCK.monotonic_ns()
        with self._change:
            if self._is_closed:
                raise InvalidInputError("this publisher is closed")
            if not self.has_space(size):
                self._make_space(size, may_wait)
            self._in_flight += size
            self._record_count += pending_batch.record_count
            if self._session is not None:
                first = self._session.take(batch_count, client_seq)
                pending_batch.identity = Identity(self._session.client_id, first, self._session.epoch)
            pending_batch.ends = [
                partial(self._arrived, size, pending_batch.record_count, batch_count, pending_batch.identity, begun_ns)
            ]
            # Queued under the lock: client seqs reach the log in their order.
            delivery = self._log.offer(pending_batch)
        return delivery if self._ack else delivery.decided()

    def has_space(self, size: int) -> bool:
        """Whether so many more bytes may be under way; one call alone may always."""
        return not self._in_flight or self._in_flight + size <= self._max_in_flight

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything published so far is decided; raises the first error since the last flush."""
        self.check_process()
        with self._change:
            if not self._change.wait_for(lambda: not self._in_flight, timeout_s):
                raise self.late(timeout_s)
        self.raise_error()

    def check_process(self) -> None:
        """Refuse in a forked child: what is under way is the parent's."""
        if self._is_inherited:
            raise not_inherited("publisher")

    def late(self, timeout_s: float | None) -> TimeoutError:
        """The error of a flush that did not end in time."""
        return TimeoutError(f"{self._in_flight} bytes are on their way to {self.topic!r} after {timeout_s} s")

    def raise_error(self) -> None:
        """Raise the first error since the last flush, if there was one."""
        with self._change:
            error, self._first_error = self._first_error, None
        if error is not None:
            raise error

    def finish(self, timeout_s: float) -> int:
        """Wait for what is under way when the interpreter ends, for so long at most; records that are not stored."""
        with self._change:
            failed_count = self._failed_count
            self._change.wait_for(lambda: not self._in_flight, timeout_s)
            return self._record_count + self._failed_count - failed_count

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, and take nothing more; raises `TimeoutError` after `timeout_s`. Closing twice is fine.

        In a forked child it does nothing.
        """
        if self.end():
            self.flush(timeout_s)

    def end(self) -> bool:
        """Take nothing more; whether what is under way is to be waited for, which it is not in a forked child."""
        if self._is_inherited:
            return False
        with self._change:
            self._is_closed = True
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_space(self, size: int, may_wait: bool) -> None:
        if not may_wait:
            raise FullError(
                f"{self._in_flight} bytes are on their way to {self.topic!r}, at most {self._max_in_flight}; "
                "wait for some of them, or use `put`"
            )
        self._change.wait_for(lambda: self.has_space(size))

    def _arrived(
        self,
        size: int,
        record_count: int,
        batch_count: int,
        identity: Identity | None,
        begun_ns: int,
        error: Exception | None,
    ) -> None:
        """The commit of a delivery is over; called by whoever committed it."""
        elapsed_ns = _CLOCK.monotonic_ns() - begun_ns
        with self._change:
            self._in_flight -= size
            self._record_count -= record_count
            if error is not None:
                self._failed_count += record_count
            else:
                self._latency.add(elapsed_ns)
            self._first_error = self._first_error or error
            if isinstance(error, _NOTHING_HAPPENED) and self._session and identity:
                for index in range(batch_count):
                    heappush(self._session.free, ClientSeq(identity.client_seq + index))
            self._change.notify_all()
        if self.on_change is not None:
            self.on_change()
