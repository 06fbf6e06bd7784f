"""Transactions over the network: a publisher per attempt (`staging`) stages the records, and one request commits them.

If the response to a commit is lost, the client sends it again under the same key; the server answers a repetition like
the original, so the transaction commits once. If the server stays unreachable, the outcome is unknown:
`transaction_state`, or another commit under the same key, finds it out later.

This module must not know how the server commits a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Final

from seawall.api.publisher_options import Compression
from seawall.api.transactions import OwnKeys, Stager, Transaction, TransactionalLog
from seawall.client.commands import cursor_owner
from seawall.client.connection.requests import Requests
from seawall.client.connection.targets import Target
from seawall.client.staging import StagingPool, StagingPublisher, staging_options
from seawall.core.transactions import (
    CommittedTransaction,
    OffsetCommit,
    StagedRange,
    WantedTransaction,
    partition_named,
)
from seawall.errors import OutcomeUnknownError, ProtocolError, RetryableError
from seawall.io.process.own_process import disown_on_fork, random_bytes
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

#: How often to send a commit with an unknown outcome, each time with the full timeout of the target.
ATTEMPTS: Final = 2


def own_keys() -> OwnKeys:
    """A generator of transaction keys that are unique to this client."""
    return OwnKeys(f"client-{random_bytes(8).hex()}")


def commit_request(wanted: WantedTransaction) -> TransactionCommit:
    """The request that commits a transaction."""
    offsets = (OffsetCommit(cursor_owner(each.owner), each.topic, each.next_seq) for each in wanted.offsets)
    return TransactionCommit(replace(wanted, offsets=tuple(offsets)))


def committed_in(frame: Frame) -> CommittedTransaction:
    """Parse the response to a commit."""
    committed = parse_transaction_status(frame.payload).committed
    if committed is None:
        raise ProtocolError("the response to a commit is empty", code=ErrorCode.INVALID_PAYLOAD, closes=False)
    return committed


class CommitAttempts:
    """Decides what the errors of sending one commit mean: repeats it while its outcome is unknown.

    attempts = CommitAttempts(owner, epoch)
    while True:
        with attempts:
            return committed_in(...)
    """

    def __init__(self, owner: str, epoch: int) -> None:
        self._owner = owner
        self._epoch = epoch
        self._left = ATTEMPTS
        #: An earlier attempt may have committed.
        self._is_unknown = False

    def __enter__(self) -> None:
        self._left -= 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if isinstance(error, OutcomeUnknownError):
            self._is_unknown = True
            if self._left:
                return True
        elif not (self._is_unknown and isinstance(error, RetryableError)):
            return False
        raise OutcomeUnknownError(
            f"transaction {self._epoch} of {self._owner!r} may be committed or not ({error}): "
            "commit it again under the same key"
        ) from error


class RemoteTransactions(TransactionalLog):
    """The transaction methods of `RemoteLog`."""

    target: Target
    _requests: Requests
    #: The shared staging topic, once it was looked up.
    _staging: TopicReply | None = None

    def __init__(self) -> None:
        self.own_keys = own_keys()
        self._staging_pool = StagingPool()

    def disown(self) -> None:
        """Run in a forked child: use new keys, because a commit under the parent's keys would count as a repetition."""
        self.own_keys = own_keys()
        self._staging_pool = StagingPool()

    def transaction(self, owner: str | None = None, epoch: int | None = None) -> Transaction:
        """Start a transaction, to be used in a `with` block. A forked child cannot continue it."""
        begun = super().transaction(owner, epoch)
        disown_on_fork(begun)
        return begun

    def stage(self, *, own_partition: bool = False, compression: Compression = "none") -> Stager:
        """Start to stage the records of one attempt, invisible to all readers.

        With `own_partition` they get a staging topic of their own; use it for many records.
        """
        staging = self._staging
        if staging is None or own_partition:
            staging = parse_topic_reply(self._requests.request(StagingFind(own_partition)).payload)
        if not own_partition:
            self._staging = staging
        partition = partition_named(staging.name)

        def make() -> StagingPublisher:
            return StagingPublisher(self.target, staging.name, staging.topic_id, staging_options(compression))

        if own_partition or compression != "none":
            publisher = make()
            return Stager(publisher.stage, publisher.aborting(self.abort_staged), publisher.close, partition)
        self._requests.check_open()
        attempt = self._staging_pool.attempt(make)
        return Stager(attempt.stage, attempt.publisher.aborting(self.abort_staged), attempt.close, partition)

    def _commit_wanted(self, wanted: WantedTransaction) -> CommittedTransaction:
        request = commit_request(wanted)
        attempts = CommitAttempts(wanted.owner, wanted.epoch)
        while True:
            with attempts:
                return committed_in(self._requests.request(request, is_repeatable=False))

    def abort_staged(self, ranges: Iterable[StagedRange]) -> int:
        """Delete staged records that will not be committed; returns how many were deleted."""
        request = TransactionAbort(tuple(StagedRange(*each) for each in ranges))
        return parse_records_deleted(self._requests.request(request).payload).count

    def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """The last transaction that `owner` committed; None if the log remembers none."""
        return parse_transaction_status(self._requests.request(TransactionState(owner)).payload).committed
