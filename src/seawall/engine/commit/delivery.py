"""Deliveries: the handle that a publisher gets for its records, and their outcome.

    delivery = publisher.publish([b"one", b"two"])
    delivery.result()              # waits, and commits if no other thread does; raises the error
    await delivery                 # the same on an event loop
    delivery.add_callback(print)   # called once, on the thread that commits

A decided delivery has the numbers of its records: `first_seq`, `record_count`, `position`, `timestamp_ns`, and whether
it repeats a batch that was stored before (`is_duplicate`). Unknown numbers are 0: those of a repetition whose original
is no longer remembered, and all numbers of a delivery of ack level 0, which is decided immediately.

Records are stored and decided as a `PendingBatch`: those of one call, or of many calls that were merged into one batch.
A delivery is a pending batch and an offset into it, so a thousand deliveries are decided by deciding one batch.

INV-DELIVERY-ONCE: a delivery is decided once, before its waiter returns, and its outcome never changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from functools import partial
from threading import get_ident
from typing import Any, Protocol

from seawall.core.types import Position, Seq, TimestampNs
from seawall.engine.commit.pending_batches import PendingBatch
from seawall.errors import WrongStateError
from seawall.io.process.own_process import OwnProcess
from seawall.wire.format.codes import AckStatus


class DeliveryQueue(Protocol):
    """What a delivery needs of the commit queue that decides it."""

    process: OwnProcess

    def wait(self, pending_batch: PendingBatch, timeout_s: float | None) -> bool:
        """Wait until a pending batch is decided; False after a timeout."""

    def add_callback(self, pending_batch: PendingBatch, callback: Callable[[], object]) -> bool:
        """Register a callback; False if the batch is already decided."""


class Delivery:
    """The outcome of one `publish` call: pending at first, then the numbers of its records or an error."""

    __slots__ = ("_offset", "_pending_batch", "_queue", "record_count")

    def __init__(self, queue: DeliveryQueue, pending_batch: PendingBatch, offset: int, record_count: int) -> None:
        self._queue = queue
        self._pending_batch = pending_batch
        self._offset = offset
        self.record_count = record_count

    def __repr__(self) -> str:
        state = "in flight"
        if self._pending_batch.is_done:
            state = f"failed: {self.error}" if self.error else f"from seq {self.first_seq}"
        return f"<Delivery of {self.record_count} to {self.topic!r}, {state}>"

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self._pending_batch.topic.name

    @property
    def done(self) -> bool:
        """True once it is decided."""
        return self._pending_batch.is_done

    @property
    def error(self) -> Exception | None:
        """The error, if it is decided and failed."""
        return self._pending_batch.error

    @property
    def first_seq(self) -> Seq:
        """The seq of its first record."""
        first = self._decided().first
        return Seq(first.base_seq + self._offset) if first is not None and first.base_seq else Seq(0)

    @property
    def position(self) -> Position:
        """The position of its last batch in the order of the whole log."""
        last = self._decided().last
        return Position(0) if last is None else last.position

    @property
    def timestamp_ns(self) -> TimestampNs:
        """When its last batch was stored."""
        last = self._decided().last
        return TimestampNs(0) if last is None else last.timestamp_ns

    @property
    def is_duplicate(self) -> bool:
        """True if it repeats a batch that was stored before."""
        first = self._decided().first
        return first is not None and first.status is AckStatus.DUPLICATE

    @property
    def seqs(self) -> Sequence[int]:
        """The seq of each record, in the order they were given; empty if they are unknown."""
        first = self.first_seq
        return range(first, first + self.record_count) if first else range(0)

    def result(self, timeout_s: float | None = None) -> Delivery:
        """Wait until it is decided and return it; raises its error, or `TimeoutError` after `timeout_s`."""
        pending_batch = self._pending_batch
        if not pending_batch.is_done:
            self._queue.process.check()
            if not self._queue.wait(pending_batch, timeout_s):
                raise TimeoutError(f"{self!r} after {timeout_s} s")
        if pending_batch.error is not None:
            raise pending_batch.error
        return self

    def decided(self) -> Delivery:
        """A delivery of the same records that is decided now, without numbers (ack level 0)."""
        settled = PendingBatch(self._pending_batch.topic, [], 0, 0)
        settled.settle(None, None, None)
        return Delivery(self._queue, settled, 0, self.record_count)

    def add_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback` with the delivery once it is decided, or now if it is. It must be quick and not raise."""
        self._queue.process.check()
        if not self._queue.add_callback(self._pending_batch, partial(callback, self)):
            callback(self)

    def __await__(self) -> Generator[Any, None, Delivery]:
        pending_batch = self._pending_batch
        if not pending_batch.is_done:
            self._queue.process.check()
            loop = pending_batch.loop
            if loop is None or pending_batch.loop_thread != get_ident():
                loop = asyncio.get_running_loop()
            future = loop.create_future()
            pending_batch.futures.append(future)
            # Either the committing thread sees the future, or this thread sees that the batch is decided.
            if not pending_batch.is_done:
                yield from future
        if pending_batch.error is not None:
            raise pending_batch.error
        return self

    def _decided(self) -> PendingBatch:
        if not self._pending_batch.is_done:
            raise WrongStateError("the delivery is in flight: wait for its result first")
        return self._pending_batch
