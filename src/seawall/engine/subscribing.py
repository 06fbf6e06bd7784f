"""Readers that remember where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from seawall.core.types import Position, Seq
from seawall.engine.records import Item, PositionItem, seq_after
from seawall.errors import InvalidInputError

if TYPE_CHECKING:
    from seawall.engine.embedded import EmbeddedLog

#: Where a reader by position begins.
PositionStart: TypeAlias = Literal["earliest", "latest"] | int


class Subscriber:
    """A reader of one topic that goes on where it stopped. For one thread at a time."""

    def __init__(self, log: EmbeddedLog, topic: str, next_seq: Seq, owner: str | None) -> None:
        self._log = log
        self._owner = owner
        self.topic = topic
        #: What is read next.
        self.next_seq = next_seq

    def poll(self, timeout_s: float = 0.0) -> list[Item]:
        """What is there to read, waiting up to `timeout_s` for something; gaps come in order with the batches."""
        items = self._log.read(self.topic, self.next_seq)
        if not items and timeout_s > 0 and self._log.wait_for(self.topic, self.next_seq, timeout_s):
            items = self._log.read(self.topic, self.next_seq)
        if items:
            self.next_seq = seq_after(items[-1])
        return items

    def commit(self) -> None:
        """Keep that everything before `next_seq` was read, durably, for the owner."""
        if self._owner is None:
            raise InvalidInputError("a subscriber without an owner has nothing to commit under")
        self._log.commit(self._owner, self.topic, self.next_seq)


class PositionSubscriber:
    """A reader of everything in the one order that goes on where it stopped. For one thread at a time."""

    def __init__(self, log: EmbeddedLog, next_position: Position) -> None:
        self._log = log
        #: What is read next.
        self.next_position = next_position

    def poll(self, timeout_s: float = 0.0) -> list[PositionItem]:
        """What is there to read, of all topics, waiting up to `timeout_s` for something."""
        items = self._log.read_positions(self.next_position)
        if not items and timeout_s > 0 and self._log.wait_for_position(self.next_position, timeout_s):
            items = self._log.read_positions(self.next_position)
        if items:
            self.next_position = items[-1].next_position
        return items
