"""Decides when the log has grown so far that a flush or a checkpoint is due.

A background thread flushes batches to their segments while appends and reads continue: as soon as the log is quiet, or,
if it never is, when the log reaches its full size. The checkpoint follows, during which other changes wait: it flushes
the rest, writes a snapshot and drops log files. Without a background thread, the checkpoint does all of this when the
log reaches its full size.

Large batches are written to their segments at once, and the log refers to them in a few bytes. So the bytes written
that way count as well: only sealed segments can be dropped when all their records are dead.

A long log makes the next opening slower and takes disk space, and flushing next to appends slows them down. So a burst
is written at the speed of the log, up to the full size, and flushed when it is over.

Take `flush_lock`, to flush batches, close segments or drop log files. Lock order: `flush_lock` before the
lock of the store's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Final

from seawall.limits import ACTIVE_SEGMENTS_MAX
from seawall.storage.wal.epochs import WalAddress

#: The log is checked each time it grows by this fraction of its full size; a shorter log is not worth a checkpoint.
_CHECK_STEPS: Final = 16

#: The fraction of that size that large batches may write before segments are sealed.
_FLUSHED_FRACTION: Final = 4


class CheckpointSchedule:
    """The log address of the last checkpoint, and the address at which something is due next."""

    def __init__(self, checkpoint_at: WalAddress, checkpoint_size: int) -> None:
        self._checkpoint_size = checkpoint_size
        self._check_step = max(checkpoint_size // _CHECK_STEPS, 1)
        #: Wakes the flush thread, with True if the flush is urgent; the thread calls `flushed` when it is done.
        self._flush_soon: Callable[[bool], None] | None = None
        self.flush_lock = RLock()
        self.checkpointed(checkpoint_at)

    def flush_in_background(self, flush_soon: Callable[[bool], None]) -> None:
        """Let a background thread flush: `flush_soon` wakes it."""
        self._flush_soon = flush_soon
        self.next_check_at = self._checkpoint_at + self._check_step

    def is_worth_checkpoint(self, at: WalAddress) -> bool:
        """True if a log up to this address is long enough for a checkpoint."""
        return at >= self._checkpoint_at + self._check_step

    def run_due(self, at: int, checkpoint: Callable[[], None]) -> None:
        """Run whatever flush or checkpoint is due for a log up to this address."""
        is_due = self._is_urgent or at >= self._checkpoint_at + self._checkpoint_size
        self.next_check_at = at + self._check_step
        if self._flush_soon is not None and not self._is_flushed:
            self._flush_soon(is_due)
            if not is_due:
                self.next_check_at = self._checkpoint_at + self._checkpoint_size
        elif (is_due or self._is_flushed) and self.flush_lock.acquire(blocking=False):
            try:
                checkpoint()
            finally:
                self.flush_lock.release()

    def rolled(self, flushed_size: int) -> None:
        """Note that a segment began after one that holds `flushed_size` bytes of batches.

        The older segments stay in memory and in every snapshot until they are sealed, so their number and size are
        limited.
        """
        self._rolls += 1
        self._flushed_size += flushed_size
        if self._rolls >= ACTIVE_SEGMENTS_MAX or self._flushed_size >= self._checkpoint_size // _FLUSHED_FRACTION:
            self._make_urgent()

    def disk_full_found(self, at: WalAddress) -> None:
        """Note that the disk is full: a checkpoint may free the space of a log up to this address."""
        if self.is_worth_checkpoint(at):
            self._make_urgent()

    def flushed(self) -> None:
        """Note that almost nothing is unflushed: a checkpoint is short now."""
        self._is_flushed = True
        self.next_check_at = 0

    def checkpointed(self, at: WalAddress) -> None:
        """Note a checkpoint, or a failed attempt: the next one is due after the log has grown again."""
        self._checkpoint_at = at
        self._is_flushed = self._is_urgent = False
        self._rolls = self._flushed_size = 0
        #: Something is due when the log reaches this address.
        self.next_check_at = at + (self._checkpoint_size if self._flush_soon is None else self._check_step)

    def _make_urgent(self) -> None:
        self._is_urgent = True
        self.next_check_at = 0
