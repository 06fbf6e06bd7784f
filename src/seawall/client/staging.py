"""Publishers that stage the records of transactions: each attempt has one for itself, and later ones use it again.

A publisher is a connection, a session that the server stores, and a thread: to open one for each transaction would
cost more than a small transaction itself. The pool keeps a bounded number of those that no attempt uses. It replaces
publishers whose session has failed.

Threads may share the pool. A forked child must not use the publishers of its parent: it gets a pool of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

from seawall.api.publisher_options import Compression, PublisherOptions
from seawall.api.transactions import IN_FLIGHT_SIZE
from seawall.client.publish.delivery import Delivery
from seawall.client.publish.publisher import RemotePublisher
from seawall.core.transactions import StagedRange
from seawall.errors import WrongStateError
from seawall.wire.format.arrow import EncodedBlock

#: Publishers that are kept while no attempt uses them: as many as the threads that publish with sessions of their own.
_IDLE_MAX: Final = 8


def staging_options(compression: Compression) -> PublisherOptions:
    """The options of a staging publisher: each block is a batch of its own, because ranges consist of whole batches."""
    return PublisherOptions(batch_size=1, compression=compression, max_in_flight=IN_FLIGHT_SIZE)


class StagingPublisher(RemotePublisher):
    """A publisher to a staging topic."""

    @property
    def is_usable(self) -> bool:
        """False if it is closed, its session has failed, or this is a forked child."""
        return not self._is_closed and not self._process.is_inherited and self._sender.failure is None

    def stage(self, block: EncodedBlock) -> Delivery:
        """Send one block as a batch of its own."""
        self._sender.wait_for_space(len(block.block), IN_FLIGHT_SIZE, may_wait=True)
        return self._sender.offer(self.topic, self._topic_id, [block], None)

    def aborting(self, abort: Callable[[Iterable[StagedRange]], int]) -> Callable[[Iterable[StagedRange]], int]:
        """Wrap `abort`, which deletes staged ranges, so that a forked child cannot call it."""

        def checked(ranges: Iterable[StagedRange]) -> int:
            self._process.check()
            return abort(ranges)

        return checked


class StagingPool:
    """The publishers of a log that no attempt uses."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._idle: list[StagingPublisher] = []
        self._is_closed = False

    def attempt(self, make: Callable[[], StagingPublisher]) -> StagingAttempt:
        """A publisher for one attempt: the one that was used last, or a new one."""
        while True:
            with self._lock:
                found = self._idle.pop() if self._idle else None
            if found is None:
                return StagingAttempt(make(), self)
            if found.is_usable:
                return StagingAttempt(found, self)
            found.close()

    def give_back(self, publisher: StagingPublisher) -> None:
        """Keep a publisher with nothing in flight for a later attempt, or close it."""
        if publisher.is_usable:
            with self._lock:
                if not self._is_closed and len(self._idle) < _IDLE_MAX:
                    self._idle.append(publisher)
                    return
        publisher.close()

    def close(self) -> None:
        """Close the publishers that no attempt uses; the others are closed when they are given back."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()


class StagingAttempt:
    """The use of a publisher by one attempt."""

    def __init__(self, publisher: StagingPublisher, pool: StagingPool) -> None:
        self.publisher: Final = publisher
        self._pool = pool
        self._is_closed = False

    def stage(self, block: EncodedBlock) -> Delivery:
        """Send one block as a batch of its own."""
        if self._is_closed:
            raise WrongStateError("this stager is closed: create another one")
        return self.publisher.stage(block)

    def close(self) -> None:
        """Wait until everything is decided, and end the use; raises the first error. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self.publisher.is_usable:
                self.publisher.flush()
        except BaseException:
            self.publisher.close()
            raise
        self._pool.give_back(self.publisher)
