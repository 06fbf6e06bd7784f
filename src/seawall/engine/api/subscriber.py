"""Readers that remember where they are.

    subscriber = log.subscriber("events", "committed", owner="billing")
    for item in subscriber.poll(timeout_s=5): ...     # what is there, or what comes first
    for item in subscriber: ...                       # follows the topic for ever
    subscriber.commit()

While one is iterated over, `next_seq` and `next_position` count what was handed out, not what was read ahead: a commit
in the body of the loop covers the items up to the present one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias

from seawall.api.received import with_next_positions
from seawall.core.types import Position, Seq
from seawall.engine.api.read_results import Item, PositionItem, seq_after
from seawall.errors import InvalidInputError
from seawall.io.process.clocks import OsClock

if TYPE_CHECKING:
    from seawall.engine.api.embedded import EmbeddedLog

#: Where a reader by position begins.
PositionStart: TypeAlias = Literal["earliest", "latest"] | int


class Subscriber:
    """A reader of one topic that goes on where it stopped. For one thread at a time."""

    def __init__(self, log: EmbeddedLog, topic: str, next_seq: Seq, owner: str | None) -> None:
        self._log = log
        self._owner = owner
        self._next_seq = next_seq
        self.topic = topic

    @property
    def next_seq(self) -> Seq:
        """What is read next: behind the last item that was handed out."""
        return self._next_seq

    def poll(self, timeout_s: float = 0.0) -> list[Item]:
        """What is there to read, waiting up to `timeout_s` for something; gaps come in order with the batches."""
        deadline_ns = OsClock().monotonic_ns() + int(timeout_s * 1e9)
        while True:
            items, self._next_seq = self._log.read_on(self.topic, self._next_seq)
            left_ns = deadline_ns - OsClock().monotonic_ns()
            if items or left_ns <= 0 or not self._log.wait_for(self.topic, self._next_seq, left_ns / 1e9):
                return items

    def commit(self) -> None:
        """Keep that everything before `next_seq` was read, durably, for the owner."""
        self._log.commit(check_owned(self._owner), self.topic, self._next_seq)

    def __iter__(self) -> Iterator[Item]:
        """Everything from here on, for ever: at the end it waits for more."""
        while True:
            yield from self.hand_out(self.read_ahead())
            self._log.wait_for(self.topic, self._next_seq)

    def read_ahead(self) -> tuple[list[Item], Seq]:
        """What is there to read, none of it handed out yet, and where reading goes on behind all of it."""
        return self._log.read_on(self.topic, self._next_seq)

    def hand_out(self, found: tuple[list[Item], Seq]) -> Iterator[Item]:
        """Each of what was read; it counts as read from here on."""
        items, behind = found
        for item in items:
            self._next_seq = seq_after(item)
            yield item
        self._next_seq = behind


class PositionSubscriber:
    """A reader of everything in the one order that goes on where it stopped. For one thread at a time."""

    def __init__(self, log: EmbeddedLog, next_position: Position) -> None:
        self._log = log
        self._next_position = next_position

    @property
    def next_position(self) -> Position:
        """What is read next: behind the last item that was handed out."""
        return self._next_position

    def poll(self, timeout_s: float = 0.0) -> list[PositionItem]:
        """What is there to read, of all topics, waiting up to `timeout_s` for something."""
        items = self.read_ahead()
        if not items and timeout_s > 0 and self._log.wait_for_position(self._next_position, timeout_s):
            items = self.read_ahead()
        if items:
            self._next_position = items[-1].next_position
        return items

    def __iter__(self) -> Iterator[PositionItem]:
        """Everything from here on, for ever: at the end it waits for more."""
        while True:
            yield from self.hand_out(self.read_ahead())
            self._log.wait_for_position(self._next_position)

    def read_ahead(self) -> list[PositionItem]:
        """What is there to read, none of it handed out yet."""
        return self._log.read_positions(self._next_position)

    def hand_out(self, items: list[PositionItem]) -> Iterator[PositionItem]:
        """Each of what was read; it counts as read from here on."""
        for item, behind in with_next_positions(items):
            self._next_position = behind
            yield item


def check_owned(owner: str | None) -> str:
    """The owner of a subscriber, which needs one to commit."""
    if owner is None:
        raise InvalidInputError("a subscriber without an owner has nothing to commit under")
    return owner
