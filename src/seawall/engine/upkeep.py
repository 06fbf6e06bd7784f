"""When the log has grown so far that a checkpoint is due, and what comes before it.

First batches that wait in the log are brought to their places by somebody on the side, while appends and reads go on.
Then there is the checkpoint, for which they wait: it brings the rest, seals segments, writes a snapshot and drops files
of the log. Where nobody is on the side, it does all of it.

`placing` is held by whoever brings batches to their places, and by whoever closes segments or drops files of the log;
it is taken before the lock of the store's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from seawall.storage.epochs import WalAddress

#: So often between two checkpoints the log is looked at again, when one could not be made.
_LOOKS = 16


class Upkeep:
    """Where the log was looked after last, and where it is next."""

    def __init__(self, checkpoint_at: WalAddress, checkpoint_size: int) -> None:
        self._size = checkpoint_size
        self._is_placed = False
        #: A log that reaches this address needs something.
        self.look_at = checkpoint_at + checkpoint_size
        self.placing = RLock()
        #: Has what waits brought to its places soon, on a thread, and calls `placed` then; None where nobody does.
        self.place_soon: Callable[[], None] | None = None

    def look_after(self, at: int, checkpoint: Callable[[], None]) -> None:
        """Have done what a log up to this address needs."""
        self.look_at = at + max(self._size // _LOOKS, 1)
        if self.place_soon is not None and not self._is_placed:
            self.place_soon()
        elif self.placing.acquire(blocking=False):
            try:
                checkpoint()
            finally:
                self.placing.release()

    def placed(self) -> None:
        """Next to nothing waits for its place: now a checkpoint is short."""
        self._is_placed = True
        self.look_at = 0

    def checkpointed(self, at: WalAddress) -> None:
        """There was a checkpoint, or none could be made: the next is due after another stretch of the log."""
        self._is_placed = False
        self.look_at = at + self._size
