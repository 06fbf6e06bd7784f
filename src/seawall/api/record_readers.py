"""Readers that iterate over the records of a topic one by one, for threads and for asyncio.

    for record in log.records("events"): ...                       # up to the current end
    reader = log.records("events", "committed", owner="billing", wait=True)
    for record in reader: ...                                      # forever
        reader.commit()                                            # covers the records up to this one

They read batches with a subscriber. A gap raises `DataLossError`, so that no loss goes unnoticed (`losses`). A SKIP is
passed over, because the topic misses no record there. This module must not know where a log is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Final, Protocol

from seawall.api.losses import LossCheck
from seawall.api.owners import check_owner
from seawall.api.received import Item, ReceivedBatch, seq_after
from seawall.api.received_record import ReceivedRecord
from seawall.api.starts import Start
from seawall.api.topic_info import TopicInfo
from seawall.core.types import Seq
from seawall.wire.format.gaps import Gap

_REMEDY: Final = "fail_on_loss=False reads on after them"


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

    def __init__(
        self, log: _Log, topic: str, start: Start, owner: str | None, *, wait: bool, fail_on_loss: bool
    ) -> None:
        self._log = log
        self._owner = owner
        self._subscriber = log.subscriber(topic, start, owner=owner)
        self._next_seq = self._subscriber.next_seq
        self._losses = LossCheck(topic, _REMEDY) if fail_on_loss else None
        self._records = self._iterate(start, iter(self._subscriber) if wait else self._until_end())
        self.topic = topic

    @property
    def next_seq(self) -> Seq:
        """The seq to read next: the one after the last record returned."""
        return self._next_seq

    def commit(self) -> None:
        """Store durably that the owner has processed everything before `next_seq`."""
        self._log.commit(check_owner(self._owner), self.topic, self._next_seq)

    def close(self) -> None:
        """End the iteration, and the connection of a reader that waits. Idempotent."""
        self._records.close()

    def __iter__(self) -> Iterator[ReceivedRecord]:
        # The generator itself: a call of `__next__` in Python would cost more than the record.
        return self._records

    def _until_end(self) -> Iterator[Item]:
        while items := self._subscriber.poll():
            yield from items

    def _iterate(self, start: Start, items: Iterator[Item]) -> Generator[ReceivedRecord, None, None]:
        if self._losses is not None:
            self._losses.begin(self._log.describe(self.topic), is_from_beginning=self._is_from_beginning(start))
        for item in items:
            if isinstance(item, ReceivedBatch):
                for record in item.records():
                    self._next_seq = Seq(record.seq + 1)
                    yield record
            elif isinstance(item, Gap) and self._losses is not None:
                self._losses.check(item)
            self._next_seq = seq_after(item)
        # Records at the end may have been deleted.
        self._next_seq = self._subscriber.next_seq

    def _is_from_beginning(self, start: Start) -> bool:
        if start != "committed" or self._owner is None:
            return start == "earliest"
        return self._log.committed(self._owner, self.topic) is None


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
    """Iterates over the records of one topic and keeps its offset. Created by `records` of a log. For one task.

    It can be iterated over once: a second loop continues where the first one stopped.
    """

    def __init__(
        self, log: _AsyncLog, topic: str, start: Start, owner: str | None, *, wait: bool, fail_on_loss: bool
    ) -> None:
        self._log = log
        self._owner = owner
        self._subscriber = log.subscriber(topic, start, owner=owner)
        self._next_seq = Seq(0)
        self._losses = LossCheck(topic, _REMEDY) if fail_on_loss else None
        self._records = self._iterate(start, aiter(self._subscriber) if wait else self._until_end())
        self.topic = topic

    @property
    def next_seq(self) -> Seq:
        """The seq to read next: the one after the last record returned; 0 before the first read."""
        return self._next_seq

    async def commit(self) -> None:
        """Store durably that the owner has processed everything before `next_seq`."""
        await self._log.commit(check_owner(self._owner), self.topic, self._next_seq)

    async def close(self) -> None:
        """End the iteration, and the connection of a reader that waits. Idempotent."""
        await self._records.aclose()

    def __aiter__(self) -> AsyncIterator[ReceivedRecord]:
        return self._records

    async def _until_end(self) -> AsyncIterator[Item]:
        while items := await self._subscriber.poll():
            for item in items:
                yield item

    async def _iterate(self, start: Start, items: AsyncIterator[Item]) -> AsyncGenerator[ReceivedRecord, None]:
        if self._losses is not None:
            info, is_from_beginning = await self._log.describe(self.topic), await self._is_from_beginning(start)
            self._losses.begin(info, is_from_beginning=is_from_beginning)
        async for item in items:
            if isinstance(item, ReceivedBatch):
                for record in item.records():
                    self._next_seq = Seq(record.seq + 1)
                    yield record
            elif isinstance(item, Gap) and self._losses is not None:
                self._losses.check(item)
            self._next_seq = seq_after(item)
        self._next_seq = self._subscriber.next_seq

    async def _is_from_beginning(self, start: Start) -> bool:
        if start != "committed" or self._owner is None:
            return start == "earliest"
        return await self._log.committed(self._owner, self.topic) is None
