"""Readers on an event loop that remember where they are: those of `subscribing`, which read on threads.

This module must not know how far a reader is after an item: `subscribing` decides that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from seawall.core.types import Position, Seq
from seawall.engine.api.read_results import Item, PositionItem
from seawall.engine.api.subscriber import PositionSubscriber, Subscriber, check_owned

if TYPE_CHECKING:
    from seawall.engine.api.aio_embedded import AsyncLog

R = TypeVar("R")


class OnThread(Protocol):
    """Calls something that may wait for a disk on a thread, behind what was published before."""

    def __call__(self, call: Callable[[], R], /) -> Awaitable[R]:
        """What the call returns."""
        ...


class AsyncSubscriber:
    """A reader of one topic that goes on where it stopped. For one task at a time."""

    def __init__(
        self, log: AsyncLog, on_thread: OnThread, topic: str, begin: Callable[[], Subscriber], owner: str | None
    ) -> None:
        self._log = log
        self._on_thread = on_thread
        self._begin = begin
        self._owner = owner
        self._reader: Subscriber | None = None
        self.topic = topic

    @property
    def next_seq(self) -> Seq:
        """What is read next: behind the last item that was handed out; 0 before the first read."""
        return Seq(0) if self._reader is None else self._reader.next_seq

    async def poll(self, timeout_s: float = 0.0) -> list[Item]:
        """What is there to read, waiting up to `timeout_s` for something; gaps come in order with the batches."""
        reader = await self._begun()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            items = await self._read(reader)
            left_s = deadline - loop.time()
            if items or left_s <= 0 or not await self._log.wait_for(self.topic, reader.next_seq, left_s):
                return items

    async def commit(self) -> None:
        """Keep that everything before `next_seq` was read, durably, for the owner."""
        check_owned(self._owner)
        await self._on_thread((await self._begun()).commit)

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Everything from here on, for ever: at the end it waits for more."""
        reader = await self._begun()
        while True:
            for item in reader.hand_out(await self._on_thread(reader.read_ahead)):
                yield item
            await self._log.wait_for(self.topic, reader.next_seq)

    async def _read(self, reader: Subscriber) -> list[Item]:
        # It counts as read on the loop, not on the thread: a task that is cancelled meanwhile has read nothing.
        return list(reader.hand_out(await self._on_thread(reader.read_ahead)))

    async def _begun(self) -> Subscriber:
        if self._reader is None:
            self._reader = await self._on_thread(self._begin)
        return self._reader


class AsyncPositionSubscriber:
    """A reader of everything in the one order that goes on where it stopped. For one task at a time."""

    def __init__(self, log: AsyncLog, on_thread: OnThread, begin: Callable[[], PositionSubscriber]) -> None:
        self._log = log
        self._on_thread = on_thread
        self._begin = begin
        self._reader: PositionSubscriber | None = None

    @property
    def next_position(self) -> Position:
        """What is read next: behind the last item that was handed out; 0 before the first read."""
        return Position(0) if self._reader is None else self._reader.next_position

    async def poll(self, timeout_s: float = 0.0) -> list[PositionItem]:
        """What is there to read, of all topics, waiting up to `timeout_s` for something."""
        reader = await self._begun()
        items = await self._read(reader)
        if not items and timeout_s > 0 and await self._log.wait_for_position(reader.next_position, timeout_s):
            items = await self._read(reader)
        return items

    async def __aiter__(self) -> AsyncIterator[PositionItem]:
        """Everything from here on, for ever: at the end it waits for more."""
        reader = await self._begun()
        while True:
            for item in reader.hand_out(await self._on_thread(reader.read_ahead)):
                yield item
            await self._log.wait_for_position(reader.next_position)

    async def _read(self, reader: PositionSubscriber) -> list[PositionItem]:
        return list(reader.hand_out(await self._on_thread(reader.read_ahead)))

    async def _begun(self) -> PositionSubscriber:
        if self._reader is None:
            self._reader = await self._on_thread(self._begin)
        return self._reader
