"""Readers that remember where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seawall.core.types import Seq
from seawall.engine.records import Item, seq_after
from seawall.errors import InvalidInputError

if TYPE_CHECKING:
    from seawall.engine.embedded import EmbeddedLog


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
