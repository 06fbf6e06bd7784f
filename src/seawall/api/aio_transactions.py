"""Transactions for event loops, with the words of `transactions`.

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
)
from seawall.core.transactions import CommittedTransaction, OffsetCommit, StagedPart, StagedRange, joined
from seawall.errors import OutcomeUnknownError, SeawallError


class AsyncStager:
    """Stages the records of one attempt, out of sight of every reader. Made by `stage`."""

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
        self._under_way: deque[tuple[StagedDelivery, int]] = deque()
        self._size = 0

    async def publish(self, records: Publishable) -> StagedCall:
        """Stage one record or many, in order; waits only while much is under way."""
        deliveries = []
        for block in blocks_of(records):
            size = len(block.block)
            while self._under_way and self._size + size > IN_FLIGHT_SIZE:
                delivery, before = self._under_way.popleft()
                self._size -= before
                await delivery
            deliveries.append(self._send(block))
            self._under_way.append((deliveries[-1], size))
            self._size += size
        call = StagedCall(deliveries, self._partition)
        self._calls.append(call)
        return call

    async def ranges(self) -> list[StagedRange]:
        """Everything that was staged so far, in the order of calls; waits until it is. The ranges may be pickled."""
        return joined([each for call in self._calls for each in await ranges_of(call)])

    async def abort(self) -> int:
        """Delete what was staged; how many records went. What cannot be asked about goes by its age."""
        found: list[StagedRange] = []
        for call in self._calls:
            with suppress(SeawallError, OSError, TimeoutError):
                found += await ranges_of(call)
        self._calls.clear()
        return await self._abort(joined(found)) if found else 0

    async def close(self) -> None:
        """Stage nothing more; what was staged stays. Closing twice is fine."""
        await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def ranges_of(call: StagedCall) -> list[StagedRange]:
    """Where the records of a call are staged; waits until all of them are."""
    for delivery in call.deliveries:
        await delivery
    return call.decided()


class AsyncTransaction(OpenTransaction):
    """A transaction on an event loop. Made by `transaction`."""

    def __init__(self, log: AsyncTransactionalLog, owner: str | None, epoch: int | None) -> None:
        super().__init__(owner, epoch or 0)
        self._log = log
        self._needs_epoch = owner is not None and epoch is None
        self._stager: AsyncStager | None = None

    async def publish(self, topic: str, records: Publishable) -> Published:
        """Add one record or many to what the transaction writes to a topic, in order."""
        self.require_open()
        if self._stager is None:
            self._stager = await self._log.stage()
        self.published.append(Published(topic, await self._stager.publish(records)))
        return self.published[-1]

    async def commit(self) -> CommittedTransaction:
        """Make all of it visible, at one position, durably; leaving the block does it."""
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
            # What this attempt has staged was not needed.
            await self._stager.abort()
        await self._end(result)
        return result

    async def _commit(self) -> CommittedTransaction:
        await self._find_epoch()
        if self.owner is not None:
            return await self._log.commit_staged(self.owner, self.epoch, self.parts(), offsets=self.offsets)
        # One at a time, so that none is overtaken by a later one.
        async with self._log.own_turn:
            key = self._log.own_keys.next_key()
            return await self._log.commit_staged(*key, self.parts(), offsets=self.offsets)

    async def abort(self) -> None:
        """Forget all of it; an exception in the block does it. What cannot be deleted now goes by its age."""
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
        """Ask for the next epoch of the owner, where none was given: at the beginning of the block, or to commit."""
        if self._needs_epoch and self.owner is not None:
            self.epoch = next_epoch(await self._log.transaction_state(self.owner))
            self._needs_epoch = False

    async def _end(self, result: CommittedTransaction | None) -> None:
        self.ended(result)
        if self._stager is not None:
            await self._stager.close()


class AsyncTransactionalLog(ABC):
    """The part of a log on an event loop that is about transactions."""

    #: Keys of transactions that name no owner, given to one at a time.
    own_keys: OwnKeys
    own_turn: asyncio.Lock

    @abstractmethod
    async def stage(self, *, is_apart: bool = False, compression: Compression = "none") -> AsyncStager:
        """Begin to stage the records of one attempt, out of sight of every reader; apart if they are many."""

    @abstractmethod
    async def commit_staged(
        self,
        owner: str,
        epoch: int,
        parts: Iterable[StagedPart | tuple[str, StagedRange]],
        *,
        offsets: Iterable[OffsetCommit | tuple[str, str, int]] = (),
    ) -> CommittedTransaction:
        """Publish what was staged into topics, in the order given, all of it or nothing, at one position; durable."""

    @abstractmethod
    async def abort_staged(self, ranges: Iterable[StagedRange]) -> int:
        """Delete what was staged and will not be committed; how many records went."""

    @abstractmethod
    async def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """The last transaction that an owner has committed; None if none is remembered."""

    def transaction(self, owner: str | None = None, epoch: int | None = None) -> AsyncTransaction:
        """Begin a transaction, to be used as a context: leaving it commits, an exception aborts.

        With an `owner` it has a key, under which it happens once; its `epoch` is the next of the owner unless given.
        """
        check_owner(owner, epoch)
        return AsyncTransaction(self, owner, epoch)
