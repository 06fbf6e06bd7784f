"""All lanes of a data directory as one group: sealed together, gathered in ticket order, durable together.

One epoch is one group commit: `seal` closes it in every lane with staged batches, `gather` returns its buffers for one
vectored write, and `mark_durable` completes it after the sync has returned. Nothing else makes an epoch durable: not
the seal, not the write. Epochs are sealed on demand, never by a timer, so a single worker never waits for others.

The next epoch may be sealed while one is being written; it is gathered when that one is durable. If a lane must drain,
all lanes drain together, since tickets order the batches of all lanes.

An epoch is durable only after `mark_durable` of it or of a later one; one is written at a time. Tickets are unique over
all lanes, and those of an epoch are higher than those of every earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from seawall import limits
from seawall.core.checks import check
from seawall.core.types import LaneEpoch
from seawall.errors import LimitError, NotFoundError, WrongStateError
from seawall.storage.wal.lane_staging import LaneFlush
from seawall.storage.wal.lane_types import WRITABLE, LanePhase, LaneSettings, LaneTrace, Observer
from seawall.storage.wal.lanes import DEFAULT_SETTINGS, NO_TRACE, Lane


class LaneGroup:
    """Lanes 0 to `lane_count` − 1 with common epoch numbers. Not thread-safe; workers append to their own lane."""

    __slots__ = ("_durable_epoch", "_gathered", "_lanes", "_last_epoch", "_last_ticket", "_sealed")

    def __init__(
        self,
        lane_count: int,
        *,
        settings: LaneSettings = DEFAULT_SETTINGS,
        trace: LaneTrace = NO_TRACE,
        observer: Observer | None = None,
    ) -> None:
        if not 1 <= lane_count <= limits.LANES_MAX:
            raise LimitError(f"{lane_count} lanes: from 1 to {limits.LANES_MAX}")
        self._lanes = tuple(
            Lane(core_id, settings=settings, trace=trace, observer=observer) for core_id in range(lane_count)
        )
        self._last_epoch = LaneEpoch(0)
        self._durable_epoch = LaneEpoch(0)
        self._sealed: LaneEpoch | None = None
        self._gathered: LaneFlush | None = None
        self._last_ticket = -1

    @property
    def lanes(self) -> Sequence[Lane]:
        """All lanes, by core id."""
        return self._lanes

    @property
    def durable_epoch(self) -> LaneEpoch:
        """The latest durable epoch, 0 before the first."""
        return self._durable_epoch

    @property
    def must_drain(self) -> bool:
        """True if a lane refuses appends until a serialized drain."""
        return any(lane.must_drain for lane in self._lanes)

    def lane(self, core_id: int) -> Lane:
        """The lane of a worker; a core id without a lane is an error, never the lane of another worker."""
        if not 0 <= core_id < len(self._lanes):
            raise NotFoundError(f"core {core_id} has no lane: there are {len(self._lanes)}, from 0")
        return self._lanes[core_id]

    def is_durable(self, epoch: LaneEpoch) -> bool:
        """True if an epoch is durable."""
        return epoch <= self._durable_epoch

    def seal(self, epoch: LaneEpoch) -> None:
        """Close an epoch in every lane with staged batches."""
        self._check_epoch(epoch)
        if self._sealed is not None or self.must_drain or self._is_draining():
            raise WrongStateError(f"epoch {epoch} cannot be sealed: {self._state_text()}")
        for lane in self._lanes:
            if lane.has_unsealed:
                lane.seal_active(epoch)
        self._sealed = self._last_epoch = epoch

    def gather(self, epoch: LaneEpoch, now_us: int) -> LaneFlush:
        """The sealed epoch of all lanes, in ticket order, for the caller to write."""
        if self._sealed != epoch or self._gathered is not None:
            raise WrongStateError(f"epoch {epoch} cannot be gathered: {self._state_text()}")
        sealed = [lane for lane in self._lanes if lane.active_state.phase is LanePhase.SEALED]
        self._sealed = None
        return self._gather(epoch, [lane.begin_flush(now_us) for lane in sealed])

    def drain(self, epoch: LaneEpoch, now_us: int) -> LaneFlush:
        """Everything that the lanes hold, in ticket order, for the caller to write as one new epoch.

        A sealed or gathered epoch that is not durable becomes part of this one.
        """
        self._check_epoch(epoch)
        if self._is_draining():
            raise WrongStateError(f"a drain under epoch {epoch} cannot begin in another: {self._state_text()}")
        self._last_epoch = epoch
        self._sealed = None
        return self._gather(epoch, [lane.begin_drain(epoch, now_us) for lane in self._lanes])

    def mark_durable(self, epoch: LaneEpoch, now_us: int) -> None:
        """Complete the gathered epoch; call it after the epoch is written and its sync has returned."""
        flush = self._flushing(epoch)
        for lane in self._lanes:
            if lane.flush_state is not WRITABLE:
                lane.complete_flush(now_us)
        if flush.last_ticket is not None:
            self._last_ticket = flush.last_ticket
        self._gathered = None
        self._durable_epoch = epoch

    def fail(self, epoch: LaneEpoch, error_code: str, now_us: int) -> None:
        """Record that writing or syncing the gathered epoch failed: it stays staged, and is not durable."""
        self._flushing(epoch)
        for lane in self._lanes:
            if lane.flush_state is not WRITABLE:
                lane.fail_flush(error_code, now_us)

    def _gather(self, epoch: LaneEpoch, flushes: Sequence[LaneFlush]) -> LaneFlush:
        runs = sorted((run for flush in flushes for run in flush.runs), key=attrgetter("first_ticket"))
        last_ticket = self._last_ticket
        for run in runs:
            check(run.first_ticket > last_ticket, "INV-LANE-TICKETS", f"{run.first_ticket} after {last_ticket}")
            last_ticket = run.last_ticket
        self._gathered = LaneFlush(epoch, tuple(runs))
        return self._gathered

    def _flushing(self, epoch: LaneEpoch) -> LaneFlush:
        if self._gathered is None or self._gathered.epoch != epoch:
            raise WrongStateError(f"epoch {epoch} is not being written: {self._state_text()}")
        return self._gathered

    def _is_draining(self) -> bool:
        return any(lane.active_state.phase is LanePhase.FLUSHING for lane in self._lanes)

    def _check_epoch(self, epoch: LaneEpoch) -> None:
        if epoch <= self._last_epoch:
            raise WrongStateError(f"epoch {epoch} is not new: the last was {self._last_epoch} (INV-LANE-TICKETS)")

    def _state_text(self) -> str:
        gathered = "none" if self._gathered is None else self._gathered.epoch
        drain = "; a drain is due" if self.must_drain else ""
        sealed = "none" if self._sealed is None else self._sealed
        return f"sealed is {sealed}, being written is {gathered}, durable is {self._durable_epoch}{drain}"
