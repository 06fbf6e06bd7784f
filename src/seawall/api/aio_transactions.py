"""Transactions over several topics for asyncio, with the same API as `transactions.py`.

    async with log.transaction() as transaction:
        await transaction.publish("orders", orders)
        transaction.commit_offset("worker", "events", next_seq)
    transaction.result.position

This module must not know where records are staged, nor how they get there.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from seawall.api.publishable import Publishable
from seawall.api.publisher_options import Compression
from seawall.api.transactions import (
    IN_FLIGHT_SIZE,
    OpenTransaction,
    OwnKeys,
    Published,
    Send,
    StagedCall,
    StagedDelivery,
    blocks_of,
    check_owner,
    next_epoch,
    wanted_of,
)
from seawall.core.transactions import (
    CommittedTransaction,
    JobAck,
    OffsetCommit,
    StagedPart,
    StagedRange,
    WantedTransaction,
    joined,
)
from seawall.errors import OutcomeUnknownError, SeawallError


class AsyncStager:
    """Stages the records of one attempt, invisible to readers. Create one with the `stage` method of a log."""

    def __init__(
        self,
        send: Send,
        abort: Callable[[Sequence[StagedRange]], Awaitable[int]],
        close: Callable[[], Awaitable[None]],
        partition: int = 0,
    ) -> None:
        self._send = send
        self._abort = abort
        self._close = close
        self._partition = partition
        self._calls: list[StagedCall] = []
        #: Deliveries in flight with their sizes, and the sum of those sizes.
        self._in_flight: deque[tuple[StagedDelivery, int]] = deque()
        self._size = 0

    async def publish(self, records: Publishable) -> StagedCall:
        """Stage one record or many, in order. Waits only while too many bytes are in flight."""
        deliveries = []
        for block in blocks_of(records):
            size = len(block.block)
            while self._in_flight and self._size + size > IN_FLIGHT_SIZE:
                delivery, delivery_size = self._in_flight.popleft()
                self._size -= delivery_size
                await delivery
            deliveries.append(self._send(block))
            self._in_flight.append((deliveries[-1], size))
            self._size += size
        call = StagedCall(deliveries, self._partition)
        self._calls.append(call)
        return call

    async def ranges(self) -> list[StagedRange]:
        """Wait until everything published so far is staged; returns its ranges in the order of calls.

        The ranges can be pickled and committed by another process.
        """
        return joined([each for call in self._calls for each in await ranges_of(call)])

    async def abort(self) -> int:
        """Delete the staged records; returns how many. Records whose range is unknown expire by their age."""
        found: list[StagedRange] = []
        for call in self._calls:
            with suppress(SeawallError, OSError, TimeoutError):
                found += await ranges_of(call)
        self._calls.clear()
        return await self._abort(joined(found)) if found else 0

    async def close(self) -> None:
        """Stop staging. Staged records stay staged. Closing twice is fine."""
        await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def ranges_of(call: StagedCall) -> list[StagedRange]:
    """Wait until all records of a call are staged; returns their ranges."""
    for delivery in call.deliveries:
        await delivery
    return call.decided()


class AsyncTransaction(OpenTransaction):
    """A transaction over several topics, on an event loop. Create one with the `transaction` method of a log.

    Leaving its `async with` block commits it; an exception aborts it. Use it from one task at a time.
    """

    def __init__(self, log: AsyncTransactionalLog, owner: str | None, epoch: int | None) -> None:
        super().__init__(owner, epoch or 0)
        self._log = log
        self._needs_epoch = owner is not None and epoch is None
        self._stager: AsyncStager | None = None

    async def publish(self, topic: str, records: Publishable) -> Published:
        """Add one record or many, in order, for a topic."""
        self.require_open()
        if self._stager is None:
            self._stager = await self._log.stage()
        self.published.append(Published(topic, await self._stager.publish(records)))
        return self.published[-1]

    async def commit(self) -> CommittedTransaction:
        """Commit: make all records visible, durably and at one position. Leaving the `async with` block calls this."""
        self.require_open()
        try:
            for each in self.published:
                await ranges_of(each.call)
            result = await self._commit()
        except OutcomeUnknownError:
            await self._end(None)
            raise
        except BaseException:
            await self.abort()
            raise
        if result.is_repeated and self._stager is not None:
            # The first commit is in effect: the records that this attempt staged are not needed.
            await self._stager.abort()
        await self._end(result)
        return result

    async def _commit(self) -> CommittedTransaction:
        await self._find_epoch()
        if self.owner is not None:
            return await self._log.commit_staged(
                self.owner, self.epoch, self.parts(), offsets=self.offsets, acks=self.acks
            )
        # One commit at a time, so that a later epoch never fences an earlier one.
        async with self._log.own_keys_lock:
            key = self._log.own_keys.next_key()
            return await self._log.commit_staged(*key, self.parts(), offsets=self.offsets, acks=self.acks)

    async def abort(self) -> None:
        """Abort: delete all staged records. An exception in the `async with` block calls this.

        Records that cannot be deleted now expire by their age.
        """
        self.require_open()
        if self._stager is not None:
            with suppress(SeawallError, OSError, TimeoutError):
                await self._stager.abort()
        await self._end(None)

    async def __aenter__(self) -> Self:
        await self._find_epoch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if error is None:
            await self.commit()
        else:
            await self.abort()

    async def _find_epoch(self) -> None:
        """Look up the next epoch of the owner if none was given: at the start of the block, or before the commit."""
        if self._needs_epoch and self.owner is not None:
            self.epoch = next_epoch(await self._log.transaction_state(self.owner))
            self._needs_epoch = False

    async def _end(self, result: CommittedTransaction | None) -> None:
        self.ended(result)
        if self._stager is not None:
            await self._stager.close()


class AsyncTransactionalLog(ABC):
    """The transaction methods of a log on an event loop."""

    #: Keys of transactions without an owner, and the lock that a transaction holds from its key to its commit.
    own_keys: OwnKeys
    own_keys_lock: asyncio.Lock

    @abstractmethod
    async def stage(self, *, own_partition: bool = False, compression: Compression = "none") -> AsyncStager:
        """Create a stager: it stages the records of one attempt, invisible to readers until they are committed."""

    async def commit_staged(
        self,
        owner: str,
        epoch: int,
        parts: Iterable[StagedPart | tuple[str, StagedRange]],
        *,
        offsets: Iterable[OffsetCommit | tuple[str, str, int]] = (),
        acks: Iterable[JobAck] = (),
    ) -> CommittedTransaction:
        """Publish staged records to their topics, in the order given, atomically and at one position.

        The commit is durable when this returns; all else is as for threads.
        """
        return await self._commit_wanted(wanted_of(owner, epoch, parts, offsets, acks))

    @abstractmethod
    async def _commit_wanted(self, wanted: WantedTransaction) -> CommittedTransaction: ...

    @abstractmethod
    async def abort_staged(self, ranges: Iterable[StagedRange]) -> int:
        """Delete staged records that will not be committed; returns how many. Committed ranges stay committed."""

    @abstractmethod
    async def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """Returns the last transaction that an owner has committed; None if none is remembered."""

    def transaction(self, owner: str | None = None, epoch: int | None = None) -> AsyncTransaction:
        """Begin a transaction, to use as a context manager: leaving the block commits, an exception aborts.

        With an `owner` the transaction has a key, its owner and epoch, and is committed once under that key. The
        default `epoch` is the next one of the owner.
        """
        check_owner(owner, epoch)
        return AsyncTransaction(self, owner, epoch)
