"""The log as a server uses it: what its connections need, on their event loop.

    ring, rules      the ring that connections publish to, and the topic rules that arriving batches are checked against
    request_commit   a batch was published to the ring: commit it soon
    release_held     the ring has no space: make the sequencer release batches that it holds back
    on_acks       called on the loop when published batches may have become ordered or durable
    on_failed        called on the loop, once, when a write has failed: the log is read-only from then on
    on_session       called on the loop when another loop has opened a session (`served_sessions.py`)
    ask, change      read-only queries of the store, and changes other than appends; both may wait
    changes          an event that is set when new records can be read
    delivery         who is woken first when new records can be read (`delivery.py`)
    run_read         runs a large read on a thread with low disk priority
    run_check        runs CPU-bound work on a thread

Everything else is inherited from `AsyncLog`: this process publishes and reads records as usual, in the same order as
the connections. While the sequencer holds back batches of order 5, a timer steps it periodically, because a timeout may
release them.

A server may have several loops, each with its own ring. This loop commits for all of them. The other loops use the same
log through `LoopView`; the loops notify each other of topic and session changes.

A crash loses only what was not acked. This module must not know connections, sockets or frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Final, ParamSpec, Self, TypeVar

import numpy as np
import numpy.typing as npt

from seawall.api.topic_info import TopicInfo
from seawall.broker.ring import BrokerRing
from seawall.config import Config
from seawall.core.routers import RouterInfo, RouterSettings
from seawall.core.types import ClientId, Term, TopicId
from seawall.engine.commit.pending_batches import PendingBatch
from seawall.engine.commit.resident_commit import ResidentCommit
from seawall.engine.ordering.sequenced_orderer import SequencedOrderer
from seawall.engine.serving.delivery import Delivery
from seawall.engine.serving.served_sessions import ServedSessions
from seawall.engine.serving.topic_rules import TopicRules
from seawall.engine.store.settings import StoreSettings
from seawall.engine.store.store import Store
from seawall.errors import FatalError, OutcomeUnknownError, ReadOnlyError
from seawall.fabric.records import Records
from seawall.io.disk.priorities import set_idle_io_priority
from seawall.io.process.clocks import OsClock
from seawall.io.process.memory_use import trim_memory
from seawall.io.process.shared_lock import SharedLock
from seawall.limits import CHECKER_THREADS, READER_THREADS
from seawall.sequencer.frontier import Numbered
from seawall.storage.segments.index_cache import INDEXES
from seawall.topics.state import TopicState
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.fields import JsonValue
from seawall.wire.format.read_buffers import READ_BUFFERS

P = ParamSpec("P")
R = TypeVar("R")

#: Loop iterations that a commit waits for while each brings more batches: a small commit costs as much as a large one.
_GATHER_ITERATIONS_MAX: Final = 8

#: How often the sequencer is stepped while it holds back batches or cannot store any.
_STEP_S: Final = 0.25

#: How long the loop waits for the lock of the store's memory, and how long it does not after it has waited in vain.
_LOCK_WAIT_NS: Final = 500_000
_LOCK_PAUSE_NS: Final = 10_000_000


class ServedLog(ServedSessions):
    """A log with a ring to which network connections publish. This loop commits."""

    ring: BrokerRing
    rules: TopicRules
    delivery: Delivery
    #: The pending batches of the ring, which an ack refers to.
    pending: Records
    #: Threads for large reads, whose disk operations have the lowest priority.
    _readers: ThreadPoolExecutor
    #: Threads for CPU-bound work that releases the GIL.
    _checkers: ThreadPoolExecutor
    #: The lock of the store's memory.
    _state: SharedLock

    def __init__(
        self,
        path: str | Path,
        settings: StoreSettings | None = None,
        config: Config | None = None,
        *,
        brokers: int = 1,
        loops: int = 1,
    ) -> None:
        super().__init__(path, settings, config, brokers=brokers, networks=loops)
        self.loop_views: list[ServedLog] = [self]
        self.on_acks: Callable[[], None] = _nothing
        self.on_failed: Callable[[BaseException], None] = _nothing
        #: Returns the clients whose sessions are alive, whether they send batches or not.
        self.live_clients: Callable[[], Iterable[ClientId]] = tuple
        #: True if the next commit must step the sequencer even if no batch arrived.
        self._is_step_due = False
        #: Batches claimed at the last gathering iteration, and the number of iterations so far; 0 if not gathering.
        self._gathered = 0
        self._gather_iterations = 0
        self._is_answering_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        #: Large reads that run, or wait for a thread.
        self._reads = 0
        self._lock_after_ns = 0
        self._resident: ResidentCommit | None = None

    async def open(self) -> Self:
        """Open the data directory. `async with` calls this."""
        await super().open()
        self._readers = ThreadPoolExecutor(READER_THREADS, "seawall-reader", initializer=set_idle_io_priority)
        self._checkers = ThreadPoolExecutor(CHECKER_THREADS, "seawall-checker")
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        log = self._opened()
        self.delivery = Delivery(self._loop, self, log.forwarder.defer)
        assert isinstance(log.commits.state, SharedLock), "opened for the network"
        self._state = log.commits.state
        with log.inspecting() as store:
            self._store = store
            self.rules = TopicRules(store.catalog)
        assert isinstance(store.orderer, SequencedOrderer), "opened with brokers"
        self._orderer = orderer = store.orderer
        store.sessions.live_clients.append(self._all_connected)
        self._rings = orderer.arrivals.rings
        self.ring, self.pending = self._rings[0], orderer.arrivals.pending[0]
        log.queues.dead_letters.create_topic = self._create_from_thread
        queue = log.commits
        queue.arrivals = self
        queue.listeners.append(self._answer_everywhere)
        store.guard.on_failed = self._report_failure
        self._timer = self._loop.call_later(_STEP_S, self._step)
        return self

    async def close(self) -> None:
        """Close the log cleanly. Closing twice is fine."""
        if self._timer is not None:
            self._timer.cancel()
            if self._resident is not None:
                self._loop.remove_reader(self._resident.readable.wait_fd)
                self._resident = None
            await self.end_expiry()
            self._readers.shutdown(wait=False)
            self._checkers.shutdown(wait=False)
        await super().close()

    def abandon(self) -> None:
        """Mark the shutdown as unclean, whatever follows: the next opening recovers as after a crash."""
        self._store.marks_clean = False

    # --- publishing ------------------------------------------------------------------------------------------------

    def request_commit(self) -> None:
        """Commit soon, after a batch was published to the ring; gathers batches of the next loop iterations."""
        if not self._gather_iterations:
            self._gather_iterations = 1
            self._gathered = self._claimed()
            self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        """Continue gathering if the last loop iteration brought more batches; otherwise start the commit."""
        claimed = self._claimed()
        if claimed != self._gathered and self._gather_iterations < _GATHER_ITERATIONS_MAX:
            self._gathered = claimed
            self._gather_iterations += 1
            self._loop.call_soon(self._gather)
            return
        self._gather_iterations = 0
        if self._driver is not None:
            self._driver.wake()

    def _claimed(self) -> int:
        """Returns the number of batches ever published to any ring."""
        return sum(ring.claimed for ring in self._rings)

    def resident(self, publishers: npt.NDArray[np.void], interrupt: Callable[[], None]) -> ResidentCommit:
        """Create the commit kernel of the publish thread."""
        queue = self._opened().commits
        self._resident = resident = ResidentCommit(queue, self._store, self._orderer, publishers, interrupt)
        self._loop.add_reader(resident.readable.wait_fd, resident.notify)
        return resident

    async def publish_keyed(self, topic: TopicState, block: EncodedBlock, key: bytes) -> Numbered:
        """Append one block under an idempotency key; returns its position and seq, or those stored first."""
        pending_batch = PendingBatch.of(topic, [block])
        pending_batch.set_idempotency_key(key)
        with self._reporting_unknown_outcome():
            await self.offer(pending_batch)
        assert pending_batch.first is not None, "committed without an error"
        return pending_batch.first

    def release_held(self) -> None:
        """Step the sequencer if it holds back batches, so that it frees their space in the full ring."""
        if self._orderer.held and self._driver is not None:
            self._is_step_due = True
            self._driver.wake()

    @property
    def failure(self) -> BaseException | None:
        """The write or sync failure that made the log read-only; None if there was none."""
        return self._store.guard.failure

    @property
    def is_refusing(self) -> bool:
        """True if nothing more can be stored: the disk is full, or a write has failed."""
        return self._orderer.is_stuck or self._store.guard.is_failed

    @property
    def term(self) -> Term:
        """The term in which this process sequences."""
        return self._orderer.sequencer.term

    # --- topics ----------------------------------------------------------------------------------------------------

    def topic(self, topic_id: TopicId) -> TopicState | None:
        """Returns the topic with this id, or None."""
        return self._store.topic_of(topic_id)

    def topic_named(self, name: str) -> TopicState:
        """Returns the topic with this name; raises `NotFoundError` if there is none."""
        return self._store.topic_named(name)

    async def create_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Create a topic. Settings are those of `TopicConfig`."""
        info = await super().create_topic(name, **settings)
        await self._learn(info.topic_id)
        return info

    def _create_from_thread(self, name: str) -> TopicInfo:
        """Create a topic on this thread, which may be the last free one: all others may wait for it."""
        info = self._opened().create_topic(name)
        asyncio.run_coroutine_threadsafe(self._learn(info.topic_id), self._loop).result()
        return info

    async def configure_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Change settings of a topic."""
        info = await super().configure_topic(name, **settings)
        await self._learn(info.topic_id)
        return info

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""
        topic_id = self.topic_named(name).topic_id
        await super().delete_topic(name)
        await self._everywhere(lambda log: log.rules.forget(topic_id))

    async def staging(self, *, own_partition: bool = False) -> TopicState:
        """Returns the staging topic; with `own_partition` the one for large amounts."""
        topic = await super().staging(own_partition=own_partition)
        await self._learn(topic.topic_id)
        return topic

    async def _put_router(
        self, name: str, source: str, dest: str, settings: RouterSettings, create_dest: bool
    ) -> RouterInfo:
        info = await super()._put_router(name, source, dest, settings, create_dest)
        for topic in (info.source, info.dest):
            # It may have been created.
            await self._learn(self.topic_named(topic).topic_id)
        return info

    async def catch_up(self, topic_id: TopicId | None) -> None:
        """Run the routers whose copies may reach a topic, or all of them, before a read of it."""
        if self._store.routing.is_used:
            forwarder = self._opened().forwarder
            if await self.ask(lambda _: forwarder.is_due(topic_id)):
                await asyncio.to_thread(forwarder.catch_up, topic_id)

    async def _learn(self, topic_id: TopicId) -> None:
        """Update the rules of all loops for a topic, before its creation or change is reported."""
        topic = self.topic(topic_id)
        if topic is not None:
            await self._everywhere(lambda log: log.rules.learn(topic))

    async def _everywhere(self, work: Callable[[ServedLog], None]) -> None:
        """Call `work` on every loop, and wait until all calls have returned."""
        work(self)
        for view in self.loop_views:
            if view is not self:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_execute(work, view), view._loop))

    # --- the store -------------------------------------------------------------------------------------------------

    async def ask(self, query: Callable[[Store], R]) -> R:
        """Run a short read-only query on the store, under its lock: here if it is free soon, otherwise on a thread."""
        if self._lock_soon():
            try:
                return query(self._store)
            finally:
                self._state.release()
        return await asyncio.to_thread(self._ask_blocking, query)

    def try_ask(self, query: Callable[[Store], R]) -> R | None:
        """Run a short read-only query on the store now; None if its lock is held."""
        if not self._lock_soon():
            return None
        try:
            return query(self._store)
        finally:
            self._state.release()

    def _lock_soon(self) -> bool:
        """Acquire the lock of the store's memory; false if it is not free soon.

        Commits hold it for less time than a thread would need to start, so the loop waits. After it has waited in vain
        it does not do so again for a while: somebody holds the lock for longer.
        """
        state = self._state
        if state.acquire(blocking=False):
            return True
        now_ns = OsClock().monotonic_ns()
        if now_ns < self._lock_after_ns:
            return False
        if state.acquire_within(_LOCK_WAIT_NS):
            return True
        self._lock_after_ns = now_ns + _LOCK_PAUSE_NS
        return False

    def _ask_blocking(self, query: Callable[[Store], R]) -> R:
        with self._opened().inspecting():
            return query(self._store)

    async def change(self, make: Callable[[Store], R]) -> R:
        """Change the store on a thread, after everything queued before is committed."""
        return await self._on_thread(self._change_blocking, make)

    def _change_blocking(self, make: Callable[[Store], R]) -> R:
        with self._opened().changing():
            return make(self._store)

    async def run_read(self, read: Callable[[], R]) -> R:
        """Execute a large read on a thread whose disk operations have the lowest priority."""
        self._reads += 1
        try:
            return await self._loop.run_in_executor(self._readers, read)
        finally:
            self._reads -= 1

    @property
    def reads_waiting(self) -> int:
        """Large reads of this loop that wait for a thread."""
        return max(0, self._reads - READER_THREADS)

    async def run_check(self, work: Callable[[], R]) -> R:
        """Run CPU-bound work, most of which releases the GIL, on a thread."""
        return await self._loop.run_in_executor(self._checkers, work)

    def release_memory(self) -> None:
        """Start to release memory under memory pressure: drop caches, and flush unflushed batches to segments."""
        self._opened().flush_thread.flush_now()
        READ_BUFFERS.drop()
        INDEXES.clear()
        self._readers.submit(trim_memory)

    @property
    def changes(self) -> asyncio.Event:
        """The event of the next records that can be read. Take it before a read, so that no later record is missed."""
        return self.next_readable()

    async def wait_for_change(self, timeout_s: float, changes: asyncio.Event) -> None:
        """Wait until new records can be read since `changes` was taken, for at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await changes.wait()
        except TimeoutError:
            return

    def wake_readers(self) -> None:
        """Wake all readers of this loop that wait for new records."""
        self._notify_readers()

    def _schedule_notify(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the readers that wait for new records. A reader that starts to wait now reads first."""
        if self._readable is None and not self.delivery.has_readers:
            return
        if get_ident() == self._thread:
            self._notify_readers()
        else:
            loop.call_soon_threadsafe(self._notify_readers)

    def _notify_readers(self) -> None:
        super()._notify_readers()
        if self.delivery.has_readers:
            # Before they read: a later record notifies them again.
            self._opened().commits.expect_change()
            self.delivery.notify()

    # --- commits and acks ------------------------------------------------------------------------------------------

    def has_arrivals(self) -> bool:
        """True if batches of the rings wait for a commit."""
        return not self._store.guard.is_failed and (self._is_step_due or self._orderer.is_behind)

    def commit_numbered(self) -> None:
        """Called by the commit leader when a group is numbered, which has stepped the sequencer."""
        self._is_step_due = False
        self._answer_everywhere()

    def _answer_everywhere(self) -> None:
        """Make every loop ack its batches; called when a group is numbered, and when it is written."""
        for view in self.loop_views:
            view._schedule_answers()

    def _schedule_answers(self) -> None:
        """Make this loop ack the batches of its connections: directly on its own thread, otherwise soon."""
        if get_ident() == self._thread:
            self.on_acks()
        elif self.ring.is_awaited and not self._is_answering_scheduled:
            self._is_answering_scheduled = True
            self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._is_answering_scheduled = False
        self.on_acks()

    def _report_failure(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(partial(self.on_failed, error))

    async def _on_thread(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        with self._reporting_unknown_outcome():
            return await super()._on_thread(call, *arguments, **named)

    @contextmanager
    def _reporting_unknown_outcome(self) -> Iterator[None]:
        """Raise `OutcomeUnknownError` if a write fails during a change: the change may be stored or not."""
        was_failed = self._store.guard.is_failed
        try:
            yield
        except (FatalError, OSError) as error:
            if was_failed or not self._store.guard.is_failed or isinstance(error, ReadOnlyError):
                raise
            raise OutcomeUnknownError(f"it may be stored or not: writing failed ({error})") from error

    def _step(self) -> None:
        """Run periodic work: expire sessions, and step the sequencer while it holds back batches."""
        self._timer = self._loop.call_later(_STEP_S, self._step)
        if self._driver is None or self._store.guard.is_failed:
            return
        self.expire_sessions_if_due()
        if not (self._orderer.held or self._orderer.is_stuck):
            return
        now_ns = OsClock().monotonic_ns()
        for view in self.loop_views:
            for client_id in view.live_clients():
                self._orderer.sequencer.touch(client_id, now_ns)
        self._is_step_due = True
        self._driver.wake()


async def _execute(work: Callable[[ServedLog], None], log: ServedLog) -> None:
    work(log)


def _nothing(*_: object) -> None:
    """The default callback: no server is attached yet."""
