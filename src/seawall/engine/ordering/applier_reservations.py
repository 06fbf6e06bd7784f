"""The reservations of an applier: for the entries that it applies, and for batches that will be ordered next.

A reservation may have begun a segment to which the log has no roll yet. It keeps the roll, to be logged before its
first batch. If no batch comes, the segment is rolled back: otherwise replay would give other segment positions.

Has one owner, the applier. This module must not know entries, nor how they are staged.
"""

from __future__ import annotations

from collections.abc import Sequence

from seawall.core.types import TimestampNs, TopicId
from seawall.engine.commit.log_writer import LogWriter
from seawall.engine.commit.reservations import Reservation, Reservations
from seawall.engine.commit.reserver import CONTROL_SIZE_MAX, Need, Reserver
from seawall.engine.store.control_log import HEADROOM
from seawall.limits import LARGE_BATCH_SIZE
from seawall.storage.control.codec import SegmentRoll
from seawall.storage.shared_file import FilePins
from seawall.topics.state import TopicState


class ApplierReservations:
    """The valid reservations of an applier, by topic."""

    def __init__(self, reservations: Reservations, writer: LogWriter, reserver: Reserver) -> None:
        self._reservations = reservations
        self._writer = writer
        self._reserver = reserver
        self._by_topic: dict[TopicId, Reservation] = {}
        #: Segment files of large batches that will be ordered: their descriptors must be open when they are applied.
        self._pins = FilePins()
        self._generation = reservations.generation

    def drop_invalid(self) -> None:
        """Drop the reservations if what they were made from has changed, and invalidate those of other appends."""
        if self._generation != self._reservations.generation:
            self._drop()
        self._reservations.forget()
        self._generation = self._reservations.generation

    def make(
        self, needs: Sequence[tuple[TopicState, Need]], logged: int, now: int, pins: FilePins | None = None
    ) -> list[Reservation]:
        """Reserve what each topic needs, deducted already, and `logged` bytes in the log; all or nothing.

        Pins the segment files of large batches in `pins`, or until `release`.
        """
        logged += HEADROOM + len(needs) * CONTROL_SIZE_MAX
        self._writer.reserve(logged, TimestampNs(now))
        reservations: list[Reservation] = []
        try:
            for topic, need in needs:
                reservation = self._by_topic.get(topic.topic_id)
                if reservation is None or not reservation.take(need.records, need.size, now):
                    # The log has no roll yet to a segment that was begun before.
                    rolls = (
                        []
                        if reservation is None
                        else [each for each in reservation.controls if isinstance(each, SegmentRoll)]
                    )
                    reservation = self._reserver.reserve(topic, need, logged, TimestampNs(now))
                    reservation.controls += rolls
                    self._by_topic[topic.topic_id] = reservation
                if reservation.is_kept and need.size >= LARGE_BATCH_SIZE:
                    (self._pins if pins is None else pins).pin(reservation.segment.segment.shared)
                reservations.append(reservation)
        except BaseException:
            # The other reservations were deducted for batches that will not come.
            self._drop()
            raise
        return reservations

    def prepare(self, needs: Sequence[tuple[TopicState, Need]], logged: int, now: int) -> None:
        """`make` without the deduction: batches are deducted when they are applied."""
        for (_, need), reservation in zip(needs, self.make(needs, logged, now), strict=True):
            if not reservation.is_limited:
                reservation.records_left += need.records
                reservation.bytes_left += need.size

    def reservation_for(self, topic_id: TopicId, size: int, count: int, logged: int, now: int) -> Reservation | None:
        """The reservation that a commit cycle may use for a topic and `logged` bytes; None if one has to be made."""
        reservation = self._by_topic.get(topic_id)
        if reservation is None or not reservation.allows_cycles or self._generation != self._reservations.generation:
            return None
        return reservation if reservation.fits(count, size, now) and self._writer.has_space(HEADROOM + logged) else None

    def release(self) -> None:
        """Roll back segments that were begun for batches that did not come, and unpin all files."""
        self._pins.unpin_all()
        if any(reservation.controls for reservation in self._by_topic.values()):
            self._drop()

    def _drop(self) -> None:
        self._pins.unpin_all()
        for reservation in self._by_topic.values():
            self._reserver.roll_back(reservation)
        self._by_topic.clear()
