"""Reservations: where the batches of a topic go, so that most appends need not look at segment and ceiling again.

They are valid until something changes that they were made from: segments, ceilings or settings. A crash takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from seawall.core.types import TopicId
from seawall.engine.store.topic_log import ActiveSegment
from seawall.limits import GIB
from seawall.storage.control.codec import SegmentRoll
from seawall.storage.control.documents import FloorRaise
from seawall.topics.state import TopicState

#: What may come to a topic, since somebody has read its end, before large batches of it pass the page cache by.
_UNREAD_CACHED_SIZE: Final = GIB


@dataclass(slots=True)
class Reservation:
    """Where the batches of one topic go, and how much more may go there before somebody has to look again."""

    topic: TopicState
    filling: ActiveSegment
    #: To be logged before the first batch.
    ahead: list[SegmentRoll | FloorRaise]
    is_limited: bool
    is_kept: bool
    is_durable: bool
    is_written: bool
    records_left: int
    bytes_left: int
    until_ns: int
    #: Whether a commit cycle may stage small batches: they need nothing but numbers, and nobody watches the lane.
    allows_cycles: bool = False

    @property
    def is_uncached(self) -> bool:
        """Whether nobody is expected to read soon what is written here: so much has come since somebody did."""
        return self.filling.unread >= _UNREAD_CACHED_SIZE

    def holds(self, records: int, size: int, now: int) -> bool:
        """Whether so much more may go there now."""
        return records <= self.records_left and size <= self.bytes_left and now < self.until_ns

    def take(self, records: int, size: int, now: int) -> bool:
        """Count a batch in; false if it does not fit, and then somebody has to look."""
        if not self.holds(records, size, now):
            return False
        self.records_left -= records
        self.bytes_left -= size
        return True


class Reservations:
    """The reservations of the appends that a store numbers itself, by topic."""

    __slots__ = ("by_topic", "forgotten")

    def __init__(self) -> None:
        self.by_topic: dict[TopicId, Reservation] = {}
        #: How often they were forgotten: whoever keeps reservations of its own compares.
        self.forgotten = 0

    def forget(self) -> None:
        """Forget all of them: something has changed that they were made from."""
        self.by_topic.clear()
        self.forgotten += 1
