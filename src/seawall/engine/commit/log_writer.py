"""Writes batches to the log: numbers them, stages them in the lane, and writes the lane as one epoch.

Staging a batch gives it its position and its address in the log. The lane holds exactly the next epoch, so the address
is known before a byte is written. A batch is not durable, and must not be acknowledged, before its epoch is.

    stage_batch, stage_control, stage_reference …     in position order
    begin_flush → execute → finish_flush              one epoch; nothing can be staged in between

INV-LOG-SPACE: once a batch has its numbers, only a failing disk keeps it out of the log: space and descriptors are
reserved before. Everything that `reserve` has granted can be staged and written.

Batches are staged and written in position order. An unpositioned control batch takes no position: it carries the
position of the batch that is staged next.

A crash loses what is staged and not flushed. Topics of class `memory` accept that; appends to all others wait for the
flush. One owner at a time. This module must not know topics, segments or waiters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeAlias

import numpy as np

from seawall import limits
from seawall.core.types import LaneEpoch, Position, Seq, Term, TimestampNs
from seawall.errors import FatalError, LimitError
from seawall.io.interfaces import Clock, Readable, ReadableBuffer, WritableBuffer
from seawall.kernels.admission.frontier import Rows
from seawall.kernels.runtime.memory import Bytes
from seawall.sequencer.client_window import ClientWindow
from seawall.sequencer.frontier import CommitFrontier, Draft, Numbered
from seawall.storage.control.batches import Compound, Control, SimpleControl, UnpositionedControl, control_batch
from seawall.storage.control.codec import Reference
from seawall.storage.wal.epoch_write import EpochWrite
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, WalAddress
from seawall.storage.wal.lane_staging import LaneSpace
from seawall.storage.wal.lanes import Lane
from seawall.storage.wal.writer import WalWriter
from seawall.wire.format.batches import BatchSource, parse_batch_header
from seawall.wire.format.codes import AckStatus

#: Releases the store's memory lock for the length of a context, in which nothing visible changes.
Unlocked: TypeAlias = Callable[[], AbstractContextManager[None]]

_NS_PER_US: Final = 1_000
_LANE_SIZE: Final = limits.LANE_BUFFER_SIZE


class LogWriter:
    """Numbers, stages and writes the batches of one data directory."""

    def __init__(self, wal: WalWriter, frontier: CommitFrontier, lane: Lane, term: Term, clock: Clock) -> None:
        self._wal = wal
        self._lane = lane
        self._owner = lane.claim("log writer")
        self._term = term
        self._clock = clock
        self._epoch = LaneEpoch(0)
        #: Bytes in the lane that are not written yet.
        self.staged = 0
        self._count = 0
        self._unpositioned_count = 0
        #: The lane ticket of the next batch.
        self._ticket = 0
        self._first_position = Position(0)
        self._next_position = Position(0)
        self._timestamp_ns = TimestampNs(0)
        self.frontier = frontier
        #: True if a sequencer assigns the positions: then the store stages its controls without one.
        self.follows = False
        #: True if the next control takes a position of the order nevertheless.
        self.has_position_grant = False

    @property
    def is_observed(self) -> bool:
        """True if the lane has observers."""
        return self._lane.is_observed

    @property
    def next_position(self) -> Position:
        """The position after everything that is logged or staged."""
        return self._next_position if self._count else self._wal.next_position

    @property
    def is_behind(self) -> bool:
        """True if the sequencer has numbered batches that the log does not have yet; clients may know their numbers."""
        return self.follows and self.frontier.next_position > self.next_position

    @property
    def is_settled(self) -> bool:
        """True if everything staged so far is written and durable."""
        return not self._count and self._wal.synced_through == self._wal.at

    @property
    def log_end(self) -> WalAddress:
        """The address after everything that is logged."""
        return self._wal.at

    # --- staging -------------------------------------------------------------------------------------------------

    def reserve(self, length: int, now_ns: TimestampNs, *, small: bool = False) -> None:
        """Reserve space in the lane and the log for `length` more bytes of batches (INV-LOG-SPACE).

        With `small`, a new log file is as small as possible. Raises `DiskFullError` if the disk has no space and
        `LimitError` if no lane holds that much; both change nothing.
        """
        if self.has_space(length):
            return
        if length > limits.LANE_BUFFER_SIZE:
            raise LimitError(
                f"{length} bytes of small batches at once, a lane holds {limits.LANE_BUFFER_SIZE}; commit fewer at once"
            )
        if self.staged:
            self.flush(durable=False)
        self._wal.reserve(length, now_ns, small=small)

    def has_space(self, length: int) -> bool:
        """True if `length` more bytes of batches fit the lane and the current log file."""
        needed = self.staged + length
        return needed <= _LANE_SIZE and self._wal.fits(needed)

    def stage_batch(
        self, draft: Draft, block: ReadableBuffer, wall_ns: int, window: ClientWindow | None
    ) -> tuple[Numbered, WalAddress]:
        """Number a small batch, and stage it if it is admitted: its numbers and its address in the log."""
        size = limits.BATCH_HEADER_SIZE + len(block)
        space = self._lane.space(self._owner, size)
        if space is None:
            raise _no_lane_space(size)
        array, start = space
        at = start + limits.BATCH_HEADER_SIZE
        array.data[at : start + size] = block
        numbered = self.frontier.number(draft, array, start, array, at, start + size, self._term, wall_ns, window)
        address = self._next_address()
        if numbered.status is AckStatus.OK:
            self._lane.take(self._owner, size, self._ticket)
            self._count_in(size, 1, numbered.position, numbered.timestamp_ns)
        return numbered, address

    def space_for_run(self, length: int) -> tuple[LaneSpace, WalAddress]:
        """Lane memory for a run of batches of `length` bytes in all, and the log address of the first."""
        space = self._lane.space(self._owner, length)
        if space is None:
            raise _no_lane_space(length)
        return space, self._next_address()

    def stage_run(self, size: int, count: int, first_position: Position, timestamp_ns: TimestampNs) -> None:
        """Stage batches that were written back to back into the last `space_for_run`; their positions are dense."""
        self._lane.take(self._owner, size, self._ticket, count)
        self._count_in(size, count, first_position, timestamp_ns)

    def number_direct(
        self, draft: Draft, block: ReadableBuffer, wall_ns: int, window: ClientWindow | None
    ) -> tuple[Numbered, bytes]:
        """Number a batch that is written directly to its segment: its numbers and header. `stage_reference` is next."""
        header = np.zeros(limits.BATCH_HEADER_SIZE, np.uint8)
        view = np.frombuffer(block, np.uint8)
        numbered = self.frontier.number(draft, header, 0, view, 0, view.size, self._term, wall_ns, window)
        return numbered, header.tobytes()

    def stage_reference(self, header: bytes, segment_first_seq: Seq, at: int) -> None:
        """Stage a reference: the batch with this header is at offset `at` of a segment."""
        parsed = parse_batch_header(header, source=BatchSource.STORED)
        self._stage_numbered(Reference(parsed, segment_first_seq, at), parsed.position, parsed.timestamp_ns)

    def control_of(self, parts: Sequence[SimpleControl]) -> Control:
        """Combine changes into one control: an unpositioned one if a sequencer assigns positions."""
        if self.follows and not self.has_position_grant:
            return UnpositionedControl(tuple(parts))
        return parts[0] if len(parts) == 1 else Compound(tuple(parts))

    def stage_control(self, control: Control, wall_ns: int, *, at: Position | None = None) -> Position:
        """Number a control and stage it: its position. An unpositioned one has that of the next batch (`at`)."""
        if isinstance(control, UnpositionedControl):
            position = self.next_position if at is None else at
            timestamp_ns = self.frontier.last_timestamp_ns
        else:
            position, timestamp_ns = self.frontier.number_control(wall_ns)
            self.has_position_grant = False
        self._stage_numbered(control, position, timestamp_ns)
        return position

    def number_transaction(self, headers: Bytes, wall_ns: int) -> tuple[Position, TimestampNs, Rows]:
        """Number batches that are written directly to segments, all at one position. `stage_transaction` is next."""
        return self.frontier.number_transaction(headers, self._term, wall_ns)

    def stage_transaction(self, control: Control, position: Position, timestamp_ns: TimestampNs) -> None:
        """Stage the control that refers to batches of `number_transaction`."""
        self.has_position_grant = False
        self._stage_numbered(control, position, timestamp_ns)

    def _stage_numbered(self, control: Control, position: Position, timestamp_ns: TimestampNs) -> None:
        batch = control_batch(control, position=position, timestamp_ns=timestamp_ns, term=self._term)
        self._lane.append(self._owner, batch, self._ticket)
        self._count_in(len(batch), 1, position, timestamp_ns)
        if isinstance(control, UnpositionedControl):
            self._unpositioned_count += 1
            self._next_position = position

    def _next_address(self) -> WalAddress:
        return WalAddress(self._wal.at + EPOCH_HEADER_SIZE + self.staged)

    def _count_in(self, size: int, count: int, first_position: Position, timestamp_ns: TimestampNs) -> None:
        if not self._count:
            self._first_position = first_position
        self.staged += size
        self._count += count
        self._ticket += count
        self._next_position = Position(first_position + count)
        self._timestamp_ns = max(self._timestamp_ns, timestamp_ns)

    # --- writing -------------------------------------------------------------------------------------------------

    def flush(self, *, durable: bool, unlocked: Unlocked = nullcontext) -> None:
        """Write what is staged; with `durable`, sync it and everything before it.

        `unlocked` releases the store's memory lock for the write: readers see nothing of it before it is applied.
        """
        write = self.begin_flush()
        if write is not None:
            with unlocked():
                write.execute(durable=durable)
            self.finish_flush(write, durable=durable)
        elif durable:
            self._wal.sync()

    def begin_flush(self) -> EpochWrite | None:
        """Seal what is staged as one epoch for the caller to write; None if nothing is staged."""
        if not self._count:
            return None
        self._epoch = LaneEpoch(self._epoch + 1)
        self._lane.seal_active(self._epoch)
        flush = self._lane.begin_flush(self._clock.monotonic_ns() // _NS_PER_US)
        pieces = flush.pieces()
        numbers = (self._first_position, self._count, self._timestamp_ns, self._unpositioned_count)
        return self._wal.begin_epoch(pieces, self.staged, *numbers)

    def finish_flush(self, write: EpochWrite, *, durable: bool) -> None:
        """Record that the epoch is written, and with `durable` synced."""
        self._wal.finish_epoch(write, durable=durable)
        self._lane.complete_flush(self._clock.monotonic_ns() // _NS_PER_US)
        self.staged = self._count = self._unpositioned_count = 0

    def fail_flush(self, error: BaseException) -> None:
        """Report a failed write of the epoch to the observers of the lane. Nothing can be written any more."""
        if self._lane.flush is not None:
            self._lane.fail_flush(type(error).__name__, self._clock.monotonic_ns() // _NS_PER_US)

    # --- reading back --------------------------------------------------------------------------------------------

    def locate(self, address: WalAddress) -> tuple[Readable, int]:
        """The file that holds a batch of the log, and its offset there; the lane for a batch that is only staged."""
        staged_at = self._wal.at + EPOCH_HEADER_SIZE
        if address >= staged_at and self._count:
            return StagedBytes(self._lane.staged_bytes()), address - staged_at
        return self._wal.locate(address)


class StagedBytes:
    """Read access to the staged bytes by offset. Valid until the next flush ends."""

    path: Final = "the lane"

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def read(self, length: int, at: int) -> bytes:
        """Up to `length` bytes from offset `at`."""
        return bytes(self._memory[at : at + length])

    def read_into(self, buffers: Sequence[WritableBuffer], at: int) -> int:
        """Fill the buffers from offset `at`; return the bytes read."""
        total = 0
        for buffer in buffers:
            piece = self._memory[at + total : at + total + len(buffer)]
            buffer[: len(piece)] = piece
            total += len(piece)
        return total


def _no_lane_space(size: int) -> FatalError:
    return FatalError(f"the lane has no space for {size} bytes that were reserved (INV-LOG-SPACE)")
