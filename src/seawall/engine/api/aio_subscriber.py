"""Subscribers of the embedded log for asyncio, with the same API as those for threads (`subscriber.py`).

They wrap the subscribers for threads: reads run on a thread, waits on the event loop. This module must not know how far
a reader is after an item: `subscriber.py` decides that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

from seawall.api.owners import check_owner
from seawall.core.types import Position, Seq
from seawall.engine.api.subscriber import PositionSubscriber, Subscriber
from seawall.engine.read.read_results import Item, PositionItem

R = TypeVar("R")


class OnThread(Protocol):
    """Runs a call that may block on the disk on a thread, after everything published before is queued."""

    def __call__(self, call: Callable[[], R], /) -> Awaitable[R]:
        """Returns the result of the call."""
        ...


class WaitableLog(Protocol):
    """What subscribers on an event loop need from their log: to wait for new records."""

    async def wait_for(self, topic: str, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the record `seq` can be read; False after `timeout_s`."""
        ...

    async def wait_for_position(self, position: int, timeout_s: float | None = None) -> bool:
        """Wait until a record at `position` or after it can be read; False after `timeout_s`."""
        ...


class AsyncSubscriber:
    """A reader of one topic that continues where it stopped. Create one with `AsyncLog.subscriber`.

    Use it from one task at a time.
    """

    def __init__(
        self,
        log: WaitableLog,
        on_thread: OnThread,
        topic: str,
        make_reader: Callable[[], Subscriber],
        owner: str | None,
    ) -> None:
        self._log = log
        self._on_thread = on_thread
        self._make_reader = make_reader
        self._owner = owner
        self._reader: Subscriber | None = None
        self.topic = topic

    @property
    def next_seq(self) -> Seq:
        """The seq to read next: after the last item handed out; 0 before the first read."""
        return Seq(0) if self._reader is None else self._reader.next_seq

    async def poll(self, timeout_s: float = 0.0) -> list[Item]:
        """Returns the items that can be read, in order, gaps included; waits up to `timeout_s` for the first."""
        reader = await self._started_reader()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            items = await self._read(reader)
            left_s = deadline - loop.time()
            if items or left_s <= 0 or not await self._log.wait_for(self.topic, reader.next_seq, left_s):
                return items

    async def commit(self) -> None:
        """Store durably that the owner has read everything before `next_seq`."""
        check_owner(self._owner)
        await self._on_thread((await self._started_reader()).commit)

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Iterate over all items from here on, forever: at the end of the log it waits for more."""
        reader = await self._started_reader()
        while True:
            for item in reader.hand_out(await self._on_thread(reader.read_ahead)):
                yield item
            await self._log.wait_for(self.topic, reader.next_seq)

    async def _read(self, reader: Subscriber) -> list[Item]:
        # Advance on the loop, not on the thread: a task cancelled during the read has consumed nothing.
        return list(reader.hand_out(await self._on_thread(reader.read_ahead)))

    async def _started_reader(self) -> Subscriber:
        if self._reader is None:
            self._reader = await self._on_thread(self._make_reader)
        return self._reader


class AsyncPositionSubscriber:
    """A reader of all topics in the total order that continues where it stopped.

    Create one with `AsyncLog.position_subscriber`. Use it from one task at a time.
    """

    def __init__(self, log: WaitableLog, on_thread: OnThread, make_reader: Callable[[], PositionSubscriber]) -> None:
        self._log = log
        self._on_thread = on_thread
        self._make_reader = make_reader
        self._reader: PositionSubscriber | None = None

    @property
    def next_position(self) -> Position:
        """The position to read next: after the last item handed out; 0 before the first read."""
        return Position(0) if self._reader is None else self._reader.next_position

    async def poll(self, timeout_s: float = 0.0) -> list[PositionItem]:
        """Returns the items of all topics that can be read; waits up to `timeout_s` for the first."""
        reader = await self._started_reader()
        items = await self._read(reader)
        if not items and timeout_s > 0 and await self._log.wait_for_position(reader.next_position, timeout_s):
            items = await self._read(reader)
        return items

    async def __aiter__(self) -> AsyncIterator[PositionItem]:
        """Iterate over all items from here on, forever: at the end of the log it waits for more."""
        reader = await self._started_reader()
        while True:
            for item in reader.hand_out(await self._on_thread(reader.read_ahead)):
                yield item
            await self._log.wait_for_position(reader.next_position)

    async def _read(self, reader: PositionSubscriber) -> list[PositionItem]:
        return list(reader.hand_out(await self._on_thread(reader.read_ahead)))

    async def _started_reader(self) -> PositionSubscriber:
        if self._reader is None:
            self._reader = await self._on_thread(self._make_reader)
        return self._reader
