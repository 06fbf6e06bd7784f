"""The timeouts of one connection: from times and byte counts to whether its peer is too slow, idle, or due for a ping.

No I/O and no clock: the connection reports what happens, with the time, and asks what follows from it. Only the peer is
charged: the time in which the server itself does not read does not count.
"""

from __future__ import annotations

from seawall.server.connection.session import ConnectionLimits


class Timeouts:
    """The timeouts of one connection. All times are seconds of one monotonic clock."""

    def __init__(self, bounds: ConnectionLimits, now: float) -> None:
        self._bounds = bounds
        #: Seconds without a frame until a ping is due, and until the peer is idle for too long. None is never.
        self.keepalive_s: float | None = None
        self.idle_s: float | None = bounds.v1_idle_s
        #: When the peer last sent a complete frame, when it was last pinged, when reading was last paused.
        self._received_at = self._pinged_at = self._paused_at = now
        #: When the incomplete frame began to arrive; None while there is none.
        self._frame_began: float | None = None
        #: Bytes that were sent, and when the last sufficient progress was made.
        self._sent, self._sent_at = 0, now

    @property
    def check_interval_s(self) -> float:
        """How often to check: a quarter of the shortest timeout."""
        own = [wait for wait in (self.keepalive_s, self.idle_s) if wait is not None]
        return min(self._bounds.frame_time_s, self._bounds.stall_s, *own) / 4

    @property
    def has_incomplete_frame(self) -> bool:
        """True while a frame has begun to arrive."""
        return self._frame_began is not None

    # --- what happens ----------------------------------------------------------------------------------------------

    def frames_received(self, now: float) -> None:
        """Complete frames have arrived."""
        self._received_at, self._frame_began = now, None

    def active_at(self, at: float) -> None:
        """The peer was active at this time, for instance on the publish thread."""
        self._received_at = max(self._received_at, at)

    def frame_incomplete(self, now: float) -> None:
        """A part of a frame is there."""
        if self._frame_began is None:
            self._frame_began = now

    def frame_dropped(self) -> None:
        """The incomplete frame is discarded."""
        self._frame_began = None

    def paused(self, now: float) -> None:
        """The server stops reading."""
        self._paused_at = now

    def resumed(self, now: float) -> None:
        """The server reads again: the pause is not charged to the peer."""
        if self._frame_began is not None:
            self._frame_began += now - self._paused_at
        self._received_at = now

    def pinged(self, now: float) -> None:
        """A ping was sent."""
        self._pinged_at = now

    # --- what follows ----------------------------------------------------------------------------------------------

    def is_stalled(self, now: float, sent: int, unsent: int, *, is_contended: bool) -> bool:
        """True if the peer has received answers too slowly for too long: not at all, or below a rate under contention.

        `sent` counts all bytes sent so far, `unsent` those that wait. Call it at every check.
        """
        least = (now - self._sent_at) * self._bounds.frame_bytes_per_second if is_contended else 1
        if not unsent or sent - self._sent >= least:
            self._sent, self._sent_at = sent, now
            return False
        return now - self._sent_at > (self._bounds.contended_stall_s if is_contended else self._bounds.stall_s)

    def exceeded_frame_time(self, now: float, size: int, *, is_contended: bool) -> float | None:
        """The time that the incomplete frame of `size` bytes was allowed, if it is exceeded; else None."""
        if self._frame_began is None:
            return None
        allowed = self._bounds.frame_time(size, is_contended=is_contended)
        return allowed if now - self._frame_began > allowed else None

    def is_idle(self, now: float) -> bool:
        """True if the peer has been silent for too long."""
        return self.idle_s is not None and now - self._received_at > self.idle_s

    def is_ping_due(self, now: float) -> bool:
        """True if the peer has neither sent anything nor been pinged for the keepalive time."""
        return self.keepalive_s is not None and now - max(self._received_at, self._pinged_at) > self.keepalive_s
