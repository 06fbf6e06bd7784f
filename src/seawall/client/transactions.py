"""Transactions over the network: records are staged by a publisher of the attempt's own, and committed by one request.

A commit is sent again, under its key, while nobody knows what became of it: the server answers a repetition as the
first, so it happens once. Where the server stays away that long the outcome is unknown, and whoever asks later
(`transaction_state`), or commits again under the same key, finds out.

This module must not know how a transaction is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from seawall.api.publisher_options import Compression, PublisherOptions
from seawall.api.transactions import (
    IN_FLIGHT_SIZE,
    OwnKeys,
    Stager,
    Transaction,
    TransactionalLog,
    as_offsets,
    as_parts,
)
from seawall.client.commands import cursor_owner
from seawall.client.connection.requests import Requests
from seawall.client.connection.targets import Target
from seawall.client.publish.delivery import Delivery
from seawall.client.publish.publisher import RemotePublisher
from seawall.core.transactions import (
    CommittedTransaction,
    OffsetCommit,
    StagedPart,
    StagedRange,
    WantedTransaction,
    partition_named,
)
from seawall.errors import OutcomeUnknownError, ProtocolError, RetryableError
from seawall.io.process.own_process import disown_on_fork, random_bytes
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.codes import ErrorCode
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp1.replies import TopicReply, parse_topic_reply
from seawall.wire.lwp2.topics import parse_records_deleted
from seawall.wire.lwp2.transactions import (
    StagingFind,
    TransactionAbort,
    TransactionCommit,
    TransactionState,
    parse_transaction_status,
)

#: How often the patience of a target is spent on a commit that nobody knows the outcome of.
ATTEMPTS: Final = 2


def staging_options(compression: Compression) -> PublisherOptions:
    """Those of a publisher that stages: each block is a batch of its own, which is what ranges are made of."""
    return PublisherOptions(batch_size=1, compression=compression, max_in_flight=IN_FLIGHT_SIZE)


def own_keys() -> OwnKeys:
    """Keys that nobody else has."""
    return OwnKeys(f"client-{random_bytes(8).hex()}")


def wanted_of(
    owner: str,
    epoch: int,
    parts: Iterable[StagedPart | tuple[str, StagedRange]],
    offsets: Iterable[OffsetCommit | tuple[str, str, int]],
) -> TransactionCommit:
    """The request of a commit."""
    kept = [OffsetCommit(cursor_owner(each.owner), each.topic, each.next_seq) for each in as_offsets(offsets)]
    return TransactionCommit(WantedTransaction(owner, epoch, as_parts(parts), tuple(kept)))


def committed_in(frame: Frame) -> CommittedTransaction:
    """What the answer to a commit tells."""
    committed = parse_transaction_status(frame.payload).committed
    if committed is None:
        raise ProtocolError("a commit was answered by nothing", code=ErrorCode.INVALID_PAYLOAD, closes=False)
    return committed


def unknown(owner: str, epoch: int, error: Exception) -> OutcomeUnknownError:
    """Nobody knows what became of a commit."""
    return OutcomeUnknownError(
        f"transaction {epoch} of {owner!r} may be committed or not ({error}): commit it again under the same key"
    )


class StagingPublisher(RemotePublisher):
    """A publisher that stages."""

    def stage(self, block: EncodedBlock) -> Delivery:
        """Send one block as a batch of its own."""
        self._sender.wait_for_space(len(block.block), IN_FLIGHT_SIZE, may_wait=True)
        return self._sender.offer(self.topic, self._topic_id, [block], None)

    def aborting(self, abort: Callable[[Iterable[StagedRange]], int]) -> Callable[[Iterable[StagedRange]], int]:
        """Delete what it has staged, by `abort`; a forked child must not."""

        def checked(ranges: Iterable[StagedRange]) -> int:
            self._process.check()
            return abort(ranges)

        return checked


class RemoteTransactions(TransactionalLog):
    """The part of a connected log that is about transactions."""

    target: Target
    _requests: Requests
    #: The topic that all share, once somebody has asked for it.
    _staging: TopicReply | None = None

    def __init__(self) -> None:
        self.own_keys = own_keys()

    def disown(self) -> None:
        """This is a forked child: under the parent's keys its commits would be repetitions of the parent's."""
        self.own_keys = own_keys()

    def transaction(self, owner: str | None = None, epoch: int | None = None) -> Transaction:
        """Begin a transaction, to be used as a context; a forked child must not go on with it."""
        begun = super().transaction(owner, epoch)
        disown_on_fork(begun)
        return begun

    def stage(self, *, is_apart: bool = False, compression: Compression = "none") -> Stager:
        """Begin to stage the records of one attempt, out of sight of every reader; apart if they are many."""
        staging = self._staging
        if staging is None or is_apart:
            staging = parse_topic_reply(self._requests.ask(StagingFind(is_apart)).payload)
        if not is_apart:
            self._staging = staging
        publisher = StagingPublisher(self.target, staging.name, staging.topic_id, staging_options(compression))
        return Stager(
            publisher.stage, publisher.aborting(self.abort_staged), publisher.close, partition_named(staging.name)
        )

    def commit_staged(
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
                return committed_in(self._requests.ask(request, is_repeatable=False))
            except OutcomeUnknownError as error:
                lost = error
            except RetryableError as error:
                if lost is not None:
                    raise unknown(owner, epoch, error) from error
                raise
        assert lost is not None, "it was tried"
        raise unknown(owner, epoch, lost) from lost

    def abort_staged(self, ranges: Iterable[StagedRange]) -> int:
        """Delete what was staged and will not be committed; how many records went."""
        request = TransactionAbort(tuple(StagedRange(*each) for each in ranges))
        return parse_records_deleted(self._requests.ask(request).payload).count

    def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """The last transaction that an owner has committed; None if none is remembered."""
        return parse_transaction_status(self._requests.ask(TransactionState(owner)).payload).committed
