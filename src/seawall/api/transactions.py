"""Transactions as their users hold them, over any log that can stage records and commit what is staged.

    with log.transaction() as transaction:
        transaction.publish("orders", orders)                   # on its way, and seen by nobody
        transaction.publish("totals", totals)
        transaction.commit_offset("worker", "events", next_seq)
    transaction.result.position                                 # all of it is there, at one position

Leaving the block commits; an exception aborts. A transaction has a key, its owner and an epoch: whoever commits again
under the same key, after a crash or a lost answer, gets the answer of the first. Without an owner the log gives a key
of its own, which nobody else commits again.

Below that, for who stages in one place and commits in another:

    stager = log.stage()
    stager.publish(records)
    ranges = stager.ranges()                                    # waits; whole batches, may be pickled
    log.commit_staged("job", 7, [("orders", each) for each in ranges])

The embedded log and the client have the same words; `aio_transactions` has them for event loops. This module must not
know where records are staged, nor how they get there.
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
from seawall.core.transactions import BERTH_SEQS, CommittedTransaction, OffsetCommit, StagedPart, StagedRange, joined
from seawall.core.types import Seq
from seawall.errors import InvalidInputError, OutcomeUnknownError, SeawallError, WrongStateError
from seawall.limits import MIB
from seawall.wire.format.arrow import EncodedBlock

#: Bytes that one stager may have under way.
IN_FLIGHT_SIZE: Final = 64 * MIB


class StagedDelivery(Protocol):
    """A batch on its way to where it is staged, as both kinds of logs have it."""

    record_count: int

    @property
    def first_seq(self) -> Seq:
        """The seq of its first record, 0 where nobody knows it; it has to be decided."""
        ...

    def result(self, timeout_s: float | None = None) -> object:
        """Wait until it is decided; raises what went wrong."""
        ...

    def __await__(self) -> Generator[Any, None, object]: ...


#: Sends a block, a batch of its own, to where it is staged.
Send = Callable[[EncodedBlock], StagedDelivery]


class StagedCall:
    """The batches of one call of `publish`."""

    __slots__ = ("_partition", "deliveries")

    def __init__(self, deliveries: Sequence[StagedDelivery], partition: int) -> None:
        self.deliveries = deliveries
        self._partition = partition

    @property
    def record_count(self) -> int:
        """How many records it staged."""
        return sum(delivery.record_count for delivery in self.deliveries)

    def ranges(self) -> list[StagedRange]:
        """Where they are staged; waits until all of them are."""
        for delivery in self.deliveries:
            delivery.result()
        return self.decided()

    def decided(self) -> list[StagedRange]:
        """Where they are staged, once all are decided."""
        found = []
        for delivery in self.deliveries:
            first = delivery.first_seq
            if not first:
                raise OutcomeUnknownError("records are staged and nobody knows where any more: stage them again")
            first = Seq(self._partition * BERTH_SEQS + first)
            found.append(StagedRange(first, Seq(first + delivery.record_count - 1)))
        return joined(found)


class Stager:
    """Stages the records of one attempt, out of sight of every reader. Made by `stage`."""

    def __init__(
        self, send: Send, abort: Callable[[Sequence[StagedRange]], int], close: Callable[[], None], partition: int = 0
    ) -> None:
        self._send = send
        self._abort = abort
        self._close = close
        self._partition = partition
        self._calls: list[StagedCall] = []
        self._under_way: deque[tuple[StagedDelivery, int]] = deque()
        self._size = 0

    def publish(self, records: Publishable) -> StagedCall:
        """Stage one record or many, in order; waits only while much is under way."""
        deliveries = []
        for block in blocks_of(records):
            size = len(block.block)
            while self._under_way and self._size + size > IN_FLIGHT_SIZE:
                delivery, before = self._under_way.popleft()
                self._size -= before
                delivery.result()
            deliveries.append(self._send(block))
            self._under_way.append((deliveries[-1], size))
            self._size += size
        call = StagedCall(deliveries, self._partition)
        self._calls.append(call)
        return call

    def ranges(self) -> list[StagedRange]:
        """Everything that was staged so far, in the order of calls; waits until it is. The ranges may be pickled."""
        return joined(each for call in self._calls for each in call.ranges())

    def abort(self) -> int:
        """Delete what was staged; how many records went. What cannot be asked about goes by its age."""
        found: list[StagedRange] = []
        for call in self._calls:
            with suppress(SeawallError, OSError, TimeoutError):
                found += call.ranges()
        self._calls.clear()
        return self._abort(joined(found)) if found else 0

    def close(self) -> None:
        """Stage nothing more; what was staged stays. Closing twice is fine."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Published:
    """What one `publish` of a transaction brought: which seqs it has is known once that is committed."""

    __slots__ = ("_seqs", "call", "topic")

    def __init__(self, topic: str, call: StagedCall) -> None:
        self.topic = topic
        self.call = call
        self._seqs: range | None = None

    @property
    def seqs(self) -> range:
        """The seq of each record in its topic."""
        if self._seqs is None:
            raise WrongStateError(f"nobody knows the seqs in {self.topic!r}: the transaction is not committed by this")
        return self._seqs

    def settle(self, seqs: range) -> None:
        """It was committed."""
        self._seqs = seqs


class OpenTransaction:
    """What a transaction has gathered; the same for threads and event loops."""

    def __init__(self, owner: str | None, epoch: int) -> None:
        self.owner = owner
        #: 0 where the log gives the key.
        self.epoch = epoch
        self.published: list[Published] = []
        self.offsets: list[OffsetCommit] = []
        self._result: CommittedTransaction | None = None
        self._is_over = False
        self._is_inherited = False

    @property
    def result(self) -> CommittedTransaction:
        """What was committed: position, time, and the seqs in each topic."""
        if self._result is None:
            raise WrongStateError("the transaction is not committed")
        return self._result

    def commit_offset(self, owner: str, topic: str, next_seq: int) -> None:
        """Have how far `owner` has read kept with the transaction: `next_seq` is what it reads next."""
        self.require_open()
        self.offsets.append(OffsetCommit(owner, topic, Seq(next_seq)))

    def disown(self) -> None:
        """This is a forked child: only the parent commits or aborts it."""
        self._is_over = self._is_inherited = True

    def require_open(self) -> None:
        """Refuse what comes too late, or from a forked child."""
        if self._is_inherited:
            raise WrongStateError("the transaction is of the process that forked this one: begin another one here")
        if self._is_over:
            raise WrongStateError("the transaction is committed or aborted; begin another one")

    def parts(self) -> list[StagedPart]:
        """What is to be committed, in the order of calls; all of it must be decided."""
        return [StagedPart(each.topic, staged) for each in self.published for staged in each.call.decided()]

    def ended(self, result: CommittedTransaction | None) -> None:
        """It is committed, or aborted."""
        self._is_over = True
        self._result = result
        if result is None:
            return
        counts: dict[str, int] = {}
        for each in self.published:
            counts[each.topic] = counts.get(each.topic, 0) + each.call.record_count
        if counts != {span.topic: span.record_count for span in result.spans}:
            # A repetition with other records than the first: theirs are what is there.
            return
        behind = {span.topic: span.first_seq for span in result.spans}
        for each in self.published:
            first, count = behind[each.topic], each.call.record_count
            each.settle(range(first, first + count))
            behind[each.topic] = Seq(first + count)


class Transaction(OpenTransaction):
    """A transaction for threads; one at a time uses it. Made by `transaction`."""

    def __init__(self, log: TransactionalLog, owner: str | None, epoch: int) -> None:
        super().__init__(owner, epoch)
        self._log = log
        self._stager: Stager | None = None

    def publish(self, topic: str, records: Publishable) -> Published:
        """Add one record or many to what the transaction writes to a topic, in order."""
        self.require_open()
        if self._stager is None:
            self._stager = self._log.stage()
        self.published.append(Published(topic, self._stager.publish(records)))
        return self.published[-1]

    def commit(self) -> CommittedTransaction:
        """Make all of it visible, at one position, durably; leaving the block does it."""
        self.require_open()
        try:
            for each in self.published:
                each.call.ranges()
            if self.owner is None:
                result = self._log.own_keys.commit(self._log, self.parts(), self.offsets)
            else:
                result = self._log.commit_staged(self.owner, self.epoch, self.parts(), offsets=self.offsets)
        except OutcomeUnknownError:
            self._end(None)
            raise
        except BaseException:
            self.abort()
            raise
        stager = self._stager
        if result.is_repeated and stager is not None:
            # What this attempt has staged was not needed.
            stager.abort()
        self._end(result)
        return result

    def abort(self) -> None:
        """Forget all of it; an exception in the block does it. What cannot be deleted now goes by its age."""
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
    """Keys of transactions that name no owner: a log's own text, and epochs in the order of commits."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._epoch = 0
        self._turn = threading.Lock()

    def commit(
        self, log: TransactionalLog, parts: Sequence[StagedPart], offsets: Sequence[OffsetCommit]
    ) -> CommittedTransaction:
        """Commit under the next key: one at a time, so that none is overtaken by a later one."""
        with self._turn:
            return log.commit_staged(*self.next_key(), parts, offsets=offsets)

    def next_key(self) -> tuple[str, int]:
        """The next owner and epoch."""
        self._epoch += 1
        return self._owner, self._epoch


class TransactionalLog(ABC):
    """The part of a log that is about transactions."""

    #: Keys of transactions that name no owner.
    own_keys: OwnKeys

    @abstractmethod
    def stage(self, *, is_apart: bool = False, compression: Compression = "none") -> Stager:
        """Begin to stage the records of one attempt, out of sight of every reader.

        Many megabytes are better staged apart: then they lie together, and a commit moves them instead of copying.
        `compression` is for their way to a server.
        """

    @abstractmethod
    def commit_staged(
        self,
        owner: str,
        epoch: int,
        parts: Iterable[StagedPart | tuple[str, StagedRange]],
        *,
        offsets: Iterable[OffsetCommit | tuple[str, str, int]] = (),
    ) -> CommittedTransaction:
        """Publish what was staged into topics, in the order given, all of it or nothing, at one position; durable.

        `offsets` are (owner, topic, next_seq) of readers, kept with it. The same owner and epoch again is answered as
        the first time and changes nothing; `FencedError` says that a later epoch of the owner was committed. Whatever
        else is refused changes nothing either.
        """

    @abstractmethod
    def abort_staged(self, ranges: Iterable[StagedRange]) -> int:
        """Delete what was staged and will not be committed; how many records went. Committed ranges stay committed."""

    @abstractmethod
    def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """The last transaction that an owner has committed; None if none is remembered."""

    def transaction(self, owner: str | None = None, epoch: int | None = None) -> Transaction:
        """Begin a transaction, to be used as a context: leaving it commits, an exception aborts.

        With an `owner` it has a key, under which it happens once; its `epoch` is the next of the owner unless given.
        """
        return Transaction(self, owner, self._epoch_of(owner, epoch))

    def _epoch_of(self, owner: str | None, epoch: int | None) -> int:
        check_owner(owner, epoch)
        if owner is None or epoch is not None:
            return epoch or 0
        return next_epoch(self.transaction_state(owner))


def next_epoch(last: CommittedTransaction | None) -> int:
    """The epoch behind an owner's last transaction."""
    return 1 if last is None else last.epoch + 1


def check_owner(owner: str | None, epoch: int | None) -> None:
    """Refuse an epoch without an owner."""
    if owner is None and epoch is not None:
        raise InvalidInputError(f"epoch {epoch} is of no owner: name the owner of the transaction")


def blocks_of(records: Publishable) -> list[EncodedBlock]:
    """Records as blocks, at least one."""
    blocks = encode(records)
    if not blocks:
        raise InvalidInputError("nothing to publish: give at least one record")
    return blocks


def as_parts(parts: Iterable[StagedPart | tuple[str, StagedRange]]) -> tuple[StagedPart, ...]:
    """Parts in their one form, whatever tuples they were given as."""
    return tuple(StagedPart(topic, StagedRange(*staged)) for topic, staged in parts)


def as_offsets(offsets: Iterable[OffsetCommit | tuple[str, str, int]]) -> tuple[OffsetCommit, ...]:
    """Offsets in their one form, whatever tuples they were given as."""
    return tuple(OffsetCommit(owner, topic, Seq(next_seq)) for owner, topic, next_seq in offsets)
