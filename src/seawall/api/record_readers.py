"""Readers that iterate over the records of a topic one by one, for threads and for asyncio.

    for record in log.records("events"): ...                       # up to the current end
    reader = log.records("events", "committed", owner="billing", wait=True)
    for record in reader: ...                                      # forever
        reader.commit()                                            # covers the records up to this one

They read batches with a subscriber. A gap raises `DataLossError`, so that no loss goes unnoticed (`losses`). A SKIP is
passed over, because the topic misses no record there. `RecordCursor` decides for both kinds. This module must not know
where a log is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Final, Protocol

from seawall.api.losses import LossCheck
from seawall.api.owners import check_owner
from seawall.api.read_options import Start
from seawall.api.received import Item, ReceivedBatch, seq_after
from seawall.api.received_record import ReceivedRecord
from seawall.api.topic_info import TopicInfo
from seawall.core.types import Seq
from seawall.wire.format.gaps import Gap

_REMEDY: Final = "fail_on_loss=False reads on after them"


class RecordCursor:
    """The offset of a reader of records, and the records of each item."""

    def __init__(self, topic: str, start: Start, owner: str | None, *, fail_on_loss: bool) -> None:
        self.topic: Final = topic
        self.start: Final = start
        self.owner: Final = owner
        #: The seq after the last record returned.
        self.next_seq = Seq(0)
        #: Checks gaps; None if losses are passed over.
        self.losses: Final = LossCheck(topic, _REMEDY) if fail_on_loss else None

    def records_of(self, item: Item) -> Iterator[ReceivedRecord]:
        """Yield the records of an item, advancing `next_seq` with each; `DataLossError` for a loss."""
        if isinstance(item, ReceivedBatch):
            for record in item.records():
                self.next_seq = Seq(record.seq + 1)
                yield record
        elif isinstance(item, Gap) and self.losses is not None:
            self.losses.check(item)
        self.next_seq = seq_after(item)


class _Subscriber(Protocol):
    @property
    def next_seq(self) -> Seq: ...
    def poll(self, timeout_s: float = 0.0) -> list[Item]: ...
    def __iter__(self) -> Iterator[Item]: ...


class _Log(Protocol):
    def describe(self, name: str) -> TopicInfo: ...
    def subscriber(self, topic: str, start: Start = "earliest", *, owner: str | None = None) -> _Subscriber: ...
    def committed(self, owner: str, topic: str) -> int | None: ...
    def commit(self, owner: str, topic: str, next_seq: int) -> None: ...


class RecordReader:
    """Iterates over the records of one topic and keeps its offset. Created by `records` of a log. For one thread.

    It can be iterated over once: a second loop continues where the first one stopped.
    """

    def __init__(self, log: _Log, cursor: RecordCursor, *, wait: bool) -> None:
        self._log = log
        self._cursor = cursor
        self._subscriber = log.subscriber(cursor.topic, cursor.start, owner=cursor.owner)
        self._records = self._iterate(iter(self._subscriber) if wait else self._until_end())
        self.topic = cursor.topic
        cursor.next_seq = self._subscriber.next_seq

    @property
    def next_seq(self) -> Seq:
        """The seq to read next: the one after the last record returned."""
        return self._cursor.next_seq

    def commit(self) -> None:
        """Store durably that the owner has processed everything before `next_seq`."""
        self._log.commit(check_owner(self._cursor.owner), self.topic, self.next_seq)

    def close(self) -> None:
        """End the iteration, and the connection of a reader that waits. Idempotent."""
        self._records.close()

    def __iter__(self) -> Iterator[ReceivedRecord]:
        # The generator itself: a call of `__next__` in Python would cost more than the record.
        return self._records

    def _until_end(self) -> Iterator[Item]:
        while items := self._subscriber.poll():
            yield from items

    def _iterate(self, items: Iterator[Item]) -> Generator[ReceivedRecord, None, None]:
        cursor = self._cursor
        if cursor.losses is not None:
            committed = None if cursor.owner is None else self._log.committed(cursor.owner, self.topic)
            cursor.losses.begin(self._log.describe(self.topic), cursor.start, committed)
        for item in items:
            yield from cursor.records_of(item)
        # Records at the end may have been deleted.
        cursor.next_seq = self._subscriber.next_seq


class RecordLog:
    """The part of a log that reads record by record."""

    def records(
        self: _Log,
        topic: str,
        start: Start = "earliest",
        *,
        owner: str | None = None,
        wait: bool = False,
        fail_on_loss: bool = True,
    ) -> RecordReader:
        """Iterate over the records of a topic one by one, up to its current end; with `wait`, forever.

        `start` and `owner` are those of `subscriber`. The reader has `next_seq` and `commit`, which cover the records
        up to the current one. Lost records raise `DataLossError`, or are passed over if `fail_on_loss` is false.
        """
        return RecordReader(self, RecordCursor(topic, start, owner, fail_on_loss=fail_on_loss), wait=wait)


class _AsyncSubscriber(Protocol):
    @property
    def next_seq(self) -> Seq: ...
    async def poll(self, timeout_s: float = 0.0) -> list[Item]: ...
    def __aiter__(self) -> AsyncIterator[Item]: ...


class _AsyncLog(Protocol):
    async def describe(self, name: str) -> TopicInfo: ...
    def subscriber(self, topic: str, start: Start = "earliest", *, owner: str | None = None) -> _AsyncSubscriber: ...
    async def committed(self, owner: str, topic: str) -> int | None: ...
    async def commit(self, owner: str, topic: str, next_seq: int) -> None: ...


class AsyncRecordReader:
    """Like `RecordReader`, for one task."""

    def __init__(self, log: _AsyncLog, cursor: RecordCursor, *, wait: bool) -> None:
        self._log = log
        self._cursor = cursor
        self._subscriber = log.subscriber(cursor.topic, cursor.start, owner=cursor.owner)
        self._records = self._iterate(aiter(self._subscriber) if wait else self._until_end())
        self.topic = cursor.topic

    @property
    def next_seq(self) -> Seq:
        """The seq to read next: the one after the last record returned; 0 before the first read."""
        return self._cursor.next_seq

    async def commit(self) -> None:
        """Store durably that the owner has processed everything before `next_seq`."""
        await self._log.commit(check_owner(self._cursor.owner), self.topic, self.next_seq)

    async def close(self) -> None:
        """End the iteration, and the connection of a reader that waits. Idempotent."""
        await self._records.aclose()

    def __aiter__(self) -> AsyncIterator[ReceivedRecord]:
        return self._records

    async def _until_end(self) -> AsyncIterator[Item]:
        while items := await self._subscriber.poll():
            for item in items:
                yield item

    async def _iterate(self, items: AsyncIterator[Item]) -> AsyncGenerator[ReceivedRecord, None]:
        cursor = self._cursor
        if cursor.losses is not None:
            committed = None if cursor.owner is None else await self._log.committed(cursor.owner, self.topic)
            cursor.losses.begin(await self._log.describe(self.topic), cursor.start, committed)
        async for item in items:
            for record in cursor.records_of(item):
                yield record
        cursor.next_seq = self._subscriber.next_seq


class AsyncRecordLog:
    """The part of a log for asyncio that reads record by record."""

    def records(
        self: _AsyncLog,
        topic: str,
        start: Start = "earliest",
        *,
        owner: str | None = None,
        wait: bool = False,
        fail_on_loss: bool = True,
    ) -> AsyncRecordReader:
        """Iterate over the records of a topic one by one with `async for`; all else is as for threads."""
        return AsyncRecordReader(self, RecordCursor(topic, start, owner, fail_on_loss=fail_on_loss), wait=wait)
