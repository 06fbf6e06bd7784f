"""The queue in front of a store: many publishers share one commit, one write and one sync (group commit).

Pending batches wait in one queue. A thread that finds no leader becomes the *commit leader*: it takes what the queue
holds, commits it with one write and one sync, notifies the waiters, and releases leadership. So a single publisher
commits its own records on its own thread without waiting for another thread, and many publishers share each sync.
Records of several calls to one topic are merged into the pending batch that is queued already, unless they have a
session or a key.

    queue     … PendingBatch, PendingBatch, Ticket, PendingBatch            first in, first out
    leader    a waiting thread, a driver (worker thread or event loop), or the owner of a ticket: one at a time

A change that is not an append (`exclusive`) queues a ticket, and its thread acquires leadership when the ticket is
first.

Two locks, never held together for long, and neither during a write: `_mutex` protects the queue and the pending
batches, `state` the memory of the store. Readers continue while a commit is written.

INV-ONE-LEADER: one thread at a time commits, and commits take effect in the order of their positions. Between `begin`
and `finish` of a commit no other thread changes the store.

Entries are committed in the order in which they were queued. While the queue is not empty there is a leader, or a
thread was woken to become it. A crash loses what is queued; its deliveries were never decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Final, Protocol

import numpy as np

from seawall.engine.commit.appends import LARGE_BLOCK_SIZE, Append, Commit
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.pending_batches import Group, PendingBatch, error_of
from seawall.engine.commit.tickets import ASSIST_AFTER_S, Ticket
from seawall.engine.store.store import Store
from seawall.errors import OutcomeUnknownError, SeawallError
from seawall.io.process.clocks import OsClock
from seawall.io.process.own_process import OwnProcess
from seawall.io.process.shared_lock import MemoryLock
from seawall.kernels.runtime.locks import LISTENING, SIGNALS, WANTED
from seawall.limits import BATCH_RECORDS_MAX, RECORD_HEADER_SIZE
from seawall.wire.format.codes import AckLevel
from seawall.wire.format.records import raw_head

# Plain integers: comparing with a member of an enumeration is slow.
_ORDERED: Final = int(AckLevel.ORDERED)
_DURABLE: Final = int(AckLevel.DURABLE)


class CommitDriver(Protocol):
    """Commits for an event loop, which must not block."""

    def wake(self) -> None:
        """Have the loop commit soon; any thread may call this."""
        ...

    def assist(self) -> None:
        """Finish commits that are written, in case the loop is busy."""
        ...


class Arrivals(Protocol):
    """Batches that arrive from connections, in rings."""

    def has_arrivals(self) -> bool:
        """True if some wait for a commit."""
        ...

    def commit_numbered(self) -> None:
        """Called by the leader when a group, and with it what has arrived, has its numbers."""
        ...


class CommitQueue:
    """The commit queue of one store."""

    def __init__(self, store: Store, state: MemoryLock | None = None) -> None:
        self._store = store
        self._mutex = Lock()
        self.process = OwnProcess("log")
        self._queue: deque[PendingBatch | Ticket] = deque()
        #: By topic name, the last queued pending batch, if more records may be merged into it.
        self.joinable: dict[str, PendingBatch] = {}
        #: Records that fill one commit; the rest of the queue goes into the next one.
        self.group_records_max = BATCH_RECORDS_MAX
        self._has_leader = False
        #: Called after a commit or a change, by the thread that made it: new records may be readable.
        self.listeners: list[Callable[[], None]] = []
        #: Commits on an event loop by a disk ring; None without one.
        self.driver: CommitDriver | None = None
        #: Held while the store's memory is read or changed.
        self.state: MemoryLock = state or Lock()
        #: Flags for a kernel that leads: whether a thread wants leadership, and whether one waits for new records.
        self.signals = np.zeros(SIGNALS, np.int64)
        self._signals = self.signals.data
        #: Interrupts the kernel that leads; None while none does.
        self._interrupt: Callable[[], None] | None = None
        #: Batches that arrive from connections, in rings and not in this queue; None without a server.
        self.arrivals: Arrivals | None = None
        #: The group that commits them: it has no appends of its own.
        self._arrivals_group = Group(())

    # --- deliveries ----------------------------------------------------------------------------------------------

    def publish(self, pending_batch: PendingBatch) -> Delivery:
        """Queue records and wait until they are decided; raises their error.

        If there is no leader, this thread commits them together with what else is queued.
        """
        record_count, offset = pending_batch.record_count, 0
        with self._mutex:
            is_alone = not self._has_leader and not self._queue
            if is_alone:
                self._has_leader = True
            else:
                pending_batch, offset = self._put(pending_batch)
                waiter = pending_batch.add_waiter()
                self._request_leadership()
        if is_alone:
            if (
                pending_batch.counts is not None
                or pending_batch.identity is not None
                or not self._commit_one(pending_batch)
            ):
                self._commit(Group((pending_batch,)))
        elif waiter.acquire(timeout=ASSIST_AFTER_S) and pending_batch.is_done:
            pending_batch.wake_one()
        else:
            self.wait(pending_batch, None, waiter)
        if pending_batch.error is not None:
            raise pending_batch.error
        return Delivery(self, pending_batch, offset, record_count)

    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Queue records for their driver to commit; does not wait."""
        record_count = pending_batch.record_count
        with self._mutex:
            pending_batch, offset = self._put(pending_batch)
            has_leader = self._has_leader
            self._request_leadership()
        if not has_leader and pending_batch.driver is not None:
            pending_batch.driver()
        return Delivery(self, pending_batch, offset, record_count)

    def put(self, pending_batches: Iterable[PendingBatch]) -> None:
        """Queue pending batches that have deliveries already, without merging them."""
        with self._mutex:
            for pending_batch in pending_batches:
                self._queue.append(pending_batch)
                self.joinable[pending_batch.topic.name] = pending_batch

    def join(self, topic: str, value: bytes) -> Delivery | None:
        """Add one record of plain bytes to a queued batch of its topic; None if none accepts it."""
        with self._mutex:
            pending_batch = self.joinable.get(topic)
            if pending_batch is None:
                return None
            offset = pending_batch.record_count
            size = pending_batch.size + RECORD_HEADER_SIZE + len(value)
            if offset >= self.group_records_max or size >= LARGE_BLOCK_SIZE or pending_batch.ack != _DURABLE:
                return None
            pending_batch.pieces += (raw_head(len(value)), value)
            pending_batch.size = size
            pending_batch.record_count = offset + 1
        return Delivery(self, pending_batch, offset, 1)

    def _put(self, pending_batch: PendingBatch) -> tuple[PendingBatch, int]:
        """Queue a pending batch, or merge it into the last one of its topic: the queued batch, and the offset in it."""
        name = pending_batch.topic.name
        if not pending_batch.is_plain:
            # Later records must not get into a batch before this one.
            self.joinable.pop(name, None)
        else:
            last = self.joinable.get(name)
            if (
                last is not None
                and last.topic is pending_batch.topic
                and last.accepts(pending_batch.size, pending_batch.record_count, pending_batch.ack)
            ):
                offset = last.record_count
                last.merge(pending_batch)
                return last, offset
            self.joinable[name] = pending_batch
        self._queue.append(pending_batch)
        return pending_batch, 0

    def wait(self, pending_batch: PendingBatch, timeout_s: float | None, waiter: Lock | None = None) -> bool:
        """Wait until a queued batch is decided, and lead if there is no leader; False after the timeout.

        `waiter` is the lock that this thread has blocked on before, if any.
        """
        deadline_ns = None if timeout_s is None else OsClock().monotonic_ns() + int(timeout_s * 1e9)
        while True:
            with self._mutex:
                if waiter is not None:
                    pending_batch.remove_waiter(waiter)
                if pending_batch.is_done:
                    pending_batch.wake_one()
                    return True
                leads = self._may_acquire_leadership()
                waiter = None if leads else pending_batch.add_waiter()
                self._has_leader |= leads
                self._request_leadership()
            if waiter is None:
                self._commit(self._take_group())
                continue
            self._assist_leader()
            wait_s = ASSIST_AFTER_S
            if deadline_ns is not None:
                wait_s = min(wait_s, (deadline_ns - OsClock().monotonic_ns()) / 1e9)
            if wait_s > 0:
                waiter.acquire(timeout=wait_s)
                continue
            with self._mutex:
                pending_batch.remove_waiter(waiter)
                return pending_batch.is_done

    def add_callback(self, pending_batch: PendingBatch, callback: Callable[[], object]) -> bool:
        """Register a callback for when a batch is decided; False if it is decided already."""
        with self._mutex:
            if not pending_batch.is_done:
                pending_batch.callbacks = [*(pending_batch.callbacks or ()), callback]
                return True
        return False

    @contextmanager
    def exclusive(self) -> Iterator[Store]:
        """The store, for a change that is not an append; commits what was queued before it first."""
        self._wait_for_leadership()
        try:
            with self._store.checkpoint_schedule.flush_lock, self.state:
                yield self._store
        finally:
            self.release_leadership()
            self.notify()

    def run_as_leader(self, commit: Callable[[], None], interrupt: Callable[[], None]) -> None:
        """Acquire leadership, run `commit`, then commit what else has arrived, and release leadership.

        A thread that wants leadership meanwhile calls `interrupt`.
        """
        self._wait_for_leadership()
        leads = True
        try:
            with self._mutex:
                self._interrupt = interrupt
                self._signals[WANTED] = bool(self._queue)
            commit()
            with self._mutex:
                self._interrupt = None
            # Arrivals that are not eligible for a cycle: their driver would seldom find leadership free.
            leads = not self.release_leadership(keeps_for_arrivals=True)
            if leads:
                self.commit_arrivals()
        finally:
            self._interrupt = None
            if leads:
                self.release_leadership()

    def commit_arrivals(self) -> None:
        """Commit what has arrived; the caller is the leader. Errors go to the publishers that they concern."""
        self._commit_as_leader(self._arrivals_group)

    def expect_change(self) -> None:
        """Call the listeners after the next commit, even one of a kernel: a caller is about to wait for it."""
        self._signals[LISTENING] = 1

    def notify(self) -> None:
        """Call the listeners: new records may be readable."""
        self._signals[LISTENING] = 0
        for listener in self.listeners:
            listener()

    # --- leadership ----------------------------------------------------------------------------------------------

    def acquire_leadership(self) -> Group | None:
        """Acquire leadership for a driver: the group to commit, or None if nothing is queued or another leads."""
        with self._mutex:
            if not self._may_acquire_leadership():
                if self._queue:
                    self._request_leadership()
                return None
            self._has_leader = True
        return self._take_group()

    def acquire_for_arrivals(self) -> Group | None:
        """Acquire leadership to commit arrivals; None if there are none, another leads, or the queue comes first."""
        with self._mutex:
            if self.arrivals is None or not self.arrivals.has_arrivals():
                return None
            if self._has_leader or self._queue:
                self._request_leadership()
                return None
            self._has_leader = True
        return self._arrivals_group

    def release_leadership(self, *, keeps_for_arrivals: bool = False) -> bool:
        """Release leadership, and wake the first in the queue, or the driver of arrivals, to acquire it.

        With `keeps_for_arrivals`, keeps leadership and returns False if the queue is empty and batches have arrived:
        the leader commits those itself.
        """
        driver = None
        with self._mutex:
            if self._queue:
                first = self._queue[0]
                first.wake_one()
                driver = first.driver
            elif self.arrivals is not None and self.arrivals.has_arrivals():
                if keeps_for_arrivals:
                    return False
                driver = None if self.driver is None else self.driver.wake
            self._has_leader = False
        if driver is not None:
            driver()
        return True

    def _request_leadership(self) -> None:
        """Interrupt a kernel that leads, so that it releases leadership soon."""
        if self._interrupt is not None and not self._signals[WANTED]:
            self._signals[WANTED] = 1
            self._interrupt()

    def _may_acquire_leadership(self) -> bool:
        return not self._has_leader and bool(self._queue) and isinstance(self._queue[0], PendingBatch)

    def _wait_for_leadership(self) -> None:
        """Acquire leadership once everything that was queued before is committed."""
        with self._mutex:
            if not self._has_leader and not self._queue:
                self._has_leader = True
                return
            ticket = Ticket()
            self._queue.append(ticket)
            self._request_leadership()
            # Records that are published later must not join a batch before the ticket.
            self.joinable.clear()
        try:
            while not self._redeem(ticket):
                self._assist_leader()
                ticket.wait()
        except BaseException:
            self._withdraw(ticket)
            raise

    def _redeem(self, ticket: Ticket) -> bool:
        """Acquire leadership if the ticket is first in the queue; else make sure that there is a leader."""
        with self._mutex:
            if self._has_leader:
                return False
            self._has_leader = True
            if self._queue[0] is ticket:
                self._queue.popleft()
                ticket.is_taken = True
                return True
            is_batch = isinstance(self._queue[0], PendingBatch)
        if is_batch:
            self._commit(self._take_group())
        else:
            self.release_leadership()
        return False

    def _withdraw(self, ticket: Ticket) -> None:
        """Remove the ticket of an interrupted thread, so that it does not block the queue."""
        with self._mutex:
            if ticket in self._queue:
                self._queue.remove(ticket)
            must_release = ticket.is_taken or not self._has_leader
        if must_release:
            self.release_leadership()

    def _assist_leader(self) -> None:
        if self.driver is not None:
            self.driver.assist()

    # --- what a leader does --------------------------------------------------------------------------------------

    def next_group(self) -> Group | None:
        """The next group of a driver that leads already; None if the queue is empty or a ticket comes first."""
        return self._take_group() if self._queue and isinstance(self._queue[0], PendingBatch) else None

    def begin_next(self, group: Group) -> None:
        """`begin` while the leader's previous commit is in flight, if the store can do that."""
        try:
            with self.state:
                commit = self._store.begin_next(group.appends)
        except BaseException as error:
            self._give_up(group, error)
            raise
        if commit is not None:
            self._begun(group, commit)

    def begin(self, group: Group) -> Commit:
        """Number a group: the commit that the leader has to write."""
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
        if self.arrivals is not None:
            self.arrivals.commit_numbered()
        for pending_batch, appends in group.parts:
            if pending_batch.ack == _ORDERED:
                self._settle(pending_batch, appends, error_of(appends))

    def finish(self, group: Group) -> bool:
        """Let the written commit of a group take effect; True if `tidy_up` is due before `deliver`."""
        assert group.commit is not None
        try:
            with self.state:
                return self._store.finish(group.commit)
        except BaseException as error:
            self._give_up(group, error)
            raise

    def tidy_up(self, group: Group) -> None:
        """Run the evictions and the checkpoint that are due after the commit of a group; may be as slow as the disk."""
        assert group.commit is not None
        try:
            with self.state:
                self._store.tidy_up(group.commit.limited)
        except BaseException as error:
            self._give_up(group, error)
            raise

    def deliver(self, group: Group) -> None:
        """Decide every pending batch of a finished group, and notify its waiters."""
        for pending_batch, appends in group.parts:
            error = error_of(appends)
            if not pending_batch.is_done:
                self._settle(pending_batch, appends, error)
            if pending_batch.ends is not None:
                pending_batch.notify_commit_end(error)
        self.notify()

    def fail(self, group: Group, error: BaseException) -> None:
        """Report that writing the commit of a group failed."""
        with self.state:
            self._store.fail(error)
        self._give_up(group, error)

    @property
    def record_count(self) -> int:
        """Records that are queued."""
        return sum(entry.record_count for entry in self._queue if isinstance(entry, PendingBatch))

    def pending_batches_of(self, driver: Callable[[], None]) -> list[PendingBatch]:
        """The queued batches of a driver."""
        return [entry for entry in self._queue if isinstance(entry, PendingBatch) and entry.driver == driver]

    def commit_queued(self) -> None:
        """Commit on this thread, group by group, until the queue is empty or another thread leads; for drivers."""
        while (group := self.acquire_leadership()) is not None:
            self._commit(group)

    def _commit(self, group: Group) -> None:
        try:
            self._commit_as_leader(group)
        finally:
            self.release_leadership()

    def _commit_as_leader(self, group: Group) -> None:
        try:
            commit = self.begin(group)
            try:
                commit.execute()
            except BaseException as error:
                self.fail(group, error)
                raise
            if self.finish(group):
                self.tidy_up(group)
            self.deliver(group)
        except (SeawallError, OSError):
            # Every delivery of the group has the error, this thread's own included.
            pass

    def _commit_one(self, pending_batch: PendingBatch) -> bool:
        """Commit one block that was never queued, by a single call; False if it needs the general path."""
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

    def _take_group(self) -> Group:
        """Remove pending batches from the front of the queue, as many as one commit holds."""
        taken: list[PendingBatch] = []
        size = count = 0
        with self._mutex:
            queue, size_max = self._queue, self._store.commit_size_max
            while queue and isinstance(first := queue[0], PendingBatch) and count < self.group_records_max:
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
        """Decide a pending batch by the outcome of its appends, and notify its waiters."""
        with self._mutex:
            pending_batch.settle(appends[0].numbered, appends[-1].numbered, error)
        pending_batch.notify_waiters()

    def _give_up(self, group: Group, error: BaseException) -> None:
        """Fail every undecided batch of a group; the outcome is unknown if the commit was interrupted."""
        if not isinstance(error, (SeawallError, OSError)):
            error = OutcomeUnknownError(f"the commit was interrupted ({error!r}); read to find out what is stored")
        for pending_batch, _ in group.parts:
            with self._mutex:
                is_done = pending_batch.is_done
                if not is_done:
                    pending_batch.settle(None, None, error)
            if not is_done:
                pending_batch.notify_waiters()
            pending_batch.notify_commit_end(error)
