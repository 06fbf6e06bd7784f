"""Many publishers, one store: who commits, what goes into one commit, and who is told.

Bundles of records wait in one queue. Whoever finds nobody committing *leads*: it takes what the queue holds, commits it
with one write and one sync, tells everybody, and hands the lead on. So a lone publisher commits its own records on its
own thread and waits for nobody, and many share each sync. Records of several calls to one topic become one batch,
unless they have an identity (session or key) of their own: they join the bundle that waits already.

    queue     … Bundle, Bundle, Turn, Bundle            first in, first out
    leader    a thread that waits, a driver (pump or event loop), or whoever has a turn: one at a time

Everything that is not an append (`exclusive`) queues like an append and leads when its turn comes.

Two locks, never held together for long, never over a write: `_mutex` for the queue and the deliveries, `state` for the
store's memory. While a commit is written, readers go on.

INV-ONE-LEADER: one thread at a time commits, and commits take effect in the order of their positions. Between `begin`
and `finish` of a commit nobody else changes the store.

What was queued first is committed first. While the queue is not empty somebody leads, or was woken to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Final

import numpy as np

from seawall.engine.commit.appends import LARGE_BLOCK_SIZE, Append, Commit
from seawall.engine.commit.delivery import Delivery, PendingBatch
from seawall.engine.commit.pending_batches import Group, error_of
from seawall.engine.commit.tickets import HELP_AFTER_S, Ticket
from seawall.engine.store.store import Store
from seawall.errors import OutcomeUnknownError, SeawallError
from seawall.io.process.clocks import OsClock
from seawall.io.process.own_process import OwnProcess
from seawall.io.process.shared_lock import MemoryLock
from seawall.kernels.runtime.locks import LISTENING, SIGNALS, WANTED
from seawall.limits import BATCH_RECORDS_MAX, RECORD_HEADER_SIZE
from seawall.wire.format.codes import AckLevel
from seawall.wire.format.records import raw_head

#: As a plain number: comparing with a member of an enumeration is slow.
_ORDERED: Final = int(AckLevel.ORDERED)
_DURABLE: Final = int(AckLevel.DURABLE)


class CommitQueue:
    """The queue before one store."""

    def __init__(self, store: Store, state: MemoryLock | None = None) -> None:
        self._store = store
        self._mutex = Lock()
        self.process = OwnProcess("log")
        self._queue: deque[PendingBatch | Ticket] = deque()
        #: The last queued bundle of a topic, by its name, where more records may become part of its batch.
        self.joinable: dict[str, PendingBatch] = {}
        #: Records that are enough for one commit; what comes behind them goes into the next.
        self.enough = BATCH_RECORDS_MAX
        self._is_led = False
        #: Called, by whoever commits or changes something, after something new can be read: also what came before it.
        self.listeners: list[Callable[[], None]] = []
        #: Looks after a commit that is under way without a thread; set by whoever commits so.
        self.help: Callable[[], None] | None = None
        #: Held while the store's memory is read or changed.
        self.state: MemoryLock = state or Lock()
        #: What a kernel that leads looks at: whether somebody else wants to lead, or waits for news.
        self.signals = np.zeros(SIGNALS, np.int64)
        self._signals = self.signals.data
        #: Ends the stay of a kernel that leads; None while none does.
        self._interrupt: Callable[[], None] | None = None
        #: Whether something is to be committed that nobody has queued, and who does that.
        self.has_arrivals: Callable[[], bool] | None = None
        self.arrivals_driver: Callable[[], None] | None = None
        #: What the leader commits of it.
        self._arrivals = Group(())
        #: Called, by whoever commits, when a group has its numbers.
        self.on_begun: Callable[[], None] | None = None

    # --- deliveries ----------------------------------------------------------------------------------------------

    def publish(self, pending_batch: PendingBatch) -> Delivery:
        """Queue records and wait until they are decided; raises what went wrong.

        Commits them, and what is queued with them, if nobody else does.
        """
        record_count, offset = pending_batch.record_count, 0
        with self._mutex:
            is_alone = not self._is_led and not self._queue
            if is_alone:
                self._is_led = True
            else:
                pending_batch, offset = self._put(pending_batch)
                waiter = pending_batch.block_thread()
                self._wants_leadership()
        if is_alone:
            if (
                pending_batch.counts is not None
                or pending_batch.identity is not None
                or not self._commit_one(pending_batch)
            ):
                self._commit(Group((pending_batch,)))
        elif waiter.acquire(timeout=HELP_AFTER_S) and pending_batch.is_done:
            pending_batch.wake_one()
        else:
            self.wait(pending_batch, None, waiter)
        if pending_batch.error is not None:
            raise pending_batch.error
        return Delivery(self, pending_batch, offset, record_count)

    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Queue records that their driver commits; does not wait."""
        record_count = pending_batch.record_count
        with self._mutex:
            pending_batch, offset = self._put(pending_batch)
            is_led = self._is_led
            self._wants_leadership()
        if not is_led and pending_batch.driver is not None:
            pending_batch.driver()
        return Delivery(self, pending_batch, offset, record_count)

    def put(self, pending_batches: Iterable[PendingBatch]) -> None:
        """Queue bundles that are on their way already, as they are."""
        with self._mutex:
            for pending_batch in pending_batches:
                self._queue.append(pending_batch)
                self.joinable[pending_batch.topic.name] = pending_batch

    def join(self, topic: str, value: bytes) -> Delivery | None:
        """Make one record of plain bytes part of a batch that waits already; None if there is none that takes it."""
        with self._mutex:
            pending_batch = self.joinable.get(topic)
            if pending_batch is None:
                return None
            offset = pending_batch.record_count
            size = pending_batch.size + RECORD_HEADER_SIZE + len(value)
            if offset >= self.enough or size >= LARGE_BLOCK_SIZE or pending_batch.ack != _DURABLE:
                return None
            pending_batch.pieces += (raw_head(len(value)), value)
            pending_batch.size = size
            pending_batch.record_count = offset + 1
        return Delivery(self, pending_batch, offset, 1)

    def _put(self, pending_batch: PendingBatch) -> tuple[PendingBatch, int]:
        """Queue a bundle, or make it part of the one before it of its topic: the bundle, and where it begins there."""
        name = pending_batch.topic.name
        if not pending_batch.is_plain:
            # What follows must not get into a batch before this one.
            self.joinable.pop(name, None)
        else:
            before = self.joinable.get(name)
            if (
                before is not None
                and before.topic is pending_batch.topic
                and before.has_space(pending_batch.size, pending_batch.record_count, pending_batch.ack)
            ):
                offset = before.record_count
                before.take(pending_batch)
                return before, offset
            self.joinable[name] = pending_batch
        self._queue.append(pending_batch)
        return pending_batch, 0

    def wait(self, pending_batch: PendingBatch, timeout_s: float | None, waiter: Lock | None = None) -> bool:
        """Wait until a queued bundle is decided, committing where nobody else does; false if it takes too long.

        `waiter` is the lock of this thread that has been waited for before, if there is one.
        """
        deadline_ns = None if timeout_s is None else OsClock().monotonic_ns() + int(timeout_s * 1e9)
        while True:
            with self._mutex:
                if waiter is not None:
                    pending_batch.leave(waiter)
                if pending_batch.is_done:
                    pending_batch.wake_one()
                    return True
                leads = self._may_acquire_leadership()
                waiter = None if leads else pending_batch.block_thread()
                self._is_led |= leads
                self._wants_leadership()
            if waiter is None:
                self._commit(self._take())
                continue
            self._look_after()
            wait_s = HELP_AFTER_S
            if deadline_ns is not None:
                wait_s = min(wait_s, (deadline_ns - OsClock().monotonic_ns()) / 1e9)
            if wait_s > 0:
                waiter.acquire(timeout=wait_s)
                continue
            with self._mutex:
                pending_batch.leave(waiter)
                return pending_batch.is_done

    def add_callback(self, pending_batch: PendingBatch, callback: Callable[[], object]) -> bool:
        """Keep a callback of a bundle that is under way; false if it is decided."""
        with self._mutex:
            if not pending_batch.is_done:
                pending_batch.callbacks = [*(pending_batch.callbacks or ()), callback]
                return True
        return False

    @contextmanager
    def exclusive(self) -> Iterator[Store]:
        """The store, for changes that are no appends; what was queued before is committed first."""
        self._lead()
        try:
            with self._store.checkpoint_schedule.placing, self.state:
                yield self._store
        finally:
            self.release_leadership()
            self.notify()

    def commit_arrivals(self, commit: Callable[[], None], interrupt: Callable[[], None]) -> None:
        """Lead while `commit` commits what has arrived, behind what is queued; then commit what else has.

        Whoever wants to lead meanwhile calls `interrupt`.
        """
        self._lead()
        is_led = True
        try:
            with self._mutex:
                self._interrupt = interrupt
                self._signals[WANTED] = bool(self._queue)
            commit()
            with self._mutex:
                self._interrupt = None
            # What is not eligible for a cycle: who commits it otherwise would seldom find leadership free.
            is_led = not self.release_leadership(keeps_for_arrivals=True)
            if is_led:
                self.commit_led()
        finally:
            self._interrupt = None
            if is_led:
                self.release_leadership()

    def commit_led(self) -> None:
        """Commit what has arrived, for who leads. Errors are reported to everybody whom they concern."""
        self._commit_led(self._arrivals)

    def expect_change(self) -> None:
        """Have listeners called after the next commit, also if a kernel makes it: somebody is about to wait for it."""
        self._signals[LISTENING] = 1

    def notify(self) -> None:
        """Something new can be read."""
        self._signals[LISTENING] = 0
        for listener in self.listeners:
            listener()

    def _wants_leadership(self) -> None:
        """Have a kernel that leads come to an end soon."""
        if self._interrupt is not None and not self._signals[WANTED]:
            self._signals[WANTED] = 1
            self._interrupt()

    def _lead(self) -> None:
        """Acquire leadership, when what was queued before is committed."""
        with self._mutex:
            if not self._is_led and not self._queue:
                self._is_led = True
                return
            turn = Ticket()
            self._queue.append(turn)
            self._wants_leadership()
            # What comes later is committed later.
            self.joinable.clear()
        try:
            while not self._take_turn(turn):
                self._look_after()
                turn.wait()
        except BaseException:
            self._give_turn_up(turn)
            raise

    def _take_turn(self, turn: Ticket) -> bool:
        """Take the lead for a turn that is first in the queue; else see to it that somebody leads."""
        with self._mutex:
            if self._is_led:
                return False
            self._is_led = True
            if self._queue[0] is turn:
                self._queue.popleft()
                turn.is_taken = True
                return True
            is_bundle = isinstance(self._queue[0], PendingBatch)
        if is_bundle:
            self._commit(self._take())
        else:
            self.release_leadership()
        return False

    def _give_turn_up(self, turn: Ticket) -> None:
        """A thread that was interrupted must not stand in the way of the others."""
        with self._mutex:
            if turn in self._queue:
                self._queue.remove(turn)
            is_idle = turn.is_taken or not self._is_led
        if is_idle:
            self.release_leadership()

    # --- leading -------------------------------------------------------------------------------------------------

    def acquire_leadership(self) -> Group | None:
        """What a driver has to commit now; None if there is nothing, or somebody else leads."""
        with self._mutex:
            if not self._may_acquire_leadership():
                if self._queue:
                    self._wants_leadership()
                return None
            self._is_led = True
        return self._take()

    def take_arrivals(self) -> Group | None:
        """The lead, for what nobody has queued; None if there is nothing of that, or others come first."""
        with self._mutex:
            if self.has_arrivals is None or not self.has_arrivals():
                return None
            if self._is_led or self._queue:
                self._wants_leadership()
                return None
            self._is_led = True
        return self._arrivals

    def take_more(self) -> Group | None:
        """What a driver that leads may commit next; None if there is nothing, or somebody else's turn comes first."""
        return self._take() if self._queue and isinstance(self._queue[0], PendingBatch) else None

    def begin_next(self, group: Group) -> None:
        """`begin` while the leader's commit before this one is under way, if that can be."""
        try:
            with self.state:
                commit = self._store.begin_next(group.appends)
        except BaseException as error:
            self._give_up(group, error)
            raise
        if commit is not None:
            self._begun(group, commit)

    def begin(self, group: Group) -> Commit:
        """Number a group; the commit that its leader has to write."""
        try:
            with self.state:
                commit = self._store.begin(group.appends)
        except BaseException as error:
            self._give_up(group, error)
            raise
        self._begun(group, commit)
        return commit

    def _begun(self, group: Group, commit: Commit) -> None:
        group.commit = commit
        if self.on_begun is not None:
            self.on_begun()
        for pending_batch, appends in group.parts:
            if pending_batch.ack == _ORDERED:
                self._settle(pending_batch, appends, error_of(appends))

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
        for pending_batch, appends in group.parts:
            error = error_of(appends)
            if not pending_batch.is_done:
                self._settle(pending_batch, appends, error)
            if pending_batch.ends is not None:
                pending_batch.end(error)
        self.notify()

    def fail(self, group: Group, error: BaseException) -> None:
        """Writing the commit of a group failed."""
        with self.state:
            self._store.fail(error)
        self._give_up(group, error)

    def release_leadership(self, *, keeps_for_arrivals: bool = False) -> bool:
        """Release leadership, and wake whoever is first in the queue to acquire it, or commits what has arrived.

        False, and nothing is released, if nobody waits, something has arrived, and the leader commits that itself.
        """
        driver = None
        with self._mutex:
            if self._queue:
                first = self._queue[0]
                first.wake_one()
                driver = first.driver
            elif self.has_arrivals is not None and self.has_arrivals():
                if keeps_for_arrivals:
                    return False
                driver = self.arrivals_driver
            self._is_led = False
        if driver is not None:
            driver()
        return True

    @property
    def record_count(self) -> int:
        """Records that are queued."""
        return sum(entry.record_count for entry in self._queue if isinstance(entry, PendingBatch))

    def pending_batches_of(self, driver: Callable[[], None]) -> list[PendingBatch]:
        """Records that are queued for a driver."""
        return [entry for entry in self._queue if isinstance(entry, PendingBatch) and entry.driver == driver]

    def lead_all(self) -> None:
        """Commit, on this thread, everything that is queued and that nobody else commits; for drivers."""
        while (group := self.acquire_leadership()) is not None:
            self._commit(group)

    def _may_acquire_leadership(self) -> bool:
        return not self._is_led and bool(self._queue) and isinstance(self._queue[0], PendingBatch)

    def _commit(self, group: Group) -> None:
        try:
            self._commit_led(group)
        finally:
            self.release_leadership()

    def _commit_led(self, group: Group) -> None:
        try:
            commit = self.begin(group)
            try:
                commit.execute()
            except BaseException as error:
                self.fail(group, error)
                raise
            if self.finish(group):
                self.tidy_up(group)
            self.tell(group)
        except (SeawallError, OSError):
            # Everybody in the group was told, this thread's own delivery too.
            pass

    def _commit_one(self, pending_batch: PendingBatch) -> bool:
        """Commit a bundle of one block that nobody else has seen, by one call; false if it has to be done by steps."""
        store = self._store
        try:
            numbered = store.commit_one(
                pending_batch.topic.topic_id, pending_batch.pieces[0], pending_batch.record_count, self.state
            )
            if numbered is None:
                return False
            pending_batch.first = pending_batch.last = numbered
            if store.is_tidy_up_due:
                with self.state:
                    store.tidy_up()
            self.notify()
        except (SeawallError, OSError) as error:
            pending_batch.error = error
        except BaseException:
            self.release_leadership()
            raise
        pending_batch.is_done = True
        self.release_leadership()
        return True

    def _look_after(self) -> None:
        if self.help is not None:
            self.help()

    # --- groups --------------------------------------------------------------------------------------------------

    def _take(self) -> Group:
        """Bundles from the front of the queue, as much as one commit holds."""
        taken: list[PendingBatch] = []
        size = count = 0
        with self._mutex:
            queue, size_max = self._queue, self._store.commit_size_max
            while queue and isinstance(first := queue[0], PendingBatch) and count < self.enough:
                size += first.logged_size
                if taken and size > size_max:
                    break
                taken.append(first)
                count += first.record_count
                queue.popleft()
                if self.joinable.get(first.topic.name) is first:
                    del self.joinable[first.topic.name]
        return Group(taken)

    def _settle(self, pending_batch: PendingBatch, appends: Sequence[Append], error: Exception | None) -> None:
        """Decide a bundle by what became of its appends, and tell whoever waits."""
        with self._mutex:
            pending_batch.settle(appends[0].numbered, appends[-1].numbered, error)
        pending_batch.announce()

    def _give_up(self, group: Group, error: BaseException) -> None:
        """Nobody knows what became of a group: everybody in it is told so."""
        if not isinstance(error, (SeawallError, OSError)):
            error = OutcomeUnknownError(f"the commit was interrupted ({error!r}); read to find out what is stored")
        for pending_batch, _ in group.parts:
            with self._mutex:
                is_done = pending_batch.is_done
                if not is_done:
                    pending_batch.settle(None, None, error)
            if not is_done:
                pending_batch.announce()
            pending_batch.end(error)
