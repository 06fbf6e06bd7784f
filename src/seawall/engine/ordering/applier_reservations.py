"""The rooms of a store that follows: made when entries are followed, or ahead of that for what is to be ordered.

A room that was made ahead may have begun a segment that nothing in the log tells of: it keeps that to be told with its
first batch, and is taken back where none comes: replay would give other segment positions.

One owner, the follower. This module must not know entries, nor how they are staged.
"""

from __future__ import annotations

from collections.abc import Sequence

from seawall.core.types import TimestampNs, TopicId
from seawall.engine.commit.log_writer import LogWriter
from seawall.engine.commit.reservations import Reservation, Reservations
from seawall.engine.commit.reserver import CONTROL_ROOM, Need, Reserver
from seawall.engine.store.control_log import HEADROOM
from seawall.limits import LARGE_BATCH_SIZE
from seawall.storage.control.codec import SegmentRoll
from seawall.storage.shared_file import FilePins
from seawall.topics.state import TopicState


class ApplierReservations:
    """The rooms that are valid, by topic."""

    def __init__(self, reservations: Reservations, writer: LogWriter, maker: Reserver) -> None:
        self._reservations = reservations
        self._writer = writer
        self._maker = maker
        self._by_topic: dict[TopicId, Reservation] = {}
        #: Files that large batches go to which are to be ordered: nothing may be missing when they are followed.
        self._pins = FilePins()
        self._forgotten = reservations.forgotten

    def drop_old(self) -> None:
        """Rooms count only as long as nobody has changed what they were made from, nor appended otherwise."""
        if self._forgotten != self._reservations.forgotten:
            self._drop()
        self._reservations.forget()
        self._forgotten = self._reservations.forgotten

    def make(
        self, needs: Sequence[tuple[TopicState, Need]], logged: int, now: int, pins: FilePins | None = None
    ) -> list[Reservation]:
        """A room for what each topic needs, counted in, and for `logged` bytes in the log; where one finds none, all
        are as they were. Files that large batches may go to are among the `pins`, or open until `let_go`."""
        logged += HEADROOM + len(needs) * CONTROL_ROOM
        self._writer.reserve(logged, TimestampNs(now))
        reservations: list[Reservation] = []
        try:
            for topic, need in needs:
                reservation = self._by_topic.get(topic.topic_id)
                if reservation is None or not reservation.take(need.records, need.size, now):
                    # Nobody has been told yet of a segment that was begun before.
                    rolls = (
                        []
                        if reservation is None
                        else [each for each in reservation.ahead if isinstance(each, SegmentRoll)]
                    )
                    reservation = self._maker.make(topic, need, logged, TimestampNs(now))
                    reservation.ahead += rolls
                    self._by_topic[topic.topic_id] = reservation
                if reservation.is_kept and need.size >= LARGE_BATCH_SIZE:
                    (self._pins if pins is None else pins).pin(reservation.filling.segment.shared)
                reservations.append(reservation)
        except BaseException:
            # What the others have counted in is not coming.
            self._drop()
            raise
        return reservations

    def prepare(self, needs: Sequence[tuple[TopicState, Need]], logged: int, now: int) -> None:
        """`make` for batches that are counted in when they come."""
        for (_, need), reservation in zip(needs, self.make(needs, logged, now), strict=True):
            if not reservation.is_limited:
                reservation.records_left += need.records
                reservation.bytes_left += need.size

    def reservation_for(self, topic_id: TopicId, size: int, count: int, logged: int, now: int) -> Reservation | None:
        """The reservation of a topic for small batches that need nothing but their numbers, and for `logged` bytes in
        the log; None if one has to be made."""
        reservation = self._by_topic.get(topic_id)
        if reservation is None or not reservation.allows_cycles or self._forgotten != self._reservations.forgotten:
            return None
        return (
            reservation if reservation.holds(count, size, now) and self._writer.has_space(HEADROOM + logged) else None
        )

    def let_go(self) -> None:
        """Take back segments that were begun for batches which did not come, and give descriptors back."""
        self._pins.unpin_all()
        if any(reservation.ahead for reservation in self._by_topic.values()):
            self._drop()

    def _drop(self) -> None:
        self._pins.unpin_all()
        for reservation in self._by_topic.values():
            self._maker.take_back(reservation)
        self._by_topic.clear()
