"""Transactions over the network for asyncio, with the API and the rules of `transactions`.

This module must not know how the server commits a transaction.
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
from seawall.client.staging import staging_options
from seawall.client.transactions import CommitAttempts, commit_request, committed_in, own_keys
from seawall.core.transactions import CommittedTransaction, StagedRange, WantedTransaction, partition_named
from seawall.io.process.own_process import disown_on_fork
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.lwp1.replies import TopicReply, parse_topic_reply
from seawall.wire.lwp2.topics import parse_records_deleted
from seawall.wire.lwp2.transactions import StagingFind, TransactionAbort, TransactionState, parse_transaction_status


class AsyncStagingPublisher(AsyncRemotePublisher):
    """A publisher to a staging topic."""

    def stage(self, block: EncodedBlock) -> Delivery:
        """Send one block as a batch of its own."""
        return self._sender.offer(self.topic, self._topic_id, [block], None)


class AsyncRemoteTransactions(AsyncTransactionalLog):
    """The transaction methods of `AsyncRemoteLog`."""

    target: Target
    #: The shared staging topic, once it was looked up.
    _staging: TopicReply | None = None

    def __init__(self) -> None:
        self.own_keys = own_keys()
        self.own_keys_lock = asyncio.Lock()

    def transaction(self, owner: str | None = None, epoch: int | None = None) -> AsyncTransaction:
        """Start a transaction, to be used in an `async with` block. A forked child cannot continue it."""
        begun = super().transaction(owner, epoch)
        disown_on_fork(begun)
        return begun

    @property
    @abstractmethod
    def _requests(self) -> AsyncRequests: ...

    async def stage(self, *, own_partition: bool = False, compression: Compression = "none") -> AsyncStager:
        """Start to stage the records of one attempt, invisible to all readers.

        With `own_partition` they get a staging topic of their own; use it for many records.
        """
        staging = self._staging
        if staging is None or own_partition:
            staging = parse_topic_reply((await self._requests.request(StagingFind(own_partition))).payload)
        if not own_partition:
            self._staging = staging
        publisher = AsyncStagingPublisher(self.target, staging.name, staging.topic_id, staging_options(compression))
        await publisher.open()
        return AsyncStager(publisher.stage, self._abort, publisher.close, partition_named(staging.name))

    async def _commit_wanted(self, wanted: WantedTransaction) -> CommittedTransaction:
        request = commit_request(wanted)
        attempts = CommitAttempts(wanted.owner, wanted.epoch)
        while True:
            with attempts:
                return committed_in(await self._requests.request(request, is_repeatable=False))

    async def abort_staged(self, ranges: Iterable[StagedRange]) -> int:
        """Delete staged records that will not be committed; returns how many were deleted."""
        request = TransactionAbort(tuple(StagedRange(*each) for each in ranges))
        return parse_records_deleted((await self._requests.request(request)).payload).count

    async def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """The last transaction that `owner` committed; None if the log remembers none."""
        return parse_transaction_status((await self._requests.request(TransactionState(owner))).payload).committed

    async def _abort(self, ranges: Sequence[StagedRange]) -> int:
        return await self.abort_staged(ranges)
