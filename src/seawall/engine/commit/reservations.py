"""Reservations: space that a topic has reserved in its active segment, so that most appends need no further check.

A reservation is valid until what it was made from changes: segments, ceilings or settings. A crash loses reservations;
they exist in memory only.
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

#: Unread bytes at the end of a topic after which its large batches bypass the page cache.
_UNREAD_CACHED_SIZE: Final = GIB


@dataclass(slots=True)
class Reservation:
    """Space for the next batches of one topic: its active segment, and how much more fits there."""

    topic: TopicState
    segment: ActiveSegment
    #: Controls to log before the first batch: the roll to this segment, and evictions.
    controls: list[SegmentRoll | FloorRaise]
    #: True if the topic has caps or ages: then every commit makes a new reservation.
    is_limited: bool
    #: True if the batches go to segment files, False for topics of class `ephemeral`.
    is_kept: bool
    #: True for class `fsync`: commits are synced before they are acknowledged.
    is_durable: bool
    #: True for classes `disk` and `fsync`: commits are written before they are acknowledged.
    is_written: bool
    records_left: int
    bytes_left: int
    valid_until_ns: int
    #: True if a commit cycle may stage small batches: they need nothing but numbers, and the lane has no observers.
    allows_cycles: bool = False

    @property
    def is_uncached(self) -> bool:
        """True after 1 GiB of unread appends: bypass the page cache."""
        return self.segment.unread >= _UNREAD_CACHED_SIZE

    def fits(self, records: int, size: int, now: int) -> bool:
        """True if batches with this many records and bytes fit, and the reservation has not expired."""
        return records <= self.records_left and size <= self.bytes_left and now < self.valid_until_ns

    def take(self, records: int, size: int, now: int) -> bool:
        """Deduct records and bytes; False if they do not fit, and then a new reservation is needed."""
        if not self.fits(records, size, now):
            return False
        self.records_left -= records
        self.bytes_left -= size
        return True


class Reservations:
    """The current reservations of a local orderer, by topic, and when all of them become invalid."""

    __slots__ = ("by_topic", "generation")

    def __init__(self) -> None:
        self.by_topic: dict[TopicId, Reservation] = {}
        #: Incremented by `forget`: owners of other reservations compare it to see whether theirs are still valid.
        self.generation = 0

    def forget(self) -> None:
        """Drop all reservations: something that they were made from has changed."""
        self.by_topic.clear()
        self.generation += 1
