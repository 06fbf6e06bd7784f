"""A log that a server stands in front of: what connections need of it, on their event loop.

    ring, rules      where batches of connections go, and what is known of topics on arrival
    kick             something was published: the next commit takes it along, and comes soon
    make_way         something has no room in the ring
    on_answers       called on the loop when something can be said about what was published: ordered, or durable
    on_failed        called on the loop, once, when nothing more can be written: from then on it is read-only
    on_session       called on the loop when a session was begun at another loop (`broker_log`)
    ask, change      questions to the store and changes of it that are no appends, which may have to wait

Everything else is `AsyncLog`: records of this process are published and read as ever, in the same order as those of
connections. While batches of order 5 are held back, the order is stepped now and then: time may decide about them.

A server may have several loops, each with a ring of its own. This one commits for all; the others have the same log as
`LoopView`, and are told of everything that loops have to know of each other.

A crash takes what was not acked. This module must not know connections, sockets or frames.
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
from seawall.core.types import ClientId, Term, TopicId
from seawall.engine.commit.pending_batches import PendingBatch
from seawall.engine.commit.resident_commit import ResidentCommit
from seawall.engine.ordering.sequenced_orderer import SequencedOrderer
from seawall.engine.serving.served_sessions import ServedSessions
from seawall.engine.serving.topic_rules import TopicRules
from seawall.engine.store.settings import StoreSettings
from seawall.engine.store.store import Store
from seawall.errors import FatalError, OutcomeUnknownError, ReadOnlyError
from seawall.fabric.records import Records
from seawall.io.disk.priorities import read_when_idle
from seawall.io.process.clocks import OsClock
from seawall.io.process.memory_use import give_back_memory
from seawall.limits import CHECKER_THREADS, READER_THREADS
from seawall.sequencer.frontier import Numbered
from seawall.storage.segments.index_cache import INDEXES
from seawall.topics.state import TopicState
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.fields import JsonValue
from seawall.wire.format.read_buffers import READ_BUFFERS

P = ParamSpec("P")
R = TypeVar("R")

#: Turns of the loop for which a commit waits while each brings more: one of few batches costs what one of many does.
_GATHERING_TURNS: Final = 8

#: How often the order is stepped while something is held back or kept out.
_STEP_S: Final = 0.25


class ServedLog(ServedSessions):
    """An open log with a ring for the network."""

    ring: BrokerRing
    rules: TopicRules
    #: The ring's pending batches, which say what an answer is about.
    pending: Records
    #: Threads of readers, whose disk operations have to wait for all others.
    _readers: ThreadPoolExecutor
    #: Threads for what takes processor time and holds no lock of the interpreter.
    _checkers: ThreadPoolExecutor

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
        self.on_answers: Callable[[], None] = _nothing
        self.on_failed: Callable[[BaseException], None] = _nothing
        #: Whose sessions live, whether they send batches or not.
        self.living_clients: Callable[[], Iterable[ClientId]] = tuple
        self._is_poked = False
        #: What was in the ring at the last turn of those that gather, and how many they are; 0 if nobody does.
        self._gathered = 0
        self._gathering_turns = 0
        self._are_answers_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._resident: ResidentCommit | None = None

    async def open(self) -> Self:
        """Open the data directory; `async with` does it."""
        await super().open()
        self._readers = ThreadPoolExecutor(READER_THREADS, "seawall-reader", initializer=read_when_idle)
        self._checkers = ThreadPoolExecutor(CHECKER_THREADS, "seawall-checker")
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        log = self._opened()
        with log.looking() as store:
            self._store = store
            self.rules = TopicRules(store.catalog)
        assert isinstance(store.orderer, SequencedOrderer), "opened with brokers"
        self._orderer = orderer = store.orderer
        store.sessions.live_clients.append(self._all_connected)
        self._rings = orderer.arrivals.rings
        self.ring, self.pending = self._rings[0], orderer.arrivals.pending[0]
        queue = log.queue
        queue.has_arrivals = self._has_arrivals
        queue.on_begun = self._commit_begun
        queue.listeners.append(self._answers_may_be_there)
        store.guard.on_failed = self._report_failure
        self._timer = self._loop.call_later(_STEP_S, self._step)
        return self

    async def close(self) -> None:
        """End in order; closing twice is fine."""
        if self._timer is not None:
            self._timer.cancel()
            if self._resident is not None:
                self._loop.remove_reader(self._resident.news.wait_fd)
                self._resident = None
            await self.end_expiry()
            self._readers.shutdown(wait=False)
            self._checkers.shutdown(wait=False)
        await super().close()

    def abandon(self) -> None:
        """Whatever follows, the end is not in order: the next opening looks at everything, as after a crash."""
        self._store.leaves_mark = False

    # --- publishing ------------------------------------------------------------------------------------------------

    def kick(self) -> None:
        """Something was published to the ring: have it committed soon, with what else comes in the next turns."""
        if not self._gathering_turns:
            self._gathering_turns = 1
            self._gathered = self._claimed()
            self._loop.call_soon(self._gather)

    def _gather(self) -> None:
        """Look whether the last turn has brought more; the first that has not ends the gathering."""
        claimed = self._claimed()
        if claimed != self._gathered and self._gathering_turns < _GATHERING_TURNS:
            self._gathered = claimed
            self._gathering_turns += 1
            self._loop.call_soon(self._gather)
            return
        self._gathering_turns = 0
        if self._driver is not None:
            self._driver.wake()

    def _claimed(self) -> int:
        """Batches that were ever put into any ring."""
        return sum(ring.claimed for ring in self._rings)

    def resident(self, publishers: npt.NDArray[np.void], interrupt: Callable[[], None]) -> ResidentCommit:
        """Commits by a kernel, for the publish thread."""
        queue = self._opened().queue
        self._resident = made = ResidentCommit(queue, self._store, self._orderer, publishers, interrupt)
        self._loop.add_reader(made.news.wait_fd, made.notify)
        return made

    async def publish_keyed(self, topic: TopicState, block: EncodedBlock, key: bytes) -> Numbered:
        """Append one block under an idempotency key, as `publish` does records; where it is, or where the first is."""
        pending_batch = PendingBatch.of(topic, [block])
        pending_batch.give_key(key)
        with self._knowing_outcome():
            await self.offer(pending_batch)
        assert pending_batch.first is not None, "decided without an error"
        return pending_batch.first

    def make_way(self) -> None:
        """The ring has no room: if the order holds something back it is stepped, and gives back what is in the way."""
        if self._orderer.held and self._driver is not None:
            self._is_poked = True
            self._driver.wake()

    @property
    def failure(self) -> BaseException | None:
        """The failure of a write or a sync that made the log read-only; None while there was none."""
        return self._store.guard.failure

    @property
    def is_refusing(self) -> bool:
        """Whether nothing more can be stored: the disk is full, or writing has failed."""
        return self._orderer.is_stuck or self._store.guard.is_failed

    @property
    def term(self) -> Term:
        """The term in which this process orders."""
        return self._orderer.sequencer.term

    # --- topics ----------------------------------------------------------------------------------------------------

    def topic(self, topic_id: TopicId) -> TopicState | None:
        """The topic with this id, if it is there."""
        return self._store.topic_of(topic_id)

    def topic_named(self, name: str) -> TopicState:
        """The topic with this name, or `NotFoundError`."""
        return self._store.topic_named(name)

    async def create_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Create a topic; settings as in `TopicConfig`."""
        info = await super().create_topic(name, **settings)
        await self._learn(info.topic_id)
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

    async def staging(self, *, is_apart: bool = False) -> TopicState:
        """The topic that records are staged in, or much is."""
        topic = await super().staging(is_apart=is_apart)
        await self._learn(topic.topic_id)
        return topic

    async def _learn(self, topic_id: TopicId) -> None:
        """Have all loops know a topic, before whoever made it is told that it is there."""
        topic = self.topic(topic_id)
        if topic is not None:
            await self._everywhere(lambda log: log.rules.learn(topic))

    async def _everywhere(self, work: Callable[[ServedLog], None]) -> None:
        """Do something on each loop, and wait until it is done."""
        work(self)
        for door in self.loop_views:
            if door is not self:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_execute(work, door), door._loop))

    # --- the store -------------------------------------------------------------------------------------------------

    async def ask(self, question: Callable[[Store], R]) -> R:
        """Put a short question to the store while nothing changes: at once, or on a thread if it is being changed."""
        log = self._opened()
        state = log.queue.state
        if state.acquire(blocking=False):
            try:
                return question(self._store)
            finally:
                state.release()
        return await asyncio.to_thread(self._ask_waiting, question)

    def _ask_waiting(self, question: Callable[[Store], R]) -> R:
        with self._opened().looking():
            return question(self._store)

    async def change(self, make: Callable[[Store], R]) -> R:
        """Change the store, when everything that was handed in before is committed; on a thread."""
        return await self._on_thread(self._change_waiting, make)

    def _change_waiting(self, make: Callable[[Store], R]) -> R:
        with self._opened().changing():
            return make(self._store)

    async def aside(self, read: Callable[[], R]) -> R:
        """Carry out a large read on a thread whose disk operations wait for those of all others."""
        return await self._loop.run_in_executor(self._readers, read)

    async def beside(self, work: Callable[[], R]) -> R:
        """Do something on a thread that takes processor time, and mostly without the lock of the interpreter."""
        return await self._loop.run_in_executor(self._checkers, work)

    def relieve(self) -> None:
        """Memory is short: begin to return what can be, and to place what waits in the log."""
        self._opened().flush_thread.relieve()
        READ_BUFFERS.drop()
        INDEXES.clear()
        self._readers.submit(give_back_memory)

    @property
    def news(self) -> asyncio.Event:
        """Set when something new can be read: taken before a look, it misses nothing that comes behind that."""
        return self._coming_change()

    async def wait_for_change(self, timeout_s: float, news: asyncio.Event) -> None:
        """Wait until something new can be read since `news` was taken, or for so long."""
        try:
            async with asyncio.timeout(timeout_s):
                await news.wait()
        except TimeoutError:
            return

    def wake_readers(self) -> None:
        """Have everybody of this loop look who waits for news."""
        self._notify_readers()

    def _announce(self, loop: asyncio.AbstractEventLoop) -> None:
        """Something new can be read: have readers look that wait for it. One that begins to wait now looks first."""
        if self._news is not None:
            loop.call_soon_threadsafe(self._notify_readers)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _has_arrivals(self) -> bool:
        return not self._store.guard.is_failed and (self._is_poked or self._orderer.is_behind)

    def _commit_begun(self) -> None:
        """Called by whoever commits, when a group has its numbers: the order was stepped."""
        self._is_poked = False
        self._answers_may_be_there()

    def _answers_may_be_there(self) -> None:
        """Called when a group has its numbers, and when it is written."""
        for door in self.loop_views:
            door._have_answered()

    def _have_answered(self) -> None:
        """Have this loop look for answers to what its connections have published."""
        if get_ident() == self._thread:
            self.on_answers()
        elif self.ring.is_awaited and not self._are_answers_due:
            self._are_answers_due = True
            self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._are_answers_due = False
        self.on_answers()

    def _report_failure(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(partial(self.on_failed, error))

    async def _on_thread(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        with self._knowing_outcome():
            return await super()._on_thread(call, *arguments, **named)

    @contextmanager
    def _knowing_outcome(self) -> Iterator[None]:
        """Raise `OutcomeUnknownError` for a change during which writing failed: it may be stored or not."""
        was_failed = self._store.guard.is_failed
        try:
            yield
        except (FatalError, OSError) as error:
            if was_failed or not self._store.guard.is_failed or isinstance(error, ReadOnlyError):
                raise
            raise OutcomeUnknownError(f"it may be stored or not: writing failed ({error})") from error

    def _step(self) -> None:
        """Look after what only time decides."""
        self._timer = self._loop.call_later(_STEP_S, self._step)
        if self._driver is None or self._store.guard.is_failed:
            return
        self.expire_sessions_if_due()
        if not (self._orderer.held or self._orderer.is_stuck):
            return
        now_ns = OsClock().monotonic_ns()
        for door in self.loop_views:
            for client_id in door.living_clients():
                self._orderer.sequencer.touch(client_id, now_ns)
        self._is_poked = True
        self._driver.wake()


async def _execute(work: Callable[[ServedLog], None], log: ServedLog) -> None:
    work(log)


def _nothing(*_: object) -> None:
    """Nobody publishes to the ring yet."""
