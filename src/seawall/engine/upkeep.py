"""When the log has grown so far that something has to be done about it.

    every step          batches that wait in the log are brought to their places, by somebody on the side
    every checkpoint    the rest is, segments are sealed, a snapshot is written, and files of the log are dropped

The more was placed on the side, the shorter a checkpoint stands in the way. `placing` is held by whoever brings batches
to their places, and by whoever closes segments or drops files of the log; it is taken before the lock of the store's
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from seawall.storage.epochs import WalAddress

#: Steps from one checkpoint to the next.
_STEPS = 8


class Upkeep:
    """Where the log was looked after last, and where it is next."""

    def __init__(self, checkpoint_at: WalAddress, checkpoint_size: int) -> None:
        self._checkpoint_size = checkpoint_size
        self._step = max(checkpoint_size // _STEPS, 1)
        self._checkpoint_at = checkpoint_at
        #: A log up to this address needs something.
        self.look_at = checkpoint_at + self._step
        self.placing = RLock()
        #: Has batches placed soon, on a thread; None where nobody does.
        self.place_soon: Callable[[], None] | None = None

    def look_after(self, at: int, checkpoint: Callable[[], None]) -> None:
        """Have done what a log up to this address needs."""
        self.look_at = at + self._step
        if at < self._checkpoint_at + self._checkpoint_size:
            if self.place_soon is not None:
                self.place_soon()
        elif self.placing.acquire(blocking=False):
            try:
                checkpoint()
            finally:
                self.placing.release()
        else:
            # Batches are being placed; the next commits look again.
            self.look_at = at + self._step // _STEPS
        self.look_at = min(self.look_at, max(self._checkpoint_at + self._checkpoint_size, at + 1))

    def checkpointed(self, at: WalAddress) -> None:
        """There was a checkpoint, or none could be made: the next is due after another stretch of the log."""
        self._checkpoint_at = at
        self.look_at = at + self._step
