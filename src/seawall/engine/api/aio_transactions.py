"""The transaction methods of the embedded log for asyncio: records are staged on the loop, commits run on a thread.

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
from seawall.core.transactions import CommittedTransaction, StagedRange, WantedTransaction, partition_named
from seawall.engine.api.log_transactions import AttemptBatches, EmbeddedTransactions
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.pending_batches import PendingBatch
from seawall.io.process.own_process import random_bytes
from seawall.topics.state import TopicState

P = ParamSpec("P")
R = TypeVar("R")


class AsyncTransactions(AsyncTransactionalLog):
    """The transaction methods of an embedded log on an event loop."""

    def __init__(self) -> None:
        self.own_keys = OwnKeys(f"log-{random_bytes(8).hex()}")
        self.own_keys_lock = asyncio.Lock()

    @abstractmethod
    def _opened(self) -> EmbeddedTransactions: ...

    @abstractmethod
    def _on_thread(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> Awaitable[R]: ...

    @abstractmethod
    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Queue encoded records for commit, in the order of calls; await the returned delivery."""

    async def stage(self, *, own_partition: bool = False, compression: Compression = "none") -> AsyncStager:
        """Create a stager: it stages the records of one attempt, invisible to readers until they are committed.

        Use `own_partition=True` for many megabytes: those records are stored separately, and a commit moves them
        instead of copying them. `compression` configures sending to a server; an embedded log only validates it.
        """
        codec_of(compression)
        topic = await self.staging(own_partition=own_partition)
        batches, partition = AttemptBatches(topic), partition_named(topic.name)
        return AsyncStager(lambda block: self.offer(batches.next(block)), self._abort, _nothing, partition)

    async def staging(self, *, own_partition: bool = False) -> TopicState:
        """Returns the staging topic; with `own_partition` the one for large amounts."""
        return await self._on_thread(self._opened().staging, own_partition=own_partition)

    async def _commit_wanted(self, wanted: WantedTransaction) -> CommittedTransaction:
        commit, given = self._opened().commit_staged, (wanted.owner, wanted.epoch, wanted.parts)
        return await self._on_thread(commit, *given, offsets=wanted.offsets, acks=wanted.acks)

    async def abort_staged(self, ranges: Iterable[StagedRange]) -> int:
        """Delete staged records that will not be committed; returns how many. Committed ranges stay committed."""
        return await self._on_thread(self._opened().abort_staged, ranges)

    async def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """Returns the last transaction that an owner has committed; None if none is remembered."""
        return await self._on_thread(self._opened().transaction_state, owner)

    async def _abort(self, ranges: Sequence[StagedRange]) -> int:
        return await self.abort_staged(ranges)


async def _nothing() -> None:
    """The stager holds no resources to release."""
