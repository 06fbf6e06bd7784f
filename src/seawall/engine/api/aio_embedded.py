"""The embedded log for asyncio: the same API as `embedded.py`, on an event loop that hardly ever waits for a disk.

    async with seawall.open_async("data/") as log:
        await log.create_topic("events")
        await log.publish("events", {"n": 1})              # concurrent calls share one sync
        async for item in log.subscriber("events"): ...    # ReceivedBatch, or Gap where records are lost

Records get their seqs on the loop, and a disk ring writes them (`ring_driver`). Everything else that may block on disk
I/O runs on a thread. An `AsyncLog` belongs to the loop it was opened on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, ParamSpec, Self, TypeAlias, TypeVar

from seawall.api.aio_topics import create_each
from seawall.api.publisher_options import PublisherOptions
from seawall.api.publishing import AsyncPublishingLog
from seawall.api.queues.aio_queue import AsyncQueue
from seawall.api.read_options import PositionStart, ReadMode, Start
from seawall.api.record_readers import AsyncRecordLog
from seawall.api.topic_info import TopicInfo
from seawall.api.watches import AsyncWatch, WatchingLog
from seawall.config import Config
from seawall.core.sessions import SessionInfo
from seawall.core.watches import WatchSpec
from seawall.engine.api.aio_publisher import AsyncPublisher
from seawall.engine.api.aio_routers import AsyncRouters
from seawall.engine.api.aio_subscriber import AsyncPositionSubscriber, AsyncSubscriber
from seawall.engine.api.aio_transactions import AsyncTransactions
from seawall.engine.api.embedded import READ_SIZE, EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.api.watch_sources import AsyncEmbeddedWatchSource, WatchReader
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.pending_batches import PendingBatch
from seawall.engine.commit.ring_driver import RingDriver
from seawall.engine.queues.aio_queues import AsyncLogQueues
from seawall.engine.read.read_results import Item, PositionItem, Publishable, seq_after
from seawall.engine.store.settings import StoreSettings
from seawall.errors import SeawallError, WrongStateError
from seawall.io.disk.disk_ring import DiskRing
from seawall.io.disk.ring_backends import open_configured_ring
from seawall.io.process.exits import finish_at_exit, report_undelivered
from seawall.io.process.own_process import disown_on_fork, worker_name
from seawall.storage.findings import VerifyReport
from seawall.wire.format.fields import JsonObject, JsonValue

if TYPE_CHECKING:
    import pyarrow as pa

#: How often interpreter exit checks whether the loop has committed everything.
_EXIT_POLL_S: Final = 0.01

P = ParamSpec("P")
R = TypeVar("R")

#: A topic to create: its name, its settings, and the future of the caller.
_PendingCreation: TypeAlias = tuple[str, JsonObject, "asyncio.Future[TopicInfo]"]


class AsyncLog(
    AsyncTransactions, AsyncRouters, AsyncRecordLog, AsyncPublishingLog[AsyncPublisher], WatchingLog[AsyncWatch]
):
    """A log in this process, on an event loop. Create one with `seawall.open_async`."""

    def __init__(
        self,
        path: str | Path,
        settings: StoreSettings | None = None,
        config: Config | None = None,
        *,
        create: bool = True,
        brokers: int = 0,
        networks: int = 0,
    ) -> None:
        super().__init__()
        self._create = create
        self._path = path
        self._settings = settings
        self._config = config or Config()
        self._brokers = brokers
        self._networks = networks
        self._log: EmbeddedLog | None = None
        #: Topics to create, and the task that creates them.
        self._pending_creations: list[_PendingCreation] = []
        self._creation_task: asyncio.Future[None] | None = None
        self._driver: RingDriver | None = None
        self._join: Callable[[str, bytes], Delivery | None] | None = None
        #: Set when new records can be read; None while no reader waits.
        self._readable: asyncio.Event | None = None
        self._queues: AsyncLogQueues | None = None

    async def open(self) -> Self:
        """Open the data directory. `async with` calls this."""
        if self._log is not None:
            raise WrongStateError("this log is open already")
        loop = asyncio.get_running_loop()
        log, ring = await asyncio.to_thread(self._open)
        self._log = log
        self._driver = RingDriver(log.commits, ring, loop)
        self._join = self._driver.join
        self._queues = AsyncLogQueues(self, log.queues, self._on_thread)
        log.commits.listeners.append(partial(self._schedule_notify, loop))
        disown_on_fork(self)
        finish_at_exit(self)
        return self

    def disown(self) -> None:
        """Called in a forked child: loop and ring belong to the parent, and the log refuses every call."""
        self._driver = self._join = None

    def finish(self, timeout_s: float) -> int:
        """Wait at interpreter exit until the loop has committed the records in flight; returns how many are not stored.

        Runs on another thread than the loop. A loop that no longer runs commits nothing.
        """
        driver, self._driver = self._driver, None
        if driver is None:
            return 0
        if driver.loop.is_running():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_drain(driver), driver.loop).result(timeout_s)
        return driver.record_count

    def __del__(self) -> None:
        if self._driver is not None:
            report_undelivered(self._driver.record_count)

    def _open(self) -> tuple[EmbeddedLog, DiskRing]:
        log = open_log(
            self._path,
            self._settings,
            config=self._config,
            create=self._create,
            brokers=self._brokers,
            networks=self._networks,
        )
        try:
            return log, open_configured_ring(self._config, str(self._path))
        except BaseException:
            log.close()
            raise

    async def close(self) -> None:
        """Close the log cleanly. Closing twice is fine."""
        log, driver = self._log, self._driver
        self._log = self._driver = self._join = None
        if log is not None and driver is not None:
            driver.close()
            await asyncio.to_thread(log.close)
            # Readers that wait for records wake up and raise.
            self._notify_readers()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- topics --------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Create a topic. Settings are those of `TopicConfig`, such as `durability="disk"` or `ttl_ms=60_000`.

        The topic is durable when this returns. Concurrent calls share their commits.
        """
        created: asyncio.Future[TopicInfo] = asyncio.get_running_loop().create_future()
        self._pending_creations.append((name, settings, created))
        if self._creation_task is None:
            self._creation_task = asyncio.ensure_future(self._create_pending())
        return await created

    async def create_topics(self, names: Sequence[str], /, **settings: JsonValue) -> list[TopicInfo | SeawallError]:
        """Create several topics with the same settings.

        Returns, for each name, the topic or the error that prevented its creation. The topics are durable when this
        returns.
        """
        return await create_each(partial(self.create_topic, **settings), names, at_once=max(1, len(names)))

    async def _create_pending(self) -> None:
        """Create all pending topics, including those that are added in the meantime."""
        group: list[_PendingCreation] = []
        try:
            while self._pending_creations:
                group, self._pending_creations = self._pending_creations, []
                outcomes = await self._create_group(group)
                for (_, _, created), outcome in zip(group, outcomes, strict=True):
                    if created.done():
                        # The caller was cancelled.
                        continue
                    if isinstance(outcome, TopicInfo):
                        created.set_result(outcome)
                    else:
                        created.set_exception(outcome)
        finally:
            self._creation_task = None
            for _, _, created in group + self._pending_creations:
                created.cancel()

    async def _create_group(self, group: list[_PendingCreation]) -> Sequence[TopicInfo | Exception]:
        try:
            create = self._opened().create_each
            return await self._on_thread(create, [(name, settings) for name, settings, _ in group])
        except (SeawallError, OSError) as error:
            return [error] * len(group)

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return await self._on_thread(self._opened().topics)

    async def describe(self, name: str) -> TopicInfo:
        """Describe a topic as it is now: its settings, sizes and seqs."""
        return await self._on_thread(self._opened().describe, name)

    async def configure_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Change settings of a topic; settings that are not given stay as they are. Durable when this returns."""
        return await self._on_thread(self._opened().configure_topic, name, **settings)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records. Durable when this returns."""
        await self._on_thread(self._opened().delete_topic, name)

    def queue(self, topic: str, /, *, node: str | None = None) -> AsyncQueue:
        """The job queue of a topic that was created with `type="queue"`.

        `node` is the name of this worker; by default each call makes a new one.
        """
        return AsyncQueue(self.queues, topic, worker_name() if node is None else node)

    @property
    def queues(self) -> AsyncLogQueues:
        """The commands of queues."""
        self._opened()
        assert self._queues is not None, "made when the log was opened"
        return self._queues

    # --- records -------------------------------------------------------------------------------------------------

    async def delete(
        self, topic: str, *, before_seq: int | None = None, tag: str | None = None, tag_prefix: str | None = None
    ) -> int:
        """Delete records below `before_seq`, or records whose tag equals `tag` or starts with `tag_prefix`, or both.

        Returns the number of deleted records. The delete is durable when this returns. Readers skip deleted records
        without a gap.
        """
        log = self._opened()
        if (tag is None) != (tag_prefix is None):
            # One call for each part of the topic, so that this loop can commit between two calls.
            while await self._on_thread(log.look_up_tags, topic):
                continue
        return await self._on_thread(log.delete, topic, before_seq=before_seq, tag=tag, tag_prefix=tag_prefix)

    async def verify(self) -> VerifyReport:
        """Read everything in the directory and report all damage, as `seawall verify` does.

        All other calls wait until it is finished.
        """
        return await self._on_thread(self._opened().verify)

    def publish(self, topic: str, records: Publishable, *, idempotency_key: str | bytes | None = None) -> Delivery:
        """Append one record or many, in order, as one commit.

        The records are in flight when this returns. Await the returned delivery: then they are as durable as the
        topic's `durability` promises.

        With an `idempotency_key` the records are stored once, however often the call is repeated within the topic's
        `idempotency_window_ms`: the delivery of a repetition reports the seqs of the records stored first.
        """
        if type(records) is bytes and idempotency_key is None and self._join is not None:
            delivery = self._join(topic, records)
            if delivery is not None:
                return delivery
        return self.offer(self._opened().pending_batch_of(topic, records, idempotency_key))

    def publish_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> Delivery:
        """Append the rows of an Arrow table, one record per row.

        The table has a column value, and any of key, timestamp, node, tag, meta and headers.
        """
        return self.publish(topic, table)

    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Queue encoded records for commit, in the order of calls; await the returned delivery."""
        self._opened()
        assert self._driver is not None
        return self._driver.offer(pending_batch)

    async def _open_publisher(self, topic: str, options: PublisherOptions) -> AsyncPublisher:
        log = self._opened()
        publisher = await self._on_thread(log.publisher, topic, **asdict(options))
        return AsyncPublisher(log, publisher)

    async def sessions(self) -> list[SessionInfo]:
        """List the sessions of all publishers, by ascending client id."""
        return await self._on_thread(self._opened().sessions)

    async def retire_session(self, client_id: int) -> None:
        """End and forget the session of a client, and fence the publisher that uses it. Durable when this returns.

        Batches that the client repeats under old numbers are refused. The client may open a new session.
        """
        await self._on_thread(self._opened().retire_session, client_id)

    async def read(
        self,
        topic: str,
        from_seq: int = 1,
        *,
        limit: int | None = None,
        max_bytes: int = READ_SIZE,
        mode: ReadMode = "durable",
    ) -> list[Item]:
        """Read batches from `from_seq` on, in order with gaps and SKIPs; an empty list means nothing more to read yet.

        `limit`, `max_bytes` and `mode` are those of `EmbeddedLog.read`.
        """
        read = self._opened().read
        return await self._on_thread(read, topic, from_seq, limit=limit, max_bytes=max_bytes, mode=mode)

    async def read_positions(
        self, from_position: int = 0, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[PositionItem]:
        """Read batches, SKIPs and gaps of all topics from a position on, in the total order.

        The result ends at a batch boundary, once it holds `max_bytes` bytes or `limit` records. An empty list means
        that there is nothing more to read yet. Continue at `next_position` of the last item.
        """
        return await self._on_thread(self._opened().read_positions, from_position, limit=limit, max_bytes=max_bytes)

    async def follow(self, topic: str, from_seq: int = 1) -> AsyncIterator[Item]:
        """Iterate over everything from `from_seq` to the current end of the topic, reading as it goes."""
        seq = from_seq
        while items := await self.read(topic, seq):
            for item in items:
                yield item
            seq = seq_after(items[-1])

    async def read_arrow(
        self, topic: str, from_seq: int = 1, *, columns: Sequence[str] = ("value", "key", "timestamp", "tag")
    ) -> pa.Table:
        """Read all records from `from_seq` to the current end of the topic as one Arrow table.

        The table has no rows for gaps; `read` reports them.
        """
        return await self._on_thread(self._opened().read_arrow, topic, from_seq, columns=columns)

    async def seq_at(self, topic: str, when: datetime) -> int:
        """Returns the seq of the first record that is not older than `when`, or the next seq if all are older."""
        return await self._on_thread(self._opened().seq_at, topic, when)

    def subscriber(self, topic: str, start: Start = "earliest", *, owner: str | None = None) -> AsyncSubscriber:
        """Create a reader of one topic that keeps its own position.

        `start` is "earliest", "latest", "committed", a seq, or a time. With an `owner` the subscriber can commit how
        far it has read and start from there again with "committed", which starts at the beginning if the owner has not
        committed yet. The first read resolves `start`.
        """
        make_reader = partial(self._opened().subscriber, topic, start, owner=owner)
        return AsyncSubscriber(self, self._on_thread, topic, make_reader, owner)

    def position_subscriber(self, start: PositionStart = "earliest") -> AsyncPositionSubscriber:
        """Create a reader of all topics in the total order that keeps its own position.

        `start` is "earliest", "latest" or a position.
        """
        return AsyncPositionSubscriber(self, self._on_thread, partial(self._opened().position_subscriber, start))

    def _open_watch(self, spec: WatchSpec) -> AsyncWatch:
        reader = WatchReader(self._opened(), spec)
        return AsyncWatch(AsyncEmbeddedWatchSource(reader, self._on_thread, self._wait_until), spec, self.describe)

    async def commit(self, owner: str, topic: str, next_seq: int) -> None:
        """Store how far `owner` has read a topic: `next_seq` is the seq it reads next. Durable when this returns."""
        await self._on_thread(self._opened().commit, owner, topic, next_seq)

    async def committed(self, owner: str, topic: str) -> int | None:
        """Returns the seq that `owner` reads next, as it last committed it; None if it has not committed."""
        return await self._on_thread(self._opened().committed, owner, topic)

    async def sync(self) -> None:
        """Sync everything published so far to disk, whatever the durability of its topic."""
        await self._on_thread(self._opened().sync)

    async def checkpoint(self) -> None:
        """Flush all batches to segments and truncate the write-ahead log. This also runs automatically."""
        await self._on_thread(self._opened().checkpoint)

    async def wait_for(self, topic: str, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the record `seq` can be read. Returns False after `timeout_s`; None waits without limit."""

        async def is_readable() -> bool:
            return (await self.describe(topic)).next_seq > seq

        return await self._wait_until(is_readable, timeout_s)

    async def wait_for_position(self, position: int, timeout_s: float | None = None) -> bool:
        """Wait until a record at `position` or after it can be read.

        Returns False after `timeout_s`; None waits without limit.
        """

        async def is_readable() -> bool:
            return bool(await self.read_positions(position, limit=1, max_bytes=1))

        return await self._wait_until(is_readable, timeout_s)

    async def _wait_until(self, is_readable: Callable[[], Awaitable[bool]], timeout_s: float | None) -> bool:
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while True:
            readable = self.next_readable()
            # Test after taking the event: a record that becomes readable from here on sets it.
            if await is_readable():
                return True
            if deadline is not None and loop.time() >= deadline:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await readable.wait()

    async def _on_thread(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        if self._driver is not None:
            # Keep the order: everything published before this call is queued first.
            self._driver.queue_gathered()
        return await asyncio.to_thread(call, *arguments, **named)

    def _opened(self) -> EmbeddedLog:
        if self._log is None:
            raise WrongStateError("this log is not open: use `async with seawall.open_async(path) as log`")
        return self._log

    def _schedule_notify(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake the waiting readers, since new records can be read; called by the committing thread."""
        if self._readable is not None:
            loop.call_soon_threadsafe(self._notify_readers)

    def next_readable(self) -> asyncio.Event:
        """Returns an event that is set by the next record that can be read."""
        if self._readable is None:
            self._readable = asyncio.Event()
        self._opened().commits.expect_change()
        return self._readable

    def _notify_readers(self) -> None:
        readable, self._readable = self._readable, None
        if readable is not None:
            readable.set()


async def _drain(driver: RingDriver) -> None:
    """Return once everything published on the loop is stored or has failed."""
    while driver.record_count:
        await asyncio.sleep(_EXIT_POLL_S)
