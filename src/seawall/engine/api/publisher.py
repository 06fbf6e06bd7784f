"""A publisher of the embedded log that does not wait for commits: `publish` returns a `Delivery` for its records.

    with log.publisher("events") as publisher:
        for lines in source:
            publisher.publish(lines)       # waits only while more than `max_in_flight` bytes are in flight
    # leaving the block flushes: everything is stored, or the first error is raised

The publisher encodes the next records while earlier ones are written; records published during a write share the next
sync.

A publisher with a `client_id` numbers its batches. The log stores each client seq once and reports a repetition
(`Delivery.is_duplicate`), also after a restart, within a window of 256 batches. A program that numbers its work the
same way publishes it exactly once: after a crash it reads `next_client_seq` and continues from there, or sends a batch
with an unknown outcome again under its old number (`publish(…, client_seq=n)`). A refused batch frees its number for
the next one.

`ack` is the level at which a delivery is done: 0 immediately, 1 when its records are ordered, 2 (default) when they are
as durable as the topic's `durability` promises. Failures are reported at every level.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from types import TracebackType
from typing import Final, Protocol, Self

from seawall.api.publisher_options import PublisherOptions
from seawall.core.latency import LatencyHistogram, LatencySummary
from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.pending_batches import Identity, PendingBatch
from seawall.engine.read.read_results import Publishable
from seawall.errors import DiskFullError, FullError, LimitError, WrongStateError
from seawall.io.process.clocks import OsClock
from seawall.io.process.exits import finish_at_exit
from seawall.io.process.own_process import disown_on_fork, inherited_error

#: Errors that guarantee that nothing was stored, so that the client seqs of the batches can be used again.
_NOT_STORED: Final = (FullError, DiskFullError, LimitError, WrongStateError)

_CLOCK: Final = OsClock()


class PublisherLog(Protocol):
    """What a publisher needs from its log."""

    def pending_batch_of(self, topic: str, records: Publishable) -> PendingBatch:
        """Encode records for a topic, without queueing them."""
        ...

    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Queue encoded records for the next commit."""
        ...


@dataclass(slots=True)
class Session:
    """The session of one publisher: client id, epoch, and the client seqs that it can assign."""

    client_id: ClientId
    epoch: SessionEpoch
    next_seq: ClientSeq
    #: Client seqs of refused batches, to be assigned again: the log has not stored anything under them.
    free: list[ClientSeq] = field(default_factory=list)

    def take(self, count: int, wanted: int | None) -> ClientSeq:
        """Assign `count` consecutive client seqs and return the first; `wanted` asks for a particular one."""
        if wanted is not None:
            self.next_seq = max(self.next_seq, ClientSeq(wanted + count))
            return ClientSeq(wanted)
        if count == 1 and self.free:
            return heappop(self.free)
        first, self.next_seq = self.next_seq, ClientSeq(self.next_seq + count)
        return first


class Publisher:
    """Publishes to one topic of an embedded log. Create one with `EmbeddedLog.publisher`. Threads may share it."""

    def __init__(
        self,
        log: PublisherLog,
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
        #: Records in flight, and records that have failed so far.
        self._record_count = self._failed_count = 0
        self._first_error: Exception | None = None
        self._change = threading.Condition()
        self._is_closed = False
        self._session = session
        self._is_inherited = False
        self.topic = topic
        #: Called by the committing thread when the bytes in flight decrease; it must return quickly.
        self.on_change: Callable[[], None] | None = None
        disown_on_fork(self)
        finish_at_exit(self)

    def disown(self) -> None:
        """Called in a forked child: records in flight belong to the parent, and a parent thread may hold the lock."""
        self._change = threading.Condition()
        self._in_flight = self._record_count = 0
        self._is_inherited = True

    @property
    def in_flight(self) -> int:
        """Bytes in flight: published, and neither stored nor failed yet."""
        return self._in_flight

    @property
    def latency(self) -> LatencySummary:
        """Latency of the calls stored so far, from `publish` to the end of the commit."""
        return self._latency.summary()

    @property
    def client_id(self) -> ClientId | None:
        """The client of its session, while the publisher is open or has records in flight; otherwise None."""
        is_finished = self._is_closed and not self._in_flight
        return None if self._session is None or is_finished else self._session.client_id

    @property
    def next_client_seq(self) -> int:
        """The client seq of the next batch. The outcome of every lower one is known, except for batches in flight."""
        self._options.require_client_id()
        assert self._session is not None, "a publisher with a client_id has one"
        return min([self._session.next_seq, *self._session.free])

    def publish(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Publish one record or many, in order, as one commit; returns while they are in flight.

        If more than `max_in_flight` bytes are in flight it waits, or raises `FullError` with `when_full="raise"`.
        `client_seq` repeats a batch under its old number. Records that make several batches take consecutive numbers.
        """
        pending_batch = self._log.pending_batch_of(self.topic, records)
        return self.send(pending_batch, client_seq, may_wait=self._options.when_full == "wait")

    def put(self, records: Publishable, *, client_seq: int | None = None) -> Delivery:
        """Like `publish`, but always waits while more than `max_in_flight` bytes are in flight."""
        return self.send(self._log.pending_batch_of(self.topic, records), client_seq, may_wait=True)

    def send(self, pending_batch: PendingBatch, client_seq: int | None, *, may_wait: bool) -> Delivery:
        """Queue encoded records, once the in-flight window has space for them."""
        self._options.check_client_seq(client_seq)
        pending_batch.ack = self._ack
        size, batch_count = pending_batch.size, len(pending_batch.pieces)
        started_ns = _CLOCK.monotonic_ns()
        with self._change:
            if self._is_closed:
                raise WrongStateError("this publisher is closed")
            if not self.has_space(size):
                self._await_space(size, may_wait)
            self._in_flight += size
            self._record_count += pending_batch.record_count
            if self._session is not None:
                first = self._session.take(batch_count, client_seq)
                pending_batch.identity = Identity(self._session.client_id, first, self._session.epoch)
            pending_batch.ends = [
                partial(
                    self._finished, size, pending_batch.record_count, batch_count, pending_batch.identity, started_ns
                )
            ]
            # Queue under the lock, so that client seqs reach the log in order.
            delivery = self._log.offer(pending_batch)
        return delivery if self._ack else delivery.decided()

    def has_space(self, size: int) -> bool:
        """True if `size` more bytes fit the in-flight window. A single call always fits an empty window."""
        return not self._in_flight or self._in_flight + size <= self._max_in_flight

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything published so far is stored or has failed; raises the first error since the last flush.

        Raises `TimeoutError` after `timeout_s`; None waits without limit.
        """
        self.check_process()
        with self._change:
            if not self._change.wait_for(lambda: not self._in_flight, timeout_s):
                raise self.flush_timeout(timeout_s)
        self.raise_error()

    def check_process(self) -> None:
        """Raise in a forked child: the records in flight belong to the parent."""
        if self._is_inherited:
            raise inherited_error("publisher")

    def flush_timeout(self, timeout_s: float | None) -> TimeoutError:
        """The error of a flush that timed out."""
        return TimeoutError(f"{self._in_flight} bytes are still in flight to {self.topic!r} after {timeout_s} s")

    def raise_error(self) -> None:
        """Raise the first error since the last flush, if any."""
        with self._change:
            error, self._first_error = self._first_error, None
        if error is not None:
            raise error

    def finish(self, timeout_s: float) -> int:
        """Wait for the records in flight when the interpreter exits; returns how many records were not stored."""
        with self._change:
            failed_count = self._failed_count
            self._change.wait_for(lambda: not self._in_flight, timeout_s)
            return self._record_count + self._failed_count - failed_count

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and stop accepting records. Raises `TimeoutError` after `timeout_s`. Closing twice is fine.

        In a forked child this does nothing.
        """
        if self.end():
            self.flush(timeout_s)

    def end(self) -> bool:
        """Stop accepting records. False in a forked child, which must not wait for the records in flight."""
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

    def _await_space(self, size: int, may_wait: bool) -> None:
        if not may_wait:
            raise FullError(
                f"{self._in_flight} bytes are in flight to {self.topic!r}, at most {self._max_in_flight}; "
                "wait for some of them, or use `put`"
            )
        self._change.wait_for(lambda: self.has_space(size))

    def _finished(
        self,
        size: int,
        record_count: int,
        batch_count: int,
        identity: Identity | None,
        started_ns: int,
        error: Exception | None,
    ) -> None:
        """Account for a finished delivery; called by the committing thread."""
        elapsed_ns = _CLOCK.monotonic_ns() - started_ns
        with self._change:
            self._in_flight -= size
            self._record_count -= record_count
            if error is not None:
                self._failed_count += record_count
            else:
                self._latency.add(elapsed_ns)
            self._first_error = self._first_error or error
            if isinstance(error, _NOT_STORED) and self._session and identity:
                for index in range(batch_count):
                    heappush(self._session.free, ClientSeq(identity.client_seq + index))
            self._change.notify_all()
        if self.on_change is not None:
            self.on_change()
