"""Lanes: double-buffered staging areas in which each worker collects its batches for the next group commit.

A lane belongs to one worker. It has two halves: the *active* half takes batches, the *flush* half is being written; a
flush swaps them. A batch that does not fit the active half goes to a bounded overflow or is refused, depending on the
policy. Small batches are copied, so that a thousand of them are one buffer of a vectored write. From LARGE_BATCH_SIZE
bytes on the lane references the caller's buffer, which must stay unchanged until its epoch is durable. Each batch has a
*ticket*, its number in the common order of all lanes (`lane_group` gathers in that order).

    active half   Writable ──seal_active(epoch)──► Sealed ──begin_flush──► becomes the flush half
    flush half    Flushing ──complete_flush──► empty, Writable          Flushing ──fail_flush──► Flushing

An epoch holds the batches that were appended before its seal, overflow included. Batches appended between seal and
flush go to the overflow and move into the new active half when the flush begins: they belong to the next epoch, never
to the sealed one. When the overflow exceeds its bound the lane refuses appends until a serialized drain: one flush of
everything, the flush half first, then the active half, then the overflow.

Lanes must not know threads, clocks or files: the caller passes in the time, writes the flush, and reports an epoch as
durable after its sync has returned. A crash loses what a lane holds; none of it was acknowledged.

INV-LANE-TICKETS: a lane has one owner at a time, and its tickets and epochs rise.

- Only the owner appends: by a token that no second worker can get.
- A half is never Writable and Flushing at once, and the bytes of a flush do not change before the flush is complete.
- A batch is accepted, queued or refused, and its worker learns which; a staged batch is in exactly one epoch.
- An overflow beyond its bound always forces a serialized drain. The drain leaves both halves empty and Writable, and
  the lane accepts appends again.
- Workers on different lanes share nothing, so they never wait for each other; lanes have no lock.
"""

from __future__ import annotations

from seawall import limits
from seawall.core.checks import check
from seawall.core.types import LaneEpoch
from seawall.errors import InvalidInputError, WrongStateError
from seawall.io.interfaces import ReadableBuffer
from seawall.storage.wal.lane_staging import LaneFlush, LaneSpace, Staging, runs_of
from seawall.storage.wal.lane_types import (
    WRITABLE,
    FlushOutcome,
    LaneEvent,
    LaneOutcome,
    LanePhase,
    LanePolicy,
    LaneSettings,
    LaneState,
    LaneTrace,
    Observer,
)

#: The defaults of a lane.
DEFAULT_SETTINGS = LaneSettings()
NO_TRACE = LaneTrace()


class LaneOwner:
    """The token that permits appends to a lane, from `Lane.claim`; compared by identity."""

    __slots__ = ("worker",)

    def __init__(self, worker: str) -> None:
        self.worker = worker


class Lane:
    """The staging area of one worker. Not thread-safe; calls `observer` at the end of every flush."""

    __slots__ = (
        *("_active", "_active_state", "_contention_count", "_flush", "_flush_half", "_flush_state", "_is_draining"),
        *("_last_epoch", "_last_ticket", "_must_drain", "_observer", "_overflow", "_overflow_bytes", "_owner"),
        *("_sealed_overflow", "_settings", "_started_us", "_trace", "core_id"),
    )

    def __init__(
        self,
        core_id: int,
        *,
        settings: LaneSettings = DEFAULT_SETTINGS,
        trace: LaneTrace = NO_TRACE,
        observer: Observer | None = None,
    ) -> None:
        self.core_id = core_id
        self._settings = settings
        self._trace = trace
        self._observer = observer
        self._owner: LaneOwner | None = None
        self._contention_count = 0
        self._active = Staging(settings.buffer_size)
        self._active_state = WRITABLE
        self._flush_half = Staging(settings.buffer_size)
        self._flush_state = WRITABLE
        self._flush: LaneFlush | None = None
        self._overflow: list[Staging] = []
        self._overflow_bytes = 0
        self._sealed_overflow: list[Staging] = []
        self._must_drain = False
        self._is_draining = False
        self._last_epoch = LaneEpoch(0)
        self._last_ticket = -1
        self._started_us = 0

    @property
    def active_state(self) -> LaneState:
        """The state of the half that takes batches."""
        return self._active_state

    @property
    def flush_state(self) -> LaneState:
        """The state of the other half."""
        return self._flush_state

    @property
    def flush(self) -> LaneFlush | None:
        """The flush in progress, or None; after a failure it can be written again."""
        return self._flush

    @property
    def must_drain(self) -> bool:
        """True if the overflow exceeds its bound, so that appends are refused until a serialized drain."""
        return self._must_drain

    @property
    def overflow_bytes(self) -> int:
        """Bytes in the overflow that belong to no sealed epoch yet."""
        return self._overflow_bytes

    @property
    def has_unsealed(self) -> bool:
        """True if there are batches that belong to no epoch yet."""
        if self._is_draining:
            return False
        return bool(self._overflow or (self._active_state is WRITABLE and self._active.runs))

    @property
    def contention_count(self) -> int:
        """How often a worker claimed this lane while another owned it: 0 if each worker has its own."""
        return self._contention_count

    @property
    def is_observed(self) -> bool:
        """True if the lane has an observer."""
        return self._observer is not None

    def staged_bytes(self) -> memoryview:
        """Copied batches that are not durable yet: of the flush in progress, else of the active half."""
        half = self._active if self._flush is None else self._flush_half
        return half.written()

    def claim(self, worker: str) -> LaneOwner:
        """Make a worker the owner of this lane; `WrongStateError` while another one is."""
        if self._owner is not None:
            self._contention_count += 1
            raise WrongStateError(f"lane {self.core_id} belongs to {self._owner.worker}, {worker} cannot have it")
        self._owner = LaneOwner(worker)
        return self._owner

    def release(self, owner: LaneOwner) -> None:
        """Release the lane; staged batches stay in it."""
        self._check_owner(owner)
        self._owner = None

    def append(self, owner: LaneOwner, data: ReadableBuffer, first_ticket: int, count: int = 1) -> LaneOutcome:
        """Stage `count` contiguous batches with consecutive tickets: all of them or none."""
        self._check_owner(owner)
        view = memoryview(data)
        if count < 1 or not view.nbytes:
            raise InvalidInputError(f"an append of {count} batches in {view.nbytes} bytes: neither may be 0")
        check(first_ticket > self._last_ticket, "INV-LANE-TICKETS", f"ticket {first_ticket}")
        outcome = self._stage(view, first_ticket, first_ticket + count - 1)
        if outcome is not LaneOutcome.REFUSED:
            self._last_ticket = first_ticket + count - 1
        return outcome

    def space(self, owner: LaneOwner, length: int) -> LaneSpace | None:
        """Space to write small batches of that length in place; None if they do not fit the active half.

        `take` adds them to the lane. Use `append` for bytes that exist already.
        """
        self._check_owner(owner)
        if self._active_state is not WRITABLE or self._must_drain or self._overflow:
            return None
        return self._active.space(length)

    def take(self, owner: LaneOwner, length: int, first_ticket: int, count: int = 1) -> None:
        """Add the contiguous batches that were written into the last `space`."""
        self._check_owner(owner)
        check(first_ticket > self._last_ticket, "INV-LANE-TICKETS", f"ticket {first_ticket}")
        self._last_ticket = first_ticket + count - 1
        self._active.take_written(length, first_ticket, self._last_ticket)

    def seal_active(self, epoch: LaneEpoch) -> None:
        """Close the epoch: it gets all batches staged so far, overflow included."""
        if self._active_state is not WRITABLE or self._must_drain:
            raise self._refusal(f"seal epoch {epoch}")
        self._check_epoch(epoch)
        self._last_epoch = epoch
        self._active_state = LaneState(LanePhase.SEALED, epoch)
        self._sealed_overflow, self._overflow, self._overflow_bytes = self._overflow, [], 0

    def begin_flush(self, now_us: int) -> LaneFlush:
        """Return the sealed epoch for writing; swap the halves and move the overflow into the new active half."""
        epoch = self._active_state.epoch
        if self._active_state.phase is not LanePhase.SEALED or self._flush_state is not WRITABLE or epoch is None:
            raise self._refusal("begin a flush")
        flush = LaneFlush(epoch, tuple(runs_of((self._active, *self._sealed_overflow))))
        self._sealed_overflow = []
        self._active, self._flush_half = self._flush_half, self._active
        self._active_state, self._flush_state = WRITABLE, LaneState(LanePhase.FLUSHING, epoch)
        self._started_us = now_us
        self._flush = flush
        self._admit_overflow()
        return flush

    def begin_drain(self, epoch: LaneEpoch, now_us: int) -> LaneFlush:
        """Return everything as one new epoch for writing: flush half, active half, overflow.

        The lane refuses appends until the drain is complete. A flush in progress becomes part of it, and is not
        completed separately.
        """
        if self._is_draining:
            raise self._refusal(f"drain under epoch {epoch}")
        self._check_epoch(epoch)
        unfinished = self._flush.runs if self._flush is not None else ()
        rest = runs_of((self._active, *self._sealed_overflow, *self._overflow))
        self._flush = LaneFlush(epoch, (*unfinished, *rest))
        self._last_epoch = epoch
        self._active_state = self._flush_state = LaneState(LanePhase.FLUSHING, epoch)
        self._is_draining = True
        self._started_us = now_us
        return self._flush

    def complete_flush(self, now_us: int) -> None:
        """Free the memory of a flush that was written; after a drain the whole lane is empty."""
        flush = self._flushing("complete a flush")
        state, outcome = self._flush_state, FlushOutcome.FLUSHED
        if self._is_draining:
            outcome = FlushOutcome.DRAINED
            self._active.reset()
            self._active_state = WRITABLE
            self._sealed_overflow, self._overflow, self._overflow_bytes = [], [], 0
            self._must_drain = self._is_draining = False
        self._flush_half.reset()
        self._flush_state = WRITABLE
        self._flush = None
        self._report(flush, state, outcome, now_us, None)

    def fail_flush(self, error_code: str, now_us: int) -> None:
        """Record that writing failed: the lane stays Flushing and keeps the bytes, which are not durable."""
        flush = self._flushing("fail a flush")
        self._report(flush, self._flush_state, FlushOutcome.FAILED, now_us, error_code)

    def _stage(self, data: memoryview, first_ticket: int, last_ticket: int) -> LaneOutcome:
        if self._must_drain or self._is_draining:
            return LaneOutcome.REFUSED
        # While the overflow holds batches, nothing goes into the active half, or a lane would reorder its own batches.
        if self._active_state is WRITABLE and not self._overflow and self._active.has_space(data.nbytes):
            self._active.take(data, first_ticket, last_ticket)
            return LaneOutcome.ACCEPTED
        if self._settings.policy is LanePolicy.BLOCK_WRITER:
            return LaneOutcome.REFUSED
        if not self._overflow or not self._overflow[-1].has_space(data.nbytes):
            self._overflow.append(Staging(limits.LANE_OVERFLOW_CHUNK_SIZE))
        self._overflow[-1].take(data, first_ticket, last_ticket)
        self._overflow_bytes += data.nbytes
        self._must_drain = self._overflow_bytes > self._settings.overflow_size
        return LaneOutcome.QUEUED

    def _admit_overflow(self) -> None:
        """Move overflow runs into the active half, in order, as long as they fit."""
        for staging in self._overflow:
            while staging.runs:
                run = staging.runs[0]
                if not self._active.has_space(run.end - run.start):
                    self._overflow = [each for each in self._overflow if each.runs]
                    return
                self._active.take(run.memory[run.start : run.end], run.first_ticket, run.last_ticket)
                self._overflow_bytes -= run.end - run.start
                del staging.runs[0]
        self._overflow = []

    def _flushing(self, action: str) -> LaneFlush:
        if self._flush is None:
            raise self._refusal(action)
        return self._flush

    def _check_owner(self, owner: LaneOwner) -> None:
        check(owner is self._owner, "INV-LANE-TICKETS", f"{owner.worker} does not own lane {self.core_id}")

    def _check_epoch(self, epoch: LaneEpoch) -> None:
        if epoch <= self._last_epoch:
            raise WrongStateError(
                f"lane {self.core_id} cannot take epoch {epoch}: it had {self._last_epoch} (INV-LANE-TICKETS)"
            )

    def _refusal(self, action: str) -> WrongStateError:
        drain = ", a drain is due" if self._must_drain else ""
        states = f"active half {self._active_state}, flush half {self._flush_state}"
        return WrongStateError(f"lane {self.core_id} cannot {action}: {states}{drain}")

    def _report(
        self, flush: LaneFlush, state: LaneState, outcome: FlushOutcome, now_us: int, error_code: str | None
    ) -> None:
        if self._observer is None:
            return
        trace = self._trace
        self._observer(
            LaneEvent(
                trace_id=trace.trace_id,
                run_id=trace.run_id,
                scenario_id=trace.scenario_id,
                work_id=trace.work_id,
                core_id=self.core_id,
                epoch=flush.epoch,
                lane_state_from=str(state),
                lane_state_to=str(self._flush_state),
                outcome=outcome,
                duration_us=now_us - self._started_us,
                error_code=error_code,
            )
        )
