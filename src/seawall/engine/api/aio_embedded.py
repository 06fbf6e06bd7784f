"""The embedded log for asyncio: the same words, and an event loop that hardly ever waits for a disk.

    async with seawall.open_async("data/") as log:
        await log.create_topic("events")
        await log.publish("events", {"n": 1})              # many of these at once share one sync
        async for item in log.subscriber("events"): ...    # ReceivedBatch, or Gap where something is lost

Records are numbered on the loop and written by a disk ring (`ring_driver`); everything else that may wait for a disk
runs on a thread. An `AsyncLog` belongs to the loop it was opened on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, ParamSpec, Self, TypeAlias, TypeVar

from seawall.api.aio_topics import create_each
from seawall.api.publisher_options import BATCH_SIZE, IN_FLIGHT_SIZE, Compression
from seawall.api.topic_info import TopicInfo
from seawall.config import Config
from seawall.core.sessions import SessionInfo
from seawall.engine.api.aio_publisher import AsyncPublisher
from seawall.engine.api.aio_subscriber import AsyncPositionSubscriber, AsyncSubscriber
from seawall.engine.api.aio_transactions import AsyncTransactions
from seawall.engine.api.embedded import READ_SIZE, EmbeddedLog, ReadMode, Start
from seawall.engine.api.open_log import open_log
from seawall.engine.api.read_results import Item, PositionItem, Publishable, seq_after
from seawall.engine.api.subscriber import PositionStart
from seawall.engine.commit.delivery import Delivery, PendingBatch
from seawall.engine.commit.ring_driver import RingDriver
from seawall.engine.store.settings import StoreSettings
from seawall.errors import InvalidInputError, SeawallError, WrongStateError
from seawall.io.disk.disk_ring import DiskRing
from seawall.io.disk.ring_backends import open_configured_ring
from seawall.io.process.exits import finish_at_exit, report_undelivered
from seawall.io.process.own_process import disown_on_fork
from seawall.storage.findings import VerifyReport
from seawall.wire.format.fields import JsonObject, JsonValue

if TYPE_CHECKING:
    import pyarrow as pa

#: How often the end of the interpreter looks whether a loop has committed everything.
_LOOK_S: Final = 0.01

P = ParamSpec("P")
R = TypeVar("R")

#: A topic to be created: its name, its settings, and who waits for it.
_Wanted: TypeAlias = tuple[str, JsonObject, "asyncio.Future[TopicInfo]"]


class AsyncLog(AsyncTransactions):
    """An open log on an event loop. Made by `seawall.open_async`."""

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
        #: Topics that are to be created, and the task that does that.
        self._wanted: list[_Wanted] = []
        self._creating: asyncio.Future[None] | None = None
        self._driver: RingDriver | None = None
        self._join: Callable[[str, bytes], Delivery | None] | None = None
        #: For those who wait for something new; None where nobody does.
        self._news: asyncio.Event | None = None
        self._readers_waiting = 0

    async def open(self) -> Self:
        """Open the data directory; `async with` does it."""
        if self._log is not None:
            raise WrongStateError("this log is open already")
        loop = asyncio.get_running_loop()
        log, ring = await asyncio.to_thread(self._open)
        self._log = log
        self._driver = RingDriver(log.queue, ring, loop)
        self._join = self._driver.join
        log.queue.listeners.append(partial(self._announce, loop))
        disown_on_fork(self)
        finish_at_exit(self)
        return self

    def disown(self) -> None:
        """This is a forked child: loop and ring are the parent's, and the log refuses."""
        self._driver = self._join = None

    def finish(self, timeout_s: float) -> int:
        """Wait, on another thread, while the loop commits what is under way; how many records are not stored.

        A loop that does not run any more commits nothing.
        """
        driver, self._driver = self._driver, None
        if driver is None:
            return 0
        if driver.loop.is_running():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(_decided(driver), driver.loop).result(timeout_s)
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
        """End in order; closing twice is fine."""
        log, driver = self._log, self._driver
        self._log = self._driver = self._join = None
        if log is not None and driver is not None:
            driver.close()
            await asyncio.to_thread(log.close)
            if self._readers_waiting:
                # Whoever waits for records is refused.
                self._notify_readers()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- topics --------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Create a topic; settings as in `TopicConfig`, such as `durability="disk"` or `ttl_ms=60_000`.

        Those that are created at the same time share their commits.
        """
        wanted: asyncio.Future[TopicInfo] = asyncio.get_running_loop().create_future()
        self._wanted.append((name, settings, wanted))
        if self._creating is None:
            self._creating = asyncio.ensure_future(self._create_wanted())
        return await wanted

    async def create_topics(self, names: Sequence[str], /, **settings: JsonValue) -> list[TopicInfo | SeawallError]:
        """Create topics with the same settings: each topic, or the error that prevented it. Durable on return."""
        return await create_each(partial(self.create_topic, **settings), names, at_once=max(1, len(names)))

    async def _create_wanted(self) -> None:
        """Create everything that is wanted, and what is meanwhile."""
        group: list[_Wanted] = []
        try:
            while self._wanted:
                group, self._wanted = self._wanted, []
                outcomes = await self._create_group(group)
                for (_, _, wanted), outcome in zip(group, outcomes, strict=True):
                    if wanted.done():
                        # Whoever wanted it has gone.
                        continue
                    if isinstance(outcome, TopicInfo):
                        wanted.set_result(outcome)
                    else:
                        wanted.set_exception(outcome)
        finally:
            self._creating = None
            for _, _, wanted in group + self._wanted:
                wanted.cancel()

    async def _create_group(self, group: list[_Wanted]) -> Sequence[TopicInfo | Exception]:
        try:
            create = self._opened().create_each
            return await self._on_thread(create, [(name, settings) for name, settings, _ in group])
        except (SeawallError, OSError) as error:
            return [error] * len(group)

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return await self._on_thread(self._opened().topics)

    async def describe(self, name: str) -> TopicInfo:
        """A topic as it is now."""
        return await self._on_thread(self._opened().describe, name)

    async def configure_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Change settings of a topic."""
        return await self._on_thread(self._opened().configure_topic, name, **settings)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""
        await self._on_thread(self._opened().delete_topic, name)

    # --- records -------------------------------------------------------------------------------------------------

    async def delete(
        self, topic: str, *, before_seq: int | None = None, tag: str | None = None, tag_prefix: str | None = None
    ) -> int:
        """Delete records below a seq, or with a tag or a tag that begins so, or both; how many went, durably.

        Readers are not told of deleted records: they are simply not there any more.
        """
        log = self._opened()
        if (tag is None) != (tag_prefix is None):
            # Each piece is a call of its own: what this loop has to commit has its turn in between.
            while await self._on_thread(log.look_up_tags, topic):
                continue
        return await self._on_thread(log.delete, topic, before_seq=before_seq, tag=tag, tag_prefix=tag_prefix)

    async def verify(self) -> VerifyReport:
        """Read everything in the directory and name every damage, as `seawall verify` does; others wait meanwhile."""
        return await self._on_thread(self._opened().verify)

    def publish(self, topic: str, records: Publishable, *, idempotency_key: str | bytes | None = None) -> Delivery:
        """Append one record or many, in order, as one commit; durable in the topic's class when it is awaited.

        It is on its way when this returns. With an `idempotency_key` records are stored once, however often that is
        tried within the topic's `idempotency_window_ms`: a repetition is told where the first ones are.
        """
        if type(records) is bytes and idempotency_key is None and self._join is not None:
            delivery = self._join(topic, records)
            if delivery is not None:
                return delivery
        return self.offer(self._opened().pending_batch_of(topic, records, idempotency_key))

    def publish_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> Delivery:
        """Append the rows of an Arrow table, whose columns are value, key, timestamp, tag and headers, or some."""
        return self.publish(topic, table)

    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Have records committed, in the order of calls; await what is returned."""
        self._opened()
        assert self._driver is not None
        return self._driver.offer(pending_batch)

    async def publisher(
        self,
        topic: str,
        *,
        ack: int = 2,
        client_id: int | None = None,
        max_in_flight: int = IN_FLIGHT_SIZE,
        linger_s: float = 0.0,
        batch_size: int = BATCH_SIZE,
        compression: Compression = "none",
        connections: int = 1,
    ) -> AsyncPublisher:
        """A publisher that does not wait: each `publish` returns a `Delivery` while the records are on their way.

        With a `client_id` its batches are numbered in a session of that client, so that a batch that is sent again
        after a crash is stored once (`AsyncPublisher.next_client_seq`); the session ends any older one of the client.
        `linger_s`, `batch_size`, `compression` and `connections` are about sending to a server; here they are checked
        and have no effect.
        """
        log = self._opened()
        made = await self._on_thread(
            log.publisher,
            topic,
            ack=ack,
            client_id=client_id,
            max_in_flight=max_in_flight,
            when_full="raise",
            linger_s=linger_s,
            batch_size=batch_size,
            compression=compression,
            connections=connections,
        )
        return AsyncPublisher(log, made)

    async def sessions(self) -> list[SessionInfo]:
        """The sessions of all publishers, by rising client id."""
        return await self._on_thread(self._opened().sessions)

    async def retire_session(self, client_id: int) -> None:
        """End and forget the session of a client: a publisher that has it is fenced. Durable when this returns.

        What such a client sends again under an old number is refused; a new session of it is welcome.
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
        """Batches from `from_seq` on, and in order with them the gaps a reader has to know of, and the SKIPs.

        Ends at a batch boundary after `max_bytes`, or once `limit` records are there; an empty list is the end. With
        mode "ordered" also what is ordered and on its way to the disk, which a crash may still take.
        """
        read = self._opened().read
        return await self._on_thread(read, topic, from_seq, limit=limit, max_bytes=max_bytes, mode=mode)

    async def read_positions(
        self, from_position: int = 0, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[PositionItem]:
        """Everything that is ordered from a position on, of all topics, in the one order: batches, SKIPs and gaps.

        Ends at a batch boundary after `max_bytes`, or once `limit` records are there; an empty list is the end. Reading
        goes on at `next_position` of the last item.
        """
        return await self._on_thread(self._opened().read_positions, from_position, limit=limit, max_bytes=max_bytes)

    async def follow(self, topic: str, from_seq: int = 1) -> AsyncIterator[Item]:
        """Everything from `from_seq` to the present end, piece by piece."""
        seq = from_seq
        while items := await self.read(topic, seq):
            for item in items:
                yield item
            seq = seq_after(items[-1])

    async def read_arrow(
        self, topic: str, from_seq: int = 1, *, columns: Sequence[str] = ("value", "key", "timestamp", "tag")
    ) -> pa.Table:
        """All records from `from_seq` to the present end as one table; gaps are left out of it (`read` names them)."""
        return await self._on_thread(self._opened().read_arrow, topic, from_seq, columns=columns)

    async def seq_at(self, topic: str, when: datetime) -> int:
        """Seq of the first record that is not older than `when`; the next one to come if all are."""
        return await self._on_thread(self._opened().seq_at, topic, when)

    def subscriber(self, topic: str, start: Start = "earliest", *, owner: str | None = None) -> AsyncSubscriber:
        """A reader that remembers where it is. `start` is earliest, latest, committed, a seq, or a time.

        With an `owner` it can commit how far it has come, and start from there again ("committed": from the beginning
        if there is no commit yet). Where that is is found out by its first read.
        """
        begin = partial(self._opened().subscriber, topic, start, owner=owner)
        return AsyncSubscriber(self, self._on_thread, topic, begin, owner)

    def position_subscriber(self, start: PositionStart = "earliest") -> AsyncPositionSubscriber:
        """A reader of everything in the one order that remembers where it is: from earliest, latest or a position."""
        return AsyncPositionSubscriber(self, self._on_thread, partial(self._opened().position_subscriber, start))

    async def commit(self, owner: str, topic: str, next_seq: int) -> None:
        """Keep how far `owner` has read: `next_seq` is what it reads next. Durable when this returns."""
        await self._on_thread(self._opened().commit, owner, topic, next_seq)

    async def committed(self, owner: str, topic: str) -> int | None:
        """What `owner` reads next, as it committed it; None if it never did."""
        return await self._on_thread(self._opened().committed, owner, topic)

    async def sync(self) -> None:
        """Make everything published so far durable, whatever its class."""
        await self._on_thread(self._opened().sync)

    async def checkpoint(self) -> None:
        """Bring all batches to their places and shorten the log; happens by itself too."""
        await self._on_thread(self._opened().checkpoint)

    async def wait_for(self, topic: str, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the record `seq` is there; false if it does not come within `timeout_s`. None is no limit."""

        async def is_there() -> bool:
            return (await self.describe(topic)).next_seq > seq

        return await self._wait_until(is_there, timeout_s)

    async def wait_for_position(self, position: int, timeout_s: float | None = None) -> bool:
        """Wait until there is something to read at a position or behind it; false if nothing comes within `timeout_s`.

        None is no limit.
        """

        async def is_there() -> bool:
            return bool(await self.read_positions(position, limit=1, max_bytes=1))

        return await self._wait_until(is_there, timeout_s)

    async def _wait_until(self, is_there: Callable[[], Awaitable[bool]], timeout_s: float | None) -> bool:
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        self._readers_waiting += 1
        try:
            while True:
                news = self._coming_change()
                # Looked at with the event in hand: what comes from here on sets it.
                if await is_there():
                    return True
                if deadline is not None and loop.time() >= deadline:
                    return False
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await news.wait()
        finally:
            self._readers_waiting -= 1

    async def _on_thread(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        if self._driver is not None:
            # What was published before comes before.
            self._driver.hand_in()
        return await asyncio.to_thread(call, *arguments, **named)

    def _opened(self) -> EmbeddedLog:
        if self._log is None:
            raise InvalidInputError("this log is not open: use `async with seawall.open_async(path) as log`")
        return self._log

    def _announce(self, loop: asyncio.AbstractEventLoop) -> None:
        """Something new can be read; called by whoever committed it."""
        if self._readers_waiting:
            loop.call_soon_threadsafe(self._notify_readers)

    def _coming_change(self) -> asyncio.Event:
        """What is set by whatever can be read from now on."""
        if self._news is None:
            self._news = asyncio.Event()
        self._opened().queue.expect_change()
        return self._news

    def _notify_readers(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set()


async def _decided(driver: RingDriver) -> None:
    """Return once everything that was handed in on the loop is decided."""
    while driver.record_count:
        await asyncio.sleep(_LOOK_S)
