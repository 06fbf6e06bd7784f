"""What goes into the log, in its order: batches are numbered, staged in the lane, and written as one epoch.

Staging gives a batch its position, and with it its address in the log: the lane holds what the next epoch will hold, so
an address is known before a byte of it is written. Nothing is durable, and nobody may be told, before the epoch is.

    stage_batch, stage_control, stage_reference …     in the order of their positions
    begin_flush → carry out → finish_flush            one epoch; nothing can be staged in between

INV-LOG-ROOM: once a batch has its numbers, only a failing disk keeps it out of the log: space and descriptors are
reserved before. What `reserve` has granted can be staged and written.

What is staged is in the order of positions, and leaves the lane in that order. An aside takes none: it carries the
position of what is staged next.

A crash loses what is staged. Topics of class `memory` accept that; all others wait for the flush.
One owner at a time. This module must not know topics, segments or who waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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

_NS_PER_US: Final = 1_000
_LANE_SIZE: Final = limits.LANE_BUFFER_SIZE


class LogWriter:
    """Numbers, lane and log of one data directory."""

    def __init__(self, wal: WalWriter, frontier: CommitFrontier, lane: Lane, term: Term, clock: Clock) -> None:
        self._wal = wal
        self._lane = lane
        self._owner = lane.claim("log writer")
        self._term = term
        self._clock = clock
        self._epoch = LaneEpoch(0)
        #: Bytes in the lane that are not written.
        self.staged = 0
        self._count = 0
        self._aside_count = 0
        #: Number of the next batch in the lane.
        self._ticket = 0
        self._first_position = Position(0)
        self._next_position = Position(0)
        self._timestamp_ns = TimestampNs(0)
        self.frontier = frontier
        #: Whether positions are given elsewhere: then controls are staged aside, but for the next if one is granted.
        self.follows = False
        self.is_granted = False

    @property
    def is_observed(self) -> bool:
        """Whether somebody watches the lane."""
        return self._lane.is_observed

    @property
    def next_position(self) -> Position:
        """The position behind everything that is logged or staged."""
        return self._next_position if self._count else self._wal.next_position

    @property
    def is_behind(self) -> bool:
        """Whether numbers were given elsewhere to what is not here yet: somebody may have seen them."""
        return self.follows and self.frontier.next_position > self.next_position

    @property
    def is_settled(self) -> bool:
        """Whether all that was staged so far is written, and durable."""
        return not self._count and self._wal.synced_through == self._wal.at

    @property
    def log_end(self) -> WalAddress:
        """The address behind everything that is logged."""
        return self._wal.at

    # --- staging -------------------------------------------------------------------------------------------------

    def reserve(self, length: int, now_ns: TimestampNs, *, small: bool = False) -> None:
        """Make sure that `length` more bytes of batches fit the lane and the log (INV-LOG-ROOM).

        With `small` a new file of the log is the smallest there is. `DiskFullError` if there is no space,
        `LimitError` if so much never fits; both leave everything as it was.
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
        """Whether `length` more bytes of batches fit the lane and the present file of the log."""
        needed = self.staged + length
        return needed <= _LANE_SIZE and self._wal.fits(needed)

    def stage_batch(
        self, draft: Draft, block: ReadableBuffer, wall_ns: int, window: ClientWindow | None
    ) -> tuple[Numbered, WalAddress]:
        """Number a small batch and stage it; where it will lie in the log. One that is not admitted is not staged."""
        size = limits.BATCH_HEADER_SIZE + len(block)
        space = self._lane.space(self._owner, size)
        if space is None:
            raise FatalError(f"the lane has no room for {size} bytes that were reserved (INV-LOG-ROOM)")
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
        """Where batches of `length` bytes in all may be written in place, and the address of the first in the log."""
        space = self._lane.space(self._owner, length)
        if space is None:
            raise FatalError(f"the lane has no room for {length} bytes that were reserved (INV-LOG-ROOM)")
        return space, self._next_address()

    def stage_run(self, size: int, count: int, first_position: Position, timestamp_ns: TimestampNs) -> None:
        """Stage batches with dense positions that were written, back to back, into the last `space_for_run`."""
        self._lane.take(self._owner, size, self._ticket, count)
        self._count_in(size, count, first_position, timestamp_ns)

    def number_apart(
        self, draft: Draft, block: ReadableBuffer, wall_ns: int, window: ClientWindow | None
    ) -> tuple[Numbered, bytes]:
        """Number a batch that goes to its place at once; its header. `stage_reference` has to follow."""
        header = np.zeros(limits.BATCH_HEADER_SIZE, np.uint8)
        view = np.frombuffer(block, np.uint8)
        numbered = self.frontier.number(draft, header, 0, view, 0, view.size, self._term, wall_ns, window)
        return numbered, header.tobytes()

    def stage_reference(self, header: bytes, segment_first_seq: Seq, at: int) -> None:
        """Stage the mark that the batch with this header lies at its place."""
        parsed = parse_batch_header(header, source=BatchSource.STORED)
        self._stage_numbered(Reference(parsed, segment_first_seq, at), parsed.position, parsed.timestamp_ns)

    def control_of(self, parts: Sequence[SimpleControl]) -> Control:
        """Changes as one control: aside where positions are given elsewhere."""
        if self.follows and not self.is_granted:
            return UnpositionedControl(tuple(parts))
        return parts[0] if len(parts) == 1 else Compound(tuple(parts))

    def stage_control(self, control: Control, wall_ns: int, *, at: Position | None = None) -> Position:
        """Number a control and stage it; an aside has the position of what comes next (`at`), and leaves it to that."""
        if isinstance(control, UnpositionedControl):
            position = self.next_position if at is None else at
            timestamp_ns = self.frontier.last_timestamp_ns
        else:
            position, timestamp_ns = self.frontier.number_control(wall_ns)
            self.is_granted = False
        self._stage_numbered(control, position, timestamp_ns)
        return position

    def number_together(self, headers: Bytes, wall_ns: int) -> tuple[Position, TimestampNs, Rows]:
        """Number batches that go to their places at once, all at one position. `stage_together` has to follow."""
        return self.frontier.number_together(headers, self._term, wall_ns)

    def stage_together(self, control: Control, position: Position, timestamp_ns: TimestampNs) -> None:
        """Stage the control that refers to batches which were numbered together."""
        self.is_granted = False
        self._stage_numbered(control, position, timestamp_ns)

    def _stage_numbered(self, control: Control, position: Position, timestamp_ns: TimestampNs) -> None:
        batch = control_batch(control, position=position, timestamp_ns=timestamp_ns, term=self._term)
        self._lane.append(self._owner, batch, self._ticket)
        self._count_in(len(batch), 1, position, timestamp_ns)
        if isinstance(control, UnpositionedControl):
            self._aside_count += 1
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

    def flush(self, *, durable: bool) -> None:
        """Write what is staged, and with `durable` make it and everything before it durable."""
        write = self.begin_flush()
        if write is not None:
            write.execute(durable=durable)
            self.finish_flush(write, durable=durable)
        elif durable:
            self._wal.sync()

    def begin_flush(self) -> EpochWrite | None:
        """Seal what is staged as one epoch, which somebody has to write; None if nothing is staged."""
        if not self._count:
            return None
        self._epoch = LaneEpoch(self._epoch + 1)
        self._lane.seal_active(self._epoch)
        flush = self._lane.begin_flush(self._clock.monotonic_ns() // _NS_PER_US)
        pieces = flush.pieces()
        numbers = (self._first_position, self._count, self._timestamp_ns, self._aside_count)
        return self._wal.begin_epoch(pieces, self.staged, *numbers)

    def finish_flush(self, write: EpochWrite, *, durable: bool) -> None:
        """The epoch is written, `durable` or not."""
        self._wal.finish_epoch(write, durable=durable)
        self._lane.complete_flush(self._clock.monotonic_ns() // _NS_PER_US)
        self.staged = self._count = self._aside_count = 0

    def fail_flush(self, error: BaseException) -> None:
        """Writing the epoch failed: whoever watches the lane is told. Nothing can be written any more."""
        if self._lane.flush is not None:
            self._lane.fail_flush(type(error).__name__, self._clock.monotonic_ns() // _NS_PER_US)

    # --- reading back --------------------------------------------------------------------------------------------

    def locate(self, address: WalAddress) -> tuple[Readable, int]:
        """The file a batch of the log lies in, and the position there; for one that is staged only, the lane."""
        staged_at = self._wal.at + EPOCH_HEADER_SIZE
        if address >= staged_at and self._count:
            return StagedBytes(self._lane.staged_bytes()), address - staged_at
        return self._wal.locate(address)


class StagedBytes:
    """What is staged, as it is read: bytes at positions. Valid until the next flush ends."""

    path: Final = "the lane"

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def read(self, length: int, at: int) -> bytes:
        """Up to `length` bytes from position `at`."""
        return bytes(self._memory[at : at + length])

    def read_into(self, buffers: Sequence[WritableBuffer], at: int) -> int:
        """Fill the buffers from position `at`; return the bytes read."""
        total = 0
        for buffer in buffers:
            piece = self._memory[at + total : at + total + len(buffer)]
            buffer[: len(piece)] = piece
            total += len(piece)
        return total
