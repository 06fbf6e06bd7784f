"""Transactions over several topics, for any log that can stage records and commit them.

    with log.transaction() as transaction:
        transaction.publish("orders", orders)                   # staged: invisible to readers
        transaction.publish("totals", totals)
        transaction.commit_offset("worker", "events", next_seq)
    transaction.result.position                                 # everything is visible, at one position

Leaving the block commits; an exception aborts. The key of a transaction is its owner and an epoch: a commit that is
repeated under the same key, after a crash or a lost reply, returns the result of the first. Without an owner the log
assigns a unique key.

The lower-level API stages records in one process and commits them in another:

    stager = log.stage()
    stager.publish(records)
    ranges = stager.ranges()                                    # waits; whole batches, can be pickled
    log.commit_staged("job", 7, [("orders", each) for each in ranges])

The embedded log and the client have the same API; `aio_transactions` has it for event loops. This module must not know
where records are staged, nor how they get there.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self

from seawall.api.publishable import Publishable, encode
from seawall.api.publisher_options import Compression
from seawall.api.queues.jobs import ClaimedJob, Selection, job_acks, selected
from seawall.core.transactions import (
    PARTITION_SEQS,
    CommittedTransaction,
    JobAck,
    OffsetCommit,
    StagedPart,
    StagedRange,
    WantedTransaction,
    joined,
)
from seawall.core.types import Seq
from seawall.errors import InvalidInputError, OutcomeUnknownError, SeawallError, WrongStateError
from seawall.limits import MIB
from seawall.wire.format.arrow import EncodedBlock

#: Limit of the bytes that one stager has in flight.
IN_FLIGHT_SIZE: Final = 64 * MIB


class StagedDelivery(Protocol):
    """The delivery of a staged batch, as both the embedded log and the client provide it."""

    record_count: int

    @property
    def first_seq(self) -> Seq:
        """The seq of its first record, 0 if it is not known. Valid once the delivery is done."""
        ...

    def result(self, timeout_s: float | None = None) -> object:
        """Wait until the batch is staged; raises the error if staging failed."""
        ...

    def __await__(self) -> Generator[Any, None, object]: ...


#: Stages a block as a batch of its own.
Send = Callable[[EncodedBlock], StagedDelivery]


class StagedCall:
    """The staged batches of one call of `publish`."""

    __slots__ = ("_partition", "deliveries")

    def __init__(self, deliveries: Sequence[StagedDelivery], partition: int) -> None:
        self.deliveries = deliveries
        self._partition = partition

    @property
    def record_count(self) -> int:
        """The number of records of the call."""
        return sum(delivery.record_count for delivery in self.deliveries)

    def ranges(self) -> list[StagedRange]:
        """Wait until all records of the call are staged; returns their ranges."""
        for delivery in self.deliveries:
            delivery.result()
        return self.decided()

    def decided(self) -> list[StagedRange]:
        """Returns the ranges of the staged records; all deliveries must be done."""
        found = []
        for delivery in self.deliveries:
            first = delivery.first_seq
            if not first:
                raise OutcomeUnknownError(
                    "the seqs of the staged records are not known any more: stage the records again"
                )
            first = Seq(self._partition * PARTITION_SEQS + first)
            found.append(StagedRange(first, Seq(first + delivery.record_count - 1)))
        return joined(found)


class Stager:
    """Stages the records of one attempt, invisible to readers. Create one with the `stage` method of a log."""

    def __init__(
        self, send: Send, abort: Callable[[Sequence[StagedRange]], int], close: Callable[[], None], partition: int = 0
    ) -> None:
        self._send = send
        self._abort = abort
        self._close = close
        self._partition = partition
        self._calls: list[StagedCall] = []
        #: Deliveries in flight with their sizes, and the sum of those sizes.
        self._in_flight: deque[tuple[StagedDelivery, int]] = deque()
        self._size = 0

    def publish(self, records: Publishable) -> StagedCall:
        """Stage one record or many, in order. Waits only while too many bytes are in flight."""
        deliveries = []
        for block in blocks_of(records):
            size = len(block.block)
            while self._in_flight and self._size + size > IN_FLIGHT_SIZE:
                delivery, delivery_size = self._in_flight.popleft()
                self._size -= delivery_size
                delivery.result()
            deliveries.append(self._send(block))
            self._in_flight.append((deliveries[-1], size))
            self._size += size
        call = StagedCall(deliveries, self._partition)
        self._calls.append(call)
        return call

    def ranges(self) -> list[StagedRange]:
        """Wait until everything published so far is staged; returns its ranges in the order of calls.

        The ranges can be pickled and committed by another process.
        """
        return joined(each for call in self._calls for each in call.ranges())

    def abort(self) -> int:
        """Delete the staged records; returns how many. Records whose range is unknown expire by their age."""
        found: list[StagedRange] = []
        for call in self._calls:
            with suppress(SeawallError, OSError, TimeoutError):
                found += call.ranges()
        self._calls.clear()
        return self._abort(joined(found)) if found else 0

    def close(self) -> None:
        """Stop staging. Staged records stay staged. Closing twice is fine."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Published:
    """The records of one `publish` call of a transaction. Their seqs are known after the commit."""

    __slots__ = ("_seqs", "call", "topic")

    def __init__(self, topic: str, call: StagedCall) -> None:
        self.topic = topic
        self.call = call
        self._seqs: range | None = None

    @property
    def seqs(self) -> range:
        """The seq of each record in its topic. Raises before the commit."""
        if self._seqs is None:
            raise WrongStateError(f"the seqs in {self.topic!r} are not known: this transaction did not commit them")
        return self._seqs

    def settle(self, seqs: range) -> None:
        """Set the seqs, after the commit."""
        self._seqs = seqs


class OpenTransaction:
    """The contents and state of a transaction, shared by the classes for threads and for event loops."""

    def __init__(self, owner: str | None, epoch: int) -> None:
        self.owner = owner
        #: 0 if the log assigns the key.
        self.epoch = epoch
        self.published: list[Published] = []
        self.offsets: list[OffsetCommit] = []
        self._jobs: list[ClaimedJob] = []
        self._result: CommittedTransaction | None = None
        self._is_over = False
        self._is_inherited = False

    @property
    def result(self) -> CommittedTransaction:
        """The result of the commit: position, time, and the seqs in each topic. Raises before the commit."""
        if self._result is None:
            raise WrongStateError("the transaction is not committed")
        return self._result

    def commit_offset(self, owner: str, topic: str, next_seq: int) -> None:
        """Store with the transaction how far `owner` has read a topic: `next_seq` is the seq it reads next."""
        self.require_open()
        self.offsets.append(OffsetCommit(owner, topic, Seq(next_seq)))

    def ack(self, jobs: Selection) -> None:
        """Finish claimed jobs with the transaction: their results and their acks are one step.

        The commit fails, and nothing is published, if one of them is not leased to its worker any more.
        """
        self.require_open()
        self._jobs += selected(jobs)

    @property
    def acks(self) -> list[JobAck]:
        """The jobs that the commit finishes."""
        return job_acks(self._jobs)

    def disown(self) -> None:
        """Called in a forked child: only the parent may commit or abort the transaction."""
        self._is_over = self._is_inherited = True

    def require_open(self) -> None:
        """Raise if the transaction is committed or aborted, or this is a forked child."""
        if self._is_inherited:
            raise WrongStateError("the transaction belongs to the parent process: begin another one here")
        if self._is_over:
            raise WrongStateError("the transaction is committed or aborted; begin another one")

    def parts(self) -> list[StagedPart]:
        """Returns the staged parts to commit, in the order of calls; everything must be staged."""
        return [StagedPart(each.topic, staged) for each in self.published for staged in each.call.decided()]

    def ended(self, result: CommittedTransaction | None) -> None:
        """Record the end of the transaction: `result` of a commit, or None."""
        self._is_over = True
        self._result = result
        if result is None:
            return
        for job in self._jobs:
            job.decided()
        counts: dict[str, int] = {}
        for each in self.published:
            counts[each.topic] = counts.get(each.topic, 0) + each.call.record_count
        if counts != {span.topic: span.record_count for span in result.spans}:
            # A repetition with other records than the first commit: the log holds those of the first.
            return
        next_seqs = {span.topic: span.first_seq for span in result.spans}
        for each in self.published:
            first, count = next_seqs[each.topic], each.call.record_count
            each.settle(range(first, first + count))
            next_seqs[each.topic] = Seq(first + count)


class Transaction(OpenTransaction):
    """A transaction over several topics. Create one with the `transaction` method of a log.

    Leaving its `with` block commits it; an exception aborts it. Use it from one thread at a time.
    """

    def __init__(self, log: TransactionalLog, owner: str | None, epoch: int) -> None:
        super().__init__(owner, epoch)
        self._log = log
        self._stager: Stager | None = None

    def publish(self, topic: str, records: Publishable) -> Published:
        """Add one record or many, in order, for a topic."""
        self.require_open()
        if self._stager is None:
            self._stager = self._log.stage()
        self.published.append(Published(topic, self._stager.publish(records)))
        return self.published[-1]

    def commit(self) -> CommittedTransaction:
        """Commit: make all records visible, durably and at one position. Leaving the `with` block calls this."""
        self.require_open()
        try:
            for each in self.published:
                each.call.ranges()
            if self.owner is None:
                result = self._log.own_keys.commit(self._log, self.parts(), self.offsets, self.acks)
            else:
                result = self._log.commit_staged(
                    self.owner, self.epoch, self.parts(), offsets=self.offsets, acks=self.acks
                )
        except OutcomeUnknownError:
            self._end(None)
            raise
        except BaseException:
            self.abort()
            raise
        stager = self._stager
        if result.is_repeated and stager is not None:
            # The first commit is in effect: the records that this attempt staged are not needed.
            stager.abort()
        self._end(result)
        return result

    def abort(self) -> None:
        """Abort: delete all staged records. An exception in the `with` block calls this.

        Records that cannot be deleted now expire by their age.
        """
        self.require_open()
        if self._stager is not None:
            with suppress(SeawallError, OSError, TimeoutError):
                self._stager.abort()
        self._end(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if error is None:
            self.commit()
        else:
            self.abort()

    def _end(self, result: CommittedTransaction | None) -> None:
        self.ended(result)
        if self._stager is not None:
            self._stager.close()


class OwnKeys:
    """Assigns keys to transactions without an owner: a unique name of the log, and epochs in the order of commits."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._epoch = 0
        self._lock = threading.Lock()

    def commit(
        self,
        log: TransactionalLog,
        parts: Sequence[StagedPart],
        offsets: Sequence[OffsetCommit],
        acks: Sequence[JobAck],
    ) -> CommittedTransaction:
        """Commit under the next key. One commit at a time, so that a later epoch never fences an earlier one."""
        with self._lock:
            return log.commit_staged(*self.next_key(), parts, offsets=offsets, acks=acks)

    def next_key(self) -> tuple[str, int]:
        """Returns the next owner and epoch."""
        self._epoch += 1
        return self._owner, self._epoch


class TransactionalLog(ABC):
    """The transaction methods of a log."""

    #: Keys of transactions without an owner.
    own_keys: OwnKeys

    @abstractmethod
    def stage(self, *, own_partition: bool = False, compression: Compression = "none") -> Stager:
        """Create a stager: it stages the records of one attempt, invisible to readers until they are committed.

        Use `own_partition=True` for many megabytes: those records are stored separately, and a commit moves them
        instead of copying them. `compression` applies to records sent to a server.
        """

    def commit_staged(
        self,
        owner: str,
        epoch: int,
        parts: Iterable[StagedPart | tuple[str, StagedRange]],
        *,
        offsets: Iterable[OffsetCommit | tuple[str, str, int]] = (),
        acks: Iterable[JobAck] = (),
    ) -> CommittedTransaction:
        """Publish staged records to their topics, in the order given, atomically and at one position.

        The commit is durable when this returns. `offsets` are (owner, topic, next_seq) of readers, stored with the
        commit; `acks` are jobs that it finishes. A repetition with the same owner and epoch returns the first result
        and changes nothing. Raises `FencedError` if a later epoch of the owner is committed. A refused commit changes
        nothing.
        """
        return self._commit_wanted(wanted_of(owner, epoch, parts, offsets, acks))

    @abstractmethod
    def _commit_wanted(self, wanted: WantedTransaction) -> CommittedTransaction: ...

    @abstractmethod
    def abort_staged(self, ranges: Iterable[StagedRange]) -> int:
        """Delete staged records that will not be committed; returns how many. Committed ranges stay committed."""

    @abstractmethod
    def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """Returns the last transaction that an owner has committed; None if none is remembered."""

    def transaction(self, owner: str | None = None, epoch: int | None = None) -> Transaction:
        """Begin a transaction, to use as a context manager: leaving the block commits, an exception aborts.

        With an `owner` the transaction has a key, its owner and epoch, and is committed once under that key. The
        default `epoch` is the next one of the owner.
        """
        return Transaction(self, owner, self._epoch_of(owner, epoch))

    def _epoch_of(self, owner: str | None, epoch: int | None) -> int:
        check_owner(owner, epoch)
        if owner is None or epoch is not None:
            return epoch or 0
        return next_epoch(self.transaction_state(owner))


def next_epoch(last: CommittedTransaction | None) -> int:
    """Returns the epoch after an owner's last transaction."""
    return 1 if last is None else last.epoch + 1


def check_owner(owner: str | None, epoch: int | None) -> None:
    """Raise if an epoch is given without an owner."""
    if owner is None and epoch is not None:
        raise InvalidInputError(f"epoch {epoch} needs an owner: name the owner of the transaction")


def blocks_of(records: Publishable) -> list[EncodedBlock]:
    """Encode records into blocks; raises if there are no records."""
    blocks = encode(records)
    if not blocks:
        raise InvalidInputError("nothing to publish: give at least one record")
    return blocks


def wanted_of(
    owner: str,
    epoch: int,
    parts: Iterable[StagedPart | tuple[str, StagedRange]],
    offsets: Iterable[OffsetCommit | tuple[str, str, int]],
    acks: Iterable[JobAck],
) -> WantedTransaction:
    """Convert the arguments of `commit_staged`, whose parts and offsets may be plain tuples."""
    return WantedTransaction(
        owner,
        epoch,
        tuple(StagedPart(topic, StagedRange(*staged)) for topic, staged in parts),
        tuple(OffsetCommit(reader, topic, Seq(next_seq)) for reader, topic, next_seq in offsets),
        tuple(acks),
    )
