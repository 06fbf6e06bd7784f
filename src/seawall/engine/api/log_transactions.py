"""Transactions of the embedded log: records are staged by the ordinary way of appends, as batches of their own.

What one attempt stages carries a client id that no other has and that no session knows, so that the queue joins its
batches with nobody's: a range of an attempt is whole batches.

This module must not know how a transaction is committed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count

from seawall.api.publisher_options import Compression, codec_of
from seawall.api.transactions import OwnKeys, Stager, TransactionalLog, as_offsets, as_parts
from seawall.core.identifiers import CLIENT_ID_SIZE, client_id_from, synthetic_client_id
from seawall.core.transactions import (
    CommittedTransaction,
    OffsetCommit,
    StagedPart,
    StagedRange,
    WantedTransaction,
    partition_named,
)
from seawall.core.types import ClientId, ClientSeq
from seawall.engine.commit.commit_queue import CommitQueue
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.pending_batches import Identity, PendingBatch
from seawall.engine.store.store import Store
from seawall.io.process.own_process import random_bytes
from seawall.topics.state import TopicState
from seawall.wire.format.arrow import EncodedBlock


class EmbeddedTransactions(TransactionalLog):
    """The part of an embedded log that is about transactions."""

    queue: CommitQueue

    def __init__(self) -> None:
        self.own_keys = OwnKeys(f"log-{random_bytes(8).hex()}")

    @abstractmethod
    def changing(self) -> AbstractContextManager[Store]:
        """The store for a change that is no append, when its turn has come."""

    @abstractmethod
    def looking(self) -> AbstractContextManager[Store]:
        """The store for a question."""

    @abstractmethod
    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Queue records and return."""

    def stage(self, *, is_apart: bool = False, compression: Compression = "none") -> Stager:
        """Begin to stage the records of one attempt, out of sight of every reader; apart if they are many.

        `compression` is about sending to a server; here it is checked and has no effect.
        """
        codec_of(compression)
        topic = self.staging(is_apart=is_apart)
        batches, partition = AttemptBatches(topic), partition_named(topic.name)
        return Stager(lambda block: self.offer(batches.next(block)), self.abort_staged, _nothing, partition)

    def staging(self, *, is_apart: bool = False) -> TopicState:
        """The topic that records are staged in, or much is."""
        with self.changing() as store:
            return store.staging(is_apart=is_apart)

    def commit_staged(
        self,
        owner: str,
        epoch: int,
        parts: Iterable[StagedPart | tuple[str, StagedRange]],
        *,
        offsets: Iterable[OffsetCommit | tuple[str, str, int]] = (),
    ) -> CommittedTransaction:
        """Publish what was staged into topics, in the order given, all of it or nothing, at one position; durable."""
        wanted = WantedTransaction(owner, epoch, as_parts(parts), as_offsets(offsets))
        with self.changing() as store:
            return store.commit_transaction(wanted, partial(unlocked, self.queue))

    def abort_staged(self, ranges: Iterable[StagedRange]) -> int:
        """Delete what was staged and will not be committed; how many records went."""
        with self.changing() as store:
            return store.abort_staged([StagedRange(*each) for each in ranges])

    def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """The last transaction that an owner has committed; None if none is remembered."""
        with self.looking() as store:
            return store.catalog.transactions.last(owner)


class AttemptBatches:
    """Makes the bundles of one attempt, none of which is joined with another."""

    def __init__(self, topic: TopicState) -> None:
        self._topic = topic
        self._client_id: ClientId = synthetic_client_id(client_id_from(random_bytes(CLIENT_ID_SIZE)))
        self._seqs = count(1)

    def next(self, block: EncodedBlock) -> PendingBatch:
        """The bundle of one block."""
        pending_batch = PendingBatch(self._topic, [block.block], len(block.block), block.record_count)
        pending_batch.identity = Identity(self._client_id, ClientSeq(next(self._seqs)))
        return pending_batch


@contextmanager
def unlocked(queue: CommitQueue) -> Iterator[None]:
    """Let readers look at the store while its leader changes nothing that they see."""
    queue.state.release()
    try:
        yield
    finally:
        queue.state.acquire()


def _nothing() -> None:
    """There is nothing to give back."""
