"""Where the next batches of a topic go: a segment with room for them, begun where there is none or the last is full.

Room is made before anything is promised or staged: a full disk is found here, and then everything is as it was. What
has to be in the log before the first batch (a roll, an eviction) comes with the room.

What a room has counted in finds its segment position, and space in the log.
This module must not know who appends, nor how seqs are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from seawall.core.types import TimestampNs
from seawall.engine.commit.log_writer import LogWriter
from seawall.engine.commit.reservations import Reservation
from seawall.engine.maintenance.checkpoint_schedule import CheckpointSchedule
from seawall.engine.maintenance.retention import LogCleaner
from seawall.engine.store.topic_log import TopicLog
from seawall.errors import CallerError, DiskFullError, RetryableError
from seawall.limits import SEGMENT_RESERVE_SIZE_MIN
from seawall.storage.control.codec import SegmentRoll
from seawall.storage.control.documents import FloorRaise
from seawall.storage.segments.limits import SegmentLimits
from seawall.topics.config import Durability
from seawall.topics.state import TopicState

#: Bytes of control batches that may stand in an epoch beside the batches of a topic.
CONTROL_ROOM: Final = 1_024

#: Segments, at the least, over which a topic in memory spreads what it may hold.
_SEGMENTS_IN_MEMORY: Final = 8

_NS_PER_MS: Final = 1_000_000
_NEVER: Final = 1 << 64
_UNBOUNDED: Final = 1 << 62


class Need(NamedTuple):
    """What batches of one topic take together: records, bytes of their plain blocks, bytes of the batches."""

    records: int
    plain_size: int
    size: int


class Reserver:
    """Rooms of one store."""

    def __init__(
        self,
        writer: LogWriter,
        cleaner: LogCleaner,
        log_of: Callable[[TopicState], TopicLog],
        checkpoint_schedule: CheckpointSchedule,
    ) -> None:
        self._writer = writer
        self._cleaner = cleaner
        self._log_of = log_of
        self._checkpoint_schedule = checkpoint_schedule

    def make(self, topic: TopicState, need: Need, logged: int, now_ns: TimestampNs) -> Reservation:
        """Room for batches of a topic, counted in, and for `logged` bytes in the log.

        Where there is none a segment that was begun for them is taken back: no roll in the log tells of it.
        """
        raised = self._cleaner.evict_ahead(topic, need.records, need.plain_size, now_ns)
        log = self._log_of(topic)
        before = log.writing
        bounds = self._bounds(topic)
        begins = before is None or log.needs_roll(bounds, now_ns)
        if begins:
            log.begin(topic.next_seq, now_ns)
        filling = log.filling[-1]
        try:
            filling.segment.reserve(need.size)
            self._writer.reserve(logged, now_ns)
        except (CallerError, RetryableError) as error:
            if begins:
                log.take_back()
            if isinstance(error, DiskFullError):
                self._checkpoint_schedule.found_no_space(self._writer.log_end)
            raise
        if not log.is_kept:
            # No checkpoint has to bring anything to its place, and memory is given back by the segment.
            log.seal_rolled()
        elif begins and before is not None:
            self._checkpoint_schedule.rolled(before.filled)
        ahead: list[SegmentRoll | FloorRaise] = [] if raised is None else [raised]
        if begins and before is not None and log.is_kept:
            ahead.append(SegmentRoll(topic.topic_id, topic.next_seq, before.segment.first_seq))
        index, segment = filling.segment.index, filling.segment
        is_limited = self._cleaner.is_limited(topic)
        records = bounds.records - index.record_count if bounds.records else _UNBOUNDED
        free = segment.reserved - segment.end
        if bounds.size:
            free = min(free, bounds.size - segment.size)
        is_written = topic.config.durability in (Durability.DISK, Durability.FSYNC)
        began_ns = index.first_timestamp_ns if len(index) else now_ns
        return Reservation(
            topic,
            filling,
            ahead,
            is_limited=is_limited,
            is_kept=log.is_kept,
            is_durable=topic.config.durability is Durability.FSYNC,
            is_written=is_written,
            # What a limited topic has to evict is asked before every commit.
            records_left=0 if is_limited else records - need.records,
            bytes_left=free - need.size,
            until_ns=began_ns + bounds.age_ms * _NS_PER_MS if bounds.age_ms else _NEVER,
            allows_cycles=is_written and not ahead and not self._writer.is_observed,
        )

    def _bounds(self, topic: TopicState) -> SegmentLimits:
        config, size = topic.config, topic.config.segment_max_bytes
        if config.durability is Durability.EPHEMERAL:
            # Its memory is given back segment by segment: they are small beside what it may hold.
            part = max(SEGMENT_RESERVE_SIZE_MIN, self._cleaner.bytes_max(topic) // _SEGMENTS_IN_MEMORY)
            size = min(size or part, part)
        return SegmentLimits(config.segment_max_records, size, config.segment_max_age_ms)

    def take_back(self, reservation: Reservation) -> None:
        """Undo `make` of a room in which nothing was placed, where a roll still has to tell of its segment."""
        if any(isinstance(control, SegmentRoll) for control in reservation.ahead):
            self._log_of(reservation.topic).take_back()
