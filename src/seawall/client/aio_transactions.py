"""Transactions over the network for asyncio, with the words and the rules of `transactions`.

This module must not know how a transaction is committed.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Sequence

from seawall.api.aio_transactions import AsyncStager, AsyncTransaction, AsyncTransactionalLog
from seawall.api.publisher_options import Compression
from seawall.client.connection.aio_requests import AsyncRequests
from seawall.client.connection.targets import Target
from seawall.client.publish.aio_publisher import AsyncRemotePublisher
from seawall.client.publish.delivery import Delivery
from seawall.client.transactions import ATTEMPTS, committed_in, own_keys, staging_options, unknown, wanted_of
from seawall.core.transactions import CommittedTransaction, OffsetCommit, StagedPart, StagedRange, partition_named
from seawall.errors import OutcomeUnknownError, RetryableError
from seawall.io.process.own_process import disown_on_fork
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.lwp1.replies import TopicReply, parse_topic_reply
from seawall.wire.lwp2.topics import parse_records_deleted
from seawall.wire.lwp2.transactions import StagingFind, TransactionAbort, TransactionState, parse_transaction_status


class AsyncStagingPublisher(AsyncRemotePublisher):
    """A publisher that stages."""

    def stage(self, block: EncodedBlock) -> Delivery:
        """Send one block as a batch of its own."""
        return self._sender.offer(self.topic, self._topic_id, [block], None)


class AsyncRemoteTransactions(AsyncTransactionalLog):
    """The part of a connected log on an event loop that is about transactions."""

    target: Target
    #: The topic that all share, once somebody has asked for it.
    _staging: TopicReply | None = None

    def __init__(self) -> None:
        self.own_keys = own_keys()
        self.own_turn = asyncio.Lock()

    def transaction(self, owner: str | None = None, epoch: int | None = None) -> AsyncTransaction:
        """Begin a transaction, to be used as a context; a forked child must not go on with it."""
        begun = super().transaction(owner, epoch)
        disown_on_fork(begun)
        return begun

    @property
    @abstractmethod
    def _requests(self) -> AsyncRequests: ...

    async def stage(self, *, is_apart: bool = False, compression: Compression = "none") -> AsyncStager:
        """Begin to stage the records of one attempt, out of sight of every reader; apart if they are many."""
        staging = self._staging
        if staging is None or is_apart:
            staging = parse_topic_reply((await self._requests.ask(StagingFind(is_apart))).payload)
        if not is_apart:
            self._staging = staging
        publisher = AsyncStagingPublisher(self.target, staging.name, staging.topic_id, staging_options(compression))
        await publisher.open()
        return AsyncStager(publisher.stage, self._abort, publisher.close, partition_named(staging.name))

    async def commit_staged(
        self,
        owner: str,
        epoch: int,
        parts: Iterable[StagedPart | tuple[str, StagedRange]],
        *,
        offsets: Iterable[OffsetCommit | tuple[str, str, int]] = (),
    ) -> CommittedTransaction:
        """Publish what was staged into topics, in the order given, all of it or nothing, at one position; durable."""
        request = wanted_of(owner, epoch, parts, offsets)
        lost: OutcomeUnknownError | None = None
        for _ in range(ATTEMPTS):
            try:
                return committed_in(await self._requests.ask(request, is_repeatable=False))
            except OutcomeUnknownError as error:
                lost = error
            except RetryableError as error:
                if lost is not None:
                    raise unknown(owner, epoch, error) from error
                raise
        assert lost is not None, "it was tried"
        raise unknown(owner, epoch, lost) from lost

    async def abort_staged(self, ranges: Iterable[StagedRange]) -> int:
        """Delete what was staged and will not be committed; how many records went."""
        request = TransactionAbort(tuple(StagedRange(*each) for each in ranges))
        return parse_records_deleted((await self._requests.ask(request)).payload).count

    async def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """The last transaction that an owner has committed; None if none is remembered."""
        return parse_transaction_status((await self._requests.ask(TransactionState(owner))).payload).committed

    async def _abort(self, ranges: Sequence[StagedRange]) -> int:
        return await self.abort_staged(ranges)
