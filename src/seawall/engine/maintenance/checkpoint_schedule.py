"""When the log has grown so far that something is due: places to be filled, or a checkpoint.

Somebody on the side brings batches that wait in the log to their places while appends and reads go on: as soon as
nothing comes for a while, or, where something always does, when the log has its size. Then there is the checkpoint, for
which others wait: it brings the rest, writes a snapshot and drops files of the log. Where nobody is on the side, it
does all of it, when the log has its size.

Large batches go to their places at once, and the log tells of them in a few bytes. So what they have filled counts as
well: only sealed segments are dropped when nothing in them is wanted any more.

A long log costs time at the next opening and space on the disk, and filling places beside appends costs their speed:
so a burst is written at the speed of the log, up to its size, and placed when it is over.

`placing` is held by whoever brings batches to their places, and by whoever closes segments or drops files of the log;
it is taken before the lock of the store's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Final

from seawall.limits import SEGMENTS_FILLING_MAX
from seawall.storage.wal.epochs import WalAddress

#: So much of a log, one part of its size, is worth being shortened; and so often it is looked at.
_PARTS: Final = 16

#: The part of that size which large batches may fill before segments are sealed.
_FILLED_PARTS: Final = 4


class CheckpointSchedule:
    """Where the log was looked after last, and where it is next."""

    def __init__(self, checkpoint_at: WalAddress, checkpoint_size: int) -> None:
        self._size = checkpoint_size
        self._part = max(checkpoint_size // _PARTS, 1)
        #: Has what waits brought to its places on a thread, at once if that is urgent, and calls `placed` then.
        self._flush_soon: Callable[[bool], None] | None = None
        self.placing = RLock()
        self.checkpointed(checkpoint_at)

    def on_the_side(self, place_soon: Callable[[bool], None]) -> None:
        """Have places filled by somebody else."""
        self._flush_soon = place_soon
        self.look_at = self._begun_at + self._part

    def is_long(self, at: WalAddress) -> bool:
        """Whether a log up to this address is worth a checkpoint."""
        return at >= self._begun_at + self._part

    def look_after(self, at: int, checkpoint: Callable[[], None]) -> None:
        """Have done what a log up to this address needs."""
        is_due = self._is_pressed or at >= self._begun_at + self._size
        self.look_at = at + self._part
        if self._flush_soon is not None and not self._is_flushed:
            self._flush_soon(is_due)
            if not is_due:
                self.look_at = self._begun_at + self._size
        elif (is_due or self._is_flushed) and self.placing.acquire(blocking=False):
            try:
                checkpoint()
            finally:
                self.placing.release()

    def rolled(self, filled: int) -> None:
        """A segment was begun behind one in which so many bytes have their places.

        Those before it are in memory and in every snapshot until they are sealed: there must not be too many, nor too
        much in them.
        """
        self._rolls += 1
        self._filled += filled
        if self._rolls >= SEGMENTS_FILLING_MAX or self._filled >= self._size // _FILLED_PARTS:
            self._press()

    def found_no_space(self, at: WalAddress) -> None:
        """The disk is full: a checkpoint may give back what a log up to this address takes."""
        if self.is_long(at):
            self._press()

    def placed(self) -> None:
        """Next to nothing waits for its place: now a checkpoint is short."""
        self._is_flushed = True
        self.look_at = 0

    def checkpointed(self, at: WalAddress) -> None:
        """There was a checkpoint, or none could be made: the next is due after another stretch of the log."""
        self._begun_at = at
        self._is_flushed = self._is_pressed = False
        self._rolls = self._filled = 0
        #: A log that reaches this address needs something.
        self.look_at = at + (self._size if self._flush_soon is None else self._part)

    def _press(self) -> None:
        self._is_pressed = True
        self.look_at = 0
