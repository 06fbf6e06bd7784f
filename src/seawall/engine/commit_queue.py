"""Many publishers, one store: who commits, what goes into one commit, and who is told.

Deliveries wait in one queue. Whoever finds nobody committing *leads*: it takes what the queue holds, commits it with
one write and one sync, tells everybody, and hands the lead on. So a lone publisher commits its own records on its own
thread and waits for nobody, and many share each sync. Records of several calls to one topic become one batch, unless
they have an identity (session or key) of their own.

    queue     … Delivery, Delivery, Turn, Delivery      first in, first out
    leader    a thread that waits, a driver (pump or event loop), or whoever has a turn: one at a time

Everything that is not an append (`exclusive`) queues like an append and leads when its turn comes.

Two locks, never held together for long, never over a write: `_mutex` for the queue and the deliveries, `state` for the
store's memory. While a commit is written, readers go on.

INV-ONE-LEADER: between `begin` and `finish` of a commit nobody else changes the store.
INV-QUEUE-ORDER: what was queued first is committed first.
INV-NOT-FORGOTTEN: while the queue is not empty somebody leads, or was woken to.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from seawall.core.types import ClientSeq, TopicId
from seawall.engine.appends import LARGE_BLOCK_SIZE, Append, Commit
from seawall.engine.delivery import Delivery, announce
from seawall.engine.store import Store
from seawall.errors import OutcomeUnknownError, SeawallError
from seawall.io.clocks import OsClock
from seawall.io.interfaces import ReadableBuffer
from seawall.limits import BATCH_RECORDS_MAX
from seawall.wire.codes import AckLevel

#: As a plain number: comparing with a member of an enumeration is slow.
_ORDERED: Final = int(AckLevel.ORDERED)

#: A thread that waits for another's commit looks after this long whether it is stuck behind an idle driver.
_HELP_AFTER_S: Final = 0.05


class Turn:
    """A thread that wants the store for itself."""

    __slots__ = ("_woken", "is_taken")

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.is_taken = False

    def wait(self) -> None:
        """Sleep until woken, or for a while."""
        self._woken.wait(_HELP_AFTER_S)
        self._woken.clear()

    def wake(self) -> None:
        """Let it look again."""
        self._woken.set()


#: Where the records of a delivery go: into appends from the first to the last of two numbers, behind so many records of
#: the first. A plain tuple: one is made for each delivery.
Share: TypeAlias = tuple[Delivery, int, int, int]


@dataclass(slots=True)
class Group:
    """Deliveries that are committed together."""

    appends: list[Append]
    shares: Sequence[Share]
    commit: Commit | None = None


class CommitQueue:
    """The queue before one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._queue: deque[Delivery | Turn] = deque()
        self._is_led = False
        #: Called, by whoever commits, after something new can be read.
        self.listeners: list[Callable[[], None]] = []
        #: Looks after a commit that is under way without a thread; set by whoever commits so.
        self.help: Callable[[], None] | None = None
        #: Held while the store's memory is read or changed.
        self.state = threading.Lock()

    # --- deliveries ----------------------------------------------------------------------------------------------

    def publish(self, delivery: Delivery) -> None:
        """Queue a delivery and wait until it is decided; commit it, and what is queued with it, if nobody else does."""
        with self._mutex:
            is_alone = not self._is_led and not self._queue
            if is_alone:
                self._is_led = True
            else:
                self._queue.append(delivery)
        if is_alone:
            appends = _appends_of(delivery)
            self._commit(Group(appends, ((delivery, 0, len(appends) - 1, 0),)))
        else:
            self.wait(delivery, None)

    def offer(self, delivery: Delivery) -> None:
        """Queue a delivery that its driver commits; does not wait.

        No lock is needed: who gives the lead back looks at the queue afterwards, and we look who leads afterwards.
        """
        self._queue.append(delivery)
        if not self._is_led:
            delivery.wake()

    def settle_now(self, delivery: Delivery) -> None:
        """Call a delivery decided before it is: its publisher does not care."""
        with self._mutex:
            is_done = delivery.done
            if not is_done:
                delivery.settle(None)
        if not is_done:
            announce([delivery])

    def wait(self, delivery: Delivery, timeout_s: float | None) -> None:
        """Wait until a queued delivery is decided, committing where nobody else does; `TimeoutError` after too long."""
        deadline_ns = None if timeout_s is None else OsClock().monotonic_ns() + int(timeout_s * 1e9)
        while True:
            with self._mutex:
                if delivery.done:
                    return
                leads = self._may_lead()
                waiter = None if leads else delivery.block_thread()
                self._is_led |= leads
            if waiter is None:
                self._lead()
                continue
            self._look_after()
            if deadline_ns is not None and OsClock().monotonic_ns() >= deadline_ns:
                raise TimeoutError(f"{delivery!r} after {timeout_s} s")
            waiter.acquire(timeout=_HELP_AFTER_S if timeout_s is None else min(_HELP_AFTER_S, timeout_s))

    def add_callback(self, delivery: Delivery, callback: Callable[[Delivery], object]) -> bool:
        """Keep a callback of a delivery that is under way; false if it is decided."""
        with self._mutex:
            if not delivery.done:
                delivery.note_callback(callback)
                return True
        return False

    @contextmanager
    def exclusive(self) -> Iterator[Store]:
        """The store, for changes that are no appends; what was queued before is committed first."""
        turn = Turn()
        with self._mutex:
            self._queue.append(turn)
        try:
            while not self._take_turn(turn):
                self._look_after()
                turn.wait()
        except BaseException:
            self._give_turn_up(turn)
            raise
        try:
            with self.state:
                yield self._store
        finally:
            self.hand_on()

    def _take_turn(self, turn: Turn) -> bool:
        """Take the lead for a turn that is first in the queue; else see to it that somebody leads."""
        with self._mutex:
            if self._is_led:
                return False
            self._is_led = True
            if self._queue[0] is turn:
                self._queue.popleft()
                turn.is_taken = True
                return True
            is_delivery = isinstance(self._queue[0], Delivery)
        if is_delivery:
            self._lead()
        else:
            self.hand_on()
        return False

    def _give_turn_up(self, turn: Turn) -> None:
        """A thread that was interrupted must not stand in the way of the others."""
        with self._mutex:
            if turn in self._queue:
                self._queue.remove(turn)
            is_idle = turn.is_taken or not self._is_led
        if is_idle:
            self.hand_on()

    # --- leading -------------------------------------------------------------------------------------------------

    def take_lead(self) -> Group | None:
        """What a driver has to commit now; None if there is nothing, or somebody else leads."""
        with self._mutex:
            if not self._may_lead():
                return None
            self._is_led = True
        return self._take()

    def begin(self, group: Group) -> Commit:
        """Number a group; the commit that its leader has to write."""
        try:
            with self.state:
                commit = self._store.begin(group.appends)
        except BaseException as error:
            self._give_up(group, error)
            raise
        group.commit = commit
        for share in group.shares:
            if share[0].ack == _ORDERED:
                self._settle(group, [share])
        return commit

    def finish(self, group: Group) -> bool:
        """The commit of a group is written, and takes effect; whether `tidy_up` is due before `tell`."""
        assert group.commit is not None
        try:
            with self.state:
                return self._store.finish(group.commit)
        except BaseException as error:
            self._give_up(group, error)
            raise

    def tidy_up(self, group: Group) -> None:
        """Evictions and a checkpoint that are due behind the commit of a group: may take as long as a disk does."""
        assert group.commit is not None
        try:
            with self.state:
                self._store.tidy_up(group.commit.limited)
        except BaseException as error:
            self._give_up(group, error)
            raise

    def tell(self, group: Group) -> None:
        """Tell everybody what became of a group."""
        self._settle(group, group.shares)
        _tell_ends(group)
        for listener in self.listeners:
            listener()

    def fail(self, group: Group, error: BaseException) -> None:
        """Writing the commit of a group failed."""
        with self.state:
            self._store.fail(error)
        self._give_up(group, error)

    def hand_on(self) -> None:
        """Give the lead back, and wake whoever is first in the queue to take it."""
        with self._mutex:
            self._is_led = False
            first = self._queue[0] if self._queue else None
        if first is not None:
            first.wake()

    def lead_all(self) -> None:
        """Commit, on this thread, everything that is queued and that nobody else commits; for drivers."""
        while (group := self.take_lead()) is not None:
            self._commit(group)

    def _may_lead(self) -> bool:
        return not self._is_led and bool(self._queue) and isinstance(self._queue[0], Delivery)

    def _lead(self) -> None:
        """Commit what is queued, on this thread, which has the lead."""
        self._commit(self._take())

    def _commit(self, group: Group) -> None:
        try:
            commit = self.begin(group)
            try:
                commit.carry_out()
            except BaseException as error:
                self.fail(group, error)
                raise
            if self.finish(group):
                self.tidy_up(group)
            self.tell(group)
        except (SeawallError, OSError):
            # Everybody in the group was told, this thread's own delivery too.
            pass
        finally:
            self.hand_on()

    def _look_after(self) -> None:
        if self.help is not None:
            self.help()

    # --- groups --------------------------------------------------------------------------------------------------

    def _take(self) -> Group:
        """Deliveries from the front of the queue, as much as one commit holds."""
        taken: list[Delivery] = []
        size = 0
        with self._mutex:
            queue, size_max = self._queue, self._store.commit_size_max
            while queue and isinstance(first := queue[0], Delivery):
                size += first.logged_size
                if taken and size > size_max:
                    break
                taken.append(first)
                queue.popleft()
        return make_group(taken)

    def _settle(self, group: Group, shares: Sequence[Share]) -> None:
        """Decide deliveries by what became of their appends, and tell whoever waits."""
        appends = group.appends
        told: list[Delivery] = []
        with self._mutex:
            for delivery, first, last, offset in shares:
                if delivery.done:
                    continue
                append = appends[first]
                if first == last and append.error is None and append.numbered is not None:
                    delivery.settle_at(append.numbered, append.numbered, offset)
                else:
                    _settle_by(delivery, appends[first : last + 1], offset)
                told.append(delivery)
        announce(told)

    def _give_up(self, group: Group, error: BaseException) -> None:
        """Nobody knows what became of a group: everybody in it is told so."""
        if not isinstance(error, (SeawallError, OSError)):
            error = OutcomeUnknownError(f"the commit was interrupted ({error!r}); read to find out what is stored")
        with self._mutex:
            told = [delivery for delivery, _, _, _ in group.shares if not delivery.done]
            for delivery in told:
                delivery.settle(error)
        announce(told)
        _tell_ends(group, error)


def _tell_ends(group: Group, error: Exception | None = None) -> None:
    """Tell those who want to know the end of their deliveries also if these were decided before."""
    for delivery, first, last, _ in group.shares:
        if delivery.at_end is not None:
            delivery.at_end(error or _error_of(group.appends[first : last + 1]))


def _settle_by(delivery: Delivery, appends: Sequence[Append], offset: int) -> None:
    """Decide a delivery that went into several appends, or into one that was kept out."""
    error = _error_of(appends)
    first, last = appends[0].numbered, appends[-1].numbered
    if error is not None or first is None or last is None:
        delivery.settle(error)
    else:
        delivery.settle_at(first, last, offset)


def _error_of(appends: Sequence[Append]) -> Exception | None:
    """What went wrong with the first append with which something did."""
    for append in appends:
        if append.error is not None:
            return append.error
        if append.numbered is None:
            return OutcomeUnknownError("the commit ended before the records were decided; read to find out")
    return None


@dataclass(slots=True)
class _Merge:
    """An append that grows: blocks of several deliveries, which become one batch."""

    index: int
    pieces: list[ReadableBuffer]
    size: int
    count: int


def make_group(deliveries: Sequence[Delivery]) -> Group:
    """The appends that store some deliveries; small ones of one topic without identity become one batch."""
    appends: list[Append] = []
    shares: list[Share] = []
    merges: list[_Merge] = []
    growing: dict[TopicId, _Merge] = {}
    for delivery in deliveries:
        (block, count), *more = delivery.blocks
        length = len(block)
        is_plain = not more and delivery.identity is None and length < LARGE_BLOCK_SIZE
        merge = growing.get(delivery.topic_id) if is_plain else None
        if merge is not None and merge.size + length < LARGE_BLOCK_SIZE and merge.count + count <= BATCH_RECORDS_MAX:
            # The batch stays a small one with one more block.
            shares.append((delivery, merge.index, merge.index, merge.count))
            merge.pieces.append(block)
            merge.size += length
            merge.count += count
            continue
        first = len(appends)
        appends.extend(_appends_of(delivery))
        shares.append((delivery, first, len(appends) - 1, 0))
        if is_plain:
            merge = _Merge(first, [block], length, count)
            merges.append(merge)
            growing[delivery.topic_id] = merge
        else:
            # What follows must not get into a batch before this one.
            growing.pop(delivery.topic_id, None)
    for merge in merges:
        append = appends[merge.index]
        append.block = b"".join(merge.pieces)
        append.record_count = merge.count
    return Group(appends, shares)


def _appends_of(delivery: Delivery) -> list[Append]:
    identity = delivery.identity
    if identity is None:
        return [Append(delivery.topic_id, block.block, block.record_count) for block in delivery.blocks]
    step = int(identity.has_session)
    return [
        Append(
            delivery.topic_id,
            block.block,
            block.record_count,
            identity.client_id,
            ClientSeq(identity.client_seq + index * step),
            identity.session_epoch,
            identity.flags,
        )
        for index, block in enumerate(delivery.blocks)
    ]
