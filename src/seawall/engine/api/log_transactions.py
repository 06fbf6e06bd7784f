"""The transaction methods of the embedded log: records are staged with ordinary appends, in batches of their own.

The batches of one attempt carry a unique client id that belongs to no session. So the commit queue never merges them
with other records, and a staged range of an attempt consists of whole batches.

This module must not know how a transaction is committed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count

from seawall.api.publisher_options import Compression, codec_of
from seawall.api.transactions import OwnKeys, Stager, TransactionalLog
from seawall.core.identifiers import CLIENT_ID_SIZE, client_id_from, synthetic_client_id
from seawall.core.transactions import (
    CommittedTransaction,
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
    """The transaction methods of an embedded log."""

    commits: CommitQueue

    def __init__(self) -> None:
        self.own_keys = OwnKeys(f"log-{random_bytes(8).hex()}")

    @abstractmethod
    def changing(self) -> AbstractContextManager[Store]:
        """Lock the store exclusively, for a change other than an append."""

    @abstractmethod
    def inspecting(self) -> AbstractContextManager[Store]:
        """Lock the store's memory, for a read-only query."""

    @abstractmethod
    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Queue encoded records and return."""

    def stage(self, *, own_partition: bool = False, compression: Compression = "none") -> Stager:
        """Create a stager: it stages the records of one attempt, invisible to readers until they are committed.

        Use `own_partition=True` for many megabytes: those records are stored separately, and a commit moves them
        instead of copying them. `compression` configures sending to a server; an embedded log only validates it.
        """
        codec_of(compression)
        topic = self.staging(own_partition=own_partition)
        batches, partition = AttemptBatches(topic), partition_named(topic.name)
        return Stager(lambda block: self.offer(batches.next(block)), self.abort_staged, _nothing, partition)

    def staging(self, *, own_partition: bool = False) -> TopicState:
        """Returns the staging topic; with `own_partition` the one for large amounts."""
        with self.changing() as store:
            return store.staging(own_partition=own_partition)

    def _commit_wanted(self, wanted: WantedTransaction) -> CommittedTransaction:
        with self.changing() as store:
            return store.commit_transaction(wanted, partial(unlocked, self.commits))

    def abort_staged(self, ranges: Iterable[StagedRange]) -> int:
        """Delete staged records that will not be committed; returns how many. Committed ranges stay committed."""
        with self.changing() as store:
            return store.abort_staged([StagedRange(*each) for each in ranges])

    def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """Returns the last transaction that an owner has committed; None if none is remembered."""
        with self.inspecting() as store:
            return store.catalog.transactions.last(owner)


class AttemptBatches:
    """Creates the pending batches of one staging attempt, which the commit queue never merges."""

    def __init__(self, topic: TopicState) -> None:
        self._topic = topic
        self._client_id: ClientId = synthetic_client_id(client_id_from(random_bytes(CLIENT_ID_SIZE)))
        self._seqs = count(1)

    def next(self, block: EncodedBlock) -> PendingBatch:
        """Returns a pending batch for one block."""
        pending_batch = PendingBatch(self._topic, [block.block], len(block.block), block.record_count)
        pending_batch.identity = Identity(self._client_id, ClientSeq(next(self._seqs)))
        return pending_batch


@contextmanager
def unlocked(queue: CommitQueue) -> Iterator[None]:
    """Release the lock of the store's memory for readers, while the commit leader changes nothing they can see."""
    queue.state.release()
    try:
        yield
    finally:
        queue.state.acquire()


def _nothing() -> None:
    """The stager holds no resources to release."""
