"""Reserves space for the next batches of a topic: in its active segment, in a new one if that is full, and in the log.

Space is reserved before anything is numbered or staged. A full disk is detected here, and then nothing has changed.
Controls that have to be logged before the first batch (a roll, an eviction) are part of the reservation.

Batches that fit a reservation always get a segment position and space in the log.
This module must not know the callers that append, nor how seqs are assigned.
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

#: The most bytes of control batches that an epoch may have for each topic.
CONTROL_SIZE_MAX: Final = 1_024

#: An ephemeral topic spreads its byte limit over at least this many segments.
_SEGMENTS_IN_MEMORY: Final = 8

_NS_PER_MS: Final = 1_000_000
_NEVER: Final = 1 << 64
_UNBOUNDED: Final = 1 << 62


class Need(NamedTuple):
    """What the batches of one topic need together: records, uncompressed bytes of the blocks, bytes of the batches."""

    records: int
    plain_size: int
    size: int


class Reserver:
    """Makes the reservations of one store."""

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

    def reserve(self, topic: TopicState, need: Need, logged: int, now_ns: TimestampNs) -> Reservation:
        """Reserve space for batches of a topic, deducted already, and for `logged` bytes in the log.

        If there is no space, a segment that was begun for them is rolled back: the log has no roll to it yet.
        """
        raised = self._cleaner.plan_eviction(topic, need.records, need.plain_size, now_ns)
        log = self._log_of(topic)
        before = log.active
        bounds = self._bounds(topic)
        starts_segment = before is None or log.needs_roll(bounds, now_ns)
        if starts_segment:
            log.begin(topic.next_seq, now_ns)
        active = log.unsealed[-1]
        try:
            active.segment.reserve(need.size)
            self._writer.reserve(logged, now_ns)
        except (CallerError, RetryableError) as error:
            if starts_segment:
                log.undo_begin()
            if isinstance(error, DiskFullError):
                self._checkpoint_schedule.disk_full_found(self._writer.log_end)
            raise
        if not log.is_kept:
            # Nothing to flush: its batches are in memory, which is freed segment by segment.
            log.seal_rolled()
        elif starts_segment and before is not None:
            self._checkpoint_schedule.rolled(before.filled)
        preceding: list[SegmentRoll | FloorRaise] = [] if raised is None else [raised]
        if starts_segment and before is not None and log.is_kept:
            preceding.append(SegmentRoll(topic.topic_id, topic.next_seq, before.segment.first_seq))
        index, segment = active.segment.index, active.segment
        is_limited = self._cleaner.is_limited(topic)
        records = bounds.records - index.record_count if bounds.records else _UNBOUNDED
        free = segment.reserved - segment.end
        if bounds.size:
            free = min(free, bounds.size - segment.size)
        is_written = topic.config.durability in (Durability.DISK, Durability.FSYNC)
        began_ns = index.first_timestamp_ns if len(index) else now_ns
        return Reservation(
            topic,
            active,
            preceding,
            is_limited=is_limited,
            is_kept=log.is_kept,
            is_durable=topic.config.durability is Durability.FSYNC,
            is_written=is_written,
            # Evictions of a limited topic are decided anew before every commit.
            records_left=0 if is_limited else records - need.records,
            bytes_left=free - need.size,
            valid_until_ns=began_ns + bounds.age_ms * _NS_PER_MS if bounds.age_ms else _NEVER,
            allows_cycles=is_written and not preceding and not self._writer.is_observed,
        )

    def _bounds(self, topic: TopicState) -> SegmentLimits:
        config, size = topic.config, topic.config.segment_max_bytes
        if config.durability is Durability.EPHEMERAL:
            # Its memory is freed segment by segment, so segments are small compared with its limit.
            part = max(SEGMENT_RESERVE_SIZE_MIN, self._cleaner.bytes_max(topic) // _SEGMENTS_IN_MEMORY)
            size = min(size or part, part)
        return SegmentLimits(config.segment_max_records, size, config.segment_max_age_ms)

    def roll_back(self, reservation: Reservation) -> None:
        """Undo `make` of an unused reservation: remove the segment that it began, if the log has no roll to it yet."""
        if any(isinstance(control, SegmentRoll) for control in reservation.controls):
            self._log_of(reservation.topic).undo_begin()
