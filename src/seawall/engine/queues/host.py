"""What the queues of a log need of it, for threads and for asyncio. The embedded logs have these methods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from seawall.api.publishable import Publishable
from seawall.api.topic_info import TopicInfo
from seawall.core.transactions import StagedRange
from seawall.engine.commit.commit_queue import CommitQueue
from seawall.engine.commit.delivery import Delivery
from seawall.engine.commit.pending_batches import PendingBatch
from seawall.engine.store.store import Store
from seawall.topics.state import TopicState


class HostLog(Protocol):
    """A log for threads."""

    commits: CommitQueue

    @property
    def topic_named(self) -> Callable[[str], TopicState]:
        """Looks up a topic by name without taking the lock of the store."""
        ...

    def create_topic(self, name: str, /) -> TopicInfo:
        """Create a topic."""
        ...

    def describe(self, name: str) -> TopicInfo:
        """Describe a topic."""
        ...

    def publish(self, topic: str, records: Publishable) -> Delivery:
        """Append records, as one commit."""
        ...

    def offer(self, pending_batch: PendingBatch) -> Delivery:
        """Queue encoded records and return."""
        ...

    def staging(self) -> TopicState:
        """The staging topic of transactions."""
        ...

    def abort_staged(self, ranges: Sequence[StagedRange]) -> int:
        """Delete staged records."""
        ...

    def changing(self) -> AbstractContextManager[Store]:
        """Lock the store exclusively, for a change other than an append."""
        ...

    def inspecting(self) -> AbstractContextManager[Store]:
        """Lock the store's memory."""
        ...

    def wait_until(self, is_readable: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until a condition holds, which is checked whenever new records can be read."""
        ...


class AsyncHostLog(Protocol):
    """A log on an event loop."""

    def publish(self, topic: str, records: Publishable) -> Delivery:
        """Append records, as one commit; await the result."""
        ...

    def next_readable(self) -> asyncio.Event:
        """An event that is set by the next record that can be read."""
        ...
