"""Subscribers of the embedded log: readers that keep their own position.

    subscriber = log.subscriber("events", "committed", owner="billing")
    for item in subscriber.poll(timeout_s=5): ...     # what can be read now, or the first items that arrive
    for item in subscriber: ...                       # follows the topic forever
    subscriber.commit()

During an iteration, `next_seq` and `next_position` count the items handed out, not those read ahead: a commit in the
body of the loop covers the items up to the current one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from seawall.api.owners import check_owner
from seawall.api.received import with_next_positions
from seawall.core.types import Position, Seq
from seawall.engine.read.read_results import Item, PositionItem, seq_after
from seawall.io.process.clocks import OsClock


class SubscribedLog(Protocol):
    """What subscribers need from their log."""

    def read_on(self, topic: str, from_seq: int) -> tuple[list[Item], Seq]:
        """Read items of a topic, and the seq to continue at."""
        ...

    def wait_for(self, topic: str, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until the record `seq` can be read; False after `timeout_s`."""
        ...

    def commit(self, owner: str, topic: str, next_seq: int) -> None:
        """Store how far `owner` has read a topic."""
        ...

    def read_positions(self, from_position: int = 0) -> list[PositionItem]:
        """Read items of all topics from a position on."""
        ...

    def wait_for_position(self, position: int, timeout_s: float | None = None) -> bool:
        """Wait until a record at `position` or after it can be read; False after `timeout_s`."""
        ...


class Subscriber:
    """A reader of one topic that continues where it stopped. Create one with `EmbeddedLog.subscriber`.

    Use it from one thread at a time.
    """

    def __init__(self, log: SubscribedLog, topic: str, next_seq: Seq, owner: str | None) -> None:
        self._log = log
        self._owner = owner
        self._next_seq = next_seq
        self.topic = topic

    @property
    def next_seq(self) -> Seq:
        """The seq to read next: after the last item handed out."""
        return self._next_seq

    def poll(self, timeout_s: float = 0.0) -> list[Item]:
        """Returns the items that can be read, in order, gaps included; waits up to `timeout_s` for the first."""
        deadline_ns = OsClock().monotonic_ns() + int(timeout_s * 1e9)
        while True:
            items, self._next_seq = self._log.read_on(self.topic, self._next_seq)
            left_ns = deadline_ns - OsClock().monotonic_ns()
            if items or left_ns <= 0 or not self._log.wait_for(self.topic, self._next_seq, left_ns / 1e9):
                return items

    def commit(self) -> None:
        """Store durably that the owner has read everything before `next_seq`."""
        self._log.commit(check_owner(self._owner), self.topic, self._next_seq)

    def __iter__(self) -> Iterator[Item]:
        """Iterate over all items from here on, forever: at the end of the log it waits for more."""
        while True:
            yield from self.hand_out(self.read_ahead())
            self._log.wait_for(self.topic, self._next_seq)

    def read_ahead(self) -> tuple[list[Item], Seq]:
        """Read the next items without handing them out; returns them and the seq after all of them."""
        return self._log.read_on(self.topic, self._next_seq)

    def hand_out(self, read: tuple[list[Item], Seq]) -> Iterator[Item]:
        """Yield the items of `read_ahead`, advancing `next_seq` with each."""
        items, end_seq = read
        for item in items:
            self._next_seq = seq_after(item)
            yield item
        self._next_seq = end_seq


class PositionSubscriber:
    """A reader of all topics in the total order that continues where it stopped.

    Create one with `EmbeddedLog.position_subscriber`. Use it from one thread at a time.
    """

    def __init__(self, log: SubscribedLog, next_position: Position) -> None:
        self._log = log
        self._next_position = next_position

    @property
    def next_position(self) -> Position:
        """The position to read next: after the last item handed out."""
        return self._next_position

    def poll(self, timeout_s: float = 0.0) -> list[PositionItem]:
        """Returns the items of all topics that can be read; waits up to `timeout_s` for the first."""
        items = self.read_ahead()
        if not items and timeout_s > 0 and self._log.wait_for_position(self._next_position, timeout_s):
            items = self.read_ahead()
        if items:
            self._next_position = items[-1].next_position
        return items

    def __iter__(self) -> Iterator[PositionItem]:
        """Iterate over all items from here on, forever: at the end of the log it waits for more."""
        while True:
            yield from self.hand_out(self.read_ahead())
            self._log.wait_for_position(self._next_position)

    def read_ahead(self) -> list[PositionItem]:
        """Read the next items without handing them out."""
        return self._log.read_positions(self._next_position)

    def hand_out(self, items: list[PositionItem]) -> Iterator[PositionItem]:
        """Yield the items of `read_ahead`, advancing `next_position` with each."""
        for item, next_position in with_next_positions(items):
            self._next_position = next_position
            yield item
