"""Transactions of the embedded log on an event loop: staged like any records, committed on a thread.

This module must not know how a transaction is committed.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from seawall.api.aio_transactions import AsyncStager, AsyncTransactionalLog
from seawall.api.publisher_options import Compression, codec_of
from seawall.api.transactions import OwnKeys
from seawall.core.transactions import CommittedTransaction, OffsetCommit, StagedPart, StagedRange, partition_named
from seawall.engine.api.log_transactions import AttemptBatches, EmbeddedTransactions
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.pending_batches import PendingBatch
from seawall.io.process.own_process import random_bytes
from seawall.topics.state import TopicState

P = ParamSpec("P")
R = TypeVar("R")


class AsyncTransactions(AsyncTransactionalLog):
    """The part of an embedded log on an event loop that is about transactions."""

    def __init__(self) -> None:
        self.own_keys = OwnKeys(f"log-{random_bytes(8).hex()}")
        self.own_turn = asyncio.Lock()

    @abstractmethod
    def _opened(self) -> EmbeddedTransactions: ...

    @abstractmethod
    def _on_thread(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> Awaitable[R]: ...

    @abstractmethod
    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Have records committed, in the order of calls; await what is returned."""

    async def stage(self, *, is_apart: bool = False, compression: Compression = "none") -> AsyncStager:
        """Begin to stage the records of one attempt, out of sight of every reader; apart if they are many.

        `compression` is about sending to a server; here it is checked and has no effect.
        """
        codec_of(compression)
        topic = await self.staging(is_apart=is_apart)
        batches, partition = AttemptBatches(topic), partition_named(topic.name)
        return AsyncStager(lambda block: self.offer(batches.next(block)), self._abort, _nothing, partition)

    async def staging(self, *, is_apart: bool = False) -> TopicState:
        """The topic that records are staged in, or much is."""
        return await self._on_thread(self._opened().staging, is_apart=is_apart)

    async def commit_staged(
        self,
        owner: str,
        epoch: int,
        parts: Iterable[StagedPart | tuple[str, StagedRange]],
        *,
        offsets: Iterable[OffsetCommit | tuple[str, str, int]] = (),
    ) -> CommittedTransaction:
        """Publish what was staged into topics, in the order given, all of it or nothing, at one position; durable."""
        return await self._on_thread(self._opened().commit_staged, owner, epoch, parts, offsets=offsets)

    async def abort_staged(self, ranges: Iterable[StagedRange]) -> int:
        """Delete what was staged and will not be committed; how many records went."""
        return await self._on_thread(self._opened().abort_staged, ranges)

    async def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """The last transaction that an owner has committed; None if none is remembered."""
        return await self._on_thread(self._opened().transaction_state, owner)

    async def _abort(self, ranges: Sequence[StagedRange]) -> int:
        return await self.abort_staged(ranges)


async def _nothing() -> None:
    """There is nothing to give back."""
